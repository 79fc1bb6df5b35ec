"""What an estimator has learned: one frozen object, and the public attributes that read from it.

Depends on scikit-learn only at its base: nothing here fits, saves or predicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import getattr_static
from typing import Any, Generic, Protocol, Self, TypeVar, overload

from skbert._core.models.network import Network
from skbert._validation.columns import FitRecord

__all__ = ["Fitted", "FittedEstimator", "Learned", "learned_names"]

Value = TypeVar("Value")


@dataclass(frozen=True)
class Fitted:
    """All that an estimator has learned: the weights, what they are for, and what X looked like.

    A fit makes it and assigns it in its last step. Whoever reads it once sees one state, whatever
    other threads fit meanwhile.
    """

    network: Network
    task: Any
    record: FitRecord | None  # the columns of X in fit; None: opened from a checkpoint
    attributes: Mapping[str, Any]  # the public ones, whose names end with an underscore


class FittedEstimator(Protocol):
    """A fitted estimator, as those see it who read its state and its parameters."""

    _fitted: Any  # a Fitted; jobs have kinds of their own

    def get_params(self, deep: bool = ...) -> dict[str, Any]:
        """Names and values of the parameters."""


class Learned(Generic[Value]):
    """A public attribute that is read from what was learned; there is none before a fit.

    Assigning to it replaces its value in the estimator's state, until the next fit.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        """Remember the name of the attribute."""
        self.name = name

    @overload
    def __get__(self, estimator: None, owner: type) -> Self: ...

    @overload
    def __get__(self, estimator: FittedEstimator, owner: type) -> Value: ...

    def __get__(self, estimator: Any, owner: type) -> Self | Value:
        """Return the learned value; AttributeError where none was learned."""
        if estimator is None:
            return self
        fitted: Fitted | None = getattr(estimator, "_fitted", None)
        if fitted is None or self.name not in fitted.attributes:
            raise AttributeError(f"{owner.__name__!r} object has no attribute {self.name!r}")
        value: Value = fitted.attributes[self.name]
        return value

    def __set__(self, estimator: FittedEstimator, value: Value) -> None:
        """Replace the learned value."""
        fitted: Fitted | None = getattr(estimator, "_fitted", None)
        if fitted is None:
            raise AttributeError(f"{self.name!r} cannot be set before a fit")
        estimator._fitted = replace(fitted, attributes={**fitted.attributes, self.name: value})


def learned_names(cls: type[Any]) -> tuple[str, ...]:
    """Names of the attributes that estimators of a class may learn."""
    return tuple(name for name in dir(cls) if isinstance(getattr_static(cls, name), Learned))
