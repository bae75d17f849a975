// The C side of room `kernel`: declarations of all kernels. src/kernel/ffi.rs repeats them.
//
// Names: gk_<op>_<dst>_<lhs>_<rhs>_<isa>, see README.md. A kernel trusts its lengths (the Rust side
// checks them), takes unaligned pointers, reads and writes exactly what its comment says, calls
// nothing, and gives the same bits as its Rust twin in src/kernel/twin.rs.
#ifndef GANGLION_H
#define GANGLION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A multiplier of the fixed-point sum is an error from here on: 2^27.
#define MULTIPLIER_LIMIT 134217728.0f

// Memory that will be needed soon, asked for little by little: lines first..last of places of
// `bytes` bytes each, the lines of one place after those of another.
typedef struct {
    const uint8_t *const *places;
    size_t bytes, first, last;
} gk_soon;

// x[len] -> codes[32 * groups], scales[groups]; groups is a multiple of 4 and covers len.
// False if a value is not finite.
bool gk_quantize_q8_f32_avx2(int8_t *codes, float *scales, size_t groups, const float *x,
                             size_t len);
bool gk_quantize_q8_f32_neon(int8_t *codes, float *scales, size_t groups, const float *x,
                             size_t len);

// out[i] = row i . x for `count` rows, `stride` bytes apart, of `groups` groups.
void gk_matvec_f32_q8_q8_avx2(float *out, size_t count, const uint8_t *rows, size_t stride,
                              const int8_t *codes, const float *scales, size_t groups);
void gk_matvec_f32_q8_q8_neon(float *out, size_t count, const uint8_t *rows, size_t stride,
                              const int8_t *codes, const float *scales, size_t groups);
void gk_matvec_f32_q8_q8_dotprod(float *out, size_t count, const uint8_t *rows, size_t stride,
                                 const int8_t *codes, const float *scales, size_t groups);
void gk_matvec_f32_q8_q8_avx512(float *out, size_t count, const uint8_t *rows, size_t stride,
                                const int8_t *codes, const float *scales, size_t groups);
void gk_matvec_f32_q4_q8_avx2(float *out, size_t count, const uint8_t *rows, size_t stride,
                              const int8_t *codes, const float *scales, size_t groups);
void gk_matvec_f32_q4_q8_neon(float *out, size_t count, const uint8_t *rows, size_t stride,
                              const int8_t *codes, const float *scales, size_t groups);
void gk_matvec_f32_q4_q8_dotprod(float *out, size_t count, const uint8_t *rows, size_t stride,
                                 const int8_t *codes, const float *scales, size_t groups);
void gk_matvec_f32_q4_q8_avx512(float *out, size_t count, const uint8_t *rows, size_t stride,
                                const int8_t *codes, const float *scales, size_t groups);
// The same for f16 rows of len values, a multiple of 16.
void gk_matvec_f32_f16_f32_avx2(float *out, size_t count, const uint8_t *rows, size_t stride,
                                const float *x, size_t len);
void gk_matvec_f32_f16_f32_neon(float *out, size_t count, const uint8_t *rows, size_t stride,
                                const float *x, size_t len);
void gk_matvec_f32_f16_f32_avx512(float *out, size_t count, const uint8_t *rows, size_t stride,
                                  const float *x, size_t len);

// out[i] = rows[i] . x for `count` rows anywhere: the same as matvec.
void gk_rows_f32_q8_q8_avx2(float *out, size_t count, const uint8_t *const *rows,
                            const int8_t *codes, const float *scales, size_t groups);
void gk_rows_f32_q8_q8_neon(float *out, size_t count, const uint8_t *const *rows,
                            const int8_t *codes, const float *scales, size_t groups);
void gk_rows_f32_q8_q8_dotprod(float *out, size_t count, const uint8_t *const *rows,
                               const int8_t *codes, const float *scales, size_t groups);
