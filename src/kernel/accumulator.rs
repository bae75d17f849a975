//! Fixed-point sums of down columns: any order of neurons gives the same sum.
//!
//! A worker adds the columns of the neurons it computed to its own [`Accumulator`]; the sums of
//! all workers are merged and turned into f32 once a layer. Column `w8 * d` times activation `a`
//! is counted in units of 2^`unit_exponent`: `m = round_half_even(a * d / unit)` is the only
//! rounding, the rest is integers.
//!
//! `m = h * 2^14 + l` with `|l| <= 2^13`. Row `low` takes `l * w8` and row `high` takes `h * w8`,
//! both in i32; they are emptied into the i64 row `wide` every [`FLUSH_NEURONS`] neurons. Bounds:
//! `128 * 2^13 * 1024 < 2^31`, and `|h| <= 2^13` keeps `127 * 2^13 * 1024 < 2^31`.

use super::math::{power_of_two, round_half_even};
use crate::plan::scratch;
use core::fmt;

/// Neurons between two flushes.
pub const FLUSH_NEURONS: u32 = 1024;
/// Multipliers at or above this are an overflow.
pub const MULTIPLIER_LIMIT: f32 = 134_217_728.0; // 2^27
/// Unit exponents the arithmetic is proven for.
pub const UNIT_EXPONENTS: core::ops::RangeInclusive<i32> = -60..=0;

const SPLIT_BITS: u32 = 14;

/// One neuron's part of a layer's output.
#[derive(Clone, Copy, Debug)]
pub struct DownItem<'a> {
    /// The neuron's activation.
    pub activation: f32,
    /// Its down column, `WeightType::column_bytes(hidden)` bytes.
    pub column: &'a [u8],
}

/// A product left the fixed-point range, or was not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// Index of the item whose product it was.
    pub item: usize,
}

impl fmt::Display for Overflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "down column {} of the batch times its activation is not finite or exceeds 2^27 units",
            self.item
        )
    }
}

/// Length of an accumulator's rows for `hidden` outputs: whole groups.
pub const fn accumulator_len(hidden: usize) -> usize {
    scratch::accumulator_len(hidden as u64) as usize
}

/// One worker's sums of down columns.
#[derive(Debug)]
pub struct Accumulator<'a> {
    hidden: usize,
    /// Sums of `l * w8` since the last flush.
    pub(super) low: &'a mut [i32],
    /// Sums of `h * w8` since the last flush.
    pub(super) high: &'a mut [i32],
    /// Everything flushed so far, in units.
    pub(super) wide: &'a mut [i64],
    /// Neurons added to `low` and `high` since the last flush.
    pending: u32,
}

impl<'a> Accumulator<'a> {
    /// A cleared accumulator for `hidden` outputs over rows of [`accumulator_len`] elements.
    pub fn new(
        hidden: usize,
        low: &'a mut [i32],
        high: &'a mut [i32],
        wide: &'a mut [i64],
    ) -> Accumulator<'a> {
        wide.fill(0);
        Accumulator::over(hidden, low, high, wide)
    }

    /// An accumulator that goes on from the sums in `wide`.
    pub(super) fn over(
        hidden: usize,
        low: &'a mut [i32],
        high: &'a mut [i32],
        wide: &'a mut [i64],
    ) -> Accumulator<'a> {
        let len = accumulator_len(hidden);
        assert!(low.len() == len && high.len() == len && wide.len() == len);
        low.fill(0);
        high.fill(0);
        Accumulator { hidden, low, high, wide, pending: 0 }
    }

    /// Outputs.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Sets every sum to zero.
    pub fn clear(&mut self) {
        self.low.fill(0);
        self.high.fill(0);
        self.wide.fill(0);
        self.pending = 0;
    }

    /// Moves the i32 rows into the i64 row.
    pub fn flush(&mut self) {
        if self.pending == 0 {
            return;
        }
        let rows = self.low.iter_mut().zip(self.high.iter_mut());
        for (wide, (low, high)) in self.wide.iter_mut().zip(rows) {
            *wide += i64::from(*low) + (i64::from(*high) << SPLIT_BITS);
            (*low, *high) = (0, 0);
        }
        self.pending = 0;
    }

    /// Flushes, and returns the sums in units.
    pub fn sums(&mut self) -> &mut [i64] {
        self.flush();
        self.wide
    }

    /// Makes room for `neurons` more in the i32 rows. Only fast tables use those.
    pub(super) fn reserve(&mut self, neurons: u32) {
        if self.pending + neurons > FLUSH_NEURONS {
            self.flush();
        }
        self.pending += neurons;
    }
}

/// Adds another worker's sums.
pub fn merge(into: &mut [i64], from: &[i64]) {
    assert!(into.len() == from.len());
    for (into, from) in into.iter_mut().zip(from) {
        *into += from;
    }
}

/// Adds the sums to `out`: `out[j] += (sums[j] as f32) * 2^unit_exponent`, each step rounded once.
pub fn finish(sums: &[i64], unit_exponent: i32, out: &mut [f32]) {
    assert!(sums.len() == accumulator_len(out.len()));
    assert!(UNIT_EXPONENTS.contains(&unit_exponent));
    let unit = power_of_two(unit_exponent);
    for (out, &sum) in out.iter_mut().zip(sums) {
        *out += sum as f32 * unit;
    }
}

/// `product / unit` as an integer, or `None` if it is not finite or too large. `per_unit` is
/// 1 / unit, a power of two.
pub(super) fn multiplier(product: f32, per_unit: f32) -> Option<i32> {
    let units = product * per_unit;
    (units.abs() < MULTIPLIER_LIMIT).then(|| round_half_even(units))
}

/// `(h, l)` with `m = h * 2^14 + l`, `|l| <= 2^13`, `|h| <= 2^13`. Only fast tables split.
pub(super) fn split(m: i32) -> (i16, i16) {
    let h = (m + (1 << (SPLIT_BITS - 1))) >> SPLIT_BITS;
    (h as i16, (m - (h << SPLIT_BITS)) as i16)
}
