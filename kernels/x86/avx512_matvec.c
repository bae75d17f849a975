// Rows of weights times an activation: AVX-512 VNNI.
//
// vpdpbusd multiplies bytes without a sign by bytes with one, so weights are stored or made
// w + offset, and offset times the sum of the group's codes is taken off: integers, so exact.
#include "avx512.h"

enum { ROWS = 4 };

// The lanes of a band of `width` groups; the others read nothing and are zero.
INLINE __m512i load_lanes(const void *at, size_t width) {
    if (width == LANES) {
        return _mm512_loadu_si512(at);
    }
    return _mm512_maskz_loadu_epi32((__mmask16)((1u << width) - 1), at);
}

INLINE __m512 load_scales(const void *at, size_t width) {
    if (width == LANES) {
        return load_f16(at, 0);
    }
    __mmask16 mask = (__mmask16)((1u << width) - 1);
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, at));
}

// One band of `count` rows, `row_step` apart; `width` is 16 or a number the compiler does not know.
INLINE void band(__m512 *partials, int count, int code_bytes, const uint8_t *rows, size_t stride,
                 const int8_t *codes, const float *scales, size_t width) {
    const __m512i nibble = _mm512_set1_epi8(15), high_nibble = _mm512_set1_epi8((char)0xf0);
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    const __m512i offset = code_bytes == GROUP ? sign : _mm512_set1_epi8(8);
    __m512i x[8], bias = _mm512_setzero_si512();
    UNROLL for (size_t step = 0; step < 8; step++) {
        x[step] = load_lanes(codes + step * width * 4, width);
        bias = _mm512_dpbusd_epi32(bias, offset, x[step]);
    }
    __m512 x_scales = _mm512_castsi512_ps(load_lanes(scales, width));
    UNROLL for (int r = 0; r < count; r++) {
        const uint8_t *row = rows + (size_t)r * stride;
        __m512i sum = _mm512_setzero_si512(), second = _mm512_setzero_si512();
        if (code_bytes == GROUP) {
            UNROLL for (size_t step = 0; step < 8; step += 2) {
                __m512i w0 = load_lanes(row + step * width * 4, width);
                __m512i w1 = load_lanes(row + (step + 1) * width * 4, width);
                sum = _mm512_dpbusd_epi32(sum, _mm512_xor_si512(w0, sign), x[step]);
                second = _mm512_dpbusd_epi32(second, _mm512_xor_si512(w1, sign), x[step + 1]);
            }
        } else {
            // High nibbles stay where they are: their sum is 16 times too large.
            UNROLL for (size_t step = 0; step < 4; step++) {
                __m512i w = load_lanes(row + step * width * 4, width);
                sum = _mm512_dpbusd_epi32(sum, _mm512_and_si512(w, nibble), x[step]);
                second =
                    _mm512_dpbusd_epi32(second, _mm512_and_si512(w, high_nibble), x[step + 4]);
            }
            second = _mm512_srai_epi32(second, 4);
        }
        __m512i exact = _mm512_sub_epi32(_mm512_add_epi32(sum, second), bias);
        __m512 w_scales = load_scales(row + width * (size_t)code_bytes, width);
        __m512 scale = _mm512_mul_ps(w_scales, x_scales);
        partials[r] =
            _mm512_add_ps(partials[r], _mm512_mul_ps(_mm512_cvtepi32_ps(exact), scale));
    }
}

// Dot products of `count` rows; `code_bytes` a group is 32 for q8 and 16 for q4. The rows behind
// them are fetched ahead.
INLINE void quantized_rows(float *out, int count, int code_bytes, const uint8_t *rows,
                           size_t stride, const int8_t *codes, const float *scales,
                           size_t groups) {
    __m512 partials[ROWS];
    UNROLL for (int r = 0; r < count; r++) {
        partials[r] = _mm512_setzero_ps();
    }
    for (; groups >= LANES; groups -= LANES) {
        if (count == ROWS) {
            UNROLL for (int r = 0; r < count; r++) {
                const uint8_t *ahead = rows + (size_t)(r + ROWS) * stride;
                UNROLL for (int line = 0; line < LANES * (code_bytes + 2); line += 64) {
                    _mm_prefetch((const char *)ahead + line, _MM_HINT_T0);
                }
            }
        }
        band(partials, count, code_bytes, rows, stride, codes, scales, LANES);
        rows += LANES * (code_bytes + 2);
        codes += LANES * GROUP;
        scales += LANES;
    }
    if (groups > 0) {
        band(partials, count, code_bytes, rows, stride, codes, scales, groups);
    }
    UNROLL for (int r = 0; r < count; r++) {
        out[r] = tree(partials[r]);
    }
}

INLINE void quantized(float *out, size_t count, int code_bytes, const uint8_t *rows, size_t stride,
                      const int8_t *codes, const float *scales, size_t groups) {
    size_t i = 0;
    for (; i + ROWS <= count; i += ROWS) {
        quantized_rows(out + i, ROWS, code_bytes, rows + i * stride, stride, codes, scales, groups);
    }
    for (; i < count; i++) {
        quantized_rows(out + i, 1, code_bytes, rows + i * stride, stride, codes, scales, groups);
    }
}

void gk_matvec_f32_q8_q8_avx512(float *out, size_t count, const uint8_t *rows, size_t stride,
                                const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP, rows, stride, codes, scales, groups);
}

void gk_matvec_f32_q4_q8_avx512(float *out, size_t count, const uint8_t *rows, size_t stride,
                                const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP / 2, rows, stride, codes, scales, groups);
}

INLINE void f16_rows(float *out, int count, const uint8_t *rows, size_t stride, const float *x,
                     size_t len) {
    __m512 partials[ROWS];
    UNROLL for (int r = 0; r < count; r++) {
        partials[r] = _mm512_setzero_ps();
    }
    for (size_t i = 0; i < len; i += LANES) {
        __m512 x16 = _mm512_loadu_ps(x + i);
        UNROLL for (int r = 0; r < count; r++) {
            __m512 w = load_f16(rows + (size_t)r * stride, i);
            partials[r] = _mm512_add_ps(partials[r], _mm512_mul_ps(w, x16));
        }
    }
    UNROLL for (int r = 0; r < count; r++) {
        out[r] = tree(partials[r]);
    }
}

void gk_matvec_f32_f16_f32_avx512(float *out, size_t count, const uint8_t *rows, size_t stride,
                                  const float *x, size_t len) {
    size_t i = 0;
    for (; i + ROWS <= count; i += ROWS) {
        f16_rows(out + i, ROWS, rows + i * stride, stride, x, len);
    }
    for (; i < count; i++) {
        f16_rows(out + i, 1, rows + i * stride, stride, x, len);
    }
}
