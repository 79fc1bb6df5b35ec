/* Attention within short rows, products of bfloat16, what lies between them in an encoder layer,
and steps of AdamW, on a CPU.

Built where there is a compiler and never needed: `compiled.py` says when it serves, and the same
is written with torch's operations in the modules that call it. Arithmetic is float32, and products
of bfloat16 where a processor has them; what is read and written is float32 or bfloat16. Numbers go
in vectors of sixteen, which a compiler lays out for the processor at hand. Addresses and sizes are
checked by the caller. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wpsabi" /* vectors pass between inlined functions only */
#if defined(__x86_64__)
#ifdef __clang__
#error "clang passes no wide vectors to functions that are inlined: use gcc"
#endif
#define FOR_EACH_PROCESSOR \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif
#if defined(__x86_64__) && __has_include(<avx512bf16intrin.h>)
#include <immintrin.h>
#define DOTS __attribute__((target("arch=x86-64-v4,avx512bf16"))) /* products of bfloat16 */
#endif
#define INLINE static inline __attribute__((always_inline))
#define WIDE 16
#define PART (1 << 14) /* numbers of a tensor that a thread takes at once */
#define AT_ONCE 64 /* tokens whose scores are computed together */

typedef float floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(32), aligned(2), may_alias));

/* ---- Reading and writing ---- */

INLINE floats load(const char *from, int64_t at, int low) {
    if (low) {
        words bits = __builtin_convertvector(*(const halves *)(from + 2 * at), words) << 16;
        return (floats)bits;
    }
    return *(const floats *)(from + 4 * at);
}

INLINE void store(char *to, int64_t at, floats x, int low) {
    if (!low) {
        *(floats *)(to + 4 * at) = x;
        return;
    }
    words bits = (words)x, rounded = bits + 0x7fff + ((bits >> 16) & 1); /* to nearest, even */
    words nan = (words)(x != x);
    rounded = (rounded & ~nan) | ((bits | 0x400000) & nan);
    *(halves *)(to + 2 * at) = __builtin_convertvector(rounded >> 16, halves);
}

INLINE floats where(ints is, floats x) { return (floats)((ints)x & is); }

INLINE floats chosen(ints is, floats x, floats y) {
    return (floats)(((ints)x & is) | ((ints)y & ~is));
}

#define SWAP(step, at) ((at) & step ? 16 + (at)-step : (at))
#define BACK(step, at) ((at) & step ? 16 + (at) : (at) + step)
#define ALL(pick, s)                                                                       \
    pick(s, 0), pick(s, 1), pick(s, 2), pick(s, 3), pick(s, 4), pick(s, 5), pick(s, 6),    \
        pick(s, 7), pick(s, 8), pick(s, 9), pick(s, 10), pick(s, 11), pick(s, 12),         \
        pick(s, 13), pick(s, 14), pick(s, 15)
#define BACK_OF(x, step) __builtin_shufflevector(x, x, ALL(BACK, step))
#define EXCHANGE(step)                                                                     \
    for (int i = 0; i < WIDE; i++)                                                         \
        if (!(i & step)) {                                                                 \
            floats first = x[i], second = x[i + step];                                     \
            x[i] = __builtin_shufflevector(first, second, ALL(SWAP, step));                \
            x[i + step] = __builtin_shufflevector(first, second, ALL(BACK, step));         \
        }

INLINE float sum(floats x) {
    x += BACK_OF(x, 8);
    x += BACK_OF(x, 4);
    x += BACK_OF(x, 2);
    return x[0] + x[1];
}

INLINE float largest(floats x) {
    floats y = BACK_OF(x, 8);
    x = chosen(y > x, y, x);
    y = BACK_OF(x, 4);
    x = chosen(y > x, y, x);
    y = BACK_OF(x, 2);
    x = chosen(y > x, y, x);
    return x[0] > x[1] ? x[0] : x[1];
}

INLINE void transpose(floats x[WIDE]) { /* blocks of 8, then of 4, 2 and 1 change places */
    EXCHANGE(8)
    EXCHANGE(4)
    EXCHANGE(2)
    EXCHANGE(1)
}

INLINE floats places(int from) {
    floats steps = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return steps + (float)from;
}

/* ---- Dropout: which numbers are kept follows from a seed and their place ---- */

