/* Layer normalisation of x after dropout plus a residual, token by token. */

#include <omp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "dropout.h"
#include "gelu.h"
#include "norm.h"

FOR_EACH_PROCESSOR
static void forward_token(const LayerNorm *a, int64_t token) {
    int64_t begin = token * a->size;
    uint32_t mask_key = dropout_key(a->seed, token);
    floats total = {0};
    float *added = (a->sum ? a->sum : a->output) + begin;
    for (int64_t j = 0; j < a->size; j += LANES) {
        floats x = load(a->x, begin + j, a->is_bf16);
        if (a->dropout > 0) x *= dropout_mask(mask_key, (int)j, a->dropout);
        x += load((const char *)a->residual, begin + j, 0);
        *(floats *)(added + j) = x;
        total += x;
    }
    float mean = sum(total) / a->size;
    float rstd = reciprocal_deviation(added, a->size, mean, a->epsilon);
    a->rstd[token] = rstd;
    for (int64_t j = 0; j < a->size; j += LANES) {
        floats x = (*(floats *)(added + j) - mean) * rstd;
        if (a->normalized) store(a->normalized, begin + j, x, a->is_bf16);
        floats bias = {0};
        if (a->bias) bias = *(const floats *)(a->bias + j);
        x = x * *(const floats *)(a->weight + j) + bias; /* rounded once, with a bias or without */
        if (a->output) *(floats *)(a->output + begin + j) = x;
        if (a->is_bf16) store(a->rounded, begin + j, x, 1);
    }
}

#ifdef HAS_BF16_DOT
#define TOKENS 4 /* side by side, as each addition to a sum waits for the one before */

/* Whether nothing is computed but the output, in bfloat16 and in whole vectors of that. */
static int is_plain(const LayerNorm *a) {
    int needs_more = a->sum || a->normalized || a->dropout > 0 || !a->output;
    return has_bf16_dot && a->is_bf16 && !needs_more && a->size % (2 * LANES) == 0;
}

/* Sixteen numbers of bfloat16. */
AVX512 INLINE floats widen(const uint16_t *from) {
    __m256i words;
    memcpy(&words, from, sizeof words);
    return (floats)((uints)_mm512_cvtepu16_epi32(words) << 16);
}

/* Like forward_token, for several tokens side by side. */
BF16_DOT INLINE void forward_plain(const LayerNorm *a, int64_t token, int n) {
    int64_t size = a->size, begin = token * size;
    const uint16_t *x = (const uint16_t *)a->x + begin;
    const float *residual = a->residual + begin;
    float *output = a->output + begin, mean[TOKENS], rstd[TOKENS];
    floats total[TOKENS] = {0}, squares[TOKENS] = {0};
    for (int64_t j = 0; j < size; j += LANES)
        for (int i = 0; i < n; i++) {
            floats added = widen(x + i * size + j) + *(const floats *)(residual + i * size + j);
            total[i] += *(floats *)(output + i * size + j) = added;
        }
    for (int i = 0; i < n; i++) mean[i] = sum(total[i]) / size;
    for (int64_t j = 0; j < size; j += LANES)
        for (int i = 0; i < n; i++) {
            floats centered = *(const floats *)(output + i * size + j) - mean[i];
            squares[i] += centered * centered;
        }
    for (int i = 0; i < n; i++)
        a->rstd[token + i] = rstd[i] = reciprocal_root(sum(squares[i]) / size, a->epsilon);
    for (int64_t j = 0; j < size; j += 2 * LANES) {
        floats weight[2], bias[2] = {0};
        memcpy(weight, a->weight + j, sizeof weight);
        if (a->bias) memcpy(bias, a->bias + j, sizeof bias);
        for (int i = 0; i < n; i++) {
            floats *both = (floats *)(output + i * size + j);
            for (int half = 0; half < 2; half++)
                both[half] = (both[half] - mean[i]) * rstd[i] * weight[half] + bias[half];
            store_bf16(a->rounded + 2 * (begin + i * size + j), both[0], both[1]);
        }
    }
}

BF16_DOT static void forward_plain_block(const LayerNorm *a, int64_t token) {
    if (a->n_tokens - token >= TOKENS) return forward_plain(a, token, TOKENS);
    for (; token < a->n_tokens; token++) forward_plain(a, token, 1);
}

static int forward_all_plain(const LayerNorm *a, int n_threads) {
#pragma omp parallel for num_threads(threads_for(a->n_tokens * a->size, n_threads))
    for (int64_t token = 0; token < a->n_tokens; token += TOKENS) forward_plain_block(a, token);
    return 0;
}
#endif

int DEFINE(layernorm_forward)(const LayerNorm *a, int n_threads) {
#ifdef HAS_BF16_DOT
    if (is_plain(a)) return forward_all_plain(a, n_threads);
#endif
#pragma omp parallel for num_threads(threads_for(a->n_tokens * a->size, n_threads))
    for (int64_t token = 0; token < a->n_tokens; token++) forward_token(a, token);
    return 0;
}

/* The gradient of the output: the sum of those in float32 and rounded, where there are such. */
INLINE floats grad_at(const LayerNorm *a, int64_t offset) {
    floats x = {0};
    if (a->grad_output) x += load((const char *)a->grad_output, offset, 0);
    if (a->grad_rounded) x += load(a->grad_rounded, offset, a->is_bf16);
    return x;
}

FOR_EACH_PROCESSOR
static void backward_token(const LayerNorm *a, int64_t token, float *grad_weight,
                           float *grad_bias) {
    int64_t begin = token * a->size;
    uint32_t mask_key = dropout_key(a->seed, token);
    floats sum_g = {0}, sum_gx = {0};
    for (int64_t j = 0; j < a->size; j += LANES) {
        floats g = grad_at(a, begin + j), x = load(a->normalized, begin + j, a->is_bf16);
        *(floats *)(grad_weight + j) += g * x;
        *(floats *)(grad_bias + j) += g;
        g *= *(const floats *)(a->weight + j);
        sum_g += g;
        sum_gx += g * x;
    }
    float mean_g = sum(sum_g) / a->size, mean_gx = sum(sum_gx) / a->size;
    for (int64_t j = 0; j < a->size; j += LANES) {
        floats g = grad_at(a, begin + j) * *(const floats *)(a->weight + j);
        floats x = load(a->normalized, begin + j, a->is_bf16);
        x = a->rstd[token] * (g - mean_g - x * mean_gx);
        if (a->grad_sum) x += load((const char *)a->grad_sum, begin + j, 0);
        *(floats *)(a->grad_residual + begin + j) = x;
        if (a->dropout > 0) x *= dropout_mask(mask_key, (int)j, a->dropout);
        store(a->grad_x, begin + j, x, a->is_bf16);
    }
}

int DEFINE(layernorm_backward)(const LayerNorm *a, int n_threads) {
    n_threads = threads_for(a->n_tokens * a->size, n_threads);
    int64_t n = 2 * a->size;
    float *sums = calloc(n_threads * n, sizeof *sums); /* (n_threads, 2, size) */
    if (!sums) return -1;
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int64_t token = 0; token < a->n_tokens; token++) {
        float *own = sums + omp_get_thread_num() * n;
        backward_token(a, token, own, own + a->size);
    }
    memcpy(a->grad_weights, sums, n * sizeof *sums);
    for (int thread = 1; thread < n_threads; thread++)
        for (int64_t i = 0; i < n; i++) a->grad_weights[i] += sums[thread * n + i];
    free(sums);
    return 0;
}
