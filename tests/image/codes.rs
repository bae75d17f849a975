//! Floats to codes and back: how far off, what is kept, what the kernels may rely on.

use super::{Gauss, column, decoded_column, decoded_row, properties, row, row_code};
use ganglion::forge::quantize::{RowCodes, layout_row};
use ganglion::image::WeightType::{self, F16, Q4, Q8};
use ganglion::image::geometry::{padded_groups, padded_len, row_scale_byte};
use ganglion::kernel::dequantize_row;
use half::f16;
use proptest::prelude::*;

proptest! {
    #![proptest_config(properties())]

    #[test]
    fn rows_decode_as_the_kernels_do(
        seed in any::<u64>(),
        len in 1..2000usize,
        scale in -20..20i32,
    ) {
        let mut values = Gauss(seed).vector(len);
        values.iter_mut().for_each(|value| *value *= 2f32.powi(scale));
        for weight in WeightType::ALL {
            let bytes = row(weight, &values);
            let mut out = vec![f32::NAN; len];
            dequantize_row(weight, &bytes, &mut out);
            let wanted = decoded_row(weight, &bytes, len);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&out), bits(&wanted), "{:?}", weight);
        }
    }

    #[test]
    fn codes_are_within_half_a_step(seed in any::<u64>(), len in 1..2000usize) {
        let values = Gauss(seed).vector(len);
        for (at, group) in decoded_row(Q8, &row(Q8, &values), len).chunks(32).enumerate() {
            let source = &values[32 * at..32 * at + group.len()];
            let largest = source.iter().fold(0f32, |max, value| max.max(value.abs()));
            for (source, decoded) in source.iter().zip(group) {
                // Half a step, and the f16 rounding of the scale over 127 steps.
                prop_assert!((source - decoded).abs() <= largest * (0.5 / 127.0 + 1.0 / 2048.0));
            }
        }
        let decoded = decoded_column(Q8, &column(Q8, &values), len);
        let largest = values.iter().fold(0f32, |max, value| max.max(value.abs()));
        for (source, decoded) in values.iter().zip(decoded) {
            prop_assert!((source - decoded).abs() <= largest * (0.5 / 127.0 + 1.0 / 2048.0));
        }
    }

    #[test]
    fn products_of_a_q4_column_fit_the_proven_sum(
        seed in any::<u64>(),
        len in 1..2000usize,
        scale in -30..12i32,
        spike in 0.0..1000f32,
    ) {
        let mut values = Gauss(seed).vector(len);
        values[seed as usize % len] *= spike;
        values.iter_mut().for_each(|value| *value *= 2f32.powi(scale));
        let bytes = column(Q4, &values);
        let groups = len.div_ceil(32);
        for group in 0..groups {
            let sub = i32::from(bytes[16 * groups + group] as i8);
            prop_assert!(sub.abs() <= 15);
            for byte in &bytes[16 * group..16 * group + 16] {
                for code in [i32::from(byte & 15) - 8, i32::from(byte >> 4) - 8] {
                    prop_assert!((sub * code).abs() <= 120);
                }
            }
        }
        // Weights past the end add nothing, whatever the sub-scale.
        for index in len..32 * groups {
            let byte = bytes[16 * (index / 32) + index % 16];
            prop_assert_eq!(if index % 32 < 16 { byte & 15 } else { byte >> 4 }, 8);
        }
    }

    #[test]
    fn ggml_codes_are_copied_bit_for_bit(
        blocks in prop::collection::vec((any::<u16>(), any::<[u8; 32]>()), 1..40),
    ) {
        for (weight, low, high, code_bytes) in [(Q8, -127, 127, 32), (Q4, -8, 7, 16)] {
            let span = high - low + 1;
            let code = |byte: u8| (low + i32::from(byte) % span) as i8;
            let codes: Vec<i8> = blocks.iter().flat_map(|(_, bytes)| bytes.map(code)).collect();
            let scales: Vec<f16> = blocks.iter().map(|&(bits, _)| f16::from_bits(bits)).collect();
            let row = RowCodes { codes, scales };
            let mut bytes = vec![0xaa; 5]; // appended behind what is there
            layout_row(weight, &row, &mut bytes);
            prop_assert_eq!(&bytes[..5], &[0xaa; 5]);
            let bytes = &bytes[5..];
            let len = row.codes.len() as u64;
            prop_assert_eq!(bytes.len() as u64, weight.row_bytes(len));
            let groups = padded_groups(len);
            for index in 0..padded_len(len) {
                let wanted = row.codes.get(index as usize).copied().unwrap_or(0);
                prop_assert_eq!(row_code(weight, bytes, groups, index), wanted);
            }
            for group in 0..groups {
                let at = row_scale_byte(groups, group, code_bytes) as usize;
                let scale = row.scales.get(group as usize).copied().unwrap_or(f16::ZERO);
                prop_assert_eq!(bytes[at..at + 2].to_vec(), scale.to_le_bytes().to_vec());
            }
            prop_assert!(bytes[(groups * (code_bytes + 2)) as usize..].iter().all(|&b| b == 0));
        }
    }
}