INLINE uint32_t mixed(uint32_t x) { /* the last steps of MurmurHash3 */
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

INLINE floats kept(uint32_t key, int from, float rate) {
    words x = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    x = (x + (uint32_t)from) * 0x9e3779b9u + key;
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    x ^= x >> 16;
    floats share = __builtin_convertvector((ints)(x >> 8), floats) * 0x1p-24f; /* [0, 1) */
    floats all = (floats){0} + 1 / (1 - rate);
    return where(share >= rate, all);
}

INLINE uint32_t key_of(uint64_t seed, uint64_t row) {
    return mixed((uint32_t)seed + mixed((uint32_t)(seed >> 32) + mixed((uint32_t)row)));
}

/* ---- Arithmetic ---- */

INLINE floats exponential(floats x) { /* of numbers up to 0: a power of 2 times a polynomial */
    x = chosen(x < -87.0f, (floats){0} - 87.0f, x);
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

/* c (m, n) = a (m, k) b (k, n); m is a multiple of 4 and n of 16; a has any strides. */
INLINE void block(int columns, int k, const float *a, int by_row, int by_column, const float *b,
                  int n, float *c) {
    floats total[4][4] = {0};
    for (int i = 0; i < k; i++, a += by_column, b += n)
        for (int row = 0; row < 4; row++)
            for (int j = 0; j < columns; j++)
                total[row][j] += a[row * by_row] * *(const floats *)(b + WIDE * j);
    for (int row = 0; row < 4; row++)
        for (int j = 0; j < columns; j++) *(floats *)(c + row * n + WIDE * j) = total[row][j];
}

INLINE void multiply(int m, int n, int k, const float *a, int by_row, int by_column,
                     const float *b, float *c) {
    for (int j = 0; j < n;) {
        int columns = n - j >= 4 * WIDE ? 4 : n - j >= 2 * WIDE ? 2 : 1;
        for (int i = 0; i < m; i += 4) {
            const float *from = a + (int64_t)i * by_row;
            float *to = c + (int64_t)i * n + j;
            if (columns == 4) block(4, k, from, by_row, by_column, b + j, n, to);
            else if (columns == 2) block(2, k, from, by_row, by_column, b + j, n, to);
            else block(1, k, from, by_row, by_column, b + j, n, to);
        }
        j += columns * WIDE;
    }
}

#ifdef DOTS
/* The sum, and two numbers times a pair of numbers for each of its own. */
DOTS INLINE floats dot(floats sum, const uint16_t *two, const uint16_t *pairs) {
    int32_t both;
    memcpy(&both, two, sizeof both);
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(both),
                                    (__m512bh)_mm512_loadu_si512(pairs));
}

/* As multiply, of bfloat16: a is (m, k), b (k / 2, n, 2). */
DOTS INLINE void block_low(int columns, int k, const uint16_t *a, const uint16_t *b, int n,
                           float *c) {
    floats total[4][4] = {0};
    for (int i = 0; i < k; i += 2, b += 2 * n)
        for (int row = 0; row < 4; row++)
            for (int j = 0; j < columns; j++)
                total[row][j] = dot(total[row][j], a + row * k + i, b + 2 * WIDE * j);
    for (int row = 0; row < 4; row++)
        for (int j = 0; j < columns; j++) *(floats *)(c + row * n + WIDE * j) = total[row][j];
}

DOTS INLINE void multiply_low(int m, int n, int k, const uint16_t *a, const uint16_t *b,
                              float *c) {
    for (int j = 0; j < n;) {
        int columns = n - j >= 4 * WIDE ? 4 : n - j >= 2 * WIDE ? 2 : 1;
        for (int i = 0; i < m; i += 4) {
            const uint16_t *from = a + (int64_t)i * k;
            float *to = c + (int64_t)i * n + j;
            if (columns == 4) block_low(4, k, from, b + 2 * j, n, to);
            else if (columns == 2) block_low(2, k, from, b + 2 * j, n, to);
            else block_low(1, k, from, b + 2 * j, n, to);
        }
        j += columns * WIDE;
    }
}
#endif

/* ---- Attention ---- */

typedef struct {
    const char *joined; /* (n_tokens, 3, n_heads, size): query, key and value side by side */
    char *found;        /* (n_tokens, n_heads, size), or its gradient on the way back */
    char *inner;        /* gradient of joined */
    float *sums;        /* (n_tokens, n_heads): logarithm of the sum of exponentials, or NULL */
    const int32_t *bounds;
    int n_rows, n_heads, size, causal, low;
    float scaling, rate;
    uint64_t seed;
} Attention;

INLINE int up(int n, int step) { return (n + step - 1) / step * step; }

/* Numbers that the memory of one row and head takes. */
static int64_t needed(int longest, int size) {
    int64_t n = up(longest, WIDE), rows = n > AT_ONCE ? n : AT_ONCE;
    return 2 * rows * n + 6 * n * size;
}

/* One of the three parts of a row and head, (n, size) with zeros below, and on its side. */
INLINE void fetch(const Attention *a, const char *from, int64_t stride, int64_t at, int length,
                  int n, float times, float *to, float *aside) {
    for (int i = 0; i < n; i += WIDE)
        for (int j = 0; j < a->size; j += WIDE) {
            floats x[WIDE] = {0};
            for (int row = 0; row < WIDE && i + row < length; row++)
                x[row] = times * load(from, at + (i + row) * stride + j, a->low);
            for (int row = 0; to && row < WIDE; row++)
                *(floats *)(to + (i + row) * a->size + j) = x[row];
            if (!aside) continue;
            transpose(x);
            for (int row = 0; row < WIDE; row++) *(floats *)(aside + (j + row) * n + i) = x[row];
        }
}

INLINE void put(const Attention *a, char *to, int64_t stride, int64_t at, int length, float times,
                const float *from) {
    for (int i = 0; i < length; i++)
        for (int j = 0; j < a->size; j += WIDE)
            store(to, at + i * stride + j, times * *(const floats *)(from + i * a->size + j),
                  a->low);
}

/* What a token sees of places `from` and on. */
INLINE ints seen(const Attention *a, int token, int length, int from) {
    int end = a->causal ? token + 1 : length;
    if (from + WIDE <= end) return (ints){0} - 1;
    return places(from) < (float)end;
}

/* One row and head, and where it lies. */
typedef struct {
    int length;
    int64_t first;     /* its first token and head, among (n_tokens, n_heads) */
    int64_t width;     /* of a token: all heads */
    int64_t in_joined; /* where its query begins; key and value are a width further each */
    int64_t in_found;
} Unit;

INLINE Unit unit_of(const Attention *a, int unit) {
    int row = unit / a->n_heads, head = unit % a->n_heads, begin = a->bounds[row];
    int64_t width = (int64_t)a->n_heads * a->size;
    return (Unit){.length = a->bounds[row + 1] - begin,
                  .first = (int64_t)begin * a->n_heads + head,
                  .width = width,
                  .in_joined = 3 * begin * width + head * a->size,
                  .in_found = begin * width + head * a->size};
}

/* Exponentials in place of a token's n scores, some of them dropped; their sum before that. */
INLINE float weigh(const Attention *a, const Unit *u, int token, int n, float times, float *line) {
    floats top = (floats){0} - INFINITY, total = {0};
    for (int j = 0; j < n; j += WIDE) {
        floats x = *(floats *)(line + j);
        x = chosen(seen(a, token, u->length, j), x, (floats){0} - INFINITY);
        top = chosen(x > top, x, top);
    }
    float most = largest(top);
    uint32_t key = key_of(a->seed, u->first + (int64_t)token * a->n_heads);
    for (int j = 0; j < n; j += WIDE) {
        floats x = (*(floats *)(line + j) - most) * times;
        x = where(seen(a, token, u->length, j), exponential(x));
        total += x;
        if (a->rate > 0) x *= kept(key, j, a->rate);
        *(floats *)(line + j) = x;
    }
    float all = sum(total);
    if (a->sums && token < u->length)
        a->sums[u->first + (int64_t)token * a->n_heads] = most * times + logf(all);
    return all;
}

/* Divides what tokens found by the sums of their weights. */
INLINE void divide(int n_tokens, int size, const float *all, float *found) {
    for (int i = 0; i < n_tokens; i++)
        for (int j = 0; j < size; j += WIDE) *(floats *)(found + i * size + j) *= 1 / all[i];
}

FOR_EACH_PROCESSOR
static void attend(const Attention *a, int unit, float *memory) {
    Unit u = unit_of(a, unit);
    int size = a->size, length = u.length, n = up(length, WIDE), m = up(length, 4);
    float *q = memory, *k = q + n * size, *v = k + n * size, *s = v + n * size, *o = s + n * n;
    float all[AT_ONCE];
    fetch(a, a->joined, 3 * u.width, u.in_joined, length, n, 1, q, NULL);
    fetch(a, a->joined, 3 * u.width, u.in_joined + u.width, length, n, 1, NULL, k);
    fetch(a, a->joined, 3 * u.width, u.in_joined + 2 * u.width, length, n, 1, v, NULL);
    for (int first = 0; first < m; first += AT_ONCE) { /* as many scores as a cache holds */
        int n_tokens = first + AT_ONCE < m ? AT_ONCE : m - first;
        multiply(n_tokens, n, size, q + first * size, size, 1, k, s);
        for (int i = 0; i < n_tokens; i++)
            all[i] = weigh(a, &u, first + i, n, a->scaling, s + i * n);
        multiply(n_tokens, size, length, s, n, 1, v, o + first * size);
        divide(n_tokens, size, all, o + first * size);
    }
    put(a, a->found, u.width, u.in_found, length, 1, o);
}

#ifdef DOTS
/* Pairs of numbers of one token each, (size / 2, n, 2), of the part that begins at `at`. */
DOTS INLINE void pair(const Attention *a, int64_t stride, int64_t at, int length, int n,
                      uint16_t *to) {
    const uint16_t *from = (const uint16_t *)a->joined + at;
    for (int i = 0; i < n; i += WIDE)
        for (int j = 0; j < a->size; j += 2 * WIDE) {
            floats x[WIDE] = {0};
            for (int row = 0; row < WIDE && i + row < length; row++)
                x[row] = *(const floats *)(from + (i + row) * stride + j);
            transpose(x);
            for (int row = 0; row < WIDE; row++)
                *(floats *)(to + (j + 2 * row) * n + 2 * i) = x[row];
        }
}

/* Pairs of numbers of two tokens each, (n / 2, size, 2). */
DOTS INLINE void pair_tokens(const Attention *a, int64_t stride, int64_t at, int length, int n,
                             uint16_t *to) {
    const char *from = a->joined;
    for (int i = 0; i < n; i += 2)
        for (int j = 0; j < a->size; j += WIDE) {
            words x = {0}, y = {0};
            if (i < length) x = (words)load(from, at + i * stride + j, 1) >> 16;
            if (i + 1 < length) y = (words)load(from, at + (i + 1) * stride + j, 1);
            *(words *)(to + i * a->size + 2 * j) = x | y;
        }
}

DOTS static void attend_low(const Attention *a, int unit, float *memory) {
    Unit u = unit_of(a, unit);
    int size = a->size, length = u.length, n = up(length, WIDE), m = up(length, 4);
    float *s = memory, *o = s + AT_ONCE * n, all[AT_ONCE];
    uint16_t *q = (uint16_t *)(o + n * size), *k = q + n * size, *v = k + n * size;
    uint16_t *weights = v + n * size;
    memset(q + length * size, 0, sizeof *q * (n - length) * size);
    for (int i = 0; i < length; i++)
        memcpy(q + i * size, (uint16_t *)a->joined + u.in_joined + 3 * i * u.width,
               sizeof *q * size);
    pair(a, 3 * u.width, u.in_joined + u.width, length, n, k);
    pair_tokens(a, 3 * u.width, u.in_joined + 2 * u.width, length, n, v);
    for (int first = 0; first < m; first += AT_ONCE) {
        int n_tokens = first + AT_ONCE < m ? AT_ONCE : m - first;
        multiply_low(n_tokens, n, size, q + first * size, k, s);
        for (int i = 0; i < n_tokens; i++) {
            all[i] = weigh(a, &u, first + i, n, a->scaling, s + i * n);
            for (int j = 0; j < n; j += WIDE)
                store((char *)weights, i * n + j, *(floats *)(s + i * n + j), 1);
        }
        multiply_low(n_tokens, size, n, weights, v, o + first * size);
        divide(n_tokens, size, all, o + first * size);
    }
    put(a, a->found, u.width, u.in_found, length, 1, o);
}
#endif

FOR_EACH_PROCESSOR
static void attend_back(const Attention *a, int unit, float *memory) {
    Unit u = unit_of(a, unit);
    int size = a->size, length = u.length, n = up(length, WIDE), m = up(length, 4);
    float *q = memory, *k = q + n * size, *side = k + n * size, *v = side + n * size;
    float *outer = v + n * size, *s = outer + n * size, *by = s + n * n, *o = by + n * n;
    fetch(a, a->joined, 3 * u.width, u.in_joined, length, n, a->scaling, q, NULL);
    fetch(a, a->joined, 3 * u.width, u.in_joined + u.width, length, n, 1, k, side);
    fetch(a, a->joined, 3 * u.width, u.in_joined + 2 * u.width, length, n, 1, NULL, v);
    fetch(a, a->found, u.width, u.in_found, length, n, 1, outer, NULL);
    multiply(m, n, size, q, size, 1, side, s);
    multiply(m, n, size, outer, size, 1, v, by);
    for (int i = 0; i < m; i++) {
        float *line = s + i * n, *back = by + i * n;
        int64_t place = u.first + (int64_t)i * a->n_heads;
        float log_sum = i < length ? a->sums[place] : 0;
        uint32_t key = key_of(a->seed, place);
        floats total = {0};
        for (int j = 0; j < n; j += WIDE) {
            ints is = i < length ? seen(a, i, length, j) : (ints){0};
            floats p = where(is, exponential(*(floats *)(line + j) - log_sum));
            floats g = where(is, *(floats *)(back + j));
            if (a->rate > 0) g *= kept(key, j, a->rate);
            total += p * g;
            *(floats *)(line + j) = p;
            *(floats *)(back + j) = g;
        }
        float mean = sum(total);
        for (int j = 0; j < n; j += WIDE) {
            floats p = *(floats *)(line + j);
            if (a->rate > 0) *(floats *)(line + j) = p * kept(key, j, a->rate);
            *(floats *)(back + j) = p * (*(floats *)(back + j) - mean);
        }
    }
    multiply(m, size, length, s, 1, n, outer, o);
    put(a, a->inner, 3 * u.width, u.in_joined + 2 * u.width, length, 1, o);
    multiply(m, size, length, by, n, 1, k, o);
    put(a, a->inner, 3 * u.width, u.in_joined, length, a->scaling, o);
    multiply(m, size, length, by, 1, n, q, o);
    put(a, a->inner, 3 * u.width, u.in_joined + u.width, length, 1, o);
}

/* ---- Layer normalisation of a sum, one of its parts with dropout ---- */

typedef struct {
    const char *part, *states; /* (n_tokens, width): of the product, and around it in float32 */
    const float *weight, *bias;
    float *normed, *scales; /* scales: 1 / deviation of each token */
    char *low_normed, *kept_normed; /* before weight and bias; NULL where nothing learns */
    const float *outer;      /* gradient of normed, or NULL */
    const char *low_outer;   /* and of low_normed, or NULL */
    float *inner, *learned;  /* gradient of states; of weight and bias, a pair for each thread */
    char *inner_part;
    int64_t n_tokens, width;
    float epsilon, rate;
    uint64_t seed;
    int low;
} Norm;

FOR_EACH_PROCESSOR
static void normalise(const Norm *a, int64_t token) {
    int64_t at = token * a->width;
    uint32_t key = key_of(a->seed, token);
    floats all = {0}, squares = {0};
    float *normed = a->normed + at;
    for (int64_t j = 0; j < a->width; j += WIDE) {
        floats x = load(a->part, at + j, a->low);
        if (a->rate > 0) x *= kept(key, (int)j, a->rate);
        x += load(a->states, at + j, 0);
        *(floats *)(normed + j) = x;
        all += x;
    }
    float mean = sum(all) / a->width;
    for (int64_t j = 0; j < a->width; j += WIDE) {
        floats x = *(floats *)(normed + j) - mean;
        squares += x * x;
    }
    float scale = 1 / sqrtf(sum(squares) / a->width + a->epsilon);
    a->scales[token] = scale;
    for (int64_t j = 0; j < a->width; j += WIDE) {
        floats x = (*(floats *)(normed + j) - mean) * scale;
        if (a->kept_normed) store(a->kept_normed, at + j, x, a->low);
        x = x * *(const floats *)(a->weight + j) + *(const floats *)(a->bias + j);
        *(floats *)(normed + j) = x;
        if (a->low) store(a->low_normed, at + j, x, 1);
    }
}

INLINE floats outer_of(const Norm *a, int64_t at) {
    floats x = {0};
    if (a->outer) x += load((const char *)a->outer, at, 0);
    if (a->low_outer) x += load(a->low_outer, at, a->low);
    return x;
}

FOR_EACH_PROCESSOR
static void normalise_back(const Norm *a, int64_t token, float *of_weight, float *of_bias) {
    int64_t at = token * a->width;
    uint32_t key = key_of(a->seed, token);
    floats all = {0}, along = {0};
    for (int64_t j = 0; j < a->width; j += WIDE) {
        floats g = outer_of(a, at + j), x = load(a->kept_normed, at + j, a->low);
        *(floats *)(of_weight + j) += g * x;
        *(floats *)(of_bias + j) += g;
        g *= *(const floats *)(a->weight + j);
        all += g;
        along += g * x;
    }
    float level = sum(all) / a->width, slope = sum(along) / a->width;
    for (int64_t j = 0; j < a->width; j += WIDE) {
        floats g = outer_of(a, at + j) * *(const floats *)(a->weight + j);
        floats x = load(a->kept_normed, at + j, a->low);
        x = a->scales[token] * (g - level - x * slope);
        *(floats *)(a->inner + at + j) = x;
        if (a->rate > 0) x *= kept(key, (int)j, a->rate);
        store(a->inner_part, at + j, x, a->low);
    }
}

/* ---- Products of bfloat16, two numbers of a row at a time ---- */

#ifdef DOTS
#define ROWS 12   /* whose sums fit in the registers */
#define ACROSS 32 /* numbers of a row of the result that are computed at once */
#define LINE 64   /* bytes that come from memory together */
#define LAID (1 << 22) /* bytes of a factor that are laid out at once */

enum Then { NOTHING, GELU, GELU_APART, GELU_BACK }; /* what follows a product */

typedef struct {
    const uint16_t *x;        /* (n_tokens, n_in) */
    const uint16_t *laid;     /* (n_out / ACROSS, n_in / 2, ACROSS, 2), or NULL and */
    const float *const *parts; /* weights in float32, each n_rows, one below the other */
    const float *bias;        /* (n_out,), or NULL */
    char *found;              /* (n_tokens, n_out) */
    int64_t n_tokens, n_in, n_out, n_rows;
    int turned;  /* weights are (n_in, n_out), otherwise (n_out, n_in) */
    int then;    /* one of Then */
    char *other; /* (n_tokens, n_out), what that reads or writes, too */
} Product;

typedef struct { /* ACROSS numbers of some rows of a result */
    const uint16_t *x;     /* (n_rows, n_in), or laid out, too, where n_in is 0 */
    int64_t n_in, n_pairs;
    const uint16_t *pairs; /* (n_pairs, ACROSS, 2) */
    const float *bias;     /* (ACROSS,), or NULL */
    char *found;
    int64_t width; /* numbers from one row of the result to the next */
    int then;      /* one of Then */
    char *other;   /* what that reads or writes, too: rows like those of the result */
    const Product *of; /* whose next weights are to be near, or NULL */
    int64_t next;
} Tiles;

typedef struct { /* lines of memory to have near */
    const char *first;
    int64_t n, stride;
} Ahead;

INLINE int64_t width_of(const Product *a) { return a->turned ? a->n_out : a->n_in; }

static const float *weights_of(const Product *a, int64_t row) {
    return a->parts[row / a->n_rows] + row % a->n_rows * width_of(a);
}

/* A share of ACROSS weights times n_in for each of the first turns, nothing for later ones. */
static Ahead ahead_of(const Product *a, int64_t across, int64_t turn) {
    if (!a->turned) { /* rows, one after another in memory */
        int64_t n = a->n_in / 2;
        return (Ahead){(const char *)weights_of(a, across) + turn * n * LINE, turn < 4 ? n : 0,
                       LINE};
    }
    int64_t n_pieces = a->n_in == a->n_rows ? 2 : a->n_in / a->n_rows, n = a->n_in / n_pieces;
    const float *row = weights_of(a, turn % n_pieces * n) + across;
    return (Ahead){(const char *)row + turn / n_pieces * LINE, turn < 2 * n_pieces ? n : 0,
                   4 * width_of(a)};
}

/* Share of a normal distribution below x (Abramowitz and Stegun 1964, 7.1.26), and exp(-x x / 2),
a power of 2 whose broken part is a polynomial: within 4e-6 of itself, which serves for bfloat16. */
DOTS INLINE floats share_below(floats x, floats *density) {
    __m512 far = _mm512_set1_ps(20); /* where they are 1 and 0; what is no number stays so */
    floats size = (floats)_mm512_min_ps(far, _mm512_abs_ps((__m512)x));
    floats divisor = 1 + size * (0.3275911f * 0.70710678f);
    floats t = (floats)_mm512_rcp14_ps((__m512)divisor);
    t *= 2 - divisor * t; /* Newton's step, from 14 bits to more than 23 */
    floats power = size * size * (-0.5f * 1.44269504f);
    __m512 whole = _mm512_roundscale_ps((__m512)power, _MM_FROUND_TO_NEAREST_INT);
    floats rest = power - (floats)whole;
    floats y = rest * 9.600409235e-3f + 5.591697746e-2f;
    y = y * rest + 2.402371863e-1f;
    y = y * rest + 6.931219847e-1f;
    y = y * rest + 1;
    *density = (floats)_mm512_scalef_ps((__m512)y, whole);
    floats tail = t * 0.5307027145f - 0.7265760135f;
    tail = tail * t + 0.7107068705f;
    tail = tail * t - 0.142248368f;
    tail = (tail * t + 0.127414796f) * t * *density;
    return chosen(x < 0, tail, 1 - tail);
}

DOTS INLINE floats gelu_of(floats x) {
    floats density;
    return x * share_below(x, &density);
}

DOTS INLINE floats slope_of_gelu(floats x) {
    floats density, share = share_below(x, &density);
    return share + x * density * 0.39894228f;
}

DOTS INLINE void put_low(char *to, floats left, floats right) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)right, (__m512)left));
}

