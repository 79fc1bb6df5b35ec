/* What Python calls. Each function takes its arguments by position, as the modules of bindings/
pass them, which have checked them; addresses are whole numbers, 0 for none. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

/* To raise, here and in bindings/module.py, whenever a function or a struct of kernels.h changes. */
#define INTERFACE_VERSION 15

#define ADDRESS(i) ((void *)PyLong_AsVoidPtr(arguments[i]))
#define INTEGER(i) PyLong_AsLongLong(arguments[i])
#define FLOAT(i) ((float)PyFloat_AsDouble(arguments[i]))

int lanes = 16, has_bf16_dot, has_int8_dot, has_amx;

static int has_arguments(Py_ssize_t n_arguments, Py_ssize_t n) {
    if (n_arguments == n) return 1;
    PyErr_Format(PyExc_TypeError, "%zd arguments instead of %zd", n_arguments, n);
    return 0;
}

/* Computes while other threads of Python run, and returns from the function that Python called. */
#define RETURN_AFTER(compute)                                                         \
    do {                                                                              \
        int failed;                                                                   \
        if (PyErr_Occurred()) return NULL;                                            \
        Py_BEGIN_ALLOW_THREADS                                                        \
        failed = compute;                                                             \
        Py_END_ALLOW_THREADS                                                          \
        if (failed < 0) return PyErr_NoMemory();                                      \
        if (failed) return PyErr_Format(PyExc_IndexError, "an id outside its table"); \
        Py_RETURN_NONE;                                                               \
    } while (0)

/* ---- Attention ---- */

/* From cu_seqlens on what the functions of attention take. */
static Attention attention_of(PyObject *const *arguments) {
    return (Attention){.cu_seqlens = ADDRESS(0), .n_rows = (int)INTEGER(1),
                       .n_heads = (int)INTEGER(2), .head_size = (int)INTEGER(3),
                       .max_seqlen = (int)INTEGER(4), .causal = (int)INTEGER(5),
                       .reach = (int)INTEGER(6), .is_bf16 = (int)INTEGER(7),
                       .scaling = FLOAT(8), .dropout = FLOAT(9), .seed = (uint64_t)INTEGER(10)};
}

/* (qkv, output, logsumexp or 0, cu_seqlens, n_rows, n_heads, head_size, max_seqlen,
   causal, reach, is_bf16, scaling, dropout, seed, n_threads) */
static PyObject *py_attention_forward(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 15)) return NULL;
    Attention a = attention_of(arguments + 3);
    a.qkv = ADDRESS(0), a.output = ADDRESS(1), a.logsumexp = ADDRESS(2);
    int n_threads = (int)INTEGER(14);
    RETURN_AFTER(attention_forward(&a, n_threads));
}

/* (qkv, grad_output, grad_qkv, logsumexp, cu_seqlens, n_rows, n_heads, head_size,
   max_seqlen, causal, reach, is_bf16, scaling, dropout, seed, n_threads) */
static PyObject *py_attention_backward(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 16)) return NULL;
    Attention a = attention_of(arguments + 4);
    a.qkv = ADDRESS(0), a.grad_output = ADDRESS(1), a.grad_qkv = ADDRESS(2);
    a.logsumexp = ADDRESS(3);
    int n_threads = (int)INTEGER(15);
    RETURN_AFTER(attention_backward(&a, n_threads));
}

#ifdef HAS_BF16_DOT
/* As of attention_forward, with a reach of max_seqlen. */
static PyObject *py_attention_tiles(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 15)) return NULL;
    Attention a = attention_of(arguments + 3);
    a.qkv = ADDRESS(0), a.output = ADDRESS(1), a.logsumexp = ADDRESS(2);
    int n_threads = (int)INTEGER(14);
    RETURN_AFTER(attention_tiles(&a, n_threads));
}

/* (qkv, output, grad_output, grad_qkv, logsumexp), and the same behind them */
static PyObject *py_attention_grad_tiles(PyObject *self, PyObject *const *arguments,
                                         Py_ssize_t n) {
    if (!has_arguments(n, 17)) return NULL;
    Attention a = attention_of(arguments + 5);
    a.qkv = ADDRESS(0), a.output = ADDRESS(1), a.grad_output = ADDRESS(2);
    a.grad_qkv = ADDRESS(3), a.logsumexp = ADDRESS(4);
    int n_threads = (int)INTEGER(16);
    RETURN_AFTER(attention_grad_tiles(&a, n_threads));
}
#endif

/* ---- Layer normalisation ---- */

/* (x, residual, weight, bias or 0, sum or 0, output or 0, rstd, rounded or 0, normalized or 0,
   n_tokens, size, is_bf16, epsilon, dropout, seed, n_threads) */
