"""How one of scikit-learn's checks is run, and which of them need no data."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import SkipTest

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

DATA_FREE = (
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_sparse_array",
    "check_estimator_sparse_matrix",
    "check_estimator_sparse_tag",
    "check_estimator_tags_renamed",
    "check_estimators_empty_data_messages",
    "check_estimators_unfitted",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_param_validation",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
)


def run(check: Callable[[object], object], estimator: object) -> None:
    """Run one check; being skipped is no way to pass."""
    try:
        check(estimator)
    except SkipTest as skip:
        pytest.fail(f"scikit-learn skipped this check: {skip}")
