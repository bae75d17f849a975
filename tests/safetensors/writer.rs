//! Writes checkpoints: what a model of a GGUF file looks like as safetensors and JSON.
//!
//! Shares nothing with the reader: names and keys are turned the other way round.
#![allow(dead_code)] // each suite uses its part

use ganglion::forge::gguf;
use ganglion::forge::source::{GgmlType, Source};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// A tensor of a safetensors file; its shape has the row length last.
#[derive(Clone, Debug)]
pub struct Spec {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<u64>,
    pub data: Vec<u8>,
}

/// A safetensors file of `tensors`, whose header may be changed before it is written.
pub fn file(tensors: &[Spec], change: impl FnOnce(&mut Map<String, Value>)) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    for tensor in tensors {
        let start = data.len();
        data.extend(&tensor.data);
        let places = json!([start, data.len()]);
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": places});
        header.insert(tensor.name.clone(), entry);
    }
    change(&mut header);
    with_header(&Value::Object(header).to_string(), &data)
}

/// A file with this text as its header.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), data].concat()
}

/// A GGUF file seen as a checkpoint.
pub struct Checkpoint {
    pub gguf: Source,
    /// The model type.
    pub kind: &'static str,
}

impl Checkpoint {
    /// The model in the GGUF file `path`, of F32 and F16 tensors.
    pub fn open(path: &Path, kind: &'static str) -> Checkpoint {
        Checkpoint { gguf: gguf::open(path).unwrap(), kind }
    }

    fn number(&self, key: &str) -> Option<u64> {
        let architecture = self.gguf.string("general.architecture").unwrap();
        self.gguf.opt_u64(&format!("{architecture}.{key}")).unwrap()
    }

    fn real(&self, key: &str) -> Option<f64> {
        let architecture = self.gguf.string("general.architecture").unwrap();
        let value = self.gguf.opt_f32(&format!("{architecture}.{key}")).unwrap();
        value.map(|value| value.to_string().parse().unwrap()) // 1e-5 and not 9.999e-6
    }

    fn head_dim(&self) -> u64 {
        let heads = self.number("attention.head_count").unwrap();
        let split = self.number("embedding_length").unwrap() / heads;
        self.number("attention.key_length").unwrap_or(split)
    }

    /// The tensors under their Hugging Face names, experts one by one.
    pub fn tensors(&self) -> Vec<Spec> {
        let mut out = Vec::new();
        for tensor in self.gguf.tensors() {
            let mut data = vec![0; tensor.bytes as usize];
            self.gguf.read_raw(tensor, 0, &mut data).unwrap();
            let turned = [".attn_q.", ".attn_k."].iter().any(|role| tensor.name.contains(role));
            if turned && self.kind != "qwen2" {
                let heads =
                    if tensor.name.contains("attn_q") { "head_count" } else { "head_count_kv" };
                let heads = self.number(&format!("attention.{heads}")).unwrap();
                data = halved(&data, self.head_dim(), heads as usize);
            }
            let dtype = match tensor.kind {
                GgmlType::F32 => "F32",
                GgmlType::F16 => "F16",
                other => panic!("{} is {}", tensor.name, other.name),
            };
            let shape: Vec<u64> = tensor.dims.iter().rev().copied().collect();
            if !tensor.name.contains("_exps") {
                let name = their_name(&tensor.name, 0);
                out.push(Spec { name, dtype, shape, data });
                continue;
            }
            let size = data.len() / shape[0] as usize;
            for (expert, part) in data.chunks_exact(size).enumerate() {
                let (name, shape) = (their_name(&tensor.name, expert), shape[1..].to_vec());
                out.push(Spec { name, dtype, shape, data: part.to_vec() });
            }
        }
        out
    }

    /// config.json.
    pub fn config(&self) -> Value {
        let has = |name: &str| self.gguf.opt_tensor(name).is_some();
        let activation = self.gguf.opt_string("powerinfer.ffn_activation").unwrap();
        let mut config = json!({
            "model_type": self.kind,
            "architectures": ["TurboSparseMixtralForCausalLM"],
            "hidden_act": if activation == Some("drelu") { "relu" } else { "silu" },
            "hidden_size": self.number("embedding_length"),
            "intermediate_size": self.number("feed_forward_length"),
            "num_hidden_layers": self.number("block_count"),
            "num_attention_heads": self.number("attention.head_count"),
            "num_key_value_heads": self.number("attention.head_count_kv"),
            "head_dim": self.number("attention.key_length"),
            "max_position_embeddings": self.number("context_length"),
            "rms_norm_eps": self.real("attention.layer_norm_rms_epsilon"),
            "rope_theta": self.real("rope.freq_base"),
            "sliding_window": self.number("attention.sliding_window"),
            "tie_word_embeddings": !has("output.weight"),
            "torch_dtype": "float16",
            "vocab_size": self.gguf.tensor("token_embd.weight").unwrap().rows(),
        });
        if self.kind == "mixtral" {
            config["num_local_experts"] = json!(self.number("expert_count"));
            config["num_experts_per_tok"] = json!(self.number("expert_used_count"));
        }
        if self.kind == "qwen2" {
            config["sliding_window"] = json!(4096);
            config["use_sliding_window"] = json!(false);
        }
        let architecture = self.gguf.string("general.architecture").unwrap();
        let scaling = self.gguf.opt_string(&format!("{architecture}.rope.scaling.type")).unwrap();
        if let Some(scaling) = scaling {
            config["rope_scaling"] = json!({
                "rope_type": scaling,
                "factor": self.real("rope.scaling.factor"),
                "low_freq_factor": self.real("rope.scaling.low_freq_factor"),
                "high_freq_factor": self.real("rope.scaling.high_freq_factor"),
                "original_max_position_embeddings":
                    self.number("rope.scaling.original_context_length"),
            });
        }
        config
    }

