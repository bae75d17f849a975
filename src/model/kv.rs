//! Cached keys and values: [layers][kv_heads][context][head_dim], so that a head's rows lie
//! together.

use crate::image::Shape;
use crate::kernel::{Kernels, KvView};
use crate::plan::KvType;

/// Keys and values of the conversation so far.
pub struct KvCache<'a> {
    keys: &'a mut [u8],
    values: &'a mut [u8],
    kind: KvType,
    kv_heads: usize,
    context: usize,
    head_dim: usize,
}

impl<'a> KvCache<'a> {
    /// A cache over the plan's regions.
    pub fn new(
        keys: &'a mut [u8],
        values: &'a mut [u8],
        kind: KvType,
        shape: &Shape,
        context: usize,
    ) -> KvCache<'a> {
        let (kv_heads, head_dim) = (shape.kv_heads as usize, shape.head_dim as usize);
        KvCache { keys, values, kind, kv_heads, context, head_dim }
    }

    /// Stores the key and value of `position`, kv_heads rows of head_dim each.
    pub fn store(
        &mut self,
        kernels: &Kernels,
        layer: usize,
        position: usize,
        key: &[f32],
        value: &[f32],
    ) {
        assert!(position < self.context, "the door bounds the conversation");
        let row_bytes = self.head_dim * self.kind.bytes() as usize;
        for head in 0..self.kv_heads {
            let at = (self.first_row(layer, head) + position) * row_bytes;
            let part = head * self.head_dim..(head + 1) * self.head_dim;
            for (cache, row) in
                [(&mut *self.keys, &key[part.clone()]), (&mut *self.values, &value[part.clone()])]
            {
                let stored = &mut cache[at..at + row_bytes];
                match self.kind {
                    KvType::Half => kernels.to_f16(row, bytemuck::cast_slice_mut(stored)),
                    KvType::Single => bytemuck::cast_slice_mut(stored).copy_from_slice(row),
                }
            }
        }
    }

    /// The first `positions` rows of a head.
    pub fn view(&self, layer: usize, kv_head: usize, positions: usize) -> KvView<'_> {
        let row_bytes = self.head_dim * self.kind.bytes() as usize;
        let first = self.first_row(layer, kv_head) * row_bytes;
        let range = first..first + positions * row_bytes;
        let (keys, values) = (&self.keys[range.clone()], &self.values[range]);
        match self.kind {
            KvType::Half => KvView::F16 {
                keys: bytemuck::cast_slice(keys),
                values: bytemuck::cast_slice(values),
            },
            KvType::Single => KvView::F32 {
                keys: bytemuck::cast_slice(keys),
                values: bytemuck::cast_slice(values),
            },
        }
    }

    fn first_row(&self, layer: usize, head: usize) -> usize {
        (layer * self.kv_heads + head) * self.context
    }
}
