"""Looking into fitted estimators: attention heads, explanations, pictures and pages.

Depends on the base of the estimators and on ``_core``; knows no estimator by name.
"""

from __future__ import annotations

from skbert.inspection._attributions import Attribution, Attributions, attributions
from skbert.inspection._displays.confusion import ConfusionDisplay
from skbert.inspection._displays.counts import CountsDisplay
from skbert.inspection._displays.fits import FitDisplay
from skbert.inspection._displays.heads import AttentionDisplay, HeadImportanceDisplay
from skbert.inspection._displays.maps import EmbeddingMapDisplay
from skbert.inspection._displays.reliability import ReliabilityDisplay
from skbert.inspection._displays.thresholds import ThresholdDisplay
from skbert.inspection._heads import Attention, attentions, head_importance, prune_heads
from skbert.inspection._html import View
from skbert.inspection._label_issues import label_issues
from skbert.inspection._learning_rate import LearningRateDisplay, suggest_learning_rate
from skbert.inspection._report import report
from skbert.inspection._views import show
from skbert.inspection._worst_errors import worst_errors

__all__ = [
    "Attention",
    "AttentionDisplay",
    "Attribution",
    "Attributions",
    "ConfusionDisplay",
    "CountsDisplay",
    "EmbeddingMapDisplay",
    "FitDisplay",
    "HeadImportanceDisplay",
    "LearningRateDisplay",
    "ReliabilityDisplay",
    "ThresholdDisplay",
    "View",
    "attentions",
    "attributions",
    "head_importance",
    "label_issues",
    "prune_heads",
    "report",
    "show",
    "suggest_learning_rate",
    "worst_errors",
]
