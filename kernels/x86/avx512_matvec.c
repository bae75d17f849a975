// Rows of weights times an activation: AVX-512 VNNI.
//
// vpdpbusd multiplies bytes without a sign by bytes with one, so weights are stored or made
// w + offset, and offset times the sum of the group's codes is taken off: integers, so exact.
#include "avx512.h"

enum { ROWS = 4, AHEAD_BYTES = 8192 };

// One band of `count` rows, at byte `at` of each; `width` is 16, or a number not known at compile
// time.
INLINE void band(__m512 *partials, int count, int code_bytes, const uint8_t *const *rows, size_t at,
                 const int8_t *codes, const float *scales, size_t width) {
    const __m512i nibble = _mm512_set1_epi8(15), high_nibble = _mm512_set1_epi8((char)0xf0);
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    const __m512i offset = code_bytes == GROUP ? sign : _mm512_set1_epi8(8);
    __m512i x[8], bias = _mm512_setzero_si512();
    UNROLL for (size_t step = 0; step < 8; step++) {
        x[step] = load_lanes(codes + step * width * 4, width);
        bias = dot4(bias, offset, x[step]);
    }
    __m512 x_scales = _mm512_castsi512_ps(load_lanes(scales, width));
    UNROLL for (int r = 0; r < count; r++) {
        const uint8_t *row = rows[r] + at;
        __m512i sum = _mm512_setzero_si512(), second = _mm512_setzero_si512();
        if (code_bytes == GROUP) {
            UNROLL for (size_t step = 0; step < 8; step += 2) {
                __m512i w0 = load_lanes(row + step * width * 4, width);
                __m512i w1 = load_lanes(row + (step + 1) * width * 4, width);
                sum = dot4(sum, _mm512_xor_si512(w0, sign), x[step]);
                second = dot4(second, _mm512_xor_si512(w1, sign), x[step + 1]);
            }
        } else {
            // High nibbles stay where they are: their sum is 16 times too large.
            UNROLL for (size_t step = 0; step < 4; step++) {
                __m512i w = load_lanes(row + step * width * 4, width);
                sum = dot4(sum, _mm512_and_si512(w, nibble), x[step]);
                second =
                    dot4(second, _mm512_and_si512(w, high_nibble), x[step + 4]);
            }
            second = _mm512_srai_epi32(second, 4);
        }
        __m512i exact = _mm512_sub_epi32(_mm512_add_epi32(sum, second), bias);
        __m512 w_scales = load_scales(row + width * (size_t)code_bytes, width);
        __m512 scale = _mm512_mul_ps(w_scales, x_scales);
        partials[r] =
            _mm512_add_ps(partials[r], _mm512_mul_ps(_mm512_cvtepi32_ps(exact), scale));
    }
}

// Scales of a narrow band of four rows, row after row.
INLINE __m512 narrow_scales(const uint8_t *const *rows, size_t at) {
    __m128i v[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        v[r] = _mm_loadl_epi64((const __m128i *)(const void *)(rows[r] + at));
    }
    __m128i low = _mm_unpacklo_epi64(v[0], v[1]), high = _mm_unpacklo_epi64(v[2], v[3]);
    return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
}

// A last band of four groups of four rows. A register holds four steps of the groups, so two are a
// row, and the four lanes of four rows make one register.
INLINE void narrow_band(__m512 *partials, int code_bytes, const uint8_t *const *rows, size_t at,
                        const int8_t *codes, const float *scales) {
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    const __m512i offset = code_bytes == GROUP ? sign : _mm512_set1_epi8(8);
    __m512i x0 = _mm512_loadu_si512(codes), x1 = _mm512_loadu_si512(codes + 64);
    __m512i bias = dot4(dot4(_mm512_setzero_si512(), offset, x0), offset, x1);
    __m512i products[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        __m512i w = _mm512_loadu_si512(rows[r] + at), sum = _mm512_setzero_si512();
        if (code_bytes == GROUP) {
            __m512i w1 = _mm512_loadu_si512(rows[r] + at + 64);
            sum = dot4(dot4(sum, _mm512_xor_si512(w, sign), x0), _mm512_xor_si512(w1, sign), x1);
        } else {
            // As above: high nibbles stay where they are.
            __m512i second =
                dot4(sum, _mm512_and_si512(w, _mm512_set1_epi8((char)0xf0)), x1);
            sum = dot4(sum, _mm512_and_si512(w, _mm512_set1_epi8(15)), x0);
            sum = _mm512_add_epi32(sum, _mm512_srai_epi32(second, 4));
        }
        products[r] = _mm512_sub_epi32(sum, bias);
    }
    __m512 scale = _mm512_mul_ps(narrow_scales(rows, at + 4 * (size_t)code_bytes),
                                 _mm512_broadcast_f32x4(_mm_loadu_ps(scales)));
    __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(add_quarters(products)), scale);
    __m128 quarters[ROWS] = {_mm512_castps512_ps128(scaled), _mm512_extractf32x4_ps(scaled, 1),
                             _mm512_extractf32x4_ps(scaled, 2), _mm512_extractf32x4_ps(scaled, 3)};
    UNROLL for (int r = 0; r < ROWS; r++) {
        partials[r] = _mm512_mask_add_ps(partials[r], 15, partials[r],
                                         _mm512_castps128_ps512(quarters[r]));
    }
}

