// Quantised rows times a batch of quantised activations: ARMv8.2 with SDOT.
#include "gemm.h"

enum { ABREAST = 4, LARGE = true };
#include "lanes.h"

INLINE void dots(int32x4_t acc[ABREAST][ROWS], int count, int code_bytes,
                 const int8x16_t w[STEPS][ROWS], const int8_t *const codes[ABREAST], size_t apart) {
    (void)code_bytes;
    UNROLL for (int step = 0; step < STEPS; step++) {
        int8x16_t x[ABREAST], v[ROWS];
        UNROLL for (int i = 0; i < count; i++) {
            x[i] = vld1q_s8(codes[i] + (size_t)step * apart);
        }
        UNROLL for (int r = 0; r < ROWS; r++) {
            v[r] = w[step][r];
        }
        // Loaded once for all tokens, and before the first use.
        __asm__("" : "+w"(x[0]), "+w"(v[0]), "+w"(v[1]), "+w"(v[2]), "+w"(v[3]));
        UNROLL for (int i = 0; i < count; i++) {
            UNROLL for (int r = 0; r < ROWS; r++) {
                acc[i][r] = vdotq_s32(acc[i][r], v[r], x[i]);
            }
        }
    }
}

void gk_gemm_f32_q8_q8_dotprod(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                               size_t stride, const int8_t *codes, size_t code_stride,
                               const float *scales, const uint32_t *at, size_t tokens,
                               size_t groups) {
    gemm(out, out_stride, count, GROUP, rows, stride, codes, code_stride, scales, at, tokens,
         groups, ROWS, TOKENS);
}

void gk_gemm_f32_q4_q8_dotprod(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                               size_t stride, const int8_t *codes, size_t code_stride,
                               const float *scales, const uint32_t *at, size_t tokens,
                               size_t groups) {
    gemm(out, out_stride, count, GROUP / 2, rows, stride, codes, code_stride, scales, at, tokens,
         groups, ROWS, TOKENS);
}
