"""Every row of the table of bad and odd inputs, on every estimator it applies to."""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support.bad_inputs_of_arguments
import support.bad_inputs_of_heads  # noqa: F401 - both add their rows to the table
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from support.bad_inputs import (
    BOTH,
    ESTIMATORS,
    KINDS,
    LABELS,
    NUMBERS,
    ONE_TEXT_PER_ROW,
    PAIRS,
    ROWS,
    TEXTS,
    TWO_TEXTS_PER_ROW,
    Accepted,
    Refused,
    Row,
    Warned,
)

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
    _catalogue,
)
from skbert.exceptions import SkbertError
from skbert.testing._samples import sample_of

FEWEST_ROWS = 700
BESIDE = ("X_val", "y_val", "sample_weight_val", "groups", "classes")  # what else `fit` takes
FEWEST_ROWS_OF_A_HEAD = 15
CLASSES = {
    "classifier": BertClassifier,
    "extractor": BertSpanExtractor,
    "ranker": BertChoiceRanker,
    "regressor": BertRegressor,
    "tagger": BertTokenTagger,
    "transformer": BertTransformer,
}
OTHERS = {
    kind: sample_of(name, None, None)
    for kind, name in {"extractor": "spans", "ranker": "choices", "tagger": "tags"}.items()
}
TARGETS = {
    "classifier": LABELS,
    "regressor": NUMBERS,
    "transformer": None,
    **{kind: sample.y for kind, sample in OTHERS.items()},
}

Predict = Callable[..., np.ndarray]


def rows_of(expectation: type) -> list[Any]:
    """Pairs of a row and an estimator, as parameters."""
    return [
        pytest.param(row, kind, id=f"{row.id}-{kind}")
        for row in ROWS
        if isinstance(row.expect, expectation)
        for kind in row.estimators
        if knows(kind, row)
    ]


def knows(kind: str, row: Row) -> bool:
    """Whether the estimator has all parameters of the row, and the method that is asked."""
    given, estimator = row.make(Path()), CLASSES[kind]()
    name, arguments = given.get("asked", ("fit", {}))
    method = getattr(estimator, name, None)
    return (
        given.get("params", {}).keys() <= estimator.get_params().keys()
        and method is not None
        and arguments.keys() <= inspect.signature(method).parameters.keys()
    )


def new_estimator(kind: str, folder: Path, **params: Any) -> Any:
    settings = {
        "model": folder,
        "epochs": 1,
        "head_init": "random",
        "random_state": 0,
        "device": "cpu",
        "precision": "float32",
    }
    known = CLASSES[kind]().get_params()
    return CLASSES[kind](**{k: v for k, v in (settings | params).items() if k in known})


def fit(row: Row, kind: str, model: Path) -> tuple[Any, dict[str, Any]]:
    """Fit a new estimator on what the row gives; building it may not fail."""
    given = {"X": usual_rows(kind), "y": TARGETS[kind], "params": {}} | row.make(model)
    estimator = new_estimator(kind, model, **given["params"])
    more = {name: given[name] for name in (*BESIDE, "sample_weight") if name in given}
    estimator.fit(given["X"], given["y"], **more)
    return estimator, given


def usual_rows(kind: str) -> Any:
    return OTHERS[kind].X if kind in OTHERS else TEXTS


def outputs(estimator: Any, X: Any) -> list[np.ndarray]:
    """All that an estimator says of X."""
    names = ("predict", "predict_proba", "decision_function", "transform")
    return [getattr(estimator, name)(X) for name in names if hasattr(estimator, name)]


def check_outputs(estimator: Any, given: dict[str, Any]) -> None:
    """As many predictions as rows, finite, and equal to those for plain str."""
    X = given.get("predict_X", given["X"])
    plain = given.get("plain")
    found = outputs(estimator, X)
    for values in found:
        assert len(values) == len(X)
        assert values.dtype.kind not in "fc" or np.isfinite(values).all()
    if plain is not None:
        for values, expected in zip(found, outputs(estimator, plain), strict=True):
            np.testing.assert_array_equal(values, expected)


