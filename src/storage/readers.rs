//! The reader pool: a fixed set of threads, a bounded ring of requests, landings in any order.
//!
//! Request `n` uses ring cell and staging buffer `n % depth`. Readers claim requests in order; the
//! `k`-th read to land is written into the landing word of cell `k % depth`, where the worker that
//! drew ticket `k` waits for it.

use super::cycle::Cycle;
use super::error::StorageError;
use super::records::RecordMap;
use crate::arena::{Staging, View};
use crate::image::tag::Crc32c;
use crate::sys::{File, ReadError, WaitWord};
use bytemuck::Zeroable;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Tries of a read before it is given up.
const TRIES: u32 = 3;

/// A run of flash units of one (layer, expert): what one read covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Layer.
    pub layer: u16,
    /// Expert.
    pub expert: u16,
    /// First flash unit, from the expert's start.
    pub first_unit: u32,
    /// Units.
    pub units: u32,
}

/// One cell of the request ring.
#[derive(Zeroable)]
#[repr(C, align(64))]
pub struct RequestCell {
    who: AtomicU32,
    first_unit: AtomicU32,
    units: AtomicU32,
    /// Buffer of the landing drawn by this cell's ticket, plus one; 0 while nothing landed.
    pub(super) landing: WaitWord,
    /// How the read of this cell ended: see `encode`.
    pub(super) outcome: AtomicU64,
}

const _: () = assert!(size_of::<RequestCell>() == 64);

impl RequestCell {
    fn set(&self, run: &Run) {
        let who = u32::from(run.layer) << 16 | u32::from(run.expert);
        self.who.store(who, Ordering::Relaxed);
        self.first_unit.store(run.first_unit, Ordering::Relaxed);
        self.units.store(run.units, Ordering::Relaxed);
    }

    fn run(&self) -> Run {
        let who = self.who.load(Ordering::Relaxed);
        Run {
            layer: (who >> 16) as u16,
            expert: who as u16,
            first_unit: self.first_unit.load(Ordering::Relaxed),
            units: self.units.load(Ordering::Relaxed),
        }
    }
}

/// The larder: image file, staging and request ring, shared by main thread, workers and readers.
pub struct Larder<'a> {
    file: File,
    map: RecordMap,
    crc: Crc32c,
    pub(super) cells: &'a [RequestCell],
    pub(super) staging: Staging<'a>,
    submitted: WaitWord,
    claimed: AtomicU32,
    landed: AtomicU32,
    taken: AtomicU32,
    released: AtomicU32,
    stop: AtomicBool,
    pub(super) cycle: Cycle,
}

/// A read that landed, seen by the worker that took it.
pub struct Landed<'a> {
    /// What was asked for.
    pub run: Run,
    /// Its bytes, verified.
    pub bytes: View<'a>,
}

