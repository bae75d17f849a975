// Down columns of many neurons for many tokens, group by group. Included behind the header of an
// instruction set.
//
// m = h * 2^16 + l with l and h in 16 bits. The weights of a group of outputs are widened to 16
// bits once for all tokens: those of 256 neurons make a tile of 16 KiB that stays in the
// first-level cache. A chunk of 256 neurons keeps the sums below 2^31: 256 * 2^15 * 127.
//
// The file that includes this one gives `widen` and `multiply`; code_bytes and `shift` are
// compile-time constants.
#ifndef GANGLION_BATCH_H
#define GANGLION_BATCH_H

#include "ganglion.h"

// Neurons of a chunk, tokens that share registers, 16-bit factors of a token.
enum { NEURONS = 256, TOKENS = 3, FACTORS = 2 * NEURONS };

// The weights of a group, pair after pair.
INLINE void widen(int16_t *tile, const uint8_t *const *columns, size_t pairs, size_t group,
                  size_t groups, int code_bytes);

// A tile times the factors of three tokens, shifted left, added to the sums of the `tokens` of them
// that are there.
INLINE void multiply(int64_t *sums, size_t sums_stride, const uint32_t *at, const int16_t *tile,
                     size_t pairs, const int16_t *factors, size_t tokens, int shift);

INLINE void batch(int64_t *sums, size_t sums_stride, const uint32_t *at, int16_t *tile,
                  const uint8_t *const *columns, size_t pairs, const int16_t *factors,
                  const gk_about *about, size_t tokens, size_t groups, int code_bytes) {
    for (size_t group = 0; group < groups; group++, sums += GROUP) {
        widen(tile, columns, pairs, group, groups, code_bytes);
        for (size_t t = 0; t < tokens; t += TOKENS) {
            size_t count = tokens - t < TOKENS ? tokens - t : TOKENS;
            bool split = false;
            for (size_t i = 0; i < count; i++) {
                split |= about[t + i].wide != 0;
            }
            const int16_t *low = factors + t * FACTORS;
            multiply(sums, sums_stride, at + t, tile, pairs, low, count, 0);
            if (split) {
                multiply(sums, sums_stride, at + t, tile, pairs, low + NEURONS, count, 16);
            }
        }
    }
}

#endif
