//! Scalar mathematics against std in f64, and the choice of a table.

use super::*;
use crate::kernel::Isa;
use crate::kernel::math::{
    EXP_HIGH, EXP_LOW, dot, exp, gelu, power_of_two, round_half_even, rsqrt, sin_cos,
};

/// Every `step`-th float between two, by bits.
fn sample(from: f32, to: f32, step: usize) -> impl Iterator<Item = f32> {
    let (from, to) = (from.to_bits(), to.to_bits());
    (from.min(to)..=from.max(to)).step_by(step).map(f32::from_bits)
}

/// Distance in units in the last place of the nearest f32.
fn ulps(found: f32, exact: f64) -> f64 {
    let nearest = exact as f32;
    let ulp = f64::from(f32::from_bits(nearest.abs().to_bits() + 1)) - f64::from(nearest.abs());
    (f64::from(found) - exact).abs() / ulp
}

#[test]
fn exp_is_within_one_ulp() {
    let mut worst = 0f64;
    let positive = sample(1e-9, EXP_HIGH, 97);
    let negative = sample(-1e-9, EXP_LOW, 97);
    for x in positive.chain(negative) {
        worst = worst.max(ulps(exp(x), f64::from(x).exp()));
    }
    assert!(worst < 1.0, "{worst} ulp");
}

#[test]
fn exp_at_the_edges() {
    for zero in [0.0, -0.0, f32::MIN_POSITIVE, -1e-40] {
        assert_eq!(exp(zero), 1.0);
    }
    for low in [-87.300_01, -1e4, f32::MIN, f32::NEG_INFINITY] {
        assert_eq!(exp(low).to_bits(), 0);
    }
    assert!(exp(EXP_LOW) >= f32::MIN_POSITIVE);
    for high in [88.1, 1e9, f32::MAX, f32::INFINITY] {
        assert_eq!(exp(high), exp(EXP_HIGH));
    }
    assert!(exp(EXP_HIGH).is_finite());
    assert!(exp(f32::NAN).is_nan());
}

/// Against the tanh form in f64, whose own cancellation is far below f32.
#[test]
fn gelu_is_near_its_tanh_form() {
    for x in sample(1e-9, 30.0, 997).chain(sample(-1e-9, -30.0, 997)) {
        let wide = f64::from(x);
        let u = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide * wide * wide);
        let exact = 0.5 * wide * (1.0 + u.tanh());
        let error = (f64::from(gelu(x)) - exact).abs();
        assert!(error <= 2e-7 * wide.abs(), "{x}: {} {exact}", gelu(x));
    }
    for (x, expected) in [(0.0, 0.0), (1e20, 1e20), (f32::INFINITY, f32::INFINITY)] {
        assert_eq!(gelu(x), expected);
    }
    assert!(gelu(-1e20).abs() < 1e-17 && gelu(f32::NAN).is_nan());
}

#[test]
fn vector_exp_matches_scalar_exp() {
    for kernels in fast_tables() {
        let every = (0..u32::MAX).step_by(4099).map(f32::from_bits);
        let dense = sample(-0.1, -90.0, 501).chain(sample(0.1, 90.0, 501));
        let x: Vec<f32> = every.chain(dense).collect();
        let expected: Vec<f32> = x.iter().map(|x| exp(*x)).collect();
        let mut found = Guarded::of(&x);
        kernels.exp(&mut found);
        assert_same(&expected, &found, kernels.isa().name());
        for len in 0..20 {
            let mut found = Guarded::of(&x[1000..][..len]);
            kernels.exp(&mut found);
            assert_same(&expected[1000..][..len], &found, kernels.isa().name());
        }
    }
}

#[test]
fn rsqrt_is_correctly_rounded() {
    for x in sample(f32::MIN_POSITIVE, f32::MAX, 10_007) {
        assert_eq!(rsqrt(x), (1.0 / f64::from(x).sqrt()) as f32, "{x:e}");
    }
    assert_eq!(rsqrt(4.0), 0.5);
    assert_eq!(rsqrt(0.0), f32::INFINITY);
}

#[test]
fn sin_cos_is_correctly_rounded() {
    let mut rng = Rng::new(1200);
    for _ in 0..200_000 {
        let x = f64::from(rng.unit()) * 10f64.powi(rng.below(13) as i32 - 6) + rng.unit() as f64;
        let (sin, cos) = sin_cos(x);
        let bound = 0.501;
        assert!(ulps(sin, x.sin()) < bound && ulps(cos, x.cos()) < bound, "{x}: {sin} {cos}");
    }
    assert_eq!(sin_cos(0.0), (0.0, 1.0));
    assert_eq!(sin_cos(std::f64::consts::FRAC_PI_2).0, 1.0);
}

#[test]
fn rounding_is_half_to_even() {
    for (x, expected) in [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (-0.0, 0)] {
        assert_eq!(round_half_even(x), expected);
    }
    for x in sample(0.1, 2e9, 1009) {
        assert_eq!(round_half_even(x), x.round_ties_even() as i32, "{x}");
        assert_eq!(round_half_even(-x), -x.round_ties_even() as i32, "{x}");
    }
}

#[test]
fn powers_of_two() {
    for exponent in [-126, -60, -1, 0, 1, 60, 127] {
        assert_eq!(power_of_two(exponent), 2f32.powi(exponent));
    }
}

#[test]
fn names_and_choice_of_tables() {
    for isa in Isa::ALL {
        assert_eq!(Isa::parse(isa.name()), Some(isa));
        assert_eq!(Kernels::of(isa).map(Kernels::isa), isa.available().then_some(isa));
    }
    assert_eq!(Isa::parse("sse9"), None);
    assert_eq!(Kernels::twin().isa(), Isa::Twin);
    assert_eq!(Kernels::best().isa(), Isa::best());
    #[cfg(target_arch = "x86_64")]
    assert_eq!(
        Isa::Avx2.available(),
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("sse4.2")
            && is_x86_feature_detected!("pclmulqdq")
    );
    #[cfg(target_arch = "x86_64")]
    assert_eq!(
        Isa::Avx512.available(),
        Isa::Avx2.available()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
    );
    #[cfg(target_arch = "aarch64")]
    {
        let neon = std::arch::is_aarch64_feature_detected!("crc");
        assert_eq!(Isa::Neon.available(), neon);
        let dotprod = std::arch::is_aarch64_feature_detected!("dotprod");
        assert_eq!(Isa::Dotprod.available(), neon && dotprod);
    }
}

#[test]
fn dot_adds_in_the_canonical_order() {
    // Values 0 and 16 share a partial sum, where the one is lost; value 8 cancels what is left.
    let mut a = [0.0; 17];
    (a[0], a[8], a[16]) = (16_777_216.0, -16_777_216.0, 1.0);
    assert_eq!(dot(&a, &[1.0; 17]), 0.0);
    let mut rng = Rng::new(1250);
    for len in LENGTHS {
        let (a, b) =
            (floats(&mut rng, len, Pattern::Normal), floats(&mut rng, len, Pattern::Normal));
        let exact: f64 = a.iter().zip(b.iter()).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        assert!((f64::from(dot(&a, &b)) - exact).abs() < 1e-5 * len as f64, "{len}");
    }
}
