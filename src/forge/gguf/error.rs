//! What can be wrong with a GGUF file, one sentence each.

use std::io;
use std::path::PathBuf;

/// A fault and the file it was found in.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct GgufError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong. Names are already quoted and shortened by [`quoted`].
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each sentence documents its fields")]
pub enum Fault {
    #[error("cannot {action}: {source}; check the path, the permissions and the disk")]
    Io { action: &'static str, source: io::Error },
    #[error("not a regular file; give the path of a GGUF file")]
    NotAFile,
    #[error(
        "not a GGUF file: it starts with {found:02x?}, wanted the letters GGUF; check the path"
    )]
    Magic { found: [u8; 4] },
    #[error("GGUF for a big-endian machine; convert the model again as little-endian")]
    BigEndian,
    #[error("GGUF version {found}, wanted 2 or 3; convert the model again with a current tool")]
    Version { found: u32 },
    #[error("shard {number} of {count} of a split model; join the shards into one file first")]
    Shard { number: i128, count: i128 },
    #[error("file incomplete: it has {has} bytes, {what} needs {needs}; fetch the file again")]
    Truncated { has: u64, what: String, needs: u128 },
    #[error("{what} has {found} bytes, wanted 1 to {max}; the file is damaged, fetch it again")]
    NameLength { what: String, found: u64, max: u64 },
    #[error("{what} is not UTF-8; the file is damaged, fetch it again")]
    NotUtf8 { what: String },
    #[error("key {key} appears twice; convert the model again")]
    DuplicateKey { key: String },
    #[error(
        "key {key} has value type {found}, wanted 0 to 12; the file is damaged, fetch it again"
    )]
    ValueType { key: String, found: u32 },
    #[error("key {key} is an array of arrays, which is not read; convert the model without it")]
    NestedArray { key: String },
    #[error(
        "key {key} holds {found} as a bool, wanted 0 or 1; the file is damaged, fetch it again"
    )]
    BoolValue { key: String, found: u8 },
    #[error("no key {key}, wanted {wanted}; convert the model again with its metadata")]
    MissingKey { key: String, wanted: &'static str },
    #[error("key {key} is {found}, wanted {wanted}; convert the model again")]
    WrongType { key: String, wanted: &'static str, found: &'static str },
    #[error("key {key} holds {found}, which does not fit {wanted}; convert the model again")]
    OutOfRange { key: String, wanted: &'static str, found: String },
    #[error("general.alignment is {found}, wanted a power of two of 8 or more; convert again")]
    Alignment { found: u32 },
    #[error("tensor {tensor} appears twice; convert the model again")]
    DuplicateTensor { tensor: String },
    #[error("tensor {tensor} has {found} dimensions, wanted 1 to 4; convert the model again")]
    DimensionCount { tensor: String, found: u32 },
    #[error("dimension {dimension} of tensor {tensor} is 0, wanted 1 or more; convert again")]
    ZeroDimension { tensor: String, dimension: usize },
    #[error("tensor {tensor} with dimensions {dims:?} passes 2^64 bytes; the file is damaged")]
    TooLarge { tensor: String, dims: Vec<u64> },
    #[error("a row of {tensor} has {found} values, wanted a multiple of {wanted} for {kind}")]
    RowBlocks { tensor: String, found: u64, wanted: u64, kind: &'static str },
    #[error("tensor {tensor} has the unknown type {id}; convert it to F16, Q8_0 or Q4_K")]
    UnknownType { tensor: String, id: u32 },
    #[error(
        "tensor {tensor} is {kind}, which this version does not read; \
         convert the model to F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K"
    )]
    UnreadableType { tensor: String, kind: &'static str },
    #[error("tensor {tensor} starts at {found}, wanted a multiple of {wanted}; convert again")]
    OffsetAlignment { tensor: String, found: u64, wanted: u64 },
    #[error("tensors {first} and {second} overlap at byte {offset}; the file is damaged")]
    Overlap { first: String, second: String, offset: u64 },
    #[error("no tensor {tensor}; check that the model is of a supported family")]
    MissingTensor { tensor: String },
    #[error("tensor {tensor} has {has} {unit}, wanted {count} from {first}; check the shape")]
    Range { tensor: String, unit: &'static str, has: u64, first: u64, count: u64 },
    #[error("a row of tensor {tensor} has {has} values, wanted {wanted}; check the shape")]
    RowLength { tensor: String, has: u64, wanted: usize },
}

/// A name from a file, made fit for a sentence: escaped, and cut after 80 characters.
pub(super) fn quoted(name: &str) -> String {
    match name.char_indices().nth(80) {
        None => format!("{name:?}"),
        Some((end, _)) => format!("{:?}...", &name[..end]),
    }
}
