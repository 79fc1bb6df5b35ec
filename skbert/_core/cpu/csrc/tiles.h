/* The tiles of AMX: eight registers of up to 16 rows of 64 bytes. */

#ifndef SKBERT_TILES_H
#define SKBERT_TILES_H

#include "gemm.h"

#ifdef HAS_BF16_DOT
#define AMX                                                                                    \
    __attribute__((target("arch=x86-64-v4,avx512vnni,avx512bf16,amx-tile,amx-int8,amx-bf16")))
#define TILE_ROWS 16
#define TILE_BYTES 64 /* of a row of a tile */
#define TILE (TILE_ROWS * TILE_BYTES / 2) /* numbers of bfloat16 in a tile */

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_rows[16];
} TileConfig;

static const TileConfig OWN_TILES = {
    .palette = 1,
    .row_bytes = {TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES,
                  TILE_BYTES, TILE_BYTES},
    .n_rows = {TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS,
               TILE_ROWS},
};

/* Uses these tiles, and returns the settings before, which others may count on. */
AMX static TileConfig configure_tiles(const TileConfig *config) {
    TileConfig before;
    __asm__ volatile("" ::: "memory"); /* the compiler does not know what tiles read */
    _tile_storeconfig(&before);
    _tile_loadconfig(config);
    return before;
}

/* What follows the sums of some rows. */
typedef void (*FinishRows)(const void *rows, int first, int end);

typedef struct { /* sums that are in the tiles */
    void *sums;  /* where they are stored, (2 * TILE_ROWS, PANEL); NULL: none are */
    const void *rows; /* whose sums they are */
    int n_rows;
} TileProduct;

/* Where the sums of a tile lie among those of all four. */
#define STORE_SUM(sum, to)                                                                \
    _tile_stored(sum, (char *)(to) + ((sum) / 2 * 2 * TILE_ROWS + (sum) % 2) * TILE_BYTES, \
                 2 * TILE_BYTES)

/* Stores what is in the tiles, if there is something, and finishes its rows. */
AMX INLINE void finish_tiles(const TileProduct *last, FinishRows finish_rows) {
    if (!last->sums) return;
    STORE_SUM(0, last->sums);
    STORE_SUM(1, last->sums);
    STORE_SUM(2, last->sums);
    STORE_SUM(3, last->sums);
    finish_rows(last->rows, 0, last->n_rows);
}

#define ADD_PRODUCT(sum, x, columns)                      \
    do {                                                  \
        if (is_bf16) _tile_dpbf16ps(sum, x, columns);     \
        else _tile_dpbusd(sum, x, columns);               \
    } while (0)

/* The first product of a sum; that of the block before leaves its tile. */
#define START_SUM(sum)                                    \
    if (!i) {                                             \
        if (before->sums) STORE_SUM(sum, before->sums);   \
        _tile_zero(sum);                                  \
    }

typedef struct { /* rows of a product, and bytes */
    const void *rows;
    int64_t stride, step; /* from one row to the next, and to the next columns of it */
} TileFactor;

/* Into the tiles come products of rows and a panel, each of so many bytes a row of x, or of half as
many rows: of pairs of bfloat16, or of int8 four by four. What was there is stored, and its rows
are finished: in bfloat16 meanwhile, in int8 at the end, as it takes longer than the products, and
beside tiles a processor has half as many units for float32. A part of what lies ahead is fetched
in each turn. */
AMX INLINE void multiply_tiles(TileFactor x, const void *panel, int64_t n_bytes, int is_half,
                               int is_bf16, Prefetch ahead, const TileProduct *before,
                               FinishRows finish_rows) {
    const char *rows = x.rows, *columns = panel;
    int64_t row_bytes = 2 * TILE_BYTES, n_turns = n_bytes / TILE_BYTES;
    int64_t n_lines = (ahead.n + n_turns - 1) / n_turns;
    int n_finished = 0, step = (int)(before->n_rows / n_turns + 1);
    for (int64_t i = 0; i < n_bytes; i += TILE_BYTES) {
        _tile_loadd(6, columns, row_bytes);
        _tile_loadd(7, columns + TILE_BYTES, row_bytes);
        _tile_loadd(4, rows, x.stride);
        START_SUM(0)
        ADD_PRODUCT(0, 4, 6);
        START_SUM(1)
        ADD_PRODUCT(1, 4, 7);
        if (!is_half) _tile_loadd(5, rows + TILE_ROWS * x.stride, x.stride);
        START_SUM(2)
        if (!is_half) ADD_PRODUCT(2, 5, 6);
        START_SUM(3)
        if (!is_half) ADD_PRODUCT(3, 5, 7);
        for (int64_t line = 0; line < n_lines; line++, ahead.first += ahead.stride)
            if (is_bf16) __builtin_prefetch(ahead.first, 0, 2); /* into the second cache */
            else __builtin_prefetch(ahead.first);
        if (is_bf16 && i && n_finished < before->n_rows) {
            int end = n_finished + step < before->n_rows ? n_finished + step : before->n_rows;
            finish_rows(before->rows, n_finished, end);
            n_finished = end;
        }
        rows += x.step, columns += TILE_BYTES * PANEL;
    }
    finish_rows(before->rows, n_finished, before->n_rows);
}
#endif

#endif