static PyObject *py_layernorm_forward(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 16)) return NULL;
    LayerNorm a = {.x = ADDRESS(0), .residual = ADDRESS(1), .weight = ADDRESS(2),
                   .bias = ADDRESS(3), .sum = ADDRESS(4), .output = ADDRESS(5),
                   .rstd = ADDRESS(6), .rounded = ADDRESS(7), .normalized = ADDRESS(8),
                   .n_tokens = INTEGER(9), .size = INTEGER(10), .is_bf16 = (int)INTEGER(11),
                   .epsilon = FLOAT(12), .dropout = FLOAT(13), .seed = (uint64_t)INTEGER(14)};
    int n_threads = (int)INTEGER(15);
    RETURN_AFTER(layernorm_forward(&a, n_threads));
}

/* (normalized, rstd, weight, grad_sum or 0, grad_output or 0, grad_rounded or 0, grad_residual,
   grad_x, grad_weights, n_tokens, size, is_bf16, dropout, seed, n_threads) */
static PyObject *py_layernorm_backward(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 15)) return NULL;
    LayerNorm a = {.normalized = ADDRESS(0), .rstd = ADDRESS(1), .weight = ADDRESS(2),
                   .grad_sum = ADDRESS(3), .grad_output = ADDRESS(4),
                   .grad_rounded = ADDRESS(5), .grad_residual = ADDRESS(6),
                   .grad_x = ADDRESS(7), .grad_weights = ADDRESS(8), .n_tokens = INTEGER(9),
                   .size = INTEGER(10), .is_bf16 = (int)INTEGER(11), .dropout = FLOAT(12),
                   .seed = (uint64_t)INTEGER(13)};
    int n_threads = (int)INTEGER(14);
    RETURN_AFTER(layernorm_backward(&a, n_threads));
}

/* ---- Embeddings ---- */

/* (table of Table, weight, bias or 0, output, normalized or 0, rstd or 0, n_tokens, size, n_tables,
   epsilon, n_threads) */
static PyObject *py_embed(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 11)) return NULL;
    Embedding a = {.tables = ADDRESS(0), .weight = ADDRESS(1), .bias = ADDRESS(2),
                   .output = ADDRESS(3), .normalized = ADDRESS(4), .rstd = ADDRESS(5),
                   .n_tokens = INTEGER(6), .size = INTEGER(7), .n_tables = (int)INTEGER(8),
                   .epsilon = FLOAT(9)};
    int n_threads = (int)INTEGER(10);
    RETURN_AFTER(embed(&a, n_threads));
}

/* (table of Table, weight, normalized, rstd, grad_output, grad_sum, grad_weights, n_tokens, size,
   n_tables, n_threads) */
static PyObject *py_embed_backward(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 11)) return NULL;
    Embedding a = {.tables = ADDRESS(0), .weight = ADDRESS(1), .normalized = ADDRESS(2),
                   .rstd = ADDRESS(3), .grad_output = ADDRESS(4), .grad_sum = ADDRESS(5),
                   .grad_weights = ADDRESS(6), .n_tokens = INTEGER(7), .size = INTEGER(8),
                   .n_tables = (int)INTEGER(9)};
    int n_threads = (int)INTEGER(10);
    RETURN_AFTER(embed_backward(&a, n_threads));
}

/* ---- Rotary positions ---- */

/* (qkv, output, cosines, sines, positions, n_tokens, n_heads, head_size, is_bf16, backward,
   n_threads) */
static PyObject *py_rotate(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 11)) return NULL;
    Rotary a = {.qkv = ADDRESS(0), .output = ADDRESS(1), .cosines = ADDRESS(2),
                .sines = ADDRESS(3), .positions = ADDRESS(4), .n_tokens = INTEGER(5),
                .n_heads = (int)INTEGER(6), .head_size = (int)INTEGER(7),
                .is_bf16 = (int)INTEGER(8), .backward = (int)INTEGER(9)};
    int n_threads = (int)INTEGER(10);
    RETURN_AFTER(rotate(&a, n_threads));
}

/* ---- Products of float32, of int8, and of bfloat16 ---- */

/* (x, packed_weight, bias or 0, output, n_tokens, n_in, n_out, gelu, n_threads) */
static PyObject *py_linear_float32(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 9)) return NULL;
    LinearFloat32 a = {.x = ADDRESS(0), .output = ADDRESS(3), .n_tokens = INTEGER(4),
                       .weight = {.packed = ADDRESS(1), .columns = ADDRESS(2),
                                  .n_in = INTEGER(5), .n_out = INTEGER(6), .gelu = INTEGER(7)}};
    int n_threads = (int)INTEGER(8);
    RETURN_AFTER(linear_float32(&a, n_threads));
}

