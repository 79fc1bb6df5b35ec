/* Attention within rows. A thread takes one row and head at a time, and of these a block of
queries, whose scores fit in a cache; the keys that no query of a block attends to are left out.
The backward pass computes the scores again from the logsumexp of each token. */

#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "attention_blocks.h"

/* Copies query, key or value of a unit, (n, head_size) with zeros at the end, as it is to `to` and
transposed and in panels to `transposed`; NULL: not wanted. */
INLINE void read_part(const Attention *a, const char *from, int64_t stride, int64_t offset,
                      int length, int n, float factor, float *to, float *transposed) {
    for (int i = 0; i < n; i += LANES)
        for (int j = 0; j < a->head_size; j += LANES) {
            floats x[LANES] = {0};
            for (int row = 0; row < LANES && i + row < length; row++)
                x[row] = factor * load(from, offset + (i + row) * stride + j, a->is_bf16);
            for (int row = 0; to && row < LANES; row++)
                *(floats *)(to + (i + row) * a->head_size + j) = x[row];
            if (!transposed) continue;
            transpose(x);
            int begin = panel_begin(n, i), width = panel_width(n, begin);
            float *panel = transposed + begin * a->head_size + i - begin;
            for (int row = 0; row < LANES; row++) *(floats *)(panel + (j + row) * width) = x[row];
        }
}

INLINE void write_part(const Attention *a, char *to, int64_t stride, int64_t offset, int length,
                       float factor, const float *from) {
    for (int i = 0; i < length; i++)
        for (int j = 0; j < a->head_size; j += LANES)
            store(to, offset + i * stride + j,
                  factor * *(const floats *)(from + i * a->head_size + j), a->is_bf16);
}

/* ---- Forward ---- */

/* Replaces a token's scores by their exponentials, after dropout; returns the sum before it. */
INLINE float softmax_weights(const Attention *a, const Unit *u, Block b, int token, float *line) {
    Span span = span_of(a, u, token);
    int drops = a->dropout > 0;
    Dropout dropout = dropout_of(a->dropout);
    floats maxima = (floats){0} - INFINITY, total = {0};
    for (int j = 0; j < b.n_keys; j += LANES) {
        floats x = *(floats *)(line + j);
        x = blend(mask_within(span, b.keys + j), x, (floats){0} - INFINITY);
        maxima = blend(x > maxima, x, maxima);
    }
    float row_max = maximum(maxima);
    uints bits = positions(b.keys) + dropout_key(a->seed, u->first + (int64_t)token * a->n_heads);
    for (int j = 0; j < b.n_keys; j += LANES, bits += LANES * POSITION_STEP) {
        floats x = (*(floats *)(line + j) - row_max) * a->scaling;
        x = zero_unless(mask_within(span, b.keys + j), exponential(x));
        total += x;
        if (drops) x *= dropout_factors(dropout, bits);
        *(floats *)(line + j) = x;
    }
    float row_sum = sum(total);
    if (a->logsumexp && token < u->length)
        a->logsumexp[u->first + (int64_t)token * a->n_heads] = row_max * a->scaling + logf(row_sum);
    return row_sum;
}

/* Divides the output of tokens by the sums of their weights. */
INLINE void divide(int n_tokens, int size, const float *sums, float *output) {
    for (int i = 0; i < n_tokens; i++)
        for (int j = 0; j < size; j += LANES) *(floats *)(output + i * size + j) *= 1 / sums[i];
}

/* Numbers of memory for the scores of a block, in a unit of n tokens. */
INLINE int64_t block_memory(const Attention *a, int n) {
    int n_keys = QUERY_BLOCK + 2 * a->reach + 2 * COLUMNS;
    return (int64_t)least(QUERY_BLOCK, n) * least(n, n_keys);
}

