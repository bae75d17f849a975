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

// One band of `t`; `rows` is where its codes are in the first row.
INLINE void band(partial_sums sums, const tile *t, const uint8_t *rows, size_t first_group,
                 size_t width, bool fresh, int code_bytes) {
    const __m512i offset = _mm512_set1_epi8((char)(code_bytes == GROUP ? 0x80 : 8));
    // What the offset of the weights adds to each group, taken off beforehand.
    __m512i bias[TILE_TOKENS];
    for (size_t token = 0; token < t->token_count; token++) {
        const int8_t *codes = codes_of(t, token, first_group);
        __m512i sum = _mm512_setzero_si512();
        UNROLL for (size_t step = 0; step < 8; step++) {
            __m512i x = load_lanes(codes + step * width * 4, width);
            sum = dot4(sum, offset, x);
        }
        bias[token] = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
    }
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

// A last band of four groups: a register holds four steps of them, so two registers are a row. The
// four lanes of four rows then make one register.
INLINE void narrow_band(partial_sums sums, const tile *t, const uint8_t *rows, size_t first_group,
                        int code_bytes) {
    enum { WIDTH = 4 };
    const __m512i offset = _mm512_set1_epi8((char)(code_bytes == GROUP ? 0x80 : 8));
    for (size_t row = 0; row < t->row_count; row += 4) {
        __m512i low[4], high[4];
        float row_scales[LANES] __attribute__((aligned(64)));
        UNROLL for (size_t r = 0; r < 4; r++) {
            // Rows that are not there repeat the last one.
            const uint8_t *at = rows + min(row + r, t->row_count - 1) * t->stride;
            __m512i w = _mm512_loadu_si512(at);
            if (code_bytes == GROUP) {
                low[r] = _mm512_xor_si512(w, offset);
                high[r] = _mm512_xor_si512(_mm512_loadu_si512(at + 64), offset);
            } else {
                const __m512i nibble = _mm512_set1_epi8(15);
                low[r] = _mm512_and_si512(w, nibble);
                high[r] = _mm512_and_si512(_mm512_srli_epi16(w, 4), nibble);
            }
            __m512 four = load_scales(at + WIDTH * code_bytes, WIDTH);
            _mm_store_ps(row_scales + 4 * r, _mm512_castps512_ps128(four));
        }
        __m512 w_scales = _mm512_load_ps(row_scales);
        for (size_t token = 0; token < t->token_count; token++) {
            const int8_t *x_at = codes_of(t, token, first_group);
            __m512i x0 = _mm512_loadu_si512(x_at), x1 = _mm512_loadu_si512(x_at + 64);
            __m512i bias = dot4(_mm512_setzero_si512(), offset, x0);
            bias = dot4(bias, offset, x1);
            __m512i products[4];
            UNROLL for (int r = 0; r < 4; r++) {
                __m512i sum = dot4(_mm512_setzero_si512(), low[r], x0);
                products[r] = _mm512_sub_epi32(dot4(sum, high[r], x1), bias);
            }
            __m512 x_scales =
                _mm512_broadcast_f32x4(_mm_loadu_ps(scales_of(t, token, first_group)));
            __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(add_quarters(products)),
                                          _mm512_mul_ps(w_scales, x_scales));
            __m128 quarters[4] = {
                _mm512_castps512_ps128(scaled), _mm512_extractf32x4_ps(scaled, 1),
                _mm512_extractf32x4_ps(scaled, 2), _mm512_extractf32x4_ps(scaled, 3)};
            UNROLL for (size_t r = 0; r < 4; r++) {
                float *at = (float *)&sums[token][row + r];
                _mm_store_ps(at, _mm_add_ps(_mm_load_ps(at), quarters[r]));
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

INLINE void quantized_tile(const tile *t, int code_bytes) {
    partial_sums sums;
    const uint8_t *rows = t->rows;
    size_t group = 0;
    if (t->groups < LANES) {
        band(sums, t, rows, 0, t->groups, true, code_bytes);
    } else {
        band(sums, t, rows, 0, LANES, true, code_bytes);
        for (group = LANES; group + LANES <= t->groups; group += LANES) {
            rows += LANES * (code_bytes + 2);
            band(sums, t, rows, group, LANES, false, code_bytes);
        }
        if (t->groups - group == 4) {
            narrow_band(sums, t, rows + LANES * (code_bytes + 2), group, code_bytes);
        } else if (group < t->groups) {
            rows += LANES * (code_bytes + 2);
            band(sums, t, rows, group, t->groups - group, false, code_bytes);
        }
    }
    store_tile(sums, t);
}

void gk_gemm_f32_q8_q8_avx512(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                              size_t stride, const int8_t *codes, size_t code_stride,
                              const float *scales, const uint32_t *at, size_t tokens,
                              size_t groups) {
    gemm(out, out_stride, count, GROUP, rows, stride, codes, code_stride, scales, at, tokens,
         groups, TILE_ROWS, TILE_TOKENS);
}

void gk_gemm_f32_q4_q8_avx512(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                              size_t stride, const int8_t *codes, size_t code_stride,
                              const float *scales, const uint32_t *at, size_t tokens,
                              size_t groups) {
    gemm(out, out_stride, count, GROUP / 2, rows, stride, codes, code_stride, scales, at, tokens,
         groups, TILE_ROWS, TILE_TOKENS);
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
