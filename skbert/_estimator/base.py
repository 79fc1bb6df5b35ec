"""TextEstimator: a model that reads texts, opened and kept; what all estimators share.

Speaks to scikit-learn above and to ``_core`` below; knows no task by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from skbert._arrays import Array
from skbert._catalogue import ESTIMATORS, load_name
from skbert._core.attention.pooling import POOLINGS
from skbert._core.checkpoints.find import find
from skbert._core.checkpoints.vet import Checkpoint, vet
from skbert._core.families.record import Job
from skbert._core.infer import OnSamples, infer
from skbert._core.items import Head, Items, joined
from skbert._core.models.network import Network
from skbert._core.models.opening import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    open_network,
)
from skbert._core.models.replacing import with_model
from skbert._core.models.shared import hand_out_tokenizer
from skbert._core.runtime.device import Precision, memory_advice, pick_device, seeded
from skbert._core.task import Task
from skbert._core.text.tokens import LongText, Ragged
from skbert._core.training.frozen import ComputeStates, compute_states
from skbert._estimator import persistence
from skbert._estimator.bar import ProgressBar
from skbert._estimator.card import Card
from skbert._estimator.checks import resolve_max_length
from skbert._estimator.fitted import Fitted, apart_from_weights
from skbert._estimator.portable import PortableEstimator
from skbert._estimator.predicting import (
    Predicting,
    Rows,
    chunks,
    is_one_chunk,
    predict_in_chunks,
    warn_if_cut,
)
from skbert._validation.columns import TextColumns
from skbert._validation.texts import Texts
from skbert.exceptions import ModelError

__all__ = [
    "COUNT",
    "ROW_HEAD_CONSTRAINTS",
    "RealInterval",
    "TextEstimator",
    "encode",
    "predict_rows",
]


class RealInterval(Interval):
    """An interval of numbers that numpy computes with: int and float, no fractions."""

    def __init__(self, left: float | None, right: float | None, *, closed: str) -> None:
        super().__init__(Real, left, right, closed=closed)

    def is_satisfied_by(self, val: object) -> bool:
        """Whether a value is such a number within the interval."""
        known = isinstance(val, (int, float, np.integer, np.floating))
        return known and bool(super().is_satisfied_by(val))


COUNT = Interval(Integral, 1, None, closed="left")
# Constraints on the parameters of estimators whose head reads one vector a row.
ROW_HEAD_CONSTRAINTS: dict[str, list[Any]] = {
    "pooling": [StrOptions({"auto", *POOLINGS})],
    "long_text": [StrOptions(set(get_args(LongText)))],
}


@dataclass(eq=False, repr=False, kw_only=True)
class TextEstimator(PortableEstimator, Predicting):
    """Base of all estimators; use one of its subclasses."""

    model: str | os.PathLike[str] = field(
        default="sentence-transformers/all-MiniLM-L6-v2", kw_only=False
    )
    max_length: int | None = None
    text_columns: TextColumns = None
    missing: str = "raise"
    precision: str = "auto"
    device: str = "auto"
    verbose: int = 0

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "model": [str, os.PathLike],
        "max_length": [COUNT, None],
        "text_columns": [str, Integral, "array-like", dict, None],
        "missing": [StrOptions({"raise", "empty"})],
        "precision": [StrOptions({"auto", "float32", "bfloat16", "float16", "float64", "int8"})],
        "device": [str],
        "verbose": ["verbose"],
    }
    _opens: ClassVar[tuple[Job, ...]] = ()  # the jobs of heads that from_pretrained opens

    def save(self, path: str | os.PathLike[str], *, card: Card = None) -> None:
        """Save the fitted estimator to a folder of JSON and safetensors, nothing pickled.

        Parameters
        ----------
        path : str or path-like
            Folder to create, or one that ``save`` created before. It is also a transformers
            folder, which every estimator accepts as ``model``.
        card : bool, dict or None, default=None
            Whether to write a model card, ``README.md``, and what to say in it, as for
            ``save_pretrained``. ``load`` does not read it.

        Raises
        ------
        SaveError
            If the folder holds other files or cannot be written, the disk is full, or an attribute
            cannot be stored as JSON, or is none that ``load`` accepts.
        ValueError
            If a parameter has been set to an invalid value.
        """
        check_is_fitted(self)
        persistence.save(self, Path(path), card)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load an estimator that ``save`` wrote, after checking names, sizes and hashes.

        Parameters
        ----------
        path : str or path-like
            The folder.

        Returns
        -------
        estimator : estimator
            The fitted estimator, identical to the one that was saved.

        Raises
        ------
        SaveError
            If a file is missing, damaged or not written by skbert, or holds another estimator.
        """
        estimator: Self = persistence.load(cls, Path(path))
        return estimator

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], **params: Any) -> Self:
        """Open a checkpoint that is already fine-tuned, ready to predict.

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
        settings = estimator._unfitted_copy()
        checkpoint = vet(find(path))
        named = len(checkpoint.config.get("id2label", ()))  # left out where it says nothing
        n_outputs = named or checkpoint.config.get("num_labels", 2)
        head = settings._checkpoint_head(n_outputs)
        _check_job(checkpoint, head, cls._opens)
        own = settings.max_length or checkpoint.config.get("skbert_max_length")
        max_length = resolve_max_length(checkpoint.max_length, own)
        with seeded(0, pick_device("cpu")):  # what is missing is the same at each opening
            pooling = getattr(settings, "pooling", "auto")  # tokens are read as they are
            network = open_network(checkpoint, head, pooling=pooling, fresh_head=False)
            task, attributes = settings._load_checkpoint(network, max_length)
        estimator._fitted = Fitted(network, task, None, attributes)
        return estimator

    def _checkpoint_head(self, n_outputs: int) -> Head:
        """The head of a checkpoint that is fine-tuned for this job."""
        head: Head = self._tasks[0](n_outputs, 0).head()
        return head

    def _load_checkpoint(self, network: Network, max_length: int) -> tuple[Task, dict[str, Any]]:
        """The task and the learned attributes that a fine-tuned checkpoint brings."""
        raise NotImplementedError

    def _columns_of(self, X: Any, rows: Any) -> dict[str, Any]:
        """The attributes that say how many columns X has, and how they are called."""
        columns: dict[str, Any] = {}
        # A list has no columns.
        if rows.width > 1 or rows.names or len(getattr(X, "shape", ())) == 2:
            columns["n_features_in_"] = len(rows.names or range(rows.width))
        if rows.names:
            columns["feature_names_in_"] = np.array(rows.names, dtype=object)
        return columns

    def _move_to_device(self, network: Network) -> Precision:
        """Move a network to the device of computation, and return the precision to compute in."""
        precision = Precision(self.precision, pick_device(self.device))
        network.to(precision.device, precision.weight_dtype)
        return precision

    @memory_advice()
    def _outputs(self, fitted: Fitted, rows: Any) -> Array:
        """What the task makes of the model's outputs, one entry per row."""
        precision = self._move_to_device(fitted.network)
        with ProgressBar(self, len(rows)) as bar:
            return predict_rows(
                fitted.task, rows, fitted.network, precision, bar.on_rows, self._to_predict
            )

    def _compute_states(self) -> ComputeStates:
        """What computes the states that frozen layers give."""
        return compute_states

    def _to_predict(self, network: Network, items: Items, precision: Precision) -> Items:  # noqa: ARG002
        """The items with what is known of them without running the network."""
        return items

    def __sklearn_tags__(self) -> Any:
        """Texts in, no arrays: the tags that scikit-learn reads."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags

    @property
    def model_(self) -> PreTrainedModel:
        """The fine-tuned transformers model; changes to it take effect from the next call on."""
        model: PreTrainedModel = self._state().network.hand_out()
        return model

    @model_.setter
    def model_(self, model: PreTrainedModel) -> None:
        fitted = self._state()
        attributes = apart_from_weights(type(self), fitted.attributes)
        network = with_model(fitted.network, model)
        most = min(fitted.task.max_length, network.max_length)
        task = replace(fitted.task, max_length=most)
        self._fitted = replace(fitted, network=network, task=task, attributes=attributes)

    @property
    def tokenizer_(self) -> PreTrainedTokenizerBase:
        """A copy of the tokenizer, as transformers opens it; changes to it change nothing here."""
        tokenizer: PreTrainedTokenizerBase = hand_out_tokenizer(self._state().network)
        return tokenizer

    @property
    def pooling_(self) -> str:
        """The pooling in use, with ``"auto"`` resolved."""
        return self._state().network.pooling


def _check_job(checkpoint: Checkpoint, head: Head, opens: tuple[Job, ...]) -> None:
    """Raise where config.json names the head of another job, whose weights may fit by chance."""
    family = checkpoint.family
    jobs = {
        job: name
        for name in checkpoint.config.get("architectures", ())
        for job in family.jobs_of(name)
        if job != "embedding"  # without a head
    }
    if head.has_output_layer and jobs and not jobs.keys() & {*opens}:
        wanted, (job, name) = family.head_class(head.job).name, next(iter(jobs.items()))
        opener = _opener_of(job)
        raise ModelError(
            f"The checkpoint {checkpoint.folder} has no head for {wanted}: "
            f"its config.json names {name}. Open it with {opener}, or pass it as model= and call "
            "fit."
        )


def _opener_of(job: Job) -> str:
    """The estimators that open a checkpoint with the head for a job, in words."""
    return " or ".join(name for name in ESTIMATORS if job in load_name(name)._opens)


def encode(
    task: Task, texts: Texts, targets: Any, network: Network, name: str | None = None
) -> Items:
    """Tokenise once, and say once if texts were cut; ``name`` is what they are part of."""
    tokenizer = network.text_tokenizer
    if is_one_chunk(len(texts)) or task.head().reads != "rows" or not hasattr(texts, "take"):
        items = task.encode(texts, targets, tokenizer)
    else:  # each row by itself
        items = joined(
            (task.encode(texts.take(rows), None if targets is None else targets[rows], tokenizer),
             len(rows)) for rows in chunks(len(texts))
        )  # fmt: skip
    warn_if_cut(task, items.n_truncated, len(texts), name)
    return items


def predict_rows(
    task: Task, rows: Rows, network: Network, precision: Precision, on_rows: OnSamples | None,
    prepare: Callable[[Network, Items, Precision], Items] | None = None,
) -> Array:  # fmt: skip
    """What the task makes of the model's outputs, one entry per row.

    ``on_rows`` is called with the number of rows that are done since the last call. Rows that are
    tokenised together are prepared first.
    """

    def run(items: Items) -> Ragged:
        if prepare is not None and is_one_chunk(len(rows)):
            items = prepare(network, items, precision)
        return infer(network, items, precision, on_samples=on_rows)

    return predict_in_chunks(task, rows, network.text_tokenizer, run)
