//! Bytes on flash: geometry, header, codes, and the packed demo against its source.
#![cfg(feature = "host")]

use ganglion::forge::decode;
use ganglion::forge::gguf::{GgmlType, Gguf, Tensor};
use ganglion::forge::model::ModelFile;
use ganglion::forge::pack::pack;
use ganglion::forge::quantize::{RowCodes, encode_column, encode_row, layout_row};
use ganglion::forge::verify::verify_image;
use ganglion::image::geometry::{
    BLOCK_BYTES, GROUP, Record, TAG_BYTES, activation_byte, padded_groups, padded_len,
    q4_row_nibble, q8_row_byte, row_scale_byte,
};
use ganglion::image::header::{Constants, HEADER_BYTES, LAYOUT, VERSION};
use ganglion::image::tag::crc32c;
use ganglion::image::{Activation, Header, HeaderError, SectionKind, Shape, Types, WeightType};
use ganglion::kernel::dequantize_row;
use half::f16;
use proptest::prelude::*;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use WeightType::{F16, Q4, Q8};

fn properties() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

/// Standard normal numbers, the same for each seed.
struct Gauss(u64);

impl Gauss {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn next(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.uniform()).cos()) as f32
    }

    fn vector(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next()).collect()
    }
}

fn row(weight: WeightType, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_row(weight, values, &mut bytes);
    assert_eq!(bytes.len() as u64, weight.row_bytes(values.len() as u64));
    bytes
}

fn column(weight: WeightType, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_column(weight, values, &mut bytes);
    assert_eq!(bytes.len() as u64, weight.column_bytes(values.len() as u64));
    bytes
}

fn decoded_row(weight: WeightType, bytes: &[u8], len: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; len];
    decode::row(weight, bytes, &mut out);
    out
}

fn decoded_column(weight: WeightType, bytes: &[u8], len: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; len];
    decode::column(weight, bytes, &mut out);
    out
}

/// Root-mean-square error over root-mean-square of the source.
fn relative_error(source: &[f32], decoded: &[f32]) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f32>| -> f64 {
        values.map(|value| f64::from(value).powi(2)).sum()
    };
    let error = square(&mut source.iter().zip(decoded).map(|(a, b)| a - b));
    (error / square(&mut source.iter().copied())).sqrt()
}

// Geometry.

#[test]
fn every_code_and_scale_of_a_row_has_bytes_of_its_own() {
    for k in 1..=5000 {
        let (groups, len) = (padded_groups(k), padded_len(k));
        assert!(len >= k && len < k + 4 * GROUP && groups * GROUP == len);
        for (weight, code_bytes) in [(Q8, 32), (Q4, 16)] {
            // Half-bytes taken, from codes of all padded weights and both bytes of each scale.
            let mut taken = vec![false; 2 * weight.row_bytes(k) as usize];
            let mut take = |half: u64| {
                let place = &mut taken[half as usize];
                assert!(!std::mem::replace(place, true), "{weight:?}, {k}: half-byte {half} twice");
            };
            for index in 0..len {
                if weight == Q8 {
                    (0..2).for_each(|half| take(2 * q8_row_byte(groups, index) + half));
                } else {
                    let (byte, high) = q4_row_nibble(groups, index);
                    take(2 * byte + u64::from(high));
                }
            }
            for group in 0..groups {
                let at = row_scale_byte(groups, group, code_bytes);
                (0..4).for_each(|half| take(2 * at + half));
            }
            let used = 2 * groups * (code_bytes + 2);
            assert!(taken[..used as usize].iter().all(|&taken| taken), "{weight:?}, {k}: a gap");
        }
        assert!(F16.row_bytes(k) >= 2 * k && F16.row_bytes(k) < 2 * k + 32);
    }
}

#[test]
fn activations_are_permuted() {
    for k in 1..=5000 {
        let (groups, len) = (padded_groups(k), padded_len(k));
        let mut taken = vec![false; len as usize];
        for index in 0..len {
            let byte = activation_byte(groups, index) as usize;
            assert!(!std::mem::replace(&mut taken[byte], true), "{k}: byte {byte} twice");
        }
    }
}

#[test]
fn an_activation_stands_where_the_weight_it_meets_does() {
    // Within a band both use the same interleave: a lane multiplies byte by byte.
    for k in [1, 31, 256, 480, 512, 544, 4096, 4097] {
        let groups = padded_groups(k);
        for index in 0..padded_len(k) {
            let band = index / (16 * GROUP);
            let scales = band * 16 * 2;
            assert_eq!(activation_byte(groups, index) + scales, q8_row_byte(groups, index));
        }
    }
}

