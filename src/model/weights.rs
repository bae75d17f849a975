//! Typed views of the resident section.

use crate::cluster::GateUpBias;
use crate::image::resident::Part;
use crate::image::{Resident, Shape, Types, WeightType};

/// A matrix of the resident section.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Rows back to back.
    pub rows: &'a [u8],
    /// Bytes from one row to the next.
    pub stride: usize,
    /// How they are stored.
    pub weight: WeightType,
}

/// Weights of one layer that are used for every token.
#[derive(Clone, Copy, Debug)]
pub struct LayerWeights<'a> {
    /// Norm before attention.
    pub attn_norm: &'a [f32],
    /// Query, key and value rows, qkv_dim over hidden.
    pub qkv: Matrix<'a>,
    /// f32[qkv_dim], or empty.
    pub qkv_bias: &'a [f32],
    /// hidden rows over query_dim.
    pub output: Matrix<'a>,
    /// f32[hidden], or empty.
    pub output_bias: &'a [f32],
    /// Norm before the feed-forward network.
    pub ffn_norm: &'a [f32],
    /// Of gates and ups.
    pub gate_up_bias: GateUpBias<'a>,
    /// Of the network's output, f32[hidden], or empty.
    pub down_bias: &'a [f32],
    /// f32[experts][hidden].
    pub router: &'a [f32],
}

/// The resident section.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    section: &'a [u8],
    layout: Resident,
    shape: Shape,
    types: Types,
}

impl<'a> Weights<'a> {
    /// Views of `section`, laid out for `shape` and `types`.
    pub fn new(section: &'a [u8], shape: Shape, types: Types) -> Weights<'a> {
        let layout = Resident::new(&shape, &types);
        assert!(section.len() as u64 >= layout.bytes, "the plan holds the whole section");
        Weights { section, layout, shape, types }
    }

    /// The weights of `layer`.
    pub fn layer(&self, layer: usize) -> LayerWeights<'a> {
        let parts = self.layout.layer(layer as u64);
        let (weight, shape) = (self.types.resident, &self.shape);
        LayerWeights {
            attn_norm: self.floats(parts.attn_norm),
            qkv: self.matrix(parts.qkv, weight, shape.hidden),
            qkv_bias: self.floats(parts.qkv_bias),
            output: self.matrix(parts.output, weight, shape.query_dim()),
            output_bias: self.floats(parts.output_bias),
            ffn_norm: self.floats(parts.ffn_norm),
            gate_up_bias: GateUpBias {
                gate: self.floats(parts.gate_bias),
                up: self.floats(parts.up_bias),
            },
            down_bias: self.floats(parts.down_bias),
            router: self.floats(parts.router),
        }
    }

    /// The final norm.
    pub fn output_norm(&self) -> &'a [f32] {
        self.floats(self.layout.output_norm)
    }

    /// vocab rows over hidden.
    pub fn head(&self) -> Matrix<'a> {
        self.matrix(self.layout.head, self.types.head, self.shape.hidden)
    }

    /// A token's embedding, where it is a row of the head.
    pub fn embedding_row(&self, token: u32) -> Option<&'a [u8]> {
        let same = self.shape.tied && self.types.embedding == self.types.head;
        let head = self.head();
        same.then(|| &head.rows[token as usize * head.stride..][..head.stride])
    }

    /// The layer's down contributions are counted in units of 2 to this.
    pub fn down_unit(&self, layer: usize) -> i32 {
        bytemuck::cast_slice(self.bytes(self.layout.down_units))[layer]
    }

    /// Rotary frequencies, f64[head_dim / 2].
    pub fn rope_frequencies(&self) -> &'a [f64] {
        bytemuck::cast_slice(self.bytes(self.layout.rope))
    }

    fn bytes(&self, part: Part) -> &'a [u8] {
        &self.section[part.offset as usize..(part.offset + part.bytes) as usize]
    }

    fn floats(&self, part: Part) -> &'a [f32] {
        bytemuck::cast_slice(self.bytes(part))
    }

    fn matrix(&self, part: Part, weight: WeightType, columns: u64) -> Matrix<'a> {
        Matrix { rows: self.bytes(part), stride: weight.row_bytes(columns) as usize, weight }
    }
}
