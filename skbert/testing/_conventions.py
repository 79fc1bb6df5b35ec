"""Checks of `skbert.testing`: scikit-learn's conventions for parameters, state and the process.

Depends on scikit-learn, joblib and the samples.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import random
import signal
import tempfile
import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from skbert.testing._samples import Check, Subject, assert_same, expect, objects, outputs

__all__ = ["CONVENTION_CHECKS"]


def check_init(subject: Subject) -> None:
    """The constructor stores its arguments unchanged, and does nothing else."""
    params = subject.estimator.get_params(deep=False)
    made = type(subject.estimator)(**params)
    for name, value in params.items():
        assert getattr(made, name) is value, f"the constructor changes {name}"
    more = vars(made).keys() - params.keys()
    assert not more, f"the constructor sets {sorted(more)}, which are not parameters"


def check_clone(subject: Subject) -> None:
    """A clone has the same parameters and is not fitted."""
    for original in (subject.estimator, subject.fitted):
        copied = clone(original)
        assert_same_params(copied, original)
        assert not is_fitted(copied), "a clone is fitted"


def check_set_params(subject: Subject) -> None:
    """`get_params` returns what `set_params` sets; unknown parameters are refused."""
    estimator = subject.new()
    params = estimator.get_params(deep=False)
    assert estimator.set_params(**params) is estimator, "set_params does not return the estimator"
    for name, value in params.items():
        marker = object()
        estimator.set_params(**{name: marker})
        assert estimator.get_params(deep=False)[name] is marker, f"{name} cannot be set"
        estimator.set_params(**{name: value})
    with expect(ValueError, what="set_params with an unknown parameter"):
        estimator.set_params(no_such_parameter=1)


def check_repr(subject: Subject) -> None:
    """The repr begins with the name of the class, before and after `fit`."""
    for estimator in (subject.estimator, subject.fitted):
        shown = repr(estimator)
        assert shown.startswith(type(estimator).__name__), f"repr is {shown!r}"
        assert " object at 0x" not in shown, f"repr is {shown!r}"


def check_tags(subject: Subject) -> None:
    """The tags say that X holds texts, and whether `fit` requires y."""
    tags = get_tags(subject.estimator)
    assert tags.input_tags.string, "tags.input_tags.string is not set"
    assert not tags.input_tags.two_d_array, "tags.input_tags.two_d_array is set"
    assert tags.target_tags.required == subject.sample.is_supervised, "tags.target_tags.required"


def check_not_fitted(subject: Subject) -> None:
    """Before `fit` every method that needs it raises NotFittedError."""
    estimator, sample = subject.new(), subject.sample
    calls: list[tuple[str, tuple[Any, ...]]]
    calls = [(name, (sample.X,)) for name in subject.expected]
    calls += [("score", (sample.X, sample.y))] if subject.has_method("score") else []
    for name, arguments in calls:
        with expect(NotFittedError, what=f"{name} before fit"):
            getattr(estimator, name)(*arguments)


def check_fit_returns_self(subject: Subject) -> None:
    """`fit` returns the estimator, now fitted."""
    estimator = subject.new()
    more = (subject.sample.y,) if subject.sample.is_supervised else ()
    assert estimator.fit(subject.sample.X, *more) is estimator, "fit does not return self"
    check_is_fitted(estimator)


def check_fit_keeps_parameters(subject: Subject) -> None:
    """`fit` changes no parameter."""
    assert_same_params(subject.fitted, subject.estimator)


def check_fit_sets_attributes_with_underscores(subject: Subject) -> None:
    """Attributes that `fit` adds end in an underscore, or begin with one."""
    added = vars(subject.fitted).keys() - subject.estimator.get_params(deep=False).keys()
    odd = [name for name in added if not name.endswith("_") and not name.startswith("_")]
    assert not odd, f"fit sets {sorted(odd)}"


def check_data_stays(subject: Subject) -> None:
    """Neither X nor y is changed, by `fit` or later."""
    X, y = copy.deepcopy(subject.sample.X), copy.deepcopy(subject.sample.y)
    outputs(subject.fit(X, y), X)
    assert_same(X, subject.sample.X, "X after fit")
    if subject.sample.is_supervised:
        assert_same(y, subject.sample.y, "y after fit")


def check_reading_changes_nothing(subject: Subject) -> None:
    """Predicting leaves every attribute as it was."""
    before = dict(vars(subject.fitted))
    outputs(subject.fitted, subject.sample.X[:3])
    assert vars(subject.fitted).keys() == before.keys(), "predicting sets attributes"
    changed = [name for name, value in before.items() if vars(subject.fitted)[name] is not value]
    assert not changed, f"predicting replaces {changed}"


def check_pickle(subject: Subject) -> None:
    """After pickling with joblib it gives equal results; an unfitted one stays unfitted."""
    assert_same(outputs(pickled(subject.fitted), subject.sample.X), subject.expected, "pickled")
    assert not is_fitted(pickled(subject.new())), "pickling makes it fitted"


def check_deepcopy(subject: Subject) -> None:
    """A deep copy gives equal results, and fitting it again does not change the original."""
    again = copy.deepcopy(subject.fitted)
    assert_same(outputs(again, subject.sample.X), subject.expected, "of a deep copy")
    half = len(subject.sample) // 2 + 1
    again.fit(subject.sample.X[:half], *([subject.sample.y[:half]] if subject.sample.y else []))
    results = outputs(subject.fitted, subject.sample.X)
    assert_same(results, subject.expected, "after a deep copy was fitted again")


def check_process_stays(subject: Subject) -> None:
    """Random states, environment, logging, warnings and signals are as before."""
    before = process_state()
    outputs(subject.fit(), subject.sample.X)
    after = process_state()
    changed = [name for name in before if repr(before[name]) != repr(after[name])]
    assert not changed, f"fit and predict change the process: {changed}"


def check_silent(subject: Subject) -> None:
    """By default nothing is printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        outputs(subject.fit(), subject.sample.X)
    assert not printed.getvalue(), f"fit or predict prints {printed.getvalue()[:200]!r}"