#[test]
fn places_by_hand() {
    // 32 weights: one band of 4 groups. Weight 4 is step 1, and 4 lanes of 4 bytes lie before it.
    assert_eq!([0, 1, 4, 5, 31].map(|i| q8_row_byte(4, i)), [0, 1, 16, 17, 7 * 16 + 3]);
    assert_eq!(row_scale_byte(4, 0, 32), 128);
    assert_eq!(Q8.row_bytes(32), 144); // 136, to 16
    let nibbles = [0, 16, 4, 20, 15, 31].map(|i| q4_row_nibble(4, i));
    let wanted = [(0, false), (0, true), (16, false), (16, true), (51, false), (51, true)];
    assert_eq!(nibbles, wanted);
    assert_eq!((row_scale_byte(4, 0, 16), Q4.row_bytes(32)), (64, 80));
    // 4096 weights: 8 bands of 16. Weight 544 is the first of group 17: band 1, lane 1.
    assert_eq!(q8_row_byte(128, 544), 16 * 34 + 4);
    assert_eq!(q4_row_nibble(128, 544), (16 * 18 + 4, false));
    assert_eq!(row_scale_byte(128, 17, 32), 16 * 34 + 512 + 2);
    // 640 weights: 20 groups, a band of 16 and one of 4. Group 17 is lane 1 of the short one.
    assert_eq!(q8_row_byte(20, 544 + 4), 16 * 34 + (4 + 1) * 4);
    assert_eq!(row_scale_byte(20, 17, 32), 16 * 34 + 128 + 2);
}

#[test]
fn columns_by_hand() {
    // One weight in each group that stands at a known byte.
    let mut values = vec![0.0; 64];
    values[0] = 127.0;
    values[33] = -5.0;
    let bytes = column(Q8, &values);
    assert_eq!((bytes[0], bytes[33] as i8), (127, -5));
    assert_eq!(bytes[64..66], f16::from_f32(1.0).to_le_bytes());
    assert_eq!(bytes.len(), 80);

    values[0] = -120.0; // -8 at sub-scale 15 of d = 1
    values[33] = 0.0;
    values[32 + 17] = 16.0; // -8 at sub-scale -2
    let bytes = column(Q4, &values);
    assert_eq!(bytes[0], 0x80, "weight 0 is -8, weight 16 is 0");
    assert_eq!(bytes[16 + 1], 0x08, "weight 33 is 0, weight 49 is -8");
    assert_eq!((bytes[32] as i8, bytes[33] as i8), (15, -2));
    assert_eq!(bytes[34..36], f16::from_f32(1.0).to_le_bytes());
    assert_eq!(bytes.len(), 48);

    let bytes = column(F16, &[1.5, -2.0]);
    assert_eq!(
        bytes[..4],
        [f16::from_f32(1.5), f16::from_f32(-2.0)].map(f16::to_le_bytes).concat()
    );
    assert_eq!(bytes[4..], [0; 28]);
}

#[test]
fn records_never_overlap_nor_cross_a_block_they_share() {
    for weight in WeightType::ALL {
        for hidden in (1..600).chain([1024, 2048, 4095, 4096, 8192, 65536]) {
            let record = Record::aligned(weight, hidden);
            let raw = record.raw_bytes();
            assert_eq!(raw, 2 * record.row_bytes + record.column_bytes + 2 * TAG_BYTES);
            assert!(record.unit_bytes.is_multiple_of(BLOCK_BYTES));
            assert!(record.per_block == 1 || record.unit_bytes == BLOCK_BYTES);
            let mut end = 0;
            for neuron in 0..100 {
                let offset = record.offset(neuron);
                assert!(offset >= end, "{record:?}: neuron {neuron} starts within the one before");
                end = offset + raw;
                let unit = offset / record.unit_bytes;
                assert_eq!(unit, (end - 1) / record.unit_bytes, "{record:?}: {neuron} crosses");
                assert_eq!(unit + 1, record.units(neuron + 1));
            }
            // What is left of a block would not hold another.
            let used = record.per_block * raw;
            assert!(record.unit_bytes - used < raw.min(BLOCK_BYTES), "{record:?} wastes");
            let parts = [record.gate_tag(), record.up(), record.down(), record.tail_tag(), raw];
            let sizes = [TAG_BYTES, record.row_bytes, record.column_bytes, TAG_BYTES];
            assert_eq!(parts[0], record.row_bytes);
            for (index, size) in sizes.into_iter().enumerate() {
                assert_eq!(parts[index] + size, parts[index + 1]);
            }
            let slot = record.slot_bytes();
            assert!(slot.is_multiple_of(64) && slot >= raw - 2 * TAG_BYTES && slot < raw + 64);
        }
    }
}

