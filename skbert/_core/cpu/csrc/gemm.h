/* Small products of matrices that lie in a cache, in blocks that lie in the registers. */

#ifndef SKBERT_GEMM_H
#define SKBERT_GEMM_H

#include <string.h>

#include "vectors.h"

#ifdef HAS_BF16_DOT
#include <immintrin.h>
#define BF16_DOT __attribute__((target("arch=x86-64-v4,avx512bf16")))
#endif

/* Four rows and a few vectors of columns of c (m, n) = a (m, k) b (k, n). */
INLINE void gemm_block(int columns, int k, const float *a, int row_stride, int column_stride,
                       const float *b, int n, float *c) {
    floats total[4][4] = {0};
    for (int i = 0; i < k; i++, a += column_stride, b += n)
        for (int row = 0; row < 4; row++)
            for (int j = 0; j < columns; j++)
                total[row][j] += a[row * row_stride] * *(const floats *)(b + LANES * j);
    for (int row = 0; row < 4; row++)
        for (int j = 0; j < columns; j++) *(floats *)(c + row * n + LANES * j) = total[row][j];
}

/* c (m, n) = a (m, k) b (k, n); m is a multiple of 4 and n of 16; a has any strides. */
INLINE void gemm(int m, int n, int k, const float *a, int row_stride, int column_stride,
                 const float *b, float *c) {
    for (int j = 0; j < n;) {
        int columns = n - j >= 4 * LANES ? 4 : n - j >= 2 * LANES ? 2 : 1;
        for (int i = 0; i < m; i += 4) {
            const float *from = a + (int64_t)i * row_stride;
            float *to = c + (int64_t)i * n + j;
            if (columns == 4) gemm_block(4, k, from, row_stride, column_stride, b + j, n, to);
            else if (columns == 2) gemm_block(2, k, from, row_stride, column_stride, b + j, n, to);
            else gemm_block(1, k, from, row_stride, column_stride, b + j, n, to);
        }
        j += columns * LANES;
    }
}

#ifdef HAS_BF16_DOT
/* The sum, and a pair of numbers of a times a pair of b for each number of the sum. */
BF16_DOT INLINE floats dot_pairs(floats sum, const uint16_t *pair, const uint16_t *pairs) {
    int32_t both;
    memcpy(&both, pair, sizeof both);
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(both),
                                    (__m512bh)_mm512_loadu_si512(pairs));
}

/* Like gemm_block in bfloat16: a is (m, k), b (k / 2, n, 2). */
BF16_DOT INLINE void gemm_block_bf16(int columns, int k, const uint16_t *a, const uint16_t *b,
                                     int n, float *c) {
    floats total[4][4] = {0};
    for (int i = 0; i < k; i += 2, b += 2 * n)
        for (int row = 0; row < 4; row++)
            for (int j = 0; j < columns; j++)
                total[row][j] = dot_pairs(total[row][j], a + row * k + i, b + 2 * LANES * j);
    for (int row = 0; row < 4; row++)
        for (int j = 0; j < columns; j++) *(floats *)(c + row * n + LANES * j) = total[row][j];
}

BF16_DOT INLINE void gemm_bf16(int m, int n, int k, const uint16_t *a, const uint16_t *b,
                               float *c) {
    for (int j = 0; j < n;) {
        int columns = n - j >= 4 * LANES ? 4 : n - j >= 2 * LANES ? 2 : 1;
        for (int i = 0; i < m; i += 4) {
            const uint16_t *from = a + (int64_t)i * k;
            float *to = c + (int64_t)i * n + j;
            if (columns == 4) gemm_block_bf16(4, k, from, b + 2 * j, n, to);
            else if (columns == 2) gemm_block_bf16(2, k, from, b + 2 * j, n, to);
            else gemm_block_bf16(1, k, from, b + 2 * j, n, to);
        }
        j += columns * LANES;
    }
}
#endif

#endif
