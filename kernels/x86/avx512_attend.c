// Attention of query heads over their cached keys and values, exp and gates: AVX-512.
#include "avx512.h"
#include "kv.h"

enum { KEY_BLOCK = 32 };

// 16 keys or values.
INLINE __m512 load_kv(kv_rows rows, size_t index) {
    if (rows.type == ROWS_F32) {
        return _mm512_loadu_ps((const float *)rows.at + index);
    }
    if (rows.type == ROWS_F16) {
        return load_f16(rows.at, index);
    }
    const __m128i *codes = (const void *)((const int8_t *)rows.at + index);
    __m512 values = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes)));
    return _mm512_mul_ps(values, _mm512_set1_ps(rows.scales[index / GROUP]));
}

// Dot products of q with 16 keys.
INLINE __m512 scores16(const float *q, kv_rows keys, size_t at, size_t dim) {
    __m512 sums[LANES];
    UNROLL for (size_t j = 0; j < LANES; j++) {
        sums[j] = _mm512_setzero_ps();
    }
    for (size_t i = 0; i < dim; i += LANES) {
        __m512 q16 = _mm512_loadu_ps(q + i);
        UNROLL for (size_t j = 0; j < LANES; j++) {
            __m512 key = load_kv(keys, at + j * dim + i);
            sums[j] = _mm512_add_ps(sums[j], _mm512_mul_ps(q16, key));
        }
    }
    return tree16(sums);
}

// 16 scores, of which the first `count` are of keys and the rest -inf: weight 0, and never the
// maximum.
INLINE __m512 scores(const float *q, kv_rows keys, size_t at, size_t count, size_t dim,
                     float scale) {
    const __m512 none = _mm512_set1_ps(-__builtin_inff());
    if (count >= LANES) {
        return _mm512_mul_ps(scores16(q, keys, at, dim), _mm512_set1_ps(scale));
    }
    float few[LANES] __attribute__((aligned(64)));
    _mm512_store_ps(few, none);
    for (size_t j = 0; j < count; j++) {
        __m512 sum = _mm512_setzero_ps();
        for (size_t i = 0; i < dim; i += LANES) {
            __m512 key = load_kv(keys, at + j * dim + i);
            sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_loadu_ps(q + i), key));
        }
        few[j] = tree(sum) * scale;
    }
    return _mm512_load_ps(few);
}

// The largest lane of `a` and of `max`. A NaN never wins: max_ps gives its second operand.
INLINE float max_lane(__m512 a, __m512 b, float max) {
    __m512 m = _mm512_max_ps(b, _mm512_max_ps(a, _mm512_set1_ps(max)));
    __m256 m8 = _mm256_max_ps(_mm512_castps512_ps256(m), _mm512_extractf32x8_ps(m, 1));
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}

// out[16 * vectors] = out * keep + the sum of weight j times value row j, j ascending.
INLINE void mix(float *out, float keep, const float *weights, size_t count, kv_rows values,
                size_t at, size_t dim, int vectors) {
    __m512 sum[8];
    UNROLL for (int v = 0; v < vectors; v++) {
        sum[v] = _mm512_mul_ps(_mm512_loadu_ps(out + LANES * v), _mm512_set1_ps(keep));
    }
    for (size_t j = 0; j < count; j++) {
        __m512 weight = _mm512_set1_ps(weights[j]);
        UNROLL for (int v = 0; v < vectors; v++) {
            __m512 value = load_kv(values, at + j * dim + LANES * (size_t)v);
            sum[v] = _mm512_add_ps(sum[v], _mm512_mul_ps(weight, value));
        }
    }
    UNROLL for (int v = 0; v < vectors; v++) {
        _mm512_storeu_ps(out + LANES * v, sum[v]);
    }
}

// The softmax of a query so far.
typedef struct {
    float max, total;
} state;

// From 32 scores to weights; gives what the output so far is multiplied with.
INLINE float soften(state *s, float *weights, __m512 s0, __m512 s1) {
    float max = max_lane(s0, s1, s->max);
    float keep = _mm512_cvtss_f32(exp16(_mm512_set1_ps(s->max - max)));
    __m512 w0 = exp16(_mm512_sub_ps(s0, _mm512_set1_ps(max)));
    __m512 w1 = exp16(_mm512_sub_ps(s1, _mm512_set1_ps(max)));
    _mm512_store_ps(weights, w0);
    _mm512_store_ps(weights + LANES, w1);
    s->max = max;
    s->total = s->total * keep + tree(_mm512_add_ps(w0, w1));
    return keep;
}

