/* Linear layers in int8, with weights rounded by column and inputs rounded by token.

A token's numbers x become low + step * q, with q from 0 to 255 between the least and the largest
of them, and a column's weights scale * w, with w from -127 to 127. Then x weights is
step * scale * sum(q w) + low * scale * sum(w): a product of integers, exact in any order, and a
sum that is known before. A thread takes a block of tokens through one layer after another, so
that what lies between them stays in its cache; of few tokens all threads compute a layer together,
each some columns. */

#include <omp.h>
#include <stddef.h>

#include "gelu.h"
#include "scratch.h"
#include "tiles.h"

#ifdef HAS_BF16_DOT
#include <sys/syscall.h>
#include <unistd.h>

#define INT8_DOT __attribute__((target("arch=x86-64-v4,avx512vnni")))
#define BLOCK_TOKENS 128 /* that a thread takes through all layers */
#define VECTOR_ROWS 12  /* whose sums fit in the registers */
#define FEW_TOKENS 32   /* of which threads share the columns */
#define AHEAD 2048      /* bytes of weights that are fetched before they are needed */

/* ---- Rounding ---- */

typedef struct { /* of a token: numbers are low + step * q */
    float low, step;
} Range;

/* Bytes of a token: of the last tile some may be zeros. */
INLINE int64_t padded(int64_t n_in) { return round_up((int)n_in, TILE_BYTES); }

/* A token's range; NaN where one of its numbers is none, or infinite. Two halves of it are read
side by side, as a vector waits for the one before. */
INT8_DOT INLINE Range range_of(const char *x, int64_t offset, int64_t n_in, int is_bf16) {
    int64_t half = (n_in + 2 * LANES - 1) / (2 * LANES) * LANES, second = offset + n_in - half;
    __m512 least = (__m512)load(x, offset, is_bf16), most = least, least2 = least, most2 = least;
    floats zero = {0}, zero2 = {0};
    for (int64_t i = 0; i < half; i += LANES) {
        floats one = load(x, offset + i, is_bf16), other = load(x, second + i, is_bf16);
        least = _mm512_min_ps(least, (__m512)one), least2 = _mm512_min_ps(least2, (__m512)other);
        most = _mm512_max_ps(most, (__m512)one), most2 = _mm512_max_ps(most2, (__m512)other);
        zero += one * 0, zero2 += other * 0;
    }
    float low = _mm512_reduce_min_ps(_mm512_min_ps(least, least2)) + sum(zero + zero2);
    return (Range){low, (_mm512_reduce_max_ps(_mm512_max_ps(most, most2)) - low) / 255};
}

INT8_DOT static Range quantize(const char *x, int64_t offset, int64_t n_in, int is_bf16,
                               uint8_t *to) {
    Range range = range_of(x, offset, n_in, is_bf16);
    __m512 low = _mm512_set1_ps(range.low);
    __m512 inverse = _mm512_set1_ps(range.step > 0 ? 1 / range.step : 0);
    for (int64_t i = 0; i < n_in; i += LANES) {
        __m512 above = _mm512_sub_ps((__m512)load(x, offset + i, is_bf16), low);
        __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(above, inverse));
        _mm_storeu_si128((void *)(to + i), _mm512_cvtusepi32_epi8(rounded));
    }
    return range;
}

/* ---- A panel of a product: some tokens and PANEL columns ---- */

typedef struct {
    uint8_t *quantized; /* (n_tokens, padded n_in) */
    Range *ranges;      /* of each token */
    const PackedWeight *weight;
    char *output; /* (n_tokens, n_out) */
    int n_tokens, is_bf16, use_amx;
} Block;

/* Two vectors of a token's numbers from the sums of integers, and their GELU if that follows. */
INT8_DOT INLINE void finish(const Block *a, int token, int64_t column, const __m512i sums[2],
                            floats numbers[2]) {
    const float *columns = a->weight->columns + column;
    int64_t n_out = a->weight->n_out;
    __m512 step = _mm512_set1_ps(a->ranges[token].step), low = _mm512_set1_ps(a->ranges[token].low);
    for (int half = 0; half < 2; half++, columns += LANES) {
        __m512 scale = _mm512_mul_ps(step, _mm512_loadu_ps(columns));
        __m512 rest = _mm512_fmadd_ps(low, _mm512_loadu_ps(columns + n_out),
                                      _mm512_loadu_ps(columns + 2 * n_out));
        numbers[half] = (floats)_mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[half]), scale, rest);
        if (a->weight->gelu) numbers[half] = coarse_gelu(numbers[half]);
    }
}

/* A sum, and the products of four numbers and four weights for each number of the sum. */
INT8_DOT INLINE __m512i add_products(__m512i sum, __m512i four, __m512i weights) {
    sum = _mm512_dpbusd_epi32(sum, four, weights);
    STAY(sum);
    return sum;
}

