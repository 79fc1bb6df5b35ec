/* Stands before the compiler's header of this name, so that the kernels run on a processor without
their instructions: each is computed number by number, as Intel's manual describes it. What they
read and write is memory that sanitizers watch, which they cannot do for tiles. */

#ifndef EMULATED_IMMINTRIN_H
#define EMULATED_IMMINTRIN_H

#include_next <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EMULATED static __attribute__((noinline, unused)) /* inlined they take long to compile */
#define EACH for (int i = 0; i < 16; i++)
#define STAY(sum) /* in no register */

typedef float e_numbers __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t e_wholes __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t e_bits __attribute__((vector_size(64), aligned(4), may_alias));

/* ---- Numbers ---- */

EMULATED e_numbers e_each_min(e_numbers x, e_numbers y) {
    EACH y[i] = x[i] < y[i] ? x[i] : y[i];
    return y;
}

EMULATED e_numbers e_each_max(e_numbers x, e_numbers y) {
    EACH y[i] = x[i] > y[i] ? x[i] : y[i];
    return y;
}

EMULATED float e_least(e_numbers x) {
    EACH x[0] = x[i] < x[0] ? x[i] : x[0];
    return x[0];
}

EMULATED float e_most(e_numbers x) {
    EACH x[0] = x[i] > x[0] ? x[i] : x[0];
    return x[0];
}

EMULATED e_numbers e_multiply_add(e_numbers x, e_numbers y, e_numbers sum) {
    EACH sum[i] = fmaf(x[i], y[i], sum[i]);
    return sum;
}

EMULATED e_numbers e_rounded(e_numbers x) {
    EACH x[i] = rintf(x[i]);
    return x;
}

/* Those up to 1, and -1 and 1 instead of the others. */
EMULATED e_numbers e_within_1(e_numbers x) {
    EACH if (!(fabsf(x[i]) <= 1)) x[i] = copysignf(1, x[i]);
    return x;
}

EMULATED e_numbers e_scaled(e_numbers x, e_numbers power) {
    EACH if (power[i] == power[i]) x[i] = ldexpf(x[i], (int)fmaxf(fminf(power[i], 300), -300));
    return x;
}

EMULATED e_wholes e_to_wholes(e_numbers x) {
    e_wholes found;
    EACH found[i] = fabsf(x[i]) < 0x1p31f ? (int32_t)rintf(x[i]) : INT32_MIN;
    return found;
}

EMULATED __m256i e_to_words(e_bits x) {
    uint16_t found[16];
    EACH found[i] = x[i];
    return *(__m256i_u *)found;
}

EMULATED e_wholes e_larger(e_wholes x, e_wholes y) {
    EACH y[i] = x[i] > y[i] ? x[i] : y[i];
    return y;
}

EMULATED uint32_t e_common_bits(__m512i x, __m512i y, int size) { /* of numbers of so many bytes */
    uint8_t left[64], right[64];
    uint32_t found = 0;
    memcpy(left, &x, sizeof left);
    memcpy(right, &y, sizeof right);
    for (int i = 0; i < 64; i++)
        if (left[i] & right[i]) found |= 1u << i / size;
    return found;
}

EMULATED __m512i e_less_bytes(__m512i x, __m512i y) {
    uint8_t left[64], right[64];
    memcpy(left, &x, sizeof left);
    memcpy(right, &y, sizeof right);
    for (int i = 0; i < 64; i++) left[i] -= right[i];
    return *(__m512i_u *)left;
}

EMULATED __m128i e_to_bytes(e_bits x) {
    uint8_t found[16];
    EACH found[i] = x[i] > 255 ? 255 : x[i];
    return *(__m128i_u *)found;
}

/* ---- Pairs of bfloat16, and four bytes ---- */