// A block of up to 32 keys but for the first `unseen`, from element `at` on, for one query.
INLINE void one_block(float *out, state *s, const float *q, kv_rows keys, kv_rows values,
                      size_t at, size_t unseen, size_t block, size_t dim, float scale) {
    const __m512 none = _mm512_set1_ps(-__builtin_inff());
    size_t rest = block > LANES ? block - LANES : 0;
    uint32_t hidden = (1u << unseen) - 1;
    float weights[KEY_BLOCK] __attribute__((aligned(64)));
    __m512 s0 = scores(q, keys, at, block, dim, scale);
    __m512 s1 = scores(q, keys, at + LANES * dim, rest, dim, scale);
    s0 = _mm512_mask_mov_ps(s0, (__mmask16)hidden, none);
    s1 = _mm512_mask_mov_ps(s1, (__mmask16)(hidden >> LANES), none);
    at += unseen * dim;
    block -= unseen;
    float keep = soften(s, weights, s0, s1);
    size_t i = 0;
    for (; i + 128 <= dim; i += 128) {
        mix(out + i, keep, weights + unseen, block, values, at + i, dim, 8);
    }
    for (; i + 64 <= dim; i += 64) {
        mix(out + i, keep, weights + unseen, block, values, at + i, dim, 4);
    }
    for (; i < dim; i += LANES) {
        mix(out + i, keep, weights + unseen, block, values, at + i, dim, 1);
    }
}

INLINE void begin(float *out, state *s, size_t dim) {
    *s = (state){.max = -__builtin_inff(), .total = 0.0f};
    for (size_t i = 0; i < dim; i += LANES) {
        _mm512_storeu_ps(out + i, _mm512_setzero_ps());
    }
}

INLINE void finish(float *out, const state *s, size_t dim) {
    for (size_t i = 0; i < dim; i += LANES) {
        __m512 o = _mm512_loadu_ps(out + i);
        _mm512_storeu_ps(out + i, _mm512_div_ps(o, _mm512_set1_ps(s->total)));
    }
}

// One query over the keys from `first` on, but for `unseen` of them.
INLINE void one_query(float *out, state *s, const float *q, kv_rows keys, kv_rows values,
                      size_t first, size_t unseen, size_t count, size_t dim, float scale) {
    for (; first < count; first += KEY_BLOCK, unseen = 0) {
        size_t block = count - first < KEY_BLOCK ? count - first : KEY_BLOCK;
        one_block(out, s, q, keys, values, first * dim, unseen, block, dim, scale);
    }
}

INLINE void attend(float *out, const float *q, kv_rows keys, kv_rows values, size_t unseen,
                   size_t count, size_t dim, float scale) {
    state s;
    begin(out, &s, dim);
    one_query(out, &s, q, keys, values, 0, unseen, count, dim, scale);
    finish(out, &s, dim);
}

void gk_attend_f32_f32_f32_avx512(float *out, const float *q, const float *keys,
                                  const float *values, size_t unseen, size_t count, size_t dim,
                                  float scale) {
    attend(out, q, F32_ROWS(keys), F32_ROWS(values), unseen, count, dim, scale);
}

void gk_attend_f32_f32_f16_avx512(float *out, const float *q, const uint16_t *keys,
                                  const uint16_t *values, size_t unseen, size_t count, size_t dim,
                                  float scale) {
    attend(out, q, F16_ROWS(keys), F16_ROWS(values), unseen, count, dim, scale);
}

void gk_attend_f32_f32_q8_avx512(float *out, const float *q, const int8_t *keys,
                                 const float *key_scales, const int8_t *values,
                                 const float *value_scales, size_t unseen, size_t count, size_t dim,
                                 float scale) {
    attend(out, q, Q8_ROWS(keys, key_scales), Q8_ROWS(values, value_scales), unseen, count, dim,
           scale);
}

