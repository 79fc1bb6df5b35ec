/* A token's numbers in 8 bits: low + step * q, with q from 0 to 255 between the least and the
largest of them. */

#ifndef SKBERT_QUANTIZE_H
#define SKBERT_QUANTIZE_H

#include "tiles.h"

#ifdef HAS_BF16_DOT
#define INT8_DOT __attribute__((target("arch=x86-64-v4,avx512vnni")))

typedef struct { /* of a token */
    float low, step;
} Range;

/* Bytes of a token: those behind the last number have no effect, as their weights are zeros. */
INLINE int64_t padded(int64_t n_in) { return round_up((int)n_in, TILE_BYTES); }

INLINE float inverse_of(Range range) { return range.step > 0 ? 1 / range.step : 0; }

/* (numbers - low) / step, rounded. */
INT8_DOT INLINE __m512i round_numbers(__m512 numbers, __m512 low, __m512 inverse) {
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_sub_ps(numbers, low), inverse));
}

/* ---- Of float32 ---- */

/* A token's range; NaN where one of its numbers is none, or infinite. Two halves of it are read
side by side, as a vector waits for the one before. */
INT8_DOT INLINE Range range_of(const float *x, int64_t n_in) {
    int64_t half = (n_in + 2 * LANES - 1) / (2 * LANES) * LANES;
    const float *second = x + n_in - half;
    __m512 least = _mm512_loadu_ps(x), most = least, least2 = least, most2 = least;
    floats zero = {0}, zero2 = {0};
    for (int64_t i = 0; i < half; i += LANES) {
        floats one = *(const floats *)(x + i), other = *(const floats *)(second + i);
        least = _mm512_min_ps(least, (__m512)one), least2 = _mm512_min_ps(least2, (__m512)other);
        most = _mm512_max_ps(most, (__m512)one), most2 = _mm512_max_ps(most2, (__m512)other);
        zero += one * 0, zero2 += other * 0;
    }
    float low = _mm512_reduce_min_ps(_mm512_min_ps(least, least2)) + sum(zero + zero2);
    return (Range){low, (_mm512_reduce_max_ps(_mm512_max_ps(most, most2)) - low) / 255};
}

INT8_DOT INLINE void round_floats(const float *x, int64_t n_in, Range range, uint8_t *to) {
    __m512 low = _mm512_set1_ps(range.low), inverse = _mm512_set1_ps(inverse_of(range));
    for (int64_t i = 0; i < n_in; i += LANES) {
        __m512i rounded = round_numbers(_mm512_loadu_ps(x + i), low, inverse);
        _mm_storeu_si128((void *)(to + i), _mm512_cvtusepi32_epi8(rounded));
    }
    memset(to + n_in, 0, padded(n_in) - n_in);
}

/* ---- Of bfloat16, whose bits are compared as integers ---- */

typedef uint16_t words __attribute__((vector_size(64), aligned(2), may_alias));
typedef uint16_t eight_words __attribute__((vector_size(16), may_alias));

/* 32 numbers from the one at i on; where sixteen are left, the first one instead of the others. */
INLINE words words_at(const uint16_t *x, int64_t i, int64_t n_in) {
    if (n_in - i > LANES) return *(const words *)(x + i);
    words last = (words){0} + x[0];
    memcpy(&last, x + i, 2 * LANES);
    return last;
}

#define BEHIND(step, at) ((step) + (at))

/* The least of 32 integers without signs. */
AVX512 INLINE uint32_t least_of(words x) {
    words upper = __builtin_shufflevector(x, x, ALL(BEHIND, 16), ALL(BEHIND, 16));
    x = (words)_mm512_min_epu16((__m512i)x, (__m512i)upper);
    upper = __builtin_shufflevector(x, x, EIGHT(BEHIND, 8, 0), EIGHT(BEHIND, 8, 0), ALL(BEHIND, 8));
    x = (words)_mm512_min_epu16((__m512i)x, (__m512i)upper);
    eight_words least = __builtin_shufflevector(x, x, EIGHT(BEHIND, 0, 0));
    return ((eight_words)_mm_minpos_epu16((__m128i)least))[0];
}

INLINE float float_of(uint32_t bf16) {
    float x;
    bf16 <<= 16;
    memcpy(&x, &bf16, sizeof x);
    return x;
}

/* The least bits of all numbers. */
AVX512 static uint32_t least_bits(const uint16_t *x, int64_t n_in) {
    __m512i least = (__m512i)((words){0} + x[0]);
    for (int64_t i = 0; i < n_in; i += 2 * LANES)
        least = _mm512_min_epu16(least, (__m512i)words_at(x, i, n_in));
    return least_of((words)least);
}

/* Without signs the bits of negative numbers are larger than those of others, and larger the
further they are from 0; as integers with signs the largest bits are the largest number's, unless
all numbers are negative. */
AVX512 INLINE Range range_of_bf16(const uint16_t *x, int64_t n_in) {
    const uint32_t all = 0xffff, sign = 0x8000, infinite = 0x7f80;
    __m512i most = (__m512i)((words){0} + x[0]), most_signed = most;
    for (int64_t i = 0; i < n_in; i += 2 * LANES) {
        __m512i bits = (__m512i)words_at(x, i, n_in);
        most = _mm512_max_epu16(most, bits), most_signed = _mm512_max_epi16(most_signed, bits);
    }
    const words flipped = (words){0} + (uint16_t)(sign - 1); /* in the opposite order with signs */
    uint32_t low = all - least_of(~(words)most);
    uint32_t high = (sign - 1) ^ least_of((words)most_signed ^ flipped);
    if (low < sign) low = least_bits(x, n_in); /* none is negative */
    if (high >= sign) high = least_bits(x, n_in); /* all are */
    if (low >= sign + infinite || (high < sign && high >= infinite))
        return (Range){__builtin_nanf(""), __builtin_nanf("")};
    return (Range){float_of(low), (float_of(high) - float_of(low)) / 255};
}

/* 32 numbers, each rounded to a word. */
INT8_DOT INLINE words round_words(words x, __m512 low, __m512 inverse) {
    uints first = (uints)x << 16, second = (uints)x & 0xffff0000;
    return (words)((uints)round_numbers((__m512)first, low, inverse) |
                   (uints)round_numbers((__m512)second, low, inverse) << 16);
}

INT8_DOT INLINE void round_bf16(const uint16_t *x, int64_t n_in, Range range, uint8_t *to) {
    __m512 low = _mm512_set1_ps(range.low), inverse = _mm512_set1_ps(inverse_of(range));
    const __m512i in_order = {0, 2, 4, 6, 1, 3, 5, 7}; /* packed are eight of each in turns */
    for (int64_t i = 0; i < n_in; i += TILE_BYTES) {
        int64_t second = i + 2 * LANES < n_in ? i + 2 * LANES : 0;
        words left = round_words(words_at(x, i, n_in), low, inverse);
        words right = round_words(words_at(x, second, n_in), low, inverse);
        __m512i packed = _mm512_packus_epi16((__m512i)left, (__m512i)right);
        _mm512_storeu_si512(to + i, _mm512_permutexvar_epi64(in_order, packed));
    }
}
#endif

#endif
