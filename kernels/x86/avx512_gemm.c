// Rows of weights times a batch of activations: AVX-512 VNNI.
//
// A tile is 16 rows by 16 tokens. Its partial sums, a register each, stay in the first-level cache
// while the tile walks along the bands; the weights of two rows of a band are unpacked into
// registers once for all tokens.
#include "avx512.h"
#include "tile.h"

enum { TILE_ROWS = 16, TILE_TOKENS = 16, ABREAST = 2 };

typedef __m512 partial_sums[TILE_TOKENS][TILE_ROWS];

// The codes of one row of a band as bytes without a sign, w + 8 or w + 128.
INLINE void unpack(__m512i *w, const uint8_t *row, int code_bytes, size_t width) {
    if (code_bytes == GROUP) {
        UNROLL for (size_t step = 0; step < 8; step++) {
            __m512i codes = load_lanes(row + step * width * 4, width);
            w[step] = _mm512_xor_si512(codes, _mm512_set1_epi8((char)0x80));
        }
    } else {
        const __m512i nibble = _mm512_set1_epi8(15);
        UNROLL for (size_t step = 0; step < 4; step++) {
            __m512i codes = load_lanes(row + step * width * 4, width);
            w[step] = _mm512_and_si512(codes, nibble);
            w[step + 4] = _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble);
        }
    }
}

// Two rows of a band in registers.
typedef struct {
    const __m512i *first, *second;
    __m512 scale0, scale1;
} weights;

// Adds the products of two rows with `count` tokens to their partial sums; `fresh` ones are zero.
INLINE void products(__m512 *sums, const weights *w, const tile *t, size_t first_group,
                     size_t token, const __m512i *bias, size_t width, bool fresh, int count) {
    const int8_t *codes[ABREAST];
    const float *scales[ABREAST];
    UNROLL for (size_t i = 0; i < (size_t)count; i++) {
        codes[i] = codes_of(t, token + i, first_group);
        scales[i] = scales_of(t, token + i, first_group);
    }
    __m512i sum0[ABREAST], sum1[ABREAST];
    UNROLL for (int i = 0; i < count; i++) {
        sum0[i] = sum1[i] = bias[i];
    }
    UNROLL for (size_t step = 0; step < 8; step++) {
        UNROLL for (int i = 0; i < count; i++) {
            __m512i x = load_lanes(codes[i] + step * width * 4, width);
            if (width == LANES) {
                __asm__("" : "+v"(x)); // loaded once for both rows
            }
            sum0[i] = dot4(sum0[i], w->first[step], x);
            sum1[i] = dot4(sum1[i], w->second[step], x);
        }
    }
    UNROLL for (int i = 0; i < count; i++) {
        __m512 x_scale = _mm512_castsi512_ps(load_lanes(scales[i], width));
        __m512 *at = sums + i * TILE_ROWS;
        __m512 scale0 = _mm512_mul_ps(w->scale0, x_scale);
        __m512 scale1 = _mm512_mul_ps(w->scale1, x_scale);
        __m512 old0 = fresh ? _mm512_setzero_ps() : at[0];
        __m512 old1 = fresh ? _mm512_setzero_ps() : at[1];
        at[0] = _mm512_add_ps(old0, _mm512_mul_ps(_mm512_cvtepi32_ps(sum0[i]), scale0));
        at[1] = _mm512_add_ps(old1, _mm512_mul_ps(_mm512_cvtepi32_ps(sum1[i]), scale1));
    }
}

// What the offset of the weights adds to each group of a token in a band, below 0.
typedef __m512i band_bias[TILE_TOKENS];

// Bands whose biases are kept for all rows; those behind are found again for each tile.
enum { BANDS_KEPT = 16 };

INLINE size_t band_width(const tile *t, size_t first_group) {
    return min(t->groups - first_group, LANES);
}

INLINE void find_bias(__m512i *bias, const tile *t, size_t first_group, int code_bytes) {
    const __m512i offset = _mm512_set1_epi8((char)(code_bytes == GROUP ? 0x80 : 8));
    const size_t width = band_width(t, first_group);
    for (size_t token = 0; token < t->token_count; token++) {
        const int8_t *codes = codes_of(t, token, first_group);
        __m512i sum = _mm512_setzero_si512();
        UNROLL for (size_t step = 0; step < 8; step++) {
            sum = dot4(sum, offset, load_lanes(codes + step * width * 4, width));
        }
        bias[token] = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
    }
}

