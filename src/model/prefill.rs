//! A prompt, many tokens at a time: the same layers as [`Model::forward`], each matrix multiplied
//! with a chunk of tokens. Invariant: bit for bit what one token after another gives.

use super::weights::Matrix;
use super::{Model, ModelError, add_bias, router};
use crate::cluster::{BatchInput, BatchMemory, Chosen};
use crate::image::geometry::{padded_groups, padded_len};
use crate::kernel::{Batch, Kernels, Sheet, batch_code_stride};
use crate::plan::RegionId;
use crate::sys::Lead;
use core::sync::atomic::{AtomicBool, Ordering};

/// Rows of a matrix that a team member claims at a time, for all tokens.
const ROWS: usize = 32;
/// Positions of a head that a team member claims at a time.
const POSITIONS: usize = 32;

/// Tokens that go through the layers together.
#[derive(Clone, Copy)]
struct Chunk {
    /// Position of the first token.
    position: usize,
    tokens: usize,
}

impl Chunk {
    /// Rotations of its positions, f32[tokens][head_dim].
    fn turns<'r>(&self, rope: &'r [f32], head_dim: usize) -> &'r [f32] {
        &rope[self.position * head_dim..][..self.tokens * head_dim]
    }
}

impl Model<'_> {
    /// Runs the next `tokens` of a prompt, the first at `position`, through every layer; they are
    /// at least one and at most the plan's chunk. Afterwards the residual stream is the last one's.
    pub fn prefill(&mut self, tokens: &[u32], position: usize) -> Result<(), ModelError> {
        self.prefill_while(tokens, position, |_| true).map(|_| ())
    }

    /// As [`Model::prefill`], for as long as `go_on` says after each layer, given the layers that
    /// are done; false where it said no. Then the positions of these tokens hold nothing.
    pub fn prefill_while(
        &mut self,
        tokens: &[u32],
        position: usize,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<bool, ModelError> {
        let (last, before) = tokens.split_last().expect("a chunk has a token");
        if before.is_empty() {
            return self.forward(*last, position).map(|()| true);
        }
        for (line, &token) in tokens.iter().enumerate() {
            self.embed(token, line)?;
        }
        let chunk = Chunk { position, tokens: tokens.len() };
        let last_layer = self.shape.layers as usize - 1;
        for layer in 0..last_layer {
            self.attention_of(layer, chunk)?;
            self.feed_forward_of(layer, chunk)?;
            if !go_on(layer + 1) {
                return Ok(false);
            }
        }
        // Of the last layer, later tokens need the keys and values of all, but only the last
        // one's output.
        self.norm_of(last_layer, chunk, Norm::Attention)?;
        self.project_of(last_layer, chunk);
        self.keep(before.len());
        let position = position + before.len();
        self.attention(last_layer, position)?;
        self.feed_forward(last_layer).map(|()| true)
    }

    /// As [`Model::prefill`], but every token's output stays: line i of the residual stream is that
    /// of `tokens[i]`, which [`Model::logits_of`] reads. For scoring a text, which asks for the
    /// probability of each token.
    pub fn prefill_every(&mut self, tokens: &[u32], position: usize) -> Result<(), ModelError> {
        for (line, &token) in tokens.iter().enumerate() {
            self.embed(token, line)?;
        }
        let chunk = Chunk { position, tokens: tokens.len() };
        for layer in 0..self.layers() {
            self.attention_of(layer, chunk)?;
            self.feed_forward_of(layer, chunk)?;
        }
        Ok(())
    }

    /// Logits of the token after line `line` of what [`Model::prefill_every`] left, as
    /// [`Model::logits`]. It overwrites line 0: ask for lines in rising order.
    pub fn logits_of(&mut self, line: usize) -> Result<&mut [f32], ModelError> {
        self.keep(line);
        self.logits()
    }

    fn attention_of(&mut self, layer: usize, chunk: Chunk) -> Result<(), ModelError> {
        self.norm_of(layer, chunk, Norm::Attention)?;
        self.project_of(layer, chunk);
        self.attend_of(layer, chunk);
        self.join_of(layer, chunk)
    }

    /// Queries, keys and values of the chunk; keys and values go into the cache.
    fn project_of(&mut self, layer: usize, chunk: Chunk) {
        let weights = self.weights.layer(layer);
        let (width, value) = (self.shape.qkv_dim() as usize, self.shape.kv_dim() as usize);
        let [input, codes, scales, qkv] = self.scratch.parts([
            RegionId::Input,
            RegionId::InputCodes,
            RegionId::InputScales,
            RegionId::Qkv,
        ]);
        let x = batch(self.shape.hidden as usize, chunk.tokens, input, codes, scales);
        let qkv: &mut [f32] = bytemuck::cast_slice_mut(qkv);
        let qkv = &mut qkv[..chunk.tokens * width];
        gemm(self.kernels, &mut self.lead, weights.qkv, x, qkv);
        let turns = chunk.turns(self.rope, self.shape.head_dim as usize);
        let bias = weights.qkv_bias;
        turn(self.kernels, &mut self.lead, bias, turns, qkv, (width, width - value));
        for (position, line) in (chunk.position..).zip(qkv.chunks_exact(width)) {
            let (key, value) = line[width - 2 * value..].split_at(value);
            self.kv.store(self.kernels, layer, position, key, value);
        }
    }

    /// Every query head over the cached rows of its key-value head.
    fn attend_of(&mut self, layer: usize, chunk: Chunk) {
        let (head_dim, query_dim) = (self.shape.head_dim as usize, self.shape.query_dim() as usize);
        let qkv_dim = self.shape.qkv_dim() as usize;
        let group = (self.shape.heads / self.shape.kv_heads) as usize * head_dim;
        let scale = crate::kernel::math::rsqrt(head_dim as f32);
        let [qkv, heads] = self.scratch.floats([RegionId::Qkv, RegionId::Heads]);
        let width = padded_len(query_dim as u64) as usize;
        let sheet = Sheet::new(&mut heads[..chunk.tokens * width], width, (POSITIONS, group));
        let (kernels, kv) = (self.kernels, &self.kv);
        self.lead.all(&|| {
            while let Some(mut block) = sheet.claim() {
                let (token, first) = (block.first_token(), block.first());
                if first >= query_dim {
                    (0..block.tokens()).for_each(|line| block.token(line).fill(0.0));
                    continue;
                }
                let query = &qkv[token * qkv_dim + first..];
                let (position, kv_head) = (chunk.position + token, first / group);
                let end = position + block.tokens();
                if kv.sees_all(end - 1) {
                    let rows = kv.view(layer, kv_head, 0..end);
                    kernels.attend_block(query, qkv_dim, head_dim, rows, scale, &mut block);
                    continue;
                }
                // Where a window ends, positions start at different keys.
                for (line, position) in (position..end).enumerate() {
                    let (rows, unseen) = kv.seen(layer, kv_head, position);
                    let queries = query[line * qkv_dim..][..group].chunks_exact(head_dim);
                    for (q, out) in queries.zip(block.token(line).chunks_exact_mut(head_dim)) {
                        kernels.attend(q, rows, unseen, scale, out);
                    }
                }
            }
        });
    }

    /// The output projection joins the residual stream.
    fn join_of(&mut self, layer: usize, chunk: Chunk) -> Result<(), ModelError> {
        let weights = self.weights.layer(layer);
        let (hidden, query_dim) = (self.shape.hidden as usize, self.shape.query_dim() as usize);
        let [residual, heads, codes, scales, update] = self.scratch.parts([
            RegionId::Residual,
            RegionId::Heads,
            RegionId::InputCodes,
            RegionId::InputScales,
            RegionId::Update,
        ]);
        let tokens = chunk.tokens;
        let width = padded_len(query_dim as u64) as usize;
        let values: &[f32] = bytemuck::cast_slice(heads);
        let (kernels, finite) = (self.kernels, AtomicBool::new(true));
        let parts = code_parts(query_dim, tokens, codes, scales);
        self.lead.lines(parts, tokens, &|line, [codes, scales]| {
            let values = &values[line * width..][..query_dim];
            if !quantize_line(kernels, values, codes, scales) {
                finite.store(false, Ordering::Relaxed);
            }
        });
        if !finite.into_inner() {
            return Err(ModelError::NotFinite { stage: "attention", layer });
        }
        let x = batch(query_dim, tokens, heads, codes, scales);
        let update: &mut [f32] = bytemuck::cast_slice_mut(update);
        let update = &mut update[..tokens * hidden];
        gemm(kernels, &mut self.lead, weights.output, x, update);
        add(kernels, &mut self.lead, residual, update, weights.output_bias, hidden);
        Ok(())
    }

    fn feed_forward_of(&mut self, layer: usize, chunk: Chunk) -> Result<(), ModelError> {
        self.norm_of(layer, chunk, Norm::FeedForward)?;
        self.choose_of(layer, chunk)?;
        let weights = self.weights.layer(layer);
        let (tokens, hidden) = (chunk.tokens, self.shape.hidden as usize);
        let [residual, input, codes, scales, update, sums, tiles, choices] = self.scratch.parts([
            RegionId::Residual,
            RegionId::Input,
            RegionId::InputCodes,
            RegionId::InputScales,
            RegionId::Update,
            RegionId::BatchSums,
            RegionId::BatchTiles,
            RegionId::Choices,
        ]);
        let choices: &[Chosen] = bytemuck::cast_slice(choices);
        let input = BatchInput {
            layer: layer as u16,
            x: batch(hidden, tokens, input, codes, scales),
            choices: &choices[..tokens * self.shape.experts_used as usize],
            bias: weights.gate_up_bias,
            unit_exponent: self.weights.down_unit(layer),
        };
        let sums: &mut [i64] = bytemuck::cast_slice_mut(sums);
        let update: &mut [f32] = bytemuck::cast_slice_mut(update);
        let update = &mut update[..tokens * hidden];
        self.workshop.run_batch(&mut self.lead, input, BatchMemory { sums, tiles }, update)?;
        add(self.kernels, &mut self.lead, residual, update, weights.down_bias, hidden);
        Ok(())
    }

    /// The experts of every token.
    fn choose_of(&mut self, layer: usize, chunk: Chunk) -> Result<(), ModelError> {
        let weights = self.weights.layer(layer);
        let [input, router, choices] =
            self.scratch.parts([RegionId::Input, RegionId::Router, RegionId::Choices]);
        let input: &[f32] = bytemuck::cast_slice(input);
        let hidden = self.shape.hidden as usize;
        let lines = input.chunks_exact(padded_len(hidden as u64) as usize);
        let choices: &mut [Chosen] = bytemuck::cast_slice_mut(choices);
        let choices = choices.chunks_exact_mut(self.shape.experts_used as usize);
        for (choices, values) in choices.zip(lines).take(chunk.tokens) {
            let logits = bytemuck::cast_slice_mut(router);
            let choice = router::choose(&self.shape, weights.router, &values[..hidden], logits);
            let choice = choice.ok_or(ModelError::NotFinite { stage: "a router", layer })?;
            choices.copy_from_slice(&choice);
        }
        Ok(())
    }

    /// Normalises the residual stream of every token into the input region and quantises it.
    fn norm_of(&mut self, layer: usize, chunk: Chunk, norm: Norm) -> Result<(), ModelError> {
        let weights = self.weights.layer(layer);
        let (weight, stage) = match norm {
            Norm::Attention => (weights.attn_norm, "an attention norm"),
            Norm::FeedForward => (weights.ffn_norm, "a feed-forward norm"),
        };
        let (hidden, tokens) = (self.shape.hidden as usize, chunk.tokens);
        let [source, input, codes, scales] = self.scratch.parts([
            RegionId::Residual,
            RegionId::Input,
            RegionId::InputCodes,
            RegionId::InputScales,
        ]);
        let source: &[f32] = bytemuck::cast_slice(source);
        let input = &mut input[..tokens * padded_len(hidden as u64) as usize * 4];
        let [codes, scales] = code_parts(hidden, tokens, codes, scales);
        let (kernels, eps, finite) = (self.kernels, self.constants.rms_eps, AtomicBool::new(true));
        self.lead.lines([input, codes, scales], tokens, &|line, [input, codes, scales]| {
            let input: &mut [f32] = bytemuck::cast_slice_mut(input);
            let (values, tail) = input.split_at_mut(hidden);
            kernels.rms_norm(&source[line * hidden..][..hidden], weight, eps, values);
            tail.fill(0.0);
            if !quantize_line(kernels, values, codes, scales) {
                finite.store(false, Ordering::Relaxed);
            }
        });
        if finite.into_inner() { Ok(()) } else { Err(ModelError::NotFinite { stage, layer }) }
    }

    /// A line of the residual stream moves to the front, where decode has it.
    fn keep(&mut self, line: usize) {
        let hidden = self.shape.hidden as usize;
        let [residual] = self.scratch.floats([RegionId::Residual]);
        residual.copy_within(line * hidden..(line + 1) * hidden, 0);
    }
}

