//! The living room: the network. [`Model::forward`] is the function that tells the whole story.
//!
//! Called by the door for every token. The residual stream stays in the arena between the stages;
//! each stage borrows the scratch regions it needs from the plan. Invariant: the same numerics,
//! tokens and weights give the same logits, bit for bit, on any number of threads.

mod attention;
mod error;
mod kv;
mod prefill;
mod rope;
mod router;
mod weights;

pub use error::ModelError;
pub use kv::KvCache;
pub use rope::fill_rope_table;
pub use weights::{Matrix, Weights};

use crate::arena::Scratch;
use crate::cluster::{Input, Workshop};
use crate::image::geometry::{BLOCK_BYTES, padded_groups, padded_len};
use crate::image::header::Constants;
use crate::image::{Shape, WeightType};
use crate::kernel::{Activation, Kernels, dequantize_row};
use crate::plan::RegionId;
use crate::sys::{Lead, ReadError};

/// Rows of a matrix that a team member claims at a time.
const ROWS: usize = 32;

/// The model, its conversation so far, and everything that runs it.
pub struct Model<'a> {
    kernels: &'static Kernels,
    lead: Lead<'a>,
    shape: Shape,
    constants: Constants,
    embedding: WeightType,
    weights: Weights<'a>,
    rope: &'a [f32],
    kv: KvCache<'a>,
    scratch: Scratch<'a>,
    embedding_row: &'a mut [u8],
    /// The feed-forward networks.
    pub workshop: Workshop<'a>,
}

/// What a model is put together from.
pub struct Parts<'a> {
    /// Kernels of the instruction set in use.
    pub kernels: &'static Kernels,
    /// The team's lead.
    pub lead: Lead<'a>,
    /// Dimensions.
    pub shape: Shape,
    /// Scalars of the image's header.
    pub constants: Constants,
    /// How embedding rows are stored.
    pub embedding: WeightType,
    /// Views of the resident section.
    pub weights: Weights<'a>,
    /// cos, sin f32[context][head_dim / 2][2].
    pub rope: &'a [f32],
    /// Cached keys and values.
    pub kv: KvCache<'a>,
    /// Scratch regions.
    pub scratch: Scratch<'a>,
    /// Landing place of an embedding row.
    pub embedding_row: &'a mut [u8],
    /// The feed-forward networks.
    pub workshop: Workshop<'a>,
}

impl<'a> Model<'a> {
    /// A model with an empty conversation.
    pub fn new(parts: Parts<'a>) -> Model<'a> {
        Model {
            kernels: parts.kernels,
            lead: parts.lead,
            shape: parts.shape,
            constants: parts.constants,
            embedding: parts.embedding,
            weights: parts.weights,
            rope: parts.rope,
            kv: parts.kv,
            scratch: parts.scratch,
            embedding_row: parts.embedding_row,
            workshop: parts.workshop,
        }
    }

    /// Runs `token` at `position` through every layer; positions come in order from 0. Its output
    /// is the residual stream, which [`Model::logits`] reads.
    pub fn forward(&mut self, token: u32, position: usize) -> Result<(), ModelError> {
        self.embed(token, 0)?;
        for layer in 0..self.shape.layers as usize {
            self.attention(layer, position)?;
            self.feed_forward(layer)?;
        }
        Ok(())
    }

    /// Logits of the token after the last one, f32[vocab], valid until the next stage.
    pub fn logits(&mut self) -> Result<&mut [f32], ModelError> {
        let hidden = self.shape.hidden as usize;
        let norm = self.weights.output_norm();
        self.norm_and_quantize(norm, "the final norm", 0)?;
        let [codes, scales, input, logits] = self.scratch.parts([
            RegionId::InputCodes,
            RegionId::InputScales,
            RegionId::Input,
            RegionId::Logits,
        ]);
        let x = activation(hidden, input, codes, scales);
        let logits = bytemuck::cast_slice_mut(logits);
        matvec(self.kernels, &mut self.lead, self.weights.head(), x, logits);
        Ok(logits)
    }

    /// The scratch of the sampling stage: logits as [`Model::logits`] left them, and candidates.
    pub fn sampling(&mut self) -> (&mut [f32], &mut [u8]) {
        let [logits, candidates] = self.scratch.parts([RegionId::Logits, RegionId::Candidates]);
        (bytemuck::cast_slice_mut(logits), candidates)
    }

    /// The scratch of the encoding stage.
    pub fn encoding(&mut self) -> &mut [u32] {
        let [encode] = self.scratch.parts([RegionId::Encode]);
        bytemuck::cast_slice_mut(encode)
    }

    /// The memory of a turn's text, and the scratch of the encoding stage.
    pub fn turn(&mut self) -> (&mut [u8], &mut [u32]) {
        let [turn, encode] = self.scratch.parts([RegionId::Turn, RegionId::Encode]);
        (turn, bytemuck::cast_slice_mut(encode))
    }

    /// Tokens of the vocabulary: as many as there are logits.
    pub fn vocab(&self) -> usize {
        self.shape.vocab as usize
    }

    /// Layers of the network.
    pub fn layers(&self) -> usize {
        self.shape.layers as usize
    }

    /// Whether a token's embedding row is read from flash.
    pub fn reads_embeddings(&self) -> bool {
        self.weights.embedding_row(0).is_none()
    }

    /// Kernels in use.
    pub fn kernels(&self) -> &'static Kernels {
        self.kernels
    }

