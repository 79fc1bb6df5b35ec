"""Small labelled data sets that come with the package.

Each loader reads one CSV file from ``skbert/data`` and returns it in the form
that scikit-learn's own ``load_*`` functions use. The datasheet that lies next
to the CSV file becomes ``DESCR``. Nothing is downloaded.

This module may depend on the standard library, pandas and scikit-learn's
``Bunch``, and on nothing else. It must not import torch, directly or through
another module of this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, overload

import pandas as pd
from sklearn.utils import Bunch  # type: ignore[import-untyped, unused-ignore]

if TYPE_CHECKING:
    from typing import TypeAlias

    Texts: TypeAlias = pd.Series[str]
    Numbers: TypeAlias = pd.Series[float]

__all__ = ["load_intents", "load_ratings"]


def _load(
    name: str,
    columns: Mapping[str, type],
    *,
    data: str | list[str],
    target: str,
    classes: bool,
    return_X_y: bool,
) -> Bunch | tuple[Any, Any]:
    """Read ``data/<name>.csv`` and its datasheet ``data/<name>.md``.

    Parameters
    ----------
    name : str
        File name without its ending.
    columns : mapping of str to type
        The columns to read, in the order of ``frame``, and their types. An
        empty cell in a text column is the empty string, in any other column
        it is an error.
    data : str or list of str
        The input column (``data`` is a Series) or columns (a DataFrame).
    target : str
        The column to predict.
    classes : bool
        Whether to add ``target_names``, the sorted values of the target.
    return_X_y : bool
        Whether to return ``(data, target)`` in place of the Bunch.
    """
    folder = files("skbert") / "data"
    with (folder / f"{name}.csv").open("r", encoding="utf-8") as file:
        frame = pd.read_csv(file, dtype=dict(columns), na_filter=False)[list(columns)]
    if return_X_y:
        return frame[data], frame[target]
    descr = (folder / f"{name}.md").read_text(encoding="utf-8")
    bunch = Bunch(data=frame[data], target=frame[target], frame=frame, DESCR=descr)
    if classes:
        bunch.target_names = sorted(frame[target].unique())
    return bunch


@overload
def load_intents(*, return_X_y: Literal[False] = False) -> Bunch: ...
@overload
def load_intents(*, return_X_y: Literal[True]) -> tuple[Texts, Texts]: ...
def load_intents(*, return_X_y: bool = False) -> Bunch | tuple[Texts, Texts]:
    """Load the support desk messages (classification, 8 classes).

    Each row is one message to the support desk of an online shop with an app,
    and the label says what the sender wants.

    Parameters
    ----------
    return_X_y : bool, default=False
        If True, return ``(data, target)`` in place of the Bunch.

    Returns
    -------
    Bunch or tuple of (Series, Series)
        The Bunch has ``data`` (Series of str named "text"), ``target`` (Series
        of str named "label"), ``frame`` (DataFrame with both columns),
        ``target_names`` (sorted list of the labels) and ``DESCR`` (the
        datasheet, Markdown text).

    Examples
    --------
    >>> from skbert.datasets import load_intents
    >>> intents = load_intents()
    >>> intents.frame.shape
    (449, 2)
    >>> intents.target_names[:3]
    ['bug_report', 'cancel_subscription', 'delivery']
    >>> X, y = load_intents(return_X_y=True)
    >>> X[0], y[0]
    ('Which cards do you take?', 'payment')
    """
    columns = {"text": str, "label": str}
    return _load(
        "intents", columns, data="text", target="label", classes=True, return_X_y=return_X_y
    )


@overload
def load_ratings(*, return_X_y: Literal[False] = False) -> Bunch: ...
@overload
def load_ratings(*, return_X_y: Literal[True]) -> tuple[Texts, Numbers]: ...
def load_ratings(*, return_X_y: bool = False) -> Bunch | tuple[Texts, Numbers]:
    """Load the product reviews (regression, 1.0 to 5.0 in half steps).

    Each row is one short review of a product, with the rating it goes with.

    Parameters
    ----------
    return_X_y : bool, default=False
        If True, return ``(data, target)`` in place of the Bunch.

    Returns
    -------
    Bunch or tuple of (Series, Series)
        The Bunch has ``data`` (Series of str named "text"), ``target`` (Series
        of float named "rating"), ``frame`` (DataFrame with both columns) and
        ``DESCR`` (the datasheet, Markdown text).

    Examples
    --------
    >>> from skbert.datasets import load_ratings
    >>> ratings = load_ratings()
    >>> ratings.frame.shape
    (252, 2)
    >>> float(ratings.target.min()), float(ratings.target.max())
    (1.0, 5.0)
    >>> X, y = load_ratings(return_X_y=True)
    >>> X[0], float(y[0])
    ('A gripping read with one chapter too many.', 4.0)
    """
    columns = {"text": str, "rating": float}
    return _load(
        "ratings", columns, data="text", target="rating", classes=False, return_X_y=return_X_y
    )
