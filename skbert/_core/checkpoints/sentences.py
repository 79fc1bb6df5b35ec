"""What the folder of a sentence encoder says of the vector of a row, beyond the encoder itself.

Knows JSON files only: modules.json, which lists what follows the encoder, and the settings of the
pooling. What is not computed here is noted, and refused by whoever asks for that vector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from skbert._core.attention.pooling import TOKEN_POOLINGS
from skbert._core.checkpoints.strict import is_plain
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from skbert._core.checkpoints.strict import Members

__all__ = [
    "CHAIN",
    "HEAD",
    "SETTINGS",
    "Modules",
    "RowVector",
    "check_place",
    "read_modules",
    "read_row_vector",
]

Modules = list[tuple[str, str]] | None  # kind and subfolder

CHAIN = "modules.json"
SETTINGS = "sentence_bert_config.json"
HEAD = "skbert_head"  # in config.json, where the modules after the pooling are layers of a head
_POOLING, _ENCODER = "Pooling", "Transformer"
# A length of 1 is the caller's choice, and dropout is off.
_KNOWN = (_ENCODER, _POOLING, "Normalize", "Dropout")
_DECLARED = {setting: name for name, pooling in TOKEN_POOLINGS.items()
             for setting in (name, pooling.declared_as)}  # fmt: skip


class RowVector(NamedTuple):
    """How a sentence encoder makes the vector of a row."""

    pooling: str | None  # "mean", "cls" or "max"; None for several, and where none is declared
    lacking: str = ""  # what it does besides that is not computed here


def read_modules(members: Members) -> Modules:
    """The modules of a sentence encoder, each with its subfolder; None without a list."""
    chain = members.load_json(CHAIN)
    modules = []
    for part in chain if isinstance(chain, list) else ():
        match part:
            case {"type": str(name), "path": subfolder}:
                kind = name.rpartition(".")[2]
                modules.append((kind, _plain(members, kind, subfolder)))
    return None if chain is None else modules


def _plain(members: Members, kind: str, subfolder: Any) -> str:
    """A subfolder, if it is one; a module without settings may be in the folder itself."""
    if is_plain(subfolder) or (subfolder == "" and kind != _POOLING):
        return str(subfolder)
    raise ModelError(
        f"{members.folder / CHAIN} puts a module into {str(subfolder)[:120]!r}. It should be a"
        " folder in the same folder: do not use this model."
    )


def check_place(folder: Path, modules: Modules) -> None:
    """Refuse a folder whose encoder is in a subfolder."""
    for kind, subfolder in modules or ():
        if kind == _ENCODER and subfolder:
            raise ModelError(
                f"{folder / CHAIN} puts the encoder into the subfolder {subfolder!r}. Give that"
                f" one as model={str(folder / subfolder)!r}, with the pooling that belongs to it,"
                " such as pooling='mean'."
            )


def read_row_vector(members: Members, modules: Modules, *, is_lowercase: bool) -> RowVector:
    """How the vector of a row is made; ``is_lowercase`` says whether the tokenizer is."""
    listed = [(_POOLING, "1_Pooling")] if modules is None else modules
    folders = [subfolder for kind, subfolder in listed if kind == _POOLING]
    pooling, fault = _read_pooling(members, folders[0]) if folders else (None, "")
    lacking = [f"the module {kind[:80]}" for kind, _ in listed if kind not in _KNOWN]
    lacking += [fault] * bool(fault) + ["several modules for pooling"] * (len(folders) > 1)
    if members.load_object(SETTINGS).get("do_lower_case") is True and not is_lowercase:
        lacking.append("texts in lower case, which the tokenizer does not make")
    return RowVector(pooling, " and ".join(lacking))


def _read_pooling(members: Members, subfolder: str) -> tuple[str | None, str]:
    """The pooling in a subfolder; None, and what it is, for several or for none known here."""
    table = members.load_object(f"{subfolder}/config.json")
    modes = [key for key, on in table.items() if key.startswith("pooling_mode_") and on is True]
    declared = table.get("pooling_mode", modes)
    match declared:
        case str(mode) | [str(mode)]:
            return _DECLARED.get(mode), "" if mode in _DECLARED else f"the pooling {mode[:80]}"
        case []:  # sentence-transformers then takes the mean
            return "mean" if table else None, ""
    return None, f"the pooling {str(declared)[:120]}"
