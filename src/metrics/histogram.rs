//! A log-linear histogram of nanoseconds: 32 steps to each power of two, so a quantile is at most
//! 3.2 % above the true one.

const STEP_BITS: u32 = 5;
const STEPS: usize = 1 << STEP_BITS;
/// Up to 2^40 ns, 18 minutes; longer values count as that.
const POWERS: usize = 41;
const BUCKETS: usize = (POWERS - STEP_BITS as usize + 1) * STEPS;

/// Counts of durations.
pub struct Histogram {
    counts: [u32; BUCKETS],
    count: u64,
    sum: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl Histogram {
    /// An empty histogram.
    pub const fn new() -> Histogram {
        Histogram { counts: [0; BUCKETS], count: 0, sum: 0, max: 0 }
    }

    /// Counts a duration.
    pub fn record(&mut self, nanoseconds: u64) {
        self.counts[bucket(nanoseconds)] += 1;
        self.count += 1;
        self.sum += nanoseconds;
        self.max = self.max.max(nanoseconds);
    }

    /// Durations counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Mean, or 0.
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count).unwrap_or(0)
    }

    /// Longest, or 0.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Smallest bucket end that at least `per_mille` of the durations do not exceed.
    pub fn quantile(&self, per_mille: u64) -> u64 {
        let wanted = (self.count * per_mille).div_ceil(1000);
        let mut seen = 0;
        for (index, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen >= wanted && count > 0 {
                return bucket_end(index).min(self.max);
            }
        }
        self.max
    }
}

fn bucket(value: u64) -> usize {
    if value < STEPS as u64 {
        return value as usize;
    }
    let power = value.ilog2();
    let step = (value >> (power - STEP_BITS)) as usize - STEPS;
    (((power - STEP_BITS + 1) as usize) * STEPS + step).min(BUCKETS - 1)
}

fn bucket_end(index: usize) -> u64 {
    if index < STEPS {
        return index as u64;
    }
    let shift = (index / STEPS - 1) as u32;
    ((STEPS + index % STEPS) as u64 + 1) * (1 << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close_from_above() {
        let mut histogram = Histogram::new();
        let mut values: Vec<u64> = (0..10_000u64).map(|i| i * i % 7_919_333 + 1).collect();
        values.iter().for_each(|&value| histogram.record(value));
        values.sort_unstable();
        for per_mille in [1, 500, 900, 990, 999, 1000] {
            let true_one = values[(values.len() * per_mille).div_ceil(1000) - 1];
            let found = histogram.quantile(per_mille as u64);
            assert!(found >= true_one && found <= true_one + true_one / 31 + 1, "{per_mille}");
        }
        assert_eq!(histogram.max(), *values.last().unwrap());
        assert_eq!(histogram.mean(), values.iter().sum::<u64>() / values.len() as u64);
    }

    #[test]
    fn every_value_has_a_bucket() {
        for value in [0, 1, 31, 32, 33, 63, 64, 1 << 20, 1 << 40, u64::MAX] {
            let index = bucket(value);
            assert!(index < BUCKETS);
            assert!(value >= 1 << 40 || bucket_end(index) >= value);
        }
        assert_eq!(Histogram::new().quantile(500), 0);
    }
}