// One band of `t`; `rows` is where its codes are in the first row.
INLINE void band(partial_sums sums, const tile *t, const __m512i *bias, const uint8_t *rows,
                 size_t first_group, size_t width, bool fresh, int code_bytes) {
    for (size_t row = 0; row < t->row_count; row += 2) {
        const uint8_t *first = rows + row * t->stride;
        // A lone last row is computed twice.
        const uint8_t *second = row + 1 < t->row_count ? first + t->stride : first;
        __m512i w0[8], w1[8];
        unpack(w0, first, code_bytes, width);
        unpack(w1, second, code_bytes, width);
        __m512 scale0 = load_scales(first + width * (size_t)code_bytes, width);
        __m512 scale1 = load_scales(second + width * (size_t)code_bytes, width);
        weights w = {.first = w0, .second = w1, .scale0 = scale0, .scale1 = scale1};
        size_t token = 0;
        // A narrow band needs registers for its masks.
        for (; width == LANES && token + ABREAST <= t->token_count; token += ABREAST) {
            products(&sums[token][row], &w, t, first_group, token, bias + token, width, fresh,
                     ABREAST);
        }
        for (; token < t->token_count; token++) {
            products(&sums[token][row], &w, t, first_group, token, bias + token, width, fresh, 1);
        }
    }
}

// The codes of four groups of four rows, a register for each of eight steps: lane 4 * row + group.
INLINE void unpack_narrow(__m512i *w, const uint8_t *const *rows, int code_bytes) {
    const __m512i nibble = _mm512_set1_epi8(15), sign = _mm512_set1_epi8((char)0x80);
    UNROLL for (int half = 0; half < 2; half++) {
        // A row's quarters are four steps.
        __m512i r[4];
        UNROLL for (int i = 0; i < 4; i++) {
            if (code_bytes == GROUP) {
                r[i] = _mm512_xor_si512(_mm512_loadu_si512(rows[i] + 64 * half), sign);
            } else {
                __m512i codes = _mm512_loadu_si512(rows[i]);
                r[i] = _mm512_and_si512(half == 0 ? codes : _mm512_srli_epi16(codes, 4), nibble);
            }
        }
        __m512i ab_low = _mm512_shuffle_i32x4(r[0], r[1], 0x44);
        __m512i ab_high = _mm512_shuffle_i32x4(r[0], r[1], 0xee);
        __m512i cd_low = _mm512_shuffle_i32x4(r[2], r[3], 0x44);
        __m512i cd_high = _mm512_shuffle_i32x4(r[2], r[3], 0xee);
        w[4 * half] = _mm512_shuffle_i32x4(ab_low, cd_low, 0x88);
        w[4 * half + 1] = _mm512_shuffle_i32x4(ab_low, cd_low, 0xdd);
        w[4 * half + 2] = _mm512_shuffle_i32x4(ab_high, cd_high, 0x88);
        w[4 * half + 3] = _mm512_shuffle_i32x4(ab_high, cd_high, 0xdd);
    }
}

// A last band of four groups: four rows share a register.
INLINE void narrow_band(partial_sums sums, const tile *t, const __m512i *bias,
                        const uint8_t *rows, size_t first_group, int code_bytes) {
    enum { WIDTH = 4 };
    for (size_t row = 0; row < t->row_count; row += 4) {
        const uint8_t *at[4];
        float row_scales[LANES] __attribute__((aligned(64)));
        UNROLL for (size_t r = 0; r < 4; r++) {
            // Rows that are not there repeat the last one.
            at[r] = rows + min(row + r, t->row_count - 1) * t->stride;
            __m512 four = load_scales(at[r] + WIDTH * code_bytes, WIDTH);
            _mm_store_ps(row_scales + 4 * r, _mm512_castps512_ps128(four));
        }
        __m512i w[8];
        unpack_narrow(w, at, code_bytes);
        __m512 w_scales = _mm512_load_ps(row_scales);
        for (size_t token = 0; token < t->token_count; token++) {
            const int8_t *codes = codes_of(t, token, first_group);
            __m512i sum =
                _mm512_broadcast_i32x4(_mm512_castsi512_si128(bias[token]));
            UNROLL for (int step = 0; step < 8; step++) {
                const void *x = codes + step * WIDTH * 4;
                sum = dot4(sum, w[step], _mm512_broadcast_i32x4(_mm_loadu_si128(x)));
            }
            __m512 x_scales =
                _mm512_broadcast_f32x4(_mm_loadu_ps(scales_of(t, token, first_group)));
            __m512 scaled =
                _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(w_scales, x_scales));
            __m128 quarters[4] = {
                _mm512_castps512_ps128(scaled), _mm512_extractf32x4_ps(scaled, 1),
                _mm512_extractf32x4_ps(scaled, 2), _mm512_extractf32x4_ps(scaled, 3)};
            UNROLL for (size_t r = 0; r < 4; r++) {
                float *lanes = (float *)&sums[token][row + r];
                _mm_store_ps(lanes, _mm_add_ps(_mm_load_ps(lanes), quarters[r]));
            }
        }
    }
}

INLINE void store_tile(partial_sums sums, const tile *t) {
    __mmask16 mask = (__mmask16)((1u << t->row_count) - 1);
    for (size_t token = 0; token < t->token_count; token++) {
        _mm512_mask_storeu_ps(t->out + token * t->out_stride, mask, tree16(sums[token]));
    }
}

