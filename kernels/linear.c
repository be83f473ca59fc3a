/* Matrix products with packed weights: rows of x times a matrix, [rows, inputs] to [rows, outputs].

   Weights are packed into panels of 16 outputs (headrace.kernels.linear), so that one vector holds what all of them
   multiply the next input with: 1 float32, 2 bfloat16 or 4 int8. A tile of 8 rows by 3 panels is kept in registers over
   all inputs. Each output is one sum in one order, so a row's answer does not depend on the rows beside it.

   float32 needs nothing but vectors. bfloat16 and int8 need the processor's dot products, and are left out elsewhere:
   can_multiply and can_multiply_int8 say so. Where there are tiles (linear_tiles.h), they take both. */

#include "cpu_vectors.h"

#if defined(__AVX512BF16__) || defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

#define TILE_ROWS 8
#define TILE_PANELS 3
#define CHUNK_ROWS 128
#define INLINE static inline __attribute__((always_inline))

#ifdef ELEMENT_IS_BFLOAT16
#define INPUTS_A_STEP 2
#else
#define INPUTS_A_STEP 1
#endif

/* One product's matrices. */
typedef struct {
    const void *x;         /* [rows, inputs] */
    const void *weight;    /* [panels, steps, LANES, inputs a step] */
    const float *bias;     /* [panels * LANES] or NULL */
    const float *row_scale; /* int8: [rows] and, per output, [panels * LANES] */
    const float *weight_scale;
    const int32_t *row_sum; /* int8: of a row's inputs */
    void *output;           /* [rows, outputs] of elements, or of floats */
    int64_t rows, inputs, outputs, wide;
} product;

/* A panel's 16 sums of one row, of a product in int8, as floats. Weights are kept plus 128, since the processor multiplies
   unsigned bytes with signed ones. */
INLINE floats scale_sums(const product *c, int64_t row, int64_t panel, integers sums) {
    return __builtin_convertvector(sums - 128 * c->row_sum[row], floats) *
           (load_floats(c->weight_scale + panel * LANES) * c->row_scale[row]);
}

/* Write a panel's 16 sums of one row. */
INLINE void write_sums(const product *c, int64_t row, int64_t panel, floats sums) {
    const int64_t column = panel * LANES, left = c->outputs - column, at = row * c->outputs + column;
    if (c->bias)
        sums += load_floats(c->bias + column);
    if (c->wide) {
        memcpy((float *)c->output + at, &sums, (size_t)(left < LANES ? left : LANES) * sizeof(float));
    } else if (left >= LANES) {
        store((element *)c->output + at, sums);
    } else {
        element some[LANES];
        store(some, sums);
        memcpy((element *)c->output + at, some, (size_t)left * sizeof(element));
    }
}

#if !defined(ELEMENT_IS_BFLOAT16) || defined(__AVX512BF16__)
#define CAN_MULTIPLY 1

INLINE floats multiply_add(floats sum, const element *x, const element *weight) {
#ifdef ELEMENT_IS_BFLOAT16
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)_mm512_loadu_si512(weight));
#else
    return sum + *x * load(weight);
#endif
}

INLINE void tile(const product *c, int64_t row, int64_t panel, const int rows, const int panels) {
    const int64_t steps = c->inputs / INPUTS_A_STEP, width = LANES * INPUTS_A_STEP;
    const element *x = (const element *)c->x + row * c->inputs;
    const element *weight = (const element *)c->weight + panel * steps * width;
    floats sums[TILE_ROWS][TILE_PANELS] = {{{0}}};
    for (int64_t step = 0; step < steps; step++)
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
            for (int p = 0; p < panels; p++)
                sums[r][p] = multiply_add(sums[r][p], x + r * c->inputs + step * INPUTS_A_STEP,
                                          weight + (p * steps + step) * width);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int p = 0; p < panels; p++)
            write_sums(c, row + r, panel + p, sums[r][p]);
}
#else
#define CAN_MULTIPLY 0

INLINE void tile(const product *c, int64_t row, int64_t panel, const int rows, const int panels) {
    (void)c, (void)row, (void)panel, (void)rows, (void)panels;
}
#endif

#ifdef __AVX512VNNI__
#define CAN_MULTIPLY_INT8 1

INLINE void tile_int8(const product *c, int64_t row, int64_t panel, const int rows, const int panels) {
    const int64_t steps = c->inputs / 4;
    const int8_t *x = (const int8_t *)c->x + row * c->inputs;
    const uint8_t *weight = (const uint8_t *)c->weight + panel * steps * 64;
    __m512i sums[TILE_ROWS][TILE_PANELS] = {{{0}}};
    for (int64_t step = 0; step < steps; step++)
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            int32_t four;
            memcpy(&four, x + r * c->inputs + step * 4, sizeof four);
#pragma GCC unroll 8
            for (int p = 0; p < panels; p++)
                sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], _mm512_loadu_si512(weight + (p * steps + step) * 64),
                                                 _mm512_set1_epi32(four));
        }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int p = 0; p < panels; p++)
            write_sums(c, row + r, panel + p, scale_sums(c, row + r, panel + p, (integers)sums[r][p]));
}
#else
#define CAN_MULTIPLY_INT8 0

