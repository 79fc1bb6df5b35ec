/* Dropout: whether a number is dropped follows from a seed and its position; no mask is stored. */

#ifndef SKBERT_DROPOUT_H
#define SKBERT_DROPOUT_H

#include "vectors.h"

INLINE uint32_t mix_bits(uint32_t x) { /* the last steps of MurmurHash3 */
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

INLINE uint32_t dropout_key(uint64_t seed, uint64_t row) {
    return mix_bits((uint32_t)seed + mix_bits((uint32_t)(seed >> 32) + mix_bits((uint32_t)row)));
}

/* Factors of the numbers of a row from `first` on: 0, or 1 / (1 - rate). */
INLINE floats dropout_mask(uint32_t mask_key, int first, float rate) {
    uints x = NUMBERS;
    x = (x + (uint32_t)first) * 0x9e3779b9u + mask_key;
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    x ^= x >> 16;
    floats uniform = __builtin_convertvector((ints)(x >> 8), floats) * 0x1p-24f; /* [0, 1) */
    floats factor = (floats){0} + 1 / (1 - rate);
    return zero_unless(uniform >= rate, factor);
}

#endif
