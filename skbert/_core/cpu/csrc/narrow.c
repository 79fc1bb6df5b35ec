/* Some operations once more, for vectors of eight numbers as AVX2 has them: what a compiler makes
of vectors of sixteen is many times as slow there. */

#define LANES 8

#include "adamw.c"
#include "attention.c"
#include "embedding.c"
#include "gemm_float32.c"
#include "layernorm.c"
#include "rotary.c"
