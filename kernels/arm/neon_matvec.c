// Quantised activations, and rows of weights times an activation: ARMv8.0, without SDOT.
#include "rows.h"

// a * b of 16 codes, as 16 lanes of 16 bits, four a group.
typedef struct {
    int16x8_t first, second;
} products;

INLINE products multiply(int8x16_t a, int8x16_t b) {
    return (products){vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)};
}

INLINE products multiply_add(products sum, int8x16_t a, int8x16_t b) {
    return (products){vmlal_s8(sum.first, vget_low_s8(a), vget_low_s8(b)),
                      vmlal_high_s8(sum.second, a, b)};
}

// Two steps fit 16 bits: 2 * 128 * 127 < 2^15.
INLINE void q8_sums(int32x4_t sums[ROWS], int count, int width, const uint8_t *const rows[ROWS],
                    const int8_t *codes, int at) {
    int32x4_t first[ROWS], second[ROWS];
    UNROLL for (int r = 0; r < count; r++) {
        first[r] = second[r] = vdupq_n_s32(0);
    }
    UNROLL for (int step = 0; step < 8; step += 2, at += 2 * width * 4) {
        int8x16_t x0 = vld1q_s8(codes + at), x1 = vld1q_s8(codes + at + width * 4);
        UNROLL for (int r = 0; r < count; r++) {
            const uint8_t *row = rows[r] + at;
            products sum = multiply(vreinterpretq_s8_u8(vld1q_u8(row)), x0);
            sum = multiply_add(sum, vreinterpretq_s8_u8(vld1q_u8(row + width * 4)), x1);
            first[r] = vpadalq_s16(first[r], sum.first);
            second[r] = vpadalq_s16(second[r], sum.second);
        }
    }
    UNROLL for (int r = 0; r < count; r++) {
        sums[r] = vaddq_s32(sums[r], vpaddq_s32(first[r], second[r]));
    }
}

// A whole group fits 16 bits, even the sum of a pair of lanes: 16 * 15 * 127 < 2^15.
INLINE void q4_sums(int32x4_t sums[ROWS], int count, int width, const uint8_t *const rows[ROWS],
                    const int8_t *codes, int at) {
    const uint8x16_t low = vdupq_n_u8(15);
    products sum[ROWS];
    UNROLL for (int step = 0; step < 4; step++, at += width * 4) {
        int8x16_t x0 = vld1q_s8(codes + at), x1 = vld1q_s8(codes + at + 16 * width);
        UNROLL for (int r = 0; r < count; r++) {
            int8x16_t w = vreinterpretq_s8_u8(vandq_u8(vld1q_u8(rows[r] + at), low));
            sum[r] = step == 0 ? multiply(w, x0) : multiply_add(sum[r], w, x0);
        }
        UNROLL for (int r = 0; r < count; r++) {
            int8x16_t w = vreinterpretq_s8_u8(vshrq_n_u8(vld1q_u8(rows[r] + at), 4));
            sum[r] = multiply_add(sum[r], w, x1);
        }
    }
    UNROLL for (int r = 0; r < count; r++) {
        sums[r] = vpadalq_s16(sums[r], vpaddq_s16(sum[r].first, sum[r].second));
    }
}

void gk_matvec_f32_q8_q8_neon(float *out, size_t count, const uint8_t *rows, size_t stride,
                              const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP, NULL, rows, stride, codes, scales, groups);
}

void gk_matvec_f32_q4_q8_neon(float *out, size_t count, const uint8_t *rows, size_t stride,
                              const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP / 2, NULL, rows, stride, codes, scales, groups);
}

void gk_rows_f32_q8_q8_neon(float *out, size_t count, const uint8_t *const *rows,
                            const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP, rows, NULL, 0, codes, scales, groups);
}

void gk_rows_f32_q4_q8_neon(float *out, size_t count, const uint8_t *const *rows,
                            const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP / 2, rows, NULL, 0, codes, scales, groups);
}

INLINE void f16_rows(float *out, int count, const uint8_t *const *rows, const float *x,
                     size_t len) {
    float32x4_t partials[ROWS][QUARTERS];
    UNROLL for (int r = 0; r < count; r++) {
        UNROLL for (int quarter = 0; quarter < QUARTERS; quarter++) {
            partials[r][quarter] = vdupq_n_f32(0.0f);
        }
    }
    for (size_t i = 0; i < len; i += LANES) {
        UNROLL for (size_t quarter = 0; quarter < QUARTERS; quarter++) {
            size_t at = i + 4 * quarter;
            float32x4_t x4 = vld1q_f32(x + at);
            UNROLL for (int r = 0; r < count; r++) {
                float32x4_t w = load_f16(rows[r], at);
                partials[r][quarter] = vaddq_f32(partials[r][quarter], vmulq_f32(w, x4));
            }
        }
    }
    UNROLL for (int r = 0; r < count; r++) {
        out[r] = tree(partials[r]);
    }
}

