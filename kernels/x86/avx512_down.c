// Down columns in fixed point: AVX-512 VNNI. All sums are integers, so any order is right.
//
// Column `w = s * q` times the multiplier m is `(m * s) * q`: the factor m * s of a group is cut
// into digits. A weight without a sign is q + 8 or w + 128.
#include "down512.h"

enum {
    // Columns of a pass, by fours: their sums of products stay far below 2^31.
    COLUMNS = 64,
    QUADS = COLUMNS / 4,
    // Groups of a pass, so that its factors stay in the first-level cache.
    GROUPS = 32,
};

// A dword for each digit: the digits of four columns.
typedef int32_t digit_row[DIGITS];

typedef struct {
    // A row for each group, or, of q8, for all groups.
    digit_row rows[QUADS][GROUPS] __attribute__((aligned(64)));
    // What the offset of the weights adds, a sum for each digit, below 0.
    digit_row bias[GROUPS] __attribute__((aligned(64)));
    // Digits that are not 0.
    int used;
} factor_table;

// Digits that factors up to `largest` need.
INLINE int digits_of(int64_t largest) {
    // 127 * (1 + 2^8), and 127 * (1 + 2^8 + 2^16).
    return largest <= 32639 ? 2 : largest <= 8355711 ? 3 : 4;
}

// The row of a group: four by four they are stored as a byte transpose leaves them.
INLINE size_t row_of(size_t group) {
    return (group & ~(size_t)15) + (group & 3) * 4 + (group >> 2 & 3);
}

// Multipliers of a pass, zero behind `count`; gives `count`, or the first that is out of range.
INLINE size_t multipliers(int32_t *m, const uint8_t *const *columns, size_t scale_at,
                          const float *activations, float per_unit, size_t count) {
    uint16_t halves[COLUMNS] __attribute__((aligned(64))) = {0};
    for (size_t i = 0; i < count; i++) {
        const uint8_t *at = columns[i] + scale_at; // at any address
        halves[i] = (uint16_t)(at[0] | at[1] << 8);
    }
    UNROLL for (size_t i = 0; i < COLUMNS; i += LANES) {
        __m512i some;
        __mmask16 bad = multipliers16(&some, activations + i, load_f16(halves, i), per_unit,
                                      i < count ? count - i : 0);
        if (bad != 0) {
            return i + (size_t)__builtin_ctz(bad);
        }
        _mm512_store_si512(m + i, some);
    }
    return count;
}

INLINE int32_t largest_of(const int32_t *m) {
    __m512i most = _mm512_setzero_si512();
    UNROLL for (size_t i = 0; i < COLUMNS; i += LANES) {
        most = _mm512_max_epi32(most, _mm512_abs_epi32(_mm512_load_si512(m + i)));
    }
    return _mm512_reduce_max_epi32(most);
}

// Digits of 16 groups of four columns, d[column], as rows of a table; `offset` times them is taken
// from `bias`.
INLINE void store_digits(digit_row *rows, __m512i *bias, const __m512i *d, __m512i offset) {
    __m512i ab_low = _mm512_unpacklo_epi8(d[0], d[1]), ab_high = _mm512_unpackhi_epi8(d[0], d[1]);
    __m512i cd_low = _mm512_unpacklo_epi8(d[2], d[3]), cd_high = _mm512_unpackhi_epi8(d[2], d[3]);
    // Register i holds groups i, i + 4, i + 8 and i + 12.
    __m512i fours[4] = {
        _mm512_unpacklo_epi16(ab_low, cd_low), _mm512_unpackhi_epi16(ab_low, cd_low),
        _mm512_unpacklo_epi16(ab_high, cd_high), _mm512_unpackhi_epi16(ab_high, cd_high)};
    UNROLL for (size_t i = 0; i < 4; i++) {
        _mm512_store_si512(rows[4 * i], fours[i]);
        bias[i] = dot4(bias[i], offset, fours[i]);
    }
}

