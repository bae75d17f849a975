//! Reads an image from end to end: header, section checksums, every tag.
//!
//! Used by the packer on what it just wrote and by `ganglion-forge inspect --verify`.

use crate::image::geometry::TAG_BYTES;
use crate::image::header::HEADER_BYTES;
use crate::image::tag::{Identity, Part, Tag, crc32c};
use crate::image::{Header, HeaderError, Record, SectionKind, Shape, Types};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Why an image does not verify.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// It can't be read.
    #[error("image {path} can't be read: {source}; check the name and the disk")]
    Read {
        /// The file.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// Its header is wrong.
    #[error("image {path} can't be used: {reason}")]
    Header {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// A section fails its checksum.
    #[error("image {path}: section {section} fails its checksum; copy or pack it again")]
    Section {
        /// The file.
        path: String,
        /// The section.
        section: &'static str,
    },
    /// A tag does not hold.
    #[error("image {path}: {what} is damaged (its checksum fails); copy or pack it again")]
    Tag {
        /// The file.
        path: String,
        /// What it covers.
        what: String,
    },
}

impl VerifyError {
    fn header(path: &Path, error: HeaderError) -> VerifyError {
        VerifyError::Header { path: path.display().to_string(), reason: error.to_string() }
    }
}

/// Opens an image and reads its header.
pub fn open_image(path: &Path) -> Result<(File, Header), VerifyError> {
    let read = |source| VerifyError::Read { path: path.display().to_string(), source };
    // Asked before opening: opening a pipe would wait for a writer.
    if !fs::metadata(path).map_err(read)?.is_file() {
        return Err(read(io::Error::other("it is not a regular file")));
    }
    let file = File::open(path).map_err(read)?;
    let bytes = file.metadata().map_err(read)?.len();
    let mut block = vec![0; HEADER_BYTES.min(bytes as usize)];
    file.read_exact_at(&mut block, 0).map_err(read)?;
    let header = Header::read(&block, bytes).map_err(|error| VerifyError::header(path, error))?;
    Ok((file, header))
}

/// Verifies every byte of `path`; tells `progress` bytes done and bytes in all.
pub fn verify_image(
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Header, VerifyError> {
    let (file, header) = open_image(path)?;
    let wrong = |error| VerifyError::header(path, error);
    let (shape, types) = (header.shape().map_err(wrong)?, header.types().map_err(wrong)?);
    let name = path.display().to_string();
    let image = Image { file, header, shape, types, name };
    let mut tell = |done| progress(done, header.file_bytes());
    for kind in [SectionKind::Resident, SectionKind::Tokenizer, SectionKind::Order] {
        image.section(kind, &mut tell)?;
    }
    image.embedding(&mut tell)?;
    for index in 0..shape.layers * shape.experts {
        image.expert(index, &mut tell)?;
    }
    Ok(header)
}

/// Bytes read at a time, or one unit of records.
const CHUNK_BYTES: u64 = 1 << 20;

struct Image {
    file: File,
    header: Header,
    shape: Shape,
    types: Types,
    name: String,
}

impl Image {
    fn read(&self, bytes: &mut [u8], at: u64) -> Result<(), VerifyError> {
        let result = self.file.read_exact_at(bytes, at);
        result.map_err(|source| VerifyError::Read { path: self.name.clone(), source })
    }

    fn damaged(&self, what: String) -> VerifyError {
        VerifyError::Tag { path: self.name.clone(), what }
    }

    fn section(&self, kind: SectionKind, tell: &mut dyn FnMut(u64)) -> Result<(), VerifyError> {
        let section = self.header.section(kind);
        let end = section.offset + section.bytes;
        let (mut at, mut crc) = (section.offset, 0);
        while at < end {
            let mut bytes = vec![0; CHUNK_BYTES.min(end - at) as usize];
            self.read(&mut bytes, at)?;
            crc = crc32c(crc, &bytes);
            at += bytes.len() as u64;
            tell(at);
        }
        if crc != section.crc {
            return Err(VerifyError::Section { path: self.name.clone(), section: kind.name() });
        }
        Ok(())
    }

    fn embedding(&self, tell: &mut dyn FnMut(u64)) -> Result<(), VerifyError> {
        let start = self.header.section(SectionKind::Embedding).offset;
        let row_bytes = self.types.embedding_row_bytes(&self.shape);
        let mut row = vec![0; row_bytes as usize];
        for token in 0..self.shape.vocab {
            self.read(&mut row, start + token * row_bytes)?;
            let (content, tag) = row.split_at(row.len() - TAG_BYTES as usize);
            let who = Identity { layer: 0, expert: 0, neuron: token as u32, part: Part::Embedding };
            if !Tag::verify(who, content, tag, crc32c) {
                return Err(self.damaged(format!("the embedding row of token {token}")));
            }
            tell(start + (token + 1) * row_bytes);
        }
        Ok(())
    }

    /// The records of an expert, counted over all layers, some units at a time.
    fn expert(&self, index: u64, tell: &mut dyn FnMut(u64)) -> Result<(), VerifyError> {
        let record = self.types.record(&self.shape);
        let expert_bytes = self.types.expert_bytes(&self.shape);
        let start = self.header.section(SectionKind::Records).offset + index * expert_bytes;
        let units = (CHUNK_BYTES / record.unit_bytes).max(1);
        let mut bytes = vec![0; (units * record.unit_bytes) as usize];
        for first in (0..self.shape.ff).step_by((units * record.per_block) as usize) {
            let at = first / record.per_block * record.unit_bytes;
            let length = (bytes.len() as u64).min(expert_bytes - at) as usize;
            self.read(&mut bytes[..length], start + at)?;
            for neuron in first..self.shape.ff.min(first + units * record.per_block) {
                let within = (record.offset(neuron) - at) as usize;
                self.record(index, neuron, &bytes[within..], &record)?;
            }
            tell(start + at + length as u64);
        }
        Ok(())
    }

    fn record(
        &self,
        index: u64,
        neuron: u64,
        bytes: &[u8],
        record: &Record,
    ) -> Result<(), VerifyError> {
        let (layer, expert) = (index / self.shape.experts, index % self.shape.experts);
        let who = |part| Identity {
            layer: layer as u16,
            expert: expert as u16,
            neuron: neuron as u32,
            part,
        };
        let (gate, up) = (record.gate_tag() as usize, record.up() as usize);
        let (tail, end) = (record.tail_tag() as usize, record.raw_bytes() as usize);
        if !Tag::verify(who(Part::Gate), &bytes[..gate], &bytes[gate..up], crc32c)
            || !Tag::verify(who(Part::Rest), &bytes[up..tail], &bytes[tail..end], crc32c)
        {
            return Err(self.damaged(format!("neuron {neuron} of layer {layer}, expert {expert}")));
        }
        Ok(())
    }
}
