//! The shape of a model: the integers that fix every size in an image and in a plan.
//!
//! Read from `plans/models/*.toml` by the planner, from the header by the engine; the two must
//! agree before a byte of weights is used.

use super::geometry::{BLOCK_BYTES, Packing, Record, TAG_BYTES, WeightType, round_up};

/// Most neurons: a table entry has 31 bits for a slot plus one.
pub const NEURONS_MAX: u64 = (1 << 31) - 2;
/// Largest window: the longest context of a plan.
pub const WINDOW_MAX: u64 = 1 << 20;
/// Most experts that may run for one token.
pub const EXPERTS_USED_MAX: u64 = 16;

/// What stands between gate, up and down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationFn {
    /// relu(gate) * relu(up), as in TurboSparse.
    DRelu,
    /// silu(gate) * up, as in Llama. Every neuron counts.
    SiLu,
    /// relu(gate) * up, as in ReLUfied Llamas.
    Relu,
    /// gelu(gate) * up, GELU in its tanh form, as in Gemma. Every neuron counts.
    Gelu,
}

impl ActivationFn {
    /// Every activation.
    pub const ALL: [ActivationFn; 4] =
        [ActivationFn::DRelu, ActivationFn::SiLu, ActivationFn::Relu, ActivationFn::Gelu];
    /// Their names, for messages.
    pub const NAMES: &str = "drelu, silu, relu or gelu";

    /// Name in model files and messages.
    pub const fn name(self) -> &'static str {
        match self {
            ActivationFn::DRelu => "drelu",
            ActivationFn::SiLu => "silu",
            ActivationFn::Relu => "relu",
            ActivationFn::Gelu => "gelu",
        }
    }

    /// Number in image headers.
    pub const fn code(self) -> u32 {
        match self {
            ActivationFn::DRelu => 1,
            ActivationFn::SiLu => 2,
            ActivationFn::Relu => 3,
            ActivationFn::Gelu => 4,
        }
    }

    /// The activation of a header's number, or `None`.
    pub const fn from_code(code: u32) -> Option<ActivationFn> {
        match code {
            1 => Some(ActivationFn::DRelu),
            2 => Some(ActivationFn::SiLu),
            3 => Some(ActivationFn::Relu),
            4 => Some(ActivationFn::Gelu),
            _ => None,
        }
    }
}

/// Which matrices of a layer have a bias, f32 values that join the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Biases {
    /// Queries, keys and values, as in Qwen2.
    pub qkv: bool,
    /// The attention's output.
    pub output: bool,
    /// Gate, up and down of a feed-forward network without experts.
    pub ffn: bool,
}

impl Biases {
    /// None, as in most models.
    pub const NONE: Biases = Biases { qkv: false, output: false, ffn: false };

    /// Number in image headers: a bit for each.
    pub const fn code(self) -> u32 {
        self.qkv as u32 | (self.output as u32) << 1 | (self.ffn as u32) << 2
    }

    /// The biases of a header's number, or `None`.
    pub const fn from_code(code: u32) -> Option<Biases> {
        if code > 7 {
            return None;
        }
        Some(Biases { qkv: code & 1 != 0, output: code & 2 != 0, ffn: code & 4 != 0 })
    }
}

/// Dimensions of a decoder with a gated, expert-routed feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Transformer blocks.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// Width of a head; a multiple of 16.
    pub head_dim: u64,
    /// Experts a layer; 1 for a dense feed-forward network.
    pub experts: u64,
    /// Experts that run for a token.
    pub experts_used: u64,
    /// Neurons an expert.
    pub ff: u64,
    /// Token ids.
    pub vocab: u64,
    /// Gate function.
    pub activation: ActivationFn,
    /// Whether the output head is the embedding matrix.
    pub tied: bool,
    /// Biases of a layer's matrices.
    pub biases: Biases,
    /// Keys that a position sees, the last of them its own; 0 where it sees all before it.
    pub window: u64,
    /// Bytes of the packed tokenizer section.
    pub tokenizer_bytes: u64,
}

