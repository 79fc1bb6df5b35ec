"""A page of facts: sections of sentences, tables and bars, in HTML and in 80 columns of text.

What it shows is the same in both. Depends on `_html`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from skbert.inspection._html import View, escaped, legible

__all__ = ["Bar", "Block", "Cell", "Embedded", "Section", "Sentence", "Table", "whole_page"]

_WIDTH = 80
_BAR_WIDTH = 28
_BLOCKS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589\u2588"  # of a cell's eighths
_LONGEST = 30  # characters of a cell in a terminal
_STYLE = """
.skbert h1 { font-size: 1.4em; margin: 0.2em 0; }
.skbert h2 { font-size: 1.1em; margin: 1.4em 0 0.3em; }
.skbert .report { max-width: 58rem; margin: 0 auto; }
.skbert .report p { margin: 0.3em 0; max-width: 44rem; }
.skbert .report table { margin: 0.5em 0; font-variant-numeric: tabular-nums; }
.skbert .report th, .skbert .report td {
  border-width: 0 0 1px; overflow-wrap: break-word; max-width: 16rem;
}
.skbert .report .number { text-align: right; white-space: nowrap; }
.skbert .report .wide { width: 16rem; min-width: 6rem; }
.skbert .report .bar { display: block; height: 1em; margin-top: 0.3em; }
.skbert .report .bar { background: #56b4e9; }
.skbert .report .bar.marked { background: #e69f00; }
.skbert .report .warn { border-left: 4px solid #e69f00; padding-left: 0.6em; }
@media (max-width: 34rem) {
  .skbert .report table { font-size: 0.9em; }
  .skbert .report th, .skbert .report td { padding: 0.25em 0.3em; }
  .skbert .report th.number { white-space: normal; }
  .skbert .report td:first-child { min-width: 4.6rem; }
  .skbert .report .wide { min-width: 3rem; }
}
"""


class Bar(NamedTuple):
    """A bar in a table, from 0 to 1 of its width; a marked one has another colour."""

    share: float
    is_marked: bool = False


class Sentence(NamedTuple):
    """A line of prose, perhaps one that asks for attention."""

    text: str
    is_warning: bool = False

    def as_html(self) -> str:
        """A paragraph."""
        return f"<p{' class=warn' * self.is_warning}>{escaped(self.text)}</p>"

    def as_text(self) -> str:
        """Lines of 80 columns."""
        mark = "! " if self.is_warning else ""
        return textwrap.fill(
            mark + legible(self.text), _WIDTH, subsequent_indent="  " * bool(mark)
        )


Cell = str | Bar


class Table(NamedTuple):
    """Rows under a head; all columns but the first hold numbers or bars."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def as_html(self) -> str:
        """A table."""
        head = "".join(_cell_html("th", name, column) for column, name in enumerate(self.head))
        rows = (
            "".join(_cell_html("td", cell, column) for column, cell in enumerate(row))
            for row in self.rows
        )
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def as_text(self) -> str:
        """Columns side by side."""
        rows = [[_cell_text(cell) for cell in row] for row in (self.head, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        is_left = [not column or any(isinstance(row[column], Bar) for row in self.rows)
                   for column in range(len(self.head))]  # fmt: skip
        lines = (
            "  ".join(
                cell.ljust(width) if left else cell.rjust(width)
                for cell, width, left in zip(row, widths, is_left, strict=True)
            ).rstrip()
            for row in rows
        )
        return "\n".join(lines)


class Embedded(NamedTuple):
    """A view within the page."""

    view: View

    def as_html(self) -> str:
        """The view's HTML."""
        return f"<style>{self.view.style}</style>{self.view.body}"

    def as_text(self) -> str:
        """The view's text."""
        return self.view.text


Block = Sentence | Table | Embedded


class Section(NamedTuple):
    """A heading, and what stands below it."""

    title: str
    blocks: Sequence[Block]


def whole_page(title: str, sections: Sequence[Section]) -> View:
    """The sections as one view."""
    html = "".join(
        f"<section><h2>{escaped(section.title)}</h2>"
        + "".join(block.as_html() for block in section.blocks)
        + "</section>"
        for section in sections
    )
    texts = (
        f"{section.title}\n{'-' * len(section.title)}\n"
        + "\n\n".join(block.as_text() for block in section.blocks)
        for section in sections
    )
    head = f"{legible(title)}\n{'=' * min(len(legible(title)), _WIDTH)}"
    body = f'<div class="report"><h1>{escaped(title)}</h1>{html}</div>'
    return View(title, body, "\n\n".join([head, *texts]), _STYLE)


def _cell_html(tag: str, cell: Cell, column: int) -> str:
    if isinstance(cell, Bar):
        kind = "bar marked" if cell.is_marked else "bar"
        bar = f'<span class="{kind}" style="width:{100 * cell.share:.1f}%"></span>'
        return f'<{tag} class="wide">{bar}</{tag}>'
    kind = ' class="number"' if column else ""
    return f"<{tag}{kind}>{escaped(cell)}</{tag}>"


def _cell_text(cell: Cell) -> str:
    if isinstance(cell, Bar):
        eighths = round(8 * _BAR_WIDTH * cell.share)
        if cell.is_marked:
            return "\u2592" * -(-eighths // 8)
        return _BLOCKS[8] * (eighths // 8) + _BLOCKS[eighths % 8].strip()
    return (
        textwrap.shorten(legible(cell), _LONGEST, placeholder="\u2026") or legible(cell)[:_LONGEST]
    )
