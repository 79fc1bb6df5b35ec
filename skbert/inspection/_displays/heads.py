"""AttentionDisplay, HeadImportanceDisplay: what attention heads do, and how much they matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from skbert._arrays import FloatArray
from skbert._estimator.base import TextEstimator
from skbert._estimator.fitting import TrainedEstimator
from skbert._validation.numbers import check_count
from skbert.exceptions import InputError
from skbert.inspection._displays.drawing import Display, heat_map, name_ticks, write_cells
from skbert.inspection._heads import attentions, head_importance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

__all__ = ["AttentionDisplay", "HeadImportanceDisplay"]

_MOST_WRITTEN = 300  # cells; with more of them the numbers are too small to read


class AttentionDisplay(Display):
    """Attention weights of one head, from each token to each token.

    Use `from_estimator` to draw one. Each row sums to 1: it shows where a token looks.

    Parameters
    ----------
    weights : array-like of shape (n_tokens, n_tokens)
        ``weights[i, j]`` is the attention of token ``i`` to token ``j``.
    tokens : sequence of str
        The tokens.
    title : str, default="Attention"
        What stands above.

    Attributes
    ----------
    weights : ndarray of shape (n_tokens, n_tokens)
        The weights.
    tokens : list of str
        The tokens, special ones included.
    im_ : matplotlib AxesImage
        The cells.
    ax_ : matplotlib Axes
        The axes.
    figure_ : matplotlib Figure
        The figure.

    See Also
    --------
    attentions : The weights of all heads.
    HeadImportanceDisplay : Which heads matter.

    References
    ----------
    Clark et al. 2019, "What does BERT look at? An analysis of BERT's attention".

    Examples
    --------
    >>> from skbert import BertTransformer
    >>> from skbert.inspection import AttentionDisplay
    >>> X = ["Where is my parcel?"]
    >>> display = AttentionDisplay.from_estimator(BertTransformer().fit(X), X, layer=5, head=10)
    >>> display.tokens
    ['[CLS]', 'where', 'is', 'my', 'parcel', '?', '[SEP]']
    >>> display.weights.shape
    (7, 7)
    """

    im_: AxesImage

    def __init__(
        self, weights: FloatArray, tokens: Sequence[str], *, title: str = "Attention"
    ) -> None:
        self.weights = np.asarray(weights, float)
        self.tokens = list(tokens)
        self.title = title
        n = len(self.tokens)
        if self.weights.shape != (n, n):
            raise InputError(
                f"weights has the shape {self.weights.shape}, and there are {n} tokens. Give one "
                f"head's weights, an array of shape ({n}, {n})."
            )

    @classmethod
    def from_estimator(
        cls, estimator: TextEstimator, X: object, *, layer: int, head: int, item: int = 0,
        ax: Axes | None = None,
    ) -> Self:  # fmt: skip
        """Draw one head of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator of skbert that predicts or transforms.
        X : array-like
            Rows in the same form as in ``predict`` or ``transform``; one is enough.
        layer, head : int
            The layer and the head, both counted from 0 as in the whole model.
        item : int, default=0
            Which row of tokens is drawn. Each row of X has one, but a text that is read in windows
            and a question with options have several.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        display : AttentionDisplay
            The display, drawn.

        Raises
        ------
        InputError, InputTypeError
            If the estimator is of another kind, X cannot be used, or there is no such layer, head
            or item.
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.
        """
        cls._require_matplotlib()
        items = attentions(estimator, X)
        _check_position(len(items), item=item)
        weights = items[item].weights
        _check_position(len(weights), layer=layer)
        _check_position(weights.shape[1], head=head)
        chosen = weights[layer, head]
        if np.isnan(chosen).any():
            raise InputError(f"Head {head} of layer {layer} is pruned. Choose another head.")
        title = f"Attention of head {head} in layer {layer}"
        return cls(chosen, items[item].tokens, title=title).plot(ax)

    def _size(self) -> tuple[float, float]:
        side = min(3.0 + 0.22 * len(self.tokens), 11.0)
        return side + 0.8, side

    def _draw(self, ax: Axes) -> None:
        self.im_ = heat_map(ax, self.weights, "attention weight (a row sums to 1)")
        name_ticks(ax.xaxis, self.tokens)
        name_ticks(ax.yaxis, self.tokens)
        ax.set(xlabel="to token", ylabel="from token", title=self.title)


class HeadImportanceDisplay(Display):
    """Importance of each attention head.

    Use `from_estimator` to draw one, or the constructor for importances that are there already.

    Parameters
    ----------
    importance : array-like of shape (n_layers, n_heads)
        The result of `head_importance`.

    Attributes
    ----------
    importance : ndarray of shape (n_layers, n_heads)
        The importances; NaN, drawn in grey, for pruned heads.
    im_ : matplotlib AxesImage
        The cells.
    ax_ : matplotlib Axes
        The axes.
    figure_ : matplotlib Figure
        The figure.

    See Also
    --------
    head_importance : Computes the importances.
    prune_heads : Removes the least important heads.

    References
    ----------
    Michel, Levy and Neubig 2019, "Are Sixteen Heads Really Better than One?", section 4.1.

    Examples
    --------
    >>> from skbert import BertClassifier
    >>> from skbert.datasets import load_intents
    >>> from skbert.inspection import HeadImportanceDisplay
    >>> X, y = load_intents(return_X_y=True)
    >>> classifier = BertClassifier(epochs=1, freeze="all", random_state=0).fit(X, y)
    >>> display = HeadImportanceDisplay.from_estimator(classifier, X[:50], y[:50])
    >>> display.importance.shape
    (6, 12)
    """

    im_: AxesImage

    def __init__(self, importance: FloatArray) -> None:
        self.importance = np.asarray(importance, float)
        if self.importance.ndim != 2:
            raise InputError(
                f"importance has the shape {self.importance.shape}. Give the result of "
                "head_importance, an array of shape (n_layers, n_heads)."
            )

    @classmethod
    def from_estimator(
        cls, estimator: TrainedEstimator, X: object, y: object = None, *, normalize: bool = True,
        ax: Axes | None = None,
    ) -> Self:  # fmt: skip
        """Compute the importance of the heads of a fitted estimator, and draw it.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator of skbert that learns by training.
        X : array-like
            Rows in the same form as in ``fit``.
        y : array-like, default=None
            Targets of these rows; None for `BertPretrainer`.
        normalize : bool, default=True
            Divide the importances of each layer by their L2 norm.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        display : HeadImportanceDisplay
            The display, drawn.

        Raises
        ------
        InputError, InputTypeError
            If the estimator is of another kind, or X or y cannot be used.
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.
        """
        cls._require_matplotlib()
        return cls(head_importance(estimator, X, y, normalize=normalize)).plot(ax)

    def _size(self) -> tuple[float, float]:
        n_layers, n_heads = self.importance.shape
        return min(2.6 + 0.42 * n_heads, 11.0), min(1.6 + 0.42 * n_layers, 11.0)

    def _draw(self, ax: Axes) -> None:
        n_layers, n_heads = self.importance.shape
        self.im_ = heat_map(ax, self.importance, "importance")
        if self.importance.size <= _MOST_WRITTEN:
            write_cells(self.im_, self.importance, _rounded(self.importance))
        name_ticks(ax.xaxis, range(n_heads))
        name_ticks(ax.yaxis, range(n_layers))
        ax.set(
            xlabel="head, from 0", ylabel="layer, from 0", title="Importance of attention heads"
        )


def _check_position(end: int, **positions: int) -> None:
    """Refuse positions that are not among 0 to ``end`` - 1."""
    for name, value in positions.items():
        check_count(value, name, 0, least=0, most=end - 1)


def _rounded(values: FloatArray) -> list[list[str]]:
    """Each number with two digits; nothing for NaN."""
    return [["" if np.isnan(each) else f"{each:.2g}" for each in row] for row in values]
