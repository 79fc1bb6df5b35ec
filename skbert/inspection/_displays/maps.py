"""EmbeddingMapDisplay: texts as points in the plane, those with similar vectors close together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from skbert._arrays import Array, FloatArray
from skbert._validation.probabilities import labels_of, n_rows
from skbert._validation.tables import check_length, open_values
from skbert._validation.targets import as_sequence, check_targets
from skbert.exceptions import InputError
from skbert.inspection._displays.drawing import COLOURS, Display, legend_beside, name_scale, plain
from skbert.inspection._displays.rows import row_texts
from skbert.inspection._displays.vectors import METHODS, check_source, vectors_of
from skbert.inspection._html import View, escaped, legible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EmbeddingMapDisplay"]

_MARKS = "os^D"
_PATHS = (  # the same four marks in SVG, around 0, 0
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.5-3.5h7v7h-7z",
    "M0-4.6L4.2 3.2H-4.2z",
    "M0-4.8L4.2 0L0 4.8L-4.2 0z",
)
_MOST_LABELS = len(COLOURS) * len(_PATHS)
_SCALE = (  # cividis in seven steps
    "#00224e", "#2a3f6d", "#575d6d", "#7d7c78", "#a59c74", "#d2c060", "#fee838",
)  # fmt: skip
_WIDTH, _HEIGHT, _MARGIN = 720, 480, 12  # of the SVG
_TEXT_LENGTH = 300  # characters of a text that are shown on hover
_INSTEAD = "A point has one colour. Give one label per row, such as y[:, 0]."
_STYLE = """
.skbert svg.map { width: 100%; max-width: 720px; border: 1px solid var(--line); }
.skbert svg.map path, .skbert .key path { stroke: var(--ink); stroke-width: 0.5; }
.skbert svg.map g:hover path { stroke-width: 2.5; }
.skbert .key { display: inline-block; margin-right: 1.2em; }
.skbert .key svg { width: 12px; height: 12px; }
"""


class _Group(NamedTuple):
    """Points that are drawn alike."""

    name: str
    rows: list[int]
    colour: str
    mark: int


class EmbeddingMapDisplay(Display):
    """Map of texts: texts with similar vectors are close together.

    Use `from_estimator` to draw one. `to_view` gives the same as HTML, in which a text is shown
    where the mouse is over its point.

    Parameters
    ----------
    coordinates : array-like of shape (n_samples, 2)
        The places of the texts.
    texts : sequence of str
        The texts.
    labels : array-like of shape (n_samples,), default=None
        A label for each text, shown by colour and shape. The 24 most frequent ones are told apart,
        all others are grey. Floats that are no whole numbers, or more than 24 different ones, are
        shown on a scale of colours.
    axis_names : tuple of str, default=("first dimension", "second dimension")
        What the axes are.

    Attributes
    ----------
    coordinates : ndarray of shape (n_samples, 2)
        The places of the texts.
    texts : list of str
        The texts.
    labels : ndarray of shape (n_samples,) or None
        Their labels.
    axis_names : tuple of str
        What the axes are; for a PCA with the share of the variance that they explain.
    ax_ : matplotlib Axes
        The axes.
    figure_ : matplotlib Figure
        The figure.

    See Also
    --------
    skbert.BertTransformer : Turns texts into vectors.

    Notes
    -----
    Two dimensions show a part of what the vectors hold: texts that are far apart on a map by PCA
    are different, but those close together need not be alike. UMAP keeps neighbours together; how
    far groups are from each other means little in it.

    References
    ----------
    McInnes, Healy and Melville 2018, "UMAP: Uniform manifold approximation and projection for
    dimension reduction".

    Examples
    --------
    >>> from skbert import BertTransformer
    >>> from skbert.datasets import load_intents
    >>> from skbert.inspection import EmbeddingMapDisplay
    >>> X, y = load_intents(return_X_y=True)
    >>> transformer = BertTransformer().fit(X)
    >>> display = EmbeddingMapDisplay.from_estimator(transformer, X, y)
    >>> display.coordinates.shape
    (449, 2)
    >>> display.to_view().save("map.html")
    """

    def __init__(
        self, coordinates: FloatArray, texts: Sequence[str], labels: object = None, *,
        axis_names: tuple[str, str] = ("first dimension", "second dimension"),
    ) -> None:  # fmt: skip
        self.coordinates = np.asarray(coordinates, float)
        self.texts = list(texts)
        n = len(self.texts)
        if self.coordinates.shape != (n, 2) or not np.isfinite(self.coordinates).all():
            raise InputError(
                f"coordinates has the shape {self.coordinates.shape}, and there are {n} texts. "
                f"Give finite numbers, an array of shape ({n}, 2)."
            )
        self.labels: Array | None = None
        if labels is not None:
            self.labels = _read(labels, n)
        self.axis_names = axis_names

    @classmethod
    def from_estimator(
        cls, estimator: object, X: object, labels: object = None, *, method: str = "pca",
        random_state: int | None = None, ax: Axes | None = None,
    ) -> Self:  # fmt: skip
        """Draw a map of texts.

        Parameters
        ----------
        estimator : estimator
            A fitted `BertTransformer` or another transformer that gives an array; or another
            fitted estimator of skbert, with whose encoder a `BertTransformer` then reads X.
        X : array-like
            Texts or pairs of texts as in ``transform`` of `BertTransformer`, at least 2 rows.
        labels : array-like of shape (n_samples,), default=None
            A label or a number for each row, such as y or predictions.
        method : {"pca", "umap"}, default="pca"
            How vectors become points. ``"umap"`` needs the package umap-learn, and measures
            distances by the cosine.
        random_state : int, default=None
            Makes the map of ``"umap"`` the same each time; a PCA always is.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        display : EmbeddingMapDisplay
            The display, drawn.

        Raises
        ------
        InputError, InputTypeError
            If the estimator gives no vectors, there is no such method, or X or the labels cannot
            be used.
        ImportError
            If ``method`` is ``"umap"`` and umap-learn is not installed.
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.
        """
        cls._require_matplotlib()
        check_source(estimator, X, method)
        texts = row_texts(X)
        if labels is not None:
            labels = _read(labels, len(texts))
        vectors = vectors_of(estimator, X)
        check_length(len(texts), len(vectors), "the result of transform")
        places, names = METHODS[method](vectors, random_state)
        return cls(places, texts, labels, axis_names=names).plot(ax)

    def _size(self) -> tuple[float, float]:
        return 7.4 if self.labels is not None else 6.4, 5.2

    def _draw(self, ax: Axes) -> None:
        if _is_scale(self.labels):
            points = ax.scatter(
                self.coordinates[:, 0], self.coordinates[:, 1], s=22, c=self.labels,
                cmap="cividis", edgecolors="black", linewidths=0.3,
            )  # fmt: skip
            name_scale(ax, points, "label")
        else:
            self._draw_groups(ax)
        ax.set(
            xlabel=self.axis_names[0], ylabel=self.axis_names[1],
            title=f"Map of {len(self.texts)} texts",
        )  # fmt: skip

    def _draw_groups(self, ax: Axes) -> None:
        groups = self._groups()
        points = [
            ax.scatter(
                self.coordinates[each.rows, 0], self.coordinates[each.rows, 1], s=22,
                c=each.colour, marker=_MARKS[each.mark], edgecolors="black", linewidths=0.3,
            )
            for each in groups
        ]  # fmt: skip
        if self.labels is not None:  # by hand, as a label that begins with "_" stands for none
            legend_beside(ax, points, [plain(each.name) for each in groups])

    def to_view(self) -> View:
        """Give the map as HTML, in which a text is shown where the mouse is over its point.

        Returns
        -------
        view : View
            HTML in notebooks; ``save("map.html")`` writes a page.
        """
        groups = self._groups()
        points = "".join(self._points_of(each) for each in groups)
        named = [] if self.labels is None else groups
        keys = [f'<span class="key">{_key(each)}</span>' for each in named]
        title = f"Map of {len(self.texts)} texts"
        axes = f"across: {self.axis_names[0]}; up: {self.axis_names[1]}"
        body = (
            f"<p><b>{title}</b></p><p>{''.join(keys)}</p>"
            f'<svg class="map" role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}">{points}</svg>'
            f'<p class="soft">{escaped(axes)}</p>'
        )
        lines = [f"{title}; {axes}", *(f"{len(each.rows)} {each.name}" for each in groups)]
        return View(title, body, legible("\n".join(lines).strip()), _STYLE)

    def _groups(self) -> list[_Group]:
        """The points by label, in the order of the labels; at the end those without a colour."""
        if self.labels is None:
            return [_Group("", [*range(len(self.texts))], COLOURS[0], 0)]
        if _is_scale(self.labels):
            return _steps(self.labels)
        labels = self.labels.tolist()
        frequent = [label for label, _ in Counter(labels).most_common(_MOST_LABELS)]
        own = sorted(frequent)
        rows: dict[object, list[int]] = {label: [] for label in own}
        rest: list[int] = []
        for row, label in enumerate(labels):
            rows.get(label, rest).append(row)
        groups = [
            _Group(str(label), rows[label], *_look(place)) for place, label in enumerate(own)
        ]
        if rest:
            n_others = len({labels[row] for row in rest})
            groups.insert(0, _Group(f"{n_others} other labels", rest, "#999999", 0))
        return groups

    def _points_of(self, group: _Group) -> str:
        """The points of a group as SVG, each with its text as a title."""
        low, high = self.coordinates.min(axis=0), self.coordinates.max(axis=0)
        span = np.where(high > low, high - low, 1.0)
        scaled = (self.coordinates[group.rows] - low) / span
        room = np.array([_WIDTH, _HEIGHT]) - 2 * _MARGIN
        places = _MARGIN + room * np.abs(scaled - [0, 1])  # SVG counts from the top
        path, fill = _PATHS[group.mark], group.colour
        labels = None if self.labels is None else self.labels.tolist()
        return "".join(
            f'<g transform="translate({x:.1f} {y:.1f})">'
            f"<title>{escaped('' if labels is None else f'{_cut(str(labels[row]))}: ')}"
            f"{escaped(_cut(self.texts[row]))}</title>"
            f'<path d="{path}" fill="{fill}"/></g>'
            for row, (x, y) in zip(group.rows, places, strict=True)
        )


def _read(labels: object, n: int) -> Array:
    """A label, or a number on a scale, for each of n texts."""
    check_length(n, n_rows(labels, "labels"), "labels")
    table = open_values(as_sequence(labels), "labels", None)
    if table.width == 1 and any(map(_is_fraction, table.read(0))):
        return check_targets(as_sequence(labels), n)
    return labels_of(labels, n, "labels", instead=_INSTEAD)


def _is_fraction(label: object) -> bool:
    return isinstance(label, (float, np.floating)) and bool(np.isfinite(label) and label % 1)


def _is_scale(labels: Array | None) -> bool:
    """Whether labels are numbers rather than classes: floats with fractions, or many of them."""
    if labels is None or labels.dtype.kind != "f":
        return False
    return bool((labels % 1).any()) or len(np.unique(labels)) > _MOST_LABELS


def _steps(numbers: Array) -> list[_Group]:
    """The points in steps of equal width, from the least number to the largest."""
    edges = np.linspace(numbers.min(), numbers.max(), len(_SCALE) + 1)
    place = np.digitize(numbers, edges[1:-1])
    return [
        _Group(f"{low:.3g} to {high:.3g}", np.flatnonzero(place == step).tolist(), colour, 0)
        for step, (low, high, colour) in enumerate(zip(edges, edges[1:], _SCALE, strict=False))
    ]


def _look(place: int) -> tuple[str, int]:
    """A colour and a mark for each of 24 labels; neighbours differ in both."""
    turn = place // 12  # after 12 labels both begin anew together
    return COLOURS[place % len(COLOURS)], (place + turn) % len(_PATHS)


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_LENGTH else f"{text[:_TEXT_LENGTH]}…"


def _key(group: _Group) -> str:
    """What the points of a label look like."""
    mark = f'<path d="{_PATHS[group.mark]}" fill="{group.colour}"/>'
    return f'<svg viewBox="-6 -6 12 12">{mark}</svg> {escaped(group.name)}'
