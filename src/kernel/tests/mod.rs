//! Checks of the kernels: every fast table against the twin bit for bit, the twin against sums
//! in f64 or i128 that share no code with it.
//!
//! Inputs come from a seeded generator; every failure names its seed. They end at a guard page, so
//! that a read or write past the end is a crash.

mod attend;
mod batch;
mod dot;
mod down;
mod scalar;
mod vector;

use super::Kernels;
use crate::image::geometry::{WeightType, padded_groups, padded_len};
use half::f16;
use std::ops::{Deref, DerefMut};

/// Row lengths: one value, tails, every width of the last band, several bands.
const LENGTHS: [usize; 16] =
    [1, 16, 31, 32, 33, 100, 128, 129, 256, 257, 385, 512, 576, 640, 1536, 4096];

/// The tables to compare with the twin on this machine.
fn fast_tables() -> Vec<&'static Kernels> {
    super::Isa::ALL.into_iter().skip(1).filter_map(Kernels::of).collect()
}

/// Same bits; any NaN equals any NaN.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[track_caller]
fn assert_same(twin: &[f32], fast: &[f32], what: &str) {
    assert_eq!(twin.len(), fast.len(), "{what}");
    for (index, (&a, &b)) in twin.iter().zip(fast).enumerate() {
        assert!(same(a, b), "{what}: [{index}] twin {a:e} fast {b:e}");
    }
}

/// Xorshift64*.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        ((self.bits() >> 33) % bound as u64) as usize
    }

    /// In -1..1.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// An integer code in -127..=127, often an extreme one.
    fn code(&mut self) -> i8 {
        match self.below(8) {
            0 => 127,
            1 => -127,
            2 => 0,
            _ => (self.below(255) as i32 - 127) as i8,
        }
    }

    /// A finite half float of the size of a scale, now and then zero, tiny or huge.
    fn scale(&mut self) -> f16 {
        match self.below(16) {
            0 => f16::ZERO,
            1 => f16::MIN_POSITIVE_SUBNORMAL,
            2 => f16::MAX,
            3 => f16::from_f32(-0.01),
            _ => f16::from_f32(0.02 * self.unit()),
        }
    }
}

/// Shapes of float vectors that have broken kernels.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    Normal,
    Zero,
    NegativeZero,
    Huge,
    Tiny,
    Subnormal,
    Spikes,
    Constant,
    Mixed,
}

const PATTERNS: [Pattern; 9] = [
    Pattern::Normal,
    Pattern::Zero,
    Pattern::NegativeZero,
    Pattern::Huge,
    Pattern::Tiny,
    Pattern::Subnormal,
    Pattern::Spikes,
    Pattern::Constant,
    Pattern::Mixed,
];

fn floats(rng: &mut Rng, len: usize, pattern: Pattern) -> Guarded<f32> {
    let mut x = Guarded::new(len);
    for x in x.iter_mut() {
        let unit = rng.unit();
        *x = match pattern {
            Pattern::Normal => 3.0 * unit,
            Pattern::Zero => 0.0,
            Pattern::NegativeZero => -0.0,
            Pattern::Huge => unit * f32::MAX,
            Pattern::Tiny => unit * 1e-36,
            Pattern::Subnormal => unit * 1e-39,
            Pattern::Spikes if rng.below(32) == 0 => unit * 1e6,
            Pattern::Spikes => unit * 1e-6,
            Pattern::Constant => 0.7,
            Pattern::Mixed => unit * 2f32.powi(rng.below(100) as i32 - 50),
        };
    }
    x
}

/// A vector of `T` whose end is the end of a page, with a forbidden page behind it.
struct Guarded<T> {
    pages: *mut libc::c_void,
    bytes: usize,
    first: *mut T,
    len: usize,
}

