//! What a worker does: gate, up and down of the neurons it claims.

use super::{CLUSTER, Chosen, ClusterError, Dimensions, Fired, Input, Observer};
use crate::cache::Cache;
use crate::image::{ActivationFn, Record};
use crate::kernel::{Accumulator, DownItem, Kernels, accumulator_len};
use crate::plan::THREADS_MAX;
use crate::storage::{Landed, Larder};
use core::ops::Range;
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

/// A run of equally spaced records, at most a cluster of them.
struct Records<'b> {
    /// First neuron, within its expert.
    neuron: u32,
    count: usize,
    /// From the first gate row on.
    bytes: &'b [u8],
    spread: Spread,
}

impl Records<'_> {
    /// First byte of a record.
    fn record(&self, index: usize) -> usize {
        index * self.spread.stride
    }
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

    /// The neurons of `range` that lie in slots, by runs of neighbouring slots.
    fn cluster(
        &self,
        worker: &mut Worker<'_>,
        chosen: Chosen,
        range: Range<u32>,
    ) -> Result<(), ClusterError> {
        let first = self.first_neuron(chosen.expert);
        let spread = Spread::in_slots(&self.dims);
        let mut neuron = range.start;
        while neuron < range.end {
            let Some(slot) = self.cache.slot(first + neuron) else {
                neuron += 1;
                continue;
            };
            let follows = |i: &u32| self.cache.slot(first + neuron + i) == Some(slot + *i as usize);
            let count = (1..range.end - neuron).take_while(follows).count() + 1;
            let bytes = &self.slots[slot * self.dims.slot_bytes..][..count * self.dims.slot_bytes];
            let run = Records { neuron, count, bytes, spread };
            self.records(worker, chosen, run)?;
            neuron += count as u32;
        }
        Ok(())
    }

    /// The neurons of a read that have no slot: those that have one were computed from it.
    fn staged(&self, worker: &mut Worker<'_>, landed: &Landed<'_>) -> Result<(), ClusterError> {
        let run = &landed.run;
        let chosen = self.input.chosen.iter().find(|chosen| chosen.expert == run.expert);
        let chosen = *chosen.expect("only chosen experts are read");
        let (first, map) = (self.first_neuron(run.expert), self.larder.map());
        let neurons = map.neurons(run);
        let (spread, reach) = Spread::on_flash(&self.dims);
        let missed = |neuron: u32| self.cache.slot(first + neuron).is_none();
        let mut neuron = neurons.start;
        while neuron < neurons.end {
            if !missed(neuron) {
                neuron += 1;
                continue;
            }
            let unit_end = (neuron / reach + 1) * reach;
            let most = (unit_end.min(neurons.end) - neuron).min(CLUSTER);
            let count = (1..most).take_while(|i| missed(neuron + i)).count() + 1;
            let bytes = map.records_from(run, &landed.bytes, neuron);
            self.records(worker, chosen, Records { neuron, count, bytes, spread })?;
            neuron += count as u32;
        }
        Ok(())
    }

    /// Gate, up and down of a run of records. The expert's share is part of the activation.
    fn records(
        &self,
        worker: &mut Worker<'_>,
        chosen: Chosen,
        run: Records<'_>,
    ) -> Result<(), ClusterError> {
        let column_bytes = self.dims.record.column_bytes as usize;
        let mut gates = [0.0; BATCH];
        let gates = &mut gates[..run.count];
        self.kernels.matvec(self.dims.weight, run.bytes, run.spread.stride, self.input.x, gates);
        let mut activations = [0.0; BATCH];
        let activations = &mut activations[..run.count];
        match self.dims.activation {
            ActivationFn::DRelu => self.drelu(&run, gates, activations),
            ActivationFn::SiLu => self.silu(&run, gates, activations),
        }
        let mut batch = Batch::new();
        for (index, &activation) in activations.iter().enumerate().filter(|(_, a)| **a != 0.0) {
            let column = run.record(index) + run.spread.down;
            let column = &run.bytes[column..column + column_bytes];
            let item = DownItem { activation: activation * chosen.weight, column };
            assert!(batch.push(item).is_ok(), "a batch holds a run");
            if let Some(observer) = self.observer {
                let (layer, expert) = (self.input.layer, chosen.expert);
                let neuron = run.neuron + index as u32;
                observer(Fired { layer, expert, neuron, gate: gates[index] });
            }
        }
        self.add(worker, chosen.expert, &batch)
    }

    /// relu(gate) * relu(up): the up rows of open gates only. Written so that a NaN goes on, to
    /// where it is told.
    fn drelu(&self, run: &Records<'_>, gates: &[f32], activations: &mut [f32]) {
        let is_open = |gate: f32| gate > 0.0 || gate.is_nan();
        let open = || gates.iter().enumerate().filter(|(_, gate)| is_open(**gate));
        let up_row = |(index, _)| &run.bytes[run.record(index) + run.spread.up..];
        let rows: heapless::Vec<&[u8], BATCH> = open().map(up_row).collect();
        let mut ups = [0.0; BATCH];
        let ups = &mut ups[..rows.len()];
        self.kernels.rows(self.dims.weight, &rows, self.input.x, ups);
        for ((index, gate), &up) in open().zip(&*ups) {
            activations[index] = gate * if up <= 0.0 { 0.0 } else { up };
        }
    }

    /// silu(gate) * up.
    fn silu(&self, run: &Records<'_>, gates: &[f32], activations: &mut [f32]) {
        let mut ups = [0.0; BATCH];
        let ups = &mut ups[..run.count];
        let rows = &run.bytes[run.spread.up..];
        self.kernels.matvec(self.dims.weight, rows, run.spread.stride, self.input.x, ups);
        activations.copy_from_slice(gates);
        self.kernels.silu(activations, ups);
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
