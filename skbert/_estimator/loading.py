"""Open a saved folder without knowing which estimator it holds.

Depends on ``_core`` and the catalogue, where estimators are looked up by their public names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from skbert._catalogue import ESTIMATORS, load_name
from skbert._core.checkpoints import archive
from skbert.exceptions import SaveError

__all__ = ["load"]


def load(path: str | os.PathLike[str]) -> Any:
    """Load an estimator that its ``save`` wrote, after checking names, sizes and hashes.

    Parameters
    ----------
    path : str or path-like
        The folder.

    Returns
    -------
    estimator : estimator
        The fitted estimator, of the class that was saved.

    Raises
    ------
    SaveError
        If a file is missing, damaged or not written by skbert, or if this version of skbert has no
        such estimator.

    See Also
    --------
    BertClassifier.load : The same, where the class is known.

    Examples
    --------
    >>> import skbert
    >>> from skbert.datasets import load_ratings
    >>> X, y = load_ratings(return_X_y=True)
    >>> skbert.BertRegressor(epochs=1).fit(X[:64], y[:64]).save("ratings")
    >>> type(skbert.load("ratings")).__name__
    'BertRegressor'
    """
    name = archive.header(Path(path)).get("class")
    if not isinstance(name, str) or name not in ESTIMATORS:
        known = ", ".join(ESTIMATORS)
        raise SaveError(
            f"{os.fspath(path)} holds a {name!r:.80}, which this version of skbert does not have;"
            f" it has {known}. Give another folder, or load it with the class that saved it."
        )
    return load_name(name).load(path)
