//! Float rows and columns -> the codes of an image.
//!
//! Used by the packer. Every layout question is asked of `image::geometry`. A row's code that came
//! from a GGUF block of the same type is copied, not made again (-128 of Q8_0 becomes -127).
//!
//! The rules are part of layout 1. Arithmetic is f32, each operation rounded by itself. A float to
//! f16 goes to nearest, ties to even; `round` below goes to nearest, halves away from zero.
//!
//! ```text
//! code         clamp(round(weight / step), low, high); 0 where the step is 0
//! q8 row       step of a group: f16(largest magnitude / 127), codes -127..=127
//! q4 row       step of a group: f16(x / -8), codes -8..=7; x is the weight of largest magnitude,
//!              the first of several
//! q8 column    one step: f16(largest magnitude / 127), codes -127..=127
//! q4 column    d = f16(largest magnitude / 120); step of a group: d * s, codes -8..=7
//! sub-scale s  of a group filled with zeros to 32: n = min(round(largest magnitude / (8 * d)),
//!              15), 0 where d is 0; candidates are m, -m for each m of max(n - 2, 0)..=
//!              min(n + 2, 15), ascending; s is the first with the least error, the sum in order
//!              of (weight - step * code)^2
//! ```
//!
//! Codes are of the f16 step as stored: GGUF writers divide by the unrounded one.

use crate::image::WeightType;
use crate::image::geometry::{
    GROUP, LANES, padded_groups, q4_row_nibble, q8_row_byte, round_up, row_scale_byte,
};
use half::f16;

/// Weights of a group.
const GROUP_LEN: usize = GROUP as usize;
/// Largest sub-scale of a q4 column: 15 * 8 = 120 fits an i8 with room for the sum's bound.
const SUB_SCALE_MAX: f32 = 15.0;

/// Codes of a row, before they are laid out.
pub struct RowCodes {
    /// -127..=127 (q8) or -8..=7 (q4), one a weight.
    pub codes: Vec<i8>,
    /// One a group.
    pub scales: Vec<f16>,
}

/// Encodes a row of `values` as `weight`, `weight.row_bytes(values.len())` bytes.
pub fn encode_row(weight: WeightType, values: &[f32], out: &mut Vec<u8>) {
    match weight {
        WeightType::F16 => encode_f16(values, out),
        WeightType::Q8 => layout_row(weight, &quantize_q8(values), out),
        WeightType::Q4 => layout_row(weight, &quantize_q4(values), out),
    }
}

/// Encodes a down column of `values` as `weight`, `weight.column_bytes(values.len())` bytes.
pub fn encode_column(weight: WeightType, values: &[f32], out: &mut Vec<u8>) {
    match weight {
        WeightType::F16 => encode_f16(values, out),
        WeightType::Q8 => column_q8(values, out),
        WeightType::Q4 => column_q4(values, out),
    }
}

/// Largest multiplier a column of `values` can need, for an activation of 1: the step of its codes
/// (q8, q4) or its largest weight (f16).
pub fn column_step(weight: WeightType, values: &[f32]) -> f32 {
    match weight {
        WeightType::F16 => largest(values),
        WeightType::Q8 => q8_column_scale(values).to_f32(),
        WeightType::Q4 => q4_column_scale(values).to_f32(),
    }
}

/// Lays the codes of a q8 or q4 row out in bands.
pub fn layout_row(weight: WeightType, row: &RowCodes, out: &mut Vec<u8>) {
    let k = row.codes.len() as u64;
    let groups = padded_groups(k);
    let start = out.len();
    // A padded weight is zero: code 0, stored + 8 in q4.
    let zero = if weight == WeightType::Q4 { 0x88 } else { 0 };
    out.resize(start + weight.row_bytes(k) as usize, zero);
    let bytes = &mut out[start..];
    let code_bytes = if weight == WeightType::Q4 { GROUP / 2 } else { GROUP };
    bytes[(groups * (code_bytes + 2)) as usize..].fill(0);
    for group in 0..groups {
        let at = row_scale_byte(groups, group, code_bytes) as usize;
        let scale = row.scales.get(group as usize).copied().unwrap_or(f16::ZERO);
        bytes[at..at + 2].copy_from_slice(&scale.to_le_bytes());
    }
    for (index, &code) in row.codes.iter().enumerate() {
        if weight == WeightType::Q8 {
            bytes[q8_row_byte(groups, index as u64) as usize] = code as u8;
        } else {
            let (at, high) = q4_row_nibble(groups, index as u64);
            set_nibble(&mut bytes[at as usize], high, code);
        }
    }
}

