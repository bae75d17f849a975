//! Cached keys and values as attention reads them, and how a row becomes codes.
//!
//! Used by model's cache. A q8 row dequantises to scale times code, rounded once: attention over q8
//! keys and values has the bits of attention over these floats, whatever the kernel.

use super::math;
use super::twin::AMAX_MIN;
use crate::image::geometry::GROUP;
use half::f16;

const GROUP_LEN: usize = GROUP as usize;

/// Rows of codes in order, with a scale for each 32.
#[derive(Clone, Copy, Debug)]
pub struct Q8Rows<'a> {
    /// Codes, row after row.
    pub codes: &'a [i8],
    /// Scales, one for each 32 codes.
    pub scales: &'a [f32],
}

impl Q8Rows<'_> {
    fn first(self, len: usize) -> Self {
        Q8Rows { codes: &self.codes[..len], scales: &self.scales[..len / GROUP_LEN] }
    }

    fn at(self, index: usize) -> f32 {
        self.scales[index / GROUP_LEN] * f32::from(self.codes[index])
    }
}

/// Cached keys and values of one head: `[n][head_dim]` each, row after row.
#[derive(Clone, Copy, Debug)]
pub enum KvView<'a> {
    /// 32-bit floats.
    F32 {
        /// Keys.
        keys: &'a [f32],
        /// Values, as many as keys.
        values: &'a [f32],
    },
    /// Bits of half floats.
    F16 {
        /// Keys.
        keys: &'a [u16],
        /// Values, as many as keys.
        values: &'a [u16],
    },
    /// Codes and scales; head_dim is a multiple of 32.
    Q8 {
        /// Keys.
        keys: Q8Rows<'a>,
        /// Values, as many as keys.
        values: Q8Rows<'a>,
    },
}

impl KvView<'_> {
    /// Rows of `dim` elements, if keys and values are as many and whole.
    pub(super) fn rows(&self, dim: usize) -> Option<usize> {
        let whole = match self {
            KvView::F32 { keys, values } => keys.len() == values.len(),
            KvView::F16 { keys, values } => keys.len() == values.len(),
            KvView::Q8 { keys, values } => {
                keys.codes.len() == values.codes.len()
                    && dim.is_multiple_of(GROUP_LEN)
                    && keys.scales.len() * GROUP_LEN == keys.codes.len()
                    && values.scales.len() == keys.scales.len()
            }
        };
        (whole && self.len().is_multiple_of(dim)).then(|| self.len() / dim)
    }

    /// The first `len` elements, whole rows, of the keys and of the values.
    pub(super) fn first(&self, len: usize) -> Self {
        match *self {
            KvView::F32 { keys, values } => {
                KvView::F32 { keys: &keys[..len], values: &values[..len] }
            }
            KvView::F16 { keys, values } => {
                KvView::F16 { keys: &keys[..len], values: &values[..len] }
            }
            KvView::Q8 { keys, values } => {
                KvView::Q8 { keys: keys.first(len), values: values.first(len) }
            }
        }
    }

    /// Elements of the keys.
    pub(super) fn len(&self) -> usize {
        match self {
            KvView::F32 { keys, .. } => keys.len(),
            KvView::F16 { keys, .. } => keys.len(),
            KvView::Q8 { keys, .. } => keys.codes.len(),
        }
    }

    pub(super) fn key(&self, index: usize) -> f32 {
        match self {
            KvView::F32 { keys, .. } => keys[index],
            KvView::F16 { keys, .. } => f16::from_bits(keys[index]).to_f32(),
            KvView::Q8 { keys, .. } => keys.at(index),
        }
    }

    pub(super) fn value(&self, index: usize) -> f32 {
        match self {
            KvView::F32 { values, .. } => values[index],
            KvView::F16 { values, .. } => f16::from_bits(values[index]).to_f32(),
            KvView::Q8 { values, .. } => values.at(index),
        }
    }
}

/// Quantises `x`, whole groups of 32, to codes in order and a scale a group, by the rule of
/// [`super::Kernels::quantize`]. A group with a value that is not finite has scale NaN, which goes
/// on to where it is told.
///
/// Plain Rust on every table: the compiler makes vectors of it.
pub fn quantize_groups(x: &[f32], codes: &mut [i8], scales: &mut [f32]) {
    assert!(x.len().is_multiple_of(GROUP_LEN) && codes.len() == x.len());
    assert!(scales.len() * GROUP_LEN == x.len());
    let groups = x.chunks_exact(GROUP_LEN).zip(codes.chunks_exact_mut(GROUP_LEN));
    for ((x, codes), scale) in groups.zip(scales) {
        // Magnitudes of floats order like their bits; NaN lies above infinity.
        let amax = f32::from_bits(x.iter().fold(0, |most, x| most.max(x.abs().to_bits())));
        if !(AMAX_MIN..=f32::MAX).contains(&amax) {
            codes.fill(0);
            *scale = if amax < AMAX_MIN { 0.0 } else { f32::NAN };
            continue;
        }
        *scale = amax / 127.0;
        let inverse = 127.0 / amax;
        for (code, x) in codes.iter_mut().zip(x) {
            *code = math::small_round_half_even(x * inverse) as i8;
        }
    }
}
