/* All layers of an encoder as BERT's, one after another: the operations that Python would call for
each, with the results that they have there. Of a few tokens the calls would take longer than the
work, and all threads share each operation. Of many, in rows enough for all threads, each thread
takes groups of rows through all layers, so that what lies between the operations stays in its
cache, and no thread waits. */

#include "parts.h"
#include "vectors.h"

#define GROUP_TOKENS 768 /* for which weights are read once, and which about fit in a cache */

typedef struct { /* what lies between the operations, each of so many tokens */
    char *qkv, *context, *sum, *hidden, *rounded, *states, *rstd, *cu_seqlens;
} Between;

/* Memory for these, which begins with `qkv`; 0 where there is none. */
static int allocate(const Encoder *a, int64_t n_tokens, Between *between) {
    const EncoderLayer *layer = a->layers;
    int64_t number = n_tokens * (a->attention.is_bf16 ? 2 : 4), size = layer->qkv.n_in;
    const Part parts[] = {{&between->qkv, number * layer->qkv.n_out},
                          {&between->context, number * layer->attention_out.n_in},
                          {&between->sum, number * size},
                          {&between->hidden, number * layer->mlp_in.n_out},
                          {&between->rounded, number * size},
                          {&between->states, 4 * n_tokens * size},
                          {&between->rstd, 4 * n_tokens},
                          {&between->cu_seqlens, 4 * (a->attention.n_rows + 1)}};
    return allocate_parts(parts, sizeof parts / sizeof *parts);
}

/* A product of bfloat16 or float32. */
static int multiply_by(const Encoder *a, const PackedWeight *weight, const char *x, char *output,
                       int n_threads) {
#ifdef HAS_BF16_DOT
    if (a->attention.is_bf16) {
        Linear linear = {.x = (const uint16_t *)x, .packed_weight = weight->packed,
                         .bias = weight->columns, .n_tokens = a->n_tokens, .output = output,
                         .n_in = weight->n_in, .n_out = weight->n_out,
                         .epilogue = weight->gelu ? GELU : NO_EPILOGUE,
                         .use_amx = a->use_amx};
        return linear_forward(&linear, n_threads);
    }
#endif
    LinearFloat32 linear = {.weight = *weight, .x = (const float *)x, .output = (float *)output,
                            .n_tokens = a->n_tokens};
    return linear_float32(&linear, n_threads);
}

/* One product or two, of which the second reads what the first one writes to `hidden`. */
static int multiply(const Encoder *a, const PackedWeight *weights, int n_weights, const char *x,
                    char *hidden, char *output, int n_threads) {
#ifdef HAS_BF16_DOT
    if (a->is_int8) {
        Int8Linears linears = {.weights = weights, .n_weights = n_weights, .x = x,
                               .output = output, .n_tokens = a->n_tokens,
                               .is_bf16 = a->attention.is_bf16, .use_amx = a->use_amx};
        return int8_linears(&linears, n_threads);
    }
#endif
    if (n_weights == 1) return multiply_by(a, weights, x, output, n_threads);
    return multiply_by(a, weights, x, hidden, n_threads) |
           multiply_by(a, weights + 1, hidden, output, n_threads);
}

static int attend(const Encoder *a, int n_threads) {
#ifdef HAS_BF16_DOT
    if (a->use_tiles) return attention_tiles(&a->attention, n_threads);
#endif
    return attention_forward(&a->attention, n_threads);
}

/* The norm of a sum: in float32 to `output`, and rounded for the products of bfloat16. */
static void normalize(const Encoder *a, const Between *between, const EncoderNorm *norm,
                      float epsilon, const float *residual, float *output, int n_threads) {
    LayerNorm layernorm = {.x = between->sum, .residual = residual, .weight = norm->weight,
                           .bias = norm->bias, .output = output, .rounded = between->rounded,
                           .rstd = (float *)between->rstd, .n_tokens = a->n_tokens,
                           .size = a->layers->qkv.n_in, .epsilon = epsilon,
                           .is_bf16 = a->attention.is_bf16};
    layernorm_forward(&layernorm, n_threads);
}