// Header.

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
        activation: Activation::DRelu,
        tied: true,
        tokenizer_bytes: 5000,
    }
}

const TYPES: Types = Types { records: Q4, resident: Q8, head: F16, embedding: Q8 };
const CONSTANTS: Constants = Constants { rms_eps: 1e-5, context_trained: 2048 };

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
    assert_eq!(refusal(&block[..HEADER_BYTES - 1], bytes), HeaderError::NotAnImage);
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
        // Within the limits, but the sections would lie elsewhere or the numbers not divide.
        let error = changed(96 + 4 * index, 1);
        let told = error.to_string();
        assert!(
            matches!(error, HeaderError::Field { .. } | HeaderError::FileBytes { .. }),
            "{told}"
        );
    }
    assert_eq!(changed(20, 9), HeaderError::Field { name: "activation", found: 9 });
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
        ("tokenizer_bytes", Shape { tokenizer_bytes: 5001, ..shape }),
    ];
    for (wanted, shape) in shapes {
        let error = header.matches(&shape, &TYPES).unwrap_err();
        assert!(matches!(error, HeaderError::Mismatch { name, .. } if name == wanted), "{error}");
    }
    let types = [
        ("record type", Types { records: Q8, ..TYPES }),
        ("resident type", Types { resident: Q4, ..TYPES }),
        ("head type", Types { head: Q8, ..TYPES }),
        ("embedding type", Types { embedding: F16, ..TYPES }),
    ];
    for (wanted, types) in types {
        let error = header.matches(&shape, &types).unwrap_err();
        assert!(matches!(error, HeaderError::Mismatch { name, .. } if name == wanted), "{error}");
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

    #[test]
    fn rows_decode_as_the_kernels_do(
        seed in any::<u64>(),
        len in 1..2000usize,
        scale in -20..20i32,
    ) {
        let mut values = Gauss(seed).vector(len);
        values.iter_mut().for_each(|value| *value *= 2f32.powi(scale));
        for weight in WeightType::ALL {
            let bytes = row(weight, &values);
            let mut out = vec![f32::NAN; len];
            dequantize_row(weight, &bytes, &mut out);
            let wanted = decoded_row(weight, &bytes, len);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&out), bits(&wanted), "{:?}", weight);
        }
    }

    #[test]
    fn codes_are_within_half_a_step(seed in any::<u64>(), len in 1..2000usize) {
        let values = Gauss(seed).vector(len);
        for (at, group) in decoded_row(Q8, &row(Q8, &values), len).chunks(32).enumerate() {
            let source = &values[32 * at..32 * at + group.len()];
            let largest = source.iter().fold(0f32, |max, value| max.max(value.abs()));
            for (source, decoded) in source.iter().zip(group) {
                // Half a step, and the f16 rounding of the scale over 127 steps.
                prop_assert!((source - decoded).abs() <= largest * (0.5 / 127.0 + 1.0 / 2048.0));
            }
        }
        let decoded = decoded_column(Q8, &column(Q8, &values), len);
        let largest = values.iter().fold(0f32, |max, value| max.max(value.abs()));
        for (source, decoded) in values.iter().zip(decoded) {
            prop_assert!((source - decoded).abs() <= largest * (0.5 / 127.0 + 1.0 / 2048.0));
        }
    }

    #[test]
    fn products_of_a_q4_column_fit_the_proven_sum(
        seed in any::<u64>(),
        len in 1..2000usize,
        scale in -30..12i32,
        spike in 0.0..1000f32,
    ) {
        let mut values = Gauss(seed).vector(len);
        values[seed as usize % len] *= spike;
        values.iter_mut().for_each(|value| *value *= 2f32.powi(scale));
        let bytes = column(Q4, &values);
        let groups = len.div_ceil(32);
        for group in 0..groups {
            let sub = i32::from(bytes[16 * groups + group] as i8);
            prop_assert!(sub.abs() <= 15);
            for byte in &bytes[16 * group..16 * group + 16] {
                for code in [i32::from(byte & 15) - 8, i32::from(byte >> 4) - 8] {
                    prop_assert!((sub * code).abs() <= 120);
                }
            }
        }
        // Weights past the end add nothing, whatever the sub-scale.
        for index in len..32 * groups {
            let byte = bytes[16 * (index / 32) + index % 16];
            prop_assert_eq!(if index % 32 < 16 { byte & 15 } else { byte >> 4 }, 8);
        }
    }

    #[test]
    fn ggml_codes_are_copied_bit_for_bit(
        blocks in prop::collection::vec((any::<u16>(), any::<[u8; 32]>()), 1..40),
    ) {
        for (weight, low, high, code_bytes) in [(Q8, -127, 127, 32), (Q4, -8, 7, 16)] {
            let span = i32::from(high) - i32::from(low) + 1;
            let code = |byte: u8| (i32::from(low) + i32::from(byte) % span) as i8;
            let codes: Vec<i8> = blocks.iter().flat_map(|(_, bytes)| bytes.map(code)).collect();
            let scales: Vec<f16> = blocks.iter().map(|&(bits, _)| f16::from_bits(bits)).collect();
            let row = RowCodes { codes, scales };
            let mut bytes = vec![0xaa; 5]; // appended behind what is there
            layout_row(weight, &row, &mut bytes);
            prop_assert_eq!(&bytes[..5], &[0xaa; 5]);
            let bytes = &bytes[5..];
            let len = row.codes.len() as u64;
            prop_assert_eq!(bytes.len() as u64, weight.row_bytes(len));
            let groups = padded_groups(len);
            for index in 0..padded_len(len) {
                let wanted = row.codes.get(index as usize).copied().unwrap_or(0);
                prop_assert_eq!(row_code(weight, bytes, groups, index), wanted);
            }
            for group in 0..groups {
                let at = row_scale_byte(groups, group, code_bytes) as usize;
                let scale = row.scales.get(group as usize).copied().unwrap_or(f16::ZERO);
                prop_assert_eq!(bytes[at..at + 2].to_vec(), scale.to_le_bytes().to_vec());
            }
            prop_assert!(bytes[(groups * (code_bytes + 2)) as usize..].iter().all(|&b| b == 0));
        }
    }
}