/* A result, and what follows. */
DOTS INLINE void finish(const Tiles *a, int64_t at, floats left, floats right) {
    char *to = a->found + 2 * at, *other = a->other + 2 * at;
    if (a->then == GELU) {
        left = gelu_of(left), right = gelu_of(right);
    } else if (a->then == GELU_BACK) {
        left *= slope_of_gelu(load(other, 0, 1)), right *= slope_of_gelu(load(other, WIDE, 1));
    }
    put_low(to, left, right);
    if (a->then == GELU_APART) put_low(other, gelu_of(load(to, 0, 1)), gelu_of(load(to, WIDE, 1)));
}

DOTS INLINE void tile(const Tiles *a, int64_t first, int n_rows, int laid, Ahead ahead) {
    int64_t by_row = laid ? 2 : a->n_in, by_pair = laid ? 2 * ACROSS : 2;
    const uint16_t *x = a->x + first * by_row, *pairs = a->pairs;
    floats total[ROWS][2];
    for (int row = 0; row < n_rows; row++) {
        __builtin_prefetch(a->found + 2 * (first + row) * a->width, 1);
        for (int half = 0; half < 2; half++)
            total[row][half] = a->bias ? *(const floats *)(a->bias + half * WIDE) : (floats){0};
    }
    for (int64_t i = 0; i < a->n_pairs; i++, x += by_pair, pairs += 2 * ACROSS) {
        __builtin_prefetch(ahead.first + (i < ahead.n ? i : 0) * ahead.stride);
        for (int row = 0; row < n_rows; row++)
            for (int half = 0; half < 2; half++)
                total[row][half] = dot(total[row][half], x + row * by_row, pairs + ACROSS * half);
    }
    for (int row = 0; row < n_rows; row++)
        finish(a, (first + row) * a->width, total[row][0], total[row][1]);
}

