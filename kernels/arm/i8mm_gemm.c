// Rows of weights times a batch of activations: ARMv8.2 with SMMLA.
//
// SMMLA multiplies two vectors of eight codes by two others, all of one group: four results. The
// codes of a quarter of a band, four groups of 16 tokens and 16 rows, are first laid out that way,
// pair by pair, and each is then used for a whole tile. The partial sums stay in the first-level
// cache, a register for each lane of two tokens by two rows.
#include "gemm.h"

enum {
    TILE = 16, // rows, and tokens, of a tile
    PAIRS = TILE / 2,
    STEPS = GROUP / 8, // instructions for a group
    // Pairs that share registers.
    TOKENS = 2,
    ROWS = 4
};

// Four groups of two vectors: eight codes of the one, eight of the other. Their scales stand as the
// four results want them.
typedef struct {
    int8x16_t codes[STEPS][4];
    float32x4_t scales[4];
} pair;

// (token, row) 00, 01, 10, 11 of each lane and two pairs.
typedef float32x4_t partial_sums[LANES][PAIRS][PAIRS];

// The bytes of four groups in two steps of two vectors, one register a group.
INLINE void interleave(uint8x16_t to[4], const uint8_t *a, const uint8_t *b, size_t step,
                       size_t width) {
    size_t first = step * width * 4, second = first + width * 4;
    uint32x4_t a0 = vreinterpretq_u32_u8(vld1q_u8(a + first));
    uint32x4_t a1 = vreinterpretq_u32_u8(vld1q_u8(a + second));
    uint32x4_t b0 = vreinterpretq_u32_u8(vld1q_u8(b + first));
    uint32x4_t b1 = vreinterpretq_u32_u8(vld1q_u8(b + second));
    uint32x4x2_t a8 = vzipq_u32(a0, a1), b8 = vzipq_u32(b0, b1);
    UNROLL for (int i = 0; i < 2; i++) {
        uint64x2_t x = vreinterpretq_u64_u32(a8.val[i]), y = vreinterpretq_u64_u32(b8.val[i]);
        to[2 * i] = vreinterpretq_u8_u64(vzip1q_u64(x, y));
        to[2 * i + 1] = vreinterpretq_u8_u64(vzip2q_u64(x, y));
    }
}

INLINE void lay_out_q8(pair *to, const uint8_t *a, const uint8_t *b, size_t width) {
    UNROLL for (size_t step = 0; step < STEPS; step++) {
        uint8x16_t bytes[4];
        interleave(bytes, a, b, 2 * step, width);
        UNROLL for (int g = 0; g < 4; g++) {
            to->codes[step][g] = vreinterpretq_s8_u8(bytes[g]);
        }
    }
}

INLINE void lay_out_q4(pair *to, const uint8_t *a, const uint8_t *b, size_t width) {
    UNROLL for (size_t step = 0; step < STEPS / 2; step++) {
        uint8x16_t bytes[4];
        interleave(bytes, a, b, 2 * step, width);
        UNROLL for (int g = 0; g < 4; g++) {
            nibbles w = split(bytes[g]);
            to->codes[step][g] = w.low;
            to->codes[step + STEPS / 2][g] = w.high;
        }
    }
}

INLINE size_t round_up(size_t count, size_t to) {
    return (count + to - 1) / to * to;
}

// The four groups from lane `lane` on of a band of `width` groups that begins at `group`, of all
// tokens. Those that are not there repeat the last one.
INLINE void lay_out_tokens(pair *to, const tile *t, size_t group, size_t lane, size_t width) {
    size_t last = t->token_count - 1, end = round_up(t->token_count, 2 * TOKENS);
    for (size_t i = 0; i < end; i += 2, to++) {
        size_t a = min(i, last), b = min(i + 1, last);
        const int8_t *a_codes = codes_of(t, a, group), *b_codes = codes_of(t, b, group);
        lay_out_q8(to, (const uint8_t *)a_codes + lane * 4, (const uint8_t *)b_codes + lane * 4,
                   width);
        float32x4_t a_scales = vld1q_f32(scales_of(t, a, group + lane));
        float32x4_t b_scales = vld1q_f32(scales_of(t, b, group + lane));
        UNROLL for (int g = 0; g < 4; g++) {
            to->scales[g] = vcombine_f32(vdup_laneq_f32(a_scales, g), vdup_laneq_f32(b_scales, g));
        }
    }
}

// The same of all rows, whose bands begin at byte `band`.
INLINE void lay_out_rows(pair *to, const tile *t, size_t band, size_t lane, size_t width,
                         int code_bytes) {
    size_t end = round_up(t->row_count, 2 * ROWS);
    for (size_t i = 0; i < end; i += 2, to++) {
        const uint8_t *a = row_of(t, i) + band, *b = row_of(t, i + 1) + band;
        if (code_bytes == GROUP) {
            lay_out_q8(to, a + lane * 4, b + lane * 4, width);
        } else {
            lay_out_q4(to, a + lane * 4, b + lane * 4, width);
        }
        size_t scales_at = width * (size_t)code_bytes / 2 + lane;
        float32x4x2_t zip = vzipq_f32(load_f16(a, scales_at), load_f16(b, scales_at));
        UNROLL for (int half = 0; half < 2; half++) {
            float64x2_t two = vreinterpretq_f64_f32(zip.val[half]);
            to->scales[2 * half] = vreinterpretq_f32_f64(vdupq_laneq_f64(two, 0));
            to->scales[2 * half + 1] = vreinterpretq_f32_f64(vdupq_laneq_f64(two, 1));
        }
    }
}

