/* Attention within rows in the tiles of AMX, in bfloat16, without a gradient, dropout or a window.

A thread takes one row and head at a time: keys and values are packed once, then sixteen queries
after another get their scores, weights and output. */

#include <omp.h>
#include <stddef.h>

#include "gelu.h"
#include "scratch.h"
#include "tiles.h"

#ifdef HAS_BF16_DOT
#define KEYS (2 * TILE_ROWS) /* of which the number is a multiple */

/* One row and head. */
typedef struct {
    const uint16_t *query, *key, *value; /* its first token's */
    uint16_t *output;
    int64_t stride, output_stride; /* from one token to the next */
    int length, n_keys, size;
    float scaling;
    uint16_t *keys, *values; /* packed: (n_keys / 16, size / 32), (n_keys / 32, size / 16) tiles */
    uint16_t *queries, *weights; /* (16, size), (16, n_keys) */
    float *scores;               /* (16, n_keys), later the output */
} Unit;

AVX512 static void pack_keys(const Unit *u) {
    for (int first = 0; first < u->n_keys; first += TILE_ROWS)
        for (int i = 0; i < u->size; i += 2 * LANES) {
            floats pairs[LANES] = {0};
            for (int row = 0; row < TILE_ROWS && first + row < u->length; row++)
                pairs[row] = *(const floats *)(u->key + (first + row) * u->stride + i);
            transpose(pairs);
            memcpy(u->keys + first * u->size + i * TILE_ROWS, pairs, sizeof pairs);
        }
}

/* Numbers of a token and of the next one side by side; zeros behind the last. */
AVX512 static void pack_values(const Unit *u) {
    for (int first = 0; first < u->n_keys; first += KEYS)
        for (int i = 0; i < u->size; i += LANES)
            for (int row = 0; row < KEYS; row += 2) {
                const uint16_t *from = u->value + (first + row) * u->stride + i;
                uints pairs = {0};
                if (first + row < u->length)
                    pairs = __builtin_convertvector(*(const ushorts *)from, uints);
                if (first + row + 1 < u->length)
                    pairs |= __builtin_convertvector(*(const ushorts *)(from + u->stride), uints)
                             << 16;
                uint16_t *tile = u->values + first * u->size + i * KEYS;
                *(uints *)(tile + row * LANES) = pairs;
            }
}

/* Rows of 32 numbers of a product (16, 32 * n) b, of which each `step` tiles of b are a row. */
AMX INLINE void multiply(const uint16_t *a, int64_t stride, int n, const uint16_t *left,
                         const uint16_t *right, int64_t step, float *to, int64_t width) {
    _tile_zero(0);
    _tile_zero(1);
    for (int i = 0; i < n; i++) {
        _tile_loadd(2, a + 2 * LANES * i, 2 * stride);
        _tile_loadd(3, left + step * TILE * i, TILE_BYTES);
        _tile_dpbf16ps(0, 2, 3);
        _tile_loadd(4, right + step * TILE * i, TILE_BYTES);
        _tile_dpbf16ps(1, 2, 4);
    }
    _tile_stored(0, to, 4 * width);
    _tile_stored(1, to + LANES, 4 * width);
}

/* Replaces scores by weights in bfloat16 that are not divided by their sum, which is returned. */
AMX INLINE float softmax(const Unit *u, const float *scores, uint16_t *weights) {
    floats most = {0}, total = {0};
    most -= __builtin_inff();
    for (int j = 0; j < u->n_keys; j += LANES) {
        floats x = blend(mask_before(u->length, j), *(const floats *)(scores + j), most);
        most = (floats)_mm512_max_ps((__m512)most, (__m512)x);
    }
    float factor = u->scaling * 1.44269504f, highest = maximum(most) * factor;
    for (int j = 0; j < u->n_keys; j += KEYS) {
        floats x[2];
        for (int half = 0; half < 2; half++) {
            ints mask = mask_before(u->length, j + half * LANES);
            floats score = *(const floats *)(scores + j + half * LANES);
            x[half] = zero_unless(mask, power_of_2(score * factor - highest));
            total += x[half];
        }
        store_bf16(weights + j, x[0], x[1]);
    }
    return sum(total);
}

