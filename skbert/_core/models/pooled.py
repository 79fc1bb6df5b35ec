"""An encoder whose heads read another pooling than those of its class do.

Depends on torch, the poolings and the record of the encoder's family.
"""

from __future__ import annotations

from typing import Any

import torch

from skbert._core.attention.pooling import pool_padded
from skbert._core.families import family_of
from skbert._core.families.record import optional_part

__all__ = ["TokenPooled"]


class TokenPooled:
    """An encoder whose pooled output is the mean, maximum or first of its last hidden states.

    The heads of transformers read the pooled output, or the first of the hidden states where the
    encoder has no pooler; so they become heads over ``config.skbert_pooling``. A pooler keeps its
    weights, but nothing reads it.
    """

    config: Any

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        *args: Any,
        is_pooled: bool = True,
        **settings: Any,
    ) -> Any:
        """The forward pass of the encoder, with another pooled output unless told otherwise."""
        if args:
            args = attention_mask, *args
        else:  # it is not the second argument of all encoders
            settings["attention_mask"] = attention_mask
        out = super().forward(input_ids, *args, **settings)  # type: ignore[misc]
        if not is_pooled:
            return out
        states, family = out[0], family_of(self)
        pooled = pool_padded(states, attention_mask, self.config.skbert_pooling)
        encoder: Any = self
        if optional_part(encoder, family.encoder.pooler) is not None:
            field, value = "pooler_output", pooled
        else:
            field, value = "last_hidden_state", torch.cat([pooled[:, None], states[:, 1:]], dim=1)
        if isinstance(out, tuple):
            return (value, *out[1:]) if field == "last_hidden_state" else (states, value, *out[2:])
        out[field] = value
        return out
