//! The neuron records: gate row, up row and down column of each, with their tags.
//!
//! A layer at a time, whose down unit is known when its last column is written. Down matrices lie
//! across: a block of columns is read at a time, whatever the matrix' size.

use super::loss::Class;
use super::{Packer, Stop};
use crate::forge::decode;
use crate::forge::model::Ffn;
use crate::forge::quantize::{column_step, encode_column};
use crate::image::tag::{Identity, Part, Tag, crc32c};
use crate::image::{ActivationFn, SectionKind, WeightType};

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
        let most = BLOCK_WEIGHTS / shape.hidden / BLOCK_COLUMNS * BLOCK_COLUMNS;
        let (start, block) = (self.out.at(), most.max(BLOCK_COLUMNS));
        let mut step = 0.0f32;
        for first in (0..shape.ff).step_by(block as usize) {
            let count = block.min(shape.ff - first);
            let columns = self.down_columns(layer, expert, first, count)?;
            for (at, column) in columns.chunks_exact(shape.hidden as usize).enumerate() {
                step = step.max(column_step(self.types.down, column));
                self.record(layer, expert, first + at as u64, column, start)?;
            }
        }
        self.out.pad_to(start + self.types.expert_bytes(&shape))?;
        Ok(step)
    }

    /// Writes the record of `neuron`; the records of its expert begin at `start`.
    fn record(
        &mut self,
        layer: u64,
        expert: u64,
        neuron: u64,
        column: &[f32],
        start: u64,
    ) -> Result<(), Stop> {
        let (model, weight) = (self.model, self.types.records);
        let layout = self.types.record(&model.shape);
        let row = expert * model.shape.ff + neuron;
        let who = |part| Identity {
            layer: layer as u16,
            expert: expert as u16,
            neuron: neuron as u32,
            part,
        };
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
        self.out.pad_to(start + layout.offset(neuron))?;
        Ok(self.out.write(&bytes)?)
    }

    /// Columns `first..first + count` of the down matrix of an expert, hidden values each.
    fn down_columns(
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
