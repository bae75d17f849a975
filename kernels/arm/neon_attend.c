// Attention of query heads over their cached keys and values: ARMv8.0.
#include "neon.h"
#include "attend.h"

enum { KEYS = 4 };

// Four keys or values; `half` is a compile-time constant.
INLINE float32x4_t load_kv(const void *base, size_t index, bool half) {
    return half ? load_f16(base, index) : vld1q_f32((const float *)base + index);
}

// scores[0..count] = q . key * scale for keys one after another from `at`.
INLINE void score_keys(float *scores, int count, const float *q, const void *keys, size_t at,
                       size_t dim, float scale, bool half) {
    float32x4_t partials[KEYS][QUARTERS];
    UNROLL for (int k = 0; k < count; k++) {
        UNROLL for (int quarter = 0; quarter < QUARTERS; quarter++) {
            partials[k][quarter] = vdupq_n_f32(0.0f);
        }
    }
    for (size_t i = 0; i < dim; i += LANES) {
        UNROLL for (size_t quarter = 0; quarter < QUARTERS; quarter++) {
            float32x4_t q4 = vld1q_f32(q + i + 4 * quarter);
            UNROLL for (int k = 0; k < count; k++) {
                float32x4_t key = load_kv(keys, at + (size_t)k * dim + i + 4 * quarter, half);
                partials[k][quarter] = vaddq_f32(partials[k][quarter], vmulq_f32(q4, key));
            }
        }
    }
    UNROLL for (int k = 0; k < count; k++) {
        scores[k] = tree(partials[k]) * scale;
    }
}

// out[4 * vectors] = out * keep + the sum of weight j times value row j, j ascending.
INLINE void mix(float *out, float keep, const float *weights, size_t count, const void *values,
                size_t at, size_t dim, int vectors, bool half) {
    float32x4_t sum[16];
    UNROLL for (int v = 0; v < vectors; v++) {
        sum[v] = vmulq_n_f32(vld1q_f32(out + 4 * v), keep);
    }
    for (size_t j = 0; j < count; j++) {
        float32x4_t weight = vdupq_n_f32(weights[j]);
        UNROLL for (int v = 0; v < vectors; v++) {
            float32x4_t value = load_kv(values, at + j * dim + 4 * (size_t)v, half);
            sum[v] = vaddq_f32(sum[v], vmulq_f32(weight, value));
        }
    }
    UNROLL for (int v = 0; v < vectors; v++) {
        vst1q_f32(out + 4 * v, sum[v]);
    }
}

// Replaces the scores of a block by their weights; gives what the output so far is multiplied with.
// A NaN score never is the largest.
INLINE float soften(state *s, float scores[KEY_BLOCK]) {
    float32x4_t largest = vdupq_n_f32(s->max);
    UNROLL for (int i = 0; i < KEY_BLOCK; i += 4) {
        largest = max_number(vld1q_f32(scores + i), largest);
    }
    float max = vmaxvq_f32(largest);
    float32x4_t partials[QUARTERS];
    UNROLL for (int i = 0; i < QUARTERS; i++) {
        float32x4_t low = exp4(vsubq_f32(vld1q_f32(scores + 4 * i), vdupq_n_f32(max)));
        float32x4_t high = exp4(vsubq_f32(vld1q_f32(scores + 16 + 4 * i), vdupq_n_f32(max)));
        vst1q_f32(scores + 4 * i, low);
        vst1q_f32(scores + 16 + 4 * i, high);
        partials[i] = vaddq_f32(low, high);
    }
    float keep = vgetq_lane_f32(exp4(vdupq_n_f32(s->max - max)), 0);
    s->max = max;
    s->total = s->total * keep + tree(partials);
    return keep;
}

INLINE void one_block(float *out, state *s, const float *q, const void *keys, const void *values,
                      size_t at, size_t unseen, size_t block, size_t dim, float scale, bool half) {
    float weights[KEY_BLOCK];
    // A key that is missing or unseen has score -inf, so weight 0, and never wins the maximum.
    UNROLL for (int i = 0; i < KEY_BLOCK; i += 4) {
        vst1q_f32(weights + i, vdupq_n_f32(-__builtin_inff()));
    }
    size_t j = unseen;
    for (; j + KEYS <= block; j += KEYS) {
        score_keys(weights + j, KEYS, q, keys, at + j * dim, dim, scale, half);
    }
    for (; j < block; j++) {
        score_keys(weights + j, 1, q, keys, at + j * dim, dim, scale, half);
    }
    float keep = soften(s, weights);
    at += unseen * dim;
    block -= unseen;
    size_t i = 0;
    for (; i + 64 <= dim; i += 64) {
        mix(out + i, keep, weights + unseen, block, values, at + i, dim, 16, half);
    }
    for (; i < dim; i += LANES) {
        mix(out + i, keep, weights + unseen, block, values, at + i, dim, 4, half);
    }
}

