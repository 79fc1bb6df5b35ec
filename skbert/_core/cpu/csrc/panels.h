/* Products of bfloat16, two numbers of a row at a time, in panels of PANEL columns.

Each takes the factor of its columns packed in pairs, so that a vector holds a pair for each of
sixteen columns. */

#ifndef SKBERT_PANELS_H
#define SKBERT_PANELS_H

#include "gelu.h"
#include "parts.h"
#include "tiles.h"

#ifdef HAS_BF16_DOT
#define BLOCK_ROWS 12 /* whose sums fit in the registers */
#define BLOCK_TILES (2 * TILE_ROWS) /* rows whose sums fit in the tiles */

typedef struct {
    const uint16_t *x;     /* (n_rows, n_in); where n_in is 0 packed, too: as pairs, or for tiles
                              as (n_pairs / 16, 2) tiles of TILE_ROWS rows */
    int64_t n_in, n_pairs;
    const uint16_t *pairs; /* (n_pairs, PANEL, 2) */
    const float *bias;     /* (PANEL,), or NULL */
    char *output;
    int64_t width; /* numbers from one row of the output to the next */
    int epilogue;
    const char *before_gelu; /* what the epilogue reads, */
    char *gelu;              /* and what it writes beside the output: rows like the output's */
    int past_caches; /* what is written is read late, or is larger than the caches */
    int64_t pairs_step; /* where PANEL rows of x in tiles are multiplied by several panels side by
                           side: numbers from one to the next; otherwise 0 */
    const uint16_t *next_pairs; /* of the next panel, which are fetched into the cache; or NULL */
    const Linear *next; /* whose weights at next_column are fetched instead; or NULL */
    int64_t next_column;
} Panel;

/* ---- Fetching ahead ---- */

INLINE int64_t weight_width(const Linear *a) { return a->transposed ? a->n_out : a->n_in; }

INLINE const float *weight_row(const Linear *a, int64_t row) {
    return a->weights[row / a->n_rows] + row % a->n_rows * weight_width(a);
}

/* A share of float weights for each block; of some only for the first blocks. */
INLINE Prefetch prefetch_weights(const Linear *a, int64_t column, int64_t block) {
    if (!a->transposed) { /* rows, one after another in memory */
        int64_t n = a->n_in / 2;
        return (Prefetch){(const char *)weight_row(a, column) + block * n * CACHE_LINE,
                          block < 4 ? n : 0, CACHE_LINE};
    }
    int64_t n_pieces = a->n_in == a->n_rows ? 2 : a->n_in / a->n_rows, n = a->n_in / n_pieces;
    const float *row = weight_row(a, block % n_pieces * n) + column;
    return (Prefetch){(const char *)row + block / n_pieces * CACHE_LINE,
                      block < 2 * n_pieces ? n : 0, 4 * weight_width(a)};
}

INLINE Prefetch prefetch_next(const Panel *a, int64_t block, int64_t n_blocks) {
    if (a->next) return prefetch_weights(a->next, a->next_column, block);
    if (!a->next_pairs) return (Prefetch){0};
    int64_t n = (2 * a->n_pairs + n_blocks - 1) / n_blocks;
    return (Prefetch){(const char *)a->next_pairs + block * n * CACHE_LINE, n, CACHE_LINE};
}

/* ---- In vectors ---- */

typedef struct { /* what follows the sums of a row */
    int kind, past_caches;
    char *output, *gelu;
    const char *before_gelu;
} Epilogue;

INLINE Epilogue epilogue_at(const Panel *a, int64_t offset) { /* in bytes */
    return (Epilogue){a->epilogue, a->past_caches, a->output + offset,
                      a->gelu ? a->gelu + offset : NULL,
                      a->before_gelu ? a->before_gelu + offset : NULL};
}

BF16_DOT INLINE void write_line(char *to, __m512i line, int past_caches) {
    if (past_caches) _mm512_stream_si512((void *)to, line);
    else _mm512_storeu_si512(to, line);
}

