"""What all displays draw with: axes, colours, names that stay legible, heat maps, panels.

Depends on matplotlib, which is imported when something is drawn, and not before.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from skbert._arrays import FloatArray
from skbert.inspection._html import legible

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.image import AxesImage

__all__ = [
    "COLOURS",
    "Display",
    "heat_map",
    "legend_beside",
    "name_scale",
    "name_ticks",
    "panels",
    "plain",
    "write_cells",
]

# Of Okabe and Ito 2008, "Color Universal Design", those that can be seen on white and on black;
# in this order, neighbours differ in lightness too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7")
_INCHES_PER_NAME = 0.15
_DARK = 0.72  # share of the largest value from which cells are written on in white


class Display(ABC):
    """Base of the displays: where they draw, and in what size."""

    ax_: Axes
    figure_: Figure | SubFigure

    @classmethod
    def _require_matplotlib(cls) -> None:
        """Raise before anything is computed if nothing can be drawn."""
        try:
            import_module("matplotlib")
        except ImportError as error:
            raise ImportError(
                f"{cls.__name__} draws with matplotlib, which is not installed. Type "
                'pip install "skbert[plot]".'
            ) from error

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw what the display holds.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; if there are several panels, they share its place. None makes a new
            figure.

        Returns
        -------
        display : Display
            The display itself.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        if ax is None:
            self._require_matplotlib()
            from matplotlib import pyplot as plt

            _, ax = plt.subplots(figsize=self._size(), layout="compressed")
        self.ax_, self.figure_ = ax, ax.figure
        self._draw(ax)
        return self

    def _size(self) -> tuple[float, float]:
        """Width and height of a new figure, in inches."""
        return 6.4, 4.8

    @abstractmethod
    def _draw(self, ax: Axes) -> None:
        """Draw in these axes."""


def plain(name: object, width: int = 28) -> str:
    """A name in one short line that is drawn letter by letter, dollar signs too."""
    text = " ".join(legible(name).split())
    return (text if len(text) <= width else f"{text[: width - 1]}…").replace("$", r"\$")


def name_ticks(axis: Axis, names: Sequence[object]) -> None:
    """Name the places 0 to n - 1 of an axis, all of them or as many as are legible."""
    axes = axis.axes
    axes.apply_aspect()
    box = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())
    is_x = axis is axes.xaxis
    room = max(box.width if is_x else box.height, 0.1)
    shown = range(0, len(names), math.ceil(len(names) * _INCHES_PER_NAME / room) or 1)
    texts = [plain(names[place]) for place in shown]
    axis.set_ticks(shown, labels=texts, fontsize=8)
    if is_x and max(map(len, texts), default=0) > 3:
        for label in axis.get_ticklabels():
            label.set(rotation=45, horizontalalignment="right", rotation_mode="anchor")


def heat_map(
    ax: Axes,
    values: FloatArray,
    label: str,
    *,
    largest: float | None = None,
    aspect: Literal["equal", "auto"] = "equal",
) -> AxesImage:
    """Draw values from 0 on as cells that get darker, with a scale; NaN is grey."""
    image = ax.imshow(
        values, cmap="Blues", vmin=0, vmax=largest, aspect=aspect, interpolation="nearest"
    )
    ax.set_facecolor("0.88")
    name_scale(ax, image, label)
    return image


def name_scale(ax: Axes, colours: AxesImage | PathCollection, label: str) -> None:
    """Say beside the axes which colours stand for which numbers."""
    ax.figure.colorbar(colours, cax=ax.inset_axes((1.03, 0.0, 0.03, 1.0)), label=label)


def legend_beside(
    ax: Axes, handles: Sequence[Artist] | None = None, labels: Sequence[str] | None = None
) -> None:
    """Draw the legend beside the axes, where it hides nothing; None: of all that has a label."""
    ax.legend(
        handles=handles, labels=labels, loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8,
        frameon=False,
    )  # fmt: skip


def write_cells(image: AxesImage, values: FloatArray, texts: Sequence[Sequence[str]]) -> None:
    """Write a text into each cell of a heat map of values, light on dark and dark on light."""
    light_from = _DARK * (image.get_clim()[1] or 1.0)
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if value >= light_from else "black"
        image.axes.text(
            column, row, texts[row][column],
            ha="center", va="center", fontsize=7, color=colour,
        )  # fmt: skip


def panels(ax: Axes, shares: Sequence[float]) -> list[Axes]:
    """Divide axes into panels, one below another, with a common x axis.

    They lie within the place of ``ax``, so that a display with several fits where one was wanted.
    """
    ax.set_axis_off()
    parts: list[Axes] = []
    top = 1.0
    for share in shares:
        place = (0.0, top - 0.88 * share, 1.0, 0.88 * share)
        parts.append(ax.inset_axes(place, sharex=parts[0] if parts else None))
        top -= share
    for part in parts[:-1]:
        part.tick_params(labelbottom=False)
    return parts
