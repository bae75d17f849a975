//! The header: the first 4 KiB of an image.
//!
//! Written last by the packer, read first by the engine. Little-endian. The header's own checksum
//! is the first thing looked at, the file's length the second; a section is read only where the
//! header says it lies inside the file.

use super::geometry::{BLOCK_BYTES, Packing, WeightType};
use super::shape::{ActivationFn, Biases, Shape, Types};
use super::tag::crc32c;
use bytemuck::{Pod, Zeroable};
use core::fmt;

/// First eight bytes of every image.
pub const MAGIC: [u8; 8] = *b"GANGLION";
/// Version of the header and section formats. A newer one is refused.
pub const VERSION: u32 = 1;
/// Identity of the row, column and record layout in [`super::geometry`] and of the resident
/// section. 1 is frozen: tests/data/layout holds an image that another program wrote.
pub const LAYOUT: u32 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: usize = BLOCK_BYTES as usize;
/// Bytes kept for the model's name.
pub const NAME_BYTES: usize = 64;

const SECTIONS: usize = 5;

/// The sections of an image, in file order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionKind {
    /// Weights used for every token, see [`super::resident`].
    Resident,
    /// Packed tokenizer tables, see [`super::tokenizer`].
    Tokenizer,
    /// Original index of each neuron, u32[layers][experts][ff]. Today's packer keeps the file's
    /// order; with a profile the hottest will come first.
    Order,
    /// One row a token, each with its tag.
    Embedding,
    /// Neuron records, [layers][experts], each expert starting at a block.
    Records,
}

impl SectionKind {
    /// Every kind, in file order.
    pub const ALL: [SectionKind; SECTIONS] = [
        SectionKind::Resident,
        SectionKind::Tokenizer,
        SectionKind::Order,
        SectionKind::Embedding,
        SectionKind::Records,
    ];

    /// Name in tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            SectionKind::Resident => "resident",
            SectionKind::Tokenizer => "tokenizer",
            SectionKind::Order => "order",
            SectionKind::Embedding => "embedding",
            SectionKind::Records => "records",
        }
    }
}

/// Where a section lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Section {
    /// First byte in the file, a multiple of the block.
    pub offset: u64,
    /// Bytes, a multiple of the block.
    pub bytes: u64,
    /// CRC-32C of the bytes; 0 for sections whose parts carry tags.
    pub crc: u32,
    /// Zero.
    pub reserved: u32,
}

/// Fixed scalars of the forward pass that are not sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Added to the mean square in RMSNorm.
    pub rms_eps: f32,
    /// Longest context the model was trained for.
    pub context_trained: u32,
    /// What cos and sin of rotary positions are multiplied by: 1 but for YaRN.
    pub attention_factor: f32,
}

/// The first 4 KiB of an image.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Header {
    magic: [u8; 8],
    version: u32,
    layout: u32,
    /// CRC-32C of the header with this field zero.
    crc: u32,
    activation: u32,
    file_bytes: u64,
    name: [u8; NAME_BYTES],
    layers: u32,
    hidden: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    experts: u32,
    experts_used: u32,
    ff: u32,
    vocab: u32,
    tied: u32,
    tokenizer_bytes: u32,
    types: [u32; 4],
    rms_eps: f32,
    context_trained: u32,
    /// See [`Biases::code`].
    biases: u32,
    sections: [Section; SECTIONS],
    window: u32,
    /// 0 where it is 1.
    attention_factor: f32,
    /// See [`Packing::code`].
    packing: u32,
    unused: u32,
    reserved: [[u8; 16]; RESERVED / 16],
}

const USED: usize = 8 + 4 * 4 + 8 + NAME_BYTES + 4 * 18 + 24 * SECTIONS + 16;
const RESERVED: usize = HEADER_BYTES - USED;
const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

