//! Tags: what every read of a record carries, so that no wrong weight goes unseen.
//!
//! A tag covers the identity of a record part (layer, expert, neuron) and the bytes that one read
//! of it covers. A misdirected, torn or damaged read fails the check. Written by the packer,
//! checked by the storage room on every read.
//!
//! ```text
//! neuron u32 | layer u16 | expert u16 | part u32: 0 gate, 1 up and down, 2 embedding
//! | CRC-32C of these 12 bytes and the content
//! ```

use super::geometry::TAG_BYTES;
use bytemuck::{Pod, Zeroable};

/// What a tag stands behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The gate row of a neuron.
    Gate,
    /// The up row and down column of a neuron.
    Rest,
    /// A token's embedding row; `neuron` is the token id.
    Embedding,
}

/// Who a record part belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Layer, 0 for embeddings.
    pub layer: u16,
    /// Expert, 0 for embeddings.
    pub expert: u16,
    /// Neuron within the expert (image order), or token id.
    pub neuron: u32,
    /// Part of the record.
    pub part: Part,
}

/// Sixteen bytes behind each part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Tag {
    neuron: u32,
    layer: u16,
    expert: u16,
    part: u32,
    crc: u32,
}

const _: () = assert!(size_of::<Tag>() as u64 == TAG_BYTES);

/// A CRC-32C function: seed (0, or the value so far) and bytes.
pub type Crc32c = fn(u32, &[u8]) -> u32;

impl Tag {
    /// The tag of `content`.
    pub fn new(identity: Identity, content: &[u8], crc: Crc32c) -> Tag {
        let part = match identity.part {
            Part::Gate => 0,
            Part::Rest => 1,
            Part::Embedding => 2,
        };
        let Identity { layer, expert, neuron, .. } = identity;
        let mut tag = Tag {
            neuron: neuron.to_le(),
            layer: layer.to_le(),
            expert: expert.to_le(),
            part: u32::to_le(part),
            crc: 0,
        };
        let identity_crc = crc(0, &bytemuck::bytes_of(&tag)[..12]);
        tag.crc = crc(identity_crc, content).to_le();
        tag
    }

    /// The tag as it stands on flash.
    pub fn bytes(&self) -> &[u8] {
        bytemuck::bytes_of(self)
    }

    /// Whether `stored` is the tag of `content` with this identity.
    pub fn verify(identity: Identity, content: &[u8], stored: &[u8], crc: Crc32c) -> bool {
        Tag::new(identity, content, crc).bytes() == stored
    }
}

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0u32; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// CRC-32C (Castagnoli, reflected, as in iSCSI RFC 3720), byte by byte: the twin of the fast ones.
/// `seed` is 0 or the checksum of the bytes before.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    let mut crc = !seed;
    for &byte in bytes {
        crc = crc >> 8 ^ TABLE[((crc ^ u32::from(byte)) & 0xff) as usize];
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: Identity = Identity { layer: 3, expert: 7, neuron: 500, part: Part::Rest };

    #[test]
    fn crc_matches_the_published_check_value() {
        // RFC 3720, B.4 and the usual nine digits.
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(crc32c(0, b"1234"), b"56789"), 0xe306_9283);
    }

    #[test]
    fn a_tag_sees_content_and_identity() {
        let tag = Tag::new(WHO, b"weights", crc32c);
        assert!(Tag::verify(WHO, b"weights", tag.bytes(), crc32c));
        assert!(!Tag::verify(WHO, b"weighty", tag.bytes(), crc32c));
        for other in [
            Identity { layer: 2, ..WHO },
            Identity { expert: 6, ..WHO },
            Identity { neuron: 501, ..WHO },
            Identity { part: Part::Gate, ..WHO },
        ] {
            assert!(!Tag::verify(other, b"weights", tag.bytes(), crc32c), "{other:?}");
        }
    }
}
