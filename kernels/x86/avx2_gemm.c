// Rows of weights times a batch of activations: AVX2.
//
// Half a band of four rows is unpacked once for 16 tokens; a lane is a group. vpmaddubsw multiplies
// bytes without a sign by bytes with one: |w| by x with the sign of w.
#include "avx2.h"
#include "tile.h"

enum { ROWS = 4, TOKENS = 16, STEPS = 8 };

// Eight groups (or the last four) of a tile's rows.
typedef struct {
    __m256i codes[STEPS][ROWS], magnitudes[STEPS][ROWS];
    __m256 scales[ROWS];
} half_band;

// Groups from lane `lane` on of the bands of `width` groups at byte `band` of the rows.
INLINE void unpack(half_band *to, const tile *t, size_t band, size_t lane, size_t width, int lanes,
                   int code_bytes) {
    const __m256i nibble = _mm256_set1_epi8(15), eights = _mm256_set1_epi8(8);
    for (size_t r = 0; r < ROWS; r++) {
        const uint8_t *row = row_of(t, r) + band, *at = row + lane * 4;
        if (code_bytes == GROUP) {
            UNROLL for (size_t step = 0; step < STEPS; step++) {
                to->codes[step][r] = load_codes(at + step * width * 4, lanes);
            }
        } else {
            UNROLL for (size_t step = 0; step < STEPS / 2; step++) {
                __m256i w = load_codes(at + step * width * 4, lanes);
                __m256i low = _mm256_and_si256(w, nibble);
                __m256i high = _mm256_and_si256(_mm256_srli_epi16(w, 4), nibble);
                to->codes[step][r] = _mm256_sub_epi8(low, eights);
                to->codes[step + STEPS / 2][r] = _mm256_sub_epi8(high, eights);
            }
        }
        UNROLL for (size_t step = 0; step < STEPS; step++) {
            to->magnitudes[step][r] = _mm256_abs_epi8(to->codes[step][r]);
        }
        to->scales[r] = load_scales(row + width * (size_t)code_bytes + lane * 2, lanes);
    }
}

// Half a band times one token. Sums of 16 bits hold a step of q8, 2 * 127 * 127, and all eight
// steps of q4, 16 * 8 * 127.
INLINE void multiply(__m256 sums[ROWS], const half_band *w, const int8_t *codes, size_t apart,
                     const float *scales, int lanes, int code_bytes) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i acc[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        acc[r] = _mm256_setzero_si256();
    }
    UNROLL for (size_t step = 0; step < STEPS; step++) {
        __m256i x = load_codes(codes + step * apart, lanes);
        UNROLL for (int r = 0; r < ROWS; r++) {
            __m256i turned = _mm256_sign_epi8(x, w->codes[step][r]);
            __m256i pairs = _mm256_maddubs_epi16(w->magnitudes[step][r], turned);
            acc[r] = code_bytes == GROUP
                         ? _mm256_add_epi32(acc[r], _mm256_madd_epi16(pairs, ones))
                         : _mm256_add_epi16(acc[r], pairs);
        }
    }
    __m256 x_scales = load_floats(scales, lanes);
    UNROLL for (int r = 0; r < ROWS; r++) {
        __m256i sum = code_bytes == GROUP ? acc[r] : _mm256_madd_epi16(acc[r], ones);
        __m256 scale = _mm256_mul_ps(w->scales[r], x_scales);
        sums[r] = _mm256_add_ps(sums[r], _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale));
    }
}

INLINE void half_tile(__m256 (*sums)[2][ROWS], const tile *t, size_t group, size_t lane,
                      size_t width, int lanes, int code_bytes) {
    half_band w;
    unpack(&w, t, group * (size_t)(code_bytes + 2), lane, width, lanes, code_bytes);
    for (size_t token = 0; token < t->token_count; token++) {
        multiply(sums[token][lane / 8], &w, codes_of(t, token, group) + lane * 4, width * 4,
                 scales_of(t, token, group + lane), lanes, code_bytes);
    }
}

