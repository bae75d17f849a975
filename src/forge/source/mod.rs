//! An opened model: metadata, tensors, rows as floats, whatever files it came in.
//!
//! `forge::gguf` and `forge::safetensors` open one; `shape` and `pack` read it, and build.rs does
//! for the demo. Names, keys and the order of dimensions are those of GGUF. Rows are read on demand
//! with `pread`, never mapped: a file cut short while we read it is an error, not a signal.
//!
//! Invariants: keys and tensor names are unique, every piece of a tensor lies inside its file as it
//! was when opened, no two share a byte, no dimension is zero, a row is whole blocks.

mod dequantise;
mod error;
mod types;
mod value;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub(super) use error::quoted;
pub use error::{Fault, SourceError};
pub use types::GgmlType;
pub use value::Metadata;
pub(super) use value::{Kind, Value};

/// Bytes read at a time when many rows are asked for.
const CHUNK_BYTES: usize = 1 << 20;

/// What a model came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// GGUF, of one file or of several.
    Gguf,
    /// Safetensors beside a config.json. Rows of queries and keys are in the order of halves.
    Safetensors,
}

/// An opened model.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    format: Format,
    files: Vec<SourceFile>,
    metadata: Metadata,
    tensors: Vec<Tensor>,
    index: BTreeMap<String, usize>,
}

/// One of the files of a model.
#[derive(Debug)]
pub(super) struct SourceFile {
    pub path: PathBuf,
    file: File,
    pub bytes: u64,
    modified: SystemTime,
    /// CRC-32C of what was read to open the model.
    pub header_crc: u32,
}

impl SourceFile {
    /// Opens a regular file.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let io = |source| Fault::Io { action: "open", source }.at(path);
        // Asked before opening: opening a pipe would wait for a writer.
        if !fs::metadata(path).map_err(io)?.is_file() {
            return Err(Fault::NotAFile.at(path));
        }
        let file = File::open(path).map_err(io)?;
        let data = file.metadata().map_err(io)?;
        let (bytes, modified) = (data.len(), data.modified().map_err(io)?);
        Ok(Self { path: path.to_owned(), file, bytes, modified, header_crc: 0 })
    }

    /// The open file, to be read from its start.
    pub fn reader(&self) -> &File {
        &self.file
    }

    /// Fills `out` from byte `offset` on, which is part of `what`.
    pub fn read(
        &self,
        out: &mut [u8],
        offset: u64,
        what: &dyn Fn() -> String,
    ) -> Result<(), SourceError> {
        self.file.read_exact_at(out, offset).map_err(|source| {
            let fault = if source.kind() == io::ErrorKind::UnexpectedEof {
                let has = self.file.metadata().map_or(0, |metadata| metadata.len());
                let needs = u128::from(offset) + out.len() as u128;
                Fault::Truncated { has, what: what(), needs }
            } else {
                Fault::Io { action: "read", source }
            };
            fault.at(&self.path)
        })
    }
}

/// Where a tensor lies and what it is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Name, as `blk.0.attn_q.weight`.
    pub name: String,
    /// Dimensions in ggml order: `dims[0]` is the row length, 1 to 4 of them, none zero.
    pub dims: Vec<u64>,
    /// Type of the values.
    pub kind: GgmlType,
    /// Bytes of all pieces, without padding.
    pub bytes: u64,
    /// Where it lies: pieces of equal size, whole rows each.
    pub pieces: Vec<Piece>,
}

/// Where a piece of a tensor begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Number of the model's file.
    pub file: usize,
    /// First byte, counted from the start of that file.
    pub offset: u64,
}

impl Tensor {
    /// Values in a row.
    #[must_use]
    pub fn row_elements(&self) -> u64 {
        self.dims[0]
    }

    /// Rows, counted across all dimensions but the first: row r of expert e in a tensor of dims
    /// `[k, rows, experts]` is row `e * rows + r`.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.dims[1..].iter().product()
    }

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.dims[0] / self.kind.block_elements * self.kind.block_bytes
    }

    /// Bytes of a piece.
    fn piece_bytes(&self) -> u64 {
        self.bytes / self.pieces.len() as u64
    }
}