def check_feature_names(subject: Subject) -> None:
    """The column names of a frame are stored, and other columns are refused."""
    sample = subject.sample
    cells = [objects(sample.column(at)) for at in range(len(sample.columns))]
    frame = pd.DataFrame(dict(zip(sample.columns, cells, strict=True)))
    estimator = subject.fit(frame)
    assert estimator.n_features_in_ == len(sample.columns), "n_features_in_"
    assert list(estimator.feature_names_in_) == list(sample.columns), "feature_names_in_"
    assert not hasattr(subject.fitted, "feature_names_in_"), "a list has no feature names"
    if len(sample.columns) == 1:
        n_features = getattr(subject.fitted, "n_features_in_", None)
        assert n_features is None, (
            f"n_features_in_ is {n_features} after a list, which has no columns"
        )
    other = frame.rename(columns={sample.columns[-1]: "something else"})
    with expect(ValueError, what="columns of other names than in fit"):
        outputs(estimator, other)


CONVENTION_CHECKS = (
    Check(check_init),
    Check(check_clone),
    Check(check_set_params),
    Check(check_repr),
    Check(check_tags),
    Check(check_not_fitted),
    Check(check_fit_returns_self),
    Check(check_fit_keeps_parameters),
    Check(check_fit_sets_attributes_with_underscores),
    Check(check_data_stays),
    Check(check_reading_changes_nothing),
    Check(check_pickle),
    Check(check_deepcopy),
    Check(check_process_stays),
    Check(check_silent),
    Check(check_feature_names),
)


def process_state() -> dict[str, Any]:
    """Return the global state of this process."""
    numpy_state: Any = np.random.get_state()  # noqa: NPY002 - the state that must not change
    return {
        "random": random.getstate(),
        "numpy.random": (*numpy_state[:1], numpy_state[1].tolist(), *numpy_state[2:]),
        "numpy.errors": np.geterr(),
        "environment": dict(os.environ),
        "folder": Path.cwd(),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.disabled),
        "warnings": list(warnings.filters),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)],
    }


def pickled(estimator: Any) -> Any:
    """Return an estimator after dumping and loading it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "estimator.joblib"
        joblib.dump(estimator, path)
        return joblib.load(path)


def is_fitted(estimator: Any) -> bool:
    """Return whether an estimator is fitted, according to scikit-learn."""
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True


def assert_same_params(estimator: Any, other: Any) -> None:
    """Compare the parameters of two estimators."""
    left, right = (each.get_params(deep=False) for each in (estimator, other))
    np.testing.assert_equal(left, right)
