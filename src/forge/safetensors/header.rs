//! Reads the header of a safetensors file.
//!
//! Called once a file. A header is a length u64 (little-endian) and that many bytes of JSON: for
//! each tensor its dtype, its shape (row length last) and where in the data behind the header it
//! begins and ends. What the header claims is compared with the file before it is believed. The
//! `safetensors` crate wants the whole file in memory or mapped to read a header, hence this one.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};

use crate::forge::source::{
    Fault, GgmlType, Piece, SourceError, SourceFile, Tensor, quoted, tensor_bytes,
};
use crate::image::tag::crc32c;

/// As the reference implementation.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Most dimensions of a tensor of a model that is read.
const DIMENSIONS_MAX: usize = 4;
/// Bytes of the header's length.
const LENGTH_BYTES: u64 = 8;

/// What the header says of a tensor.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The tensors of a header, in its order.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Entries;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<BTreeMap<String, String>>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Map)
    }
}

/// Reads the header of `file`, which is number `number` of its model: its tensors, under their own
/// names, each in one piece. Sets the file's header sum.
pub fn read(file: &mut SourceFile, number: usize) -> Result<Vec<Tensor>, SourceError> {
    let path = file.path.clone();
    let mut length = [0; LENGTH_BYTES as usize];
    if file.bytes < LENGTH_BYTES {
        return Err(cut(file, "the header's length", LENGTH_BYTES.into()).at(&path));
    }
    file.read(&mut length, 0, &|| "the header's length".into())?;
    let length = u64::from_le_bytes(length);
    if &length.to_le_bytes()[..4] == b"GGUF" {
        return Err(Fault::GgufInside.at(&path));
    }
    if length > HEADER_BYTES_MAX {
        return Err(Fault::HeaderLength { found: length, max: HEADER_BYTES_MAX }.at(&path));
    }
    let data_start = LENGTH_BYTES + length;
    if data_start > file.bytes {
        return Err(cut(file, "the header", data_start.into()).at(&path));
    }
    let mut text = vec![0; length as usize];
    file.read(&mut text, LENGTH_BYTES, &|| "the header".into())?;
    file.header_crc = crc32c(0, &text);
    let entries: Entries = serde_json::from_slice(&text)
        .map_err(|error| Fault::Json { what: "the header", reason: error.to_string() }.at(&path))?;
    let placed = place(entries.0, data_start, file, number);
    placed.map_err(|fault| fault.at(&path))
}

fn cut(file: &SourceFile, what: &str, needs: u128) -> Fault {
    Fault::Truncated { has: file.bytes, what: what.into(), needs }
}

/// The entries as tensors, which must fill the data from end to end and share no byte.
fn place(
    entries: Vec<(String, Entry)>,
    data_start: u64,
    file: &SourceFile,
    number: usize,
) -> Result<Vec<Tensor>, Fault> {
    let data_bytes = file.bytes - data_start;
    let mut ends = BTreeMap::new();
    let mut tensors = Vec::new();
    for (name, entry) in entries {
        let (start, end) = entry.data_offsets;
        let (kind, dims) = (kind_of(&name, &entry.dtype)?, dims_of(&name, entry.shape)?);
        let bytes = tensor_bytes(&name, &dims, kind)?;
        if end.checked_sub(start) != Some(bytes) {
            let tensor = quoted(&name);
            return Err(Fault::HeldBytes { tensor, start, end, wanted: bytes });
        }
        if end > data_bytes {
            let needs = u128::from(data_start) + u128::from(end);
            return Err(cut(file, &format!("tensor {}", quoted(&name)), needs));
        }
        if let Some((_, other)) = ends.insert(start, (end, name.clone())) {
            let (first, second) = (quoted(&other), quoted(&name));
            return Err(Fault::Overlap { first, second, offset: data_start + start });
        }
        let pieces = vec![Piece { file: number, offset: data_start + start }];
        tensors.push(Tensor { name, dims, kind, bytes, pieces });
    }
    let mut before = (0, String::new());
    for (start, after) in ends.into_iter().chain([(data_bytes, (data_bytes, String::new()))]) {
        if start < before.0 {
            let (first, second) = (quoted(&before.1), quoted(&after.1));
            return Err(Fault::Overlap { first, second, offset: data_start + start });
        }
        if start > before.0 {
            return Err(Fault::Unclaimed { start: data_start + before.0, end: data_start + start });
        }
        before = after;
    }
    Ok(tensors)
}

fn kind_of(name: &str, dtype: &str) -> Result<GgmlType, Fault> {
    let float = [GgmlType::F32, GgmlType::F16, GgmlType::BF16];
    let kind = float.into_iter().chain(GgmlType::UNREADABLE).find(|kind| kind.name == dtype);
    kind.filter(|kind| kind.block_elements == 1)
        .ok_or_else(|| Fault::Dtype { tensor: quoted(name), found: quoted(dtype) })
}

/// Row length first; a scalar is a row of one.
fn dims_of(name: &str, shape: Vec<u64>) -> Result<Vec<u64>, Fault> {
    if shape.len() > DIMENSIONS_MAX {
        let found = shape.len() as u32;
        return Err(Fault::DimensionCount { tensor: quoted(name), found });
    }
    if let Some(dimension) = shape.iter().position(|&dim| dim == 0) {
        return Err(Fault::ZeroDimension { tensor: quoted(name), dimension });
    }
    let dims: Vec<u64> = shape.into_iter().rev().collect();
    Ok(if dims.is_empty() { vec![1] } else { dims })
}
