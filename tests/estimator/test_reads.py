"""Every public call reads X once: checks and computations share the rows of one reading."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from support.job import PAIRS, TEXTS, Form, Job
from support.jobs import FORMS, JOBS

from skbert import BertPretrainer, inspection
from skbert._estimator.base import TextEstimator
from skbert.exceptions import SkbertWarning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MASKED = [text.replace("the", "[MASK]") for text in TEXTS]
# Methods that need another objective than the first one, and what they read.
OBJECTIVES: dict[str, tuple[str, Any]] = {
    "generate": ("clm", TEXTS),
    "next_sentence_proba": ("nsp", PAIRS),
}
# Functions that call an estimator's own methods, each of which reads X once.
BY_METHODS = (inspection.label_issues, inspection.suggest_learning_rate)
# Functions that show predictions beside the truth.
SHOWING: dict[str, Callable[[Any, Any, Any], object]] = {
    "show": inspection.show,
    "report": inspection.report,
    "worst_errors": inspection.worst_errors,
    "explain": partial(inspection.worst_errors, explain=True),
}
# Each method on the usual form of X, and two of them on the others.
CALLS = [
    pytest.param(job, form, name, id=" ".join([*key, name]))
    for key, (job, form) in FORMS.items()
    for name in sorted(job.methods if form is job.usual else job.methods & {"fit", "score"})
]


class CountedList(list[Any]):
    """A list that counts how often each row is read."""

    def __init__(self, rows: list[Any]) -> None:
        super().__init__(rows)
        self.counts = np.zeros(len(rows), int)

    def __iter__(self) -> Iterator[Any]:
        for row, cell in enumerate(super().__iter__()):
            self.counts[row] += 1
            yield cell

    def __getitem__(self, rows: Any) -> Any:
        self.counts[rows] += 1
        return super().__getitem__(rows)


class CountedRows(Sequence[Any]):
    """A sequence that is no list and counts how often each row is read."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows
        self.counts = np.zeros(len(rows), int)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Any) -> Any:
        self.counts[rows] += 1
        return self._rows[rows]


class CountedColumns:
    """A table in the manner of pyarrow's that counts how often each column is read."""

    def __init__(self, rows: list[Any]) -> None:
        is_wide = isinstance(rows[0], tuple)
        self._columns = [*zip(*rows, strict=True)] if is_wide else [rows]
        self._n_rows = len(rows)
        self.column_names = [f"column {at}" for at in range(len(self._columns))]
        self.counts = np.zeros(len(self._columns), int)

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, name: str) -> Any:
        return self.column(self.column_names.index(name))

    def column(self, at: int) -> list[Any]:
        self.counts[at] += 1
        return list(self._columns[at])


CONTAINERS = (CountedList, CountedRows, CountedColumns)


def takes_rows(call: Any) -> bool:
    return bool({"X", "pairs"} & inspect.signature(call).parameters.keys())


def attribute(estimator: Any, X: Any) -> Any:
    """Attributions of rows, of a transformer for the similarity with a text."""
    target = None if hasattr(estimator, "predict") else TEXTS[0]
    return inspection.attributions(estimator, X, target, method="gradient_x_input")


