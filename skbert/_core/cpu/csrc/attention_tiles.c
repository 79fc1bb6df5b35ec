/* Attention within rows in the tiles of AMX, in bfloat16, where each token attends to all of its
row.

A thread takes one row and head at a time: keys and values are paired once, then sixteen queries
after another get their scores, weights and output. */

#include <math.h>

#include "attention_tiles.h"

#ifdef HAS_BF16_DOT
#define KEYS (2 * TILE_ROWS) /* of which the number is a multiple */
#define SIDE_BY_SIDE 4 /* queries, as each step of one waits for the step before */

/* One row and head. */
typedef struct {
    Tokens query, key, value, output;
    float *logsumexp; /* of its first token, or NULL */
    int64_t first;    /* the number of that token's weights, */
    int n_heads;      /* and from one token's to the next's */
    int n_keys;
    float scaling;
    int has_dropout;
    Dropout dropout;
    uint64_t seed;
    uint16_t *keys, *values;     /* pairs of numbers, and of tokens */
    uint16_t *queries, *weights; /* (16, size), (16, n_keys) */
    float *scores;               /* (16, n_keys), later the output */
} Unit;

/* 32 columns of a product (16, 32 * n) b, of which the panel holds pairs. */
AMX INLINE void multiply(const uint16_t *a, int64_t stride, int n, const uint16_t *panel, float *to,
                         int64_t width) {
    __asm__ volatile("" ::: "memory"); /* the compiler does not know what tiles read */
    _tile_zero(0);
    _tile_zero(1);
    for (int i = 0; i < n; i++, panel += 2 * TILE) {
        _tile_loadd(2, a + 2 * LANES * i, 2 * stride);
        _tile_loadd(3, panel, 2 * TILE_BYTES);
        _tile_dpbf16ps(0, 2, 3);
        _tile_loadd(4, panel + PANEL, 2 * TILE_BYTES);
        _tile_dpbf16ps(1, 2, 4);
    }
    _tile_stored(0, to, 4 * width);
    _tile_stored(1, to + LANES, 4 * width);
}

/* The largest score of each of some queries. */
AMX INLINE void find_largest(const Unit *u, int n, const float *scores, float *largest) {
    int length = u->key.length, n_keys = u->n_keys;
    floats most[SIDE_BY_SIDE];
    for (int i = 0; i < n; i++) most[i] = (floats){0} - __builtin_inff();
    for (int j = 0; j < n_keys; j += LANES)
        for (int i = 0; i < n; i++) {
            floats x = *(const floats *)(scores + i * n_keys + j);
            if (j + LANES > length) x = blend(mask_before(length, j), x, most[i]);
            most[i] = (floats)_mm512_max_ps((__m512)most[i], (__m512)x);
        }
    for (int i = 0; i < n; i++) largest[i] = _mm512_reduce_max_ps((__m512)most[i]);
}

/* Weights before dropout: none of keys that are none. */
AMX INLINE floats weights_of(floats scores, float largest, float factor, int length, int first) {
    floats x = power_of_2((scores - largest) * factor); /* of exactly 0, or less */
    return first + LANES > length ? zero_unless(mask_before(length, first), x) : x;
}

/* Replaces scores of some queries by weights in bfloat16 that are not divided by their sums. */
AMX INLINE void softmax(const Unit *u, int query, int n, const float *scores, uint16_t *weights,
                        float *sums) {
    int length = u->key.length, n_keys = u->n_keys, has_dropout = u->has_dropout;
    float largest[SIDE_BY_SIDE], factor = u->scaling * LOG2_E;
    Dropout dropout = u->dropout;
    uint32_t keys[SIDE_BY_SIDE] = {0}; /* of their dropout */
    floats total[SIDE_BY_SIDE] = {0};
    int64_t number = u->first + (int64_t)query * u->n_heads;
    for (int i = 0; i < n && has_dropout; i++)
        keys[i] = dropout_key(u->seed, number + i * u->n_heads);
    find_largest(u, n, scores, largest);
    for (int j = 0; j < n_keys; j += KEYS)
        for (int i = 0; i < n; i++) {
            floats x[2];
            for (int half = 0; half < 2; half++) {
                int first = j + half * LANES;
                floats from = *(const floats *)(scores + i * n_keys + first);
                x[half] = weights_of(from, largest[i], factor, length, first);
                total[i] += x[half];
                if (has_dropout) x[half] *= dropout_factors(dropout, keys[i] + positions(first));
            }
            store_bf16(weights + i * n_keys + j, x[0], x[1]);
        }
    for (int i = 0; i < n; i++) sums[i] = sum(total[i]);
    for (int i = 0; i < n && u->logsumexp; i++)
        u->logsumexp[(int64_t)(query + i) * u->n_heads] =
            largest[i] * u->scaling + logf(sums[i]);
}

