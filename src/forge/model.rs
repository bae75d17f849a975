//! A model file as the packer sees it: its shape, its constants, its tensors by role.
//!
//! Used by `pack`, `shape` and build.rs. This version knows the `llama` family, dense or with
//! routed experts, with a gate of any known activation; everything else is refused by name.

use super::gguf::{GgmlType, Gguf, GgufError, Tensor};
use super::tokenizer::{TokenizerError, TokenizerSource, build};
use crate::image::header::Constants;
use crate::image::{ActivationFn, Shape};
use std::path::Path;

/// Why a file is not a model that can be packed.
#[derive(Debug, thiserror::Error)]
pub enum ModelFileError {
    /// The file is not a sound GGUF.
    #[error("{0}")]
    Gguf(Box<GgufError>),
    /// Its tokenizer can't be packed.
    #[error("{path}: {source}")]
    Tokenizer {
        /// The file.
        path: String,
        /// What stands in the way.
        source: TokenizerError,
    },
    /// A key holds something this version doesn't run.
    #[error("{path}: {key} is {found:?}; this version runs {wanted}")]
    Unknown {
        /// The file.
        path: String,
        /// The key.
        key: &'static str,
        /// What it holds.
        found: String,
        /// What it may hold.
        wanted: &'static str,
    },
    /// A dimension is outside the limits.
    #[error(
        "{path}: {name} is {found}, outside 1 to {limit}; the file is damaged or not a decoder"
    )]
    Shape {
        /// The file.
        path: String,
        /// The dimension.
        name: &'static str,
        /// Largest value.
        limit: u64,
        /// Its value.
        found: u64,
    },
    /// A dimension does not divide as it must.
    #[error("{path}: {name} is {found}, not a multiple of {of}; this version can't run that")]
    Multiple {
        /// The file.
        path: String,
        /// The dimension.
        name: &'static str,
        /// What it must be a multiple of.
        of: u64,
        /// Its value.
        found: u64,
    },
    /// The tokenizer has ids that no embedding row stands for.
    #[error(
        "{path}: the tokenizer has {tokens} tokens, token_embd.weight only {rows} rows; \
             the file is damaged or joined from two models"
    )]
    Vocabulary {
        /// The file.
        path: String,
        /// Tokens of the tokenizer.
        tokens: u64,
        /// Rows of the embedding matrix.
        rows: u64,
    },
    /// A weight is not a number.
    #[error(
        "{path}: tensor {name} holds a weight that is not finite in row {row}; \
             the file is damaged, get it again"
    )]
    NotFinite {
        /// The file.
        path: String,
        /// The tensor.
        name: String,
        /// The row.
        row: u64,
    },
    /// A tensor has other dimensions than the model's.
    #[error("{path}: tensor {name} is {found:?}, the model's dimensions ask for {wanted:?}")]
    TensorShape {
        /// The file.
        path: String,
        /// The tensor.
        name: String,
        /// What the dimensions ask for, row length first.
        wanted: Vec<u64>,
        /// What it has.
        found: Vec<u64>,
    },
}

impl From<GgufError> for ModelFileError {
    fn from(error: GgufError) -> ModelFileError {
        ModelFileError::Gguf(Box::new(error))
    }
}

/// An open model file.
pub struct ModelFile {
    /// The tensors.
    pub gguf: Gguf,
    /// The model's name.
    pub name: String,
    /// Its dimensions.
    pub shape: Shape,
    /// Its scalars.
    pub constants: Constants,
    /// The packed tokenizer.
    pub tokenizer: Vec<u8>,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
}

/// Tensor roles of a layer: (name within the layer, rows, columns, experts).
type Role = (&'static str, u64, u64, u64);

/// The matrices of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ffn {
    /// hidden -> ff, its activation decides.
    Gate,
    /// hidden -> ff.
    Up,
    /// ff -> hidden.
    Down,
}

impl ModelFile {
    /// Opens `path` and checks that every tensor of the model is there with its dimensions.
    pub fn open(path: &Path) -> Result<ModelFile, ModelFileError> {
        let gguf = Gguf::open(path)?;
        let file = path.display().to_string();
        expect(&gguf, "general.architecture", "llama", "the llama family")?;
        plain_rope(&gguf)?;
        let tokenizer = tokenizer(&gguf)?;
        let shape = shape(&gguf, tokenizer.len() as u64)?;
        if let Some((name, limit, found)) = shape.range_fault() {
            return Err(ModelFileError::Shape { path: file, name, limit, found });
        }
        if let Some((name, of, found)) = shape.multiple_fault() {
            return Err(ModelFileError::Multiple { path: file, name, of, found });
        }
        let tokens = gguf.strings("tokenizer.ggml.tokens")?.len() as u64;
        if tokens > shape.vocab {
            return Err(ModelFileError::Vocabulary { path: file, tokens, rows: shape.vocab });
        }
        let name = gguf.opt_string("general.name")?.unwrap_or("model").to_string();
        let constants = Constants {
            rms_eps: gguf.f32("llama.attention.layer_norm_rms_epsilon")?,
            context_trained: gguf.u32("llama.context_length")?,
        };
        let rope_base = gguf.opt_f32("llama.rope.freq_base")?.unwrap_or(10_000.0);
        let model = ModelFile { gguf, name, shape, constants, tokenizer, rope_base };
        model.check_tensors()?;
        Ok(model)
    }

