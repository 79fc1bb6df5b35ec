/* The gradient of attention within rows in the tiles of AMX, in bfloat16, where each token attends
to all of its row.

A thread takes one row and head at a time, and of it 32 keys after another. Their scores have keys
in the rows and queries in the columns, so that a vector holds what sixteen queries have of a key.
Weights are computed again from the logsumexp of each query; while they are, the tiles multiply what
comes next. */

#include "attention_tiles.h"

#ifdef HAS_BF16_DOT
#define BLOCK PANEL /* queries, keys or numbers of a head whose product fits in the tiles */

/* One row and head. */
typedef struct {
    Tokens query, key, value, output, grad_output, grad_query, grad_key, grad_value;
    int length, size, n; /* its tokens, and those rounded up to blocks */
    float scaling;
    int has_dropout;
    Dropout dropout;
    float *powers;       /* of each query the logsumexp, for powers of 2, */
    float *delta;        /* the sum of its weights times their gradients, */
    uint32_t *mask_keys; /* and what dropout takes */
    float *scores, *grad_weights;    /* of a block of keys and one of queries, (32, 32) */
    uint16_t *keys, *values;         /* of a block of keys, (32, size) */
    uint16_t *weights, *grad_scores; /* and all queries, (n / 32) (32, 32) */
    uint16_t *queries, *grads;       /* pairs of tokens, */
    uint16_t *query_pairs, *grad_pairs; /* and of numbers */
    uint16_t *turned_keys; /* (n / 32) (size, 32), interleaved */
    uint16_t *score_pairs; /* gradients of scores as pairs of keys, (n / 32) (n / 2, 32, 2) */
} Unit;

AMX INLINE void multiply(const uint16_t *x, int64_t stride, int64_t step, const uint16_t *panel,
                         int n, int is_half, const TileProduct *before, FinishRows finish) {
    TileFactor rows = {x, 2 * stride, 2 * step};
    __asm__ volatile("" ::: "memory"); /* the compiler does not know what tiles read */
    if (is_half) multiply_tiles(rows, panel, 2 * n, 1, 1, (Prefetch){0}, before, finish);
    else multiply_tiles(rows, panel, 2 * n, 0, 1, (Prefetch){0}, before, finish);
}

/* ---- Gradients of scores ---- */

/* Those of some keys and queries. */
typedef struct {
    const Unit *unit;
    int first_key, first_query;
} Scores;

/* The weights and gradients of scores of a key; the latter are returned, too. */
AMX INLINE __m512i differentiate_key(const Scores *s, int row) {
    const Unit *u = s->unit;
    floats weights[2], grads[2];
    for (int half = 0; half < 2; half++) {
        int query = s->first_query + half * LANES, at = row * BLOCK + half * LANES;
        floats power = *(floats *)(u->scores + at) * (u->scaling * LOG2_E);
        power -= *(floats *)(u->powers + query); /* at most 0, but for its rounding */
        floats p = power_of_2((floats)_mm512_min_ps((__m512){0}, (__m512)power)); /* or NaN */
        weights[half] = p;
        if (u->has_dropout) {
            uint32_t position = (uint32_t)(s->first_key + row) * POSITION_STEP;
            uints bits = *(uints *)(u->mask_keys + query) + position;
            weights[half] *= dropout_factors(u->dropout, bits);
        }
        grads[half] = weights[half] * *(floats *)(u->grad_weights + at);
        grads[half] -= p * *(floats *)(u->delta + query);
    }
    int64_t to = (s->first_query + row) * BLOCK;
    store_bf16(u->weights + to, weights[0], weights[1]);
    __m512i both = rounded(grads[0], grads[1]);
    _mm512_storeu_si512(u->grad_scores + to, both);
    return both;
}

AMX INLINE void differentiate_pairs(const void *rows, int first, int end) {
    const Scores *s = rows;
    for (int pair = first; pair < end; pair++) {
        const Unit *u = s->unit;
        __m512i upper = differentiate_key(s, 2 * pair), lower = differentiate_key(s, 2 * pair + 1);
        uint16_t *to = u->score_pairs + (int64_t)s->first_query * u->n;
        to += (s->first_key + 2 * pair) * BLOCK;
        interleave(upper, lower, to, to + BLOCK);
    }
}

