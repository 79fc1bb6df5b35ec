/* Small products of matrices that lie in a cache, in blocks that lie in the registers. */

#ifndef SKBERT_GEMM_H
#define SKBERT_GEMM_H

#include <string.h>

#include "vectors.h"

#ifdef HAS_BF16_DOT
#include <immintrin.h>
#define AVX512 __attribute__((target("arch=x86-64-v4")))
#define BF16_DOT __attribute__((target("arch=x86-64-v4,avx512bf16")))

typedef struct { /* lines of memory to fetch into the cache */
    const char *first;
    int64_t n, stride;
} Prefetch;
#endif

/* Columns of a factor in panels, of which each begins where the one before ends: as many as four
rows of their sums lie in the registers. */
#define COLUMNS ((LANES == 16 ? 4 : 2) * LANES)

/* Where the panel of a column begins. Of a last one of three vectors two come first. */
INLINE int panel_begin(int n, int column) {
    int begin = column / COLUMNS * COLUMNS;
    return n - begin < COLUMNS && column - begin >= COLUMNS / 2 ? begin + COLUMNS / 2 : begin;
}

/* Columns of the panel that begins here. */
INLINE int panel_width(int n, int begin) {
    return n - begin >= COLUMNS ? COLUMNS : n - begin >= COLUMNS / 2 ? COLUMNS / 2 : LANES;
}

/* Four rows and a few vectors of columns of c (m, n) = a (m, k) b (k, n), or c + a b. */
INLINE void gemm_block(int columns, int k, const float *a, int row_stride, int column_stride,
                       const float *b, int b_stride, float *c, int c_stride, int add) {
    floats total[4][4] = {0};
    for (int row = 0; add && row < 4; row++)
        for (int j = 0; j < columns; j++)
            total[row][j] = *(floats *)(c + row * c_stride + LANES * j);
    for (int i = 0; i < k; i++, a += column_stride, b += b_stride)
        for (int row = 0; row < 4; row++)
            for (int j = 0; j < columns; j++)
                total[row][j] += a[row * row_stride] * *(const floats *)(b + LANES * j);
    for (int row = 0; row < 4; row++)
        for (int j = 0; j < columns; j++)
            *(floats *)(c + row * c_stride + LANES * j) = total[row][j];
}

/* c (m, n) = a (m, k) b (k, n), or c + a b; m is a multiple of 4 and n of LANES; a has any strides.
b_stride 0: b is in panels, each (k, its columns). */
INLINE void gemm(int m, int n, int k, const float *a, int row_stride, int column_stride,
                 const float *b, int b_stride, float *c, int add) {
    for (int j = 0; j < n;) {
        int width = panel_width(n, j), stride = b_stride ? b_stride : width;
        const float *panel = b + (b_stride ? j : (int64_t)j * k);
        for (int i = 0; i < m; i += 4) {
            const float *from = a + (int64_t)i * row_stride;
            float *to = c + (int64_t)i * n + j;
            if (width == 4 * LANES)
                gemm_block(4, k, from, row_stride, column_stride, panel, stride, to, n, add);
            else if (width == 2 * LANES)
                gemm_block(2, k, from, row_stride, column_stride, panel, stride, to, n, add);
            else gemm_block(1, k, from, row_stride, column_stride, panel, stride, to, n, add);
        }
        j += width;
    }
}

#ifdef HAS_BF16_DOT
/* The sum, and a pair of numbers of a times a pair of b for each number of the sum. */
BF16_DOT INLINE floats dot_pairs(floats sum, const uint16_t *pair, const uint16_t *pairs) {
    int32_t both;
    memcpy(&both, pair, sizeof both);
    sum = (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(both),
                                   (__m512bh)_mm512_loadu_si512(pairs));
    STAY(sum);
    return sum;
}

/* Two vectors in bfloat16, one after the other. */
BF16_DOT INLINE __m512i rounded(floats left, floats right) {
    return (__m512i)_mm512_cvtne2ps_pbh((__m512)right, (__m512)left);
}

/* The numbers of both alternating: pairs of a number and the one below. */
BF16_DOT INLINE __m512i alternated(__m512i both) {
    const uints alternate = {0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005,
                             0x160006, 0x170007, 0x180008, 0x190009, 0x1a000a, 0x1b000b,
                             0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f};
    return _mm512_permutexvar_epi16((__m512i)alternate, both);
}

/* Like gemm_block in bfloat16: a is in pairs, of any strides, and b (k / 2, n, 2). */
BF16_DOT INLINE void gemm_block_bf16(int columns, int k, const uint16_t *a, int row_stride,
                                     int pair_stride, const uint16_t *b, int b_stride, float *c,
                                     int c_stride, int add) {
    floats total[4][4] = {0};
    for (int row = 0; add && row < 4; row++)
        for (int j = 0; j < columns; j++)
            total[row][j] = *(floats *)(c + row * c_stride + LANES * j);
    for (int i = 0; i < k; i += 2, a += pair_stride, b += 2 * b_stride)
        for (int row = 0; row < 4; row++)
            for (int j = 0; j < columns; j++)
                total[row][j] = dot_pairs(total[row][j], a + row * row_stride, b + 2 * LANES * j);
    for (int row = 0; row < 4; row++)
        for (int j = 0; j < columns; j++)
            *(floats *)(c + row * c_stride + LANES * j) = total[row][j];
}

/* Like gemm in bfloat16: k is even, and strides of a are from one row, and from one pair, to the
next. */
BF16_DOT INLINE void gemm_bf16(int m, int n, int k, const uint16_t *a, int row_stride,
                               int pair_stride, const uint16_t *b, int b_stride, float *c,
                               int add) {
    for (int j = 0; j < n;) {
        int width = panel_width(n, j), stride = b_stride ? b_stride : width;
        const uint16_t *panel = b + (b_stride ? 2 * j : (int64_t)j * k);
        for (int i = 0; i < m; i += 4) {
            const uint16_t *from = a + (int64_t)i * row_stride;
            float *to = c + (int64_t)i * n + j;
            if (width == 4 * LANES)
                gemm_block_bf16(4, k, from, row_stride, pair_stride, panel, stride, to, n, add);
            else if (width == 2 * LANES)
                gemm_block_bf16(2, k, from, row_stride, pair_stride, panel, stride, to, n, add);
            else gemm_block_bf16(1, k, from, row_stride, pair_stride, panel, stride, to, n, add);
        }
        j += width;
    }
}
#endif

#endif
