//! Slices to pointers, and the scalar steps around the C kernels.
//!
//! Called by the methods of [`super::Kernels`], which have checked all lengths, with the
//! [`Bodies`] of an instruction set that this machine has. Every `SAFETY` below leans on these two.

use super::accumulator::{Accumulator, DownItem, Overflow, multiplier, split};
use super::ffi::Bodies;
use super::math::power_of_two;
use super::twin::{column_scale, rms_factor};
use super::{Activation, KvView};
use crate::image::geometry::{GROUP, LANES, WeightType};

/// Columns that one call of a down kernel adds.
const COLUMNS: usize = 8;

pub(super) unsafe fn quantize(c: &Bodies, x: &[f32], codes: &mut [i8], scales: &mut [f32]) -> bool {
    let (codes, groups) = (codes.as_mut_ptr(), scales.len());
    // SAFETY: codes hold 32 a scale, x fills at most the groups.
    unsafe { (c.quantize)(codes, scales.as_mut_ptr(), groups, x.as_ptr(), x.len()) }
}

pub(super) unsafe fn matvec(
    c: &Bodies,
    ty: WeightType,
    rows: &[u8],
    stride: usize,
    x: Activation<'_>,
    out: &mut [f32],
) {
    let (count, out, rows) = (out.len(), out.as_mut_ptr(), rows.as_ptr());
    let (codes, scales, groups) = (x.codes.as_ptr(), x.scales.as_ptr(), x.scales.len());
    let len = x.len.next_multiple_of(LANES as usize);
    // SAFETY: each of the `count` rows is as long as its type and the activation say.
    unsafe {
        match ty {
            WeightType::F16 => (c.matvec_f16)(out, count, rows, stride, x.values.as_ptr(), len),
            WeightType::Q8 => (c.matvec_q8)(out, count, rows, stride, codes, scales, groups),
            WeightType::Q4 => (c.matvec_q4)(out, count, rows, stride, codes, scales, groups),
        }
    }
}

pub(super) unsafe fn accumulate(
    c: &Bodies,
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
            let whole = unsafe { (c.down_f16)(wide, column.as_ptr(), activation * per_unit, len) };
            if !whole {
                return Err(Overflow { item });
            }
        }
        return Ok(());
    }
    let (len, kernel) = (sums.wide.len(), if ty == WeightType::Q8 { c.down_q8 } else { c.down_q4 });
    for (index, batch) in items.chunks(COLUMNS).enumerate() {
        // A lone last column is paired with itself times 0.
        let mut columns = [batch[batch.len() - 1].column.as_ptr(); COLUMNS];
        let mut factors = [[0i16; 4]; COLUMNS / 2];
        let mut any_high = 0;
        for (within, &DownItem { activation, column }) in batch.iter().enumerate() {
            let product = activation * column_scale(ty, column, len);
            let m = multiplier(product, per_unit);
            let (high, low) = split(m.ok_or(Overflow { item: index * COLUMNS + within })?);
            columns[within] = column.as_ptr();
            factors[within / 2][within % 2] = low;
            factors[within / 2][2 + within % 2] = high;
            any_high |= high;
        }
        sums.reserve(batch.len() as u32);
        let (low, pairs) = (sums.low.as_mut_ptr(), batch.len().div_ceil(2));
        let high = if any_high == 0 { core::ptr::null_mut() } else { sums.high.as_mut_ptr() };
        let groups = len / GROUP as usize;
        // SAFETY: all columns hold the groups of the accumulator's rows.
        unsafe { kernel(low, high, columns.as_ptr(), factors.as_ptr(), pairs, groups) }
    }
    Ok(())
}

pub(super) unsafe fn attend(c: &Bodies, q: &[f32], kv: KvView<'_>, scale: f32, out: &mut [f32]) {
    let (count, dim) = (kv.len() / q.len(), q.len());
    let (out, q) = (out.as_mut_ptr(), q.as_ptr());
    // SAFETY: keys and values are `count` rows of `dim`, as long as q and out.
    unsafe {
        match kv {
            KvView::F32 { keys, values } => {
                (c.attend_f32)(out, q, keys.as_ptr(), values.as_ptr(), count, dim, scale);
            }
            KvView::F16 { keys, values } => {
                (c.attend_f16)(out, q, keys.as_ptr(), values.as_ptr(), count, dim, scale);
            }
        }
    }
}

pub(super) unsafe fn exp(c: &Bodies, x: &mut [f32]) {
    // SAFETY: one slice.
    unsafe { (c.exp)(x.as_mut_ptr(), x.len()) }
}

pub(super) unsafe fn rms_norm(c: &Bodies, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let (from, len) = (x.as_ptr(), x.len());
    // SAFETY: all three slices have the same length.
    unsafe {
        let factor = rms_factor((c.sumsq)(from, len), len, eps);
        (c.scale)(out.as_mut_ptr(), from, weight.as_ptr(), factor, len);
    }
}

pub(super) unsafe fn rope(c: &Bodies, x: &mut [f32], cos_sin: &[f32]) {
    // SAFETY: both slices have the same even length.
    unsafe { (c.rope)(x.as_mut_ptr(), cos_sin.as_ptr(), x.len()) }
}

pub(super) unsafe fn add(c: &Bodies, x: &mut [f32], y: &[f32]) {
    // SAFETY: both slices have the same length.
    unsafe { (c.add)(x.as_mut_ptr(), y.as_ptr(), x.len()) }
}

pub(super) unsafe fn to_f16(c: &Bodies, x: &[f32], out: &mut [u16]) {
    // SAFETY: both slices have the same length.
    unsafe { (c.to_f16)(out.as_mut_ptr(), x.as_ptr(), x.len()) }
}

pub(super) unsafe fn argmax(c: &Bodies, x: &[f32]) -> Option<usize> {
    // SAFETY: one slice.
    let index = unsafe { (c.argmax)(x.as_ptr(), x.len()) };
    (index < x.len()).then_some(index)
}
