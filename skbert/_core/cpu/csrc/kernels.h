/* What each operation takes, and the functions that compute it; module.c calls them from Python.

Arithmetic is float32, and products of bfloat16 where a processor has them; what is read and
written is float32 or bfloat16 (is_bf16). The caller has checked addresses, sizes and types. A
function returns -1 where there is no memory of its own, 1 where an id is outside its table,
otherwise 0. */

#ifndef SKBERT_KERNELS_H
#define SKBERT_KERNELS_H

#include <stdint.h>

#ifndef LANES
#define LANES 16 /* numbers in a vector */
#endif
#define PANEL 32 /* columns of a product that are computed together */

#if LANES == 16 && defined(__x86_64__) && __has_include(<amxint8intrin.h>)
#define HAS_BF16_DOT /* the compiler knows products of bfloat16 and int8, in vectors and tiles */
#endif

/* An operation that is compiled for vectors of 16 numbers, and in narrow.c for those of 8; the
processor decides which of them is called. */
extern int lanes;
#define OPERATION(name, type)                                                        \
    int name##_of_16(const type *a, int n_threads);                                  \
    int name##_of_8(const type *a, int n_threads);                                   \
    static inline int name(const type *a, int n_threads) {                           \
        return lanes == 8 ? name##_of_8(a, n_threads) : name##_of_16(a, n_threads);  \
    }
#if LANES == 8
#define DEFINE(name) name##_of_8
#else
#define DEFINE(name) name##_of_16
#endif

/* Threads for work on so many numbers: to wake more of them costs more than little work. */
static inline int threads_for(int64_t numbers, int n_threads) {
    return numbers < 1 << 15 ? 1 : n_threads;
}

/* Attention within the rows of a packed batch. */
typedef struct {
    const char *qkv;    /* (n_tokens, 3, n_heads, head_size): query, key and value side by side */
    char *output;       /* (n_tokens, n_heads, head_size) */
    const char *grad_output;
    char *grad_qkv;
    float *logsumexp;   /* (n_tokens, n_heads), of the scaled scores; NULL: not wanted */
    const int32_t *cu_seqlens; /* (n_rows + 1,) */
    int n_rows, n_heads, head_size, max_seqlen, causal, is_bf16;
    int reach; /* how far away a token may be that another attends to; max_seqlen: any */
    float scaling, dropout;
    uint64_t seed;
} Attention;

OPERATION(attention_forward, Attention)
OPERATION(attention_backward, Attention)
int attention_tiles(const Attention *a, int n_threads); /* in bfloat16, whole rows, */
int attention_grad_tiles(const Attention *a, int n_threads); /* where the output is known, too */

/* Rotary positions of query and key. */
typedef struct {
    const char *qkv; /* (n_tokens, 3, n_heads, head_size) */
    char *output;    /* the same, perhaps in the same place */
    const float *cosines, *sines; /* (n_positions, head_size / 2) */
    const int32_t *positions;     /* (n_tokens,) */
    int64_t n_tokens;
    int n_heads, head_size, is_bf16;
    int backward; /* turn back */
} Rotary;

OPERATION(rotate, Rotary)

/* Layer normalisation of x after dropout plus a residual. */
typedef struct {
    const char *x;         /* (n_tokens, size) */
    const float *residual; /* (n_tokens, size) */
    const float *weight;
    const float *bias; /* or NULL */
    float *sum;        /* of x and the residual, (n_tokens, size); NULL: not wanted */
    float *output;     /* (n_tokens, size); NULL, where there is a sum: not wanted */
    char *rounded;    /* the same in bfloat16, if x is */
    float *rstd;      /* 1 / deviation of each token */
    char *normalized; /* before weight and bias, like x; NULL: no gradient is needed */
    const float *grad_sum;    /* or NULL, as the next two */
    const float *grad_output;
    const char *grad_rounded;
    float *grad_residual;
    char *grad_x;
    float *grad_weights; /* (2, size): of weight and bias */
    int64_t n_tokens, size;
    float epsilon, dropout;
    uint64_t seed;
    int is_bf16;
} LayerNorm;

OPERATION(layernorm_forward, LayerNorm)
OPERATION(layernorm_backward, LayerNorm)

/* A table of embeddings and the row that each token has: they are a row of a table in int64. */
typedef struct {
    const float *rows; /* (n_rows, size) */
    int64_t n_rows;
    const int64_t *ids; /* (n_tokens,); NULL: the first row */
    float *grads;       /* like rows, what their gradients are added to; NULL: not wanted */
} Table;