#define TILE(n)                                                                            \
    case n:                                                                                \
        if (a->n_in) tile(a, first, n, 0, ahead);                                          \
        else tile(a, first, n, 1, ahead);                                                  \
        break;

DOTS static void tiles(const Tiles *a, int64_t from, int64_t to) {
    int64_t n_turns = (to - from + ROWS - 1) / ROWS;
    for (int64_t turn = 0; turn < n_turns; turn++) {
        int64_t first = from + turn * (to - from) / n_turns;
        int64_t end = from + (turn + 1) * (to - from) / n_turns;
        Ahead ahead = {0};
        if (a->of) ahead = ahead_of(a->of, a->next, turn);
        if (!ahead.n) ahead = (Ahead){(const char *)(a->x + end * a->n_in), a->n_pairs, LINE};
        switch (end - first) { /* each with its own registers */
            TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
            TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
        }
    }
}

/* ACROSS rows of float32, pairs of neighbours in a row; first rounded as they come in memory. */
DOTS static void lay_rows(const float *from, int64_t width, uint16_t *to, uint16_t *rounded) {
    for (int half = 0; half < 2; half++, from += WIDE * width) {
        for (int64_t i = 0; i < WIDE * width; i += 2 * WIDE)
            _mm512_storeu_si512(rounded + i,
                                (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + i + WIDE),
                                                             _mm512_loadu_ps(from + i)));
        for (int64_t i = 0; i < width; i += 2 * WIDE) {
            floats x[WIDE];
            for (int row = 0; row < WIDE; row++)
                x[row] = *(const floats *)(rounded + row * width + i);
            transpose(x);
            for (int j = 0; j < WIDE; j++)
                *(floats *)(to + i * ACROSS + 2 * (j * ACROSS + half * WIDE)) = x[j];
        }
    }
}

