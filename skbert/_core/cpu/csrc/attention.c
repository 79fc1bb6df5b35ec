/* Attention within short rows. A thread takes one row and head at a time, whose scores fit in a
cache; the backward pass computes them again from the logsumexp of each token. */

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

/* Which of a token's scores from `first` on it attends to. */
INLINE ints attention_mask(const Attention *a, int token, int length, int first) {
    return mask_before(a->causal ? token + 1 : length, first);
}

/* Copies query, key or value of a unit, (n, head_size) with zeros at the end, as it is to `to` and
transposed to `transposed`; NULL: not wanted. */
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
            for (int row = 0; row < LANES; row++)
                *(floats *)(transposed + (j + row) * n + i) = x[row];
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

/* Replaces a token's n scores by their exponentials, after dropout; returns the sum before it. */
INLINE float softmax_weights(const Attention *a, const Unit *u, int token, int n, float scaling,
                             float *line) {
    floats maxima = (floats){0} - INFINITY, total = {0};
    for (int j = 0; j < n; j += LANES) {
        floats x = *(floats *)(line + j);
        x = blend(attention_mask(a, token, u->length, j), x, (floats){0} - INFINITY);
        maxima = blend(x > maxima, x, maxima);
    }
    float row_max = maximum(maxima);
    uint32_t mask_key = dropout_key(a->seed, u->first + (int64_t)token * a->n_heads);
    for (int j = 0; j < n; j += LANES) {
        floats x = (*(floats *)(line + j) - row_max) * scaling;
        x = zero_unless(attention_mask(a, token, u->length, j), exponential(x));
        total += x;
        if (a->dropout > 0) x *= dropout_mask(mask_key, j, a->dropout);
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

FOR_EACH_PROCESSOR
static void forward_unit(const Attention *a, int number, float *memory) {
    Unit u = unit_at(a, number);
    int size = a->head_size, length = u.length, n = round_up(length, LANES);
    int m = round_up(length, 4);
    float *q = memory, *k = q + n * size, *v = k + n * size, *s = v + n * size, *o = s + n * n;
    float sums[QUERY_BLOCK];
    read_part(a, a->qkv, 3 * u.width, u.qkv, length, n, 1, q, NULL);
    read_part(a, a->qkv, 3 * u.width, u.qkv + u.width, length, n, 1, NULL, k);
    read_part(a, a->qkv, 3 * u.width, u.qkv + 2 * u.width, length, n, 1, v, NULL);
    for (int first = 0; first < m; first += QUERY_BLOCK) { /* as many scores as a cache holds */
        int n_tokens = first + QUERY_BLOCK < m ? QUERY_BLOCK : m - first;
        gemm(n_tokens, n, size, q + first * size, size, 1, k, s);
        for (int i = 0; i < n_tokens; i++)
            sums[i] = softmax_weights(a, &u, first + i, n, a->scaling, s + i * n);
        gemm(n_tokens, size, length, s, n, 1, v, o + first * size);
        divide(n_tokens, size, sums, o + first * size);
    }
    write_part(a, a->output, u.width, u.output, length, 1, o);
}

#ifdef HAS_BF16_DOT
/* The key as pairs of numbers of one token, (head_size / 2, n, 2). */
BF16_DOT INLINE void pair_columns(const Attention *a, int64_t stride, int64_t offset, int length,
                                  int n, uint16_t *to) {
    const uint16_t *from = (const uint16_t *)a->qkv + offset;
    for (int i = 0; i < n; i += LANES)
        for (int j = 0; j < a->head_size; j += 2 * LANES) {
            floats x[LANES] = {0};
            for (int row = 0; row < LANES && i + row < length; row++)
                x[row] = *(const floats *)(from + (i + row) * stride + j);
            transpose(x);
            for (int row = 0; row < LANES; row++)
                *(floats *)(to + (j + 2 * row) * n + 2 * i) = x[row];
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
    int m = round_up(length, 4);
    float *s = memory, *o = s + QUERY_BLOCK * n, sums[QUERY_BLOCK];
    uint16_t *q = (uint16_t *)(o + n * size), *k = q + n * size, *v = k + n * size;
    uint16_t *weights = v + n * size;
    copy_rows(a, 3 * u.width, u.qkv, length, n, q);
    pair_columns(a, 3 * u.width, u.qkv + u.width, length, n, k);
    pair_tokens(a, 3 * u.width, u.qkv + 2 * u.width, length, n, v);
    for (int first = 0; first < m; first += QUERY_BLOCK) {
        int n_tokens = first + QUERY_BLOCK < m ? QUERY_BLOCK : m - first;
        gemm_bf16(n_tokens, n, size, q + first * size, k, s);
        for (int i = 0; i < n_tokens; i++) {
            sums[i] = softmax_weights(a, &u, first + i, n, a->scaling, s + i * n);
            for (int j = 0; j < n; j += LANES)
                store((char *)weights, i * n + j, *(floats *)(s + i * n + j), 1);
        }
        gemm_bf16(n_tokens, size, n, weights, v, o + first * size);
        divide(n_tokens, size, sums, o + first * size);
    }
    write_part(a, a->output, u.width, u.output, length, 1, o);
}
#endif

/* ---- Backward ---- */

/* Replaces the n scores of a token by the weights after dropout, and the gradient of the weights
by that of the scores. */
INLINE void softmax_backward(const Attention *a, const Unit *u, int token, int n, float *line,
                             float *grad) {
    int64_t index = u->first + (int64_t)token * a->n_heads;
    float logsumexp = token < u->length ? a->logsumexp[index] : 0;
    uint32_t mask_key = dropout_key(a->seed, index);
    floats total = {0};
    for (int j = 0; j < n; j += LANES) {
        ints mask = token < u->length ? attention_mask(a, token, u->length, j) : (ints){0};
        floats p = zero_unless(mask, exponential(*(floats *)(line + j) - logsumexp));
        floats g = zero_unless(mask, *(floats *)(grad + j));
        if (a->dropout > 0) g *= dropout_mask(mask_key, j, a->dropout);
        total += p * g;
        *(floats *)(line + j) = p;
        *(floats *)(grad + j) = g;
    }
    float delta = sum(total);
    for (int j = 0; j < n; j += LANES) {
        floats p = *(floats *)(line + j);
        if (a->dropout > 0) *(floats *)(line + j) = p * dropout_mask(mask_key, j, a->dropout);
        *(floats *)(grad + j) = p * (*(floats *)(grad + j) - delta);
    }
}

FOR_EACH_PROCESSOR
static void backward_unit(const Attention *a, int number, float *memory) {
    Unit u = unit_at(a, number);
    int size = a->head_size, length = u.length, n = round_up(length, LANES);
    int m = round_up(length, 4);
    float *q = memory, *k = q + n * size, *k_transposed = k + n * size;
    float *v_transposed = k_transposed + n * size, *grad_output = v_transposed + n * size;
    float *s = grad_output + n * size, *grad_s = s + n * n, *o = grad_s + n * n;
    int64_t query = u.qkv, key = query + u.width, value = key + u.width;
    read_part(a, a->qkv, 3 * u.width, query, length, n, a->scaling, q, NULL);
    read_part(a, a->qkv, 3 * u.width, key, length, n, 1, k, k_transposed);
    read_part(a, a->qkv, 3 * u.width, value, length, n, 1, NULL, v_transposed);
    read_part(a, a->grad_output, u.width, u.output, length, n, 1, grad_output, NULL);
    gemm(m, n, size, q, size, 1, k_transposed, s);
    gemm(m, n, size, grad_output, size, 1, v_transposed, grad_s);
    for (int i = 0; i < m; i++) softmax_backward(a, &u, i, n, s + i * n, grad_s + i * n);
    gemm(m, size, length, s, 1, n, grad_output, o);
    write_part(a, a->grad_qkv, 3 * u.width, value, length, 1, o);
    gemm(m, size, length, grad_s, n, 1, k, o);
    write_part(a, a->grad_qkv, 3 * u.width, query, length, a->scaling, o);
    gemm(m, size, length, grad_s, 1, n, q, o);
    write_part(a, a->grad_qkv, 3 * u.width, key, length, 1, o);
}

/* ---- All rows and heads ---- */

/* Numbers of memory that one unit takes. */
static int64_t unit_memory(const Attention *a) {
    int64_t n = round_up(a->max_seqlen, LANES), rows = n > QUERY_BLOCK ? n : QUERY_BLOCK;
    return 2 * rows * n + 6 * n * a->head_size;
}

typedef void Compute(const Attention *a, int number, float *memory);

static int for_all_units(const Attention *a, Compute *compute, int n_threads) {
    int n_units = a->n_rows * a->n_heads;
    if (!n_units) return 0;
    int64_t n = unit_memory(a), n_scores = (int64_t)a->max_seqlen * (a->max_seqlen + LANES);
    n_threads = threads_for(n_units * n_scores, n_threads);
    float *memory = malloc(n_threads * n * sizeof(float));
    if (!memory) return -1;
#pragma omp parallel for schedule(dynamic, 8) num_threads(n_threads)
    for (int number = 0; number < n_units; number++)
        compute(a, number, memory + omp_get_thread_num() * n);
    free(memory);
    return 0;
}

int attention_forward(const Attention *a, int n_threads) {
#ifdef HAS_BF16_DOT
    if (a->is_bf16 && has_bf16_dot && a->head_size % (2 * LANES) == 0)
        return for_all_units(a, forward_unit_bf16, n_threads);
#endif
    return for_all_units(a, forward_unit, n_threads);
}

int attention_backward(const Attention *a, int n_threads) {
    return for_all_units(a, backward_unit, n_threads);
}
