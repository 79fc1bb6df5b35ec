"""What an estimator has learned: kept apart while it learns more, and put in place in one step.

A fit works on a draft of the estimator. Refused, failed or interrupted, it is dropped, and the
estimator is what it was. Depends on numpy; is handed estimators, never imports one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

__all__ = ["draft_of", "learned_attributes", "reads_one_state", "take_over"]

Method = TypeVar("Method", bound=Callable[..., Any])

_PRIVATE = frozenset({"_network", "_task", "_seen", "_hash"})


def learned_attributes(estimator: Any) -> dict[str, Any]:
    """The attributes that the estimator has from fitting."""
    return {name: value for name, value in vars(estimator).items() if _is_learned(name)}


def _is_learned(name: str) -> bool:
    return name in _PRIVATE or (name.endswith("_") and not name.startswith("_"))


def draft_of(estimator: Any, *, learned: bool) -> Any:
    """An estimator of the same parameters to fit; with what was ``learned`` before, or without.

    Numbers of numpy are Python's in it, which do not overflow.
    """
    draft = object.__new__(type(estimator))
    state = {n: value for n, value in vars(estimator).items() if learned or not _is_learned(n)}
    for name in estimator._get_param_names():
        if isinstance(state.get(name), np.generic):
            state[name] = state[name].item()
    draft.__dict__ = state
    return draft


def take_over(estimator: Any, draft: Any) -> None:
    """Let the estimator have learned what its draft has, all of it at once."""
    own = {name: value for name, value in vars(estimator).items() if not _is_learned(name)}
    estimator.__dict__ = own | learned_attributes(draft)


def reads_one_state(method: Method) -> Method:
    """A method that reads what was learned as it is at its beginning.

    Where another thread fits the estimator meanwhile, it sees nothing of that.
    """

    @wraps(method)
    def read(estimator: Any, *given: Any, **named: Any) -> Any:
        still = object.__new__(type(estimator))
        still.__dict__ = estimator.__dict__  # which the end of a fit replaces as a whole
        return method(still, *given, **named)

    return read  # type: ignore[return-value]