void gk_rows_f32_q4_q8_avx2(float *out, size_t count, const uint8_t *const *rows,
                            const int8_t *codes, const float *scales, size_t groups);
void gk_rows_f32_q4_q8_neon(float *out, size_t count, const uint8_t *const *rows,
                            const int8_t *codes, const float *scales, size_t groups);
void gk_rows_f32_q4_q8_dotprod(float *out, size_t count, const uint8_t *const *rows,
                               const int8_t *codes, const float *scales, size_t groups);
void gk_rows_f32_f16_f32_avx2(float *out, size_t count, const uint8_t *const *rows,
                              const float *x, size_t len);
void gk_rows_f32_f16_f32_neon(float *out, size_t count, const uint8_t *const *rows,
                              const float *x, size_t len);
void gk_rows_f32_q8_q8_avx512(float *out, size_t count, const uint8_t *const *rows,
                              const int8_t *codes, const float *scales, size_t groups);
void gk_rows_f32_q4_q8_avx512(float *out, size_t count, const uint8_t *const *rows,
                              const int8_t *codes, const float *scales, size_t groups);
// gates[i] = the row at records[i] . x, ups[i] = the row `up` bytes behind it . x, for `count`
// records: the same as matvec.
void gk_gateup_f32_q8_q8_avx512(float *gates, float *ups, size_t count,
                                const uint8_t *const *records, size_t up, const gk_soon *soon,
                                const int8_t *codes, const float *scales, size_t groups);
void gk_gateup_f32_q4_q8_avx512(float *gates, float *ups, size_t count,
                                const uint8_t *const *records, size_t up, const gk_soon *soon,
                                const int8_t *codes, const float *scales, size_t groups);
void gk_rows_f32_f16_f32_avx512(float *out, size_t count, const uint8_t *const *rows,
                                const float *x, size_t len);

// out[token * out_stride + i] = row i . vector at[token], for `count` rows and `tokens` vectors.
// The vectors' codes are code_stride apart and their scales groups apart. Each result is matvec's.
void gk_gemm_f32_q8_q8_avx512(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                              size_t stride, const int8_t *codes, size_t code_stride,
                              const float *scales, const uint32_t *at, size_t tokens,
                              size_t groups);
void gk_gemm_f32_q4_q8_avx512(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                              size_t stride, const int8_t *codes, size_t code_stride,
                              const float *scales, const uint32_t *at, size_t tokens,
                              size_t groups);
void gk_gemm_f32_q8_q8_neon(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                            size_t stride, const int8_t *codes, size_t code_stride,
                            const float *scales, const uint32_t *at, size_t tokens,
                            size_t groups);
void gk_gemm_f32_q4_q8_neon(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                            size_t stride, const int8_t *codes, size_t code_stride,
                            const float *scales, const uint32_t *at, size_t tokens,
                            size_t groups);
void gk_gemm_f32_q8_q8_dotprod(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                               size_t stride, const int8_t *codes, size_t code_stride,
                               const float *scales, const uint32_t *at, size_t tokens,
                               size_t groups);
void gk_gemm_f32_q4_q8_dotprod(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                               size_t stride, const int8_t *codes, size_t code_stride,
                               const float *scales, const uint32_t *at, size_t tokens,
                               size_t groups);
void gk_gemm_f32_q8_q8_i8mm(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                            size_t stride, const int8_t *codes, size_t code_stride,
                            const float *scales, const uint32_t *at, size_t tokens,
                            size_t groups);
void gk_gemm_f32_q4_q8_i8mm(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                            size_t stride, const int8_t *codes, size_t code_stride,
                            const float *scales, const uint32_t *at, size_t tokens,
                            size_t groups);
// The same for f16 rows and vectors of len values, a multiple of 16, x_stride apart.
void gk_gemm_f32_f16_f32_neon(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                              size_t stride, const float *x, size_t x_stride, const uint32_t *at,
                              size_t tokens, size_t len);