/* The output of up to sixteen queries. */
AMX static void attend(const Unit *u, int first) {
    int n_rows = u->length - first < TILE_ROWS ? u->length - first : TILE_ROWS;
    const uint16_t *queries = u->query + first * u->stride;
    int64_t stride = u->stride, n_parts = u->size / (2 * LANES);
    float sums[TILE_ROWS];
    if (n_rows < TILE_ROWS) { /* what lies behind the row may not be read */
        for (int row = 0; row < n_rows; row++)
            memcpy(u->queries + row * u->size, queries + row * stride, 2 * u->size);
        queries = u->queries, stride = u->size;
    }
    for (int j = 0; j < u->n_keys; j += KEYS) {
        const uint16_t *keys = u->keys + j * u->size;
        multiply(queries, stride, n_parts, keys, keys + TILE_ROWS * u->size, 1, u->scores + j,
                 u->n_keys);
    }
    for (int row = 0; row < n_rows; row++)
        sums[row] = softmax(u, u->scores + row * u->n_keys, u->weights + row * u->n_keys);
    for (int i = 0; i < u->size; i += 2 * LANES) {
        const uint16_t *values = u->values + i * KEYS;
        multiply(u->weights, u->n_keys, u->n_keys / KEYS, values, values + TILE, u->size / LANES,
                 u->scores, 2 * LANES);
        for (int row = 0; row < n_rows; row++) {
            const floats *from = (const floats *)(u->scores + row * 2 * LANES);
            store_bf16(u->output + (first + row) * u->output_stride + i, from[0] / sums[row],
                       from[1] / sums[row]);
        }
    }
}

/* ---- All rows and heads ---- */

static size_t bytes_of_unit(const Attention *a) {
    size_t n_keys = round_up(a->max_seqlen, KEYS);
    return 4 * n_keys * a->head_size + TILE_ROWS * (2 * a->head_size + 6 * n_keys);
}

AMX static void attend_to(const Attention *a, int number, char *memory) {
    int row = number / a->n_heads, head = number % a->n_heads, begin = a->cu_seqlens[row];
    int64_t width = (int64_t)a->n_heads * a->head_size;
    const uint16_t *qkv = (const uint16_t *)a->qkv + 3 * begin * width + head * a->head_size;
    Unit u = {.query = qkv, .key = qkv + width, .value = qkv + 2 * width, .stride = 3 * width,
              .output = (uint16_t *)a->output + begin * width + head * a->head_size,
              .output_stride = width, .length = a->cu_seqlens[row + 1] - begin,
              .size = a->head_size, .scaling = a->scaling};
    u.n_keys = round_up(u.length, KEYS);
    u.scores = (float *)memory;
    u.keys = (uint16_t *)(u.scores + TILE_ROWS * u.n_keys);
    u.values = u.keys + u.n_keys * u.size;
    u.weights = u.values + u.n_keys * u.size;
    u.queries = u.weights + TILE_ROWS * u.n_keys;
    pack_keys(&u);
    pack_values(&u);
    __asm__ volatile("" ::: "memory");
    for (int first = 0; first < u.length; first += TILE_ROWS) attend(&u, first);
}

AMX static void attend_together(const Attention *a, char *memory) {
    TileConfig before = configure_tiles(&OWN_TILES);
    int n_units = a->n_rows * a->n_heads;
#pragma omp for schedule(dynamic, 4)
    for (int number = 0; number < n_units; number++) attend_to(a, number, memory);
    configure_tiles(&before);
}

int attention_tiles(const Attention *a, int n_threads) {
    int64_t n_scores = (int64_t)a->n_rows * a->n_heads * a->max_seqlen * (a->max_seqlen + LANES);
    size_t n_bytes = bytes_of_unit(a);
    int failed = 0;
    n_threads = threads_for(n_scores, n_threads);
#pragma omp parallel num_threads(n_threads) reduction(| : failed)
    failed = !scratch(n_bytes); /* which stays until the next */
    if (failed) return -1;
#pragma omp parallel num_threads(n_threads)
    attend_together(a, scratch(n_bytes));
    return 0;
}
#endif