// Scores of four queries with four keys each: query, then key.
INLINE __m512 scores4(const float *const *q, kv_rows keys, size_t at, size_t dim) {
    __m512 sums[LANES];
    UNROLL for (int i = 0; i < LANES; i++) {
        sums[i] = _mm512_setzero_ps();
    }
    for (size_t i = 0; i < dim; i += LANES) {
        __m512 key[4];
        UNROLL for (size_t j = 0; j < 4; j++) {
            key[j] = load_kv(keys, at + j * dim + i);
        }
        UNROLL for (int h = 0; h < 4; h++) {
            __m512 q16 = _mm512_loadu_ps(q[h] + i);
            UNROLL for (int j = 0; j < 4; j++) {
                sums[4 * h + j] = _mm512_add_ps(sums[4 * h + j], _mm512_mul_ps(q16, key[j]));
            }
        }
    }
    return tree16(sums);
}

// mix for four queries and whole blocks, 16 * vectors elements from `i` on.
INLINE void mix4(float *const *out, const float *keep, float (*weights)[KEY_BLOCK],
                 kv_rows values, size_t at, size_t i, size_t dim, int vectors) {
    __m512 sum[4][4];
    UNROLL for (int h = 0; h < 4; h++) {
        UNROLL for (int v = 0; v < vectors; v++) {
            __m512 o = _mm512_loadu_ps(out[h] + i + (size_t)(LANES * v));
            sum[h][v] = _mm512_mul_ps(o, _mm512_set1_ps(keep[h]));
        }
    }
    for (size_t j = 0; j < KEY_BLOCK; j++) {
        __m512 value[4];
        UNROLL for (int v = 0; v < vectors; v++) {
            value[v] = load_kv(values, at + j * dim + i + (size_t)(LANES * v));
        }
        UNROLL for (int h = 0; h < 4; h++) {
            __m512 weight = _mm512_set1_ps(weights[h][j]);
            UNROLL for (int v = 0; v < vectors; v++) {
                sum[h][v] = _mm512_add_ps(sum[h][v], _mm512_mul_ps(weight, value[v]));
            }
        }
    }
    UNROLL for (int h = 0; h < 4; h++) {
        UNROLL for (int v = 0; v < vectors; v++) {
            _mm512_storeu_ps(out[h] + i + (size_t)(LANES * v), sum[h][v]);
        }
    }
}

// A block of 32 keys that all four queries see.
INLINE void four_block(float *const *out, state *states, const float *const *q, kv_rows keys,
                       kv_rows values, size_t at, size_t dim, float scale) {
    float weights[4][KEY_BLOCK] __attribute__((aligned(64)));
    float keep[4];
    for (size_t j = 0; j < KEY_BLOCK; j += 4) {
        __m512 four = scores4(q, keys, at + j * dim, dim);
        four = _mm512_mul_ps(four, _mm512_set1_ps(scale));
        _mm_store_ps(weights[0] + j, _mm512_castps512_ps128(four));
        _mm_store_ps(weights[1] + j, _mm512_extractf32x4_ps(four, 1));
        _mm_store_ps(weights[2] + j, _mm512_extractf32x4_ps(four, 2));
        _mm_store_ps(weights[3] + j, _mm512_extractf32x4_ps(four, 3));
    }
    UNROLL for (int h = 0; h < 4; h++) {
        __m512 s0 = _mm512_load_ps(weights[h]), s1 = _mm512_load_ps(weights[h] + LANES);
        keep[h] = soften(&states[h], weights[h], s0, s1);
    }
    size_t i = 0;
    for (; i + 64 <= dim; i += 64) {
        mix4(out, keep, weights, values, at, i, dim, 4);
    }
    for (; i < dim; i += LANES) {
        mix4(out, keep, weights, values, at, i, dim, 1);
    }
}