#[derive(Clone, Copy)]
enum Norm {
    Attention,
    FeedForward,
}

/// The codes and scales of `tokens` vectors of `len` values at the front of their regions.
fn code_parts<'p>(
    len: usize,
    tokens: usize,
    codes: &'p mut [u8],
    scales: &'p mut [u8],
) -> [&'p mut [u8]; 2] {
    let groups = padded_groups(len as u64) as usize;
    [&mut codes[..tokens * batch_code_stride(len)], &mut scales[..tokens * groups * 4]]
}

/// Quantises a token's vector into its line of codes and scales; false if a value is not finite.
fn quantize_line(kernels: &Kernels, values: &[f32], codes: &mut [u8], scales: &mut [u8]) -> bool {
    let codes = &mut codes[..padded_len(values.len() as u64) as usize];
    kernels.quantize(values, bytemuck::cast_slice_mut(codes), bytemuck::cast_slice_mut(scales))
}

/// The vectors of `tokens` tokens, `len` values each, that lie in the regions of an input.
fn batch<'x>(
    len: usize,
    tokens: usize,
    values: &'x [u8],
    codes: &'x [u8],
    scales: &'x [u8],
) -> Batch<'x> {
    let groups = padded_groups(len as u64) as usize;
    let values: &[f32] = bytemuck::cast_slice(values);
    let scales: &[f32] = bytemuck::cast_slice(scales);
    Batch::new(
        len,
        tokens,
        &values[..tokens * padded_len(len as u64) as usize],
        bytemuck::cast_slice(&codes[..tokens * batch_code_stride(len)]),
        &scales[..tokens * groups],
    )
}