INLINE void f16(float *out, size_t count, const uint8_t *const *list, const uint8_t *block,
                size_t stride, const float *x, size_t len) {
    size_t i = 0;
    for (; i + ROWS <= count; i += ROWS) {
        const uint8_t *rows[ROWS];
        UNROLL for (size_t r = 0; r < ROWS; r++) {
            rows[r] = row_at(list, block, stride, i + r);
        }
        f16_rows(out + i, ROWS, rows, x, len);
    }
    for (; i < count; i++) {
        const uint8_t *row = row_at(list, block, stride, i);
        f16_rows(out + i, 1, &row, x, len);
    }
}

void gk_matvec_f32_f16_f32_neon(float *out, size_t count, const uint8_t *rows, size_t stride,
                                const float *x, size_t len) {
    f16(out, count, NULL, rows, stride, x, len);
}

void gk_rows_f32_f16_f32_neon(float *out, size_t count, const uint8_t *const *rows,
                              const float *x, size_t len) {
    f16(out, count, rows, NULL, 0, x, len);
}

// Eight codes: the integers nearest to x * inverse, ties to even.
INLINE int16x8_t codes8(const float *x, float inverse) {
    int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x), inverse));
    int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4), inverse));
    return vmovn_high_s32(vmovn_s32(low), high);
}

// Writes the 32 codes of a group as eight lanes of four, `step_bytes` apart.
INLINE void store_codes(int8_t *codes, size_t step_bytes, const float *x, float inverse) {
    typedef uint32_t lane __attribute__((aligned(1), may_alias));
    UNROLL for (int half = 0; half < 2; half++) {
        int8x8_t low = vmovn_s16(codes8(x + 16 * half, inverse));
        int8x16_t bytes = vmovn_high_s16(low, codes8(x + 16 * half + 8, inverse));
        uint32x4_t lanes = vreinterpretq_u32_s8(bytes);
        int8_t *at = codes + (size_t)half * 4 * step_bytes;
        *(lane *)at = vgetq_lane_u32(lanes, 0);
        *(lane *)(at + step_bytes) = vgetq_lane_u32(lanes, 1);
        *(lane *)(at + 2 * step_bytes) = vgetq_lane_u32(lanes, 2);
        *(lane *)(at + 3 * step_bytes) = vgetq_lane_u32(lanes, 3);
    }
}

// The bits of the largest magnitude of a group. Magnitudes order like their bits, NaN on top.
INLINE uint32_t amax_bits(const float *x) {
    uint32x4_t max = vdupq_n_u32(0);
    UNROLL for (int i = 0; i < GROUP; i += 4) {
        uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(x + i));
        max = vmaxq_u32(max, vandq_u32(bits, vdupq_n_u32(0x7fffffff)));
    }
    return vmaxvq_u32(max);
}

bool gk_quantize_q8_f32_neon(int8_t *codes, float *scales, size_t groups, const float *x,
                             size_t len) {
    const uint32_t infinity = 0x7f800000, amax_min = 0x0d800000; // 2^-100
    bool finite = true;
    for (size_t group = 0; group < groups; group++) {
        float tail[GROUP] = {0};
        const float *from = x + group * GROUP;
        if (len < (group + 1) * GROUP) {
            from = tail;
            for (size_t i = group * GROUP; i < len; i++) {
                tail[i - group * GROUP] = x[i];
            }
        }
        size_t band_group = group / LANES * LANES;
        size_t width = groups - band_group < LANES ? groups - band_group : LANES;
        uint32_t bits = amax_bits(from);
        bool whole = bits >= amax_min && bits < infinity;
        float amax = vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32(bits)), 0);
        finite &= bits < infinity;
        scales[group] = whole ? amax / 127.0f : 0.0f;
        // A group that counts as zero may hold NaN, whose product with 0 is not 0.
        from = whole ? from : (const float[GROUP]){0};
        store_codes(codes + band_group * GROUP + (group - band_group) * 4, width * 4, from,
                    whole ? 127.0f / amax : 0.0f);
    }
    return finite;
}
