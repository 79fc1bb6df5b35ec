/* What Python calls. Each function takes its arguments by position, as bindings.py gives them;
addresses are whole numbers, 0 for none. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

#define ADDRESS(i) ((void *)PyLong_AsVoidPtr(arguments[i]))
#define WHOLE(i) PyLong_AsLongLong(arguments[i])
#define REAL(i) ((float)PyFloat_AsDouble(arguments[i]))

int has_bf16_dot;

static int has_arguments(Py_ssize_t n_given, Py_ssize_t n) {
    if (n_given == n) return 1;
    PyErr_Format(PyExc_TypeError, "%zd arguments instead of %zd", n_given, n);
    return 0;
}

static PyObject *none_unless(int failed) {
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* ---- Attention ---- */

/* Whether rows follow one another within the tokens, none longer than the longest. */
static int has_valid_rows(const Attention *a, int64_t n_tokens) {
    int valid = a->n_rows >= 0 && a->cu_seqlens[0] >= 0;
    for (int i = 0; valid && i < a->n_rows; i++) {
        int64_t length = (int64_t)a->cu_seqlens[i + 1] - a->cu_seqlens[i];
        valid = length >= 0 && length <= a->max_seqlen;
    }
    if (valid && a->cu_seqlens[a->n_rows] <= n_tokens) return 1;
    PyErr_SetString(PyExc_ValueError, "cu_seqlens does not fit the tokens or max_seqlen");
    return 0;
}

/* (qkv, output, logsumexp or 0, cu_seqlens, n_tokens, n_rows, n_heads, head_size, max_seqlen,
   causal, is_bf16, scaling, dropout, seed, n_threads) */
static PyObject *py_attention_forward(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 15)) return NULL;
    Attention a = {.qkv = ADDRESS(0), .output = ADDRESS(1), .logsumexp = ADDRESS(2),
                   .cu_seqlens = ADDRESS(3), .n_rows = (int)WHOLE(5), .n_heads = (int)WHOLE(6),
                   .head_size = (int)WHOLE(7), .max_seqlen = (int)WHOLE(8),
                   .causal = (int)WHOLE(9), .is_bf16 = (int)WHOLE(10), .scaling = REAL(11),
                   .dropout = REAL(12), .seed = (uint64_t)WHOLE(13)};
    int64_t n_tokens = WHOLE(4);
    int failed, n_threads = (int)WHOLE(14);
    if (PyErr_Occurred() || !has_valid_rows(&a, n_tokens)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    failed = attention_forward(&a, n_threads);
    Py_END_ALLOW_THREADS
    return none_unless(failed);
}

/* (qkv, grad_output, grad_qkv, logsumexp, cu_seqlens, n_tokens, n_rows, n_heads, head_size,
   max_seqlen, causal, is_bf16, scaling, dropout, seed, n_threads) */
static PyObject *py_attention_backward(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 16)) return NULL;
    Attention a = {.qkv = ADDRESS(0), .grad_output = ADDRESS(1), .grad_qkv = ADDRESS(2),
                   .logsumexp = ADDRESS(3), .cu_seqlens = ADDRESS(4), .n_rows = (int)WHOLE(6),
                   .n_heads = (int)WHOLE(7), .head_size = (int)WHOLE(8),
                   .max_seqlen = (int)WHOLE(9), .causal = (int)WHOLE(10),
                   .is_bf16 = (int)WHOLE(11), .scaling = REAL(12), .dropout = REAL(13),
                   .seed = (uint64_t)WHOLE(14)};
    int64_t n_tokens = WHOLE(5);
    int failed, n_threads = (int)WHOLE(15);
    if (PyErr_Occurred() || !has_valid_rows(&a, n_tokens)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    failed = attention_backward(&a, n_threads);
    Py_END_ALLOW_THREADS
    return none_unless(failed);
}

/* ---- Layer normalisation ---- */

/* (x, residual, weight, bias, output, rstd, rounded or 0, normalized or 0, n_tokens, size,
   is_bf16, epsilon, dropout, seed, n_threads) */
