//! Blocks of ggml types -> floats.
//!
//! Called by the reader for whole rows. Layouts are those of `ggml-quants.c`; multi-byte fields are
//! little-endian. Every product here is exact in f32, so a value has one rounding at most, whatever
//! the order. A code of 0 counts from the least one:
//!
//! ```text
//! F32, F16, BF16   the value
//! Q8_0    d f16, 32 x i8: d * code
//! Q4_0    d f16, 16 bytes of nibbles: d * (code - 8); byte i holds codes i (low) and i + 16 (high)
//! Q4_1    d f16, m f16, nibbles as Q4_0: d * code + m
//! Q5_0    d f16, u32 of fifth bits (bit i for code i), nibbles as Q4_0: d * (code - 16)
//! Q5_1    d f16, m f16, fifth bits, nibbles: d * code + m
//! Q4_K    d f16, m f16, 12 bytes of scales, 128 bytes of nibbles: d * scale * code - m * minimum;
//!         8 groups of 32, groups 2 i (low) and 2 i + 1 (high) share bytes 32 i..32 i + 32
//! Q5_K    as Q4_K, with 32 bytes of fifth bits before the nibbles: bit g of byte i for code i of
//!         group g
//! Q6_K    two halves of 128 codes: 128 bytes of nibbles, 64 bytes of bit pairs, 16 x i8 scales,
//!         then d f16: d * scale * (code - 32)
//! ```

use super::types::GgmlType;
use half::{bf16, f16};

/// Codes of a group of Q4_K and Q5_K, and of a block of the older types.
const GROUP: usize = 32;

/// Turns whole blocks of `kind` into floats; returns false when this type is not readable.
///
/// # Panics
/// When `bytes` is not exactly the blocks of `out`, in number and size.
pub(super) fn dequantise(kind: GgmlType, bytes: &[u8], out: &mut [f32]) -> bool {
    let block: fn(&[u8], &mut [f32]) = match kind {
        GgmlType::F32 => |block, out| out[0] = f32::from_bits(word_at(block, 0)),
        GgmlType::F16 => |block, out| out[0] = f16_at(block, 0),
        GgmlType::BF16 => |block, out| out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
        GgmlType::Q8_0 => q8_0,
        GgmlType::Q4_0 => q4_0,
        GgmlType::Q4_1 => q4_1,
        GgmlType::Q5_0 => q5_0,
        GgmlType::Q5_1 => q5_1,
        GgmlType::Q4_K => q4_k,
        GgmlType::Q5_K => q5_k,
        GgmlType::Q6_K => q6_k,
        _ => return false,
    };
    let (elements, size) = (kind.block_elements as usize, kind.block_bytes as usize);
    assert!(out.len().is_multiple_of(elements));
    assert_eq!(bytes.len(), out.len() / elements * size);
    bytes.chunks_exact(size).zip(out.chunks_exact_mut(elements)).for_each(|(b, out)| block(b, out));
    true
}

fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Code i: the low nibble of byte i, behind 16 the high one.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 16] >> (i / 16 * 4) & 15
}

/// Code i of 5 bits: a nibble and bit i of `fifth`.
fn five_bits(bytes: &[u8], fifth: u32, i: usize) -> u8 {
    nibble(bytes, i) | ((fifth >> i & 1) as u8) << 4
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let scale = f16_at(block, 0);
    for (value, &byte) in out.iter_mut().zip(&block[2..]) {
        *value = scale * f32::from(byte as i8);
    }
}

fn q4_0(block: &[u8], out: &mut [f32]) {
    let scale = f16_at(block, 0);
    for (i, value) in out.iter_mut().enumerate() {
        *value = scale * (f32::from(nibble(&block[2..], i)) - 8.0);
    }
}

fn q4_1(block: &[u8], out: &mut [f32]) {
    let (scale, minimum) = (f16_at(block, 0), f16_at(block, 2));
    for (i, value) in out.iter_mut().enumerate() {
        *value = scale * f32::from(nibble(&block[4..], i)) + minimum;
    }
}

fn q5_0(block: &[u8], out: &mut [f32]) {
    let (scale, fifth) = (f16_at(block, 0), word_at(block, 2));
    for (i, value) in out.iter_mut().enumerate() {
        *value = scale * (f32::from(five_bits(&block[6..], fifth, i)) - 16.0);
    }
}

fn q5_1(block: &[u8], out: &mut [f32]) {
    let (scale, minimum, fifth) = (f16_at(block, 0), f16_at(block, 2), word_at(block, 4));
    for (i, value) in out.iter_mut().enumerate() {
        *value = scale * f32::from(five_bits(&block[8..], fifth, i)) + minimum;
    }
}

/// Scale and minimum of group `g`, 6 bits each, from the 12 bytes of a block of Q4_K or Q5_K: the
/// first four groups have whole bytes, the others a nibble and the upper bits of those.
fn scale_and_minimum(bytes: &[u8], g: usize) -> (f32, f32) {
    let (scale, minimum) = if g < 4 {
        (bytes[g] & 63, bytes[g + 4] & 63)
    } else {
        let low = bytes[g + 4];
        (low & 15 | bytes[g - 4] >> 6 << 4, low >> 4 | bytes[g] >> 6 << 4)
    };
    (f32::from(scale), f32::from(minimum))
}