/// Why a file is not an image this engine can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// The file does not start with [`MAGIC`].
    NotAnImage,
    /// Made by a newer packer.
    Newer {
        /// Version of the file.
        found: u32,
    },
    /// Another record layout.
    Layout {
        /// Layout of the file.
        found: u32,
    },
    /// The header's checksum does not hold.
    Damaged,
    /// A field holds a number that means nothing.
    Field {
        /// Name of the field.
        name: &'static str,
        /// What it holds.
        found: u64,
    },
    /// The file ends within its header.
    Cut {
        /// Bytes of the file.
        found: u64,
    },
    /// The file is shorter or longer than its header says.
    FileBytes {
        /// Bytes the header says.
        wanted: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// The image is packed with other types than the plan's.
    Types {
        /// Which weights.
        name: &'static str,
        /// What the plan says.
        wanted: WeightType,
        /// What the image says.
        found: WeightType,
    },
    /// Its records follow each other in another way.
    Packing {
        /// What the model's records need.
        wanted: Packing,
        /// Code in the image.
        found: u32,
    },
    /// The image is of another model.
    Mismatch {
        /// Name of the differing field.
        name: &'static str,
        /// What the plan says.
        wanted: u64,
        /// What the image says.
        found: u64,
    },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            HeaderError::NotAnImage => write!(
                f,
                "it does not start with \"GANGLION\"; make an image with `ganglion-forge pack`"
            ),
            HeaderError::Newer { found } => write!(
                f,
                "it has format version {found}, this engine reads {VERSION}; \
                 update the engine or pack the image again"
            ),
            HeaderError::Layout { found } => write!(
                f,
                "it has layout {found}, this engine reads {LAYOUT}; make it again: \
                 ganglion-forge pack MODEL.gguf IMAGE"
            ),
            HeaderError::Damaged => {
                write!(f, "its header fails its checksum; copy or pack the image again")
            }
            HeaderError::Field { name, found } => {
                write!(f, "its header says {name} = {found}, which means nothing; pack it again")
            }
            HeaderError::Cut { found } => write!(
                f,
                "the file is incomplete: its header alone has {HEADER_BYTES} bytes, it has \
                 {found}; copy or pack it again"
            ),
            HeaderError::FileBytes { wanted, found } => write!(
                f,
                "the file is incomplete: its header says {wanted} bytes, it has {found}; \
                 copy or pack it again"
            ),
            HeaderError::Types { name, wanted, found } => write!(
                f,
                "it is packed with other types: the plan wants {name} as {}, the image has {}; \
                 pack the model as the plan says",
                wanted.name(),
                found.name()
            ),
            HeaderError::Packing { wanted, found } => write!(
                f,
                "its records are packed in way {found}, this engine reads those of such a model \
                 in way {} ({}); make it again: ganglion-forge pack MODEL.gguf IMAGE",
                wanted.code(),
                wanted.name()
            ),
            HeaderError::Mismatch { name, wanted, found } => write!(
                f,
                "it is of another model: the plan wants {name} = {wanted}, the image has {found}; \
                 use the image this binary was built for"
            ),
        }
    }
}

impl Header {
    /// The header of an image of `shape` stored as `types`, with the section table laid out and
    /// checksums still zero.
    pub fn new(name: &str, shape: &Shape, types: &Types, constants: Constants) -> Header {
        let mut header = Header::zeroed();
        header.magic = MAGIC;
        header.version = VERSION;
        header.layout = LAYOUT;
        header.activation = shape.activation.code();
        let mut kept = name.len().min(NAME_BYTES);
        while !name.is_char_boundary(kept) {
            kept -= 1;
        }
        header.name[..kept].copy_from_slice(&name.as_bytes()[..kept]);
        header.layers = shape.layers as u32;
        header.hidden = shape.hidden as u32;
        header.heads = shape.heads as u32;
        header.kv_heads = shape.kv_heads as u32;
        header.head_dim = shape.head_dim as u32;
        header.experts = shape.experts as u32;
        header.experts_used = shape.experts_used as u32;
        header.ff = shape.ff as u32;
        header.vocab = shape.vocab as u32;
        header.tied = u32::from(shape.tied);
        header.tokenizer_bytes = shape.tokenizer_bytes as u32;
        header.types = [
            types.records_code(),
            types.resident.code(),
            types.head.code(),
            types.embedding.code(),
        ];
        header.rms_eps = constants.rms_eps;
        header.context_trained = constants.context_trained;
        header.biases = shape.biases.code();
        header.window = shape.window as u32;
        header.packing = shape.packing().code();
        if constants.attention_factor != 1.0 {
            header.attention_factor = constants.attention_factor;
        }
        header.sections = section_table(shape, types);
        let last = header.sections[SECTIONS - 1];
        header.file_bytes = last.offset + last.bytes;
        header
    }

