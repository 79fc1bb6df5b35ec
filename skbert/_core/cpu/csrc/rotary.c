/* Rotary positions: each half of a query or key is turned by an angle with the other half. */

#include <omp.h>
#include <string.h>

#include "vectors.h"

FOR_EACH_PROCESSOR
static void rotate_token(const Rotary *a, int64_t token) {
    int64_t width = (int64_t)a->n_heads * a->head_size, begin = 3 * token * width;
    int64_t half = a->head_size / 2, angle = a->positions[token] * half;
    for (int64_t head = 0; head < 2 * a->n_heads; head++)
        for (int64_t j = 0; j < half; j += LANES) {
            int64_t first = begin + head * a->head_size + j;
            floats x = load(a->qkv, first, a->is_bf16), y = load(a->qkv, first + half, a->is_bf16);
            floats cosine = *(const floats *)(a->cosines + angle + j);
            floats sine = *(const floats *)(a->sines + angle + j);
            if (a->backward) sine = -sine;
            store(a->output, first, x * cosine - y * sine, a->is_bf16);
            store(a->output, first + half, y * cosine + x * sine, a->is_bf16);
        }
    if (a->output == a->qkv) return;
    int64_t size = a->is_bf16 ? 2 : 4, value = (begin + 2 * width) * size;
    memcpy(a->output + value, a->qkv + value, width * size);
}

int DEFINE(rotate)(const Rotary *a, int n_threads) {
    int64_t n = a->n_tokens * a->n_heads * a->head_size;
#pragma omp parallel for num_threads(threads_for(n, n_threads))
    for (int64_t token = 0; token < a->n_tokens; token++) rotate_token(a, token);
    return 0;
}
