// Down columns of many neurons for many tokens, in fixed point: AVX-512 VNNI.
//
// m = h * 2^16 + l with l and h in 16 bits. The weights of two neurons are widened to pairs of 16
// bits once for all tokens: 64 outputs of all pairs make a tile that stays in the first-level
// cache. Six tokens times 64 outputs are 24 registers of sums. A chunk of 256 neurons keeps them
// below 2^31: 256 * 2^15 * 127.
#include "avx512.h"
#include "down512.h"

enum { NEURONS = 256, CHUNK_PAIRS = NEURONS / 2, TOKENS = 6, VECTORS = 4 };

size_t gk_multipliers_i16_f32_avx512(int16_t *low, int16_t *high, bool *any_high, const float *x,
                                     const float *scales, float per_unit, size_t count) {
    const __m512 limit = _mm512_set1_ps(MULTIPLIER_LIMIT);
    __m512i any = _mm512_setzero_si512();
    for (size_t i = 0; i < NEURONS; i += LANES) {
        size_t left = i < count ? count - i : 0;
        __mmask16 mask = left < LANES ? (__mmask16)((1u << left) - 1) : (__mmask16)0xffff;
        __m512 product = _mm512_maskz_mul_ps(mask, _mm512_maskz_loadu_ps(mask, x + i),
                                             _mm512_maskz_loadu_ps(mask, scales + i));
        __m512 units = _mm512_mul_ps(product, _mm512_set1_ps(per_unit));
        // Not less: NaN is bad too.
        __mmask16 bad = _mm512_cmp_ps_mask(_mm512_abs_ps(units), limit, _CMP_NLT_UQ);
        if (bad != 0) {
            return i + (size_t)__builtin_ctz(bad);
        }
        __m512i m = _mm512_cvtps_epi32(units);
        __m512i h = _mm512_srai_epi32(_mm512_add_epi32(m, _mm512_set1_epi32(1 << 15)), 16);
        any = _mm512_or_si512(any, h);
        // The low 16 bits of m are l in two's complement.
        _mm256_storeu_si256((__m256i *)(void *)(low + i), _mm512_cvtepi32_epi16(m));
        _mm256_storeu_si256((__m256i *)(void *)(high + i), _mm512_cvtepi32_epi16(h));
    }
    *any_high = _mm512_test_epi32_mask(any, any) != 0;
    return count;
}

// Pairs of weights of outputs 16 * VECTORS on from `group`: tile[pair][vector].
INLINE void widen(__m512i *tile, const uint8_t *const *columns, size_t pairs, size_t group,
                  size_t groups, int vectors, bool q4) {
    for (size_t p = 0; p < pairs; p++) {
        UNROLL for (int v = 0; v < vectors; v += 2) {
            size_t at = group + (size_t)v / 2;
            weight_pairs(tile + p * VECTORS + v, columns[2 * p], columns[2 * p + 1], at, groups,
                         q4);
        }
    }
}

// sums[16] += values << shift.
INLINE void add_wide(int64_t *sums, __m512i values, unsigned shift) {
    __m512i low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(values));
    __m512i high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(values, 1));
    low = _mm512_add_epi64(_mm512_loadu_si512(sums), _mm512_slli_epi64(low, shift));
    high = _mm512_add_epi64(_mm512_loadu_si512(sums + 8), _mm512_slli_epi64(high, shift));
    _mm512_storeu_si512(sums, low);
    _mm512_storeu_si512(sums + 8, high);
}

// A tile times the factors of up to six tokens, added to their sums. The sums come from far: they are
// asked for line by line meanwhile.
INLINE void multiply(int64_t *sums, size_t sums_stride, const uint32_t *at, const __m512i *tile,
                     size_t pairs, const int32_t *factors, size_t tokens, int vectors,
                     unsigned shift) {
    const size_t lines = (size_t)vectors * LANES * sizeof(int64_t) / 64;
    __m512i acc[TOKENS][VECTORS];
    UNROLL for (int t = 0; t < TOKENS; t++) {
        UNROLL for (int v = 0; v < vectors; v++) {
            acc[t][v] = _mm512_setzero_si512();
        }
    }
    for (size_t p = 0; p < pairs; p++) {
        if (p < lines * tokens) {
            const int64_t *line = sums + at[p / lines] * sums_stride + p % lines * 8;
            _mm_prefetch((const char *)line, _MM_HINT_T0);
        }
        __m512i w[VECTORS];
        UNROLL for (int v = 0; v < vectors; v++) {
            w[v] = _mm512_load_si512(tile + p * VECTORS + v);
        }
        UNROLL for (int t = 0; t < TOKENS; t++) {
            __m512i factor = _mm512_set1_epi32(factors[t * 2 * CHUNK_PAIRS + (int)p]);
            UNROLL for (int v = 0; v < vectors; v++) {
                acc[t][v] = _mm512_dpwssd_epi32(acc[t][v], w[v], factor);
            }
        }
    }
    UNROLL for (size_t t = 0; t < TOKENS; t++) {
        if (t < tokens) {
            UNROLL for (int v = 0; v < vectors; v++) {
                add_wide(sums + at[t] * sums_stride + LANES * v, acc[t][v], shift);
            }
        }
    }
}

INLINE void block(int64_t *sums, size_t sums_stride, const uint32_t *at, __m512i *tile,
                  const uint8_t *const *columns, size_t pairs, const int32_t *factors,
                  const bool *any_high, size_t tokens, size_t group, size_t groups, int vectors,
                  bool q4) {
    widen(tile, columns, pairs, group, groups, vectors, q4);
    sums += group * GROUP;
    for (size_t t = 0; t < tokens; t += TOKENS) {
        size_t count = tokens - t < TOKENS ? tokens - t : TOKENS;
        bool split = false;
        for (size_t i = 0; i < count; i++) {
            split |= any_high[t + i];
        }
        const int32_t *low = factors + t * 2 * CHUNK_PAIRS;
        multiply(sums, sums_stride, at + t, tile, pairs, low, count, vectors, 0);
        if (split) {
            const int32_t *high = low + CHUNK_PAIRS;
            multiply(sums, sums_stride, at + t, tile, pairs, high, count, vectors, 16);
        }
    }
}

INLINE void batch(int64_t *sums, size_t sums_stride, const uint32_t *at, void *scratch,
                  const uint8_t *const *columns, size_t pairs, const int16_t *factors,
                  const bool *any_high, size_t tokens, size_t groups, bool q4) {
    const int32_t *both = (const int32_t *)(const void *)factors;
    size_t group = 0;
    for (; group + 2 <= groups; group += 2) {
        block(sums, sums_stride, at, scratch, columns, pairs, both, any_high, tokens, group,
              groups, 4, q4);
    }
    if (group < groups) {
        block(sums, sums_stride, at, scratch, columns, pairs, both, any_high, tokens, group,
              groups, 2, q4);
    }
}

void gk_batch_i64_q8_i16_avx512(int64_t *sums, size_t sums_stride, const uint32_t *at,
                                void *scratch, const uint8_t *const *columns, size_t pairs,
                                const int16_t *factors, const bool *any_high, size_t tokens,
                                size_t groups) {
    batch(sums, sums_stride, at, scratch, columns, pairs, factors, any_high, tokens, groups, false);
}

void gk_batch_i64_q4_i16_avx512(int64_t *sums, size_t sums_stride, const uint32_t *at,
                                void *scratch, const uint8_t *const *columns, size_t pairs,
                                const int16_t *factors, const bool *any_high, size_t tokens,
                                size_t groups) {
    batch(sums, sums_stride, at, scratch, columns, pairs, factors, any_high, tokens, groups, true);
}