impl<T: bytemuck::Pod> Guarded<T> {
    /// Zeros.
    fn new(len: usize) -> Guarded<T> {
        const PAGE: usize = 4096;
        let content = len * size_of::<T>();
        let bytes = content.next_multiple_of(PAGE) + PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh private mapping; its last page is then closed.
        let pages = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        assert_ne!(pages, libc::MAP_FAILED);
        // SAFETY: offsets stay within the mapping; the length of T divides the page.
        let first = unsafe {
            let guard = pages.byte_add(bytes - PAGE);
            assert_eq!(libc::mprotect(guard, PAGE, libc::PROT_NONE), 0);
            guard.byte_sub(content).cast::<T>()
        };
        assert!(first.is_aligned());
        Guarded { pages, bytes, first, len }
    }

    fn of(values: &[T]) -> Guarded<T> {
        let mut guarded = Guarded::new(values.len());
        guarded.copy_from_slice(values);
        guarded
    }
}

impl<T> Deref for Guarded<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised values in a mapping that lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.len) }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; nothing borrows it any more.
        unsafe { libc::munmap(self.pages, self.bytes) };
    }
}

/// A vector and its quantised form.
struct Operand {
    values: Guarded<f32>,
    codes: Guarded<i8>,
    scales: Guarded<f32>,
    len: usize,
}

impl Operand {
    fn new(x: &[f32]) -> Operand {
        let padded = padded_len(x.len() as u64) as usize;
        let groups = padded_groups(x.len() as u64) as usize;
        let (mut values, mut codes) = (Guarded::new(padded), Guarded::new(padded));
        let mut scales = Guarded::new(groups);
        values[..x.len()].copy_from_slice(x);
        assert!(Kernels::twin().quantize(x, &mut codes, &mut scales));
        Operand { values, codes, scales, len: x.len() }
    }

    fn view(&self) -> super::Activation<'_> {
        super::Activation::new(self.len, &self.values, &self.codes, &self.scales)
    }
}

/// A row written from the words of the layout, beside the exact weights it holds.
struct Row {
    bytes: Vec<u8>,
    weights: Vec<f64>,
}

impl Row {
    fn random(rng: &mut Rng, ty: WeightType, len: usize) -> Row {
        let mut row = match ty {
            WeightType::F16 => Row::f16(rng, len),
            WeightType::Q8 | WeightType::Q4 => Row::quantized(rng, ty, len),
        };
        row.bytes.resize(row.bytes.len().next_multiple_of(16), 0);
        assert_eq!(row.bytes.len() as u64, ty.row_bytes(len as u64));
        row
    }

    fn f16(rng: &mut Rng, len: usize) -> Row {
        let halves: Vec<f16> = (0..len).map(|_| rng.scale()).collect();
        let mut bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
        bytes.resize(2 * len.next_multiple_of(16), 0);
        Row { bytes, weights: halves.into_iter().map(f64::from).collect() }
    }

    fn quantized(rng: &mut Rng, ty: WeightType, len: usize) -> Row {
        let groups = len.div_ceil(32).next_multiple_of(4);
        let mut codes = vec![0i32; groups * 32];
        let mut scales = vec![f16::ZERO; groups];
        for (codes, scale) in codes[..len].chunks_mut(32).zip(&mut scales) {
            *scale = rng.scale();
            for code in codes {
                *code = match ty {
                    WeightType::Q4 => rng.below(16) as i32 - 8,
                    _ => i32::from(rng.code()),
                };
            }
        }
        let mut bytes = Vec::new();
        for band in (0..groups).step_by(16) {
            let lanes = band..groups.min(band + 16);
            let steps = if ty == WeightType::Q4 { 4 } else { 8 };
            for step in 0..steps {
                for lane in lanes.clone() {
                    for j in 0..4 {
                        let code = codes[lane * 32 + 4 * step + j];
                        bytes.push(if ty == WeightType::Q4 {
                            let high = codes[lane * 32 + 4 * step + j + 16];
                            ((code + 8) | (high + 8) << 4) as u8
                        } else {
                            code as i8 as u8
                        });
                    }
                }
            }
            bytes.extend(scales[lanes].iter().flat_map(|scale| scale.to_le_bytes()));
        }
        let weights = (0..len).map(|i| f64::from(scales[i / 32]) * f64::from(codes[i]));
        Row { weights: weights.collect(), bytes }
    }
}
