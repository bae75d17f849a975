// The integer weights of q4 columns, by sub-scale and nibble.
#ifndef GANGLION_X86_PRODUCTS_H
#define GANGLION_X86_PRODUCTS_H

#include <stdint.h>

// Row s & 31 holds s * (nibble - 8) for the 16 nibbles; s is in -15..=15.
#define ROW(s)                                                                                     \
    {-8 * (s), -7 * (s), -6 * (s), -5 * (s), -4 * (s), -3 * (s), -2 * (s), -1 * (s),               \
     0,        1 * (s),  2 * (s),  3 * (s),  4 * (s),  5 * (s),  6 * (s),  7 * (s)}
static const int8_t products[32][16] __attribute__((aligned(16))) = {
    ROW(0),   ROW(1),   ROW(2),   ROW(3),   ROW(4),   ROW(5),   ROW(6),   ROW(7),
    ROW(8),   ROW(9),   ROW(10),  ROW(11),  ROW(12),  ROW(13),  ROW(14),  ROW(15),
    ROW(0),   ROW(-15), ROW(-14), ROW(-13), ROW(-12), ROW(-11), ROW(-10), ROW(-9),
    ROW(-8),  ROW(-7),  ROW(-6),  ROW(-5),  ROW(-4),  ROW(-3),  ROW(-2),  ROW(-1),
};
#undef ROW

#endif