FOR_EACH_PROCESSOR
static void forward_unit(const Attention *a, int number, float *memory) {
    Unit u = unit_at(a, number);
    int size = a->head_size, length = u.length, n = round_up(length, LANES);
    float *q = memory, *k = q + n * size, *v = k + n * size, *s = v + n * size;
    float *o = s + block_memory(a, n), sums[QUERY_BLOCK];
    read_part(a, a->qkv, 3 * u.width, u.qkv, length, n, 1, q, NULL);
    read_part(a, a->qkv, 3 * u.width, u.qkv + u.width, length, n, 1, NULL, k);
    read_part(a, a->qkv, 3 * u.width, u.qkv + 2 * u.width, length, n, 1, v, NULL);
    for (int first = 0; first < length; first += QUERY_BLOCK) {
        Block b = block_at(a, &u, first);
        gemm(b.n_rows, b.n_keys, size, q + first * size, size, 1, k + b.keys * size, 0, s, 0);
        for (int i = 0; i < b.n_rows; i++)
            sums[i] = softmax_weights(a, &u, b, first + i, s + i * b.n_keys);
        gemm(b.n_rows, size, b.n_read, s, b.n_keys, 1, v + b.keys * size, size, o, 0);
        divide(b.n_rows, size, sums, o);
        write_part(a, a->output, u.width, u.output + first * u.width, b.n_queries, 1, o);
    }
}

#ifdef HAS_BF16_DOT
/* Query, key or value of a unit, or the gradient of its output: n tokens, zeros at the end. */
typedef struct {
    const uint16_t *from;
    int64_t stride;
    int size, length, n;
} Rows;

INLINE Rows part_of(const Attention *a, const Unit *u, int part, int n) {
    const uint16_t *qkv = (const uint16_t *)a->qkv + u->qkv + part * u->width;
    return (Rows){qkv, 3 * u->width, a->head_size, u->length, n};
}

/* Pairs of numbers of one token, (head_size / 2, n, 2) in panels. */
BF16_DOT INLINE void pair_columns(Rows x, uint16_t *to) {
    for (int i = 0; i < x.n; i += LANES)
        for (int j = 0; j < x.size; j += 2 * LANES) {
            floats block[LANES] = {0};
            for (int row = 0; row < LANES && i + row < x.length; row++)
                block[row] = *(const floats *)(x.from + (i + row) * x.stride + j);
            transpose(block);
            int begin = panel_begin(x.n, i), width = panel_width(x.n, begin);
            uint16_t *panel = to + begin * x.size + 2 * (i - begin);
            for (int row = 0; row < LANES; row++)
                *(floats *)(panel + (j + 2 * row) * width) = block[row];
        }
}

/* Pairs of numbers of two neighbouring tokens, (n / 2, head_size, 2). */
BF16_DOT INLINE void pair_tokens(Rows x, uint16_t *to) {
    for (int i = 0; i < x.n; i += 2, x.from += 2 * x.stride)
        for (int j = 0; j < x.size; j += LANES) {
            ushorts upper = {0}, lower = {0};
            if (i < x.length) upper = *(const ushorts *)(x.from + j);
            if (i + 1 < x.length) lower = *(const ushorts *)(x.from + x.stride + j);
            *(floats *)(to + i * x.size + 2 * j) = pair(upper, lower);
        }
}

BF16_DOT INLINE void copy_rows(Rows x, uint16_t *to) {
    memset(to + x.length * x.size, 0, sizeof *to * (x.n - x.length) * x.size);
    for (int i = 0; i < x.length; i++)
        memcpy(to + i * x.size, x.from + i * x.stride, sizeof *to * x.size);
}

/* Numbers of a token times a factor. */
BF16_DOT INLINE void write_rounded(const float *from, int size, float factor, uint16_t *to) {
    for (int j = 0; j < size; j += 2 * LANES)
        store_bf16(to + j, factor * *(const floats *)(from + j),
                   factor * *(const floats *)(from + j + LANES));
}

