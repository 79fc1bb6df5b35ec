/* Attention within rows. A thread takes one row and head at a time, and of these a block of
queries, whose scores fit in a cache; the keys that no query of a block attends to are left out.
The backward pass computes the scores again from the logsumexp of each token. */

#include <limits.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "dropout.h"
#include "gemm.h"

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

/* The keys that a token attends to: from `begin` to before `end`. */
typedef struct {
    int begin, end;
} Span;

INLINE Span span_of(const Attention *a, const Unit *u, int token) {
    int last = a->causal ? token : token + a->reach;
    return (Span){token - a->reach, least(u->length, last + 1)};
}

/* Which of the keys from `first` on are in a span. */
INLINE ints mask_within(Span span, int first) {
    ints mask = mask_before(span.end, first);
    if (span.begin > first) mask &= ~mask_before(span.begin, first);
    return mask;
}

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
INLINE float softmax_weights(const Attention *a, const Unit *u, Block b, int token, float scaling,
                             float *line) {
    Span span = span_of(a, u, token);
    floats maxima = (floats){0} - INFINITY, total = {0};
    for (int j = 0; j < b.n_keys; j += LANES) {
        floats x = *(floats *)(line + j);
        x = blend(mask_within(span, b.keys + j), x, (floats){0} - INFINITY);
        maxima = blend(x > maxima, x, maxima);
    }
    float row_max = maximum(maxima);
    uint32_t mask_key = dropout_key(a->seed, u->first + (int64_t)token * a->n_heads);
    for (int j = 0; j < b.n_keys; j += LANES) {
        floats x = (*(floats *)(line + j) - row_max) * scaling;
        x = zero_unless(mask_within(span, b.keys + j), exponential(x));
        total += x;
        if (a->dropout > 0) x *= dropout_mask(mask_key, b.keys + j, a->dropout);
        *(floats *)(line + j) = x;
    }
    float row_sum = sum(total);
    if (a->logsumexp && token < u->length)
        a->logsumexp[u->first + (int64_t)token * a->n_heads] = row_max * scaling + logf(row_sum);
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
            sums[i] = softmax_weights(a, &u, b, first + i, a->scaling, s + i * b.n_keys);
        gemm(b.n_rows, size, b.n_read, s, b.n_keys, 1, v + b.keys * size, size, o, 0);
        divide(b.n_rows, size, sums, o);
        write_part(a, a->output, u.width, u.output + first * u.width, b.n_queries, 1, o);
    }
}

#ifdef HAS_BF16_DOT
/* The key as pairs of numbers of one token, (head_size / 2, n, 2) in panels. */
BF16_DOT INLINE void pair_columns(const Attention *a, int64_t stride, int64_t offset, int length,
                                  int n, uint16_t *to) {
    const uint16_t *from = (const uint16_t *)a->qkv + offset;
    for (int i = 0; i < n; i += LANES)
        for (int j = 0; j < a->head_size; j += 2 * LANES) {
            floats x[LANES] = {0};
            for (int row = 0; row < LANES && i + row < length; row++)
                x[row] = *(const floats *)(from + (i + row) * stride + j);
            transpose(x);
            int begin = panel_begin(n, i), width = panel_width(n, begin);
            uint16_t *panel = to + begin * a->head_size + 2 * (i - begin);
            for (int row = 0; row < LANES; row++)
                *(floats *)(panel + (j + 2 * row) * width) = x[row];
        }
}

/* The value as pairs of numbers of two neighbouring tokens, (n / 2, head_size, 2). */
BF16_DOT INLINE void pair_tokens(const Attention *a, int64_t stride, int64_t offset, int length,
                                 int n, uint16_t *to) {
    const char *from = a->qkv;
    for (int i = 0; i < n; i += 2)
        for (int j = 0; j < a->head_size; j += LANES) {
            uints x = {0}, y = {0};
            if (i < length) x = (uints)load(from, offset + i * stride + j, 1) >> 16;
            if (i + 1 < length) y = (uints)load(from, offset + (i + 1) * stride + j, 1);
            *(uints *)(to + i * a->head_size + 2 * j) = x | y;
        }
}