INLINE void store_bias(digit_row *rows, const __m512i *bias) {
    UNROLL for (size_t i = 0; i < 4; i++) {
        _mm512_store_si512(rows[4 * i], _mm512_sub_epi32(_mm512_setzero_si512(), bias[i]));
    }
}

// Factors m * s of q4 columns for `count` groups, whose sub-scales start at byte `at`.
INLINE void q4_factors(factor_table *table, const uint8_t *const *columns, const int32_t *m,
                       size_t quads, size_t at, size_t count) {
    const __m512i offset = _mm512_set1_epi8(8);
    for (size_t group = 0; group < count; group += LANES) {
        size_t left = count - group;
        __mmask16 mask = left < LANES ? (__mmask16)((1u << left) - 1) : (__mmask16)0xffff;
        __m512i bias[4] = {0};
        for (size_t quad = 0; quad < quads; quad++) {
            __m512i d[4];
            UNROLL for (size_t c = 0; c < 4; c++) {
                const uint8_t *sub_scales = columns[4 * quad + c] + at + group;
                __m512i s = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, sub_scales));
                d[c] = digits(_mm512_mullo_epi32(s, _mm512_set1_epi32(m[4 * quad + c])));
            }
            store_digits(table->rows[quad] + group, bias, d, offset);
        }
        store_bias(table->bias + group, bias);
    }
}

// Factors m of q8 columns, the same for all groups.
INLINE void q8_factors(factor_table *table, const int32_t *m, size_t quads) {
    __m512i bias[4] = {0};
    for (size_t quad = 0; quad < quads; quad++) {
        __m512i d[4];
        UNROLL for (size_t c = 0; c < 4; c++) {
            d[c] = digits(_mm512_set1_epi32(m[4 * quad + c]));
        }
        store_digits(table->rows[quad], bias, d, _mm512_set1_epi8((char)128));
    }
    store_bias(table->bias, bias);
}

// 16 bytes of four columns, byte i of each in lane i.
INLINE __m512i gather_quad(const uint8_t *const *columns, size_t at) {
    return transpose_quad(load16(columns[0] + at), load16(columns[1] + at),
                          load16(columns[2] + at), load16(columns[3] + at));
}

// Adds the sums of the digits, d0 + d1 * 2^8 + ..., less a bias.
INLINE void add_digits(int64_t *sums, const __m512i *acc, int used, __m512i bias) {
    __m512i low = _mm512_add_epi32(acc[0], _mm512_slli_epi32(acc[1], 8)), high;
    if (used == 4) {
        high = _mm512_add_epi32(acc[2], _mm512_slli_epi32(acc[3], 8));
    } else {
        high = used == 3 ? acc[2] : _mm512_setzero_si512();
    }
    add_wide(sums, low, high, bias);
}

// The 32 outputs of one group; `row` is its row of the table.
INLINE void one_group(int64_t *sums, const uint8_t *const *columns, size_t quads,
                      const factor_table *table, fetch *ahead, size_t row, size_t at, int used,
                      bool q4) {
    __m512i low[DIGITS], high[DIGITS];
    UNROLL for (int k = 0; k < used; k++) {
        low[k] = high[k] = _mm512_set1_epi32(table->bias[row][k]);
        if (q4) {
            // High nibbles stay where they are: their sum is 16 times too large.
            high[k] = _mm512_slli_epi32(high[k], 4);
        }
    }
    for (size_t quad = 0; quad < quads; quad++) {
        const int32_t *factors = table->rows[quad][row];
        fetch_part(ahead);
        __m512i w = gather_quad(columns + 4 * quad, at), w_low, w_high;
        if (q4) {
            w_low = _mm512_and_si512(w, _mm512_set1_epi8(15));
            w_high = _mm512_and_si512(w, _mm512_set1_epi8((char)0xf0));
        } else {
            const __m512i sign = _mm512_set1_epi8((char)0x80);
            w_low = _mm512_xor_si512(w, sign);
            w_high = _mm512_xor_si512(gather_quad(columns + 4 * quad, at + 16), sign);
        }
        UNROLL for (int k = 0; k < used; k++) {
            low[k] = dot4_all(low[k], w_low, factors + k);
            high[k] = dot4_all(high[k], w_high, factors + k);
        }
    }
    if (q4) {
        UNROLL for (int k = 0; k < used; k++) {
            high[k] = _mm512_srai_epi32(high[k], 4);
        }
    }
    add_digits(sums, low, used, _mm512_setzero_si512());
    add_digits(sums + LANES, high, used, _mm512_setzero_si512());
}