INLINE void attend_block(float *out, size_t out_stride, const float *q, size_t q_stride,
                         size_t positions, size_t group, kv_rows keys, kv_rows values,
                         size_t first, size_t dim, float scale) {
    size_t queries = positions * group;
    for (size_t i = 0; i < queries; i += 4) {
        size_t some = queries - i < 4 ? queries - i : 4;
        const float *q_at[4];
        float *out_at[4];
        size_t count[4];
        state states[4];
        for (size_t h = 0; h < some; h++) {
            size_t position = (i + h) / group, head = (i + h) % group;
            q_at[h] = q + position * q_stride + head * dim;
            out_at[h] = out + position * out_stride + head * dim;
            count[h] = first + position;
            begin(out_at[h], &states[h], dim);
        }
        size_t key = 0;
        for (; some == 4 && key + KEY_BLOCK <= count[0]; key += KEY_BLOCK) {
            four_block(out_at, states, q_at, keys, values, key * dim, dim, scale);
        }
        for (size_t h = 0; h < some; h++) {
            one_query(out_at[h], &states[h], q_at[h], keys, values, key, 0, count[h], dim, scale);
            finish(out_at[h], &states[h], dim);
        }
    }
}

void gk_attends_f32_f32_f32_avx512(float *out, size_t out_stride, const float *q, size_t q_stride,
                                   size_t positions, size_t group, const float *keys,
                                   const float *values, size_t first, size_t dim, float scale) {
    attend_block(out, out_stride, q, q_stride, positions, group, F32_ROWS(keys), F32_ROWS(values),
                 first, dim, scale);
}

void gk_attends_f32_f32_f16_avx512(float *out, size_t out_stride, const float *q, size_t q_stride,
                                   size_t positions, size_t group, const uint16_t *keys,
                                   const uint16_t *values, size_t first, size_t dim,
                                   float scale) {
    attend_block(out, out_stride, q, q_stride, positions, group, F16_ROWS(keys), F16_ROWS(values),
                 first, dim, scale);
}

void gk_attends_f32_f32_q8_avx512(float *out, size_t out_stride, const float *q, size_t q_stride,
                                  size_t positions, size_t group, const int8_t *keys,
                                  const float *key_scales, const int8_t *values,
                                  const float *value_scales, size_t first, size_t dim,
                                  float scale) {
    attend_block(out, out_stride, q, q_stride, positions, group, Q8_ROWS(keys, key_scales),
                 Q8_ROWS(values, value_scales), first, dim, scale);
}

void gk_exp_f32_f32_avx512(float *x, size_t len) {
    for (size_t i = 0; i < len; i += LANES) {
        size_t left = len - i;
        __mmask16 mask = left < LANES ? (__mmask16)((1u << left) - 1) : (__mmask16)0xffff;
        _mm512_mask_storeu_ps(x + i, mask, exp16(_mm512_maskz_loadu_ps(mask, x + i)));
    }
}

void gk_silu_f32_f32_f32_avx512(float *gate, const float *up, size_t len) {
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    for (size_t i = 0; i < len; i += LANES) {
        size_t left = len - i;
        __mmask16 mask = left < LANES ? (__mmask16)((1u << left) - 1) : (__mmask16)0xffff;
        __m512 x = _mm512_maskz_loadu_ps(mask, gate + i);
        __m512 below = _mm512_add_ps(one, exp16(_mm512_xor_ps(x, sign)));
        __m512 y = _mm512_maskz_loadu_ps(mask, up + i);
        _mm512_mask_storeu_ps(gate + i, mask, _mm512_mul_ps(_mm512_div_ps(x, below), y));
    }
}

void gk_gelu_f32_f32_f32_avx512(float *gate, const float *up, size_t len) {
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 line = _mm512_castsi512_ps(_mm512_set1_epi32((int)0xbfcc422a));
    const __m512 cube = _mm512_castsi512_ps(_mm512_set1_epi32((int)0xbd922279));
    for (size_t i = 0; i < len; i += LANES) {
        size_t left = len - i;
        __mmask16 mask = left < LANES ? (__mmask16)((1u << left) - 1) : (__mmask16)0xffff;
        __m512 x = _mm512_maskz_loadu_ps(mask, gate + i);
        __m512 factor = _mm512_add_ps(_mm512_mul_ps(_mm512_mul_ps(x, x), cube), line);
        __m512 below = _mm512_add_ps(one, exp16(_mm512_mul_ps(x, factor)));
        __m512 y = _mm512_maskz_loadu_ps(mask, up + i);
        _mm512_mask_storeu_ps(gate + i, mask, _mm512_mul_ps(_mm512_div_ps(x, below), y));
    }
}
