/* Embeddings: rows of some tables, added and normalised, token by token. */

#include "norm.h"

FOR_EACH_PROCESSOR
static void embed_token(const Embedding *a, int64_t token) {
    float *output = a->output + token * a->size;
    const float *rows[MOST_TABLES];
    for (int i = 0; i < a->n_tables; i++) {
        const Table *table = a->tables + i;
        rows[i] = table->rows + (table->ids ? table->ids[token] * a->size : 0);
    }
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
        if (a->bias) bias = *(const floats *)(a->bias + j);
        *(floats *)(output + j) = x * *(const floats *)(a->weight + j) + bias;
    }
}

static int is_outside(const Embedding *a, int64_t token) {
    for (int i = 0; i < a->n_tables; i++) {
        const Table *table = a->tables + i;
        if (table->ids && (uint64_t)table->ids[token] >= (uint64_t)table->n_rows) return 1;
    }
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
