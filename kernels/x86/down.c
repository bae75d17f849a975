// Down columns in fixed point: AVX2. All sums are integers, so any order is right.
#include "common.h"

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

void gk_down_i32_q8_i16_avx2(int32_t *sums, const uint8_t *column_a, const uint8_t *column_b,
                             int16_t a, int16_t b, size_t groups) {
    __m256i factors = pair(a, b);
    for (size_t i = 0; i < groups * GROUP; i += GROUP) {
        add16(sums + i, load16(column_a + i), load16(column_b + i), factors);
        add16(sums + i + 16, load16(column_a + i + 16), load16(column_b + i + 16), factors);
    }
}

// Row s & 31 holds s * (nibble - 8) for the 16 nibbles; s is in -15..=15.
#define ROW(s)                                                                                     \
    {-8 * (s), -7 * (s), -6 * (s), -5 * (s), -4 * (s), -3 * (s), -2 * (s), -1 * (s),               \
     0,        1 * (s),  2 * (s),  3 * (s),  4 * (s),  5 * (s),  6 * (s),  7 * (s)}
static const int8_t products[32][16] __attribute__((aligned(16))) = {
    ROW(0),   ROW(1),   ROW(2),   ROW(3),   ROW(4),   ROW(5),   ROW(6),   ROW(7),
    ROW(8),   ROW(9),   ROW(10),  ROW(11),  ROW(12),  ROW(13),  ROW(14),  ROW(15),
    ROW(0),   ROW(-15), ROW(-14), ROW(-13), ROW(-12), ROW(-11), ROW(-10), ROW(-9),
    ROW(-8),  ROW(-7),  ROW(-6),  ROW(-5),  ROW(-4),  ROW(-3),  ROW(-2),  ROW(-1),
};

// The 32 integer weights of a q4 group: nibbles look up their product with the sub-scale.
INLINE void weights32(__m128i *low, __m128i *high, const uint8_t *codes, uint8_t sub_scale) {
    const __m128i mask = _mm_set1_epi8(15);
    __m128i table = _mm_load_si128((const __m128i *)products[sub_scale & 31]);
    __m128i nibbles = load16(codes);
    *low = _mm_shuffle_epi8(table, _mm_and_si128(nibbles, mask));
    *high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(nibbles, 4), mask));
}

void gk_down_i32_q4_i16_avx2(int32_t *sums, const uint8_t *column_a, const uint8_t *column_b,
                             int16_t a, int16_t b, size_t groups) {
    __m256i factors = pair(a, b);
    const uint8_t *scales_a = column_a + groups * GROUP / 2;
    const uint8_t *scales_b = column_b + groups * GROUP / 2;
    for (size_t group = 0; group < groups; group++) {
        __m128i low_a, high_a, low_b, high_b;
        weights32(&low_a, &high_a, column_a + group * GROUP / 2, scales_a[group]);
        weights32(&low_b, &high_b, column_b + group * GROUP / 2, scales_b[group]);
        add16(sums + group * GROUP, low_a, low_b, factors);
        add16(sums + group * GROUP + 16, high_a, high_b, factors);
    }
}

bool gk_down_i64_f16_f32_avx2(int64_t *sums, const uint8_t *column, float a, size_t len) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256 limit = _mm256_set1_ps(268435456.0f); // 2^28
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
