"""Checks that an estimator on texts is scikit-learn compatible, for the estimators of any library.

scikit-learn's own checks use matrices of numbers, and skip nearly everything for an estimator
whose tags say that it takes texts. These checks test the same with texts, pairs, rows of words,
questions and options. Depends on numpy, pandas and scikit-learn, and not on torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from skbert.exceptions import InputError
from skbert.testing._conventions import CONVENTION_CHECKS
from skbert.testing._inputs import INPUT_CHECKS
from skbert.testing._results import RESULT_CHECKS
from skbert.testing._samples import KINDS, Subject, sample_of

__all__ = ["check_text_estimator", "text_estimator_checks"]

_CHECKS = (*CONVENTION_CHECKS, *RESULT_CHECKS, *INPUT_CHECKS)


def text_estimator_checks(
    estimator: Any, *, kind: str, X: Any = None, y: Any = None
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the checks for an estimator one by one, to run each as a separate test.

    Parameters
    ----------
    estimator : estimator
        An instance that is not fitted. It is cloned and stays as it is. If it has a
        ``random_state``, this must be an int: equal fits must give equal results.
    kind : {"choices", "classes", "features", "labels", "numbers", "pairs", "spans", "tags"}
        What the estimator predicts: one class per text or per pair of texts (``"classes"``,
        ``"pairs"``), several labels or a number per text, a tag per word, an answer in a context,
        one of several options, or features (`transform`).
    X, y : list of n rows, default=None
        Data to use instead of the few rows of this module, in the same form: ``X`` with at least
        6 rows, all different, and ``y`` of the same length.

    Yields
    ------
    name : str
        The check's name.
    check : callable
        Takes no arguments and raises an AssertionError if the estimator does not pass.

    Raises
    ------
    InputError
        If there is no such kind, or if X and y do not have the form that it needs.

    Examples
    --------
    >>> from skbert import BertClassifier
    >>> from skbert.testing import text_estimator_checks
    >>> checks = dict(text_estimator_checks(BertClassifier(random_state=0), kind="classes"))
    >>> checks["check_clone"]()
    """
    if kind not in KINDS:
        raise InputError(
            f"There is no kind {kind!r}. The kinds are {', '.join(map(repr, KINDS))}."
        )
    subject = Subject(estimator, sample_of(kind, X, y))
    for check in _CHECKS:
        if check.is_applicable(subject):
            yield check.name, partial(check.run, subject)


def check_text_estimator(
    estimator: Any,
    *,
    kind: str,
    X: Any = None,
    y: Any = None,
    expected_failed_checks: Mapping[str, str] | None = None,
    on_fail: str = "raise",
) -> list[dict[str, Any]]:
    """Check that an estimator on texts is scikit-learn compatible.

    It does for texts what `sklearn.utils.estimator_checks.check_estimator` does for numbers. It
    checks cloning, parameters, containers, bad inputs, equal results from equal fits, pickling and
    searches. Which checks are run depends on the kind and on the methods of the estimator.

    Parameters
    ----------
    estimator : estimator
        An instance that is not fitted. It is cloned and stays as it is. If it has a
        ``random_state``, this must be an int: equal fits must give equal results. Results are
        compared within 1e-4, so let it compute in float32 or float64.
    kind : {"choices", "classes", "features", "labels", "numbers", "pairs", "spans", "tags"}
        What the estimator predicts, as in `text_estimator_checks`.
    X, y : list of n rows, default=None
        Other data to fit and predict, as in `text_estimator_checks`.
    expected_failed_checks : dict of str to str, default=None
        Names of checks that the estimator is known to fail, with the reason. If such a check
        passes nevertheless, it counts as failed.
    on_fail : {"raise", None}, default="raise"
        Raise at the first failure, or continue and only report failures.

    Returns
    -------
    results : list of dict
        For each check its ``check_name``, its ``status`` ("passed", "failed" or "xfail") and the
        ``exception`` that it raised, or None.

    Raises
    ------
    AssertionError
        If a check fails; the message says what was expected.
    InputError
        If there is no such kind, X and y do not have the form that it needs, or
        `expected_failed_checks` names an unknown check.

    Examples
    --------
    >>> from skbert import BertTransformer
    >>> from skbert.testing import check_text_estimator
    >>> results = check_text_estimator(BertTransformer(precision="float32"), kind="features")
    >>> {result["status"] for result in results}
    {'passed'}
    """
    expected = dict(expected_failed_checks or {})
    checks = dict(text_estimator_checks(estimator, kind=kind, X=X, y=y))
    if unknown := sorted(expected.keys() - checks.keys()):
        raise InputError(f"expected_failed_checks names unknown checks: {unknown}.")
    results: list[dict[str, Any]] = []
    for name, check in checks.items():
        results.append(_result(name, check, xfail=name in expected))
        if on_fail == "raise" and results[-1]["status"] == "failed":
            raise results[-1]["exception"]
    return results


def _result(name: str, check: Callable[[], None], *, xfail: bool) -> dict[str, Any]:
    error, status = _error_of(check), "xfail" if xfail else "failed"
    if error is None and xfail:
        error, status = AssertionError(f"{name} passes, but is expected to fail."), "failed"
    return {"check_name": name, "status": status if error else "passed", "exception": error}


def _error_of(check: Callable[[], None]) -> Exception | None:
    try:
        check()
    except Exception as error:  # noqa: BLE001 - whatever an estimator raises is a failure
        return error
    return None
