//! Reads header, metadata and tensor list of a GGUF file.
//!
//! Called once a file. Every length is compared with the bytes left in the file before anything of
//! that length is allocated, so memory stays within a small multiple of the file.
//!
//! Layout (little-endian): magic, version u32, tensor count u64, key count u64; per key its
//! name, value type u32 and value; per tensor its name, dimension count u32, dimensions u64, type
//! u32, offset u64; then, from the next multiple of `general.alignment`, the data. A string is a
//! u64 length and its bytes.

use std::collections::BTreeMap;
use std::io::Read;

use crate::forge::source::{
    Fault, GgmlType, Kind, Metadata, Piece, Tensor, Value, quoted, tensor_bytes,
};
use crate::image::tag::crc32c;

/// What a file may begin with: `PWRI` is how PowerInfer marks its files of the same layout.
const MAGICS: [[u8; 4]; 2] = [*b"GGUF", *b"PWRI"];
const KEY_BYTES_MAX: u64 = 65_535;
const TENSOR_NAME_BYTES_MAX: u64 = 64;
const DIMENSIONS_MAX: u32 = 4;
const ALIGNMENT_DEFAULT: u32 = 32;
/// Key length, one letter, value type, one byte of value.
const KEY_ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
/// Name length, one letter, dimension count, one dimension, type, offset.
const TENSOR_ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// A reader that knows where it is and how long the file is.
pub(super) struct Parser<R> {
    input: R,
    position: u64,
    file_bytes: u64,
    crc: u32,
}

/// What stands before the data of a file.
pub(super) struct Head {
    pub metadata: Metadata,
    /// In file order; each in one piece, of file 0.
    pub tensors: Vec<Tensor>,
    /// CRC-32C of all that was read.
    pub crc: u32,
    /// The first byte behind the last tensor, or behind the list where there is none.
    pub data_end: u64,
}

impl<R: Read> Parser<R> {
    /// Starts at the first byte of a file of `file_bytes` bytes.
    pub fn new(input: R, file_bytes: u64) -> Self {
        Self { input, position: 0, file_bytes, crc: 0 }
    }

    /// Reads everything before the data.
    pub fn parse(mut self) -> Result<Head, Fault> {
        self.prologue()?;
        let tensor_count = self.u64(|| "the tensor count".into())?;
        let key_count = self.u64(|| "the key count".into())?;
        let metadata = self.metadata(key_count)?;
        let alignment = metadata.opt_u32("general.alignment")?.unwrap_or(ALIGNMENT_DEFAULT);
        if alignment < 8 || !alignment.is_power_of_two() {
            return Err(Fault::Alignment { found: alignment });
        }
        let mut tensors = self.tensors(tensor_count)?;
        self.place(&mut tensors, u64::from(alignment))?;
        refuse_overlaps(&tensors)?;
        let ends = tensors.iter().map(|tensor| tensor.pieces[0].offset + tensor.bytes);
        let data_end = ends.max().unwrap_or(self.position);
        Ok(Head { metadata, tensors, crc: self.crc, data_end })
    }

    fn prologue(&mut self) -> Result<(), Fault> {
        let magic = self.array(|| "the GGUF magic".into())?;
        if !MAGICS.contains(&magic) {
            return Err(Fault::Magic { found: magic });
        }
        match self.u32(|| "the GGUF version".into())? {
            2 | 3 => Ok(()),
            version if (1..=3).contains(&version.swap_bytes()) => Err(Fault::BigEndian),
            found => Err(Fault::Version { found }),
        }
    }

    fn metadata(&mut self, count: u64) -> Result<Metadata, Fault> {
        self.require(count, KEY_ENTRY_BYTES_MIN, || format!("metadata of {count} keys"))?;
        let mut values = BTreeMap::new();
        for number in 1..=count {
            let key = self.name(KEY_BYTES_MAX, || format!("the name of key {number}"))?;
            let value = self.value(&key)?;
            if values.contains_key(&key) {
                return Err(Fault::DuplicateKey { key: quoted(&key) });
            }
            values.insert(key, value);
        }
        Ok(Metadata::new(values))
    }

    fn value(&mut self, key: &str) -> Result<Value, Fault> {
        match self.kind(key)? {
            Kind::String => Ok(Value::String(self.string(|| value_of(key))?)),
            Kind::Array => self.array_value(key),
            kind => {
                let bytes = self.bytes(kind.scalar_bytes(), 1, || value_of(key))?;
                refuse_odd_bools(key, kind, &bytes)?;
                Ok(Value::scalar(kind, &bytes))
            }
        }
    }

    fn array_value(&mut self, key: &str) -> Result<Value, Fault> {
        let kind = self.kind(key)?;
        let count = self.u64(|| value_of(key))?;
        match kind {
            Kind::Array => Err(Fault::NestedArray { key: quoted(key) }),
            Kind::String => {
                self.require(count, 8, || value_of(key))?;
                let strings = (0..count).map(|_| self.string(|| value_of(key)));
                Ok(Value::Strings(strings.collect::<Result<_, _>>()?))
            }
            kind => {
                let bytes = self.bytes(kind.scalar_bytes(), count, || value_of(key))?;
                refuse_odd_bools(key, kind, &bytes)?;
                Ok(Value::Array(kind, bytes))
            }
        }
    }

    fn kind(&mut self, key: &str) -> Result<Kind, Fault> {
        let found = self.u32(|| value_of(key))?;
        Kind::from_id(found).ok_or_else(|| Fault::ValueType { key: quoted(key), found })
    }

