//! Slices to pointers, and the scalar steps around the C kernels.
//!
//! Called by the methods of [`super::Kernels`], which have checked all lengths, with the
//! [`Bodies`] of an instruction set that this machine has. Every `SAFETY` below leans on these two.

use super::accumulator::{Accumulator, DownItem, Overflow, accumulator_len, multiplier, split};
use super::batch::{CHUNK_NEURONS, FACTOR_BYTES, TILE_BYTES, TOKEN_BLOCK, batch_code_stride};
use super::ffi::{
    About, AttendQ8, Attends, AttendsQ8, Bodies, Down, Filters, GateUps, Gates, Gemm, Lists,
    SoonLines, Sums,
};
use super::math::power_of_two;
use super::twin::{column_scale, rms_factor};
use super::{Activation, Batch, Columns, DownBatch, KvView, PLACES_MAX, Q8Rows, Soon, twin};
use crate::image::ActivationFn;
use crate::image::geometry::{GROUP, LANES, WeightType, padded_groups, padded_len};

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

/// Rows that one call takes.
const LIST: usize = 32;

pub(super) unsafe fn rows(
    c: &Lists,
    ty: WeightType,
    rows: &[&[u8]],
    x: Activation<'_>,
    out: &mut [f32],
) {
    let (codes, scales, groups) = (x.codes.as_ptr(), x.scales.as_ptr(), x.scales.len());
    let len = x.len.next_multiple_of(LANES as usize);
    for (rows, out) in rows.chunks(LIST).zip(out.chunks_mut(LIST)) {
        let mut list = [core::ptr::null(); LIST];
        list.iter_mut().zip(rows).for_each(|(pointer, row)| *pointer = row.as_ptr());
        let (count, out, list) = (out.len(), out.as_mut_ptr(), list.as_ptr());
        // SAFETY: each of the `count` rows is as long as its type and the activation say.
        unsafe {
            match ty {
                WeightType::F16 => (c.f16)(out, count, list, x.values.as_ptr(), len),
                WeightType::Q8 => (c.q8)(out, count, list, codes, scales, groups),
                WeightType::Q4 => (c.q4)(out, count, list, codes, scales, groups),
            }
        }
    }
}

/// Where slices start.
fn starts(slices: &[&[u8]]) -> [*const u8; PLACES_MAX] {
    let mut starts = [core::ptr::null(); PLACES_MAX];
    starts.iter_mut().zip(slices).for_each(|(start, slice)| *start = slice.as_ptr());
    starts
}

/// What a kernel asks for; `places` are the starts of `soon`'s.
fn lines(soon: Soon<'_>, places: &[*const u8; PLACES_MAX]) -> SoonLines {
    let Soon { bytes, first, last, .. } = soon;
    SoonLines { places: places.as_ptr(), bytes, first, last }
}

#[allow(clippy::too_many_arguments)] // as its caller
pub(super) unsafe fn gate_up(
    c: &GateUps,
    ty: WeightType,
    records: &[&[u8]],
    up: usize,
    soon: Soon<'_>,
    x: Activation<'_>,
    gates: &mut [f32],
    ups: &mut [f32],
) {
    let (codes, scales, groups) = (x.codes.as_ptr(), x.scales.as_ptr(), x.scales.len());
    let (count, gates, ups) = (gates.len(), gates.as_mut_ptr(), ups.as_mut_ptr());
    let kernel = if ty == WeightType::Q8 { c.q8 } else { c.q4 };
    let (records, places) = (starts(records), starts(soon.places));
    let soon = lines(soon, &places);
    // SAFETY: both rows of each of the `count` records are as long as type and activation say.
    unsafe { kernel(gates, ups, count, records.as_ptr(), up, &soon, codes, scales, groups) }
}

