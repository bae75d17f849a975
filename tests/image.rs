//! Bytes on flash: geometry, header, codes, the packed demo against its source, and every byte of a
//! golden image.
//!
//! A failing property prints its smallest counterexample; keep it as a plain test.
#![cfg(feature = "host")]

#[path = "image/codes.rs"]
mod codes;
#[path = "image/geometry.rs"]
mod geometry;
#[path = "image/golden.rs"]
mod golden;
#[path = "image/header.rs"]
mod header;
#[path = "image/packed.rs"]
mod packed;
#[path = "common/process.rs"]
mod process;
#[path = "common/refusal.rs"]
mod refusal;

use ganglion::forge::decode;
use ganglion::forge::quantize::{encode_column, encode_row};
use ganglion::image::WeightType;
use ganglion::image::geometry::{q4_row_nibble, q8_row_byte};
use proptest::prelude::ProptestConfig;

fn properties() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

/// Standard normal numbers, the same for each seed.
struct Gauss(u64);

impl Gauss {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn next(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.uniform()).cos()) as f32
    }

    fn vector(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next()).collect()
    }
}

fn row(weight: WeightType, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_row(weight, values, &mut bytes);
    assert_eq!(bytes.len() as u64, weight.row_bytes(values.len() as u64));
    bytes
}

fn column(weight: WeightType, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_column(weight, values, &mut bytes);
    assert_eq!(bytes.len() as u64, weight.column_bytes(values.len() as u64));
    bytes
}

fn decoded_row(weight: WeightType, bytes: &[u8], len: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; len];
    decode::row(weight, bytes, &mut out);
    out
}

fn decoded_column(weight: WeightType, bytes: &[u8], len: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; len];
    decode::column(weight, bytes, &mut out);
    out
}

/// Code of weight `index` of a q8 or q4 row.
fn row_code(weight: WeightType, bytes: &[u8], groups: u64, index: u64) -> i8 {
    if weight == WeightType::Q8 {
        return bytes[q8_row_byte(groups, index) as usize] as i8;
    }
    let (at, high) = q4_row_nibble(groups, index);
    let byte = bytes[at as usize];
    (if high { byte >> 4 } else { byte & 15 }) as i8 - 8
}
