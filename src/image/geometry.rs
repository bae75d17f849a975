//! How a row of weights, a down column and a neuron record lie in memory and on flash.
//!
//! The packer and the kernels both ask here, so a layout is written once. Layout 1:
//!
//! **Groups and bands.** A row of `k` weights is cut into groups of [`GROUP`]; the group count is
//! rounded up to a multiple of [`GROUP_QUANTUM`]; the tail has code 0 (a nibble of 8) and scale 0.
//! Groups are gathered in bands of [`LANES`] groups; the last band is as wide as what is left (4,
//! 8, 12 or 16 groups). Within a band of width `w` the codes are interleaved so that a 32-bit lane
//! holds four weights of one group:
//!
//! ```text
//! q8  byte (step * w + lane) * 4 + j, step in 0..8, j in 0..4:
//!       weight 4 * step + j                    of group `lane`
//! q4  byte (step * w + lane) * 4 + j, step in 0..4:
//!       low nibble  = weight 4 * step + j      of group `lane`, stored + 8
//!       high nibble = weight 4 * step + j + 16 of group `lane`, stored + 8
//! ```
//!
//! The band's codes are followed by its `w` f16 scales. A row is its bands back to back, padded to
//! [`ROW_ALIGN`]. Quantised activations use the q8 interleave (codes only, scales apart).
//! An f16 row is plain: `k` values, zero-padded to a multiple of [`LANES`].
//!
//! **Down columns** run along the hidden dimension `k` and are not interleaved:
//!
//! ```text
//! f16  k values, zero-padded to a multiple of 16
//! q8   k codes i8 in -127..=127, zero-padded to a multiple of 32 | f16 d
//! q4   for each group of 32: 16 bytes, byte j = weight j (low, stored + 8), weight j + 16 (high)
//!      | one i8 sub-scale s in -15..=15 per group | f16 d
//!      weight = d * w8, w8 = s * q, |w8| <= 120
//! ```
//!
//! Rows and columns are padded to [`ROW_ALIGN`] with zero bytes. Which codes stand for a float
//! weight is told in `forge::quantize`.

/// Weights that share one scale.
pub const GROUP: u64 = 32;
/// Groups in a full band: the 16 partial sums of the canonical dot product.
pub const LANES: u64 = 16;
/// A row's group count is rounded up to this.
pub const GROUP_QUANTUM: u64 = 4;
/// Rows and columns are padded to this many bytes.
pub const ROW_ALIGN: u64 = 16;
/// A slot in memory starts at a multiple of this.
pub const SLOT_ALIGN: u64 = 64;
/// Direct reads start and end at multiples of this (4 KiB floor, whatever the file system reports).
pub const BLOCK_BYTES: u64 = 4096;
/// Bytes of a tag: identity and checksum of what one read covers.
pub const TAG_BYTES: u64 = 16;

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// IEEE half floats.
    F16,
    /// 8-bit codes, one f16 scale a group (rows) or a column.
    Q8,
    /// 4-bit codes, one f16 scale a group (rows), or a sub-scale a group and one scale (columns).
    Q4,
}

impl WeightType {
    /// Every type, in the order of [`WeightType::code`].
    pub const ALL: [WeightType; 3] = [WeightType::F16, WeightType::Q8, WeightType::Q4];

    /// Name in plans, tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            WeightType::F16 => "f16",
            WeightType::Q8 => "q8",
            WeightType::Q4 => "q4",
        }
    }

    /// Number in image headers.
    pub const fn code(self) -> u32 {
        match self {
            WeightType::F16 => 0,
            WeightType::Q8 => 1,
            WeightType::Q4 => 2,
        }
    }

    /// The type of a header's number, or `None`.
    pub const fn from_code(code: u32) -> Option<WeightType> {
        match code {
            0 => Some(WeightType::F16),
            1 => Some(WeightType::Q8),
            2 => Some(WeightType::Q4),
            _ => None,
        }
    }

    /// Bytes of a row of `k` weights.
    pub const fn row_bytes(self, k: u64) -> u64 {
        let groups = padded_groups(k);
        let bytes = match self {
            WeightType::F16 => round_up(k, LANES) * 2,
            WeightType::Q8 => groups * (GROUP + 2),
            WeightType::Q4 => groups * (GROUP / 2 + 2),
        };
        round_up(bytes, ROW_ALIGN)
    }

    /// Bytes of a down column of `k` weights.
    pub const fn column_bytes(self, k: u64) -> u64 {
        let groups = k.div_ceil(GROUP);
        let bytes = match self {
            WeightType::F16 => round_up(k, LANES) * 2,
            WeightType::Q8 => groups * GROUP + 2,
            WeightType::Q4 => groups * (GROUP / 2 + 1) + 2,
        };
        round_up(bytes, ROW_ALIGN)
    }
}

/// Groups of a row of `k` weights, tail groups included.
pub const fn padded_groups(k: u64) -> u64 {
    round_up(k.div_ceil(GROUP), GROUP_QUANTUM)
}

/// `k` rounded up to whole groups of a row: the length of a padded activation vector.
pub const fn padded_len(k: u64) -> u64 {
    padded_groups(k) * GROUP
}

/// Where weight `index` of a row stands: its band's first group, the band's width, its lane and
/// its place within the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First group of the band.
    pub band_group: u64,
    /// Groups in the band.
    pub width: u64,
    /// Group within the band.
    pub lane: u64,
    /// Weight within the group.
    pub within: u64,
}

/// Where weight `index` of a row of `groups` padded groups stands.
pub const fn place(groups: u64, index: u64) -> Place {
    let group = index / GROUP;
    let band_group = group / LANES * LANES;
    let left = groups - band_group;
    let width = if left < LANES { left } else { LANES };
    Place { band_group, width, lane: group - band_group, within: index % GROUP }
}

