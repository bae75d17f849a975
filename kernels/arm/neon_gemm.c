// Rows of weights times a batch of activations: ARMv8.0.
#include "neon.h"

enum { TILE = 2 };

// Two rows by two vectors; those that are not there repeat the last one.
INLINE void f16_tile(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                     size_t stride, const float *x, size_t x_stride, const uint32_t *at,
                     size_t tokens, size_t len) {
    const uint8_t *w_at[TILE];
    const float *x_at[TILE];
    float32x4_t sums[TILE][TILE][QUARTERS];
    UNROLL for (size_t i = 0; i < TILE; i++) {
        w_at[i] = rows + min(i, count - 1) * stride;
        x_at[i] = x + at[min(i, tokens - 1)] * x_stride;
    }
    UNROLL for (int i = 0; i < TILE * TILE * QUARTERS; i++) {
        sums[i / 8][i / 4 % 2][i % 4] = vdupq_n_f32(0.0f);
    }
    for (size_t i = 0; i < len; i += LANES) {
        UNROLL for (size_t quarter = 0; quarter < QUARTERS; quarter++) {
            size_t from = i + 4 * quarter;
            UNROLL for (int r = 0; r < TILE; r++) {
                float32x4_t w = load_f16(w_at[r], from);
                UNROLL for (int t = 0; t < TILE; t++) {
                    float32x4_t *sum = &sums[t][r][quarter];
                    *sum = vaddq_f32(*sum, vmulq_f32(w, vld1q_f32(x_at[t] + from)));
                }
            }
        }
    }
    UNROLL for (size_t t = 0; t < TILE; t++) {
        UNROLL for (size_t r = 0; r < TILE; r++) {
            if (t < tokens && r < count) {
                out[t * out_stride + r] = tree(sums[t][r]);
            }
        }
    }
}

void gk_gemm_f32_f16_f32_neon(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                              size_t stride, const float *x, size_t x_stride, const uint32_t *at,
                              size_t tokens, size_t len) {
    for (size_t row = 0; row < count; row += TILE) {
        for (size_t token = 0; token < tokens; token += TILE) {
            f16_tile(out + token * out_stride + row, out_stride, min(count - row, TILE),
                     rows + row * stride, stride, x, x_stride, at + token,
                     min(tokens - token, TILE), len);
        }
    }
}