impl Shape {
    /// Width of the concatenated query heads.
    pub const fn query_dim(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Width of the concatenated key (or value) heads.
    pub const fn kv_dim(&self) -> u64 {
        self.kv_heads * self.head_dim
    }

    /// Width of queries, keys and values of a token together.
    pub const fn qkv_dim(&self) -> u64 {
        self.query_dim() + 2 * self.kv_dim()
    }

    /// The first field outside the limits of the formats, as (name, largest or divisor, found).
    pub const fn fault(&self) -> Option<(&'static str, u64, u64)> {
        match self.range_fault() {
            None => self.multiple_fault(),
            fault => fault,
        }
    }

    /// The first field that is zero or too large, as (name, largest, found).
    ///
    /// The limits keep every product of an image's and a plan's arithmetic far below 2^63.
    pub const fn range_fault(&self) -> Option<(&'static str, u64, u64)> {
        let limits = [
            ("layers", self.layers, 1 << 10),
            ("hidden", self.hidden, 1 << 16),
            ("heads", self.heads, 1 << 10),
            ("kv_heads", self.kv_heads, self.heads),
            ("head_dim", self.head_dim, 1 << 10),
            ("experts", self.experts, if self.biases.ffn { 1 } else { 1 << 10 }),
            ("experts_used", self.experts_used, self.experts),
            ("ff", self.ff, 1 << 20),
            ("vocab", self.vocab, 1 << 22),
            ("tokenizer_bytes", self.tokenizer_bytes, 1 << 30),
        ];
        let mut i = 0;
        while i < limits.len() {
            let (name, found, max) = limits[i];
            if found == 0 || found > max {
                return Some((name, max, found));
            }
            i += 1;
        }
        if self.window > WINDOW_MAX {
            return Some(("window", WINDOW_MAX, self.window));
        }
        if self.neurons() > NEURONS_MAX {
            return Some(("neurons", NEURONS_MAX, self.neurons()));
        }
        if self.experts_used > EXPERTS_USED_MAX {
            return Some(("experts_used", EXPERTS_USED_MAX, self.experts_used));
        }
        None
    }

    /// The first field that is not a multiple of what it must be, as (name, divisor, found), where
    /// none has a [`Shape::range_fault`].
    pub const fn multiple_fault(&self) -> Option<(&'static str, u64, u64)> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Some(("heads (a multiple of kv_heads)", self.kv_heads, self.heads));
        }
        if !self.head_dim.is_multiple_of(16) {
            return Some(("head_dim (a multiple of 16)", 16, self.head_dim));
        }
        None
    }

    /// Whether a router chooses among experts.
    pub const fn is_routed(&self) -> bool {
        self.experts > 1
    }

    /// Whether every token needs every neuron, so that the order of their use never changes.
    pub const fn is_dense(&self) -> bool {
        !self.is_routed() && matches!(self.activation, ActivationFn::SiLu | ActivationFn::Gelu)
    }

    /// How its records are packed: what is always needed in order is read in order.
    pub const fn packing(&self) -> Packing {
        if self.is_dense() { Packing::Tight } else { Packing::Aligned }
    }

    /// Neurons of the whole model.
    pub const fn neurons(&self) -> u64 {
        self.layers * self.experts * self.ff
    }
}

/// How the weights of an image are stored. Part of the numerics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types {
    /// Gate and up rows of the neuron records.
    pub records: WeightType,
    /// Down columns of the neuron records.
    pub down: WeightType,
    /// Attention matrices.
    pub resident: WeightType,
    /// Output head.
    pub head: WeightType,
    /// Token embedding rows.
    pub embedding: WeightType,
}

impl Types {
    /// The record layout of these types for `shape`.
    pub const fn record(&self, shape: &Shape) -> Record {
        match shape.packing() {
            Packing::Aligned => Record::aligned(self.records, self.down, shape.hidden),
            Packing::Tight => Record::tight(self.records, self.down, shape.hidden),
        }
    }

    /// Number of both types of the records, in image headers and in the hash of the numerics: that
    /// of the rows; where columns have another type, 256 * (1 + theirs) on top.
    pub const fn records_code(&self) -> u32 {
        let own = if self.down as u32 == self.records as u32 { 0 } else { 1 + self.down.code() };
        self.records.code() | own << 8
    }

    /// The types of rows and columns of a header's number, or `None`.
    pub const fn records_from_code(code: u32) -> Option<(WeightType, WeightType)> {
        match (WeightType::from_code(code & 0xff), code >> 8) {
            (Some(records), 0) => Some((records, records)),
            (Some(records), own) => match WeightType::from_code(own - 1) {
                Some(down) if down as u32 != records as u32 => Some((records, down)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Bytes of one (layer, expert)'s records on flash.
    pub const fn expert_bytes(&self, shape: &Shape) -> u64 {
        let record = self.record(shape);
        round_up(record.units(shape.ff) * record.unit_bytes, BLOCK_BYTES)
    }

    /// Bytes of one embedding row on flash, its tag included.
    pub const fn embedding_row_bytes(&self, shape: &Shape) -> u64 {
        self.embedding.row_bytes(shape.hidden) + TAG_BYTES
    }

    /// Bytes of all embedding rows on flash.
    pub const fn embedding_bytes(&self, shape: &Shape) -> u64 {
        round_up(self.embedding_row_bytes(shape) * shape.vocab, BLOCK_BYTES)
    }
}
