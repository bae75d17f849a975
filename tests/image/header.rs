//! The header: round trip, damage, lies, random bytes.

use super::properties;
use ganglion::image::WeightType::{F16, Q4, Q8};
use ganglion::image::geometry::BLOCK_BYTES;
use ganglion::image::header::{Constants, HEADER_BYTES, LAYOUT, VERSION};
use ganglion::image::tag::crc32c;
use ganglion::image::{ActivationFn, Biases, Header, HeaderError, SectionKind, Shape, Types};
use proptest::prelude::*;

fn shape() -> Shape {
    Shape {
        layers: 3,
        hidden: 96,
        heads: 6,
        kv_heads: 2,
        head_dim: 16,
        experts: 5,
        experts_used: 2,
        ff: 77,
        vocab: 321,
        activation: ActivationFn::DRelu,
        tied: true,
        biases: Biases::NONE,
        window: 0,
        tokenizer_bytes: 5000,
    }
}

const TYPES: Types = Types { records: Q4, down: Q4, resident: Q8, head: F16, embedding: Q8 };
const CONSTANTS: Constants =
    Constants { rms_eps: 1e-5, context_trained: 2048, attention_factor: 1.25 };

fn header() -> Header {
    let mut header = Header::new("a model", &shape(), &TYPES, CONSTANTS);
    header.set_section_crc(SectionKind::Order, 0xdead_beef);
    header
}

fn refusal(block: &[u8], file_bytes: u64) -> HeaderError {
    Header::read(block, file_bytes).err().expect("the header is wrong")
}

