// What the aarch64 kernels of quantised rows times a batch of activations share.
#ifndef GANGLION_ARM_GEMM_H
#define GANGLION_ARM_GEMM_H

#include "neon.h"
#include "tile.h"

// The weights of 16 bytes of q4 codes, each 16 times too large.
typedef struct {
    int8x16_t low, high;
} nibbles;

INLINE nibbles split(uint8x16_t codes) {
    // Stored 8 too large: the sign bit is the wrong way round.
    uint8x16_t w = veorq_u8(codes, vdupq_n_u8(0x88));
    return (nibbles){vreinterpretq_s8_u8(vshlq_n_u8(w, 4)),
                     vreinterpretq_s8_u8(vandq_u8(w, vdupq_n_u8(0xf0)))};
}

// What a sum of products begins with: the bits of 1.5 * 2^23, whose last bit is worth 1. Since sums
// stay below 2^22, they are floats as soon as that number is taken off again. Those of weights that
// are 16 times too large begin as 1.5 * 2^19, whose last bit is worth 1/16.
INLINE float32x4_t sum_zero(bool large) {
    return vdupq_n_f32(large ? 0x1.8p19f : 0x1.8p23f);
}

#endif