// Asks for `bytes` at `at` of each of four rows, or, where there are none, for the next part of
// what is needed soon.
INLINE void fetch_band(const uint8_t *const *next, fetch *ahead, size_t at, size_t bytes) {
    if (next == NULL) {
        fetch_part(ahead);
        return;
    }
    for (size_t line = 0; line < bytes; line += 64) {
        UNROLL for (int r = 0; r < ROWS; r++) {
            _mm_prefetch((const char *)next[r] + at + line, _MM_HINT_T0);
        }
    }
}

// Partial sums of `count` rows; `code_bytes` a group is 32 for q8 and 16 for q4.
INLINE void quantized_rows(__m512 *partials, int count, int code_bytes, const uint8_t *const *rows,
                           const uint8_t *const *next, fetch *ahead, const int8_t *codes,
                           const float *scales, size_t groups) {
    const size_t group_bytes = (size_t)code_bytes + 2;
    UNROLL for (int r = 0; r < count; r++) {
        partials[r] = _mm512_setzero_ps();
    }
    size_t group = 0;
    for (; group + LANES <= groups; group += LANES) {
        fetch_band(next, ahead, group * group_bytes, LANES * group_bytes);
        band(partials, count, code_bytes, rows, group * group_bytes, codes + group * GROUP,
             scales + group, LANES);
    }
    size_t at = group * group_bytes, left = groups - group;
    codes += group * GROUP;
    scales += group;
    if (left > 0) {
        fetch_band(next, ahead, at, left * group_bytes);
    }
    if (left == 4 && count == ROWS) {
        narrow_band(partials, code_bytes, rows, at, codes, scales);
    } else if (left > 0) {
        band(partials, count, code_bytes, rows, at, codes, scales, left);
    }
}

// Where rows lie: spaced equally, anywhere, or gate and up row of records in turn.
typedef enum { BLOCK, LIST, RECORDS } place;

typedef struct {
    place kind;
    const uint8_t *const *list;
    const uint8_t *first;
    // Bytes from one row of a block to the next, and from a record's gate row to its up row.
    size_t stride, up;
} source;

INLINE const uint8_t *row_at(const source *s, size_t i) {
    switch (s->kind) {
    case LIST:
        return s->list[i];
    case RECORDS:
        return s->list[i / 2] + i % 2 * s->up;
    default:
        return s->first + i * s->stride;
    }
}

// The rows that lie AHEAD_BYTES behind row i and the three after it. Of a block they may be behind
// the last one: asking for memory reads nothing, and often more rows follow there.
INLINE void rows_ahead(const uint8_t **next, const source *s, size_t i, size_t count,
                       size_t row_bytes) {
    size_t behind = i + ROWS * (1 + AHEAD_BYTES / (ROWS * row_bytes + 1));
    UNROLL for (size_t r = 0; r < ROWS; r++) {
        next[r] = s->kind == LIST ? s->list[behind + r < count ? behind + r : i]
                                  : s->first + (behind + r) * s->stride;
    }
}

// out[i] = row i . x; of records, the gate's into `out` and the up's into `ups`.
INLINE void quantized(float *out, float *ups, const source *s, size_t count, fetch *ahead,
                      int code_bytes, const int8_t *codes, const float *scales, size_t groups) {
    size_t i = 0, row_bytes = groups * ((size_t)code_bytes + 2);
    __m512 partials[ROWS];
    for (; i + ROWS <= count; i += ROWS) {
        const uint8_t *rows[ROWS], *next[ROWS];
        UNROLL for (size_t r = 0; r < ROWS; r++) {
            rows[r] = row_at(s, i + r);
        }
        if (s->kind != RECORDS) {
            rows_ahead(next, s, i, count, row_bytes);
        }
        quantized_rows(partials, ROWS, code_bytes, rows, s->kind == RECORDS ? NULL : next, ahead,
                       codes, scales, groups);
        __m128 sums = tree4(partials);
        if (s->kind == RECORDS) {
            __m128 split = _mm_permute_ps(sums, 0xd8); // gates, then ups
            _mm_storel_pi((__m64 *)(void *)(out + i / 2), split);
            _mm_storeh_pi((__m64 *)(void *)(ups + i / 2), split);
        } else {
            _mm_storeu_ps(out + i, sums);
        }
    }
    for (; i < count; i++) {
        const uint8_t *row = row_at(s, i);
        quantized_rows(partials, 1, code_bytes, &row, NULL, ahead, codes, scales, groups);
        *(s->kind != RECORDS ? out + i : i % 2 == 0 ? out + i / 2 : ups + i / 2) =
            tree(partials[0]);
    }
}

static const gk_soon nothing = {0};

