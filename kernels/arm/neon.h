// What the aarch64 kernels share: loads, the tree of the 16 partial sums, exp.
//
// The 16 partial sums are four registers. Products and sums are separate instructions: never the
// fused vfma, nor vmla of floats, whose rounding is the compiler's choice.
#ifndef GANGLION_ARM_NEON_H
#define GANGLION_ARM_NEON_H

#include "ganglion.h"
#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum { GROUP = 32, LANES = 16, QUARTERS = 4 };

// Four values of an f16 array.
INLINE float32x4_t load_f16(const void *halves, size_t index) {
    uint8x8_t bytes = vld1_u8((const uint8_t *)halves + 2 * index);
    return vcvt_f32_f16(vreinterpret_f16_u8(bytes));
}

// Adds 16 partial sums in the canonical order: i + 8, + 4, + 2, + 1.
INLINE float tree(const float32x4_t partials[QUARTERS]) {
    float32x4_t low = vaddq_f32(partials[0], partials[2]);
    float32x4_t high = vaddq_f32(partials[1], partials[3]);
    float32x4_t t4 = vaddq_f32(low, high);
    float32x2_t t2 = vadd_f32(vget_low_f32(t4), vget_high_f32(t4));
    return vpadds_f32(t2);
}

// The larger of each pair; `b` where `a` is NaN.
INLINE float32x4_t max_number(float32x4_t a, float32x4_t b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

// The exp of src/kernel/math.rs, step by step.
INLINE float32x4_t exp4(float32x4_t x) {
    const float32x4_t high = vdupq_n_f32(88.0f), round = vdupq_n_f32(12582912.0f);
    static const uint32_t poly[5] = {0x3efffffe, 0x3e2aaa49, 0x3d2aac79, 0x3c091d10, 0x3ab511e5};
#define BITS(bits) vreinterpretq_f32_u32(vdupq_n_u32(bits))
    uint32x4_t low = vcltq_f32(x, vdupq_n_f32(-87.3f)); // not NaN
    x = vbslq_f32(vcgtq_f32(x, high), high, x);         // NaN is kept
    float32x4_t shifted = vaddq_f32(vmulq_f32(x, BITS(0x3fb8aa3b)), round);
    float32x4_t n = vsubq_f32(shifted, round);
    float32x4_t r = vsubq_f32(x, vmulq_f32(n, BITS(0x3f317200)));
    r = vsubq_f32(r, vmulq_f32(n, BITS(0x35bfbe8e)));
    float32x4_t p = vaddq_f32(vmulq_f32(BITS(poly[4]), r), BITS(poly[3]));
    p = vaddq_f32(vmulq_f32(p, r), BITS(poly[2]));
    p = vaddq_f32(vmulq_f32(p, r), BITS(poly[1]));
    p = vaddq_f32(vmulq_f32(p, r), BITS(poly[0]));
    float32x4_t y = vaddq_f32(vmulq_f32(vmulq_f32(r, r), p), r);
    y = vaddq_f32(y, vdupq_n_f32(1.0f));
    uint32x4_t scale = vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23);
    scale = vaddq_u32(scale, vdupq_n_u32(0x3f800000));
    y = vmulq_f32(y, vreinterpretq_f32_u32(scale));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), low));
#undef BITS
}

#endif
