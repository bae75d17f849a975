// Quantised rows times a quantised activation: ARMv8.2 with SDOT, four codes of a group a lane.
#include "rows.h"

INLINE int8x16_t codes16(const uint8_t *at) {
    return vreinterpretq_s8_u8(vld1q_u8(at));
}

INLINE void q8_sums(int32x4_t sums[ROWS], int count, int width, const uint8_t *const rows[ROWS],
                    const int8_t *codes, int at) {
    UNROLL for (int step = 0; step < 8; step++, at += width * 4) {
        int8x16_t x = vld1q_s8(codes + at);
        UNROLL for (int r = 0; r < count; r++) {
            sums[r] = vdotq_s32(sums[r], codes16(rows[r] + at), x);
        }
    }
}

INLINE void q4_sums(int32x4_t sums[ROWS], int count, int width, const uint8_t *const rows[ROWS],
                    const int8_t *codes, int at) {
    const uint8x16_t low = vdupq_n_u8(15);
    UNROLL for (int step = 0; step < 4; step++, at += width * 4) {
        int8x16_t x0 = vld1q_s8(codes + at), x1 = vld1q_s8(codes + at + 16 * width);
        UNROLL for (int r = 0; r < count; r++) {
            uint8x16_t w = vld1q_u8(rows[r] + at);
            sums[r] = vdotq_s32(sums[r], vreinterpretq_s8_u8(vandq_u8(w, low)), x0);
        }
        UNROLL for (int r = 0; r < count; r++) {
            uint8x16_t w = vld1q_u8(rows[r] + at);
            sums[r] = vdotq_s32(sums[r], vreinterpretq_s8_u8(vshrq_n_u8(w, 4)), x1);
        }
    }
}

void gk_matvec_f32_q8_q8_dotprod(float *out, size_t count, const uint8_t *rows, size_t stride,
                                 const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP, NULL, rows, stride, codes, scales, groups);
}

void gk_matvec_f32_q4_q8_dotprod(float *out, size_t count, const uint8_t *rows, size_t stride,
                                 const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP / 2, NULL, rows, stride, codes, scales, groups);
}

void gk_rows_f32_q8_q8_dotprod(float *out, size_t count, const uint8_t *const *rows,
                               const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP, rows, NULL, 0, codes, scales, groups);
}

void gk_rows_f32_q4_q8_dotprod(float *out, size_t count, const uint8_t *const *rows,
                               const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP / 2, rows, NULL, 0, codes, scales, groups);
}
