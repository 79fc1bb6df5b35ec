/* Layers as BERT's in a training step, forward and backward: the operations that Python would call
one after another, with the results that they have there. */

#include <string.h>

#include "kernels.h"
#include "parts.h"

#ifdef HAS_BF16_DOT
typedef struct { /* a norm, and what its gradient needs */
    char *normalized, *rounded;
    float *rstd;
    float epsilon, dropout;
    uint64_t seed;
} TrainedNorm;

typedef struct { /* one of the layers */
    const TrainedWeights *weights;
    const float *states;
    const char *x;
    float *output;
    char *hidden;
    TrainedNorm attention_norm, mlp_norm;
    Attention attention; /* qkv, output, logsumexp; not the gradients */
    const float *grad_output;
    const char *grad_rounded;
    float *grad_states;
    char *grad_x; /* or NULL: not wanted */
    char *grad_products;
    float *grad_norms;
    int64_t n_tokens;
    int use_amx, use_tiles;
} TrainedLayer;

/* What both passes take. */
static TrainedLayer layer_of(const TrainedLayers *a, int number) {
    const TrainedPlaces *own = a->places + number;
    const TrainedFactors *factors = a->factors + number;
    TrainedLayer layer = {
        .weights = own->weights, .x = own->x, .hidden = own->hidden,
        .attention_norm = {own->normalized, own->rounded, own->rstd, factors->epsilon,
                           factors->dropout, own->norm_seed},
        .mlp_norm = {own->last_normalized, own->last_rounded, own->last_rstd,
                     factors->last_epsilon, factors->last_dropout, own->last_seed},
        .attention = a->attention, .grad_products = own->grad_products,
        .grad_norms = own->grad_norms, .n_tokens = a->n_tokens, .use_amx = a->use_amx,
        .use_tiles = a->use_tiles};
    layer.attention.qkv = own->qkv, layer.attention.output = own->context;
    layer.attention.logsumexp = own->logsumexp, layer.attention.seed = own->seed;
    return layer;
}

static int64_t width_of(const TrainedProduct *product) {
    return product->n_rows * product->n_weights;
}

static int64_t numbers_in(const TrainedProduct *product) {
    return width_of(product) * (product->n_in + (product->biases[0] != NULL));
}

/* A product; `biases` is memory for those of several weights side by side. */
static int multiply(const TrainedLayer *a, const TrainedProduct *product, const char *x,
                    char *output, char *gelu, float *biases, int n_threads) {
    Linear linear = {.x = (const uint16_t *)x, .weights = product->weights,
                     .bias = product->biases[0], .output = output, .gelu = gelu,
                     .n_tokens = a->n_tokens, .n_in = product->n_in, .n_out = width_of(product),
                     .n_rows = product->n_rows, .epilogue = gelu ? GELU_COPY : NO_EPILOGUE,
                     .use_amx = a->use_amx};
    if (product->n_weights > 1 && linear.bias) {
        for (int i = 0; i < product->n_weights; i++)
            memcpy(biases + i * product->n_rows, product->biases[i], 4 * product->n_rows);
        linear.bias = biases;
    }
    return linear_forward(&linear, n_threads);
}

/* The gradient of the input, or of what was before the GELU that was the input, and that GELU. */
static int multiply_back(const TrainedLayer *a, const TrainedProduct *product,
                         const char *grad_output, char *grad_x, const char *before_gelu,
                         char *gelu, int n_threads) {
    Linear linear = {.x = (const uint16_t *)grad_output, .weights = product->weights,
                     .output = grad_x, .before_gelu = before_gelu, .gelu = gelu,
                     .n_tokens = a->n_tokens, .n_in = width_of(product), .n_out = product->n_in,
                     .n_rows = product->n_rows, .transposed = 1,
                     .epilogue = before_gelu ? GELU_BACKWARD : NO_EPILOGUE,
                     .use_amx = a->use_amx};
    return linear_forward(&linear, n_threads);
}

