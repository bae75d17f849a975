//! Tensor types of ggml: names and sizes of all known ones.
//!
//! Called by the reader to check byte ranges; [`super::dequantise`] gives the values of those that
//! are read. Ids, block lengths and block sizes are those of `ggml.h`; an id that is not here is
//! refused by number.

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
    /// The upper half of an IEEE single.
    pub const BF16: Self = ggml(30, "BF16", 1, 2);
    /// 4-bit codes, one scale.
    pub const Q4_0: Self = ggml(2, "Q4_0", 32, 18);
    /// 4-bit codes, scale and minimum.
    pub const Q4_1: Self = ggml(3, "Q4_1", 32, 20);
    /// 5-bit codes, one scale.
    pub const Q5_0: Self = ggml(6, "Q5_0", 32, 22);
    /// 5-bit codes, scale and minimum.
    pub const Q5_1: Self = ggml(7, "Q5_1", 32, 24);
    /// 8-bit codes, one scale.
    pub const Q8_0: Self = ggml(8, "Q8_0", 32, 34);
    /// 4-bit codes, scale and minimum a group of 32, both of 6 bits.
    pub const Q4_K: Self = ggml(12, "Q4_K", 256, 144);
    /// 5-bit codes, scale and minimum a group of 32, both of 6 bits.
    pub const Q5_K: Self = ggml(13, "Q5_K", 256, 176);
    /// 6-bit codes, an 8-bit scale a group of 16.
    pub const Q6_K: Self = ggml(14, "Q6_K", 256, 210);

    /// The types whose values are read.
    pub const READABLE: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// The other types whose size is known.
    pub const UNREADABLE: [Self; 23] = [
        ggml(9, "Q8_1", 32, 36),
        ggml(10, "Q2_K", 256, 84),
        ggml(11, "Q3_K", 256, 110),
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
        ggml(34, "TQ1_0", 256, 54),
        ggml(35, "TQ2_0", 256, 66),
        ggml(39, "MXFP4", 32, 17),
        ggml(40, "NVFP4", 64, 36),
        ggml(41, "Q1_0", 128, 18),
    ];

    /// Every type whose size is known.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::READABLE.into_iter().chain(Self::UNREADABLE)
    }

    /// The type with this id, if its size is known.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        Self::all().find(|kind| kind.id == id)
    }

    /// Whether its values are read.
    #[must_use]
    pub fn is_readable(self) -> bool {
        Self::READABLE.contains(&self)
    }
}

#[cfg(test)]
mod tests {
    use super::GgmlType;

    #[test]
    fn ids_are_unique() {
        let ids: Vec<u32> = GgmlType::all().map(|kind| kind.id).collect();
        for (index, &id) in ids.iter().enumerate() {
            assert!(!ids[..index].contains(&id), "{id}");
            assert_eq!(GgmlType::from_id(id).map(|kind| kind.id), Some(id));
        }
        // 4 and 5 were types once.
        assert_eq!(GgmlType::from_id(4), None);
    }
}
