//! What a worker does: gate, up and down of the neurons it claims.

use super::{CLUSTER, Chosen, ClusterError, Dimensions, Fired, Input, Observer};
use crate::cache::Cache;
use crate::image::{ActivationFn, Record};
use crate::kernel::math::silu;
use crate::kernel::{Accumulator, DownItem, Kernels, accumulator_len};
use crate::plan::THREADS_MAX;
use crate::storage::{Landed, Larder};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Active neurons a worker gathers before it adds their columns.
const BATCH: usize = CLUSTER as usize;

/// One thread's sums.
pub struct Worker<'s> {
    sums: Accumulator<'s>,
    /// The first thing that went wrong.
    pub fault: Option<ClusterError>,
}

impl<'s> Worker<'s> {
    /// A worker for each thread over `memory`, 16 bytes an output each.
    pub fn team(
        threads: usize,
        hidden: usize,
        memory: &'s mut [u8],
    ) -> heapless::Vec<Worker<'s>, { THREADS_MAX as usize }> {
        let length = accumulator_len(hidden);
        let mut parts = memory.chunks_exact_mut(length * 16);
        (0..threads)
            .map(|_| {
                let part = parts.next().expect("the plan holds sums for every thread");
                let (low, rest) = part.split_at_mut(length * 4);
                let (high, wide) = rest.split_at_mut(length * 4);
                let sums = Accumulator::new(
                    hidden,
                    bytemuck::cast_slice_mut(low),
                    bytemuck::cast_slice_mut(high),
                    bytemuck::cast_slice_mut(wide),
                );
                Worker { sums, fault: None }
            })
            .collect()
    }

    /// The sums so far.
    pub fn sums(&mut self) -> &mut [i64] {
        self.sums.sums()
    }
}

/// One wave's work, shared by the team.
pub struct Task<'t> {
    pub kernels: &'static Kernels,
    pub larder: &'t Larder<'t>,
    pub cache: &'t Cache<'t>,
    pub slots: &'t [u8],
    pub dims: Dimensions,
    pub observer: Option<Observer<'t>>,
    pub input: Input<'t>,
    /// Whether the neurons in slots are still to be computed.
    pub hits: bool,
    pub next_cluster: AtomicUsize,
}

type Batch<'b> = heapless::Vec<DownItem<'b>, BATCH>;

impl Task<'_> {
    /// Claims clusters in slots, then reads as they land, until none is left.
    pub fn work(&self, worker: &mut Worker<'_>) {
        if self.hits {
            self.work_slots(worker);
        }
        while let Some(landed) = self.larder.take() {
            let done = landed.map_err(ClusterError::from).and_then(|l| self.staged(worker, &l));
            worker.fault = worker.fault.or(done.err());
        }
    }

    fn work_slots(&self, worker: &mut Worker<'_>) {
        let clusters = self.dims.ff.div_ceil(CLUSTER) as usize;
        loop {
            let claim = self.next_cluster.fetch_add(1, Ordering::Relaxed);
            let Some(&chosen) = self.input.chosen.get(claim / clusters) else { return };
            let first = (claim % clusters) as u32 * CLUSTER;
            let done = self.cluster(worker, chosen, first..(first + CLUSTER).min(self.dims.ff));
            worker.fault = worker.fault.or(done.err());
        }
    }

    /// The neurons of `range` that lie in slots.
    fn cluster(
        &self,
        worker: &mut Worker<'_>,
        chosen: Chosen,
        range: core::ops::Range<u32>,
    ) -> Result<(), ClusterError> {
        let mut batch = Batch::new();
        let first = self.first_neuron(chosen.expert);
        let record = &self.dims.record;
        let (up, down) = (record.row_bytes as usize, 2 * record.row_bytes as usize);
        let end = down + record.column_bytes as usize;
        for neuron in range {
            let Some(slot) = self.cache.slot(first + neuron) else { continue };
            let bytes = &self.slots[slot * self.dims.slot_bytes..][..self.dims.slot_bytes];
            let rows = (&bytes[..up], &bytes[up..down], &bytes[down..end]);
            self.neuron(&mut batch, chosen, neuron, rows);
        }
        self.add(worker, chosen.expert, &batch)
    }

    /// The neurons of a read that have no slot: those that have one were computed from it.
    fn staged(&self, worker: &mut Worker<'_>, landed: &Landed<'_>) -> Result<(), ClusterError> {
        let run = &landed.run;
        let chosen = self.input.chosen.iter().find(|chosen| chosen.expert == run.expert);
        let chosen = *chosen.expect("only chosen experts are read");
        let (first, map) = (self.first_neuron(run.expert), self.larder.map());
        let record = &self.dims.record;
        let (gate, up) = (record.gate_tag() as usize, record.up() as usize);
        let (down, tail) = (record.down() as usize, record.tail_tag() as usize);
        let mut batch = Batch::new();
        for neuron in map.neurons(run) {
            if self.cache.slot(first + neuron).is_some() {
                continue;
            }
            if batch.is_full() {
                self.add(worker, run.expert, &batch)?;
                batch.clear();
            }
            let bytes = map.record_in(run, &landed.bytes, neuron);
            let rows = (&bytes[..gate], &bytes[up..down], &bytes[down..tail]);
            self.neuron(&mut batch, chosen, neuron, rows);
        }
        self.add(worker, run.expert, &batch)
    }

    /// The neuron's activation, where it is not zero; the expert's share is part of it. With dReLU
    /// the up row is computed where the gate is positive only.
    fn neuron<'b>(
        &self,
        batch: &mut Batch<'b>,
        chosen: Chosen,
        neuron: u32,
        (gate, up, column): (&[u8], &[u8], &'b [u8]),
    ) {
        let dot = |row| self.kernels.dot(self.dims.weight, row, self.input.x);
        let gate = dot(gate);
        let opened = match self.dims.activation {
            ActivationFn::DRelu if gate <= 0.0 => return,
            ActivationFn::DRelu => gate,
            ActivationFn::SiLu => silu(gate),
        };
        let up = dot(up);
        if self.dims.activation == ActivationFn::DRelu && up <= 0.0 {
            return;
        }
        let activation = opened * up * chosen.weight;
        let pushed = batch.push(DownItem { activation, column });
        assert!(pushed.is_ok(), "a batch holds a cluster");
        if let Some(observer) = self.observer {
            let Input { layer, .. } = self.input;
            observer(Fired { layer, expert: chosen.expert, neuron, gate });
        }
    }

    fn add(
        &self,
        worker: &mut Worker<'_>,
        expert: u16,
        batch: &Batch<'_>,
    ) -> Result<(), ClusterError> {
        let Dimensions { weight, .. } = self.dims;
        self.kernels
            .accumulate(weight, self.input.unit_exponent, batch, &mut worker.sums)
            .map_err(|_| ClusterError::Overflow { layer: self.input.layer, expert })
    }

    fn first_neuron(&self, expert: u16) -> u32 {
        (u32::from(self.input.layer) * self.dims.experts + u32::from(expert)) * self.dims.ff
    }
}

/// Copies a record without its tags.
pub fn to_slot(record: &Record, from: &[u8], slot: &mut [u8]) {
    let (row, column) = (record.row_bytes as usize, record.column_bytes as usize);
    let (up, down) = (record.up() as usize, record.down() as usize);
    slot[..row].copy_from_slice(&from[..row]);
    slot[row..2 * row].copy_from_slice(&from[up..up + row]);
    slot[2 * row..2 * row + column].copy_from_slice(&from[down..down + column]);
}