// `kept` are the biases of the first bands.
INLINE void quantized_tile(const tile *t, const band_bias *kept, int code_bytes) {
    partial_sums sums;
    band_bias found;
    const uint8_t *rows = t->rows;
    for (size_t group = 0; group < t->groups; group += LANES) {
        const __m512i *bias = found;
        if (group < BANDS_KEPT * LANES) {
            bias = kept[group / LANES];
        } else {
            find_bias(found, t, group, code_bytes);
        }
        size_t width = band_width(t, group);
        if (width == LANES && group == 0) {
            band(sums, t, bias, rows, group, LANES, true, code_bytes);
        } else if (width == LANES) {
            band(sums, t, bias, rows, group, LANES, false, code_bytes);
        } else if (width == 4 && group > 0) {
            narrow_band(sums, t, bias, rows, group, code_bytes);
        } else {
            band(sums, t, bias, rows, group, width, group == 0, code_bytes);
        }
        rows += LANES * (code_bytes + 2);
    }
    store_tile(sums, t);
}

// Tiles of the rows for some tokens after the others.
INLINE void quantized(tile all, size_t row_count, size_t token_count, int code_bytes) {
    band_bias kept[BANDS_KEPT];
    for (size_t token = 0; token < token_count; token += TILE_TOKENS) {
        tile t = all;
        t.at += token;
        t.token_count = min(token_count - token, TILE_TOKENS);
        for (size_t group = 0; group < min(t.groups, BANDS_KEPT * LANES); group += LANES) {
            find_bias(kept[group / LANES], &t, group, code_bytes);
        }
        for (size_t row = 0; row < row_count; row += TILE_ROWS) {
            t.out = all.out + token * all.out_stride + row;
            t.rows = all.rows + row * all.stride;
            t.row_count = min(row_count - row, TILE_ROWS);
            quantized_tile(&t, kept, code_bytes);
        }
    }
}

void gk_gemm_f32_q8_q8_avx512(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                              size_t stride, const int8_t *codes, size_t code_stride,
                              const float *scales, const uint32_t *at, size_t tokens,
                              size_t groups) {
    tile all = {.out = out, .out_stride = out_stride, .rows = rows, .stride = stride,
                .codes = codes, .code_stride = code_stride, .scales = scales, .at = at,
                .groups = groups};
    quantized(all, count, tokens, GROUP);
}

void gk_gemm_f32_q4_q8_avx512(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                              size_t stride, const int8_t *codes, size_t code_stride,
                              const float *scales, const uint32_t *at, size_t tokens,
                              size_t groups) {
    tile all = {.out = out, .out_stride = out_stride, .rows = rows, .stride = stride,
                .codes = codes, .code_stride = code_stride, .scales = scales, .at = at,
                .groups = groups};
    quantized(all, count, tokens, GROUP / 2);
}

// Four rows by four tokens of `tokens` (up to four), all partial sums in registers.
INLINE void f16_tile(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                     size_t stride, const float *x, size_t x_stride, const uint32_t *at,
                     size_t tokens, size_t len) {
    const uint16_t *w_at[4];
    const float *x_at[4];
    __m512 sums[LANES];
    // Rows and tokens that are not there repeat the last one.
    for (size_t i = 0; i < 4; i++) {
        w_at[i] = (const uint16_t *)(const void *)(rows + min(i, count - 1) * stride);
        x_at[i] = x + at[min(i, tokens - 1)] * x_stride;
    }
    UNROLL for (int i = 0; i < LANES; i++) {
        sums[i] = _mm512_setzero_ps();
    }
    for (size_t i = 0; i < len; i += LANES) {
        __m512 w[4];
        UNROLL for (int row = 0; row < 4; row++) {
            w[row] = load_f16(w_at[row], i);
        }
        UNROLL for (int token = 0; token < 4; token++) {
            __m512 x16 = _mm512_loadu_ps(x_at[token] + i);
            UNROLL for (int row = 0; row < 4; row++) {
                __m512 *sum = &sums[4 * token + row];
                *sum = _mm512_add_ps(*sum, _mm512_mul_ps(w[row], x16));
            }
        }
    }
    float results[LANES] __attribute__((aligned(64)));
    _mm512_store_ps(results, tree16(sums));
    for (size_t token = 0; token < tokens; token++) {
        for (size_t row = 0; row < count; row++) {
            out[token * out_stride + row] = results[4 * token + row];
        }
    }
}

void gk_gemm_f32_f16_f32_avx512(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                                size_t stride, const float *x, size_t x_stride,
                                const uint32_t *at, size_t tokens, size_t len) {
    for (size_t row = 0; row < count; row += 4) {
        for (size_t token = 0; token < tokens; token += 4) {
            f16_tile(out + token * out_stride + row, out_stride, min(count - row, 4),
                     rows + row * stride, stride, x, x_stride, at + token, min(tokens - token, 4),
                     len);
        }
    }
}
