//! The codes of an image -> floats: the slow way back, for measuring loss and for tests.

use crate::image::WeightType;
use crate::image::geometry::{GROUP, padded_groups, q4_row_nibble, q8_row_byte, row_scale_byte};
use half::f16;

/// Decodes a row of `out.len()` weights.
pub fn row(weight: WeightType, bytes: &[u8], out: &mut [f32]) {
    let groups = padded_groups(out.len() as u64);
    for (index, value) in out.iter_mut().enumerate() {
        let index = index as u64;
        let scale =
            |code_bytes| half_at(bytes, row_scale_byte(groups, index / GROUP, code_bytes) as usize);
        *value = match weight {
            WeightType::F16 => half_at(bytes, 2 * index as usize),
            WeightType::Q8 => {
                f32::from(bytes[q8_row_byte(groups, index) as usize] as i8) * scale(GROUP)
            }
            WeightType::Q4 => {
                let (at, high) = q4_row_nibble(groups, index);
                nibble(bytes[at as usize], high) * scale(GROUP / 2)
            }
        };
    }
}

/// Decodes a down column of `out.len()` weights.
pub fn column(weight: WeightType, bytes: &[u8], out: &mut [f32]) {
    let groups = out.len().div_ceil(GROUP as usize);
    for (index, value) in out.iter_mut().enumerate() {
        *value = match weight {
            WeightType::F16 => half_at(bytes, 2 * index),
            WeightType::Q8 => f32::from(bytes[index] as i8) * half_at(bytes, 32 * groups),
            WeightType::Q4 => {
                let (group, within) = (index / 32, index % 32);
                let code = nibble(bytes[16 * group + within % 16], within >= 16);
                let sub = f32::from(bytes[16 * groups + group] as i8);
                code * sub * half_at(bytes, 17 * groups)
            }
        };
    }
}

fn nibble(byte: u8, high: bool) -> f32 {
    f32::from(if high { byte >> 4 } else { byte & 15 }) - 8.0
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}
