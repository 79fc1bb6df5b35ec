/* Weights of attention from scores: which keys have one, and in bfloat16 all of them. */

#ifndef SKBERT_SOFTMAX_H
#define SKBERT_SOFTMAX_H

#include <math.h>

#include "dropout.h"
#include "gelu.h"

/* The keys that a token attends to: from `begin` to before `end`. */
typedef struct {
    int begin, end;
} Span;

/* Which of the keys from `first` on are in a span. */
INLINE ints mask_within(Span span, int first) {
    ints mask = mask_before(span.end, first);
    if (span.begin > first) mask &= ~mask_before(span.begin, first);
    return mask;
}

#ifdef HAS_BF16_DOT
#define SIDE_BY_SIDE 4 /* queries, as each step of one waits for the step before */
#define LOG2_E 1.44269504f

/* One row and head. */
typedef struct {
    float scaling, dropout;
    uint64_t seed;
    float *logsumexp; /* of its first token, or NULL */
    int64_t first;    /* the number of that token's weights, */
    int n_heads;      /* and from one token's to the next's */
    int length;
} Softmax;

INLINE Softmax softmax_of(const Attention *a, int length, int64_t first) {
    return (Softmax){.scaling = a->scaling, .dropout = a->dropout, .seed = a->seed,
                     .logsumexp = a->logsumexp ? a->logsumexp + first : NULL,
                     .first = first, .n_heads = a->n_heads, .length = length};
}

/* Queries, and the keys whose scores they have. */
typedef struct {
    int first, keys, n_keys; /* the first ones, and as many keys as are in whole vectors */
    Span spans[SIDE_BY_SIDE];
} Queries;

/* Vectors of keys that are all in a span need no mask. */
INLINE int is_inside(Span span, int first) {
    return span.begin <= first && first + LANES <= span.end;
}

/* The largest score of each query. */
BF16_DOT INLINE void find_largest(const Queries *q, int n, const float *scores, float *largest) {
    floats most[SIDE_BY_SIDE];
    for (int i = 0; i < n; i++) most[i] = (floats){0} - INFINITY;
    for (int j = 0; j < q->n_keys; j += LANES)
        for (int i = 0; i < n; i++) {
            floats x = *(const floats *)(scores + i * q->n_keys + j);
            if (!is_inside(q->spans[i], q->keys + j))
                x = blend(mask_within(q->spans[i], q->keys + j), x, most[i]);
            most[i] = (floats)_mm512_max_ps((__m512)most[i], (__m512)x);
        }
    for (int i = 0; i < n; i++) largest[i] = _mm512_reduce_max_ps((__m512)most[i]);
}

/* Weights of some queries from their scores, not divided by their sums; and these. */
BF16_DOT INLINE void softmax(const Softmax *a, const Queries *q, int n, const float *scores,
                             uint16_t *weights, float *sums) {
    float largest[SIDE_BY_SIDE], factor = a->scaling * LOG2_E;
    int drops = a->dropout > 0;
    Dropout dropout = dropout_of(a->dropout);
    uint32_t mask_keys[SIDE_BY_SIDE] = {0};
    floats total[SIDE_BY_SIDE] = {0};
    int64_t number = a->first + (int64_t)q->first * a->n_heads;
    for (int i = 0; i < n && drops; i++)
        mask_keys[i] = dropout_key(a->seed, number + i * a->n_heads);
    find_largest(q, n, scores, largest);
    for (int j = 0; j < q->n_keys; j += LANES)
        for (int i = 0; i < n; i++) {
            int at = i * q->n_keys + j, key = q->keys + j;
            floats x = *(const floats *)(scores + at) - largest[i];
            x = power_of_2(x * factor); /* of exactly 0, or less */
            if (!is_inside(q->spans[i], key)) x = zero_unless(mask_within(q->spans[i], key), x);
            total[i] += x;
            if (drops) x *= dropout_factors(dropout, mask_keys[i] + positions(key));
            __m256i rounded = (__m256i)_mm512_cvtneps_pbh((__m512)x);
            _mm256_storeu_si256((void *)(weights + at), rounded);
        }
    for (int i = 0; i < n; i++) sums[i] = sum(total[i]);
    for (int i = 0; i < n && a->logsumexp && q->first + i < a->length; i++)
        a->logsumexp[(int64_t)(q->first + i) * a->n_heads] =
            largest[i] * a->scaling + logf(sums[i]);
}
#endif

#endif
