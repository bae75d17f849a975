//! Logits to the next token.
//!
//! The chain is repeat penalty, top-k, top-p, min-p, temperature, draw. Candidates are sorted by
//! logit, then id, and summed in that order in f32, with our own `exp`: the same logits,
//! history and seed give the same token on every machine.

use crate::kernel::math::exp;
use crate::kernel::{Candidate, Kernels, top_k_room};
use crate::token::TokenError;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Logits are divided by it; 0 takes the likeliest token.
    pub temperature: f32,
    /// Keep this many of the likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the fewest tokens whose probabilities reach this sum, in (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely, relative to the likeliest, in [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Positive logits of recent tokens are divided by it, others multiplied; 1 is off.
    pub repeat_penalty: f32,
    /// Tokens that count as recent: the last so many of the history.
    pub repeat_last: u32,
    /// Start of the random numbers.
    pub seed: u64,
}

impl SamplerConfig {
    /// Takes the likeliest token, whatever was said before.
    pub const GREEDY: SamplerConfig = SamplerConfig {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        repeat_last: 0,
        seed: 0,
    };

    /// Each setting within its range, or what it should be.
    fn check(&self) -> Result<(), TokenError> {
        let rules = [
            (
                self.temperature >= 0.0 && self.temperature.is_finite(),
                "temperature must be 0 (greedy) or a positive number",
            ),
            (self.top_p > 0.0 && self.top_p <= 1.0, "top-p must be above 0 and at most 1"),
            ((0.0..=1.0).contains(&self.min_p), "min-p must be from 0 to 1"),
            (
                self.repeat_penalty > 0.0 && self.repeat_penalty.is_finite(),
                "repeat penalty must be a positive number, 1 to switch it off",
            ),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, wanted)) => Err(TokenError::Setting { wanted }),
            None => Ok(()),
        }
    }
}

/// Chooses the tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    random: Random,
}

impl Sampler {
    /// A sampler at the start of its seed's random numbers.
    pub fn new(config: SamplerConfig) -> Result<Sampler, TokenError> {
        config.check()?;
        Ok(Sampler { config, random: Random::new(config.seed) })
    }

    /// The settings it was made with.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// The next token. `logits` has one value a token of the vocabulary, `recent` is the sequence
    /// so far, `candidates` is room for one a logit.
    pub fn sample(
        &mut self,
        logits: &[f32],
        recent: &[u32],
        candidates: &mut [Candidate],
        kernels: &Kernels,
    ) -> Result<u32, TokenError> {
        let room = candidates.len();
        let bad = TokenError::Candidates { logits: logits.len(), candidates: room };
        let candidates = candidates.get_mut(..logits.len()).ok_or(bad)?;
        let recent = &recent[recent.len().saturating_sub(self.config.repeat_last as usize)..];
        let kept = match self.likeliest(logits, recent, candidates, kernels) {
            Some(few) => &candidates[..few],
            None => {
                self.fill(logits, recent, candidates)?;
                self.keep_top_k(candidates)
            }
        };
        let Candidate { id, logit: most } = *kept.first().ok_or(bad)?;
        if self.config.temperature == 0.0 {
            return Ok(id);
        }
        let odds = |candidate: &Candidate| exp_or_zero(candidate.logit - most);
        let kept = keep_top_p(kept, self.config.top_p, odds);
        let kept = keep_min_p(kept, self.config.min_p, odds);
        Ok(self.draw(kept))
    }

    /// How many of the likeliest tokens are kept; 0 for all.
    fn top_k(&self) -> usize {
        if self.config.temperature == 0.0 { 1 } else { self.config.top_k as usize }
    }

