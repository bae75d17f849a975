//! What a worker does: gate, up and down of the neurons it claims.

use super::records::{Records, Shelf};
use super::{CLUSTER, Chosen, ClusterError, Fired, Input, Observer};
use crate::image::{ActivationFn, Record};
use crate::kernel::{Accumulator, DownItem, Kernels, Soon, accumulator_len};
use crate::plan::THREADS_MAX;
use crate::storage::{Landed, StorageError};
use crate::sys::Claims;

/// Active neurons a worker gathers before it adds their columns.
const BATCH: usize = CLUSTER as usize;
/// Records of a pass where every neuron counts: with as many that come in meanwhile, about a
/// first-level cache.
const FEW: usize = 8;

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
    /// The clusters of the chosen experts, where neurons in slots are still to be computed.
    pub clusters: Option<Claims>,
    /// Where the model streams, the first read of the cycle behind this layer.
    pub cycle_end: Option<u64>,
}

/// Columns of one expert that wait until there are enough for a pass.
struct Pending<'b> {
    expert: u16,
    items: heapless::Vec<DownItem<'b>, BATCH>,
}

impl Pending<'_> {
    fn of(expert: u16) -> Self {
        Pending { expert, items: heapless::Vec::new() }
    }
}

impl<'t> Task<'t> {
    /// Claims clusters in slots, then reads as they land, until none is left.
    pub fn work(&self, member: usize, worker: &mut Worker<'_>) {
        if let Some(clusters) = &self.clusters {
            let done = self.work_slots(clusters, member, worker);
            worker.fault = worker.fault.or(done.err());
        }
        let larder = self.shelf.larder;
        if let Some(end) = self.cycle_end {
            while let Some(taken) = larder.take_below(end) {
                self.staged(worker, taken.landed());
            }
        } else {
            while let Some(landed) = larder.take() {
                self.staged(worker, landed);
            }
        }
    }

    /// The neurons of a read, or why there are none.
    fn staged(&self, worker: &mut Worker<'_>, landed: Result<Landed<'_>, StorageError>) {
        let done = landed.map_err(ClusterError::from).and_then(|l| self.missed(worker, &l));
        worker.fault = worker.fault.or(done.err());
    }

    fn work_slots(
        &self,
        claims: &Claims,
        member: usize,
        worker: &mut Worker<'_>,
    ) -> Result<(), ClusterError> {
        let ff = self.shelf.dims.ff;
        let clusters = ff.div_ceil(CLUSTER) as usize;
        let mut pending = Pending::of(0);
        while let Some(claim) = claims.take(member) {
            let chosen = self.input.chosen[claim / clusters];
            if chosen.expert() != pending.expert {
                self.add(worker, &mut pending, Soon::NOTHING)?;
                pending.expert = chosen.expert();
            }
            let first = (claim % clusters) as u32 * CLUSTER;
            let range = first..(first + CLUSTER).min(ff);
            let first = self.shelf.first_neuron(self.input.layer, chosen.expert());
            for run in self.shelf.in_slots(first, range) {
                self.records(worker, &mut pending, chosen, run)?;
            }
        }
        self.add(worker, &mut pending, Soon::NOTHING)
    }

    /// The neurons of a read that have no slot.
    fn missed(&self, worker: &mut Worker<'_>, landed: &Landed<'_>) -> Result<(), ClusterError> {
        let expert = landed.run.expert;
        let chosen = self.input.chosen.iter().find(|chosen| chosen.expert() == expert);
        let chosen = *chosen.expect("only chosen experts are read");
        let mut pending = Pending::of(expert);
        for run in self.shelf.landed(landed) {
            self.records(worker, &mut pending, chosen, run)?;
        }
        self.add(worker, &mut pending, Soon::NOTHING)
    }

