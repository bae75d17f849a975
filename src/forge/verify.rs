//! Reads an image from end to end: header, section checksums, every tag.
//!
//! Used by the packer on what it just wrote and by `ganglion-forge inspect --verify`.

use crate::image::geometry::TAG_BYTES;
use crate::image::header::HEADER_BYTES;
use crate::image::tag::{Identity, Part, Tag, crc32c};
use crate::image::{Header, HeaderError, SectionKind};
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
    let read = |bytes: &mut [u8], at| {
        let result = file.read_exact_at(bytes, at);
        result.map_err(|source| VerifyError::Read { path: name.clone(), source })
    };
    let damaged = |what| VerifyError::Tag { path: name.clone(), what };
    for kind in [SectionKind::Resident, SectionKind::Tokenizer, SectionKind::Order] {
        let section = header.section(kind);
        let mut bytes = vec![0; section.bytes as usize];
        read(&mut bytes, section.offset)?;
        if crc32c(0, &bytes) != section.crc {
            return Err(VerifyError::Section { path: name.clone(), section: kind.name() });
        }
        progress(section.offset + section.bytes, header.file_bytes());
    }
    let embedding = header.section(SectionKind::Embedding).offset;
    let mut row = vec![0; types.embedding_row_bytes(&shape) as usize];
    for token in 0..shape.vocab {
        read(&mut row, embedding + token * types.embedding_row_bytes(&shape))?;
        let (content, tag) = row.split_at(row.len() - TAG_BYTES as usize);
        let who = Identity { layer: 0, expert: 0, neuron: token as u32, part: Part::Embedding };
        if !Tag::verify(who, content, tag, crc32c) {
            return Err(damaged(format!("the embedding row of token {token}")));
        }
    }
    let record = types.record(&shape);
    let mut offset = header.section(SectionKind::Records).offset;
    let mut bytes = vec![0; types.expert_bytes(&shape) as usize];
    for index in 0..shape.layers * shape.experts {
        let (layer, expert) = ((index / shape.experts) as u16, (index % shape.experts) as u16);
        read(&mut bytes, offset)?;
        offset += bytes.len() as u64;
        for neuron in 0..shape.ff {
            let record_bytes = &bytes[record.offset(neuron) as usize..];
            let who = |part| Identity { layer, expert, neuron: neuron as u32, part };
            let (gate, up) = (record.gate_tag() as usize, record.up() as usize);
            let (tail, end) = (record.tail_tag() as usize, record.raw_bytes() as usize);
            let r = record_bytes;
            if !Tag::verify(who(Part::Gate), &r[..gate], &r[gate..up], crc32c)
                || !Tag::verify(who(Part::Rest), &r[up..tail], &r[tail..end], crc32c)
            {
                return Err(damaged(format!("neuron {neuron} of layer {layer}, expert {expert}")));
            }
        }
        progress(offset, header.file_bytes());
    }
    Ok(header)
}