fn row_code(weight: WeightType, bytes: &[u8], groups: u64, index: u64) -> i8 {
    if weight == Q8 {
        return bytes[q8_row_byte(groups, index) as usize] as i8;
    }
    let (at, high) = q4_row_nibble(groups, index);
    let byte = bytes[at as usize];
    (if high { byte >> 4 } else { byte & 15 }) as i8 - 8
}

// Codes.

#[test]
fn relative_errors_of_normal_weights() {
    // Of a uniform step of width w the error is w / sqrt(12). A group of 32 normal weights has its
    // largest near 2.1: q8 2.1/127/3.46 = 0.005, q4 2.1/8/3.46 = 0.08; a q8 column of 4096 has
    // its largest near 3.7: 0.0085.
    let values = Gauss(1).vector(1 << 12);
    let table = [
        ("q8 row", decoded_row(Q8, &row(Q8, &values), values.len()), 0.004..0.006),
        ("q4 row", decoded_row(Q4, &row(Q4, &values), values.len()), 0.06..0.10),
        ("q8 column", decoded_column(Q8, &column(Q8, &values), values.len()), 0.007..0.010),
        ("q4 column", decoded_column(Q4, &column(Q4, &values), values.len()), 0.06..0.10),
    ];
    for (name, decoded, wanted) in table {
        let error = relative_error(&values, &decoded);
        assert!(wanted.contains(&error), "{name}: {error:.4} is not in {wanted:?}");
    }
}

#[test]
fn zeros_stay_zeros() {
    for len in [1, 31, 32, 33, 100, 512] {
        let zeros = vec![0.0; len];
        let mut one = zeros.clone();
        one[len / 2] = -3.0;
        for weight in WeightType::ALL {
            assert!(decoded_row(weight, &row(weight, &zeros), len).iter().all(|&v| v == 0.0));
            assert!(decoded_column(weight, &column(weight, &zeros), len).iter().all(|&v| v == 0.0));
            for decoded in [
                decoded_row(weight, &row(weight, &one), len),
                decoded_column(weight, &column(weight, &one), len),
            ] {
                for (index, value) in decoded.into_iter().enumerate() {
                    assert_eq!(value != 0.0, index == len / 2, "{weight:?} of {len}: {value}");
                }
            }
        }
    }
}