void gk_gemm_f32_f16_f32_avx512(float *out, size_t out_stride, size_t count, const uint8_t *rows,
                                size_t stride, const float *x, size_t x_stride,
                                const uint32_t *at, size_t tokens, size_t len);

// For each of `pairs` pairs of columns of `groups` groups, factors (la, lb, ha, hb):
// low[j] += la * wa[j] + lb * wb[j], and high[j] += ha * wa[j] + hb * wb[j] unless high is null.
// There are at most 4 pairs.
void gk_down_i32_q8_i16_avx2(int32_t *low, int32_t *high, const uint8_t *const *columns,
                             const int16_t (*factors)[4], size_t pairs, size_t groups);
void gk_down_i32_q8_i16_neon(int32_t *low, int32_t *high, const uint8_t *const *columns,
                             const int16_t (*factors)[4], size_t pairs, size_t groups);
void gk_down_i32_q4_i16_avx2(int32_t *low, int32_t *high, const uint8_t *const *columns,
                             const int16_t (*factors)[4], size_t pairs, size_t groups);
void gk_down_i32_q4_i16_neon(int32_t *low, int32_t *high, const uint8_t *const *columns,
                             const int16_t (*factors)[4], size_t pairs, size_t groups);
// sums[j] += m * w[j] for `count` columns, m = round_half_even(activations[i] * scale * per_unit).
// Gives `count`, or the index of the first m that is not below the limit: then the sums of columns
// before it may be there or not.
size_t gk_columns_i64_q8_f32_avx512(int64_t *sums, const uint8_t *const *columns,
                                    const float *activations, float per_unit, size_t count,
                                    const gk_soon *soon, size_t groups);
size_t gk_columns_i64_q4_f32_avx512(int64_t *sums, const uint8_t *const *columns,
                                    const float *activations, float per_unit, size_t count,
                                    const gk_soon *soon, size_t groups);
// What a batch kernel knows of a token's factors: the sum of its multipliers, and which need more
// than 16 bits: with AVX-512 a bit for each four neurons, else 0 if none does.
typedef struct {
    int64_t sum;
    uint64_t wide;
} gk_about;

// Multipliers m = round_half_even(x[i] * scales[i] * per_unit) of `count` (up to 256) neurons for a
// token, as the instruction set's batch kernels take them, in 1024 bytes. Gives the index of the
// first m that is not below the limit, or count.
size_t gk_multipliers_i16_f32_avx2(void *factors, gk_about *about, const float *x,
                                    const float *scales, float per_unit, size_t count);
size_t gk_multipliers_i8_f32_avx512(void *factors, gk_about *about, const float *x,
                                    const float *scales, float per_unit, size_t count);
size_t gk_multipliers_i16_f32_neon(void *factors, gk_about *about, const float *x,
                                    const float *scales, float per_unit, size_t count);
// sums[at[token] * sums_stride + j] += m * w[j] over `neurons` (up to 256) columns of `groups`
// groups; there are columns, of factor 0, up to a multiple of 4. Tokens have 1024 bytes of factors,
// and factors up to a multiple of 3 tokens are read, and must be there. scratch is 32 KiB, 64-byte
// aligned.
void gk_batch_i64_q8_i16_avx2(int64_t *sums, size_t sums_stride, const uint32_t *at,
                              void *scratch, const uint8_t *const *columns, size_t neurons,
                              const void *factors, const gk_about *about, size_t tokens,
                              size_t groups);
void gk_batch_i64_q8_i8_avx512(int64_t *sums, size_t sums_stride, const uint32_t *at,
                               void *scratch, const uint8_t *const *columns, size_t neurons,
                               const void *factors, const gk_about *about, size_t tokens,
                               size_t groups);
void gk_batch_i64_q8_i16_neon(int64_t *sums, size_t sums_stride, const uint32_t *at,
                              void *scratch, const uint8_t *const *columns, size_t neurons,
                              const void *factors, const gk_about *about, size_t tokens,
                              size_t groups);
