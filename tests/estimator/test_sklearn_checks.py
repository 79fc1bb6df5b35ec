"""scikit-learn's own battery: what it says of the estimators, and how much it was asked.

The shipped classes say in their tags that they take texts, and the battery has no data for that.
So it runs in two parts: all of it on the adapters of `numeric_adapter`, and on the shipped
classes themselves every check that needs no data. The last part counts: a check that is skipped,
or no longer there, fails like one that does not pass.
"""

from __future__ import annotations

import inspect
import shutil
from typing import TYPE_CHECKING

import pytest
from sklearn.exceptions import SkipTestWarning
from sklearn.utils import estimator_checks, get_tags
from sklearn.utils.estimator_checks import (
    check_estimator,
    estimator_checks_generator,
    parametrize_with_checks,
)
from support.checks import DATA_FREE, run
from support.numeric_adapter import (
    FOLDER,
    ExactClassifier,
    ExactRegressor,
    NumericClassifier,
    NumericRegressor,
    NumericTransformer,
    WideTransformer,
    make_models,
)

import skbert
from skbert._catalogue import ESTIMATORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# How many checks scikit-learn has for each adapter. A release of it may bring more; fewer means
# that an estimator lost a method, a parameter or a tag, or that the tests of it got thinner.
FLOORS = {
    NumericClassifier: 68,
    NumericRegressor: 59,
    NumericTransformer: 46,
    ExactClassifier: 68,
    ExactRegressor: 59,
    WideTransformer: 46,
}
LEARN_IN_BATCHES = (NumericClassifier, NumericRegressor)
DEFAULTS = (*LEARN_IN_BATCHES, NumericTransformer)

# A row of weight 2 is one row in one mini-batch; the same row twice is in two of them.
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "the rows of a mini-batch depend on how many rows there are; it passes in ExactClassifier"
        " and ExactRegressor, where one batch holds all rows"
    )
}


# Checks for transformers that the generator yields for none, or only under other tags.
OF_TRANSFORMERS = (
    "check_dataframe_column_names_consistency",
    "check_get_feature_names_out_error",
    "check_global_output_transform_pandas",
    "check_global_set_output_transform_polars",
    "check_inplace_ensure_writeable",
    "check_param_validation",
    "check_set_output_transform",
    "check_set_output_transform_pandas",
    "check_set_output_transform_polars",
    "check_transformer_get_feature_names_out",
    "check_transformer_get_feature_names_out_pandas",
    "check_transformer_preserve_dtypes",
)

adapters = pytest.mark.parametrize("adapter", FLOORS)
natives = pytest.mark.parametrize("native", [getattr(skbert, name) for name in ESTIMATORS])


@pytest.fixture(scope="module", autouse=True)
def _models() -> Iterator[None]:
    make_models()
    yield
    shutil.rmtree(FOLDER)


def expected_failures(estimator: object) -> dict[str, str]:
    return EXPECTED_FAILURES if type(estimator) in LEARN_IN_BATCHES else {}


# --- the whole battery, on numbers ---------------------------------------------------------------


@parametrize_with_checks(
    [adapter() for adapter in DEFAULTS],
    expected_failed_checks=expected_failures,
    xfail_strict=True,
)
@pytest.mark.long
def test_the_whole_battery_through_the_adapters(
    estimator: object, check: Callable[[object], object]
) -> None:
    run(check, estimator)


@pytest.mark.long
@parametrize_with_checks([adapter() for adapter in FLOORS if adapter not in DEFAULTS])
def test_the_whole_battery_on_other_settings(
    estimator: object, check: Callable[[object], object]
) -> None:
    run(check, estimator)


