// Quantised activations, and rows of weights times an activation: AVX2.
//
// The 16 partial sums of a row are two registers. A half band (8 groups, or the 4 of a narrow last
// band) is one register of four codes a lane. Several rows share each load of the activation.
#include "avx2.h"
#include "list.h"

enum { ROWS = 4 };

// `lanes` (8 or 4) lanes of four codes, or of one float; missing lanes are zero.
INLINE __m256i load_codes(const void *at, int lanes) {
    if (lanes == 8) {
        return _mm256_loadu_si256((const __m256i *)at);
    }
    return _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)at));
}

INLINE __m256 load_floats(const float *at, int lanes) {
    return lanes == 8 ? _mm256_loadu_ps(at) : _mm256_zextps128_ps256(_mm_loadu_ps(at));
}

INLINE __m256 load_scales(const void *at, int lanes) {
    __m128i halves = lanes == 8 ? _mm_loadu_si128((const __m128i *)at)
                                : _mm_loadl_epi64((const __m128i *)at);
    return _mm256_cvtph_ps(halves);
}

// partial + sum * (row scale * activation scale), lane by lane.
INLINE __m256 add_scaled(__m256 partial, __m256i sum, const void *row_scales, __m256 x_scales,
                         int lanes) {
    __m256 scale = _mm256_mul_ps(load_scales(row_scales, lanes), x_scales);
    return _mm256_add_ps(partial, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale));
}

// One band of `width` groups of `count` rows, both compile-time constants; it begins at byte
// `start` of each.
INLINE void q8_band(__m256 partials[ROWS][2], int count, int width, const uint8_t *const *rows,
                    size_t start, const int8_t *codes, const float *scales) {
    const __m256i ones = _mm256_set1_epi16(1);
    UNROLL for (int half = 0; 8 * half < width; half++) {
        int lanes = width - 8 * half < 8 ? width - 8 * half : 8;
        __m256i sum[ROWS];
        UNROLL for (int r = 0; r < count; r++) {
            sum[r] = _mm256_setzero_si256();
        }
        UNROLL for (int step = 0; step < 8; step++) {
            int at = step * width * 4 + half * 32;
            __m256i x = load_codes(codes + at, lanes);
            UNROLL for (int r = 0; r < count; r++) {
                // |w| * (x with the sign of w): a pair is at most 2 * 127 * 127 < 2^15.
                __m256i w = load_codes(rows[r] + start + at, lanes);
                __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
                sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(pairs, ones));
            }
        }
        __m256 x_scales = load_floats(scales + 8 * half, lanes);
        UNROLL for (int r = 0; r < count; r++) {
            const uint8_t *row_scales = rows[r] + start + width * GROUP + half * 16;
            partials[r][half] = add_scaled(partials[r][half], sum[r], row_scales, x_scales, lanes);
        }
    }
}

INLINE void q4_band(__m256 partials[ROWS][2], int count, int width, const uint8_t *const *rows,
                    size_t start, const int8_t *codes, const float *scales) {
    const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15);
    const __m256i eights = _mm256_set1_epi8(8);
    UNROLL for (int half = 0; 8 * half < width; half++) {
        int lanes = width - 8 * half < 8 ? width - 8 * half : 8;
        // Nibbles are stored + 8: the activation's own sum times 8 is taken off once a group.
        // Every 16-bit lane stays below 16 * 15 * 127 < 2^15.
        __m256i sum[ROWS], bias = _mm256_setzero_si256();
        UNROLL for (int r = 0; r < count; r++) {
            sum[r] = _mm256_setzero_si256();
        }
        UNROLL for (int step = 0; step < 4; step++) {
            int at = step * width * 4 + half * 32;
            __m256i x0 = load_codes(codes + at, lanes);
            __m256i x1 = load_codes(codes + at + 4 * width * 4, lanes);
            bias = _mm256_add_epi16(bias, _mm256_maddubs_epi16(eights, x0));
            bias = _mm256_add_epi16(bias, _mm256_maddubs_epi16(eights, x1));
            UNROLL for (int r = 0; r < count; r++) {
                __m256i w = load_codes(rows[r] + start + at, lanes);
                __m256i w0 = _mm256_and_si256(w, low);
                __m256i w1 = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
                sum[r] = _mm256_add_epi16(sum[r], _mm256_maddubs_epi16(w0, x0));
                sum[r] = _mm256_add_epi16(sum[r], _mm256_maddubs_epi16(w1, x1));
            }
        }
        __m256 x_scales = load_floats(scales + 8 * half, lanes);
        UNROLL for (int r = 0; r < count; r++) {
            const uint8_t *row_scales = rows[r] + start + width * GROUP / 2 + half * 16;
            __m256i exact = _mm256_madd_epi16(_mm256_sub_epi16(sum[r], bias), ones);
            partials[r][half] = add_scaled(partials[r][half], exact, row_scales, x_scales, lanes);
        }
    }
}