    /// Reads a header from the first block of a file of `file_bytes`.
    pub fn read(block: &[u8], file_bytes: u64) -> Result<Header, HeaderError> {
        if !block.starts_with(&MAGIC) {
            return Err(HeaderError::NotAnImage);
        }
        if block.len() < HEADER_BYTES {
            return Err(HeaderError::Cut { found: file_bytes });
        }
        let header: Header = bytemuck::pod_read_unaligned(&block[..HEADER_BYTES]);
        if header.version > VERSION {
            return Err(HeaderError::Newer { found: header.version });
        }
        if header.checksum() != header.crc {
            return Err(HeaderError::Damaged);
        }
        if header.version != VERSION {
            return Err(HeaderError::Field { name: "version", found: u64::from(header.version) });
        }
        if header.layout != LAYOUT {
            return Err(HeaderError::Layout { found: header.layout });
        }
        let (shape, types) = (header.shape()?, header.types()?);
        let factor = header.constants().attention_factor;
        if !(factor.is_finite() && factor > 0.0) {
            let found = u64::from(factor.to_bits());
            return Err(HeaderError::Field { name: "attention factor", found });
        }
        if header.file_bytes != file_bytes {
            return Err(HeaderError::FileBytes { wanted: header.file_bytes, found: file_bytes });
        }
        for (kind, table) in SectionKind::ALL.iter().zip(section_table(&shape, &types)) {
            let found = header.section(*kind);
            if (found.offset, found.bytes) != (table.offset, table.bytes) {
                return Err(HeaderError::Field { name: kind.name(), found: found.offset });
            }
        }
        Ok(header)
    }

    /// Sets the checksum of a section's bytes.
    pub fn set_section_crc(&mut self, kind: SectionKind, crc: u32) {
        self.sections[kind as usize].crc = crc;
    }

