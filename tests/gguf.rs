//! The GGUF reader against files made here, damaged files, and the demo model.
//!
//! Wanted values are worked out by hand or, for the demo model, read by an independent program; the
//! writer below shares nothing with the reader.
#![cfg(feature = "host")]

#[path = "common/process.rs"]
mod process;
#[path = "common/refusal.rs"]
mod refusal;
#[path = "gguf/shards.rs"]
mod shards;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use ganglion::forge::gguf;
use ganglion::forge::source::{Fault, GgmlType, Source, SourceError};

// Value types of the format.
const U8: u32 = 0;
const I8: u32 = 1;
const U16: u32 = 2;
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;
const I64: u32 = 11;
const F64: u32 = 12;

/// A file under the temporary folder, removed with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(bytes: &[u8]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ganglion-gguf-{}-{number}.gguf", std::process::id());
        let scratch = Self(std::env::temp_dir().join(name));
        fs::write(&scratch.0, bytes).unwrap();
        scratch
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Puts a file together, right or wrong as told.
#[derive(Clone)]
struct Writer {
    magic: [u8; 4],
    version: u32,
    tensor_count: Option<u64>,
    key_count: Option<u64>,
    alignment: usize,
    /// Keys as bytes of a file, before the others.
    raw_keys: Vec<u8>,
    keys: Vec<(String, Vec<u8>)>,
    tensors: Vec<TensorSpec>,
}

#[derive(Clone)]
struct TensorSpec {
    name: String,
    dims: Vec<u64>,
    kind: u32,
    /// Offset to write instead of the true one.
    offset: Option<u64>,
    data: Vec<u8>,
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn typed(kind: u32, value: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], value].concat()
}

fn array(kind: u32, count: u64, values: &[u8]) -> Vec<u8> {
    typed(ARRAY, &[&kind.to_le_bytes()[..], &count.to_le_bytes(), values].concat())
}

