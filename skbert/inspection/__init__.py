"""Looking into fitted estimators: attention heads, explanations, pictures and pages.

Depends on the base of the estimators and on ``_core``; knows no estimator by name.
"""

from __future__ import annotations

from skbert.inspection._heads import Attention, attentions, head_importance, prune_heads
from skbert.inspection._views import show

__all__ = ["Attention", "attentions", "head_importance", "prune_heads", "show"]
