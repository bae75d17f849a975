//! Cached keys and values: [layers][kv_heads][context][head_dim], so that a head's rows lie
//! together. q8 rows are codes in that order; their scales stand behind all codes, so that rows of
//! codes start where cache lines do.

use crate::image::Shape;
use crate::image::geometry::GROUP;
use crate::kernel::{KEY_BLOCK, Kernels, KvView, Q8Rows, quantize_groups};
use crate::plan::KvType;
use core::ops::Range;

/// Keys and values of the conversation so far.
pub struct KvCache<'a> {
    keys: &'a mut [u8],
    values: &'a mut [u8],
    kind: KvType,
    layers: usize,
    kv_heads: usize,
    context: usize,
    head_dim: usize,
    /// Keys that a position sees.
    window: usize,
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
        let (layers, kv_heads) = (shape.layers as usize, shape.kv_heads as usize);
        let head_dim = shape.head_dim as usize;
        let window = if shape.window == 0 { context } else { shape.window as usize };
        KvCache { keys, values, kind, layers, kv_heads, context, head_dim, window }
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
        let codes = self.codes();
        for head in 0..self.kv_heads {
            let row = self.first_row(layer, head) + position;
            let at = row * self.head_dim..(row + 1) * self.head_dim;
            let part = head * self.head_dim..(head + 1) * self.head_dim;
            for (cache, row) in
                [(&mut *self.keys, &key[part.clone()]), (&mut *self.values, &value[part.clone()])]
            {
                match self.kind {
                    KvType::Half => kernels.to_f16(row, part_of_mut(cache, &at)),
                    KvType::Single => part_of_mut(cache, &at).copy_from_slice(row),
                    KvType::Byte => {
                        let (codes, scales) = cache.split_at_mut(codes);
                        let scales = part_of_mut(scales, &groups(&at));
                        quantize_groups(row, part_of_mut(codes, &at), scales);
                    }
                }
            }
        }
    }

    /// Whether `position` sees every position before it.
    pub fn sees_all(&self, position: usize) -> bool {
        position < self.window
    }

    /// The rows of a head that `position` sees. They start with a block of keys, so that the same
    /// keys share a block at every position: the count is of those before the first one seen.
    pub fn seen(&self, layer: usize, kv_head: usize, position: usize) -> (KvView<'_>, usize) {
        let first = (position + 1).saturating_sub(self.window);
        let start = first / KEY_BLOCK * KEY_BLOCK;
        (self.view(layer, kv_head, start..position + 1), first - start)
    }

    /// Rows of a head, by position.
    pub fn view(&self, layer: usize, kv_head: usize, positions: Range<usize>) -> KvView<'_> {
        let first = self.first_row(layer, kv_head);
        let at = (first + positions.start) * self.head_dim..(first + positions.end) * self.head_dim;
        let (keys, values) = (&*self.keys, &*self.values);
        match self.kind {
            KvType::Half => KvView::F16 { keys: part_of(keys, &at), values: part_of(values, &at) },
            KvType::Single => {
                KvView::F32 { keys: part_of(keys, &at), values: part_of(values, &at) }
            }
            KvType::Byte => KvView::Q8 { keys: self.q8(keys, &at), values: self.q8(values, &at) },
        }
    }

    fn q8<'c>(&self, cache: &'c [u8], at: &Range<usize>) -> Q8Rows<'c> {
        let (codes, scales) = cache.split_at(self.codes());
        Q8Rows { codes: part_of(codes, at), scales: part_of(scales, &groups(at)) }
    }

    /// Codes of the whole cache.
    fn codes(&self) -> usize {
        self.layers * self.kv_heads * self.context * self.head_dim
    }

    fn first_row(&self, layer: usize, head: usize) -> usize {
        (layer * self.kv_heads + head) * self.context
    }
}

/// The groups of a range of codes.
fn groups(codes: &Range<usize>) -> Range<usize> {
    codes.start / GROUP as usize..codes.end / GROUP as usize
}

/// A range of a region's elements.
fn part_of<'c, T: bytemuck::Pod>(cache: &'c [u8], at: &Range<usize>) -> &'c [T] {
    bytemuck::cast_slice(&cache[at.start * size_of::<T>()..at.end * size_of::<T>()])
}

fn part_of_mut<'c, T: bytemuck::Pod>(cache: &'c mut [u8], at: &Range<usize>) -> &'c mut [T] {
    bytemuck::cast_slice_mut(&mut cache[at.start * size_of::<T>()..at.end * size_of::<T>()])
}
