//! Norms, rope, addition, half floats, argmax, checksum.

use super::*;
use crate::image::ActivationFn;
use crate::kernel::{Candidate, top_k_room};

fn tables() -> Vec<&'static Kernels> {
    [Kernels::twin()].into_iter().chain(fast_tables()).collect()
}

/// What a failure says; each length has its seed.
fn said(kernels: &Kernels, seed: u64, pattern: Pattern) -> String {
    format!("{} seed {seed} {pattern:?}", kernels.isa().name())
}

/// Lengths around the register width, and the usual ones.
fn lengths() -> impl Iterator<Item = usize> {
    (1..40).chain(LENGTHS)
}

#[test]
fn rms_norm_matches_the_twin_bit_for_bit() {
    for (seed, len) in (1300..).zip(lengths()) {
        let mut rng = Rng::new(seed);
        for pattern in PATTERNS {
            let x = floats(&mut rng, len, pattern);
            let weight = floats(&mut rng, len, Pattern::Normal);
            let (mut twin, mut fast) = (vec![0.0; len], Guarded::new(len));
            Kernels::twin().rms_norm(&x, &weight, 1e-5, &mut twin);
            for kernels in fast_tables() {
                kernels.rms_norm(&x, &weight, 1e-5, &mut fast);
                assert_same(&twin, &fast, &said(kernels, seed, pattern));
            }
        }
    }
}

#[test]
fn rms_norm_is_near_its_definition() {
    for (seed, len) in (1400..).zip(lengths()) {
        let mut rng = Rng::new(seed);
        let x = floats(&mut rng, len, Pattern::Normal);
        let weight = floats(&mut rng, len, Pattern::Normal);
        let mut out = vec![0.0; len];
        Kernels::twin().rms_norm(&x, &weight, 1e-5, &mut out);
        let squares: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let factor = 1.0 / (squares / len as f64 + 1e-5).sqrt();
        for i in 0..len {
            let expected = f64::from(x[i]) * factor * f64::from(weight[i]);
            let error = (f64::from(out[i]) - expected).abs();
            assert!(error <= 1e-6 * expected.abs(), "seed {seed} [{i}]");
        }
    }
}

#[test]
fn rope_matches_the_twin_and_turns() {
    for (seed, len) in (1500..).zip(lengths().filter(|len| len % 2 == 0)) {
        let mut rng = Rng::new(seed);
        for pattern in PATTERNS {
            let x = floats(&mut rng, len, pattern);
            let turn = floats(&mut rng, len, Pattern::Normal);
            let mut twin = Guarded::of(&x);
            Kernels::twin().rope(&mut twin, &turn);
            for kernels in fast_tables() {
                let mut fast = Guarded::of(&x);
                kernels.rope(&mut fast, &turn);
                assert_same(&twin, &fast, &said(kernels, seed, pattern));
            }
        }
    }
    // A quarter turn to the left, then none.
    for kernels in tables() {
        let mut x = [1.0, 2.0, 3.0, 4.0];
        kernels.rope(&mut x, &[0.0, 1.0, 1.0, 0.0]);
        assert_eq!(x, [-2.0, 1.0, 3.0, 4.0]);
    }
}

#[test]
fn gates_match_the_twin_bit_for_bit() {
    for (seed, len) in (1650..).zip(lengths()) {
        let mut rng = Rng::new(seed);
        let pairs =
            PATTERNS.into_iter().flat_map(|pattern| ActivationFn::ALL.map(|a| (pattern, a)));
        for (pattern, activation) in pairs {
            let (mut gate, up) = (floats(&mut rng, len, pattern), floats(&mut rng, len, pattern));
            let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -100.0, 0.0, -0.0];
            gate[rng.below(len)] = odd[rng.below(odd.len())];
            let mut twin = Guarded::of(&gate);
            Kernels::twin().gate(activation, &mut twin, &up);
            for kernels in fast_tables() {
                let mut fast = Guarded::of(&gate);
                kernels.gate(activation, &mut fast, &up);
                assert_same(&twin, &fast, &format!("seed {seed} {len} {pattern:?} {activation:?}"));
            }
        }
    }
}

