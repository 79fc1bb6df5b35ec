"""ValidationInput: what ``fit`` was asked to validate on, beside ``validation_fraction``.

Depends on the plan of a fit and on `skbert.exceptions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from skbert._estimator.plan import TrainingPlan
from skbert.exceptions import InputError, InputTypeError

__all__ = ["ValidationInput", "check_unseen", "in_validation_set", "needs_validation_set"]

_CALL = "fit(X, y, X_val=X_val, y_val=y_val)"


class ValidationInput(NamedTuple):
    """Rows to validate on, or the groups of the rows of X; by default neither."""

    X: object = None
    y: object = None
    sample_weight: object = None
    groups: object = None

    def check(self, fraction: float | None, *, needs_y: bool) -> None:
        """Refuse a part of a validation set, and groups where no rows of X are held out."""
        parts = {"y_val": self.y, "sample_weight_val": self.sample_weight}
        odd = [name for name, part in parts.items() if part is not None]
        if odd and self.X is None:
            raise InputError(
                f"{odd[0]} is given, but X_val, to whose rows it belongs, is not. Type {_CALL}."
            )
        if needs_y and self.X is not None and self.y is None:
            raise InputError(
                "X_val is given, but y_val is not, and nothing can be validated without it. Type "
                f"{_CALL}."
            )
        if self.groups is not None:
            self._check_groups(fraction)

    def _check_groups(self, fraction: float | None) -> None:
        if self.X is not None:
            raise InputError(
                "groups says which rows of X are held out together, but with X_val no rows of X "
                "are held out. Give either groups or X_val."
            )
        if fraction is None:
            raise InputError(
                "groups says which rows of X are held out together, but with "
                "validation_fraction=None no rows are held out. Set validation_fraction, for "
                "example to 0.1, or leave groups out."
            )


def needs_validation_set(name: str, value: object) -> InputError:
    """The error for a parameter that has no effect where no rows are held out."""
    shown = name if callable(value) else f"{name}={value!r}"
    return InputError(
        f"{shown} needs a validation set, but validation_fraction is None and there is no X_val. "
        "Set validation_fraction, for example to 0.1, or give fit rows to validate on as X_val."
    )


@contextmanager
def in_validation_set() -> Iterator[None]:
    """Have errors about X and y say that these are X_val and y_val."""
    try:
        yield
    except (InputError, InputTypeError) as error:
        said = f"In the validation set, where X is X_val and y is y_val: {error}"
        raise type(error)(said) from error


def check_unseen(plan: TrainingPlan, beside: TrainingPlan) -> None:
    """Refuse labels of y_val that y does not hold, about which nothing is learned."""
    known = np.asarray(plan.attributes.get("classes_", ())).tolist()
    classes = np.asarray(beside.attributes.get("classes_", ())).tolist()
    unseen = [label for label in classes if label not in known]
    if unseen:
        codes = [classes.index(label) for label in unseen]
        rows = [row for row, own in enumerate(beside.targets) if np.isin(own, codes).any()]
        raise InputError(
            f"y_val holds {len(unseen)} class(es) that y does not hold, the first in row "
            f"{rows[0]}: {unseen!r:.200}. Nothing is learned about them: give X and y rows of "
            "these classes too, or leave their rows out of X_val and y_val."
        )
