// Attention of one query head over its cached keys and values: AVX2.
#include "avx2.h"
#include "kv.h"

enum { KEY_BLOCK = 32 };

// Eight keys or values.
INLINE __m256 load_kv(kv_rows rows, size_t index) {
    if (rows.type == ROWS_F32) {
        return _mm256_loadu_ps((const float *)rows.at + index);
    }
    if (rows.type == ROWS_F16) {
        return load_f16(rows.at, index);
    }
    const __m128i *codes = (const void *)((const int8_t *)rows.at + index);
    __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(codes)));
    return _mm256_mul_ps(values, _mm256_set1_ps(rows.scales[index / GROUP]));
}

INLINE float score(const float *q, kv_rows keys, size_t at, size_t dim) {
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    for (size_t i = 0; i < dim; i += LANES) {
        __m256 k0 = load_kv(keys, at + i), k1 = load_kv(keys, at + i + 8);
        low = _mm256_add_ps(low, _mm256_mul_ps(_mm256_loadu_ps(q + i), k0));
        high = _mm256_add_ps(high, _mm256_mul_ps(_mm256_loadu_ps(q + i + 8), k1));
    }
    return tree(low, high);
}

// The largest of `max` and 32 scores. A NaN score never wins: max_ps gives its second operand.
INLINE float max_score(const float *scores, float max) {
    __m256 m = _mm256_set1_ps(max);
    UNROLL for (int i = 0; i < KEY_BLOCK; i += 8) {
        m = _mm256_max_ps(_mm256_load_ps(scores + i), m);
    }
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}

// out[8 * vectors] = out * keep + the sum of weight j times value row j, j ascending.
INLINE void mix(float *out, float keep, const float *weights, size_t count, kv_rows values,
                size_t at, size_t dim, int vectors) {
    __m256 sum[8];
    UNROLL for (int v = 0; v < vectors; v++) {
        sum[v] = _mm256_mul_ps(_mm256_loadu_ps(out + 8 * v), _mm256_set1_ps(keep));
    }
    for (size_t j = 0; j < count; j++) {
        __m256 weight = _mm256_broadcast_ss(weights + j);
        UNROLL for (int v = 0; v < vectors; v++) {
            __m256 value = load_kv(values, at + j * dim + 8 * (size_t)v);
            sum[v] = _mm256_add_ps(sum[v], _mm256_mul_ps(weight, value));
        }
    }
    UNROLL for (int v = 0; v < vectors; v++) {
        _mm256_storeu_ps(out + 8 * v, sum[v]);
    }
}

INLINE void attend(float *out, const float *q, kv_rows keys, kv_rows values, size_t unseen,
                   size_t count, size_t dim, float scale) {
    float max = -__builtin_inff(), total = 0.0f;
    for (size_t i = 0; i < dim; i += 8) {
        _mm256_storeu_ps(out + i, _mm256_setzero_ps());
    }
    for (size_t first = 0; first < count; first += KEY_BLOCK, unseen = 0) {
        size_t block = count - first < KEY_BLOCK ? count - first : KEY_BLOCK;
        float weights[KEY_BLOCK] __attribute__((aligned(32)));
        // A key that is missing or unseen has score -inf, so weight 0, and never wins the maximum.
        UNROLL for (int i = 0; i < KEY_BLOCK; i += 8) {
            _mm256_store_ps(weights + i, _mm256_set1_ps(-__builtin_inff()));
        }
        for (size_t j = unseen; j < block; j++) {
            weights[j] = score(q, keys, (first + j) * dim, dim) * scale;
        }
        float new_max = max_score(weights, max);
        float keep = _mm256_cvtss_f32(exp8(_mm256_set1_ps(max - new_max)));
        max = new_max;
        __m256 w[KEY_BLOCK / 8];
        UNROLL for (int i = 0; i < KEY_BLOCK / 8; i++) {
            __m256 s = _mm256_load_ps(weights + 8 * i);
            w[i] = exp8(_mm256_sub_ps(s, _mm256_set1_ps(max)));
            _mm256_store_ps(weights + 8 * i, w[i]);
        }
        float sum = tree(_mm256_add_ps(w[0], w[2]), _mm256_add_ps(w[1], w[3]));
        total = total * keep + sum;
        size_t i = 0, seen = block - unseen, at = (first + unseen) * dim;
        for (; i + 64 <= dim; i += 64) {
            mix(out + i, keep, weights + unseen, seen, values, at + i, dim, 8);
        }
        for (; i < dim; i += LANES) {
            mix(out + i, keep, weights + unseen, seen, values, at + i, dim, 2);
        }
    }
    for (size_t i = 0; i < dim; i += 8) {
        __m256 o = _mm256_loadu_ps(out + i);
        _mm256_storeu_ps(out + i, _mm256_div_ps(o, _mm256_set1_ps(total)));
    }
}

void gk_attend_f32_f32_f32_avx2(float *out, const float *q, const float *keys, const float *values,
                                size_t unseen, size_t count, size_t dim, float scale) {
    attend(out, q, F32_ROWS(keys), F32_ROWS(values), unseen, count, dim, scale);
}

void gk_attend_f32_f32_f16_avx2(float *out, const float *q, const uint16_t *keys,
                                const uint16_t *values, size_t unseen, size_t count, size_t dim,
                                float scale) {
    attend(out, q, F16_ROWS(keys), F16_ROWS(values), unseen, count, dim, scale);
}

void gk_attend_f32_f32_q8_avx2(float *out, const float *q, const int8_t *keys,
                               const float *key_scales, const int8_t *values,
                               const float *value_scales, size_t unseen, size_t count, size_t dim,
                               float scale) {
    attend(out, q, Q8_ROWS(keys, key_scales), Q8_ROWS(values, value_scales), unseen, count, dim,
           scale);
}