    /// Rows of a tensor, every weight of which must be finite.
    pub fn rows(
        &self,
        tensor: &Tensor,
        first: u64,
        count: u64,
    ) -> Result<Vec<f32>, ModelFileError> {
        let values = self.gguf.rows_f32(tensor, first, count)?;
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(at) => Err(ModelFileError::NotFinite {
                path: self.gguf.path().display().to_string(),
                name: tensor.name.clone(),
                row: first + at as u64 / tensor.row_elements(),
            }),
        }
    }

    /// A tensor of a layer.
    pub fn layer_tensor(&self, layer: u64, role: &str) -> Result<&Tensor, ModelFileError> {
        Ok(self.gguf.tensor(&format!("blk.{layer}.{role}.weight"))?)
    }

    /// A matrix of a layer's feed-forward network: of all its experts, or of the one there is.
    pub fn ffn_tensor(&self, layer: u64, matrix: Ffn) -> Result<&Tensor, ModelFileError> {
        self.layer_tensor(layer, self.ffn_role(matrix))
    }

    fn ffn_role(&self, matrix: Ffn) -> &'static str {
        match (matrix, self.shape.is_routed()) {
            (Ffn::Gate, true) => "ffn_gate_exps",
            (Ffn::Up, true) => "ffn_up_exps",
            (Ffn::Down, true) => "ffn_down_exps",
            (Ffn::Gate, false) => "ffn_gate",
            (Ffn::Up, false) => "ffn_up",
            (Ffn::Down, false) => "ffn_down",
        }
    }

    /// The output head: the embedding matrix where they are tied.
    pub fn head(&self) -> Result<&Tensor, ModelFileError> {
        let name = if self.shape.tied { "token_embd.weight" } else { "output.weight" };
        Ok(self.gguf.tensor(name)?)
    }

    /// Rotary frequencies: base^(-2i / head_dim).
    pub fn rope_frequencies(&self) -> Vec<f64> {
        let head_dim = self.shape.head_dim as f64;
        let base = f64::from(self.rope_base);
        (0..self.shape.head_dim / 2).map(|i| base.powf(-2.0 * i as f64 / head_dim)).collect()
    }

    fn check_tensors(&self) -> Result<(), ModelFileError> {
        let s = &self.shape;
        let roles: [Role; 9] = [
            ("attn_norm", 1, s.hidden, 1),
            ("attn_q", s.query_dim(), s.hidden, 1),
            ("attn_k", s.kv_dim(), s.hidden, 1),
            ("attn_v", s.kv_dim(), s.hidden, 1),
            ("attn_output", s.hidden, s.query_dim(), 1),
            ("ffn_norm", 1, s.hidden, 1),
            (self.ffn_role(Ffn::Gate), s.ff, s.hidden, s.experts),
            (self.ffn_role(Ffn::Up), s.ff, s.hidden, s.experts),
            (self.ffn_role(Ffn::Down), s.hidden, s.ff, s.experts),
        ];
        for layer in 0..s.layers {
            for (role, rows, columns, experts) in roles {
                self.check(self.layer_tensor(layer, role)?, columns, rows, experts)?;
            }
            if s.is_routed() {
                self.check(self.layer_tensor(layer, "ffn_gate_inp")?, s.hidden, s.experts, 1)?;
            }
        }
        self.check(self.gguf.tensor("token_embd.weight")?, s.hidden, s.vocab, 1)?;
        self.check(self.gguf.tensor("output_norm.weight")?, s.hidden, 1, 1)?;
        self.check(self.head()?, s.hidden, s.vocab, 1)?;
        self.refuse_the_unknown(&roles.map(|role| role.0))
    }

    /// A tensor this version does not read would change the text if it were left out.
    fn refuse_the_unknown(&self, roles: &[&str]) -> Result<(), ModelFileError> {
        let whole = ["token_embd.weight", "output_norm.weight", "output.weight"];
        let known = |name: &str| match name.strip_prefix("blk.").and_then(|n| n.split_once('.')) {
            Some((_, role)) => role
                .strip_suffix(".weight")
                .is_some_and(|role| role == "ffn_gate_inp" || roles.contains(&role)),
            None => whole.contains(&name),
        };
        match self.gguf.tensors().iter().find(|tensor| !known(&tensor.name)) {
            None => Ok(()),
            Some(tensor) => Err(ModelFileError::Unknown {
                path: self.gguf.path().display().to_string(),
                key: "a tensor",
                found: tensor.name.clone(),
                wanted: "models without it",
            }),
        }
    }

    fn check(
        &self,
        tensor: &Tensor,
        columns: u64,
        rows: u64,
        experts: u64,
    ) -> Result<(), ModelFileError> {
        let mut wanted = vec![columns, rows, experts];
        while wanted.len() > 1 && wanted.last() == Some(&1) {
            wanted.pop();
        }
        let mut found = tensor.dims.clone();
        while found.len() > 1 && found.last() == Some(&1) {
            found.pop();
        }
        if wanted == found {
            return Ok(());
        }
        let path = self.gguf.path().display().to_string();
        Err(ModelFileError::TensorShape { path, name: tensor.name.clone(), wanted, found })
    }

    /// Whether a tensor's own codes are those of `weight` in a row.
    pub fn has_codes_of(tensor: &Tensor, weight: crate::image::WeightType) -> bool {
        match weight {
            crate::image::WeightType::Q8 => tensor.kind == GgmlType::Q8_0,
            crate::image::WeightType::Q4 => tensor.kind == GgmlType::Q4_0,
            crate::image::WeightType::F16 => false,
        }
    }
}

