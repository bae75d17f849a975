// Down columns in fixed point: AVX2. All sums are integers, so any order is right.
#include "down256.h"

INLINE __m256i pair(int16_t a, int16_t b) {
    return _mm256_set1_epi32((int)((uint32_t)(uint16_t)b << 16 | (uint16_t)a));
}

// sums[j] += a * wa[j] + b * wb[j]; `factors` holds (a, b) in every 32 bits.
INLINE void add_pair(int32_t *sums, const uint8_t *const *columns, __m256i factors, size_t groups,
                     int code_bytes) {
    for (size_t group = 0; group < groups; group++) {
        __m256i w[4], *at = (__m256i *)(sums + group * GROUP);
        weight_pairs(w, columns, group, groups, code_bytes);
        UNROLL for (int i = 0; i < 4; i++) {
            __m256i sum = _mm256_loadu_si256(at + i);
            _mm256_storeu_si256(at + i, _mm256_add_epi32(sum, _mm256_madd_epi16(w[i], factors)));
        }
    }
}

INLINE void down(int32_t *low, int32_t *high, const uint8_t *const *columns,
                 const int16_t (*factors)[4], size_t pairs, size_t groups, int code_bytes) {
    for (size_t p = 0; p < pairs; p++) {
        const int16_t *f = factors[p];
        add_pair(low, columns + 2 * p, pair(f[0], f[1]), groups, code_bytes);
        if (high != NULL) {
            add_pair(high, columns + 2 * p, pair(f[2], f[3]), groups, code_bytes);
        }
    }
}

void gk_down_i32_q8_i16_avx2(int32_t *low, int32_t *high, const uint8_t *const *columns,
                             const int16_t (*factors)[4], size_t pairs, size_t groups) {
    down(low, high, columns, factors, pairs, groups, GROUP);
}

void gk_down_i32_q4_i16_avx2(int32_t *low, int32_t *high, const uint8_t *const *columns,
                             const int16_t (*factors)[4], size_t pairs, size_t groups) {
    down(low, high, columns, factors, pairs, groups, GROUP / 2);
}

bool gk_down_i64_f16_f32_avx2(int64_t *sums, const uint8_t *column, float a, size_t len) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256 limit = _mm256_set1_ps(MULTIPLIER_LIMIT);
    __m256 bad = _mm256_setzero_ps();
    for (size_t i = 0; i < len; i += 8) {
        __m256 units = _mm256_mul_ps(_mm256_set1_ps(a), load_f16(column, i));
        // Not less: NaN is bad too.
        __m256 over = _mm256_cmp_ps(_mm256_and_ps(units, magnitude), limit, _CMP_NLT_UQ);
        bad = _mm256_or_ps(bad, over);
        __m256i m = _mm256_cvtps_epi32(units);
        __m256i *at = (__m256i *)(sums + i);
        __m256i low = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(m));
        __m256i high = _mm256_cvtepi32_epi64(_mm256_extracti128_si256(m, 1));
        _mm256_storeu_si256(at, _mm256_add_epi64(_mm256_loadu_si256(at), low));
        _mm256_storeu_si256(at + 1, _mm256_add_epi64(_mm256_loadu_si256(at + 1), high));
    }
    return _mm256_movemask_ps(bad) == 0;
}
