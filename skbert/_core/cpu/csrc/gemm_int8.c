/* Linear layers in int8, with weights rounded by column and inputs rounded by token.

A token's numbers x become low + step * q, with q from 0 to 255 but for a few outliers, and a
column's weights scale * w, with w from -127 to 127. Then x weights is step * scale * sum(q w) +
low * scale * sum(w): a product of integers, exact in any order, and a sum that is known before. A
thread takes a block of tokens through one layer after another, so that what lies between them stays
in its cache; of few tokens all threads compute a layer together, each some columns. */

#include <omp.h>
#include <stddef.h>

#include "gelu.h"
#include "quantize.h"
#include "scratch.h"

#ifdef HAS_BF16_DOT
#include <sys/syscall.h>
#include <unistd.h>

#define BLOCK_TOKENS 256 /* that a thread takes through all layers */
#define VECTOR_ROWS 12  /* whose sums fit in the registers */
#define ROUNDED_TOGETHER 8 /* tokens, which stay in the first cache */
#define FEW_TOKENS 32   /* of which threads share the columns */

/* ---- A panel of a product: some tokens and PANEL columns ---- */

typedef struct {
    uint8_t *quantized; /* (n_tokens, padded n_in) */
    Token *tokens;
    Piece *pieces; /* (n_tokens, MOST_PIECES) */
    const PackedWeight *weight;
    char *output; /* (n_tokens, n_out) */
    int n_tokens, is_bf16, use_amx;
} Block;

typedef struct { /* what follows the sums of some tokens, from a column on */
    const float *columns; /* scale, sum of weights and bias */
    const int8_t *weights; /* of the panel */
    const Token *tokens;
    const Piece *pieces; /* of each */
    char *output;
    int64_t n_out;
    int is_bf16, gelu;
} Epilogue;

INLINE const int8_t *weights_at(const Block *a, int64_t column) {
    return (const int8_t *)a->weight->packed + column * padded(a->weight->n_in);
}

INLINE Epilogue epilogue_at(const Block *a, int64_t column, int first) {
    const PackedWeight *weight = a->weight;
    int64_t offset = (first * weight->n_out + column) << (2 - a->is_bf16);
    return (Epilogue){weight->columns + column, weights_at(a, column), a->tokens + first,
                      a->pieces + first * MOST_PIECES, a->output + offset, weight->n_out,
                      a->is_bf16, (int)weight->gelu};
}

typedef struct { /* of a vector of columns */
    __m512 scale, weights, bias;
} Columns;

INT8_DOT INLINE Columns columns_at(const Epilogue *a, int half) {
    const float *from = a->columns + half * LANES;
    return (Columns){_mm512_loadu_ps(from), _mm512_loadu_ps(from + a->n_out),
                     _mm512_loadu_ps(from + 2 * a->n_out)};
}

/* A vector of a token's numbers from the sums of integers, and their GELU if that follows. */
INT8_DOT INLINE floats numbers_of(const Columns *a, Range range, int gelu, __m512i sums) {
    __m512 scale = _mm512_mul_ps(_mm512_set1_ps(range.step), a->scale);
    __m512 rest = _mm512_fmadd_ps(_mm512_set1_ps(range.low), a->weights, a->bias);
    floats x = (floats)_mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scale, rest);
    return gelu ? coarse_gelu(x) : x;
}

/* A sum, and the products of four numbers and four weights for each number of the sum. */
INT8_DOT INLINE __m512i add_products(__m512i sum, __m512i four, __m512i weights) {
    sum = _mm512_dpbusd_epi32(sum, four, weights);
    STAY(sum);
    return sum;
}

/* Adds the products of a token's pieces to its sums. */
INT8_DOT INLINE void add_outlying(const Epilogue *a, int row, __m512i sums[2]) {
    const Piece *piece = a->pieces + row * MOST_PIECES, *end = piece + a->tokens[row].n_pieces;
    for (; piece < end; piece++) {
        const int8_t *weights = a->weights + piece->fours * 4 * PANEL;
        __m512i left = _mm512_loadu_si512(weights), right = _mm512_loadu_si512(weights + 64);
        __m512i four = _mm512_set1_epi32(piece->four);
        if (piece->is_negative) {
            left = _mm512_sub_epi8(_mm512_setzero_si512(), left);
            right = _mm512_sub_epi8(_mm512_setzero_si512(), right);
        }
        sums[0] = add_products(sums[0], four, left);
        sums[1] = add_products(sums[1], four, right);
    }
}

