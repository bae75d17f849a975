//! Where the records of an expert lie: runs of equally spaced ones, in slots or as they landed.
//!
//! Used by decode and prefill alike; a neuron is in exactly one run: in its slot if it has one.

use super::{CLUSTER, Dimensions};
use crate::cache::Cache;
use crate::storage::{Landed, Larder};
use core::ops::Range;

/// How equally spaced records lie.
#[derive(Clone, Copy)]
struct Spread {
    /// Bytes from one gate row to the next.
    stride: usize,
    /// Bytes from a gate row to its up row.
    up: usize,
    /// Bytes from a gate row to its down column.
    down: usize,
}

impl Spread {
    fn in_slots(dims: &Dimensions) -> Spread {
        let row = dims.record.row_bytes as usize;
        Spread { stride: dims.slot_bytes, up: row, down: 2 * row }
    }

    /// On flash, with the number of records that are equally spaced: those of one shared unit, or
    /// any number where a record takes whole units.
    fn on_flash(dims: &Dimensions) -> (Spread, u32) {
        let record = &dims.record;
        let shared = record.per_block > 1;
        let stride = if shared { record.raw_bytes() } else { record.unit_bytes } as usize;
        let reach = if shared { record.per_block as u32 } else { CLUSTER };
        (Spread { stride, up: record.up() as usize, down: record.down() as usize }, reach)
    }
}

/// A run of equally spaced records.
#[derive(Clone, Copy)]
pub struct Records<'b> {
    /// First neuron, within its expert.
    pub neuron: u32,
    /// Records.
    pub count: usize,
    /// From the first gate row on, with what follows the records in memory.
    bytes: &'b [u8],
    spread: Spread,
}

impl<'b> Records<'b> {
    /// Bytes from one row to the next, of gates and of ups.
    pub fn stride(&self) -> usize {
        self.spread.stride
    }

    /// Bytes from a gate row to its up row.
    pub fn up_offset(&self) -> usize {
        self.spread.up
    }

    /// The records of `range`, each from its gate row on. Behind the run, what follows it in memory
    /// as if it went on, as far as memory goes.
    pub fn list<const N: usize>(&self, range: Range<usize>) -> heapless::Vec<&'b [u8], N> {
        let known = self.bytes.len().div_ceil(self.stride());
        (range.start..range.end.min(known)).map(|i| &self.bytes[i * self.stride()..]).collect()
    }

    /// The gate rows.
    pub fn gates(&self) -> &'b [u8] {
        self.bytes
    }

    /// The up rows.
    pub fn ups(&self) -> &'b [u8] {
        &self.bytes[self.spread.up..]
    }

    /// From a record's up row on.
    pub fn up(&self, index: usize) -> &'b [u8] {
        &self.bytes[index * self.spread.stride + self.spread.up..]
    }

    /// From a record's down column on.
    pub fn down(&self, index: usize) -> &'b [u8] {
        &self.bytes[index * self.spread.stride + self.spread.down..]
    }

    /// `count` records from `first` on.
    pub fn part(&self, first: usize, count: usize) -> Records<'b> {
        assert!(first + count <= self.count);
        let (neuron, bytes) = (self.neuron + first as u32, &self.bytes[first * self.stride()..]);
        Records { neuron, count, bytes, spread: self.spread }
    }
}

/// The places a record may lie in.
#[derive(Clone, Copy)]
pub struct Shelf<'t> {
    pub cache: &'t Cache<'t>,
    pub slots: &'t [u8],
    pub larder: &'t Larder<'t>,
    pub dims: Dimensions,
}

impl<'t> Shelf<'t> {
    /// Number of an expert's first neuron in the whole model.
    pub fn first_neuron(&self, layer: u16, expert: u16) -> u32 {
        self.dims.first_neuron(layer, expert)
    }

    /// The neurons of `range`, of the expert whose first neuron is `first`, that lie in slots, by
    /// runs of neighbouring slots.
    pub fn in_slots(self, first: u32, mut range: Range<u32>) -> impl Iterator<Item = Records<'t>> {
        let spread = Spread::in_slots(&self.dims);
        let slot_bytes = self.dims.slot_bytes;
        core::iter::from_fn(move || {
            let slot = loop {
                if range.is_empty() {
                    return None;
                }
                match self.cache.slot(first + range.start) {
                    Some(slot) => break slot,
                    None => range.start += 1,
                }
            };
            let neuron = range.start;
            let follows = |i: &u32| self.cache.slot(first + neuron + i) == Some(slot + *i as usize);
            let count = (1..range.end - neuron).take_while(follows).count() + 1;
            range.start += count as u32;
            let bytes = &self.slots[slot * slot_bytes..];
            Some(Records { neuron, count, bytes, spread })
        })
    }

    /// The neurons of a read that have no slot: those that have one are computed from it.
    pub fn landed<'l>(&'l self, landed: &'l Landed<'_>) -> impl Iterator<Item = Records<'l>> {
        let (run, map) = (&landed.run, self.larder.map());
        let first = self.first_neuron(run.layer, run.expert);
        let (spread, reach) = Spread::on_flash(&self.dims);
        let missed = move |neuron: u32| self.cache.slot(first + neuron).is_none();
        let mut neurons = map.neurons(run);
        core::iter::from_fn(move || {
            let neuron = neurons.clone().find(|&neuron| missed(neuron))?;
            let unit_end = (neuron / reach + 1) * reach;
            let most = (unit_end.min(neurons.end) - neuron).min(CLUSTER);
            let count = (1..most).take_while(|i| missed(neuron + i)).count() + 1;
            neurons.start = neuron + count as u32;
            let bytes = map.records_from(run, &landed.bytes, neuron);
            Some(Records { neuron, count, bytes, spread })
        })
    }
}