#[test]
fn f16_values_are_kept() {
    let values: Vec<f32> =
        Gauss(2).vector(777).into_iter().map(|v| f16::from_f32(v).to_f32()).collect();
    assert_eq!(decoded_row(F16, &row(F16, &values), 777), values);
    assert_eq!(decoded_column(F16, &column(F16, &values), 777), values);
}

#[test]
fn values_of_the_grid_are_kept() {
    let mut gauss = Gauss(3);
    let mut code =
        |low: f64, high: f64| (low + gauss.uniform() * (high - low + 1.0)).floor() as f32;
    let scales = [1.0, 0.125, 0.0007, 3.3].map(|scale| f16::from_f32(scale).to_f32());
    let grid = |code: &mut dyn FnMut() -> f32, largest: f32| -> Vec<f32> {
        let groups = scales.iter().map(|scale| (scale, largest));
        groups
            .flat_map(|(scale, largest)| {
                let mut group: Vec<f32> = (0..32).map(|_| scale * code()).collect();
                group[7] = scale * largest;
                group
            })
            .collect()
    };
    let q8 = grid(&mut || code(-127.0, 127.0), 127.0);
    assert_eq!(decoded_row(Q8, &row(Q8, &q8), 128), q8);
    assert_eq!(decoded_column(Q8, &column(Q8, &q8[..32]), 32), q8[..32]);
    let q4 = grid(&mut || code(-7.0, 7.0), -8.0);
    assert_eq!(decoded_row(Q4, &row(Q4, &q4), 128), q4);
    // A column has one scale and a signed sub-scale a group; the first group's is the largest.
    let step = f16::from_f32(0.0123).to_f32();
    let subs = [15.0, -3.0, 1.0, 14.0, -15.0, 8.0];
    let mut column_values = Vec::new();
    for sub in subs {
        let start = column_values.len();
        column_values.extend((0..32).map(|_| step * sub * code(-7.0, 7.0)));
        column_values[start + 11] = step * sub * -8.0;
    }
    let len = column_values.len();
    assert_eq!(decoded_column(Q4, &column(Q4, &column_values), len), column_values);
}

// The packed demo, and images of files that hold codes of their own.

const DEMO: &str = "tests/data/demo/ganglion-demo-14m.f16.gguf";

fn demo_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(DEMO)
}

/// An image read by its header alone.
struct Image {
    file: File,
    header: Header,
    shape: Shape,
    types: Types,
}

impl Image {
    fn open(path: &Path) -> Image {
        let header = verify_image(path, &mut |_, _| {}).unwrap_or_else(|error| panic!("{error}"));
        let (shape, types) = (header.shape().unwrap(), header.types().unwrap());
        Image { file: File::open(path).unwrap(), header, shape, types }
    }

    fn bytes(&self, kind: SectionKind, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, self.header.section(kind).offset + at).unwrap();
        bytes
    }

    /// Original index of each neuron of an expert.
    fn order(&self, expert: u64) -> Vec<u64> {
        let bytes = self.bytes(SectionKind::Order, expert * self.shape.ff * 4, self.shape.ff * 4);
        let words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        words.map(u64::from).collect()
    }

    /// Gate row, up row and down column of every neuron of an expert, counted over all layers.
    fn records(&self, expert: u64) -> Vec<[Vec<u8>; 3]> {
        let (record, size) = (self.types.record(&self.shape), self.types.expert_bytes(&self.shape));
        let bytes = self.bytes(SectionKind::Records, expert * size, size);
        let part = |at: u64, len: u64| bytes[at as usize..(at + len) as usize].to_vec();
        (0..self.shape.ff)
            .map(|neuron| record.offset(neuron))
            .map(|at| {
                [
                    part(at, record.row_bytes),
                    part(at + record.up(), record.row_bytes),
                    part(at + record.down(), record.column_bytes),
                ]
            })
            .collect()
    }
}

/// Most a q8 code may miss its weight by.
fn q8_bound(values: &[f32]) -> f32 {
    let largest = values.iter().fold(0f32, |max, value| max.max(value.abs()));
    // Half a step; the scale's f16 rounding; where the scale is subnormal, 127 of its steps.
    largest * (0.5 / 127.0 + 1.0 / 2048.0) + 127.0 * 2f32.powi(-25)
}