// One group of four tokens by eight rows; a token pair's sums are PAIRS on from the one before.
INLINE void multiply(float32x4_t *sums, const pair *tokens, const pair *rows, size_t group,
                     int code_bytes) {
    const float32x4_t zero = sum_zero(code_bytes < GROUP);
    int32x4_t acc[TOKENS][ROWS];
    UNROLL for (int i = 0; i < TOKENS * ROWS; i++) {
        acc[i / ROWS][i % ROWS] = vreinterpretq_s32_f32(zero);
    }
    UNROLL for (int step = 0; step < STEPS; step++) {
        int8x16_t x[TOKENS], w[ROWS];
        UNROLL for (int t = 0; t < TOKENS; t++) {
            x[t] = tokens[t].codes[step][group];
        }
        UNROLL for (int r = 0; r < ROWS; r++) {
            w[r] = rows[r].codes[step][group];
        }
        // All loads before the first use: a core that runs in order would wait at each.
        __asm__("" : "+w"(x[0]), "+w"(x[1]), "+w"(w[0]), "+w"(w[1]), "+w"(w[2]), "+w"(w[3]));
        UNROLL for (int r = 0; r < ROWS; r++) {
            UNROLL for (int t = 0; t < TOKENS; t++) {
                acc[t][r] = vmmlaq_s32(acc[t][r], x[t], w[r]);
            }
        }
    }
    float32x4_t terms[TOKENS][ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        UNROLL for (int t = 0; t < TOKENS; t++) {
            float32x4_t scale = vmulq_f32(rows[r].scales[group], tokens[t].scales[group]);
            float32x4_t sum = vsubq_f32(vreinterpretq_f32_s32(acc[t][r]), zero);
            terms[t][r] = vmulq_f32(sum, scale);
        }
    }
    UNROLL for (int t = 0; t < TOKENS; t++) {
        UNROLL for (int r = 0; r < ROWS; r++) {
            sums[t * PAIRS + r] = vaddq_f32(sums[t * PAIRS + r], terms[t][r]);
        }
    }
}

// Four groups of all tokens by all rows.
INLINE void multiply_all(float32x4_t (*sums)[PAIRS][PAIRS], const pair *tokens, const pair *rows,
                         const tile *t, int code_bytes) {
    for (size_t token = 0; 2 * token < t->token_count; token += TOKENS) {
        for (size_t row = 0; 2 * row < t->row_count; row += ROWS) {
            for (size_t group = 0; group < 4; group++) {
                float32x4_t *first = &sums[group][token][row];
                multiply(first, tokens + token, rows + row, group, code_bytes);
            }
        }
    }
}

// The canonical tree of the 16 lanes, for two tokens by two rows.
INLINE float32x4_t lane_tree(float32x4_t (*sums)[PAIRS][PAIRS], size_t t, size_t r) {
    float32x4_t v[LANES / 2];
    UNROLL for (int i = 0; i < LANES / 2; i++) {
        v[i] = vaddq_f32(sums[i][t][r], sums[i + LANES / 2][t][r]);
    }
    UNROLL for (int half = LANES / 4; half > 0; half /= 2) {
        UNROLL for (int i = 0; i < half; i++) {
            v[i] = vaddq_f32(v[i], v[i + half]);
        }
    }
    return v[0];
}

INLINE void store_tile(const tile *t, float32x4_t (*sums)[PAIRS][PAIRS]) {
    float results[TILE][TILE];
    for (size_t token = 0; token < t->token_count; token += 2) {
        for (size_t row = 0; row < t->row_count; row += 2) {
            float32x4_t four = lane_tree(sums, token / 2, row / 2);
            vst1_f32(&results[token][row], vget_low_f32(four));
            vst1_f32(&results[token + 1][row], vget_high_f32(four));
        }
    }
    for (size_t token = 0; token < t->token_count; token++) {
        for (size_t row = 0; row < t->row_count; row++) {
            t->out[token * t->out_stride + row] = results[token][row];
        }
    }
}

INLINE void quantized_tile(const tile *t, int code_bytes) {
    partial_sums sums;
    pair tokens[PAIRS], rows[PAIRS];
    for (size_t lane = 0; lane < LANES; lane++) {
        for (size_t i = 0; i < PAIRS * PAIRS; i++) {
            sums[lane][i / PAIRS][i % PAIRS] = vdupq_n_f32(0.0f);
        }
    }
    for (size_t group = 0; group < t->groups; group += LANES) {
        size_t width = min(t->groups - group, LANES), band = group * (size_t)(code_bytes + 2);
        for (size_t lane = 0; lane < width; lane += 4) {
            lay_out_tokens(tokens, t, group, lane, width);
            lay_out_rows(rows, t, band, lane, width, code_bytes);
            multiply_all(sums + lane, tokens, rows, t, code_bytes);
        }
    }
    store_tile(t, sums);
}

void gk_gemm_f32_q8_q8_i8mm(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                            size_t stride, const int8_t *codes, size_t code_stride,
                            const float *scales, const uint32_t *at, size_t tokens,
                            size_t groups) {
    gemm(out, out_stride, count, GROUP, rows, stride, codes, code_stride, scales, at, tokens,
         groups, TILE, TILE);
}

void gk_gemm_f32_q4_q8_i8mm(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                            size_t stride, const int8_t *codes, size_t code_stride,
                            const float *scales, const uint32_t *at, size_t tokens,
                            size_t groups) {
    gemm(out, out_stride, count, GROUP / 2, rows, stride, codes, code_stride, scales, at, tokens,
         groups, TILE, TILE);
}
