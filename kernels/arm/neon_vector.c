// Everything that walks one or two vectors: exp, gates, norms, rope, add, f16, argmax, checksum.
// ARMv8.0 with the CRC instructions.
#include "neon.h"
#include <arm_acle.h>

void gk_exp_f32_f32_neon(float *x, size_t len) {
    size_t i = 0;
    for (; i + 4 <= len; i += 4) {
        vst1q_f32(x + i, exp4(vld1q_f32(x + i)));
    }
    for (; i < len; i++) {
        x[i] = vgetq_lane_f32(exp4(vdupq_n_f32(x[i])), 0);
    }
}

INLINE float32x4_t silu4(float32x4_t x, float32x4_t up) {
    float32x4_t below = vaddq_f32(vdupq_n_f32(1.0f), exp4(vnegq_f32(x)));
    return vmulq_f32(vdivq_f32(x, below), up);
}

void gk_silu_f32_f32_f32_neon(float *gate, const float *up, size_t len) {
    size_t i = 0;
    for (; i + 4 <= len; i += 4) {
        vst1q_f32(gate + i, silu4(vld1q_f32(gate + i), vld1q_f32(up + i)));
    }
    for (; i < len; i++) {
        gate[i] = vgetq_lane_f32(silu4(vdupq_n_f32(gate[i]), vdupq_n_f32(up[i])), 0);
    }
}

// What is surely closed is zero; a NaN goes on.
INLINE float32x4_t open4(float32x4_t by, float32x4_t x) {
    uint32x4_t closed = vclezq_f32(by);
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), closed));
}

INLINE float32x4_t relu4(float32x4_t x, float32x4_t up, bool both) {
    return open4(x, vmulq_f32(x, both ? open4(up, up) : up));
}

INLINE void relu(float *gate, const float *up, size_t len, bool both) {
    size_t i = 0;
    for (; i + 4 <= len; i += 4) {
        vst1q_f32(gate + i, relu4(vld1q_f32(gate + i), vld1q_f32(up + i), both));
    }
    for (; i < len; i++) {
        gate[i] = vgetq_lane_f32(relu4(vdupq_n_f32(gate[i]), vdupq_n_f32(up[i]), both), 0);
    }
}

void gk_drelu_f32_f32_f32_neon(float *gate, const float *up, size_t len) {
    relu(gate, up, len, true);
}

void gk_relu_f32_f32_f32_neon(float *gate, const float *up, size_t len) {
    relu(gate, up, len, false);
}

// The gelu of src/kernel/math.rs, step by step.
INLINE float32x4_t gelu4(float32x4_t x, float32x4_t up) {
    const float32x4_t line = vreinterpretq_f32_u32(vdupq_n_u32(0xbfcc422a));
    const float32x4_t cube = vreinterpretq_f32_u32(vdupq_n_u32(0xbd922279));
    float32x4_t factor = vaddq_f32(vmulq_f32(vmulq_f32(x, x), cube), line);
    float32x4_t below = vaddq_f32(vdupq_n_f32(1.0f), exp4(vmulq_f32(x, factor)));
    return vmulq_f32(vdivq_f32(x, below), up);
}

void gk_gelu_f32_f32_f32_neon(float *gate, const float *up, size_t len) {
    size_t i = 0;
    for (; i + 4 <= len; i += 4) {
        vst1q_f32(gate + i, gelu4(vld1q_f32(gate + i), vld1q_f32(up + i)));
    }
    for (; i < len; i++) {
        gate[i] = vgetq_lane_f32(gelu4(vdupq_n_f32(gate[i]), vdupq_n_f32(up[i])), 0);
    }
}

float gk_sumsq_f32_f32_neon(const float *x, size_t len) {
    float32x4_t partials[QUARTERS];
    UNROLL for (int quarter = 0; quarter < QUARTERS; quarter++) {
        partials[quarter] = vdupq_n_f32(0.0f);
    }
    for (size_t i = 0; i < len; i += LANES) {
        float tail[LANES] = {0};
        const float *from = x + i;
        if (len - i < LANES) {
            from = tail;
            for (size_t j = i; j < len; j++) {
                tail[j - i] = x[j];
            }
        }
        UNROLL for (int quarter = 0; quarter < QUARTERS; quarter++) {
            float32x4_t v = vld1q_f32(from + 4 * quarter);
            partials[quarter] = vaddq_f32(partials[quarter], vmulq_f32(v, v));
        }
    }
    return tree(partials);
}

void gk_scale_f32_f32_f32_neon(float *out, const float *x, const float *weight, float factor,
                               size_t len) {
    size_t i = 0;
    for (; i + 4 <= len; i += 4) {
        float32x4_t scaled = vmulq_n_f32(vld1q_f32(x + i), factor);
        vst1q_f32(out + i, vmulq_f32(scaled, vld1q_f32(weight + i)));
    }
    for (; i < len; i++) {
        out[i] = x[i] * factor * weight[i];
    }
}

void gk_rope_f32_f32_neon(float *x, const float *cos_sin, size_t len) {
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        float32x4x2_t v = vld2q_f32(x + i), turn = vld2q_f32(cos_sin + i);
        float32x4_t x0 = v.val[0], x1 = v.val[1], cos = turn.val[0], sin = turn.val[1];
        v.val[0] = vsubq_f32(vmulq_f32(x0, cos), vmulq_f32(x1, sin));
        v.val[1] = vaddq_f32(vmulq_f32(x1, cos), vmulq_f32(x0, sin));
        vst2q_f32(x + i, v);
    }
    for (; i < len; i += 2) {
        float x0 = x[i], x1 = x[i + 1], cos = cos_sin[i], sin = cos_sin[i + 1];
        x[i] = x0 * cos - x1 * sin;
        x[i + 1] = x1 * cos + x0 * sin;
    }
}

void gk_add_f32_f32_neon(float *x, const float *y, size_t len) {
    size_t i = 0;
    for (; i + 4 <= len; i += 4) {
        vst1q_f32(x + i, vaddq_f32(vld1q_f32(x + i), vld1q_f32(y + i)));
    }
    for (; i < len; i++) {
        x[i] += y[i];
    }
}

void gk_convert_f16_f32_neon(uint16_t *out, const float *x, size_t len) {
    size_t i = 0;
    for (; i + 4 <= len; i += 4) {
        vst1_u16(out + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    }
    for (; i < len; i++) {
        out[i] = vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x[i]))), 0);
    }
}

size_t gk_argmax_u64_f32_neon(const float *x, size_t len) {
    float32x4_t m = vdupq_n_f32(-__builtin_inff());
    size_t i = 0;
    for (; i + 4 <= len; i += 4) {
        m = max_number(vld1q_f32(x + i), m);
    }
    for (; i < len; i++) {
        m = max_number(vdupq_n_f32(x[i]), m);
    }
    float max = vmaxvq_f32(m);
    i = 0;
    for (; i + 4 <= len; i += 4) {
        if (vmaxvq_u32(vceqq_f32(vld1q_f32(x + i), vdupq_n_f32(max))) != 0) {
            break;
        }
    }
    for (; i < len; i++) {
        if (x[i] == max) {
            return i;
        }
    }
    return len;
}

uint32_t gk_crc32c_u32_u8_neon(uint32_t seed, const uint8_t *bytes, size_t len) {
    typedef uint64_t word __attribute__((aligned(1), may_alias));
    uint32_t crc = ~seed;
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        crc = __crc32cd(crc, *(const word *)(bytes + i));
    }
    for (; i < len; i++) {
        crc = __crc32cb(crc, bytes[i]);
    }
    return ~crc;
}