// A pass over `count` groups from `first` on.
INLINE void all_groups(int64_t *sums, const uint8_t *const *columns, size_t quads,
                       const factor_table *table, fetch *ahead, size_t first, size_t count,
                       int used, bool q4) {
    for (size_t group = 0; group < count; group++) {
        size_t at = (first + group) * (q4 ? GROUP / 2 : GROUP);
        size_t row = q4 ? row_of(group) : 0;
        one_group(sums + group * GROUP, columns, quads, table, ahead, row, at, used, q4);
    }
}

INLINE void pass(int64_t *sums, const uint8_t *const *columns, size_t quads,
                 const factor_table *table, fetch *ahead, size_t first, size_t count, bool q4) {
    if (table->used == 2) {
        all_groups(sums, columns, quads, table, ahead, first, count, 2, q4);
    } else if (table->used == 3) {
        all_groups(sums, columns, quads, table, ahead, first, count, 3, q4);
    } else {
        all_groups(sums, columns, quads, table, ahead, first, count, 4, q4);
    }
}

INLINE size_t down(int64_t *sums, const uint8_t *const *columns, const float *activations,
                   float per_unit, size_t count, const gk_soon *soon, size_t groups, bool q4) {
    fetch ahead = fetch_in(soon, (count + 3) / 4 * groups + 1);
    const uint8_t *padded[COLUMNS];
    int32_t m[COLUMNS] __attribute__((aligned(64)));
    factor_table table;
    for (size_t done = 0; done < count; done += COLUMNS) {
        size_t now = count - done < COLUMNS ? count - done : COLUMNS;
        size_t scale_at = groups * (q4 ? GROUP / 2 + 1 : GROUP);
        size_t good =
            multipliers(m, columns + done, scale_at, activations + done, per_unit, now);
        if (good < now) {
            return done + good;
        }
        // The last column stands in for those that are missing, times 0.
        for (size_t i = 0; i < COLUMNS; i++) {
            padded[i] = columns[done + (i < now ? i : now - 1)];
        }
        size_t quads = (now + 3) / 4;
        // |s| is at most 15.
        table.used = digits_of((q4 ? 15 : 1) * (int64_t)largest_of(m));
        for (size_t first = 0; first < groups; first += GROUPS) {
            size_t some = groups - first < GROUPS ? groups - first : GROUPS;
            if (q4) {
                q4_factors(&table, padded, m, quads, groups * GROUP / 2 + first, some);
            } else {
                q8_factors(&table, m, quads);
            }
            pass(sums + first * GROUP, padded, quads, &table, &ahead, first, some, q4);
        }
    }
    return count;
}

size_t gk_columns_i64_q8_f32_avx512(int64_t *sums, const uint8_t *const *columns,
                                    const float *activations, float per_unit, size_t count,
                                    const gk_soon *soon, size_t groups) {
    return down(sums, columns, activations, per_unit, count, soon, groups, false);
}

size_t gk_columns_i64_q4_f32_avx512(int64_t *sums, const uint8_t *const *columns,
                                    const float *activations, float per_unit, size_t count,
                                    const gk_soon *soon, size_t groups) {
    return down(sums, columns, activations, per_unit, count, soon, groups, true);
}