/* Some tokens, whose sums stay in the registers. Weights are fetched ahead where few tokens need
them, which wait for memory; more tokens find them in the cache. */
INT8_DOT INLINE void compute_rows(const Block *a, int64_t column, int first, int n_rows,
                                  int fetches) {
    int64_t width = padded(a->weight->n_in);
    const uint8_t *q = a->quantized + first * width;
    const int8_t *weights = (const int8_t *)a->weight->packed + column * width;
    __m512i total[VECTOR_ROWS][2];
    for (int row = 0; row < n_rows; row++)
        total[row][0] = total[row][1] = _mm512_setzero_si512();
    for (int64_t i = 0; i < width; i += 4, weights += 4 * PANEL) {
        __m512i left = _mm512_loadu_si512(weights), right = _mm512_loadu_si512(weights + 64);
        if (fetches) __builtin_prefetch(weights + AHEAD), __builtin_prefetch(weights + AHEAD + 64);
        for (int row = 0; row < n_rows; row++) {
            int32_t four;
            memcpy(&four, q + row * width + i, sizeof four);
            __m512i same = _mm512_set1_epi32(four);
            total[row][0] = add_products(total[row][0], same, left);
            total[row][1] = add_products(total[row][1], same, right);
        }
    }
    for (int row = 0; row < n_rows; row++) {
        floats numbers[2];
        finish(a, first + row, column, total[row], numbers);
        int64_t offset = (first + row) * a->weight->n_out + column;
        for (int half = 0; half < 2; half++)
            store(a->output, offset + half * LANES, numbers[half], a->is_bf16);
    }
}

#define CASE(n)                                                                            \
    case n: compute_rows(a, column, first, n, fetches); break;

INT8_DOT INLINE void compute_by_vectors(const Block *a, int64_t column, int fetches) {
    int n_blocks = (a->n_tokens + VECTOR_ROWS - 1) / VECTOR_ROWS;
    for (int block = 0; block < n_blocks; block++) {
        int first = block * a->n_tokens / n_blocks, last = (block + 1) * a->n_tokens / n_blocks;
        switch (last - first) { /* each with its own registers */
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
            CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
        }
    }
}

/* ---- The same in tiles ---- */

typedef struct { /* rows of a block, and their sums */
    const Block *block;
    int64_t column;
    int first;
    const int32_t *sums;
} TileRows;

AMX INLINE void finish_row(const void *rows, int row) {
    const TileRows *a = rows;
    const int32_t *sums = a->sums + row * PANEL;
    floats numbers[2];
    __m512i both[2] = {_mm512_load_si512(sums), _mm512_load_si512(sums + LANES)};
    finish(a->block, a->first + row, a->column, both, numbers);
    int64_t offset = (a->first + row) * a->block->weight->n_out + a->column;
    if (a->block->is_bf16) store_bf16(a->block->output + 2 * offset, numbers[0], numbers[1]);
    else memcpy(a->block->output + 4 * offset, numbers, sizeof numbers);
}

/* Rows of a block in tiles; those before them are finished meanwhile. */
AMX INLINE void multiply_in_tiles(const Block *a, int64_t column, int first, int is_half,
                                  const TileProduct *before) {
    int64_t width = padded(a->weight->n_in);
    const int8_t *weights = (const int8_t *)a->weight->packed + column * width;
    TileFactor x = {a->quantized + first * width, width, TILE_BYTES};
    multiply_tiles(x, weights, width, is_half, 0, (Prefetch){0}, before, finish_row);
}

AMX static void compute_by_tiles(const Block *a, int64_t column) {
    int32_t sums[2 * TILE_ROWS * PANEL] __attribute__((aligned(64)));
    TileRows rows[2];
    TileProduct before = {0};
    for (int first = 0, number = 0; first < a->n_tokens; first += 2 * TILE_ROWS, number ^= 1) {
        int n_left = a->n_tokens - first;
        rows[number] = (TileRows){a, column, first, sums};
        if (n_left > TILE_ROWS) multiply_in_tiles(a, column, first, 0, &before);
        else multiply_in_tiles(a, column, first, 1, &before);
        int n_rows = n_left < 2 * TILE_ROWS ? n_left : 2 * TILE_ROWS;
        before = (TileProduct){sums, rows + number, n_rows};
    }
    finish_tiles(&before, finish_row);
}

#ifndef ARCH_REQ_XCOMP_PERM
#define ARCH_REQ_XCOMP_PERM 0x1023
#endif
#define TILE_DATA 18 /* a state of the processor that a process has to ask for */

int find_amx(void) {
    if (!__builtin_cpu_supports("amx-int8") || !__builtin_cpu_supports("amx-bf16")) return 0;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}