/// Byte of weight `index` within a vector of interleaved q8 codes (quantised activations: no scales
/// between the bands).
pub const fn activation_byte(groups: u64, index: u64) -> u64 {
    let p = place(groups, index);
    p.band_group * GROUP + interleave(p.width, p.within / 4, p.lane, p.within % 4)
}

const fn interleave(width: u64, step: u64, lane: u64, j: u64) -> u64 {
    (step * width + lane) * 4 + j
}

/// Byte offset of the code of weight `index` in a q8 row.
pub const fn q8_row_byte(groups: u64, index: u64) -> u64 {
    let p = place(groups, index);
    p.band_group * (GROUP + 2) + interleave(p.width, p.within / 4, p.lane, p.within % 4)
}

/// Byte offset of the nibble of weight `index` in a q4 row, and whether it is the high one.
pub const fn q4_row_nibble(groups: u64, index: u64) -> (u64, bool) {
    let p = place(groups, index);
    let low = p.within % (GROUP / 2);
    let byte = p.band_group * (GROUP / 2 + 2) + interleave(p.width, low / 4, p.lane, low % 4);
    (byte, p.within >= GROUP / 2)
}

/// Byte offset of the f16 scale of `group` in a q8 (`code_bytes` 32) or q4 (16) row.
pub const fn row_scale_byte(groups: u64, group: u64, code_bytes: u64) -> u64 {
    let p = place(groups, group * GROUP);
    p.band_group * (code_bytes + 2) + p.width * code_bytes + p.lane * 2
}

/// One neuron's record: gate row, up row, down column, on flash and in a slot.
///
/// On flash: `gate | tag | up | down | tag`, in a slot: `gate | up | down`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Bytes of the gate row, and of the up row.
    pub row_bytes: u64,
    /// Bytes of the down column.
    pub column_bytes: u64,
    /// Records that share one flash block; 1 where a record takes whole blocks.
    pub per_block: u64,
    /// Bytes from one flash unit to the next: [`BLOCK_BYTES`] where records share one, the record's
    /// own in the `tight` packing.
    pub unit_bytes: u64,
}

/// How records follow each other on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// In whole direct-I/O blocks, one or several to a unit: for reads of single neurons.
    Aligned,
    /// Back to back: for models that stream in order.
    Tight,
}

impl Packing {
    /// Name in tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Packing::Aligned => "aligned",
            Packing::Tight => "tight",
        }
    }

    /// Number in image headers.
    pub const fn code(self) -> u32 {
        match self {
            Packing::Aligned => 0,
            Packing::Tight => 1,
        }
    }
}

impl Record {
    /// The `aligned` packing of records with rows of type `rows` and columns of type `down`, for
    /// `hidden` inputs and outputs.
    pub const fn aligned(rows: WeightType, down: WeightType, hidden: u64) -> Record {
        let row_bytes = rows.row_bytes(hidden);
        let column_bytes = down.column_bytes(hidden);
        let raw = 2 * row_bytes + column_bytes + 2 * TAG_BYTES;
        if raw > BLOCK_BYTES {
            let unit_bytes = round_up(raw, BLOCK_BYTES);
            return Record { row_bytes, column_bytes, per_block: 1, unit_bytes };
        }
        let per_block = BLOCK_BYTES / raw;
        Record { row_bytes, column_bytes, per_block, unit_bytes: BLOCK_BYTES }
    }

    /// The `tight` packing.
    pub const fn tight(rows: WeightType, down: WeightType, hidden: u64) -> Record {
        let record = Record::aligned(rows, down, hidden);
        Record { per_block: 1, unit_bytes: record.raw_bytes(), ..record }
    }

    /// Bytes of blocks, beyond those of its records, that a read takes at most.
    pub const fn read_slack(&self) -> u64 {
        if self.unit_bytes.is_multiple_of(BLOCK_BYTES) { 0 } else { 2 * BLOCK_BYTES }
    }

    /// Most units of a read into `bytes` of memory.
    pub const fn units_in(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.read_slack()) / self.unit_bytes
    }

    /// Bytes of a record on flash without padding.
    pub const fn raw_bytes(&self) -> u64 {
        2 * self.row_bytes + self.column_bytes + 2 * TAG_BYTES
    }

    /// Bytes of a record in a slot.
    pub const fn slot_bytes(&self) -> u64 {
        round_up(2 * self.row_bytes + self.column_bytes, SLOT_ALIGN)
    }

    /// Flash units that hold `neurons` records.
    pub const fn units(&self, neurons: u64) -> u64 {
        neurons.div_ceil(self.per_block)
    }

    /// Byte offset of record `neuron` from its expert's first unit.
    pub const fn offset(&self, neuron: u64) -> u64 {
        neuron / self.per_block * self.unit_bytes + neuron % self.per_block * self.raw_bytes()
    }

    /// Byte offset of the gate's tag within a record on flash.
    pub const fn gate_tag(&self) -> u64 {
        self.row_bytes
    }

    /// Byte offset of the up row within a record on flash.
    pub const fn up(&self) -> u64 {
        self.row_bytes + TAG_BYTES
    }

    /// Byte offset of the down column within a record on flash.
    pub const fn down(&self) -> u64 {
        self.up() + self.row_bytes
    }

    /// Byte offset of the last tag within a record on flash.
    pub const fn tail_tag(&self) -> u64 {
        self.down() + self.column_bytes
    }
}

/// `value` rounded up to a multiple of `to`.
pub const fn round_up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}
