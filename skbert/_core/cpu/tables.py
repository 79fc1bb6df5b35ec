"""Embeddings in inference: rows of all tables are added and normalised in one pass over memory.

Depends on torch, ``fused``, ``bindings`` and the record of a family.
"""

from __future__ import annotations

import torch

from skbert._core.cpu.bindings.embedding import Table, embed
from skbert._core.cpu.fused import has_fast_kernels
from skbert._core.families.record import EncoderPaths, encoder_part

__all__ = ["can_sum", "summed_embeddings"]

_PLAIN = {torch.Tensor, torch.nn.Parameter}


def can_sum(paths: EncoderPaths, model: torch.nn.Module) -> bool:
    """Whether embeddings are a sum of tables that kernels can compute, and nothing is trained."""
    if not paths.embedding_norm or torch.is_grad_enabled() or not has_fast_kernels():
        return False
    return not encoder_part(model, paths.embeddings).training


def summed_embeddings(
    paths: EncoderPaths, model: torch.nn.Module, ids: dict[str, torch.Tensor]
) -> torch.Tensor | None:
    """Embeddings ``(n_tokens, size)``, by ids in each table; one without ids gives its first row.

    None where the module of the embeddings is to compute them.
    """
    named = filter(None, (paths.word_table, paths.type_table, paths.position_table))
    modules = {path: encoder_part(model, path) for path in named}
    norm = encoder_part(model, paths.embedding_norm)
    if not (_has_plain_weights(norm) and all(map(_only_looks_up, modules.values()))):
        return None
    tables = [Table(module.weight, ids.get(path)) for path, module in modules.items()]
    try:
        return embed(
            tables=tables, n_tokens=len(ids[paths.word_table]), weight=norm.weight,
            bias=norm.bias, epsilon=float(norm.eps),
        )  # fmt: skip
    except ValueError:  # of another type or size, or otherwise in memory than the kernel reads
        return None


def _has_plain_weights(module: torch.nn.Module) -> bool:
    """Whether a module has weights, and these are tensors that compute as any others."""
    kinds = {type(weight) for weight in module._parameters.values() if weight is not None}
    return bool(kinds) and kinds <= _PLAIN


def _only_looks_up(module: torch.nn.Module) -> bool:
    """Whether a module gives rows of a plain table, and does nothing else."""
    is_table = type(module) is torch.nn.Embedding and module.max_norm is None
    return is_table and _has_plain_weights(module)
