//! Families of models, as data: a model of one of them needs no code.
//!
//! Called by `forge::model` only. A family says which keys and tensors its files hold, and in which
//! order they hold the rows that are turned. Invariant: a key or tensor that is not read here is
//! refused by name, since it would change the text.

use super::{Keys, ModelFileError, outliers};
use crate::forge::source::Source;
use crate::image::shape::WINDOW_MAX;
use crate::image::{ActivationFn, Biases, Shape};

/// Whether files of a family have a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// None has it.
    Never,
    /// Some have it.
    Perhaps,
    /// All have it.
    Always,
}

/// Which values of a head are turned together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeOrder {
    /// 2i and 2i + 1, as the engine does.
    Pairs,
    /// i and i + half of the turned ones.
    Halves,
}

/// What the files of a family have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// `general.architecture`, and the prefix of the model's keys.
    pub architecture: &'static str,
    /// Order of the rows of q and k in a GGUF file. In safetensors it is always halves.
    pub gguf_order: RopeOrder,
    /// Biases of q, k and v.
    pub qkv_bias: Presence,
    /// Biases of the attention's output and, without experts, of gate, up and down.
    pub other_biases: Presence,
    /// Whether a router may choose among experts.
    pub experts: bool,
}

const LLAMA: Family = Family {
    architecture: "llama",
    gguf_order: RopeOrder::Pairs,
    qkv_bias: Presence::Perhaps,
    other_biases: Presence::Perhaps,
    experts: true,
};

/// Every family. GGUF files of Mistral and Mixtral say `llama`.
pub const FAMILIES: [Family; 4] = [
    LLAMA,
    Family { architecture: "mistral", ..LLAMA },
    Family { architecture: "mixtral", ..LLAMA },
    Family {
        architecture: "qwen2",
        gguf_order: RopeOrder::Halves,
        qkv_bias: Presence::Always,
        other_biases: Presence::Never,
        experts: false,
    },
];

/// Their names, for messages.
const NAMES: &str = "the families llama, mistral, mixtral and qwen2";

/// Keys behind the architecture's name that are read, here or in `rope`.
const READ: [&str; 23] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.low_freq_factor",
    "rope.scaling.high_freq_factor",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
];
/// Those of families with experts.
const READ_OF_EXPERTS: [&str; 2] = ["expert_count", "expert_used_count"];
/// Keys that change nothing: tensors say the same, or they tell how the model was made.
const IDLE: [&str; 3] = ["vocab_size", "tensor_data_layout", "rope.scaling.finetuned"];

impl Family {
    /// The family of a file; every key under its name is known.
    pub fn of(source: &Source) -> Result<&'static Family, ModelFileError> {
        let found = source.string("general.architecture")?;
        let unknown = |key: &str, found: &str, wanted| ModelFileError::Unknown {
            path: source.path().display().to_string(),
            key: key.into(),
            found: found.into(),
            wanted,
        };
        let family = FAMILIES.iter().find(|family| family.architecture == found);
        let family = family.ok_or_else(|| unknown("general.architecture", found, NAMES))?;
        let own = |key: &&str| key.strip_prefix(found).is_some_and(|rest| rest.starts_with('.'));
        match source.keys().filter(own).find(|key| !family.knows(&key[found.len() + 1..])) {
            None => Ok(family),
            Some(key) => Err(unknown("a key", key, "models without it")),
        }
    }

    fn knows(&self, key: &str) -> bool {
        READ.contains(&key) || IDLE.contains(&key) || self.experts && READ_OF_EXPERTS.contains(&key)
    }

    /// The dimensions that the file's keys and tensors give.
    pub(super) fn shape(
        &self,
        source: &Source,
        keys: &Keys<'_>,
        tokenizer_bytes: u64,
    ) -> Result<Shape, ModelFileError> {
        let head_dim = keys.head_dim()?;
        let value_dim = keys.opt_number("attention.value_length")?.unwrap_or(head_dim);
        if value_dim != head_dim {
            let wanted = "values as wide as keys";
            return Err(keys.unknown("attention.value_length", value_dim, wanted));
        }
        let experts = match keys.opt_number("expert_count")?.unwrap_or(0) {
            0 => 1, // how some writers say dense
            experts => experts,
        };
        let used = if experts > 1 { keys.opt_number("expert_used_count")? } else { None };
        let heads = keys.number("attention.head_count")?;
        let activation = activation(source)?;
        let ff = keys.number("feed_forward_length")?;
        Ok(Shape {
            layers: keys.number("block_count")?,
            hidden: keys.number("embedding_length")?,
            heads,
            kv_heads: keys.opt_number("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            experts,
            experts_used: used.unwrap_or(1),
            ff: if ff > 0 { ff.saturating_add(outliers(activation)) } else { 0 },
            vocab: source.tensor("token_embd.weight")?.rows(),
            activation,
            tied: source.opt_tensor("output.weight").is_none(),
            biases: self.biases(source),
            window: window(keys)?,
            tokenizer_bytes,
        })
    }

    /// The biases of the first layer; every other layer must have the same.
    fn biases(&self, source: &Source) -> Biases {
        let has = |presence, tensor| match presence {
            Presence::Never => false,
            Presence::Perhaps => source.opt_tensor(tensor).is_some(),
            Presence::Always => true,
        };
        Biases {
            qkv: has(self.qkv_bias, "blk.0.attn_q.bias"),
            output: has(self.other_biases, "blk.0.attn_output.bias"),
            ffn: has(self.other_biases, "blk.0.ffn_gate.bias"),
        }
    }
}

/// The gate's activation: our own key, or SiLU as every plain file of these families means.
fn activation(source: &Source) -> Result<ActivationFn, ModelFileError> {
    let key = "powerinfer.ffn_activation";
    let found = source.opt_string(key)?.unwrap_or(ActivationFn::SiLu.name());
    let known = ActivationFn::ALL.into_iter().find(|known| known.name() == found);
    known.ok_or_else(|| ModelFileError::Unknown {
        path: source.path().display().to_string(),
        key: key.into(),
        found: found.into(),
        wanted: ActivationFn::NAMES,
    })
}

/// The keys that a position sees, 0 where that is all: as many as any plan has, or no key.
fn window(keys: &Keys<'_>) -> Result<u64, ModelFileError> {
    let window = keys.opt_number("attention.sliding_window")?.unwrap_or(0);
    Ok(if window > WINDOW_MAX { 0 } else { window })
}
