//! The cycle: what a dense model does not hold, read over and over in the order of its use.
//!
//! Every token needs every neuron, so which read is the n-th is arithmetic, and nobody asks for it:
//! readers go on while a buffer of the ring is free, through layers, tokens and pauses; who
//! computes takes the reads in the same order. A buffer's landing word counts its turns: 2t while
//! it waits for read `t * depth + buffer`, 2t + 1 from that read's end until it was used.

use super::error::StorageError;
use super::readers::{Landed, Larder, Run, decode, encode};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Landing word that tells a reader to leave.
const LEAVE: u32 = u32::MAX;

/// Which reads the cycle is made of, and how far it got.
pub struct Cycle {
    layers: AtomicU32,
    /// First neuron that is read of each layer.
    first: AtomicU32,
    /// The next read for a reader, and for who computes.
    claimed: AtomicU64,
    taken: AtomicU64,
}

impl Cycle {
    /// A cycle that does not run.
    pub const fn new() -> Cycle {
        Cycle {
            layers: AtomicU32::new(0),
            first: AtomicU32::new(0),
            claimed: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        }
    }

    /// Whether it was started.
    pub fn runs(&self) -> bool {
        self.layers.load(Ordering::Acquire) > 0
    }
}

/// A read of the cycle in the hands of one thread; its buffer is free again when this goes.
pub struct Taken<'l, 'a> {
    larder: &'l Larder<'a>,
    number: u64,
}

impl<'a> Larder<'a> {
    /// Starts the cycle: from now on the readers read the neurons from `first` on of each of
    /// `layers`, and no more waves are submitted. Main thread only, once.
    pub fn start_cycle(&self, layers: u16, first: u32) {
        assert!(layers > 0 && !self.cycle.runs(), "a cycle starts once");
        self.cycle.first.store(first, Ordering::Relaxed);
        self.cycle.layers.store(u32::from(layers), Ordering::Release);
        self.wake_readers();
    }

    /// Whether the cycle was started.
    pub fn cycles(&self) -> bool {
        self.cycle.runs()
    }

    /// Reads that a layer takes.
    pub fn reads_per_layer(&self) -> u64 {
        let neurons = self.map().ff() - self.cycle.first.load(Ordering::Relaxed);
        u64::from(neurons.div_ceil(self.units_max()))
    }

    /// The number of the first read of `layer` that nobody took. Main thread only, between jobs.
    /// What is read of other layers before it is let go: a pass that was stopped leaves it.
    pub fn next_read(&self, layer: u16) -> u64 {
        loop {
            let next = self.cycle.taken.load(Ordering::Relaxed);
            if self.run_of(next).layer == layer {
                return next;
            }
            self.take_below(next + 1);
        }
    }

    /// Takes the next read below `end`, or `None`. Which layer it is of follows from its number.
    pub fn take_below(&self, end: u64) -> Option<Taken<'_, 'a>> {
        let next = |taken: u64| (taken < end).then_some(taken + 1);
        let taken = &self.cycle.taken;
        let number = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(Taken { larder: self, number })
    }

    /// What read `number` covers.
    fn run_of(&self, number: u64) -> Run {
        let (reads, units) = (self.reads_per_layer(), self.units_max());
        let layers = u64::from(self.cycle.layers.load(Ordering::Relaxed));
        let first = self.cycle.first.load(Ordering::Relaxed) + (number % reads) as u32 * units;
        let layer = (number / reads % layers) as u16;
        Run { layer, expert: 0, first_unit: first, units: units.min(self.map().ff() - first) }
    }

    /// Bytes of read `number`.
    pub fn cycle_bytes(&self, number: u64) -> u64 {
        self.map().bytes(&self.run_of(number)).1 as u64
    }

    /// The buffer of read `number`, and what its landing word is while it waits for it.
    fn turn(&self, number: u64) -> (usize, u32) {
        let depth = self.depth() as u64;
        ((number % depth) as usize, (number / depth * 2) as u32 & !(1 << 31))
    }

    /// Waits until the landing word of `buffer` is `wanted`; false where the reader shall leave.
    /// The word to leave may be overwritten by a read that ends just then; the flag stays.
    fn wait_for(&self, buffer: usize, wanted: u32) -> bool {
        let landing = &self.cells[buffer].landing;
        let mut found = landing.load();
        while found != wanted {
            if found == LEAVE || self.stopped() {
                return false;
            }
            found = landing.wait_while(found);
        }
        true
    }

    /// Body of a reader of the cycle.
    pub(super) fn serve_cycle(&self) {
        while !self.stopped() {
            let number = self.cycle.claimed.fetch_add(1, Ordering::Relaxed);
            let (buffer, turn) = self.turn(number);
            if !self.wait_for(buffer, turn) {
                return;
            }
            let mut filling = self.staging.fill(buffer).expect("a buffer whose turn it is is free");
            let outcome = self.read_run(&self.run_of(number), &mut filling);
            self.cells[buffer].outcome.store(encode(outcome), Ordering::Relaxed);
            filling.ready();
            self.cells[buffer].landing.store(turn + 1);
        }
    }

    /// Lets the readers of the cycle leave.
    pub(super) fn leave_cycle(&self) {
        self.cells.iter().for_each(|cell| cell.landing.store(LEAVE));
    }
}

impl Taken<'_, '_> {
    /// Waits for the read and gives what it brought.
    pub fn landed(&self) -> Result<Landed<'_>, StorageError> {
        let larder = self.larder;
        let (buffer, turn) = larder.turn(self.number);
        let run = larder.run_of(self.number);
        assert!(larder.wait_for(buffer, turn + 1), "readers stay while anybody computes");
        let bytes = larder.staging.view(buffer).expect("a landed buffer is ready");
        let outcome = larder.cells[buffer].outcome.load(Ordering::Relaxed);
        decode(outcome, &run, larder.map().bytes(&run).0)?;
        Ok(Landed { run, bytes })
    }
}

impl Drop for Taken<'_, '_> {
    fn drop(&mut self) {
        let (buffer, turn) = self.larder.turn(self.number);
        if self.larder.wait_for(buffer, turn + 1) {
            self.larder.staging.release(buffer);
            let next = self.larder.turn(self.number + self.larder.depth() as u64).1;
            self.larder.cells[buffer].landing.store(next);
        }
    }
}