#[test]
fn gates_are_what_they_are_called() {
    // Gates 2 and -1, ups 3 and -3. By hand in f64: 2 / (1 + e^-2) and -1 / (1 + e), times up;
    // GELU of 2 and -1 from its tanh form.
    for (activation, expected) in [
        (ActivationFn::DRelu, [[6.0, 0.0], [0.0, 0.0]]),
        (ActivationFn::Relu, [[6.0, -6.0], [0.0, 0.0]]),
        (ActivationFn::SiLu, [[5.284_782_5, -5.284_782_5], [-0.806_824_26, 0.806_824_26]]),
        (ActivationFn::Gelu, [[5.863_793, -5.863_793], [-0.476_424_05, 0.476_424_05]]),
    ] {
        for kernels in tables() {
            for (gate, expected) in [2.0, -1.0].into_iter().zip(expected) {
                let mut gates = [gate; 2];
                kernels.gate(activation, &mut gates, &[3.0, -3.0]);
                for (found, expected) in gates.iter().zip(expected) {
                    assert!((found - expected).abs() < 1e-6, "{activation:?} {found} {expected}");
                }
            }
        }
    }
}

#[test]
fn add_adds() {
    for (seed, len) in (1600..).zip(lengths()) {
        let mut rng = Rng::new(seed);
        for pattern in PATTERNS {
            let x = floats(&mut rng, len, pattern);
            let y = floats(&mut rng, len, Pattern::Mixed);
            let expected: Vec<f32> = x.iter().zip(y.iter()).map(|(x, y)| x + y).collect();
            for kernels in tables() {
                let mut sum = Guarded::of(&x);
                kernels.add(&mut sum, &y);
                assert_same(&expected, &sum, &said(kernels, seed, pattern));
            }
        }
    }
}

#[test]
fn half_floats_round_to_even() {
    // Around every half float: itself, the tie above it and the neighbours of the tie.
    let mut x: Vec<f32> = (0..=u16::MAX)
        .map(|bits| f16::from_bits(bits).to_f32())
        .filter(|half| !half.is_nan())
        .flat_map(|half| {
            let tie = half.to_bits().wrapping_add(1 << 12);
            [half.to_bits(), tie - 1, tie, tie + 1].map(f32::from_bits)
        })
        .filter(|x| !x.is_nan())
        .collect();
    x.extend([65519.0, 65520.0, f32::MAX, f32::INFINITY, 1e-8, -1e-8, 2e-8, 3e-8, 1e-40, -0.0]);
    let (mut twin, mut fast) = (Guarded::new(x.len()), Guarded::new(x.len()));
    Kernels::twin().to_f16(&x, &mut twin);
    for kernels in fast_tables() {
        kernels.to_f16(&x, &mut fast);
        for (x, (twin, fast)) in x.iter().zip(twin.iter().zip(fast.iter())) {
            assert_eq!(twin, fast, "{} {x:e}", kernels.isa().name());
        }
    }
    for kernels in tables() {
        let mut out = [0; 5];
        kernels.to_f16(&[1.0, -2.0, 65504.0, 65520.0, 1.000_488_3], &mut out);
        assert_eq!(out, [0x3c00, 0xc000, 0x7bff, 0x7c00, 0x3c00]);
        let mut out = [0];
        kernels.to_f16(&[f32::NAN], &mut out);
        assert!(f16::from_bits(out[0]).is_nan());
    }
}

#[test]
fn argmax_takes_the_lowest_of_equals_and_never_nan() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for (x, expected) in [
        (vec![], None),
        (vec![nan; 19], None),
        (vec![-inf; 3], Some(0)),
        (vec![nan, -inf, nan], Some(1)),
        (vec![1.0, 2.0, 2.0], Some(1)),
        (vec![-0.0, 0.0], Some(0)),
        (vec![nan, 1.0, inf, inf, nan], Some(2)),
    ] {
        for kernels in tables() {
            assert_eq!(kernels.argmax(&x), expected, "{} {x:?}", kernels.isa().name());
        }
    }
    for (seed, len) in (1700..).zip(lengths()) {
        let mut rng = Rng::new(seed);
        for _ in 0..20 {
            let mut x = floats(&mut rng, len, Pattern::Normal);
            for _ in 0..rng.below(len + 1) {
                let at = rng.below(len);
                x[at] = [nan, 3.0, -inf][rng.below(3)];
            }
            let twin = Kernels::twin().argmax(&x);
            for kernels in fast_tables() {
                assert_eq!(kernels.argmax(&x), twin, "{} seed {seed}", kernels.isa().name());
            }
        }
    }
}

