//! Down columns: fixed-point sums.

use super::*;
use crate::kernel::Soon;
use crate::kernel::accumulator::{finish, merge};
use crate::kernel::{Accumulator, DownItem, Overflow, accumulator_len};

const UNIT_EXPONENT: i32 = -20;

/// A column written from the words of the layout, beside its integer weights and scale.
struct Column {
    bytes: Vec<u8>,
    /// Integer weights of q8 and q4, or the bits of f16.
    weights: Vec<i32>,
    scale: f16,
}

impl Column {
    fn new(rng: &mut Rng, ty: WeightType, hidden: usize, scale: f16, extreme: bool) -> Column {
        let groups = hidden.div_ceil(32);
        let (mut bytes, mut weights) = (Vec::new(), Vec::new());
        match ty {
            WeightType::F16 => {
                for _ in 0..hidden {
                    let half = f16::from_f32(rng.unit());
                    weights.push(i32::from(half.to_bits()));
                    bytes.extend(half.to_le_bytes());
                }
                bytes.resize(2 * hidden.next_multiple_of(16), 0);
            }
            WeightType::Q8 => {
                weights.extend((0..hidden).map(|_| if extreme { 127 } else { rng.code().into() }));
                bytes.extend(weights.iter().map(|w| *w as i8 as u8));
                bytes.resize(groups * 32, 0);
            }
            WeightType::Q4 => {
                let sub_scales: Vec<i32> = (0..groups)
                    .map(|_| if extreme { -15 } else { rng.below(31) as i32 - 15 })
                    .collect();
                let mut nibbles: Vec<u8> = (0..groups * 32)
                    .map(|_| if extreme { 0 } else { rng.below(16) as u8 })
                    .collect();
                nibbles[hidden..].fill(8);
                for group in nibbles.chunks(32) {
                    bytes.extend((0..16).map(|j| group[j] | group[j + 16] << 4));
                }
                bytes.extend(sub_scales.iter().map(|s| *s as i8 as u8));
                weights
                    .extend((0..hidden).map(|i| sub_scales[i / 32] * (i32::from(nibbles[i]) - 8)));
            }
        }
        if ty != WeightType::F16 {
            bytes.extend(scale.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        assert_eq!(bytes.len() as u64, ty.column_bytes(hidden as u64));
        Column { bytes, weights, scale }
    }

    /// Adds the column in i128.
    fn add_exactly(&self, ty: WeightType, activation: f32, sums: &mut [i128]) {
        let per_unit = 2f32.powi(-UNIT_EXPONENT);
        for (sum, &weight) in sums.iter_mut().zip(&self.weights) {
            if ty == WeightType::F16 {
                let weight = f16::from_bits(weight as u16).to_f32();
                *sum += (activation * per_unit * weight).round_ties_even() as i128;
            } else {
                let m = (activation * self.scale.to_f32() * per_unit).round_ties_even() as i128;
                *sum += m * i128::from(weight);
            }
        }
    }
}

/// Rows of an accumulator.
struct Sums {
    hidden: usize,
    low: Guarded<i32>,
    high: Guarded<i32>,
    wide: Guarded<i64>,
}

impl Sums {
    fn new(hidden: usize) -> Sums {
        let n = accumulator_len(hidden);
        let (low, high, wide) = (Guarded::new(n), Guarded::new(n), Guarded::new(n));
        Sums { hidden, low, high, wide }
    }

    fn view(&mut self) -> Accumulator<'_> {
        Accumulator::new(self.hidden, &mut self.low, &mut self.high, &mut self.wide)
    }
}

fn tables() -> Vec<&'static Kernels> {
    [Kernels::twin()].into_iter().chain(fast_tables()).collect()
}

/// Checks all tables against i128 sums, whole and split over two workers.
fn check(seed: u64, ty: WeightType, hidden: usize, items: &[(f32, Column)]) {
    let mut exact = vec![0i128; hidden];
    for (activation, column) in items {
        column.add_exactly(ty, *activation, &mut exact);
    }
    let columns: Vec<Guarded<u8>> =
        items.iter().map(|(_, column)| Guarded::of(&column.bytes)).collect();
    let batch: Vec<DownItem> = items
        .iter()
        .zip(&columns)
        .map(|((activation, _), column)| DownItem { activation: *activation, column })
        .collect();
    for kernels in tables() {
        let what = format!("seed {seed} {ty:?} hidden {hidden} {}", kernels.isa().name());
        let (mut first, mut second) = (Sums::new(hidden), Sums::new(hidden));
        let (mut first, mut second) = (first.view(), second.view());
        for chunk in batch.chunks(333) {
            assert_eq!(
                kernels.accumulate(ty, UNIT_EXPONENT, chunk, Soon::NOTHING, &mut first),
                Ok(()),
                "{what}"
            );
        }
        for (i, (sum, exact)) in first.sums().iter().zip(&exact).enumerate() {
            assert_eq!(i128::from(*sum), *exact, "{what} [{i}]");
        }
        assert!(first.sums()[hidden..].iter().all(|sum| *sum == 0), "{what}: padding");
        let whole = first.sums().to_vec();
        first.clear();
        let (odd, even): (Vec<_>, Vec<_>) = (
            batch.iter().skip(1).step_by(2).rev().copied().collect(),
            batch.iter().step_by(2).copied().collect(),
        );
        kernels.accumulate(ty, UNIT_EXPONENT, &odd, Soon::NOTHING, &mut first).unwrap();
        kernels.accumulate(ty, UNIT_EXPONENT, &even, Soon::NOTHING, &mut second).unwrap();
        merge(first.sums(), second.sums());
        assert_eq!(first.sums(), &whole[..], "{what}: split");
    }
}

