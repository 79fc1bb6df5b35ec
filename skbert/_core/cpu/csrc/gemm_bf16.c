/* Products of bfloat16, two numbers of a row at a time: linear layers, and their gradients.

A product is computed in panels of PANEL columns. Each takes the weights of its columns packed in
pairs, so that a vector holds a pair for each of sixteen columns. */

#include <omp.h>
#include <stddef.h>
#include <stdlib.h>

#include "gelu.h"
#include "tiles.h"

#ifdef HAS_BF16_DOT
#define BLOCK_ROWS 12 /* whose sums fit in the registers */
#define CACHE_LINE 64
#define CHUNK_TOKENS 256 /* by which a thread multiplies packed weights */
#define PACKED_BYTES (1 << 22) /* of a factor that are packed at once */

/* ---- The weights of a linear layer ---- */

INLINE int64_t weight_width(const Linear *a) { return a->transposed ? a->n_out : a->n_in; }

static const float *weight_row(const Linear *a, int64_t row) {
    return a->weights[row / a->n_rows] + row % a->n_rows * weight_width(a);
}

/* A share of the weights of a panel for each block; of some only for the first blocks. */
static Prefetch prefetch_weights(const Linear *a, int64_t column, int64_t block,
                                 int64_t n_blocks) {
    if (a->packed_weight) {
        int64_t n = (a->n_in + n_blocks - 1) / n_blocks;
        return (Prefetch){(const char *)(a->packed_weight + column * a->n_in) +
                              block * n * CACHE_LINE, n, CACHE_LINE};
    }
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

/* ---- Packing: a panel of a factor, (n / 2, PANEL, 2) ---- */

/* Sixteen rows of sixteen pairs as columns; strides are in numbers. */
BF16_DOT INLINE void transpose_pairs(const uint16_t *from, int64_t stride, uint16_t *to,
                                     int64_t to_stride) {
    floats x[LANES];
    for (int row = 0; row < LANES; row++) x[row] = *(const floats *)(from + row * stride);
    transpose(x);
    for (int j = 0; j < LANES; j++) *(floats *)(to + j * to_stride) = x[j];
}

/* PANEL rows of float32, as pairs of neighbours in a row; first rounded in the order of memory. */
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

/* PANEL columns: pairs of a number, or its GELU, and the one below. */
BF16_DOT INLINE void pack_columns(const char *from, int64_t width, int64_t n_rows, int is_bf16,
                                  int with_gelu, uint16_t *to) {
    int64_t size = is_bf16 ? 2 : 4;
    const uints alternate = {0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005,
                             0x160006, 0x170007, 0x180008, 0x190009, 0x1a000a, 0x1b000b,
                             0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f};
    for (int64_t row = 0; row < n_rows; row += 2, from += 2 * size * width)
        for (int half = 0; half < 2; half++, to += 2 * LANES) {
            const char *upper = from + half * LANES * size, *lower = upper + size * width;
            floats x = load(upper, 0, is_bf16), y = {0};
            if (row + 1 < n_rows) y = load(lower, 0, is_bf16);
            if (with_gelu) x = gelu(x), y = gelu(y);
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x);
            _mm512_storeu_si512(to, _mm512_permutexvar_epi16((__m512i)alternate, both));
        }
}

BF16_DOT static void pack_weights(const Linear *a, int64_t column, uint16_t *to) {
    if (!a->transposed) {
        pack_rows(weight_row(a, column), a->n_in, to, to + a->n_in * PANEL);
        return;
    }
    for (int64_t row = 0; row < a->n_in; row += a->n_rows)
        pack_columns((const char *)(weight_row(a, row) + column), a->n_out, a->n_rows, 0, 0,
                     to + row * PANEL);
}

/* ---- A panel of a product ---- */

typedef struct {
    const uint16_t *x;     /* (n_rows, n_in), or packed, too, where n_in is 0 */
    int64_t n_in, n_pairs;
    const uint16_t *pairs; /* (n_pairs, PANEL, 2) */
    const float *bias;     /* (PANEL,), or NULL */
    char *output;
    int64_t width; /* numbers from one row of the output to the next */
    int epilogue;
    char *epilogue_operand; /* what the epilogue reads or writes: rows like the output's */
    const Linear *next; /* whose weights at next_column are fetched into the cache, or NULL */
    int64_t next_column;
} Panel;

