/* Attention within rows in the tiles of AMX, in bfloat16, where each token attends to all of its
row.

A thread takes one row and head at a time: keys and values are paired once, then sixteen queries
after another get their scores, weights and output. */

#include "attention_tiles.h"

#ifdef HAS_BF16_DOT
#define KEYS (2 * TILE_ROWS) /* of which the number is a multiple */

/* One row and head. */
typedef struct {
    Tokens query, key, value, output;
    Softmax softmax;
    int n_keys;
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

/* All queries of up to sixteen. */
AMX INLINE void compute_weights(const Unit *u, int first, int n_rows, float *sums) {
    Span all = {0, u->key.length};
    Queries queries = {first, 0, u->n_keys, {all, all, all, all}};
    const float *from = u->scores;
    uint16_t *to = u->weights;
    int end = first + n_rows, step = SIDE_BY_SIDE;
    for (; queries.first + step <= end; queries.first += step, sums += step) {
        softmax(&u->softmax, &queries, step, from, to, sums);
        from += step * u->n_keys, to += step * u->n_keys;
    }
    for (; queries.first < end; queries.first++, from += u->n_keys, to += u->n_keys)
        softmax(&u->softmax, &queries, 1, from, to, sums++);
}

/* The output of up to sixteen queries. */
AMX static void attend(const Unit *u, int first) {
    int left = u->query.length - first, n_rows = left < TILE_ROWS ? left : TILE_ROWS;
    int size = u->query.size;
    const uint16_t *queries = u->query.first + first * u->query.stride;
    int64_t stride = u->query.stride;
    floats sums = {0}, inverses;
    if (n_rows < TILE_ROWS) { /* what lies behind the row may not be read */
        for (int row = 0; row < n_rows; row++)
            memcpy(u->queries + row * size, queries + row * stride, 2 * size);
        queries = u->queries, stride = size;
    }
    for (int j = 0; j < u->n_keys; j += KEYS)
        multiply(queries, stride, size / KEYS, u->keys + j * size, u->scores + j, u->n_keys);
    compute_weights(u, first, n_rows, (float *)&sums);
    inverses = 1 / sums;
    for (int i = 0; i < size; i += PANEL) {
        multiply(u->weights, u->n_keys, u->n_keys / KEYS, u->values + i * u->n_keys, u->scores,
                 PANEL);
        for (int row = 0; row < n_rows; row++) {
            const floats *from = (const floats *)(u->scores + row * PANEL);
            store_token(&u->output, first + row, i, from[0] * inverses[row],
                        from[1] * inverses[row]);
        }
    }
}

/* ---- All rows and heads ---- */

static size_t bytes_of_unit(const Attention *a) {
    size_t n_keys = round_up(a->max_seqlen, KEYS);
    return 4 * n_keys * a->head_size + TILE_ROWS * (2 * a->head_size + 6 * n_keys);
}

AMX static void attend_to(const Attention *a, int number, char *memory) {
    Unit u = {.query = tokens_at(a, number, a->qkv, 3, 0),
              .key = tokens_at(a, number, a->qkv, 3, 1),
              .value = tokens_at(a, number, a->qkv, 3, 2),
              .output = tokens_at(a, number, a->output, 1, 0)};
    u.softmax = softmax_of(a, u.key.length, first_token(a, number));
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