EMULATED e_bits e_to_bf16(e_numbers x) { /* in the lower half of each number */
    e_bits before = (e_bits)x, nan = (e_bits)(x != x);
    e_bits after = (before + 0x7fff + (before >> 16 & 1)) >> 16;
    return (after & ~nan) | ((before >> 16 | 0x40) & nan);
}

EMULATED __m512i e_both_to_bf16(e_numbers high, e_numbers low) {
    uint16_t found[32];
    e_bits first = e_to_bf16(low), second = e_to_bf16(high);
    EACH found[i] = first[i], found[16 + i] = second[i];
    return *(__m512i_u *)found;
}

EMULATED e_numbers e_lower(e_bits pairs) { return (e_numbers)(pairs << 16); }

EMULATED e_numbers e_upper(e_bits pairs) { return (e_numbers)(pairs & 0xffff0000); }

EMULATED e_numbers e_dot_bf16(e_numbers sum, e_bits x, e_bits y) {
    return e_multiply_add(e_lower(x), e_lower(y), e_multiply_add(e_upper(x), e_upper(y), sum));
}

EMULATED e_wholes e_dot_bytes(e_wholes sum, e_bits x, e_wholes y) { /* those of y have signs */
    for (int shift = 0; shift < 32; shift += 8)
        sum += (e_wholes)(x >> shift & 255) * (y << (24 - shift) >> 24);
    return sum;
}

EMULATED __m512i e_permuted(__m512i places, __m512i x, int size) { /* numbers of so many bytes */
    char at[64], from[64], to[64];
    memcpy(at, &places, sizeof at);
    memcpy(from, &x, sizeof from);
    for (int i = 0; i < 64; i += size) {
        uint64_t place = 0;
        memcpy(&place, at + i, size);
        memcpy(to + i, from + place * size % 64, size);
    }
    return *(__m512i_u *)to;
}

EMULATED __m512i e_packed(__m512i x, __m512i y) {
    int16_t from[2][4][8];
    uint8_t to[4][2][8];
    memcpy(from[0], &x, sizeof x);
    memcpy(from[1], &y, sizeof y);
    for (int i = 0; i < 64; i++) {
        int16_t word = from[i / 32][i % 32 / 8][i % 8];
        to[i % 32 / 8][i / 32][i % 8] = word < 0 ? 0 : word > 255 ? 255 : word;
    }
    return *(__m512i_u *)to;
}

EMULATED e_bits e_from_words(__m256i words) {
    uint16_t from[16];
    e_bits found;
    memcpy(from, &words, sizeof from);
    EACH found[i] = from[i];
    return found;
}

/* The lesser, or the larger, of two words each; a sign is the highest bit. */
EMULATED __m512i e_words(__m512i x, __m512i y, int larger, int sign) {
    uint16_t left[32], right[32];
    memcpy(left, &x, sizeof left);
    memcpy(right, &y, sizeof right);
    for (int i = 0; i < 32; i++)
        if (((left[i] ^ sign) < (right[i] ^ sign)) == larger) left[i] = right[i];
    return *(__m512i_u *)left;
}

EMULATED __m128i e_least_word(__m128i x) { /* and its place, which nobody reads */
    uint16_t words[8];
    memcpy(words, &x, sizeof words);
    for (int i = 1; i < 8; i++) words[0] = words[i] < words[0] ? words[i] : words[0];
    return (__m128i){words[0]};
}

EMULATED __m512i e_interleaved(__m512i x, __m512i y, int first) { /* 4 of each 8 */
    uint16_t left[32], right[32], to[32];
    memcpy(left, &x, sizeof left);
    memcpy(right, &y, sizeof right);
    for (int i = 0; i < 32; i++)
        to[i] = (i % 2 ? right : left)[i / 8 * 8 + first + i % 8 / 2];
    return *(__m512i_u *)to;
}

/* ---- Memory ---- */

EMULATED __m512i e_loaded(const void *from) {
    __m512i x;
    memcpy(&x, from, sizeof x);
    return x;
}