void gk_batch_i64_q4_i16_avx2(int64_t *sums, size_t sums_stride, const uint32_t *at,
                              void *scratch, const uint8_t *const *columns, size_t neurons,
                              const void *factors, const gk_about *about, size_t tokens,
                              size_t groups);
void gk_batch_i64_q4_i8_avx512(int64_t *sums, size_t sums_stride, const uint32_t *at,
                               void *scratch, const uint8_t *const *columns, size_t neurons,
                               const void *factors, const gk_about *about, size_t tokens,
                               size_t groups);
void gk_batch_i64_q4_i16_neon(int64_t *sums, size_t sums_stride, const uint32_t *at,
                              void *scratch, const uint8_t *const *columns, size_t neurons,
                              const void *factors, const gk_about *about, size_t tokens,
                              size_t groups);
// sums[j] += round_half_even(a * column[j]) for len values, a multiple of 16.
// False if a product is not below the limit.
bool gk_down_i64_f16_f32_avx2(int64_t *sums, const uint8_t *column, float a, size_t len);
bool gk_down_i64_f16_f32_neon(int64_t *sums, const uint8_t *column, float a, size_t len);

// Attention of q[dim] over `count` rows of keys and values but for the first `unseen`, which are
// fewer than 32 and than count; dim is a multiple of 16.
void gk_attend_f32_f32_f32_avx2(float *out, const float *q, const float *keys, const float *values,
                                size_t unseen, size_t count, size_t dim, float scale);
void gk_attend_f32_f32_f32_neon(float *out, const float *q, const float *keys, const float *values,
                                size_t unseen, size_t count, size_t dim, float scale);
void gk_attend_f32_f32_f32_avx512(float *out, const float *q, const float *keys,
                                  const float *values, size_t unseen, size_t count, size_t dim,
                                  float scale);
void gk_attend_f32_f32_f16_avx2(float *out, const float *q, const uint16_t *keys,
                                const uint16_t *values, size_t unseen, size_t count, size_t dim,
                                float scale);
void gk_attend_f32_f32_f16_neon(float *out, const float *q, const uint16_t *keys,
                                const uint16_t *values, size_t unseen, size_t count, size_t dim,
                                float scale);
void gk_attend_f32_f32_f16_avx512(float *out, const float *q, const uint16_t *keys,
                                  const uint16_t *values, size_t unseen, size_t count, size_t dim,
                                  float scale);

// The same over q8 keys and values: row after row of codes, a scale for each 32; dim is a multiple
// of 32.
void gk_attend_f32_f32_q8_avx2(float *out, const float *q, const int8_t *keys,
                               const float *key_scales, const int8_t *values,
                               const float *value_scales, size_t unseen, size_t count, size_t dim,
                               float scale);
void gk_attend_f32_f32_q8_avx512(float *out, const float *q, const int8_t *keys,
                                 const float *key_scales, const int8_t *values,
                                 const float *value_scales, size_t unseen, size_t count, size_t dim,
                                 float scale);

// Attention of `group` query heads, dim apart, at each of `positions` positions, q_stride apart;
// out alike. Position p sees first + p keys. Each result is that of the kernel for one head.
void gk_attends_f32_f32_f32_neon(float *out, size_t out_stride, const float *q, size_t q_stride,
                                 size_t positions, size_t group, const float *keys,
                                 const float *values, size_t first, size_t dim, float scale);
void gk_attends_f32_f32_f16_neon(float *out, size_t out_stride, const float *q, size_t q_stride,
                                 size_t positions, size_t group, const uint16_t *keys,
                                 const uint16_t *values, size_t first, size_t dim, float scale);
void gk_attends_f32_f32_f32_avx512(float *out, size_t out_stride, const float *q, size_t q_stride,
                                   size_t positions, size_t group, const float *keys,
                                   const float *values, size_t first, size_t dim, float scale);
