//! Where records lie in the image, and whether what was read is what was asked for.

use super::error::StorageError;
use super::readers::Run;
use crate::image::geometry::{BLOCK_BYTES, TAG_BYTES, round_up};
use crate::image::tag::{Crc32c, Identity, Part, Tag};
use crate::image::{Header, Record, SectionKind, Shape, Types};

/// Integer arithmetic from (layer, expert, neuron) or token to bytes of the image.
#[derive(Clone, Copy, Debug)]
pub struct RecordMap {
    /// Layout of a record.
    pub record: Record,
    records_offset: u64,
    expert_bytes: u64,
    experts: u64,
    ff: u64,
    embedding_offset: u64,
    embedding_row_bytes: u64,
}

impl RecordMap {
    /// The map of an image.
    pub fn new(header: &Header, shape: &Shape, types: &Types) -> RecordMap {
        RecordMap {
            record: types.record(shape),
            records_offset: header.section(SectionKind::Records).offset,
            expert_bytes: types.expert_bytes(shape),
            experts: shape.experts,
            ff: shape.ff,
            embedding_offset: header.section(SectionKind::Embedding).offset,
            embedding_row_bytes: types.embedding_row_bytes(shape),
        }
    }

    /// Byte offset and length in the image of the blocks that hold a run.
    pub fn bytes(&self, run: &Run) -> (u64, usize) {
        let expert = u64::from(run.layer) * self.experts + u64::from(run.expert);
        let first = self.first_block(run);
        let end = u64::from(run.first_unit + run.units) * self.record.unit_bytes;
        let length = round_up(end, BLOCK_BYTES) - first;
        (self.records_offset + expert * self.expert_bytes + first, length as usize)
    }

    /// Byte offset of a run's first block from its expert's, which begins a block.
    fn first_block(&self, run: &Run) -> u64 {
        u64::from(run.first_unit) * self.record.unit_bytes / BLOCK_BYTES * BLOCK_BYTES
    }

    /// Neurons of an expert.
    pub fn ff(&self) -> u32 {
        self.ff as u32
    }

    /// Neurons of a run: the last unit of an expert may hold fewer.
    pub fn neurons(&self, run: &Run) -> core::ops::Range<u32> {
        let first = u64::from(run.first_unit) * self.record.per_block;
        let end = first + u64::from(run.units) * self.record.per_block;
        first as u32..end.min(self.ff) as u32
    }

    /// The record of `neuron` within the bytes of its run.
    pub fn record_in<'a>(&self, run: &Run, bytes: &'a [u8], neuron: u32) -> &'a [u8] {
        &self.records_from(run, bytes, neuron)[..self.record.raw_bytes() as usize]
    }

    /// The records from `neuron` on within the bytes of its run.
    pub fn records_from<'a>(&self, run: &Run, bytes: &'a [u8], neuron: u32) -> &'a [u8] {
        &bytes[(self.record.offset(u64::from(neuron)) - self.first_block(run)) as usize..]
    }

    /// Verifies both tags of every record of a run.
    pub fn verify(&self, run: &Run, bytes: &[u8], crc: Crc32c) -> Result<(), StorageError> {
        for neuron in self.neurons(run) {
            let record = self.record_in(run, bytes, neuron);
            if !self.tags_hold(run, neuron, record, crc) {
                let Run { layer, expert, .. } = *run;
                return Err(StorageError::Record { layer, expert, neuron });
            }
        }
        Ok(())
    }

    fn tags_hold(&self, run: &Run, neuron: u32, record: &[u8], crc: Crc32c) -> bool {
        let Run { layer, expert, .. } = *run;
        let (gate, up) = (self.record.gate_tag() as usize, self.record.up() as usize);
        let tail = self.record.tail_tag() as usize;
        let who = |part| Identity { layer, expert, neuron, part };
        Tag::verify(who(Part::Gate), &record[..gate], &record[gate..up], crc)
            && Tag::verify(who(Part::Rest), &record[up..tail], &record[tail..], crc)
    }

    /// The blocks that hold an embedding row: offset, length, and where the row starts in them.
    pub fn embedding_blocks(&self, token: u32) -> (u64, usize, usize) {
        let first = self.embedding_offset + u64::from(token) * self.embedding_row_bytes;
        let start = first / BLOCK_BYTES * BLOCK_BYTES;
        let end = round_up(first + self.embedding_row_bytes, BLOCK_BYTES);
        (start, (end - start) as usize, (first - start) as usize)
    }

    /// The embedding row at `at` of the blocks read, if its tag holds.
    pub fn embedding_row<'a>(
        &self,
        token: u32,
        blocks: &'a [u8],
        at: usize,
        crc: Crc32c,
    ) -> Option<&'a [u8]> {
        let (row, tag) = blocks[at..at + self.embedding_row_bytes as usize]
            .split_at((self.embedding_row_bytes - TAG_BYTES) as usize);
        let who = Identity { layer: 0, expert: 0, neuron: token, part: Part::Embedding };
        Tag::verify(who, row, tag, crc).then_some(row)
    }
}
