//! config.json of a checkpoint -> the keys of GGUF.
//!
//! Called once a checkpoint. A model type is taken for what its class in the transformers library
//! does; keys that other classes add are theirs to mean and are not looked for.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::forge::source::{Fault, Kind, Value, quoted};
use crate::image::ActivationFn;

/// The model types that are read; GGUF's architecture has the same name.
const MODEL_TYPES: [&str; 4] = ["llama", "mistral", "qwen2", "mixtral"];
const MODEL_TYPE_NAMES: &str = "llama, mistral, qwen2 or mixtral";
/// Classes whose `relu` stands before both gate and up.
const DRELU_CLASSES: [&str; 3] =
    ["TurboSparseMixtralForCausalLM", "TurboSparseMistralForCausalLM", "BambooForCausalLM"];

/// What config.json says, as far as it is asked.
#[derive(Deserialize)]
pub struct Config {
    model_type: String,
    #[serde(default)]
    architectures: Option<Vec<String>>,
    hidden_size: u64,
    intermediate_size: u64,
    num_hidden_layers: u64,
    num_attention_heads: u64,
    num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    max_position_embeddings: u64,
    rms_norm_eps: f64,
    vocab_size: u64,
    #[serde(default)]
    hidden_act: Option<String>,
    #[serde(default)]
    tie_word_embeddings: bool,
    rope_theta: Option<f64>,
    rope_scaling: Option<RopeScaling>,
    /// Newer than the two before, and in their place.
    rope_parameters: Option<RopeScaling>,
    sliding_window: Option<u64>,
    use_sliding_window: Option<bool>,
    num_local_experts: Option<u64>,
    num_experts_per_tok: Option<u64>,
    quantization_config: Option<BTreeMap<String, serde_json::Value>>,
    bos_token_id: Option<Ids>,
    eos_token_id: Option<Ids>,
}

/// One token or several.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u64),
    Several(Vec<u64>),
}

impl Ids {
    fn first(&self) -> Option<u64> {
        match self {
            Ids::One(id) => Some(*id),
            Ids::Several(ids) => ids.first().copied(),
        }
    }
}

#[derive(Deserialize)]
struct RopeScaling {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    original_max_position_embeddings: Option<u64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
}

/// Keys and their values.
pub type Keys = BTreeMap<String, Value>;

impl Config {
    /// The keys behind the model type's name, and the general ones.
    pub fn keys(&self) -> Result<Keys, Fault> {
        self.refuse_the_unknown()?;
        let mut keys = Keys::new();
        keys.insert("general.architecture".into(), Value::String(self.model_type.clone()));
        keys.insert("powerinfer.ffn_activation".into(), Value::String(self.activation()?.into()));
        let experts = self.num_local_experts.map(|_| self.num_experts_per_tok.unwrap_or(2));
        let window = self.sliding_window.filter(|_| self.use_sliding_window != Some(false));
        let numbers = [
            ("block_count", Some(self.num_hidden_layers)),
            ("context_length", Some(self.max_position_embeddings)),
            ("embedding_length", Some(self.hidden_size)),
            ("feed_forward_length", Some(self.intermediate_size)),
            ("vocab_size", Some(self.vocab_size)),
            ("attention.head_count", Some(self.num_attention_heads)),
            ("attention.head_count_kv", self.num_key_value_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("attention.sliding_window", window),
            ("expert_count", self.num_local_experts),
            ("expert_used_count", experts),
        ];
        for (key, value) in numbers {
            self.put(&mut keys, key, value.map(whole));
        }
        self.put(&mut keys, "attention.layer_norm_rms_epsilon", Some(real(self.rms_norm_eps)));
        self.rope(&mut keys)?;
        Ok(keys)
    }

    fn put(&self, keys: &mut Keys, key: &str, value: Option<Value>) {
        keys.extend(value.map(|value| (format!("{}.{key}", self.model_type), value)));
    }

    fn refuse_the_unknown(&self) -> Result<(), Fault> {
        if !MODEL_TYPES.contains(&self.model_type.as_str()) {
            return Err(unknown("model_type", &self.model_type, MODEL_TYPE_NAMES));
        }
        if let Some(quantised) = &self.quantization_config {
            let method = quantised.get("quant_method").and_then(|method| method.as_str());
            let wanted = "checkpoints whose weights are F32, F16 or BF16";
            return Err(unknown("quantization_config", method.unwrap_or("there"), wanted));
        }
        if self.model_type == "qwen2" && self.use_sliding_window == Some(true) {
            return Err(unknown("use_sliding_window", "true", "false: no window in some layers"));
        }
        Ok(())
    }

    fn activation(&self) -> Result<&'static str, Fault> {
        let classes = self.architectures.as_deref().unwrap_or_default();
        let is_drelu = classes.iter().any(|class| DRELU_CLASSES.contains(&class.as_str()));
        let activation = match self.hidden_act.as_deref().unwrap_or("silu") {
            "relu" if is_drelu => ActivationFn::DRelu,
            "relu" => ActivationFn::Relu,
            "silu" | "swish" => ActivationFn::SiLu,
            "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => ActivationFn::Gelu,
            other => return Err(unknown("hidden_act", other, "silu, relu or gelu_pytorch_tanh")),
        };
        Ok(activation.name())
    }

    fn rope(&self, keys: &mut Keys) -> Result<(), Fault> {
        let scaling = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let base = scaling.and_then(|scaling| scaling.rope_theta).or(self.rope_theta);
        self.put(keys, "rope.freq_base", base.map(real));
        let Some(scaling) = scaling else { return Ok(()) };
        let kind = match scaling.rope_type.as_deref().unwrap_or("default") {
            "default" => return Ok(()),
            kind => Value::String(kind.into()),
        };
        if scaling.mscale.is_some() || scaling.mscale_all_dim.is_some() {
            return Err(unknown("rope_scaling.mscale", "there", "rope scaling without it"));
        }
        let trained = scaling.original_max_position_embeddings;
        self.put(keys, "rope.scaling.type", Some(kind));
        self.put(keys, "rope.scaling.original_context_length", trained.map(whole));
        let factors = [
            ("factor", scaling.factor),
            ("low_freq_factor", scaling.low_freq_factor),
            ("high_freq_factor", scaling.high_freq_factor),
            ("yarn_attn_factor", scaling.attention_factor),
            ("yarn_beta_fast", scaling.beta_fast),
            ("yarn_beta_slow", scaling.beta_slow),
        ];
        for (key, value) in factors {
            self.put(keys, &format!("rope.scaling.{key}"), value.map(real));
        }
        Ok(())
    }

    /// Experts a layer, where a router chooses among several.
    pub fn experts(&self) -> Option<u64> {
        self.num_local_experts
    }

    /// Rows of the embedding matrix.
    pub fn vocab(&self) -> u64 {
        self.vocab_size
    }

    /// Whether the head is the embedding matrix.
    pub fn tied(&self) -> bool {
        self.tie_word_embeddings
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u64> {
        self.bos_token_id.as_ref().and_then(Ids::first)
    }

    /// The token that ends a text, the first of several.
    pub fn eos(&self) -> Option<u64> {
        self.eos_token_id.as_ref().and_then(Ids::first)
    }
}

/// An integer of the metadata.
pub fn whole(value: u64) -> Value {
    Value::scalar(Kind::U64, &value.to_le_bytes())
}

fn real(value: f64) -> Value {
    Value::scalar(Kind::F64, &value.to_le_bytes())
}

fn unknown(key: &'static str, found: &str, wanted: &'static str) -> Fault {
    Fault::ConfigValue { key, found: quoted(found), wanted }
}