/// out[token] = matrix * x[token], rows shared among the team.
fn gemm(kernels: &Kernels, lead: &mut Lead<'_>, matrix: Matrix<'_>, x: Batch<'_>, out: &mut [f32]) {
    let width = out.len() / x.tokens();
    let sheet = Sheet::new(out, width, (x.tokens(), ROWS));
    lead.all(&|| {
        while let Some(mut columns) = sheet.claim() {
            let rows = &matrix.rows[columns.first() * matrix.stride..];
            kernels.gemm(matrix.weight, rows, matrix.stride, x, &mut columns);
        }
    });
}

/// Adds `bias` to each token's `width` values, then rotates the heads in the first `turned` of
/// them; `turns` is f32[tokens][head_dim].
fn turn(
    kernels: &Kernels,
    lead: &mut Lead<'_>,
    bias: &[f32],
    turns: &[f32],
    lines: &mut [f32],
    (width, turned): (usize, usize),
) {
    let tokens = lines.len() / width;
    let head_dim = turns.len() / tokens;
    lead.lines([bytemuck::cast_slice_mut(lines)], tokens, &|token, [line]| {
        let turn = &turns[token * head_dim..][..head_dim];
        let line: &mut [f32] = bytemuck::cast_slice_mut(line);
        add_bias(kernels, line, bias);
        line[..turned].chunks_exact_mut(head_dim).for_each(|head| kernels.rope(head, turn));
    });
}

/// Adds each token's update, f32[tokens][hidden], then `bias` to its residual stream.
fn add(
    kernels: &Kernels,
    lead: &mut Lead<'_>,
    residual: &mut [u8],
    update: &[f32],
    bias: &[f32],
    hidden: usize,
) {
    let (residual, tokens) = (&mut residual[..update.len() * 4], update.len() / hidden);
    lead.lines([residual], tokens, &|line, [residual]| {
        let residual: &mut [f32] = bytemuck::cast_slice_mut(residual);
        kernels.add(residual, &update[line * hidden..][..hidden]);
        add_bias(kernels, residual, bias);
    });
}