fn q4_k(block: &[u8], out: &mut [f32]) {
    let (scales, nibbles) = (&block[4..16], &block[16..]);
    k_groups(block, scales, out, |g, i| nibbles[g / 2 * GROUP + i] >> (g % 2 * 4) & 15);
}

fn q5_k(block: &[u8], out: &mut [f32]) {
    let (scales, fifth, nibbles) = (&block[4..16], &block[16..48], &block[48..]);
    k_groups(block, scales, out, |g, i| {
        nibbles[g / 2 * GROUP + i] >> (g % 2 * 4) & 15 | (fifth[i] >> g & 1) << 4
    });
}

/// Values of a block of Q4_K or Q5_K, whose group `g` has `code(g, i)` as its code i.
fn k_groups(block: &[u8], scales: &[u8], out: &mut [f32], code: impl Fn(usize, usize) -> u8) {
    let (scale, minimum) = (f16_at(block, 0), f16_at(block, 2));
    for (g, out) in out.chunks_exact_mut(GROUP).enumerate() {
        let (group_scale, group_minimum) = scale_and_minimum(scales, g);
        let (scale, minimum) = (scale * group_scale, minimum * group_minimum);
        for (i, value) in out.iter_mut().enumerate() {
            *value = scale * f32::from(code(g, i)) - minimum;
        }
    }
}

/// A half has quarters of 32 codes: quarter q takes the low (0, 1) or high (2, 3) nibbles of bytes
/// 32 (q % 2).. and the bit pairs at 2 q.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let (nibbles, pairs, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let scale = f16_at(block, 208);
    for (h, out) in out.chunks_exact_mut(128).enumerate() {
        for (q, out) in out.chunks_exact_mut(GROUP).enumerate() {
            for (i, value) in out.iter_mut().enumerate() {
                let low = nibbles[64 * h + GROUP * (q % 2) + i] >> (q / 2 * 4) & 15;
                let code = low | (pairs[32 * h + i] >> (2 * q) & 3) << 4;
                let group_scale = f32::from(scales[8 * h + 2 * q + i / 16] as i8);
                *value = scale * group_scale * (f32::from(code) - 32.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Blocks and values of `tests/data/types`, made by another program.
    #[test]
    fn every_readable_type_against_the_gguf_package() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/types");
        let read = |name| std::fs::read(folder.join(name)).unwrap();
        let (blocks, floats) = (read("blocks.bin"), read("floats.bin"));
        let (mut blocks, mut wanted) = (blocks.as_slice(), floats.chunks_exact(4));
        for kind in GgmlType::READABLE {
            let mut out = [0.0f32; 512];
            let bytes = 512 / kind.block_elements * kind.block_bytes;
            let raw = blocks.split_off(..bytes as usize).expect("blocks.bin is whole");
            assert!(dequantise(kind, raw, &mut out));
            for (i, value) in out.iter().enumerate() {
                let wanted = f32::from_bits(word_at(wanted.next().unwrap(), 0));
                assert_eq!(value.to_bits(), wanted.to_bits(), "{} value {i}", kind.name);
            }
        }
        assert!(blocks.is_empty() && wanted.next().is_none(), "the files are used up");
    }

    #[test]
    fn q8_0_block_by_hand() {
        // d = 0.5 is 0x3800 in f16; bytes 1, -1, 127, -128, then zeros.
        let mut block = [0u8; 34];
        block[..6].copy_from_slice(&[0x00, 0x38, 1, 0xff, 0x7f, 0x80]);
        let mut out = [9.0f32; 32];
        assert!(dequantise(GgmlType::Q8_0, &block, &mut out));
        assert_eq!(out[..4], [0.5, -0.5, 63.5, -64.0]);
        assert!(out[4..].iter().all(|&value| value == 0.0));
    }

    #[test]
    fn q4_0_block_by_hand() {
        // d = -2 is 0xc000. Byte 0 = 0x1f: value 0 from nibble 15, value 16 from nibble 1.
        // Byte 15 = 0x80: value 15 from nibble 0, value 31 from nibble 8. The rest is 8, so zero.
        let mut block = [0x88u8; 18];
        block[..3].copy_from_slice(&[0x00, 0xc0, 0x1f]);
        block[17] = 0x80;
        let mut out = [9.0f32; 32];
        assert!(dequantise(GgmlType::Q4_0, &block, &mut out));
        let mut wanted = [0.0f32; 32];
        (wanted[0], wanted[16], wanted[15], wanted[31]) = (-14.0, 14.0, 16.0, 0.0);
        assert_eq!(out, wanted);
    }

    #[test]
    fn other_types_are_left_alone() {
        for kind in GgmlType::UNREADABLE {
            let mut out = vec![0.0; kind.block_elements as usize];
            assert!(!dequantise(kind, &vec![0; kind.block_bytes as usize], &mut out));
        }
    }
}
