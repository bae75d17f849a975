// The weights of two down columns as pairs of 16 bits: AVX-512.
#ifndef GANGLION_X86_DOWN512_H
#define GANGLION_X86_DOWN512_H

#include "avx512.h"
#include "products.h"

INLINE __m128i load16(const uint8_t *at) {
    return _mm_loadu_si128((const __m128i *)at);
}

// 16 lanes of (a, b), 16 bits each.
INLINE __m512i interleave(__m128i a, __m128i b) {
    __m256i low = _mm256_castsi128_si256(_mm_unpacklo_epi8(a, b));
    return _mm512_cvtepi8_epi16(_mm256_inserti128_si256(low, _mm_unpackhi_epi8(a, b), 1));
}

// The 32 integer weights of a q4 group, low nibbles first.
INLINE __m256i weights32(const uint8_t *column, size_t group, size_t groups) {
    uint8_t sub_scale = column[groups * GROUP / 2 + group];
    __m256i table = _mm256_broadcastsi128_si256(
        _mm_load_si128((const __m128i *)(const void *)products[sub_scale & 31]));
    __m128i nibbles = load16(column + group * GROUP / 2);
    __m256i both =
        _mm256_inserti128_si256(_mm256_castsi128_si256(nibbles), _mm_srli_epi16(nibbles, 4), 1);
    return _mm256_shuffle_epi8(table, _mm256_and_si256(both, _mm256_set1_epi8(15)));
}

// The weights of a group of two columns, (a, b) in each lane: outputs 0..16 and 16..32.
INLINE void weight_pairs(__m512i *w, const uint8_t *a, const uint8_t *b, size_t group,
                         size_t groups, bool q4) {
    if (q4) {
        __m256i wa = weights32(a, group, groups), wb = weights32(b, group, groups);
        w[0] = interleave(_mm256_castsi256_si128(wa), _mm256_castsi256_si128(wb));
        w[1] = interleave(_mm256_extracti128_si256(wa, 1), _mm256_extracti128_si256(wb, 1));
    } else {
        size_t at = group * GROUP;
        w[0] = interleave(load16(a + at), load16(b + at));
        w[1] = interleave(load16(a + at + 16), load16(b + at + 16));
    }
}

#endif
