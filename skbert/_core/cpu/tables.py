"""Embeddings in inference: rows of all tables are added and normalised in one pass over memory.

Depends on torch, ``fused``, ``bindings`` and the record of a family.
"""

from __future__ import annotations

from typing import Any

import torch

from skbert._core.cpu.bindings.checks import is_readable
from skbert._core.cpu.bindings.embedding import Table, embed
from skbert._core.cpu.fused import can_fuse_layernorm
from skbert._core.families.record import EncoderPaths, encoder_part

__all__ = ["summed_embeddings"]


def summed_embeddings(
    paths: EncoderPaths, model: Any, ids: dict[str, torch.Tensor]
) -> torch.Tensor | None:
    """Embeddings ``(n_tokens, size)`` by ids in each table, or of its first row without ids.

    None where the module of the embeddings is to compute them.
    """
    if not paths.embedding_norm or torch.is_grad_enabled():
        return None
    if encoder_part(model, paths.embeddings).training:
        return None
    norm = encoder_part(model, paths.embedding_norm)
    named = filter(None, (paths.word_table, paths.type_table, paths.position_table))
    modules = {path: encoder_part(model, path) for path in named}
    words = modules[paths.word_table].weight
    if not (
        words.is_cpu
        and can_fuse_layernorm(words, words, norm.weight, norm.bias)
        and all(_is_plain(module, words.shape[1]) for module in modules.values())
    ):
        return None
    tables = [Table(module.weight, ids.get(path)) for path, module in modules.items()]
    return embed(tables=tables, weight=norm.weight, bias=norm.bias, epsilon=norm.eps)


def _is_plain(module: Any, size: int) -> bool:
    """Whether a module looks up rows of this size, in float32, and does nothing else."""
    weight = module.weight
    return (
        type(module) is torch.nn.Embedding
        and module.max_norm is None
        and type(weight.data) is torch.Tensor
        and weight.dtype == torch.float32
        and weight.shape[1] == size
        and is_readable(weight)
    )