/* Those of a block of keys and all queries. */
AMX static void differentiate_scores(const Unit *u, int key, int n_keys) {
    TileProduct before = {0};
    Scores scores[2];
    int is_half = n_keys <= TILE_ROWS;
    for (int query = 0; query < u->length; query += BLOCK) {
        Scores *own = scores + query / BLOCK % 2;
        *own = (Scores){u, key, query};
        multiply(u->keys, u->size, BLOCK, u->query_pairs + query * u->size, u->size, is_half,
                 &before, differentiate_pairs);
        before = (TileProduct){u->scores, NULL, 0};
        multiply(u->values, u->size, BLOCK, u->grad_pairs + query * u->size, u->size, is_half,
                 &before, differentiate_pairs);
        before = (TileProduct){u->grad_weights, own, (n_keys + 1) / 2};
    }
    finish_tiles(&before, differentiate_pairs);
}

/* ---- Gradients of query, key and value ---- */

typedef struct { /* tokens from the first on, and numbers of a head */
    const Tokens *grad;
    int first, column;
    float factor;
    const float *sums;
} GradRows;

AMX INLINE void store_grads(const void *rows, int first, int end) {
    const GradRows *a = rows;
    for (int row = first; row < end; row++) {
        const floats *from = (const floats *)(a->sums + row * BLOCK);
        store_token(a->grad, a->first + row, a->column, from[0] * a->factor, from[1] * a->factor);
    }
}

/* Those of a block of keys and values. */
AMX static void write_keys(const Unit *u, int key, int n_keys) {
    float sums[BLOCK * BLOCK] __attribute__((aligned(64)));
    TileProduct before = {0};
    GradRows rows[2];
    for (int i = 0; i < 2 * u->size; i += BLOCK) {
        int is_key = i >= u->size, column = is_key ? i - u->size : i;
        const uint16_t *x = is_key ? u->grad_scores : u->weights;
        const uint16_t *pairs = is_key ? u->queries : u->grads;
        multiply(x, BLOCK, BLOCK * BLOCK, pairs + column * u->n, u->n, n_keys <= TILE_ROWS, &before,
                 store_grads);
        rows[i / BLOCK % 2] = (GradRows){is_key ? &u->grad_key : &u->grad_value, key, column,
                                         is_key ? u->scaling : 1, sums};
        before = (TileProduct){sums, rows + i / BLOCK % 2, n_keys};
    }
    finish_tiles(&before, store_grads);
}

/* Those of a block of queries, whose product has numbers of a head in its rows. */
AMX static void write_queries(const Unit *u, int query) {
    float sums[BLOCK * BLOCK] __attribute__((aligned(64)));
    for (int i = 0; i < u->size; i += BLOCK) {
        multiply(u->turned_keys + i * BLOCK, BLOCK, u->size * BLOCK,
                 u->score_pairs + (int64_t)query * u->n, u->n, 0, &(TileProduct){0}, store_grads);
        finish_tiles(&(TileProduct){.sums = sums}, store_grads);
        for (int half = 0; half < 2; half++) {
            floats left[LANES], right[LANES];
            for (int row = 0; row < LANES; row++) {
                const float *from = sums + row * BLOCK + half * LANES;
                left[row] = *(const floats *)from * u->scaling;
                right[row] = *(const floats *)(from + LANES * BLOCK) * u->scaling;
            }
            transpose(left);
            transpose(right);
            for (int row = 0; row < LANES; row++) {
                int token = query + place_before(half, row);
                if (token < u->length)
                    store_token(&u->grad_query, token, i, left[row], right[row]);
            }
        }
    }
}

/* ---- One row and head ---- */

/* A block of keys and values. */
AMX static void read_keys(const Unit *u, int first) {
    uint16_t *turned = u->turned_keys + first * u->size;
    for (int i = 0; i < u->size; i += BLOCK) {
        floats left[LANES], right[LANES];
        for (int row = 0; row < BLOCK; row++) {
            uint16_t *value = u->values + row * u->size + i;
            _mm512_storeu_si512(value, token_at(&u->value, first + row, i));
        }
        for (int row = 0; row < LANES; row++) {
            uint16_t *key = u->keys + 2 * row * u->size + i;
            __m512i upper = token_at(&u->key, first + 2 * row, i);
            __m512i lower = token_at(&u->key, first + 2 * row + 1, i);
            _mm512_storeu_si512(key, upper);
            _mm512_storeu_si512(key + u->size, lower);
            interleave(upper, lower, left + row, right + row);
        }
        transpose(left);
        transpose(right);
        memcpy(turned + i * BLOCK, left, sizeof left);
        memcpy(turned + (i + LANES) * BLOCK, right, sizeof right);
    }
}

