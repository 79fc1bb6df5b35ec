/* Linear layers in float32, for inference. Columns of weights stay in the cache nearest to the
processor while all tokens of a chunk are multiplied by them. */

#include <omp.h>
#include <string.h>

#include "vectors.h"

#define BLOCK_ROWS (LANES == 16 ? 12 : 6) /* tokens whose sums fit in the registers */
#define CHUNK_ROWS 512 /* tokens that stay in a cache */

/* GELU (Hendrycks and Gimpel 2016), off by less than float32 is: the normal distribution's CDF is a
polynomial of 1 / (1 + 0.24 |x|) times exp(-x x / 2), fitted to it up to |x| = 6. */
INLINE floats gelu(floats x) {
    floats size = blend(x < 0, -x, x);
    size = blend(size > 20, (floats){0} + 20, size); /* NaN stays NaN */
    floats t = 1 / (1 + 0.24f * size);
    floats y = -0.12397102f * t + 0.54926763f;
    y = y * t - 0.63560434f;
    y = y * t + 0.61464281f;
    y = y * t - 0.14764549f;
    y = y * t + 0.15352803f;
    y = y * t + 0.08978239f;
    floats tail = y * t * exponential(size * size * -0.5f);
    return blend(x < 0, -size * tail, x * (1 - tail));
}

#define EACH_ROW _Pragma("GCC unroll 12") for (int row = 0; row < n_rows; row++)

/* Some tokens times two vectors of columns, whose sums stay in the registers. Those that read a
panel first fetch it, and what is behind it; others find it in the cache. */
INLINE void multiply_rows(const LinearFloat32 *a, int64_t first, int n_rows, int64_t column,
                          int is_first) {
    int64_t n_in = a->weight.n_in, begin = column / PANEL * PANEL * n_in + column % PANEL;
    const float *x = a->x + first * n_in, *panel = (const float *)a->weight.packed + begin;
    float *to = a->output + first * a->weight.n_out + column;
    floats left[BLOCK_ROWS], right[BLOCK_ROWS], bias[2] = {0};
    if (a->weight.columns) memcpy(bias, a->weight.columns + column, sizeof bias);
    EACH_ROW left[row] = bias[0], right[row] = bias[1];
    for (int64_t i = 0; i < n_in; i++, x++, panel += PANEL) {
        if (is_first) fetch_weights(panel);
        floats weight = *(const floats *)panel, next = *(const floats *)(panel + LANES);
        EACH_ROW {
            left[row] += x[row * n_in] * weight;
            right[row] += x[row * n_in] * next;
        }
    }
    if (a->weight.gelu) EACH_ROW left[row] = gelu(left[row]), right[row] = gelu(right[row]);
    EACH_ROW {
        *(floats *)(to + row * a->weight.n_out) = left[row];
        *(floats *)(to + row * a->weight.n_out + LANES) = right[row];
    }
}

#define CASE(n)                                             \
    case n:                                                 \
        multiply_rows(a, first, n, column, first == begin); \
        break;

FOR_EACH_PROCESSOR
static void multiply_panel(const LinearFloat32 *a, int64_t begin, int64_t end, int64_t panel) {
    int64_t n_blocks = (end - begin + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int64_t column = panel; column < panel + PANEL; column += 2 * LANES)
        for (int64_t block = 0; block < n_blocks; block++) {
            int64_t first = begin + block * (end - begin) / n_blocks;
            int64_t last = begin + (block + 1) * (end - begin) / n_blocks;
            switch (last - first) { /* each with its own registers */
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if LANES == 16
                CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
            }
        }
}

int DEFINE(linear_float32)(const LinearFloat32 *a, int n_threads) {
    int64_t n = a->n_tokens, n_chunks = (n + CHUNK_ROWS - 1) / CHUNK_ROWS;
    n_threads = threads_for(n * a->weight.n_in * a->weight.n_out / 4, n_threads);
#pragma omp parallel for collapse(2) schedule(static) num_threads(n_threads)
    for (int64_t chunk = 0; chunk < n_chunks; chunk++)
        for (int64_t column = 0; column < a->weight.n_out; column += PANEL)
            multiply_panel(a, chunk * n / n_chunks, (chunk + 1) * n / n_chunks, column);
    return 0;
}
