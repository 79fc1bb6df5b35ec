"""scikit-learn's own callbacks, where the installed scikit-learn has them (1.9 and later).

Depends on scikit-learn only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["CallbackSupportMixin", "with_callbacks"]

Method = TypeVar("Method", bound=Callable[..., Any])

if TYPE_CHECKING:

    class CallbackSupportMixin:
        """What scikit-learn's mixin is to a type checker."""

    def with_callbacks(method: Method) -> Method:
        """Leave the type of the method as it is."""

else:
    try:
        from sklearn.callback import CallbackSupportMixin, with_callbacks
    except ImportError:  # before scikit-learn 1.9: estimators have no set_callbacks

        class CallbackSupportMixin:
            """Stands in for the mixin; adds nothing."""

        def with_callbacks(method: Method) -> Method:
            """Leave the method as it is."""
            return method
