//! The meters: fixed histograms and counters, no heap, may be used by every room above.

mod histogram;

pub use histogram::Histogram;

/// What the cluster room looked up and read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchCounters {
    /// Candidates found in a slot.
    pub hits: u64,
    /// Candidates that had none.
    pub misses: u64,
    /// Reads of records.
    pub reads: u64,
    /// Bytes of those reads.
    pub bytes: u64,
}

impl FetchCounters {
    /// What was counted since `before`.
    pub fn since(&self, before: &FetchCounters) -> FetchCounters {
        FetchCounters {
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
            reads: self.reads - before.reads,
            bytes: self.bytes - before.bytes,
        }
    }

    /// Both together.
    pub fn plus(&self, other: &FetchCounters) -> FetchCounters {
        FetchCounters {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            reads: self.reads + other.reads,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Share of look-ups that missed; 0 before the first.
    pub fn miss_rate(&self) -> f64 {
        self.misses as f64 / (self.hits + self.misses).max(1) as f64
    }
}
