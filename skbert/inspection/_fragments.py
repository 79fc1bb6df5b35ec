"""Parts of text views, each as HTML and as plain text: marked texts, bars, scales, rows.

Whatever comes from the user goes through ``escaped`` or ``legible`` here. Depends on ``_html``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from skbert.inspection._html import escaped, legible

__all__ = [
    "STYLE",
    "Bar",
    "Fragment",
    "Mark",
    "bars",
    "entry",
    "legend",
    "marked",
    "note",
    "scale",
]

_WIDTH = 80  # columns of a terminal
_BAR = 20  # columns of a full bar
_LABEL = 34  # columns of the longest label beside a bar
_WHOLE = 1200  # characters of a text that is shown whole
_AROUND = 300  # characters that are kept on each side of a mark in a longer text

# Okabe and Ito's colours, which most colour-blind people can tell apart.
_PALETTE = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#999999")
STYLE = """
.skbert { padding: 0.5em max(0.5em, calc(50% - 29rem)); }
.skbert p { margin: 0.3em 0; }
.skbert .row { border-top: 1px solid var(--line); padding: 0.7em 0 0.8em; }
.skbert .row.wrong { border-left: 4px solid #D55E00; padding-left: 0.8em; }
.skbert .row > header { display: flex; flex-wrap: wrap; gap: 0 0.9em; font-size: 0.85em; }
.skbert .verdict { font-weight: 600; }
.skbert .wrong > header .verdict { color: var(--ink); }
.skbert .text { white-space: pre-wrap; }
.skbert .text > small { display: block; color: var(--soft); }
.skbert mark {
  color: inherit; border-radius: 0.25em; padding: 0.1em 0.25em;
  background: color-mix(in srgb, var(--hue) 28%, transparent);
  border-bottom: 3px solid var(--hue);
  -webkit-box-decoration-break: clone; box-decoration-break: clone;
}
.skbert mark.open { background: none; border: 2px dashed var(--hue); }
.skbert mark > small { font-weight: 600; font-size: 0.75em; margin-left: 0.4em; }
.skbert .legend mark { margin-right: 0.5em; }
.skbert .bars {
  display: grid; grid-template-columns: fit-content(22rem) minmax(4rem, 14rem) auto 1fr;
  gap: 0.15em 0.7em; align-items: center; font-size: 0.9em; margin: 0.4em 0 0;
}
.skbert .bars > b, .skbert .bars > span { min-width: 0; }
.skbert .track, .skbert .scale {
  position: relative; height: 0.7em; border-radius: 0.35em; background: var(--tint);
  box-shadow: inset 0 0 0 1px var(--line);
}
.skbert .track > i {
  position: absolute; inset: 0 auto 0 0; border-radius: inherit; background: #0072B2;
}
.skbert .track.other > i { background: #8c959f; }
.skbert .scale > i, .skbert .scale > u {
  position: absolute; top: -0.15em; height: 1em; width: 0.35em; margin-left: -0.17em;
  border-radius: 0.1em; background: #0072B2;
}
.skbert .scale > u { background: var(--ground); box-shadow: inset 0 0 0 2px #D55E00; }
.skbert .number { font-variant-numeric: tabular-nums; text-align: right; }
@media (max-width: 34rem) {
  .skbert .bars { grid-template-columns: minmax(0, 11rem) minmax(2.5rem, 1fr) auto; }
  .skbert .bars > .flags { grid-column: 1 / -1; margin-top: -0.3em; }
  .skbert .bars > .flags:empty { display: none; }
}
""" + "".join(f".skbert .c{i} {{ --hue: {colour}; }}\n" for i, colour in enumerate(_PALETTE))


class Fragment(NamedTuple):
    """A part of a view."""

    html: str
    text: str  # lines of at most 80 columns

    @classmethod
    def joined(cls, parts: Iterable[Fragment]) -> Fragment:
        """The parts below each other, without the empty ones."""
        parts = [part for part in parts if part.text]
        return cls("".join(part.html for part in parts), "\n".join(part.text for part in parts))


class Mark(NamedTuple):
    """A place in a text."""

    start: int
    end: int
    label: str
    hue: int  # number of its colour
    is_open: bool = False  # outlined, not filled


class Bar(NamedTuple):
    """A probability with what it belongs to."""

    label: str
    share: float
    flags: tuple[str, ...] = ()


def wrapped(text: str, indent: str = "  ") -> str:
    """A text from the user in lines that fit into a terminal."""
    return textwrap.fill(
        legible(text), _WIDTH, initial_indent=indent, subsequent_indent=indent
    )  # fmt: skip


def note(text: str) -> Fragment:
    """A remark in small print."""
    return Fragment(f'<p class="soft"><small>{escaped(text)}</small></p>', wrapped(text))


def marked(text: str, marks: Sequence[Mark] = (), name: str | None = None) -> Fragment:
    """A text with marks that do not overlap, below the name of its column; a long one is cut."""
    html, plain = [] if name is None else [f"<small>{escaped(name)}</small>"], []
    if not text.strip():
        html.append('<i class="soft">(empty)</i>')
        plain.append("(empty)")
    at = 0
    for mark in [*sorted(marks), None]:
        end = len(text) if mark is None else mark.start
        gap = _cut(text[at:end], _AROUND if marks else _WHOLE - _AROUND)
        html.append(escaped(gap))
        plain.append(gap)
        if mark is not None:
            words, at = text[mark.start : mark.end], mark.end
            html.append(_mark(words, mark))
            plain.append(f"[{words} {mark.label}]")
    text = wrapped("".join(plain) if name is None else f"{name}: {''.join(plain)}")
    return Fragment(f'<p class="text">{"".join(html)}</p>', text)


def _mark(words: str, mark: Mark) -> str:
    kind = f"c{mark.hue % len(_PALETTE)}" + " open" * mark.is_open
    return f'<mark class="{kind}">{escaped(words)}<small>{escaped(mark.label)}</small></mark>'


def _cut(gap: str, begin: int) -> str:
    """What stands between two marks, without the middle where it is long."""
    left_out = len(gap) - begin - _AROUND
    if len(gap) <= _WHOLE:
        return gap
    return f"{gap[:begin]} […{left_out:,} characters left out…] {gap[-_AROUND:]}"


def legend(labels: Sequence[str]) -> Fragment:
    """The colours of the labels."""
    html = "".join(
        f'<mark class="c{hue % len(_PALETTE)}">{escaped(label)}</mark>'
        for hue, label in enumerate(labels)
    )
    return Fragment(f'<p class="legend"><small>{html}</small></p>', "")


def bars(lines: Sequence[Bar]) -> Fragment:
    """Probabilities as bars; those with a flag stand out."""
    html, plain = [], []
    width = max((min(_LABEL, len(legible(line.label))) for line in lines), default=0)
    for label, share, flags in lines:
        tag, other, arrow = ("b", "", " ← ") if flags else ("span", " other", "")
        words = arrow + ", ".join(flags)
        html.append(
            f'<{tag}>{escaped(label)}</{tag}><div class="track{other}">'
            f'<i style="width:{100 * share:.1f}%"></i></div>'
            f'<span class="number">{share:.2f}</span><small class="flags">'
            f"{escaped(words.strip())}</small>"
        )
        short = textwrap.shorten(legible(label), _LABEL, placeholder="…") or "…"
        full = "█" * round(_BAR * share)
        plain.append(f"  {short[:_LABEL]:<{width}} {share:4.2f} {full:<{_BAR}}{words}".rstrip())
    return Fragment(f'<div class="bars">{"".join(html)}</div>', "\n".join(plain))


def scale(name: str, predicted: float, true: float | None, ends: tuple[float, float]) -> Fragment:
    """A number on a scale between two ends, with the true one where it is known."""
    words = f"{predicted:.4g}" + (
        "" if true is None else f", true {true:.4g}, off by {predicted - true:+.2g}"
    )
    span = (ends[1] - ends[0]) or 1.0
    at = f'<i style="left:{100 * (predicted - ends[0]) / span:.1f}%"></i>'
    if true is not None:
        at = f'<u style="left:{100 * (true - ends[0]) / span:.1f}%"></u>{at}'
    html = (
        f'<div class="bars"><b>{escaped(name)}</b><div class="scale">{at}</div>'
        f'<span class="number">{words}</span><small class="flags"></small></div>'
    )
    return Fragment(html, wrapped(f"{name} {words}"))


def entry(row: int, parts: Iterable[Fragment], *, is_right: bool | None, more: str) -> Fragment:
    """One row: its number, whether it is right, what else there is to say of it, and its parts."""
    verdict = {None: "", True: "✓ right", False: "✗ wrong"}[is_right]
    body = Fragment.joined(parts)
    heads = [each for each in (f"Row {row}", verdict, more) if each]
    spans = "".join(
        f'<span class="{"verdict" if each == verdict else "soft"}">{escaped(each)}</span>'
        for each in heads
    )
    kind = "row wrong" if is_right is False else "row"
    html = f'<article class="{kind}"><header>{spans}</header>{body.html}</article>'
    return Fragment(html, f"{'  '.join(heads)}\n{body.text}")