fn expect(
    gguf: &Gguf,
    key: &'static str,
    value: &str,
    wanted: &'static str,
) -> Result<(), ModelFileError> {
    let found = gguf.string(key)?;
    if found == value {
        return Ok(());
    }
    let path = gguf.path().display().to_string();
    Err(ModelFileError::Unknown { path, key, found: found.into(), wanted })
}

fn shape(gguf: &Gguf, tokenizer_bytes: u64) -> Result<Shape, ModelFileError> {
    let number = |key: &str| gguf.u64(&format!("llama.{key}"));
    let heads = number("attention.head_count")?;
    let hidden = number("embedding_length")?;
    let head_dim = match gguf.opt_u64("llama.attention.key_length")? {
        Some(length) => length,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    let embedding = gguf.tensor("token_embd.weight")?;
    Ok(Shape {
        layers: number("block_count")?,
        hidden,
        heads,
        kv_heads: gguf.opt_u64("llama.attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        experts: gguf.opt_u64("llama.expert_count")?.unwrap_or(1),
        experts_used: gguf.opt_u64("llama.expert_used_count")?.unwrap_or(1),
        ff: number("feed_forward_length")?,
        vocab: embedding.rows(),
        activation: activation(gguf)?,
        tied: gguf.opt_tensor("output.weight").is_none(),
        tokenizer_bytes,
    })
}

/// Rotary positions without scaling, over the whole head.
fn plain_rope(gguf: &Gguf) -> Result<(), ModelFileError> {
    let unknown = |key, found: String, wanted| {
        let path = gguf.path().display().to_string();
        Err(ModelFileError::Unknown { path, key, found, wanted })
    };
    let scaling = gguf.opt_string("llama.rope.scaling.type")?.unwrap_or("none");
    if scaling != "none" {
        return unknown("llama.rope.scaling.type", scaling.into(), "models without rope scaling");
    }
    let turned = gguf.opt_u64("llama.rope.dimension_count")?;
    let head = match gguf.opt_u64("llama.attention.key_length")? {
        Some(length) => Some(length),
        None => {
            gguf.u64("llama.embedding_length")?.checked_div(gguf.u64("llama.attention.head_count")?)
        }
    };
    match turned {
        Some(turned) if Some(turned) != head => {
            let key = "llama.rope.dimension_count";
            unknown(key, turned.to_string(), "rope over the whole head")
        }
        _ => Ok(()),
    }
}

/// The gate's activation: our own key, or SiLU as every plain llama file means.
fn activation(gguf: &Gguf) -> Result<ActivationFn, ModelFileError> {
    let key = "powerinfer.ffn_activation";
    let found = gguf.opt_string(key)?.unwrap_or(ActivationFn::SiLu.name());
    let known = ActivationFn::ALL.into_iter().find(|known| known.name() == found);
    known.ok_or_else(|| {
        let path = gguf.path().display().to_string();
        ModelFileError::Unknown { path, key, found: found.into(), wanted: ActivationFn::NAMES }
    })
}

fn tokenizer(gguf: &Gguf) -> Result<Vec<u8>, ModelFileError> {
    let tokens = gguf.strings("tokenizer.ggml.tokens")?.to_vec();
    let types = match gguf.opt_i32s("tokenizer.ggml.token_type")? {
        Some(types) => types,
        None => vec![1; tokens.len()],
    };
    let bos = gguf.opt_u32("tokenizer.ggml.bos_token_id")?;
    let source = TokenizerSource {
        model: gguf.string("tokenizer.ggml.model")?.into(),
        pre: gguf.opt_string("tokenizer.ggml.pre")?.unwrap_or("default").into(),
        tokens,
        types,
        merges: gguf.strings("tokenizer.ggml.merges")?.to_vec(),
        bos,
        eos: gguf.opt_u32("tokenizer.ggml.eos_token_id")?,
        add_bos: gguf.opt_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(false),
    };
    let path = gguf.path().display().to_string();
    build(&source).map_err(|source| ModelFileError::Tokenizer { path, source })
}
