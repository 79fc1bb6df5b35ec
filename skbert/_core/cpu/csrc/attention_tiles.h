/* What attention in tiles and its gradient share: rows and heads, and tokens in pairs. */

#ifndef SKBERT_ATTENTION_TILES_H
#define SKBERT_ATTENTION_TILES_H

#include <omp.h>

#include "scratch.h"
#include "softmax.h"
#include "tiles.h"

#ifdef HAS_BF16_DOT
/* ---- One row and head ---- */

/* Query, key, value, output or a gradient of one row and head. */
typedef struct {
    uint16_t *first;
    int64_t stride; /* from one token to the next */
    int length, size;
} Tokens;

/* The part of (n_tokens, n_parts, n_heads, head_size) that belongs to a row and head. */
INLINE Tokens tokens_at(const Attention *a, int number, const void *all, int n_parts, int part) {
    int row = number / a->n_heads, head = number % a->n_heads, begin = a->cu_seqlens[row];
    int64_t width = (int64_t)a->n_heads * a->head_size;
    int64_t first = ((int64_t)n_parts * begin + part) * width + head * a->head_size;
    return (Tokens){(uint16_t *)all + first, n_parts * width, a->cu_seqlens[row + 1] - begin,
                    a->head_size};
}

/* 32 numbers of a token, or zeros where there is none; those of the next head, whose turn is next,
are fetched into the cache. */
AVX512 INLINE __m512i token_at(const Tokens *x, int token, int i) {
    if (token >= x->length) return _mm512_setzero_si512();
    const uint16_t *from = x->first + token * x->stride + i;
    __builtin_prefetch(from + x->size, 0, 2);
    return _mm512_loadu_si512(from);
}

/* Where the logsumexp of a row's first token and a head lies, and the number of its weights. */
INLINE int64_t first_token(const Attention *a, int number) {
    return (int64_t)a->cu_seqlens[number / a->n_heads] * a->n_heads + number % a->n_heads;
}

/* ---- Pairs: the second factor of a product, in panels of 32 columns ---- */

/* The numbers of two rows side by side. Of each eight the first four go to the left vector and the
others to the right one, as the processor does it within a part of each. */
AVX512 INLINE void interleave(__m512i upper, __m512i lower, void *left, void *right) {
    _mm512_storeu_si512(left, _mm512_unpacklo_epi16(upper, lower));
    _mm512_storeu_si512(right, _mm512_unpackhi_epi16(upper, lower));
}

/* Where a number of the left vector (half 0) or the right one was. */
INLINE int place_before(int half, int number) { return number / 4 * 8 + half * 4 + number % 4; }

/* Stores sums of such vectors as 32 numbers of a token, each where it was before. */
BF16_DOT INLINE void store_token(const Tokens *x, int token, int i, floats left, floats right) {
    uint16_t *to = x->first + token * x->stride + i;
    __builtin_prefetch(to + x->size, 1, 2);
    __m512i both = rounded(left, right);
    _mm512_storeu_si512(to, __builtin_shufflevector(both, both, 0, 4, 1, 5, 2, 6, 3, 7));
}

/* The numbers of two tokens side by side: panels (size / 32) (n / 2, 32, 2), interleaved. */
AVX512 INLINE void pair_tokens(const Tokens *x, int n, uint16_t *to) {
    for (int i = 0; i < x->size; i += PANEL)
        for (int token = 0; token < n; token += 2, to += 2 * PANEL)
            interleave(token_at(x, token, i), token_at(x, token + 1, i), to, to + PANEL);
}

/* Two numbers of a token side by side: panels (n / 32) (size / 2, 32, 2), with tokens in order. */
AVX512 INLINE void pair_numbers(const Tokens *x, int n, uint16_t *to) {
    for (int first = 0; first < n; first += PANEL, to += PANEL * x->size)
        for (int i = 0; i < x->size; i += PANEL)
            for (int half = 0; half < PANEL; half += LANES) {
                floats pairs[LANES];
                for (int row = 0; row < LANES; row++)
                    pairs[row] = (floats)token_at(x, first + half + row, i);
                transpose(pairs);
                for (int row = 0; row < LANES; row++)
                    *(floats *)(to + (i + 2 * row) * PANEL + 2 * half) = pairs[row];
            }
}

/* ---- All rows and heads ---- */

typedef void ComputeUnit(const Attention *a, int number, char *memory);

/* Rows and heads that fall to a thread without memory are left out, which is an error. */
AMX static void compute_together(const Attention *a, ComputeUnit *compute, char *memory) {
    TileConfig before = configure_tiles(&OWN_TILES);
    int n_units = a->n_rows * a->n_heads;
#pragma omp for schedule(dynamic, 4)
    for (int number = 0; number < n_units; number++)
        if (memory) compute(a, number, memory);
    configure_tiles(&before);
}

/* Each thread takes a row and head at a time, in so many bytes of memory. */
static int for_all_units(const Attention *a, size_t n_bytes, ComputeUnit *compute, int n_threads) {
    int64_t n_scores = (int64_t)a->n_rows * a->n_heads * a->max_seqlen * (a->max_seqlen + LANES);
    int failed = 0;
    n_threads = threads_for(n_scores, n_threads);
#pragma omp parallel num_threads(n_threads) reduction(| : failed)
    {
        char *memory = scratch(n_bytes);
        compute_together(a, compute, memory);
        failed = !memory;
    }
    return -failed;
}
#endif

#endif
