// Attention of one query head over its cached keys and values, exp and gates: AVX-512.
#include "avx512.h"

enum { KEY_BLOCK = 32 };

// 16 keys or values; `half` is a compile-time constant.
INLINE __m512 load_kv(const void *base, size_t index, bool half) {
    return half ? load_f16(base, index) : _mm512_loadu_ps((const float *)base + index);
}

// Dot products of q with 16 keys.
INLINE __m512 scores16(const float *q, const void *keys, size_t at, size_t dim, bool half) {
    __m512 sums[LANES];
    UNROLL for (size_t j = 0; j < LANES; j++) {
        sums[j] = _mm512_setzero_ps();
    }
    for (size_t i = 0; i < dim; i += LANES) {
        __m512 q16 = _mm512_loadu_ps(q + i);
        UNROLL for (size_t j = 0; j < LANES; j++) {
            __m512 key = load_kv(keys, at + j * dim + i, half);
            sums[j] = _mm512_add_ps(sums[j], _mm512_mul_ps(q16, key));
        }
    }
    return tree16(sums);
}

// 16 scores, of which the first `count` are of keys and the rest -inf: weight 0, and never the
// maximum.
INLINE __m512 scores(const float *q, const void *keys, size_t at, size_t count, size_t dim,
                     float scale, bool half) {
    const __m512 none = _mm512_set1_ps(-__builtin_inff());
    if (count >= LANES) {
        return _mm512_mul_ps(scores16(q, keys, at, dim, half), _mm512_set1_ps(scale));
    }
    float few[LANES] __attribute__((aligned(64)));
    _mm512_store_ps(few, none);
    for (size_t j = 0; j < count; j++) {
        __m512 sum = _mm512_setzero_ps();
        for (size_t i = 0; i < dim; i += LANES) {
            __m512 key = load_kv(keys, at + j * dim + i, half);
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
INLINE void mix(float *out, float keep, const float *weights, size_t count, const void *values,
                size_t at, size_t dim, int vectors, bool half) {
    __m512 sum[8];
    UNROLL for (int v = 0; v < vectors; v++) {
        sum[v] = _mm512_mul_ps(_mm512_loadu_ps(out + LANES * v), _mm512_set1_ps(keep));
    }
    for (size_t j = 0; j < count; j++) {
        __m512 weight = _mm512_set1_ps(weights[j]);
        UNROLL for (int v = 0; v < vectors; v++) {
            __m512 value = load_kv(values, at + j * dim + LANES * (size_t)v, half);
            sum[v] = _mm512_add_ps(sum[v], _mm512_mul_ps(weight, value));
        }
    }
    UNROLL for (int v = 0; v < vectors; v++) {
        _mm512_storeu_ps(out + LANES * v, sum[v]);
    }
}

INLINE void attend(float *out, const float *q, const void *keys, const void *values, size_t count,
                   size_t dim, float scale, bool half) {
    float max = -__builtin_inff(), total = 0.0f;
    for (size_t i = 0; i < dim; i += LANES) {
        _mm512_storeu_ps(out + i, _mm512_setzero_ps());
    }
    for (size_t first = 0; first < count; first += KEY_BLOCK) {
        size_t block = count - first < KEY_BLOCK ? count - first : KEY_BLOCK;
        size_t rest = block > LANES ? block - LANES : 0;
        __m512 s0 = scores(q, keys, first * dim, block, dim, scale, half);
        __m512 s1 = scores(q, keys, (first + LANES) * dim, rest, dim, scale, half);
        float new_max = max_lane(s0, s1, max);
        float keep = _mm512_cvtss_f32(exp16(_mm512_set1_ps(max - new_max)));
        max = new_max;
        float weights[KEY_BLOCK] __attribute__((aligned(64)));
        __m512 w0 = exp16(_mm512_sub_ps(s0, _mm512_set1_ps(max)));
        __m512 w1 = exp16(_mm512_sub_ps(s1, _mm512_set1_ps(max)));
        _mm512_store_ps(weights, w0);
        _mm512_store_ps(weights + LANES, w1);
        total = total * keep + tree(_mm512_add_ps(w0, w1));
        size_t i = 0;
        for (; i + 128 <= dim; i += 128) {
            mix(out + i, keep, weights, block, values, first * dim + i, dim, 8, half);
        }
        for (; i + 64 <= dim; i += 64) {
            mix(out + i, keep, weights, block, values, first * dim + i, dim, 4, half);
        }
        for (; i < dim; i += LANES) {
            mix(out + i, keep, weights, block, values, first * dim + i, dim, 1, half);
        }
    }
    for (size_t i = 0; i < dim; i += LANES) {
        __m512 o = _mm512_loadu_ps(out + i);
        _mm512_storeu_ps(out + i, _mm512_div_ps(o, _mm512_set1_ps(total)));
    }
}

void gk_attend_f32_f32_f32_avx512(float *out, const float *q, const float *keys,
                                  const float *values, size_t count, size_t dim, float scale) {
    attend(out, q, keys, values, count, dim, scale, false);
}

void gk_attend_f32_f32_f16_avx512(float *out, const float *q, const uint16_t *keys,
                                  const uint16_t *values, size_t count, size_t dim, float scale) {
    attend(out, q, keys, values, count, dim, scale, true);
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
