//! A feed-forward layer whose records all lie in memory, as the workshop walks it: every neuron, or
//! those of a given list, which a predictor would make.

use super::Outputs;
use super::common::{share, weights};
use ganglion::image::{ActivationFn, Record, WeightType};
use ganglion::kernel::{Accumulator, Activation, DownItem, Kernels, Soon, accumulator_len};
use std::hint::black_box;

/// Records of a pass, as the workshop's.
const FEW: usize = 8;

/// Records of one layer, slot after slot.
#[derive(Clone, Copy)]
pub struct Layer {
    kernels: &'static Kernels,
    weight: WeightType,
    record: Record,
    memory: &'static [u8],
    x: Activation<'static>,
    hidden: usize,
}

impl Layer {
    /// `neurons` records of `weight` for `hidden` outputs.
    pub fn new(
        kernels: &'static Kernels,
        weight: WeightType,
        hidden: usize,
        neurons: usize,
        x: Activation<'static>,
    ) -> Layer {
        let record = Record::aligned(weight, weight, hidden as u64);
        let memory = weights(neurons * record.slot_bytes() as usize);
        Layer { kernels, weight, record, memory, x, hidden }
    }

    /// Bytes of a neuron.
    pub fn slot_bytes(&self) -> usize {
        self.record.slot_bytes() as usize
    }

    /// Neurons.
    pub fn neurons(&self) -> usize {
        self.memory.len() / self.slot_bytes()
    }

    /// Every neuron.
    pub fn everything(&self) -> Vec<usize> {
        (0..self.neurons()).collect()
    }

    /// The neurons of a thread's share of `list`, nothing else.
    pub fn run(&self, list: &[usize], out: &Outputs, thread: usize, threads: usize) {
        let mut sums = self.sums(out, thread);
        let list = &list[share(list.len(), thread, threads)];
        for first in (0..list.len()).step_by(FEW) {
            let end = list.len().min(first + FEW);
            let records = self.records(&list[first..end]);
            let next = self.records(&list[end..list.len().min(end + FEW)]);
            let (soon, later) = Soon::in_two(&next, self.slot_bytes());
            let (mut gates, mut ups) = ([0.0; FEW], [0.0; FEW]);
            let (gates, ups) = (&mut gates[..records.len()], &mut ups[..records.len()]);
            let up = self.record.row_bytes as usize;
            self.kernels.gate_up(self.weight, &records, up, soon, self.x, gates, ups);
            self.kernels.gate(ActivationFn::DRelu, gates, ups);
            black_box(&gates);
            self.down(&records, later, &mut sums);
        }
        black_box(sums.sums());
    }

    fn records(&self, neurons: &[usize]) -> heapless::Vec<&'static [u8], FEW> {
        neurons.iter().map(|neuron| &self.memory[neuron * self.slot_bytes()..]).collect()
    }

    /// Adds the down columns of `records`, each at the same activation: how many would fire
    /// depends on the weights, and these are no model's.
    fn down(&self, records: &[&'static [u8]], soon: Soon<'_>, sums: &mut Accumulator<'_>) {
        let (row, column) = (self.record.row_bytes as usize, self.record.column_bytes as usize);
        let item = |record: &&'static [u8]| DownItem {
            activation: 0.5,
            column: &record[2 * row..][..column],
        };
        let items: heapless::Vec<DownItem<'_>, FEW> = records.iter().map(item).collect();
        self.kernels.accumulate(self.weight, -20, &items, soon, sums).expect("in range");
    }

    fn sums<'o>(&self, out: &'o Outputs, thread: usize) -> Accumulator<'o> {
        let length = accumulator_len(self.hidden);
        let (low, rest) = out.of::<u8>(thread)[..16 * length].split_at_mut(4 * length);
        let (high, wide) = rest.split_at_mut(4 * length);
        Accumulator::new(
            self.hidden,
            bytemuck::cast_slice_mut(low),
            bytemuck::cast_slice_mut(high),
            bytemuck::cast_slice_mut(wide),
        )
    }
}
