//! The resident section: every weight that is used for every token, in order of use.
//!
//! ```text
//! down-unit exponents i32[layers] | rope frequencies f64[head_dim / 2]
//! per layer: attn_norm f32[hidden] | q, k and v rows as one matrix | their biases f32[qkv_dim]
//!            | o rows | their biases f32[hidden]
//!            | ffn_norm f32[hidden]
//!            | biases of gate f32[ff], up f32[ff] and down f32[hidden]
//!            | router f32[experts * hidden], where there are several experts
//! output_norm f32[hidden] | head rows
//! ```
//!
//! Each part starts at a multiple of [`PART_ALIGN`]; the gaps are zero. Biases that a model does
//! not have take no byte. Rows and biases of q and k are in the order in which the engine turns
//! them: values 2i and 2i + 1 of a head are a pair. Biases of gate and up are in image order.
//!
//! A down unit is the least exponent u in -60..=0 with `step * 2^a <= 2^27 * 2^u`. In q8 and q4
//! records a is 13 and step the largest scale of the layer's down columns, in f16 step is the
//! largest magnitude of their weights and a is 10 with dReLU and ReLU, 13 with SiLU and GELU; where
//! all are 0, u is a - 27. Frequency i is base^(-2i / head_dim) unless the model scales it; 0 where
//! it does not turn a pair.

use super::geometry::{BLOCK_BYTES, round_up};
use super::shape::{Shape, Types};

/// Alignment of each part.
pub const PART_ALIGN: u64 = 64;

/// A byte range of the resident section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte, from the start of the section.
    pub offset: u64,
    /// Bytes, padding not counted.
    pub bytes: u64,
}

/// Where each part of a layer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerParts {
    /// Norm before attention, f32[hidden].
    pub attn_norm: Part,
    /// Query rows, key rows, value rows: qkv_dim of them over hidden.
    pub qkv: Part,
    /// Their biases, f32[qkv_dim] or nothing.
    pub qkv_bias: Part,
    /// Output rows, hidden over query_dim.
    pub output: Part,
    /// Their biases, f32[hidden] or nothing.
    pub output_bias: Part,
    /// Norm before the feed-forward network, f32[hidden].
    pub ffn_norm: Part,
    /// Biases of gates, f32[ff] or nothing.
    pub gate_bias: Part,
    /// Biases of ups, f32[ff] or nothing.
    pub up_bias: Part,
    /// Biases of the network's output, f32[hidden] or nothing.
    pub down_bias: Part,
    /// Router, f32[experts][hidden].
    pub router: Part,
}

/// Where each part of the resident section stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// One i32 a layer: the unit of the down accumulation is 2 to this power.
    pub down_units: Part,
    /// Rotary frequencies, f64[head_dim / 2].
    pub rope: Part,
    /// Parts of layer 0; layer `l` is `l * layer_bytes` further.
    pub first_layer: LayerParts,
    /// Bytes from one layer to the next.
    pub layer_bytes: u64,
    /// Final norm, f32[hidden].
    pub output_norm: Part,
    /// Head rows, vocab over hidden.
    pub head: Part,
    /// Bytes of the whole section, padded to blocks.
    pub bytes: u64,
}

impl Resident {
    /// The layout of `shape` stored as `types`.
    pub const fn new(shape: &Shape, types: &Types) -> Resident {
        let hidden_row = types.resident.row_bytes(shape.hidden);
        let (down_units, at) = part(0, shape.layers * 4);
        let (rope, start) = part(at, shape.head_dim / 2 * 8);
        let (attn_norm, at) = part(start, shape.hidden * 4);
        let (qkv, at) = part(at, shape.qkv_dim() * hidden_row);
        let (qkv_bias, at) = part(at, bias_bytes(shape.biases.qkv, shape.qkv_dim()));
        let (output, at) = part(at, shape.hidden * types.resident.row_bytes(shape.query_dim()));
        let (output_bias, at) = part(at, bias_bytes(shape.biases.output, shape.hidden));
        let (ffn_norm, at) = part(at, shape.hidden * 4);
        let (gate_bias, at) = part(at, bias_bytes(shape.biases.ffn, shape.ff));
        let (up_bias, at) = part(at, bias_bytes(shape.biases.ffn, shape.ff));
        let (down_bias, at) = part(at, bias_bytes(shape.biases.ffn, shape.hidden));
        let (router, at) = part(at, router_bytes(shape));
        let layer_bytes = at - start;
        let at = start + layer_bytes * shape.layers;
        let (output_norm, at) = part(at, shape.hidden * 4);
        let (head, at) = part(at, shape.vocab * types.head.row_bytes(shape.hidden));
        Resident {
            down_units,
            rope,
            first_layer: LayerParts {
                attn_norm,
                qkv,
                qkv_bias,
                output,
                output_bias,
                ffn_norm,
                gate_bias,
                up_bias,
                down_bias,
                router,
            },
            layer_bytes,
            output_norm,
            head,
            bytes: round_up(at, BLOCK_BYTES),
        }
    }

    /// The parts of `layer`.
    pub const fn layer(&self, layer: u64) -> LayerParts {
        let by = layer * self.layer_bytes;
        let p = &self.first_layer;
        LayerParts {
            attn_norm: shift(p.attn_norm, by),
            qkv: shift(p.qkv, by),
            qkv_bias: shift(p.qkv_bias, by),
            output: shift(p.output, by),
            output_bias: shift(p.output_bias, by),
            ffn_norm: shift(p.ffn_norm, by),
            gate_bias: shift(p.gate_bias, by),
            up_bias: shift(p.up_bias, by),
            down_bias: shift(p.down_bias, by),
            router: shift(p.router, by),
        }
    }
}

/// A network of one expert has no router.
const fn router_bytes(shape: &Shape) -> u64 {
    if shape.is_routed() { shape.experts * shape.hidden * 4 } else { 0 }
}

const fn bias_bytes(is_there: bool, values: u64) -> u64 {
    if is_there { values * 4 } else { 0 }
}

const fn part(at: u64, bytes: u64) -> (Part, u64) {
    (Part { offset: at, bytes }, round_up(at + bytes, PART_ALIGN))
}

const fn shift(part: Part, by: u64) -> Part {
    Part { offset: part.offset + by, bytes: part.bytes }
}