impl Writer {
    fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            key_count: None,
            alignment: 32,
            raw_keys: Vec::new(),
            keys: Vec::new(),
            tensors: Vec::new(),
        }
    }

    fn key(mut self, name: &str, value: Vec<u8>) -> Self {
        self.keys.push((name.into(), value));
        self
    }

    fn tensor(mut self, name: &str, dims: &[u64], kind: u32, data: Vec<u8>) -> Self {
        let (name, dims) = (name.into(), dims.to_vec());
        self.tensors.push(TensorSpec { name, dims, kind, offset: None, data });
        self
    }

    /// A tensor whose entry says what it likes and which has no data.
    fn claim(mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        let (name, dims) = (name.into(), dims.to_vec());
        self.tensors.push(TensorSpec { name, dims, kind, offset: Some(offset), data: Vec::new() });
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        out.extend(&self.raw_keys);
        for (name, value) in &self.keys {
            out.extend(string(name));
            out.extend(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            data.resize(data.len().next_multiple_of(self.alignment), 0);
            out.extend(string(&tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(data);
        out
    }

    fn fault(&self) -> Fault {
        fault_of(&self.bytes())
    }
}

/// Opens `bytes`, which must fail with a proper sentence.
fn fault_of(bytes: &[u8]) -> Fault {
    let scratch = Scratch::new(bytes);
    let error = gguf::open(&scratch.0).expect_err("a damaged file was accepted");
    assert_sentence(&error, &scratch.0);
    error.fault
}

/// The file, a colon, then one line which says what to do after a semicolon or a comma.
fn assert_sentence(error: &SourceError, path: &Path) {
    let text = error.to_string();
    let sentence =
        text.strip_prefix(&format!("{}: ", path.display())).expect("the path is missing");
    assert!(sentence.len() < 400, "{text}");
    assert!(!sentence.contains('\n'), "{text}");
    assert!(sentence.contains([';', ',']), "{text}");
}

fn q8_0(scale: [u8; 2], first: [u8; 4]) -> Vec<u8> {
    let mut block = vec![0; 34];
    block[..2].copy_from_slice(&scale);
    block[2..6].copy_from_slice(&first);
    block
}

/// One key of each type and one tensor of each readable type, plus a Q2_K.
fn small() -> Writer {
    let floats: Vec<u8> = (0..12u8).flat_map(|value| f32::from(value).to_le_bytes()).collect();
    // f16 1.0 is 0x3c00, 0.5 is 0x3800, -2.0 is 0xc000.
    let halves = [0x3c00u16, 0x3800, 0xc000, 0].map(u16::to_le_bytes).concat();
    let eights = [q8_0([0, 0x3c], [1, 2, 0xff, 0x80]), q8_0([0, 0x38], [3, 0, 0, 0])].concat();
    // Nibbles of 9 are +1: every value is the scale, 1.0 in the first block, -2.0 in the second.
    let fours =
        [[&[0u8, 0x3c][..], &[0x99; 16]].concat(), [&[0u8, 0xc0][..], &[0x99; 16]].concat()];
    let strings = [string("a"), string(""), string("ä")].concat();
    Writer::new()
        .key("general.architecture", typed(STRING, &string("llama")))
        .key("general.alignment", typed(U32, &32u32.to_le_bytes()))
        .key("a.u8", typed(U8, &[200]))
        .key("a.i8", typed(I8, &[0xfe]))
        .key("a.u16", typed(U16, &60_000u16.to_le_bytes()))
        .key("a.i32", typed(I32, &(-7i32).to_le_bytes()))
        .key("a.f32", typed(F32, &1.5f32.to_le_bytes()))
        .key("a.nan", typed(F32, &f32::NAN.to_le_bytes()))
        .key("a.f64", typed(F64, &0.25f64.to_le_bytes()))
        .key("a.bool", typed(BOOL, &[1]))
        .key("a.u64", typed(U64, &(1u64 << 40).to_le_bytes()))
        .key("a.i64", typed(I64, &9i64.to_le_bytes()))
        .key("b.strings", array(STRING, 3, &strings))
        .key("b.i32s", array(I32, 2, &[5, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]))
        .key("b.u8s", array(U8, 3, &[1, 2, 255]))
        .key("b.f32s", array(F32, 1, &2.5f32.to_le_bytes()))
        .tensor("floats", &[4, 3], 0, floats)
        .tensor("halves", &[4], 1, halves)
        .tensor("eights", &[32, 2], 8, eights)
        .tensor("fours", &[32, 1, 2], 2, fours.concat())
        .tensor("twos", &[256], 10, vec![0; 84])
}

fn opened(writer: &Writer) -> Source {
    let scratch = Scratch::new(&writer.bytes());
    gguf::open(&scratch.0).unwrap()
}

#[test]
fn metadata_of_every_type() {
    let gguf = opened(&small());
    assert_eq!(gguf.string("general.architecture").unwrap(), "llama");
    assert_eq!(gguf.u32("a.u8").unwrap(), 200);
    assert_eq!(gguf.u32("a.u16").unwrap(), 60_000);
    assert_eq!(gguf.u32("a.i64").unwrap(), 9);
    assert_eq!(gguf.u64("a.u64").unwrap(), 1 << 40);
    assert_eq!(gguf.f32("a.f32").unwrap(), 1.5);
    assert_eq!(gguf.f32("a.f64").unwrap(), 0.25);
    assert!(gguf.bool("a.bool").unwrap());
    assert_eq!(gguf.strings("b.strings").unwrap(), ["a", "", "ä"]);
    assert_eq!(gguf.i32s("b.i32s").unwrap(), [5, -1]);
    assert_eq!(gguf.i32s("b.u8s").unwrap(), [1, 2, 255]);
    assert_eq!(gguf.f32s("b.f32s").unwrap(), [2.5]);
    assert_eq!(gguf.opt_u32("none").unwrap(), None);
    assert_eq!(gguf.opt_string("none").unwrap(), None);
    assert_eq!(gguf.keys().next(), Some("a.bool"));
    assert_eq!(gguf.keys().count(), 16);
}

#[test]
fn metadata_of_the_wrong_type_is_refused() {
    let gguf = opened(&small());
    let checked = |error: SourceError| {
        assert_sentence(&error, gguf.path());
        error.fault
    };
    let wrong = [
        checked(gguf.u32("a.f32").unwrap_err()),
        checked(gguf.u32("a.bool").unwrap_err()),
        checked(gguf.f32("a.u8").unwrap_err()),
        checked(gguf.bool("a.u8").unwrap_err()),
        checked(gguf.string("b.strings").unwrap_err()),
        checked(gguf.strings("general.architecture").unwrap_err()),
        checked(gguf.i32s("b.f32s").unwrap_err()),
        checked(gguf.opt_f32s("b.i32s").unwrap_err()),
    ];
    assert!(wrong.iter().all(|fault| matches!(fault, Fault::WrongType { .. })), "{wrong:?}");
    let unfit = [
        checked(gguf.u32("a.u64").unwrap_err()),
        checked(gguf.u32("a.i8").unwrap_err()),
        checked(gguf.u64("a.i32").unwrap_err()),
        checked(gguf.f32("a.nan").unwrap_err()),
    ];
    assert!(unfit.iter().all(|fault| matches!(fault, Fault::OutOfRange { .. })), "{unfit:?}");
    assert!(matches!(checked(gguf.u32("none").unwrap_err()), Fault::MissingKey { .. }));
}

#[test]
fn rows_of_every_readable_type() {
    let gguf = opened(&small());
    let floats = gguf.tensor("floats").unwrap();
    assert_eq!((floats.kind, &floats.dims[..], floats.bytes), (GgmlType::F32, &[4, 3][..], 48));
    assert_eq!((floats.row_elements(), floats.rows(), floats.row_bytes()), (4, 3, 16));
    assert_eq!(gguf.rows_f32(floats, 1, 2).unwrap(), [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    assert!(gguf.rows_f32(floats, 3, 0).unwrap().is_empty());
    let halves = gguf.tensor("halves").unwrap();
    assert_eq!((halves.kind, halves.rows()), (GgmlType::F16, 1));
    assert_eq!(gguf.rows_f32(halves, 0, 1).unwrap(), [1.0, 0.5, -2.0, 0.0]);
    let eights = gguf.tensor("eights").unwrap();
    let mut row = [9.0; 32];
    gguf.read_row_f32(eights, 0, &mut row).unwrap();
    assert_eq!(row[..5], [1.0, 2.0, -1.0, -128.0, 0.0]);
    gguf.read_row_f32(eights, 1, &mut row).unwrap();
    assert_eq!(row[..2], [1.5, 0.0]);
    let fours = gguf.tensor("fours").unwrap();
    assert_eq!((fours.kind, fours.rows(), fours.row_bytes()), (GgmlType::Q4_0, 2, 18));
    gguf.read_row_f32(fours, 1, &mut row).unwrap();
    assert_eq!(row, [-2.0; 32]);
    assert_eq!(gguf.rows_f32(fours, 0, 2).unwrap(), [[1.0; 32], [-2.0; 32]].concat());
}

#[test]
fn reads_outside_a_tensor_are_refused() {
    let gguf = opened(&small());
    let eights = gguf.tensor("eights").unwrap();
    let mut raw = [0; 4];
    gguf.read_raw(eights, 34, &mut raw).unwrap();
    assert_eq!(raw, [0, 0x38, 3, 0]);
    let range = |result: Result<(), SourceError>| {
        let error = result.unwrap_err();
        assert_sentence(&error, gguf.path());
        assert!(matches!(error.fault, Fault::Range { .. }), "{error}");
    };
    range(gguf.read_raw(eights, 65, &mut raw));
    range(gguf.read_raw(eights, u64::MAX, &mut raw));
    range(gguf.rows_f32(eights, 1, 2).map(drop));
    range(gguf.rows_f32(eights, u64::MAX, 2).map(drop));
    range(gguf.rows_f32(eights, 0, u64::MAX).map(drop));
    range(gguf.read_row_f32(eights, 2, &mut [0.0; 32]));
    let short = gguf.read_row_f32(eights, 0, &mut [0.0; 31]).unwrap_err();
    assert!(matches!(short.fault, Fault::RowLength { has: 32, wanted: 31, .. }));
    assert!(matches!(gguf.tensor("none").unwrap_err().fault, Fault::MissingTensor { .. }));
    assert!(gguf.opt_tensor("none").is_none());
}

#[test]
fn unreadable_types_are_named_when_asked_for() {
    let gguf = opened(&small());
    let twos = gguf.tensor("twos").unwrap();
    assert_eq!(twos.bytes, 84);
    let error = gguf.rows_f32(twos, 0, 1).unwrap_err();
    assert!(matches!(error.fault, Fault::UnreadableType { kind: "Q2_K", .. }));
    assert!(error.to_string().contains("convert the model to F32, F16, BF16, Q4_0, Q4_1, Q5_0"));
    let mut raw = [1; 84];
    gguf.read_raw(twos, 0, &mut raw).unwrap();
    assert_eq!(raw, [0; 84]);
}

#[test]
fn version_2_and_files_of_powerinfer_are_read() {
    for file in [Writer { version: 2, ..small() }, Writer { magic: *b"PWRI", ..small() }] {
        let gguf = opened(&file);
        assert_eq!(gguf.rows_f32(gguf.tensor("halves").unwrap(), 0, 1).unwrap()[0], 1.0);
    }
}

#[test]
fn truncation_at_every_byte() {
    let bytes = small().bytes();
    for length in 0..bytes.len() {
        match fault_of(&bytes[..length]) {
            Fault::Truncated { has, needs, .. } => {
                assert_eq!(has, length as u64);
                assert!(needs > has.into() && needs <= bytes.len() as u128);
            }
            other => panic!("cut to {length} bytes: {other}"),
        }
    }
    let last = fault_of(&bytes[..bytes.len() - 1]).to_string();
    let wanted = format!(
        "file incomplete: it has {} bytes, tensor \"twos\" needs {}; fetch the file again",
        bytes.len() - 1,
        bytes.len()
    );
    assert_eq!(last, wanted);
}

#[test]
fn a_file_cut_after_opening_is_an_error() {
    let bytes = small().bytes();
    let scratch = Scratch::new(&bytes);
    let gguf = gguf::open(&scratch.0).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&scratch.0).unwrap();
    file.set_len(bytes.len() as u64 - 50).unwrap();
    let mut raw = [0; 84];
    let error = gguf.read_raw(gguf.tensor("twos").unwrap(), 0, &mut raw).unwrap_err();
    assert!(matches!(error.fault, Fault::Truncated { .. }), "{error}");
}

#[test]
fn other_files_are_refused() {
    assert!(matches!(Writer { magic: *b"GGML", ..small() }.fault(), Fault::Magic { .. }));
    assert!(matches!(Writer { version: 1, ..small() }.fault(), Fault::Version { found: 1 }));
    assert!(matches!(Writer { version: 4, ..small() }.fault(), Fault::Version { found: 4 }));
    assert!(matches!(Writer { version: 3 << 24, ..small() }.fault(), Fault::BigEndian));
    let folder = std::env::temp_dir();
    let error = gguf::open(&folder).unwrap_err();
    assert_sentence(&error, &folder);
    assert!(matches!(error.fault, Fault::NotAFile));
    let missing = folder.join("ganglion-no-such-file.gguf");
    let error = gguf::open(&missing).unwrap_err();
    assert_sentence(&error, &missing);
    assert!(matches!(error.fault, Fault::Io { .. }));
}

#[test]
fn huge_counts_allocate_nothing() {
    for count in [1 << 31, 1 << 60, u64::MAX] {
        let length = count.to_le_bytes();
        let files = [
            Writer { tensor_count: Some(count), ..small() },
            Writer { key_count: Some(count), ..small() },
            small().key("s", typed(STRING, &length)),
            small().key("a", array(STRING, count, &string("x"))),
            small().key("a", array(U8, count, &[0])),
            small().key("a", array(F64, count, &[0; 8])),
        ];
        for file in files {
            let fault = file.fault();
            assert!(matches!(fault, Fault::Truncated { .. }), "{fault}");
        }
    }
}

#[test]
fn bad_names_and_values_are_refused() {
    let long = small().key(&"k".repeat(65_536), typed(U8, &[0]));
    assert!(matches!(long.fault(), Fault::NameLength { found: 65_536, .. }));
    opened(&small().key(&"k".repeat(65_535), typed(U8, &[0])));
    assert!(matches!(small().key("", typed(U8, &[0])).fault(), Fault::NameLength { .. }));
    let long = small().claim(&"t".repeat(65), &[4], 0, 0);
    assert!(matches!(long.fault(), Fault::NameLength { found: 65, .. }));
    let twice = small().key("a.u8", typed(U8, &[0]));
    assert!(matches!(twice.fault(), Fault::DuplicateKey { .. }));
    assert!(matches!(small().key("k", typed(13, &[0; 8])).fault(), Fault::ValueType { .. }));
    assert!(matches!(small().key("k", typed(BOOL, &[2])).fault(), Fault::BoolValue { .. }));
    let bools = small().key("k", array(BOOL, 2, &[0, 7]));
    assert!(matches!(bools.fault(), Fault::BoolValue { found: 7, .. }));
    let nested = small().key("k\n", array(ARRAY, 1, &[0; 12]));
    assert!(matches!(nested.fault(), Fault::NestedArray { .. }));
    let mut bytes = small().bytes();
    let at = bytes.windows(5).position(|window| window == b"llama").unwrap();
    bytes[at] = 0xff;
    assert!(matches!(fault_of(&bytes), Fault::NotUtf8 { .. }));
}

#[test]
fn bad_alignment_is_refused() {
    for found in [0u32, 4, 24, 33] {
        let file = Writer::new().key("general.alignment", typed(U32, &found.to_le_bytes()));
        assert!(matches!(file.fault(), Fault::Alignment { .. }), "{found}");
    }
    let file = Writer::new().key("general.alignment", typed(STRING, &string("32")));
    assert!(matches!(file.fault(), Fault::WrongType { .. }));
    let wide = Writer { alignment: 64, ..Writer::new() }
        .key("general.alignment", typed(U32, &64u32.to_le_bytes()))
        .tensor("t", &[1], 0, vec![0; 4])
        .tensor("u", &[1], 0, 1.0f32.to_le_bytes().to_vec());
    let gguf = opened(&wide);
    assert_eq!(gguf.rows_f32(gguf.tensor("u").unwrap(), 0, 1).unwrap(), [1.0]);
}

#[test]
fn bad_shapes_are_refused() {
    let claim = |dims: &[u64], kind| Writer::new().claim("t", dims, kind, 0).fault();
    assert!(matches!(claim(&[], 0), Fault::DimensionCount { found: 0, .. }));
    assert!(matches!(claim(&[1; 5], 0), Fault::DimensionCount { found: 5, .. }));
    assert!(matches!(claim(&[4, 0], 0), Fault::ZeroDimension { dimension: 1, .. }));
    assert!(matches!(claim(&[1 << 62], 0), Fault::TooLarge { .. }));
    assert!(matches!(claim(&[1 << 32, 1 << 32], 1), Fault::TooLarge { .. }));
    assert!(matches!(claim(&[u64::MAX; 4], 1), Fault::TooLarge { .. }));
    assert!(matches!(claim(&[33], 8), Fault::RowBlocks { found: 33, wanted: 32, .. }));
    assert!(matches!(claim(&[32], 4), Fault::UnknownType { id: 4, .. }));
    assert!(matches!(claim(&[32], u32::MAX), Fault::UnknownType { .. }));
    assert!(matches!(claim(&[1 << 40], 0), Fault::Truncated { .. }));
}

#[test]
fn bad_offsets_are_refused() {
    let with = |offset| small().claim("extra", &[4], 0, offset).fault();
    assert!(matches!(with(1), Fault::OffsetAlignment { found: 1, wanted: 32, .. }));
    assert!(matches!(with(1 << 20), Fault::Truncated { .. }));
    assert!(matches!(with(u64::MAX - 31), Fault::Truncated { .. }));
    assert!(matches!(with(0), Fault::Overlap { .. }));
    assert!(matches!(with(32), Fault::Overlap { .. }));
    let twice = small().tensor("halves", &[1], 0, vec![0; 4]);
    assert!(matches!(twice.fault(), Fault::DuplicateTensor { .. }));
}

/// A small generator, so that a failing mutation can be found again (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    const WORDS: [u64; 6] = [0, 1, 31, 1 << 31, 1 << 60, u64::MAX];
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len() - 8);
        match random.below(4) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.below(256) as u8,
            2 => bytes[at..at + 8].copy_from_slice(&WORDS[random.below(6)].to_le_bytes()),
            _ => drop(bytes.remove(at)),
        }
    }
}