    /// tokenizer.json of a byte-level vocabulary whose first token is special.
    pub fn tokenizer(&self) -> Value {
        let tokens = self.gguf.strings("tokenizer.ggml.tokens").unwrap();
        let ids: Map<String, Value> =
            tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
        json!({
            "added_tokens": [{"id": 0, "content": tokens[0], "special": true}],
            "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
            "post_processor": null,
            "model": {
                "type": "BPE", "vocab": ids, "ignore_merges": false, "byte_fallback": false,
                "merges": self.gguf.strings("tokenizer.ggml.merges").unwrap(),
            },
        })
    }

    /// tokenizer_config.json.
    pub fn settings(&self) -> Value {
        let tokens = self.gguf.strings("tokenizer.ggml.tokens").unwrap();
        let token = |key: &str| {
            let id = self.gguf.opt_u32(&format!("tokenizer.ggml.{key}_token_id")).unwrap();
            id.map(|id| json!({"content": tokens[id as usize], "lstrip": false}))
        };
        let add_bos = self.gguf.opt_bool("tokenizer.ggml.add_bos_token").unwrap();
        json!({
            "bos_token": token("bos"), "eos_token": token("eos"),
            "add_bos_token": add_bos.unwrap_or(false),
        })
    }

    /// The JSON files by name.
    pub fn json_files(&self) -> Vec<(String, Vec<u8>)> {
        let files = [
            ("config.json", self.config()),
            ("tokenizer.json", self.tokenizer()),
            ("tokenizer_config.json", self.settings()),
        ];
        files.map(|(name, value)| (name.to_string(), value.to_string().into_bytes())).to_vec()
    }

    /// All files by name, the tensors in so many shards, with an index if several.
    pub fn files(&self, shards: usize) -> Vec<(String, Vec<u8>)> {
        let (mut files, tensors) = (self.json_files(), self.tensors());
        if shards == 1 {
            files.push(("model.safetensors".into(), file(&tensors, |_| {})));
            return files;
        }
        let mut map = Map::new();
        for (number, part) in tensors.chunks(tensors.len().div_ceil(shards)).enumerate() {
            let name = shard_name(number + 1, shards);
            map.extend(part.iter().map(|tensor| (tensor.name.clone(), json!(name))));
            files.push((name, file(part, |_| {})));
        }
        let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
        files.push(("model.safetensors.index.json".into(), index.to_string().into_bytes()));
        files
    }

    /// Writes [`Checkpoint::files`] into `folder`.
    pub fn write(&self, folder: &Path, shards: usize) {
        put(folder, &self.files(shards));
    }

    /// Writes [`Checkpoint::json_files`] into `folder`.
    pub fn write_json(&self, folder: &Path) {
        put(folder, &self.json_files());
    }
}

fn put(folder: &Path, files: &[(String, Vec<u8>)]) {
    files.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).unwrap());
}

/// The usual name of a shard.
pub fn shard_name(number: usize, count: usize) -> String {
    format!("model-{number:05}-of-{count:05}.safetensors")
}

/// Rows in the order of halves: of each head first the even ones, then the odd ones.
fn halved(data: &[u8], head_dim: u64, heads: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for head in data.chunks_exact(data.len() / heads) {
        let rows: Vec<&[u8]> = head.chunks_exact(head.len() / head_dim as usize).collect();
        for odd in 0..2 {
            rows.iter().skip(odd).step_by(2).for_each(|row| out.extend_from_slice(row));
        }
    }
    out
}

fn their_name(ours: &str, expert: usize) -> String {
    let whole = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    if let Some((_, theirs)) = whole.iter().find(|(name, _)| *name == ours) {
        return (*theirs).into();
    }
    let mut parts = ours.split('.');
    let (_, layer, role, kind) =
        (parts.next(), parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    let module = match role {
        "attn_norm" => "input_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        "ffn_gate_inp" => "block_sparse_moe.gate",
        "ffn_gate_exps" => &format!("block_sparse_moe.experts.{expert}.w1"),
        "ffn_up_exps" => &format!("block_sparse_moe.experts.{expert}.w3"),
        "ffn_down_exps" => &format!("block_sparse_moe.experts.{expert}.w2"),
        other => panic!("{other} has no name there"),
    };
    format!("model.layers.{layer}.{module}.{kind}")
}
