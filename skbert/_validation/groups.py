"""Groups of rows as codes, or an error that names the first bad row.

Depends on `tables` and `skbert.exceptions`.
"""

from __future__ import annotations

import numpy as np

from skbert._validation.features import read_column
from skbert._validation.tables import check_length, is_missing, open_values
from skbert.exceptions import InputError, InputTypeError


def check_groups(groups: object, n: int) -> np.ndarray | None:
    """Return the code of the group of each of `n` rows, None for no groups.

    Codes count from 0 in the order in which the groups appear.
    """
    if groups is None:
        return None
    table = open_values(groups, "groups", None)
    if len(table.shape) != 1:
        raise InputError(
            f"groups has the shape {table.shape}, but must hold the group of each row of X. Give "
            "one column; for an array type groups.ravel()."
        )
    check_length(n, table.shape[0], "groups")
    codes = _codes(list(read_column(groups, table, 0)))
    if not codes.any():
        raise InputError(
            "All rows of X belong to one group, so that none can be held out: every group is "
            "either trained on or held out as a whole. Give at least two groups, or leave groups "
            "out."
        )
    return codes


def _codes(cells: list[object]) -> np.ndarray:
    """Return the code of each cell."""
    seen: dict[object, int] = {}
    for row, cell in enumerate(cells):
        if is_missing(cell):
            raise InputError(
                f"groups has missing values, the first in row {row}. A row without a group may "
                "belong to any; give each row its group, or a group of its own."
            )
        try:
            seen.setdefault(cell, len(seen))
        except TypeError:
            raise InputTypeError(
                f"Row {row} of groups is of type {type(cell).__name__}, which cannot name a "
                "group. Give a str or a number per row."
            ) from None
    return np.array([seen[cell] for cell in cells])
