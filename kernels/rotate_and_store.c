/* Between a layer's QKV product and its attention: norms of heads, rotation, and the way into the paged cache. */

#include "cpu_vectors.h"

static void norm_head(element *head, const float *weight, int64_t width, float epsilon) {
    float squares = 0;
    for (int64_t i = 0; i < width; i++)
        squares += to_float(head[i]) * to_float(head[i]);
    float scale = 1.0f / sqrtf(squares / width + epsilon);
    for (int64_t i = 0; i < width; i++)
        head[i] = to_element(to_float(head[i]) * scale * weight[i]);
}

/* Element i of a head is turned with element i + half (Su et al. 2021, in the order of GPT-NeoX). */
static void rotate_head(element *head, const float *cosines, const float *sines, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float first = to_float(head[i]), second = to_float(head[i + half]);
        head[i] = to_element(first * cosines[i] - second * sines[i]);
        head[i + half] = to_element(second * cosines[i] + first * sines[i]);
    }
}

/* qkv: [tokens, heads + 2 * kv_heads, head_dim]; queries and keys change in place.
   cosines, sines: float32 [tokens, half]; query_norm, key_norm: float32 [head_dim] or NULL.
   caches: [blocks, block_size, kv_heads, head_dim] by strides in elements; slots: [tokens], negative ones write nothing. */
void rotate_and_store(element *qkv, const float *cosines, const float *sines, const float *query_norm,
                      const float *key_norm, element *key_cache, element *value_cache, const int64_t *slots,
                      int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t half,
                      int64_t block_size, int64_t block_stride, int64_t token_stride, float epsilon) {
    const int64_t rows = heads + 2 * kv_heads;
#pragma omp parallel for if (tokens * rows * head_dim > 16384)
    for (int64_t token = 0; token < tokens; token++) {
        element *row = qkv + token * rows * head_dim;
        for (int64_t head = 0; head < heads + kv_heads; head++) {
            const float *norm = head < heads ? query_norm : key_norm;
            if (norm)
                norm_head(row + head * head_dim, norm, head_dim, epsilon);
            rotate_head(row + head * head_dim, cosines + token * half, sines + token * half, half);
        }
        if (slots[token] < 0)
            continue;
        int64_t at = slots[token] / block_size * block_stride + slots[token] % block_size * token_stride;
        size_t bytes = (size_t)(kv_heads * head_dim) * sizeof(element);
        memcpy(key_cache + at, row + heads * head_dim, bytes);
        memcpy(value_cache + at, row + (heads + kv_heads) * head_dim, bytes);
    }
}
