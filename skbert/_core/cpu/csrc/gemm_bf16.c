/* Linear layers in bfloat16, and with transposed weights the gradients of their inputs.

A thread takes some panels of weights. In tiles it packs all of them, and multiplies tokens that
stay in its cache by one after another, and then the next tokens. In vectors, which compute for
longer, it packs one panel after another, and all tokens are multiplied by it.

What training reads and writes comes from memory, where it is read line after line: whoever reads
the same columns of one row after another waits for each line. */

#include <omp.h>
#include <stddef.h>

#include "panels.h"
#include "scratch.h"

#ifdef HAS_BF16_DOT
#define CHUNK_BYTES (3 << 18) /* of tokens that are multiplied by one panel after another, */
#define CHUNK_TOKENS 256      /* but no more than these */
#define MOST_BYTES (1 << 20)  /* that a thread writes into the caches */

/* What a thread computes: parts of the tokens of a panel, panel after panel. */
typedef struct {
    int64_t first, last, n_parts;
    int64_t n_chunks;  /* of a part */
    int past_caches;   /* what is written */
    uint16_t *packed;  /* its panels, or in vectors one after another */
    uint16_t *rounded; /* LANES rows of weights */
} Share;

/* ---- Packing weights of float32 ---- */

/* Sixteen rows of sixteen pairs as columns; strides are in numbers. */
BF16_DOT INLINE void transpose_pairs(const uint16_t *from, int64_t stride, uint16_t *to,
                                     int64_t to_stride) {
    floats x[LANES];
    for (int row = 0; row < LANES; row++) x[row] = *(const floats *)(from + row * stride);
    transpose(x);
    for (int j = 0; j < LANES; j++) *(floats *)(to + j * to_stride) = x[j];
}

/* PANEL rows, as pairs of neighbours in a row; first rounded in the order of memory. */
BF16_DOT static void pack_rows(const float *from, int64_t width, uint16_t *to,
                               uint16_t *rounded) {
    for (int half = 0; half < 2; half++, from += LANES * width) {
        for (int64_t i = 0; i < LANES * width; i += 2 * LANES)
            store_bf16(rounded + i, *(const floats *)(from + i),
                       *(const floats *)(from + i + LANES));
        for (int64_t i = 0; i < width; i += 2 * LANES)
            transpose_pairs(rounded + i, width, to + i * PANEL + half * 2 * LANES, 2 * PANEL);
    }
}

INLINE uint16_t *pairs_of(const Linear *a, const Share *share, int64_t number) {
    if (a->packed_weight) return (uint16_t *)a->packed_weight + number * PANEL * a->n_in;
    int64_t place = a->use_amx ? number - share->first / share->n_parts : 0;
    return share->packed + place * PANEL * a->n_in;
}

/* PANEL columns of two rows, as pairs of a number and the one below. */
BF16_DOT INLINE void pack_two_rows(const float *from, int64_t width, uint16_t *to) {
    for (int i = 0; i < PANEL; i += LANES) {
        __m512i both = rounded(*(const floats *)(from + i), *(const floats *)(from + width + i));
        _mm512_storeu_si512(to + 2 * i, alternated(both));
    }
}

/* Some panels, side by side, in the order of memory. */
BF16_DOT static void pack_weights(const Linear *a, const Share *share, int64_t first,
                                  int64_t end) {
    for (int64_t number = first; number < end && !a->transposed; number++)
        pack_rows(weight_row(a, number * PANEL), a->n_in, pairs_of(a, share, number),
                  share->rounded);
    for (int64_t row = 0; row < a->n_in && a->transposed; row += 2)
        for (int64_t number = first; number < end; number++)
            pack_two_rows(weight_row(a, row) + number * PANEL, a->n_out,
                          pairs_of(a, share, number) + row * PANEL);
}

/* ---- Products ---- */

/* Tokens from `begin` on, by the panel of this number. */
static Panel panel_of(const Linear *a, const Share *share, int64_t number, int64_t begin) {
    int64_t column = number * PANEL, offset = 2 * (begin * a->n_out + column);
    Panel panel = {.x = a->x + begin * a->n_in, .n_in = a->n_in, .n_pairs = a->n_in / 2,
                   .pairs = pairs_of(a, share, number),
                   .bias = a->bias ? a->bias + column : NULL, .output = a->output + offset,
                   .width = a->n_out, .epilogue = a->epilogue,
                   .past_caches = share->past_caches};
    if (a->before_gelu) panel.before_gelu = a->before_gelu + offset;
    if (a->gelu) panel.gelu = a->gelu + offset;
    if ((number + 1) * share->n_parts >= share->last) return panel;
    if (a->use_amx) panel.next_pairs = pairs_of(a, share, number + 1);
    else if (!a->packed_weight) panel.next = a, panel.next_column = column + PANEL;
    return panel;
}

