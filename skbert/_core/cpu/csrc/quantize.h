/* A token's numbers in 8 bits: low + step * q, with q from 0 to 255 between the least and the
largest of them. A few that are much larger than the others would make the steps wide for all: what
8 bits do not hold of such outliers is written down beside the token, in pieces of up to 255, so
that sums with them are of whole numbers, too (Dettmers et al. 2022, "LLM.int8(): 8-bit matrix
multiplication for transformers at scale", multiply outliers in a higher precision). */

#ifndef SKBERT_QUANTIZE_H
#define SKBERT_QUANTIZE_H

#include <math.h>

#include "tiles.h"

#ifdef HAS_BF16_DOT
#define INT8_DOT __attribute__((target("arch=x86-64-v4,avx512vnni")))
#define OUTLIER 6      /* times the root of the mean square of a token's numbers */
#define WIDER 1.5f     /* the next limit, where outliers need too many pieces */
#define MOST_PIECES 16 /* of a token */

typedef struct {
    float low, step;
} Range;

typedef struct { /* what is added to q of an input, or taken away from it */
    int32_t four; /* as the byte of this input among four */
    uint16_t fours, is_negative;
} Piece;

typedef struct {
    Range range;
    float limit; /* beyond which numbers are outliers */
    int32_t n_pieces; /* which lie elsewhere, as most tokens have few */
} Token;

/* Bytes of a token: those behind the last number have no effect, as their weights are zeros. */
INLINE int64_t padded(int64_t n_in) { return round_up((int)n_in, TILE_BYTES); }

INLINE float inverse_of(Range range) { return range.step > 0 ? 1 / range.step : 0; }

INLINE float high_of(Range range) { return range.low + 255 * range.step; }

/* (numbers - low) / step, rounded. */
INT8_DOT INLINE __m512i round_numbers(__m512 numbers, __m512 low, __m512 inverse) {
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_sub_ps(numbers, low), inverse));
}

/* Whether the pieces of an input fit in; its q is below 0 or above 255. */
INLINE int add_pieces(Token *token, Piece *pieces, int64_t input, int q) {
    for (int left = q < 0 ? -q : q - 255; left > 0; left -= 255) {
        if (token->n_pieces == MOST_PIECES) return 0;
        uint32_t piece = left < 255 ? left : 255;
        pieces[token->n_pieces++] =
            (Piece){(int32_t)(piece << input % 4 * 8), (uint16_t)(input / 4), q < 0};
    }
    return 1;
}

/* The same for those of sixteen inputs or more that a mask says. */
INLINE int add_outliers(Token *token, Piece *pieces, int64_t first, uint32_t mask,
                        const int16_t *q) {
    for (; mask; mask &= mask - 1) {
        int lane = __builtin_ctz(mask);
        if (!add_pieces(token, pieces, first + lane, q[lane])) return 0;
    }
    return 1;
}

/* ---- Of float32 ---- */

AVX512 INLINE floats within(floats x, float limit) {
    return zero_unless((x <= limit) & (x >= -limit), x);
}

/* The range of a token's numbers up to a limit, with zeros instead of the others; NaN where one of
its numbers is none, or infinite. Two halves of it are read side by side, as a vector waits for the
one before. */
INT8_DOT INLINE Range range_of(const float *x, int64_t n_in, float limit) {
    int64_t half = (n_in + 2 * LANES - 1) / (2 * LANES) * LANES;
    const float *second = x + n_in - half;
    __m512 least = (__m512)within(*(const floats *)x, limit), most = least;
    __m512 least2 = least, most2 = least;
    floats zero = {0}, zero2 = {0};
    for (int64_t i = 0; i < half; i += LANES) {
        floats one = *(const floats *)(x + i), other = *(const floats *)(second + i);
        zero += one * 0, zero2 += other * 0;
        one = within(one, limit), other = within(other, limit);
        least = _mm512_min_ps(least, (__m512)one), least2 = _mm512_min_ps(least2, (__m512)other);
        most = _mm512_max_ps(most, (__m512)one), most2 = _mm512_max_ps(most2, (__m512)other);
    }
    float low = _mm512_reduce_min_ps(_mm512_min_ps(least, least2)) + sum(zero + zero2);
    return (Range){low, (_mm512_reduce_max_ps(_mm512_max_ps(most, most2)) - low) / 255};
}

