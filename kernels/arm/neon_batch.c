// Down columns of many neurons for many tokens, in fixed point: ARMv8.0. Three tokens times 32
// outputs are 24 registers of sums.
#include "down.h"
#include "batch.h"

enum { ABREAST = 8 };

// Four values from x[i] on; those from `count` on are zero.
INLINE float32x4_t load_some(const float *x, size_t i, size_t count) {
    if (i + 4 <= count) {
        return vld1q_f32(x + i);
    }
    float some[4] = {0};
    for (size_t j = i; j < count; j++) {
        some[j - i] = x[j];
    }
    return vld1q_f32(some);
}

size_t gk_multipliers_i16_f32_neon(void *factors, gk_about *about, const float *x,
                                    const float *scales, float per_unit, size_t count) {
    int16_t *low = factors, *high = low + NEURONS;
    const float32x4_t limit = vdupq_n_f32(MULTIPLIER_LIMIT);
    static const uint32_t index[4] = {0, 1, 2, 3};
    uint16x4_t any = vdup_n_u16(0);
    for (size_t i = 0; i < NEURONS; i += 4) {
        float32x4_t product = vmulq_f32(load_some(x, i, count), load_some(scales, i, count));
        float32x4_t units = vmulq_n_f32(product, per_unit);
        uint32x4_t good = vcaltq_f32(units, limit); // NaN is not below
        uint32_t bad = vminvq_u32(vorrq_u32(good, vld1q_u32(index)));
        if (bad < 4) {
            return i + bad;
        }
        int32x4_t m = vcvtnq_s32_f32(units);
        int16x4_t h = vrshrn_n_s32(m, 16);
        any = vorr_u16(any, vreinterpret_u16_s16(h));
        // The low 16 bits of m are l in two's complement.
        vst1_s16(low + i, vmovn_s32(m));
        vst1_s16(high + i, h);
    }
    about->wide = vmaxv_u16(any) != 0;
    return count;
}

// tile[neuron][output].
INLINE void widen(int16_t *tile, const uint8_t *const *columns, size_t pairs, size_t group,
                  size_t groups, int code_bytes) {
    for (size_t n = 0; n < 2 * pairs; n++, tile += GROUP) {
        weights w = group_weights(columns[n], group, groups, code_bytes);
        vst1q_s16(tile, vmovl_s8(vget_low_s8(w.low)));
        vst1q_s16(tile + 8, vmovl_high_s8(w.low));
        vst1q_s16(tile + 16, vmovl_s8(vget_low_s8(w.high)));
        vst1q_s16(tile + 24, vmovl_high_s8(w.high));
    }
}

// sums[4] += values << shift, which is 0 or 16.
INLINE void add_wide(int64_t *sums, int32x4_t values, int shift) {
    int64x2_t low = shift == 0 ? vmovl_s32(vget_low_s32(values))
                               : vshll_n_s32(vget_low_s32(values), 16);
    int64x2_t high = shift == 0 ? vmovl_high_s32(values) : vshll_high_n_s32(values, 16);
    vst1q_s64(sums, vaddq_s64(vld1q_s64(sums), low));
    vst1q_s64(sums + 2, vaddq_s64(vld1q_s64(sums + 2), high));
}

INLINE void multiply(int64_t *sums, size_t sums_stride, const uint32_t *at, const int16_t *tile,
                     size_t pairs, const int16_t *factors, size_t tokens, int shift) {
    int32x4_t acc[TOKENS][GROUP / 4];
    UNROLL for (int t = 0; t < TOKENS; t++) {
        UNROLL for (int v = 0; v < GROUP / 4; v++) {
            acc[t][v] = vdupq_n_s32(0);
        }
    }
    // Behind the last neuron factors are zero: what the tile holds there does not count.
    for (size_t n = 0; n < 2 * pairs; n += ABREAST, tile += ABREAST * GROUP) {
        int16x8_t f[TOKENS];
        UNROLL for (size_t t = 0; t < TOKENS; t++) {
            f[t] = vld1q_s16(factors + t * FACTORS + n);
        }
        UNROLL for (int lane = 0; lane < ABREAST; lane++) {
            UNROLL for (int v = 0; v < GROUP / 8; v++) {
                int16x8_t w = vld1q_s16(tile + lane * GROUP + 8 * v);
                UNROLL for (int t = 0; t < TOKENS; t++) {
                    int32x4_t *sum = &acc[t][2 * v];
                    sum[0] = vmlal_laneq_s16(sum[0], vget_low_s16(w), f[t], lane);
                    sum[1] = vmlal_high_laneq_s16(sum[1], w, f[t], lane);
                }
            }
        }
    }
    UNROLL for (size_t t = 0; t < TOKENS; t++) {
        if (t < tokens) {
            UNROLL for (int v = 0; v < GROUP / 4; v++) {
                add_wide(sums + at[t] * sums_stride + 4 * v, acc[t][v], shift);
            }
        }
    }
}

void gk_batch_i64_q8_i16_neon(int64_t *sums, size_t sums_stride, const uint32_t *at,
                              void *scratch, const uint8_t *const *columns, size_t neurons,
                              const void *factors, const gk_about *about, size_t tokens,
                              size_t groups) {
    batch(sums, sums_stride, at, scratch, columns, (neurons + 1) / 2, factors, about, tokens,
          groups, GROUP);
}

void gk_batch_i64_q4_i16_neon(int64_t *sums, size_t sums_stride, const uint32_t *at,
                              void *scratch, const uint8_t *const *columns, size_t neurons,
                              const void *factors, const gk_about *about, size_t tokens,
                              size_t groups) {
    batch(sums, sums_stride, at, scratch, columns, (neurons + 1) / 2, factors, about, tokens,
          groups, GROUP / 2);
}
