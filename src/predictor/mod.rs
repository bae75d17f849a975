//! The scout: which neurons of an expert may fire for a token.
//!
//! Called by cluster before it looks anything up. What it leaves out is not computed, so a
//! predictor is part of the numerics. Invariant: the answer depends on nothing but the model and
//! the token, never on the cache or on timing.

use core::ops::Range;

/// How candidates are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predictor {
    /// Every neuron is a candidate and its gate decides: exact, the oracle of all others.
    None,
}

impl Predictor {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Predictor::None => "none",
        }
    }

    /// The candidates among an expert's `ff` neurons, ascending.
    pub const fn candidates(self, ff: u32) -> Range<u32> {
        match self {
            Predictor::None => 0..ff,
        }
    }
}