/// Codes of -127..=127, scale = largest / 127, as GGUF's Q8_0.
fn quantize_q8(values: &[f32]) -> RowCodes {
    let mut row = RowCodes { codes: Vec::with_capacity(values.len()), scales: Vec::new() };
    for group in values.chunks(GROUP_LEN) {
        let scale = f16::from_f32(largest(group) / 127.0);
        row.scales.push(scale);
        row.codes.extend(group.iter().map(|&value| code(value, scale.to_f32(), -127.0, 127.0)));
    }
    row
}

/// Codes of -8..=7; the weight of largest magnitude becomes -8, as GGUF's Q4_0.
fn quantize_q4(values: &[f32]) -> RowCodes {
    let mut row = RowCodes { codes: Vec::with_capacity(values.len()), scales: Vec::new() };
    for group in values.chunks(GROUP_LEN) {
        let scale = f16::from_f32(extreme(group) / -8.0);
        row.scales.push(scale);
        row.codes.extend(group.iter().map(|&value| code(value, scale.to_f32(), -8.0, 7.0)));
    }
    row
}

fn encode_f16(values: &[f32], out: &mut Vec<u8>) {
    let end = out.len() + round_up(values.len() as u64, LANES) as usize * 2;
    for &value in values {
        out.extend_from_slice(&f16::from_f32(value).to_le_bytes());
    }
    out.resize(end, 0);
}

fn q8_column_scale(values: &[f32]) -> f16 {
    f16::from_f32(largest(values) / 127.0)
}

fn column_q8(values: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    let scale = q8_column_scale(values);
    out.extend(values.iter().map(|&value| code(value, scale.to_f32(), -127.0, 127.0) as u8));
    out.resize(start + round_up(values.len() as u64, GROUP) as usize, 0);
    out.extend_from_slice(&scale.to_le_bytes());
    out.resize(start + WeightType::Q8.column_bytes(values.len() as u64) as usize, 0);
}

/// The scale that lets the group with the largest weight use the largest sub-scale.
fn q4_column_scale(values: &[f32]) -> f16 {
    f16::from_f32(largest(values) / (8.0 * SUB_SCALE_MAX))
}

/// Each group takes the signed sub-scale whose codes give the smallest squared error.
fn column_q4(values: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    let scale = q4_column_scale(values);
    let groups: Vec<[f32; GROUP_LEN]> = values.chunks(GROUP_LEN).map(padded).collect();
    let subs: Vec<i8> = groups.iter().map(|group| best_sub_scale(group, scale.to_f32())).collect();
    for (group, &sub) in groups.iter().zip(&subs) {
        let step = scale.to_f32() * f32::from(sub);
        let codes = group.map(|value| code(value, step, -8.0, 7.0));
        let (low, high) = codes.split_at(GROUP_LEN / 2);
        out.extend(low.iter().zip(high).map(|(&l, &h)| (l + 8) as u8 | ((h + 8) as u8) << 4));
    }
    out.extend(subs.iter().map(|&sub| sub as u8));
    out.extend_from_slice(&scale.to_le_bytes());
    out.resize(start + WeightType::Q4.column_bytes(values.len() as u64) as usize, 0);
}

fn best_sub_scale(group: &[f32; GROUP_LEN], scale: f32) -> i8 {
    let error = |sub: i8| -> f32 {
        let step = scale * f32::from(sub);
        group.iter().map(|&v| (v - step * f32::from(code(v, step, -8.0, 7.0))).powi(2)).sum()
    };
    // Around the sub-scale that just holds the extreme weight, both signs.
    let tight = if scale > 0.0 { largest(group) / (8.0 * scale) } else { 0.0 };
    let nearest = tight.round().clamp(0.0, SUB_SCALE_MAX) as i8;
    let magnitudes = nearest.saturating_sub(2).max(0)..=(nearest + 2).min(SUB_SCALE_MAX as i8);
    let candidates = magnitudes.flat_map(|magnitude| [magnitude, -magnitude]);
    candidates.min_by(|&a, &b| error(a).total_cmp(&error(b))).expect("there is a candidate")
}

fn padded(group: &[f32]) -> [f32; GROUP_LEN] {
    let mut all = [0.0; GROUP_LEN];
    all[..group.len()].copy_from_slice(group);
    all
}

fn code(value: f32, step: f32, min: f32, max: f32) -> i8 {
    if step == 0.0 { 0 } else { (value / step).round().clamp(min, max) as i8 }
}

fn set_nibble(byte: &mut u8, high: bool, code: i8) {
    let nibble = (code + 8) as u8;
    *byte = if high { *byte & 0x0f | nibble << 4 } else { *byte & 0xf0 | nibble };
}

/// The value of largest magnitude, its sign kept.
fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |best: f32, &value| if value.abs() > best.abs() { value } else { best })
}

fn largest(values: &[f32]) -> f32 {
    extreme(values).abs()
}
