// Down columns of many neurons for many tokens, in fixed point: AVX2. Three tokens times 32 outputs
// are 12 registers of sums.
#include "down256.h"
#include "batch.h"

enum { VECTORS = GROUP / 8 };

// Eight values from x[i] on; those from `count` on are zero.
INLINE __m256 load_some(const float *x, size_t i, size_t count) {
    if (i + 8 <= count) {
        return _mm256_loadu_ps(x + i);
    }
    float some[8] = {0};
    for (size_t j = i; j < count; j++) {
        some[j - i] = x[j];
    }
    return _mm256_loadu_ps(some);
}

// The low 16 bits of each of eight integers.
INLINE __m128i narrow(__m256i v) {
    __m256i cut = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
    return _mm_packus_epi32(_mm256_castsi256_si128(cut), _mm256_extracti128_si256(cut, 1));
}

size_t gk_multipliers_i16_f32_avx2(void *factors, gk_about *about, const float *x,
                                    const float *scales, float per_unit, size_t count) {
    int16_t *low = factors, *high = low + NEURONS;
    const __m256 limit = _mm256_set1_ps(MULTIPLIER_LIMIT);
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256i any = _mm256_setzero_si256();
    for (size_t i = 0; i < NEURONS; i += 8) {
        __m256 product = _mm256_mul_ps(load_some(x, i, count), load_some(scales, i, count));
        __m256 units = _mm256_mul_ps(product, _mm256_set1_ps(per_unit));
        // Not less: NaN is bad too.
        __m256 over = _mm256_cmp_ps(_mm256_andnot_ps(sign, units), limit, _CMP_NLT_UQ);
        int bad = _mm256_movemask_ps(over);
        if (bad != 0) {
            return i + (size_t)__builtin_ctz((unsigned)bad);
        }
        __m256i m = _mm256_cvtps_epi32(units);
        __m256i h = _mm256_srai_epi32(_mm256_add_epi32(m, _mm256_set1_epi32(1 << 15)), 16);
        any = _mm256_or_si256(any, h);
        // The low 16 bits of m are l in two's complement.
        _mm_storeu_si128((__m128i *)(low + i), narrow(m));
        _mm_storeu_si128((__m128i *)(high + i), narrow(h));
    }
    about->wide = !_mm256_testz_si256(any, any);
    return count;
}

// tile[pair][vector]: (a, b) of eight outputs.
INLINE void widen(int16_t *tile, const uint8_t *const *columns, size_t pairs, size_t group,
                  size_t groups, int code_bytes) {
    __m256i *to = (__m256i *)(void *)tile;
    for (size_t p = 0; p < pairs; p++) {
        weight_pairs(to + p * VECTORS, columns + 2 * p, group, groups, code_bytes);
    }
}

// sums[8] += values << shift.
INLINE void add_wide(int64_t *sums, __m256i values, int shift) {
    __m256i *at = (__m256i *)sums;
    __m256i low = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(values));
    __m256i high = _mm256_cvtepi32_epi64(_mm256_extracti128_si256(values, 1));
    low = _mm256_add_epi64(_mm256_loadu_si256(at), _mm256_slli_epi64(low, shift));
    high = _mm256_add_epi64(_mm256_loadu_si256(at + 1), _mm256_slli_epi64(high, shift));
    _mm256_storeu_si256(at, low);
    _mm256_storeu_si256(at + 1, high);
}

INLINE void multiply(int64_t *sums, size_t sums_stride, const uint32_t *at, const int16_t *tile,
                     size_t pairs, const int16_t *factors, size_t tokens, int shift) {
    const __m256i *w = (const __m256i *)(const void *)tile;
    const int32_t *both = (const int32_t *)(const void *)factors;
    __m256i acc[TOKENS][VECTORS];
    UNROLL for (int t = 0; t < TOKENS; t++) {
        UNROLL for (int v = 0; v < VECTORS; v++) {
            acc[t][v] = _mm256_setzero_si256();
        }
    }
    for (size_t p = 0; p < pairs; p++, w += VECTORS) {
        UNROLL for (int t = 0; t < TOKENS; t++) {
            __m256i factor = _mm256_set1_epi32(both[t * FACTORS / 2 + (int)p]);
            UNROLL for (int v = 0; v < VECTORS; v++) {
                __m256i product = _mm256_madd_epi16(_mm256_load_si256(w + v), factor);
                acc[t][v] = _mm256_add_epi32(acc[t][v], product);
            }
        }
    }
    UNROLL for (size_t t = 0; t < TOKENS; t++) {
        if (t < tokens) {
            UNROLL for (int v = 0; v < VECTORS; v++) {
                add_wide(sums + at[t] * sums_stride + 8 * v, acc[t][v], shift);
            }
        }
    }
}

void gk_batch_i64_q8_i16_avx2(int64_t *sums, size_t sums_stride, const uint32_t *at,
                              void *scratch, const uint8_t *const *columns, size_t neurons,
                              const void *factors, const gk_about *about, size_t tokens,
                              size_t groups) {
    batch(sums, sums_stride, at, scratch, columns, (neurons + 1) / 2, factors, about, tokens,
          groups, GROUP);
}

void gk_batch_i64_q4_i16_avx2(int64_t *sums, size_t sums_stride, const uint32_t *at,
                              void *scratch, const uint8_t *const *columns, size_t neurons,
                              const void *factors, const gk_about *about, size_t tokens,
                              size_t groups) {
    batch(sums, sums_stride, at, scratch, columns, (neurons + 1) / 2, factors, about, tokens,
          groups, GROUP / 2);
}
