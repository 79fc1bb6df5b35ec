/* Vectors of LANES numbers, sixteen or eight, which a compiler lays out for the processor at hand.

They pass between inlined functions only. */

#ifndef SKBERT_VECTORS_H
#define SKBERT_VECTORS_H

#include <stdint.h>

#include "kernels.h"

#pragma GCC diagnostic ignored "-Wpsabi"
#ifndef FOR_EACH_PROCESSOR
#if defined(__x86_64__)
#ifdef __clang__
#error "clang passes no wide vectors to functions that are inlined: use gcc"
#endif
#if LANES == 8
#define FOR_EACH_PROCESSOR __attribute__((target("arch=x86-64-v3")))
#else
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "default")))
#endif
#else
#define FOR_EACH_PROCESSOR
#endif
#endif
#if LANES == 8
#define NUMBERS {0, 1, 2, 3, 4, 5, 6, 7}
#else
#define NUMBERS {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#endif
#define INLINE static inline __attribute__((always_inline))
/* A sum stays in its register, from which gcc would move it and back in each turn of a loop. */
#ifndef STAY
#define STAY(sum) __asm__("" : "+v"(sum))
#endif

typedef float floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t uints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t ushorts __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

/* ---- Fetching ahead ---- */

#define CACHE_LINE 64
#define AHEAD_BYTES 4096 /* which are on their way from a cache that processors share */

/* Of a packed weight, in which a step of a product takes four bytes for each of PANEL columns. */
INLINE void fetch_weights(const void *step) {
    for (int i = 0; i < 4 * PANEL; i += CACHE_LINE)
        __builtin_prefetch((const char *)step + AHEAD_BYTES + i);
}

/* ---- Which numbers of two vectors a shuffle takes ---- */

#define EIGHT(pick, s, at)                                                                 \
    pick(s, at), pick(s, at + 1), pick(s, at + 2), pick(s, at + 3), pick(s, at + 4),       \
        pick(s, at + 5), pick(s, at + 6), pick(s, at + 7)
#if LANES == 8
#define ALL(pick, s) EIGHT(pick, s, 0)
#else
#define ALL(pick, s) EIGHT(pick, s, 0), EIGHT(pick, s, 8)
#endif
#define BESIDE(first, at) ((first) + (at) / 2 + ((at) % 2 ? LANES : 0))

/* ---- Reading and writing; offsets are in numbers ---- */

/* Pairs of a number and another, which a vector of floats holds. With x86's vectors a shuffle takes
fewer instructions than what gcc makes of a conversion. */
INLINE floats pair(ushorts x, ushorts y) {
#ifdef __x86_64__
    return (floats)__builtin_shufflevector(x, y, ALL(BESIDE, 0), ALL(BESIDE, LANES / 2));
#else
    return (floats)(__builtin_convertvector(y, uints) << 16 | __builtin_convertvector(x, uints));
#endif
}

INLINE floats load(const char *from, int64_t offset, int is_bf16) {
    if (is_bf16) return pair((ushorts){0}, *(const ushorts *)(from + 2 * offset));
    return *(const floats *)(from + 4 * offset);
}

INLINE void store(char *to, int64_t offset, floats x, int is_bf16) {
    if (!is_bf16) {
        *(floats *)(to + 4 * offset) = x;
        return;
    }
    uints bits = (uints)x, rounded = bits + 0x7fff + ((bits >> 16) & 1); /* to nearest, even */
    uints nan = (uints)(x != x);
    rounded = (rounded & ~nan) | ((bits | 0x400000) & nan);
    *(ushorts *)(to + 2 * offset) = __builtin_convertvector(rounded >> 16, ushorts);
}

/* ---- Choosing ---- */

INLINE floats zero_unless(ints mask, floats x) { return (floats)((ints)x & mask); }

INLINE floats blend(ints mask, floats x, floats y) {
    return (floats)(((ints)x & mask) | ((ints)y & ~mask));
}

/* Which of the indices from `first` on are below `end`. */
INLINE ints mask_before(int end, int first) {
    if (first + LANES <= end) return (ints){0} - 1;
    floats steps = NUMBERS;
    return steps + (float)first < (float)end;
}

INLINE int round_up(int n, int step) { return (n + step - 1) / step * step; }

/* ---- Within a vector, and across as many as it has numbers ---- */

#define SWAP(step, at) ((at) & step ? LANES + (at)-step : (at))
#define BACK(step, at) ((at) & step ? LANES + (at) : (at) + step)
#define BACK_OF(x, step) __builtin_shufflevector(x, x, ALL(BACK, step))
#define EXCHANGE(step)                                                                     \
    for (int i = 0; i < LANES; i++)                                                        \
        if (!(i & step)) {                                                                 \
            floats first = x[i], second = x[i + step];                                     \
            x[i] = __builtin_shufflevector(first, second, ALL(SWAP, step));                \
            x[i + step] = __builtin_shufflevector(first, second, ALL(BACK, step));         \
        }

INLINE float sum(floats x) {
    if (LANES > 8) x += BACK_OF(x, 8);
    x += BACK_OF(x, 4);
    x += BACK_OF(x, 2);
    return x[0] + x[1];
}

INLINE float maximum(floats x) {
    floats y = x;
    if (LANES > 8) y = BACK_OF(x, 8);
    x = blend(y > x, y, x);
    y = BACK_OF(x, 4);
    x = blend(y > x, y, x);
    y = BACK_OF(x, 2);
    x = blend(y > x, y, x);
    return x[0] > x[1] ? x[0] : x[1];
}

INLINE void transpose(floats x[LANES]) { /* blocks of 8, then of 4, 2 and 1 change places */
#if LANES > 8
    EXCHANGE(8)
#endif
    EXCHANGE(4)
    EXCHANGE(2)
    EXCHANGE(1)
}

/* ---- Arithmetic ---- */

INLINE floats exponential(floats x) { /* of numbers up to 0: a power of 2 times a polynomial */
    x = blend(x < -87.0f, (floats){0} - 87.0f, x);
    floats n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* rounded */
    floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    floats y = 1.9875691500e-4f * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    ints power = (__builtin_convertvector(n, ints) + 127) << 23;
    return y * (floats)power;
}

#endif
