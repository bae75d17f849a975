// Rows of weights times an activation: AVX-512 VNNI.
//
// vpdpbusd multiplies bytes without a sign by bytes with one, so weights are stored or made
// w + offset, and offset times the sum of the group's codes is taken off: integers, so exact.
#include "avx512.h"

enum { ROWS = 4, AHEAD_BYTES = 8192 };

// One band of `count` rows, at byte `at` of each; `width` is 16, or a number not known at compile
// time.
INLINE void band(__m512 *partials, int count, int code_bytes, const uint8_t *const *rows, size_t at,
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
        const uint8_t *row = rows[r] + at;
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

// Asks for the bytes at..at + bytes of each of the rows that come next.
INLINE void fetch_ahead(const uint8_t *const *next, int count, size_t at, size_t bytes) {
    UNROLL for (int r = 0; r < count; r++) {
        for (size_t line = 0; line < bytes; line += 64) {
            _mm_prefetch((const char *)next[r] + at + line, _MM_HINT_T0);
        }
    }
}

// Dot products of `count` rows; `code_bytes` a group is 32 for q8 and 16 for q4.
INLINE void quantized_rows(float *out, int count, int code_bytes, const uint8_t *const *rows,
                           const uint8_t *const *next, const int8_t *codes, const float *scales,
                           size_t groups) {
    const size_t group_bytes = (size_t)code_bytes + 2;
    __m512 partials[ROWS];
    UNROLL for (int r = 0; r < count; r++) {
        partials[r] = _mm512_setzero_ps();
    }
    size_t group = 0;
    for (; group + LANES <= groups; group += LANES) {
        size_t at = group * group_bytes;
        fetch_ahead(next, count, at, LANES * group_bytes);
        band(partials, count, code_bytes, rows, at, codes + group * GROUP, scales + group, LANES);
    }
    if (group < groups) {
        size_t at = group * group_bytes, left = groups - group;
        fetch_ahead(next, count, at, left * group_bytes);
        band(partials, count, code_bytes, rows, at, codes + group * GROUP, scales + group, left);
    }
    UNROLL for (int r = 0; r < count; r++) {
        out[r] = tree(partials[r]);
    }
}

// Row `i`, of a list or of a block.
INLINE const uint8_t *row_at(const uint8_t *const *list, const uint8_t *block, size_t stride,
                             size_t i) {
    return list != NULL ? list[i] : block + i * stride;
}

// How many rows of `bytes` bytes lie between those that are computed and those that are asked for.
INLINE size_t rows_ahead(size_t bytes) {
    return ROWS * (1 + AHEAD_BYTES / (ROWS * bytes + 1));
}

// Four rows, and those that lie ahead; ahead of the last rows there is nothing to ask for.
INLINE void four_rows(const uint8_t **rows, const uint8_t **next, const uint8_t *const *list,
                      const uint8_t *block, size_t stride, size_t i, size_t ahead, size_t count) {
    UNROLL for (size_t r = 0; r < ROWS; r++) {
        size_t behind = i + ahead + r;
        rows[r] = row_at(list, block, stride, i + r);
        next[r] = behind < count ? row_at(list, block, stride, behind) : rows[r];
    }
}

// Rows of a list, or, where that is null, of a block.
INLINE void quantized(float *out, size_t count, int code_bytes, const uint8_t *const *list,
                      const uint8_t *block, size_t stride, const int8_t *codes,
                      const float *scales, size_t groups) {
    size_t i = 0, ahead = rows_ahead(groups * ((size_t)code_bytes + 2));
    for (; i + ROWS <= count; i += ROWS) {
        const uint8_t *rows[ROWS], *next[ROWS];
        four_rows(rows, next, list, block, stride, i, ahead, count);
        quantized_rows(out + i, ROWS, code_bytes, rows, next, codes, scales, groups);
    }
    for (; i < count; i++) {
        const uint8_t *row = row_at(list, block, stride, i);
        const uint8_t *next = i + 1 < count ? row_at(list, block, stride, i + 1) : row;
        quantized_rows(out + i, 1, code_bytes, &row, &next, codes, scales, groups);
    }
}

void gk_matvec_f32_q8_q8_avx512(float *out, size_t count, const uint8_t *rows, size_t stride,
                                const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP, NULL, rows, stride, codes, scales, groups);
}

void gk_matvec_f32_q4_q8_avx512(float *out, size_t count, const uint8_t *rows, size_t stride,
                                const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP / 2, NULL, rows, stride, codes, scales, groups);
}

void gk_rows_f32_q8_q8_avx512(float *out, size_t count, const uint8_t *const *rows,
                              const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP, rows, NULL, 0, codes, scales, groups);
}

void gk_rows_f32_q4_q8_avx512(float *out, size_t count, const uint8_t *const *rows,
                              const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP / 2, rows, NULL, 0, codes, scales, groups);
}

INLINE void f16_rows(float *out, int count, const uint8_t *const *rows,
                     const uint8_t *const *next, const float *x, size_t len) {
    __m512 partials[ROWS];
    UNROLL for (int r = 0; r < count; r++) {
        partials[r] = _mm512_setzero_ps();
    }
    for (size_t i = 0; i < len; i += LANES) {
        __m512 x16 = _mm512_loadu_ps(x + i);
        if (i % (2 * LANES) == 0) {
            fetch_ahead(next, count, 2 * i, 64);
        }
        UNROLL for (int r = 0; r < count; r++) {
            partials[r] = _mm512_add_ps(partials[r], _mm512_mul_ps(load_f16(rows[r], i), x16));
        }
    }
    UNROLL for (int r = 0; r < count; r++) {
        out[r] = tree(partials[r]);
    }
}

INLINE void f16(float *out, size_t count, const uint8_t *const *list, const uint8_t *block,
                size_t stride, const float *x, size_t len) {
    size_t i = 0, ahead = rows_ahead(2 * len);
    for (; i + ROWS <= count; i += ROWS) {
        const uint8_t *rows[ROWS], *next[ROWS];
        four_rows(rows, next, list, block, stride, i, ahead, count);
        f16_rows(out + i, ROWS, rows, next, x, len);
    }
    for (; i < count; i++) {
        const uint8_t *row = row_at(list, block, stride, i);
        f16_rows(out + i, 1, &row, &row, x, len);
    }
}

void gk_matvec_f32_f16_f32_avx512(float *out, size_t count, const uint8_t *rows, size_t stride,
                                  const float *x, size_t len) {
    f16(out, count, NULL, rows, stride, x, len);
}

void gk_rows_f32_f16_f32_avx512(float *out, size_t count, const uint8_t *const *rows,
                                const float *x, size_t len) {
    f16(out, count, rows, NULL, 0, x, len);
}
