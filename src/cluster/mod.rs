//! The workshop: a layer's feed-forward network, cluster by cluster, hits while misses fly.
//!
//! Called by model once a layer. The main thread looks the candidates up, hands the misses to the
//! readers in waves and lets the team compute: first the clusters whose neurons lie in slots, then
//! each read as it lands, straight from staging. Which of the missed neurons get a slot is decided
//! afterwards. A dense model that is larger than its memory has no misses to decide on: the first
//! neurons of each layer stay in slots, the others stream in order (`storage::cycle`). Invariants:
//! a neuron is computed exactly once; sums are integers, so the order of clusters, threads and
//! reads can't change a bit of the output.

mod compute;
mod error;
mod prefill;
mod records;
mod wave;

pub use error::ClusterError;
pub use prefill::{BatchInput, BatchMemory};

use crate::cache::Cache;
use crate::image::{ActivationFn, Record, WeightType};
use crate::kernel::{Activation, Kernels, accumulator};
use crate::metrics::FetchCounters;
use crate::plan::CHOICE_BYTES;
use crate::predictor::Predictor;
use crate::storage::Larder;
use crate::sys::{Claims, Lead};
use bytemuck::{Pod, Zeroable};
use compute::{Task, Worker};
use records::Shelf;
use wave::WaveCursor;

/// Neurons a worker claims at a time.
const CLUSTER: u32 = 64;

/// An expert chosen for a token.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Chosen {
    expert: u32,
    /// Its share of the output.
    pub weight: f32,
}

const _: () = assert!(size_of::<Chosen>() as u64 == CHOICE_BYTES);

impl Chosen {
    /// Expert of the layer and its share of the output.
    pub fn new(expert: u16, weight: f32) -> Chosen {
        Chosen { expert: u32::from(expert), weight }
    }

    /// Expert of the layer.
    pub fn expert(&self) -> u16 {
        self.expert as u16
    }
}

/// A neuron that fired.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fired {
    /// Layer.
    pub layer: u16,
    /// Expert.
    pub expert: u16,
    /// Neuron, in image order.
    pub neuron: u32,
    /// Value of its gate.
    pub gate: f32,
}

/// Is told of every neuron that fires, from any thread.
pub type Observer<'a> = &'a (dyn Fn(Fired) + Sync);

/// Sizes of a layer's network.
#[derive(Clone, Copy, Debug)]
pub struct Dimensions {
    /// Width of input and output.
    pub hidden: usize,
    /// Experts a layer.
    pub experts: u32,
    /// Neurons an expert.
    pub ff: u32,
    /// Gate function.
    pub activation: ActivationFn,
    /// How records are stored.
    pub weight: WeightType,
    /// Type of down columns.
    pub down: WeightType,
    /// Layout of a record.
    pub record: Record,
    /// Bytes of a slot.
    pub slot_bytes: usize,
}

impl Dimensions {
    /// Number of an expert's first neuron in the whole model.
    fn first_neuron(&self, layer: u16, expert: u16) -> u32 {
        (u32::from(layer) * self.experts + u32::from(expert)) * self.ff
    }
}

/// How a dense model that is larger than its memory runs: each layer's first neurons are in slots
/// for good, the others stream.
#[derive(Clone, Copy, Debug)]
pub struct Streaming {
    /// Layers of the model.
    pub layers: u16,
    /// Neurons of each that lie in slots.
    pub held: u32,
}

/// Cache, slots and larder, worked by the team.
pub struct Workshop<'a> {
    kernels: &'static Kernels,
    larder: &'a Larder<'a>,
    cache: Cache<'a>,
    slots: &'a mut [u8],
    predictor: Predictor,
    dims: Dimensions,
    streaming: Option<Streaming>,
    /// Told of every neuron that fires; for tests and profiles.
    pub observer: Option<Observer<'a>>,
    /// What was looked up and read.
    pub counters: FetchCounters,
}

/// Biases of a layer's gates and ups: they join before the activation.
#[derive(Clone, Copy, Debug)]
pub struct GateUpBias<'x> {
    /// f32[ff] in image order, or empty.
    pub gate: &'x [f32],
    /// f32[ff] in image order, or empty.
    pub up: &'x [f32],
}

impl<'x> GateUpBias<'x> {
    /// Those of neurons `first..first + count`; empty where there are none.
    fn of(self, first: u32, count: usize) -> GateUpBias<'x> {
        let part = |bias: &'x [f32]| {
            if bias.is_empty() { bias } else { &bias[first as usize..][..count] }
        };
        GateUpBias { gate: part(self.gate), up: part(self.up) }
    }
}

