"""How to train: the settings of a fit. Depends on numpy and items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skbert._core.items import Items

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """How to train; the fields are parameters of the estimators, which say what they mean."""

    epochs: int = 3
    batch_size: int = 16
    accumulate: int = 1
    learning_rate: float = 1e-4
    head_learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.1
    schedule: str = "linear"
    layer_decay: float = 1.0
    freeze: int | str = 0
    max_grad_norm: float | None = 1.0
    gradient_checkpointing: bool = False

    @property
    def samples_per_step(self) -> int:
        """Samples that one optimizer step covers."""
        return self.batch_size * self.accumulate

    def steps_per_pass(self, items: Items) -> int:
        """Optimizer steps that one pass over the items takes."""
        return -(-len(np.unique(items.units)) // self.samples_per_step)
