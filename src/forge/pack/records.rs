//! The neuron records: gate row, up row and down column of each, with their tags.
//!
//! A layer at a time, whose down unit is known when its last column is written. Down matrices lie
//! across: a block of columns is read at a time, whatever the matrix' size.

use super::loss::Class;
use super::{Packer, Stop};
use crate::forge::decode;
use crate::forge::model::{Ffn, source_ff};
use crate::forge::quantize::{column_step, encode_column};
use crate::image::tag::{Identity, Part, Tag, crc32c};
use crate::image::{ActivationFn, SectionKind, Shape, WeightType};

/// Down weights in memory at a time, unless a block of columns is larger.
const BLOCK_WEIGHTS: u64 = 1 << 22;
/// Columns of a block are a multiple of this: whole blocks of every type of the source.
const BLOCK_COLUMNS: u64 = 256;

/// Activations up to 2 to this are held by the down unit of codes, whose multipliers are rounded.
const ACTIVATION_BITS: i32 = 13;
/// Of f16 columns each product is rounded: their unit is finer, where activations allow it.
const F16_ACTIVATION_BITS: i32 = 10;
/// A multiplier of the fixed-point sum stays below 2 to this.
const MULTIPLIER_BITS: i32 = 27;
/// Smallest down unit the arithmetic is proven for.
const UNIT_EXPONENT_MIN: i32 = -60;

/// The smallest power of two that is not below `step`, a normal number above 0: its exponent.
fn exponent_above(step: f32) -> i32 {
    let bits = step.to_bits();
    let below = (bits >> 23) as i32 - 127;
    below + i32::from(bits & 0x7f_ffff != 0)
}

/// The smallest power of two in which a layer's largest column step times the largest activation
/// stays below the multiplier's limit.
fn down_unit(weight: WeightType, activation: ActivationFn, step: f32) -> i32 {
    let bits = if step > 0.0 { exponent_above(step) } else { 0 };
    let held = match (weight, activation) {
        (WeightType::F16, ActivationFn::DRelu | ActivationFn::Relu) => F16_ACTIVATION_BITS,
        // Models that were trained with these have neurons of thousands: 2,824 in SmolLM2-135M.
        (WeightType::F16, ActivationFn::SiLu | ActivationFn::Gelu) => ACTIVATION_BITS,
        (WeightType::Q8 | WeightType::Q4, _) => ACTIVATION_BITS,
    };
    (bits + held - MULTIPLIER_BITS).clamp(UNIT_EXPONENT_MIN, 0)
}

/// An expert whose records are being written.
struct Expert {
    layer: u64,
    expert: u64,
    /// First byte of its records.
    start: u64,
    /// Next neuron of the image.
    next: u64,
    /// Largest step of its down columns so far.
    step: f32,
}

/// First and number of the columns of the source that are in memory at a time.
pub(super) fn column_blocks(shape: &Shape) -> impl Iterator<Item = (u64, u64)> + use<> {
    let ff = source_ff(shape);
    let most = BLOCK_WEIGHTS / shape.hidden / BLOCK_COLUMNS * BLOCK_COLUMNS;
    let block = most.max(BLOCK_COLUMNS);
    (0..ff).step_by(block as usize).map(move |first| (first, block.min(ff - first)))
}

impl Packer<'_, '_> {
    /// First byte of the records of `layer`; that behind the last layer is the image's end.
    pub(super) fn records_start(&self, layer: u64) -> u64 {
        let shape = &self.model.shape;
        let layer_bytes = shape.experts * self.types.expert_bytes(shape);
        self.header.section(SectionKind::Records).offset + layer * layer_bytes
    }

    /// Writes the records of `layer`; returns its down unit.
    pub(super) fn layer(&mut self, layer: u64) -> Result<i32, Stop> {
        self.out.begin(self.records_start(layer))?;
        let mut step = 0.0f32;
        for expert in 0..self.model.shape.experts {
            step = step.max(self.expert(layer, expert)?);
        }
        assert_eq!(self.out.at(), self.records_start(layer + 1), "a layer has its laid-out size");
        Ok(down_unit(self.types.down, self.model.shape.activation, step))
    }

