/* Vectors of 16 floats, and elements of tensors as such vectors.

   GCC's and Clang's vector extensions: the compiler makes what the processor has of them, AVX-512, AVX2, SSE or NEON.
   Compiled once for float32 elements and once, with -DELEMENT_IS_BFLOAT16, for bfloat16. Sums are kept in float32. */

#ifndef HEADRACE_CPU_VECTORS_H
#define HEADRACE_CPU_VECTORS_H

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16

typedef float floats __attribute__((vector_size(64)));
typedef int32_t integers __attribute__((vector_size(64)));
typedef uint32_t words __attribute__((vector_size(64)));
typedef uint16_t halves __attribute__((vector_size(32)));

#ifdef ELEMENT_IS_BFLOAT16
typedef uint16_t element;

static inline float to_float(element bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Round to nearest, ties to even; a NaN stays one. */
static inline element to_element(float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    return value != value ? 0x7fc0 : (element)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

static inline floats load(const element *from) {
    halves bits;
    memcpy(&bits, from, sizeof bits);
    return (floats)(__builtin_convertvector(bits, words) << 16);
}

static inline void store(element *to, floats value) {
#ifdef __AVX512BF16__
    __m256bh rounded = _mm512_cvtneps_pbh((__m512)value); /* the same, but that denormals become 0 */
    memcpy(to, &rounded, sizeof rounded);
#else
    words word = (words)value;
    words rounded = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
    words is_nan = (words)(value != value);
    halves bits = __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7fc0), halves);
    memcpy(to, &bits, sizeof bits);
#endif
}
#else
typedef float element;

static inline float to_float(element value) { return value; }

static inline element to_element(float value) { return value; }

static inline floats load(const element *from) {
    floats value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline void store(element *to, floats value) { memcpy(to, &value, sizeof value); }
#endif

static inline floats load_floats(const float *from) {
    floats value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline void store_floats(float *to, floats value) { memcpy(to, &value, sizeof value); }

static inline floats splat(float value) { return value - (floats){0}; }

static inline floats choose(integers mask, floats yes, floats no) {
    return (floats)(((integers)yes & mask) | ((integers)no & ~mask));
}

/* Lane i of the result is the sum of the lanes of values[i]; always in the same order. */
static inline floats sums_of(const floats values[LANES]) {
    floats eights[8], fours[4], twos[2];
    for (int i = 0; i < 8; i++) {
        floats a = values[2 * i], b = values[2 * i + 1];
        eights[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                    __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
    for (int i = 0; i < 4; i++) {
        floats a = eights[2 * i], b = eights[2 * i + 1];
        fours[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                   __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
    for (int i = 0; i < 2; i++) {
        floats a = fours[2 * i], b = fours[2 * i + 1];
        twos[i] = __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
                  __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
    }
    return __builtin_shufflevector(twos[0], twos[1], 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
           __builtin_shufflevector(twos[0], twos[1], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

/* Lane by lane, halving: always in the same order. */
static inline float sum_of(floats value) {
    value += __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    value += __builtin_shufflevector(value, value, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    value += __builtin_shufflevector(value, value, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    value += __builtin_shufflevector(value, value, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    return value[0];
}

/* Lane by lane; where b is not a number, a. */
static inline floats larger_of(floats a, floats b) { return choose(b > a, b, a); }

static inline float most_of(floats value) {
    value = larger_of(value, __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    value = larger_of(value, __builtin_shufflevector(value, value, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    value = larger_of(value, __builtin_shufflevector(value, value, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    value = larger_of(value, __builtin_shufflevector(value, value, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
    return value[0];
}

/* e^x within 2 units in the last place; below e^-87 it is e^-87, and NaN stays NaN.
   Cody and Waite's reduction to |r| <= ln(2) / 2, then Taylor's polynomial of degree 7. */
static inline floats exponential(floats x) {
    const floats lowest = splat(-87.0f), highest = splat(88.0f), shift = splat(12582912.0f); /* 1.5 * 2^23 */
    x = choose(x < lowest, lowest, x);
    x = choose(x > highest, highest, x);
    floats shifted = x * 1.44269504f + shift;
    floats whole = shifted - shift;
    floats r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    floats p = splat(1.9841270e-4f);
    p = p * r + 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    integers exponent = ((integers)shifted - (integers)shift) << 23;
    return (floats)((integers)p + exponent);
}

/* tanh by e^2x; good to 1e-6, also for large arguments, where the quotient is 1. */
static inline floats hyperbolic_tangent(floats x) {
    floats e = exponential(choose(x > splat(20.0f), splat(40.0f), choose(x < splat(-20.0f), splat(-40.0f), x * 2.0f)));
    return (e - 1.0f) / (e + 1.0f);
}

#endif