/* ACROSS columns of bfloat16, if low, or float32: pairs of a number, or its GELU, and that below. */
DOTS INLINE void lay_columns(const char *from, int64_t width, int64_t n_rows, int low, int gelu,
                             uint16_t *to) {
    int64_t size = low ? 2 : 4;
    const words lower = {0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005,
                         0x160006, 0x170007, 0x180008, 0x190009, 0x1a000a, 0x1b000b,
                         0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f};
    for (int64_t row = 0; row < n_rows; row += 2, from += 2 * size * width)
        for (int half = 0; half < 2; half++, to += 2 * WIDE) {
            const char *one = from + half * WIDE * size, *other = one + size * width;
            floats x = load(one, 0, low), y = {0};
            if (row + 1 < n_rows) y = load(other, 0, low);
            if (gelu) x = gelu_of(x), y = gelu_of(y);
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x);
            _mm512_storeu_si512(to, _mm512_permutexvar_epi16((__m512i)lower, both));
        }
}

DOTS static void lay(const Product *a, int64_t across, uint16_t *to) {
    if (!a->turned) {
        lay_rows(weights_of(a, across), a->n_in, to, to + a->n_in * ACROSS);
        return;
    }
    for (int64_t row = 0; row < a->n_in; row += a->n_rows)
        lay_columns((const char *)(weights_of(a, row) + across), a->n_out, a->n_rows, 0, 0,
                    to + row * ACROSS);
}