INLINE void block(float *out, size_t count, int code_bytes, const uint8_t *rows, size_t stride,
                  const int8_t *codes, const float *scales, size_t groups) {
    source s = {.kind = BLOCK, .first = rows, .stride = stride};
    fetch none = fetch_in(&nothing, 1);
    quantized(out, NULL, &s, count, &none, code_bytes, codes, scales, groups);
}

void gk_matvec_f32_q8_q8_avx512(float *out, size_t count, const uint8_t *rows, size_t stride,
                                const int8_t *codes, const float *scales, size_t groups) {
    block(out, count, GROUP, rows, stride, codes, scales, groups);
}

void gk_matvec_f32_q4_q8_avx512(float *out, size_t count, const uint8_t *rows, size_t stride,
                                const int8_t *codes, const float *scales, size_t groups) {
    block(out, count, GROUP / 2, rows, stride, codes, scales, groups);
}

INLINE void listed(float *out, size_t count, int code_bytes, const uint8_t *const *rows,
                   const int8_t *codes, const float *scales, size_t groups) {
    source s = {.kind = LIST, .list = rows};
    fetch none = fetch_in(&nothing, 1);
    quantized(out, NULL, &s, count, &none, code_bytes, codes, scales, groups);
}

void gk_rows_f32_q8_q8_avx512(float *out, size_t count, const uint8_t *const *rows,
                              const int8_t *codes, const float *scales, size_t groups) {
    listed(out, count, GROUP, rows, codes, scales, groups);
}

void gk_rows_f32_q4_q8_avx512(float *out, size_t count, const uint8_t *const *rows,
                              const int8_t *codes, const float *scales, size_t groups) {
    listed(out, count, GROUP / 2, rows, codes, scales, groups);
}

INLINE void gateup(float *gates, float *ups, size_t count, int code_bytes,
                   const uint8_t *const *records, size_t up, const gk_soon *soon,
                   const int8_t *codes, const float *scales, size_t groups) {
    source s = {.kind = RECORDS, .list = records, .up = up};
    size_t steps = (count + 1) / 2 * ((groups + LANES - 1) / LANES);
    fetch ahead = fetch_in(soon, steps);
    quantized(gates, ups, &s, 2 * count, &ahead, code_bytes, codes, scales, groups);
}

void gk_gateup_f32_q8_q8_avx512(float *gates, float *ups, size_t count,
                                const uint8_t *const *records, size_t up, const gk_soon *soon,
                                const int8_t *codes, const float *scales, size_t groups) {
    gateup(gates, ups, count, GROUP, records, up, soon, codes, scales, groups);
}

void gk_gateup_f32_q4_q8_avx512(float *gates, float *ups, size_t count,
                                const uint8_t *const *records, size_t up, const gk_soon *soon,
                                const int8_t *codes, const float *scales, size_t groups) {
    gateup(gates, ups, count, GROUP / 2, records, up, soon, codes, scales, groups);
}

INLINE void f16_rows(float *out, int count, const uint8_t *const *rows,
                     const uint8_t *const *next, const float *x, size_t len) {
    __m512 partials[ROWS];
    UNROLL for (int r = 0; r < count; r++) {
        partials[r] = _mm512_setzero_ps();
    }
    for (size_t i = 0; i < len; i += LANES) {
        __m512 x16 = _mm512_loadu_ps(x + i);
        if (i % (2 * LANES) == 0) {
            UNROLL for (int r = 0; r < count; r++) {
                _mm_prefetch((const char *)next[r] + 2 * i, _MM_HINT_T0);
            }
        }
        UNROLL for (int r = 0; r < count; r++) {
            partials[r] = _mm512_add_ps(partials[r], _mm512_mul_ps(load_f16(rows[r], i), x16));
        }
    }
    UNROLL for (int r = 0; r < count; r++) {
        out[r] = tree(partials[r]);
    }
}

INLINE void f16(float *out, size_t count, const uint8_t *const *list, const uint8_t *block,
                size_t stride, const float *x, size_t len) {
    size_t i = 0, ahead = ROWS * (1 + AHEAD_BYTES / (ROWS * 2 * len + 1));
    for (; i + ROWS <= count; i += ROWS) {
        const uint8_t *rows[ROWS], *next[ROWS];
        UNROLL for (size_t r = 0; r < ROWS; r++) {
            size_t behind = i + ahead + r;
            rows[r] = list != NULL ? list[i + r] : block + (i + r) * stride;
            const uint8_t *far = list != NULL && behind < count ? list[behind] : rows[r];
            next[r] = list == NULL && behind < count ? block + behind * stride : far;
        }
        f16_rows(out + i, ROWS, rows, next, x, len);
    }
    for (; i < count; i++) {
        const uint8_t *row = list != NULL ? list[i] : block + i * stride;
        f16_rows(out + i, 1, &row, &row, x, len);
    }
}

void gk_matvec_f32_f16_f32_avx512(float *out, size_t count, const uint8_t *rows, size_t stride,
                                  const float *x, size_t len) {
    f16(out, count, NULL, rows, stride, x, len);
}

void gk_rows_f32_f16_f32_avx512(float *out, size_t count, const uint8_t *const *rows,
                                const float *x, size_t len) {
    f16(out, count, rows, NULL, 0, x, len);
}
