// Down columns in fixed point: AVX-512 VNNI. All sums are integers, so any order is right.
//
// Up to four pairs of columns go into the sums in one pass, so that sums are loaded and stored once
// for eight neurons.
#include "avx512.h"
#include "down512.h"

enum { PAIRS = 4 };

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
            __m512i w[2];
            weight_pairs(w, column[2 * p], column[2 * p + 1], group, groups, q4);
            low0 = _mm512_dpwssd_epi32(low0, w[0], low_factors[p]);
            low1 = _mm512_dpwssd_epi32(low1, w[1], low_factors[p]);
            if (split) {
                high0 = _mm512_dpwssd_epi32(high0, w[0], high_factors[p]);
                high1 = _mm512_dpwssd_epi32(high1, w[1], high_factors[p]);
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