/* Memory is, for each thread, for ACROSS weights times n_in laid out and WIDE rows rounded. */
static void compute(const Product *a, uint16_t *memory, int n_threads) {
    int64_t n_panels = a->n_out / ACROSS, n_splits = (2 * n_threads + n_panels - 1) / n_panels;
#pragma omp parallel num_threads(n_threads)
    {
        uint16_t *own = memory + omp_get_thread_num() * a->n_in * (ACROSS + WIDE);
        int64_t known = -1;
#pragma omp for schedule(static)
        for (int64_t task = 0; task < n_panels * n_splits; task++) {
            int64_t panel = task / n_splits, split = task % n_splits;
            if (!a->laid && panel != known) lay(a, panel * ACROSS, own);
            known = panel;
            Tiles given = {.x = a->x, .n_in = a->n_in, .n_pairs = a->n_in / 2,
                           .pairs = a->laid ? a->laid + panel * a->n_in * ACROSS : own,
                           .bias = a->bias ? a->bias + panel * ACROSS : NULL,
                           .found = a->found + 2 * panel * ACROSS, .width = a->n_out,
                           .then = a->then, .other = a->other + 2 * panel * ACROSS};
            if (!a->laid && panel + 1 < n_panels) given.of = a, given.next = (panel + 1) * ACROSS;
            tiles(&given, a->n_tokens * split / n_splits, a->n_tokens * (split + 1) / n_splits);
        }
    }
}

typedef struct { /* of a weight and a bias */
    const char *outer, *x;  /* (n_tokens, n_out), (n_tokens, n_in) */
    char *found, *of_bias;  /* (n_out, n_in), (n_out,) */
    int64_t n_tokens, n_in, n_out;
    int gelu; /* of x was multiplied */
} Gradient;

DOTS static void lay_x(const Gradient *a, int64_t across, uint16_t *to) {
    if (a->gelu) lay_columns(a->x + 2 * across, a->n_in, a->n_tokens, 1, 1, to);
    else lay_columns(a->x + 2 * across, a->n_in, a->n_tokens, 1, 0, to);
}

DOTS static void lay_outer(const Gradient *a, int64_t across, uint16_t *to) {
    lay_columns(a->outer + 2 * across, a->n_out, a->n_tokens, 1, 0, to);
}

DOTS static void add_up(const Gradient *a, int64_t across) {
    floats sums[2] = {0};
    for (int64_t token = 0; token < a->n_tokens; token++)
        for (int half = 0; half < 2; half++)
            sums[half] += load(a->outer, token * a->n_out + across + half * WIDE, 1);
    for (int half = 0; half < 2; half++) store(a->of_bias, across + half * WIDE, sums[half], 1);
}

/* Memory is for n_laid panels of x and one of each thread, ACROSS by the tokens, even in number. */
static void find(const Gradient *a, uint16_t *memory, int64_t n_laid, int n_threads) {
    int64_t n_pairs = (a->n_tokens + 1) / 2, panel = 2 * n_pairs * ACROSS;
    int64_t n_panels = a->n_in / ACROSS;
#pragma omp parallel num_threads(n_threads)
    for (int64_t first = 0; first < n_panels; first += n_laid) {
        int64_t end = first + n_laid < n_panels ? first + n_laid : n_panels;
        uint16_t *own = memory + (n_laid + omp_get_thread_num()) * panel;
#pragma omp for schedule(static)
        for (int64_t i = first; i < end; i++)
            lay_x(a, i * ACROSS, memory + (i - first) * panel);
#pragma omp for schedule(static)
        for (int64_t across = 0; across < a->n_out; across += ACROSS) {
            lay_outer(a, across, own);
            if (!first) add_up(a, across);
            for (int64_t i = first; i < end; i++) {
                Tiles given = {.x = own, .n_pairs = n_pairs,
                               .pairs = memory + (i - first) * panel,
                               .found = a->found + 2 * (across * a->n_in + i * ACROSS),
                               .width = a->n_in};
                tiles(&given, 0, ACROSS);
            }
        }
    }
}
#endif