/// Bytes of a tensor of `kind` with dimensions `dims`, none zero.
pub(super) fn tensor_bytes(name: &str, dims: &[u64], kind: GgmlType) -> Result<u64, Fault> {
    let row = dims[0];
    if !row.is_multiple_of(kind.block_elements) {
        let wanted = kind.block_elements;
        return Err(Fault::RowBlocks { tensor: quoted(name), found: row, wanted, kind: kind.name });
    }
    let bytes = dims[1..]
        .iter()
        .chain([&kind.block_bytes])
        .try_fold(row / kind.block_elements, |bytes, &factor| bytes.checked_mul(factor));
    bytes.ok_or_else(|| Fault::TooLarge { tensor: quoted(name), dims: dims.to_vec() })
}

impl Source {
    /// The model of these parts. `path` is what the user named; pieces count in `files`.
    pub(super) fn new(
        path: &Path,
        format: Format,
        files: Vec<SourceFile>,
        metadata: Metadata,
        tensors: Vec<Tensor>,
    ) -> Result<Self, SourceError> {
        let mut index = BTreeMap::new();
        for (position, tensor) in tensors.iter().enumerate() {
            if index.insert(tensor.name.clone(), position).is_some() {
                let fault = Fault::DuplicateTensor { tensor: quoted(&tensor.name) };
                return Err(fault.at(&files[tensor.pieces[0].file].path));
            }
        }
        Ok(Self { path: path.to_owned(), format, files, metadata, tensors, index })
    }

    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it came in.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes of all its files.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// What tells these files from others, and from themselves once changed: of each its length,
    /// its time and the sum of its header.
    #[must_use]
    pub fn identity(&self) -> String {
        let time = |file: &SourceFile| {
            let since = file.modified.duration_since(SystemTime::UNIX_EPOCH);
            since.map_or(0, |since| since.as_nanos())
        };
        let parts =
            self.files.iter().map(|f| format!("{} {} {:08x}", f.bytes, time(f), f.header_crc));
        parts.collect::<Vec<_>>().join(", ")
    }

    /// Fails when a file is no longer as long or as old as it was when opened.
    ///
    /// # Errors
    /// When it changed, or the system does not say.
    pub fn check_unchanged(&self) -> Result<(), SourceError> {
        for file in &self.files {
            let io = |source| Fault::Io { action: "ask for the length of", source }.at(&file.path);
            let data = file.file.metadata().map_err(io)?;
            if data.len() != file.bytes || data.modified().map_err(io)? != file.modified {
                return Err(Fault::Changed.at(&file.path));
            }
        }
        Ok(())
    }

