//! Attention.

use super::*;
use crate::kernel::{Columns, KvView};

const DIMS: [usize; 7] = [16, 32, 48, 64, 80, 128, 256];

struct Cache {
    keys: Guarded<f32>,
    values: Guarded<f32>,
    half_keys: Guarded<u16>,
    half_values: Guarded<u16>,
}

impl Cache {
    fn new(rng: &mut Rng, len: usize, pattern: Pattern) -> Cache {
        let (keys, values) = (floats(rng, len, pattern), floats(rng, len, pattern));
        let halves = |x: &[f32]| {
            Guarded::of(&x.iter().map(|x| f16::from_f32(*x).to_bits()).collect::<Vec<_>>())
        };
        Cache { half_keys: halves(&keys), half_values: halves(&values), keys, values }
    }

    fn views(&self) -> [KvView<'_>; 2] {
        [
            KvView::F32 { keys: &self.keys, values: &self.values },
            KvView::F16 { keys: &self.half_keys, values: &self.half_values },
        ]
    }
}

fn compare(q: &[f32], view: KvView<'_>, scale: f32, what: &str) {
    let (mut twin, mut fast) = (vec![0.0; q.len()], Guarded::new(q.len()));
    Kernels::twin().attend(q, view, scale, &mut twin);
    for kernels in fast_tables() {
        fast.fill(f32::NAN);
        kernels.attend(q, view, scale, &mut fast);
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
            let cache = Cache::new(&mut rng, keys * dim, pattern);
            for view in cache.views() {
                for scale in [0.125, 1.0, 40.0] {
                    compare(&q, view, scale, &format!("seed {seed} keys {keys} {pattern:?}"));
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
            let cache = Cache::new(&mut rng, keys * dim, pattern);
            for view in cache.views() {
                let mut expected = vec![0.0; positions * width];
                for (query, out) in expected.chunks_exact_mut(dim).enumerate() {
                    let (position, head) = (query / group, query % group);
                    let q = &q[position * (width + gap) + head * dim..][..dim];
                    let seen = view.first((keys - positions + 1 + position) * dim);
                    Kernels::twin().attend(q, seen, 0.25, out);
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
            let mut cache = Cache::new(&mut rng, keys * dim, Pattern::Normal);
            cache.keys[at * dim] = bad;
            compare(&q, cache.views()[0], 0.5, &format!("{bad} at key {at}"));
        }
    }
}

#[test]
fn the_twin_is_near_softmax_in_f64() {
    for (seed, keys) in (1000..).zip([1, 2, 31, 32, 33, 64, 100, 500]) {
        let mut rng = Rng::new(seed);
        for dim in DIMS {
            let q = floats(&mut rng, dim, Pattern::Normal);
            let cache = Cache::new(&mut rng, keys * dim, Pattern::Normal);
            let scale = 1.0 / (dim as f32).sqrt();
            let mut out = vec![0.0; dim];
            Kernels::twin().attend(&q, cache.views()[0], scale, &mut out);
            let score = |key: &[f32]| -> f64 {
                let products = q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k));
                products.sum::<f64>() * f64::from(scale)
            };
            let scores: Vec<f64> = cache.keys.chunks(dim).map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (i, out) in out.iter().enumerate() {
                let rows = cache.values.chunks(dim).zip(&weights);
                let expected: f64 = rows.map(|(row, w)| f64::from(row[i]) * w).sum::<f64>() / total;
                let error = (f64::from(*out) - expected).abs();
                assert!(error < 2e-5, "seed {seed} keys {keys} dim {dim}: {out} {expected}");
            }
        }
    }
}

/// One key: the output is its value, whatever the score.
#[test]
fn a_single_key_gives_its_value() {
    let mut rng = Rng::new(1100);
    let q = floats(&mut rng, 64, Pattern::Normal);
    let cache = Cache::new(&mut rng, 64, Pattern::Normal);
    for kernels in [Kernels::twin()].into_iter().chain(fast_tables()) {
        let mut out = vec![f32::NAN; 64];
        kernels.attend(&q, cache.views()[0], 1e6, &mut out);
        assert_eq!(out, cache.values[..]);
    }
}