/* Some tokens, whose sums stay in the registers. Weights are fetched ahead where few tokens need
them, which wait for memory; more tokens find them in the cache. */
INT8_DOT INLINE void compute_rows(const Block *a, int64_t column, int first, int n_rows,
                                  int fetches) {
    int64_t width = padded(a->weight->n_in);
    const uint8_t *q = a->quantized + first * width;
    const int8_t *weights = weights_at(a, column);
    __m512i total[VECTOR_ROWS][2];
    for (int row = 0; row < n_rows; row++)
        total[row][0] = total[row][1] = _mm512_setzero_si512();
    for (int64_t i = 0; i < width; i += 4, weights += 4 * PANEL) {
        __m512i left = _mm512_loadu_si512(weights), right = _mm512_loadu_si512(weights + 64);
        if (fetches) fetch_weights(weights);
        for (int row = 0; row < n_rows; row++) {
            int32_t four;
            memcpy(&four, q + row * width + i, sizeof four);
            __m512i same = _mm512_set1_epi32(four);
            total[row][0] = add_products(total[row][0], same, left);
            total[row][1] = add_products(total[row][1], same, right);
        }
    }
    Epilogue epilogue = epilogue_at(a, column, first);
    for (int row = 0; row < n_rows; row++) add_outlying(&epilogue, row, total[row]);
    for (int half = 0; half < 2; half++) {
        Columns columns = columns_at(&epilogue, half);
        for (int row = 0; row < n_rows; row++)
            store(epilogue.output, row * epilogue.n_out + half * LANES,
                  numbers_of(&columns, epilogue.tokens[row].range, epilogue.gelu, total[row][half]),
                  a->is_bf16);
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

typedef struct { /* rows whose sums are in the tiles, from one panel to the next */
    Epilogue epilogue;
    int n_rows;
    int32_t sums[2 * TILE_ROWS * PANEL] __attribute__((aligned(64))); /* where they are stored */
} TileRows;

/* What belongs to the columns stays in registers. */
AMX INLINE void finish_rows(const void *rows, int first, int end) {
    const TileRows *a = rows;
    if (first == end) return; /* there are no rows */
    const Epilogue *epilogue = &a->epilogue;
    Columns left = columns_at(epilogue, 0), right = columns_at(epilogue, 1);
    int gelu = epilogue->gelu, is_bf16 = epilogue->is_bf16;
    int64_t row_bytes = epilogue->n_out << (2 - is_bf16);
    const int32_t *sums = a->sums + first * PANEL;
    char *to = epilogue->output + first * row_bytes;
    for (; first < end; first++, sums += PANEL, to += row_bytes) {
        __m512i both[] = {_mm512_load_si512(sums), _mm512_load_si512(sums + LANES)};
        add_outlying(epilogue, first, both);
        floats x = numbers_of(&left, epilogue->tokens[first].range, gelu, both[0]);
        floats y = numbers_of(&right, epilogue->tokens[first].range, gelu, both[1]);
        if (is_bf16) store_bf16(to, x, y);
        else *(floats *)to = x, *(floats *)(to + sizeof x) = y;
    }
}

/* A share of the next panel for each of the turns with this one. */
INLINE Prefetch next_panel(const Block *a, int64_t column, int first) {
    int64_t n_bytes = padded(a->weight->n_in) * PANEL;
    int64_t n_blocks = (a->n_tokens + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
    int64_t n = (n_bytes / TILE_BYTES + n_blocks - 1) / n_blocks;
    const char *next = (const char *)a->weight->packed + (column / PANEL + 1) * n_bytes;
    return (Prefetch){next + first / (2 * TILE_ROWS) * n * TILE_BYTES, n, TILE_BYTES};
}

/* Rows of a block in tiles; then those before them are finished. */
AMX INLINE void multiply_in_tiles(const Block *a, int64_t column, int first, int is_half,
                                  const TileProduct *before) {
    int64_t width = padded(a->weight->n_in);
    TileFactor x = {a->quantized + first * width, width, TILE_BYTES};
    multiply_tiles(x, weights_at(a, column), width, is_half, 0, next_panel(a, column, first),
                   before, finish_rows);
}

INLINE TileProduct product_of(TileRows *a) {
    return (TileProduct){a->n_rows ? a->sums : NULL, a, a->n_rows};
}

AMX static void compute_by_tiles(const Block *a, int64_t column, TileRows *in_tiles) {
    for (int first = 0; first < a->n_tokens; first += 2 * TILE_ROWS) {
        int n_left = a->n_tokens - first;
        TileProduct before = product_of(in_tiles);
        if (n_left > TILE_ROWS) multiply_in_tiles(a, column, first, 0, &before);
        else multiply_in_tiles(a, column, first, 1, &before);
        in_tiles->epilogue = epilogue_at(a, column, first);
        in_tiles->n_rows = n_left < 2 * TILE_ROWS ? n_left : 2 * TILE_ROWS;
    }
}

/* What is left in the end. */
AMX static void finish_all(TileRows *in_tiles) {
    TileProduct last = product_of(in_tiles);
    finish_tiles(&last, finish_rows);
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

INLINE Numbers numbers_at(const Block *a, const char *x, int64_t token) {
    int64_t n_in = a->weight->n_in;
    return (Numbers){x + (token * n_in << (2 - a->is_bf16)), n_in, a->is_bf16};
}

/* Tokens from the first to the one before the last: ranges of all come first, as a token's numbers
wait for its range. */
INT8_DOT static void quantize_tokens(const Block *a, const char *x, int64_t first, int64_t last) {
    for (int64_t token = first; token < last; token++) {
        Numbers numbers = numbers_at(a, x, token);
        find_range(&numbers, a->weight->outliers, a->tokens + token);
    }
    for (int64_t token = first; token < last; token++) {
        Numbers numbers = numbers_at(a, x, token);
        round_token(&numbers, a->tokens + token, a->pieces + token * MOST_PIECES,
                    a->quantized + token * padded(numbers.n_in));
    }
}

static void quantize_all(const Block *a, const char *x) {
    for (int first = 0; first < a->n_tokens; first += ROUNDED_TOGETHER) {
        int last = first + ROUNDED_TOGETHER;
        quantize_tokens(a, x, first, last < a->n_tokens ? last : a->n_tokens);
    }
}

/* Columns from the first to the one before the last. */
INT8_DOT static void compute_columns(const Block *a, int64_t first, int64_t last) {
    TileRows in_tiles;
    in_tiles.n_rows = 0;
    for (int64_t column = first; column < last; column += PANEL) {
        if (a->use_amx) compute_by_tiles(a, column, &in_tiles);
        else if (a->n_tokens <= FEW_TOKENS) compute_by_vectors(a, column, 1);
        else compute_by_vectors(a, column, 0);
    }
    if (a->use_amx) finish_all(&in_tiles);
}

#define TOKEN_BYTES (sizeof(Token) + MOST_PIECES * sizeof(Piece))

/* A block of so many tokens in memory of a thread. */
static Block block_in(const Int8Linears *a, int n_tokens, char *memory) {
    return (Block){.tokens = (Token *)memory,
                   .pieces = (Piece *)(memory + BLOCK_TOKENS * sizeof(Token)),
                   .quantized = (uint8_t *)memory + BLOCK_TOKENS * TOKEN_BYTES,
                   .n_tokens = n_tokens, .is_bf16 = a->is_bf16, .use_amx = a->use_amx};
}

/* Bytes of a thread's memory, before what lies between the layers of a block. */
static size_t bytes_of_block(const Int8Linears *a) {
    int64_t width = 0;
    for (int i = 0; i < a->n_weights; i++)
        if (padded(a->weights[i].n_in) > width) width = padded(a->weights[i].n_in);
    return BLOCK_TOKENS * (TOKEN_BYTES + width);
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
        quantize_all(&block, x);
        compute_columns(&block, 0, block.weight->n_out);
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
        for (int token = 0; token < block.n_tokens; token++)
            quantize_tokens(&block, x, token, token + 1);
#pragma omp for schedule(static)
        for (int64_t column = 0; column < block.weight->n_out; column += PANEL)
            compute_columns(&block, column, column + PANEL);
        x = block.output;
    }
}

/* Tokens of each block, so that there are as many blocks as threads, or a multiple. */
static int64_t tokens_of_blocks(const Int8Linears *a, int n_threads) {
    int64_t most = (int64_t)BLOCK_TOKENS * n_threads, step = a->use_amx ? TILE_ROWS : 1;
    int64_t n_blocks = (a->n_tokens + most - 1) / most * n_threads;
    return n_blocks ? round_up((int)((a->n_tokens + n_blocks - 1) / n_blocks), step) : step;
}

static void compute_team(const Int8Linears *a, char *memory, int64_t n_tokens) {
    TileConfig before;
    if (a->use_amx) before = configure_tiles(&OWN_TILES);
    if (a->n_tokens <= FEW_TOKENS) {
        share_columns(a, memory);
    } else {
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < a->n_tokens; first += n_tokens)
            compute_block(a, first, n_tokens, memory);
    }
    if (a->use_amx) configure_tiles(&before);
}

int int8_linears(const Int8Linears *a, int n_threads) {
    size_t n_bytes = bytes_of_block(a) + bytes_between(a);
    int64_t n_tokens = tokens_of_blocks(a, n_threads);
    int failed = 0, is_shared = a->n_tokens <= FEW_TOKENS;
    char *shared = scratch(n_bytes); /* of this thread */
#pragma omp parallel num_threads(n_threads) reduction(| : failed) if (!is_shared)
    failed = !scratch(n_bytes); /* which stays until the next */
    if (failed || !shared) return -1;
#pragma omp parallel num_threads(n_threads)
    compute_team(a, is_shared ? shared : scratch(n_bytes), n_tokens);
    return 0;
}
#endif
