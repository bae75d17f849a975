// Down columns of many neurons for many tokens, in fixed point: AVX-512 VNNI.
//
// The weights of four neurons are brought together as bytes, w + 128, once for all tokens: 64
// outputs of a chunk of 256 neurons make a tile of 16 KiB that stays in the first-level cache. Each
// token's multipliers are cut into digits; two are enough for most. Sums of a chunk stay below
// 2^31: 256 * 255 * 128 * (1 + 2^8).
#include "down512.h"
#include "products.h"

enum { NEURONS = 256, QUADS = NEURONS / 4, VECTORS = 4, ABREAST = 3 };

// Digits of four neurons, a dword each.
typedef int32_t token_factors[QUADS][DIGITS];

// A bit for each of four quads: whether one of their factors has a third or fourth digit.
INLINE uint64_t high_quads(__m512i rows) {
    unsigned lanes = _mm512_test_epi32_mask(rows, rows), any = lanes >> 2 | lanes >> 3;
    return (any & 1) | (any >> 3 & 2) | (any >> 6 & 4) | (any >> 9 & 8);
}

size_t gk_multipliers_i8_f32_avx512(void *factors, gk_about *about, const float *x,
                                    const float *scales, float per_unit, size_t count) {
    __m512i sum = _mm512_setzero_si512();
    about->wide = 0;
    for (size_t i = 0; i < NEURONS; i += LANES) {
        size_t left = i < count ? count - i : 0;
        __mmask16 mask = left < LANES ? (__mmask16)((1u << left) - 1) : (__mmask16)0xffff;
        __m512i m;
        __mmask16 bad =
            multipliers16(&m, x + i, _mm512_maskz_loadu_ps(mask, scales + i), per_unit, left);
        if (bad != 0) {
            return i + (size_t)__builtin_ctz(bad);
        }
        sum = _mm512_add_epi64(sum, _mm512_cvtepi32_epi64(_mm512_castsi512_si256(m)));
        sum = _mm512_add_epi64(sum, _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(m, 1)));
        __m512i rows = byte_columns(digits(m));
        about->wide |= high_quads(rows) << i / 4;
        _mm512_storeu_si512((char *)factors + 4 * i, rows);
    }
    about->sum = _mm512_reduce_add_epi64(sum);
    return count;
}

// The 32 weights of a group as bytes, w + 128.
INLINE __m256i group_weights(const uint8_t *column, size_t group, size_t groups, bool q4) {
    const __m256i sign = _mm256_set1_epi8((char)0x80);
    if (!q4) {
        const void *at = column + group * GROUP;
        return _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)at), sign);
    }
    uint8_t sub_scale = column[groups * GROUP / 2 + group];
    __m256i table = _mm256_broadcastsi128_si256(
        _mm_load_si128((const __m128i *)(const void *)products[sub_scale & 31]));
    __m128i nibbles = load16(column + group * GROUP / 2);
    __m256i both =
        _mm256_inserti128_si256(_mm256_castsi128_si256(nibbles), _mm_srli_epi16(nibbles, 4), 1);
    __m256i w = _mm256_shuffle_epi8(table, _mm256_and_si256(both, _mm256_set1_epi8(15)));
    return _mm256_xor_si256(w, sign);
}

// Weights of up to 64 outputs from `group` on, a register for four neurons and 16 outputs:
// tile[quad][vector].
INLINE void gather(__m512i *tile, const uint8_t *const *columns, size_t quads, size_t group,
                   size_t groups, int vectors, bool q4) {
    for (size_t quad = 0; quad < quads; quad++, columns += 4, tile += VECTORS) {
        UNROLL for (int v = 0; v < vectors; v += 2) {
            __m256i w[4];
            UNROLL for (int c = 0; c < 4; c++) {
                w[c] = group_weights(columns[c], group + (size_t)v / 2, groups, q4);
            }
            tile[v] = transpose_quad(_mm256_castsi256_si128(w[0]), _mm256_castsi256_si128(w[1]),
                                     _mm256_castsi256_si128(w[2]), _mm256_castsi256_si128(w[3]));
            tile[v + 1] = transpose_quad(
                _mm256_extracti128_si256(w[0], 1), _mm256_extracti128_si256(w[1], 1),
                _mm256_extracti128_si256(w[2], 1), _mm256_extracti128_si256(w[3], 1));
        }
    }
}

// The sums of `count` tokens.
typedef struct {
    int64_t *sums;
    size_t stride;
    const uint32_t *at;
    const token_factors *factors;
    const gk_about *about;
    size_t count;
} tokens;