/* Stores a result and what follows it, so many bytes behind the first row. */
BF16_DOT INLINE void apply_epilogue(const Epilogue *a, int64_t offset, floats left, floats right) {
    if (a->kind == GELU) {
        left = inferred_gelu(left), right = inferred_gelu(right);
    } else if (a->kind == GELU_BACKWARD) {
        const char *before = a->before_gelu + offset;
        floats active[2];
        left *= gelu_derivative(load(before, 0, 1), active);
        right *= gelu_derivative(load(before, LANES, 1), active + 1);
        write_line(a->gelu + offset, rounded(active[0], active[1]), a->past_caches);
    }
    __m512i line = rounded(left, right);
    write_line(a->output + offset, line, a->past_caches);
    if (a->kind == GELU_COPY) {
        const char *both = (const char *)&line;
        left = gelu(load(both, 0, 1)), right = gelu(load(both, LANES, 1));
        write_line(a->gelu + offset, rounded(left, right), a->past_caches);
    }
}

typedef enum { /* rows */
    PACKED,  /* in pairs, */
    FIRST,   /* or as they are: those that read the panel first fetch it, and what is behind it, */
    FURTHER, /* and others find it in the cache */
} RowsKind;

/* Some rows of a panel, whose sums stay in the registers. */
BF16_DOT INLINE void compute_rows(const Panel *a, int64_t first, int n_rows, RowsKind kind,
                                  Prefetch ahead) {
    int is_packed = kind == PACKED;
    int64_t row_stride = is_packed ? 2 : a->n_in, pair_stride = is_packed ? 2 * PANEL : 2;
    const uint16_t *x = a->x + first * row_stride, *pairs = a->pairs;
    floats total[BLOCK_ROWS][2];
    for (int row = 0; row < n_rows; row++) {
        int64_t offset = 2 * (first + row) * a->width;
        __builtin_prefetch(a->output + offset, 1);
        if (a->gelu) __builtin_prefetch(a->gelu + offset, 1);
        if (a->before_gelu) __builtin_prefetch(a->before_gelu + offset);
        for (int half = 0; half < 2; half++)
            total[row][half] = a->bias ? *(const floats *)(a->bias + half * LANES) : (floats){0};
    }
    for (int64_t i = 0; i < a->n_pairs; i++, x += pair_stride, pairs += 2 * PANEL) {
        if (kind == FIRST) fetch_weights(pairs);
        else __builtin_prefetch(ahead.first + (i < ahead.n ? i : 0) * ahead.stride);
        for (int row = 0; row < n_rows; row++)
            for (int half = 0; half < 2; half++)
                total[row][half] =
                    dot_pairs(total[row][half], x + row * row_stride, pairs + PANEL * half);
    }
    Epilogue epilogue = epilogue_at(a, 2 * first * a->width);
    for (int row = 0; row < n_rows; row++)
        apply_epilogue(&epilogue, 2 * row * a->width, total[row][0], total[row][1]);
}

#define CASE(n)                                                                            \
    case n:                                                                                \
        if (!a->n_in) compute_rows(a, first, n, PACKED, ahead);                            \
        else if (first || a->next) compute_rows(a, first, n, FURTHER, ahead);              \
        else compute_rows(a, first, n, FIRST, ahead);                                      \
        break;

BF16_DOT static void compute_panel(const Panel *a, int64_t n_rows) {
    int64_t n_blocks = (n_rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int64_t block = 0; block < n_blocks; block++) {
        int64_t first = block * n_rows / n_blocks, last = (block + 1) * n_rows / n_blocks;
        Prefetch ahead = prefetch_next(a, block, n_blocks);
        if (!ahead.n)
            ahead = (Prefetch){(const char *)(a->x + last * a->n_in), a->n_pairs, CACHE_LINE};
        switch (last - first) { /* each with its own registers */
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
            CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
        }
    }
}

/* ---- In tiles ---- */

