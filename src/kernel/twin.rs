//! The exact reference of every kernel: slow and obvious.
//!
//! This file defines the canonical arithmetic; a fast kernel is right when it gives the same bits.
//! Multiply, then add, each rounded: nothing here is ever fused or reordered. Called through the
//! table [`TWIN`], whose caller has checked all lengths.

use super::accumulator::{Accumulator, DownItem, Overflow, multiplier};
use super::math::{self, power_of_two, rsqrt};
use super::{Activation, Isa, Kernels, KvView};
use crate::image::ActivationFn;
use crate::image::geometry::{
    GROUP, LANES, WeightType, activation_byte, q4_row_nibble, q8_row_byte, row_scale_byte,
};
use half::f16;

const GROUP_LEN: usize = GROUP as usize;
const LANE_COUNT: usize = LANES as usize;
/// Keys of one softmax step.
pub const KEY_BLOCK: usize = 32;
/// A group whose largest magnitude is below this counts as zero (2^-100): 127 / amax stays finite
/// and the scale stays normal.
pub(super) const AMAX_MIN: f32 = power_of_two(-100);

/// The table of the twins.
pub(super) static TWIN: Kernels = Kernels::none(Isa::Twin, crate::image::tag::crc32c);

pub(super) fn quantize(x: &[f32], codes: &mut [i8], scales: &mut [f32]) -> bool {
    let groups = scales.len() as u64;
    codes.fill(0);
    scales.fill(0.0);
    let mut finite = true;
    for (group, x) in x.chunks(GROUP_LEN).enumerate() {
        // Magnitudes of floats order like their bits; NaN lies above infinity.
        let amax = f32::from_bits(x.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0));
        if !amax.is_finite() {
            finite = false;
        } else if amax >= AMAX_MIN {
            scales[group] = amax / 127.0;
            let inverse = 127.0 / amax;
            for (within, &x) in x.iter().enumerate() {
                let index = (group * GROUP_LEN + within) as u64;
                codes[activation_byte(groups, index) as usize] =
                    math::round_half_even(x * inverse) as i8;
            }
        }
    }
    finite
}

pub(super) fn matvec(
    ty: WeightType,
    rows: &[u8],
    row_stride: usize,
    x: Activation<'_>,
    out: &mut [f32],
) {
    for (row, out) in out.iter_mut().enumerate() {
        let row = &rows[row * row_stride..];
        *out = match ty {
            WeightType::F16 => dot_f16(row, x),
            WeightType::Q8 | WeightType::Q4 => dot_quantized(ty, row, x),
        };
    }
}

fn dot_f16(row: &[u8], x: Activation<'_>) -> f32 {
    let mut partials = [0.0; LANE_COUNT];
    for index in 0..x.len.next_multiple_of(LANE_COUNT) {
        partials[index % LANE_COUNT] += f16_at(row, index) * x.values[index];
    }
    tree(&partials)
}

fn dot_quantized(ty: WeightType, row: &[u8], x: Activation<'_>) -> f32 {
    let groups = x.scales.len();
    let mut partials = [0.0; LANE_COUNT];
    for group in 0..groups {
        let mut sum = 0;
        for within in 0..GROUP_LEN {
            let index = (group * GROUP_LEN + within) as u64;
            let x = x.codes[activation_byte(groups as u64, index) as usize];
            sum += row_code(ty, row, groups, index as usize) * i32::from(x);
        }
        let scale = row_scale(ty, row, groups, group) * x.scales[group];
        partials[group % LANE_COUNT] += sum as f32 * scale;
    }
    tree(&partials)
}

/// Code of weight `index` in a q8 or q4 row of `groups` groups.
pub(super) fn row_code(ty: WeightType, row: &[u8], groups: usize, index: usize) -> i32 {
    if ty == WeightType::Q8 {
        return i32::from(row[q8_row_byte(groups as u64, index as u64) as usize] as i8);
    }
    let (byte, high) = q4_row_nibble(groups as u64, index as u64);
    let byte = row[byte as usize];
    i32::from(if high { byte >> 4 } else { byte & 15 }) - 8
}

/// Scale of `group` in a q8 or q4 row of `groups` groups.
pub(super) fn row_scale(ty: WeightType, row: &[u8], groups: usize, group: usize) -> f32 {
    let code_bytes = if ty == WeightType::Q8 { GROUP } else { GROUP / 2 };
    f16_at(row, row_scale_byte(groups as u64, group as u64, code_bytes) as usize / 2)
}

/// Half float `index` of `bytes`.
pub(super) fn f16_at(bytes: &[u8], index: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
}

/// The one order in which 16 partial sums are added.
pub(super) fn tree(partials: &[f32; LANE_COUNT]) -> f32 {
    let mut sums = *partials;
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
    }
    sums[0]
}