# These fit a frame and transform a matrix, or the other way round, on purpose.
@pytest.mark.filterwarnings("ignore:X .*feature names")
@pytest.mark.parametrize(
    "adapter", [NumericTransformer, pytest.param(WideTransformer, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_what_the_generator_leaves_out(adapter: type, name: str) -> None:
    run(lambda checked: getattr(estimator_checks, name)(adapter.__name__, checked), adapter())


@pytest.mark.parametrize("adapter", LEARN_IN_BATCHES)
@pytest.mark.parametrize("name", EXPECTED_FAILURES)
def test_the_expected_failure_is_the_stated_one(adapter: type, name: str) -> None:
    with pytest.raises(AssertionError, match="`sample_weight` is not equivalent"):
        getattr(estimator_checks, name)(adapter.__name__, adapter())


# --- what needs no data, on the shipped classes --------------------------------------------------


@natives
@pytest.mark.parametrize("name", DATA_FREE)
def test_checks_without_data_on_the_shipped_classes(native: type, name: str) -> None:
    estimator = native(model="no/such-model")  # whatever opens it has gone too far
    run(lambda checked: getattr(estimator_checks, name)(native.__name__, checked), estimator)


@natives
def test_the_shipped_tags_say_texts(native: type) -> None:
    tags = get_tags(native())
    assert tags.input_tags.string
    assert not tags.input_tags.two_d_array
    assert not tags.input_tags.sparse
    assert not tags.input_tags.allow_nan
    assert tags.requires_fit
    y = inspect.signature(native.fit).parameters["y"]
    assert tags.target_tags.required == (y.default is inspect.Parameter.empty)
    with pytest.warns(SkipTestWarning, match="Can't test estimator"):
        results = check_estimator(native(), on_fail=None, on_skip=None)
    assert [result["status"] for result in results] == ["passed"]


@natives
def test_what_the_battery_has_checks_for_has_an_adapter(native: type) -> None:
    tags = get_tags(native())
    if tags.estimator_type is not None or tags.transformer_tags is not None:
        assert any(issubclass(adapter, native) for adapter in FLOORS), (
            f"write an adapter of {native.__name__} in tests/support/numeric_adapter.py, and say "
            "in FLOORS how many checks it has"
        )


# --- the count -----------------------------------------------------------------------------------


@adapters
def test_the_battery_is_as_large_as_it_was(adapter: type) -> None:
    assert len(list(estimator_checks_generator(adapter()))) >= FLOORS[adapter]


@adapters
def test_no_more_failures_are_expected_than_stated(adapter: type) -> None:
    estimator = adapter()
    marked = [
        mark
        for parameters in estimator_checks_generator(
            estimator,
            expected_failed_checks=expected_failures(estimator),
            mark="xfail",
            xfail_strict=True,
        )
        for mark in getattr(parameters, "marks", ())
    ]
    assert [mark.name for mark in marked] == ["xfail"] * len(expected_failures(estimator))
    assert all(mark.kwargs["strict"] for mark in marked)
    assert len(marked) <= (1 if adapter in LEARN_IN_BATCHES else 0)


@adapters
def test_no_tag_turns_checks_off(adapter: type) -> None:
    tags = get_tags(adapter())
    off = ("non_deterministic", "no_validation", "_skip_test")
    assert not any(getattr(tags, name) for name in off)
    score = tags.classifier_tags or tags.regressor_tags
    assert score is None or not score.poor_score
    assert (score is None) == (tags.transformer_tags is not None)


@adapters
def test_the_adapters_add_only_how_x_is_read(adapter: type) -> None:
    shipped = next(
        i for i, cls in enumerate(adapter.__mro__) if cls.__module__.startswith("skbert")
    )
    added: set[str] = set()
    for cls in adapter.__mro__[:shipped]:
        added |= {name for name, value in vars(cls).items() if inspect.isfunction(value)}
    assert added - {"__init__", "__replace__"} == {"_rows", "_columns_of", "__sklearn_tags__"}


def test_at_least_fourteen_checks_need_no_data() -> None:
    assert len(set(DATA_FREE)) >= 14


def test_at_least_eleven_checks_of_transformers_are_run_by_name() -> None:
    yielded = {
        check.func.__name__ for _, check in estimator_checks_generator(NumericTransformer())
    }
    assert len(set(OF_TRANSFORMERS) - yielded) >= 11
