"""Write README's table of families from their records: ``python docs/families.py``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import transformers

from skbert._core.families import FAMILIES

if TYPE_CHECKING:
    from skbert._core.families.record import Family, Job

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- families: python docs/families.py -->\n", "<!-- end of families -->\n"
HEADS: dict[str, Job] = {
    "texts": "sequence classification",
    "words": "token classification",
    "answers": "question answering",
    "choices": "multiple choice",
    "pre-training": "masked language modelling",
}


def way_of(family: Family) -> str:
    """How a family is run on a CPU."""
    encoder = getattr(transformers, family.head_class("embedding").name)
    if not encoder._supports_attention_backend:
        return "padded"
    return "kernels" if family.has_kernels else "packed"


def row_of(family: Family) -> list[str]:
    """The cells of a family."""
    tokenizers = ", ".join(kind.name for kind in family.tokenizers)
    heads = ["yes" if job in family.heads else "" for job in HEADS.values()]
    has_heads = "yes" if family.has_own_heads else ""
    return [f"`{family.model_type}`", way_of(family), tokenizers, *heads, has_heads]


def table() -> str:
    """The table, between its markers."""
    names = ["`model_type`", "runs", "tokenizers, the usual one first", *HEADS, "inspection"]
    rows = [names, ["---"] * len(names), *map(row_of, FAMILIES.values())]
    lines = ["".join(f"| {cell} " for cell in row) + "|\n" for row in rows]
    return "".join([BEGIN, *lines, END])


def with_table(page: str) -> str:
    """A page with the table in the place of the one that it has."""
    before, rest = page.split(BEGIN)
    return before + table() + rest.split(END)[1]


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
