//! Opens GGUF files: versions 2 and 3, little-endian, whole or in shards.
//!
//! Called by `forge::model` and build.rs. Files of PowerInfer (`PWRI`) have the same layout and are
//! read as such; the tensors they add (transposed down matrices, predictors) are refused by name by
//! who builds the model. What a shard is says its metadata, whatever its name.

mod parse;
mod shards;

use std::io::BufReader;
use std::path::Path;

use super::source::{Fault, Format, Source, SourceError, SourceFile};
use parse::{Head, Parser};

/// Opens a GGUF file, and the other shards where it is one, and reads everything but the tensors'
/// data.
///
/// # Errors
/// When a file can't be read, is cut short, is not a GGUF file, or breaks an invariant of
/// [`Source`]; when a shard is missing or does not belong here.
pub fn open(path: &Path) -> Result<Source, SourceError> {
    let (file, head) = read_head(path)?;
    if let Some(place) = shards::Place::of(&head.metadata).map_err(|fault| fault.at(path))? {
        return shards::open(path, file, head, place);
    }
    Source::new(path, Format::Gguf, vec![file], head.metadata, head.tensors)
}

/// Opens a file and reads what stands before its data.
fn read_head(path: &Path) -> Result<(SourceFile, Head), SourceError> {
    let mut file = SourceFile::open(path)?;
    let head = Parser::new(BufReader::new(file.reader()), file.bytes).parse();
    let head = head.map_err(|fault| fault.at(path))?;
    refuse_joined(&file, &head)?;
    file.header_crc = head.crc;
    Ok((file, head))
}

/// Shards that were joined end to end look like a first shard with something behind it.
fn refuse_joined(file: &SourceFile, head: &Head) -> Result<(), SourceError> {
    let mut tail = [0; 64];
    let left = (file.bytes - head.data_end).min(tail.len() as u64) as usize;
    file.read(&mut tail[..left], head.data_end, &|| "the end of the data".into())?;
    match tail[..left].windows(4).position(|window| window == b"GGUF") {
        Some(at) => Err(Fault::Joined { offset: head.data_end + at as u64 }.at(&file.path)),
        None => Ok(()),
    }
}
