"""Attention over packed batches.

Depends on torch, a batch's layout and ``relative``. The attention function has the signature of
transformers' attention interface; ``opening`` registers it, and that for masks, under ``NAME``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from skbert._core.attention.relative import distance_scores, has_distances
from skbert._core.task import Layout, Padding

try:
    from torch.nn.attention import varlen
except ImportError:  # a build without flash attention: rows are grouped by length instead
    varlen = None  # type: ignore[assignment]

__all__ = [
    "NAME",
    "attention",
    "causal_mask",
    "packed_or_padded",
    "padded_attention",
    "padding_mask",
    "scores",
    "within_rows",
]

NAME = "skbert_packed"

_MIN_FUSED_LENGTH = 128  # tokens: from there on the fused kernel is faster in float32 on a CPU
_MAX_SCORES = 1 << 21  # computed at a time: about what the caches of a CPU hold
_MAX_WHOLE_LENGTH = 512  # tokens of a row whose queries are computed together
_MIN_QUERIES = 16  # computed together, however long the row
_MIN_LOCAL_QUERIES = 64  # the same with a window
_MAX_FLASH_SIZE = 256  # numbers of a head that flash attention takes


def packed_or_padded(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    sdpa: Callable[..., tuple[torch.Tensor, None]],
    layout: Layout | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within the rows of a packed batch, which has a layout, or within padded rows.

    ``sdpa`` is transformers' own function for padded rows.
    """
    if layout is not None:
        out: tuple[torch.Tensor, None] = attention(
            module, query, key, value, layout=layout, **settings
        )
        return out
    if has_distances(module):
        return padded_attention(module, query, key, value, attention_mask, **settings)
    if attention_mask is None:  # padding_mask left it out
        attention_mask = _local_mask(module, query, settings.get("sliding_window"))
    return sdpa(module, query, key, value, attention_mask, **settings)


def padding_mask(
    *sizes: int,
    sdpa: Callable[..., torch.Tensor | None],
    attention_mask: torch.Tensor | None = None,
    **settings: Any,
) -> torch.Tensor | None:
    """The mask of padded rows, made by transformers' ``sdpa``; None where nothing is padded.

    A mask for a packed batch would be as large as the square of its number of tokens.
    """
    if attention_mask is None:
        return None
    return sdpa(*sizes, attention_mask=attention_mask, **settings)