    /// Writes the records of an expert; returns the largest step of its down columns.
    fn expert(&mut self, layer: u64, expert: u64) -> Result<f32, Stop> {
        let shape = self.model.shape;
        let outliers = self.outliers(layer, expert)?;
        self.keep_parts(layer, expert, &outliers);
        let mut expert = Expert { layer, expert, start: self.out.at(), next: 0, step: 0.0 };
        for (first, count) in column_blocks(&shape) {
            let mut columns = self.down_columns(layer, expert.expert, first, count)?;
            let columns = columns.chunks_exact_mut(shape.hidden as usize);
            for (neuron, column) in (first..).zip(columns) {
                let parts = outliers.iter().filter(|outlier| outlier.neuron == neuron);
                parts.for_each(|outlier| outlier.take_from(column));
                self.record(&mut expert, neuron, column)?;
            }
        }
        for outlier in &outliers {
            self.record(&mut expert, outlier.neuron, &outlier.column)?;
        }
        self.out.pad_to(expert.start + self.types.expert_bytes(&shape))?;
        Ok(expert.step)
    }

    /// Writes the next record of `expert`: the gate and up of the source's `neuron`, and `column`.
    fn record(&mut self, expert: &mut Expert, neuron: u64, column: &[f32]) -> Result<(), Stop> {
        let (model, weight) = (self.model, self.types.records);
        let Expert { layer, expert: index, start, next, .. } = *expert;
        let layout = self.types.record(&model.shape);
        let row = index * source_ff(&model.shape) + neuron;
        let who = |part| Identity {
            layer: layer as u16,
            expert: index as u16,
            neuron: next as u32,
            part,
        };
        expert.step = expert.step.max(column_step(self.types.down, column));
        expert.next += 1;
        let mut bytes = Vec::with_capacity(layout.raw_bytes() as usize);
        self.encode(model.ffn_tensor(layer, Ffn::Gate)?, row, weight, Class::Gate, &mut bytes)?;
        let tag = Tag::new(who(Part::Gate), &bytes, crc32c);
        bytes.extend_from_slice(tag.bytes());
        let rest = bytes.len();
        self.encode(model.ffn_tensor(layer, Ffn::Up)?, row, weight, Class::Up, &mut bytes)?;
        let down = bytes.len();
        let weight = self.types.down;
        encode_column(weight, column, &mut bytes);
        self.decoded.resize(column.len(), 0.0);
        decode::column(weight, &bytes[down..], &mut self.decoded);
        if !self.losses.of_mut(Class::Down).add(column, &self.decoded, false) {
            let name = &model.ffn_tensor(layer, Ffn::Down)?.name;
            return Err(Stop::too_large(name, &format!("column {neuron}"), weight));
        }
        let tag = Tag::new(who(Part::Rest), &bytes[rest..], crc32c);
        bytes.extend_from_slice(tag.bytes());
        self.out.pad_to(start + layout.offset(next))?;
        Ok(self.out.write(&bytes)?)
    }

    /// Columns `first..first + count` of the down matrix of an expert, hidden values each.
    pub(super) fn down_columns(
        &self,
        layer: u64,
        expert: u64,
        first: u64,
        count: u64,
    ) -> Result<Vec<f32>, Stop> {
        let hidden = self.model.shape.hidden as usize;
        let tensor = self.model.ffn_tensor(layer, Ffn::Down)?;
        let mut columns = vec![0.0; count as usize * hidden];
        let mut part = vec![0.0; count as usize];
        for at in 0..hidden {
            self.model.part(tensor, expert * hidden as u64 + at as u64, first, &mut part)?;
            for (column, &value) in columns.chunks_exact_mut(hidden).zip(&part) {
                column[at] = value;
            }
        }
        Ok(columns)
    }
}

#[cfg(test)]
mod tests {
    use super::exponent_above;

    #[test]
    fn a_power_of_two_is_its_own_bound() {
        let ulp = |x: f32| f32::from_bits(x.to_bits() + 1);
        for (step, exponent) in
            [(1.0, 0), (ulp(1.0), 1), (0.03125, -5), (ulp(0.03125), -4), (0.75, 0), (3.0, 2)]
        {
            assert_eq!(exponent_above(step), exponent, "{step}");
        }
    }
}