/// Root-mean-square error over root-mean-square of the source.
fn relative_error(source: &[f32], decoded: &[f32]) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f32>| -> f64 {
        values.map(|value| f64::from(value).powi(2)).sum()
    };
    let error = square(&mut source.iter().zip(decoded).map(|(a, b)| a - b));
    (error / square(&mut source.iter().copied())).sqrt()
}

#[test]
fn relative_errors_of_normal_weights() {
    // Of a uniform step of width w the error is w / sqrt(12). A group of 32 normal weights has its
    // largest near 2.1: q8 2.1/127/3.46 = 0.005, q4 2.1/8/3.46 = 0.08; a q8 column of 4096 has
    // its largest near 3.7: 0.0085.
    let values = Gauss(1).vector(1 << 12);
    let table = [
        ("q8 row", decoded_row(Q8, &row(Q8, &values), values.len()), 0.004..0.006),
        ("q4 row", decoded_row(Q4, &row(Q4, &values), values.len()), 0.06..0.10),
        ("q8 column", decoded_column(Q8, &column(Q8, &values), values.len()), 0.007..0.010),
        ("q4 column", decoded_column(Q4, &column(Q4, &values), values.len()), 0.06..0.10),
    ];
    for (name, decoded, wanted) in table {
        let error = relative_error(&values, &decoded);
        assert!(wanted.contains(&error), "{name}: {error:.4} is not in {wanted:?}");
    }
}

#[test]
fn zeros_stay_zeros() {
    for len in [1, 31, 32, 33, 100, 512] {
        let zeros = vec![0.0; len];
        let mut one = zeros.clone();
        one[len / 2] = -3.0;
        for weight in WeightType::ALL {
            assert!(decoded_row(weight, &row(weight, &zeros), len).iter().all(|&v| v == 0.0));
            assert!(decoded_column(weight, &column(weight, &zeros), len).iter().all(|&v| v == 0.0));
            for decoded in [
                decoded_row(weight, &row(weight, &one), len),
                decoded_column(weight, &column(weight, &one), len),
            ] {
                for (index, value) in decoded.into_iter().enumerate() {
                    assert_eq!(value != 0.0, index == len / 2, "{weight:?} of {len}: {value}");
                }
            }
        }
    }
}

#[test]
fn f16_values_are_kept() {
    let values: Vec<f32> =
        Gauss(2).vector(777).into_iter().map(|v| f16::from_f32(v).to_f32()).collect();
    assert_eq!(decoded_row(F16, &row(F16, &values), 777), values);
    assert_eq!(decoded_column(F16, &column(F16, &values), 777), values);
}

#[test]
fn values_of_the_grid_are_kept() {
    let mut gauss = Gauss(3);
    let mut code =
        |low: f64, high: f64| (low + gauss.uniform() * (high - low + 1.0)).floor() as f32;
    let scales = [1.0, 0.125, 0.0007, 3.3].map(|scale| f16::from_f32(scale).to_f32());
    let grid = |code: &mut dyn FnMut() -> f32, largest: f32| -> Vec<f32> {
        let groups = scales.iter().map(|scale| (scale, largest));
        groups
            .flat_map(|(scale, largest)| {
                let mut group: Vec<f32> = (0..32).map(|_| scale * code()).collect();
                group[7] = scale * largest;
                group
            })
            .collect()
    };
    let q8 = grid(&mut || code(-127.0, 127.0), 127.0);
    assert_eq!(decoded_row(Q8, &row(Q8, &q8), 128), q8);
    assert_eq!(decoded_column(Q8, &column(Q8, &q8[..32]), 32), q8[..32]);
    let q4 = grid(&mut || code(-7.0, 7.0), -8.0);
    assert_eq!(decoded_row(Q4, &row(Q4, &q4), 128), q4);
    // A column has one scale and a signed sub-scale a group; the first group's is the largest.
    let step = f16::from_f32(0.0123).to_f32();
    let subs = [15.0, -3.0, 1.0, 14.0, -15.0, 8.0];
    let mut column_values = Vec::new();
    for sub in subs {
        let start = column_values.len();
        column_values.extend((0..32).map(|_| step * sub * code(-7.0, 7.0)));
        column_values[start + 11] = step * sub * -8.0;
    }
    // A group that nowhere reaches -8: its largest weight alone does not tell its sub-scale.
    column_values.extend((0..32).map(|index| step * 15.0 * (index % 8) as f32));
    let len = column_values.len();
    assert_eq!(decoded_column(Q4, &column(Q4, &column_values), len), column_values);
}