/* What each query has; behind the last one there are no weights. */
AMX static void read_queries(const Attention *a, const Unit *u, int64_t first) {
    for (int query = 0; query < u->n; query++)
        u->mask_keys[query] = dropout_key(a->seed, first + (int64_t)query * a->n_heads);
    for (int query = 0; query < u->n; query++) {
        __m512 total = {0};
        for (int i = 0; i < u->size; i += BLOCK)
            total = _mm512_dpbf16_ps(total, (__m512bh)token_at(&u->output, query, i),
                                     (__m512bh)token_at(&u->grad_output, query, i));
        u->delta[query] = sum((floats)total);
        u->powers[query] = 1e30f;
        if (query < u->length)
            u->powers[query] = LOG2_E * a->logsumexp[first + (int64_t)query * a->n_heads];
    }
    pair_tokens(&u->query, u->n, u->queries);
    pair_tokens(&u->grad_output, u->n, u->grads);
    pair_numbers(&u->query, u->n, u->query_pairs);
    pair_numbers(&u->grad_output, u->n, u->grad_pairs);
}

static size_t bytes_of_unit(const Attention *a) {
    size_t n = round_up(a->max_seqlen, BLOCK), size = a->head_size;
    return 12 * n + 8 * BLOCK * BLOCK + 4 * BLOCK * (size + n) + 10 * n * size + 2 * n * n;
}

INLINE void lay_out(Unit *u, char *memory) {
    int n = u->n, n_numbers = n * u->size;
    u->scores = (float *)memory;
    u->grad_weights = u->scores + BLOCK * BLOCK;
    u->powers = u->grad_weights + BLOCK * BLOCK;
    u->delta = u->powers + n;
    u->mask_keys = (uint32_t *)(u->delta + n);
    u->keys = (uint16_t *)(u->mask_keys + n);
    u->values = u->keys + BLOCK * u->size;
    u->weights = u->values + BLOCK * u->size;
    u->grad_scores = u->weights + BLOCK * n;
    u->queries = u->grad_scores + BLOCK * n;
    u->grads = u->queries + n_numbers;
    u->query_pairs = u->grads + n_numbers;
    u->grad_pairs = u->query_pairs + n_numbers;
    u->turned_keys = u->grad_pairs + n_numbers;
    u->score_pairs = u->turned_keys + n_numbers;
}

AMX static void differentiate(const Attention *a, int number, char *memory) {
    Unit u = {.query = tokens_at(a, number, a->qkv, 3, 0),
              .key = tokens_at(a, number, a->qkv, 3, 1),
              .value = tokens_at(a, number, a->qkv, 3, 2),
              .output = tokens_at(a, number, a->output, 1, 0),
              .grad_output = tokens_at(a, number, a->grad_output, 1, 0),
              .grad_query = tokens_at(a, number, a->grad_qkv, 3, 0),
              .grad_key = tokens_at(a, number, a->grad_qkv, 3, 1),
              .grad_value = tokens_at(a, number, a->grad_qkv, 3, 2), .size = a->head_size,
              .scaling = a->scaling, .has_dropout = a->dropout > 0,
              .dropout = dropout_of(a->dropout)};
    u.length = u.query.length, u.n = round_up(u.length, BLOCK);
    lay_out(&u, memory);
    read_queries(a, &u, first_token(a, number));
    for (int key = 0; key < u.length; key += BLOCK) {
        int n_keys = u.length - key < BLOCK ? u.length - key : BLOCK;
        read_keys(&u, key);
        differentiate_scores(&u, key, n_keys);
        write_keys(&u, key, n_keys);
    }
    int end = round_up(u.length, 2); /* from where on there are no keys */
    for (int query = 0; query < u.length; query += BLOCK) {
        uint16_t *pairs = u.score_pairs + (int64_t)query * u.n + end * BLOCK;
        memset(pairs, 0, sizeof *pairs * BLOCK * (u.n - end));
        write_queries(&u, query);
    }
}

int attention_grad_tiles(const Attention *a, int n_threads) {
    return for_all_units(a, bytes_of_unit(a), differentiate, n_threads);
}
#endif