#define MOST_TABLES 3

/* The layer normalisation of the sum of these rows. */
typedef struct {
    const Table *tables;
    const float *weight;
    const float *bias; /* or NULL */
    float *output;     /* (n_tokens, size) */
    float *normalized; /* before weight and bias; NULL: no gradient is needed */
    float *rstd;       /* 1 / deviation of each token, where that is */
    const float *grad_output;
    float *grad_sum;     /* of the rows' sum */
    float *grad_weights; /* (2, size): of weight and bias */
    int64_t n_tokens, size;
    int n_tables; /* one or more */
    float epsilon;
} Embedding;

OPERATION(embed, Embedding)
OPERATION(embed_backward, Embedding)

/* What follows a product: nothing, GELU in place of it, GELU beside it, or the gradient of GELU and
GELU beside it. */
enum Epilogue { NO_EPILOGUE, GELU, GELU_COPY, GELU_BACKWARD };

/* A linear layer in bfloat16, or with transposed weights the gradient of its input. */
typedef struct {
    const uint16_t *x;             /* (n_tokens, n_in) */
    const uint16_t *packed_weight; /* (n_out / PANEL, n_in / 2, PANEL, 2), or NULL and */
    const float *const *weights;   /* float32, each of n_rows rows, one below the other */
    const float *bias;             /* (n_out,), or NULL */
    char *output;                  /* (n_tokens, n_out) */
    const char *before_gelu;       /* (n_tokens, n_out), what the gradient of GELU reads */
    char *gelu;                    /* (n_tokens, n_out), GELU beside the output */
    int64_t n_tokens, n_in, n_out, n_rows;
    int transposed; /* weights are (n_in, n_out), otherwise (n_out, n_in) */
    int epilogue;
    int use_amx; /* tiles, otherwise vectors: sums are added in another order */
} Linear;

/* The gradients of its weight and bias. */
typedef struct {
    const char *grad_output, *x;   /* (n_tokens, n_out), (n_tokens, n_in) */
    char *grad_weight, *grad_bias; /* (n_out, n_in), (n_out,) or NULL */
    int64_t n_tokens, n_in, n_out;
    int use_amx;
} GradWeight;

extern int has_bf16_dot; /* the processor, too, has products of bfloat16 */

int linear_forward(const Linear *a, int n_threads);
int linear_grad_weight(const GradWeight *a, int n_threads);

/* A packed linear layer: a row of an int64 table. */
typedef struct {
    const void *packed; /* in float32 (n_out / PANEL, n_in, PANEL); in bfloat16 as in Linear; in
                           int8 (n_out / PANEL, n_in / 4, PANEL, 4), with n_in rounded up to 64 */
    const float *columns; /* the bias, or NULL; in int8 (3, n_out): of each column the scale, the
                             sum of weights, the bias */
    int64_t n_in, n_out, gelu;
    int64_t outliers; /* in int8: whether some numbers of a token may need more than 8 bits */
} PackedWeight;

/* A linear layer in float32. */
typedef struct {
    PackedWeight weight;
    const float *x; /* (n_tokens, n_in) */
    float *output;  /* (n_tokens, n_out) */
    int64_t n_tokens;
} LinearFloat32;

OPERATION(linear_float32, LinearFloat32)

/* Linear layers in int8, each of which reads what the one before wrote. */
typedef struct {
    const PackedWeight *weights;
    const char *x; /* (n_tokens, n_in) of the first */
    char *output;  /* (n_tokens, n_out) of the last */
    int64_t n_tokens;
    int n_weights, is_bf16;
    int use_amx; /* tiles, otherwise vectors: the result is the same */
} Int8Linears;

extern int has_int8_dot; /* the processor, too, has products of int8 in vectors, */
extern int has_amx; /* and in tiles, which the system lets this process use */

int find_amx(void);
int int8_linears(const Int8Linears *a, int n_threads);

/* A layer as BERT's: a row of an int64 table. */
typedef struct {
    const float *weight, *bias; /* or NULL */
} EncoderNorm;

typedef struct {
    PackedWeight qkv, attention_out, mlp_in, mlp_out;
    EncoderNorm attention_norm, mlp_norm;
} EncoderLayer;