pub(super) unsafe fn gate(c: &Gates, activation: ActivationFn, gate: &mut [f32], up: &[f32]) {
    let kernel = match activation {
        ActivationFn::DRelu => c.drelu,
        ActivationFn::SiLu => c.silu,
        ActivationFn::Relu => c.relu,
        ActivationFn::Gelu => c.gelu,
    };
    // SAFETY: both slices have the same length.
    unsafe { kernel(gate.as_mut_ptr(), up.as_ptr(), gate.len()) }
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

/// Items that one call of a wide down kernel takes.
const WIDE_ITEMS: usize = 64;

pub(super) unsafe fn accumulate_wide(
    c: &Sums,
    ty: WeightType,
    unit_exponent: i32,
    items: &[DownItem<'_>],
    soon: Soon<'_>,
    sums: &mut Accumulator<'_>,
) -> Result<(), Overflow> {
    let (per_unit, groups) = (power_of_two(-unit_exponent), sums.wide.len() / GROUP as usize);
    let kernel = if ty == WeightType::Q8 { c.q8 } else { c.q4 };
    let places = starts(soon.places);
    for (index, items) in items.chunks(WIDE_ITEMS).enumerate() {
        // Asked for once.
        let soon = lines(if index == 0 { soon } else { Soon::NOTHING }, &places);
        let mut columns = [core::ptr::null(); WIDE_ITEMS];
        let mut activations = [0.0; WIDE_ITEMS];
        for ((column, activation), item) in columns.iter_mut().zip(&mut activations).zip(items) {
            (*column, *activation) = (item.column.as_ptr(), item.activation);
        }
        let (to, columns, x) = (sums.wide.as_mut_ptr(), columns.as_ptr(), activations.as_ptr());
        // SAFETY: all columns hold the groups of the accumulator's rows.
        let good = unsafe { kernel(to, columns, x, per_unit, items.len(), &soon, groups) };
        if good < items.len() {
            return Err(Overflow { item: index * WIDE_ITEMS + good });
        }
    }
    Ok(())
}

pub(super) unsafe fn attend(
    c: &Bodies,
    q8: Option<&AttendQ8>,
    q: &[f32],
    kv: KvView<'_>,
    unseen: usize,
    scale: f32,
    out: &mut [f32],
) {
    let (count, dim) = (kv.len() / q.len(), q.len());
    let (to, from) = (out.as_mut_ptr(), q.as_ptr());
    // SAFETY: keys and values are `count` rows of `dim`, as long as q and out.
    unsafe {
        match (kv, q8) {
            (KvView::F32 { keys, values }, _) => {
                let (keys, values) = (keys.as_ptr(), values.as_ptr());
                (c.attend_f32)(to, from, keys, values, unseen, count, dim, scale);
            }
            (KvView::F16 { keys, values }, _) => {
                let (keys, values) = (keys.as_ptr(), values.as_ptr());
                (c.attend_f16)(to, from, keys, values, unseen, count, dim, scale);
            }
            (KvView::Q8 { keys, values }, Some(c)) => {
                let (k, ks) = (keys.codes.as_ptr(), keys.scales.as_ptr());
                let (v, vs) = (values.codes.as_ptr(), values.scales.as_ptr());
                (c.one)(to, from, k, ks, v, vs, unseen, count, dim, scale);
            }
            (KvView::Q8 { .. }, None) => twin::attend(q, kv, unseen, scale, out),
        }
    }
}

pub(super) unsafe fn attend_block(
    c: &Attends,
    q: &[f32],
    q_stride: usize,
    dim: usize,
    kv: KvView<'_>,
    scale: f32,
    out: &mut Columns<'_>,
) {
    let (positions, group) = (out.tokens, out.count() / dim);
    let first = kv.len() / dim + 1 - positions;
    let (to, to_stride, q) = (out.base, out.stride, q.as_ptr());
    // SAFETY: q and out hold `group` heads at each position; the last position sees all keys.
    unsafe {
        match kv {
            KvView::F32 { keys, values } => {
                let (k, v) = (keys.as_ptr(), values.as_ptr());
                (c.f32)(to, to_stride, q, q_stride, positions, group, k, v, first, dim, scale);
            }
            KvView::F16 { keys, values } => {
                let (k, v) = (keys.as_ptr(), values.as_ptr());
                (c.f16)(to, to_stride, q, q_stride, positions, group, k, v, first, dim, scale);
            }
            KvView::Q8 { .. } => unreachable!("these have a set of their own"),
        }
    }
}

pub(super) unsafe fn attend_block_q8(
    c: &AttendsQ8,
    q: &[f32],
    q_stride: usize,
    dim: usize,
    (keys, values): (Q8Rows<'_>, Q8Rows<'_>),
    scale: f32,
    out: &mut Columns<'_>,
) {
    let (positions, group) = (out.tokens, out.count() / dim);
    let first = keys.codes.len() / dim + 1 - positions;
    let (to, to_stride, q) = (out.base, out.stride, q.as_ptr());
    let (k, ks) = (keys.codes.as_ptr(), keys.scales.as_ptr());
    let (v, vs) = (values.codes.as_ptr(), values.scales.as_ptr());
    // SAFETY: q and out hold `group` heads at each position; the last position sees all keys.
    unsafe {
        (c.block)(to, to_stride, q, q_stride, positions, group, k, ks, v, vs, first, dim, scale);
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

pub(super) unsafe fn above(c: &Filters, x: &[f32], threshold: f32, out: &mut [u32]) -> usize {
    // SAFETY: `out` is as long as x.
    unsafe { (c.above)(out.as_mut_ptr(), x.as_ptr(), x.len(), threshold) }
}

pub(super) unsafe fn gemm(
    c: &Gemm,
    ty: WeightType,
    rows: &[u8],
    stride: usize,
    x: Batch<'_>,
    out: &mut Columns<'_>,
) {
    let (to, to_stride, count) = (out.base, out.stride, out.count());
    let (rows, groups) = (rows.as_ptr(), padded_groups(x.len as u64) as usize);
    let (at, tokens) = (x.at.as_ptr(), x.at.len());
    let (codes, scales) = (x.codes.as_ptr(), x.scales.as_ptr());
    let (values, len) = (x.values.as_ptr(), x.len.next_multiple_of(LANES as usize));
    let padded = padded_len(x.len as u64) as usize;
    let apart = batch_code_stride(x.len);
    // SAFETY: rows and vectors are as long as their type and length say, `at` numbers vectors, and
    // `out` has a column for each row and a line for each vector of `at`.
    unsafe {
        match ty {
            WeightType::F16 => {
                (c.f16)(to, to_stride, count, rows, stride, values, padded, at, tokens, len);
            }
            WeightType::Q8 => {
                (c.q8)(
                    to, to_stride, count, rows, stride, codes, apart, scales, at, tokens, groups,
                );
            }
            WeightType::Q4 => {
                (c.q4)(
                    to, to_stride, count, rows, stride, codes, apart, scales, at, tokens, groups,
                );
            }
        }
    }
}

pub(super) unsafe fn accumulate_batch(
    c: &Down,
    ty: WeightType,
    unit_exponent: i32,
    hidden: usize,
    batch: DownBatch<'_>,
    scratch: &mut [u8],
    sums: &mut [i64],
) -> Result<(), Overflow> {
    let (per_unit, tokens) = (power_of_two(-unit_exponent), batch.at.len());
    let length = accumulator_len(hidden);
    let skipped = scratch.as_ptr().align_offset(64);
    let (tile, rest) = scratch[skipped..].split_at_mut(TILE_BYTES);
    let room = tokens.next_multiple_of(TOKEN_BLOCK);
    let (factors, abouts) = rest.split_at_mut(room * FACTOR_BYTES);
    let abouts = abouts[..tokens * size_of::<About>()].as_mut_ptr().cast::<About>();
    let kernel = if ty == WeightType::Q8 { c.q8 } else { c.q4 };
    for (index, columns) in batch.columns.chunks(CHUNK_NEURONS).enumerate() {
        let (first, count) = (index * CHUNK_NEURONS, columns.len());
        // The last column stands in for those that are missing, times 0.
        let mut pointers = [columns[count - 1].as_ptr(); CHUNK_NEURONS];
        let mut scales = [0.0; CHUNK_NEURONS];
        for ((pointer, scale), column) in pointers.iter_mut().zip(&mut scales).zip(columns) {
            *pointer = column.as_ptr();
            *scale = column_scale(ty, column, length);
        }
        for token in 0..tokens {
            let activations = &batch.activations[token * batch.stride + first..][..count];
            let to = factors[token * FACTOR_BYTES..][..FACTOR_BYTES].as_mut_ptr();
            let (x, scales) = (activations.as_ptr(), scales.as_ptr());
            // SAFETY: a token's factors are those of a chunk; `abouts` has room for `tokens`, in
            // aligned memory, since what is before it is whole multiples of 64 bytes.
            let good =
                unsafe { (c.multipliers)(to, abouts.add(token), x, scales, per_unit, count) };
            if good < count {
                return Err(Overflow { item: first + good });
            }
        }
        let (sums, tile, groups) = (sums.as_mut_ptr(), tile.as_mut_ptr(), length / GROUP as usize);
        let (factors, columns, at) = (factors.as_ptr(), pointers.as_ptr(), batch.at.as_ptr());
        // SAFETY: columns hold the groups of a line of sums, and `at` numbers lines; factors are of
        // `tokens` tokens, with room for whole blocks of them; the tile is aligned.
        unsafe { kernel(sums, length, at, tile, columns, count, factors, abouts, tokens, groups) };
    }
    Ok(())
}
