"""Whether an estimator is fitted, and its fitted state as arrays and plain values.

skops takes that state. pickle, joblib and copy take the model as it is instead, with all that
somebody changed in it. Depends on `persistence`; knows no estimator by name.
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sklearn.utils.validation import check_is_fitted

from skbert._estimator import persistence
from skbert._estimator.checks import resolve_max_length
from skbert._estimator.fitted import Fitted
from skbert._estimator.guidance import GuidedEstimator

__all__ = ["PortableEstimator"]


class PortableEstimator(GuidedEstimator):
    """An estimator that is fitted once it has its `Fitted`, and whose state can be plain."""

    if TYPE_CHECKING:  # assigned in the last step of a fit
        _fitted: Fitted
        _assigned: Mapping[str, Any]  # attributes that were set before the first fit

    _fitted_type: ClassVar[type[Fitted]] = Fitted

    def __sklearn_is_fitted__(self) -> bool:
        """Fitted once a fit went through to its end."""
        return hasattr(self, "_fitted")

    def _state(self) -> Fitted:
        """What was learned, as it is now; NotFittedError where nothing was."""
        check_is_fitted(self)
        return self._fitted

    def __getstate__(self) -> dict[str, Any]:
        """Give what ``save`` writes, where the estimator is fitted."""
        state: dict[str, Any] = super().__getstate__()
        return persistence.pack(self) if "_fitted" in state else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state of either kind; that of ``save`` is checked like a saved folder."""
        if persistence.is_packed(state):
            loaded = persistence.unpack(type(self), state)
            state = {**loaded.get_params(deep=False), "_fitted": loaded._fitted}
        super().__setstate__(state)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Pickle and copy the model itself."""
        del protocol
        return copyreg.__newobj__, (type(self),), super().__getstate__()  # type: ignore[attr-defined]

    def _after_load(self, folder: Path | None) -> None:  # noqa: ARG002 - subclasses use it
        """Check and complete a loaded estimator; ``folder`` is None where there is no folder."""
        resolve_max_length(self._fitted.network.max_length, self._fitted.task.max_length)