/* Layers of one size, whose products are all in int8, or all as attention is. */
typedef struct {
    const EncoderLayer *layers;
    const float *epsilons; /* (n_layers, 2) */
    const float *states;   /* (n_tokens, size) */
    float *const *outputs; /* of each layer (n_tokens, size); NULL: not wanted */
    Attention attention;   /* of each layer, but for qkv and output */
    int64_t n_tokens;
    int n_layers, is_int8;
    int use_amx, use_tiles; /* in products, in attention */
} Encoder;

int encoder_forward(const Encoder *a, int n_threads);

/* A linear layer that is trained, whose weights are in float32, one below the other. */
typedef struct {
    const float *weights[3]; /* each of n_rows rows; NULL behind the last */
    const float *biases[3];  /* or NULL */
    int64_t n_in, n_rows, n_weights;
} TrainedProduct;

/* A layer as BERT's that is trained: an int64 table. */
typedef struct {
    TrainedProduct qkv, attention_out, mlp_in, mlp_out;
    EncoderNorm attention_norm, mlp_norm;
} TrainedWeights;

/* What both passes over such a layer read or write: a row of an int64 table. */
typedef struct {
    const TrainedWeights *weights;
    const char *x; /* states before the layer in bfloat16, (n_tokens, size) */
    char *qkv;
    char *hidden;  /* before GELU, (n_tokens, mlp_size) */
    char *context; /* attention's output */
    float *logsumexp;
    char *normalized, *rounded; /* of the norm behind attention, (n_tokens, size), */
    float *rstd;                /* (n_tokens,), */
    char *last_normalized;      /* and of the one at the end */
    float *last_rstd;
    char *last_rounded;  /* states after the layer in bfloat16: x of the next */
    char *grad_products; /* product by product, of its weights, then of its biases */
    float *grad_norms;   /* (2, 2, size) */
    int64_t seed, norm_seed, last_seed; /* of dropout in attention, and before each norm */
} TrainedPlaces;

/* Of both norms: a row of a float table. */
typedef struct {
    float epsilon, dropout; /* of what the residual is added to */
    float last_epsilon, last_dropout;
} TrainedFactors;

/* Layers of one size, one after another, with products in bfloat16; what the forward pass writes,
the backward pass reads. */
typedef struct {
    const TrainedPlaces *places;
    const TrainedFactors *factors;
    const float *states;      /* (n_tokens, size), before the first layer; not read again */
    float *output;            /* after the last */
    const float *grad_output; /* or NULL, as the next */
    const char *grad_rounded;
    float *grad_states;  /* before the first layer, and of what lies between layers, as the next */
    char *grad_x;        /* NULL where there is one layer, and it is not wanted */
    Attention attention; /* what is the same in all layers */
    int64_t n_tokens;
    int n_layers, needs_grad; /* whether grad_x is wanted */
    int use_amx, use_tiles;   /* in products, in attention */
} TrainedLayers;

int trained_layers_forward(const TrainedLayers *a, int n_threads);
int trained_layers_backward(const TrainedLayers *a, int n_threads);

/* GELU of the first half of hidden states times the second, in bfloat16. */
typedef struct {
    const char *hidden; /* (n_tokens, 2, size) */
    char *output;       /* (n_tokens, size) */
    const char *grad_output;
    char *grad_hidden;
    int64_t n_tokens, size;
} Gated;

int gated_forward(const Gated *a, int n_threads);
int gated_backward(const Gated *a, int n_threads);

/* A tensor that is trained: a row of an int64 table, */
typedef struct {
    int64_t n, is_bf16; /* the gradient's type */
    const char *gradient;
    float *weight, *exp_avg, *exp_avg_sq;
    char *bf16_weight; /* written as well, or NULL */
} TrainedTensor;

/* and its factors: a row of a float table. */
typedef struct {
    float decay; /* the share of the weight that weight decay leaves */
    float step_size, bias_correction2_sqrt;
} StepFactors;

typedef struct {
    const TrainedTensor *tensors;
    const StepFactors *factors;
    int n_tensors;
    float divisor, epsilon;
    float one_minus_beta1, beta2, one_minus_beta2;
} AdamW;

OPERATION(adamw_step, AdamW)

typedef struct {
    const TrainedTensor *tensors; /* of which only the gradients are read */
    int n_tensors;
    double *squares; /* (n_threads,), zeros at first: their sum is that of all squares */
} GradNorm;

OPERATION(grad_norm, GradNorm)

#endif
