"""Checks of `skbert.testing`: results have the right form, and equal inputs give equal results.

Depends on numpy, scikit-learn and the samples.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import has_fit_parameter

from skbert.testing._samples import (
    Check,
    Subject,
    assert_same,
    containers,
    listing,
    objects,
    outputs,
)

__all__ = ["RESULT_CHECKS"]

_NEAR = 1e-4
_ODD = [
    "", "   ", "\u200b", "tab\tand\nline", "caf\u00e9 cafe\u0301", "\U0001f469\u200d\U0001f680 up",
    "\u0645\u0631\u062d\u0628\u0627", "\u4f60\u597d", "[SEP] [MASK]", "nul\x00", "word " * 700,
]  # fmt: skip


def check_one_result_per_row(subject: Subject) -> None:
    """Every method returns an array with one entry per row of X."""
    for name, values in subject.expected.items():
        assert len(listing(values)) == len(subject.sample), (
            f"{name} returns another number of rows"
        )
        assert hasattr(values, "shape"), f"{name} returns {type(values).__name__}, not an array"


def check_fits_are_equal(subject: Subject) -> None:
    """A second clone, and the same estimator fitted again, give exactly equal results."""
    again = subject.fit()
    assert_same(outputs(again, subject.sample.X), subject.expected, "of a second clone")
    more = (subject.sample.y,) if subject.sample.is_supervised else ()
    again.fit(subject.sample.X, *more)
    assert_same(outputs(again, subject.sample.X), subject.expected, "of a second fit")


def check_containers(subject: Subject) -> None:
    """X in any container gives the same results as a list; rows count by position."""
    for name, X in containers(subject.sample):
        if "frame" not in name:
            assert_same(outputs(subject.fitted, X), subject.expected, f"predicting a {name}")
        assert_same(outputs(subject.fit(X), X), subject.expected, f"fitting a {name}")


def check_containers_of_y(subject: Subject) -> None:
    """Y in any container gives the same results as a list; rows count by position."""
    y: Any = subject.sample.y
    forms = {"tuple": tuple(y), "object array": objects(y)}
    forms["Series"] = pd.Series(objects(y), index=range(len(y))[::-1])
    if subject.sample.kind == "labels":
        forms = {"array": np.array(y), "frame": pd.DataFrame(y, index=range(len(y))[::-1])}
    for name, form in forms.items():
        results = outputs(subject.fit(y=form), subject.sample.X)
        assert_same(results, subject.expected, f"with y as a {name}")


def check_order_of_rows(subject: Subject) -> None:
    """The result of a row does not depend on its position."""
    turned = [*subject.sample.X[2:], *subject.sample.X[:2]]
    results = outputs(subject.fitted, turned)
    results = {name: np.roll(objects(listing(each)), 2) for name, each in results.items()}
    assert_near(subject, results, "in another order")


def check_single_rows(subject: Subject) -> None:
    """The result of a row does not depend on the other rows."""
    alone = [outputs(subject.fitted, [row]) for row in subject.sample.X]
    results = {
        name: objects([listing(each[name])[0] for each in alone]) for name in subject.expected
    }
    if subject.sample.kind == "choices" and "predict_proba" in results:
        width = subject.expected["predict_proba"].shape[1]  # as many as the longest row has
        padded = [np.pad(row, (0, width - len(row))) for row in results["predict_proba"]]
        results["predict_proba"] = objects(padded)
    assert_near(subject, results, "one by one")


def check_repeated_rows(subject: Subject) -> None:
    """Equal rows get equal results."""
    values = outputs(subject.fitted, [subject.sample.X[0]] * 3)
    for name, results in values.items():
        rows = listing(results)
        assert_same(rows[1:], rows[:1] * 2, f"{name} of a repeated row", tolerance=_NEAR)


def check_threads(subject: Subject) -> None:
    """Four threads at once get the same results as one."""
    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(lambda _: outputs(subject.fitted, subject.sample.X), range(8)):
            assert_near(subject, results, "from several threads")


def check_odd_texts(subject: Subject) -> None:
    """Empty, long and foreign texts get finite results, one per row."""
    cells: list[Any] = list(_ODD)
    if subject.sample.kind == "tags":
        cells = [[text, "word"] for text in _ODD]
    if subject.sample.kind == "choices":
        cells = [[text, "word", "other"] for text in _ODD]
    X = [subject.sample.with_cell(0, cell)[0] for cell in cells]
    for name, values in outputs(subject.fitted, X).items():
        rows = listing(values)
        assert len(rows) == len(X), f"{name} gives another number of rows"
        for text, row in zip(_ODD, rows, strict=True):
            assert not _is_float(row) or np.isfinite(row).all(), f"{name} of {text[:20]!r}"


def check_weights_of_one(subject: Subject) -> None:
    """Weights of 1 change nothing; weights of 0 for some rows do."""
    ones = np.ones(len(subject.sample))
    results = outputs(subject.fit(sample_weight=ones), subject.sample.X)
    assert_near(subject, results, "with weights of 1")
    halves = np.repeat([1.0, 0.0], [len(ones) - 3, 3])
    other = outputs(subject.fit(sample_weight=halves), subject.sample.X)
    same = [
        np.array_equal(row, before)
        for name in other
        for row, before in zip(listing(other[name]), listing(results[name]), strict=True)
        if _is_float(row)
    ]
    assert not same or not all(same), "sample_weight has no effect in fit"


def check_score(subject: Subject) -> None:
    """`score` is a finite number, the same for any container and for weights of 1."""
    sample, fitted = subject.sample, subject.fitted
    expected = fitted.score(sample.X, sample.y)
    assert isinstance(expected, (float, np.floating)), f"score gives {type(expected).__name__}"
    assert np.isfinite(expected), f"score is {expected}"
    for name, X in containers(sample):
        if "frame" not in name:
            assert abs(fitted.score(X, sample.y) - expected) < _NEAR, f"score of a {name}"
    ones = np.ones(len(sample))
    weighted = fitted.score(sample.X, sample.y, sample_weight=ones)
    assert abs(weighted - expected) < _NEAR, "score with weights of 1"


def check_cross_validation(subject: Subject) -> None:
    """`cross_val_score` and `cross_val_predict` take lists, object arrays and Series."""
    y: Any = subject.sample.y
    for name, X in [("list", subject.sample.X), *containers(subject.sample)]:
        if "polars" not in name and name != "tuple":
            scores = cross_val_score(subject.new(), X, y, cv=2, error_score="raise")
            assert np.isfinite(scores).all(), f"cross_val_score of a {name}: {scores}"
            results = cross_val_predict(subject.new(), X, y, cv=2)
            assert len(results) == len(subject.sample), f"cross_val_predict of a {name}"


def check_grid_search(subject: Subject) -> None:
    """A search refits the best candidate, which predicts."""
    search = GridSearchCV(subject.new(), {}, cv=2, error_score="raise")
    search.fit(subject.sample.X, subject.sample.y)
    assert_near(subject, outputs(search, subject.sample.X), "of a search")


def check_pipeline(subject: Subject) -> None:
    """A pipeline gives the same results as the estimator alone."""
    more = (subject.sample.y,) if subject.sample.is_supervised else ()
    pipeline = make_pipeline("passthrough", subject.new()).fit(subject.sample.X, *more)
    assert_same(outputs(pipeline, subject.sample.X), subject.expected, "in a pipeline")


def check_labels_of_any_type(subject: Subject) -> None:
    """`classes_` are the sorted labels, and predictions are labels, of the type of y."""
    for names in (["bad", "good"], [3, 7], [False, True]):
        codes = {label: code for code, label in enumerate(dict.fromkeys(subject.sample.y or ()))}
        y = [names[codes[label] % 2] for label in subject.sample.y or ()]
        estimator = subject.fit(y=y)
        assert list(estimator.classes_) == names, f"classes_ are {estimator.classes_}"
        predicted = estimator.predict(subject.sample.X)
        assert predicted.dtype.kind in np.array(names).dtype.kind + "O", predicted.dtype
        assert set(predicted.tolist()) <= set(names), "a prediction is not a label"


def check_probabilities(subject: Subject) -> None:
    """Probabilities are from 0 to 1 and sum to 1 in a row, and the most probable is predicted."""
    results = subject.expected["predict_proba"]
    for row, chances in enumerate(listing(results)):
        assert ((chances >= 0) & (chances <= 1)).all(), f"row {row} holds {chances}"
        if subject.sample.kind != "labels":
            np.testing.assert_allclose(np.sum(chances, axis=-1), 1, rtol=_NEAR)
    if subject.sample.kind in ("classes", "pairs"):
        best = subject.fitted.classes_[results.argmax(axis=1)]
        assert_same(subject.expected["predict"], best, "the most probable class")
    if subject.sample.kind == "choices":
        assert_same(
            subject.expected["predict"], results.argmax(axis=1), "the most probable option"
        )


def check_form_of_predictions(subject: Subject) -> None:
    """Predictions have the form of the kind, row by row."""
    X, predicted = subject.sample.X, listing(subject.expected["predict"])
    for row, (x, results) in enumerate(zip(X, predicted, strict=True)):
        rules: dict[str, Callable[[Any, Any], bool]] = {
            "choices": lambda x, y: bool(0 <= y < len(x[-1]) and int(y) == y),
            "labels": lambda _, y: set(np.ravel(y).tolist()) <= {0, 1},
            "numbers": lambda _, y: bool(np.isfinite(y)),
            "spans": lambda x, y: isinstance(y, str) and y in x[-1],
            "tags": lambda x, y: isinstance(y, list) and len(y) == len(x),
        }
        right = rules[subject.sample.kind](x, results)
        assert right, f"row {row} of kind {subject.sample.kind!r} gives {results!r} for {x!r}"


def check_fit_transform(subject: Subject) -> None:
    """`fit_transform` gives the same as `fit` and `transform`."""
    results = subject.new().fit_transform(subject.sample.X)
    assert_near(subject, {"transform": results}, "of fit_transform")


def check_names_of_features(subject: Subject) -> None:
    """Features have names, which are the columns of a frame."""
    names = subject.fitted.get_feature_names_out()
    width = np.shape(listing(subject.expected["transform"]))[1]
    assert len(names) == width == len(set(names)), f"{len(names)} names for {width} features"
    shown = subject.new().set_output(transform="pandas").fit_transform(subject.sample.X)
    assert isinstance(shown, pd.DataFrame), f"set_output gives {type(shown).__name__}"
    assert list(shown.columns) == list(names), "the columns have other names"


def assert_near(subject: Subject, results: dict[str, Any], what: str) -> None:
    """Compare with the results of the fitted estimator."""
    assert_same(results, subject.expected, what, tolerance=_NEAR)


def _is_float(row: object) -> bool:
    return np.asarray(row).dtype.kind == "f"


def _is_supervised(subject: Subject) -> bool:
    return subject.sample.is_supervised


def _is(*kinds: str) -> Any:
    return lambda subject: subject.sample.kind in kinds


RESULT_CHECKS = (
    Check(check_one_result_per_row),
    Check(check_fits_are_equal),
    Check(check_containers),
    Check(check_containers_of_y, _is_supervised),
    Check(check_order_of_rows),
    Check(check_single_rows),
    Check(check_repeated_rows),
    Check(check_threads),
    Check(check_odd_texts),
    Check(check_weights_of_one, lambda s: has_fit_parameter(s.estimator, "sample_weight")),
    Check(check_score, lambda s: s.has_method("score")),
    Check(check_cross_validation, lambda s: s.has_method("score")),
    Check(check_grid_search, lambda s: s.has_method("score")),
    Check(check_pipeline),
    Check(check_labels_of_any_type, _is("classes", "pairs")),
    Check(check_probabilities, lambda s: s.has_method("predict_proba")),
    Check(check_form_of_predictions, _is("choices", "labels", "numbers", "spans", "tags")),
    Check(check_fit_transform, _is("features")),
    Check(check_names_of_features, _is("features")),
)