BF16_DOT static void forward_unit_bf16(const Attention *a, int number, float *memory) {
    Unit u = unit_at(a, number);
    int size = a->head_size, length = u.length, n = round_up(length, LANES);
    float *s = memory, *o = s + block_memory(a, n), sums[QUERY_BLOCK];
    uint16_t *q = (uint16_t *)(o + QUERY_BLOCK * size), *k = q + n * size, *v = k + n * size;
    uint16_t *weights = v + n * size;
    Softmax of = softmax_of(a, length, u.first);
    copy_rows(part_of(a, &u, 0, n), q);
    pair_columns(part_of(a, &u, 1, n), k);
    pair_tokens(part_of(a, &u, 2, n), v);
    for (int first = 0; first < length; first += QUERY_BLOCK) {
        Block b = block_at(a, &u, first);
        gemm_bf16(b.n_rows, b.n_keys, size, q + first * size, size, 2, k + b.keys * size, 0, s, 0);
        for (int i = 0; i < b.n_rows; i += SIDE_BY_SIDE) {
            Queries queries = {first + i, b.keys, b.n_keys};
            for (int j = 0; j < SIDE_BY_SIDE; j++) queries.spans[j] = span_of(a, &u, first + i + j);
            softmax(&of, &queries, SIDE_BY_SIDE, s + i * b.n_keys, weights + i * b.n_keys,
                    sums + i);
        }
        gemm_bf16(b.n_rows, size, b.n_keys, weights, b.n_keys, 2, v + b.keys * size, size, o, 0);
        uint16_t *to = (uint16_t *)a->output + u.output + first * u.width;
        for (int i = 0; i < b.n_queries; i++)
            write_rounded(o + i * size, size, 1 / sums[i], to + i * u.width);
    }
}
#endif

/* ---- Backward ---- */

/* Replaces the scores of a token by the weights after dropout, and the gradient of the weights by
that of the scores. In between a minus, which no weight has, marks those that are dropped, so that
bits are drawn once. */
INLINE void softmax_backward(const Attention *a, const Unit *u, Block b, int token, float scaling,
                             float *line, float *grad) {
    int64_t index = u->first + (int64_t)token * a->n_heads;
    int is_token = token < u->length, drops = a->dropout > 0;
    float logsumexp = is_token ? a->logsumexp[index] : 0;
    Dropout dropout = dropout_of(a->dropout);
    uints bits = positions(b.keys) + dropout_key(a->seed, index);
    Span span = span_of(a, u, token);
    floats total = {0};
    for (int j = 0; j < b.n_keys; j += LANES, bits += LANES * POSITION_STEP) {
        ints mask = is_token ? mask_within(span, b.keys + j) : (ints){0};
        floats x = *(floats *)(line + j) * scaling - logsumexp;
        x = blend(x > 0, (floats){0}, x); /* large scores are not exactly those of the way there */
        floats p = zero_unless(mask, exponential(x));
        floats g = zero_unless(mask, *(floats *)(grad + j)), factors = {0};
        if (drops) factors = dropout_factors(dropout, bits), g *= factors;
        total += p * g;
        *(floats *)(line + j) = drops ? blend(factors == 0, -p, p) : p;
        *(floats *)(grad + j) = g;
    }
    float delta = sum(total);
    for (int j = 0; j < b.n_keys; j += LANES) {
        floats p = *(floats *)(line + j), g = *(floats *)(grad + j);
        if (drops) {
            *(floats *)(line + j) = blend(p < 0, (floats){0}, p * dropout.factor);
            p = (floats)((ints)p & 0x7fffffff);
        }
        *(floats *)(grad + j) = p * (g - delta);
    }
}

