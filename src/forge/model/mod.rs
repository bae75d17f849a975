//! A model file as the packer sees it: its shape, its constants, its tensors by role.
//!
//! Used by `pack`, `shape` and build.rs. `family` holds what the known families have in common,
//! `rope` how they turn queries and keys; everything else is refused by name.

mod error;
mod family;
mod rope;

pub use error::ModelFileError;
pub use family::Family;
use family::RopeOrder;
pub use rope::Rope;

use super::gguf;
use super::source::{Format, GgmlType, Source, Tensor};
use super::tokenizer::build;
use super::vocabulary;
use crate::image::header::Constants;
use crate::image::{ActivationFn, Shape};
use std::fmt::Display;
use std::path::Path;

/// An open model file.
pub struct ModelFile {
    /// The tensors.
    pub source: Source,
    /// The model's name.
    pub name: String,
    /// Its family.
    pub family: &'static Family,
    /// Its dimensions.
    pub shape: Shape,
    /// Its scalars.
    pub constants: Constants,
    /// The packed tokenizer.
    pub tokenizer: Vec<u8>,
    /// How queries and keys are turned.
    pub rope: Rope,
}

/// Neurons at the end of each expert's image that are parts of others: see `pack::outliers`. Models
/// that were trained with ReLU or dReLU have no need of them.
#[must_use]
pub const fn outliers(activation: ActivationFn) -> u64 {
    match activation {
        ActivationFn::SiLu | ActivationFn::Gelu => 4,
        ActivationFn::Relu | ActivationFn::DRelu => 0,
    }
}

/// Neurons of an expert in the source of an image of `shape`.
#[must_use]
pub const fn source_ff(shape: &Shape) -> u64 {
    shape.ff.saturating_sub(outliers(shape.activation))
}

/// Keys of a file behind its architecture's name.
struct Keys<'g> {
    source: &'g Source,
    architecture: &'static str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn number(&self, key: &str) -> Result<u64, ModelFileError> {
        Ok(self.source.u64(&self.name(key))?)
    }

    fn opt_number(&self, key: &str) -> Result<Option<u64>, ModelFileError> {
        Ok(self.source.opt_u64(&self.name(key))?)
    }

    fn opt_string(&self, key: &str) -> Result<Option<&str>, ModelFileError> {
        Ok(self.source.opt_string(&self.name(key))?)
    }

    /// A float above 0.
    fn positive(&self, key: &str) -> Result<Option<f32>, ModelFileError> {
        match self.source.opt_f32(&self.name(key))? {
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(self.unknown(key, value, "numbers above 0"))
            }
            value => Ok(value),
        }
    }

    /// Width of a head.
    fn head_dim(&self) -> Result<u64, ModelFileError> {
        if let Some(length) = self.opt_number("attention.key_length")? {
            return Ok(length);
        }
        let heads = self.number("attention.head_count")?;
        Ok(self.number("embedding_length")?.checked_div(heads).unwrap_or(0))
    }

    fn unknown(&self, key: &str, found: impl Display, wanted: &'static str) -> ModelFileError {
        let path = self.source.path().display().to_string();
        ModelFileError::Unknown { path, key: self.name(key), found: found.to_string(), wanted }
    }
}

