// Attention on aarch64, block of keys by block of keys, of one query or of four at a time.
//
// The file that includes this one gives one_block and four_block; `half` is a compile-time
// constant.
#ifndef GANGLION_ATTEND_H
#define GANGLION_ATTEND_H

#include "ganglion.h"

enum { KEY_BLOCK = 32, QUERIES = 4 };

// The softmax of a query so far.
typedef struct {
    float max, total;
} state;

// A block of up to 32 keys but for the first `unseen`, from element `at` on, for one query.
INLINE void one_block(float *out, state *s, const float *q, const void *keys, const void *values,
                      size_t at, size_t unseen, size_t block, size_t dim, float scale, bool half);

// A block of 32 keys that all four queries see.
INLINE void four_block(float *const *out, state *states, const float *const *q, const void *keys,
                       const void *values, size_t at, size_t dim, float scale, bool half);

INLINE void begin(float *out, state *s, size_t dim) {
    *s = (state){.max = -__builtin_inff(), .total = 0.0f};
    for (size_t i = 0; i < dim; i++) {
        out[i] = 0.0f;
    }
}

INLINE void finish(float *out, const state *s, size_t dim) {
    for (size_t i = 0; i < dim; i++) {
        out[i] /= s->total;
    }
}

// One query over the keys from `first` on, but for `unseen` of them.
INLINE void one_query(float *out, state *s, const float *q, const void *keys, const void *values,
                      size_t first, size_t unseen, size_t count, size_t dim, float scale,
                      bool half) {
    for (; first < count; first += KEY_BLOCK, unseen = 0) {
        size_t block = count - first < KEY_BLOCK ? count - first : KEY_BLOCK;
        one_block(out, s, q, keys, values, first * dim, unseen, block, dim, scale, half);
    }
}

INLINE void attend(float *out, const float *q, const void *keys, const void *values,
                   size_t unseen, size_t count, size_t dim, float scale, bool half) {
    state s;
    begin(out, &s, dim);
    one_query(out, &s, q, keys, values, 0, unseen, count, dim, scale, half);
    finish(out, &s, dim);
}

INLINE void attend_block(float *out, size_t out_stride, const float *q, size_t q_stride,
                         size_t positions, size_t group, const void *keys, const void *values,
                         size_t first, size_t dim, float scale, bool half) {
    size_t queries = positions * group;
    for (size_t i = 0; i < queries; i += QUERIES) {
        size_t some = queries - i < QUERIES ? queries - i : QUERIES;
        const float *q_at[QUERIES];
        float *out_at[QUERIES];
        size_t count[QUERIES];
        state states[QUERIES];
        for (size_t h = 0; h < some; h++) {
            size_t position = (i + h) / group, head = (i + h) % group;
            q_at[h] = q + position * q_stride + head * dim;
            out_at[h] = out + position * out_stride + head * dim;
            count[h] = first + position;
            begin(out_at[h], &states[h], dim);
        }
        size_t key = 0;
        for (; some == QUERIES && key + KEY_BLOCK <= count[0]; key += KEY_BLOCK) {
            four_block(out_at, states, q_at, keys, values, key * dim, dim, scale, half);
        }
        for (size_t h = 0; h < some; h++) {
            one_query(out_at[h], &states[h], q_at[h], keys, values, key, 0, count[h], dim, scale,
                      half);
            finish(out_at[h], &states[h], dim);
        }
    }
}

#endif