// A tile times the higher digits of one token. Few factors have any: activations of the size that
// the unit is made for need two digits, so only the quads that have more are looked at.
INLINE void multiply_high(__m512i *high, const __m512i *tile, const token_factors *factors,
                          uint64_t wide, int vectors) {
    __m512i acc[VECTORS][2];
    UNROLL for (int v = 0; v < vectors; v++) {
        acc[v][0] = acc[v][1] = _mm512_setzero_si512();
    }
    for (; wide != 0; wide &= wide - 1) {
        size_t quad = (size_t)__builtin_ctzll(wide);
        UNROLL for (int k = 0; k < 2; k++) {
            __m512i f = _mm512_set1_epi32((*factors)[quad][2 + k]);
            UNROLL for (int v = 0; v < vectors; v++) {
                __m512i w = _mm512_load_si512(tile + VECTORS * quad + (size_t)v);
                acc[v][k] = dot4(acc[v][k], w, f);
            }
        }
    }
    UNROLL for (int v = 0; v < vectors; v++) {
        high[v] = _mm512_add_epi32(acc[v][0], _mm512_slli_epi32(acc[v][1], 8));
    }
}

// A tile times the factors of the tokens; those that are not there have factors, but no sums. The
// sums come from far: they are asked for line by line meanwhile.
INLINE void multiply(const tokens *t, const __m512i *tile, size_t quads, int vectors) {
    enum { LINE = 8 };
    const size_t lines = (size_t)vectors * LANES / LINE;
    __m512i acc[ABREAST][VECTORS][2];
    UNROLL for (int i = 0; i < ABREAST * vectors * 2; i++) {
        acc[i / 2 / vectors][i / 2 % vectors][i % 2] = _mm512_setzero_si512();
    }
    const __m512i *row = tile;
    for (size_t quad = 0; quad < quads; quad++, row += VECTORS) {
        if (quad < lines * t->count) {
            const int64_t *line = t->sums + t->at[quad / lines] * t->stride + quad % lines * LINE;
            _mm_prefetch((const char *)line, _MM_HINT_T0);
        }
        UNROLL for (int i = 0; i < ABREAST; i++) {
            UNROLL for (int k = 0; k < 2; k++) {
                __m512i f = _mm512_set1_epi32(t->factors[i][quad][k]);
                UNROLL for (int v = 0; v < vectors; v++) {
                    acc[i][v][k] = dot4(acc[i][v][k], _mm512_load_si512(row + v), f);
                }
            }
        }
    }
    UNROLL for (int i = 0; i < ABREAST; i++) {
        if ((size_t)i < t->count) {
            __m512i bias = _mm512_set1_epi64(128 * t->about[i].sum), high[VECTORS];
            multiply_high(high, tile, t->factors + i, t->about[i].wide, vectors);
            UNROLL for (int v = 0; v < vectors; v++) {
                __m512i low = _mm512_slli_epi32(acc[i][v][1], 8);
                low = _mm512_add_epi32(acc[i][v][0], low);
                add_wide(t->sums + t->at[i] * t->stride + LANES * v, low, high[v], bias);
            }
        }
    }
}

INLINE void all_tokens(const tokens *all, const __m512i *tile, size_t quads, int vectors) {
    for (size_t first = 0; first < all->count; first += ABREAST) {
        tokens some = *all;
        some.at += first;
        some.factors += first;
        some.about += first;
        some.count = all->count - first < ABREAST ? all->count - first : ABREAST;
        multiply(&some, tile, quads, vectors);
    }
}

INLINE void batch(tokens all, __m512i *tile, const uint8_t *const *columns, size_t neurons,
                  size_t groups, bool q4) {
    size_t quads = (neurons + 3) / 4, group = 0;
    for (; group + 2 <= groups; group += 2, all.sums += 2 * GROUP) {
        gather(tile, columns, quads, group, groups, 4, q4);
        all_tokens(&all, tile, quads, 4);
    }
    if (group < groups) {
        gather(tile, columns, quads, group, groups, 2, q4);
        all_tokens(&all, tile, quads, 2);
    }
}

void gk_batch_i64_q8_i8_avx512(int64_t *sums, size_t sums_stride, const uint32_t *at,
                               void *scratch, const uint8_t *const *columns, size_t neurons,
                               const void *factors, const gk_about *about, size_t count,
                               size_t groups) {
    tokens all = {sums, sums_stride, at, factors, about, count};
    batch(all, scratch, columns, neurons, groups, false);
}

void gk_batch_i64_q4_i8_avx512(int64_t *sums, size_t sums_stride, const uint32_t *at,
                               void *scratch, const uint8_t *const *columns, size_t neurons,
                               const void *factors, const gk_about *about, size_t count,
                               size_t groups) {
    tokens all = {sums, sums_stride, at, factors, about, count};
    batch(all, scratch, columns, neurons, groups, true);
}