/* Whether there was room for the pieces of all outliers. */
INT8_DOT INLINE int round_floats(const float *x, int64_t n_in, Token *token, Piece *pieces,
                                 uint8_t *to) {
    __m512 low = _mm512_set1_ps(token->range.low);
    __m512 inverse = _mm512_set1_ps(inverse_of(token->range));
    const __m512i zero = _mm512_setzero_si512(), more = _mm512_set1_epi32(~255);
    for (int64_t i = 0; i < n_in; i += LANES) {
        __m512i q = round_numbers(_mm512_loadu_ps(x + i), low, inverse);
        _mm_storeu_si128((void *)(to + i), _mm512_cvtusepi32_epi8(_mm512_max_epi32(q, zero)));
        uint32_t outliers = _mm512_test_epi32_mask(q, more);
        if (!outliers || token->limit == INFINITY) continue;
        int16_t wholes[LANES];
        _mm256_storeu_si256((void *)wholes, _mm512_cvtepi32_epi16(q));
        if (!add_outliers(token, pieces, i, outliers, wholes)) return 0;
    }
    memset(to + n_in, 0, padded(n_in) - n_in);
    return 1;
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

/* Those up to a limit, in bits, and zeros instead of the others. */
AVX512 INLINE words words_within(words x, uint16_t limit) {
    return x & (words)((x & 0x7fff) <= limit);
}

/* The least bits of all numbers. */
AVX512 static uint32_t least_bits(const uint16_t *x, int64_t n_in, uint16_t limit) {
    __m512i least = (__m512i)words_within((words){0} + x[0], limit);
    for (int64_t i = 0; i < n_in; i += 2 * LANES)
        least = _mm512_min_epu16(least, (__m512i)words_within(words_at(x, i, n_in), limit));
    return least_of((words)least);
}

/* Without signs the bits of negative numbers are larger than those of others, and larger the
further they are from 0; as integers with signs the largest bits are the largest number's, unless
all numbers are negative. */
AVX512 INLINE Range range_of_bf16(const uint16_t *x, int64_t n_in, uint16_t limit) {
    const uint32_t all = 0xffff, sign = 0x8000, infinite = 0x7f80;
    __m512i most = (__m512i)words_within((words){0} + x[0], limit), most_signed = most;
    for (int64_t i = 0; i < n_in; i += 2 * LANES) {
        __m512i bits = (__m512i)words_within(words_at(x, i, n_in), limit);
        most = _mm512_max_epu16(most, bits), most_signed = _mm512_max_epi16(most_signed, bits);
    }
    const words flipped = (words){0} + (uint16_t)(sign - 1); /* in the opposite order with signs */
    uint32_t low = all - least_of(~(words)most);
    uint32_t high = (sign - 1) ^ least_of((words)most_signed ^ flipped);
    if (low < sign) low = least_bits(x, n_in, limit); /* none is negative */
    if (high >= sign) high = least_bits(x, n_in, limit); /* all are */
    if (low >= sign + infinite || (high < sign && high >= infinite))
        return (Range){__builtin_nanf(""), __builtin_nanf("")};
    return (Range){float_of(low), (float_of(high) - float_of(low)) / 255};
}

/* 32 numbers, each rounded to a word. */
INT8_DOT INLINE words round_words(words x, __m512 low, __m512 inverse) {
    uints first = (uints)x << 16, second = (uints)x & 0xffff0000;
    return (words)(((uints)round_numbers((__m512)first, low, inverse) & 0xffff) |
                   (uints)round_numbers((__m512)second, low, inverse) << 16);
}

/* Whether there was room for the pieces of outliers among 32 numbers from the one at i on. */
INT8_DOT INLINE int add_outliers_bf16(Token *token, Piece *pieces, int64_t i, int64_t n_in,
                                      words q) {
    const words more = (words){0} + 0xff00;
    uint32_t outliers = _mm512_test_epi16_mask((__m512i)q, (__m512i)more);
    if (n_in - i < 2 * LANES) outliers &= n_in > i ? 0xffff : 0;
    return !outliers || token->limit == INFINITY ||
           add_outliers(token, pieces, i, outliers, (const int16_t *)&q);
}

INT8_DOT INLINE int round_bf16(const uint16_t *x, int64_t n_in, Token *token, Piece *pieces,
                               uint8_t *to) {
    __m512 low = _mm512_set1_ps(token->range.low);
    __m512 inverse = _mm512_set1_ps(inverse_of(token->range));
    const __m512i in_order = {0, 2, 4, 6, 1, 3, 5, 7}; /* packed are eight of each in turns */
    for (int64_t i = 0; i < n_in; i += TILE_BYTES) {
        int64_t second = i + 2 * LANES;
        words left = round_words(words_at(x, i, n_in), low, inverse);
        words right = round_words(words_at(x, second < n_in ? second : 0, n_in), low, inverse);
        __m512i packed = _mm512_packus_epi16((__m512i)left, (__m512i)right);
        _mm512_storeu_si512(to + i, _mm512_permutexvar_epi64(in_order, packed));
        if (!add_outliers_bf16(token, pieces, i, n_in, left)) return 0;
        if (!add_outliers_bf16(token, pieces, second, n_in, right)) return 0;
    }
    return 1;
}

/* ---- Of either ---- */

typedef struct { /* what a token's numbers are in */
    const char *x;
    int64_t n_in;
    int is_bf16;
} Numbers;

INT8_DOT INLINE Range range_within(const Numbers *a, float limit) {
    if (!a->is_bf16) return range_of((const float *)a->x, a->n_in, limit);
    uint32_t bits;
    memcpy(&bits, &limit, sizeof bits);
    if (limit == INFINITY) bits = INT32_MAX; /* and what is no number */
    return range_of_bf16((const uint16_t *)a->x, a->n_in, bits >> 16);
}

INT8_DOT INLINE float mean_square(const Numbers *a) {
    floats squares = {0}, squares2 = {0}; /* side by side */
    int64_t i = 0;
    for (; i + LANES < a->n_in; i += 2 * LANES) {
        floats x = load(a->x, i, a->is_bf16), y = load(a->x, i + LANES, a->is_bf16);
        squares += x * x, squares2 += y * y;
    }
    if (i < a->n_in) squares += load(a->x, i, a->is_bf16) * load(a->x, i, a->is_bf16);
    return sum(squares + squares2) / a->n_in;
}

/* Takes the range of numbers up to a limit, or a higher one, so that outliers are not too far from
it. There are none where the limit is above all numbers, or squares are zeros, or infinite. */
INT8_DOT INLINE void set_range(const Numbers *a, float limit, Token *token) {
    Range all = range_within(a, INFINITY);
    float high = high_of(all), most = high > -all.low ? high : -all.low;
    for (; limit > 0 && limit < most; limit *= WIDER) {
        Range range = range_within(a, limit);
        float reach = 255 * MOST_PIECES * range.step;
        if (reach > 0 && range.low - all.low < reach && high - high_of(range) < reach) {
            token->range = range, token->limit = limit;
            return;
        }
    }
    token->range = all, token->limit = INFINITY;
}

INT8_DOT INLINE void find_range(const Numbers *a, int64_t outliers, Token *token) {
    float limit = outliers ? OUTLIER * sqrtf(mean_square(a)) : INFINITY;
    set_range(a, limit, token);
}

INT8_DOT INLINE int try_to_round(const Numbers *a, Token *token, Piece *pieces, uint8_t *to) {
    token->n_pieces = 0;
    if (a->is_bf16) return round_bf16((const uint16_t *)a->x, a->n_in, token, pieces, to);
    return round_floats((const float *)a->x, a->n_in, token, pieces, to);
}

/* A token whose range was found; it gets a wider one if there are too many pieces. */
INT8_DOT INLINE void round_token(const Numbers *a, Token *token, Piece *pieces, uint8_t *to) {
    while (!try_to_round(a, token, pieces, to))
        set_range(a, token->limit * WIDER, token);
}
#endif

#endif
