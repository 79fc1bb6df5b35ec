/* Embeddings: rows of some tables, added and normalised, token by token; and their gradients. */

#include <omp.h>

#include "norm.h"

static int64_t row_of(const Table *table, int64_t token) {
    return table->ids ? table->ids[token] : 0;
}

FOR_EACH_PROCESSOR
static void embed_token(const Embedding *a, int64_t token) {
    float *output = a->output + token * a->size;
    const float *rows[MOST_TABLES];
    for (int i = 0; i < a->n_tables; i++)
        rows[i] = a->tables[i].rows + row_of(a->tables + i, token) * a->size;
    floats total = {0};
    for (int64_t j = 0; j < a->size; j += LANES) {
        floats x = *(const floats *)(rows[0] + j);
        for (int i = 1; i < a->n_tables; i++) x += *(const floats *)(rows[i] + j);
        *(floats *)(output + j) = x;
        total += x;
    }
    float mean = sum(total) / a->size;
    float rstd = reciprocal_deviation(output, a->size, mean, a->epsilon);
    for (int64_t j = 0; j < a->size; j += LANES) {
        floats x = (*(floats *)(output + j) - mean) * rstd, bias = {0};
        if (a->normalized) *(floats *)(a->normalized + token * a->size + j) = x;
        if (a->bias) bias = *(const floats *)(a->bias + j);
        *(floats *)(output + j) = x * *(const floats *)(a->weight + j) + bias;
    }
    if (a->normalized) a->rstd[token] = rstd;
}

static int is_outside(const Embedding *a, int64_t token) {
    for (int i = 0; i < a->n_tables; i++)
        if ((uint64_t)row_of(a->tables + i, token) >= (uint64_t)a->tables[i].n_rows) return 1;
    return 0;
}

int DEFINE(embed)(const Embedding *a, int n_threads) {
    int failed = 0;
#pragma omp parallel for num_threads(threads_for(a->n_tokens * a->size, n_threads)) \
    reduction(| : failed)
    for (int64_t token = 0; token < a->n_tokens; token++) {
        int skips = is_outside(a, token);
        failed |= skips;
        if (!skips) embed_token(a, token);
    }
    return failed;
}

/* Adds some columns of each token's gradient to those of the row that it has. */
FOR_EACH_PROCESSOR
static void add_columns(const Embedding *a, const Table *table, int64_t first, int64_t end) {
    for (int64_t token = 0; token < a->n_tokens; token++) {
        const float *from = a->grad_sum + token * a->size;
        float *to = table->grads + row_of(table, token) * a->size;
        for (int64_t j = first; j < end; j += LANES)
            *(floats *)(to + j) += *(const floats *)(from + j);
    }
}

int DEFINE(embed_backward)(const Embedding *a, int n_threads) {
    LayerNorm norm = {.weight = a->weight, .rstd = a->rstd, .normalized = (char *)a->normalized,
                      .grad_output = a->grad_output, .grad_residual = a->grad_sum,
                      .grad_x = (char *)a->grad_sum, .grad_weights = a->grad_weights,
                      .n_tokens = a->n_tokens, .size = a->size};
    n_threads = threads_for(a->n_tokens * a->size, n_threads);
    for (int64_t token = 0; token < a->n_tokens; token++)
        if (is_outside(a, token)) return 1;
    if (layernorm_backward(&norm, n_threads)) return -1;
#pragma omp parallel num_threads(n_threads)
    {
        int64_t n = a->size / LANES, thread = omp_get_thread_num(), all = omp_get_num_threads();
        int64_t first = n * thread / all * LANES, end = n * (thread + 1) / all * LANES;
        for (int i = 0; i < a->n_tables; i++)
            if (a->tables[i].grads) add_columns(a, a->tables + i, first, end);
    }
    return 0;
}