static PyObject *py_layernorm_forward(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 15)) return NULL;
    LayerNorm a = {.x = ADDRESS(0), .residual = ADDRESS(1), .weight = ADDRESS(2),
                   .bias = ADDRESS(3), .output = ADDRESS(4), .rstd = ADDRESS(5),
                   .rounded = ADDRESS(6), .normalized = ADDRESS(7), .n_tokens = WHOLE(8),
                   .size = WHOLE(9), .is_bf16 = (int)WHOLE(10), .epsilon = REAL(11),
                   .dropout = REAL(12), .seed = (uint64_t)WHOLE(13)};
    int n_threads = (int)WHOLE(14);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    layernorm_forward(&a, n_threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* (normalized, rstd, weight, grad_output or 0, grad_rounded or 0, grad_residual, grad_x,
   grad_weights, n_tokens, size, is_bf16, dropout, seed, n_threads) */
static PyObject *py_layernorm_backward(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 14)) return NULL;
    LayerNorm a = {.normalized = ADDRESS(0), .rstd = ADDRESS(1), .weight = ADDRESS(2),
                   .grad_output = ADDRESS(3), .grad_rounded = ADDRESS(4),
                   .grad_residual = ADDRESS(5), .grad_x = ADDRESS(6),
                   .grad_weights = ADDRESS(7), .n_tokens = WHOLE(8), .size = WHOLE(9),
                   .is_bf16 = (int)WHOLE(10), .dropout = REAL(11), .seed = (uint64_t)WHOLE(12)};
    int n_threads = (int)WHOLE(13);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    layernorm_backward(&a, n_threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* ---- Products of bfloat16 ---- */

#ifdef HAS_BF16_DOT
/* (x, packed_weight or 0, weights or 0, bias or 0, output, other or 0, n_tokens, n_in, n_out,
   n_rows, transposed, epilogue, n_threads) */
static PyObject *py_linear_forward(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 13)) return NULL;
    Linear a = {.x = ADDRESS(0), .packed_weight = ADDRESS(1), .weights = ADDRESS(2),
                .bias = ADDRESS(3), .output = ADDRESS(4), .other = ADDRESS(5),
                .n_tokens = WHOLE(6), .n_in = WHOLE(7), .n_out = WHOLE(8), .n_rows = WHOLE(9),
                .transposed = (int)WHOLE(10), .epilogue = (int)WHOLE(11)};
    int failed, n_threads = (int)WHOLE(12);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    failed = linear_forward(&a, n_threads);
    Py_END_ALLOW_THREADS
    return none_unless(failed);
}

/* (grad_output, x, grad_weight, grad_bias, n_tokens, n_in, n_out, gelu, n_threads) */
static PyObject *py_linear_weight_grad(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 9)) return NULL;
    WeightGrad a = {.grad_output = ADDRESS(0), .x = ADDRESS(1), .grad_weight = ADDRESS(2),
                    .grad_bias = ADDRESS(3), .n_tokens = WHOLE(4), .n_in = WHOLE(5),
                    .n_out = WHOLE(6), .gelu = (int)WHOLE(7)};
    int failed, n_threads = (int)WHOLE(8);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    failed = linear_weight_grad(&a, n_threads);
    Py_END_ALLOW_THREADS
    return none_unless(failed);
}
#endif

/* ---- Steps of the optimizer ---- */

/* (table of TrainedTensor, table of StepFactors, n_tensors, divisor, epsilon, beta1, beta2,
   n_threads) */
static PyObject *py_adamw_step(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 8)) return NULL;
    const TrainedTensor *tensors = ADDRESS(0);
    const StepFactors *factors = ADDRESS(1);
    double beta1 = PyFloat_AsDouble(arguments[5]), beta2 = PyFloat_AsDouble(arguments[6]);
    AdamW settings = {.divisor = REAL(3), .epsilon = REAL(4), .new_avg = 1 - beta1,
                      .new_avg_sq = 1 - beta2, .old_avg_sq = beta2};
    int n_tensors = (int)WHOLE(2), n_threads = (int)WHOLE(7);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    adamw_step(tensors, factors, n_tensors, &settings, n_threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* (table of TrainedTensor, n_tensors, squares, n_threads); squares is (n_threads,) in double,
   zeros */
static PyObject *py_grad_norm(PyObject *self, PyObject *const *arguments, Py_ssize_t n) {
    if (!has_arguments(n, 4)) return NULL;
    const TrainedTensor *tensors = ADDRESS(0);
    double *squares = ADDRESS(2);
    int n_tensors = (int)WHOLE(1), n_threads = (int)WHOLE(3);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    grad_norm(tensors, n_tensors, squares, n_threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, NULL}

static PyMethodDef functions[] = {
    FUNCTION(adamw_step),
    FUNCTION(attention_backward),
    FUNCTION(attention_forward),
    FUNCTION(grad_norm),
    FUNCTION(layernorm_backward),
    FUNCTION(layernorm_forward),
#ifdef HAS_BF16_DOT
    FUNCTION(linear_forward),
    FUNCTION(linear_weight_grad),
#endif
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "kernels", NULL, 0, functions};

PyMODINIT_FUNC PyInit_kernels(void) {
    PyObject *made = PyModule_Create(&module);
#ifdef HAS_BF16_DOT
    has_bf16_dot = __builtin_cpu_supports("avx512bf16") != 0;
#endif
    if (made && PyModule_AddIntConstant(made, "has_bf16_dot", has_bf16_dot)) Py_CLEAR(made);
    return made;
}
