/* What norms share. */

#ifndef SKBERT_NORM_H
#define SKBERT_NORM_H

#include <math.h>

#include "vectors.h"

/* 1 / deviation of a token, whose mean is known. */
INLINE float reciprocal_deviation(const float *x, int64_t size, float mean, float epsilon) {
    floats squares = {0};
    for (int64_t j = 0; j < size; j += LANES) {
        floats centered = *(const floats *)(x + j) - mean;
        squares += centered * centered;
    }
    return 1 / sqrtf(sum(squares) / size + epsilon);
}

#endif
