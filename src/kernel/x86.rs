//! The tables of x86-64.

use super::ffi::*;
use super::{Isa, Kernels};

const AVX2_BODIES: Bodies = Bodies {
    quantize: gk_quantize_q8_f32_avx2,
    matvec_q8: gk_matvec_f32_q8_q8_avx2,
    matvec_q4: gk_matvec_f32_q4_q8_avx2,
    matvec_f16: gk_matvec_f32_f16_f32_avx2,
    down_q8: gk_down_i32_q8_i16_avx2,
    down_q4: gk_down_i32_q4_i16_avx2,
    down_f16: gk_down_i64_f16_f32_avx2,
    attend_f32: gk_attend_f32_f32_f32_avx2,
    attend_f16: gk_attend_f32_f32_f16_avx2,
    exp: gk_exp_f32_f32_avx2,
    sumsq: gk_sumsq_f32_f32_avx2,
    scale: gk_scale_f32_f32_f32_avx2,
    rope: gk_rope_f32_f32_avx2,
    add: gk_add_f32_f32_avx2,
    to_f16: gk_convert_f16_f32_avx2,
    argmax: gk_argmax_u64_f32_avx2,
};

const AVX2_GATES: Gates = Gates {
    silu: gk_silu_f32_f32_f32_avx2,
    drelu: gk_drelu_f32_f32_f32_avx2,
    relu: gk_relu_f32_f32_f32_avx2,
    gelu: gk_gelu_f32_f32_f32_avx2,
};

/// AVX2, F16C, SSE4.2, PCLMULQDQ. There is no GEMM: tiles of unpacked weights took 4 to 16 % longer
/// than rows times one token after another.
pub(super) static AVX2: Kernels = Kernels {
    bodies: Some(AVX2_BODIES),
    lists: Some(Lists {
        q8: gk_rows_f32_q8_q8_avx2,
        q4: gk_rows_f32_q4_q8_avx2,
        f16: gk_rows_f32_f16_f32_avx2,
    }),
    gates: Some(AVX2_GATES),
    down: Some(Down {
        multipliers: gk_multipliers_i16_f32_avx2,
        q8: gk_batch_i64_q8_i16_avx2,
        q4: gk_batch_i64_q4_i16_avx2,
    }),
    filters: Some(Filters { above: gk_above_u32_f32_f32_avx2 }),
    attend_q8: Some(AttendQ8 { one: gk_attend_f32_f32_q8_avx2 }),
    ..Kernels::none(Isa::Avx2, crc32c)
};

/// AVX-512 with VNNI. What only walks a vector is AVX2's: it is not worth wider registers.
pub(super) static AVX512: Kernels = Kernels {
    bodies: Some(Bodies {
        matvec_q8: gk_matvec_f32_q8_q8_avx512,
        matvec_q4: gk_matvec_f32_q4_q8_avx512,
        matvec_f16: gk_matvec_f32_f16_f32_avx512,
        attend_f32: gk_attend_f32_f32_f32_avx512,
        attend_f16: gk_attend_f32_f32_f16_avx512,
        exp: gk_exp_f32_f32_avx512,
        ..AVX2_BODIES
    }),
    lists: Some(Lists {
        q8: gk_rows_f32_q8_q8_avx512,
        q4: gk_rows_f32_q4_q8_avx512,
        f16: gk_rows_f32_f16_f32_avx512,
    }),
    gate_ups: Some(GateUps { q8: gk_gateup_f32_q8_q8_avx512, q4: gk_gateup_f32_q4_q8_avx512 }),
    sums: Some(Sums { q8: gk_columns_i64_q8_f32_avx512, q4: gk_columns_i64_q4_f32_avx512 }),
    gates: Some(Gates {
        silu: gk_silu_f32_f32_f32_avx512,
        gelu: gk_gelu_f32_f32_f32_avx512,
        ..AVX2_GATES
    }),
    attend_q8: Some(AttendQ8 { one: gk_attend_f32_f32_q8_avx512 }),
    attends: Some(Attends {
        f32: gk_attends_f32_f32_f32_avx512,
        f16: gk_attends_f32_f32_f16_avx512,
    }),
    attends_q8: Some(AttendsQ8 { block: gk_attends_f32_f32_q8_avx512 }),
    gemm: Some(Gemm {
        q8: gk_gemm_f32_q8_q8_avx512,
        q4: gk_gemm_f32_q4_q8_avx512,
        f16: gk_gemm_f32_f16_f32_avx512,
    }),
    down: Some(Down {
        multipliers: gk_multipliers_i8_f32_avx512,
        q8: gk_batch_i64_q8_i8_avx512,
        q4: gk_batch_i64_q4_i8_avx512,
    }),
    filters: Some(Filters { above: gk_above_u32_f32_f32_avx512 }),
    ..Kernels::none(Isa::Avx512, crc32c)
};

fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    // SAFETY: one slice; both tables are only handed out where SSE4.2 and PCLMULQDQ are.
    unsafe { gk_crc32c_u32_u8_avx2(seed, bytes.as_ptr(), bytes.len()) }
}
