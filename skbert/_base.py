"""BertEstimator: the parameters all estimators share, and the story of one fit.

Speaks to scikit-learn above and to ``_core`` below; knows no task by name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from skbert import _save
from skbert._callbacks import CallbackSupportMixin, with_callbacks
from skbert._check import FitRecord, Texts, check_texts
from skbert._core.device import Precision, pick_device, seeded
from skbert._core.encoder import Network, open_network, write_folder
from skbert._core.infer import infer
from skbert._core.optim import SCHEDULES
from skbert._core.source import find, vet
from skbert._core.tokens import LongText
from skbert._fit import Lesson, Run, encode, longest_row, run_fit
from skbert.exceptions import ModelError

__all__ = ["BertEstimator"]


_POSITIVE = Interval(Real, 0, None, closed="neither")
_COUNT = Interval(Integral, 1, None, closed="left")


@dataclass(eq=False, repr=False, kw_only=True)
class BertEstimator(CallbackSupportMixin, BaseEstimator):
    """Base of the estimators; use one of those.

    A subclass says what ``y`` means in ``_teach`` and reads decoded outputs in ``predict``.
    """

    model: str | os.PathLike[str] = field(
        default="sentence-transformers/all-MiniLM-L6-v2", kw_only=False
    )
    epochs: int = 3
    batch_size: int = 16
    learning_rate: float = 5e-5
    head_learning_rate: float | None = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.1
    schedule: str = "linear"
    layer_decay: float = 1.0
    freeze: int | str = 0
    max_grad_norm: float | None = 1.0
    accumulate: int = 1
    pooling: str = "auto"
    head_init: str = "probe"
    max_length: int | None = None
    long_text: LongText = "truncate"
    text_columns: str | int | Sequence[str | int] | None = None
    missing: str = "raise"
    validation_fraction: float | None = None
    patience: int | None = None
    precision: str = "auto"
    device: str = "auto"
    gradient_checkpointing: bool = False
    compile: bool = False
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    verbose: int = 0

    if TYPE_CHECKING:
        _network: Network
        classes_: Any
        _task: Any
        _seen: FitRecord | None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "model": [str, os.PathLike],
        "epochs": [_COUNT],
        "batch_size": [_COUNT],
        "learning_rate": [_POSITIVE],
        "head_learning_rate": [_POSITIVE, None],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "warmup": [Interval(Real, 0, None, closed="left")],
        "schedule": [StrOptions(set(SCHEDULES))],
        "layer_decay": [Interval(Real, 0, 1, closed="right")],
        "freeze": [Interval(Integral, 0, None, closed="left"), StrOptions({"all"})],
        "max_grad_norm": [_POSITIVE, None],
        "accumulate": [_COUNT],
        "pooling": [StrOptions({"auto", "pooler", "cls", "mean", "max"})],
        "head_init": [StrOptions({"probe", "random"})],
        "max_length": [_COUNT, None],
        "long_text": [StrOptions({"truncate", "head_tail", "windows"})],
        "text_columns": [str, Integral, "array-like", None],
        "missing": [StrOptions({"raise", "empty"})],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
        "patience": [_COUNT, None],
        "precision": [StrOptions({"auto", "float32", "bfloat16", "float16", "float64"})],
        "device": [str],
        "gradient_checkpointing": ["boolean"],
        "compile": ["boolean"],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    _tasks: ClassVar[tuple[Any, ...]] = ()  # the task classes of this estimator
    _saved_attributes: ClassVar[tuple[str, ...]] = (
        "history_", "n_iter_", "n_truncated_", "n_features_in_", "feature_names_in_",
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted estimator to a folder of JSON and safetensors, nothing pickled.

        Parameters
        ----------
        path : str or path-like
            Folder to make, or one that ``save`` made before. It is also a transformers
            folder: every estimator takes it as ``model``.

        Raises
        ------
        SaveError
            If the folder holds anything else, or an attribute has no form in JSON.
        """
        check_is_fitted(self)
        _save.save(self, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Open what ``save`` wrote, after checking names, sizes and hashes.

        Parameters
        ----------
        path : str or path-like
            The folder.

        Returns
        -------
        estimator : estimator
            The fitted estimator, bit for bit.

        Raises
        ------
        SaveError
            If a file is missing, damaged or foreign, or holds another estimator.
        """
        estimator: Self = _save.load(cls, Path(path))
        return estimator

    def save_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Write a plain transformers folder, whose model gives the same outputs.

        Parameters
        ----------
        path : str or path-like
            Folder to write to.

        Raises
        ------
        ModelError
            If the head reads another pooling than BERT's pooler: transformers has no class
            for that. ``save`` keeps it.
        """
        check_is_fitted(self)
        if self._network.head.reads == "rows" and self._network.pooling != "pooler":
            raise ModelError(
                f"The head reads pooling={self._network.pooling!r}, and transformers has no class "
                "with such a head: its model would give other predictions. Use save(path) to "
                "keep the estimator as it is, or fit with pooling='pooler'."
            )
        write_folder(self._exported(), Path(path))

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], **params: Any) -> Self:
        """Open a checkpoint that is fine-tuned already, ready to predict.

        Parameters
        ----------
        path : str or path-like
            Folder or id, as for the parameter ``model``.
        **params : dict
            Other parameters of the estimator.

        Returns
        -------
        estimator : estimator
            A fitted estimator; its labels are those of the checkpoint's ``id2label``.

        Raises
        ------
        ModelError
            If the checkpoint is not found, not safe to open, or has no head for this job.
        """
        estimator = cls(model=path, **params)
        estimator._validate_params()
        checkpoint = vet(find(path))
        named = len(checkpoint.config.get("id2label", ()))  # left out where it says nothing
        n_outputs = named or checkpoint.config.get("num_labels", 2)
        head = estimator._tasks[0](n_outputs, 0).head()
        room = longest_row(checkpoint.max_length, estimator.max_length)
        with seeded(0, pick_device("cpu")):  # what is missing is the same at each opening
            network = open_network(checkpoint, head, pooling=estimator.pooling, fresh_head=False)
            estimator._adopt(network, room)
        estimator._seen = None
        estimator._network, estimator.pooling_ = network, network.pooling
        return estimator

    def _teach(
        self, y: Any, n_samples: int, room: int, network: Network | None, weight: Any
    ) -> Lesson:
        """Check ``y``; a network that learned before is adapted to what is new in it."""
        raise NotImplementedError

    def _finish(self, run: Run) -> None:
        """Do what is left to do with the held-out samples after the last pass."""

    def _adopt(self, network: Network, room: int) -> None:
        """Set the attributes that a fine-tuned checkpoint brings, the task among them."""
        raise NotImplementedError

    def _exported(self) -> Network:
        """The network whose outputs are what the estimator predicts."""
        return self._network

    def _read(self, X: Any, *, fitting: bool) -> Texts:
        """Turn X into texts: the only place that looks at X."""
        texts = check_texts(
            X,
            columns=self.text_columns,
            missing=self.missing,
            fitted=None if fitting else self._seen,
            estimator_name=type(self).__name__,
        )
        if fitting:
            self._seen = FitRecord(texts.names, texts.n_columns)
            self.n_features_in_ = len(texts.names) if texts.names else texts.n_columns
            self.__dict__.pop("feature_names_in_", None)
            if texts.names:
                self.feature_names_in_ = np.array(texts.names, dtype=object)
        return texts

    def _decoded(self, X: Any) -> np.ndarray[Any, Any]:
        """What the task makes of the model's outputs for X, one entry per row of X."""
        check_is_fitted(self)
        texts = self._read(X, fitting=False)
        device = pick_device(self.device)
        precision = Precision(self.precision, device)
        self._network.to(device, precision.weights)
        items = encode(self._task, texts, None, self._network)
        outputs = infer(self._network, items, precision)
        decoded: np.ndarray[Any, Any] = self._task.decode(outputs, items)
        return decoded

    def __sklearn_is_fitted__(self) -> bool:
        """Fitted once a fit went through to its end."""
        return hasattr(self, "_network")

    def __sklearn_tags__(self) -> Any:
        """Texts in, no arrays: the tags that scikit-learn reads."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags

    @property
    def model_(self) -> Any:
        """The fine-tuned transformers model."""
        return self._network.model

    @property
    def tokenizer_(self) -> Any:
        """The tokenizer, as transformers opens it."""
        return self._network.tokenizer
