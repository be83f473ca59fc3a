/* The middle of a gated feed-forward layer (Shazeer 2020): activation(gate) * up. */

#include "cpu_vectors.h"

enum { SILU = 0, GELU_TANH = 1 };

static inline floats silu(floats x) { return x / (1.0f + exponential(-x)); }

static inline floats gelu_tanh(floats x) {
    return 0.5f * x * (1.0f + hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x)));
}

/* gate_up: [rows, 2 * width], gates first; output: [rows, width]. width is a multiple of LANES. */
void gated_activation(const element *gate_up, element *output, int64_t rows, int64_t width, int64_t activation) {
#pragma omp parallel for if (rows * width > 16384)
    for (int64_t row = 0; row < rows; row++) {
        const element *gate = gate_up + row * 2 * width, *up = gate + width;
        element *out = output + row * width;
        if (activation == SILU)
            for (int64_t i = 0; i < width; i += LANES)
                store(out + i, silu(load(gate + i)) * load(up + i));
        else
            for (int64_t i = 0; i < width; i += LANES)
                store(out + i, gelu_tanh(load(gate + i)) * load(up + i));
    }
}
