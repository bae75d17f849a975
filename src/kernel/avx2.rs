//! The AVX2 table: slices to pointers, and the scalar steps around the C kernels.
//!
//! Reached only through the table [`AVX2`], which is handed out on a CPU that has AVX2, F16C and
//! SSE4.2, by methods that have checked all lengths. Every `SAFETY` below leans on these two.

use super::accumulator::{Accumulator, DownItem, Overflow, multiplier, split};
use super::ffi::*;
use super::math::power_of_two;
use super::twin::{column_scale, rms_factor};
use super::{Activation, Isa, Kernels, KvView};
use crate::image::geometry::{GROUP, LANES, WeightType};

/// The table of the AVX2 kernels.
pub(super) static AVX2: Kernels = Kernels {
    isa: Isa::Avx2,
    quantize,
    matvec,
    accumulate,
    attend,
    exp,
    rms_norm,
    rope,
    add,
    to_f16,
    argmax,
    crc32c,
};

fn quantize(x: &[f32], codes: &mut [i8], scales: &mut [f32]) -> bool {
    let (codes, groups) = (codes.as_mut_ptr(), scales.len());
    // SAFETY: codes hold 32 a scale, x fills at most the groups.
    unsafe { gk_quantize_q8_f32_avx2(codes, scales.as_mut_ptr(), groups, x.as_ptr(), x.len()) }
}

fn matvec(ty: WeightType, rows: &[u8], stride: usize, x: Activation<'_>, out: &mut [f32]) {
    let (count, out, rows) = (out.len(), out.as_mut_ptr(), rows.as_ptr());
    let (codes, scales, groups) = (x.codes.as_ptr(), x.scales.as_ptr(), x.scales.len());
    let len = x.len.next_multiple_of(LANES as usize);
    // SAFETY: each of the `count` rows is as long as its type and the activation say.
    unsafe {
        match ty {
            WeightType::F16 => {
                gk_matvec_f32_f16_f32_avx2(out, count, rows, stride, x.values.as_ptr(), len);
            }
            WeightType::Q8 => {
                gk_matvec_f32_q8_q8_avx2(out, count, rows, stride, codes, scales, groups);
            }
            WeightType::Q4 => {
                gk_matvec_f32_q4_q8_avx2(out, count, rows, stride, codes, scales, groups);
            }
        }
    }
}

fn accumulate(
    ty: WeightType,
    unit_exponent: i32,
    items: &[DownItem<'_>],
    sums: &mut Accumulator<'_>,
) -> Result<(), Overflow> {
    let per_unit = power_of_two(-unit_exponent);
    if ty == WeightType::F16 {
        for (item, &DownItem { activation, column }) in items.iter().enumerate() {
            let (wide, len) = (sums.wide.as_mut_ptr(), column.len() / 2);
            // SAFETY: an f16 column is no longer than the rows of the accumulator.
            let whole = unsafe {
                gk_down_i64_f16_f32_avx2(wide, column.as_ptr(), activation * per_unit, len)
            };
            if !whole {
                return Err(Overflow { item });
            }
        }
        return Ok(());
    }
    let len = sums.wide.len();
    let split_at = |item: usize| {
        let DownItem { activation, column } = items[item];
        let product = activation * column_scale(ty, column, len);
        multiplier(product, per_unit).map(split).ok_or(Overflow { item })
    };
    for (index, pair) in items.chunks(2).enumerate() {
        let (high_a, low_a) = split_at(2 * index)?;
        // A lone last column is paired with itself times 0.
        let (high_b, low_b) = if pair.len() == 2 { split_at(2 * index + 1)? } else { (0, 0) };
        let columns = [pair[0].column, pair[pair.len() - 1].column];
        sums.reserve(pair.len() as u32);
        add_pair(ty, sums.low, columns, [low_a, low_b]);
        if high_a != 0 || high_b != 0 {
            add_pair(ty, sums.high, columns, [high_a, high_b]);
        }
    }
    Ok(())
}

fn add_pair(ty: WeightType, sums: &mut [i32], columns: [&[u8]; 2], [a, b]: [i16; 2]) {
    let kernel =
        if ty == WeightType::Q8 { gk_down_i32_q8_i16_avx2 } else { gk_down_i32_q4_i16_avx2 };
    let [column_a, column_b] = columns.map(<[u8]>::as_ptr);
    // SAFETY: both columns hold the groups of the accumulator's rows.
    unsafe { kernel(sums.as_mut_ptr(), column_a, column_b, a, b, sums.len() / GROUP as usize) }
}

fn attend(q: &[f32], kv: KvView<'_>, scale: f32, out: &mut [f32]) {
    let (count, dim) = (kv.len() / q.len(), q.len());
    let (out, q) = (out.as_mut_ptr(), q.as_ptr());
    // SAFETY: keys and values are `count` rows of `dim`, as long as q and out.
    unsafe {
        match kv {
            KvView::F32 { keys, values } => {
                let (keys, values) = (keys.as_ptr(), values.as_ptr());
                gk_attend_f32_f32_f32_avx2(out, q, keys, values, count, dim, scale);
            }
            KvView::F16 { keys, values } => {
                let (keys, values) = (keys.as_ptr(), values.as_ptr());
                gk_attend_f32_f32_f16_avx2(out, q, keys, values, count, dim, scale);
            }
        }
    }
}

fn exp(x: &mut [f32]) {
    // SAFETY: one slice.
    unsafe { gk_exp_f32_f32_avx2(x.as_mut_ptr(), x.len()) }
}

fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let (from, len) = (x.as_ptr(), x.len());
    // SAFETY: all three slices have the same length.
    unsafe {
        let factor = rms_factor(gk_sumsq_f32_f32_avx2(from, len), len, eps);
        gk_scale_f32_f32_f32_avx2(out.as_mut_ptr(), from, weight.as_ptr(), factor, len);
    }
}

fn rope(x: &mut [f32], cos_sin: &[f32]) {
    // SAFETY: both slices have the same even length.
    unsafe { gk_rope_f32_f32_avx2(x.as_mut_ptr(), cos_sin.as_ptr(), x.len()) }
}

fn add(x: &mut [f32], y: &[f32]) {
    // SAFETY: both slices have the same length.
    unsafe { gk_add_f32_f32_avx2(x.as_mut_ptr(), y.as_ptr(), x.len()) }
}

fn to_f16(x: &[f32], out: &mut [u16]) {
    // SAFETY: both slices have the same length.
    unsafe { gk_convert_f16_f32_avx2(out.as_mut_ptr(), x.as_ptr(), x.len()) }
}

fn argmax(x: &[f32]) -> Option<usize> {
    // SAFETY: one slice.
    let index = unsafe { gk_argmax_u64_f32_avx2(x.as_ptr(), x.len()) };
    (index < x.len()).then_some(index)
}

fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    // SAFETY: one slice.
    unsafe { gk_crc32c_u32_u8_avx2(seed, bytes.as_ptr(), bytes.len()) }
}
