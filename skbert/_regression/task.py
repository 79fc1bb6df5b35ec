"""The task of a regressor: numbers, standardised.

Depends on ``_core`` and on the types of checked input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skbert._arrays import Array
from skbert._core.items import Head, Items
from skbert._core.text.fields import encode_rows
from skbert._core.text.tokens import LongText, Ragged, TextTokenizer
from skbert._core.text.windows import mean_by_sample
from skbert._validation.texts import Texts

if TYPE_CHECKING:
    import torch

    from skbert._core.task import Batch

__all__ = ["Numbers"]


@dataclass(frozen=True)
class Numbers:
    """``n_outputs`` numbers per sample. Targets are ``(n_items, n_outputs)``, standardised.

    Outputs are standardised, too, unless they are raw, as those of a checkpoint.
    """

    n_outputs: int
    max_length: int
    long_text: LongText = "truncate"
    is_raw: bool = False

    def encode(self, X: Texts, y: Any, tokenizer: TextTokenizer) -> Items:
        """One item per text, or per window of a long one."""
        rows = encode_rows(tokenizer, X, self.max_length, self.long_text)
        return Items.one_row_each(rows, y, X.features)

    def head(self) -> Head:
        """One output per number."""
        return Head(
            "sequence classification", self.n_outputs, has_standard_targets=True,
            is_raw=self.is_raw,
        )  # fmt: skip

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Squared error; a row weighs its weight once for each output."""
        assert batch.targets is not None
        losses = (logits - batch.targets).square().sum(dim=1)
        return (losses * batch.weights).sum(), batch.weights.sum() * self.n_outputs

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Standardised numbers ``(n_samples, n_outputs)``, averaged over windows."""
        return mean_by_sample(outputs.values, items.samples)