/* All queries of up to sixteen. */
AMX INLINE void compute_weights(const Unit *u, int first, int n_rows, float *sums) {
    int row = 0;
    for (; row + SIDE_BY_SIDE <= n_rows; row += SIDE_BY_SIDE)
        softmax(u, first + row, SIDE_BY_SIDE, u->scores + row * u->n_keys,
                u->weights + row * u->n_keys, sums + row);
    for (; row < n_rows; row++)
        softmax(u, first + row, 1, u->scores + row * u->n_keys, u->weights + row * u->n_keys,
                sums + row);
}

/* The output of up to sixteen queries. */
AMX static void attend(const Unit *u, int first) {
    int left = u->query.length - first, n_rows = left < TILE_ROWS ? left : TILE_ROWS;
    int size = u->query.size;
    const uint16_t *queries = u->query.first + first * u->query.stride;
    int64_t stride = u->query.stride;
    float sums[TILE_ROWS];
    if (n_rows < TILE_ROWS) { /* what lies behind the row may not be read */
        for (int row = 0; row < n_rows; row++)
            memcpy(u->queries + row * size, queries + row * stride, 2 * size);
        queries = u->queries, stride = size;
    }
    for (int j = 0; j < u->n_keys; j += KEYS)
        multiply(queries, stride, size / KEYS, u->keys + j * size, u->scores + j, u->n_keys);
    compute_weights(u, first, n_rows, sums);
    for (int i = 0; i < size; i += PANEL) {
        multiply(u->weights, u->n_keys, u->n_keys / KEYS, u->values + i * u->n_keys, u->scores,
                 PANEL);
        for (int row = 0; row < n_rows; row++) {
            const floats *from = (const floats *)(u->scores + row * PANEL);
            store_token(&u->output, first + row, i, from[0] / sums[row], from[1] / sums[row]);
        }
    }
}

/* ---- All rows and heads ---- */

static size_t bytes_of_unit(const Attention *a) {
    size_t n_keys = round_up(a->max_seqlen, KEYS);
    return 4 * n_keys * a->head_size + TILE_ROWS * (2 * a->head_size + 6 * n_keys);
}

AMX static void attend_to(const Attention *a, int number, char *memory) {
    int64_t first = first_token(a, number);
    Unit u = {.query = tokens_at(a, number, a->qkv, 3, 0),
              .key = tokens_at(a, number, a->qkv, 3, 1),
              .value = tokens_at(a, number, a->qkv, 3, 2),
              .output = tokens_at(a, number, a->output, 1, 0),
              .logsumexp = a->logsumexp ? a->logsumexp + first : NULL, .first = first,
              .n_heads = a->n_heads, .scaling = a->scaling, .has_dropout = a->dropout > 0,
              .dropout = dropout_of(a->dropout), .seed = a->seed};
    u.n_keys = round_up(u.key.length, KEYS);
    u.scores = (float *)memory;
    u.keys = (uint16_t *)(u.scores + TILE_ROWS * u.n_keys);
    u.values = u.keys + u.n_keys * a->head_size;
    u.weights = u.values + u.n_keys * a->head_size;
    u.queries = u.weights + TILE_ROWS * u.n_keys;
    pair_numbers(&u.key, u.n_keys, u.keys);
    pair_tokens(&u.value, u.n_keys, u.values);
    for (int query = 0; query < u.query.length; query += TILE_ROWS) attend(&u, query);
}

int attention_tiles(const Attention *a, int n_threads) {
    return for_all_units(a, bytes_of_unit(a), attend_to, n_threads);
}
#endif