/* From the states before a layer, and the same as its products read them, to those after it. */
static int run_layer(const Encoder *a, const Between *between, int number, const float *states,
                     const char *x, float *output, int n_threads) {
    const EncoderLayer *layer = a->layers + number;
    const float *epsilons = a->epsilons + 2 * number;
    float *middle = (float *)between->states;
    int failed = multiply(a, &layer->qkv, 1, x, NULL, (char *)a->attention.qkv, n_threads);
    failed |= attend(a, n_threads);
    x = a->attention.output;
    failed |= multiply(a, &layer->attention_out, 1, x, NULL, between->sum, n_threads);
    normalize(a, between, &layer->attention_norm, epsilons[0], states, middle, n_threads);
    x = a->attention.is_bf16 ? between->rounded : between->states;
    failed |= multiply(a, &layer->mlp_in, 2, x, between->hidden, between->sum, n_threads);
    normalize(a, between, &layer->mlp_norm, epsilons[1], middle, output, n_threads);
    return failed;
}

/* States as products read them, in bfloat16. */
FOR_EACH_PROCESSOR
static void round_states(const float *states, char *rounded, int64_t n) {
    for (int64_t j = 0; j < n; j += LANES) store(rounded, j, *(const floats *)(states + j), 1);
}

/* Some rows through all layers. */
static int run_rows(const Encoder *whole, const Between *between, int first, int last,
                    int n_threads) {
    Encoder own = *whole, *a = &own;
    const int32_t *begins = whole->attention.cu_seqlens + first;
    int64_t size = a->layers->qkv.n_in, offset = begins[0] * size;
    int32_t *cu_seqlens = (int32_t *)between->cu_seqlens;
    int failed = 0;
    for (int row = 0; row <= last - first; row++) cu_seqlens[row] = begins[row] - begins[0];
    a->attention.cu_seqlens = cu_seqlens, a->attention.n_rows = last - first;
    a->attention.qkv = between->qkv, a->attention.output = between->context;
    a->n_tokens = cu_seqlens[last - first];
    const float *states = a->states + offset;
    const char *x = (const char *)states;
    if (a->attention.is_bf16) {
        round_states(states, between->rounded, a->n_tokens * size);
        x = between->rounded;
    }
    for (int number = 0; number < a->n_layers && !failed; number++) {
        float *output = (float *)between->states; /* where nobody reads it, in place */
        if (a->outputs[number]) output = a->outputs[number] + offset;
        failed = run_layer(a, between, number, states, x, output, n_threads);
        states = output;
        x = a->attention.is_bf16 ? between->rounded : (const char *)output;
    }
    return failed;
}

/* The first row whose middle is at a token or behind it. */
static int row_from(const Encoder *a, int64_t token) {
    const int32_t *begins = a->attention.cu_seqlens;
    int row = 0;
    while (row < a->attention.n_rows && (int64_t)begins[row] + begins[row + 1] < 2 * token) row++;
    return row;
}

/* Each thread takes one group of rows after another through all layers. */
static int run_groups(const Encoder *a, int64_t n_groups, int n_threads) {
    int failed = 0;
#pragma omp parallel num_threads(n_threads) reduction(| : failed)
    {
        Between between;
        int64_t most = a->n_tokens / n_groups + 1 + a->attention.max_seqlen;
        int has_memory = allocate(a, most, &between);
        failed |= !has_memory;
#pragma omp for schedule(dynamic)
        for (int64_t group = 0; group < n_groups; group++) {
            int first = row_from(a, group * a->n_tokens / n_groups);
            int last = row_from(a, (group + 1) * a->n_tokens / n_groups);
            if (has_memory && first < last) failed |= run_rows(a, &between, first, last, 1);
        }
        if (has_memory) free(between.qkv);
    }
    return failed ? -1 : 0;
}

int encoder_forward(const Encoder *a, int n_threads) {
    int64_t of_a_turn = (int64_t)GROUP_TOKENS * n_threads;
    if (a->n_tokens > GROUP_TOKENS && 2 * (int64_t)a->attention.n_rows > n_threads)
        return run_groups(a, (a->n_tokens + of_a_turn - 1) / of_a_turn * n_threads, n_threads);
    Between between;
    if (!allocate(a, a->n_tokens, &between)) return -1;
    int failed = run_rows(a, &between, 0, a->attention.n_rows, n_threads);
    free(between.qkv);
    return failed;
}
