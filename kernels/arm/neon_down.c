// Down columns in fixed point: ARMv8.0. All sums are integers, so any order is right.
#include "down.h"

// sums[0..16] += f[0] * wa + f[1] * wb.
INLINE void add16(int32x4_t sums[4], int8x16_t wa, int8x16_t wb, int16x4_t f) {
    UNROLL for (int half = 0; half < 2; half++) {
        int16x8_t a = half == 0 ? vmovl_s8(vget_low_s8(wa)) : vmovl_high_s8(wa);
        int16x8_t b = half == 0 ? vmovl_s8(vget_low_s8(wb)) : vmovl_high_s8(wb);
        int32x4_t *at = sums + 2 * half;
        at[0] = vmlal_lane_s16(at[0], vget_low_s16(a), f, 0);
        at[0] = vmlal_lane_s16(at[0], vget_low_s16(b), f, 1);
        at[1] = vmlal_high_lane_s16(at[1], a, f, 0);
        at[1] = vmlal_high_lane_s16(at[1], b, f, 1);
    }
}

// All columns of one group at a time; code_bytes a group and `both` are compile-time constants.
INLINE void down(int32_t *low, int32_t *high, const uint8_t *const *columns,
                 const int16_t (*factors)[4], size_t pairs, size_t groups, int code_bytes,
                 bool both) {
    for (size_t group = 0; group < groups; group++) {
        int32x4_t l[8], h[8];
        UNROLL for (int i = 0; i < 8; i++) {
            l[i] = vld1q_s32(low + group * GROUP + 4 * i);
            h[i] = both ? vld1q_s32(high + group * GROUP + 4 * i) : vdupq_n_s32(0);
        }
        for (size_t pair = 0; pair < pairs; pair++) {
            const uint8_t *const *at = columns + 2 * pair;
            weights a = group_weights(at[0], group, groups, code_bytes);
            weights b = group_weights(at[1], group, groups, code_bytes);
            int16x4_t f = vld1_s16(factors[pair]);
            add16(l, a.low, b.low, f);
            add16(l + 4, a.high, b.high, f);
            if (both) {
                add16(h, a.low, b.low, vext_s16(f, f, 2));
                add16(h + 4, a.high, b.high, vext_s16(f, f, 2));
            }
        }
        UNROLL for (int i = 0; i < 8; i++) {
            vst1q_s32(low + group * GROUP + 4 * i, l[i]);
            if (both) {
                vst1q_s32(high + group * GROUP + 4 * i, h[i]);
            }
        }
    }
}

void gk_down_i32_q8_i16_neon(int32_t *low, int32_t *high, const uint8_t *const *columns,
                             const int16_t (*factors)[4], size_t pairs, size_t groups) {
    if (high == NULL) {
        down(low, high, columns, factors, pairs, groups, GROUP, false);
    } else {
        down(low, high, columns, factors, pairs, groups, GROUP, true);
    }
}

void gk_down_i32_q4_i16_neon(int32_t *low, int32_t *high, const uint8_t *const *columns,
                             const int16_t (*factors)[4], size_t pairs, size_t groups) {
    if (high == NULL) {
        down(low, high, columns, factors, pairs, groups, GROUP / 2, false);
    } else {
        down(low, high, columns, factors, pairs, groups, GROUP / 2, true);
    }
}

bool gk_down_i64_f16_f32_neon(int64_t *sums, const uint8_t *column, float a, size_t len) {
    const float32x4_t limit = vdupq_n_f32(MULTIPLIER_LIMIT);
    uint32x4_t good = vdupq_n_u32(UINT32_MAX);
    for (size_t i = 0; i < len; i += 4) {
        float32x4_t units = vmulq_n_f32(load_f16(column, i), a);
        good = vandq_u32(good, vcaltq_f32(units, limit)); // NaN is not below
        int32x4_t m = vcvtnq_s32_f32(units);
        vst1q_s64(sums + i, vaddw_s32(vld1q_s64(sums + i), vget_low_s32(m)));
        vst1q_s64(sums + i + 2, vaddw_high_s32(vld1q_s64(sums + i + 2), m));
    }
    return vminvq_u32(good) != 0;
}
