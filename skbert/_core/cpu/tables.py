"""Embeddings: rows of all tables are added and normalised in one pass over memory.

In training their gradients are, too. Depends on torch, ``fused``, ``embedding``, ``watch``,
``bindings`` and the record of a family.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import torch

from skbert._core.cpu.bindings.embedding import EmbeddingWeights, Table, embed, embed_backward
from skbert._core.cpu.embedding import UsedRowsEmbedding
from skbert._core.cpu.fused import has_fast_kernels
from skbert._core.cpu.watch import Watch
from skbert._core.families.record import EncoderPaths, encoder_part
from skbert._core.runtime.autograd import Context, apply

__all__ = ["SummedEmbeddings", "can_sum"]

_PLAIN = {torch.Tensor, torch.nn.Parameter}
_SETTINGS = "max_norm", "scale_grad_by_freq", "sparse"  # with which a table does more


def can_sum(paths: EncoderPaths) -> bool:
    """Whether embeddings are a sum of tables that kernels can compute."""
    return bool(paths.embedding_norm) and has_fast_kernels()


class SummedEmbeddings:
    """Computes embeddings that are a sum of tables, and keeps what it found in a model.

    It looks again where a weight or a setting is another or elsewhere, but not for other modules:
    a model that somebody else holds gets one of these for each use.
    """

    def __init__(self) -> None:
        self._parts: _Parts | None = None

    def __call__(
        self,
        paths: EncoderPaths,
        model: torch.nn.Module,
        ids: dict[str, torch.Tensor],
        words: UsedRowsEmbedding | None = None,
    ) -> torch.Tensor | None:
        """Embeddings ``(n_tokens, size)``, by ids in each table; one without gives its first row.

        Where gradients are wanted and ``words`` has rows of the table of words, these are trained.
        None where the module of the embeddings is to compute them.
        """
        parts = self._parts_of(paths, model)
        if parts is None:
            return None
        weights, rows = parts.weights, [ids.get(path) for path in parts.tables]
        if words is not None and torch.is_grad_enabled():
            rows[0] = words.position_of[ids[paths.word_table]]
            weights = _weights_of([words.rows, *weights.tables[1:]], parts.norm)
        else:
            words = None
        fixed = [module.padding_idx for module in parts.tables.values()]
        how = _How(weights, rows, fixed, words)
        trained = weights.weight, weights.bias, *weights.tables
        output: torch.Tensor = apply(_Summed, len(ids[paths.word_table]), how, *trained)
        return parts.dropout(output) if parts.dropout.training else output

    def _parts_of(self, paths: EncoderPaths, model: torch.nn.Module) -> _Parts | None:
        parts = self._parts
        if parts is None or parts.model is not model or parts.watch.has_moved():
            parts = self._parts = _look_at(paths, model)
        return parts


class _Parts(NamedTuple):
    """The modules that compute embeddings, where they do nothing that is not known here."""

    model: torch.nn.Module
    tables: dict[str, Any]
    norm: Any
    weights: EmbeddingWeights
    dropout: torch.nn.Module
    watch: Watch


def _look_at(paths: EncoderPaths, model: torch.nn.Module) -> _Parts | None:
    named = filter(None, (paths.word_table, paths.type_table, paths.position_table))
    tables = {path: encoder_part(model, path) for path in named}
    norm = encoder_part(model, paths.embedding_norm)
    if not (_has_plain_weights(norm) and all(map(_only_looks_up, tables.values()))):
        return None
    try:
        weights = _weights_of([module.weight for module in tables.values()], norm)
    except ValueError:  # of another type or size, or otherwise in memory than the kernel reads
        return None
    settings = product(map(vars, tables.values()), _SETTINGS)
    watch = Watch([*tables.values(), norm], [*settings, (vars(norm), "eps")])
    dropout = encoder_part(model, paths.embedding_dropout)
    return _Parts(model, tables, norm, weights, dropout, watch)


def _weights_of(tables: Sequence[torch.Tensor], norm: Any) -> EmbeddingWeights:
    return EmbeddingWeights(
        tables=tables, weight=norm.weight, bias=norm.bias, epsilon=float(norm.eps)
    )


class _How(NamedTuple):
    """What embeddings are computed with, and how their gradients are."""

    weights: EmbeddingWeights
    ids: list[torch.Tensor | None]  # in each table
    fixed: list[int | None]  # a row of each that has no gradient
    words: UsedRowsEmbedding | None  # which keeps the gradient of the first table


class _Summed(torch.autograd.Function):
    """Embeddings of so many tokens."""

    @staticmethod
    def forward(ctx: Context, n_tokens: int, how: _How, *weights: torch.Tensor) -> torch.Tensor:
        output, *saved = embed(
            weights=how.weights, ids=how.ids, n_tokens=n_tokens,
            with_normalized=any(ctx.needs_input_grad),
        )  # fmt: skip
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(weights[0], *saved)
            ctx.settings = how
        return output

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        how, needed = ctx.settings, ctx.needs_input_grad[2:]
        weight, normalized, rstd = ctx.saved_tensors
        tables = [*map(Table, how.weights.tables, how.ids)]
        are_new = [how.words is None and needed[2], *needed[3:]]
        grads = [
            torch.zeros_like(table.rows) if is_new else None
            for table, is_new in zip(tables, are_new, strict=True)
        ]
        kept = [] if how.words is None else [how.words.gradient_at(how.ids[0])]
        of_norm = embed_backward(
            tables=tables, grads=[*kept, *grads[len(kept) :]], weight=weight,
            normalized=normalized, rstd=rstd, grad_output=gradients[0].contiguous(),
        )  # fmt: skip
        for gradient, row in zip(grads, how.fixed, strict=True):
            if gradient is not None and row is not None:
                gradient[row] = 0
        of_weights = [x if wanted else None for x, wanted in zip(of_norm, needed, strict=False)]
        return None, None, *of_weights, *grads


def _has_plain_weights(module: torch.nn.Module) -> bool:
    """Whether a module has weights, and these are tensors that compute as any others."""
    kinds = {type(weight) for weight in module._parameters.values() if weight is not None}
    return bool(kinds) and kinds <= _PLAIN


def _only_looks_up(module: torch.nn.Module) -> bool:
    """Whether a module gives rows of a plain table, and does nothing else."""
    if type(module) is not torch.nn.Embedding or not _has_plain_weights(module):
        return False
    return not (module.scale_grad_by_freq or module.sparse) and module.max_norm is None