/// The header's own checksum lies at byte 16, and is taken with itself zero.
fn sign(block: &mut [u8]) {
    block[16..20].fill(0);
    let crc = crc32c(0, &block[..HEADER_BYTES]);
    block[16..20].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn a_header_reads_back() {
    let written = header();
    let block = written.to_bytes();
    let read = Header::read(&block, written.file_bytes()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(read.shape(), Ok(shape()));
    assert_eq!(read.types(), Ok(TYPES));
    assert_eq!(read.constants(), CONSTANTS);
    assert_eq!(read.name(), "a model");
    assert_eq!(read.section(SectionKind::Order).crc, 0xdead_beef);
    assert_eq!(read.to_bytes(), block);
    let mut end = BLOCK_BYTES;
    for kind in SectionKind::ALL {
        let section = read.section(kind);
        assert_eq!((section.offset, section.bytes % BLOCK_BYTES), (end, 0), "{}", kind.name());
        assert!(section.bytes > 0);
        end += section.bytes;
    }
    assert_eq!(end, read.file_bytes());
    assert_eq!(read.matches(&shape(), &TYPES), Ok(()));
}

#[test]
fn long_names_are_cut_between_letters() {
    for (name, kept) in [
        ("x".repeat(64), "x".repeat(64)),
        ("x".repeat(65), "x".repeat(64)),
        (format!("x{}", "é".repeat(40)), format!("x{}", "é".repeat(31))),
        (String::new(), String::new()),
    ] {
        let header = Header::new(&name, &shape(), &TYPES, CONSTANTS);
        assert_eq!(header.name(), kept, "{name}");
    }
}

#[test]
fn one_flipped_bit_anywhere_in_the_header_is_refused() {
    let written = header();
    let (mut block, file_bytes) = (written.to_bytes(), written.file_bytes());
    for index in 0..HEADER_BYTES {
        block[index] ^= 1 << (index % 8);
        let error = refusal(&block, file_bytes);
        match index {
            0..8 => assert_eq!(error, HeaderError::NotAnImage),
            8..12 => assert!(matches!(error, HeaderError::Newer { .. } | HeaderError::Damaged)),
            _ => assert_eq!(error, HeaderError::Damaged, "byte {index}"),
        }
        block[index] ^= 1 << (index % 8);
    }
    assert!(Header::read(&block, file_bytes).is_ok());
}

#[test]
fn each_wrong_header_has_its_reason() {
    let good = header();
    let (block, bytes) = (good.to_bytes(), good.file_bytes());
    let changed = |at: usize, value: u32| {
        let mut block = block;
        block[at..at + 4].copy_from_slice(&value.to_le_bytes());
        sign(&mut block);
        refusal(&block, bytes)
    };
    let cut = HEADER_BYTES as u64 - 1;
    assert_eq!(refusal(&block[..HEADER_BYTES - 1], cut), HeaderError::Cut { found: cut });
    assert_eq!(refusal(&block[..7], 7), HeaderError::NotAnImage);
    assert_eq!(refusal(&[], 0), HeaderError::NotAnImage);
    assert_eq!(changed(8, VERSION + 1), HeaderError::Newer { found: VERSION + 1 });
    assert_eq!(changed(12, LAYOUT + 1), HeaderError::Layout { found: LAYOUT + 1 });
    let wanted = bytes;
    for found in [0, bytes - 1, bytes + 1, u64::MAX] {
        assert_eq!(refusal(&block, found), HeaderError::FileBytes { wanted, found });
    }
    // Shape fields follow the 64 bytes of the name, which start at byte 32.
    let fields = [
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "experts",
        "experts_used",
        "ff",
        "vocab",
    ];
    for (index, name) in fields.into_iter().enumerate() {
        for value in [0, u32::MAX] {
            let error = changed(96 + 4 * index, value);
            assert_eq!(error, HeaderError::Field { name, found: u64::from(value) });
        }
        // Within the limits, but the sections would lie elsewhere or the numbers not divide. The
        // number of experts in use moves nothing: `matches` compares it.
        if name != "experts_used" {
            let error = changed(96 + 4 * index, 1);
            let lies = matches!(error, HeaderError::Field { .. } | HeaderError::FileBytes { .. });
            assert!(lies, "{name}: {error}");
        }
    }
    assert_eq!(changed(20, 9), HeaderError::Field { name: "activation", found: 9 });
    assert_eq!(changed(164, 8), HeaderError::Field { name: "biases", found: 8 });
    let window = 168 + 5 * 24;
    assert_eq!(
        changed(window, u32::MAX),
        HeaderError::Field { name: "window", found: 0xffff_ffff }
    );
    for factor in [f32::NAN, f32::INFINITY, -1.0] {
        let found = factor.to_bits();
        let name = "attention factor";
        let error = changed(window + 4, found);
        assert_eq!(error, HeaderError::Field { name, found: u64::from(found) });
    }
    assert_eq!(changed(140, 3), HeaderError::Field { name: "record type", found: 3 });
}

#[test]
fn an_image_of_another_model_is_told_by_field() {
    let (header, shape) = (header(), shape());
    let shapes = [
        ("layers", Shape { layers: 4, ..shape }),
        ("heads", Shape { heads: 8, ..shape }),
        ("experts_used", Shape { experts_used: 3, ..shape }),
        ("tied", Shape { tied: false, ..shape }),
        ("window", Shape { window: 32, ..shape }),
        ("biases", Shape { biases: Biases { qkv: true, ..Biases::NONE }, ..shape }),
        ("tokenizer_bytes", Shape { tokenizer_bytes: 5001, ..shape }),
    ];
    for (wanted, shape) in shapes {
        let error = header.matches(&shape, &TYPES).unwrap_err();
        assert!(matches!(error, HeaderError::Mismatch { name, .. } if name == wanted), "{error}");
    }
    let types = [
        ("records", Types { records: Q8, ..TYPES }),
        ("down columns", Types { down: Q8, ..TYPES }),
        ("resident weights", Types { resident: Q4, ..TYPES }),
        ("the head", Types { head: Q8, ..TYPES }),
        ("embeddings", Types { embedding: F16, ..TYPES }),
    ];
    for (wanted, types) in types {
        let error = header.matches(&shape, &types).unwrap_err();
        assert!(matches!(error, HeaderError::Types { name, .. } if name == wanted), "{error}");
    }
}

proptest! {
    #![proptest_config(properties())]

    #[test]
    fn random_blocks_are_refused_without_panic(
        random in prop::collection::vec(any::<u8>(), 0..5000),
        signed in any::<bool>(),
        file_bytes in any::<u64>(),
    ) {
        prop_assert_eq!(Header::read(&random, file_bytes).err(), Some(HeaderError::NotAnImage));
        // The same with everything right but the fields.
        let mut block = header().to_bytes();
        for (to, &from) in block[20..].iter_mut().zip(&random) {
            *to = from;
        }
        if signed {
            sign(&mut block);
        }
        if !random.is_empty() && random[..] != header().to_bytes()[20..][..random.len().min(4076)] {
            prop_assert!(Header::read(&block, file_bytes).is_err());
        }
    }

    #[test]
    fn random_fields_never_panic(
        fields in prop::collection::vec((0..22usize, any::<u32>(), 0..32u32), 1..6),
        file_bytes in any::<u64>(),
    ) {
        let mut block = header().to_bytes();
        for (field, value, shift) in fields {
            // Small numbers too: they pass the limits and reach the sums.
            let at = 96 + 4 * field;
            block[at..at + 4].copy_from_slice(&(value >> shift).to_le_bytes());
        }
        sign(&mut block);
        if let Err(error) = Header::read(&block, file_bytes) {
            prop_assert!(error.to_string().contains("pack"), "{}", error);
        }
    }
}
