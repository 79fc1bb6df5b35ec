/* What norms share. */

#ifndef SKBERT_NORM_H
#define SKBERT_NORM_H

#include <math.h>

#include "vectors.h"

/* 1 / deviation; of a variance too large for float32 NaN, as 0 would make a token the bias. */
INLINE float reciprocal_root(float variance, float epsilon) {
    return variance < INFINITY ? 1 / sqrtf(variance + epsilon) : NAN;
}

/* The same of a token, whose mean is known. */
INLINE float reciprocal_deviation(const float *x, int64_t size, float mean, float epsilon) {
    floats squares = {0};
    for (int64_t j = 0; j < size; j += LANES) {
        floats centered = *(const floats *)(x + j) - mean;
        squares += centered * centered;
    }
    return reciprocal_root(sum(squares) / size, epsilon);
}

#endif
