// What the AVX-512 kernels share: loads, the tree of 16 partial sums, exp. One register holds the
// 16 partial sums of a dot product, or four codes of each group of a band.
#ifndef GANGLION_X86_AVX512_H
#define GANGLION_X86_AVX512_H

#include "ganglion.h"
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum { GROUP = 32, LANES = 16 };

// sum + the dot products of four bytes without a sign and four with one, in each lane. GCC 12
// copies the sum of its intrinsic before and after every use; this stays in its register.
INLINE __m512i dot4(__m512i sum, __m512i without_sign, __m512i with_sign) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(without_sign), "vm"(with_sign));
    return sum;
}

// The same with one dword in every lane.
INLINE __m512i dot4_all(__m512i sum, __m512i without_sign, const int32_t *with_sign) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(without_sign), "m"(*with_sign));
    return sum;
}

// What is left of a gk_soon, asked for in steps of `part` lines.
typedef struct {
    const uint8_t *const *place;
    size_t at, bytes, left, part;
} fetch;

INLINE fetch fetch_in(const gk_soon *soon, size_t steps) {
    size_t lines = (soon->bytes + 63) / 64, count = soon->last - soon->first;
    fetch f = {.bytes = soon->bytes, .left = count, .part = (count + steps - 1) / steps};
    if (count > 0) {
        f.place = soon->places + soon->first / lines;
        f.at = soon->first % lines * 64;
    }
    return f;
}

INLINE void fetch_part(fetch *f) {
    for (size_t i = f->left < f->part ? f->left : f->part; i > 0; i--) {
        _mm_prefetch((const char *)*f->place + f->at, _MM_HINT_T0);
        f->at += 64;
        f->left--;
        if (f->at >= f->bytes) {
            f->at = 0;
            f->place++;
        }
    }
}

// 16 values of an f16 array.
INLINE __m512 load_f16(const void *halves, size_t index) {
    const uint16_t *at = (const uint16_t *)halves + index;
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}

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

// Adds 16 partial sums in the canonical order: i + 8, + 4, + 2, + 1.
INLINE float tree(__m512 sums) {
    __m256 t8 = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
    __m128 t4 = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    __m128 t2 = _mm_add_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_add_ss(t2, _mm_movehdup_ps(t2)));
}

// The trees of four registers at once.
INLINE __m128 tree4(const __m512 *sums) {
    // The quarters of two registers: [a0 + a2 | a1 + a3 | b0 + b2 | b1 + b3].
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(sums[0], sums[1], 0x44),
                              _mm512_shuffle_f32x4(sums[0], sums[1], 0xee));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(sums[2], sums[3], 0x44),
                              _mm512_shuffle_f32x4(sums[2], sums[3], 0xee));
    __m512 t4 = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88),
                              _mm512_shuffle_f32x4(ab, cd, 0xdd));
    __m512 t2 = _mm512_add_ps(t4, _mm512_permute_ps(t4, 0xee));
    __m512 t1 = _mm512_add_ps(t2, _mm512_movehdup_ps(t2));
    return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, t1));
}

// Sums of the quarters of four registers: [a | b | c | d].
INLINE __m512i add_quarters(const __m512i *v) {
    __m512i ab = _mm512_add_epi32(_mm512_shuffle_i32x4(v[0], v[1], 0x44),
                                  _mm512_shuffle_i32x4(v[0], v[1], 0xee));
    __m512i cd = _mm512_add_epi32(_mm512_shuffle_i32x4(v[2], v[3], 0x44),
                                  _mm512_shuffle_i32x4(v[2], v[3], 0xee));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88),
                            _mm512_shuffle_i32x4(ab, cd, 0xdd));
}

// The trees of 16 registers at once: lane i is tree(sums[i]).
INLINE __m512 tree16(const __m512 *sums) {
    __m512 t8[8], t4[4], t2[2];
    // Register 4 * (i % 4) + i / 4 lands in lane i, so rows are taken in that order.
#define AT(i) sums[(i) % 4 * 4 + (i) / 4]
    UNROLL for (int i = 0; i < 8; i++) {
        __m512 a = AT(2 * i), b = AT(2 * i + 1);
        t8[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
#undef AT
    UNROLL for (int i = 0; i < 4; i++) {
        __m512 a = t8[2 * i], b = t8[2 * i + 1];
        t4[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    UNROLL for (int i = 0; i < 2; i++) {
        __m512d a = _mm512_castps_pd(t4[2 * i]), b = _mm512_castps_pd(t4[2 * i + 1]);
        t2[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                              _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    return _mm512_add_ps(_mm512_shuffle_ps(t2[0], t2[1], 0x88),
                         _mm512_shuffle_ps(t2[0], t2[1], 0xdd));
}

// The exp of src/kernel/math.rs, step by step.
INLINE __m512 exp16(__m512 x) {
    const __m512 low = _mm512_set1_ps(-87.3f), high = _mm512_set1_ps(88.0f);
    const __m512 round = _mm512_set1_ps(12582912.0f);
    static const uint32_t poly[5] = {0x3efffffe, 0x3e2aaa49, 0x3d2aac79, 0x3c091d10, 0x3ab511e5};
#define BITS(bits) _mm512_castsi512_ps(_mm512_set1_epi32((int)(bits)))
    __mmask16 kept = _mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ); // NaN is kept
    x = _mm512_min_ps(high, x);                               // NaN is the second operand: kept
    __m512 shifted = _mm512_add_ps(_mm512_mul_ps(x, BITS(0x3fb8aa3b)), round);
    __m512 n = _mm512_sub_ps(shifted, round);
    __m512 r = _mm512_sub_ps(x, _mm512_mul_ps(n, BITS(0x3f317200)));
    r = _mm512_sub_ps(r, _mm512_mul_ps(n, BITS(0x35bfbe8e)));
    __m512 p = BITS(poly[4]);
    UNROLL for (int i = 3; i >= 0; i--) {
        p = _mm512_add_ps(_mm512_mul_ps(p, r), BITS(poly[i]));
    }
    __m512 y = _mm512_add_ps(_mm512_mul_ps(_mm512_mul_ps(r, r), p), r);
    y = _mm512_add_ps(y, _mm512_set1_ps(1.0f));
    __m512i scale = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    scale = _mm512_add_epi32(scale, _mm512_set1_epi32(0x3f800000));
    return _mm512_maskz_mul_ps(kept, y, _mm512_castsi512_ps(scale));
#undef BITS
}

#endif