    /// What [`Sampler::fill`] and [`Sampler::keep_top_k`] would give, by one pass over the logits;
    /// their number. `None` where they have to: every token is kept, there is little room, or a
    /// number is not finite.
    fn likeliest(
        &self,
        logits: &[f32],
        recent: &[u32],
        candidates: &mut [Candidate],
        kernels: &Kernels,
    ) -> Option<usize> {
        let k = self.top_k();
        // Recent tokens may fall behind: as many more are needed.
        let most = k + recent.len();
        let (room, rest) = candidates.split_at_mut_checked(top_k_room(most))?;
        let penalised = self.penalise(logits, recent, rest.get_mut(..recent.len())?);
        // Without a way out within a chunk, the compiler makes vectors of it.
        let are_finite = |x: &[f32]| !x.iter().fold(false, |bad, x| bad | !x.is_finite());
        let is_finite = |candidate: &Candidate| candidate.logit.is_finite();
        if k == 0 || !logits.chunks(512).all(are_finite) || !penalised.iter().all(is_finite) {
            return None;
        }
        let found = kernels.top_k(logits, most, room).len();
        let mut count = 0;
        for index in 0..found {
            let Candidate { id, logit } = room[index];
            if penalised.binary_search_by_key(&id, |candidate| candidate.id).is_err() {
                // -0.0 becomes 0.0, as in `fill`.
                room[count] = Candidate { id, logit: logit + 0.0 };
                count += 1;
            }
        }
        for same in penalised.chunk_by(|a, b| a.id == b.id) {
            room[count] = same[0];
            count += 1;
        }
        Some(self.keep_top_k(&mut room[..count]).len())
    }

    /// The recent tokens with their penalised logits, by id.
    fn penalise<'c>(
        &self,
        logits: &[f32],
        recent: &[u32],
        out: &'c mut [Candidate],
    ) -> &'c [Candidate] {
        let mut count = 0;
        for &id in recent {
            if let Some(&logit) = logits.get(id as usize) {
                out[count] = Candidate { id, logit: self.penalised(logit) };
                count += 1;
            }
        }
        out[..count].sort_unstable_by_key(|candidate| candidate.id);
        &out[..count]
    }

    /// The logit of a recent token.
    fn penalised(&self, logit: f32) -> f32 {
        let penalty = self.config.repeat_penalty;
        if logit > 0.0 { logit / penalty + 0.0 } else { logit * penalty + 0.0 }
    }

    /// Every token with its logit, recent ones penalised once.
    fn fill(
        &self,
        logits: &[f32],
        recent: &[u32],
        candidates: &mut [Candidate],
    ) -> Result<(), TokenError> {
        for (id, (candidate, &logit)) in (0..).zip(candidates.iter_mut().zip(logits)) {
            // -0.0 becomes 0.0, so that the two tie.
            *candidate = Candidate { id, logit: logit + 0.0 };
        }
        for &id in recent {
            if let Some(&logit) = logits.get(id as usize) {
                candidates[id as usize].logit = self.penalised(logit);
            }
        }
        match candidates.iter().find(|candidate| !candidate.logit.is_finite()) {
            Some(candidate) => Err(TokenError::NotANumber { id: candidate.id }),
            None => Ok(()),
        }
    }

    /// The `top_k` likeliest candidates, sorted.
    fn keep_top_k<'c>(&self, candidates: &'c mut [Candidate]) -> &'c [Candidate] {
        let k = self.top_k();
        let kept = if (1..candidates.len()).contains(&k) {
            candidates.select_nth_unstable_by(k - 1, Candidate::by_rank);
            &mut candidates[..k]
        } else {
            candidates
        };
        kept.sort_unstable_by(Candidate::by_rank);
        kept
    }

    /// Draws one of the sorted candidates by its probability at the temperature.
    fn draw(&mut self, kept: &[Candidate]) -> u32 {
        let Candidate { id: mut drawn, logit: most } = kept[0];
        let temperature = self.config.temperature;
        let odds = |c: &Candidate| exp_or_zero((c.logit - most) / temperature);
        let total: f32 = kept.iter().map(odds).sum();
        let target = self.random.next_unit() * total;
        let mut sum = 0.0;
        for candidate in kept {
            let share = odds(candidate);
            if share > 0.0 {
                sum += share;
                drawn = candidate.id;
            }
            if sum > target {
                break;
            }
        }
        drawn
    }
}

/// The fewest of the sorted candidates whose probabilities reach `top_p`. `odds` are relative to
/// the likeliest.
fn keep_top_p(kept: &[Candidate], top_p: f32, odds: impl Fn(&Candidate) -> f32) -> &[Candidate] {
    if top_p >= 1.0 {
        return kept;
    }
    let total: f32 = kept.iter().map(&odds).sum();
    let mut sum = 0.0;
    let reached = kept.iter().position(|candidate| {
        sum += odds(candidate);
        sum >= top_p * total
    });
    reached.map_or(kept, |index| &kept[..=index])
}