    /// Reads every embedding row, whose tag must hold.
    pub fn verify_embeddings(&mut self) -> Result<(), ModelError> {
        for token in 0..self.shape.vocab as u32 {
            self.workshop.larder().embedding(token, self.embedding_row)?;
        }
        Ok(())
    }

    /// One block of the image, read through the embedding row's place.
    pub fn read_block(&mut self, offset: u64) -> Result<&[u8], ReadError> {
        let block = &mut self.embedding_row[..BLOCK_BYTES as usize];
        self.workshop.larder().file().read_at(offset, block)?;
        Ok(block)
    }

    /// A token's embedding becomes line `line` of the residual stream.
    fn embed(&mut self, token: u32, line: usize) -> Result<(), ModelError> {
        assert!(u64::from(token) < self.shape.vocab, "token {token} is not in the vocabulary");
        let (weight, hidden) = (self.embedding, self.shape.hidden as usize);
        let row = match self.weights.embedding_row(token) {
            Some(row) => row,
            None => self.workshop.larder().embedding(token, self.embedding_row)?,
        };
        let [residual] = self.scratch.floats([RegionId::Residual]);
        dequantize_row(weight, row, &mut residual[line * hidden..][..hidden]);
        Ok(())
    }

    fn feed_forward(&mut self, layer: usize) -> Result<(), ModelError> {
        let hidden = self.shape.hidden as usize;
        let weights = self.weights.layer(layer);
        self.norm_and_quantize(weights.ffn_norm, "a feed-forward norm", layer)?;
        let [residual, input, codes, scales, update, sums, router] = self.scratch.parts([
            RegionId::Residual,
            RegionId::Input,
            RegionId::InputCodes,
            RegionId::InputScales,
            RegionId::Update,
            RegionId::Accumulators,
            RegionId::Router,
        ]);
        let x = activation(hidden, input, codes, scales);
        let normed: &[f32] = bytemuck::cast_slice(input);
        let logits = bytemuck::cast_slice_mut(router);
        let chosen = router::choose(&self.shape, weights.router, &normed[..hidden], logits)
            .ok_or(ModelError::NotFinite { stage: "a router", layer })?;
        let update = &mut bytemuck::cast_slice_mut(update)[..hidden];
        update.fill(0.0);
        let unit_exponent = self.weights.down_unit(layer);
        let bias = weights.gate_up_bias;
        let input = Input { layer: layer as u16, chosen: &chosen, x, bias, unit_exponent };
        self.workshop.run(&mut self.lead, input, sums, update)?;
        let residual = &mut bytemuck::cast_slice_mut(residual)[..hidden];
        self.kernels.add(residual, update);
        add_bias(self.kernels, residual, weights.down_bias);
        Ok(())
    }

    /// Normalises the residual stream into the input region and quantises it.
    fn norm_and_quantize(
        &mut self,
        weight: &[f32],
        stage: &'static str,
        layer: usize,
    ) -> Result<(), ModelError> {
        let hidden = self.shape.hidden as usize;
        let [source, input, codes, scales] = self.scratch.parts([
            RegionId::Residual,
            RegionId::Input,
            RegionId::InputCodes,
            RegionId::InputScales,
        ]);
        let input: &mut [f32] = bytemuck::cast_slice_mut(input);
        let (values, tail) = input.split_at_mut(hidden);
        let source = &bytemuck::cast_slice(source)[..hidden];
        self.kernels.rms_norm(source, weight, self.constants.rms_eps, values);
        tail[..padded_len(hidden as u64) as usize - hidden].fill(0.0);
        quantize(self.kernels, values, codes, scales).ok_or(ModelError::NotFinite { stage, layer })
    }
}

/// Quantises `values` into the front of the code and scale regions; `None` if one is not finite.
fn quantize(kernels: &Kernels, values: &[f32], codes: &mut [u8], scales: &mut [u8]) -> Option<()> {
    let (length, groups) =
        (padded_len(values.len() as u64) as usize, padded_groups(values.len() as u64) as usize);
    let codes = bytemuck::cast_slice_mut(&mut codes[..length]);
    let scales: &mut [f32] = bytemuck::cast_slice_mut(scales);
    kernels.quantize(values, codes, &mut scales[..groups]).then_some(())
}

/// The vector of `length` values that lies in the regions of an input.
fn activation<'x>(
    length: usize,
    values: &'x [u8],
    codes: &'x [u8],
    scales: &'x [u8],
) -> Activation<'x> {
    let (padded, groups) =
        (padded_len(length as u64) as usize, padded_groups(length as u64) as usize);
    let values: &[f32] = bytemuck::cast_slice(values);
    let scales: &[f32] = bytemuck::cast_slice(scales);
    Activation::new(
        length,
        &values[..padded],
        bytemuck::cast_slice(&codes[..padded]),
        &scales[..groups],
    )
}

/// Adds the bias of each value; `bias` is empty where there is none.
fn add_bias(kernels: &Kernels, values: &mut [f32], bias: &[f32]) {
    kernels.add(&mut values[..bias.len()], bias);
}

/// out = matrix * x, rows shared among the team.
fn matvec(
    kernels: &Kernels,
    lead: &mut Lead<'_>,
    matrix: Matrix<'_>,
    x: Activation<'_>,
    out: &mut [f32],
) {
    lead.chunks(out, ROWS, &|first, rows| {
        let bytes = &matrix.rows[first * matrix.stride..];
        kernels.matvec(matrix.weight, bytes, matrix.stride, x, rows);
    });
}
