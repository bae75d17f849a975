// Down columns in fixed point: AVX-512 VNNI. All sums are integers, so any order is right.
//
// Up to four pairs of columns go into the sums in one pass, so that sums are loaded and stored once
// for eight neurons.
#include "avx512.h"
#include "products.h"

enum { PAIRS = 4 };

INLINE __m128i load16(const uint8_t *at) {
    return _mm_loadu_si128((const __m128i *)at);
}

// 16 lanes of (a, b), 16 bits each.
INLINE __m512i interleave(__m128i a, __m128i b) {
    __m256i low = _mm256_castsi128_si256(_mm_unpacklo_epi8(a, b));
    return _mm512_cvtepi8_epi16(_mm256_inserti128_si256(low, _mm_unpackhi_epi8(a, b), 1));
}

// The 32 integer weights of a q4 group, low nibbles first.
INLINE __m256i weights32(const uint8_t *column, size_t group, size_t groups) {
    uint8_t sub_scale = column[groups * GROUP / 2 + group];
    __m256i table = _mm256_broadcastsi128_si256(
        _mm_load_si128((const __m128i *)(const void *)products[sub_scale & 31]));
    __m128i nibbles = load16(column + group * GROUP / 2);
    __m256i both =
        _mm256_inserti128_si256(_mm256_castsi128_si256(nibbles), _mm_srli_epi16(nibbles, 4), 1);
    return _mm256_shuffle_epi8(table, _mm256_and_si256(both, _mm256_set1_epi8(15)));
}

INLINE void columns(int32_t *low, int32_t *high, const uint8_t *const *column,
                    const int16_t (*factors)[4], int pairs, size_t groups, bool q4, bool split) {
    __m512i low_factors[PAIRS], high_factors[PAIRS];
    UNROLL for (int p = 0; p < pairs; p++) {
        const int32_t *both = (const int32_t *)(const void *)factors[p];
        low_factors[p] = _mm512_set1_epi32(both[0]);
        high_factors[p] = _mm512_set1_epi32(both[1]);
    }
    for (size_t group = 0; group < groups; group++) {
        void *low_at = low + group * GROUP, *high_at = high + group * GROUP;
        __m512i low0 = _mm512_loadu_si512(low_at), low1 = _mm512_loadu_si512((char *)low_at + 64);
        __m512i high0, high1;
        if (split) {
            high0 = _mm512_loadu_si512(high_at);
            high1 = _mm512_loadu_si512((char *)high_at + 64);
        }
        UNROLL for (int p = 0; p < pairs; p++) {
            __m128i a0, a1, b0, b1;
            if (q4) {
                __m256i a = weights32(column[2 * p], group, groups);
                __m256i b = weights32(column[2 * p + 1], group, groups);
                a0 = _mm256_castsi256_si128(a), a1 = _mm256_extracti128_si256(a, 1);
                b0 = _mm256_castsi256_si128(b), b1 = _mm256_extracti128_si256(b, 1);
            } else {
                const uint8_t *a = column[2 * p] + group * GROUP;
                const uint8_t *b = column[2 * p + 1] + group * GROUP;
                a0 = load16(a), a1 = load16(a + 16), b0 = load16(b), b1 = load16(b + 16);
            }
            __m512i w0 = interleave(a0, b0), w1 = interleave(a1, b1);
            low0 = _mm512_dpwssd_epi32(low0, w0, low_factors[p]);
            low1 = _mm512_dpwssd_epi32(low1, w1, low_factors[p]);
            if (split) {
                high0 = _mm512_dpwssd_epi32(high0, w0, high_factors[p]);
                high1 = _mm512_dpwssd_epi32(high1, w1, high_factors[p]);
            }
        }
        _mm512_storeu_si512(low_at, low0);
        _mm512_storeu_si512((char *)low_at + 64, low1);
        if (split) {
            _mm512_storeu_si512(high_at, high0);
            _mm512_storeu_si512((char *)high_at + 64, high1);
        }
    }
}

INLINE void down(int32_t *low, int32_t *high, const uint8_t *const *column,
                 const int16_t (*factors)[4], size_t pairs, size_t groups, bool q4) {
    if (pairs == PAIRS && high != NULL) {
        columns(low, high, column, factors, PAIRS, groups, q4, true);
    } else if (pairs == PAIRS) {
        columns(low, low, column, factors, PAIRS, groups, q4, false);
    } else {
        for (size_t p = 0; p < pairs; p++) {
            if (high != NULL) {
                columns(low, high, column + 2 * p, factors + p, 1, groups, q4, true);
            } else {
                columns(low, low, column + 2 * p, factors + p, 1, groups, q4, false);
            }
        }
    }
}

void gk_down_i32_q8_i16_avx512(int32_t *low, int32_t *high, const uint8_t *const *columns,
                               const int16_t (*factors)[4], size_t pairs, size_t groups) {
    down(low, high, columns, factors, pairs, groups, false);
}

void gk_down_i32_q4_i16_avx512(int32_t *low, int32_t *high, const uint8_t *const *columns,
                               const int16_t (*factors)[4], size_t pairs, size_t groups) {
    down(low, high, columns, factors, pairs, groups, true);
}
