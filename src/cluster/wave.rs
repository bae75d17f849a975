//! Waves: the reads that one turn of the ring holds.

use super::{Chosen, Dimensions};
use crate::cache::Cache;
use crate::plan::READS_MAX;
use crate::predictor::Predictor;
use crate::storage::{Larder, Run};

/// The reads of a wave.
pub type Wave = heapless::Vec<Run, { READS_MAX as usize }>;

/// How far a layer's misses have been handed to the readers.
pub struct WaveCursor {
    chosen: usize,
    unit: u32,
}

impl WaveCursor {
    /// At the first unit of the first chosen expert.
    pub fn new() -> WaveCursor {
        WaveCursor { chosen: 0, unit: 0 }
    }

    /// Behind the last unit: nothing is missing.
    pub fn at_end(chosen: &[Chosen]) -> WaveCursor {
        WaveCursor { chosen: chosen.len(), unit: 0 }
    }

    /// Whether every unit was looked at.
    pub fn is_done(&self, chosen: &[Chosen]) -> bool {
        self.chosen == chosen.len()
    }

    /// The next reads: runs of units that hold a candidate without a slot, at most a ring of them.
    pub fn next(
        &mut self,
        cache: &Cache<'_>,
        larder: &Larder<'_>,
        dims: &Dimensions,
        layer: u16,
        chosen: &[Chosen],
        predictor: Predictor,
    ) -> Wave {
        let mut wave = Wave::new();
        let units = dims.record.units(u64::from(dims.ff)) as u32;
        while let Some(chosen) = chosen.get(self.chosen) {
            let expert = chosen.expert();
            let first = dims.first_neuron(layer, expert);
            let candidates = predictor.candidates(dims.ff);
            while self.unit < units {
                let run = Run { layer, expert, first_unit: self.unit, units: 1 };
                let missing = larder
                    .map()
                    .neurons(&run)
                    .any(|n| candidates.contains(&n) && cache.slot(first + n).is_none());
                if missing && !extend(&mut wave, run, larder) {
                    return wave;
                }
                self.unit += 1;
            }
            self.unit = 0;
            self.chosen += 1;
        }
        wave
    }
}

/// The next reads of units `*next..end` of an expert, without looking anything up.
pub fn sequential(larder: &Larder<'_>, layer: u16, expert: u16, next: &mut u32, end: u32) -> Wave {
    let mut wave = Wave::new();
    while *next < end {
        let run = Run { layer, expert, first_unit: *next, units: 1 };
        if !extend(&mut wave, run, larder) {
            break;
        }
        *next += 1;
    }
    wave
}

/// Adds a unit to the last read where it follows on and fits, else as a new read; false if the
/// ring is full.
fn extend(wave: &mut Wave, unit: Run, larder: &Larder<'_>) -> bool {
    if let Some(last) = wave.last_mut() {
        let follows = last.expert == unit.expert && last.first_unit + last.units == unit.first_unit;
        if follows && last.units < larder.units_max() {
            last.units += 1;
            return true;
        }
    }
    if wave.len() == larder.depth() {
        return false;
    }
    wave.push(unit).is_ok()
}
