/* One tile of keys and values, laid out so that both of attention's products are sums of broadcasts times vectors.

   Keys are transposed: a vector holds one step of 16 tokens' keys. Values stand as they are: a vector holds 16 elements of
   one step of tokens. With the processor's dot products of bfloat16, a step is a pair, of a key's elements or of tokens,
   and softmax weights are rounded to bfloat16; elsewhere a step is one float32. Sums are always made in the same order. */

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#if defined(ELEMENT_IS_BFLOAT16) && defined(__AVX512BF16__)
#define PAIRS 1
#else
#define PAIRS 0
#endif

#define STEP (PAIRS ? 2 : 1) /* numbers in 4 bytes */
#define TILE 64
#define MOST_ROWS 96 /* of queries at once: tokens times heads */
#define MOST_HEAD_DIM 256
#define INLINE static inline __attribute__((always_inline))

/* One thread's memory, in units of 4 bytes: one step. `steps` is a head's length in such, up to a whole vector. */
typedef struct {
    integers keys[TILE / LANES * MOST_HEAD_DIM];   /* [groups of 16 tokens, steps] */
    integers values[TILE * MOST_HEAD_DIM / LANES]; /* [steps of tokens, vectors of a head] */
    int32_t queries[MOST_ROWS * MOST_HEAD_DIM];    /* [rows, steps] */
    floats sums[MOST_ROWS * MOST_HEAD_DIM / LANES];
    floats weights[TILE / LANES];
    int32_t weight_steps[TILE];
    float best[MOST_ROWS], total[MOST_ROWS];
} scratch;

/* 16 steps of a head, from element d on; past its end, zeros. */
INLINE integers load_steps(const element *head, int64_t d, int64_t head_dim) {
#if PAIRS
    integers value = {0};
    if (d + 2 * LANES > head_dim)
        memcpy(&value, head + d, LANES * sizeof(element));
    else
        memcpy(&value, head + d, sizeof value);
    return value;
#else
    (void)head_dim;
    return (integers)load(head + d);
#endif
}

INLINE floats multiply_step(floats sum, int32_t step, integers vector) {
#if PAIRS
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(step), (__m512bh)(__m512i)vector);
#else
    float number;
    memcpy(&number, &step, sizeof number);
    return sum + number * (floats)vector;
#endif
}

#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define LOW_WORDS(a, b) SHUFFLE(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define HIGH_WORDS(a, b) SHUFFLE(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define LOW_PAIRS(a, b) SHUFFLE(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH_PAIRS(a, b) SHUFFLE(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define EVEN_FOURS(a, b) SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
#define ODD_FOURS(a, b) SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)

/* Lane i of rows[j] becomes lane j of to[i]. */
static void transpose(const integers rows[LANES], integers *to) {
    integers a[LANES], b[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 2) {
        a[i] = LOW_WORDS(rows[i], rows[i + 1]);
        a[i + 1] = HIGH_WORDS(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 4) { /* b[i + k]: column k of each four, of rows i to i + 3 */
        b[i] = LOW_PAIRS(a[i], a[i + 2]);
        b[i + 1] = HIGH_PAIRS(a[i], a[i + 2]);
        b[i + 2] = LOW_PAIRS(a[i + 1], a[i + 3]);
        b[i + 3] = HIGH_PAIRS(a[i + 1], a[i + 3]);
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        integers low = EVEN_FOURS(b[k], b[k + 4]), high = ODD_FOURS(b[k], b[k + 4]);
        integers lower = EVEN_FOURS(b[k + 8], b[k + 12]), higher = ODD_FOURS(b[k + 8], b[k + 12]);
        to[k] = EVEN_FOURS(low, lower);
        to[k + 4] = EVEN_FOURS(high, higher);
        to[k + 8] = ODD_FOURS(low, lower);
        to[k + 12] = ODD_FOURS(high, higher);
    }
}

/* Lay out 16 tokens' keys. */
static void read_keys(integers *to, const element *const keys[LANES], int64_t head_dim) {
    for (int64_t d = 0; d < head_dim; d += STEP * LANES, to += LANES) {
        integers rows[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            rows[i] = load_steps(keys[i], d, head_dim);
        transpose(rows, to);
    }
}

/* Lay out 16 tokens' values. */
static void read_values(integers *to, const element *const values[LANES], int64_t head_dim) {
    for (int i = 0; i < LANES; i += STEP)
        for (int64_t d = 0; d < head_dim; d += STEP * LANES) {
            integers a = load_steps(values[i], d, head_dim);
#if PAIRS
            /* Elements interleave within each 16 bytes: sort_sums undoes the order. */
            integers b = load_steps(values[i + 1], d, head_dim);
            *to++ = (integers)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b);
            *to++ = (integers)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b);
#else
            *to++ = a;
#endif
        }
}

/* Products of a query with `groups` times 16 keys. Two sums of each hide the latency of additions. */
INLINE void multiply_keys(const int32_t *query, const integers *keys, int64_t steps, floats *products, const int groups) {
    floats even[4] = {{0}}, odd[4] = {{0}};
    for (int64_t step = 0; step < steps; step += 2)
#pragma GCC unroll 4
        for (int i = 0; i < groups; i++) {
            even[i] = multiply_step(even[i], query[step], keys[i * steps + step]);
            odd[i] = multiply_step(odd[i], query[step + 1], keys[i * steps + step + 1]);
        }
#pragma GCC unroll 4
    for (int i = 0; i < groups; i++)
        products[i] = even[i] + odd[i];
}

/* Add weighted values of steps from..to to `wide` vectors of sums; `vectors`: of a head. */
INLINE void multiply_values(const int32_t *weights, const integers *values, int64_t vectors, int64_t from, int64_t to,
                            floats *sums, const int wide) {
    floats even[4] = {{0}}, odd[4] = {{0}};
    for (int64_t step = from; step < to; step += 2)
#pragma GCC unroll 4
        for (int i = 0; i < wide; i++) {
            even[i] = multiply_step(even[i], weights[step], values[step * vectors + i]);
            odd[i] = multiply_step(odd[i], weights[step + 1], values[(step + 1) * vectors + i]);
        }
#pragma GCC unroll 4
    for (int i = 0; i < wide; i++)
        sums[i] += even[i] + odd[i];
}

/* Softmax weights as steps. */
INLINE void store_weights(int32_t *steps, floats weights) {
#if PAIRS
    store((element *)steps, weights);
#else
    memcpy(steps, &weights, sizeof weights);
#endif
}

/* Put a head's sums into the order of its elements. */
static void sort_sums(floats *sums, int64_t vectors) {
    for (int64_t i = 0; PAIRS && i < vectors; i += 2) {
        floats low = sums[i], high = sums[i + 1];
        sums[i] = SHUFFLE(low, high, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        sums[i + 1] = SHUFFLE(low, high, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    }
}
