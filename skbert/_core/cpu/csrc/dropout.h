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

#define POSITION_STEP 0x9e3779b9u /* from the bits of a number of a row to the next one's */

typedef struct {
    uint32_t limit; /* numbers are dropped whose bits are below this; */
    float factor;   /* what others are multiplied by */
} Dropout;

INLINE Dropout dropout_of(float rate) {
    float share = rate * 0x1p24f;
    uint32_t limit = (uint32_t)share;
    if ((float)limit < share) limit++;
    return (Dropout){limit << 8, rate < 1 ? 1 / (1 - rate) : 0}; /* which is 0 at a rate of 1 */
}

/* What the bits of the numbers of a row from `first` on start from, but for the row's key. */
INLINE uints positions(int first) {
    uints x = NUMBERS;
    return (x + (uint32_t)first) * POSITION_STEP;
}

/* 0, or the factor, of numbers that start from these. */
INLINE floats dropout_factors(Dropout dropout, uints x) {
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    x ^= x >> 16;
    return zero_unless((ints)(x >= dropout.limit), (floats){0} + dropout.factor);
}

/* Factors of the numbers of a row from `first` on: 0, or 1 / (1 - rate). */
INLINE floats dropout_mask(uint32_t mask_key, int first, float rate) {
    return dropout_factors(dropout_of(rate), positions(first) + mask_key);
}

#endif