INLINE void four_rows(const uint8_t **rows, const uint8_t *const *list, const uint8_t *block,
                      size_t stride, size_t i) {
    UNROLL for (size_t r = 0; r < ROWS; r++) {
        rows[r] = row_at(list, block, stride, i + r);
    }
}

// Dot products of `count` rows; `code_bytes` a group is 32 for q8 and 16 for q4.
INLINE void quantized_rows(float *out, int count, int code_bytes, const uint8_t *const *rows,
                           const int8_t *codes, const float *scales, size_t groups) {
    __m256 partials[ROWS][2];
    size_t start = 0;
    UNROLL for (int r = 0; r < count; r++) {
        partials[r][0] = partials[r][1] = _mm256_setzero_ps();
    }
#define BAND(width)                                                                                \
    if (code_bytes == GROUP) {                                                                     \
        q8_band(partials, count, width, rows, start, codes, scales);                               \
    } else {                                                                                       \
        q4_band(partials, count, width, rows, start, codes, scales);                               \
    }
    for (; groups >= LANES; groups -= LANES) {
        BAND(LANES)
        start += LANES * (size_t)(code_bytes + 2);
        codes += LANES * GROUP;
        scales += LANES;
    }
    switch (groups) {
    case 4:
        BAND(4)
        break;
    case 8:
        BAND(8)
        break;
    case 12:
        BAND(12)
        break;
    }
#undef BAND
    UNROLL for (int r = 0; r < count; r++) {
        out[r] = tree(partials[r][0], partials[r][1]);
    }
}

// Rows of a list, or, where that is null, of a block.
INLINE void quantized(float *out, size_t count, int code_bytes, const uint8_t *const *list,
                      const uint8_t *block, size_t stride, const int8_t *codes,
                      const float *scales, size_t groups) {
    size_t i = 0;
    for (; i + ROWS <= count; i += ROWS) {
        const uint8_t *rows[ROWS];
        four_rows(rows, list, block, stride, i);
        quantized_rows(out + i, ROWS, code_bytes, rows, codes, scales, groups);
    }
    for (; i < count; i++) {
        const uint8_t *row = row_at(list, block, stride, i);
        quantized_rows(out + i, 1, code_bytes, &row, codes, scales, groups);
    }
}

void gk_matvec_f32_q8_q8_avx2(float *out, size_t count, const uint8_t *rows, size_t stride,
                              const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP, NULL, rows, stride, codes, scales, groups);
}

void gk_matvec_f32_q4_q8_avx2(float *out, size_t count, const uint8_t *rows, size_t stride,
                              const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP / 2, NULL, rows, stride, codes, scales, groups);
}

void gk_rows_f32_q8_q8_avx2(float *out, size_t count, const uint8_t *const *rows,
                            const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP, rows, NULL, 0, codes, scales, groups);
}

void gk_rows_f32_q4_q8_avx2(float *out, size_t count, const uint8_t *const *rows,
                            const int8_t *codes, const float *scales, size_t groups) {
    quantized(out, count, GROUP / 2, rows, NULL, 0, codes, scales, groups);
}