#ifdef HAS_BF16_DOT
/* (table of PackedWeight, n_weights, x, output, n_tokens, is_bf16, use_amx, n_threads) */
static PyObject *py_int8_linears(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 8)) return NULL;
    Int8Linears a = {.weights = ADDRESS(0), .n_weights = (int)INTEGER(1), .x = ADDRESS(2),
                     .output = ADDRESS(3), .n_tokens = INTEGER(4), .is_bf16 = (int)INTEGER(5),
                     .use_amx = (int)INTEGER(6)};
    int n_threads = (int)INTEGER(7);
    RETURN_AFTER(int8_linears(&a, n_threads));
}
#endif

/* (table of EncoderLayer, epsilons, n_layers, states, table of outputs, n_tokens, is_int8, use_amx,
   use_tiles, and from cu_seqlens on what attention_forward takes) */
static PyObject *py_encoder_forward(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 21)) return NULL;
    Encoder a = {.layers = ADDRESS(0), .epsilons = ADDRESS(1), .n_layers = (int)INTEGER(2),
                 .states = ADDRESS(3), .outputs = ADDRESS(4), .n_tokens = INTEGER(5),
                 .is_int8 = (int)INTEGER(6), .use_amx = (int)INTEGER(7),
                 .use_tiles = (int)INTEGER(8), .attention = attention_of(arguments + 9)};
    int n_threads = (int)INTEGER(20);
    RETURN_AFTER(encoder_forward(&a, n_threads));
}

#ifdef HAS_BF16_DOT
/* (x, packed_weight or 0, weights or 0, bias or 0, output, before_gelu or 0, gelu or 0, n_tokens,
   n_in, n_out, n_rows, transposed, epilogue, use_amx, n_threads) */
static PyObject *py_linear_forward(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 15)) return NULL;
    Linear a = {.x = ADDRESS(0), .packed_weight = ADDRESS(1), .weights = ADDRESS(2),
                .bias = ADDRESS(3), .output = ADDRESS(4), .before_gelu = ADDRESS(5),
                .gelu = ADDRESS(6), .n_tokens = INTEGER(7), .n_in = INTEGER(8),
                .n_out = INTEGER(9), .n_rows = INTEGER(10), .transposed = (int)INTEGER(11),
                .epilogue = (int)INTEGER(12), .use_amx = (int)INTEGER(13)};
    int n_threads = (int)INTEGER(14);
    RETURN_AFTER(linear_forward(&a, n_threads));
}

/* (grad_output, x, grad_weight, grad_bias or 0, n_tokens, n_in, n_out, use_amx, n_threads) */
static PyObject *py_linear_grad_weight(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 9)) return NULL;
    GradWeight a = {.grad_output = ADDRESS(0), .x = ADDRESS(1), .grad_weight = ADDRESS(2),
                    .grad_bias = ADDRESS(3), .n_tokens = INTEGER(4), .n_in = INTEGER(5),
                    .n_out = INTEGER(6), .use_amx = (int)INTEGER(7)};
    int n_threads = (int)INTEGER(8);
    RETURN_AFTER(linear_grad_weight(&a, n_threads));
}

/* ---- The gate of a feed-forward layer ---- */

/* (hidden, output, n_tokens, size, n_threads) */
static PyObject *py_gated_forward(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 5)) return NULL;
    Gated a = {.hidden = ADDRESS(0), .output = ADDRESS(1), .n_tokens = INTEGER(2),
               .size = INTEGER(3)};
    int n_threads = (int)INTEGER(4);
    RETURN_AFTER(gated_forward(&a, n_threads));
}

/* (hidden, grad_output, grad_hidden, n_tokens, size, n_threads) */
static PyObject *py_gated_backward(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 6)) return NULL;
    Gated a = {.hidden = ADDRESS(0), .grad_output = ADDRESS(1), .grad_hidden = ADDRESS(2),
               .n_tokens = INTEGER(3), .size = INTEGER(4)};
    int n_threads = (int)INTEGER(5);
    RETURN_AFTER(gated_backward(&a, n_threads));
}
#endif

/* ---- Layers in training ---- */

#ifdef HAS_BF16_DOT
/* What both passes take: (table of TrainedPlaces, table of TrainedFactors, n_layers, n_tokens,
   use_amx, use_tiles, and from cu_seqlens on what attention_forward takes). */
static TrainedLayers trained_layers_of(PyObject *const *arguments) {
    return (TrainedLayers){.places = ADDRESS(0), .factors = ADDRESS(1),
                           .n_layers = (int)INTEGER(2), .n_tokens = INTEGER(3),
                           .use_amx = (int)INTEGER(4), .use_tiles = (int)INTEGER(5),
                           .attention = attention_of(arguments + 6)};
}