#[test]
fn sums_are_exact() {
    for (seed, hidden) in (400..).zip([1, 16, 31, 32, 33, 100, 576, 2048]) {
        let mut rng = Rng::new(seed);
        for ty in WeightType::ALL {
            for count in [0, 1, 2, 3, 40] {
                // Multipliers from far below one unit to 2^27: h is often not zero.
                let largest = if ty == WeightType::F16 { 128.0 } else { 12_800.0 };
                let items: Vec<(f32, Column)> = (0..count)
                    .map(|_| {
                        let activation = largest * rng.unit() * 2f32.powi(-(rng.below(30) as i32));
                        let scale = f16::from_f32(0.01 * rng.unit());
                        (activation, Column::new(&mut rng, ty, hidden, scale, false))
                    })
                    .collect();
                check(seed, ty, hidden, &items);
            }
        }
    }
}

/// 3,100 neurons of one sign at the largest multiplier below the limit: an i32 row without a flush
/// would overflow.
#[test]
fn sums_stay_exact_at_saturation() {
    for ty in [WeightType::Q8, WeightType::Q4] {
        for largest in [134_217_720.0, 8192.0, 8191.0, -8192.0, -8193.0, -134_217_720.0f32] {
            let mut rng = Rng::new(500);
            let items: Vec<(f32, Column)> = (0..3100)
                .map(|_| {
                    let column = Column::new(&mut rng, ty, 64, f16::ONE, true);
                    (largest * 2f32.powi(UNIT_EXPONENT), column)
                })
                .collect();
            check(500, ty, 64, &items);
        }
    }
}

#[test]
fn products_beyond_the_range_are_errors() {
    let unit = 2f32.powi(UNIT_EXPONENT);
    let mut rng = Rng::new(600);
    for ty in WeightType::ALL {
        let good = Column::new(&mut rng, ty, 48, f16::ONE, false);
        let mut ones = Column::new(&mut rng, ty, 48, f16::ONE, true);
        if ty == WeightType::F16 {
            ones.bytes.chunks_exact_mut(2).for_each(|w| w.copy_from_slice(&f16::ONE.to_le_bytes()));
        }
        for activation in
            [134_217_728.0 * unit, -134_217_728.0 * unit, f32::MAX, f32::INFINITY, f32::NAN]
        {
            for at in 0..5 {
                let items: Vec<DownItem> = (0..5)
                    .map(|item| match item == at {
                        true => DownItem { activation, column: &ones.bytes },
                        false => DownItem { activation: 0.5, column: &good.bytes },
                    })
                    .collect();
                for kernels in tables() {
                    let mut sums = Sums::new(48);
                    let found = kernels.accumulate(
                        ty,
                        UNIT_EXPONENT,
                        &items,
                        Soon::NOTHING,
                        &mut sums.view(),
                    );
                    assert_eq!(
                        found,
                        Err(Overflow { item: at }),
                        "{} {ty:?}",
                        kernels.isa().name()
                    );
                }
            }
        }
    }
}

#[test]
fn the_unit_scales_the_sum() {
    // 1.5 * 2^-60 is 1.5 units of 2^-60, which round to 2.
    let mut rng = Rng::new(700);
    let column = Column::new(&mut rng, WeightType::Q8, 32, f16::ONE, true);
    let items = [DownItem { activation: 1.5 * 2f32.powi(-60), column: &column.bytes }];
    for kernels in tables() {
        let mut sums = Sums::new(32);
        let mut sums = sums.view();
        kernels.accumulate(WeightType::Q8, -60, &items, Soon::NOTHING, &mut sums).unwrap();
        assert_eq!(sums.sums()[..], [254; 32], "{}", kernels.isa().name());
    }
}

#[test]
fn finish_rounds_once() {
    // 2^24 + 1 is a tie and goes to even; one more in the last place of i64 breaks it upwards.
    let tie = (1i64 << 62) + (1 << 38);
    let mut sums = vec![0i64; 32];
    sums[..5].copy_from_slice(&[3, (1 << 24) + 1, tie, tie + 1, -5]);
    let mut out = [0.0f32; 5];
    out[0] = 0.5;
    finish(&sums, -1, &mut out);
    let two_61 = 2f32.powi(61);
    assert_eq!(out, [2.0, 8_388_608.0, two_61, two_61 * (1.0 + f32::EPSILON), -2.5]);
}