pub(super) fn accumulate(
    ty: WeightType,
    unit_exponent: i32,
    items: &[DownItem<'_>],
    sums: &mut Accumulator<'_>,
) -> Result<(), Overflow> {
    let per_unit = power_of_two(-unit_exponent);
    for (item, &DownItem { activation, column }) in items.iter().enumerate() {
        let overflow = Overflow { item };
        if ty == WeightType::F16 {
            let activation = activation * per_unit;
            for (index, sum) in sums.wide[..column.len() / 2].iter_mut().enumerate() {
                let product = activation * f16_at(column, index);
                *sum += i64::from(multiplier(product, 1.0).ok_or(overflow)?);
            }
        } else {
            let product = activation * column_scale(ty, column, sums.wide.len());
            let m = i64::from(multiplier(product, per_unit).ok_or(overflow)?);
            let len = sums.wide.len();
            for (index, sum) in sums.wide.iter_mut().enumerate() {
                *sum += m * i64::from(column_code(ty, column, len, index));
            }
        }
    }
    Ok(())
}

/// Scale of a q8 or q4 column of `len` weights, whole groups.
pub(super) fn column_scale(ty: WeightType, column: &[u8], len: usize) -> f32 {
    let groups = len / GROUP_LEN;
    let code_bytes = if ty == WeightType::Q8 { len } else { groups * (GROUP_LEN / 2 + 1) };
    f16_at(&column[code_bytes..], 0)
}

/// Integer weight `index` of a q8 or q4 column of `len` weights, whole groups.
fn column_code(ty: WeightType, column: &[u8], len: usize, index: usize) -> i32 {
    if ty == WeightType::Q8 {
        return i32::from(column[index] as i8);
    }
    const HALF: usize = GROUP_LEN / 2;
    let (group, within) = (index / GROUP_LEN, index % GROUP_LEN);
    let byte = column[group * HALF + within % HALF];
    let code = if within < HALF { byte & 15 } else { byte >> 4 };
    // The sub-scales stand behind all the codes.
    let sub_scale = column[len / 2 + group] as i8;
    (i32::from(code) - 8) * i32::from(sub_scale)
}

pub(super) fn attend(q: &[f32], kv: KvView<'_>, mut unseen: usize, scale: f32, out: &mut [f32]) {
    let dim = q.len();
    let keys = kv.len() / dim;
    let mut max = f32::NEG_INFINITY;
    let mut total = 0.0;
    out.fill(0.0);
    for first in (0..keys).step_by(KEY_BLOCK) {
        let count = KEY_BLOCK.min(keys - first);
        let mut weights = [0.0; KEY_BLOCK];
        let old_max = max;
        let weights = &mut weights[..count];
        for (j, score) in weights.iter_mut().enumerate().skip(unseen) {
            let key = (first + j) * dim;
            *score = dot_f32(q, |index| kv.key(key + index)) * scale;
            max = if *score > max { *score } else { max };
        }
        // Minus infinity before the first block, so nothing is kept of the zeros.
        let keep = math::exp(old_max - max);
        let mut partials = [0.0; LANE_COUNT];
        for (j, weight) in weights.iter_mut().enumerate().skip(unseen) {
            *weight = math::exp(*weight - max);
            partials[j % LANE_COUNT] += *weight;
        }
        total = total * keep + tree(&partials);
        for (index, out) in out.iter_mut().enumerate() {
            *out *= keep;
            for (j, weight) in weights.iter().enumerate().skip(unseen) {
                *out += weight * kv.value((first + j) * dim + index);
            }
        }
        unseen = 0;
    }
    for out in out {
        *out /= total;
    }
}

/// Dot product of `x` with `y(index)`, a multiple of 16 values.
fn dot_f32(x: &[f32], y: impl Fn(usize) -> f32) -> f32 {
    let mut partials = [0.0; LANE_COUNT];
    for (index, x) in x.iter().enumerate() {
        partials[index % LANE_COUNT] += x * y(index);
    }
    tree(&partials)
}

pub(super) fn exp(x: &mut [f32]) {
    for x in x {
        *x = math::exp(*x);
    }
}

pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let factor = rms_factor(dot_f32(x, |index| x[index]), x.len(), eps);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = (x * factor) * weight;
    }
}

/// What RMS norm multiplies `len` values of a sum of squares by.
pub(super) fn rms_factor(sum_of_squares: f32, len: usize, eps: f32) -> f32 {
    rsqrt(sum_of_squares * (1.0 / len as f32) + eps)
}

pub(super) fn rope(x: &mut [f32], cos_sin: &[f32]) {
    for (x, turn) in x.chunks_exact_mut(2).zip(cos_sin.chunks_exact(2)) {
        let (x0, x1, cos, sin) = (x[0], x[1], turn[0], turn[1]);
        x[0] = x0 * cos - x1 * sin;
        x[1] = x1 * cos + x0 * sin;
    }
}

pub(super) fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

pub(super) fn to_f16(x: &[f32], out: &mut [u16]) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = f16::from_f32(x).to_bits();
    }
}

pub(super) fn argmax(x: &[f32]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (index, value) in x.iter().enumerate() {
        if !value.is_nan() && best.is_none_or(|best| *value > x[best]) {
            best = Some(index);
        }
    }
    best
}

/// Indices of the values that `are` what is wanted; their count.
pub(super) fn pick(x: &[f32], out: &mut [u32], are: impl Fn(f32) -> bool) -> usize {
    let mut count = 0;
    for (index, &value) in (0..).zip(x) {
        if are(value) {
            out[count] = index;
            count += 1;
        }
    }
    count
}

pub(super) fn gate(activation: ActivationFn, gate: &mut [f32], up: &[f32]) {
    // Only what is surely closed is zero.
    let open = |by: f32, x: f32| if by <= 0.0 { 0.0 } else { x };
    for (gate, &up) in gate.iter_mut().zip(up) {
        *gate = match activation {
            ActivationFn::DRelu => open(*gate, *gate * open(up, up)),
            ActivationFn::SiLu => math::silu(*gate) * up,
            ActivationFn::Relu => open(*gate, *gate * up),
            ActivationFn::Gelu => math::gelu(*gate) * up,
        };
    }
}