/* ---- AdamW (Loshchilov and Hutter 2019), and the norm of its gradients ---- */

typedef struct { /* a tensor that learns: a row of a table of whole numbers */
    int64_t n, low; /* low: the gradient's precision */
    const char *gradient;
    float *weight, *first, *second; /* the moments */
} Learned;

typedef struct { /* and of a table of floats */
    float kept, step, root; /* share of the weight, rate of learning, root of the second moment's */
} Pace;

typedef struct {
    float divisor, epsilon, first, second, old_second; /* shares of what is new, and of old */
} Adam;

INLINE floats some(const char *from, int64_t at, int64_t n, int low) {
    _Alignas(float) char few[4 * WIDE] = {0};
    if (n >= WIDE) return load(from, at, low);
    memcpy(few, from + (low ? 2 : 4) * at, (low ? 2 : 4) * n);
    return load(few, 0, low);
}

INLINE void put_some(float *to, int64_t at, int64_t n, floats x) {
    if (n >= WIDE) *(floats *)(to + at) = x;
    else memcpy(to + at, &x, sizeof(float) * n);
}

INLINE floats root_of(floats x) {
    for (int i = 0; i < WIDE; i++) x[i] = sqrtf(x[i]);
    return x;
}

FOR_EACH_PROCESSOR
static void learn(const Learned *a, const Pace *pace, const Adam *how, int64_t from) {
    int64_t end = from + PART < a->n ? from + PART : a->n;
    for (int64_t i = from; i < end; i += WIDE) {
        int64_t n = end - i;
        floats g = some(a->gradient, i, n, (int)a->low) / how->divisor;
        floats w = some((char *)a->weight, i, n, 0) * pace->kept;
        floats m = some((char *)a->first, i, n, 0), v = some((char *)a->second, i, n, 0);
        m += (g - m) * how->first;
        v = v * how->old_second + g * g * how->second;
        w -= pace->step * m / (root_of(v) / pace->root + how->epsilon);
        put_some(a->first, i, n, m);
        put_some(a->second, i, n, v);
        put_some(a->weight, i, n, w);
    }
}

FOR_EACH_PROCESSOR
static double squares_of(const Learned *a, int64_t from) {
    int64_t end = from + PART < a->n ? from + PART : a->n;
    floats all = {0};
    for (int64_t i = from; i < end; i += WIDE) {
        floats g = some(a->gradient, i, end - i, (int)a->low);
        all += g * g;
    }
    return sum(all);
}

/* All tensors in parts that threads share: adds squares up, a sum for each thread, or learns. */
static void over_parts(const Learned *table, int n_tensors, const Pace *paces, const Adam *how,
                       double *squares, int n_threads) {
#pragma omp parallel num_threads(n_threads)
    for (int i = 0; i < n_tensors; i++)
#pragma omp for schedule(static) nowait
        for (int64_t from = 0; from < table[i].n; from += PART) {
            if (squares) squares[omp_get_thread_num()] += squares_of(table + i, from);
            else learn(table + i, paces + i, how, from);
        }
}

/* ---- What Python calls ---- */

#define ADDRESS(i) ((void *)PyLong_AsVoidPtr(arguments[i]))
#define WHOLE(i) PyLong_AsLongLong(arguments[i])
#define REAL(i) ((float)PyFloat_AsDouble(arguments[i]))

static int has(Py_ssize_t given, Py_ssize_t n) {
    if (given == n) return 1;
    PyErr_Format(PyExc_TypeError, "%zd arguments instead of %zd", given, n);
    return 0;
}

/* Threads for work of so many numbers: waking another one takes longer than a little work. */
static int shared(int64_t numbers, int n_threads) { return numbers < 1 << 15 ? 1 : n_threads; }

static int dots; /* whether there are products of bfloat16 */

/* (joined, found, inner or 0, sums or 0, bounds, n_rows, n_heads, size, longest, causal, low,
   scaling, rate, seed, n_threads) */
static PyObject *attention(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (!has(given, 15)) return NULL;
    Attention a = {.joined = ADDRESS(0), .found = ADDRESS(1), .inner = ADDRESS(2),
                   .sums = ADDRESS(3), .bounds = ADDRESS(4), .n_rows = (int)WHOLE(5),
                   .n_heads = (int)WHOLE(6), .size = (int)WHOLE(7), .causal = (int)WHOLE(9),
                   .low = (int)WHOLE(10), .scaling = REAL(11), .rate = REAL(12),
                   .seed = (uint64_t)WHOLE(13)};
    int longest = (int)WHOLE(8), units = a.n_rows * a.n_heads;
    int n_threads = shared((int64_t)units * longest * (longest + WIDE), (int)WHOLE(14));
    int64_t each = needed(longest, a.size);
    if (PyErr_Occurred()) return NULL;
    float *memory = malloc(n_threads * each * sizeof(float));
    if (!memory) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for schedule(dynamic, 8) num_threads(n_threads)
    for (int unit = 0; unit < units; unit++) {
        float *own = memory + omp_get_thread_num() * each;
        if (a.inner) attend_back(&a, unit, own);
#ifdef DOTS
        else if (a.low && dots && a.size % (2 * WIDE) == 0) attend_low(&a, unit, own);
#endif
        else attend(&a, unit, own);
    }
    Py_END_ALLOW_THREADS
    free(memory);
    Py_RETURN_NONE;
}

/* (part, states, weight, bias, normed, scales, low_normed or 0, kept_normed or 0, n_tokens, width,
   low, epsilon, rate, seed, n_threads) */
