"""`skbert.testing`: every estimator passes, and for every check there is one that does not."""

from __future__ import annotations

import copy
import functools
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.multiclass import unique_labels
from sklearn.utils.validation import check_is_fitted
from support.jobs import JOBS

from skbert._validation.columns import FitRecord
from skbert._validation.targets import check_labels
from skbert._validation.texts import check_texts
from skbert._validation.weights import check_sample_weight
from skbert.exceptions import InputError
from skbert.testing import check_text_estimator, text_estimator_checks
from skbert.testing._samples import KINDS

ESTIMATORS = {kind: job.estimator for job in JOBS.values() for kind in job.kinds}
FEWEST = 25
QUICK = "classes"  # the same checks on the other kinds are left to the suite as a whole
ONE_OF_EACH = [
    (estimator, kind, name)
    for estimator, job in JOBS.items()
    for kind in job.kinds
    for name, _ in text_estimator_checks(job.estimator(), kind=kind)
]


@functools.cache
def checks_of(estimator: str, kind: str, model: Path) -> dict[str, Callable[[], None]]:
    job, settings = JOBS[estimator], {"model": model, "device": "cpu", "precision": "float32"}
    if job.is_trained:
        settings |= {"epochs": 1, "random_state": 0}
    return dict(text_estimator_checks(job.estimator(**settings), kind=kind))


@pytest.mark.filterwarnings("ignore::skbert.exceptions.SkbertWarning")
@pytest.mark.parametrize(
    ("estimator", "kind", "name"),
    [
        pytest.param(*each, marks=() if each[1] == QUICK else pytest.mark.long)
        for each in ONE_OF_EACH
    ],
)
def test_every_estimator_passes(estimator: str, kind: str, name: str, tiny_model: Path) -> None:
    checks_of(estimator, kind, tiny_model)[name]()


def test_there_are_many_for_each() -> None:
    assert set(ESTIMATORS) == set(KINDS)
    for kind in KINDS:
        assert sum(each == kind for _, each, _ in ONE_OF_EACH) >= FEWEST
    assert len(set(ONE_OF_EACH)) == len(ONE_OF_EACH)


# --- an estimator that knows no BERT -------------------------------------------------------------


class Obedient(BaseEstimator):
    """Counts letters, and does all that is asked of an estimator on texts."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def read(self, X: Any, fitting: bool) -> np.ndarray:
        record = None if fitting else FitRecord(*self.record_)
        texts = check_texts(X, fitted=record, estimator_name=type(self).__name__)
        if fitting:
            self.record_ = (texts.names, texts.n_columns)
            for name in ("n_features_in_", "feature_names_in_"):
                vars(self).pop(name, None)
            if texts.names or texts.n_columns > 1:
                self.n_features_in_ = texts.n_columns
            if texts.names:
                self.feature_names_in_ = np.array(texts.names, object)
        whole = [" ".join(row) for row in zip(*filter(None, [texts.first, texts.second]))]  # noqa: B905
        return np.array([[text.count(letter) for letter in "aeiou"] for text in whole], float)

    def forget(self) -> None:
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags


class Classifier(ClassifierMixin, Obedient):
    """Gives the label of the nearest row."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        self.forget()
        points = self.read(X, fitting=True)
        labels, _ = check_labels(y, len(points), estimator_name="Classifier")
        weight = check_sample_weight(sample_weight, len(points))
        self.weight_ = np.ones(len(points)) if weight is None else weight
        self.classes_ = unique_labels(labels)
        self.points_, self.codes_ = points, np.searchsorted(self.classes_, labels)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        points = self.read(X, fitting=False)
        far = np.abs(points[:, None] - self.points_[None]).sum(axis=2)
        near = np.exp(-far) * self.weight_ + 1e-9
        votes = np.stack([near[:, self.codes_ == code].sum(axis=1)
                          for code in range(len(self.classes_))], axis=1)  # fmt: skip
        return votes / votes.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


