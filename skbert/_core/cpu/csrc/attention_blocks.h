/* What attention in vectors computes at once: a block of queries of one row and head, and the keys
that are near enough to them. */

#ifndef SKBERT_ATTENTION_BLOCKS_H
#define SKBERT_ATTENTION_BLOCKS_H

#include <limits.h>

#include "softmax.h"

#define QUERY_BLOCK 64 /* tokens whose scores are computed together */

/* One row and head, and where it lies, counted in numbers. */
typedef struct {
    int length;
    int64_t first;  /* its first token and head, among (n_tokens, n_heads) */
    int64_t width;  /* of a token's output: all heads */
    int64_t qkv;    /* where its query begins; key and value are a width further each */
    int64_t output;
} Unit;

INLINE Unit unit_at(const Attention *a, int number) {
    int row = number / a->n_heads, head = number % a->n_heads, begin = a->cu_seqlens[row];
    int64_t width = (int64_t)a->n_heads * a->head_size;
    return (Unit){.length = a->cu_seqlens[row + 1] - begin,
                  .first = (int64_t)begin * a->n_heads + head,
                  .width = width,
                  .qkv = 3 * begin * width + head * a->head_size,
                  .output = begin * width + head * a->head_size};
}

/* Some queries of a unit, and the keys that are near enough to one of them or more. */
typedef struct {
    int first, n_rows; /* the queries, a multiple of 4 of which some may lie behind the unit, */
    int n_queries;     /* and without these */
    int keys, n_keys;  /* the keys, from the first one of a panel on to the last one of another, */
    int n_written;     /* those that are tokens, a multiple of 4 as n_rows, */
    int n_read;        /* and without those behind the unit */
} Block;

INLINE int least(int x, int y) { return x < y ? x : y; }

INLINE Block block_at(const Attention *a, const Unit *u, int first) {
    int m = round_up(u->length, 4), n_rows = least(QUERY_BLOCK, m - first);
    int keys = panel_begin(INT_MAX, first > a->reach ? first - a->reach : 0);
    int end = round_up(first + n_rows + a->reach, COLUMNS);
    return (Block){.first = first,
                   .n_rows = n_rows,
                   .n_queries = least(n_rows, u->length - first),
                   .keys = keys,
                   .n_keys = least(round_up(u->length, LANES), end) - keys,
                   .n_written = least(m, end) - keys,
                   .n_read = least(u->length, end) - keys};
}

/* The keys that a token attends to. */
INLINE Span span_of(const Attention *a, const Unit *u, int token) {
    int last = a->causal ? token : token + a->reach;
    return (Span){token - a->reach, least(u->length, last + 1)};
}

#endif