fn assert_near(source: &[f32], decoded: &[f32], group: usize, what: &str) {
    for (source, decoded) in source.chunks(group).zip(decoded.chunks(group)) {
        let bound = q8_bound(source);
        for (a, b) in source.iter().zip(decoded) {
            assert!((a - b).abs() <= bound, "{what}: {a} became {b}, more than {bound} off");
        }
    }
}

#[test]
fn the_demo_image_holds_the_demo() {
    let image = Image::open(Path::new(ganglion::baked::IMAGE));
    let gguf = Gguf::open(&demo_path()).unwrap();
    let shape = image.shape;
    assert_eq!(image.types.records, Q8, "the default plan packs q8 records");
    let (hidden, ff) = (shape.hidden as usize, shape.ff as usize);
    for layer in 0..shape.layers {
        let tensor =
            |role: &str| gguf.tensor(&format!("blk.{layer}.ffn_{role}_exps.weight")).unwrap();
        let (gate, up, down) = (tensor("gate"), tensor("up"), tensor("down"));
        for expert in 0..shape.experts {
            let order = image.order(layer * shape.experts + expert);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..shape.ff), "the order is a permutation");
            let rows =
                |tensor: &Tensor, count| gguf.rows_f32(tensor, expert * count, count).unwrap();
            let (gates, ups) = (rows(gate, shape.ff), rows(up, shape.ff));
            let downs = rows(down, shape.hidden);
            let records = image.records(layer * shape.experts + expert);
            for (record, original) in records.iter().zip(order) {
                let what = format!("layer {layer}, expert {expert}, neuron {original}");
                let at = original as usize * hidden;
                for (bytes, source) in record.iter().zip([&gates, &ups]) {
                    assert_near(
                        &source[at..at + hidden],
                        &decoded_row(Q8, bytes, hidden),
                        32,
                        &what,
                    );
                }
                let source: Vec<f32> =
                    (0..hidden).map(|row| downs[row * ff + original as usize]).collect();
                assert_near(&source, &decoded_column(Q8, &record[2], hidden), hidden, &what);
            }
        }
    }
}

#[test]
fn the_demo_image_holds_its_embeddings() {
    let image = Image::open(Path::new(ganglion::baked::IMAGE));
    let gguf = Gguf::open(&demo_path()).unwrap();
    assert_eq!(image.types.embedding, F16);
    let (shape, hidden) = (image.shape, image.shape.hidden as usize);
    let row_bytes = image.types.embedding_row_bytes(&shape);
    let tensor = gguf.tensor("token_embd.weight").unwrap();
    for token in 0..shape.vocab {
        let bytes = image.bytes(SectionKind::Embedding, token * row_bytes, row_bytes);
        let source = gguf.rows_f32(tensor, token, 1).unwrap();
        assert_eq!(decoded_row(F16, &bytes, hidden), source, "token {token}");
    }
}

#[test]
fn a_damaged_image_does_not_verify() {
    let image = Image::open(Path::new(ganglion::baked::IMAGE));
    let copy = Scratch::new("damaged.image");
    fs::copy(ganglion::baked::IMAGE, &copy.0).unwrap();
    let file = File::options().write(true).read(true).open(&copy.0).unwrap();
    for kind in SectionKind::ALL {
        let at = image.header.section(kind).offset + 100;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
        let error = verify_image(&copy.0, &mut |_, _| {}).err().expect(kind.name()).to_string();
        assert!(error.contains("checksum") && error.contains("damaged.image"), "{error}");
        file.write_all_at(&byte, at).unwrap();
    }
    assert!(verify_image(&copy.0, &mut |_, _| {}).is_ok());
    file.set_len(image.header.file_bytes() - 1).unwrap();
    let error = verify_image(&copy.0, &mut |_, _| {}).err().unwrap().to_string();
    assert!(error.contains("incomplete"), "{error}");
}

/// A file under the temporary folder, removed with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("ganglion-image-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Blocks of Q8_0 or Q4_0 with random codes and scales, as a quantising program would leave them.
fn random_blocks(kind: GgmlType, blocks: u64, gauss: &mut Gauss) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..blocks {
        let scale = f16::from_f32(0.001 + 0.01 * gauss.uniform() as f32);
        bytes.extend_from_slice(&scale.to_le_bytes());
        // As writers of Q8_0 do, without -128.
        bytes.extend((2..kind.block_bytes).map(|_| (gauss.uniform() * 255.0) as u8 ^ 0x80).map(
            |byte| if byte == 0x80 { 0x7f } else { byte },
        ));
    }
    bytes
}

