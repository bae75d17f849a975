//! The sections beside the records: resident weights, tokenizer, order, embedding rows.
//!
//! Written part by part in the order of `image::resident`, a row in memory at a time.

use super::loss::Class;
use super::{Packer, Stop};
use crate::forge::source::Tensor;
use crate::image::resident::{Part as Place, Resident};
use crate::image::tag::{Identity, Part, Tag, crc32c};
use crate::image::{SectionKind, WeightType};

impl Packer<'_, '_> {
    /// The resident section, with the down unit of each layer.
    pub(super) fn resident(&mut self, units: &[i32]) -> Result<(), Stop> {
        let (model, types) = (self.model, self.types);
        let layout = Resident::new(&model.shape, types);
        self.begin(SectionKind::Resident)?;
        let units: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        self.part(layout.down_units, |packer| packer.write(&units))?;
        let frequencies = model.rope.frequencies.iter().flat_map(|f| f.to_le_bytes());
        let frequencies: Vec<u8> = frequencies.collect();
        self.part(layout.rope, |packer| packer.write(&frequencies))?;
        for layer in 0..model.shape.layers {
            self.layer_parts(&layout, layer)?;
        }
        let norm = model.source.tensor("output_norm.weight")?;
        self.part(layout.output_norm, |packer| packer.floats(norm))?;
        let head = model.head()?;
        self.part(layout.head, |packer| packer.matrix(head, types.head, Class::Head))?;
        self.end(SectionKind::Resident)
    }

    fn layer_parts(&mut self, layout: &Resident, layer: u64) -> Result<(), Stop> {
        let (model, weight) = (self.model, self.types.resident);
        let (parts, biases) = (layout.layer(layer), model.shape.biases);
        let tensor = |role| model.layer_tensor(layer, role);
        let (norm, output) = (tensor("attn_norm.weight")?, tensor("attn_output.weight")?);
        self.part(parts.attn_norm, |packer| packer.floats(norm))?;
        self.part(parts.qkv, |packer| packer.qkv(layer))?;
        if biases.qkv {
            self.part(parts.qkv_bias, |packer| packer.qkv_bias(layer))?;
        }
        self.part(parts.output, |packer| packer.matrix(output, weight, Class::Attention))?;
        if biases.output {
            let bias = tensor("attn_output.bias")?;
            self.part(parts.output_bias, |packer| packer.floats(bias))?;
        }
        let norm = tensor("ffn_norm.weight")?;
        self.part(parts.ffn_norm, |packer| packer.floats(norm))?;
        if biases.ffn {
            let down = tensor("ffn_down.bias")?;
            self.part(parts.gate_bias, |packer| packer.neuron_bias(layer, "ffn_gate.bias"))?;
            self.part(parts.up_bias, |packer| packer.neuron_bias(layer, "ffn_up.bias"))?;
            self.part(parts.down_bias, |packer| packer.floats(down))?;
        }
        if model.shape.is_routed() {
            let router = tensor("ffn_gate_inp.weight")?;
            self.part(parts.router, |packer| packer.floats(router))?;
        }
        Ok(())
    }

    /// A bias of each neuron of a layer's only expert.
    fn neuron_bias(&mut self, layer: u64, role: &str) -> Result<(), Stop> {
        let values = self.model.rows(self.model.layer_tensor(layer, role)?, 0, 1)?;
        let sources = self.sources(layer, 0)?;
        let bytes = sources.iter().flat_map(|&neuron| values[neuron as usize].to_le_bytes());
        self.write(&bytes.collect::<Vec<u8>>())
    }

    /// Query, key and value rows of a layer, those that are turned in the engine's order.
    fn qkv(&mut self, layer: u64) -> Result<(), Stop> {
        let (model, weight) = (self.model, self.types.resident);
        for role in ["attn_q.weight", "attn_k.weight"] {
            let tensor = model.layer_tensor(layer, role)?;
            for row in 0..tensor.rows() {
                self.row(tensor, model.rope.rows.source(row), weight, Class::Attention)?;
            }
        }
        self.matrix(model.layer_tensor(layer, "attn_v.weight")?, weight, Class::Attention)
    }