INLINE void tile_int8(const product *c, int64_t row, int64_t panel, const int rows, const int panels) {
    (void)c, (void)row, (void)panel, (void)rows, (void)panels;
}
#endif

/* Whether another thread's help is worth waking it for. */
static inline int is_large(const product *c) { return c->rows * c->inputs * c->outputs > 65536; }

#include "linear_tiles.h"

INLINE void either_tile(const product *c, int64_t row, int64_t panel, const int rows, const int panels, const int int8) {
    if (int8)
        tile_int8(c, row, panel, rows, panels);
    else
        tile(c, row, panel, rows, panels);
}

INLINE void some_rows(const product *c, int64_t row, int64_t panel, const int rows, int64_t panels, const int int8) {
    if (panels == 3)
        either_tile(c, row, panel, rows, 3, int8);
    else if (panels == 2)
        either_tile(c, row, panel, rows, 2, int8);
    else
        either_tile(c, row, panel, rows, 1, int8);
}

INLINE void multiply_all(const product *c, const int int8) {
    if (fits_tiles(c, int8)) {
        multiply_tiles(c, int8);
        return;
    }
    const int64_t panels = (c->outputs + LANES - 1) / LANES, groups = (panels + TILE_PANELS - 1) / TILE_PANELS;
    const int64_t chunks = (c->rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
#pragma omp parallel for collapse(2) schedule(dynamic, 4) if (is_large(c))
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        for (int64_t group = 0; group < groups; group++) {
            int64_t panel = group * TILE_PANELS, wide = panels - panel < TILE_PANELS ? panels - panel : TILE_PANELS;
            int64_t row = chunk * CHUNK_ROWS, end = row + CHUNK_ROWS < c->rows ? row + CHUNK_ROWS : c->rows;
            for (; row + 8 <= end; row += 8)
                some_rows(c, row, panel, 8, wide, int8);
            if (row + 4 <= end) {
                some_rows(c, row, panel, 4, wide, int8);
                row += 4;
            }
            if (row + 2 <= end) {
                some_rows(c, row, panel, 2, wide, int8);
                row += 2;
            }
            if (row < end)
                some_rows(c, row, panel, 1, wide, int8);
        }
}

int64_t can_multiply(void) { return CAN_MULTIPLY; }

int64_t can_multiply_int8(void) { return CAN_MULTIPLY_INT8; }

int64_t uses_tiles(void) { return USES_TILES; }

/* x: [rows, inputs]; weight: packed; bias: float32 or NULL; output: [rows, outputs], of float32 where `wide`. */
void multiply(const element *x, const element *weight, const float *bias, void *output, int64_t rows, int64_t inputs,
              int64_t outputs, int64_t wide) {
    const product c = {x, weight, bias, NULL, NULL, NULL, output, rows, inputs, outputs, wide};
    multiply_all(&c, 0);
}

/* The same with x and weights in int8; x: from quantize_rows. */
void multiply_int8(const int8_t *x, const float *row_scale, const int32_t *row_sum, const uint8_t *weight,
                   const float *weight_scale, const float *bias, void *output, int64_t rows, int64_t inputs,
                   int64_t outputs, int64_t wide) {
    const product c = {x, weight, bias, row_scale, weight_scale, row_sum, output, rows, inputs, outputs, wide};
    multiply_all(&c, 1);
}

/* Each row as bytes and a scale: its largest element becomes 127. inputs is a multiple of LANES. */
void quantize_rows(const element *x, int8_t *quantized, float *row_scale, int32_t *row_sum, int64_t rows,
                   int64_t inputs) {
#pragma omp parallel for if (rows * inputs > 32768)
    for (int64_t row = 0; row < rows; row++) {
        const element *from = x + row * inputs;
        int8_t *to = quantized + row * inputs;
        floats most = {0};
        for (int64_t i = 0; i < inputs; i += LANES) {
            floats value = load(from + i);
            value = choose(value < 0.0f, -value, value);
            most = choose(value > most, value, most);
        }
        float largest = 0;
        floats check = {0};
        for (int lane = 0; lane < LANES; lane++)
            largest = most[lane] > largest ? most[lane] : largest;
        const float scale = largest > 0 ? 127.0f / largest : 0.0f;
        int32_t sum = 0;
        for (int64_t i = 0; i < inputs; i += LANES) {
            floats value = load(from + i);
            check += value - value; /* 0, or NaN where it is not finite */
            floats scaled = value * scale + 12582912.0f; /* 1.5 * 2^23: the integer is in the low bits, rounded */
            integers whole = (integers)scaled - (integers)splat(12582912.0f);
            for (int lane = 0; lane < LANES; lane++) {
                to[i + lane] = (int8_t)whole[lane];
                sum += (int8_t)whole[lane];
            }
        }
        float broken = sum_of(check);
        row_scale[row] = broken == 0 ? largest / 127.0f : NAN; /* a row with a NaN or an infinity stays broken */
        row_sum[row] = sum;
    }
}
