//! What can be wrong with the files of a model, one sentence each.

use std::io;
use std::path::{Path, PathBuf};

/// A fault and the file it was found in.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct SourceError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Fault,
}

impl Fault {
    /// This fault, found in the file `path`.
    pub(in crate::forge) fn at(self, path: &Path) -> SourceError {
        SourceError { path: path.to_owned(), fault: self }
    }

    /// Whether a file is missing or can't be read, and not that one is wrong.
    pub fn is_missing_file(&self) -> bool {
        use Fault::{Io, NoWeights, NotAFile, PartMissing, ShardMissing};
        matches!(self, Io { .. } | NotAFile | NoWeights | PartMissing { .. } | ShardMissing { .. })
    }
}

/// What is wrong. Names are already quoted and shortened by [`quoted`].
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each sentence documents its fields")]
pub enum Fault {
    #[error("cannot {action}: {source}; check the path, the permissions and the disk")]
    Io { action: &'static str, source: io::Error },
    #[error("not a regular file; give the path of a model file")]
    NotAFile,
    #[error("the file changed while it was read; leave it alone and start again")]
    Changed,
    #[error(
        "not a GGUF file: it starts with {found:02x?}, wanted the letters GGUF; check the path"
    )]
    Magic { found: [u8; 4] },
    #[error("GGUF for a big-endian machine; convert the model again as little-endian")]
    BigEndian,
    #[error("GGUF version {found}, wanted 2 or 3; convert the model again with a current tool")]
    Version { found: u32 },
    #[error(
        "another GGUF file begins at byte {offset}: shards or models were joined end to end; \
         keep shards apart, side by side"
    )]
    Joined { offset: u64 },
    #[error("it calls itself shard {number} of {count}, wanted one of 2 to {max}; get it again")]
    ShardNumber { number: i128, count: i128, max: usize },
    #[error("shard {number} of {count} is missing beside it; get it, or name the folder it is in")]
    ShardMissing { number: usize, count: usize },
    #[error(
        "shard {number} of {count}, as {other} is; move away the one that is not of this model"
    )]
    ShardTwice { number: usize, count: usize, other: String },
    #[error(
        "shard of another model: it says {found} {what} where {other} says {wanted}; \
         get the shard that belongs here"
    )]
    ShardForeign { what: &'static str, found: i128, other: String, wanted: i128 },
    #[error("its shards hold {found} tensors, wanted {wanted}; get the shards of one model again")]
    ShardTensors { found: usize, wanted: i128 },
    #[error("a GGUF file under the name of a safetensors one; give it its own name")]
    GgufInside,
    #[error("the header claims {found} bytes, wanted at most {max}; the file is damaged")]
    HeaderLength { found: u64, max: u64 },
    #[error("{what} can't be read: {reason}; the file is damaged, fetch it again")]
    Json { what: &'static str, reason: String },
    #[error("{what} is missing: there is no such file; fetch it, it belongs to the model")]
    PartMissing { what: &'static str },
    #[error(
        "no weights: wanted model.safetensors, another single safetensors file, or several with \
         a model.safetensors.index.json; fetch what is missing"
    )]
    NoWeights,
    #[error("weight_map names the file {found}, wanted one beside it; the file is damaged")]
    FileName { found: String },
    #[error(
        "tensor {tensor} is not from here by model.safetensors.index.json; \
         the shard is of another model, fetch all of them again"
    )]
    NotIndexed { tensor: String },
    #[error(
        "no tensor {tensor}, which model.safetensors.index.json says is here; \
         the shard is of another model, fetch all of them again"
    )]
    NotInShard { tensor: String },
    #[error(
        "tensor {tensor} goes from {start} to {end}, wanted {wanted} bytes by its shape; \
         the file is damaged, fetch it again"
    )]
    HeldBytes { tensor: String, start: u64, end: u64, wanted: u64 },
    #[error("bytes {start} to {end} belong to no tensor; the file is damaged, fetch it again")]
    Unclaimed { start: u64, end: u64 },
    #[error("tensor {tensor} has the dtype {found}, wanted F32, F16 or BF16; convert the model")]
    Dtype { tensor: String, found: String },
    #[error("{tensor} has {found} experts, config.json says {wanted}; fetch all shards again")]
    Experts { tensor: String, found: u64, wanted: u64 },
    #[error("tensor {tensor} in {file} differs in type or shape from expert 0; fetch it again")]
    ExpertShape { tensor: String, file: String },
    #[error("{key} is {found}, this version reads {wanted}; take another model")]
    ConfigValue { key: &'static str, found: String, wanted: &'static str },
    #[error("{key} is {found}, the tensors ask for {wanted}; the files are of two models")]
    ConfigTensors { key: &'static str, found: String, wanted: String },
    #[error("{what} is {found}, which this version does not read: wanted {wanted}")]
    Vocabulary { what: &'static str, found: String, wanted: &'static str },
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
pub(in crate::forge) fn quoted(name: &str) -> String {
    match name.char_indices().nth(80) {
        None => format!("{name:?}"),
        Some((end, _)) => format!("{:?}...", &name[..end]),
    }
}
