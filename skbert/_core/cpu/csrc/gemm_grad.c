/* Gradients of the weights and biases of linear layers, in bfloat16. */

#include <omp.h>
#include <stddef.h>

#include "panels.h"
#include "scratch.h"

#ifdef HAS_BF16_DOT
#define INPUT_BYTES (1 << 20) /* of x that are packed at once, and stay in a thread's cache */
#define OUTPUT_BYTES (1 << 24) /* of the output's gradient that are packed at once */
#define MOST_PANELS 32         /* of it side by side */

/* Bytes of a packed panel: pairs of tokens, and zeros up to whole tiles, one or more. */
static int64_t bytes_of_panel(const GradWeight *a) {
    int64_t n = a->n_tokens ? a->n_tokens : 1;
    return (n + BLOCK_TILES - 1) / BLOCK_TILES * 4 * TILE;
}

/* Of some panels side by side so many tokens, up to BLOCK_TILES, and zeros behind them: in the
order of memory, as whoever reads one panel after another waits for each line. */
BF16_DOT static void pack_tokens(const char *from, int64_t width, int64_t n_tokens,
                                 int64_t n_panels, uint16_t *to, int64_t size) {
    for (int64_t token = 0; token < BLOCK_TILES; token += 2, from += 4 * width)
        for (int64_t panel = 0; panel < n_panels; panel++) {
            uint16_t *pairs = to + panel * size + token * PANEL;
            int64_t n_left = n_tokens - token;
            const ushorts *upper = (const ushorts *)(from + 2 * panel * PANEL), zeros = {0};
            const ushorts *lower = (const ushorts *)((const char *)upper + 2 * width);
            for (int half = 0; half < 2; half++)
                *(floats *)(pairs + half * 2 * LANES) =
                    pair(n_left > 0 ? upper[half] : zeros, n_left > 1 ? lower[half] : zeros);
        }
}

/* Panels of the input. */
BF16_DOT static void pack_inputs(const GradWeight *a, int64_t first, int64_t n_panels,
                                 uint16_t *to) {
    int64_t size = bytes_of_panel(a) / 2;
    for (int64_t token = 0; token * PANEL < size; token += BLOCK_TILES) {
        const char *from = a->x + 2 * (token * a->n_in + first * PANEL);
        pack_tokens(from, a->n_in, a->n_tokens - token, n_panels, to + token * PANEL, size);
    }
}

/* Sixteen pairs of PANEL columns: added to the sums, and put side by side in two tiles. */
BF16_DOT INLINE void sum_pairs(uint16_t *pairs, floats sums[2], int as_tiles) {
    const uint16_t ones[2] = {0x3f80, 0x3f80};
    floats tiles[2][LANES];
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < LANES; i++) {
            const uint16_t *from = pairs + 2 * (i * PANEL + half * LANES);
            tiles[half][i] = *(const floats *)from;
            sums[half] = dot_pairs(sums[half], ones, from);
        }
        if (as_tiles) transpose(tiles[half]);
    }
    if (as_tiles) memcpy(pairs, tiles, sizeof tiles);
}

/* Panels of the output's gradient, as pairs or as tiles whose rows are columns; and the gradient
of the bias. */
BF16_DOT static void pack_outputs(const GradWeight *a, int64_t first, int64_t n_panels,
                                  uint16_t *to) {
    int64_t size = bytes_of_panel(a) / 2;
    floats sums[MOST_PANELS][2] = {0};
    for (int64_t token = 0; token * PANEL < size; token += BLOCK_TILES) {
        const char *from = a->grad_output + 2 * (token * a->n_out + first * PANEL);
        pack_tokens(from, a->n_out, a->n_tokens - token, n_panels, to + token * PANEL, size);
        for (int64_t panel = 0; panel < n_panels; panel++) {
            uint16_t *pairs = to + panel * size + token * PANEL;
            if (a->use_amx) sum_pairs(pairs, sums[panel], 1);
            else sum_pairs(pairs, sums[panel], 0);
        }
    }
    for (int64_t i = 0; i < 2 * n_panels && a->grad_bias; i++)
        store(a->grad_bias, first * PANEL + i * LANES, sums[i / 2][i % 2], 1);
}

