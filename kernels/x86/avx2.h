// What the AVX2 kernels share: loads, the tree of the 16 partial sums, exp.
#ifndef GANGLION_X86_AVX2_H
#define GANGLION_X86_AVX2_H

#include "ganglion.h"
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum { GROUP = 32, LANES = 16 };

// Eight values of an f16 array.
INLINE __m256 load_f16(const void *halves, size_t index) {
    const uint16_t *at = (const uint16_t *)halves + index;
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}

// Adds 16 partial sums, lanes 0..7 and 8..15, in the canonical order: i + 8, + 4, + 2, + 1.
INLINE float tree(__m256 low, __m256 high) {
    __m256 t8 = _mm256_add_ps(low, high);
    __m128 t4 = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    __m128 t2 = _mm_add_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_add_ss(t2, _mm_movehdup_ps(t2)));
}

// The exp of src/kernel/math.rs, step by step.
INLINE __m256 exp8(__m256 x) {
    const __m256 low = _mm256_set1_ps(-87.3f), high = _mm256_set1_ps(88.0f);
    const __m256 round = _mm256_set1_ps(12582912.0f);
    const __m256 log2e = _mm256_castsi256_ps(_mm256_set1_epi32(0x3fb8aa3b));
    const __m256 ln2_high = _mm256_castsi256_ps(_mm256_set1_epi32(0x3f317200));
    const __m256 ln2_low = _mm256_castsi256_ps(_mm256_set1_epi32(0x35bfbe8e));
    static const uint32_t poly[5] = {0x3efffffe, 0x3e2aaa49, 0x3d2aac79, 0x3c091d10, 0x3ab511e5};
#define POLY(i) _mm256_castsi256_ps(_mm256_set1_epi32((int)poly[i]))
    __m256 kept = _mm256_cmp_ps(x, low, _CMP_NLT_UQ); // NaN is kept
    x = _mm256_min_ps(high, x);                       // NaN is the second operand: kept
    __m256 shifted = _mm256_add_ps(_mm256_mul_ps(x, log2e), round);
    __m256 n = _mm256_sub_ps(shifted, round);
    __m256 r = _mm256_sub_ps(x, _mm256_mul_ps(n, ln2_high));
    r = _mm256_sub_ps(r, _mm256_mul_ps(n, ln2_low));
    __m256 p = _mm256_add_ps(_mm256_mul_ps(POLY(4), r), POLY(3));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), POLY(2));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), POLY(1));
    p = _mm256_add_ps(_mm256_mul_ps(p, r), POLY(0));
    __m256 y = _mm256_add_ps(_mm256_mul_ps(_mm256_mul_ps(r, r), p), r);
    y = _mm256_add_ps(y, _mm256_set1_ps(1.0f));
    __m256i scale = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    scale = _mm256_add_epi32(scale, _mm256_set1_epi32(0x3f800000));
    return _mm256_and_ps(_mm256_mul_ps(y, _mm256_castsi256_ps(scale)), kept);
#undef POLY
}

#endif
