"""What an estimator has learned: one frozen object, and the public attributes that read from it.

Needs neither torch nor scikit-learn: nothing here fits, saves or predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar, overload

import numpy as np

from skbert._validation.columns import FitRecord

if TYPE_CHECKING:
    from skbert._core.models.network import Network

__all__ = [
    "Fitted", "FittedEstimator", "Learned", "apart_from_weights", "check_attributes",
    "known_attributes", "learned_attributes",
]  # fmt: skip

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the attributes as a dict, for a read-only view can be neither."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["attributes"] = dict(self.attributes)
        return type(self), tuple(values.values())


class FittedEstimator(Protocol):
    """A fitted estimator, as those see it who read its state and its parameters."""

    _fitted: Any  # a Fitted; jobs have kinds of their own
    _assigned: Mapping[str, Any]  # attributes that were set before the first fit

    def get_params(self, deep: bool = ...) -> dict[str, Any]:
        """Names and values of the parameters."""

    def _validate_params(self) -> None: ...


class Learned(Generic[Value]):
    """A public attribute that is read from what was learned; a class has none.

    Assigning to it replaces its value in the estimator's state, until the next fit. A value that
    is assigned before any fit is kept until then.

    Parameters
    ----------
    is_valid : callable
        Whether a value is one that a fit may learn; ``save`` and ``load`` refuse others.
    *sizes : str
        Names of the lengths of an array's axes, of the length of a list's arrays together, or of
        what a number counts. Attributes that share a name agree on it; ``"n_outputs"`` is the
        number of outputs of the head.
    optional : bool, default=False
        Whether an estimator may be fitted without it.
    task : type, default=object
        The only task that it comes with, if it is not optional.
    needs : tuple of str, default=()
        The attributes that are there wherever this one is.
    of_weights : bool, default=False
        Whether it was measured with the weights as they are, and says nothing of others.
    only_says : bool, default=False
        Whether it only says what was done to the weights, so that another value would do nothing.
    """

    def __init__(
        self, is_valid: Callable[[object], bool], *sizes: str, optional: bool = False,
        task: type = object, needs: tuple[str, ...] = (), of_weights: bool = False,
        only_says: bool = False,
    ) -> None:  # fmt: skip
        self.is_valid = is_valid
        self.sizes = sizes
        self.optional = optional
        self.task = task
        self.needs = needs
        self.of_weights = of_weights
        self.only_says = only_says

    def __set_name__(self, owner: type, name: str) -> None:
        """Remember the name of the attribute."""
        self.name = name

    @overload
    def __get__(self, estimator: None, owner: type) -> NoReturn: ...

    @overload
    def __get__(self, estimator: FittedEstimator, owner: type) -> Value: ...

    def __get__(self, estimator: FittedEstimator | None, owner: type) -> Value:
        """Return the learned value; AttributeError where none was learned."""
        if estimator is None:
            raise AttributeError(f"type object {owner.__name__!r} has no attribute {self.name!r}")
        value: Value = self._present(estimator)[self.name]
        return value

    def __set__(self, estimator: FittedEstimator, value: Value) -> None:
        """Replace the learned value."""
        if self.only_says and getattr(estimator, "_fitted", None) is not None:
            raise AttributeError(
                f"{self.name} cannot be assigned: it only says what fit did to the weights of the "
                "output layer. Change that layer in model_, or fit again."
            )
        _assign(estimator, {**_attributes(estimator), self.name: value})

    def __delete__(self, estimator: FittedEstimator) -> None:
        """Remove the learned value; AttributeError where none was learned."""
        present = self._present(estimator)
        _assign(estimator, {name: present[name] for name in present if name != self.name})

    def _present(self, estimator: FittedEstimator) -> Mapping[str, Any]:
        """All attributes of an estimator, this one among them."""
        attributes = _attributes(estimator)
        if self.name not in attributes:
            kind = type(estimator).__name__
            raise AttributeError(f"{kind!r} object has no attribute {self.name!r}")
        return attributes

    def check(self, attributes: Mapping[str, Any], task: object, sizes: dict[str, int]) -> None:
        """Refuse a value that no fit learns, or none where every fit learns one.

        ``sizes`` are those known by name; those that the value has are added.
        """
        if self.name not in attributes:
            if isinstance(task, self.task) and not self.optional:
                raise KeyError(self.name)
            return
        value = attributes[self.name]
        if not (self.is_valid(value) and self._agrees(value, sizes)):
            raise ValueError(f"{self.name}={value!r:.80}")
        absent = [name for name in self.needs if name not in attributes]
        if absent:
            raise KeyError(*absent)

    def _agrees(self, value: Any, sizes: dict[str, int]) -> bool:
        """Whether a value has the sizes that are known, where it has some by name."""
        own = value.shape if isinstance(value, np.ndarray) else (value,)
        if isinstance(value, list):  # of arrays
            own = (sum(map(len, value)),)
        pairs = zip(self.sizes, own, strict=False)
        return not self.sizes or (
            len(own) == len(self.sizes)
            and all(sizes.setdefault(name, size) == size for name, size in pairs)
        )


def _attributes(estimator: FittedEstimator) -> Mapping[str, Any]:
    """What an estimator has learned, or what was assigned before it was fitted."""
    fitted: Fitted | None = getattr(estimator, "_fitted", None)
    return getattr(estimator, "_assigned", {}) if fitted is None else fitted.attributes


def _assign(estimator: FittedEstimator, attributes: Mapping[str, Any]) -> None:
    fitted: Fitted | None = getattr(estimator, "_fitted", None)
    if fitted is None:
        estimator._assigned = attributes
    else:
        estimator._fitted = replace(fitted, attributes=attributes)


def learned_attributes(cls: type[Any]) -> dict[str, Learned[Any]]:
    """The attributes that estimators of a class may learn, in the order of their declaration."""
    return {
        name: value
        for base in reversed(cls.__mro__)
        for name, value in vars(base).items()
        if isinstance(value, Learned)
    }


def apart_from_weights(cls: type[Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that stay true when the weights change."""
    measured = {name for name, each in learned_attributes(cls).items() if each.of_weights}
    return {name: value for name, value in attributes.items() if name not in measured}


def known_attributes(cls: type[Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that a class may learn."""
    learned = learned_attributes(cls)
    return {name: value for name, value in attributes.items() if name in learned}


def check_attributes(
    cls: type[Any], attributes: Mapping[str, Any], task: object, sizes: dict[str, int]
) -> None:
    """Refuse attributes that no fit of this task learns; ``sizes`` are those known by name."""
    for each in learned_attributes(cls).values():
        each.check(attributes, task, sizes)