EMULATED __m512i e_loaded_from_line(const void *from) {
    if ((uintptr_t)from % 64) __builtin_trap(); /* as the processor does */
    return e_loaded(from);
}

EMULATED void e_stored(void *to, __m512i x) { memcpy(to, &x, sizeof x); }

/* ---- Tiles ---- */

static __thread uint8_t e_tiles[8][16][64], e_config[64]; /* of which the last 16: rows of each */
#define EACH_ROW_OF(tile) for (int i = 0; i < e_config[48 + tile]; i++)

EMULATED void e_load_config(const void *from) {
    memcpy(e_config, from, sizeof e_config);
    memset(e_tiles, 0, sizeof e_tiles);
}

EMULATED void e_load_tile(int tile, const void *from, int64_t stride) {
    memset(e_tiles[tile], 0, sizeof e_tiles[tile]);
    EACH_ROW_OF(tile) memcpy(e_tiles[tile][i], (const char *)from + i * stride, 64);
}

EMULATED void e_store_tile(int tile, void *to, int64_t stride) {
    EACH_ROW_OF(tile) memcpy((char *)to + i * stride, e_tiles[tile][i], 64);
}

EMULATED e_bits e_repeated(const uint8_t *from) {
    uint32_t x;
    memcpy(&x, from, sizeof x);
    return (e_bits){0} + x;
}

EMULATED void e_tile_dot_bf16(int sums, int x, int y) {
    EACH {
        e_numbers even = {0}, odd = {0}, *sum = (e_numbers *)e_tiles[sums][i];
        for (int k = 0; k < 16; k++) {
            e_bits pair = e_repeated(e_tiles[x][i] + 4 * k), pairs = *(e_bits *)e_tiles[y][k];
            even = e_multiply_add(e_lower(pair), e_lower(pairs), even);
            odd = e_multiply_add(e_upper(pair), e_upper(pairs), odd);
        }
        *sum += even + odd;
    }
}

EMULATED void e_tile_dot_bytes(int sums, int x, int y) {
    EACH {
        e_wholes *sum = (e_wholes *)e_tiles[sums][i];
        for (int k = 0; k < 16; k++) {
            e_bits four = e_repeated(e_tiles[x][i] + 4 * k);
            *sum = e_dot_bytes(*sum, four, *(e_wholes *)e_tiles[y][k]);
        }
    }
}

/* ---- The names that the kernels call ---- */

#undef _mm512_range_ps
#undef _mm512_roundscale_ps
#undef _tile_dpbf16ps
#undef _tile_dpbusd
#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_storeconfig
#undef _tile_stored
#undef _tile_zero
#define AS_NUMBERS(x) ((e_numbers)(x))
#define _mm_minpos_epu16(x) e_least_word(x)
#define _mm512_abs_ps(x) ((__m512)((e_bits)(x) & 0x7fffffff))
#define _mm512_cvtepi32_ps(x) ((__m512)__builtin_convertvector((e_wholes)(x), e_numbers))
#define _mm512_cvtepi32_epi16(x) e_to_words((e_bits)(x))
#define _mm512_cvtepu16_epi32(x) ((__m512i)e_from_words(x))
#define _mm512_cvtne2ps_pbh(x, y) ((__m512bh)e_both_to_bf16(AS_NUMBERS(x), AS_NUMBERS(y)))
#define _mm512_cvtneps_pbh(x) ((__m256bh)e_to_words(e_to_bf16(AS_NUMBERS(x))))
#define _mm512_cvtps_epi32(x) ((__m512i)e_to_wholes(AS_NUMBERS(x)))
#define _mm512_cvtusepi32_epi8(x) e_to_bytes((e_bits)(x))
#define _mm512_dpbf16_ps(sum, x, y) ((__m512)e_dot_bf16(AS_NUMBERS(sum), (e_bits)(x), (e_bits)(y)))
#define _mm512_dpbusd_epi32(sum, x, y) \
    ((__m512i)e_dot_bytes((e_wholes)(sum), (e_bits)(x), (e_wholes)(y)))