    /// Biases of query, key and value, in the order of [`Packer::qkv`].
    fn qkv_bias(&mut self, layer: u64) -> Result<(), Stop> {
        let model = self.model;
        for role in ["attn_q.bias", "attn_k.bias"] {
            let values = model.rows(model.layer_tensor(layer, role)?, 0, 1)?;
            let turned =
                (0..values.len()).map(|at| values[model.rope.rows.source(at as u64) as usize]);
            self.write(&turned.flat_map(f32::to_le_bytes).collect::<Vec<_>>())?;
        }
        self.floats(model.layer_tensor(layer, "attn_v.bias")?)
    }

    fn matrix(&mut self, tensor: &Tensor, weight: WeightType, class: Class) -> Result<(), Stop> {
        (0..tensor.rows()).try_for_each(|row| self.row(tensor, row, weight, class))
    }

    fn row(
        &mut self,
        tensor: &Tensor,
        row: u64,
        weight: WeightType,
        class: Class,
    ) -> Result<(), Stop> {
        let mut bytes = Vec::new();
        self.encode(tensor, row, weight, class, &mut bytes)?;
        self.write(&bytes)
    }

    fn floats(&mut self, tensor: &Tensor) -> Result<(), Stop> {
        for row in 0..tensor.rows() {
            let values = self.model.rows(tensor, row, 1)?;
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            self.write(&bytes)?;
        }
        Ok(())
    }

    /// Every token's embedding row with its tag.
    pub(super) fn embedding(&mut self) -> Result<(), Stop> {
        let (model, weight) = (self.model, self.types.embedding);
        let tensor = model.source.tensor("token_embd.weight")?;
        self.begin(SectionKind::Embedding)?;
        let mut row = Vec::new();
        for token in 0..model.shape.vocab {
            row.clear();
            self.encode(tensor, token, weight, Class::Embedding, &mut row)?;
            let neuron = token as u32;
            let who = Identity { layer: 0, expert: 0, neuron, part: Part::Embedding };
            let tag = Tag::new(who, &row, crc32c);
            row.extend_from_slice(tag.bytes());
            self.write(&row)?;
        }
        let section = self.header.section(SectionKind::Embedding);
        Ok(self.out.pad_to(section.offset + section.bytes)?)
    }

    /// The source's index of each neuron: they keep their order, behind them are the outliers.
    pub(super) fn order(&mut self) -> Result<(), Stop> {
        let shape = self.model.shape;
        self.begin(SectionKind::Order)?;
        for layer in 0..shape.layers {
            for expert in 0..shape.experts {
                let sources = self.sources(layer, expert)?;
                let bytes = sources.iter().flat_map(|&neuron| (neuron as u32).to_le_bytes());
                self.write(&bytes.collect::<Vec<u8>>())?;
            }
        }
        self.end(SectionKind::Order)
    }

    /// The packed tokenizer.
    pub(super) fn tokenizer(&mut self) -> Result<(), Stop> {
        let model = self.model;
        self.begin(SectionKind::Tokenizer)?;
        self.write(&model.tokenizer)?;
        self.end(SectionKind::Tokenizer)
    }

    /// Writes a part of the resident section to its place.
    fn part(
        &mut self,
        place: Place,
        content: impl FnOnce(&mut Self) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let start = self.header.section(SectionKind::Resident).offset + place.offset;
        self.out.pad_to(start)?;
        content(self)?;
        assert_eq!(self.out.at(), start + place.bytes, "a part has its laid-out size");
        Ok(())
    }

    fn begin(&mut self, kind: SectionKind) -> Result<(), Stop> {
        Ok(self.out.begin(self.header.section(kind).offset)?)
    }

    /// Fills the section up and keeps its sum.
    fn end(&mut self, kind: SectionKind) -> Result<(), Stop> {
        let section = self.header.section(kind);
        self.out.pad_to(section.offset + section.bytes)?;
        self.header.set_section_crc(kind, self.out.crc());
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        Ok(self.out.write(bytes)?)
    }
}
