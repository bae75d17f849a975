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

// The file that includes this one gives what fills a tile.
INLINE void quantized_tile(const tile *t, int code_bytes);

// Tiles of up to tile_rows by tile_tokens.
INLINE void gemm(float *out, size_t out_stride, size_t count, int code_bytes, const uint8_t *rows,
                 size_t stride, const int8_t *codes, size_t code_stride, const float *scales,
                 const uint32_t *at, size_t tokens, size_t groups, size_t tile_rows,
                 size_t tile_tokens) {
    for (size_t row = 0; row < count; row += tile_rows) {
        for (size_t token = 0; token < tokens; token += tile_tokens) {
            tile t = {
                .out = out + token * out_stride + row,
                .out_stride = out_stride,
                .rows = rows + row * stride,
                .stride = stride,
                .row_count = min(count - row, tile_rows),
                .codes = codes,
                .code_stride = code_stride,
                .scales = scales,
                .at = at + token,
                .token_count = min(tokens - token, tile_tokens),
                .groups = groups,
            };
            quantized_tile(&t, code_bytes);
        }
    }
}

#endif