INLINE void f16_rows(float *out, int count, const uint8_t *const *rows, const float *x,
                     size_t len) {
    __m256 partials[ROWS][2];
    UNROLL for (int r = 0; r < count; r++) {
        partials[r][0] = partials[r][1] = _mm256_setzero_ps();
    }
    for (size_t i = 0; i < len; i += LANES) {
        UNROLL for (size_t half = 0; half < 2; half++) {
            __m256 x8 = _mm256_loadu_ps(x + i + 8 * half);
            UNROLL for (int r = 0; r < count; r++) {
                __m256 w = load_f16(rows[r], i + 8 * half);
                partials[r][half] = _mm256_add_ps(partials[r][half], _mm256_mul_ps(w, x8));
            }
        }
    }
    UNROLL for (int r = 0; r < count; r++) {
        out[r] = tree(partials[r][0], partials[r][1]);
    }
}

INLINE void f16(float *out, size_t count, const uint8_t *const *list, const uint8_t *block,
                size_t stride, const float *x, size_t len) {
    size_t i = 0;
    for (; i + ROWS <= count; i += ROWS) {
        const uint8_t *rows[ROWS];
        four_rows(rows, list, block, stride, i);
        f16_rows(out + i, ROWS, rows, x, len);
    }
    for (; i < count; i++) {
        const uint8_t *row = row_at(list, block, stride, i);
        f16_rows(out + i, 1, &row, x, len);
    }
}

void gk_matvec_f32_f16_f32_avx2(float *out, size_t count, const uint8_t *rows, size_t stride,
                                const float *x, size_t len) {
    f16(out, count, NULL, rows, stride, x, len);
}

void gk_rows_f32_f16_f32_avx2(float *out, size_t count, const uint8_t *const *rows,
                              const float *x, size_t len) {
    f16(out, count, rows, NULL, 0, x, len);
}

// Eight codes: the integers nearest to x * inverse, ties to even.
INLINE __m256i codes8(const float *x, __m256 inverse) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
}

// Writes the 32 codes of a group as eight lanes of four, `step_bytes` apart.
INLINE void store_codes(int8_t *codes, size_t step_bytes, const float *x, float inverse) {
    typedef int32_t lane __attribute__((aligned(1), may_alias));
    // The packs work within 128 bits, so the lanes come out as steps 0 2 4 6 | 1 3 5 7.
    static const size_t steps[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    __m256 factor = _mm256_set1_ps(inverse);
    __m256i first = _mm256_packs_epi32(codes8(x, factor), codes8(x + 8, factor));
    __m256i second = _mm256_packs_epi32(codes8(x + 16, factor), codes8(x + 24, factor));
    int32_t lanes[8] __attribute__((aligned(32)));
    _mm256_store_si256((__m256i *)lanes, _mm256_packs_epi16(first, second));
    UNROLL for (int i = 0; i < 8; i++) {
        *(lane *)(codes + steps[i] * step_bytes) = lanes[i];
    }
}

// The bits of the largest magnitude of a group. Magnitudes order like their bits, NaN on top.
INLINE uint32_t amax_bits(const float *x) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i max = _mm256_setzero_si256();
    UNROLL for (int i = 0; i < GROUP; i += 8) {
        __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        max = _mm256_max_epi32(max, _mm256_and_si256(bits, magnitude));
    }
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

bool gk_quantize_q8_f32_avx2(int8_t *codes, float *scales, size_t groups, const float *x,
                             size_t len) {
    const uint32_t infinity = 0x7f800000, amax_min = 0x0d800000; // 2^-100
    bool finite = true;
    for (size_t group = 0; group < groups; group++) {
        float tail[GROUP] = {0};
        const float *from = x + group * GROUP;
        if (len < (group + 1) * GROUP) {
            from = tail;
            for (size_t i = group * GROUP; i < len; i++) {
                tail[i - group * GROUP] = x[i];
            }
        }
        size_t band = group / LANES * LANES;
        size_t width = groups - band < LANES ? groups - band : LANES;
        uint32_t bits = amax_bits(from);
        bool whole = bits >= amax_min && bits < infinity;
        float amax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)bits)));
        finite &= bits < infinity;
        scales[group] = whole ? amax / 127.0f : 0.0f;
        // A group that counts as zero may hold NaN, whose product with 0 is not 0.
        from = whole ? from : (const float[GROUP]){0};
        store_codes(codes + band * GROUP + (group - band) * 4, width * 4, from,
                    whole ? 127.0f / amax : 0.0f);
    }
    return finite;
}
