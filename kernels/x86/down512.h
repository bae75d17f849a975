// What the AVX-512 kernels of down columns share.
//
// A multiplier, or a factor, is cut into signed bytes, f = d0 + d1 * 2^8 + d2 * 2^16 + d3 * 2^24,
// and vpdpbusd multiplies the digits of four columns with their four weights of an output at once.
// A weight is a byte without a sign there, with an offset that is taken off again.
#ifndef GANGLION_X86_DOWN512_H
#define GANGLION_X86_DOWN512_H

#include "avx512.h"

enum { DIGITS = 4 };

// Multipliers of the first `count` of 16 columns, zero behind them; gives the lanes that are not
// below the limit. Not less: NaN is bad too.
INLINE __mmask16 multipliers16(__m512i *m, const float *x, __m512 scales, float per_unit,
                               size_t count) {
    __mmask16 mask = count < LANES ? (__mmask16)((1u << count) - 1) : (__mmask16)0xffff;
    __m512 product = _mm512_maskz_mul_ps(mask, _mm512_maskz_loadu_ps(mask, x), scales);
    __m512 units = _mm512_mul_ps(product, _mm512_set1_ps(per_unit));
    *m = _mm512_cvtps_epi32(units);
    return _mm512_cmp_ps_mask(_mm512_abs_ps(units), _mm512_set1_ps(MULTIPLIER_LIMIT), _CMP_NLT_UQ);
}

// The four signed bytes of each lane.
INLINE __m512i digits(__m512i f) {
    const __m512i carry = _mm512_set1_epi32(0x808080);
    return _mm512_xor_si512(_mm512_add_epi32(f, carry), carry);
}

// Bytes 0, 4, 8, 12, 1, 5, ... of each quarter.
INLINE __m512i byte_columns(__m512i v) {
    const __m512i order = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    return _mm512_shuffle_epi8(v, order);
}

// 16 bytes of four columns, byte i of each in lane i.
INLINE __m512i transpose_quad(__m128i a, __m128i b, __m128i c, __m128i d) {
    const __m512i dwords = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m256i ab = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    __m256i cd = _mm256_inserti128_si256(_mm256_castsi128_si256(c), d, 1);
    __m512i all = _mm512_inserti64x4(_mm512_castsi256_si512(ab), cd, 1);
    return byte_columns(_mm512_permutexvar_epi32(dwords, all));
}

INLINE __m128i load16(const uint8_t *at) {
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}

// sums[16] += low + high * 2^16 - bias.
INLINE void add_wide(int64_t *sums, __m512i low, __m512i high, __m512i bias) {
    UNROLL for (int half = 0; half < 2; half++) {
        __m256i l = half == 0 ? _mm512_castsi512_si256(low) : _mm512_extracti64x4_epi64(low, 1);
        __m256i h = half == 0 ? _mm512_castsi512_si256(high) : _mm512_extracti64x4_epi64(high, 1);
        __m512i more = _mm512_slli_epi64(_mm512_cvtepi32_epi64(h), 16);
        more = _mm512_add_epi64(more, _mm512_sub_epi64(_mm512_cvtepi32_epi64(l), bias));
        int64_t *at = sums + 8 * half;
        _mm512_storeu_si512(at, _mm512_add_epi64(_mm512_loadu_si512(at), more));
    }
}

#endif