// scores[query][j] = query . key * scale, for the key at element `at`.
INLINE void score_queries(float (*scores)[KEY_BLOCK], size_t j, const float *const *q,
                          const void *keys, size_t at, size_t dim, float scale, bool half) {
    float32x4_t partials[QUERIES][QUARTERS];
    UNROLL for (int i = 0; i < QUERIES * QUARTERS; i++) {
        partials[i / QUARTERS][i % QUARTERS] = vdupq_n_f32(0.0f);
    }
    for (size_t i = 0; i < dim; i += LANES) {
        UNROLL for (size_t quarter = 0; quarter < QUARTERS; quarter++) {
            float32x4_t key = load_kv(keys, at + i + 4 * quarter, half);
            UNROLL for (int h = 0; h < QUERIES; h++) {
                float32x4_t product = vmulq_f32(vld1q_f32(q[h] + i + 4 * quarter), key);
                partials[h][quarter] = vaddq_f32(partials[h][quarter], product);
            }
        }
    }
    UNROLL for (int h = 0; h < QUERIES; h++) {
        scores[h][j] = tree(partials[h]) * scale;
    }
}

// mix for four queries and whole blocks, 16 elements from `i` on.
INLINE void mix_queries(float *const *out, const float *keep, float (*weights)[KEY_BLOCK],
                        const void *values, size_t at, size_t i, size_t dim, bool half) {
    float32x4_t sum[QUERIES][QUARTERS];
    UNROLL for (int h = 0; h < QUERIES; h++) {
        UNROLL for (int v = 0; v < QUARTERS; v++) {
            sum[h][v] = vmulq_n_f32(vld1q_f32(out[h] + i + 4 * v), keep[h]);
        }
    }
    for (size_t j = 0; j < KEY_BLOCK; j++) {
        UNROLL for (int v = 0; v < QUARTERS; v++) {
            float32x4_t value = load_kv(values, at + j * dim + i + 4 * (size_t)v, half);
            UNROLL for (int h = 0; h < QUERIES; h++) {
                sum[h][v] = vaddq_f32(sum[h][v], vmulq_n_f32(value, weights[h][j]));
            }
        }
    }
    UNROLL for (int h = 0; h < QUERIES; h++) {
        UNROLL for (int v = 0; v < QUARTERS; v++) {
            vst1q_f32(out[h] + i + 4 * v, sum[h][v]);
        }
    }
}

INLINE void four_block(float *const *out, state *states, const float *const *q, const void *keys,
                       const void *values, size_t at, size_t dim, float scale, bool half) {
    float weights[QUERIES][KEY_BLOCK], keep[QUERIES];
    for (size_t j = 0; j < KEY_BLOCK; j++) {
        score_queries(weights, j, q, keys, at + j * dim, dim, scale, half);
    }
    for (int h = 0; h < QUERIES; h++) {
        keep[h] = soften(&states[h], weights[h]);
    }
    for (size_t i = 0; i < dim; i += LANES) {
        mix_queries(out, keep, weights, values, at, i, dim, half);
    }
}

void gk_attend_f32_f32_f32_neon(float *out, const float *q, const float *keys, const float *values,
                                size_t unseen, size_t count, size_t dim, float scale) {
    attend(out, q, keys, values, unseen, count, dim, scale, false);
}

void gk_attend_f32_f32_f16_neon(float *out, const float *q, const uint16_t *keys,
                                const uint16_t *values, size_t unseen, size_t count, size_t dim,
                                float scale) {
    attend(out, q, keys, values, unseen, count, dim, scale, true);
}

void gk_attends_f32_f32_f32_neon(float *out, size_t out_stride, const float *q, size_t q_stride,
                                 size_t positions, size_t group, const float *keys,
                                 const float *values, size_t first, size_t dim, float scale) {
    attend_block(out, out_stride, q, q_stride, positions, group, keys, values, first, dim, scale,
                 false);
}

void gk_attends_f32_f32_f16_neon(float *out, size_t out_stride, const float *q, size_t q_stride,
                                 size_t positions, size_t group, const uint16_t *keys,
                                 const uint16_t *values, size_t first, size_t dim, float scale) {
    attend_block(out, out_stride, q, q_stride, positions, group, keys, values, first, dim, scale,
                 true);
}
