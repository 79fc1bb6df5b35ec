"""Embeddings in inference: rows of all tables are added and normalised in one pass over memory.

Depends on torch, ``fused``, ``bindings`` and the record of a family.
"""

from __future__ import annotations

from typing import Any

import torch

from skbert._core.cpu.bindings.embedding import Table, embed
from skbert._core.cpu.fused import has_fast_kernels
from skbert._core.families.record import EncoderPaths, encoder_part

__all__ = ["summed_embeddings"]


def summed_embeddings(
    paths: EncoderPaths, model: Any, ids: dict[str, torch.Tensor]
) -> torch.Tensor | None:
    """Embeddings ``(n_tokens, size)`` by ids in each table, or of its first row without ids.

    None where the module of the embeddings is to compute them.
    """
    is_here = ids[paths.word_table].is_cpu and has_fast_kernels()
    if not (is_here and paths.embedding_norm) or torch.is_grad_enabled():
        return None
    norm = encoder_part(model, paths.embedding_norm)
    named = filter(None, (paths.word_table, paths.type_table, paths.position_table))
    modules = {path: encoder_part(model, path) for path in named}
    is_trained = encoder_part(model, paths.embeddings).training
    if is_trained or norm.weight is None or not all(map(_only_looks_up, modules.values())):
        return None
    tables = [Table(module.weight, ids.get(path)) for path, module in modules.items()]
    try:
        return embed(tables=tables, weight=norm.weight, bias=norm.bias, epsilon=norm.eps)
    except ValueError:  # of another type or size, or otherwise in memory than the kernel reads
        return None


def _only_looks_up(module: Any) -> bool:
    """Whether a module gives rows of a plain table, and does nothing else."""
    is_table = type(module) is torch.nn.Embedding and module.max_norm is None
    return is_table and type(module.weight.data) is torch.Tensor