BF16_DOT INLINE void copy_rows(const Attention *a, int64_t stride, int64_t offset, int length,
                               int n, uint16_t *to) {
    int size = a->head_size;
    memset(to + length * size, 0, sizeof *to * (n - length) * size);
    for (int i = 0; i < length; i++)
        memcpy(to + i * size, (const uint16_t *)a->qkv + offset + i * stride, sizeof *to * size);
}

BF16_DOT static void forward_unit_bf16(const Attention *a, int number, float *memory) {
    Unit u = unit_at(a, number);
    int size = a->head_size, length = u.length, n = round_up(length, LANES);
    float *s = memory, *o = s + block_memory(a, n), sums[QUERY_BLOCK];
    uint16_t *q = (uint16_t *)(o + QUERY_BLOCK * size), *k = q + n * size, *v = k + n * size;
    uint16_t *weights = v + n * size;
    copy_rows(a, 3 * u.width, u.qkv, length, n, q);
    pair_columns(a, 3 * u.width, u.qkv + u.width, length, n, k);
    pair_tokens(a, 3 * u.width, u.qkv + 2 * u.width, length, n, v);
    for (int first = 0; first < length; first += QUERY_BLOCK) {
        Block b = block_at(a, &u, first);
        gemm_bf16(b.n_rows, b.n_keys, size, q + first * size, k + b.keys * size, 0, s);
        for (int i = 0; i < b.n_rows; i++) {
            float *line = s + i * b.n_keys;
            sums[i] = softmax_weights(a, &u, b, first + i, a->scaling, line);
            for (int j = 0; j < b.n_keys; j += LANES)
                store((char *)weights, i * b.n_keys + j, *(floats *)(line + j), 1);
        }
        gemm_bf16(b.n_rows, size, b.n_keys, weights, v + b.keys * size, size, o);
        divide(b.n_rows, size, sums, o);
        write_part(a, a->output, u.width, u.output + first * u.width, b.n_queries, 1, o);
    }
}
#endif

/* ---- Backward ---- */

/* Replaces the scores of a token by the weights after dropout, and the gradient of the weights by
that of the scores. */
INLINE void softmax_backward(const Attention *a, const Unit *u, Block b, int token, float *line,
                             float *grad) {
    int64_t index = u->first + (int64_t)token * a->n_heads;
    float logsumexp = token < u->length ? a->logsumexp[index] : 0;
    uint32_t mask_key = dropout_key(a->seed, index);
    Span span = span_of(a, u, token);
    floats total = {0};
    for (int j = 0; j < b.n_keys; j += LANES) {
        ints mask = token < u->length ? mask_within(span, b.keys + j) : (ints){0};
        floats x = *(floats *)(line + j) - logsumexp;
        x = blend(x > 0, (floats){0}, x); /* large scores are not exactly those of the way there */
        floats p = zero_unless(mask, exponential(x));
        floats g = zero_unless(mask, *(floats *)(grad + j));
        if (a->dropout > 0) g *= dropout_mask(mask_key, b.keys + j, a->dropout);
        total += p * g;
        *(floats *)(line + j) = p;
        *(floats *)(grad + j) = g;
    }
    float delta = sum(total);
    for (int j = 0; j < b.n_keys; j += LANES) {
        floats p = *(floats *)(line + j), g = *(floats *)(grad + j);
        if (a->dropout > 0)
            *(floats *)(line + j) = p * dropout_mask(mask_key, b.keys + j, a->dropout);
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
            softmax_backward(a, &u, b, first + i, s + i * b.n_keys, grad_s + i * b.n_keys);
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

/* ---- All rows and heads ---- */

/* Numbers of memory that one unit takes. */
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
    return for_all_units(a, backward_unit, n_threads);
}