/* The gradients of weights and biases. */
static int differentiate(const TrainedLayer *a, int number, const char *grad_output,
                         const char *x, int n_threads) {
    const TrainedProduct *products = &a->weights->qkv, *product = products + number;
    char *grad_weight = a->grad_products;
    for (int i = 0; i < number; i++) grad_weight += 2 * numbers_in(products + i);
    char *grad_bias = grad_weight + 2 * width_of(product) * product->n_in;
    GradWeight grad = {.grad_output = grad_output, .x = x, .grad_weight = grad_weight,
                       .grad_bias = product->biases[0] ? grad_bias : NULL,
                       .n_tokens = a->n_tokens, .n_in = product->n_in,
                       .n_out = width_of(product), .use_amx = a->use_amx};
    return linear_grad_weight(&grad, n_threads);
}

/* A norm and what both of its passes read. */
static LayerNorm norm_of(const TrainedLayer *a, const TrainedNorm *norm,
                         const EncoderNorm *weights) {
    return (LayerNorm){.weight = weights->weight, .bias = weights->bias,
                       .normalized = norm->normalized, .rstd = norm->rstd,
                       .n_tokens = a->n_tokens, .size = a->weights->qkv.n_in,
                       .epsilon = norm->epsilon, .dropout = norm->dropout, .seed = norm->seed,
                       .is_bf16 = 1};
}

static void normalize(const TrainedLayer *a, const TrainedNorm *norm, const EncoderNorm *weights,
                      const char *x, const float *residual, float *output, int n_threads) {
    LayerNorm layernorm = norm_of(a, norm, weights);
    layernorm.x = x, layernorm.residual = residual;
    layernorm.output = output, layernorm.rounded = norm->rounded;
    layernorm_forward(&layernorm, n_threads);
}

static int layer_forward(const TrainedLayer *a, int n_threads) {
    const TrainedWeights *weights = a->weights;
    int64_t n = a->n_tokens, size = weights->qkv.n_in;
    char *sum, *active, *middle, *biases;
    const Part parts[] = {{&sum, 2 * n * size}, {&active, 2 * n * width_of(&weights->mlp_in)},
                          {&middle, 4 * n * size}, {&biases, 4 * width_of(&weights->qkv)}};
    const int n_parts = sizeof parts / sizeof *parts;
    if (!allocate_each(parts, n_parts)) return -1;
    int failed = multiply(a, &weights->qkv, a->x, (char *)a->attention.qkv, NULL,
                          (float *)biases, n_threads);
    failed |= a->use_tiles ? attention_tiles(&a->attention, n_threads)
                           : attention_forward(&a->attention, n_threads);
    failed |= multiply(a, &weights->attention_out, a->attention.output, sum, NULL, NULL,
                       n_threads);
    normalize(a, &a->attention_norm, &weights->attention_norm, sum, a->states, (float *)middle,
              n_threads);
    failed |= multiply(a, &weights->mlp_in, a->attention_norm.rounded, a->hidden, active, NULL,
                       n_threads);
    failed |= multiply(a, &weights->mlp_out, active, sum, NULL, NULL, n_threads);
    normalize(a, &a->mlp_norm, &weights->mlp_norm, sum, (float *)middle, a->output, n_threads);
    free_each(parts, n_parts);
    return failed;
}

typedef struct { /* gradients of what the operations wrote, in bfloat16 but for the residual */
    char *sum, *middle, *hidden, *x, *context, *qkv;
    char *active; /* what the second product of the MLP read; later context and qkv */
} Grads;

