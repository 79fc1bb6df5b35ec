"""BertEstimator: the base of estimators that learn a head from ``y`` on top of an encoder.

Depends on the course of a fit; knows no task by name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import joblib
from sklearn.utils._param_validation import StrOptions

from skbert._core.items import Items
from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision
from skbert._core.training.frozen import ComputeStates, compute_states, with_states
from skbert._core.training.probe import probe
from skbert._estimator.cache import cache_folder
from skbert._estimator.callbacks import with_callbacks
from skbert._estimator.checks import is_score
from skbert._estimator.fitted import Learned
from skbert._estimator.fitting import TrainedEstimator
from skbert._estimator.guidance import requires_y
from skbert._estimator.held_out import validate
from skbert._estimator.networks import is_own_pooling_trained_on_pairs
from skbert._estimator.run import Run
from skbert._estimator.states import KeptStates
from skbert._estimator.validation_set import ValidationInput

__all__ = ["BertEstimator"]


@dataclass(eq=False, repr=False, kw_only=True)
class BertEstimator(TrainedEstimator):
    """Base of the estimators that are fine-tuned; use one of its subclasses.

    A subclass says what ``y`` means in ``_prepare_targets`` and reads outputs in ``predict``.
    """

    head_init: str = "auto"
    memory: str | os.PathLike[str] | joblib.Memory | None = None

    probe_score_ = Learned[float](is_score, optional=True, of_weights=True)

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **TrainedEstimator._parameter_constraints,
        "head_init": [StrOptions({"auto", "probe", "random"})],
        "memory": [str, os.PathLike, joblib.Memory, None],
    }

    @requires_y
    @with_callbacks
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: object = None,
        y_val: object = None, sample_weight_val: object = None, groups: object = None,
    ) -> Self:  # fmt: skip
        """Fine-tune on texts ``X`` and targets ``y``.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            One text, or one pair of texts, per row.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            What to predict.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row in the loss; None gives all rows the same weight.
        X_val : array-like, default=None
            Rows to validate on, in the form of X; none of X is then held out, whatever
            ``validation_fraction`` is.
        y_val : array-like, default=None
            What is right for the rows of X_val, in the form of y.
        sample_weight_val : array-like of shape (n_val_samples,), default=None
            Weight of each row of X_val in the validation loss.
        groups : array-like of shape (n_samples,), default=None
            Group of each row of X, such as its document or its author. With
            ``validation_fraction`` all rows of a group are held out, or none of them; groups are
            drawn regardless of y, so that classes may be held out unevenly.

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
            If a loss or gradient is not finite; the estimator then stays as it was.
        """
        validation = ValidationInput(X_val, y_val, sample_weight_val, groups)
        return self._learn(
            X, y, sample_weight, continue_training=self.warm_start, validation=validation
        )

    def _start(self, run: Run) -> dict[str, Any]:
        if self.head_init == "random" or (self.head_init == "auto" and self._starts_random(run)):
            return {}
        precision = run.precision.of_training
        probe(run.network, run.task, run.train_items, precision, run.n_label_items, run.origin)
        if run.held_out is None:
            return {}
        scores = validate(run.network, run.held_out, run.precision)
        return {"probe_score_": scores["validation_score"]}

    def _check_parameters(self, validation: ValidationInput) -> None:
        super()._check_parameters(validation)
        cache_folder(self.memory)

    def _compute_states(self) -> ComputeStates:
        folder = cache_folder(self.memory)
        return super()._compute_states() if folder is None else KeptStates(folder, self.freeze)

    def _to_predict(self, network: Network, items: Items, precision: Precision) -> Items:
        compute, last = self._compute_states(), vars(self).get("_last_states")
        if last is not None:
            compute = partial(last, compute)
        elif compute is compute_states:  # nothing is kept
            return items
        return with_states(network, [(items, precision)], self.freeze, compute)[0]

    def _starts_random(self, run: Run) -> bool:
        """Whether ``head_init="auto"`` means random weights."""
        return is_own_pooling_trained_on_pairs(run.network, run.train_items, self.freeze)