def methods_of(kind: type) -> set[str]:
    """Public methods that take rows."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name for name, method in methods if not name.startswith("_") and takes_rows(method)}


def read_counts(container: type, rows: Any, call: Callable[..., Any]) -> list[int]:
    """How often the call reads each row or column."""
    X = container(rows)
    call(X)
    counts: list[int] = X.counts.tolist()
    return counts


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_second_reading_is_counted(container: Any, tiny_model: Path) -> None:
    estimator = JOBS["BertClassifier"].make(tiny_model)
    twice = read_counts(container, TEXTS, lambda X: [estimator._rows(X, None) for _ in range(2)])
    assert set(twice) == {2}


def test_every_call_that_takes_rows_is_made() -> None:
    for job in JOBS.values():
        others = OBJECTIVES.keys() if job.estimator is BertPretrainer else set()
        assert methods_of(job.estimator) == job.methods | others | {"export"}, job.estimator
    functions = [getattr(inspection, name) for name in inspection.__all__]
    assert {call for call in functions if inspect.isfunction(call) and takes_rows(call)} == {
        inspection.attentions,
        inspection.attributions,
        inspection.head_importance,
        inspection.report,
        inspection.show,
        inspection.worst_errors,
        *BY_METHODS,
    }


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(("job", "form", "name"), CALLS)
def test_a_method_reads_x_once(
    job: Job, form: Form, name: str, container: Any, tiny_model: Path
) -> None:
    estimator, rows, y = job.make(tiny_model, **form.params), form.X, form.y
    if name not in {"fit", "fit_transform"}:
        estimator.fit(container(rows), y)
        if name == "predict_set":
            estimator.conformalize(rows * 2, y * 2)
        rows, y = MASKED if name == "predict_masked" else rows, y and y[:2]
        rows = rows[:2]  # two rows may be two columns, which has to be looked at
    takes_y = "y" in inspect.signature(getattr(estimator, name)).parameters
    targets = [y] if takes_y else []
    counts = read_counts(container, rows, lambda X: getattr(estimator, name)(X, *targets))
    assert set(counts) == {1}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_method_of_another_objective_reads_x_once(
    name: str, container: Any, tiny_model: Path
) -> None:
    objective, rows = OBJECTIVES[name]
    job = JOBS["BertPretrainer"]
    estimator = job.make(tiny_model, objective=objective)
    estimator.fit(container(job.forms["documents"].X))
    assert set(read_counts(container, rows[:2], getattr(estimator, name))) == {1}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", JOBS)
def test_inspection_reads_x_once(name: str, container: Any, tiny_model: Path) -> None:
    job = JOBS[name]
    rows, y, _ = job.usual
    estimator = job.make(tiny_model).fit(container(rows), y)
    rows, y = rows[:2], y and y[:2]
    if job.estimator is not BertPretrainer:
        counts = read_counts(container, rows, lambda X: inspection.attentions(estimator, X))
        assert set(counts) == {1}
        counts = read_counts(container, rows, lambda X: attribute(estimator, X))
        assert set(counts) == {1}
    if job.is_trained:
        counts = read_counts(
            container, rows, lambda X: inspection.head_importance(estimator, X, y)
        )
        assert set(counts) == {1}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", [name for name in JOBS if "predict" in JOBS[name].methods])
@pytest.mark.parametrize("call", SHOWING)
def test_views_read_x_once(call: str, name: str, container: Any, tiny_model: Path) -> None:
    job = JOBS[name]
    estimator = job.make(tiny_model).fit(job.usual.X, job.usual.y)
    X = container(job.usual.X[:3])
    SHOWING[call](estimator, X, job.usual.y[:3])
    assert {*X.counts.tolist()} == {1}


def test_a_report_reads_training_rows_once(tiny_model: Path) -> None:
    X, y, _ = JOBS["BertClassifier"].usual
    estimator = JOBS["BertClassifier"].make(tiny_model).fit(X, y)
    train = CountedList(X)
    inspection.report(estimator, X, y, X_train=train, y_train=y)
    assert {*train.counts.tolist()} == {1}


@pytest.mark.parametrize("name", [name for name in JOBS if "predict" in JOBS[name].methods])
def test_views_compute_outputs_once(
    name: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, n_calls = JOBS[name], []
    estimator = job.make(tiny_model).fit(job.usual.X, job.usual.y)
    outputs = TextEstimator._outputs

    def counted(self: TextEstimator, *args: Any) -> Any:
        n_calls.append(1)
        return outputs(self, *args)

    monkeypatch.setattr(TextEstimator, "_outputs", counted)
    inspection.report(estimator, job.usual.X, job.usual.y)
    assert len(n_calls) == 1


@pytest.mark.parametrize("call", SHOWING)
@pytest.mark.parametrize("name", [name for name in JOBS if "predict" in JOBS[name].methods])
def test_views_warn_once(call: str, name: str, tiny_model: Path) -> None:
    job = JOBS[name]
    long = {} if name in {"BertSpanExtractor", "BertTokenTagger"} else {"max_length": 5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = job.make(tiny_model, **long).fit(job.usual.X, job.usual.y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SHOWING[call](estimator, job.usual.X, job.usual.y)
    kinds = [each.category for each in caught]
    assert len(kinds) == len({*kinds}) == bool(long), [str(each.message) for each in caught]


@pytest.mark.parametrize("call", ["show", "report", "worst_errors"])
def test_views_of_pipelines_warn_once(call: str, tiny_model: Path) -> None:
    classifier = JOBS["BertClassifier"].make(tiny_model)
    pipeline = make_pipeline(FunctionTransformer(), classifier).fit(TEXTS, ["a", "b"] * 6)
    with pytest.warns(SkbertWarning, match="rows of X are empty") as caught:
        SHOWING[call](pipeline, [*TEXTS[:1], "", " "], ["a", "b", "a"])
    assert [each.filename for each in caught] == [__file__]


def test_a_warm_start_reads_x_once(tiny_model: Path) -> None:
    job = JOBS["BertClassifier"]
    X, y, _ = job.usual
    estimator = job.make(tiny_model, warm_start=True).fit(X, y)
    counts = read_counts(CountedList, X, lambda rows: estimator.fit(rows, y, np.ones(len(X))))
    assert set(counts) == {1}


def test_an_export_reads_x_once(tiny_model: Path, tmp_path: Path) -> None:
    job = JOBS["BertClassifier"]
    estimator = job.make(tiny_model).fit(job.usual.X, job.usual.y)
    counts = read_counts(CountedList, TEXTS, lambda X: estimator.export(tmp_path / "model", X=X))
    assert set(counts) == {1}