INLINE void quantized_tile(const tile *t, int code_bytes) {
    __m256 sums[TOKENS][2][ROWS];
    for (size_t i = 0; i < TOKENS * 2 * ROWS; i++) {
        sums[i / (2 * ROWS)][i / ROWS % 2][i % ROWS] = _mm256_setzero_ps();
    }
    for (size_t group = 0; group < t->groups; group += LANES) {
        size_t width = min(t->groups - group, LANES), lane = 0;
        for (; lane + 8 <= width; lane += 8) {
            half_tile(sums, t, group, lane, width, 8, code_bytes);
        }
        if (lane < width) {
            half_tile(sums, t, group, lane, width, 4, code_bytes);
        }
    }
    for (size_t token = 0; token < t->token_count; token++) {
        for (size_t row = 0; row < t->row_count; row++) {
            t->out[token * t->out_stride + row] = tree(sums[token][0][row], sums[token][1][row]);
        }
    }
}

void gk_gemm_f32_q8_q8_avx2(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                            size_t stride, const int8_t *codes, size_t code_stride,
                            const float *scales, const uint32_t *at, size_t tokens,
                            size_t groups) {
    gemm(out, out_stride, count, GROUP, rows, stride, codes, code_stride, scales, at, tokens,
         groups, ROWS, TOKENS);
}

void gk_gemm_f32_q4_q8_avx2(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                            size_t stride, const int8_t *codes, size_t code_stride,
                            const float *scales, const uint32_t *at, size_t tokens,
                            size_t groups) {
    gemm(out, out_stride, count, GROUP / 2, rows, stride, codes, code_stride, scales, at, tokens,
         groups, ROWS, TOKENS);
}

enum { ABREAST = 2 };

// Two rows by two vectors; those that are not there repeat the last one.
INLINE void f16_tile(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                     size_t stride, const float *x, size_t x_stride, const uint32_t *at,
                     size_t tokens, size_t len) {
    const uint8_t *w_at[ABREAST];
    const float *x_at[ABREAST];
    __m256 sums[ABREAST][ABREAST][2];
    UNROLL for (size_t i = 0; i < ABREAST; i++) {
        w_at[i] = rows + min(i, count - 1) * stride;
        x_at[i] = x + at[min(i, tokens - 1)] * x_stride;
        UNROLL for (int r = 0; r < ABREAST; r++) {
            sums[i][r][0] = sums[i][r][1] = _mm256_setzero_ps();
        }
    }
    for (size_t i = 0; i < len; i += LANES) {
        UNROLL for (size_t half = 0; half < 2; half++) {
            UNROLL for (int r = 0; r < ABREAST; r++) {
                __m256 w = load_f16(w_at[r], i + 8 * half);
                UNROLL for (int t = 0; t < ABREAST; t++) {
                    __m256 *sum = &sums[t][r][half];
                    __m256 x8 = _mm256_loadu_ps(x_at[t] + i + 8 * half);
                    *sum = _mm256_add_ps(*sum, _mm256_mul_ps(w, x8));
                }
            }
        }
    }
    UNROLL for (size_t t = 0; t < ABREAST; t++) {
        UNROLL for (size_t r = 0; r < ABREAST; r++) {
            if (t < tokens && r < count) {
                out[t * out_stride + r] = tree(sums[t][r][0], sums[t][r][1]);
            }
        }
    }
}

void gk_gemm_f32_f16_f32_avx2(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                              size_t stride, const float *x, size_t x_stride, const uint32_t *at,
                              size_t tokens, size_t len) {
    for (size_t row = 0; row < count; row += ABREAST) {
        for (size_t token = 0; token < tokens; token += ABREAST) {
            f16_tile(out + token * out_stride + row, out_stride, min(count - row, ABREAST),
                     rows + row * stride, stride, x, x_stride, at + token,
                     min(tokens - token, ABREAST), len);
        }
    }
}
