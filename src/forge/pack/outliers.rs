//! Outliers: neurons whose down column holds a few weights far larger than all others.
//!
//! A q8 column has one scale. In models that were trained with SiLU or GELU a few neurons of a
//! layer have a weight of thirty times the usual, and activations of thousands: at its scale, the
//! rest of such a column is a handful of steps. So each expert's image ends with some neurons that
//! have the gate and up row of such a neuron, and its largest down weights; the neuron itself keeps
//! the others. Both together are the neuron, and the engine need not know. Of SmolLM2-135M as q8
//! that takes the mean divergence from 0.031 to 0.006 nats, as near as llama.cpp's Q8_0.

use super::records::column_blocks;
use super::{Packer, Stop};
use crate::forge::model::{outliers, source_ff};

/// Weights that move.
const WEIGHTS: usize = 4;

/// A neuron in two parts.
pub struct Outlier {
    /// The neuron, within its expert.
    pub neuron: u64,
    /// Its largest down weights, in a column that is zero elsewhere.
    pub column: Vec<f32>,
}

impl Outlier {
    fn new(neuron: u64, column: &[f32]) -> Outlier {
        let mut order: Vec<usize> = (0..column.len()).collect();
        order.sort_by(|&a, &b| column[b].abs().total_cmp(&column[a].abs()));
        let mut largest = vec![0.0; column.len()];
        order.iter().take(WEIGHTS).for_each(|&at| largest[at] = column[at]);
        Outlier { neuron, column: largest }
    }

    /// Takes the weights out of the neuron's own column.
    pub fn take_from(&self, column: &mut [f32]) {
        for (value, &taken) in column.iter_mut().zip(&self.column) {
            if taken != 0.0 {
                *value = 0.0;
            }
        }
    }
}

impl Packer<'_, '_> {
    /// The outliers of an expert in order of their neurons: those with the largest down weights. An
    /// expert of fewer neurons has its first one again, with nothing in the second column.
    pub(super) fn outliers(&self, layer: u64, expert: u64) -> Result<Vec<Outlier>, Stop> {
        let shape = &self.model.shape;
        let count = outliers(shape.activation) as usize;
        let mut found: Vec<(f32, Outlier)> = Vec::new();
        for (first, count_of_block) in column_blocks(shape).filter(|_| count > 0) {
            let columns = self.down_columns(layer, expert, first, count_of_block)?;
            for (neuron, column) in (first..).zip(columns.chunks_exact(shape.hidden as usize)) {
                let largest = column.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                let at = found.partition_point(|(other, _)| *other >= largest);
                if at < count {
                    found.insert(at, (largest, Outlier::new(neuron, column)));
                    found.truncate(count);
                }
            }
        }
        let mut found: Vec<Outlier> = found.into_iter().map(|(_, outlier)| outlier).collect();
        found.sort_by_key(|outlier| outlier.neuron);
        let nothing = || Outlier { neuron: 0, column: vec![0.0; shape.hidden as usize] };
        found.resize_with(count, nothing);
        Ok(found)
    }

    /// Which neuron of the source each neuron of an expert's image is, or is a part of.
    pub(super) fn sources(&mut self, layer: u64, expert: u64) -> Result<Vec<u64>, Stop> {
        let shape = self.model.shape;
        let at = (layer * shape.experts + expert) as usize;
        if self.parts[at].is_none() {
            // Of a layer that an earlier run has written.
            self.keep_parts(layer, expert, &self.outliers(layer, expert)?);
        }
        let parts = self.parts[at].as_ref().expect("just found");
        Ok((0..source_ff(&shape)).chain(parts.iter().copied()).collect())
    }

    /// Remembers the neurons of these outliers for [`Packer::sources`].
    pub(super) fn keep_parts(&mut self, layer: u64, expert: u64, outliers: &[Outlier]) {
        let at = (layer * self.model.shape.experts + expert) as usize;
        self.parts[at] = Some(outliers.iter().map(|outlier| outlier.neuron).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::Outlier;

    #[test]
    fn both_parts_together_are_the_column() {
        let column = [0.5, -6.0, 0.25, 3.0, 0.0, -0.75, 1.0, 0.125];
        let outlier = Outlier::new(3, &column);
        assert_eq!(outlier.column, [0.0, -6.0, 0.0, 3.0, 0.0, -0.75, 1.0, 0.0]);
        let mut rest = column;
        outlier.take_from(&mut rest);
        assert_eq!(rest, [0.5, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0, 0.125]);
    }
}
