// The integer weights of down columns on aarch64.
#ifndef GANGLION_ARM_DOWN_H
#define GANGLION_ARM_DOWN_H

#include "neon.h"

// The 32 integer weights of a group.
typedef struct {
    int8x16_t low, high;
} weights;

INLINE weights q8_weights(const uint8_t *column, size_t group) {
    const uint8_t *codes = column + group * GROUP;
    return (weights){vreinterpretq_s8_u8(vld1q_u8(codes)),
                     vreinterpretq_s8_u8(vld1q_u8(codes + 16))};
}

// Nibbles look up their product with the sub-scale, -15..=15: at most 120.
INLINE weights q4_weights(const uint8_t *column, size_t group, size_t groups) {
    static const int8_t values[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    int8_t sub_scale = (int8_t)column[groups * GROUP / 2 + group];
    int8x16_t table = vmulq_s8(vld1q_s8(values), vdupq_n_s8(sub_scale));
    uint8x16_t nibbles = vld1q_u8(column + group * GROUP / 2);
    return (weights){vqtbl1q_s8(table, vandq_u8(nibbles, vdupq_n_u8(15))),
                     vqtbl1q_s8(table, vshrq_n_u8(nibbles, 4))};
}

INLINE weights group_weights(const uint8_t *column, size_t group, size_t groups, int code_bytes) {
    return code_bytes == GROUP ? q8_weights(column, group) : q4_weights(column, group, groups);
}

#endif