/// The input of a layer's network.
#[derive(Clone, Copy)]
pub struct Input<'x> {
    /// Layer.
    pub layer: u16,
    /// Experts that run, with their shares.
    pub chosen: &'x [Chosen],
    /// Normalised residual stream.
    pub x: Activation<'x>,
    /// Of a network without experts.
    pub bias: GateUpBias<'x>,
    /// The layer's down unit is 2 to this.
    pub unit_exponent: i32,
}

impl<'a> Workshop<'a> {
    /// A workshop with an empty cache.
    pub fn new(
        kernels: &'static Kernels,
        larder: &'a Larder<'a>,
        cache: Cache<'a>,
        slots: &'a mut [u8],
        dims: Dimensions,
        streaming: Option<Streaming>,
    ) -> Workshop<'a> {
        Workshop {
            kernels,
            larder,
            cache,
            slots,
            predictor: Predictor::None,
            dims,
            streaming,
            observer: None,
            counters: FetchCounters::default(),
        }
    }

    /// Adds the network's output to `out`, f32[hidden]. `sums` is every thread's accumulator
    /// memory: 16 bytes an output each.
    pub fn run(
        &mut self,
        lead: &mut Lead<'_>,
        input: Input<'_>,
        sums: &mut [u8],
        out: &mut [f32],
    ) -> Result<(), ClusterError> {
        if let Some(streaming) = self.streaming {
            return self.run_streamed(streaming, lead, input, sums, out);
        }
        for chosen in input.chosen {
            let first = self.dims.first_neuron(input.layer, chosen.expert());
            self.cache.pin(first..first + self.dims.ff);
        }
        let result = self.run_pinned(lead, input, sums, out);
        self.cache.unpin();
        result
    }

    fn run_pinned(
        &mut self,
        lead: &mut Lead<'_>,
        input: Input<'_>,
        sums: &mut [u8],
        out: &mut [f32],
    ) -> Result<(), ClusterError> {
        let mut workers = Worker::team(lead.threads(), self.dims.hidden, sums);
        let (hits, misses) = self.touch_hits(input);
        let mut hits = hits > 0;
        let mut cursor =
            if misses > 0 { WaveCursor::new() } else { WaveCursor::at_end(input.chosen) };
        loop {
            let Input { layer, chosen, .. } = input;
            let (cache, larder, dims) = (&self.cache, self.larder, self.dims);
            let wave = cursor.next(cache, larder, &dims, layer, chosen, self.predictor);
            larder.submit(&wave);
            self.count_wave(&wave);
            let task = Task {
                kernels: self.kernels,
                shelf: self.shelf(),
                observer: self.observer,
                input,
                clusters: hits.then(|| {
                    let clusters = dims.ff.div_ceil(CLUSTER) as usize;
                    Claims::new(clusters * chosen.len(), lead.threads())
                }),
                cycle_end: None,
            };
            lead.each(&mut workers, &|member, worker| task.work(member, worker));
            let fault = workers.iter().find_map(|worker| worker.fault);
            self.admit_wave(fault.is_none());
            if let Some(fault) = fault {
                return Err(fault);
            }
            hits = false;
            if cursor.is_done(input.chosen) {
                break;
            }
        }
        finish(&mut workers, input.unit_exponent, out);
        Ok(())
    }

    /// The neurons in slots, then the layer's reads of the cycle.
    fn run_streamed(
        &mut self,
        streaming: Streaming,
        lead: &mut Lead<'_>,
        input: Input<'_>,
        sums: &mut [u8],
        out: &mut [f32],
    ) -> Result<(), ClusterError> {
        let end = self.layer_end(streaming, input.layer);
        let clusters = streaming.held.div_ceil(CLUSTER) as usize;
        let mut workers = Worker::team(lead.threads(), self.dims.hidden, sums);
        let task = Task {
            kernels: self.kernels,
            shelf: self.shelf(),
            observer: self.observer,
            input,
            clusters: (clusters > 0).then(|| Claims::new(clusters, lead.threads())),
            cycle_end: Some(end),
        };
        lead.each(&mut workers, &|member, worker| task.work(member, worker));
        if let Some(fault) = workers.iter().find_map(|worker| worker.fault) {
            return Err(fault);
        }
        finish(&mut workers, input.unit_exponent, out);
        Ok(())
    }

    /// The first read behind those of `layer`, which are counted. The first layer ever starts the
    /// cycle.
    fn layer_end(&mut self, streaming: Streaming, layer: u16) -> u64 {
        let larder = self.larder;
        if !larder.cycles() {
            larder.start_cycle(streaming.layers, streaming.held);
        }
        let first = larder.next_read(layer);
        let end = first + larder.reads_per_layer();
        self.counters.hits += u64::from(streaming.held);
        self.counters.misses += u64::from(self.dims.ff - streaming.held);
        self.counters.reads += end - first;
        self.counters.bytes += (first..end).map(|number| larder.cycle_bytes(number)).sum::<u64>();
        end
    }

    fn shelf(&self) -> Shelf<'_> {
        let Workshop { larder, cache, slots, dims, .. } = self;
        Shelf { cache, slots, larder, dims: *dims }
    }

    /// Marks every candidate that lies in a slot; how many there are, and how many are missing.
    fn touch_hits(&mut self, input: Input<'_>) -> (u64, u64) {
        let candidates = self.predictor.candidates(self.dims.ff);
        let looked_up = (candidates.len() * input.chosen.len()) as u64;
        let mut hits = 0;
        if self.cache.is_whole() {
            hits = looked_up;
        } else {
            for chosen in input.chosen {
                let first = self.dims.first_neuron(input.layer, chosen.expert());
                let touched = |neuron: &u32| self.cache.touch(first + neuron).is_some();
                hits += candidates.clone().filter(touched).count() as u64;
            }
        }
        self.counters.hits += hits;
        self.counters.misses += looked_up - hits;
        (hits, looked_up - hits)
    }

    fn count_wave(&mut self, wave: &[crate::storage::Run]) {
        self.counters.reads += wave.len() as u64;
        let bytes = wave.iter().map(|run| self.larder.map().bytes(run).1 as u64);
        self.counters.bytes += bytes.sum::<u64>();
    }

    /// Gives the missed neurons of the wave slots, as far as there are any, and the wave's buffers
    /// back. `keep` is false after a fault: then nothing is admitted.
    fn admit_wave(&mut self, keep: bool) {
        self.larder.wait(); // for what a faulting team left
        let record = self.dims.record;
        for landed in self.larder.wave() {
            let Ok(landed) = landed else { continue };
            let map = self.larder.map();
            for neuron in map.neurons(&landed.run).filter(|_| keep) {
                let index = self.dims.first_neuron(landed.run.layer, landed.run.expert) + neuron;
                if self.cache.slot(index).is_some() {
                    continue;
                }
                let Some(slot) = self.cache.admit(index) else { break };
                let from = map.record_in(&landed.run, &landed.bytes, neuron);
                let into = &mut self.slots[slot * self.dims.slot_bytes..][..self.dims.slot_bytes];
                compute::to_slot(&record, from, into);
            }
        }
        self.larder.release();
    }

    /// Fills free slots with the first records of every expert, called at boot.
    pub fn warm(&mut self, layers: u16) -> Result<(), ClusterError> {
        let experts = u32::from(layers) * self.dims.experts;
        let neurons = (self.cache.slots() as u32 / experts).min(self.dims.ff);
        self.sweep(layers, neurons / self.dims.record.per_block as u32, true)
    }

    /// Reads every record, whose tags must hold.
    pub fn verify(&mut self, layers: u16) -> Result<(), ClusterError> {
        let units = self.dims.record.units(u64::from(self.dims.ff)) as u32;
        self.sweep(layers, units, false)
    }

    /// Reads the first `units` of every expert in order; gives their neurons slots if `admit`.
    fn sweep(&mut self, layers: u16, units: u32, admit: bool) -> Result<(), ClusterError> {
        for layer in 0..layers {
            for expert in 0..self.dims.experts as u16 {
                let mut next_unit = 0;
                while next_unit < units {
                    let wave = wave::sequential(self.larder, layer, expert, &mut next_unit, units);
                    self.larder.submit(&wave);
                    let mut fault = None;
                    while let Some(landed) = self.larder.take() {
                        fault = fault.or(landed.err());
                    }
                    self.admit_wave(admit && fault.is_none());
                    if let Some(fault) = fault {
                        return Err(fault.into());
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the cache's tables agree; for tests.
    pub fn is_consistent(&self) -> bool {
        self.cache.is_consistent()
    }

    /// The larder.
    pub fn larder(&self) -> &'a Larder<'a> {
        self.larder
    }
}

/// The sums of all workers become the output.
fn finish(workers: &mut [Worker<'_>], unit_exponent: i32, out: &mut [f32]) {
    let (first, rest) = workers.split_first_mut().expect("a team has a member");
    let total = first.sums();
    for worker in rest {
        accumulator::merge(total, worker.sums());
    }
    accumulator::finish(total, unit_exponent, out);
}
