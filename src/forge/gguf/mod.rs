//! Reads GGUF files: metadata, tensor list, rows as floats.
//!
//! Called by `shape` and `pack` of the forge, and by build.rs for the demo model. Reads with
//! `pread`, never maps: a file cut short while we read it is an error, not a signal.
//!
//! Invariants of an opened file: keys and tensor names are unique, every tensor lies inside the
//! file as it was when opened, no two tensors share a byte, no dimension is zero, a row is whole
//! blocks.
//! Versions 2 and 3, little-endian.

mod dequantise;
mod error;
mod parse;
mod types;
mod value;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use error::quoted;
pub use error::{Fault, GgufError};
use parse::Parser;
pub use types::GgmlType;
use value::Metadata;

/// Bytes read at a time when many rows are asked for.
const CHUNK_BYTES: usize = 1 << 20;

/// An opened GGUF file.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    file: File,
    file_bytes: u64,
    metadata: Metadata,
    tensors: Vec<Tensor>,
    index: BTreeMap<String, usize>,
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
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Bytes in the file, without padding.
    pub bytes: u64,
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
}

impl Gguf {
    /// Opens a file and reads everything but the tensor data.
    ///
    /// # Errors
    /// When the file can't be read, is cut short, or breaks one of the invariants of this module.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::open_checked(path).map_err(|fault| GgufError { path: path.to_owned(), fault })
    }

    fn open_checked(path: &Path) -> Result<Self, Fault> {
        let io = |source| Fault::Io { action: "open", source };
        // Asked before opening: opening a pipe would wait for a writer.
        if !fs::metadata(path).map_err(io)?.is_file() {
            return Err(Fault::NotAFile);
        }
        let file = File::open(path).map_err(io)?;
        let file_bytes = file.metadata().map_err(io)?.len();
        let (metadata, tensors) = Parser::new(BufReader::new(&file), file_bytes).parse()?;
        let mut index = BTreeMap::new();
        for (position, tensor) in tensors.iter().enumerate() {
            if index.insert(tensor.name.clone(), position).is_some() {
                return Err(Fault::DuplicateTensor { tensor: quoted(&tensor.name) });
            }
        }
        Ok(Self { path: path.to_owned(), file, file_bytes, metadata, tensors, index })
    }

    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the file in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The tensors, in the order of the file's list.
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
    pub fn tensor(&self, name: &str) -> Result<&Tensor, GgufError> {
        self.opt_tensor(name)
            .ok_or_else(|| self.error(Fault::MissingTensor { tensor: quoted(name) }))
    }

    /// The tensor with this name, if there is one.
    #[must_use]
    pub fn opt_tensor(&self, name: &str) -> Option<&Tensor> {
        self.index.get(name).map(|&position| &self.tensors[position])
    }

    /// Reads `out.len()` bytes of `tensor` from its byte `byte_offset`, as they are in the file.
    ///
    /// # Errors
    /// When the bytes are not all inside the tensor, or can't be read.
    pub fn read_raw(
        &self,
        tensor: &Tensor,
        byte_offset: u64,
        out: &mut [u8],
    ) -> Result<(), GgufError> {
        self.range(tensor, "bytes", tensor.bytes, byte_offset, out.len() as u64)?;
        self.file.read_exact_at(out, tensor.offset + byte_offset).map_err(|source| {
            self.error(if source.kind() == io::ErrorKind::UnexpectedEof {
                let has = self.file.metadata().map_or(0, |metadata| metadata.len());
                let needs = u128::from(tensor.offset) + u128::from(tensor.bytes);
                Fault::Truncated { has, what: format!("tensor {}", quoted(&tensor.name)), needs }
            } else {
                Fault::Io { action: "read tensor data", source }
            })
        })
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
    ) -> Result<(), GgufError> {
        if out.len() as u64 != tensor.row_elements() {
            let (name, has) = (quoted(&tensor.name), tensor.row_elements());
            return Err(self.error(Fault::RowLength { tensor: name, has, wanted: out.len() }));
        }
        self.range(tensor, "rows", tensor.rows(), row, 1)?;
        self.dequantise_rows(tensor, row, out)
    }

    /// Reads `count` rows of `tensor` from row `first`, back to back, as floats.
    ///
    /// # Errors
    /// As [`Self::read_row_f32`].
    pub fn rows_f32(&self, tensor: &Tensor, first: u64, count: u64) -> Result<Vec<f32>, GgufError> {
        self.range(tensor, "rows", tensor.rows(), first, count)?;
        let mut out = vec![0.0; (count * tensor.row_elements()) as usize];
        self.dequantise_rows(tensor, first, &mut out)?;
        Ok(out)
    }

    /// Fills `out` with whole rows from row `first`; the range was checked.
    fn dequantise_rows(
        &self,
        tensor: &Tensor,
        first: u64,
        out: &mut [f32],
    ) -> Result<(), GgufError> {
        let unreadable =
            || Fault::UnreadableType { tensor: quoted(&tensor.name), kind: tensor.kind.name };
        if !tensor.kind.is_readable() {
            return Err(self.error(unreadable()));
        }
        let (elements, size) =
            (tensor.kind.block_elements as usize, tensor.kind.block_bytes as usize);
        let blocks = CHUNK_BYTES / size;
        let mut raw = vec![0; size * blocks.min(out.len() / elements)];
        let mut offset = first * tensor.row_bytes();
        for out in out.chunks_mut(elements * blocks) {
            let raw = &mut raw[..out.len() / elements * size];
            self.read_raw(tensor, offset, raw)?;
            dequantise::dequantise(tensor.kind, raw, out);
            offset += raw.len() as u64;
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
    ) -> Result<(), GgufError> {
        if first.checked_add(count).is_some_and(|end| end <= has) {
            return Ok(());
        }
        Err(self.error(Fault::Range { tensor: quoted(&tensor.name), unit, has, first, count }))
    }

    fn error(&self, fault: Fault) -> GgufError {
        GgufError { path: self.path.clone(), fault }
    }
}

/// Pairs of metadata getters: the first demands the key, the second returns none without it. Both
/// fail when the value has another type or doesn't fit.
macro_rules! getters {
    ($($wanted:literal: $name:ident, $opt:ident -> $type:ty;)*) => {
        impl Gguf {
            $(
                #[doc = concat!("The value of a key that must be there and hold ", $wanted, ".")]
                ///
                /// # Errors
                /// When the key is missing, of another type, or out of range.
                pub fn $name(&self, key: &str) -> Result<$type, GgufError> {
                    let missing = || Fault::MissingKey { key: quoted(key), wanted: $wanted };
                    self.$opt(key)?.ok_or_else(|| self.error(missing()))
                }

                #[doc = concat!("The value of a key that, when there, must hold ", $wanted, ".")]
                ///
                /// # Errors
                /// When the key is of another type, or out of range.
                pub fn $opt(&self, key: &str) -> Result<Option<$type>, GgufError> {
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
