//! Numerics: everything that can change a number, and so the text.
//!
//! Same numerics, prompt and seed give the same text, bit for bit, whatever the budget, threads,
//! instruction set or order of reads. The solver never picks among them.

use crate::image::geometry::GROUP;
use crate::image::{Shape, Types};

/// Version of the canonical arithmetic (order of operations, roundings, own exp and rsqrt).
pub const ARITHMETIC: u32 = 1;

/// How cached keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// IEEE half floats.
    Half,
    /// IEEE single floats.
    Single,
    /// 8-bit codes, an IEEE single float as the scale of each 32.
    Byte,
}

impl KvType {
    /// Every type.
    pub const ALL: [KvType; 3] = [KvType::Half, KvType::Single, KvType::Byte];

    /// Name in plans and messages.
    pub const fn name(self) -> &'static str {
        match self {
            KvType::Half => "f16",
            KvType::Single => "f32",
            KvType::Byte => "q8",
        }
    }

    /// Bytes of a row of `head_dim` values, whole groups of 32 where they are codes.
    pub const fn row_bytes(self, head_dim: u64) -> u64 {
        match self {
            KvType::Half => head_dim * 2,
            KvType::Single => head_dim * 4,
            KvType::Byte => head_dim + head_dim / GROUP * 4,
        }
    }

    /// Number in the hash.
    const fn code(self) -> u32 {
        match self {
            KvType::Half => 2,
            KvType::Single => 4,
            KvType::Byte => 8,
        }
    }
}

/// What the numbers depend on, beside the weights themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numerics {
    /// How weights are stored.
    pub types: Types,
    /// How keys and values are stored.
    pub kv: KvType,
}

impl Numerics {
    /// One number for all of it, printed by `plan`, `bench` and every summary line: FNV-1a over
    /// the arithmetic version, the types and the expert count. The predictor is `none` (exact).
    pub const fn hash(&self, shape: &Shape) -> u32 {
        let words = [
            ARITHMETIC,
            self.types.records_code(),
            self.types.resident.code(),
            self.types.head.code(),
            self.types.embedding.code(),
            self.kv.code(),
            shape.activation.code(),
            shape.experts_used as u32,
        ];
        let mut hash: u32 = 0x811c_9dc5;
        let mut i = 0;
        while i < words.len() {
            let bytes = words[i].to_le_bytes();
            let mut j = 0;
            while j < bytes.len() {
                hash = (hash ^ bytes[j] as u32).wrapping_mul(0x0100_0193);
                j += 1;
            }
            i += 1;
        }
        hash
    }
}