FOR_EACH_PROCESSOR
static void backward_unit(const Attention *a, int number, float *memory) {
    Unit u = unit_at(a, number);
    int size = a->head_size, length = u.length, n = round_up(length, LANES);
    float *q = memory, *k = q + n * size, *k_transposed = k + n * size;
    float *v_transposed = k_transposed + n * size, *grad_output = v_transposed + n * size;
    float *grad_k = grad_output + n * size, *grad_v = grad_k + n * size, *s = grad_v + n * size;
    float *grad_s = s + block_memory(a, n), *o = grad_s + block_memory(a, n);
    int64_t query = u.qkv, key = query + u.width, value = key + u.width;
    read_part(a, a->qkv, 3 * u.width, query, length, n, a->scaling, q, NULL);
    read_part(a, a->qkv, 3 * u.width, key, length, n, 1, k, k_transposed);
    read_part(a, a->qkv, 3 * u.width, value, length, n, 1, NULL, v_transposed);
    read_part(a, a->grad_output, u.width, u.output, length, n, 1, grad_output, NULL);
    int is_local = a->reach < length; /* otherwise each block has all keys */
    if (is_local) memset(grad_k, 0, 2 * sizeof *grad_k * n * size); /* and grad_v */
    for (int first = 0; first < length; first += QUERY_BLOCK) {
        Block b = block_at(a, &u, first);
        int from = first * size, keys = b.keys * size, add = is_local || first;
        gemm(b.n_rows, b.n_keys, size, q + from, size, 1, k_transposed + keys, 0, s, 0);
        gemm(b.n_rows, b.n_keys, size, grad_output + from, size, 1, v_transposed + keys, 0,
             grad_s, 0);
        for (int i = 0; i < b.n_rows; i++)
            softmax_backward(a, &u, b, first + i, 1, s + i * b.n_keys, grad_s + i * b.n_keys);
        gemm(b.n_written, size, b.n_queries, s, 1, b.n_keys, grad_output + from, size,
             grad_v + keys, add);
        gemm(b.n_written, size, b.n_queries, grad_s, 1, b.n_keys, q + from, size, grad_k + keys,
             add);
        gemm(b.n_rows, size, b.n_read, grad_s, b.n_keys, 1, k + keys, size, o, 0);
        write_part(a, a->grad_qkv, 3 * u.width, query + 3 * first * u.width, b.n_queries,
                   a->scaling, o);
    }
    write_part(a, a->grad_qkv, 3 * u.width, value, length, 1, grad_v);
    write_part(a, a->grad_qkv, 3 * u.width, key, length, 1, grad_k);
}

#ifdef HAS_BF16_DOT
/* Lines of floats in bfloat16: to `lines` (NULL: not wanted) as they are, and to `pairs` as pairs
of a number and the one below. */
BF16_DOT INLINE void round_lines(const float *from, int n_lines, int width, uint16_t *lines,
                                 uint16_t *pairs) {
    for (int i = 0; i < n_lines; i += 2, from += 2 * width)
        for (int j = 0; j < width; j += LANES) {
            const float *upper = from + j, *lower = upper + width;
            __m512i both = rounded(*(const floats *)upper, *(const floats *)lower);
            _mm512_storeu_si512(pairs + i * width + 2 * j, alternated(both));
            if (!lines) continue;
            *(ushorts *)(lines + i * width + j) = ((const ushorts *)&both)[0];
            *(ushorts *)(lines + (i + 1) * width + j) = ((const ushorts *)&both)[1];
        }
}

typedef struct { /* what a unit's gradients are products of */
    uint16_t *q, *grad;                   /* tokens */
    uint16_t *k, *v;                      /* pairs of numbers of one token */
    uint16_t *q_pairs, *k_pairs, *grad_pairs; /* and of two neighbouring ones */
} Factors;

BF16_DOT INLINE void read_factors(const Attention *a, const Unit *u, int n, const Factors *to) {
    Rows rows = part_of(a, u, 0, n);
    copy_rows(rows, to->q);
    pair_tokens(rows, to->q_pairs);
    rows = part_of(a, u, 1, n);
    pair_columns(rows, to->k);
    pair_tokens(rows, to->k_pairs);
    pair_columns(part_of(a, u, 2, n), to->v);
    rows.from = (const uint16_t *)a->grad_output + u->output, rows.stride = u->width;
    copy_rows(rows, to->grad);
    pair_tokens(rows, to->grad_pairs);
}