# Not compiled: the runs differ from batch to batch, and each would make a graph of its own.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    layout: Layout,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within each row of a packed batch.

    ``query``, ``key`` and ``value`` are ``(1, n_heads, n_tokens, head_size)``, the last two
    perhaps with fewer heads; the result is ``(1, n_tokens, n_heads, head_size)``. A row sees
    itself only, where the module is causal each token itself and those before it, and with a
    ``sliding_window`` each token those fewer than so many tokens away.
    """
    n_shared = query.shape[1] // key.shape[1]  # heads of queries to each of keys and values
    if n_shared > 1:
        key, value = (states.repeat_interleave(n_shared, dim=1) for states in (key, value))
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
    if _can_use_flash(q, dropout) and not has_distances(module):
        seqlens = layout.cu_seqlens, layout.cu_seqlens, layout.max_seqlen, layout.max_seqlen
        window = _flash_window(module, sliding_window)
        out = varlen.varlen_attn(q, k, v, *seqlens, scale=scaling, **window)
        return torch.as_tensor(out)[None], None
    settings = dropout, scaling, sliding_window
    if _can_pad(q, layout) and not has_distances(module):
        return _within_padded_rows(module, q, k, v, layout.padding, *settings)[None], None
    return within_rows(module, q, k, v, layout.runs, *settings)[None], None


def _flash_window(module: torch.nn.Module, sliding_window: int | None) -> dict[str, Any]:
    """How many tokens each sees before and after it, -1 for all, where not all on both sides."""
    reach = -1 if sliding_window is None else sliding_window - 1
    if reach < 0 and not _is_causal(module):
        return {}
    return {"window_size": (reach, 0 if _is_causal(module) else reach)}


def _is_causal(module: torch.nn.Module) -> bool:
    return bool(getattr(module, "is_causal", False))


def _can_use_flash(q: torch.Tensor, dropout: float) -> bool:
    is_half = q.dtype in (torch.bfloat16, torch.float16)
    fits = is_half and q.shape[-1] % 8 == 0 and q.shape[-1] <= _MAX_FLASH_SIZE
    return fits and not dropout and q.is_cuda and _has_flash(q.device)


@cache
def _has_flash(device: torch.device) -> bool:
    """Whether torch has flash attention for a GPU, with a scale and a window."""
    if varlen is None or not torch.backends.cuda.is_flash_attention_available():
        return False
    takes_scale = "scale" in inspect.signature(varlen.varlen_attn).parameters  # from torch 2.11 on
    return takes_scale and torch.cuda.get_device_capability(device) >= (8, 0)


# varlen_attn takes rows of any lengths, but has no dropout. The operator below it has, but it is
# private and for half precision only. Nested jagged tensors lead to the same operator, but know no
# windows, and wait for the device where it cannot run. Padding costs little, as batches of
# training hold rows of similar length.
def _can_pad(q: torch.Tensor, layout: Layout) -> bool:
    """Whether rows of different lengths are padded for one call, as calls cost most on a GPU."""
    return q.is_cuda and len(layout.runs) > 1


def _within_padded_rows(
    module: torch.nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    padding: Padding,
    dropout: float,
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    """Attention of ``(n_tokens, n_heads, head_size)`` each, by one call for all rows."""
    key = _is_causal(module), sliding_window
    if key not in padding.masks:  # for the first of all layers
        mask = padding.is_token[:, None, None]
        length = padding.shape[1]
        masked = _masked_pairs(module, (length, length), sliding_window, q.device)
        padding.masks[key] = mask if masked is None else mask & ~masked
    q, k, v = (padding.pad(states).transpose(1, 2) for states in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, padding.masks[key], dropout, scale=scaling)
    return padding.unpad(out.transpose(1, 2))


def within_rows(
    module: torch.nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    runs: tuple[tuple[int, int, int], ...],
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
) -> torch.Tensor:
    """Attention of ``(n_tokens, n_heads, head_size)`` each, run by run of rows of one length."""
    parts = []
    for begin, count, length in runs:
        run = slice(begin, begin + count * length)
        shape = (count, length, *q.shape[1:])
        run_q, run_k, run_v = (x[run].view(shape).transpose(1, 2) for x in (q, k, v))
        out = _attend(module, run_q, run_k, run_v, dropout, scaling, sliding_window)
        parts.append(out.transpose(1, 2).reshape(count * length, *q.shape[1:]))
    return torch.cat(parts)


def _attend(
    module: torch.nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout: float,
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    """Attention of rows of one length, ``(n_rows, n_heads, length, head_size)``.

    Long rows are computed in blocks of queries, whose weights the backward pass computes again:
    memory grows with the length of a row, not with its square.
    """
    n_heads, length = q.shape[1:3]
    sliding_window = _narrowed(sliding_window, length)
    if _can_use_sdpa(module, q, dropout) and sliding_window is None:
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=_is_causal(module), scale=scaling
        )
    blocks = _query_blocks(n_heads, length, sliding_window)
    compute = partial(_weigh, module, dropout, scaling, sliding_window)
    if len(blocks) > 1 and torch.is_grad_enabled():
        compute = partial(checkpoint, compute, use_reentrant=False)
    parts = []
    for queries, keys in blocks:
        near = q[:, :, queries], k[:, :, keys], v[:, :, keys]
        n_scores = n_heads * near[0].shape[2] * near[1].shape[2]
        some_rows = (torch.split(x, max(1, _MAX_SCORES // n_scores)) for x in near)
        ahead = queries.start - keys.start
        parts.append(_joined([compute(ahead, *some) for some in zip(*some_rows, strict=True)], 0))
    return _joined(parts, 2)


def _can_use_sdpa(module: torch.nn.Module, q: torch.Tensor, dropout: float) -> bool:
    """Whether torch's fused kernel computes attention of all tokens of a row, and is faster.

    On a CPU two matrix products for some rows at a time are faster where rows are short. It
    stores all weights there where some are dropped.
    """
    if has_distances(module):
        return False
    length = q.shape[2]
    if q.device.type != "cpu":
        return True
    if length > _MAX_WHOLE_LENGTH:
        return not dropout
    return q.dtype != torch.bfloat16 and length >= _MIN_FUSED_LENGTH


def _narrowed(sliding_window: int | None, length: int) -> int | None:
    """The window, if it is narrower than a row."""
    return None if sliding_window is None or sliding_window >= length else sliding_window


def _query_blocks(
    n_heads: int, length: int, sliding_window: int | None
) -> list[tuple[slice, slice]]:
    """Tokens of a row whose attention is computed together, and those that they may attend to."""
    size, reach = length, length
    if sliding_window is not None:
        size, reach = max(_MIN_LOCAL_QUERIES, 2 * sliding_window), sliding_window - 1
    elif length > _MAX_WHOLE_LENGTH:
        size = max(_MIN_QUERIES, _MAX_SCORES // (n_heads * length))
    ends = [(first, min(length, first + size)) for first in range(0, length, size)]
    return [(slice(*end), slice(max(0, end[0] - reach), end[1] + reach)) for end in ends]


def _weigh(
    module: torch.nn.Module,
    dropout: float,
    scaling: float | None,
    sliding_window: int | None,
    ahead: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> torch.Tensor:
    """The values of keys weighted for queries, the first so many ``ahead`` of the first key."""
    weights = torch.softmax(scores(module, q, k, scaling, sliding_window, ahead), dim=-1)
    return torch.matmul(F.dropout(weights, dropout, training=dropout > 0), v)


def _joined(parts: list[torch.Tensor], dim: int) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def padded_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within padded rows, all states ``(n_rows, n_heads, length, head_size)``.

    The mask is True where a token may attend, and broadcasts to the scores.
    """
    logits = scores(module, query, key, scaling)
    if attention_mask is not None:
        logits = logits.masked_fill(~attention_mask, -torch.inf)
    weights = F.dropout(torch.softmax(logits, dim=-1), dropout, training=dropout > 0)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