#define _mm512_fmadd_ps(x, y, z) \
    ((__m512)e_multiply_add(AS_NUMBERS(x), AS_NUMBERS(y), AS_NUMBERS(z)))
#define _mm512_load_si512(from) e_loaded_from_line(from)
#define _mm512_loadu_ps(from) ((__m512)e_loaded(from))
#define _mm512_loadu_si512(from) e_loaded(from)
#define _mm512_max_epi16(x, y) e_words(x, y, 1, 0x8000)
#define _mm512_max_epi32(x, y) ((__m512i)e_larger((e_wholes)(x), (e_wholes)(y)))
#define _mm512_max_epu16(x, y) e_words(x, y, 1, 0)
#define _mm512_max_ps(x, y) ((__m512)e_each_max(AS_NUMBERS(x), AS_NUMBERS(y)))
#define _mm512_min_epu16(x, y) e_words(x, y, 0, 0)
#define _mm512_min_ps(x, y) ((__m512)e_each_min(AS_NUMBERS(x), AS_NUMBERS(y)))
#define _mm512_mul_ps(x, y) ((__m512)(AS_NUMBERS(x) * AS_NUMBERS(y)))
#define _mm512_packus_epi16(x, y) e_packed(x, y)
#define _mm512_permutexvar_epi16(places, x) e_permuted(places, x, 2)
#define _mm512_permutexvar_epi64(places, x) e_permuted(places, x, 8)
#define _mm512_rcp14_ps(x) ((__m512)(1 / AS_NUMBERS(x)))
#define _mm512_reduce_max_ps(x) e_most(AS_NUMBERS(x))
#define _mm512_reduce_min_ps(x) e_least(AS_NUMBERS(x))
#define _mm512_range_ps(x, ones, how) ((__m512)e_within_1(AS_NUMBERS(x))) /* with 1 alone */
#define _mm512_roundscale_ps(x, how) ((__m512)e_rounded(AS_NUMBERS(x)))
#define _mm512_scalef_ps(x, power) ((__m512)e_scaled(AS_NUMBERS(x), AS_NUMBERS(power)))
#define _mm512_set1_epi32(x) ((__m512i)((e_wholes){0} + (x)))
#define _mm512_set1_ps(x) ((__m512)((e_numbers){0} + (float)(x)))
#define _mm512_setzero_si512() ((__m512i){0})
#define _mm512_storeu_si512(to, x) e_stored(to, (__m512i)(x))
#define _mm512_sub_epi8(x, y) e_less_bytes(x, y)
#define _mm512_sub_ps(x, y) ((__m512)(AS_NUMBERS(x) - AS_NUMBERS(y)))
#define _mm512_test_epi16_mask(x, y) e_common_bits(x, y, 2)
#define _mm512_test_epi32_mask(x, y) e_common_bits(x, y, 4)
#define _mm512_unpackhi_epi16(x, y) e_interleaved(x, y, 4)
#define _mm512_unpacklo_epi16(x, y) e_interleaved(x, y, 0)
#define _tile_dpbf16ps(sums, x, y) e_tile_dot_bf16(sums, x, y)
#define _tile_dpbusd(sums, x, y) e_tile_dot_bytes(sums, x, y)
#define _tile_loadconfig(from) e_load_config(from)
#define _tile_loadd(tile, from, stride) e_load_tile(tile, from, stride)
#define _tile_storeconfig(to) memcpy(to, e_config, 64)
#define _tile_stored(tile, to, stride) e_store_tile(tile, to, stride)
#define _tile_zero(tile) memset(e_tiles[tile], 0, sizeof e_tiles[tile])

/* The compiler takes any processor's code, which the processor at hand seems to be. */
#define target(...)
#define __builtin_cpu_supports(name) 1
#define syscall(...) 0 /* asks for tiles */

#endif