/// Asks an opened file for everything it has.
fn read_all(gguf: &Source) {
    for key in gguf.keys() {
        let _ = (gguf.opt_u32(key), gguf.opt_f32(key), gguf.opt_bool(key), gguf.opt_string(key));
        let _ = (gguf.opt_strings(key), gguf.opt_i32s(key), gguf.opt_f32s(key));
    }
    for tensor in gguf.tensors() {
        if tensor.kind.is_readable() {
            gguf.rows_f32(tensor, 0, tensor.rows()).unwrap();
        }
    }
}

#[test]
fn mutations_never_panic() {
    let bytes = small().bytes();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut refused = 0;
    for _ in 0..2_000 {
        let mut mutated = bytes.clone();
        mutate(&mut mutated, &mut random);
        let scratch = Scratch::new(&mutated);
        match gguf::open(&scratch.0) {
            Ok(gguf) => read_all(&gguf),
            Err(error) => {
                assert_sentence(&error, &scratch.0);
                refused += 1;
            }
        }
    }
    assert!((500..2_000).contains(&refused), "{refused} of 2,000 refused");
}

#[test]
fn the_demo_model() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/demo/ganglion-demo-14m.f16.gguf");
    let gguf = gguf::open(&path).unwrap();
    assert_eq!(gguf.file_bytes(), 27_631_776);
    assert_eq!(gguf.string("general.architecture").unwrap(), "llama");
    assert_eq!(gguf.string("powerinfer.ffn_activation").unwrap(), "drelu");
    for (key, wanted) in [
        ("block_count", 4),
        ("context_length", 512),
        ("embedding_length", 256),
        ("feed_forward_length", 512),
        ("attention.head_count", 8),
        ("attention.head_count_kv", 2),
        ("expert_count", 8),
        ("expert_used_count", 2),
        ("vocab_size", 2048),
    ] {
        assert_eq!(gguf.u32(&format!("llama.{key}")).unwrap(), wanted, "{key}");
    }
    assert_eq!(gguf.f32("llama.attention.layer_norm_rms_epsilon").unwrap(), 1e-5);
    assert_eq!(gguf.f32("llama.rope.freq_base").unwrap(), 1e4);
    let tokens = gguf.strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!((tokens.len(), tokens[0].as_str()), (2048, "<|endoftext|>"));
    assert_eq!(gguf.i32s("tokenizer.ggml.token_type").unwrap()[..2], [3, 1]);
    assert_eq!(gguf.tensors().len(), 42);
    assert_eq!(gguf.tensors()[0].name, "token_embd.weight");
    assert_eq!(gguf.tensors()[0].dims, [256, 2048]);
    let router = gguf.tensor("blk.3.ffn_gate_inp.weight").unwrap();
    assert_eq!((router.kind, &router.dims[..]), (GgmlType::F32, &[256, 8][..]));
    let down = gguf.tensor("blk.3.ffn_down_exps.weight").unwrap();
    assert_eq!((down.kind, &down.dims[..], down.rows()), (GgmlType::F16, &[512, 256, 8][..], 2048));
    // Values printed by the gguf package of Python.
    let ends = |name: &str, row, count: usize| {
        let values = gguf.rows_f32(gguf.tensor(name).unwrap(), row, 1).unwrap();
        (values[..count].to_vec(), values[values.len() - count..].to_vec())
    };
    let (start, _) = ends("token_embd.weight", 5, 4);
    assert_eq!(start, [0.14050293, -0.025787354, 0.046142578, -0.21569824]);
    let (start, _) = ends("output_norm.weight", 0, 2);
    assert_eq!(start, [1.2890625, 1.3974609]);
    let (_, end) = ends("blk.0.ffn_gate_inp.weight", 7, 2);
    assert_eq!(end, [-0.09240723, 0.10736084]);
    // Row 255 of the last expert.
    let (_, end) = ends("blk.3.ffn_down_exps.weight", 7 * 256 + 255, 3);
    assert_eq!(end, [0.125, 0.009788513, 0.006412506]);
    // Two chunks of reading give the rows that single reads give.
    let all = gguf.rows_f32(down, 0, 2048).unwrap();
    for row in [0, 1023, 1024, 2047] {
        let start = row as usize * 512;
        assert_eq!(all[start..start + 512], gguf.rows_f32(down, row, 1).unwrap());
    }
}