/* Tiles of so many rows, up to BLOCK_TILES: those of the sums (0 to 3) and of x (4 and 5). */
AMX static void use_rows(int n_rows, int *used) {
    if (n_rows == *used) return;
    *used = n_rows;
    TileConfig config = OWN_TILES;
    int upper = n_rows < TILE_ROWS ? n_rows : TILE_ROWS, lower = n_rows - upper;
    config.n_rows[0] = config.n_rows[1] = config.n_rows[4] = upper;
    if (lower) config.n_rows[2] = config.n_rows[3] = config.n_rows[5] = lower;
    configure_tiles(&config);
}

typedef struct { /* rows of a panel, and their sums */
    Epilogue epilogue;
    int64_t stride; /* bytes from one row to the next */
    floats bias[2];
    const float *sums;
} TileRows;

AMX INLINE void finish_rows(const void *rows, int first, int end) {
    const TileRows *a = rows;
    for (int row = first; row < end; row++) {
        const floats *both = (const floats *)(a->sums + row * PANEL);
        apply_epilogue(&a->epilogue, row * a->stride, both[0] + a->bias[0], both[1] + a->bias[1]);
    }
}

typedef struct { /* what is in the tiles, from one panel to the next */
    float sums[BLOCK_TILES * PANEL] __attribute__((aligned(64)));
    TileRows rows[2]; /* of the block and of the one before, in turns */
    TileProduct before;
    int number, used; /* of the block, and rows of the tiles */
} InTiles;

INLINE void begin_tiles(InTiles *a) {
    a->before = (TileProduct){0};
    a->number = 0, a->used = BLOCK_TILES;
}

AMX static void finish_block(InTiles *a) {
    finish_tiles(&a->before, finish_rows);
    a->before = (TileProduct){0};
}

/* Fetches what the epilogue of a block reads, a block before. */
INLINE void fetch_before_gelu(const Panel *a, int64_t offset, int64_t n_rows) {
    if (n_rows > BLOCK_TILES) n_rows = BLOCK_TILES;
    for (int64_t row = 0; row < n_rows && a->before_gelu; row++)
        __builtin_prefetch(a->before_gelu + offset + 2 * row * a->width);
}

AMX INLINE void multiply_block(const Panel *a, int64_t block, int is_half, Prefetch ahead,
                               const TileProduct *before) {
    TileFactor x = {a->x, TILE_BYTES, 4 * TILE};
    if (a->n_in)
        x = (TileFactor){a->x + block * BLOCK_TILES * a->n_in, 2 * a->n_in, TILE_BYTES};
    multiply_tiles(x, a->pairs + block * a->pairs_step, 4 * a->n_pairs, is_half, 1, ahead, before,
                   finish_rows);
}

/* So many rows of a panel, or PANEL rows of several; those of the last block are left to be finished
beside what follows. */
AMX static void compute_panel_by_tiles(const Panel *a, int64_t n_rows, InTiles *tiles) {
    int64_t n_blocks = (n_rows + BLOCK_TILES - 1) / BLOCK_TILES;
    int64_t step = 2 * (a->pairs_step ? PANEL : BLOCK_TILES * a->width);
    for (int64_t block = 0; block < n_blocks; block++) {
        int64_t n_left = n_rows - block * BLOCK_TILES;
        int n = n_left < BLOCK_TILES ? n_left : BLOCK_TILES;
        TileRows *own = tiles->rows + tiles->number++ % 2;
        *own = (TileRows){epilogue_at(a, block * step), 2 * a->width, .sums = tiles->sums};
        if (a->bias) memcpy(own->bias, a->bias, sizeof own->bias);
        Prefetch ahead = prefetch_next(a, block, n_blocks);
        if (block + 1 < n_blocks) fetch_before_gelu(a, (block + 1) * step, n_left - n);
        else fetch_before_gelu(a, 2 * PANEL, n_rows);
        if (n != tiles->used) finish_block(tiles);
        use_rows(n, &tiles->used);
        if (n > TILE_ROWS) multiply_block(a, block, 0, ahead, &tiles->before);
        else multiply_block(a, block, 1, ahead, &tiles->before);
        tiles->before = (TileProduct){tiles->sums, own, n};
    }
}
#endif

#endif
