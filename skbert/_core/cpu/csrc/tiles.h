/* The tiles of AMX: eight registers of 16 rows of 64 bytes, all of which are used whole. */

#ifndef SKBERT_TILES_H
#define SKBERT_TILES_H

#include "gemm.h"

#ifdef HAS_AMX
#define AMX                                                                                    \
    __attribute__((target("arch=x86-64-v4,avx512vnni,avx512bf16,amx-tile,amx-int8,amx-bf16")))
#define TILE_ROWS 16
#define TILE_BYTES 64 /* of a row of a tile */

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
#endif

#endif
