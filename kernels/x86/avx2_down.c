// Down columns in fixed point: AVX2. All sums are integers, so any order is right.
#include "avx2.h"
#include "products.h"

// sums[0..16] += a * wa + b * wb; `factors` holds (a, b) in every 32 bits.
INLINE void add16(int32_t *sums, __m128i wa, __m128i wb, __m256i factors) {
    __m256i low = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(wa, wb));
    __m256i high = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(wa, wb));
    __m256i *at = (__m256i *)sums;
    __m256i first = _mm256_add_epi32(_mm256_loadu_si256(at), _mm256_madd_epi16(low, factors));
    __m256i second = _mm256_add_epi32(_mm256_loadu_si256(at + 1), _mm256_madd_epi16(high, factors));
    _mm256_storeu_si256(at, first);
    _mm256_storeu_si256(at + 1, second);
}

INLINE __m256i pair(int16_t a, int16_t b) {
    return _mm256_set1_epi32((int)((uint32_t)(uint16_t)b << 16 | (uint16_t)a));
}

INLINE __m128i load16(const uint8_t *at) {
    return _mm_loadu_si128((const __m128i *)at);
}

INLINE void q8_pair(int32_t *sums, const uint8_t *const *columns, __m256i factors, size_t groups) {
    for (size_t i = 0; i < groups * GROUP; i += 16) {
        add16(sums + i, load16(columns[0] + i), load16(columns[1] + i), factors);
    }
}

void gk_down_i32_q8_i16_avx2(int32_t *low, int32_t *high, const uint8_t *const *columns,
                             const int16_t (*factors)[4], size_t pairs, size_t groups) {
    for (size_t p = 0; p < pairs; p++) {
        q8_pair(low, columns + 2 * p, pair(factors[p][0], factors[p][1]), groups);
        if (high != NULL) {
            q8_pair(high, columns + 2 * p, pair(factors[p][2], factors[p][3]), groups);
        }
    }
}

// The 32 integer weights of a q4 group: nibbles look up their product with the sub-scale.
INLINE void weights32(__m128i *low, __m128i *high, const uint8_t *codes, uint8_t sub_scale) {
    const __m128i mask = _mm_set1_epi8(15);
    __m128i table = _mm_load_si128((const __m128i *)products[sub_scale & 31]);
    __m128i nibbles = load16(codes);
    *low = _mm_shuffle_epi8(table, _mm_and_si128(nibbles, mask));
    *high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(nibbles, 4), mask));
}

INLINE void q4_pair(int32_t *sums, const uint8_t *const *columns, __m256i factors, size_t groups) {
    const uint8_t *a = columns[0], *b = columns[1];
    for (size_t group = 0; group < groups; group++) {
        __m128i low_a, high_a, low_b, high_b;
        weights32(&low_a, &high_a, a + group * GROUP / 2, a[groups * GROUP / 2 + group]);
        weights32(&low_b, &high_b, b + group * GROUP / 2, b[groups * GROUP / 2 + group]);
        add16(sums + group * GROUP, low_a, low_b, factors);
        add16(sums + group * GROUP + 16, high_a, high_b, factors);
    }
}

void gk_down_i32_q4_i16_avx2(int32_t *low, int32_t *high, const uint8_t *const *columns,
                             const int16_t (*factors)[4], size_t pairs, size_t groups) {
    for (size_t p = 0; p < pairs; p++) {
        q4_pair(low, columns + 2 * p, pair(factors[p][0], factors[p][1]), groups);
        if (high != NULL) {
            q4_pair(high, columns + 2 * p, pair(factors[p][2], factors[p][3]), groups);
        }
    }
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
