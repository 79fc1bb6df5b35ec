"""Attention within the rows of a packed batch, and its gradient. Depends on Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from skbert._core.gpu.kernels.random import dropped, kept, shifted

__all__ = ["attention_forward", "attention_grad_key_value", "attention_grad_query"]

_LOG2_E = tl.constexpr(1.4426950408889634)
_FAR = tl.constexpr(8192)  # tokens of a row whose weights are dropped independently of others


@triton.jit
def _states(qkv, tokens, is_token, part, n_heads, HEAD: tl.constexpr):
    """Query, key or value of some tokens, by their part 0, 1 or 2 of ``qkv``."""
    columns = (part * n_heads + tl.program_id(1)) * HEAD + tl.arange(0, HEAD)
    places = tokens.to(tl.int64)[:, None] * (3 * n_heads * HEAD) + columns
    return tl.load(qkv + places, is_token[:, None], 0.0), places


@triton.jit
def _own(tokens, n_heads, HEAD: tl.constexpr):
    """Where the numbers of a head lie in a tensor of as many as there are values."""
    columns = tl.program_id(1) * HEAD + tl.arange(0, HEAD)
    return tokens.to(tl.int64)[:, None] * (n_heads * HEAD) + columns


@triton.jit
def _rows(row_of_token, cu_seqlens, tokens, n_tokens):
    """Where the rows of tokens begin and end, which are empty behind the last token."""
    is_token = tokens < n_tokens
    row = tl.load(row_of_token + tokens, is_token, 0)
    begin = tl.where(is_token, tl.load(cu_seqlens + row), n_tokens)
    end = tl.where(is_token, tl.load(cu_seqlens + row + 1), 0)
    return is_token, begin, end


@triton.jit
def _others(tokens, begin, end, reach):
    """The first and the last of those other tokens, plus 1, that some of the tokens may meet."""
    first = tl.maximum(tl.min(begin, 0), tl.min(tokens, 0) - reach)
    return first, tl.minimum(tl.max(end, 0), tl.max(tokens, 0) + reach + 1)


@triton.jit
def _meet(tokens, others, begin, end, reach):
    """Which of the others each token meets, whichever of them is the query."""
    inside = (others[None, :] >= begin[:, None]) & (others[None, :] < end[:, None])
    ahead = others[None, :] - tokens[:, None]
    return inside & (ahead <= reach) & (ahead >= -reach), ahead


@triton.jit
def _kept(seed, queries, ahead, n_heads, dropout):
    """Which weights of these queries and of keys so many tokens ahead are not dropped.

    It depends on no other tokens of the batch.
    """
    places = (queries.to(tl.uint32) * n_heads + tl.program_id(1)) * (2 * _FAR) + ahead + _FAR
    return kept(seed, places, dropout)


@triton.jit(do_not_specialize=["n_tokens", "reach", "seed"])
def attention_forward(
    qkv, row_of_token, cu_seqlens, output, logsumexp,
    n_tokens, n_heads, scaling, reach, dropout, seed, shift,
    HEAD: tl.constexpr, TOKENS: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    seed = shifted(seed, shift)
    queries = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    is_query, begin, end = _rows(row_of_token, cu_seqlens, queries, n_tokens)
    query, _ = _states(qkv, queries, is_query, 0, n_heads, HEAD)
    highest = tl.full((TOKENS,), -float("inf"), tl.float32)
    total = tl.zeros((TOKENS,), tl.float32)
    mean = tl.zeros((TOKENS, HEAD), tl.float32)
    first, last = _others(queries, begin, end, reach)
    for at in range(first, last, TOKENS):
        keys = at + tl.arange(0, TOKENS)
        key, _ = _states(qkv, keys, keys < n_tokens, 1, n_heads, HEAD)
        value, _ = _states(qkv, keys, keys < n_tokens, 2, n_heads, HEAD)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (scaling * _LOG2_E)
        inside, ahead = _meet(queries, keys, begin, end, reach)
        if CAUSAL:
            inside &= ahead <= 0
        scores = tl.where(inside, scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == -float("inf"), 0.0, higher)  # none of the keys so far is met
        weights = tl.exp2(scores - base[:, None])
        shrunk = tl.exp2(highest - base)
        total = total * shrunk + tl.sum(weights, 1)
        if DROPS:
            is_kept = _kept(seed, queries[:, None], ahead, n_heads, dropout)
            weights = dropped(weights, is_kept, dropout)
        mean = mean * shrunk[:, None]
        mean += tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        highest = higher
    total = tl.where(is_query, total, 1.0)
    tl.store(output + _own(queries, n_heads, HEAD), mean / total[:, None], is_query[:, None])
    at = logsumexp + tl.program_id(1) * n_tokens + queries
    tl.store(at, highest + tl.log2(total), is_query)


@triton.jit(do_not_specialize=["n_tokens", "reach", "seed"])
def attention_grad_query(
    qkv, row_of_token, cu_seqlens, output, grad_output, logsumexp, delta, grad_qkv,
    n_tokens, n_heads, scaling, reach, dropout, seed, shift,
    HEAD: tl.constexpr, TOKENS: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    seed = shifted(seed, shift)
    queries = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    is_query, begin, end = _rows(row_of_token, cu_seqlens, queries, n_tokens)
    query, places = _states(qkv, queries, is_query, 0, n_heads, HEAD)
    own = _own(queries, n_heads, HEAD)
    grad = tl.load(grad_output + own, is_query[:, None], 0.0)
    product = tl.load(output + own, is_query[:, None], 0.0).to(tl.float32) * grad
    along = tl.sum(product, 1)
    at = tl.program_id(1) * n_tokens + queries
    tl.store(delta + at, along, is_query)
    logs = tl.load(logsumexp + at, is_query, 0.0)
    grad_query = tl.zeros((TOKENS, HEAD), tl.float32)
    first, last = _others(queries, begin, end, reach)
    for at in range(first, last, TOKENS):
        keys = at + tl.arange(0, TOKENS)
        key, _ = _states(qkv, keys, keys < n_tokens, 1, n_heads, HEAD)
        value, _ = _states(qkv, keys, keys < n_tokens, 2, n_heads, HEAD)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (scaling * _LOG2_E)
        inside, ahead = _meet(queries, keys, begin, end, reach)
        if CAUSAL:
            inside &= ahead <= 0
        weights = tl.where(inside, tl.exp2(scores - logs[:, None]), 0.0)
        grad_weights = tl.dot(grad, tl.trans(value), input_precision="ieee")
        if DROPS:
            is_kept = _kept(seed, queries[:, None], ahead, n_heads, dropout)
            grad_weights = dropped(grad_weights, is_kept, dropout)
        grad_scores = weights * (grad_weights - along[:, None])
        grad_query += tl.dot(grad_scores.to(key.dtype), key, input_precision="ieee")
    tl.store(grad_qkv + places, grad_query * scaling, is_query[:, None])


@triton.jit(do_not_specialize=["n_tokens", "reach", "seed"])
def attention_grad_key_value(
    qkv, row_of_token, cu_seqlens, grad_output, logsumexp, delta, grad_qkv,
    n_tokens, n_heads, scaling, reach, dropout, seed, shift,
    HEAD: tl.constexpr, TOKENS: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    seed = shifted(seed, shift)
    keys = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    is_key, begin, end = _rows(row_of_token, cu_seqlens, keys, n_tokens)
    key, key_places = _states(qkv, keys, is_key, 1, n_heads, HEAD)
    value, value_places = _states(qkv, keys, is_key, 2, n_heads, HEAD)
    grad_key = tl.zeros((TOKENS, HEAD), tl.float32)
    grad_value = tl.zeros((TOKENS, HEAD), tl.float32)
    first, last = _others(keys, begin, end, reach)
    for at in range(first, last, TOKENS):
        queries = at + tl.arange(0, TOKENS)
        is_query = queries < n_tokens
        query, _ = _states(qkv, queries, is_query, 0, n_heads, HEAD)
        own = _own(queries, n_heads, HEAD)
        grad = tl.load(grad_output + own, is_query[:, None], 0.0)
        at_query = tl.program_id(1) * n_tokens + queries
        logs = tl.load(logsumexp + at_query, is_query, 0.0)
        along = tl.load(delta + at_query, is_query, 0.0)
        scores = tl.dot(key, tl.trans(query), input_precision="ieee") * (scaling * _LOG2_E)
        inside, ahead = _meet(keys, queries, begin, end, reach)
        if CAUSAL:
            inside &= ahead >= 0
        weights = tl.where(inside, tl.exp2(scores - logs[None, :]), 0.0)
        grad_weights = tl.dot(value, tl.trans(grad), input_precision="ieee")
        left = weights
        if DROPS:
            is_kept = _kept(seed, queries[None, :], -ahead, n_heads, dropout)
            left = dropped(weights, is_kept, dropout)
            grad_weights = dropped(grad_weights, is_kept, dropout)
        grad_value += tl.dot(left.to(grad.dtype), grad, input_precision="ieee")
        grad_scores = weights * (grad_weights - along[None, :])
        grad_key += tl.dot(grad_scores.to(query.dtype), query, input_precision="ieee")
    tl.store(grad_qkv + key_places, grad_key * scaling, is_key[:, None])
    tl.store(grad_qkv + value_places, grad_value, is_key[:, None])
