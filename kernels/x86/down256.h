// The weights of two down columns as pairs of 16 bits: AVX2.
#ifndef GANGLION_X86_DOWN256_H
#define GANGLION_X86_DOWN256_H

#include "avx2.h"
#include "products.h"

INLINE __m128i load16(const uint8_t *at) {
    return _mm_loadu_si128((const __m128i *)at);
}

// The 32 integer weights of a group.
typedef struct {
    __m128i low, high;
} weights;

// Nibbles look up their product with the sub-scale.
INLINE weights q4_weights(const uint8_t *column, size_t group, size_t groups) {
    const __m128i mask = _mm_set1_epi8(15);
    uint8_t sub_scale = column[groups * GROUP / 2 + group];
    __m128i table = _mm_load_si128((const __m128i *)products[sub_scale & 31]);
    __m128i nibbles = load16(column + group * GROUP / 2);
    return (weights){_mm_shuffle_epi8(table, _mm_and_si128(nibbles, mask)),
                     _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(nibbles, 4), mask))};
}

INLINE weights group_weights(const uint8_t *column, size_t group, size_t groups, int code_bytes) {
    if (code_bytes < GROUP) {
        return q4_weights(column, group, groups);
    }
    return (weights){load16(column + group * GROUP), load16(column + group * GROUP + 16)};
}

// (a, b) of 16 outputs, eight a register.
INLINE void interleave(__m256i to[2], __m128i a, __m128i b) {
    to[0] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b));
    to[1] = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b));
}

// The weights of a group of two columns: eight outputs a register.
INLINE void weight_pairs(__m256i to[4], const uint8_t *const columns[2], size_t group,
                         size_t groups, int code_bytes) {
    weights a = group_weights(columns[0], group, groups, code_bytes);
    weights b = group_weights(columns[1], group, groups, code_bytes);
    interleave(to, a.low, b.low);
    interleave(to + 2, a.high, b.high);
}

#endif