void gk_attends_f32_f32_f16_avx512(float *out, size_t out_stride, const float *q, size_t q_stride,
                                   size_t positions, size_t group, const uint16_t *keys,
                                   const uint16_t *values, size_t first, size_t dim, float scale);
void gk_attends_f32_f32_q8_avx512(float *out, size_t out_stride, const float *q, size_t q_stride,
                                  size_t positions, size_t group, const int8_t *keys,
                                  const float *key_scales, const int8_t *values,
                                  const float *value_scales, size_t first, size_t dim, float scale);

// x[i] = exp(x[i]).
void gk_exp_f32_f32_avx2(float *x, size_t len);
void gk_exp_f32_f32_neon(float *x, size_t len);
void gk_exp_f32_f32_avx512(float *x, size_t len);
// gate[i] = silu(gate[i]) * up[i].
void gk_silu_f32_f32_f32_avx2(float *gate, const float *up, size_t len);
void gk_silu_f32_f32_f32_neon(float *gate, const float *up, size_t len);
void gk_silu_f32_f32_f32_avx512(float *gate, const float *up, size_t len);
// gate[i] = relu(gate[i]) * relu(up[i]); a NaN goes on.
void gk_drelu_f32_f32_f32_avx2(float *gate, const float *up, size_t len);
void gk_drelu_f32_f32_f32_neon(float *gate, const float *up, size_t len);
// gate[i] = relu(gate[i]) * up[i]; a NaN goes on.
void gk_relu_f32_f32_f32_avx2(float *gate, const float *up, size_t len);
void gk_relu_f32_f32_f32_neon(float *gate, const float *up, size_t len);
// gate[i] = gelu(gate[i]) * up[i].
void gk_gelu_f32_f32_f32_avx2(float *gate, const float *up, size_t len);
void gk_gelu_f32_f32_f32_neon(float *gate, const float *up, size_t len);
void gk_gelu_f32_f32_f32_avx512(float *gate, const float *up, size_t len);
// Sum of squares in the order of a dot product.
float gk_sumsq_f32_f32_avx2(const float *x, size_t len);
float gk_sumsq_f32_f32_neon(const float *x, size_t len);
// out[i] = (x[i] * factor) * weight[i].
void gk_scale_f32_f32_f32_avx2(float *out, const float *x, const float *weight, float factor,
                               size_t len);
void gk_scale_f32_f32_f32_neon(float *out, const float *x, const float *weight, float factor,
                               size_t len);
// Rotates the pairs of x[len] by the (cos, sin) pairs of cos_sin[len].
void gk_rope_f32_f32_avx2(float *x, const float *cos_sin, size_t len);
void gk_rope_f32_f32_neon(float *x, const float *cos_sin, size_t len);
// x[i] += y[i].
void gk_add_f32_f32_avx2(float *x, const float *y, size_t len);
void gk_add_f32_f32_neon(float *x, const float *y, size_t len);
// out[i] = bits of the half float nearest to x[i].
void gk_convert_f16_f32_avx2(uint16_t *out, const float *x, size_t len);
void gk_convert_f16_f32_neon(uint16_t *out, const float *x, size_t len);
// Lowest index of the largest value; len if every value is NaN.
size_t gk_argmax_u64_f32_avx2(const float *x, size_t len);
size_t gk_argmax_u64_f32_neon(const float *x, size_t len);
// Indices of the values of x[len] above the threshold, ascending, to the front of out[len]; their
// count. What is behind them in out is anything.
size_t gk_above_u32_f32_f32_avx2(uint32_t *out, const float *x, size_t len, float threshold);
size_t gk_above_u32_f32_f32_avx512(uint32_t *out, const float *x, size_t len, float threshold);
// CRC-32C of bytes[len] behind what gave `seed`.
uint32_t gk_crc32c_u32_u8_avx2(uint32_t seed, const uint8_t *bytes, size_t len);
uint32_t gk_crc32c_u32_u8_neon(uint32_t seed, const uint8_t *bytes, size_t len);

#endif
