/* The gate of a feed-forward layer: the GELU of one half of the hidden states times the other. */

#include <omp.h>

#include "gelu.h"

#ifdef HAS_BF16_DOT
#define PAIR (2 * LANES)

BF16_DOT static void forward_token(const Gated *a, int64_t token) {
    const char *x = a->hidden + 4 * token * a->size, *gate = x + 2 * a->size;
    char *output = a->output + 2 * token * a->size;
    for (int64_t j = 0; j < a->size; j += PAIR) {
        floats left = gelu(load(x, j, 1)) * load(gate, j, 1);
        floats right = gelu(load(x, j + LANES, 1)) * load(gate, j + LANES, 1);
        store_bf16(output + 2 * j, left, right);
    }
}

int gated_forward(const Gated *a, int n_threads) {
#pragma omp parallel for num_threads(threads_for(a->n_tokens * a->size, n_threads))
    for (int64_t token = 0; token < a->n_tokens; token++) forward_token(a, token);
    return 0;
}

/* The gradients of both halves. */
BF16_DOT static void backward_token(const Gated *a, int64_t token) {
    const char *x = a->hidden + 4 * token * a->size, *gate = x + 2 * a->size;
    const char *grad = a->grad_output + 2 * token * a->size;
    char *grad_x = a->grad_hidden + 4 * token * a->size, *grad_gate = grad_x + 2 * a->size;
    for (int64_t j = 0; j < a->size; j += PAIR) {
        floats grads[2], gates[2];
        for (int half = 0; half < 2; half++) {
            floats value = load(x, j + half * LANES, 1), g = load(grad, j + half * LANES, 1);
            floats active, slope = gelu_derivative(value, &active);
            grads[half] = g * load(gate, j + half * LANES, 1) * slope;
            gates[half] = g * active;
        }
        store_bf16(grad_x + 2 * j, grads[0], grads[1]);
        store_bf16(grad_gate + 2 * j, gates[0], gates[1]);
    }
}

int gated_backward(const Gated *a, int n_threads) {
#pragma omp parallel for num_threads(threads_for(a->n_tokens * a->size, n_threads))
    for (int64_t token = 0; token < a->n_tokens; token++) backward_token(a, token);
    return 0;
}
#endif
