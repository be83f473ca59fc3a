/* Root mean square norm (Zhang and Sennrich 2019), with the residual sum before it. */

#include "cpu_vectors.h"

/* x: [rows, width]; residual: [rows, width] or NULL, becomes residual + x, which then is what is normed;
   output: [rows, width], may be x. weight: float32 [width]. width is a multiple of LANES. */
void rms_norm(const element *x, element *residual, const float *weight, element *output, int64_t rows, int64_t width,
              float epsilon) {
#pragma omp parallel for if (rows * width > 32768)
    for (int64_t row = 0; row < rows; row++) {
        const element *in = x + row * width;
        element *sum = residual ? residual + row * width : NULL;
        element *out = output + row * width;
        floats squares = {0};
        for (int64_t i = 0; i < width; i += LANES) {
            floats value = load(in + i);
            if (sum) {
                store(sum + i, value + load(sum + i));
                value = load(sum + i);
            }
            squares += value * value;
        }
        const element *normed = sum ? sum : in;
        float scale = 1.0f / sqrtf(sum_of(squares) / width + epsilon);
        for (int64_t i = 0; i < width; i += LANES)
            store(out + i, load(normed + i) * scale * load_floats(weight + i));
    }
}
