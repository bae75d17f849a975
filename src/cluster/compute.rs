//! What a worker does: gate, up and down of the neurons it claims.

use super::records::{Records, Shelf};
use super::{CLUSTER, Chosen, ClusterError, Fired, Input, Observer};
use crate::image::{ActivationFn, Record};
use crate::kernel::{Accumulator, DownItem, Kernels, accumulator_len};
use crate::plan::THREADS_MAX;
use crate::storage::Landed;
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
    pub shelf: Shelf<'t>,
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
        while let Some(landed) = self.shelf.larder.take() {
            let done = landed.map_err(ClusterError::from).and_then(|l| self.staged(worker, &l));
            worker.fault = worker.fault.or(done.err());
        }
    }

    fn work_slots(&self, worker: &mut Worker<'_>) {
        let ff = self.shelf.dims.ff;
        let clusters = ff.div_ceil(CLUSTER) as usize;
        loop {
            let claim = self.next_cluster.fetch_add(1, Ordering::Relaxed);
            let Some(&chosen) = self.input.chosen.get(claim / clusters) else { return };
            let first = (claim % clusters) as u32 * CLUSTER;
            let done = self.cluster(worker, chosen, first..(first + CLUSTER).min(ff));
            worker.fault = worker.fault.or(done.err());
        }
    }

    /// The neurons of `range` that lie in slots.
    fn cluster(
        &self,
        worker: &mut Worker<'_>,
        chosen: Chosen,
        range: Range<u32>,
    ) -> Result<(), ClusterError> {
        let first = self.shelf.first_neuron(self.input.layer, chosen.expert());
        self.shelf.in_slots(first, range).try_for_each(|run| self.records(worker, chosen, run))
    }

    /// The neurons of a read that have no slot.
    fn staged(&self, worker: &mut Worker<'_>, landed: &Landed<'_>) -> Result<(), ClusterError> {
        let expert = landed.run.expert;
        let chosen = self.input.chosen.iter().find(|chosen| chosen.expert() == expert);
        let chosen = *chosen.expect("only chosen experts are read");
        self.shelf.landed(landed).try_for_each(|run| self.records(worker, chosen, run))
    }

    /// Gate, up and down of a run of records. The expert's share is part of the activation.
    fn records(
        &self,
        worker: &mut Worker<'_>,
        chosen: Chosen,
        run: Records<'_>,
    ) -> Result<(), ClusterError> {
        let dims = &self.shelf.dims;
        let column_bytes = dims.record.column_bytes as usize;
        let (mut gates, mut activations) = ([0.0; BATCH], [0.0; BATCH]);
        let (gates, activations) = (&mut gates[..run.count], &mut activations[..run.count]);
        match dims.activation {
            ActivationFn::DRelu => self.drelu(&run, gates, activations),
            ActivationFn::SiLu => self.silu(&run, gates, activations),
        }
        let mut batch = Batch::new();
        for (index, &activation) in activations.iter().enumerate().filter(|(_, a)| **a != 0.0) {
            let column = &run.down(index)[..column_bytes];
            let item = DownItem { activation: activation * chosen.weight, column };
            assert!(batch.push(item).is_ok(), "a batch holds a run");
            if let Some(observer) = self.observer {
                let (layer, expert) = (self.input.layer, chosen.expert());
                let neuron = run.neuron + index as u32;
                observer(Fired { layer, expert, neuron, gate: gates[index] });
            }
        }
        self.add(worker, chosen.expert(), &batch)
    }

    /// relu(gate) * relu(up): the up rows of open gates only. Written so that a NaN goes on, to
    /// where it is told.
    fn drelu(&self, run: &Records<'_>, gates: &mut [f32], activations: &mut [f32]) {
        let (dims, x) = (&self.shelf.dims, self.input.x);
        self.kernels.matvec(dims.weight, run.gates(), run.stride(), x, gates);
        let is_open = |gate: f32| gate > 0.0 || gate.is_nan();
        let open = || gates.iter().enumerate().filter(|(_, gate)| is_open(**gate));
        let up_row = |(index, _)| run.up(index);
        let rows: heapless::Vec<&[u8], BATCH> = open().map(up_row).collect();
        let mut ups = [0.0; BATCH];
        let ups = &mut ups[..rows.len()];
        // The down column follows the up row.
        let fetch_bytes = (dims.record.row_bytes + dims.record.column_bytes) as usize;
        self.kernels.rows(dims.weight, &rows, fetch_bytes, x, ups);
        for ((index, gate), &up) in open().zip(&*ups) {
            activations[index] = gate * if up <= 0.0 { 0.0 } else { up };
        }
    }

    /// silu(gate) * up.
    fn silu(&self, run: &Records<'_>, gates: &mut [f32], activations: &mut [f32]) {
        let mut ups = [0.0; BATCH];
        let ups = &mut ups[..run.count];
        let (weight, x) = (self.shelf.dims.weight, self.input.x);
        self.kernels.gate_up(weight, run.gates(), run.stride(), run.up_offset(), x, gates, ups);
        activations.copy_from_slice(gates);
        self.kernels.silu(activations, ups);
    }

    fn add(
        &self,
        worker: &mut Worker<'_>,
        expert: u16,
        batch: &Batch<'_>,
    ) -> Result<(), ClusterError> {
        self.kernels
            .accumulate(self.shelf.dims.weight, self.input.unit_exponent, batch, &mut worker.sums)
            .map_err(|_| ClusterError::Overflow { layer: self.input.layer, expert })
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
