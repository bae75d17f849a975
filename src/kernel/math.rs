//! Scalar mathematics of the engine: exp, rsqrt, sine and cosine, rounding. No libm.
//!
//! Called by the twins and at boot (rope tables). Invariant: only IEEE multiply, add, subtract,
//! divide and bit operations in a fixed order, so every machine gives the same bits. The vector
//! versions in `kernels/` repeat [`exp`] step by step.

use crate::image::geometry::LANES;

/// `exp` is 0 below this: every other result is a normal number.
pub const EXP_LOW: f32 = -87.3;
/// `exp` stays at its value here for everything above: every result is finite.
pub const EXP_HIGH: f32 = 88.0;

/// 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the sum.
const ROUND_F32: f32 = 12_582_912.0;
/// 1.5 * 2^52, the same for f64.
const ROUND_F64: f64 = 6_755_399_441_055_744.0;

const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);
/// ln 2 cut to 15 bits: its product with any exponent is exact.
const LN2_HIGH: f32 = f32::from_bits(0x3f31_7200);
/// ln 2 - `LN2_HIGH`.
const LN2_LOW: f32 = f32::from_bits(0x35bf_be8e);
/// P of exp(r) = 1 + r + r^2 P(r) for |r| <= ln 2 / 2, minimax of the relative error (2^-28).
const EXP_POLY: [f32; 5] = [
    f32::from_bits(0x3eff_fffe),
    f32::from_bits(0x3e2a_aa49),
    f32::from_bits(0x3d2a_ac79),
    f32::from_bits(0x3c09_1d10),
    f32::from_bits(0x3ab5_11e5),
];

/// -2 sqrt(2 / pi).
const GELU_LINE: f32 = f32::from_bits(0xbfcc_422a);
/// -2 sqrt(2 / pi) 0.044715.
const GELU_CUBE: f32 = f32::from_bits(0xbd92_2279);

/// e to the `x`, within 1 ulp between [`EXP_LOW`] and [`EXP_HIGH`]; 0 below, saturated above; NaN
/// stays NaN.
pub fn exp(x: f32) -> f32 {
    if x < EXP_LOW {
        return 0.0;
    }
    let x = if EXP_HIGH < x { EXP_HIGH } else { x };
    let shifted = x * LOG2_E + ROUND_F32;
    let n = shifted - ROUND_F32;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let [p0, p1, p2, p3, p4] = EXP_POLY;
    let p = (((p4 * r + p3) * r + p2) * r + p1) * r + p0;
    let y = ((r * r) * p + r) + 1.0;
    // The low bits of `shifted` are n in two's complement; the rest leaves by the shift.
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    y * scale
}

/// 1 / sqrt(`x`) for a positive normal `x`, rounded once from f64; infinity for 0.
pub fn rsqrt(x: f32) -> f32 {
    let x = f64::from(x);
    // Halving and negating the exponent gives 1 / sqrt(x) within 3.5 %; each Newton step squares
    // the error.
    let mut y = f64::from_bits(0x5fe6_eb50_c7b5_37a9 - (x.to_bits() >> 1));
    let half = 0.5 * x;
    for _ in 0..5 {
        y *= 1.5 - half * y * y;
    }
    y as f32
}

/// Sine and cosine of `x` (radians, |x| < 1e6), each rounded once from f64.
pub fn sin_cos(x: f64) -> (f32, f32) {
    const TWO_OVER_PI: f64 = core::f64::consts::FRAC_2_PI;
    // pi / 2 in three parts; the first two have 33 bits, so that their products with a quarter
    // turn count below 2^20 are exact.
    const PARTS: [f64; 3] = [
        f64::from_bits(0x3ff9_21fb_5440_0000),
        f64::from_bits(0x3dd0_b461_1a60_0000),
        f64::from_bits(0x3ba3_198a_2e03_7074),
    ];
    let shifted = x * TWO_OVER_PI + ROUND_F64;
    let turns = shifted - ROUND_F64;
    let r = ((x - turns * PARTS[0]) - turns * PARTS[1]) - turns * PARTS[2];
    let (sin, cos) = (taylor(r, 1), taylor(r, 0));
    let (sin, cos) = match shifted.to_bits() & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    };
    (sin as f32, cos as f32)
}

/// Taylor series of the cosine (`first` 0) or the sine (`first` 1) at `r`, |r| <= pi / 4: nine
/// terms, summed from the smallest.
fn taylor(r: f64, first: u32) -> f64 {
    let square = r * r;
    let mut sum = 1.0;
    for step in (1..9).rev() {
        let n = f64::from(2 * step + first);
        sum = 1.0 - square / (n * (n - 1.0)) * sum;
    }
    if first == 1 { sum * r } else { sum }
}

/// The integer nearest to `x`, ties to even, for |x| < 2^31.
pub fn round_half_even(x: f32) -> i32 {
    const EXACT: f32 = 8_388_608.0; // 2^23: from here on every f32 is an integer
    if x.abs() >= EXACT {
        return x as i32;
    }
    let shift = EXACT.copysign(x);
    ((x + shift) - shift) as i32
}

/// The same for |x| < 2^22, without a branch.
pub fn small_round_half_even(x: f32) -> i32 {
    // Below the low bits of the sum, an integer, stands the constant.
    (x + ROUND_F32).to_bits().wrapping_sub(ROUND_F32.to_bits()) as i32
}

/// 2 to the `exponent`, -126..=127.
pub const fn power_of_two(exponent: i32) -> f32 {
    assert!(-126 <= exponent && exponent <= 127);
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// x times the logistic function of x, with our own exp.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// GELU in its tanh form, 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3).
///
/// 0.5 (1 + tanh(u)) is the logistic function of 2u, which cancels nothing where x is negative:
/// x / (1 + exp(-2u)), -2u being x (x^2 `GELU_CUBE` + `GELU_LINE`).
pub fn gelu(x: f32) -> f32 {
    x / (1.0 + exp(x * ((x * x) * GELU_CUBE + GELU_LINE)))
}

/// Dot product of two f32 vectors in the canonical order: 16 partial sums, then the fixed tree.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut partials = [0.0f32; LANES as usize];
    for (a, b) in a.chunks(partials.len()).zip(b.chunks(LANES as usize)) {
        for ((partial, a), b) in partials.iter_mut().zip(a).zip(b) {
            *partial += a * b;
        }
    }
    super::twin::tree(&partials)
}
