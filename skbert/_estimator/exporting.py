"""A fitted estimator as a folder that predicts without torch, and how far both agree.

Depends on ``_core`` and ``persistence``; is handed estimators, never imports one.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from typing import Protocol, get_args

import numpy as np
from sklearn.base import is_regressor

from skbert._arrays import Array
from skbert._catalogue import ESTIMATORS
from skbert._core.checkpoints import archive
from skbert._core.export.engines import ENGINES, Graph, Precision
from skbert._core.export.formats import Format, check_installed, graph_files
from skbert._core.export.graph import check_head
from skbert._core.export.int8 import calibration_rows
from skbert._core.export.rows import outputs_of
from skbert._core.items import Items
from skbert._core.models.network import Network
from skbert._core.text.tokens import Ragged
from skbert._estimator.fitted import Fitted, FittedEstimator, check_attributes
from skbert._estimator.persistence import state_of
from skbert._estimator.predicting import Rows, predict_in_chunks
from skbert._estimator.state import describing, dumps, loads
from skbert._validation.columns import FitRecord
from skbert.exceptions import InputError, ModelError

__all__ = ["export"]

# How far the predictions of a folder have to agree with those of its estimator on the rows given.
_LEAST = {"labels": 0.995, "cosine": 0.99, "r2": 0.99}
_ADVICE = "Put back what was changed since fit, or fit again."
_FEWEST = 10  # rows to choose scales by
_FEWEST_OTHERS = 200  # to judge by; of fewer one prediction would decide
_WORDS = {
    "labels": "gives the same predictions for {:.2%}",
    "cosine": "gives vectors with a mean cosine of {:.4f} to those",
    "r2": "explains {:.2%} of the variance of the numbers",
}


class Exportable(FittedEstimator, Protocol):
    """A fitted estimator whose predictions are compared with those of a folder."""

    precision: str
    verbose: int
    predict: Callable[[object], Array]  # which a transformer has not
    _rows: Callable[[object, FitRecord | None], Rows]
    _outputs: Callable[[Fitted, Rows], Array]


def export(
    estimator: Exportable,
    path: str | os.PathLike[str],
    format: Format,  # noqa: A002 - as users name it
    precision: Precision,
    X: object,
) -> None:
    """Write the folder, after checking that its graph predicts as the estimator does on X."""
    _check_choice("format", format, get_args(Format))
    _check_choice("precision", precision, get_args(Precision))
    if precision == "int8" and X is None:
        raise InputError(
            "precision='int8' needs rows to choose its scales by, and X is None. Pass some hundred"
            " rows of the kind that will be predicted, not those of the test: "
            f"export(path, format={format!r}, precision='int8', X=X_train[:1000])."
        )
    check_installed(format)
    folder = archive.resolve_folder(path)
    archive.check_target(folder)
    estimator._validate_params()
    fitted = estimator._fitted
    check_head(fitted.network.head)
    rows = None if X is None else estimator._rows(X, fitted.record)
    chosen, judged = _parts(rows, precision)
    tokenizer = fitted.network.text_tokenizer
    items = None if chosen is None else fitted.task.encode(chosen, None, tokenizer)
    header = {"class": _kind_of(estimator), "engine": format, "precision": precision}
    files = graph_files(fitted.network, format, precision, items)
    graph = ENGINES[format](files, None)
    agreement = None if judged is None else _agreement(estimator, fitted, judged, graph)
    members = {**files, **_members(estimator, fitted, agreement)}
    archive.write(folder, members, header, None)


def _parts(rows: Rows | None, precision: Precision) -> tuple[Rows | None, Rows | None]:
    """Rows to choose scales by, and rows to compare predictions on: others, if there are many."""
    if rows is None or precision == "float32":
        return None, rows
    if len(rows) < _FEWEST:
        raise InputError(
            f"X has {len(rows)} rows, too few to choose scales by and to judge them. Pass some "
            f"hundred for precision='int8', and {_FEWEST} at least."
        )
    chosen = calibration_rows(len(rows))
    others = np.delete(np.arange(len(rows)), chosen)
    if len(others) < _FEWEST_OTHERS:
        return rows.take(chosen), rows
    return rows.take(chosen), rows.take(others)


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(
            f"{name}={value!r:.80} is unknown; it is one of {', '.join(map(repr, allowed))}. Type "
            f"{name}={allowed[0]!r}."
        )


def _members(
    estimator: FittedEstimator, fitted: Fitted, agreement: dict[str, float] | None
) -> dict[str, bytes]:
    """What a folder holds beside its graph."""
    network, tokenizer = fitted.network, fitted.network.text_tokenizer
    specials = network.tokenizer.special_tokens_map
    own = copy.copy(estimator)
    if callable(getattr(own, "scoring", None)):  # which fit alone reads, and no folder holds
        vars(own)["scoring"] = "loss"
    state = {
        **state_of(own),
        "tokenizer": {name: specials.get(name) for name in ("mask_token", "unk_token")},
        "head": {
            "reads": network.head.reads,
            "n_outputs": network.head.n_outputs,
            "equal_lengths": network.family.mixes_neighbours,
        },
        "agreement": agreement,
    }
    written = dumps(state)
    with describing("The estimator cannot be exported, because load would refuse it", _ADVICE):
        check_attributes(
            type(estimator), loads(written)["attributes"], fitted.task,
            {"n_outputs": network.head.n_outputs},
        )  # fmt: skip
    return {"tokenizer.json": tokenizer.backend.to_str().encode(), "state.json": written}


def _kind_of(estimator: object) -> str:
    """The name of the public estimator that this one is, or is derived from."""
    return next(cls.__name__ for cls in type(estimator).__mro__ if cls.__name__ in ESTIMATORS)


def _agreement(
    estimator: Exportable, fitted: Fitted, rows: Rows, graph: Graph
) -> dict[str, float]:
    """How far a graph agrees with the estimator in float32, by name; ModelError if too little."""
    run = partial(_run, graph, fitted.network)
    own = copy.copy(estimator)
    own.verbose, own._rows = 0, lambda _X, _record: rows  # X was read
    if own.precision != "float64":
        own.precision = "float32"
    theirs = copy.copy(own)
    theirs._outputs = lambda _, some: predict_in_chunks(
        fitted.task, some, fitted.network.text_tokenizer, run
    )
    if fitted.network.head.has_output_layer:
        compared = _compared(own.predict(None), theirs.predict(None), is_regressor(estimator))
    else:
        compared = "cosine", _cosine(own._outputs(fitted, rows), theirs._outputs(fitted, rows))
    name, value = compared
    if value < _LEAST[name]:
        raise ModelError(
            f"The exported model {_WORDS[name].format(value)} of the estimator on the "
            f"{len(rows)} rows of X, less than the {_LEAST[name]} that a folder has to reach. "
            "Nothing was written. Use precision='float32', or pass more rows, which are like those"
            " that will be predicted."
        )
    return {name: value, "n_rows": len(rows)}


def _run(graph: Graph, network: Network, items: Items) -> Ragged:
    equal_lengths = network.family.mixes_neighbours
    return outputs_of(graph.run, items, network.head, equal_lengths=equal_lengths)


def _compared(own: Array, theirs: Array, are_numbers: bool) -> tuple[str, float]:
    """The name of a measure, and by it the agreement of predictions."""
    own, theirs = (np.asarray(each) for each in (own, theirs))
    if are_numbers:
        error, size = ((theirs - own) ** 2).mean(axis=0), (own**2).mean(axis=0)
        # Numbers that hardly differ, as of few rows, are compared with a percent of themselves.
        spread = np.maximum(own.var(axis=0), size * 1e-4 + np.finfo(own.dtype).tiny)
        return "r2", float(np.min(1 - error / spread))
    return "labels", float(np.mean(np.concatenate(list(map(_equal, own, theirs)))))


def _equal(own: object, theirs: object) -> Array:
    """Whether each label of a row, or each tag, is the same."""
    own, theirs = (np.ravel(np.asarray(each, object)) for each in (own, theirs))
    if not len(own) and not len(theirs):  # neither finds anything
        return np.ones(1, bool)
    return own == theirs if len(own) == len(theirs) else np.zeros(len(own) + 1, bool)


def _cosine(own: Array, theirs: Array) -> float:
    """The mean cosine of vectors to those of the same rows."""
    lengths = np.linalg.norm(own, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(
        np.mean((own * theirs).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny))
    )
