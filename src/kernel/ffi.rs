//! The C kernels: each signature once, and the names that have it.
//!
//! `kernels/ganglion.h` says what each reads and writes. [`Bodies`] holds one function of each
//! signature: what an instruction set's table is made of. [`super::fast`] calls them.

/// `gk_soon`: lines `first..last` of places of `bytes` each.
#[repr(C)]
pub struct SoonLines {
    pub places: *const *const u8,
    pub bytes: usize,
    pub first: usize,
    pub last: usize,
}

/// `gk_about`: filled and read by an instruction set's own kernels.
#[repr(C)]
pub struct About {
    pub sum: i64,
    pub wide: u64,
}

macro_rules! kernels {
    ($(#[$about:meta])* $set:ident:
     $($(#[$doc:meta])* $field:ident $arguments:tt -> $result:ty: $(fn $name:ident),*;)*) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub struct $set {
            $($(#[$doc])* pub $field: unsafe extern "C" fn $arguments -> $result,)*
        }
        #[allow(dead_code)] // each architecture links its own
        unsafe extern "C" {
            $($(pub fn $name $arguments -> $result;)*)*
        }
    };
}

kernels! {
    /// The C functions that every instruction set has.
    Bodies:
    /// Activation to codes and scales.
    quantize(codes: *mut i8, scales: *mut f32, groups: usize, x: *const f32, len: usize) -> bool:
        fn gk_quantize_q8_f32_avx2, fn gk_quantize_q8_f32_neon;
    /// q8 rows times an activation.
    matvec_q8(out: *mut f32, count: usize, rows: *const u8, stride: usize, codes: *const i8,
              scales: *const f32, groups: usize) -> ():
        fn gk_matvec_f32_q8_q8_avx2, fn gk_matvec_f32_q8_q8_avx512, fn gk_matvec_f32_q8_q8_neon,
        fn gk_matvec_f32_q8_q8_dotprod;
    /// q4 rows times an activation.
    matvec_q4(out: *mut f32, count: usize, rows: *const u8, stride: usize, codes: *const i8,
              scales: *const f32, groups: usize) -> ():
        fn gk_matvec_f32_q4_q8_avx2, fn gk_matvec_f32_q4_q8_avx512, fn gk_matvec_f32_q4_q8_neon,
        fn gk_matvec_f32_q4_q8_dotprod;
    /// f16 rows times a vector.
    matvec_f16(out: *mut f32, count: usize, rows: *const u8, stride: usize, x: *const f32,
               len: usize) -> ():
        fn gk_matvec_f32_f16_f32_avx2, fn gk_matvec_f32_f16_f32_avx512,
        fn gk_matvec_f32_f16_f32_neon;
    /// Pairs of q8 columns into fixed-point sums.
    down_q8(low: *mut i32, high: *mut i32, columns: *const *const u8, factors: *const [i16; 4],
            pairs: usize, groups: usize) -> ():
        fn gk_down_i32_q8_i16_avx2, fn gk_down_i32_q8_i16_neon;
    /// Pairs of q4 columns into fixed-point sums.
    down_q4(low: *mut i32, high: *mut i32, columns: *const *const u8, factors: *const [i16; 4],
            pairs: usize, groups: usize) -> ():
        fn gk_down_i32_q4_i16_avx2, fn gk_down_i32_q4_i16_neon;
    /// One f16 column into fixed-point sums.
    down_f16(sums: *mut i64, column: *const u8, a: f32, len: usize) -> bool:
        fn gk_down_i64_f16_f32_avx2, fn gk_down_i64_f16_f32_neon;
    /// Attention over f32 keys and values.
    attend_f32(out: *mut f32, q: *const f32, keys: *const f32, values: *const f32, unseen: usize,
               count: usize, dim: usize, scale: f32) -> ():
        fn gk_attend_f32_f32_f32_avx2, fn gk_attend_f32_f32_f32_avx512,
        fn gk_attend_f32_f32_f32_neon;
    /// Attention over f16 keys and values.
    attend_f16(out: *mut f32, q: *const f32, keys: *const u16, values: *const u16, unseen: usize,
               count: usize, dim: usize, scale: f32) -> ():
        fn gk_attend_f32_f32_f16_avx2, fn gk_attend_f32_f32_f16_avx512,
        fn gk_attend_f32_f32_f16_neon;
    /// exp in place.
    exp(x: *mut f32, len: usize) -> ():
        fn gk_exp_f32_f32_avx2, fn gk_exp_f32_f32_avx512, fn gk_exp_f32_f32_neon;
    /// Sum of squares.
    sumsq(x: *const f32, len: usize) -> f32: fn gk_sumsq_f32_f32_avx2, fn gk_sumsq_f32_f32_neon;
    /// Vector times factor times weight.
    scale(out: *mut f32, x: *const f32, weight: *const f32, factor: f32, len: usize) -> ():
        fn gk_scale_f32_f32_f32_avx2, fn gk_scale_f32_f32_f32_neon;
    /// Rotation of pairs.
    rope(x: *mut f32, cos_sin: *const f32, len: usize) -> ():
        fn gk_rope_f32_f32_avx2, fn gk_rope_f32_f32_neon;
    /// Addition.
    add(x: *mut f32, y: *const f32, len: usize) -> ():
        fn gk_add_f32_f32_avx2, fn gk_add_f32_f32_neon;
    /// f32 to f16.
    to_f16(out: *mut u16, x: *const f32, len: usize) -> ():
        fn gk_convert_f16_f32_avx2, fn gk_convert_f16_f32_neon;
    /// Index of the largest.
    argmax(x: *const f32, len: usize) -> usize:
        fn gk_argmax_u64_f32_avx2, fn gk_argmax_u64_f32_neon;
}

kernels! {
    /// Rows that lie anywhere times an activation.
    Lists:
    /// q8 rows of a list.
    q8(out: *mut f32, count: usize, rows: *const *const u8, codes: *const i8,
       scales: *const f32, groups: usize) -> ():
        fn gk_rows_f32_q8_q8_avx2, fn gk_rows_f32_q8_q8_avx512, fn gk_rows_f32_q8_q8_neon,
        fn gk_rows_f32_q8_q8_dotprod;
    /// q4 rows of a list.
    q4(out: *mut f32, count: usize, rows: *const *const u8, codes: *const i8,
       scales: *const f32, groups: usize) -> ():
        fn gk_rows_f32_q4_q8_avx2, fn gk_rows_f32_q4_q8_avx512, fn gk_rows_f32_q4_q8_neon,
        fn gk_rows_f32_q4_q8_dotprod;
    /// f16 rows of a list.
    f16(out: *mut f32, count: usize, rows: *const *const u8, x: *const f32,
        len: usize) -> ():
        fn gk_rows_f32_f16_f32_avx2, fn gk_rows_f32_f16_f32_avx512, fn gk_rows_f32_f16_f32_neon;
}

kernels! {
    /// Gate and up rows of records in one pass.
    GateUps:
    /// q8 rows.
    q8(gates: *mut f32, ups: *mut f32, count: usize, records: *const *const u8, up: usize,
       soon: *const SoonLines, codes: *const i8, scales: *const f32, groups: usize) -> ():
        fn gk_gateup_f32_q8_q8_avx512;
    /// q4 rows.
    q4(gates: *mut f32, ups: *mut f32, count: usize, records: *const *const u8, up: usize,
       soon: *const SoonLines, codes: *const i8, scales: *const f32, groups: usize) -> ():
        fn gk_gateup_f32_q4_q8_avx512;
}

kernels! {
    /// Down columns straight into 64-bit sums.
    Sums:
    /// q8 columns.
    q8(sums: *mut i64, columns: *const *const u8, activations: *const f32, per_unit: f32,
       count: usize, soon: *const SoonLines, groups: usize) -> usize:
        fn gk_columns_i64_q8_f32_avx512;
    /// q4 columns.
    q4(sums: *mut i64, columns: *const *const u8, activations: *const f32, per_unit: f32,
       count: usize, soon: *const SoonLines, groups: usize) -> usize:
        fn gk_columns_i64_q4_f32_avx512;
}

kernels! {
    /// Gates of neurons.
    Gates:
    /// silu(gate) * up in place.
    silu(gate: *mut f32, up: *const f32, len: usize) -> ():
        fn gk_silu_f32_f32_f32_avx2, fn gk_silu_f32_f32_f32_avx512, fn gk_silu_f32_f32_f32_neon;
    /// relu(gate) * relu(up) in place.
    drelu(gate: *mut f32, up: *const f32, len: usize) -> ():
        fn gk_drelu_f32_f32_f32_avx2, fn gk_drelu_f32_f32_f32_neon;
    /// relu(gate) * up in place.
    relu(gate: *mut f32, up: *const f32, len: usize) -> ():
        fn gk_relu_f32_f32_f32_avx2, fn gk_relu_f32_f32_f32_neon;
    /// gelu(gate) * up in place.
    gelu(gate: *mut f32, up: *const f32, len: usize) -> ():
        fn gk_gelu_f32_f32_f32_avx2, fn gk_gelu_f32_f32_f32_avx512, fn gk_gelu_f32_f32_f32_neon;
}

kernels! {
    /// Attention over q8 keys and values.
    AttendQ8:
    /// One query head.
    one(out: *mut f32, q: *const f32, keys: *const i8, key_scales: *const f32, values: *const i8,
        value_scales: *const f32, unseen: usize, count: usize, dim: usize, scale: f32) -> ():
        fn gk_attend_f32_f32_q8_avx2, fn gk_attend_f32_f32_q8_avx512;
}

kernels! {
    /// Attention of several heads and positions.
    Attends:
    /// Over f32 keys and values.
    f32(out: *mut f32, out_stride: usize, q: *const f32, q_stride: usize, positions: usize,
        group: usize, keys: *const f32, values: *const f32, first: usize, dim: usize,
        scale: f32) -> ():
        fn gk_attends_f32_f32_f32_avx512, fn gk_attends_f32_f32_f32_neon;
    /// Over f16 keys and values.
    f16(out: *mut f32, out_stride: usize, q: *const f32, q_stride: usize, positions: usize,
        group: usize, keys: *const u16, values: *const u16, first: usize, dim: usize,
        scale: f32) -> ():
        fn gk_attends_f32_f32_f16_avx512, fn gk_attends_f32_f32_f16_neon;
}

kernels! {
    /// Attention of several heads and positions over q8 keys and values.
    AttendsQ8:
    /// Of a block.
    block(out: *mut f32, out_stride: usize, q: *const f32, q_stride: usize, positions: usize,
          group: usize, keys: *const i8, key_scales: *const f32, values: *const i8,
          value_scales: *const f32, first: usize, dim: usize, scale: f32) -> ():
        fn gk_attends_f32_f32_q8_avx512;
}

kernels! {
    /// Rows times a batch of activations.
    Gemm:
    /// q8 rows.
    q8(out: *mut f32, out_stride: usize, count: usize, rows: *const u8, stride: usize,
       codes: *const i8, code_stride: usize, scales: *const f32, at: *const u32, tokens: usize,
       groups: usize) -> ():
        fn gk_gemm_f32_q8_q8_avx512, fn gk_gemm_f32_q8_q8_neon,
        fn gk_gemm_f32_q8_q8_dotprod, fn gk_gemm_f32_q8_q8_i8mm;
    /// q4 rows.
    q4(out: *mut f32, out_stride: usize, count: usize, rows: *const u8, stride: usize,
       codes: *const i8, code_stride: usize, scales: *const f32, at: *const u32, tokens: usize,
       groups: usize) -> ():
        fn gk_gemm_f32_q4_q8_avx512, fn gk_gemm_f32_q4_q8_neon,
        fn gk_gemm_f32_q4_q8_dotprod, fn gk_gemm_f32_q4_q8_i8mm;
    /// f16 rows.
    f16(out: *mut f32, out_stride: usize, count: usize, rows: *const u8, stride: usize,
        x: *const f32, x_stride: usize, at: *const u32, tokens: usize, len: usize) -> ():
        fn gk_gemm_f32_f16_f32_avx512, fn gk_gemm_f32_f16_f32_neon;
}

kernels! {
    /// Down columns for a batch of tokens.
    Down:
    /// Fixed-point multipliers of one token.
    multipliers(factors: *mut u8, about: *mut About, x: *const f32, scales: *const f32,
                per_unit: f32, count: usize) -> usize:
        fn gk_multipliers_i16_f32_avx2, fn gk_multipliers_i8_f32_avx512,
        fn gk_multipliers_i16_f32_neon;
    /// q8 columns.
    q8(sums: *mut i64, sums_stride: usize, at: *const u32, scratch: *mut u8,
       columns: *const *const u8, neurons: usize, factors: *const u8, about: *const About,
       tokens: usize, groups: usize) -> ():
        fn gk_batch_i64_q8_i16_avx2, fn gk_batch_i64_q8_i8_avx512, fn gk_batch_i64_q8_i16_neon;
    /// q4 columns.
    q4(sums: *mut i64, sums_stride: usize, at: *const u32, scratch: *mut u8,
       columns: *const *const u8, neurons: usize, factors: *const u8, about: *const About,
       tokens: usize, groups: usize) -> ():
        fn gk_batch_i64_q4_i16_avx2, fn gk_batch_i64_q4_i8_avx512, fn gk_batch_i64_q4_i16_neon;
}

kernels! {
    /// What picks values out.
    Filters:
    /// Indices of values above a threshold.
    above(out: *mut u32, x: *const f32, len: usize, threshold: f32) -> usize:
        fn gk_above_u32_f32_f32_avx2, fn gk_above_u32_f32_f32_avx512;
}

// The checksum is handed on as a plain function, so each table wraps its own.
#[allow(dead_code)] // each architecture links its own
unsafe extern "C" {
    pub fn gk_crc32c_u32_u8_avx2(seed: u32, bytes: *const u8, len: usize) -> u32;
    pub fn gk_crc32c_u32_u8_neon(seed: u32, bytes: *const u8, len: usize) -> u32;
}
