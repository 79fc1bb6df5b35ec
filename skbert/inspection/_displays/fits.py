"""FitDisplay: the learning curve of a fit. Draws what `history_` holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from skbert._estimator.held_out import best_pass
from skbert.exceptions import InputError, InputTypeError
from skbert.inspection._displays.drawing import COLOURS, Display, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FitDisplay"]

_MOST_TICKS = 12
_NEEDED = ("epoch", "loss", "learning_rate")


class FitDisplay(Display):
    """Learning curve of a fit: losses, validation score and learning rate after each epoch.

    Use `from_estimator` to draw one.

    Parameters
    ----------
    history : list of dict
        One dict per epoch, as in ``history_`` of an estimator.
    probe_score : float, default=None
        Validation score before the first epoch, as in ``probe_score_`` of an estimator.
    scoring : str or callable, default="loss"
        What says which epoch is the best, as the parameter ``scoring`` of an estimator.

    Attributes
    ----------
    history : DataFrame
        One row per epoch.
    probe_score : float or None
        Validation score before the first epoch.
    scoring : str or callable
        What says which epoch is the best.
    axes_ : dict of str to matplotlib Axes
        The panels: ``"loss"``, ``"score"`` if there is a validation score, ``"learning_rate"``.
    ax_ : matplotlib Axes
        The axes that the panels lie in.
    figure_ : matplotlib Figure
        The figure.

    See Also
    --------
    ReliabilityDisplay : Whether the probabilities of a classifier can be trusted.

    Notes
    -----
    The training loss of an epoch is the mean over its steps, with dropout and while the weights
    change; the validation loss is computed after it, without dropout. So the training loss can be
    the higher one. A star marks the epoch whose weights are kept. The learning rate is that of the
    encoder at the end of the epoch.

    Examples
    --------
    >>> from skbert import BertClassifier
    >>> from skbert.datasets import load_intents
    >>> from skbert.inspection import FitDisplay
    >>> X, y = load_intents(return_X_y=True)
    >>> classifier = BertClassifier(
    ...     epochs=2, freeze="all", validation_fraction=0.2, random_state=0
    ... ).fit(X, y)
    >>> display = FitDisplay.from_estimator(classifier)
    >>> list(display.axes_)
    ['loss', 'score', 'learning_rate']
    """

    axes_: dict[str, Axes]

    def __init__(
        self, history: Sequence[Mapping[str, float]], *, probe_score: float | None = None,
        scoring: object = "loss",
    ) -> None:  # fmt: skip
        self.history = pd.DataFrame(history)
        self.probe_score = probe_score
        self.scoring = scoring
        self._records = history
        if absent := [name for name in _NEEDED if name not in self.history]:
            raise InputError(
                f"history has no {absent[0]!r}. Give the history_ of a fitted estimator: one dict "
                f"per epoch with {', '.join(_NEEDED)}."
            )

    @classmethod
    def from_estimator(cls, estimator: object, *, ax: Axes | None = None) -> Self:
        """Draw the learning curve of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator of skbert that learns by training.
        ax : matplotlib Axes, default=None
            Where to draw; the panels share its place. None makes a new figure.

        Returns
        -------
        display : FitDisplay
            The display, drawn.

        Raises
        ------
        InputTypeError
            If the estimator has no ``history_``.
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.
        """
        cls._require_matplotlib()
        check_is_fitted(estimator)
        history = getattr(estimator, "history_", None)
        if history is None:
            raise InputTypeError(
                f"A {type(estimator).__name__} has no history_. Give a fitted estimator of skbert "
                "that learns by training; of a Pipeline, such a step; of a search, its "
                "best_estimator_."
            )
        probe_score = getattr(estimator, "probe_score_", None)
        scoring = getattr(estimator, "scoring", "loss")
        return cls(history, probe_score=probe_score, scoring=scoring).plot(ax)

    def _size(self) -> tuple[float, float]:
        return 6.4, 6.3 if "validation_score" in self.history else 5.0

    def _draw(self, ax: Axes) -> None:
        drawing = {"loss": self._draw_losses, "score": self._draw_score}
        if "validation_score" not in self.history:
            del drawing["score"]
        drawing["learning_rate"] = self._draw_rate
        shares = {2: [0.7, 0.3], 3: [0.48, 0.29, 0.23]}[len(drawing)]
        self.axes_ = dict(zip(drawing, panels(ax, shares), strict=True))
        for name, draw in drawing.items():
            draw(self.axes_[name])
        ax.set_title("Learning curve")
        last = self.axes_["learning_rate"]
        last.set_xlabel("epoch")
        epochs = self.history["epoch"].tolist()
        last.set_xticks(epochs[:: len(epochs) // _MOST_TICKS + 1])

    def _draw_losses(self, ax: Axes) -> None:
        epochs, table = self.history["epoch"], self.history
        ax.plot(epochs, table["loss"], "o-", color=COLOURS[0], label="training")
        if "validation_loss" in table:
            losses = table["validation_loss"]
            ax.plot(epochs, losses, "s--", color=COLOURS[3], label="validation")
            scoring = self.scoring if "validation_score" in table else "loss"
            best = best_pass(self._records, scoring)
            ax.plot(
                epochs[best], losses[best], "*", color="black", markersize=13, zorder=3,
                label="weights that are kept",
            )  # fmt: skip
        ax.set_ylabel("loss")
        ax.legend(fontsize=8)

    def _draw_score(self, ax: Axes) -> None:
        ax.plot(self.history["epoch"], self.history["validation_score"], "s--", color=COLOURS[3])
        if self.probe_score is not None and np.isfinite(self.probe_score):
            ax.axhline(self.probe_score, color="0.4", linestyle=":", label="before training")
            ax.legend(fontsize=8)
        ax.set_ylabel("validation\nscore")

    def _draw_rate(self, ax: Axes) -> None:
        ax.plot(self.history["epoch"], self.history["learning_rate"], "^-", color="0.3")
        ax.set_ylabel("learning\nrate")
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_formatter("{x:g}")
