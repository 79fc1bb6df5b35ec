/* Steps of AdamW (Loshchilov and Hutter 2019), and the norm of gradients, over many tensors. */

#include <math.h>
#include <omp.h>
#include <string.h>

#include "vectors.h"

/* Numbers of a tensor that a thread takes at once: their squares are added up in float32. */
#define CHUNK (LANES << 10)
#define AHEAD 4096 /* bytes of what is read that are fetched before they are needed */

INLINE floats load_partial(const char *from, int64_t offset, int64_t n, int is_bf16) {
    _Alignas(float) char few[4 * LANES] = {0};
    if (n >= LANES) return load(from, offset, is_bf16);
    memcpy(few, from + (is_bf16 ? 2 : 4) * offset, (is_bf16 ? 2 : 4) * n);
    return load(few, 0, is_bf16);
}

INLINE void store_partial(void *to, int64_t offset, int64_t n, floats x, int is_bf16) {
    _Alignas(float) char few[4 * LANES];
    if (n >= LANES) {
        store(to, offset, x, is_bf16);
        return;
    }
    store(few, 0, x, is_bf16);
    memcpy((char *)to + (is_bf16 ? 2 : 4) * offset, few, (is_bf16 ? 2 : 4) * n);
}

INLINE floats square_root(floats x) {
    for (int i = 0; i < LANES; i++) x[i] = sqrtf(x[i]);
    return x;
}

INLINE int64_t chunk_end(const TrainedTensor *a, int64_t begin) {
    return begin + CHUNK < a->n ? begin + CHUNK : a->n;
}

FOR_EACH_PROCESSOR
static void step_chunk(const AdamW *settings, int number, int64_t begin) {
    const TrainedTensor *a = settings->tensors + number;
    const StepFactors *factors = settings->factors + number;
    int64_t end = chunk_end(a, begin);
    for (int64_t i = begin; i < end; i += LANES) {
        int64_t n = end - i;
        floats g = load_partial(a->gradient, i, n, (int)a->is_bf16) / settings->divisor;
        floats w = load_partial((char *)a->weight, i, n, 0) * factors->decay;
        __builtin_prefetch((char *)(a->weight + i) + AHEAD);
        __builtin_prefetch((char *)(a->exp_avg + i) + AHEAD);
        __builtin_prefetch((char *)(a->exp_avg_sq + i) + AHEAD);
        floats m = load_partial((char *)a->exp_avg, i, n, 0);
        floats v = load_partial((char *)a->exp_avg_sq, i, n, 0);
        m += (g - m) * settings->one_minus_beta1;
        v = v * settings->beta2 + g * g * settings->one_minus_beta2;
        w -= factors->step_size * m /
             (square_root(v) / factors->bias_correction2_sqrt + settings->epsilon);
        store_partial(a->exp_avg, i, n, m, 0);
        store_partial(a->exp_avg_sq, i, n, v, 0);
        store_partial(a->weight, i, n, w, 0);
        if (a->bf16_weight) store_partial(a->bf16_weight, i, n, w, 1);
    }
}

FOR_EACH_PROCESSOR
static double sum_of_squares(const TrainedTensor *a, int64_t begin) {
    int64_t end = chunk_end(a, begin);
    floats all = {0};
    for (int64_t i = begin; i < end; i += LANES) {
        floats g = load_partial(a->gradient, i, end - i, (int)a->is_bf16);
        __builtin_prefetch(a->gradient + (i << (2 - a->is_bf16)) + AHEAD);
        all += g * g;
    }
    return sum(all);
}

int DEFINE(adamw_step)(const AdamW *a, int n_threads) {
#pragma omp parallel num_threads(n_threads)
    for (int i = 0; i < a->n_tensors; i++)
#pragma omp for schedule(static) nowait
        for (int64_t begin = 0; begin < a->tensors[i].n; begin += CHUNK) step_chunk(a, i, begin);
    return 0;
}

int DEFINE(grad_norm)(const GradNorm *a, int n_threads) {
#pragma omp parallel num_threads(n_threads)
    for (int i = 0; i < a->n_tensors; i++)
#pragma omp for schedule(static) nowait
        for (int64_t begin = 0; begin < a->tensors[i].n; begin += CHUNK)
            a->squares[omp_get_thread_num()] += sum_of_squares(a->tensors + i, begin);
    return 0;
}