static PyObject *norm(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (!has(given, 15)) return NULL;
    Norm a = {.part = ADDRESS(0), .states = ADDRESS(1), .weight = ADDRESS(2), .bias = ADDRESS(3),
              .normed = ADDRESS(4), .scales = ADDRESS(5), .low_normed = ADDRESS(6),
              .kept_normed = ADDRESS(7), .n_tokens = WHOLE(8), .width = WHOLE(9),
              .low = (int)WHOLE(10), .epsilon = REAL(11), .rate = REAL(12),
              .seed = (uint64_t)WHOLE(13)};
    int n_threads = shared(a.n_tokens * a.width, (int)WHOLE(14));
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(n_threads)
    for (int64_t token = 0; token < a.n_tokens; token++) normalise(&a, token);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* (kept_normed, scales, weight, outer or 0, low_outer or 0, inner, inner_part, learned, n_tokens,
   width, low, rate, seed, n_threads); learned is (n_threads, 2, width), zeros */
static PyObject *norm_back(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (!has(given, 14)) return NULL;
    Norm a = {.kept_normed = ADDRESS(0), .scales = ADDRESS(1), .weight = ADDRESS(2),
              .outer = ADDRESS(3), .low_outer = ADDRESS(4), .inner = ADDRESS(5),
              .inner_part = ADDRESS(6), .learned = ADDRESS(7), .n_tokens = WHOLE(8),
              .width = WHOLE(9), .low = (int)WHOLE(10), .rate = REAL(11),
              .seed = (uint64_t)WHOLE(12)};
    int n_threads = shared(a.n_tokens * a.width, (int)WHOLE(13));
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int64_t token = 0; token < a.n_tokens; token++) {
        float *own = a.learned + omp_get_thread_num() * 2 * a.width;
        normalise_back(&a, token, own, own + a.width);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

#ifdef DOTS
/* (x, laid or 0, parts or 0, bias or 0, found, other or 0, n_tokens, n_in, n_out, n_rows, turned,
   then, n_threads) */
static PyObject *product(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (!has(given, 13)) return NULL;
    Product a = {.x = ADDRESS(0), .laid = ADDRESS(1), .parts = ADDRESS(2), .bias = ADDRESS(3),
                 .found = ADDRESS(4), .other = ADDRESS(5), .n_tokens = WHOLE(6),
                 .n_in = WHOLE(7), .n_out = WHOLE(8), .n_rows = WHOLE(9),
                 .turned = (int)WHOLE(10), .then = (int)WHOLE(11)};
    int n_threads = (int)WHOLE(12);
    if (PyErr_Occurred()) return NULL;
    uint16_t *memory = NULL;
    if (!a.laid) {
        memory = aligned_alloc(64, 2 * n_threads * a.n_in * (ACROSS + WIDE));
        if (!memory) return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    compute(&a, memory, n_threads);
    Py_END_ALLOW_THREADS
    free(memory);
    Py_RETURN_NONE;
}

/* (outer, x, found, of_bias, n_tokens, n_in, n_out, gelu, n_threads) */
static PyObject *product_back(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (!has(given, 9)) return NULL;
    Gradient a = {.outer = ADDRESS(0), .x = ADDRESS(1), .found = ADDRESS(2),
                  .of_bias = ADDRESS(3), .n_tokens = WHOLE(4), .n_in = WHOLE(5),
                  .n_out = WHOLE(6), .gelu = (int)WHOLE(7)};
    int n_threads = (int)WHOLE(8);
    if (PyErr_Occurred()) return NULL;
    int64_t panel = (a.n_tokens + 1) / 2 * 4 * ACROSS; /* bytes */
    int64_t n_laid = panel * a.n_in / ACROSS < LAID ? a.n_in / ACROSS : LAID / panel + 1;
    uint16_t *memory = aligned_alloc(64, (n_laid + n_threads) * panel);
    if (!memory) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    find(&a, memory, n_laid, n_threads);
    Py_END_ALLOW_THREADS
    free(memory);
    Py_RETURN_NONE;
}
#endif

/* (table of Learned, table of Pace, n_tensors, divisor, epsilon, beta_first, beta_second,
   n_threads) */
static PyObject *adamw(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (!has(given, 8)) return NULL;
    const Learned *table = ADDRESS(0);
    const Pace *paces = ADDRESS(1);
    double beta_first = PyFloat_AsDouble(arguments[5]), beta_second = PyFloat_AsDouble(arguments[6]);
    Adam how = {.divisor = REAL(3), .epsilon = REAL(4), .first = 1 - beta_first,
                .second = 1 - beta_second, .old_second = beta_second};
    int n_tensors = (int)WHOLE(2), n_threads = (int)WHOLE(7);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    over_parts(table, n_tensors, paces, &how, NULL, n_threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* (table of Learned, n_tensors, squares, n_threads); squares is (n_threads,) in double, zeros */
static PyObject *square(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (!has(given, 4)) return NULL;
    const Learned *table = ADDRESS(0);
    double *squares = ADDRESS(2);
    int n_tensors = (int)WHOLE(1), n_threads = (int)WHOLE(3);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    over_parts(table, n_tensors, NULL, NULL, squares, n_threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"adamw", (PyCFunction)(void (*)(void))adamw, METH_FASTCALL, NULL},
    {"attention", (PyCFunction)(void (*)(void))attention, METH_FASTCALL, NULL},
    {"norm", (PyCFunction)(void (*)(void))norm, METH_FASTCALL, NULL},
    {"norm_back", (PyCFunction)(void (*)(void))norm_back, METH_FASTCALL, NULL},
#ifdef DOTS
    {"product", (PyCFunction)(void (*)(void))product, METH_FASTCALL, NULL},
    {"product_back", (PyCFunction)(void (*)(void))product_back, METH_FASTCALL, NULL},
#endif
    {"square", (PyCFunction)(void (*)(void))square, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "kernels", NULL, 0, functions};

PyMODINIT_FUNC PyInit_kernels(void) {
    PyObject *made = PyModule_Create(&module);
#ifdef DOTS
    dots = __builtin_cpu_supports("avx512bf16") != 0;
#endif
    if (made && PyModule_AddIntConstant(made, "dots", dots)) Py_CLEAR(made);
    return made;
}
