"""The parameters of an estimator, what it says of wrong ones, and where it is documented.

Depends on scikit-learn and numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from difflib import get_close_matches
from functools import cache, wraps
from importlib import metadata
from inspect import Parameter, signature
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
from sklearn.base import BaseEstimator

from skbert.exceptions import InputError, InputTypeError

__all__ = ["GuidedEstimator", "requires_y"]

Method = TypeVar("Method", bound=Callable[..., Any])


class GuidedEstimator(BaseEstimator):
    """A scikit-learn estimator that names what was meant by a mistyped parameter."""

    _y_holds: ClassVar[str] = "the targets"  # what to give as y, in words
    _doc_link_module = "skbert"

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse names that are no parameters before ``__init__`` does, and say what was meant."""
        del args
        odd = _first_unknown(kwargs, _accepted(cls.__init__) or kwargs)
        if odd is not None:
            raise InputTypeError(_unknown_parameter(cls, odd, kwargs[odd]))
        made: Self = super().__new__(cls)
        return made

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the estimator.

        Parameters
        ----------
        **params : dict
            Names and values.

        Returns
        -------
        self : estimator
            The estimator.

        Raises
        ------
        InputError
            If there is no parameter with such a name; the message suggests the closest one.
        """
        own = {name.partition("__")[0]: value for name, value in params.items()}
        odd = _first_unknown(own, _accepted(type(self).__init__) or self._get_param_names())
        if odd is not None:
            raise InputError(_unknown_parameter(type(self), odd, own[odd]))
        super().set_params(**params)
        return self

    def _unfitted_copy(self) -> Self:
        """An unfitted copy whose numbers are Python's, as those of numpy can overflow."""
        copied = type(self)(**self.get_params(deep=False))
        for name, value in vars(self).items():  # also what a subclass's constructor does not take
            if name != "_fitted":
                setattr(copied, name, value.item() if isinstance(value, np.generic) else value)
        return copied

    @property
    def _doc_link_template(self) -> str:
        """Where scikit-learn's HTML finds the page of the class."""
        return f"{_documentation()}/generated/skbert.{{estimator_name}}.html"

    def _get_doc_link(self) -> str:
        """The page of the class; none where the package names no documentation."""
        link: str = super()._get_doc_link() if _documentation() else ""
        return link


@cache
def _documentation() -> str:
    """Address of the documentation, as the installed package names it, or nothing."""
    try:
        named = metadata.metadata("skbert").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:  # runs from a folder
        return ""
    pages = dict(line.split(", ", 1) for line in named)
    return str(pages.get("Documentation", "")).rstrip("/")


@cache
def _accepted(constructor: Callable[..., None]) -> frozenset[str] | None:
    """Names that a constructor accepts; None if it takes any."""
    parameters = signature(constructor).parameters
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    return None if takes_any else frozenset(parameters)


def _first_unknown(names: Iterable[str], accepted: Container[str]) -> str | None:
    return next((name for name in names if name not in accepted), None)


def _unknown_parameter(cls: type[Any], name: str, value: object) -> str:
    names = cls._get_param_names()
    close = get_close_matches(name.lower(), names, n=1, cutoff=0.7)
    right = f"Did you mean {close[0]!r}? Type {close[0]}={value!r:.40}." if close else ""
    return (
        f"Invalid parameter {name!r} for estimator {cls.__name__}, which has no such parameter. "
        f"{right or 'Choose from ' + ', '.join(names) + '.'}"
    )


def requires_y(method: Method) -> Method:
    """Have a method that is called without ``y`` say whose it is, and what to give."""

    @wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) < 2 and "y" not in kwargs:
            call = f"{type(self).__name__}.{method.__name__}"
            raise InputTypeError(
                f"{call}() missing 1 required positional argument: 'y', which holds "
                f"{self._y_holds}. Type {method.__name__}(X, y)."
            )
        return method(self, *args, **kwargs)

    return cast("Method", checked)
