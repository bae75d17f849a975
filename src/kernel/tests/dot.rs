//! Quantisation and rows times activations.

use super::*;
use crate::kernel::Soon;
use crate::kernel::{Activation, dequantize_row};

fn random_rows(rng: &mut Rng, ty: WeightType, len: usize, count: usize) -> Guarded<u8> {
    let rows: Vec<u8> = (0..count).flat_map(|_| Row::random(rng, ty, len).bytes).collect();
    Guarded::of(&rows)
}

#[test]
fn rows_match_the_twin_bit_for_bit() {
    for (seed, len) in (0..).zip(LENGTHS) {
        let mut rng = Rng::new(seed);
        for ty in WeightType::ALL {
            for (count, pattern) in (1..).zip(PATTERNS) {
                let rows = random_rows(&mut rng, ty, len, count);
                let x = Operand::new(&floats(&mut rng, len, pattern));
                let stride = rows.len() / count;
                let (mut twin, mut fast) = (vec![0.0; count], Guarded::new(count));
                Kernels::twin().matvec(ty, &rows, stride, x.view(), &mut twin);
                for kernels in fast_tables() {
                    kernels.matvec(ty, &rows, stride, x.view(), &mut fast);
                    let isa = kernels.isa().name();
                    let what = format!("{isa} seed {seed} len {len} {ty:?} {pattern:?}");
                    assert_same(&twin, &fast, &what);
                    let last = &rows[(count - 1) * stride..];
                    assert_same(&twin[count - 1..], &[kernels.dot(ty, last, x.view())], &what);
                }
            }
        }
    }
}

/// A kernel may keep something of each group of the activation: there is no longest row.
#[test]
fn long_rows_match_the_twin_bit_for_bit() {
    let (len, count) = (33_000, 5);
    let mut rng = Rng::new(70);
    for ty in WeightType::ALL {
        let rows = random_rows(&mut rng, ty, len, count);
        let x = Operand::new(&floats(&mut rng, len, Pattern::Normal));
        let stride = rows.len() / count;
        let (mut twin, mut fast) = (vec![0.0; count], Guarded::new(count));
        Kernels::twin().matvec(ty, &rows, stride, x.view(), &mut twin);
        for kernels in fast_tables() {
            kernels.matvec(ty, &rows, stride, x.view(), &mut fast);
            assert_same(&twin, &fast, &format!("{} {ty:?}", kernels.isa().name()));
        }
    }
}

#[test]
fn rows_may_stand_apart() {
    let mut rng = Rng::new(77);
    let (len, count, gap) = (100, 6, 48);
    for ty in WeightType::ALL {
        let x = Operand::new(&floats(&mut rng, len, Pattern::Normal));
        let rows: Vec<Row> = (0..count).map(|_| Row::random(&mut rng, ty, len)).collect();
        let stride = rows[0].bytes.len() + gap;
        let mut bytes = vec![0xa5; count * stride - gap];
        for (i, row) in rows.iter().enumerate() {
            bytes[i * stride..][..row.bytes.len()].copy_from_slice(&row.bytes);
        }
        let bytes = Guarded::of(&bytes);
        let expected: Vec<f32> =
            rows.iter().map(|row| Kernels::twin().dot(ty, &row.bytes, x.view())).collect();
        for kernels in [Kernels::twin()].into_iter().chain(fast_tables()) {
            let mut out = vec![0.0; count];
            kernels.matvec(ty, &bytes, stride, x.view(), &mut out);
            assert_same(&expected, &out, kernels.isa().name());
        }
    }
}

#[test]
fn rows_of_a_list_match_the_twin() {
    for (seed, len) in (250..).zip([31, 576, 1536]) {
        let mut rng = Rng::new(seed);
        for ty in WeightType::ALL {
            for count in [0, 1, 3, 4, 5, 31, 32, 33, 70] {
                let rows: Vec<Guarded<u8>> =
                    (0..count).map(|_| random_rows(&mut rng, ty, len, 1)).collect();
                let list: Vec<&[u8]> = rows.iter().map(|row| &row[..]).collect();
                let x = Operand::new(&floats(&mut rng, len, Pattern::Normal));
                let expected: Vec<f32> =
                    list.iter().map(|row| Kernels::twin().dot(ty, row, x.view())).collect();
                for kernels in [Kernels::twin()].into_iter().chain(fast_tables()) {
                    let mut out = Guarded::new(count);
                    kernels.rows(ty, &list, x.view(), &mut out);
                    let name = kernels.isa().name();
                    assert_same(&expected, &out, &format!("seed {seed} {ty:?} {count} {name}"));
                }
            }
        }
    }
}