/// Those of the sorted candidates that are at least `min_p` times as likely as the first.
fn keep_min_p(kept: &[Candidate], min_p: f32, odds: impl Fn(&Candidate) -> f32) -> &[Candidate] {
    &kept[..kept.partition_point(|candidate| odds(candidate) >= min_p)]
}

/// exp(x) for x <= 0; 0 where it would hardly be a normal number.
fn exp_or_zero(x: f32) -> f32 {
    if x < -87.0 { 0.0 } else { exp(x) }
}

/// xoshiro256** of Blackman and Vigna, seeded by SplitMix64 as they advise.
#[derive(Clone, Debug)]
struct Random {
    state: [u64; 4],
}

impl Random {
    fn new(seed: u64) -> Random {
        let mut counter = seed;
        Random { state: core::array::from_fn(|_| split_mix(&mut counter)) }
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A multiple of 2^-24 in [0, 1), each as likely.
    fn next_unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 24) as f32
    }
}

/// The next number of SplitMix64.
fn split_mix(counter: &mut u64) -> u64 {
    *counter = counter.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = *counter;
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;

    const DRAW: SamplerConfig = SamplerConfig { temperature: 1.0, ..SamplerConfig::GREEDY };

    fn sampler(config: SamplerConfig) -> Sampler {
        Sampler::new(config).unwrap()
    }

    fn sample(sampler: &mut Sampler, logits: &[f32], recent: &[u32]) -> Result<u32, TokenError> {
        let mut candidates = vec![Candidate::zeroed(); logits.len()];
        sampler.sample(logits, recent, &mut candidates, Kernels::best())
    }

    /// Counts of each token over `draws` draws.
    fn counts(config: SamplerConfig, logits: &[f32], draws: usize) -> Vec<usize> {
        let mut sampler = sampler(config);
        let mut counts = vec![0; logits.len()];
        for _ in 0..draws {
            counts[sample(&mut sampler, logits, &[]).unwrap() as usize] += 1;
        }
        counts
    }

    /// Each count within five standard deviations of its probability; none where that is 0.
    fn assert_frequencies(counts: &[usize], probabilities: &[f64]) {
        let draws = counts.iter().sum::<usize>() as f64;
        for (id, (&count, &p)) in counts.iter().zip(probabilities).enumerate() {
            let spread = 5.0 * (draws * p * (1.0 - p)).sqrt();
            let off = (count as f64 - draws * p).abs();
            assert!(off <= spread, "token {id}: {count} of {draws}, wanted {p} of them");
        }
    }

    /// Softmax in f64 of the logits that `keep`, at a temperature.
    fn softmax(logits: &[f32], temperature: f64, keep: impl Fn(usize) -> bool) -> Vec<f64> {
        let weights: Vec<f64> = logits
            .iter()
            .enumerate()
            .map(|(id, &l)| if keep(id) { (f64::from(l) / temperature).exp() } else { 0.0 })
            .collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    /// Numbers of an independent program (the authors' algorithms in Python integers).
    #[test]
    fn random_numbers_are_the_published_ones() {
        let mut counter = 1_234_567;
        assert_eq!(split_mix(&mut counter), 6_457_827_717_110_365_317);
        assert_eq!(split_mix(&mut counter), 3_203_168_211_198_807_973);
        let mut random = Random { state: [1, 2, 3, 4] };
        let wanted = [11_520, 0, 1_509_978_240, 1_215_971_899_390_074_240];
        assert_eq!([(); 4].map(|()| random.next()), wanted);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [1.5, -0.5, 3.0, 0.0, 2.0, -2.0, 2.9, -30.0];
        for (temperature, seed) in [(1.0, 1), (0.5, 2), (2.0, 3)] {
            let config = SamplerConfig { temperature, seed, ..DRAW };
            let wanted = softmax(&logits, temperature.into(), |_| true);
            assert_frequencies(&counts(config, &logits, 100_000), &wanted);
        }
    }

    #[test]
    fn cuts_keep_what_they_say() {
        // At temperature 1: 0.5, 0.25, 0.125, 0.0625, 0.0625, given out of order.
        let logits = [0.125f32, 0.5, 0.0625, 0.25, 0.0625].map(f32::ln);
        let check = |config, kept: &[usize]| {
            let wanted = softmax(&logits, 2.0, |id| kept.contains(&id));
            let config = SamplerConfig { temperature: 2.0, seed: 9, ..config };
            assert_frequencies(&counts(config, &logits, 20_000), &wanted);
        };
        check(SamplerConfig { top_k: 2, ..DRAW }, &[1, 3]);
        check(SamplerConfig { top_k: 4, ..DRAW }, &[1, 3, 0, 2]); // the lower id of two equals
        check(SamplerConfig { top_k: 5, ..DRAW }, &[0, 1, 2, 3, 4]);
        check(SamplerConfig { top_k: 99, ..DRAW }, &[0, 1, 2, 3, 4]);
        check(SamplerConfig { top_p: 0.49, ..DRAW }, &[1]);
        check(SamplerConfig { top_p: 0.51, ..DRAW }, &[1, 3]);
        check(SamplerConfig { top_p: 0.76, ..DRAW }, &[1, 3, 0]);
        check(SamplerConfig { min_p: 0.24, ..DRAW }, &[1, 3, 0]);
        check(SamplerConfig { min_p: 0.26, ..DRAW }, &[1, 3]);
        // top-p sees what top-k left: 0.5 of 0.75 reaches 0.66.
        check(SamplerConfig { top_k: 2, top_p: 0.66, ..DRAW }, &[1]);
        check(SamplerConfig { top_p: 0.76, min_p: 0.3, ..DRAW }, &[1, 3]);
    }

    #[test]
    fn the_tightest_cuts_are_greedy() {
        let logits = [0.5, 2.5, -1.0, 2.5, 2.0];
        assert_eq!(sample(&mut sampler(SamplerConfig::GREEDY), &logits, &[]), Ok(1));
        for config in [
            SamplerConfig { top_k: 1, ..DRAW },
            SamplerConfig { top_p: f32::MIN_POSITIVE, ..DRAW },
            SamplerConfig { temperature: f32::MIN_POSITIVE, top_k: 1, ..DRAW },
        ] {
            assert_eq!(counts(config, &logits, 100)[1], 100, "{config:?}");
        }
        // min-p 1 keeps every token as likely as the likeliest, and so does a tiny temperature.
        for config in [
            SamplerConfig { min_p: 1.0, ..DRAW },
            SamplerConfig { temperature: f32::MIN_POSITIVE, ..DRAW },
        ] {
            let wanted = [0.0, 0.5, 0.0, 0.5, 0.0];
            assert_frequencies(&counts(config, &logits, 2000), &wanted);
        }
        assert_eq!(sample(&mut sampler(SamplerConfig::GREEDY), &[-0.0, 0.0], &[]), Ok(0));
    }

    #[test]
    fn repeats_by_hand() {
        let greedy = |repeat_penalty, repeat_last, recent: &[u32]| {
            let config = SamplerConfig { repeat_penalty, repeat_last, ..SamplerConfig::GREEDY };
            sample(&mut sampler(config), &[3.0, 2.0, -1.0, 1.6], recent).unwrap()
        };
        assert_eq!(greedy(2.0, 0, &[0]), 0);
        assert_eq!(greedy(2.0, 1, &[0]), 1); // 3 / 2 < 2
        assert_eq!(greedy(1.4, 3, &[0, 0, 0]), 0); // once, however often: 3 / 1.4 > 2
        assert_eq!(greedy(2.0, 1, &[0, 3]), 0); // 0 is too long ago
        assert_eq!(greedy(2.0, 9, &[1, 0, 77]), 3); // 1.5, 1, -1, 1.6; 77 is no token
        // A negative logit moves away from 0: -1 * 3 falls behind -2.
        let config = SamplerConfig { repeat_penalty: 3.0, repeat_last: 4, ..SamplerConfig::GREEDY };
        assert_eq!(sample(&mut sampler(config), &[-1.0, -2.0], &[0]), Ok(1));
    }

    /// xoshiro256** from seed 42 in Python integers: 0.0839, 0.3790, 0.6800, 0.9247, 0.9918.
    #[test]
    fn draws_by_hand() {
        // Probabilities 0.1, 0.2, 0.3, 0.4; sorted the sums end at 0.4, 0.7, 0.9, 1.
        let logits = [0.1f32, 0.2, 0.3, 0.4].map(f32::ln);
        let mut sampler = sampler(SamplerConfig { seed: 42, ..DRAW });
        let drawn = [(); 5].map(|()| sample(&mut sampler, &logits, &[]).unwrap());
        assert_eq!(drawn, [3, 3, 2, 0, 0]);
    }

    /// One pass against the candidates of every token: same tokens, same bits, same errors.
    #[test]
    fn the_likeliest_are_those_of_all() {
        let mut random = Random::new(5);
        let mut below = |bound: u64| random.next() % bound;
        let bits = |kept: &[Candidate]| -> Vec<(u32, u32)> {
            kept.iter().map(|kept| (kept.id, kept.logit.to_bits())).collect()
        };
        for round in 0..400 {
            let len = 1200 + below(3000) as usize;
            let step = [1e-3f32, 0.5, 40.0][round % 3]; // ties are rare, usual, the rule
            let mut logits: Vec<f32> = (0..len)
                .map(|_| ((below(20_001) as f32 - 1e4) * 1e-3 / step).round() * step)
                .collect();
            if round % 10 == 0 {
                logits[below(len as u64) as usize] =
                    [f32::NAN, f32::INFINITY, 3e38][round / 10 % 3];
            }
            let recent: Vec<u32> = (0..below(90)).map(|_| below(len as u64 + 9) as u32).collect();
            let (top_k, temperature) = (1 + below(60) as u32, below(3) as f32);
            let repeat_penalty = [1.0, 1.3, 0.5, 1e-3][round % 4];
            let sampler = sampler(SamplerConfig { top_k, temperature, repeat_penalty, ..DRAW });
            let mut all = vec![Candidate::zeroed(); len];
            let filled = sampler.fill(&logits, &recent, &mut all);
            let wanted = filled.is_ok().then(|| bits(sampler.keep_top_k(&mut all)));
            for kernels in [Kernels::twin(), Kernels::best()] {
                let mut few = vec![Candidate::zeroed(); len];
                let count = sampler.likeliest(&logits, &recent, &mut few, kernels);
                assert_eq!(count.map(|count| bits(&few[..count])), wanted, "round {round}");
            }
        }
    }

    #[test]
    fn the_seed_is_the_sequence() {
        let logits: Vec<f32> = (0..500).map(|id| (id * 37 % 101) as f32 / 20.0).collect();
        let run = |seed| {
            let mut sampler = sampler(SamplerConfig { seed, top_k: 40, top_p: 0.95, ..DRAW });
            (0..50).map(|_| sample(&mut sampler, &logits, &[]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn bad_settings_and_numbers_are_named() {
        for (config, word) in [
            (SamplerConfig { temperature: -0.1, ..DRAW }, "temperature"),
            (SamplerConfig { temperature: f32::NAN, ..DRAW }, "temperature"),
            (SamplerConfig { top_p: 0.0, ..DRAW }, "top-p"),
            (SamplerConfig { top_p: 1.01, ..DRAW }, "top-p"),
            (SamplerConfig { min_p: -0.01, ..DRAW }, "min-p"),
            (SamplerConfig { min_p: f32::NAN, ..DRAW }, "min-p"),
            (SamplerConfig { repeat_penalty: 0.0, ..DRAW }, "repeat penalty"),
            (SamplerConfig { repeat_penalty: f32::INFINITY, ..DRAW }, "repeat penalty"),
        ] {
            let message = Sampler::new(config).unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("a sampler setting is wrong: {word}")),
                "{message}"
            );
        }
        for config in [SamplerConfig::GREEDY, DRAW] {
            let mut sampler = sampler(config);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let found = sample(&mut sampler, &[1.0, bad, 0.0], &[]);
                assert_eq!(found, Err(TokenError::NotANumber { id: 1 }));
            }
            assert_eq!(
                sampler.sample(&[1.0, 2.0], &[], &mut [Candidate::zeroed()], Kernels::twin()),
                Err(TokenError::Candidates { logits: 2, candidates: 1 })
            );
            let none = Err(TokenError::Candidates { logits: 0, candidates: 0 });
            assert_eq!(sample(&mut sampler, &[], &[]), none);
        }
    }
}
