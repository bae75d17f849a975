//! Grouped-query attention of one layer over the conversation so far.

use super::{Model, ModelError, activation, add_bias, matvec, quantize};
use crate::image::geometry::padded_len;
use crate::plan::RegionId;

impl Model<'_> {
    /// Adds the attention of `layer` at `position` to the residual stream.
    pub(super) fn attention(&mut self, layer: usize, position: usize) -> Result<(), ModelError> {
        let weights = self.weights.layer(layer);
        self.norm_and_quantize(weights.attn_norm, "an attention norm", layer)?;
        self.project(layer, position);
        self.attend(layer, position);
        self.join(layer)
    }

    /// Query, key and value of this position; key and value go into the cache.
    fn project(&mut self, layer: usize, position: usize) {
        let weights = self.weights.layer(layer);
        let (hidden, head_dim) = (self.shape.hidden as usize, self.shape.head_dim as usize);
        let [input, codes, scales, qkv] = self.scratch.parts([
            RegionId::Input,
            RegionId::InputCodes,
            RegionId::InputScales,
            RegionId::Qkv,
        ]);
        let x = activation(hidden, input, codes, scales);
        let qkv = &mut bytemuck::cast_slice_mut(qkv)[..self.shape.qkv_dim() as usize];
        matvec(self.kernels, &mut self.lead, weights.qkv, x, qkv);
        add_bias(self.kernels, qkv, weights.qkv_bias);
        let turn = &self.rope[position * head_dim..(position + 1) * head_dim];
        let (turned, value) = qkv.split_at_mut(qkv.len() - self.shape.kv_dim() as usize);
        turned.chunks_exact_mut(head_dim).for_each(|head| self.kernels.rope(head, turn));
        let key = &turned[self.shape.query_dim() as usize..];
        self.kv.store(self.kernels, layer, position, key, value);
    }

    /// Every query head over the cached rows of its key-value head.
    fn attend(&mut self, layer: usize, position: usize) {
        let (head_dim, query_dim) = (self.shape.head_dim as usize, self.shape.query_dim() as usize);
        let group = (self.shape.heads / self.shape.kv_heads) as usize;
        let scale = crate::kernel::math::rsqrt(head_dim as f32);
        let [query, heads] = self.scratch.floats([RegionId::Qkv, RegionId::Heads]);
        let (heads, tail) = heads.split_at_mut(query_dim);
        tail[..padded_len(query_dim as u64) as usize - query_dim].fill(0.0);
        let (kernels, kv) = (self.kernels, &self.kv);
        self.lead.chunks(heads, head_dim, &|first, out| {
            let (rows, unseen) = kv.seen(layer, first / head_dim / group, position);
            kernels.attend(&query[first..first + head_dim], rows, unseen, scale, out);
        });
    }

    /// The output projection joins the residual stream.
    fn join(&mut self, layer: usize) -> Result<(), ModelError> {
        let weights = self.weights.layer(layer);
        let (hidden, query_dim) = (self.shape.hidden as usize, self.shape.query_dim() as usize);
        let [residual, heads, codes, scales, update] = self.scratch.parts([
            RegionId::Residual,
            RegionId::Heads,
            RegionId::InputCodes,
            RegionId::InputScales,
            RegionId::Update,
        ]);
        let values: &[f32] = bytemuck::cast_slice(heads);
        quantize(self.kernels, &values[..query_dim], codes, scales)
            .ok_or(ModelError::NotFinite { stage: "attention", layer })?;
        let x = activation(query_dim, heads, codes, scales);
        let update = &mut bytemuck::cast_slice_mut(update)[..hidden];
        matvec(self.kernels, &mut self.lead, weights.output, x, update);
        let residual = &mut bytemuck::cast_slice_mut(residual)[..hidden];
        self.kernels.add(residual, update);
        add_bias(self.kernels, residual, weights.output_bias);
        Ok(())
    }
}