/* (states, output, and what both passes take, n_threads) */
static PyObject *py_trained_layers_forward(PyObject *self, PyObject *const *arguments,
                                           Py_ssize_t n) {
    if (!has_arguments(n, 20)) return NULL;
    TrainedLayers a = trained_layers_of(arguments + 2);
    a.states = ADDRESS(0), a.output = ADDRESS(1);
    int n_threads = (int)INTEGER(19);
    RETURN_AFTER(trained_layers_forward(&a, n_threads));
}

/* (grad_output or 0, grad_rounded or 0, grad_states, grad_x or 0, needs_grad, and what both passes
   take, n_threads) */
static PyObject *py_trained_layers_backward(PyObject *self, PyObject *const *arguments,
                                            Py_ssize_t n) {
    if (!has_arguments(n, 23)) return NULL;
    TrainedLayers a = trained_layers_of(arguments + 5);
    a.grad_output = ADDRESS(0), a.grad_rounded = ADDRESS(1), a.grad_states = ADDRESS(2);
    a.grad_x = ADDRESS(3), a.needs_grad = (int)INTEGER(4);
    int n_threads = (int)INTEGER(22);
    RETURN_AFTER(trained_layers_backward(&a, n_threads));
}
#endif

/* ---- Steps of the optimizer ---- */

/* (table of TrainedTensor, table of StepFactors, n_tensors, divisor, epsilon, beta1, beta2,
   n_threads) */
static PyObject *py_adamw_step(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 8)) return NULL;
    double beta1 = PyFloat_AsDouble(arguments[5]), beta2 = PyFloat_AsDouble(arguments[6]);
    AdamW a = {.tensors = ADDRESS(0), .factors = ADDRESS(1), .n_tensors = (int)INTEGER(2),
               .divisor = FLOAT(3), .epsilon = FLOAT(4), .one_minus_beta1 = 1 - beta1,
               .one_minus_beta2 = 1 - beta2, .beta2 = beta2};
    int n_threads = (int)INTEGER(7);
    RETURN_AFTER(adamw_step(&a, n_threads));
}

/* (table of TrainedTensor, n_tensors, squares, n_threads); squares is (n_threads,) in double,
   zeros */
static PyObject *py_grad_norm(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 4)) return NULL;
    GradNorm a = {.tensors = ADDRESS(0), .n_tensors = (int)INTEGER(1), .squares = ADDRESS(2)};
    int n_threads = (int)INTEGER(3);
    RETURN_AFTER(grad_norm(&a, n_threads));
}

/* ---- Which vectors ---- */

/* (16 or 8); returns what it was. For tests: the processor may be slow with these, or lack 8. */
static PyObject *py_use_lanes(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 1)) return NULL;
    int before = lanes, wanted = (int)INTEGER(0);
    if (PyErr_Occurred()) return NULL;
    if (wanted != 16 && wanted != 8)
        return PyErr_Format(PyExc_ValueError, "vectors of %d numbers instead of 16 or 8", wanted);
    lanes = wanted;
    return PyLong_FromLong(before);
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {
    FUNCTION(adamw_step),
    FUNCTION(attention_backward),
    FUNCTION(attention_forward),
    FUNCTION(embed),
    FUNCTION(embed_backward),
    FUNCTION(encoder_forward),
    FUNCTION(grad_norm),
#ifdef HAS_BF16_DOT
    FUNCTION(attention_grad_tiles),
    FUNCTION(attention_tiles),
    FUNCTION(int8_linears),
#endif
    FUNCTION(layernorm_backward),
    FUNCTION(layernorm_forward),
    FUNCTION(linear_float32),
    FUNCTION(rotate),
    FUNCTION(use_lanes),
#ifdef HAS_BF16_DOT
    FUNCTION(gated_backward),
    FUNCTION(gated_forward),
    FUNCTION(linear_forward),
    FUNCTION(linear_grad_weight),
    FUNCTION(trained_layers_backward),
    FUNCTION(trained_layers_forward),
#endif
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "kernels", NULL, 0, functions};

PyMODINIT_FUNC PyInit_kernels(void) {
    PyObject *made = PyModule_Create(&module);
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma"))
        lanes = 8;
#endif
#ifdef HAS_BF16_DOT
    has_bf16_dot = __builtin_cpu_supports("avx512bf16") != 0;
#endif
#ifdef HAS_BF16_DOT
    has_int8_dot = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl");
    has_amx = has_int8_dot && has_bf16_dot && find_amx();
#endif
    if (made && (PyModule_AddIntConstant(made, "has_bf16_dot", has_bf16_dot) ||
                 PyModule_AddIntConstant(made, "has_int8_dot", has_int8_dot) ||
                 PyModule_AddIntConstant(made, "has_amx", has_amx) ||
                 PyModule_AddIntConstant(made, "interface_version", INTERFACE_VERSION)))
        Py_CLEAR(made);
    return made;
}