    fn tensors(&mut self, count: u64) -> Result<Vec<Tensor>, Fault> {
        self.require(count, TENSOR_ENTRY_BYTES_MIN, || format!("a list of {count} tensors"))?;
        (1..=count).map(|number| self.tensor(number)).collect()
    }

    /// Reads one entry of the list; its offset is still relative to the data.
    fn tensor(&mut self, number: u64) -> Result<Tensor, Fault> {
        let name = self.name(TENSOR_NAME_BYTES_MAX, || format!("the name of tensor {number}"))?;
        let entry = || format!("the entry of tensor {}", quoted(&name));
        let found = self.u32(entry)?;
        if !(1..=DIMENSIONS_MAX).contains(&found) {
            return Err(Fault::DimensionCount { tensor: quoted(&name), found });
        }
        let dims = (0..found).map(|_| self.u64(entry)).collect::<Result<Vec<u64>, _>>()?;
        if let Some(dimension) = dims.iter().position(|&dim| dim == 0) {
            return Err(Fault::ZeroDimension { tensor: quoted(&name), dimension });
        }
        let id = self.u32(entry)?;
        let kind = GgmlType::from_id(id)
            .ok_or_else(|| Fault::UnknownType { tensor: quoted(&name), id })?;
        let offset = self.u64(entry)?;
        let bytes = tensor_bytes(&name, &dims, kind)?;
        Ok(Tensor { name, dims, kind, bytes, pieces: vec![Piece { file: 0, offset }] })
    }

    /// Makes offsets absolute and checks each range against the file.
    fn place(&self, tensors: &mut [Tensor], alignment: u64) -> Result<(), Fault> {
        let data = u128::from(self.position).next_multiple_of(u128::from(alignment));
        for tensor in tensors {
            let (found, wanted) = (tensor.pieces[0].offset, alignment);
            if !found.is_multiple_of(wanted) {
                return Err(Fault::OffsetAlignment { tensor: quoted(&tensor.name), found, wanted });
            }
            let start = data + u128::from(found);
            let needs = start + u128::from(tensor.bytes);
            if needs > u128::from(self.file_bytes) {
                let what = format!("tensor {}", quoted(&tensor.name));
                return Err(Fault::Truncated { has: self.file_bytes, what, needs });
            }
            tensor.pieces[0].offset = start as u64;
        }
        Ok(())
    }

    /// Fails unless `count` items of `size` bytes can still follow.
    fn require(&self, count: u64, size: u64, what: impl Fn() -> String) -> Result<(), Fault> {
        let needs = u128::from(self.position) + u128::from(count) * u128::from(size);
        if needs > u128::from(self.file_bytes) {
            return Err(Fault::Truncated { has: self.file_bytes, what: what(), needs });
        }
        Ok(())
    }

    fn fill(&mut self, out: &mut [u8], what: impl Fn() -> String) -> Result<(), Fault> {
        self.require(1, out.len() as u64, what)?;
        self.input
            .read_exact(out)
            .map_err(|source| Fault::Io { action: "read the header", source })?;
        self.position += out.len() as u64;
        self.crc = crc32c(self.crc, out);
        Ok(())
    }

    fn bytes(
        &mut self,
        size: u64,
        count: u64,
        what: impl Fn() -> String,
    ) -> Result<Vec<u8>, Fault> {
        self.require(count, size, &what)?;
        let mut out = vec![0; (size * count) as usize];
        self.fill(&mut out, what)?;
        Ok(out)
    }

    fn array<const N: usize>(&mut self, what: impl Fn() -> String) -> Result<[u8; N], Fault> {
        let mut out = [0; N];
        self.fill(&mut out, what)?;
        Ok(out)
    }

    fn u32(&mut self, what: impl Fn() -> String) -> Result<u32, Fault> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: impl Fn() -> String) -> Result<u64, Fault> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn string(&mut self, what: impl Fn() -> String) -> Result<String, Fault> {
        let length = self.u64(&what)?;
        let bytes = self.bytes(1, length, &what)?;
        String::from_utf8(bytes).map_err(|_| Fault::NotUtf8 { what: what() })
    }

    fn name(&mut self, max: u64, what: impl Fn() -> String) -> Result<String, Fault> {
        let found = self.u64(&what)?;
        if !(1..=max).contains(&found) {
            return Err(Fault::NameLength { what: what(), found, max });
        }
        let bytes = self.bytes(1, found, &what)?;
        String::from_utf8(bytes).map_err(|_| Fault::NotUtf8 { what: what() })
    }
}

fn value_of(key: &str) -> String {
    format!("the value of key {}", quoted(key))
}

fn refuse_odd_bools(key: &str, kind: Kind, bytes: &[u8]) -> Result<(), Fault> {
    match bytes.iter().find(|&&byte| byte > 1) {
        Some(&found) if kind == Kind::Bool => Err(Fault::BoolValue { key: quoted(key), found }),
        _ => Ok(()),
    }
}

/// Refuses tensors that share a byte.
fn refuse_overlaps(tensors: &[Tensor]) -> Result<(), Fault> {
    let start = |tensor: &Tensor| tensor.pieces[0].offset;
    let mut sorted: Vec<&Tensor> = tensors.iter().collect();
    sorted.sort_by_key(|tensor| start(tensor));
    for pair in sorted.windows(2) {
        if start(pair[0]) + pair[0].bytes > start(pair[1]) {
            let (first, second) = (quoted(&pair[0].name), quoted(&pair[1].name));
            return Err(Fault::Overlap { first, second, offset: start(pair[1]) });
        }
    }
    Ok(())
}