/* From the layer's end to what the MLP and the residual beside it read. */
static int mlp_backward(const TrainedLayer *a, const Grads *grads, int n_threads) {
    const TrainedWeights *weights = a->weights;
    LayerNorm norm = norm_of(a, &a->mlp_norm, &weights->mlp_norm);
    norm.grad_output = a->grad_output, norm.grad_rounded = a->grad_rounded;
    norm.grad_residual = (float *)grads->middle, norm.grad_x = grads->sum;
    norm.grad_weights = a->grad_norms + 2 * norm.size;
    int failed = layernorm_backward(&norm, n_threads);
    failed |= multiply_back(a, &weights->mlp_out, grads->sum, grads->hidden, a->hidden,
                            grads->active, n_threads);
    failed |= differentiate(a, 3, grads->sum, grads->active, n_threads);
    failed |= differentiate(a, 2, grads->hidden, a->attention_norm.rounded, n_threads);
    return failed | multiply_back(a, &weights->mlp_in, grads->hidden, grads->x, NULL, NULL,
                                  n_threads);
}

/* From there to what the layer reads. */
static int attention_layer_backward(const TrainedLayer *a, const Grads *grads, int n_threads) {
    const TrainedWeights *weights = a->weights;
    LayerNorm norm = norm_of(a, &a->attention_norm, &weights->attention_norm);
    norm.grad_output = (float *)grads->middle, norm.grad_rounded = grads->x;
    norm.grad_residual = a->grad_states, norm.grad_x = grads->sum;
    norm.grad_weights = a->grad_norms;
    int failed = layernorm_backward(&norm, n_threads);
    failed |= differentiate(a, 1, grads->sum, a->attention.output, n_threads);
    failed |= multiply_back(a, &weights->attention_out, grads->sum, grads->context, NULL, NULL,
                            n_threads);
    Attention attention = a->attention;
    attention.grad_output = grads->context, attention.grad_qkv = grads->qkv;
    failed |= a->use_tiles ? attention_grad_tiles(&attention, n_threads)
                           : attention_backward(&attention, n_threads);
    failed |= differentiate(a, 0, grads->qkv, a->x, n_threads);
    if (!a->grad_x) return failed;
    return failed | multiply_back(a, &weights->qkv, grads->qkv, a->grad_x, NULL, NULL, n_threads);
}

static int layer_backward(const TrainedLayer *a, int n_threads) {
    const TrainedWeights *weights = a->weights;
    int64_t n = a->n_tokens, size = weights->qkv.n_in, width = weights->attention_out.n_in;
    int64_t of_mlp = 2 * n * weights->mlp_out.n_in, of_attention = 8 * n * width;
    Grads grads;
    const Part parts[] = {{&grads.sum, 2 * n * size}, {&grads.middle, 4 * n * size},
                          {&grads.hidden, of_mlp}, {&grads.x, 2 * n * size},
                          {&grads.active, of_mlp > of_attention ? of_mlp : of_attention}};
    const int n_parts = sizeof parts / sizeof *parts;
    if (!allocate_each(parts, n_parts)) return -1;
    grads.context = grads.active, grads.qkv = grads.context + 2 * n * width;
    int failed = mlp_backward(a, &grads, n_threads);
    failed |= attention_layer_backward(a, &grads, n_threads);
    free_each(parts, n_parts);
    return failed;
}

int trained_layers_forward(const TrainedLayers *a, int n_threads) {
    int failed = 0;
    for (int number = 0; number < a->n_layers && !failed; number++) {
        TrainedLayer layer = layer_of(a, number);
        layer.states = number ? a->output : a->states; /* which are read before any is written */
        layer.output = a->output;
        failed = layer_forward(&layer, n_threads);
    }
    return failed;
}

int trained_layers_backward(const TrainedLayers *a, int n_threads) {
    int failed = 0;
    for (int number = a->n_layers - 1; number >= 0 && !failed; number--) {
        TrainedLayer layer = layer_of(a, number);
        int is_last = number == a->n_layers - 1;
        layer.grad_output = is_last ? a->grad_output : a->grad_states; /* read first, too */
        layer.grad_rounded = is_last ? a->grad_rounded : a->grad_x;
        layer.grad_states = a->grad_states;
        layer.grad_x = number || a->needs_grad ? a->grad_x : NULL;
        failed = layer_backward(&layer, n_threads);
    }
    return failed;
}
#endif
