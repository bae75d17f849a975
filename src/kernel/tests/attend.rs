//! Attention.

use super::*;
use crate::kernel::{Columns, KEY_BLOCK, KvView, Q8Rows, quantize_groups};

const DIMS: [usize; 7] = [16, 32, 48, 64, 80, 128, 256];

struct Cache {
    keys: Guarded<f32>,
    values: Guarded<f32>,
    half_keys: Guarded<u16>,
    half_values: Guarded<u16>,
    codes: [Guarded<i8>; 2],
    scales: [Guarded<f32>; 2],
    /// Width of a row.
    dim: usize,
}

impl Cache {
    fn new(rng: &mut Rng, rows: usize, dim: usize, pattern: Pattern) -> Cache {
        let len = rows * dim;
        let (keys, values) = (floats(rng, len, pattern), floats(rng, len, pattern));
        let halves = |x: &[f32]| {
            Guarded::of(&x.iter().map(|x| f16::from_f32(*x).to_bits()).collect::<Vec<_>>())
        };
        let (half_keys, half_values) = (halves(&keys), halves(&values));
        let groups = len / 32;
        let mut codes = [Guarded::new(groups * 32), Guarded::new(groups * 32)];
        let mut scales = [Guarded::new(groups), Guarded::new(groups)];
        for (x, (codes, scales)) in
            [&keys, &values].into_iter().zip(codes.iter_mut().zip(&mut scales))
        {
            quantize_groups(&x[..groups * 32], codes, scales);
        }
        Cache { keys, values, half_keys, half_values, codes, scales, dim }
    }

    /// Every type that rows of this width have.
    fn views(&self) -> Vec<KvView<'_>> {
        let mut views = vec![
            KvView::F32 { keys: &self.keys, values: &self.values },
            KvView::F16 { keys: &self.half_keys, values: &self.half_values },
        ];
        if self.dim.is_multiple_of(32) {
            let rows = |i: usize| Q8Rows { codes: &self.codes[i], scales: &self.scales[i] };
            views.push(KvView::Q8 { keys: rows(0), values: rows(1) });
        }
        views
    }
}

fn compare(q: &[f32], view: KvView<'_>, unseen: usize, scale: f32, what: &str) {
    let (mut twin, mut fast) = (vec![0.0; q.len()], Guarded::new(q.len()));
    Kernels::twin().attend(q, view, unseen, scale, &mut twin);
    for kernels in fast_tables() {
        fast.fill(f32::NAN);
        kernels.attend(q, view, unseen, scale, &mut fast);
        assert_same(&twin, &fast, &format!("{} {what}", kernels.isa().name()));
    }
}

#[test]
fn attention_matches_the_twin_bit_for_bit() {
    for (seed, keys) in (800..).zip(1..=100) {
        let mut rng = Rng::new(seed);
        let dim = DIMS[keys % DIMS.len()];
        for pattern in PATTERNS {
            let q = floats(&mut rng, dim, pattern);
            let cache = Cache::new(&mut rng, keys, dim, pattern);
            for view in cache.views() {
                for scale in [0.125, 1.0, 40.0] {
                    let unseen = [0, rng.below(keys.min(KEY_BLOCK))];
                    for unseen in unseen {
                        let what = format!("seed {seed} keys {keys} but {unseen} {pattern:?}");
                        compare(&q, view, unseen, scale, &what);
                    }
                }
            }
        }
    }
}

/// Heads and positions together: what the twin gives for each query.
#[test]
fn blocks_of_queries_match_single_ones() {
    for (seed, dim) in (1050..).zip(DIMS) {
        let mut rng = Rng::new(seed);
        for (keys, positions, group) in
            [(1, 1, 1), (1, 1, 5), (40, 1, 8), (64, 1, 3), (7, 7, 1), (70, 33, 2), (130, 9, 3)]
        {
            let (width, gap) = (group * dim, 16 * rng.below(2));
            let pattern = PATTERNS[rng.below(PATTERNS.len())];
            let q = floats(&mut rng, positions * (width + gap) - gap, pattern);
            let cache = Cache::new(&mut rng, keys, dim, pattern);
            for view in cache.views() {
                let mut expected = vec![0.0; positions * width];
                for (query, out) in expected.chunks_exact_mut(dim).enumerate() {
                    let (position, head) = (query / group, query % group);
                    let q = &q[position * (width + gap) + head * dim..][..dim];
                    let seen = view.first((keys - positions + 1 + position) * dim);
                    Kernels::twin().attend(q, seen, 0, 0.25, out);
                }
                for kernels in [Kernels::twin()].into_iter().chain(fast_tables()) {
                    let mut out = Guarded::new(positions * width);
                    out.fill(f32::NAN);
                    let mut columns = Columns::of(&mut out, width, 0..width);
                    kernels.attend_block(&q, width + gap, dim, view, 0.25, &mut columns);
                    let what = format!("seed {seed} {dim} {keys} {positions} {group} {pattern:?}");
                    assert_same(&expected, &out, &format!("{what} {}", kernels.isa().name()));
                }
            }
        }
    }
}

#[test]
fn odd_scores_match_the_twin() {
    let mut rng = Rng::new(900);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 31, 32, 69] {
            let (dim, keys) = (32, 70);
            let q = floats(&mut rng, dim, Pattern::Constant);
            let mut cache = Cache::new(&mut rng, keys, dim, Pattern::Normal);
            cache.keys[at * dim] = bad;
            cache.scales[0][at] = bad;
            for view in [cache.views()[0], cache.views()[2]] {
                compare(&q, view, 0, 0.5, &format!("{bad} at key {at}"));
                compare(&q, view, 31, 0.5, &format!("{bad} at key {at} but 31"));
            }
        }
    }
}

