//! The tables of aarch64.

use super::ffi::*;
use super::{Isa, Kernels};

const NEON_BODIES: Bodies = Bodies {
    quantize: gk_quantize_q8_f32_neon,
    matvec_q8: gk_matvec_f32_q8_q8_neon,
    matvec_q4: gk_matvec_f32_q4_q8_neon,
    matvec_f16: gk_matvec_f32_f16_f32_neon,
    down_q8: gk_down_i32_q8_i16_neon,
    down_q4: gk_down_i32_q4_i16_neon,
    down_f16: gk_down_i64_f16_f32_neon,
    attend_f32: gk_attend_f32_f32_f32_neon,
    attend_f16: gk_attend_f32_f32_f16_neon,
    exp: gk_exp_f32_f32_neon,
    sumsq: gk_sumsq_f32_f32_neon,
    scale: gk_scale_f32_f32_f32_neon,
    rope: gk_rope_f32_f32_neon,
    add: gk_add_f32_f32_neon,
    to_f16: gk_convert_f16_f32_neon,
    argmax: gk_argmax_u64_f32_neon,
};

/// ARMv8.0 with CRC32.
pub(super) static NEON: Kernels = Kernels {
    bodies: Some(NEON_BODIES),
    lists: Some(Lists {
        q8: gk_rows_f32_q8_q8_neon,
        q4: gk_rows_f32_q4_q8_neon,
        f16: gk_rows_f32_f16_f32_neon,
    }),
    gates: Some(Gates {
        silu: gk_silu_f32_f32_f32_neon,
        drelu: gk_drelu_f32_f32_f32_neon,
        relu: gk_relu_f32_f32_f32_neon,
        gelu: gk_gelu_f32_f32_f32_neon,
    }),
    attends: Some(Attends { f32: gk_attends_f32_f32_f32_neon, f16: gk_attends_f32_f32_f16_neon }),
    gemm: Some(Gemm {
        q8: gk_gemm_f32_q8_q8_neon,
        q4: gk_gemm_f32_q4_q8_neon,
        f16: gk_gemm_f32_f16_f32_neon,
    }),
    down: Some(Down {
        multipliers: gk_multipliers_i16_f32_neon,
        q8: gk_batch_i64_q8_i16_neon,
        q4: gk_batch_i64_q4_i16_neon,
    }),
    ..Kernels::none(Isa::Neon, crc32c)
};

/// The same with SDOT, which only rows of codes have a use for.
pub(super) static DOTPROD: Kernels = Kernels {
    isa: Isa::Dotprod,
    bodies: Some(Bodies {
        matvec_q8: gk_matvec_f32_q8_q8_dotprod,
        matvec_q4: gk_matvec_f32_q4_q8_dotprod,
        ..NEON_BODIES
    }),
    lists: Some(Lists {
        q8: gk_rows_f32_q8_q8_dotprod,
        q4: gk_rows_f32_q4_q8_dotprod,
        f16: gk_rows_f32_f16_f32_neon,
    }),
    gemm: Some(Gemm {
        q8: gk_gemm_f32_q8_q8_dotprod,
        q4: gk_gemm_f32_q4_q8_dotprod,
        f16: gk_gemm_f32_f16_f32_neon,
    }),
    ..NEON
};

/// The same with SMMLA, which only batches have a use for.
pub(super) static I8MM: Kernels = Kernels {
    isa: Isa::I8mm,
    gemm: Some(Gemm {
        q8: gk_gemm_f32_q8_q8_i8mm,
        q4: gk_gemm_f32_q4_q8_i8mm,
        f16: gk_gemm_f32_f16_f32_neon,
    }),
    ..DOTPROD
};

fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    // SAFETY: one slice; the tables are only handed out where CRC32 is.
    unsafe { gk_crc32c_u32_u8_neon(seed, bytes.as_ptr(), bytes.len()) }
}
