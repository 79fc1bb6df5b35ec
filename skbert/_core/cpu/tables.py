"""Embeddings in inference: rows of all tables are added and normalised in one pass over memory.

Depends on torch, ``fused``, ``bindings`` and the record of a family.
"""

from __future__ import annotations

import torch

from skbert._core.cpu.bindings.embedding import Table, embed
from skbert._core.cpu.fused import has_fast_kernels
from skbert._core.families.record import EncoderPaths, encoder_part

__all__ = ["summed_embeddings"]


def summed_embeddings(
    paths: EncoderPaths, model: torch.nn.Module, ids: dict[str, torch.Tensor]
) -> torch.Tensor | None:
    """Embeddings ``(n_tokens, size)`` by ids in each table, or of its first row without ids.

    None where the module of the embeddings is to compute them.
    """
    words = ids[paths.word_table]
    if not (paths.embedding_norm and words.is_cpu and _infers(paths, model)):
        return None
    named = filter(None, (paths.word_table, paths.type_table, paths.position_table))
    modules = {path: encoder_part(model, path) for path in named}
    norm = encoder_part(model, paths.embedding_norm)
    if norm.weight is None or not all(map(_only_looks_up, modules.values())):
        return None
    tables = [Table(module.weight, ids.get(path)) for path, module in modules.items()]
    try:
        return embed(
            tables=tables, n_tokens=len(words), weight=norm.weight, bias=norm.bias,
            epsilon=norm.eps,
        )  # fmt: skip
    except ValueError:  # of another type or size, or otherwise in memory than the kernel reads
        return None


def _infers(paths: EncoderPaths, model: torch.nn.Module) -> bool:
    """Whether kernels can compute, and nothing is trained."""
    trains = torch.is_grad_enabled() or encoder_part(model, paths.embeddings).training
    return has_fast_kernels() and not trains


def _only_looks_up(module: object) -> bool:
    """Whether a module gives rows of a plain table, and does nothing else."""
    if type(module) is not torch.nn.Embedding or module.max_norm is not None:
        return False
    return type(module.weight.data) is torch.Tensor