#[test]
fn gates_and_ups_match_the_twin() {
    for (seed, len) in (270..).zip([31, 100, 576, 640, 1536, 2048]) {
        let mut rng = Rng::new(seed);
        for ty in WeightType::ALL {
            let row = ty.row_bytes(len as u64) as usize;
            for (count, up, gap) in [(0, row, 0), (1, row, 64), (2, row + 16, 0), (7, row, 48)] {
                let stride = up + row + gap;
                // Nothing follows the last up row.
                let mut records = Guarded::new((count * stride).saturating_sub(gap));
                for record in 0..count {
                    for at in [0, up] {
                        let bytes = Row::random(&mut rng, ty, len).bytes;
                        records[record * stride + at..][..row].copy_from_slice(&bytes);
                    }
                }
                let x = Operand::new(&floats(&mut rng, len, Pattern::Normal));
                let (mut gates, mut ups) = (vec![0.0; count], vec![0.0; count]);
                if count > 0 {
                    let twin = Kernels::twin();
                    twin.matvec(ty, &records, stride, x.view(), &mut gates);
                    twin.matvec(ty, &records[up..], stride, x.view(), &mut ups);
                }
                for kernels in fast_tables() {
                    let (mut g, mut u) = (Guarded::new(count), Guarded::new(count));
                    let list: Vec<&[u8]> = (0..count).map(|at| &records[at * stride..]).collect();
                    let (soon, later) = Soon::in_two(&list, up + row);
                    for soon in [soon, later, Soon::NOTHING] {
                        kernels.gate_up(ty, &list, up, soon, x.view(), &mut g, &mut u);
                    }
                    let what = format!("seed {seed} {ty:?} {count} {}", kernels.isa().name());
                    assert_same(&gates, &g, &what);
                    assert_same(&ups, &u, &what);
                }
            }
        }
    }
}

/// Products at their largest: 16-bit sums inside a kernel must not saturate.
#[test]
fn saturated_codes_are_exact() {
    for len in LENGTHS {
        let groups = padded_groups(len as u64) as usize;
        let padded = groups * 32;
        for (ty, weight_byte, weight) in [
            (WeightType::Q8, 127i8 as u8, 127),
            (WeightType::Q8, -127i8 as u8, -127),
            (WeightType::Q4, 0xff, 7),
            (WeightType::Q4, 0x00, -8),
        ] {
            for code in [127i8, -127] {
                let (codes, scales) = (Guarded::of(&vec![code; padded]), vec![1.0; groups]);
                let x = Activation::new(len, &[], &codes, &scales);
                let mut row = Guarded::of(&vec![weight_byte; ty.row_bytes(len as u64) as usize]);
                let code_bytes = if ty == WeightType::Q8 { 32 } else { 16 };
                for group in 0..groups {
                    let width = 16.min(groups - group / 16 * 16);
                    let band = group / 16 * 16 * (code_bytes + 2) + width * code_bytes;
                    row[band + group % 16 * 2..][..2].copy_from_slice(&f16::ONE.to_le_bytes());
                }
                let expected = (padded as i32 * weight * i32::from(code)) as f32;
                for kernels in [Kernels::twin()].into_iter().chain(fast_tables()) {
                    assert_eq!(
                        kernels.dot(ty, &row, x),
                        expected,
                        "{} {len} {ty:?} {code}",
                        kernels.isa().name()
                    );
                }
            }
        }
    }
}

/// The order of additions is part of the format: groups 0 and 16 share a partial sum, where the
/// one is lost; group 8 then cancels what is left.
#[test]
fn groups_are_added_in_the_canonical_order() {
    let len = 17 * 32;
    let groups = padded_groups(len as u64) as usize;
    let (mut codes, mut scales) = (vec![0i8; groups * 32], vec![0.0; groups]);
    let mut row = vec![0u8; WeightType::Q8.row_bytes(len as u64) as usize];
    for (group, scale) in [(0, 16_777_216.0), (8, -16_777_216.0), (16, 1.0)] {
        // The first weight of each group is 1, the rest are 0.
        let (band, width) = if group < 16 { (0, 16) } else { (16, groups - 16) };
        let at = (group - band) * 4;
        codes[band * 32 + at] = 1;
        row[band * 34 + at] = 1;
        scales[group] = scale;
        let scale_at = band * 34 + width * 32 + (group - band) * 2;
        row[scale_at..][..2].copy_from_slice(&f16::ONE.to_le_bytes());
    }
    let x = Activation::new(len, &[], &codes, &scales);
    for kernels in [Kernels::twin()].into_iter().chain(fast_tables()) {
        assert_eq!(kernels.dot(WeightType::Q8, &row, x), 0.0, "{}", kernels.isa().name());
    }
}

