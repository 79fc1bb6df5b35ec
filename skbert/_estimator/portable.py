"""A fitted estimator as arrays and plain values, for whoever stores estimators without pickle.

skops asks for this state. pickle, joblib and copy take the model as it is instead, with all that
somebody changed in it. Depends on `persistence`; knows no estimator by name.
"""

from __future__ import annotations

import copyreg
from pathlib import Path
from typing import Any

from skbert._estimator import persistence
from skbert._estimator.guidance import GuidedEstimator

__all__ = ["PortableEstimator"]


class PortableEstimator(GuidedEstimator):
    """An estimator whose fitted state holds no objects of torch or transformers."""

    def __getstate__(self) -> dict[str, Any]:
        """Give what ``save`` writes, where the estimator is fitted."""
        state: dict[str, Any] = super().__getstate__()
        return persistence.pack(self) if "_network" in state else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state of either kind; that of ``save`` is checked like a saved folder."""
        if persistence.is_packed(state):
            state = vars(persistence.unpack(type(self), state))
        super().__setstate__(state)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle and copy the model itself."""
        del protocol
        return copyreg.__newobj__, (type(self),), super().__getstate__()  # type: ignore[attr-defined]

    def _settle(self, folder: Path | None) -> None:
        """Finish what was loaded; ``folder`` is where from, None if it was no folder."""