    /// The tensors, in the order of the files' lists.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The metadata keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.metadata.keys()
    }

    /// The tensor with this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, SourceError> {
        self.opt_tensor(name)
            .ok_or_else(|| self.error(Fault::MissingTensor { tensor: quoted(name) }))
    }

    /// The tensor with this name, if there is one.
    #[must_use]
    pub fn opt_tensor(&self, name: &str) -> Option<&Tensor> {
        self.index.get(name).map(|&position| &self.tensors[position])
    }

    /// Reads `out.len()` bytes of `tensor` from its byte `byte_offset`, as they are in the files.
    ///
    /// # Errors
    /// When the bytes are not all inside the tensor, or can't be read.
    pub fn read_raw(
        &self,
        tensor: &Tensor,
        byte_offset: u64,
        mut out: &mut [u8],
    ) -> Result<(), SourceError> {
        self.range(tensor, "bytes", tensor.bytes, byte_offset, out.len() as u64)?;
        let (piece_bytes, mut at) = (tensor.piece_bytes(), byte_offset);
        let what = || format!("tensor {}", quoted(&tensor.name));
        while !out.is_empty() {
            let (piece, within) = (tensor.pieces[(at / piece_bytes) as usize], at % piece_bytes);
            let count = (piece_bytes - within).min(out.len() as u64);
            let (now, rest) = out.split_at_mut(count as usize);
            self.files[piece.file].read(now, piece.offset + within, &what)?;
            (out, at) = (rest, at + count);
        }
        Ok(())
    }

    /// Reads row `row` of `tensor` as floats. Rows are counted as in [`Tensor::rows`].
    ///
    /// # Errors
    /// When the row or the length of `out` doesn't fit the tensor, the type is not readable, or the
    /// file can't be read.
    pub fn read_row_f32(
        &self,
        tensor: &Tensor,
        row: u64,
        out: &mut [f32],
    ) -> Result<(), SourceError> {
        if out.len() as u64 != tensor.row_elements() {
            let (name, has) = (quoted(&tensor.name), tensor.row_elements());
            return Err(self.error(Fault::RowLength { tensor: name, has, wanted: out.len() }));
        }
        self.range(tensor, "rows", tensor.rows(), row, 1)?;
        self.dequantise(tensor, row * tensor.row_bytes(), out)
    }

    /// Reads `count` rows of `tensor` from row `first`, back to back, as floats.
    ///
    /// # Errors
    /// As [`Self::read_row_f32`].
    pub fn rows_f32(
        &self,
        tensor: &Tensor,
        first: u64,
        count: u64,
    ) -> Result<Vec<f32>, SourceError> {
        self.range(tensor, "rows", tensor.rows(), first, count)?;
        let mut out = vec![0.0; (count * tensor.row_elements()) as usize];
        self.dequantise(tensor, first * tensor.row_bytes(), &mut out)?;
        Ok(out)
    }

    /// Reads the part of row `row` of `tensor` that begins at value `first`, as floats; both ends
    /// lie between blocks.
    ///
    /// # Errors
    /// As [`Self::read_row_f32`].
    ///
    /// # Panics
    /// When an end of the part lies within a block.
    pub fn read_part_f32(
        &self,
        tensor: &Tensor,
        row: u64,
        first: u64,
        out: &mut [f32],
    ) -> Result<(), SourceError> {
        self.range(tensor, "rows", tensor.rows(), row, 1)?;
        self.range(tensor, "values a row", tensor.row_elements(), first, out.len() as u64)?;
        let elements = tensor.kind.block_elements;
        let whole = first.is_multiple_of(elements) && (out.len() as u64).is_multiple_of(elements);
        assert!(whole, "a part of a row is whole blocks");
        let start = row * tensor.row_bytes() + first / elements * tensor.kind.block_bytes;
        self.dequantise(tensor, start, out)
    }

    /// Fills `out` with whole blocks from byte `at` of `tensor`; the range was checked.
    fn dequantise(&self, tensor: &Tensor, mut at: u64, out: &mut [f32]) -> Result<(), SourceError> {
        if !tensor.kind.is_readable() {
            let (name, kind) = (quoted(&tensor.name), tensor.kind.name);
            return Err(self.error(Fault::UnreadableType { tensor: name, kind }));
        }
        let (elements, size) =
            (tensor.kind.block_elements as usize, tensor.kind.block_bytes as usize);
        let blocks = CHUNK_BYTES / size;
        let mut raw = vec![0; size * blocks.min(out.len() / elements)];
        for out in out.chunks_mut(elements * blocks) {
            let raw = &mut raw[..out.len() / elements * size];
            self.read_raw(tensor, at, raw)?;
            dequantise::dequantise(tensor.kind, raw, out);
            at += raw.len() as u64;
        }
        Ok(())
    }

    fn range(
        &self,
        tensor: &Tensor,
        unit: &'static str,
        has: u64,
        first: u64,
        count: u64,
    ) -> Result<(), SourceError> {
        if first.checked_add(count).is_some_and(|end| end <= has) {
            return Ok(());
        }
        Err(self.error(Fault::Range { tensor: quoted(&tensor.name), unit, has, first, count }))
    }

    fn error(&self, fault: Fault) -> SourceError {
        fault.at(&self.path)
    }
}

/// Pairs of metadata getters: the first demands the key, the second returns none without it. Both
/// fail when the value has another type or doesn't fit.
macro_rules! getters {
    ($($wanted:literal: $name:ident, $opt:ident -> $type:ty;)*) => {
        impl Source {
            $(
                #[doc = concat!("The value of a key that must be there and hold ", $wanted, ".")]
                ///
                /// # Errors
                /// When the key is missing, of another type, or out of range.
                pub fn $name(&self, key: &str) -> Result<$type, SourceError> {
                    let missing = || Fault::MissingKey { key: quoted(key), wanted: $wanted };
                    self.$opt(key)?.ok_or_else(|| self.error(missing()))
                }

                #[doc = concat!("The value of a key that, when there, must hold ", $wanted, ".")]
                ///
                /// # Errors
                /// When the key is of another type, or out of range.
                pub fn $opt(&self, key: &str) -> Result<Option<$type>, SourceError> {
                    self.metadata.$opt(key).map_err(|fault| self.error(fault))
                }
            )*
        }
    };
}

getters! {
    "an integer": u32, opt_u32 -> u32;
    "an integer": u64, opt_u64 -> u64;
    "a bool": bool, opt_bool -> bool;
    "a float": f32, opt_f32 -> f32;
    "a string": string, opt_string -> &str;
    "an array of strings": strings, opt_strings -> &[String];
    "an array of integers": i32s, opt_i32s -> Vec<i32>;
    "an array of floats": f32s, opt_f32s -> Vec<f32>;
}