/* Weights and gradients of scores are rounded, as what they are multiplied by is. */
BF16_DOT static void backward_unit_bf16(const Attention *a, int number, float *memory) {
    Unit u = unit_at(a, number);
    int size = a->head_size, length = u.length, n = round_up(length, LANES), step = n * size;
    int64_t n_scores = block_memory(a, n), query = u.qkv, key = query + u.width;
    float *grad_k = memory, *grad_v = grad_k + step, *s = grad_v + step, *grad_s = s + n_scores;
    float *o = grad_s + n_scores;
    uint16_t *lines = (uint16_t *)s; /* which are written where scores are no longer needed */
    uint16_t *x = (uint16_t *)(o + QUERY_BLOCK * size), *pairs = x + 7 * step; /* of scores */
    Factors of = {.q = x, .k = x + step, .v = x + 2 * step, .grad = x + 3 * step,
                  .q_pairs = x + 4 * step, .k_pairs = x + 5 * step, .grad_pairs = x + 6 * step};
    read_factors(a, &u, n, &of);
    int is_local = a->reach < length; /* otherwise each block has all keys */
    if (is_local) memset(grad_k, 0, 2 * sizeof *grad_k * step); /* and grad_v */
    for (int first = 0; first < length; first += QUERY_BLOCK) {
        Block b = block_at(a, &u, first);
        int from = first * size, keys = b.keys * size, m = b.n_rows, add = is_local || first;
        gemm_bf16(m, b.n_keys, size, of.q + from, size, 2, of.k + keys, 0, s, 0);
        gemm_bf16(m, b.n_keys, size, of.grad + from, size, 2, of.v + keys, 0, grad_s, 0);
        for (int i = 0, j = 0; i < m; i++, j += b.n_keys)
            softmax_backward(a, &u, b, first + i, a->scaling, s + j, grad_s + j);
        round_lines(s, m, b.n_keys, NULL, pairs);
        gemm_bf16(b.n_written, size, m, pairs, 2, 2 * b.n_keys, of.grad_pairs + from, size,
                  grad_v + keys, add);
        round_lines(grad_s, m, b.n_keys, lines, pairs);
        gemm_bf16(b.n_written, size, m, pairs, 2, 2 * b.n_keys, of.q_pairs + from, size,
                  grad_k + keys, add);
        gemm_bf16(m, size, b.n_keys, lines, b.n_keys, 2, of.k_pairs + keys, size, o, 0);
        write_part(a, a->grad_qkv, 3 * u.width, query + 3 * first * u.width, b.n_queries,
                   a->scaling, o);
    }
    write_part(a, a->grad_qkv, 3 * u.width, key + u.width, length, 1, grad_v);
    write_part(a, a->grad_qkv, 3 * u.width, key, length, a->scaling, grad_k);
}
#endif

/* ---- All rows and heads ---- */

/* Numbers of memory that one unit takes, at least: pairs of scores are no more than 64 n, which the
backward pass in bfloat16 leaves of the 7 n head_size. */
static int64_t unit_memory(const Attention *a) {
    int n = round_up(a->max_seqlen, LANES);
    return 2 * block_memory(a, n) + (int64_t)(7 * n + QUERY_BLOCK) * a->head_size;
}

typedef void Compute(const Attention *a, int number, float *memory);

static int for_all_units(const Attention *a, Compute *compute, int n_threads) {
    int n_units = a->n_rows * a->n_heads;
    if (!n_units) return 0;
    int64_t n = unit_memory(a), n_scores = (int64_t)a->max_seqlen * (a->max_seqlen + LANES);
    n_threads = threads_for(n_units * n_scores * a->head_size / 2, n_threads);
    int n_at_once = n_units < 64 * n_threads ? 1 : 8;
    if (a->n_rows == 1) n_at_once = (n_units + n_threads - 1) / n_threads; /* all alike */
    float *memory = malloc(n_threads * n * sizeof(float));
    if (!memory) return -1;
#pragma omp parallel for schedule(dynamic, n_at_once) num_threads(n_threads)
    for (int number = 0; number < n_units; number++)
        compute(a, number, memory + omp_get_thread_num() * n);
    free(memory);
    return 0;
}

int DEFINE(attention_forward)(const Attention *a, int n_threads) {
#ifdef HAS_BF16_DOT
    if (a->is_bf16 && has_bf16_dot && a->head_size % (2 * LANES) == 0)
        return for_all_units(a, forward_unit_bf16, n_threads);
#endif
    return for_all_units(a, forward_unit, n_threads);
}

int DEFINE(attention_backward)(const Attention *a, int n_threads) {
#ifdef HAS_BF16_DOT
    if (a->is_bf16 && has_bf16_dot && a->head_size % (2 * LANES) == 0)
        return for_all_units(a, backward_unit_bf16, n_threads);
#endif
    return for_all_units(a, backward_unit, n_threads);
}
