//! Metadata of a model: typed values by key.
//!
//! Called by whoever turns a file into a shape or a tokenizer. A getter without `opt_` demands the
//! key. Integers of any width are accepted when the value fits; floats are f32 or f64.

use std::collections::BTreeMap;

use super::error::{Fault, quoted};

/// Value types, numbered as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::forge) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(id as usize).copied()
    }

    /// Bytes of one value; 0 for strings and arrays, whose length is in the file.
    pub fn scalar_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::String | Self::Array => 0,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "a bool",
            Self::String => "a string",
            Self::Array => "an array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// The integer in the low bytes of `raw`; none when this is no integer type.
    fn int(self, raw: [u8; 8]) -> Option<i128> {
        let bits = u64::from_le_bytes(raw);
        Some(match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => i128::from(bits),
            Self::I8 => i128::from(bits as i8),
            Self::I16 => i128::from(bits as i16),
            Self::I32 => i128::from(bits as i32),
            Self::I64 => i128::from(bits as i64),
            Self::F32 | Self::F64 | Self::Bool | Self::String | Self::Array => return None,
        })
    }

    /// The float in the low bytes of `raw`; none when this is no float type.
    fn float(self, raw: [u8; 8]) -> Option<f32> {
        let bits = u64::from_le_bytes(raw);
        match self {
            Self::F32 => Some(f32::from_bits(bits as u32)),
            Self::F64 => Some(f64::from_bits(bits) as f32),
            _ => None,
        }
    }
}

/// One value. Arrays of numbers stay as the bytes of the file.
#[derive(Debug, PartialEq)]
pub(in crate::forge) enum Value {
    Scalar(Kind, [u8; 8]),
    String(String),
    Array(Kind, Vec<u8>),
    Strings(Vec<String>),
}

impl Value {
    /// A scalar from its bytes in the file.
    pub fn scalar(kind: Kind, bytes: &[u8]) -> Self {
        Self::Scalar(kind, widened(bytes))
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Scalar(kind, _) => kind.name(),
            Self::String(_) => Kind::String.name(),
            Self::Array(..) => "an array of numbers",
            Self::Strings(_) => "an array of strings",
        }
    }
}

fn widened(bytes: &[u8]) -> [u8; 8] {
    let mut raw = [0; 8];
    raw[..bytes.len()].copy_from_slice(bytes);
    raw
}

/// The metadata of a file.
#[derive(Debug)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
}

type Opt<T> = Result<Option<T>, Fault>;

impl Metadata {
    pub(in crate::forge) fn new(values: BTreeMap<String, Value>) -> Self {
        Self { values }
    }

    /// The keys, sorted.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    pub(in crate::forge) fn opt_int(&self, key: &str) -> Opt<i128> {
        self.convert(key, "an integer", |value| match value {
            Value::Scalar(kind, raw) => kind.int(*raw),
            _ => None,
        })
    }

    pub(in crate::forge) fn opt_u32(&self, key: &str) -> Opt<u32> {
        self.opt_int(key)?.map(|value| fit(key, "u32", value)).transpose()
    }

    pub(super) fn opt_u64(&self, key: &str) -> Opt<u64> {
        self.opt_int(key)?.map(|value| fit(key, "u64", value)).transpose()
    }

    pub(super) fn opt_bool(&self, key: &str) -> Opt<bool> {
        self.convert(key, "a bool", |value| match value {
            Value::Scalar(Kind::Bool, raw) => Some(raw[0] == 1),
            _ => None,
        })
    }

    pub(super) fn opt_f32(&self, key: &str) -> Opt<f32> {
        let value = self.convert(key, "a float", |value| match value {
            Value::Scalar(kind, raw) => kind.float(*raw),
            _ => None,
        })?;
        match value {
            Some(value) if !value.is_finite() => {
                Err(Fault::OutOfRange { key: quoted(key), wanted: "f32", found: value.to_string() })
            }
            value => Ok(value),
        }
    }

    pub(super) fn opt_string(&self, key: &str) -> Opt<&str> {
        self.convert(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    pub(super) fn opt_strings(&self, key: &str) -> Opt<&[String]> {
        self.convert(key, "an array of strings", |value| match value {
            Value::Strings(texts) => Some(texts.as_slice()),
            _ => None,
        })
    }

    pub(super) fn opt_i32s(&self, key: &str) -> Opt<Vec<i32>> {
        let values = self.numbers(key, "an array of integers", Kind::int)?;
        let fitted = |values: Vec<i128>| values.into_iter().map(|v| fit(key, "i32", v)).collect();
        values.map(fitted).transpose()
    }

    pub(super) fn opt_f32s(&self, key: &str) -> Opt<Vec<f32>> {
        self.numbers(key, "an array of floats", Kind::float)
    }

    fn numbers<T>(
        &self,
        key: &str,
        wanted: &'static str,
        number: impl Fn(Kind, [u8; 8]) -> Option<T>,
    ) -> Opt<Vec<T>> {
        self.convert(key, wanted, |value| match value {
            Value::Array(kind, bytes) => bytes
                .chunks_exact(kind.scalar_bytes() as usize)
                .map(|bytes| number(*kind, widened(bytes)))
                .collect(),
            _ => None,
        })
    }

    /// Looks `key` up; `convert` returns none for a value of another type than `wanted`.
    fn convert<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Opt<T> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let found = value.name();
        convert(value).map(Some).ok_or_else(|| Fault::WrongType { key: quoted(key), wanted, found })
    }
}

fn fit<T: TryFrom<i128>>(key: &str, wanted: &'static str, value: i128) -> Result<T, Fault> {
    T::try_from(value).map_err(|_| Fault::OutOfRange {
        key: quoted(key),
        wanted,
        found: value.to_string(),
    })
}