class Transformer(TransformerMixin, Obedient):
    """Gives the counts."""

    def fit(self, X: Any, y: Any = None) -> Any:
        self.forget()
        self.width_ = self.read(X, fitting=True).shape[1]
        return self

    def transform(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self.read(X, fitting=False)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        return np.array([*"aeiou"], object)


@pytest.mark.parametrize(
    ("estimator", "kind"),
    [(Classifier(), "classes"), (Classifier(), "pairs"), (Transformer(), "features")],
)
def test_estimators_of_others_pass_too(estimator: Any, kind: str) -> None:
    results = check_text_estimator(estimator, kind=kind)
    assert {result["status"] for result in results} == {"passed"}
    assert vars(estimator) == {"seed": 0}


# --- and those that do not -----------------------------------------------------------------------


def bad(base: type = Classifier, **members: Any) -> Any:
    """An estimator with one fault."""
    return type("Bad", (base,), members)()


def after_fit(spoil: Callable[[Any], object]) -> Callable[..., Any]:
    def fit(self: Any, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        Classifier.fit(self, X, y, sample_weight)
        spoil(self)
        return self

    return fit


def before_fit(change: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[..., Any]:
    def fit(self: Any, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        return Classifier.fit(self, *change(X, y), sample_weight)

    return fit


def reading(change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda self, X, fitting: Obedient.read(self, change(X), fitting)


def chances(change: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    return lambda self, X: change(Classifier.predict_proba(self, X))


def by_index(values: Any) -> Any:
    return values.sort_index() if isinstance(values, pd.Series) else values


def some_cells(change: Callable[[Any], Any]) -> Callable[..., Any]:
    return reading(lambda X: [change(cell) for cell in X] if isinstance(X, list) else X)


class Twisted(Classifier):
    """Opens with its labels exchanged."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "codes_" in state:
            self.codes_ = 1 - self.codes_


class Crowded(Classifier):
    """Is confused by two questions at once."""

    asked = 0

    def predict_proba(self, X: Any) -> np.ndarray:
        Crowded.asked += 1
        time.sleep(0.02)
        found = super().predict_proba(X)
        found = found[:, ::-1] if Crowded.asked > 1 else found
        Crowded.asked -= 1
        return found


class Aging(Classifier):
    """Is another one after each clone."""

    def __sklearn_clone__(self) -> Any:
        return type(self)(self.seed + 1)

    def predict_proba(self, X: Any) -> np.ndarray:
        found = super().predict_proba(X) ** (1 / self.seed)
        return found / found.sum(axis=1, keepdims=True)


class Additional(Classifier):
    """Sets in its constructor what is no parameter."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.more = seed


class Chatty(Classifier):
    """Says what it does."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        print("learned")  # noqa: T201
        return super().fit(X, y, sample_weight)


class Positional(Classifier):
    """Does not know y by its position."""

    def fit(self, X: Any, *other: Any, y: Any = None) -> Any:
        return super().fit(X, y if y is not None else other[0][::-1])


def refused_but_fitted(self: Any, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
    try:
        return Classifier.fit(self, X, y, sample_weight)
    finally:
        self.points_ = None


def matrix_tags(self: Any) -> Any:
    tags = Classifier.__sklearn_tags__(self)
    tags.input_tags.two_d_array = True
    return tags


def blank_is_nan(self: Any, X: Any) -> np.ndarray:
    found = Classifier.predict_proba(self, X)
    found[self.read(X, fitting=False).sum(axis=1) == 0] = np.nan
    return found


def copied_twisted(self: Any, memo: Any) -> Any:
    other = copy.copy(self)
    other.codes_ = 1 - other.codes_
    return other


def first_missing(y: Any) -> Any:
    return [y[0] if cell is None or cell != cell else cell for cell in y]


NO_WEIGHT = {"fit": lambda self, X, y=None, sample_weight=None: Classifier.fit(self, X, y)}
SABOTEURS = {
    "check_init": Additional(),
    "check_clone": bad(__sklearn_clone__=lambda self: self),
    "check_set_params": bad(set_params=lambda self, **new: vars(self).update(new) or self),
    "check_repr": bad(__repr__=object.__repr__),
    "check_tags": bad(__sklearn_tags__=matrix_tags),
    "check_not_fitted": bad(predict=lambda _, X: np.zeros(len(X))),
    "check_fit_returns_self": bad(fit=lambda self, X, y: Classifier.fit(self, X, y) and None),
    "check_fit_keeps_parameters": bad(fit=after_fit(lambda self: self.set_params(seed=7))),
    "check_fit_sets_attributes_with_underscores": bad(
        fit=after_fit(lambda self: vars(self).update(points=1))
    ),
    "check_data_stays": bad(
        read=reading(lambda X: X.sort() or X if isinstance(X, list) else X)
    ),
    "check_reading_changes_nothing": bad(
        predict=lambda self, X: vars(self).update(asked_=1) or Classifier.predict(self, X)
    ),
    "check_pickle": Twisted(),
    "check_deepcopy": bad(__deepcopy__=copied_twisted),
    "check_process_stays": bad(fit=after_fit(lambda _: random.random())),
    "check_silent": Chatty(),
    "check_feature_names": bad(fit=after_fit(lambda self: vars(self).update(n_features_in_=9))),
    "check_one_result_per_row": bad(predict=lambda self, X: [*Classifier.predict(self, X)]),
    "check_fits_are_equal": bad(
        fit=after_fit(lambda self: vars(self).update(weight_=np.random.default_rng().random(8)))
    ),
    "check_containers": bad(read=reading(by_index)),
    "check_containers_of_y": bad(fit=before_fit(lambda X, y: (X, by_index(y)))),
    "check_order_of_rows": bad(predict_proba=chances(lambda found: found[::-1])),
    "check_single_rows": bad(predict_proba=chances(lambda found: found - found.mean(axis=0))),
    "check_repeated_rows": bad(
        predict_proba=chances(lambda found: found ** np.arange(1, len(found) + 1)[:, None])
    ),
    "check_threads": Crowded(),
    "check_odd_texts": bad(predict_proba=blank_is_nan),
    "check_weights_of_one": bad(**NO_WEIGHT),
    "check_score": bad(score=lambda _, X, y, sample_weight=None: np.nan),
    "check_cross_validation": bad(score=lambda _, X, y: np.nan),
    "check_grid_search": Aging(),
    "check_pipeline": Positional(),
    "check_labels_of_any_type": bad(fit=before_fit(lambda X, y: (X, [*map(str, y)]))),
    "check_probabilities": bad(predict_proba=chances(lambda found: found / 2)),
    "check_empty": bad(fit=lambda self, X, y=None: Classifier.fit(self, X, y) if len(X) else self),
    "check_missing_cells": bad(read=some_cells(lambda cell: cell if cell == cell else "")),
    "check_foreign_cells": bad(read=some_cells(str)),
    "check_single_string": bad(read=reading(lambda X: [*X] if isinstance(X, str) else X)),
    "check_no_rows_to_select": bad(read=reading(lambda X: X if hasattr(X, "shape") else [*X])),
    "check_columns_as_rows": bad(
        read=reading(lambda X: [(c[0], c[1]) for c in X] if len(X) == 2 else X)
    ),
    "check_lengths": bad(
        fit=before_fit(lambda X, y: (X[: len(y)], y[: len(X)]))
    ),
    "check_no_targets": bad(fit=before_fit(lambda X, y: (X, [0] * len(X) if y is None else y))),
    "check_missing_targets": bad(fit=before_fit(lambda X, y: (X, first_missing(y)))),
    "check_weights": bad(**NO_WEIGHT),
    "check_refused_fit": bad(fit=refused_but_fitted),
    "check_fit_transform": bad(
        Transformer, fit_transform=lambda self, X, y=None: self.fit(X).read(X, fitting=False) + 1
    ),
    "check_names_of_features": bad(
        Transformer, get_feature_names_out=lambda _, names=None: np.array([*"aeio"])
    ),
}  # fmt: skip
MISSHAPEN = {
    "choices": lambda X: np.full(len(X), 9),
    "labels": lambda X: np.full((len(X), 2), 2),
    "numbers": lambda X: np.full(len(X), np.nan),
    "spans": lambda X: np.array(["not in it"] * len(X), object),
    "tags": lambda X: pd.Series([["O"]] * len(X)).to_numpy(),
}


@pytest.mark.parametrize("name", SABOTEURS)
def test_each_check_fails_where_it_should(name: str) -> None:
    estimator = SABOTEURS[name]
    kind = "features" if isinstance(estimator, Transformer) else "classes"
    kind = "pairs" if name == "check_columns_as_rows" else kind
    with pytest.raises(AssertionError):
        dict(text_estimator_checks(estimator, kind=kind))[name]()


@pytest.mark.parametrize("kind", MISSHAPEN)
def test_predictions_of_another_form_fail(kind: str, tiny_model: Path) -> None:
    wrong = bad(ESTIMATORS[kind], predict=lambda _, X: MISSHAPEN[kind](X))
    wrong.set_params(model=tiny_model, epochs=1, device="cpu", random_state=0)
    with pytest.raises(AssertionError, match="row 0 of kind"):
        dict(text_estimator_checks(wrong, kind=kind))["check_form_of_predictions"]()


def test_no_check_is_left_without_one_that_fails_it() -> None:
    assert {name for _, _, name in ONE_OF_EACH} == {*SABOTEURS, "check_form_of_predictions"}


# --- the battery itself --------------------------------------------------------------------------


def test_reports_and_expected_failures() -> None:
    why = {"check_silent": "it likes to talk"}
    with pytest.raises(AssertionError, match="prints 'learned"):
        check_text_estimator(Chatty(), kind="classes")
    results = check_text_estimator(Chatty(), kind="classes", on_fail=None)
    failed = [result for result in results if result["status"] == "failed"]
    assert [result["check_name"] for result in failed] == ["check_silent"]
    assert isinstance(failed[0]["exception"], AssertionError)
    results = check_text_estimator(Chatty(), kind="classes", expected_failed_checks=why)
    assert sum(result["status"] == "xfail" for result in results) == 1
    with pytest.raises(AssertionError, match="expected to fail"):
        check_text_estimator(Classifier(), kind="classes", expected_failed_checks=why)
    with pytest.raises(InputError, match="check_smile"):
        check_text_estimator(
            Classifier(), kind="classes", expected_failed_checks={"check_smile": "never"}
        )


def test_data_of_ones_own() -> None:
    X = [f"{word} {n}" for n, word in enumerate(["aaa", "eee", "aaa e", "eee a", "a", "e", "ae"])]
    y = ["a", "e", "a", "e", "a", "e", "a"]
    results = check_text_estimator(Classifier(), kind="classes", X=X, y=y)
    assert {result["status"] for result in results} == {"passed"}
    for X_bad, y_bad in [(X, None), (X, y[1:]), (X[:3], y[:3]), (np.array(X), y)]:
        with pytest.raises(InputError, match=r"X and y|at least 6"):
            check_text_estimator(Classifier(), kind="classes", X=X_bad, y=y_bad)
    with pytest.raises(InputError, match="no kind 'texts'"):
        check_text_estimator(Classifier(), kind="texts")
