// Rows of weights times a batch of activations: ARMv8.0.
#include "gemm.h"

enum { ABREAST = 1, LARGE = false };
#include "lanes.h"

// Products of 16 codes, as 16 lanes of 16 bits: two groups in either half.
typedef struct {
    int16x8_t low, high;
} products;

INLINE products multiply_add(products sum, int8x16_t a, int8x16_t b) {
    return (products){vmlal_s8(sum.low, vget_low_s8(a), vget_low_s8(b)),
                      vmlal_high_s8(sum.high, a, b)};
}

// Two steps of q8 fit 16 bits, 2 * 127 * 127 < 2^15, and so do all eight of q4, even the sum of a
// pair of lanes: 16 * 8 * 127.
INLINE void dots(int32x4_t acc[ABREAST][ROWS], int count, int code_bytes,
                 const int8x16_t w[STEPS][ROWS], const int8_t *const codes[ABREAST], size_t apart) {
    (void)count;
    const int whole = code_bytes == GROUP ? 2 : STEPS;
    UNROLL for (int first = 0; first < STEPS; first += whole) {
        products sums[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) {
            sums[r] = (products){vdupq_n_s16(0), vdupq_n_s16(0)};
        }
        UNROLL for (int step = first; step < first + whole; step++) {
            int8x16_t x = vld1q_s8(codes[0] + (size_t)step * apart);
            UNROLL for (int r = 0; r < ROWS; r++) {
                sums[r] = multiply_add(sums[r], w[step][r], x);
            }
        }
        UNROLL for (int r = 0; r < ROWS; r++) {
            if (code_bytes == GROUP) {
                int32x4_t low = vpaddlq_s16(sums[r].low), high = vpaddlq_s16(sums[r].high);
                acc[0][r] = vaddq_s32(acc[0][r], vpaddq_s32(low, high));
            } else {
                acc[0][r] = vpadalq_s16(acc[0][r], vpaddq_s16(sums[r].low, sums[r].high));
            }
        }
    }
}

void gk_gemm_f32_q8_q8_neon(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                            size_t stride, const int8_t *codes, size_t code_stride,
                            const float *scales, const uint32_t *at, size_t tokens,
                            size_t groups) {
    gemm(out, out_stride, count, GROUP, rows, stride, codes, code_stride, scales, at, tokens,
         groups, ROWS, TOKENS);
}

void gk_gemm_f32_q4_q8_neon(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                            size_t stride, const int8_t *codes, size_t code_stride,
                            const float *scales, const uint32_t *at, size_t tokens,
                            size_t groups) {
    gemm(out, out_stride, count, GROUP / 2, rows, stride, codes, code_stride, scales, at, tokens,
         groups, ROWS, TOKENS);
}

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