/// A vector of few different values, with NaN, zeros of both signs and infinities.
fn crowded(rng: &mut Rng, len: usize) -> Guarded<f32> {
    let few = [0.0, -0.0, 1.0, 2.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let mut x = floats(rng, len, Pattern::Normal);
    let odds = 1 + rng.below(4);
    for x in x.iter_mut() {
        if rng.below(odds) == 0 {
            *x = few[rng.below(few.len())];
        }
    }
    x
}

#[test]
fn above_picks_out_what_is_greater() {
    for (seed, len) in (1750..).zip(lengths().chain([0])) {
        let mut rng = Rng::new(seed);
        for threshold in [0.0, -0.0, 2.9, 9.0, -9.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let x = crowded(&mut rng, len);
            let wanted: Vec<u32> = (0..len as u32).filter(|&i| x[i as usize] > threshold).collect();
            for kernels in tables() {
                let mut found = Guarded::new(len);
                let count = kernels.above(&x, threshold, &mut found);
                assert_eq!(found[..count], wanted, "{} seed {seed}", kernels.isa().name());
            }
        }
    }
}

/// Against a sort of everything: any order, ties, NaN, more wanted than there are.
#[test]
fn top_k_is_the_front_of_a_sort() {
    for (seed, len) in (1780..).zip(lengths().chain([0, 511, 513, 1025, 20_000])) {
        let mut rng = Rng::new(seed);
        let (crowded, mut rising) =
            (crowded(&mut rng, len), floats(&mut rng, len, Pattern::Normal));
        rising.sort_by(f32::total_cmp);
        for x in [&crowded, &rising] {
            let mut sorted: Vec<usize> = (0..len).filter(|&i| !x[i].is_nan()).collect();
            sorted.sort_by(|&a, &b| x[b].partial_cmp(&x[a]).unwrap()); // stable
            for k in [0, 1, 2, 40, 600, 30_000] {
                let mut room = vec![Candidate { id: 7, logit: 7.0 }; top_k_room(k)];
                for kernels in tables() {
                    let found = kernels.top_k(x, k, &mut room);
                    let ids: Vec<usize> = found.iter().map(|found| found.id as usize).collect();
                    assert_eq!(ids, sorted[..k.min(sorted.len())], "seed {seed} k {k}");
                    let same = |c: &Candidate| c.logit.to_bits() == x[c.id as usize].to_bits();
                    assert!(found.iter().all(same), "seed {seed} k {k}");
                }
            }
        }
    }
}

#[test]
fn crc32c_gives_the_published_values() {
    for kernels in tables() {
        // The usual nine digits, and RFC 3720, B.4.
        assert_eq!(kernels.crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(kernels.crc32c(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(kernels.crc32c(0, &[0xff; 32]), 0x62a8_ab43);
        assert_eq!(kernels.crc32c(kernels.crc32c(0, b"1234"), b"56789"), 0xe306_9283);
        assert_eq!(kernels.crc32c_fn()(7, b""), 7);
    }
}

#[test]
fn crc32c_matches_the_twin() {
    let mut rng = Rng::new(1800);
    for len in (0..70).chain([767, 768, 769, 1535, 1536, 2304, 4096, 5000, 6912]) {
        let bytes: Vec<u8> = (0..len).map(|_| rng.bits() as u8).collect();
        let (bytes, seed) = (Guarded::of(&bytes), rng.bits() as u32);
        for kernels in fast_tables() {
            assert_eq!(
                kernels.crc32c(seed, &bytes),
                Kernels::twin().crc32c(seed, &bytes),
                "{} len {len}",
                kernels.isa().name()
            );
        }
    }
}
