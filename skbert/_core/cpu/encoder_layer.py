"""The modules of one encoder layer of a transformers model, by what they compute.

The only module of this folder that knows where they lie in the model. Depends on torch only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

__all__ = ["EncoderLayer", "encoder_layer"]


class EncoderLayer(NamedTuple):
    """The modules of one encoder layer."""

    attention: Any  # knows the size of a head, scaling, causality and dropout
    qkv: tuple[torch.nn.Linear, torch.nn.Linear, torch.nn.Linear]
    attention_out: torch.nn.Linear
    attention_dropout: torch.nn.Dropout  # of what attention_out gives
    attention_norm: torch.nn.LayerNorm
    mlp_in: torch.nn.Linear
    activation: Callable[[torch.Tensor], torch.Tensor]
    mlp_out: torch.nn.Linear
    mlp_dropout: torch.nn.Dropout
    mlp_norm: torch.nn.LayerNorm


def encoder_layer(module: Any) -> EncoderLayer:
    """The modules inside a layer's module."""
    attention, after_attention, after_mlp = (
        module.attention.self,
        module.attention.output,
        module.output,
    )
    return EncoderLayer(
        attention=attention,
        qkv=(attention.query, attention.key, attention.value),
        attention_out=after_attention.dense,
        attention_dropout=after_attention.dropout,
        attention_norm=after_attention.LayerNorm,
        mlp_in=module.intermediate.dense,
        activation=module.intermediate.intermediate_act_fn,
        mlp_out=after_mlp.dense,
        mlp_dropout=after_mlp.dropout,
        mlp_norm=after_mlp.LayerNorm,
    )