/* ---- Layers ---- */

INT8_DOT static void quantize_token(const Block *a, const char *x, int64_t token) {
    int64_t n_in = a->weight->n_in, width = padded(n_in);
    uint8_t *to = a->quantized + token * width;
    a->ranges[token] = quantize(x, token * n_in, n_in, a->is_bf16, to);
    memset(to + n_in, 0, width - n_in);
}

INT8_DOT static void compute_column(const Block *a, int64_t column) {
    if (a->use_amx) compute_by_tiles(a, column);
    else if (a->n_tokens <= FEW_TOKENS) compute_by_vectors(a, column, 1);
    else compute_by_vectors(a, column, 0);
}

/* A block of so many tokens in memory of a thread. */
static Block block_in(const Int8Linears *a, int n_tokens, char *memory) {
    return (Block){.ranges = (Range *)memory,
                   .quantized = (uint8_t *)memory + BLOCK_TOKENS * sizeof(Range),
                   .n_tokens = n_tokens, .is_bf16 = a->is_bf16, .use_amx = a->use_amx};
}

/* Bytes of a thread's memory, before what lies between the layers of a block. */
static size_t bytes_of_block(const Int8Linears *a) {
    int64_t width = 0;
    for (int i = 0; i < a->n_weights; i++)
        if (padded(a->weights[i].n_in) > width) width = padded(a->weights[i].n_in);
    return BLOCK_TOKENS * (sizeof(Range) + width);
}

static size_t bytes_between(const Int8Linears *a) {
    return a->n_weights > 1 ? BLOCK_TOKENS * a->weights[1].n_in * sizeof(float) : 0;
}

static void compute_block(const Int8Linears *a, int64_t first, int64_t n_tokens, char *memory) {
    int64_t n_left = a->n_tokens - first, size = a->is_bf16 ? 2 : 4;
    Block block = block_in(a, n_left < n_tokens ? n_left : n_tokens, memory);
    const char *x = a->x + first * a->weights->n_in * size;
    for (int i = 0; i < a->n_weights; i++) {
        block.weight = a->weights + i;
        block.output = memory + bytes_of_block(a);
        if (i == a->n_weights - 1)
            block.output = a->output + first * block.weight->n_out * size;
        for (int token = 0; token < block.n_tokens; token++) quantize_token(&block, x, token);
        for (int64_t column = 0; column < block.weight->n_out; column += PANEL)
            compute_column(&block, column);
        x = block.output;
    }
}

/* All tokens: the threads of a team share these, to round them, and then the columns. */
static void share_columns(const Int8Linears *a, char *shared) {
    Block block = block_in(a, a->n_tokens, shared);
    const char *x = a->x;
    for (int i = 0; i < a->n_weights; i++) {
        block.weight = a->weights + i;
        block.output = i == a->n_weights - 1 ? a->output : shared + bytes_of_block(a);
#pragma omp for schedule(static)
        for (int token = 0; token < block.n_tokens; token++) quantize_token(&block, x, token);
#pragma omp for schedule(static)
        for (int64_t column = 0; column < block.weight->n_out; column += PANEL)
            compute_column(&block, column);
        x = block.output;
    }
}

/* Tokens of each block, so that there are as many blocks as threads, or a multiple. */
static int64_t tokens_of_blocks(int64_t n_tokens, int n_threads) {
    int64_t most = (int64_t)BLOCK_TOKENS * n_threads, n_blocks = (n_tokens + most - 1) / most;
    n_blocks *= n_threads;
    return n_blocks ? round_up((int)((n_tokens + n_blocks - 1) / n_blocks), TILE_ROWS) : TILE_ROWS;
}

static void compute_team(const Int8Linears *a, char *memory, char *shared, int64_t n_tokens) {
    TileConfig before;
    if (a->use_amx) before = configure_tiles(&OWN_TILES);
    if (a->n_tokens <= FEW_TOKENS) {
        share_columns(a, shared);
    } else {
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < a->n_tokens; first += n_tokens)
            compute_block(a, first, n_tokens, memory);
    }
    if (a->use_amx) configure_tiles(&before);
}

int int8_linears(const Int8Linears *a, int n_threads) {
    size_t n_bytes = bytes_of_block(a) + bytes_between(a);
    int64_t n_tokens = tokens_of_blocks(a->n_tokens, n_threads);
    int failed = 0;
    char *shared = scratch(n_bytes); /* of this thread */
#pragma omp parallel num_threads(n_threads) reduction(| : failed)
    failed = !scratch(n_bytes); /* which stays until the next */
    if (failed || !shared) return -1;
#pragma omp parallel num_threads(n_threads)
    compute_team(a, scratch(n_bytes), shared, n_tokens);
    return 0;
}
#endif