#[test]
fn the_twin_is_near_the_exact_sum() {
    for (seed, len) in (100..).zip(LENGTHS) {
        let mut rng = Rng::new(seed);
        for ty in WeightType::ALL {
            let row = Row::random(&mut rng, ty, len);
            let x = floats(&mut rng, len, Pattern::Normal);
            let operand = Operand::new(&x);
            let (mut sum, mut bound) = (0.0, 0.0);
            for (i, (w, &x)) in row.weights.iter().zip(x.iter()).enumerate() {
                let group = &operand.values[i / 32 * 32..][..32];
                let amax = group.iter().fold(0f32, |a, b| a.max(b.abs()));
                // Half a step of the quantised activation, and rounding.
                let step = if ty == WeightType::F16 { 0.0 } else { f64::from(amax) / 254.0 };
                sum += w * f64::from(x);
                bound += w.abs() * (1.001 * step + 1e-5 * f64::from(x.abs()));
            }
            let dot = f64::from(Kernels::twin().dot(ty, &row.bytes, operand.view()));
            assert!(
                (dot - sum).abs() <= bound + 1e-30,
                "seed {seed} {ty:?}: {dot} {sum} +- {bound}"
            );
        }
    }
}

#[test]
fn dequantized_rows_hold_the_weights() {
    for (seed, len) in (200..).zip(LENGTHS) {
        let mut rng = Rng::new(seed);
        for ty in WeightType::ALL {
            let row = Row::random(&mut rng, ty, len);
            let mut out = Guarded::new(len);
            dequantize_row(ty, &row.bytes, &mut out);
            for (found, weight) in out.iter().zip(&row.weights) {
                assert_eq!(*found, *weight as f32, "seed {seed} {ty:?}");
            }
        }
    }
}

#[test]
fn quantize_matches_the_twin_bit_for_bit() {
    for (seed, len) in (300..).zip(LENGTHS) {
        let mut rng = Rng::new(seed);
        for pattern in PATTERNS {
            for bad in [None, Some(f32::NAN), Some(f32::INFINITY), Some(f32::NEG_INFINITY)] {
                let mut x = floats(&mut rng, len, pattern);
                if let Some(bad) = bad {
                    let at = rng.below(len);
                    x[at] = bad;
                }
                let twin = quantized(Kernels::twin(), &x);
                assert_eq!(twin.2, bad.is_none());
                for kernels in fast_tables() {
                    let fast = quantized(kernels, &x);
                    let isa = kernels.isa().name();
                    let what = format!("{isa} seed {seed} len {len} {pattern:?} {bad:?}");
                    assert_eq!((&*twin.0, twin.2), (&*fast.0, fast.2), "{what}");
                    assert_same(&twin.1, &fast.1, &what);
                }
            }
        }
    }
}

/// Codes, scales and verdict over buffers full of junk.
fn quantized(kernels: &Kernels, x: &[f32]) -> (Guarded<i8>, Guarded<f32>, bool) {
    let (mut codes, mut scales) = (
        Guarded::new(padded_len(x.len() as u64) as usize),
        Guarded::new(padded_groups(x.len() as u64) as usize),
    );
    codes.fill(0x55);
    scales.fill(f32::NAN);
    let finite = kernels.quantize(x, &mut codes, &mut scales);
    (codes, scales, finite)
}

#[test]
fn quantize_rounds_as_written() {
    // Four groups: one band of width 4, so weight 4 * step + j is byte step * 16 + j.
    let mut x = [0.0f32; 40];
    x[..6].copy_from_slice(&[127.0, 0.5, 1.5, -2.5, -127.0, 126.4]);
    // Group 1: below the smallest magnitude.
    x[32] = 1e-31;
    for kernels in [Kernels::twin()].into_iter().chain(fast_tables()) {
        let (codes, scales, finite) = quantized(kernels, &x);
        assert!(finite);
        assert_eq!(codes[..4], [127, 0, 2, -2]);
        assert_eq!(codes[16..18], [-127, 126]);
        assert_eq!(codes.iter().filter(|code| **code != 0).count(), 5);
        assert_eq!(scales[..], [1.0, 0.0, 0.0, 0.0]);
    }
}
