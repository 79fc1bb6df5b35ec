"""Contributions of words as colours behind them: orange raises the output, blue lowers it.

Depends on `_html` and numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from skbert._arrays import FloatArray, IntArray
from skbert.inspection._html import escaped, legible

__all__ = ["HEAT_STYLE", "Heat", "heat_html", "heat_text"]

_UP, _DOWN = "230,159,0", "86,180,233"  # of the palette of Okabe and Ito
_MOST_OPAQUE = 0.5  # so that the ink stays legible on light and on dark ground
_MOST_LINES = 20  # of plain text

HEAT_STYLE = f"""
.skbert .heat {{ margin-bottom: 1.2em; }}
.skbert .heat p {{ margin: 0.2em 0 0.6em; white-space: pre-wrap; }}
.skbert .heat .legend {{ color: var(--soft); font-size: 0.85em; }}
.skbert .heat mark {{ color: inherit; border-radius: 0.2em; padding: 0.1em 0; }}
.skbert .heat .scale {{
  display: inline-block; width: 6em; height: 0.8em; vertical-align: middle; margin: 0 0.4em;
  background: linear-gradient(to right, rgba({_DOWN},{_MOST_OPAQUE}), transparent,
    rgba({_UP},{_MOST_OPAQUE}));
}}
"""


class Heat(NamedTuple):
    """Contributions of words, with the texts that they lie in."""

    heading: str
    output: float
    baseline_output: float
    residual: float
    texts: Sequence[str]
    words: Sequence[str]
    spans: IntArray  # (n_words, 3)
    values: FloatArray  # (n_words,)


def heat_html(heat: Heat) -> str:
    """Texts with a colour behind each word, below them what the colours mean."""
    most = float(np.abs(heat.values).max(initial=0.0))
    texts = "".join(
        f"<p>{_coloured(text, heat, field, most)}</p>" for field, text in enumerate(heat.texts)
    )
    legend = (
        f'lowers {-most:+.3g}<span class="scale"></span>raises {most:+.3g} &middot; '
        f"{_numbers(heat)}"
        if most
        else _numbers(heat)
    )
    return (
        f'<div class="heat"><b>{escaped(heat.heading)}</b>{texts}'
        f'<div class="legend">{legend}</div></div>'
    )


def _coloured(text: str, heat: Heat, field: int, most: float) -> str:
    """One text with a colour behind each of its words."""
    parts, at = [], 0
    for start, end, value in _merged(heat, field):
        strength = _MOST_OPAQUE * abs(value) / most if most else 0.0
        colour = f"rgba({_UP if value > 0 else _DOWN},{strength:.3f})"
        parts.append(escaped(text[at:start]))
        parts.append(
            f'<mark style="background:{colour}" title="{value:+.3g}">'
            f"{escaped(text[start:end])}</mark>"
        )
        at = end
    return "".join([*parts, escaped(text[at:])])


def _merged(heat: Heat, field: int) -> list[tuple[int, int, float]]:
    """Start, end and value of the words of a text; those that overlap are one."""
    merged: list[tuple[int, int, float]] = []
    chosen = np.flatnonzero(heat.spans[:, 0] == field)
    for row in chosen[np.lexsort(heat.spans[chosen, :0:-1].T)].tolist():
        _, start, end = heat.spans[row].tolist()
        value = float(heat.values[row])
        if merged and start < merged[-1][1]:
            first, last, before = merged.pop()
            start, end, value = first, max(last, end), before + value
        merged.append((start, end, value))
    return merged


def heat_text(heat: Heat) -> str:
    """The words with their contributions, one a line; of many the strongest."""
    strongest = np.argsort(-np.abs(heat.values), kind="stable")[:_MOST_LINES]
    lines = [f"{heat.values[i]:+9.3f}  {legible(heat.words[i])}" for i in np.sort(strongest)]
    left_out = len(heat.values) - len(strongest)
    lines += [f"{left_out} more words, each of which contributes less"] if left_out else []
    return "\n".join([legible(heat.heading), *lines, _numbers(heat)])


def _numbers(heat: Heat) -> str:
    return (
        f"output {heat.output:.4g}, baseline {heat.baseline_output:.4g}, "
        f"residual {heat.residual:.2g}"
    )
