"""ValidationInput: what ``fit`` was asked to validate on, beside ``validation_fraction``.

Depends on the plan of a fit and on `skbert.exceptions`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from skbert._arrays import Array
from skbert._estimator.plan import TrainingPlan
from skbert._validation.targets import check_target_names
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


def needs_validation_set(estimator: object, name: str) -> InputError:
    """The error for a parameter that has no effect where no rows are held out."""
    value, default = getattr(estimator, name), getattr(type(estimator), name)
    shown = name if callable(value) else f"{name}={value!r}"
    return InputError(
        f"{shown} needs a validation set, but validation_fraction is None and there is no X_val. "
        "Set validation_fraction, for example to 0.1, or give fit rows to validate on as X_val; "
        f"or leave it out: {name}={default!r}."
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
    """Refuse other columns in y_val than in y, and labels about which nothing is learned."""
    check_target_names(beside.attributes.get("target_names_"), plan.attributes)
    known, seen = (_classes_of(each) for each in (plan, beside))
    for column, (old, new) in enumerate(zip(known, seen, strict=True)):
        unseen = [label for label in new if label not in old]
        if unseen:
            targets = beside.targets[:, column] if len(seen) > 1 else beside.targets
            rows = _rows_with(targets, [new.index(label) for label in unseen])
            where = f", the first in row {rows[0]}" if len(rows) else ""
            raise InputError(
                f"y_val holds {len(unseen)} class(es) that y does not hold{where}: "
                f"{unseen!r:.200}. Nothing is learned about them: give X and y rows of these "
                "classes too, or leave their rows out of X_val and y_val."
            )


def _classes_of(plan: TrainingPlan) -> list[list[object]]:
    """The classes of each column of y; without classes there is none."""
    classes = plan.attributes.get("classes_", ())
    columns = classes if isinstance(classes, list) else [np.asarray(classes)]
    return [column.tolist() for column in columns]


def _rows_with(targets: Array | list[Array], codes: list[int]) -> Sequence[int]:
    """The rows whose targets are one of these classes, or share in one."""
    if isinstance(targets, np.ndarray) and targets.dtype.kind == "f":
        return np.flatnonzero(targets[:, codes].any(axis=1)).tolist()
    return [row for row, own in enumerate(targets) if np.isin(own, codes).any()]