impl<'a> Larder<'a> {
    /// A larder over `file` with one request in flight a cell; their count is a power of two.
    pub fn new(
        file: File,
        map: RecordMap,
        crc: Crc32c,
        cells: &'a [RequestCell],
        staging: Staging<'a>,
    ) -> Larder<'a> {
        assert!(cells.len().is_power_of_two(), "ring numbers wrap at a power of two");
        Larder {
            file,
            map,
            crc,
            cells,
            staging,
            submitted: WaitWord::new(0),
            claimed: AtomicU32::new(0),
            landed: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            released: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            cycle: Cycle::new(),
        }
    }

    /// Reads in flight at most.
    pub fn depth(&self) -> usize {
        self.cells.len()
    }

    /// Largest read in flash units.
    pub fn units_max(&self) -> u32 {
        self.map.record.units_in(self.staging.buffer_bytes() as u64) as u32
    }

    /// Where records lie.
    pub fn map(&self) -> &RecordMap {
        &self.map
    }

    /// The image file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Hands a wave of reads to the readers. Main thread only, after the last wave was released.
    pub fn submit(&self, wave: &[Run]) {
        if wave.is_empty() {
            return; // nobody needs waking
        }
        let first = self.submitted.load();
        assert!(first == self.released.load(Ordering::Relaxed), "one wave at a time");
        assert!(wave.len() <= self.depth(), "a wave fits the ring");
        for (index, run) in wave.iter().enumerate() {
            assert!(run.units <= self.units_max(), "a read fits its buffer");
            self.cell(first.wrapping_add(index as u32)).set(run);
        }
        self.submitted.add(wave.len() as u32);
    }

    /// The next read of the wave to land, waiting for it; `None` once all were taken.
    pub fn take(&self) -> Option<Result<Landed<'_>, StorageError>> {
        let end = self.submitted.load();
        let next = |taken: u32| (taken != end).then_some(taken.wrapping_add(1));
        let ticket = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        let buffer = self.cell(ticket).landing.wait_while(0) as usize - 1;
        Some(self.landed(buffer))
    }

    /// Waits until every read of the wave that nobody took has landed, and takes it.
    pub fn wait(&self) {
        while self.take().is_some() {}
    }

    /// The reads of a wave that has been taken whole, in the order they were submitted.
    pub fn wave(&self) -> impl Iterator<Item = Result<Landed<'_>, StorageError>> {
        let (first, end) = (self.released.load(Ordering::Relaxed), self.submitted.load());
        assert!(self.taken.load(Ordering::Relaxed) == end, "the wave is taken");
        (0..end.wrapping_sub(first))
            .map(move |index| self.landed(self.index(first.wrapping_add(index))))
    }

    /// Gives the buffers of a wave back. Main thread only, when nobody looks at them.
    pub fn release(&self) {
        let (first, end) = (self.released.load(Ordering::Relaxed), self.submitted.load());
        assert!(self.taken.load(Ordering::Relaxed) == end, "the wave is taken");
        for index in 0..end.wrapping_sub(first) {
            let number = first.wrapping_add(index);
            self.cell(number).landing.store(0);
            self.staging.release(self.index(number));
        }
        self.released.store(end, Ordering::Relaxed);
    }

    /// Body of a reader: serves requests until [`Larder::stop`].
    pub fn serve(&self) {
        self.serve_waves();
        self.serve_cycle();
    }

    fn serve_waves(&self) {
        while let Some(number) = self.claim() {
            let buffer = self.index(number);
            let cell = &self.cells[buffer];
            let run = cell.run();
            let mut filling = self.staging.fill(buffer).expect("a submitted buffer is free");
            let outcome = self.read_run(&run, &mut filling);
            cell.outcome.store(encode(outcome), Ordering::Relaxed);
            filling.ready();
            let order = self.landed.fetch_add(1, Ordering::Relaxed);
            self.cell(order).landing.store(buffer as u32 + 1);
        }
    }

    /// Lets the readers leave once they have nothing in hand.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.submitted.add(1);
        self.leave_cycle();
    }

    /// Whether the readers were told to leave.
    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Lets the readers leave the waves for the cycle.
    pub(super) fn wake_readers(&self) {
        assert!(self.submitted.load() == self.released.load(Ordering::Relaxed), "no wave is out");
        self.submitted.add(1);
    }

    /// Reads a token's embedding row through `blocks`, on this thread.
    pub fn embedding<'b>(
        &self,
        token: u32,
        blocks: &'b mut [u8],
    ) -> Result<&'b [u8], StorageError> {
        let (offset, length, at) = self.map.embedding_blocks(token);
        let mut result = Err(StorageError::Embedding { token });
        for _ in 0..TRIES {
            result = self
                .file
                .read_at(offset, &mut blocks[..length])
                .map_err(|error| StorageError::Read { offset, error })
                .and_then(|()| {
                    let row = self.map.embedding_row(token, blocks, at, self.crc);
                    row.map(|row| row.len()).ok_or(StorageError::Embedding { token })
                });
            if result.is_ok() {
                break;
            }
        }
        let row_bytes = result?;
        Ok(&blocks[at..at + row_bytes])
    }

    fn claim(&self) -> Option<u32> {
        loop {
            let end = self.submitted.load();
            if self.stopped() || self.cycle.runs() {
                return None;
            }
            let next = |claimed: u32| (claimed != end).then_some(claimed.wrapping_add(1));
            match self.claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
                Ok(number) => return Some(number),
                Err(_) => self.submitted.wait_while(end),
            };
        }
    }

    pub(super) fn read_run(&self, run: &Run, into: &mut [u8]) -> Result<(), StorageError> {
        let (offset, length) = self.map.bytes(run);
        let bytes = &mut into[..length];
        let mut result = Ok(());
        for _ in 0..TRIES {
            result = self
                .file
                .read_at(offset, bytes)
                .map_err(|error| StorageError::Read { offset, error })
                .and_then(|()| self.map.verify(run, bytes, self.crc));
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn landed(&self, buffer: usize) -> Result<Landed<'_>, StorageError> {
        let cell = &self.cells[buffer];
        let run = cell.run();
        let bytes = self.staging.view(buffer).expect("a landed buffer is ready");
        decode(cell.outcome.load(Ordering::Relaxed), &run, self.map.bytes(&run).0)?;
        Ok(Landed { run, bytes })
    }

    fn index(&self, number: u32) -> usize {
        number as usize & (self.cells.len() - 1)
    }

    fn cell(&self, number: u32) -> &RequestCell {
        &self.cells[self.index(number)]
    }
}

const KIND_ERRNO: u64 = 1;
const KIND_SHORT: u64 = 2;
const KIND_TAG: u64 = 3;

/// An outcome in one word, kind above 32 bits of detail, so that a cell needs no lock.
pub(super) fn encode(outcome: Result<(), StorageError>) -> u64 {
    match outcome {
        Ok(()) => 0,
        Err(StorageError::Read { error: ReadError::Errno(errno), .. }) => {
            KIND_ERRNO << 32 | u64::from(errno as u32)
        }
        Err(StorageError::Read { error: ReadError::Short(got), .. }) => {
            KIND_SHORT << 32 | got as u64
        }
        Err(StorageError::Record { neuron, .. }) => KIND_TAG << 32 | u64::from(neuron),
        Err(StorageError::Embedding { .. }) => unreachable!("embedding rows use no cell"),
    }
}

pub(super) fn decode(word: u64, run: &Run, offset: u64) -> Result<(), StorageError> {
    let detail = word as u32;
    let read = |error| Err(StorageError::Read { offset, error });
    match word >> 32 {
        0 => Ok(()),
        KIND_ERRNO => read(ReadError::Errno(detail as i32)),
        KIND_SHORT => read(ReadError::Short(detail as usize)),
        _ => {
            let Run { layer, expert, .. } = *run;
            Err(StorageError::Record { layer, expert, neuron: detail })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_survives_its_word() {
        let run = Run { layer: 3, expert: 5, first_unit: 9, units: 2 };
        let outcomes = [
            Ok(()),
            Err(StorageError::Read { offset: 77, error: ReadError::Errno(5) }),
            Err(StorageError::Read { offset: 77, error: ReadError::Short(4096) }),
            Err(StorageError::Record { layer: 3, expert: 5, neuron: 19 }),
        ];
        for outcome in outcomes {
            assert_eq!(decode(encode(outcome), &run, 77), outcome);
        }
    }
}
