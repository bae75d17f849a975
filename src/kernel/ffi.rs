//! The C kernels, declared once. `kernels/ganglion.h` says what each reads and writes.

unsafe extern "C" {
    pub fn gk_quantize_q8_f32_avx2(
        codes: *mut i8,
        scales: *mut f32,
        groups: usize,
        x: *const f32,
        len: usize,
    ) -> bool;
    pub fn gk_matvec_f32_q8_q8_avx2(
        out: *mut f32,
        count: usize,
        rows: *const u8,
        stride: usize,
        codes: *const i8,
        scales: *const f32,
        groups: usize,
    );
    pub fn gk_matvec_f32_q4_q8_avx2(
        out: *mut f32,
        count: usize,
        rows: *const u8,
        stride: usize,
        codes: *const i8,
        scales: *const f32,
        groups: usize,
    );
    pub fn gk_matvec_f32_f16_f32_avx2(
        out: *mut f32,
        count: usize,
        rows: *const u8,
        stride: usize,
        x: *const f32,
        len: usize,
    );
    pub fn gk_down_i32_q8_i16_avx2(
        sums: *mut i32,
        column_a: *const u8,
        column_b: *const u8,
        a: i16,
        b: i16,
        groups: usize,
    );
    pub fn gk_down_i32_q4_i16_avx2(
        sums: *mut i32,
        column_a: *const u8,
        column_b: *const u8,
        a: i16,
        b: i16,
        groups: usize,
    );
    pub fn gk_down_i64_f16_f32_avx2(sums: *mut i64, column: *const u8, a: f32, len: usize) -> bool;
    pub fn gk_attend_f32_f32_f32_avx2(
        out: *mut f32,
        q: *const f32,
        keys: *const f32,
        values: *const f32,
        count: usize,
        dim: usize,
        scale: f32,
    );
    pub fn gk_attend_f32_f32_f16_avx2(
        out: *mut f32,
        q: *const f32,
        keys: *const u16,
        values: *const u16,
        count: usize,
        dim: usize,
        scale: f32,
    );
    pub fn gk_exp_f32_f32_avx2(x: *mut f32, len: usize);
    pub fn gk_sumsq_f32_f32_avx2(x: *const f32, len: usize) -> f32;
    pub fn gk_scale_f32_f32_f32_avx2(
        out: *mut f32,
        x: *const f32,
        weight: *const f32,
        factor: f32,
        len: usize,
    );
    pub fn gk_rope_f32_f32_avx2(x: *mut f32, cos_sin: *const f32, len: usize);
    pub fn gk_add_f32_f32_avx2(x: *mut f32, y: *const f32, len: usize);
    pub fn gk_convert_f16_f32_avx2(out: *mut u16, x: *const f32, len: usize);
    pub fn gk_argmax_u64_f32_avx2(x: *const f32, len: usize) -> usize;
    pub fn gk_crc32c_u32_u8_avx2(seed: u32, bytes: *const u8, len: usize) -> u32;
}
