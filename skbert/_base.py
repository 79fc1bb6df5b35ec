"""BertEstimator: the parameters of fine-tuning, and ``fit``.

Speaks to scikit-learn; the story of a fit is in ``_fit``. Knows no task by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from skbert._callbacks import CallbackSupportMixin, with_callbacks
from skbert._core.encoder import Network
from skbert._core.optim import SCHEDULES
from skbert._fit import Lesson, Run, run_fit
from skbert._pretrained import COUNT, TextEstimator

__all__ = ["BertEstimator"]

_POSITIVE = Interval(Real, 0, None, closed="neither")


@dataclass(eq=False, repr=False, kw_only=True)
class BertEstimator(CallbackSupportMixin, TextEstimator):
    """Base of the estimators that are fine-tuned; use one of those.

    A subclass says what ``y`` means in ``_teach`` and reads decoded outputs in ``predict``.
    """

    epochs: int = 3
    batch_size: int = 16
    learning_rate: float = 1e-4
    head_learning_rate: float | None = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.1
    schedule: str = "linear"
    layer_decay: float = 1.0
    freeze: int | str = 0
    max_grad_norm: float | None = 1.0
    accumulate: int = 1
    head_init: str = "probe"
    validation_fraction: float | None = None
    patience: int | None = None
    gradient_checkpointing: bool = False
    compile: bool = False
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    verbose: int = 0

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **TextEstimator._parameter_constraints,
        "epochs": [COUNT],
        "batch_size": [COUNT],
        "learning_rate": [_POSITIVE],
        "head_learning_rate": [_POSITIVE, None],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "warmup": [Interval(Real, 0, None, closed="left")],
        "schedule": [StrOptions(set(SCHEDULES))],
        "layer_decay": [Interval(Real, 0, 1, closed="right")],
        "freeze": [Interval(Integral, 0, None, closed="left"), StrOptions({"all"})],
        "max_grad_norm": [_POSITIVE, None],
        "accumulate": [COUNT],
        "head_init": [StrOptions({"probe", "random"})],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
        "patience": [COUNT, None],
        "gradient_checkpointing": ["boolean"],
        "compile": ["boolean"],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    _saved_attributes: ClassVar[tuple[str, ...]] = (
        *TextEstimator._saved_attributes, "history_", "n_iter_", "n_truncated_",
    )  # fmt: skip

    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fine-tune on texts ``X`` and targets ``y``.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            One text, or one pair of texts, per row.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            What to predict.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row in the loss; None weighs all alike.

        Returns
        -------
        self : estimator
            The fitted estimator.

        Raises
        ------
        InputError, InputTypeError
            If X, y or a weight cannot be used; the message names the first bad row.
        ModelError
            If ``model`` is not found or not safe to open.
        NonFiniteError
            If a loss or gradient is not finite; the estimator is then not fitted.
        """
        run_fit(self, X, y, sample_weight, again=self.warm_start)
        return self

    def _teach(
        self, y: Any, texts: Any, room: int, network: Network | None, weight: Any
    ) -> Lesson:
        """Check ``y`` for these rows; a network that learned is adapted to what is new in it."""
        raise NotImplementedError

    def _finish(self, run: Run) -> None:
        """Do what is left to do with the held-out samples after the last pass."""