/* Where a chunk begins in a part of the tokens; all but the last are whole blocks. */
static int64_t chunk_begin(const Linear *a, const Share *share, int64_t part, int64_t chunk) {
    int64_t begin = a->n_tokens * part / share->n_parts;
    int64_t n = a->n_tokens * (part + 1) / share->n_parts - begin;
    int64_t place = (n * chunk / share->n_chunks + BLOCK_TILES - 1) / BLOCK_TILES * BLOCK_TILES;
    return begin + (chunk == share->n_chunks || place > n ? n : place);
}

/* Fetches what a thread writes of some rows. */
static void fetch_rows(const Linear *a, const Share *share, int64_t row, int64_t end) {
    int64_t begin = 2 * PANEL * share->first, n_bytes = 2 * PANEL * share->last - begin;
    for (; row < end; row++) {
        int64_t offset = 2 * row * a->n_out + begin;
        for (int64_t i = 0; i < n_bytes; i += CACHE_LINE)
            __builtin_prefetch(a->output + offset + i, 1);
        for (int64_t i = 0; i < n_bytes && a->gelu; i += CACHE_LINE)
            __builtin_prefetch(a->gelu + offset + i, 1);
    }
}

/* A chunk of tokens by one panel after another. */
static void compute_chunk(const Linear *a, const Share *share, int64_t chunk, InTiles *tiles) {
    for (int64_t task = share->first; task < share->last; task++) {
        int64_t number = task / share->n_parts, part = task % share->n_parts;
        int packs = !a->packed_weight && !a->use_amx && (task == share->first || !part);
        if (packs) pack_weights(a, share, number, number + 1);
        int64_t begin = chunk_begin(a, share, part, chunk);
        int64_t n_rows = chunk_begin(a, share, part, chunk + 1) - begin;
        Panel panel = panel_of(a, share, number, begin);
        if (a->use_amx) compute_panel_by_tiles(&panel, n_rows, tiles);
        else compute_panel(&panel, n_rows);
    }
}

/* In training, by tiles: other layers have used the caches since. */
INLINE int is_cold(const Linear *a) { return a->use_amx && !a->packed_weight; }

static void compute_share(const Linear *a, const Share *share) {
    int64_t end = (share->last + share->n_parts - 1) / share->n_parts;
    InTiles tiles;
    begin_tiles(&tiles);
    if (is_cold(a)) pack_weights(a, share, share->first / share->n_parts, end);
    for (int64_t chunk = 0; chunk < share->n_chunks; chunk++) {
        int64_t row = chunk_begin(a, share, 0, chunk);
        if (is_cold(a) && share->n_parts == 1 && !share->past_caches)
            fetch_rows(a, share, row, chunk_begin(a, share, 0, chunk + 1));
        compute_chunk(a, share, chunk, &tiles);
    }
    if (a->use_amx) finish_block(&tiles);
}

/* What all threads compute, as one share. */
static Share whole_of(const Linear *a, int n_threads) {
    int64_t n_panels = a->n_out / PANEL, n_parts = (2 * n_threads + n_panels - 1) / n_panels;
    Share whole = {.last = n_panels * n_parts, .n_parts = n_parts, .n_chunks = 1};
    int64_t most = CHUNK_BYTES / (2 * a->n_in), n_tokens = a->n_tokens / n_parts;
    if (most > CHUNK_TOKENS) most = CHUNK_TOKENS;
    if (most < BLOCK_TILES) most = BLOCK_TILES;
    if (a->use_amx && n_tokens > most) whole.n_chunks = (n_tokens + most - 1) / most;
    int64_t n_bytes = 2 * a->n_tokens * a->n_out * (a->gelu ? 2 : 1);
    int is_aligned = ((uintptr_t)a->output | (uintptr_t)a->gelu) % CACHE_LINE == 0;
    whole.past_caches = is_cold(a) && is_aligned && n_bytes > n_threads * MOST_BYTES;
    return whole;
}

int linear_forward(const Linear *given, int n_threads) {
    Linear copy = *given, *a = &copy;
    a->use_amx = given->use_amx && a->n_in % (TILE_BYTES / 2) == 0;
    Share whole = whole_of(a, n_threads);
    int failed = 0;
#pragma omp parallel num_threads(n_threads) reduction(| : failed)
    {
        int64_t thread = omp_get_thread_num(), n = omp_get_num_threads();
        Share own = whole;
        own.first = whole.last * thread / n, own.last = whole.last * (thread + 1) / n;
        if (!a->packed_weight) {
            int64_t n_packed = a->use_amx ? (own.last - own.first) / own.n_parts + 2 : 1;
            size_t n_bytes = 2 * a->n_in * (n_packed * PANEL + LANES);
            own.packed = (uint16_t *)scratch(n_bytes);
            own.rounded = own.packed + n_packed * PANEL * a->n_in;
            failed = !own.packed;
        }
        TileConfig before;
        if (a->use_amx) before = configure_tiles(&OWN_TILES);
        if (!failed) compute_share(a, &own);
        if (a->use_amx) configure_tiles(&before);
        if (whole.past_caches) _mm_sfence(); /* it is there before others read it */
    }
    return failed ? -1 : 0;
}
#endif