/// A tensor of a layer: (role, rows, columns, experts).
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
    /// Opens the GGUF file `path`; see [`ModelFile::new`].
    pub fn open(path: &Path) -> Result<ModelFile, ModelFileError> {
        ModelFile::new(gguf::open(path)?)
    }

    /// Checks that every tensor of the model is there with its dimensions.
    pub fn new(source: Source) -> Result<ModelFile, ModelFileError> {
        let file = source.path().display().to_string();
        let family = Family::of(&source)?;
        let keys = Keys { source: &source, architecture: family.architecture };
        let tokenizer = build(&vocabulary::read(&source)?)
            .map_err(|source| ModelFileError::Tokenizer { path: file.clone(), source })?;
        let shape = family.shape(&source, &keys, tokenizer.len() as u64)?;
        if let Some((name, limit, found)) = shape.range_fault() {
            return Err(ModelFileError::Shape { path: file, name, limit, found });
        }
        if let Some((name, of, found)) = shape.multiple_fault() {
            return Err(ModelFileError::Multiple { path: file, name, of, found });
        }
        let tokens = source.strings("tokenizer.ggml.tokens")?.len() as u64;
        if tokens > shape.vocab {
            return Err(ModelFileError::Vocabulary { path: file, tokens, rows: shape.vocab });
        }
        let order = match source.format() {
            Format::Gguf => family.gguf_order,
            Format::Safetensors => RopeOrder::Halves,
        };
        let rope = Rope::read(&source, &keys, order)?;
        let name = source.opt_string("general.name")?.unwrap_or("model").to_string();
        let constants = Constants {
            rms_eps: source.f32(&keys.name("attention.layer_norm_rms_epsilon"))?,
            context_trained: source.u32(&keys.name("context_length"))?,
            attention_factor: rope.attention_factor,
        };
        let model = ModelFile { source, name, family, shape, constants, tokenizer, rope };
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
        let values = self.source.rows_f32(tensor, first, count)?;
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(at) => Err(self.not_finite(tensor, first + at as u64 / tensor.row_elements())),
        }
    }

    /// The part of a row that begins at value `first`, every weight of which must be finite.
    pub fn part(
        &self,
        tensor: &Tensor,
        row: u64,
        first: u64,
        out: &mut [f32],
    ) -> Result<(), ModelFileError> {
        self.source.read_part_f32(tensor, row, first, out)?;
        match out.iter().all(|value| value.is_finite()) {
            true => Ok(()),
            false => Err(self.not_finite(tensor, row)),
        }
    }

    fn not_finite(&self, tensor: &Tensor, row: u64) -> ModelFileError {
        let path = self.source.path().display().to_string();
        ModelFileError::NotFinite { path, name: tensor.name.clone(), row }
    }

    /// A tensor of a layer, by its name there, as `attn_q.weight`.
    pub fn layer_tensor(&self, layer: u64, role: &str) -> Result<&Tensor, ModelFileError> {
        Ok(self.source.tensor(&format!("blk.{layer}.{role}"))?)
    }

    /// A matrix of a layer's feed-forward network: of all its experts, or of the one there is.
    pub fn ffn_tensor(&self, layer: u64, matrix: Ffn) -> Result<&Tensor, ModelFileError> {
        self.layer_tensor(layer, self.ffn_role(matrix))
    }

    fn ffn_role(&self, matrix: Ffn) -> &'static str {
        match (matrix, self.shape.is_routed()) {
            (Ffn::Gate, true) => "ffn_gate_exps.weight",
            (Ffn::Up, true) => "ffn_up_exps.weight",
            (Ffn::Down, true) => "ffn_down_exps.weight",
            (Ffn::Gate, false) => "ffn_gate.weight",
            (Ffn::Up, false) => "ffn_up.weight",
            (Ffn::Down, false) => "ffn_down.weight",
        }
    }

    /// The output head: the embedding matrix where they are tied.
    pub fn head(&self) -> Result<&Tensor, ModelFileError> {
        let name = if self.shape.tied { "token_embd.weight" } else { "output.weight" };
        Ok(self.source.tensor(name)?)
    }

    fn check_tensors(&self) -> Result<(), ModelFileError> {
        let s = &self.shape;
        let roles = self.roles();
        for layer in 0..s.layers {
            for &(role, rows, columns, experts) in &roles {
                self.check(self.layer_tensor(layer, role)?, columns, rows, experts)?;
            }
        }
        self.check(self.source.tensor("token_embd.weight")?, s.hidden, s.vocab, 1)?;
        self.check(self.source.tensor("output_norm.weight")?, s.hidden, 1, 1)?;
        self.check(self.head()?, s.hidden, s.vocab, 1)?;
        self.refuse_the_unknown(&roles)
    }

    /// Every tensor of a layer.
    fn roles(&self) -> Vec<Role> {
        let s = &self.shape;
        let ff = source_ff(s);
        let mut roles = vec![
            ("attn_norm.weight", 1, s.hidden, 1),
            ("attn_q.weight", s.query_dim(), s.hidden, 1),
            ("attn_k.weight", s.kv_dim(), s.hidden, 1),
            ("attn_v.weight", s.kv_dim(), s.hidden, 1),
            ("attn_output.weight", s.hidden, s.query_dim(), 1),
            ("ffn_norm.weight", 1, s.hidden, 1),
            (self.ffn_role(Ffn::Gate), ff, s.hidden, s.experts),
            (self.ffn_role(Ffn::Up), ff, s.hidden, s.experts),
            (self.ffn_role(Ffn::Down), s.hidden, ff, s.experts),
        ];
        let mut add = |are: bool, more: &[Role]| roles.extend(more.iter().filter(|_| are));
        add(s.is_routed(), &[("ffn_gate_inp.weight", s.experts, s.hidden, 1)]);
        add(
            s.biases.qkv,
            &[
                ("attn_q.bias", 1, s.query_dim(), 1),
                ("attn_k.bias", 1, s.kv_dim(), 1),
                ("attn_v.bias", 1, s.kv_dim(), 1),
            ],
        );
        add(s.biases.output, &[("attn_output.bias", 1, s.hidden, 1)]);
        add(
            s.biases.ffn,
            &[
                ("ffn_gate.bias", 1, ff, 1),
                ("ffn_up.bias", 1, ff, 1),
                ("ffn_down.bias", 1, s.hidden, 1),
            ],
        );
        roles
    }

    /// A tensor this version does not read would change the text if it were left out.
    fn refuse_the_unknown(&self, roles: &[Role]) -> Result<(), ModelFileError> {
        let whole =
            ["token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight"];
        let known = |name: &str| match name.strip_prefix("blk.").and_then(|n| n.split_once('.')) {
            Some((_, role)) => roles.iter().any(|known| known.0 == role),
            None => whole.contains(&name),
        };
        match self.source.tensors().iter().find(|tensor| !known(&tensor.name)) {
            None => Ok(()),
            Some(tensor) => Err(ModelFileError::Unknown {
                path: self.source.path().display().to_string(),
                key: "a tensor".into(),
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
        let path = self.source.path().display().to_string();
        Err(ModelFileError::TensorShape { path, name: tensor.name.clone(), wanted, found })
    }

    /// Whether a tensor's own codes are those of `weight` in a row.
    pub fn has_codes_of(tensor: &Tensor, weight: crate::image::WeightType) -> bool {
        match weight {
            crate::image::WeightType::Q8 => tensor.kind == GgmlType::Q8_0,
            crate::image::WeightType::Q4 => tensor.kind == GgmlType::Q4_0,
            crate::image::WeightType::F16 => tensor.kind == GgmlType::F16,
        }
    }
}
