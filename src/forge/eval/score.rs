//! How likely a text is: perplexity, and how near one model's probabilities are to another's.
//!
//! Called by `forge::eval` for every token that counts. Sums are f64.

use super::reference::Line;

/// A mean and how far it is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mean {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Mean {
    /// One more value.
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
    }

    /// Values so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// Its standard error.
    #[must_use]
    pub fn error(&self) -> f64 {
        let variance = self.squares / self.count as f64 - self.value() * self.value();
        (variance.max(0.0) / (self.count as f64 - 1.0)).sqrt()
    }

    /// Perplexity and its standard error, of a mean of negative log-likelihoods.
    #[must_use]
    pub fn perplexity(&self) -> (f64, f64) {
        let perplexity = self.value().exp();
        (perplexity, perplexity * self.error())
    }
}

/// What a model holds likely next.
pub struct Distribution<'l> {
    logits: &'l [f32],
    /// Log of the sum of exponentials.
    log_sum: f64,
}

impl<'l> Distribution<'l> {
    /// The softmax of `logits`.
    #[must_use]
    pub fn new(logits: &'l [f32]) -> Distribution<'l> {
        let most = logits.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x));
        let sum: f64 = logits.iter().map(|&x| f64::from(x - most).exp()).sum();
        Distribution { logits, log_sum: f64::from(most) + sum.ln() }
    }

    /// Log of the probability of token `id`.
    #[must_use]
    pub fn log_probability(&self, id: usize) -> f64 {
        f64::from(self.logits[id]) - self.log_sum
    }

    /// The likeliest token, the first of equals.
    #[must_use]
    pub fn best(&self) -> usize {
        first_largest(self.logits.iter().copied())
    }
}

/// Index of the largest value, the first of equals.
pub fn first_largest<T: PartialOrd + Copy>(values: impl Iterator<Item = T>) -> usize {
    let mut best: Option<(usize, T)> = None;
    for (index, value) in values.enumerate() {
        if best.is_none_or(|(_, most)| value > most) {
            best = Some((index, value));
        }
    }
    best.map_or(0, |(index, _)| index)
}

/// Log-probabilities below this add nothing to a divergence: the reference's codes end there.
const LOG_PROBABILITY_MIN: f64 = -16.0;

/// How near a model is to its reference.
#[derive(Clone, Copy, Debug, Default)]
pub struct Agreement {
    /// The reference's own negative log-likelihood.
    pub reference: Mean,
    /// 1 where both hold the same token likeliest, else 0.
    pub top: Mean,
    /// Kullback-Leibler divergence from the reference, nats.
    pub divergence: Mean,
}

impl Agreement {
    /// One more position, where the text goes on with token `id`.
    pub fn add(&mut self, ours: &Distribution<'_>, theirs: &Line<'_>, id: usize) {
        self.reference.add(-theirs.log_probability(id));
        self.top.add(f64::from(u8::from(ours.best() == theirs.best())));
        let divergence = (0..ours.logits.len()).map(|id| {
            let wanted = theirs.log_probability(id);
            if wanted <= LOG_PROBABILITY_MIN {
                return 0.0;
            }
            wanted.exp() * (wanted - ours.log_probability(id))
        });
        self.divergence.add(divergence.sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked by hand: values 1, 2, 3, 4 have the mean 2.5, the mean square 7.5, the variance 1.25.
    #[test]
    fn a_mean_has_its_standard_error() {
        let mut mean = Mean::default();
        (1..=4).for_each(|value| mean.add(f64::from(value)));
        assert_eq!((mean.count(), mean.value()), (4, 2.5));
        assert!((mean.error() - (1.25f64 / 3.0).sqrt()).abs() < 1e-15);
        let (perplexity, error) = mean.perplexity();
        assert!((perplexity - 12.182_493_960_703_473).abs() < 1e-12);
        assert!((error / perplexity - mean.error()).abs() < 1e-15);
    }

    /// Logits ln 1, ln 2, ln 5: probabilities 1/8, 2/8, 5/8, whatever is added to all.
    #[test]
    fn a_distribution_is_the_softmax() {
        for shift in [0.0f32, 80.0, -300.0] {
            let logits = [1.0f32, 2.0, 5.0].map(|x| x.ln() + shift);
            let ours = Distribution::new(&logits);
            for (id, wanted) in [0.125f64, 0.25, 0.625].into_iter().enumerate() {
                assert!((ours.log_probability(id).exp() - wanted).abs() < 1e-5, "{shift} {id}");
            }
            assert_eq!(ours.best(), 2);
        }
        assert_eq!(first_largest([3, 7, 7, 1].into_iter()), 1);
    }

    /// Theirs 1/2, 1/2; ours 1/4, 3/4: 1/2 ln 2 + 1/2 ln 2/3 = 1/2 ln 4/3.
    #[test]
    fn a_divergence_is_that_of_the_reference() {
        let half = 0.5f32.ln();
        let logits = [0.25f32.ln(), 0.75f32.ln()];
        let mut agreement = Agreement::default();
        let theirs = Line { scale: 0.0, least: half, codes: &[0, 0] };
        agreement.add(&Distribution::new(&logits), &theirs, 1);
        assert!((agreement.divergence.value() - 0.5 * (4.0f64 / 3.0).ln()).abs() < 1e-6);
        assert!((agreement.reference.value() - 2.0f64.ln()).abs() < 1e-6);
        assert_eq!(agreement.top.value(), 0.0, "the first of equals is theirs");
    }
}