def scores(
    module: torch.nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    ahead: int = 0,
) -> torch.Tensor:
    """The scores that attention takes the softmax of, ``(n_rows, n_heads, n_queries, n_keys)``.

    The token of the first query is so many ahead of that of the first key.
    """
    scaling = q.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(q * scaling, k.transpose(2, 3))
    if has_distances(module):
        scores = scores + scaling * distance_scores(module, q, k, ahead)
    sizes = q.shape[2], k.shape[2]
    masked = _masked_pairs(module, sizes, sliding_window, q.device, ahead)
    return scores if masked is None else scores.masked_fill(masked, -torch.inf)


def _masked_pairs(
    module: torch.nn.Module,
    sizes: tuple[int, int],
    sliding_window: int | None,
    device: torch.device,
    ahead: int = 0,
) -> torch.Tensor | None:
    """Which keys, ``(n_queries, n_keys)``, a token may not attend to; None where it may to all."""
    n_queries, n_keys = sizes
    sliding_window = _narrowed(sliding_window, max(ahead + n_queries, n_keys))
    if sliding_window is None and not _is_causal(module):
        return None
    distances = torch.arange(ahead, ahead + n_queries, device=device)[:, None]
    distances = distances - torch.arange(n_keys, device=device)
    if sliding_window is None:
        return distances < 0
    far = distances.abs() >= sliding_window
    return far | (distances < 0) if _is_causal(module) else far


def _local_mask(
    module: torch.nn.Module, q: torch.Tensor, sliding_window: int | None
) -> torch.Tensor | None:
    """Which tokens a token may attend to; None where there is no narrower window."""
    length = q.shape[2]
    if _narrowed(sliding_window, length) is None:
        return None
    masked = _masked_pairs(module, (length, length), sliding_window, q.device)
    return None if masked is None else ~masked


def causal_mask(length: int, device: torch.device | None = None) -> torch.Tensor:
    """Whether the token of each column comes after that of each row, ``(length, length)``."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