typedef struct { /* panels that are packed at once */
    int64_t n_inputs, n_outputs;
    uint16_t *inputs, *outputs;
} Packed;

/* The gradients of a panel of rows of weights, for some panels of columns. */
static void compute_rows_of_weights(const GradWeight *a, int64_t row, int64_t first, int64_t end,
                                    const uint16_t *inputs, const uint16_t *outputs) {
    int64_t bytes = bytes_of_panel(a), place = 2 * PANEL * (row * a->n_in + first);
    InTiles tiles;
    Panel panel = {.x = outputs, .n_pairs = (a->n_tokens + 1) / 2, .pairs = inputs,
                   .output = a->grad_weight + place, .width = a->n_in};
    if (a->use_amx) {
        panel.n_pairs = bytes / (4 * PANEL), panel.pairs_step = bytes / 2;
        panel.past_caches = (uintptr_t)a->grad_weight % CACHE_LINE == 0;
        begin_tiles(&tiles);
        compute_panel_by_tiles(&panel, (end - first) * PANEL, &tiles);
        finish_block(&tiles);
        return;
    }
    for (; first < end; first++, panel.pairs += bytes / 2, panel.output += 2 * PANEL)
        compute_panel(&panel, PANEL);
}

/* A thread's share of some panels. */
static void share_panels(int64_t *first, int64_t *last) {
    int64_t n = *last - *first, begin = *first, n_threads = omp_get_num_threads();
    *first = begin + n * omp_get_thread_num() / n_threads;
    *last = begin + n * (omp_get_thread_num() + 1) / n_threads;
}

/* The work of a thread on the gradients of some rows of weights; numbers are those of panels. */
static void compute_share(const GradWeight *a, const Packed *packed, int64_t row, int64_t end) {
    int64_t size = bytes_of_panel(a) / 2, n_panels = a->n_in / PANEL, step = packed->n_inputs;
    uint16_t *outputs = packed->outputs - row * size;
    share_panels(&row, &end);
    for (int64_t i = row; i < end; i += MOST_PANELS)
        pack_outputs(a, i, end - i < MOST_PANELS ? end - i : MOST_PANELS, outputs + i * size);
    for (int64_t first = 0; first < n_panels; first += step) {
        int64_t last = first + step < n_panels ? first + step : n_panels;
        int64_t own = first, own_end = last;
        share_panels(&own, &own_end);
#pragma omp barrier
        pack_inputs(a, own, own_end - own, packed->inputs + (own - first) * size);
#pragma omp barrier
        for (int64_t i = row; i < end; i++)
            compute_rows_of_weights(a, i, first, last, packed->inputs, outputs + i * size);
    }
#pragma omp barrier
}

/* Panels of which so many bytes are packed at once, up to all. */
static int64_t panels_in(int64_t n_bytes, int64_t bytes_of_one, int64_t all) {
    int64_t n = n_bytes / bytes_of_one + 1;
    return n < all ? n : all;
}

int linear_grad_weight(const GradWeight *a, int n_threads) {
    int64_t bytes = bytes_of_panel(a), n_rows = a->n_out / PANEL;
    Packed packed = {panels_in(INPUT_BYTES, bytes, a->n_in / PANEL),
                     panels_in(OUTPUT_BYTES, bytes, n_rows)};
    packed.inputs = (uint16_t *)scratch((packed.n_inputs + packed.n_outputs) * bytes);
    if (!packed.inputs) return -1;
    packed.outputs = packed.inputs + packed.n_inputs * bytes / 2;
#pragma omp parallel num_threads(n_threads)
    {
        TileConfig before;
        if (a->use_amx) before = configure_tiles(&OWN_TILES);
        for (int64_t row = 0, end; row < n_rows; row = end) {
            end = row + packed.n_outputs < n_rows ? row + packed.n_outputs : n_rows;
            compute_share(a, &packed, row, end);
        }
        if (a->use_amx) configure_tiles(&before);
        _mm_sfence(); /* what went past the caches is there before others read it */
    }
    return 0;
}
#endif
