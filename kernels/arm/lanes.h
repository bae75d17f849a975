// Rows of weights times a batch of activations where a lane is a group, as codes are stored: four
// groups, a quarter of a band, are one register.
//
// The file that includes this one gives ABREAST, how many tokens share registers, LARGE, whether
// it takes nibbles 16 times too large, and `dots`. That adds the products of a quarter of four rows
// with `count` tokens to acc[token][row]: 8 registers of each row, w[step][row], and of each token,
// at codes[token], `apart` bytes from one to the next. `count` and code_bytes are compile-time
// constants.
#ifndef GANGLION_ARM_LANES_H
#define GANGLION_ARM_LANES_H

#include "gemm.h"

// Rows and tokens of a tile, four codes of a group.
enum { ROWS = 4, TOKENS = 16, STEPS = 8 };

INLINE void dots(int32x4_t acc[ABREAST][ROWS], int count, int code_bytes,
                 const int8x16_t w[STEPS][ROWS], const int8_t *const codes[ABREAST], size_t apart);

// Four groups of a tile's rows.
typedef struct {
    int8x16_t codes[STEPS][ROWS];
    float32x4_t scales[ROWS];
} quarter;

// The quarter from lane `lane` on of the bands of `width` groups at byte `band` of the rows.
INLINE void unpack(quarter *to, const tile *t, size_t band, size_t lane, size_t width,
                   int code_bytes) {
    UNROLL for (size_t r = 0; r < ROWS; r++) {
        const uint8_t *row = row_of(t, r) + band, *at = row + lane * 4;
        if (code_bytes == GROUP) {
            UNROLL for (size_t step = 0; step < STEPS; step++, at += width * 4) {
                to->codes[step][r] = vreinterpretq_s8_u8(vld1q_u8(at));
            }
        } else {
            UNROLL for (size_t step = 0; step < STEPS / 2; step++, at += width * 4) {
                nibbles w = split(vld1q_u8(at));
                to->codes[step][r] = LARGE ? w.low : vshrq_n_s8(w.low, 4);
                to->codes[step + STEPS / 2][r] = LARGE ? w.high : vshrq_n_s8(w.high, 4);
            }
        }
        to->scales[r] = load_f16(row, width * (size_t)code_bytes / 2 + lane);
    }
}

// A quarter times `count` tokens, from `token` on.
INLINE void multiply(float32x4_t (*sums)[ROWS][QUARTERS], const tile *t, const quarter *w,
                     size_t token, int count, size_t group, size_t lane, size_t width,
                     int code_bytes) {
    const int8_t *codes[ABREAST];
    const float32x4_t zero = sum_zero(LARGE && code_bytes < GROUP);
    // A pointer of its own: weights kept in registers from token to token would leave none.
    __asm__("" : "+r"(w));
    int32x4_t acc[ABREAST][ROWS];
    UNROLL for (int i = 0; i < count; i++) {
        codes[i] = codes_of(t, token + (size_t)i, group) + lane * 4;
        UNROLL for (int r = 0; r < ROWS; r++) {
            acc[i][r] = vreinterpretq_s32_f32(zero);
        }
    }
    dots(acc, count, code_bytes, w->codes, codes, width * 4);
    UNROLL for (int i = 0; i < count; i++) {
        float32x4_t x_scales = vld1q_f32(scales_of(t, token + (size_t)i, group + lane));
        UNROLL for (int r = 0; r < ROWS; r++) {
            float32x4_t sum = vsubq_f32(vreinterpretq_f32_s32(acc[i][r]), zero);
            float32x4_t term = vmulq_f32(sum, vmulq_f32(w->scales[r], x_scales));
            float32x4_t *at = &sums[i][r][lane / 4];
            *at = vaddq_f32(*at, term);
        }
    }
}

INLINE void quantized_tile(const tile *t, int code_bytes) {
    float32x4_t sums[TOKENS][ROWS][QUARTERS];
    for (size_t i = 0; i < TOKENS * ROWS; i++) {
        UNROLL for (int lane = 0; lane < QUARTERS; lane++) {
            sums[i / ROWS][i % ROWS][lane] = vdupq_n_f32(0.0f);
        }
    }
    for (size_t group = 0; group < t->groups; group += LANES) {
        size_t width = min(t->groups - group, LANES), band = group * (size_t)(code_bytes + 2);
        for (size_t lane = 0; lane < width; lane += 4) {
            quarter w;
            unpack(&w, t, band, lane, width, code_bytes);
            size_t token = 0;
            for (; token + ABREAST <= t->token_count; token += ABREAST) {
                multiply(sums + token, t, &w, token, ABREAST, group, lane, width, code_bytes);
            }
            for (; token < t->token_count; token++) {
                multiply(sums + token, t, &w, token, 1, group, lane, width, code_bytes);
            }
        }
    }
    for (size_t token = 0; token < t->token_count; token++) {
        for (size_t row = 0; row < t->row_count; row++) {
            t->out[token * t->out_stride + row] = tree(sums[token][row]);
        }
    }
}

#endif