#[test]
fn the_twin_is_near_softmax_in_f64() {
    for (seed, keys) in (1000..).zip([1, 2, 31, 32, 33, 64, 100, 500]) {
        let mut rng = Rng::new(seed);
        for dim in DIMS {
            let q = floats(&mut rng, dim, Pattern::Normal);
            let cache = Cache::new(&mut rng, keys, dim, Pattern::Normal);
            let scale = 1.0 / (dim as f32).sqrt();
            let mut out = vec![0.0; dim];
            // Some of them unseen: as if they were not there.
            let unseen = rng.below(keys.min(KEY_BLOCK));
            Kernels::twin().attend(&q, cache.views()[0], unseen, scale, &mut out);
            let score = |key: &[f32]| -> f64 {
                let products = q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k));
                products.sum::<f64>() * f64::from(scale)
            };
            let scores: Vec<f64> = cache.keys.chunks(dim).skip(unseen).map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (i, out) in out.iter().enumerate() {
                let rows = cache.values.chunks(dim).skip(unseen).zip(&weights);
                let expected: f64 = rows.map(|(row, w)| f64::from(row[i]) * w).sum::<f64>() / total;
                let error = (f64::from(*out) - expected).abs();
                assert!(error < 2e-5, "seed {seed} keys {keys} dim {dim}: {out} {expected}");
            }
        }
    }
}

/// Keys that are not seen may hold anything, in part of a block or in most of it.
#[test]
fn unseen_keys_are_as_if_they_were_not_there() {
    let mut rng = Rng::new(1050);
    for (unseen, keys) in [(1, 2), (7, 40), (16, 17), (20, 31), (31, 32), (31, 96)] {
        let dim = 64;
        let q = floats(&mut rng, dim, Pattern::Normal);
        let mut cache = Cache::new(&mut rng, keys, dim, Pattern::Normal);
        let mut found = [vec![0.0; dim], vec![0.0; dim]];
        for kernels in [Kernels::twin()].into_iter().chain(fast_tables()) {
            for (fill, found) in [0.5, f32::NAN].into_iter().zip(&mut found) {
                cache.keys[..unseen * dim].fill(fill);
                cache.values[..unseen * dim].fill(fill);
                kernels.attend(&q, cache.views()[0], unseen, 0.1, found);
            }
            assert!(found[0].iter().all(|x| x.is_finite()), "{unseen} of {keys}");
            assert_eq!(found[0], found[1], "{} {unseen} of {keys}", kernels.isa().name());
        }
    }
}

/// One key: the output is its value, whatever the score.
#[test]
fn a_single_key_gives_its_value() {
    let mut rng = Rng::new(1100);
    let q = floats(&mut rng, 64, Pattern::Normal);
    let cache = Cache::new(&mut rng, 1, 64, Pattern::Normal);
    for kernels in [Kernels::twin()].into_iter().chain(fast_tables()) {
        let mut out = vec![f32::NAN; 64];
        kernels.attend(&q, cache.views()[0], 0, 1e6, &mut out);
        assert_eq!(out, cache.values[..]);
    }
}

/// By its definition: codes are the nearest integers of value / scale, ties to even; what is too
/// small is zero, what is not finite stays so.
#[test]
fn groups_are_quantised_by_the_rule() {
    for (seed, pattern) in (1150..).zip(PATTERNS) {
        let mut rng = Rng::new(seed);
        let x = floats(&mut rng, 320, pattern);
        let (mut codes, mut scales) = (Guarded::new(320), Guarded::new(10));
        quantize_groups(&x, &mut codes, &mut scales);
        for ((x, codes), scale) in x.chunks(32).zip(codes.chunks(32)).zip(scales.iter()) {
            let amax = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let is_zero = amax < 2f32.powi(-100);
            assert_eq!(*scale, if is_zero { 0.0 } else { amax / 127.0 }, "{pattern:?}");
            for (x, code) in x.iter().zip(codes) {
                let exact = if is_zero { 0.0 } else { x * (127.0 / amax) };
                assert_eq!(f32::from(*code), exact.round_ties_even() + 0.0, "{pattern:?} {x:e}");
            }
        }
    }
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = [1.0; 64];
        x[40] = bad;
        let (mut codes, mut scales) = ([1; 64], [0.0; 2]);
        quantize_groups(&x, &mut codes, &mut scales);
        assert!(scales[0] == 1.0 / 127.0 && codes[..32] == [127; 32]);
        assert!(scales[1].is_nan() && codes[32..] == [0; 32]);
    }
}

/// Attention over codes is attention over the floats that they stand for.
#[test]
fn q8_rows_stand_for_scale_times_code() {
    let mut rng = Rng::new(1160);
    let (dim, keys) = (96, 75);
    let q = floats(&mut rng, dim, Pattern::Normal);
    let cache = Cache::new(&mut rng, keys, dim, Pattern::Normal);
    let floats = |i: usize| -> Vec<f32> {
        let pairs = cache.codes[i].chunks(32).zip(cache.scales[i].iter());
        pairs.flat_map(|(codes, scale)| codes.iter().map(move |c| f32::from(*c) * scale)).collect()
    };
    let (keys, values) = (floats(0), floats(1));
    let (mut wanted, mut found) = (vec![0.0; dim], vec![0.0; dim]);
    let floats = KvView::F32 { keys: &keys, values: &values };
    Kernels::twin().attend(&q, floats, 5, 0.1, &mut wanted);
    Kernels::twin().attend(&q, cache.views()[2], 5, 0.1, &mut found);
    assert_eq!(wanted, found);
}