    /// Gate, up and down of a run of records.
    fn records<'b>(
        &self,
        worker: &mut Worker<'_>,
        pending: &mut Pending<'b>,
        chosen: Chosen,
        run: Records<'b>,
    ) -> Result<(), ClusterError> {
        match self.shelf.dims.activation {
            ActivationFn::DRelu | ActivationFn::Relu => self.sparse(worker, pending, chosen, run),
            ActivationFn::SiLu | ActivationFn::Gelu => self.dense(worker, pending, chosen, run),
        }
    }

    /// relu(gate) times up or relu(up): the up rows of open gates only. Written so that a NaN goes
    /// on, to where it is told.
    fn sparse<'b>(
        &self,
        worker: &mut Worker<'_>,
        pending: &mut Pending<'b>,
        chosen: Chosen,
        run: Records<'b>,
    ) -> Result<(), ClusterError> {
        let (dims, x) = (&self.shelf.dims, self.input.x);
        let (mut gates, mut ups) = ([0.0; BATCH], [0.0; BATCH]);
        let gates = &mut gates[..run.count];
        self.kernels.matvec(dims.weight, run.gates(), run.stride(), x, gates);
        let bias = self.input.bias.of(run.neuron, run.count);
        self.kernels.add(&mut gates[..bias.gate.len()], bias.gate);
        let is_open = |gate: f32| gate > 0.0 || gate.is_nan();
        let open = || gates.iter().enumerate().filter(|(_, gate)| is_open(**gate));
        let rows: heapless::Vec<&[u8], BATCH> = open().map(|(index, _)| run.up(index)).collect();
        let ups = &mut ups[..rows.len()];
        self.kernels.rows(dims.weight, &rows, x, ups);
        let of_open = open().filter_map(|(index, _)| bias.up.get(index));
        ups.iter_mut().zip(of_open).for_each(|(up, bias)| *up += bias);
        let is_cut = dims.activation == ActivationFn::DRelu;
        for ((index, gate), &up) in open().zip(&*ups) {
            let activation = gate * if is_cut && up <= 0.0 { 0.0 } else { up };
            if pending.items.is_full() {
                self.add(worker, pending, Soon::NOTHING)?;
            }
            self.push(pending, chosen, &run, (index, *gate, activation));
        }
        Ok(())
    }

    /// silu(gate) or gelu(gate) times up, a few records at a time, so that they are in the
    /// first-level cache for both passes, and the next few come in meanwhile.
    fn dense<'b>(
        &self,
        worker: &mut Worker<'_>,
        pending: &mut Pending<'b>,
        chosen: Chosen,
        run: Records<'b>,
    ) -> Result<(), ClusterError> {
        let (weight, x) = (self.shelf.dims.weight, self.input.x);
        for first in (0..run.count).step_by(FEW) {
            let part = run.part(first, FEW.min(run.count - first));
            let records = part.list::<FEW>(0..part.count);
            let next = part.list::<FEW>(part.count..part.count + FEW);
            let (soon, later) = Soon::in_two(&next, part.stride());
            let (mut gates, mut ups) = ([0.0; FEW], [0.0; FEW]);
            let (gates, ups) = (&mut gates[..part.count], &mut ups[..part.count]);
            self.kernels.gate_up(weight, &records, part.up_offset(), soon, x, gates, ups);
            let bias = self.input.bias.of(part.neuron, part.count);
            self.kernels.add(&mut gates[..bias.gate.len()], bias.gate);
            self.kernels.add(&mut ups[..bias.up.len()], bias.up);
            let mut activations = [0.0; FEW];
            let activations = &mut activations[..part.count];
            activations.copy_from_slice(gates);
            self.kernels.gate(self.shelf.dims.activation, activations, ups);
            for (index, (gate, activation)) in gates.iter().zip(&*activations).enumerate() {
                self.push(pending, chosen, &part, (index, *gate, *activation));
            }
            self.add(worker, pending, later)?;
        }
        Ok(())
    }

    /// A neuron that fired waits for its pass. The expert's share is part of its activation.
    fn push<'b>(
        &self,
        pending: &mut Pending<'b>,
        chosen: Chosen,
        run: &Records<'b>,
        (index, gate, activation): (usize, f32, f32),
    ) {
        if activation == 0.0 {
            return;
        }
        let column = &run.down(index)[..self.shelf.dims.record.column_bytes as usize];
        let item = DownItem { activation: activation * chosen.weight, column };
        assert!(pending.items.push(item).is_ok(), "there is room for a run");
        if let Some(observer) = self.observer {
            let (layer, expert) = (self.input.layer, chosen.expert());
            observer(Fired { layer, expert, neuron: run.neuron + index as u32, gate });
        }
    }

    /// Adds what is pending.
    fn add(
        &self,
        worker: &mut Worker<'_>,
        pending: &mut Pending<'_>,
        soon: Soon<'_>,
    ) -> Result<(), ClusterError> {
        let (down, unit) = (self.shelf.dims.down, self.input.unit_exponent);
        let (layer, expert) = (self.input.layer, pending.expert);
        let done = self.kernels.accumulate(down, unit, &pending.items, soon, &mut worker.sums);
        pending.items.clear();
        done.map_err(|_| ClusterError::Overflow { layer, expert })
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