    /// The header as written, its own checksum set.
    pub fn to_bytes(mut self) -> [u8; HEADER_BYTES] {
        self.crc = self.checksum();
        bytemuck::cast(self)
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
        core::str::from_utf8(&self.name[..end]).unwrap_or("?")
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Where a section lies.
    pub fn section(&self, kind: SectionKind) -> Section {
        self.sections[kind as usize]
    }

    /// Scalars of the forward pass.
    pub fn constants(&self) -> Constants {
        let is_one = self.attention_factor == 0.0;
        Constants {
            rms_eps: self.rms_eps,
            context_trained: self.context_trained,
            attention_factor: if is_one { 1.0 } else { self.attention_factor },
        }
    }

    /// The model's shape.
    pub fn shape(&self) -> Result<Shape, HeaderError> {
        let activation = ActivationFn::from_code(self.activation)
            .ok_or(HeaderError::Field { name: "activation", found: u64::from(self.activation) })?;
        let biases = Biases::from_code(self.biases)
            .ok_or(HeaderError::Field { name: "biases", found: u64::from(self.biases) })?;
        let shape = Shape {
            layers: u64::from(self.layers),
            hidden: u64::from(self.hidden),
            heads: u64::from(self.heads),
            kv_heads: u64::from(self.kv_heads),
            head_dim: u64::from(self.head_dim),
            experts: u64::from(self.experts),
            experts_used: u64::from(self.experts_used),
            ff: u64::from(self.ff),
            vocab: u64::from(self.vocab),
            activation,
            tied: self.tied != 0,
            biases,
            window: u64::from(self.window),
            tokenizer_bytes: u64::from(self.tokenizer_bytes),
        };
        match shape.fault() {
            Some((name, _, found)) => Err(HeaderError::Field { name, found }),
            None => Ok(shape),
        }
    }

    /// How the weights are stored.
    pub fn types(&self) -> Result<Types, HeaderError> {
        let one = |name, code: u32| {
            WeightType::from_code(code).ok_or(HeaderError::Field { name, found: u64::from(code) })
        };
        let (records, down) = Types::records_from_code(self.types[0])
            .ok_or(HeaderError::Field { name: "record type", found: u64::from(self.types[0]) })?;
        Ok(Types {
            records,
            down,
            resident: one("resident type", self.types[1])?,
            head: one("head type", self.types[2])?,
            embedding: one("embedding type", self.types[3])?,
        })
    }

    /// Whether this image is the one that `shape` and `types` were planned for.
    pub fn matches(&self, shape: &Shape, types: &Types) -> Result<(), HeaderError> {
        let (own_shape, own_types) = (self.shape()?, self.types()?);
        let pairs = [
            ("layers", shape.layers, own_shape.layers),
            ("hidden", shape.hidden, own_shape.hidden),
            ("heads", shape.heads, own_shape.heads),
            ("kv_heads", shape.kv_heads, own_shape.kv_heads),
            ("head_dim", shape.head_dim, own_shape.head_dim),
            ("experts", shape.experts, own_shape.experts),
            ("experts_used", shape.experts_used, own_shape.experts_used),
            ("ff", shape.ff, own_shape.ff),
            ("vocab", shape.vocab, own_shape.vocab),
            ("tied", u64::from(shape.tied), u64::from(own_shape.tied)),
            ("tokenizer_bytes", shape.tokenizer_bytes, own_shape.tokenizer_bytes),
            ("activation", code(shape.activation), code(own_shape.activation)),
            ("biases", u64::from(shape.biases.code()), u64::from(own_shape.biases.code())),
            ("window", shape.window, own_shape.window),
        ];
        for (name, wanted, found) in pairs {
            if wanted != found {
                return Err(HeaderError::Mismatch { name, wanted, found });
            }
        }
        let pairs = [
            ("records", types.records, own_types.records),
            ("down columns", types.down, own_types.down),
            ("resident weights", types.resident, own_types.resident),
            ("the head", types.head, own_types.head),
            ("embeddings", types.embedding, own_types.embedding),
        ];
        if let Some((name, wanted, found)) =
            pairs.into_iter().find(|(_, wanted, found)| wanted != found)
        {
            return Err(HeaderError::Types { name, wanted, found });
        }
        if self.packing != shape.packing().code() {
            return Err(HeaderError::Packing { wanted: shape.packing(), found: self.packing });
        }
        Ok(())
    }

    fn checksum(&self) -> u32 {
        crc32c(0, bytemuck::bytes_of(&Header { crc: 0, ..*self }))
    }
}

fn code(activation: ActivationFn) -> u64 {
    u64::from(activation.code())
}

/// Where each section lies: back to back behind the header, each a whole number of blocks.
fn section_table(shape: &Shape, types: &Types) -> [Section; SECTIONS] {
    let resident = super::Resident::new(shape, types);
    let bytes = [
        resident.bytes,
        block(shape.tokenizer_bytes),
        block(shape.neurons() * 4),
        types.embedding_bytes(shape),
        types.expert_bytes(shape) * shape.layers * shape.experts,
    ];
    let mut offset = BLOCK_BYTES;
    bytes.map(|bytes| {
        let section = Section { offset, bytes, crc: 0, reserved: 0 };
        offset += bytes;
        section
    })
}

fn block(bytes: u64) -> u64 {
    super::geometry::round_up(bytes, BLOCK_BYTES)
}