def check_learned_the_same(row: Row, kind: str, estimator: Any, given: dict[str, Any]) -> None:
    """Learning from any container gives what learning from a list gives."""
    reference = given.get("reference", given.get("plain"))
    if row.kind == "container" and (reference is TEXTS or reference is PAIRS):
        expected = predictions_of_plain(kind, estimator.model, reference is PAIRS)
        X = given.get("predict_X", given["X"])
        np.testing.assert_array_equal(outputs(estimator, X)[-1], expected)


@functools.cache
def predictions_of_plain(kind: str, model: Path, pairs: bool) -> np.ndarray:
    plain = PAIRS if pairs else TEXTS
    return outputs(new_estimator(kind, model).fit(plain, TARGETS[kind]), plain)[-1]


@pytest.mark.long
@pytest.mark.parametrize(("row", "kind"), rows_of(Accepted))
def test_accepted(row: Row, kind: str, tiny_model: Path) -> None:
    estimator, given = fit(row, kind, tiny_model)
    check_outputs(estimator, given)
    check_learned_the_same(row, kind, estimator, given)
    if row.expect.check is not None:
        row.expect.check(estimator)


@pytest.mark.parametrize(("row", "kind"), rows_of(Warned))
def test_accepted_with_one_warning(row: Row, kind: str, tiny_model: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator, given = fit(row, kind, tiny_model)
    (warning,) = caught
    assert issubclass(warning.category, row.expect.warning)
    assert re.search(row.expect.words, str(warning.message))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", row.expect.warning)
        check_outputs(estimator, given)
        if row.expect.check is not None:
            row.expect.check(estimator)


@pytest.mark.parametrize(("row", "kind"), rows_of(Refused))
def test_refused(row: Row, kind: str, tiny_model: Path) -> None:
    if "cuda-" in row.id and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    expect = row.expect
    if expect.when == "predict":
        estimator, given = fit(row, kind, tiny_model)
        names = ("predict", "predict_proba", "transform")
        methods = [getattr(estimator, name) for name in names if hasattr(estimator, name)]
        calls = [functools.partial(method, given["predict_X"]) for method in methods]
    elif expect.when == "asked":
        name, arguments = row.make(tiny_model)["asked"]
        method = getattr(fitted_once(kind, tiny_model), name)
        X = {"X": usual_rows(kind)} if "X" in inspect.signature(method).parameters else {}
        calls = [functools.partial(method, **X, **arguments)]
    else:
        calls = [functools.partial(fit, row, kind, tiny_model)]
    for call in calls:
        with pytest.raises(expect.error) as caught:
            call()
        for words in expect.words:
            assert re.search(words, str(caught.value)), (words, str(caught.value))
        check_manners(caught.value)


REFUSED_TARGETS = [
    pytest.param(row, kind, id=f"{row.id}-{kind}")
    for row in ROWS
    for kind in row.estimators
    if isinstance(row.expect, Refused)
    and kind in BOTH
    and row.make(Path()).keys() in ({"y"}, {"sample_weight"})
]


@functools.cache
def fitted_once(kind: str, model: Path) -> Any:
    return new_estimator(kind, model).fit(usual_rows(kind), TARGETS[kind])


@pytest.mark.parametrize(("row", "kind"), REFUSED_TARGETS)
def test_score_refuses_what_fit_refuses(row: Row, kind: str, tiny_model: Path) -> None:
    estimator = fitted_once(kind, tiny_model)
    given = {"y": TARGETS[kind]} | row.make(tiny_model)
    with pytest.raises(row.expect.error) as caught:
        estimator.score(TEXTS, **given)
    for words in row.expect.words:
        assert re.search(words, str(caught.value)), (words, str(caught.value))
    check_manners(caught.value)


def check_manners(error: Exception) -> None:
    """What every message must be, whatever it says."""
    message = str(error)
    assert isinstance(error, (SkbertError, ValueError))
    assert " object at 0x" not in message
    assert len(message) < 1000
    assert message.strip().endswith((".", "!", "?")) or "\n- " in message or "Got" in message


REFUSED_IN_FIT = [
    row for row in ROWS if isinstance(row.expect, Refused) and row.expect.when == "fit"
]


@pytest.mark.parametrize("kind", BOTH)
def test_a_refused_fit_leaves_no_fitted_estimator(kind: str, tiny_model: Path) -> None:
    fitted = new_estimator(kind, tiny_model).fit(TEXTS, TARGETS[kind])
    for X, y in [(None, TARGETS[kind]), (TEXTS, None), (TEXTS, TARGETS[kind][1:])]:
        estimator = clone(fitted)
        with pytest.raises(ValueError, match=r"X|y"):
            estimator.fit(X, y)
        with pytest.raises(NotFittedError):
            check_is_fitted(estimator)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_parameters_are_not_checked_before_fit(kind: str, tiny_model: Path) -> None:
    """Building, cloning, reading and setting bad parameters works; `fit` refuses them."""
    refused = [
        row
        for row in REFUSED_IN_FIT
        if row.kind == "parameter" and kind in row.estimators and knows(kind, row)
    ]
    assert refused
    for row in refused:
        params = row.make(tiny_model)["params"]
        estimator = new_estimator(kind, tiny_model, **params)
        again = new_estimator(kind, tiny_model).set_params(**params)
        for each in (estimator, clone(estimator), again):
            for name, value in params.items():
                np.testing.assert_equal(each.get_params()[name], value)


def test_inputs_stay_as_they_are(tiny_model: Path) -> None:
    """What was given is neither changed nor kept."""
    texts = ["go\ud800od film", None, *TEXTS[2:]]
    before = list(texts)
    y, weight = list(LABELS), np.arange(6.0)
    estimator = new_estimator("classifier", tiny_model, missing="empty")
    with pytest.warns(UserWarning, match="surrogate"):
        estimator.fit(texts, y, sample_weight=weight)
    assert texts == before
    assert y == LABELS
    assert weight.tolist() == [0, 1, 2, 3, 4, 5]


# --- the table itself ----------------------------------------------------------------------------


def test_the_table_is_of_every_estimator() -> None:
    """What the pretrainer reads differs with its objective: its own tests give it odd input."""
    assert set(CLASSES) == set(ESTIMATORS)
    absent = (
        {*_catalogue.ESTIMATORS} - {"BertPretrainer"} - {cls.__name__ for cls in CLASSES.values()}
    )
    assert not absent, (
        f"add {absent} to CLASSES and OTHERS or TARGETS here and to ESTIMATORS in "
        "tests/support/bad_inputs.py, and rows of odd input to bad_inputs_of_heads.py"
    )


def test_the_table_is_long_and_its_ids_are_unique() -> None:
    assert len(ROWS) >= FEWEST_ROWS
    assert [name for name, count in Counter(row.id for row in ROWS).items() if count > 1] == []
    assert {row.kind for row in ROWS} == set(KINDS)
    assert {kind for row in ROWS for kind in row.estimators} == set(ESTIMATORS)
    for kind in OTHERS:
        assert sum(row.applies_to == kind for row in ROWS) >= FEWEST_ROWS_OF_A_HEAD


def test_the_table_expects_all_there_is() -> None:
    counts = Counter(type(row.expect) for row in ROWS)
    assert set(counts) == {Accepted, Warned, Refused}
    for kind in KINDS:
        assert any(row.kind == kind and isinstance(row.expect, Refused) for row in ROWS), kind
    for names in (ONE_TEXT_PER_ROW, TWO_TEXTS_PER_ROW):
        assert set(names) <= {row.id for row in ROWS if isinstance(row.expect, Accepted)}


def test_every_row_can_be_made(tmp_path: Path) -> None:
    known = {
        "X",
        "y",
        "sample_weight",
        "params",
        "predict_X",
        "plain",
        "reference",
        "asked",
        *BESIDE,
    }
    for row in ROWS:
        assert set(row.make(tmp_path)) <= known, row.id
