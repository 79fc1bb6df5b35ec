/* Attention within rows in the tiles of AMX, in bfloat16, where each token attends to all of its
row.

A thread takes one row and head at a time: keys and values are paired once, then sixteen queries
after another get their scores, weights and output. */

#include <math.h>

#include "attention_tiles.h"

#ifdef HAS_BF16_DOT
#define KEYS (2 * TILE_ROWS) /* of which the number is a multiple */

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

/* Replaces scores by weights in bfloat16 that are not divided by their sum, which is returned. */
AMX INLINE float softmax(const Unit *u, int query, const float *scores, uint16_t *weights) {
    int length = u->key.length, has_dropout = u->has_dropout;
    floats most = {0}, total = {0};
    most -= __builtin_inff();
    for (int j = 0; j < u->n_keys; j += LANES) {
        floats x = blend(mask_before(length, j), *(const floats *)(scores + j), most);
        most = (floats)_mm512_max_ps((__m512)most, (__m512)x);
    }
    float largest = maximum(most), factor = u->scaling * LOG2_E;
    int64_t number = u->first + (int64_t)query * u->n_heads;
    Dropout dropout = u->dropout;
    uint32_t mask_key = dropout_key(u->seed, number);
    for (int j = 0; j < u->n_keys; j += KEYS) {
        floats x[2];
        for (int half = 0; half < 2; half++) {
            int first = j + half * LANES;
            floats below = *(const floats *)(scores + first) - largest; /* exactly 0, or less */
            x[half] = zero_unless(mask_before(length, first), power_of_2(below * factor));
            total += x[half];
            if (has_dropout) x[half] *= dropout_factors(dropout, mask_key + positions(first));
        }
        store_bf16(weights + j, x[0], x[1]);
    }
    float row_sum = sum(total);
    if (u->logsumexp)
        u->logsumexp[(int64_t)query * u->n_heads] = largest * u->scaling + logf(row_sum);
    return row_sum;
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
    for (int row = 0; row < n_rows; row++)
        sums[row] = softmax(u, first + row, u->scores + row * u->n_keys,
                            u->weights + row * u->n_keys);
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