/// The demo with its gate and up matrices replaced by random blocks of `kind`; metadata and all
/// other tensors stay.
fn quantised_demo(kind: GgmlType, path: &Path) {
    let source = demo_path();
    let gguf = Gguf::open(&source).unwrap();
    let file = fs::read(&source).unwrap();
    // The metadata ends where the tensor list begins: at the first tensor's name and its length.
    let first = &gguf.tensors()[0];
    let mut needle = (first.name.len() as u64).to_le_bytes().to_vec();
    needle.extend_from_slice(first.name.as_bytes());
    let start = file.windows(needle.len()).position(|window| window == needle).unwrap();
    let alignment = gguf.opt_u32("general.alignment").unwrap().unwrap_or(32) as usize;
    let mut out = file[..start].to_vec();
    let (mut data, mut gauss) = (Vec::new(), Gauss(4));
    for tensor in gguf.tensors() {
        let replaced = tensor.name.contains("gate_exps") || tensor.name.contains("up_exps");
        let content = if replaced {
            random_blocks(kind, tensor.rows() * tensor.row_elements() / 32, &mut gauss)
        } else {
            file[tensor.offset as usize..(tensor.offset + tensor.bytes) as usize].to_vec()
        };
        out.extend_from_slice(&(tensor.name.len() as u64).to_le_bytes());
        out.extend_from_slice(tensor.name.as_bytes());
        out.extend_from_slice(&(tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().for_each(|dim| out.extend_from_slice(&dim.to_le_bytes()));
        let id = if replaced { kind.id } else { tensor.kind.id };
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&(data.len() as u64).to_le_bytes());
        data.extend_from_slice(&content);
        data.resize(data.len().next_multiple_of(alignment), 0);
    }
    out.resize(out.len().next_multiple_of(alignment), 0);
    out.extend_from_slice(&data);
    fs::write(path, out).unwrap();
}

#[test]
fn codes_of_the_source_reach_the_image_unchanged() {
    for (weight, kind) in [(Q8, GgmlType::Q8_0), (Q4, GgmlType::Q4_0)] {
        let model_file = Scratch::new(&format!("{}.gguf", weight.name()));
        let image_file = Scratch::new(&format!("{}.image", weight.name()));
        quantised_demo(kind, &model_file.0);
        let model = ModelFile::open(&model_file.0).unwrap();
        let types = Types { records: weight, resident: Q8, head: Q8, embedding: F16 };
        let packed = pack(&model, &types, &image_file.0, &mut |_, _| {}).unwrap();
        eprintln!("{packed:?}");
        assert_eq!(packed.row_error, 0.0, "{weight:?}: rows are copied");
        let image = Image::open(&image_file.0);
        let shape = image.shape;
        let groups = padded_groups(shape.hidden);
        let code_bytes = kind.block_bytes - 2;
        for layer in 0..shape.layers {
            for (part, role) in ["gate", "up"].into_iter().enumerate() {
                let name = format!("blk.{layer}.ffn_{role}_exps.weight");
                let tensor = model.gguf.tensor(&name).unwrap();
                let mut blocks = vec![0; tensor.bytes as usize];
                model.gguf.read_raw(tensor, 0, &mut blocks).unwrap();
                let mut blocks = blocks.chunks_exact(kind.block_bytes as usize);
                for expert in 0..shape.experts {
                    // Rows follow the original order, which the demo's image keeps.
                    for record in image.records(layer * shape.experts + expert) {
                        for group in 0..shape.hidden / 32 {
                            let block = blocks.next().unwrap();
                            let at = row_scale_byte(groups, group, code_bytes) as usize;
                            assert_eq!(record[part][at..at + 2], block[..2], "{name}");
                            for within in 0..32 {
                                let byte = block[2 + (within % code_bytes) as usize];
                                let wanted = match weight {
                                    Q8 => byte as i8,
                                    _ if within < 16 => (byte & 15) as i8 - 8,
                                    _ => (byte >> 4) as i8 - 8,
                                };
                                let index = 32 * group + within;
                                let found = row_code(weight, &record[part], groups, index);
                                assert_eq!(found, wanted, "{name}");
                            }
                        }
                    }
                }
            }
        }
    }
}
