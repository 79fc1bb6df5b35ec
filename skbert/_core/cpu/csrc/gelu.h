/* GELU and its derivative, for results that are rounded to bfloat16. */

#ifndef SKBERT_GELU_H
#define SKBERT_GELU_H

#include "gemm.h"

#ifdef HAS_BF16_DOT
/* 2 to a power: one to a whole number times a polynomial of the rest, off by less than 4e-6. */
AVX512 INLINE floats power_of_2(floats power) {
    __m512 whole = _mm512_roundscale_ps((__m512)power, _MM_FROUND_TO_NEAREST_INT);
    floats rest = power - (floats)whole;
    floats y = rest * 9.600409235e-3f + 5.591697746e-2f;
    y = y * rest + 2.402371863e-1f;
    y = y * rest + 6.931219847e-1f;
    y = y * rest + 1;
    return (floats)_mm512_scalef_ps((__m512)y, whole);
}

/* The normal distribution's CDF (Abramowitz and Stegun 1964, 7.1.26), and exp(-x x / 2): errors
are below 4e-6, enough for bfloat16. */
AVX512 INLINE floats normal_cdf(floats x, floats *density) {
    __m512 far = _mm512_set1_ps(20); /* where they are 1 and 0; NaN stays NaN */
    floats size = (floats)_mm512_min_ps(far, _mm512_abs_ps((__m512)x));
    floats divisor = 1 + size * (0.3275911f * 0.70710678f);
    floats t = (floats)_mm512_rcp14_ps((__m512)divisor);
    t *= 2 - divisor * t; /* Newton's step, from 14 bits to more than 23 */
    *density = power_of_2(size * size * (-0.5f * 1.44269504f));
    floats tail = t * 0.5307027145f - 0.7265760135f;
    tail = tail * t + 0.7107068705f;
    tail = tail * t - 0.142248368f;
    tail = (tail * t + 0.127414796f) * t * *density;
    return blend(x < 0, tail, 1 - tail);
}

AVX512 INLINE floats gelu(floats x) {
    floats density;
    return x * normal_cdf(x, &density);
}

/* The same where no derivative is needed: the CDF is a polynomial up to 4.8, and from there 0 and 1.
Errors are below 5e-6. */
AVX512 INLINE floats inferred_gelu(floats x) {
    const int nearer_to_0 = 2; /* of two numbers, with the sign of the first */
    __m512 scaled = (__m512)(x * (1 / 4.8f));
    floats y = (floats)_mm512_range_ps(scaled, _mm512_set1_ps(1), nearer_to_0);
    floats z = y * y * 2 - 1;
    floats cdf = z * 6.92902505e-03f - 2.01338567e-02f;
    cdf = cdf * z + 2.58851647e-02f;
    cdf = cdf * z - 3.57287638e-02f;
    cdf = cdf * z + 6.65463209e-02f;
    cdf = cdf * z - 1.06499858e-01f;
    cdf = cdf * z + 1.47460327e-01f;
    cdf = cdf * z - 1.94716513e-01f;
    cdf = cdf * z + 2.53939629e-01f;
    cdf = cdf * z - 3.50302845e-01f;
    cdf = cdf * z + 7.06621408e-01f;
    return x * (cdf * y + 0.5f);
}

/* GELU for results that are rounded to int8, of which a step is some hundredths: the CDF is a
polynomial, 0 and 1 far from the middle, and errors are below 3e-4. */
AVX512 INLINE floats coarse_gelu(floats x) {
    __m512 far = _mm512_set1_ps(3.8f), near = _mm512_min_ps(far, (__m512)x);
    floats y = (floats)_mm512_max_ps(-far, near), square = y * y;
    floats cdf = square * 1.785640448e-08f - 1.341224061e-06f;
    cdf = cdf * square + 4.273869934e-05f;
    cdf = cdf * square - 7.625203183e-04f;
    cdf = cdf * square + 8.518657200e-03f;
    cdf = cdf * square - 6.400778137e-02f;
    cdf = cdf * square + 3.974731940e-01f;
    return x * (cdf * y + 0.5f);
}

/* And GELU itself. */
AVX512 INLINE floats gelu_derivative(floats x, floats *active) {
    floats density, cdf = normal_cdf(x, &density);
    *active = x * cdf;
    return cdf + x * density * 0.39894228f;
}

BF16_DOT INLINE void store_bf16(void *to, floats left, floats right) {
    _mm512_storeu_si512(to, rounded(left, right));
}
#endif

#endif
