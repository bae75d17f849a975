// Quantised rows times a quantised activation on aarch64: everything but the exact sums of groups.
//
// The file that includes this one gives q8_sums and q4_sums. They add, for the four groups at byte
// `at` of each row's band and of the codes, the products of each group to a lane of sums[r]; the
// band has `width` groups. q4_sums takes nibbles as they are stored, 8 too large: its sums start at
// -8 times the activation's own sum, the bias.
//
// A quarter of a band is four groups: one register, a lane a group. Several rows share each load of
// the activation.
#ifndef GANGLION_ARM_ROWS_H
#define GANGLION_ARM_ROWS_H

#include "neon.h"
#include "list.h"

// Rows in flight, groups whose bias is kept from row to row (a multiple of LANES), a cache line.
enum { ROWS = 4, BIAS_GROUPS = 1024, LINE = 64 };

INLINE void q8_sums(int32x4_t sums[ROWS], int count, int width, const uint8_t *const rows[ROWS],
                    const int8_t *codes, int at);
INLINE void q4_sums(int32x4_t sums[ROWS], int count, int width, const uint8_t *const rows[ROWS],
                    const int8_t *codes, int at);

// bias[groups] = -8 * the sum of each group of codes.
INLINE void fill_bias(int32_t *bias, const int8_t *codes, size_t groups) {
    for (size_t first = 0; first < groups; first += LANES) {
        size_t width = groups - first < LANES ? groups - first : LANES;
        for (size_t lane = 0; lane < width; lane += 4) {
            // A 16-bit lane adds 16 codes: at most 16 * 127.
            int16x8_t sum = vdupq_n_s16(0);
            UNROLL for (size_t step = 0; step < 8; step++) {
                const int8_t *at = codes + first * GROUP + (step * width + lane) * 4;
                sum = vpadalq_s8(sum, vld1q_s8(at));
            }
            vst1q_s32(bias + first + lane, vmulq_n_s32(vpaddlq_s16(sum), -8));
        }
    }
}

// One band of `width` groups of `count` rows; width, count and code_bytes are compile-time
// constants.
INLINE void band(float32x4_t partials[ROWS][QUARTERS], int count, int width, int code_bytes,
                 const uint8_t *const rows[ROWS], const int8_t *codes, const float *scales,
                 const int32_t *bias) {
    UNROLL for (int quarter = 0; 4 * quarter < width; quarter++) {
        int32x4_t sums[ROWS];
        UNROLL for (int r = 0; r < count; r++) {
            sums[r] = code_bytes < GROUP ? vld1q_s32(bias + 4 * quarter) : vdupq_n_s32(0);
        }
        if (code_bytes < GROUP) {
            q4_sums(sums, count, width, rows, codes, 16 * quarter);
        } else {
            q8_sums(sums, count, width, rows, codes, 16 * quarter);
        }
        float32x4_t x_scales = vld1q_f32(scales + 4 * quarter);
        UNROLL for (int r = 0; r < count; r++) {
            const uint8_t *row_scales = rows[r] + width * code_bytes + 8 * quarter;
            float32x4_t scale = vmulq_f32(load_f16(row_scales, 0), x_scales);
            float32x4_t term = vmulq_f32(vcvtq_f32_s32(sums[r]), scale);
            partials[r][quarter] = vaddq_f32(partials[r][quarter], term);
        }
    }
}

// Asks for the same band of the rows ahead[r] bytes further on. Nothing faults if there are none.
INLINE void prefetch(int count, int bytes, const uint8_t *const rows[ROWS],
                     const size_t *ahead) {
    UNROLL for (int r = 0; r < count; r++) {
        uintptr_t at = (uintptr_t)rows[r] + ahead[r];
        UNROLL for (int line = 0; line < bytes; line += LINE) {
            __builtin_prefetch((const void *)(at + (size_t)line));
        }
    }
}

// Bytes from row `i` of a list to the one that takes its place in the next turn, or to itself.
INLINE size_t list_ahead(const uint8_t *const *list, size_t i, size_t count) {
    return i + ROWS < count ? (uintptr_t)list[i + ROWS] - (uintptr_t)list[i] : 0;
}

// Dot products of `count` rows. `bias` holds that of all groups, or room for BIAS_GROUPS of them if
// there are more.
INLINE void dot_rows(float *out, int count, int code_bytes, const uint8_t *const *first,
                     const size_t *ahead, const int8_t *codes, const float *scales,
                     size_t groups, int32_t *bias) {
    const bool refill = code_bytes < GROUP && groups > BIAS_GROUPS;
    const uint8_t *rows[ROWS];
    float32x4_t partials[ROWS][QUARTERS];
    UNROLL for (int r = 0; r < count; r++) {
        rows[r] = first[r];
        // A pointer of its own: addresses made of a stride would need too many registers.
        __asm__("" : "+r"(rows[r]));
        UNROLL for (int quarter = 0; quarter < QUARTERS; quarter++) {
            partials[r][quarter] = vdupq_n_f32(0.0f);
        }
    }
#define BAND(width)                                                                                \
    band(partials, count, width, code_bytes, rows, codes, scales, bias + at);                      \
    UNROLL for (int r = 0; r < count; r++) {                                                       \
        rows[r] += (width) * (code_bytes + 2);                                                     \
    }                                                                                              \
    codes += (width) * GROUP;                                                                      \
    scales += (width);
    while (groups > 0) {
        size_t chunk = groups < BIAS_GROUPS ? groups : BIAS_GROUPS, at = 0;
        groups -= chunk;
        if (refill) {
            fill_bias(bias, codes, chunk);
        }
        for (; at + LANES <= chunk; at += LANES) {
            if (count > 1) {
                prefetch(count, LANES * (code_bytes + 2), rows, ahead);
            }
            BAND(LANES)
        }
        switch (chunk - at) {
        case 4:
            BAND(4)
            break;
        case 8:
            BAND(8)
            break;
        case 12:
            BAND(12)
            break;
        }
    }
#undef BAND
    UNROLL for (int r = 0; r < count; r++) {
        out[r] = tree(partials[r]);
    }
}

// Rows of a list, or, where that is null, of a block.
INLINE void quantized(float *out, size_t count, int code_bytes, const uint8_t *const *list,
                      const uint8_t *block, size_t stride, const int8_t *codes,
                      const float *scales, size_t groups) {
    int32_t bias[BIAS_GROUPS];
    if (code_bytes < GROUP && groups <= BIAS_GROUPS) {
        fill_bias(bias, codes, groups);
    }
    size_t i = 0;
    for (; i + ROWS <= count; i += ROWS) {
        const uint8_t *rows[ROWS];
        size_t ahead[ROWS];
        UNROLL for (size_t r = 0; r < ROWS; r++) {
            rows[r] = row_at(list, block, stride, i + r);
            ahead[r] = list == NULL ? ROWS * stride : list_ahead(list, i + r, count);
        }
        dot_rows(out + i, ROWS, code_bytes, rows, ahead, codes, scales, groups, bias);
    }
    for (; i < count; i++) {
        const uint8_t *row = row_at(list, block, stride, i);
        dot_rows(out + i, 1, code_bytes, &row, NULL, codes, scales, groups, bias);
    }
}

#endif