/* Stores a result and what follows it. */
BF16_DOT INLINE void apply_epilogue(const Panel *a, int64_t offset, floats left, floats right) {
    char *to = a->output + 2 * offset;
    char *operand = a->epilogue_operand ? a->epilogue_operand + 2 * offset : NULL;
    if (a->epilogue == GELU) {
        left = gelu(left), right = gelu(right);
    } else if (a->epilogue == GELU_BACKWARD) {
        left *= gelu_derivative(load(operand, 0, 1));
        right *= gelu_derivative(load(operand, LANES, 1));
    }
    store_bf16(to, left, right);
    if (a->epilogue == GELU_COPY)
        store_bf16(operand, gelu(load(to, 0, 1)), gelu(load(to, LANES, 1)));
}

/* Some rows of a panel, whose sums stay in the registers. */
BF16_DOT INLINE void compute_rows(const Panel *a, int64_t first, int n_rows, int is_packed,
                                  Prefetch ahead) {
    int64_t row_stride = is_packed ? 2 : a->n_in, pair_stride = is_packed ? 2 * PANEL : 2;
    const uint16_t *x = a->x + first * row_stride, *pairs = a->pairs;
    floats total[BLOCK_ROWS][2];
    for (int row = 0; row < n_rows; row++) {
        __builtin_prefetch(a->output + 2 * (first + row) * a->width, 1);
        for (int half = 0; half < 2; half++)
            total[row][half] = a->bias ? *(const floats *)(a->bias + half * LANES) : (floats){0};
    }
    for (int64_t i = 0; i < a->n_pairs; i++, x += pair_stride, pairs += 2 * PANEL) {
        __builtin_prefetch(ahead.first + (i < ahead.n ? i : 0) * ahead.stride);
        for (int row = 0; row < n_rows; row++)
            for (int half = 0; half < 2; half++)
                total[row][half] =
                    dot_pairs(total[row][half], x + row * row_stride, pairs + PANEL * half);
    }
    for (int row = 0; row < n_rows; row++)
        apply_epilogue(a, (first + row) * a->width, total[row][0], total[row][1]);
}

#define CASE(n)                                                                            \
    case n:                                                                                \
        if (a->n_in) compute_rows(a, first, n, 0, ahead);                                  \
        else compute_rows(a, first, n, 1, ahead);                                          \
        break;

BF16_DOT static void compute_panel(const Panel *a, int64_t begin, int64_t end) {
    int64_t n_blocks = (end - begin + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int64_t block = 0; block < n_blocks; block++) {
        int64_t first = begin + block * (end - begin) / n_blocks;
        int64_t last = begin + (block + 1) * (end - begin) / n_blocks;
        Prefetch ahead = {0};
        if (a->next) ahead = prefetch_weights(a->next, a->next_column, block, n_blocks);
        if (!ahead.n)
            ahead = (Prefetch){(const char *)(a->x + last * a->n_in), a->n_pairs, CACHE_LINE};
        switch (last - first) { /* each with its own registers */
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
            CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
        }
    }
}

/* ---- The same in tiles ---- */

/* Tiles of so many rows, up to 2 * TILE_ROWS: those of the sums (0 to 3) and of x (4 and 5). */
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
    const Panel *panel;
    int64_t first;
    floats bias[2];
    const float *sums;
} TileRows;

AMX INLINE void finish_row(const void *rows, int row) {
    const TileRows *a = rows;
    const floats *both = (const floats *)(a->sums + row * PANEL);
    apply_epilogue(a->panel, (a->first + row) * a->panel->width, both[0] + a->bias[0],
                   both[1] + a->bias[1]);
}

AMX INLINE void multiply_rows(const Panel *a, int64_t first, int is_half, Prefetch ahead,
                              const TileProduct *before) {
    multiply_tiles(a->x + first * a->n_in, 2 * a->n_in, a->pairs, 4 * a->n_pairs, is_half, 1,
                   ahead, before, finish_row);
}

