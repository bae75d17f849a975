//! Tensor types of ggml: sizes of all known ones, values of the four we read.
//!
//! Called by the reader to check byte ranges and to turn rows into floats. Ids, block lengths and
//! block sizes are those of `ggml.h`; an id missing here is refused by number.

use half::f16;

/// A ggml tensor type: rows are made of blocks of `block_elements` values in `block_bytes` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgmlType {
    /// Number in the file.
    pub id: u32,
    /// Name as printed by other tools.
    pub name: &'static str,
    /// Values in a block.
    pub block_elements: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
}

const fn ggml(id: u32, name: &'static str, block_elements: u64, block_bytes: u64) -> GgmlType {
    GgmlType { id, name, block_elements, block_bytes }
}

impl GgmlType {
    /// IEEE single.
    pub const F32: Self = ggml(0, "F32", 1, 4);
    /// IEEE half.
    pub const F16: Self = ggml(1, "F16", 1, 2);
    /// f16 scale `d`, 16 bytes of nibbles: value i is `(low nibble of byte i - 8) * d` for i < 16,
    /// value 16 + i is `(high nibble of byte i - 8) * d`.
    pub const Q4_0: Self = ggml(2, "Q4_0", 32, 18);
    /// f16 scale `d`, 32 signed bytes: value i is `byte i * d`.
    pub const Q8_0: Self = ggml(8, "Q8_0", 32, 34);

    /// Every type whose size is known; the four above are the ones whose values we read.
    pub const ALL: [Self; 34] = [
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q8_0,
        ggml(3, "Q4_1", 32, 20),
        ggml(6, "Q5_0", 32, 22),
        ggml(7, "Q5_1", 32, 24),
        ggml(9, "Q8_1", 32, 36),
        ggml(10, "Q2_K", 256, 84),
        ggml(11, "Q3_K", 256, 110),
        ggml(12, "Q4_K", 256, 144),
        ggml(13, "Q5_K", 256, 176),
        ggml(14, "Q6_K", 256, 210),
        ggml(15, "Q8_K", 256, 292),
        ggml(16, "IQ2_XXS", 256, 66),
        ggml(17, "IQ2_XS", 256, 74),
        ggml(18, "IQ3_XXS", 256, 98),
        ggml(19, "IQ1_S", 256, 50),
        ggml(20, "IQ4_NL", 32, 18),
        ggml(21, "IQ3_S", 256, 110),
        ggml(22, "IQ2_S", 256, 82),
        ggml(23, "IQ4_XS", 256, 136),
        ggml(24, "I8", 1, 1),
        ggml(25, "I16", 1, 2),
        ggml(26, "I32", 1, 4),
        ggml(27, "I64", 1, 8),
        ggml(28, "F64", 1, 8),
        ggml(29, "IQ1_M", 256, 56),
        ggml(30, "BF16", 1, 2),
        ggml(34, "TQ1_0", 256, 54),
        ggml(35, "TQ2_0", 256, 66),
        ggml(39, "MXFP4", 32, 17),
        ggml(40, "NVFP4", 64, 36),
        ggml(41, "Q1_0", 128, 18),
    ];

    /// The type with this id, if its size is known.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.id == id)
    }

    /// Whether [`dequantise`] takes this type.
    #[must_use]
    pub fn is_readable(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Q4_0 | Self::Q8_0)
    }
}

/// Turns whole blocks of `kind` into floats; returns false when this type is not readable.
///
/// # Panics
/// When `bytes` is not exactly the blocks of `out`, in number and size.
pub(super) fn dequantise(kind: GgmlType, bytes: &[u8], out: &mut [f32]) -> bool {
    let (elements, size) = (kind.block_elements as usize, kind.block_bytes as usize);
    assert!(out.len().is_multiple_of(elements));
    assert_eq!(bytes.len(), out.len() / elements * size);
    let blocks = bytes.chunks_exact(size).zip(out.chunks_exact_mut(elements));
    match kind {
        GgmlType::F32 => blocks.for_each(|(block, out)| out[0] = f32_at(block)),
        GgmlType::F16 => blocks.for_each(|(block, out)| out[0] = f16_at(block)),
        GgmlType::Q4_0 => blocks.for_each(|(block, out)| q4_0(block, out)),
        GgmlType::Q8_0 => blocks.for_each(|(block, out)| q8_0(block, out)),
        _ => return false,
    }
    true
}

fn f32_at(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn f16_at(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let scale = f16_at(block);
    for (value, byte) in out.iter_mut().zip(&block[2..]) {
        *value = f32::from(*byte as i8) * scale;
    }
}

fn q4_0(block: &[u8], out: &mut [f32]) {
    let scale = f16_at(block);
    let (low, high) = out.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(&block[2..]) {
        *low = f32::from((byte & 15) as i8 - 8) * scale;
        *high = f32::from((byte >> 4) as i8 - 8) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn floats_by_hand() {
        let mut out = [0.0f32; 2];
        assert!(dequantise(GgmlType::F32, &[0, 0, 0xc0, 0x3f, 0, 0, 0, 0xc1], &mut out));
        assert_eq!(out, [1.5, -8.0]);
        assert!(dequantise(GgmlType::F16, &[0x00, 0x3e, 0x01, 0x00], &mut out));
        assert_eq!(out, [1.5, 2.0f32.powi(-24)]);
    }

    #[test]
    fn ids_are_unique_and_only_four_types_are_readable() {
        for (index, kind) in GgmlType::ALL.iter().enumerate() {
            assert!(GgmlType::ALL[..index].iter().all(|other| other.id != kind.id));
            assert_eq!(GgmlType::from_id(kind.id), Some(*kind));
            let mut out = vec![0.0; kind.block_elements as usize];
            let bytes = vec![0; kind.block_bytes as usize];
            assert_eq!(dequantise(*kind, &bytes, &mut out), kind.is_readable());
        }
        assert_eq!(GgmlType::ALL.iter().filter(|kind| kind.is_readable()).count(), 4);
        assert_eq!(GgmlType::from_id(4), None);
    }
}