AMX static void compute_panel_by_tiles(const Panel *a, int64_t begin, int64_t end, int *used) {
    float sums[2 * TILE_ROWS * PANEL] __attribute__((aligned(64)));
    TileRows rows[2];
    TileProduct before = {0};
    int64_t n_blocks = (end - begin + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
    for (int64_t block = 0; block < n_blocks; block++) {
        int64_t first = begin + block * 2 * TILE_ROWS, n_left = end - first;
        int n_rows = n_left < 2 * TILE_ROWS ? n_left : 2 * TILE_ROWS;
        TileRows *own = rows + block % 2;
        *own = (TileRows){.panel = a, .first = first, .sums = sums};
        if (a->bias) memcpy(own->bias, a->bias, sizeof own->bias);
        Prefetch ahead = {0};
        if (a->next) ahead = prefetch_weights(a->next, a->next_column, block, n_blocks);
        if (n_rows != *used) finish_tiles(&before, finish_row), before = (TileProduct){0};
        use_rows(n_rows, used);
        if (n_rows > TILE_ROWS) multiply_rows(a, first, 0, ahead, &before);
        else multiply_rows(a, first, 1, ahead, &before);
        before = (TileProduct){sums, own, n_rows};
    }
    finish_tiles(&before, finish_row);
}

/* ---- Linear layers ---- */

static Panel panel_of(const Linear *a, int64_t number, const uint16_t *packed) {
    int64_t column = number * PANEL;
    Panel panel = {.x = a->x, .n_in = a->n_in, .n_pairs = a->n_in / 2, .pairs = packed,
                   .bias = a->bias ? a->bias + column : NULL, .output = a->output + 2 * column,
                   .width = a->n_out, .epilogue = a->epilogue};
    if (a->epilogue_operand) panel.epilogue_operand = a->epilogue_operand + 2 * column;
    if (a->packed_weight) panel.pairs = a->packed_weight + column * a->n_in;
    if (column + PANEL < a->n_out && (a->use_amx || !a->packed_weight))
        panel.next = a, panel.next_column = column + PANEL;
    return panel;
}

/* Whether tiles multiply chunks of tokens by packed weights, of which each chunk reads all. */
static int by_chunks(const Linear *a) { return a->use_amx && a->packed_weight; }

/* Parts of the tokens by which packed weights are multiplied one part after another, so that each
stays in a thread's cache, or other weights once they are packed. */
static int64_t parts_of_tokens(const Linear *a, int n_threads) {
    int64_t n_panels = a->n_out / PANEL;
    if (!by_chunks(a)) return (2 * n_threads + n_panels - 1) / n_panels;
    int64_t n_chunks = (a->n_tokens + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
    return n_chunks > 1 ? (n_chunks + n_threads - 1) / n_threads * n_threads : 1;
}

/* Each thread has memory for a packed panel and for LANES rounded rows. */
static void compute_panels(const Linear *a, uint16_t *memory, int n_threads) {
    int64_t n_panels = a->n_out / PANEL, n_parts = parts_of_tokens(a, n_threads);
    int64_t n = a->n_tokens;
#pragma omp parallel num_threads(n_threads)
    {
        int used = 2 * TILE_ROWS;
        TileConfig before;
        if (a->use_amx) before = configure_tiles(&OWN_TILES);
        uint16_t *packed = NULL;
        if (memory) packed = memory + omp_get_thread_num() * a->n_in * (PANEL + LANES);
        int64_t last = -1;
#pragma omp for schedule(static)
        for (int64_t task = 0; task < n_panels * n_parts; task++) {
            int64_t number = task / n_parts, part = task % n_parts;
            if (by_chunks(a)) number = task % n_panels, part = task / n_panels;
            if (packed && number != last) pack_weights(a, number * PANEL, packed);
            last = number;
            Panel panel = panel_of(a, number, packed);
            int64_t begin = n * part / n_parts, end = n * (part + 1) / n_parts;
            if (a->use_amx) compute_panel_by_tiles(&panel, begin, end, &used);
            else compute_panel(&panel, begin, end);
        }
        if (a->use_amx) configure_tiles(&before);
    }
}

int linear_forward(const Linear *given, int n_threads) {
    Linear a = *given;
    a.use_amx = given->use_amx && a.n_in % (TILE_BYTES / 2) == 0;
    uint16_t *memory = NULL;
    if (!a.packed_weight) {
        memory = aligned_alloc(64, 2 * n_threads * a.n_in * (PANEL + LANES));
        if (!memory) return -1;
    }
    compute_panels(&a, memory, n_threads);
    free(memory);
    return 0;
}

/* ---- Gradients of weights and biases ---- */

/* Bytes of a packed panel: pairs of tokens, and zeros up to a whole tile, one or more. */
static int64_t bytes_of_panel(const GradWeight *a) {
    int64_t step = a->use_amx ? TILE_BYTES / 2 : 2, n = a->n_tokens ? a->n_tokens : 1;
    return (n + step - 1) / step * step * 2 * PANEL;
}

BF16_DOT static void pack_zeros(const GradWeight *a, uint16_t *to) {
    int64_t n = (a->n_tokens + 1) / 2 * 4 * PANEL;
    memset((char *)to + n, 0, bytes_of_panel(a) - n);
}

BF16_DOT static void pack_input(const GradWeight *a, int64_t column, uint16_t *to) {
    if (a->gelu) pack_columns(a->x + 2 * column, a->n_in, a->n_tokens, 1, 1, to);
    else pack_columns(a->x + 2 * column, a->n_in, a->n_tokens, 1, 0, to);
    pack_zeros(a, to);
}

/* Pairs, (n_pairs, PANEL, 2), or behind them the same as rows for tiles, (PANEL, 2 * n_pairs). */
BF16_DOT static uint16_t *pack_grad_output(const GradWeight *a, int64_t column, uint16_t *to) {
    int64_t n_pairs = bytes_of_panel(a) / (4 * PANEL);
    uint16_t *rows = to + 2 * n_pairs * PANEL;
    pack_columns(a->grad_output + 2 * column, a->n_out, a->n_tokens, 1, 0, to);
    pack_zeros(a, to);
    if (!a->use_amx) return to;
    for (int64_t i = 0; i < n_pairs; i += LANES)
        for (int half = 0; half < 2; half++)
            transpose_pairs(to + 2 * (i * PANEL + half * LANES), 2 * PANEL,
                            rows + 2 * (half * LANES * n_pairs + i), 2 * n_pairs);
    return rows;
}

BF16_DOT static void compute_grad_bias(const GradWeight *a, int64_t column) {
    floats sums[2] = {0};
    for (int64_t token = 0; token < a->n_tokens; token++)
        for (int half = 0; half < 2; half++)
            sums[half] += load(a->grad_output, token * a->n_out + column + half * LANES, 1);
    for (int half = 0; half < 2; half++)
        store(a->grad_bias, column + half * LANES, sums[half], 1);
}

/* The gradients of PANEL rows of weights, for some panels of x that are packed. */
static void compute_grad_rows(const GradWeight *a, int64_t column, int64_t first, int64_t end,
                              const uint16_t *inputs, uint16_t *memory) {
    int64_t bytes = bytes_of_panel(a), n_pairs = bytes / (4 * PANEL);
    const uint16_t *grads = pack_grad_output(a, column, memory);
    int used = 2 * TILE_ROWS;
    for (int64_t i = first; i < end; i++) {
        Panel panel = {.x = grads, .n_in = a->use_amx ? 2 * n_pairs : 0, .n_pairs = n_pairs,
                       .pairs = inputs + (i - first) * bytes / 2,
                       .output = a->grad_weight + 2 * (column * a->n_in + i * PANEL),
                       .width = a->n_in};
        if (a->use_amx) compute_panel_by_tiles(&panel, 0, PANEL, &used);
        else compute_panel(&panel, 0, PANEL);
    }
}

/* Memory is for n_packed panels of x, and two of each thread. */
static void compute_grad_weight(const GradWeight *a, uint16_t *memory, int64_t n_packed,
                                int n_threads) {
    int64_t size = bytes_of_panel(a) / 2, n_panels = a->n_in / PANEL;
#pragma omp parallel num_threads(n_threads)
    {
        TileConfig before;
        if (a->use_amx) before = configure_tiles(&OWN_TILES);
        for (int64_t first = 0; first < n_panels; first += n_packed) {
            int64_t end = first + n_packed < n_panels ? first + n_packed : n_panels;
#pragma omp for schedule(static)
            for (int64_t i = first; i < end; i++)
                pack_input(a, i * PANEL, memory + (i - first) * size);
#pragma omp for schedule(static)
            for (int64_t column = 0; column < a->n_out; column += PANEL) {
                uint16_t *own = memory + (n_packed + 2 * omp_get_thread_num()) * size;
                compute_grad_rows(a, column, first, end, memory, own);
                if (!first && a->grad_bias) compute_grad_bias(a, column);
            }
        }
        if (a->use_amx) configure_tiles(&before);
    }
}

int linear_grad_weight(const GradWeight *a, int n_threads) {
    int64_t n_panels = a->n_in / PANEL, bytes = bytes_of_panel(a);
    int64_t n_packed = bytes * n_panels < PACKED_BYTES ? n_panels : PACKED_BYTES / bytes + 1;
    uint16_t *memory = aligned_alloc(64, (n_packed + 2 * n_threads) * bytes + CACHE_LINE);
    if (!memory) return -1;
    compute_grad_weight(a, memory, n_packed, n_threads);
    free(memory);
    return 0;
}
#endif
