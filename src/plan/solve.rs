//! Inputs -> plan: total, bounded, deterministic, integers only.
//!
//! Everything but the cache has a size that follows from the inputs; the cache takes what is left.
//! Scratch regions are laid over each other by lifetime: each goes to the lowest offset where it
//! meets no region that lives at the same time.

use super::error::PlanError;
use super::inputs::{Device, Inputs};
use super::numerics::KvType;
use super::region::{Life, REGIONS, Region, RegionId};
use super::scratch::{BATCH_TOKENS_MAX, accumulator_len, batch_code_stride, batch_tiles_bytes};
use crate::image::geometry::{
    BLOCK_BYTES, GROUP, SLOT_ALIGN, TAG_BYTES, padded_groups, padded_len, round_up,
};
use crate::image::{Resident, Shape};

/// Smallest cache: fewer slots than this hold nothing worth looking up.
pub const SLOTS_MIN: u64 = 64;
/// Bytes of a request.
pub const REQUEST_BYTES: u64 = 64;
/// Bytes of an expert and its share.
pub const CHOICE_BYTES: u64 = 8;
/// Bytes of tokenizer scratch for each byte of the longest prompt, which is rounded up to a power
/// of two (see `token::EncodeScratch`).
const ENCODE_BYTES_PER_BYTE: u64 = 20;

/// The solved plan: where every byte of the arena lies, and the bounds of a token's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What it was solved from.
    pub inputs: Inputs,
    /// Every region, by the number of its id.
    pub regions: [Region; REGIONS],
    /// Bytes of the arena, a whole number of pages.
    pub arena_bytes: u64,
    /// Page tables of the arena.
    pub page_table_bytes: u64,
    /// Budget that nothing uses.
    pub unused_bytes: u64,
    /// Bytes of a cache slot.
    pub slot_bytes: u64,
    /// Slots of the cache.
    pub slot_count: u64,
    /// Whether the neurons without a slot stream in order, through a ring: those of a dense model
    /// that is larger than its memory. Then the slots hold the first neurons of each layer, always
    /// the same: a cache that lets go would let go of each just before it is needed.
    pub streams: bool,
    /// Most reads of a token.
    pub reads_per_token_max: u64,
    /// Most cache look-ups of a token.
    pub probes_per_token_max: u64,
}

impl Plan {
    /// A region.
    pub const fn region(&self, id: RegionId) -> Region {
        self.regions[id as usize]
    }

    /// Everything the plan allows the process to use.
    pub const fn total_bytes(&self) -> u64 {
        self.inputs.device.process_bytes + self.page_table_bytes + self.arena_bytes
    }

    /// Reads in flight and the bytes of each.
    pub const fn reads(&self) -> (u64, u64) {
        reads(&self.inputs, self.slot_count)
    }

    /// Threads with a stack in the arena: readers, and workers beside the main thread.
    pub const fn stack_count(&self) -> u64 {
        stack_count(&self.inputs)
    }
}

const fn stack_count(inputs: &Inputs) -> u64 {
    inputs.device.readers + inputs.threads - 1
}

/// Solves `inputs`, or says which number stands in the way.
pub const fn solve(inputs: Inputs) -> Result<Plan, PlanError> {
    if let Err(error) = check_inputs(&inputs) {
        return Err(error);
    }
    let shape = &inputs.shape;
    let slot_bytes = inputs.numerics.types.record(shape).slot_bytes();
    let fixed = place(&inputs, slot_bytes, 0);
    let least = least(&inputs, slot_bytes);
    if least > inputs.budget_bytes {
        return Err(PlanError::BudgetTooSmall {
            budget_bytes: inputs.budget_bytes,
            wanted_bytes: least,
            process_bytes: inputs.device.process_bytes,
            resident_bytes: fixed.0[RegionId::Resident as usize].bytes,
            kv_bytes: 2 * fixed.0[RegionId::Keys as usize].bytes,
        });
    }
    let slot_count = fill(&inputs, slot_bytes);
    let (regions, arena_bytes) = place(&inputs, slot_bytes, slot_count);
    let record = inputs.numerics.types.record(shape);
    Ok(Plan {
        inputs,
        regions,
        arena_bytes,
        page_table_bytes: page_tables(&inputs.device, arena_bytes),
        unused_bytes: inputs.budget_bytes - total(&inputs.device, arena_bytes),
        slot_bytes,
        slot_count,
        streams: streams(&inputs, slot_count),
        reads_per_token_max: 1 + if shape.is_dense() {
            let streamed = shape.ff - slot_count / shape.layers;
            shape.layers * streamed.div_ceil(record.units_in(reads(&inputs, slot_count).1))
        } else {
            shape.layers * shape.experts_used * record.units(shape.ff)
        },
        probes_per_token_max: shape.layers * shape.experts_used * shape.ff,
    })
}

const fn check_inputs(inputs: &Inputs) -> Result<(), PlanError> {
    if let Some((name, limit, found)) = inputs.shape.range_fault() {
        return Err(PlanError::Shape { name, limit, found });
    }
    if let Some((name, of, found)) = inputs.shape.multiple_fault() {
        return Err(PlanError::Multiple { name, of, found });
    }
    let head_dim = inputs.shape.head_dim;
    if matches!(inputs.numerics.kv, KvType::Byte) && !head_dim.is_multiple_of(GROUP) {
        return Err(PlanError::KvGroups { found: head_dim });
    }
    let d = &inputs.device;
    let record = inputs.numerics.types.record(&inputs.shape);
    let least_read = record.unit_bytes + record.read_slack();
    let settings = [
        ("page_bytes", d.page_bytes, 4096, 65536),
        ("process_bytes", d.process_bytes, 1 << 16, 1 << 32),
        ("stack_bytes", d.stack_bytes, 32768, 1 << 24),
        ("readers", d.readers, 1, READERS_MAX),
        ("reads_in_flight", d.reads_in_flight, 1, READS_MAX),
        ("read_bytes_max", d.read_bytes_max, least_read, 1 << 24),
        ("ring_reads", d.ring_reads, 1, READS_MAX),
        ("ring_read_bytes", d.ring_read_bytes, least_read, 1 << 24),
        ("context_tokens", inputs.context_tokens, 1, 1 << 20),
        ("prefill_tokens", inputs.prefill_tokens, 1, BATCH_TOKENS_MAX),
        ("threads", inputs.threads, 1, THREADS_MAX),
        ("budget", inputs.budget_bytes, 1, 1 << 45),
    ];
    let mut i = 0;
    while i < settings.len() {
        let (name, found, min, max) = settings[i];
        if found < min || found > max {
            return Err(PlanError::Setting { name, min, max, found });
        }
        i += 1;
    }
    let powers = [
        ("page_bytes", d.page_bytes),
        ("reads_in_flight", d.reads_in_flight),
        ("ring_reads", d.ring_reads),
    ];
    let blocks = [
        ("read_bytes_max", d.read_bytes_max),
        ("stack_bytes", d.stack_bytes),
        ("ring_read_bytes", d.ring_read_bytes),
    ];
    let mut i = 0;
    while i < powers.len() {
        let (name, found) = powers[i];
        if !found.is_power_of_two() {
            return Err(PlanError::PowerOfTwo { name, found });
        }
        let (name, found) = blocks[i];
        if !found.is_multiple_of(BLOCK_BYTES) {
            return Err(PlanError::Multiple { name, of: BLOCK_BYTES, found });
        }
        i += 1;
    }
    Ok(())
}

/// Most compute threads.
pub const THREADS_MAX: u64 = 16;
/// Most reader threads.
pub const READERS_MAX: u64 = 16;
/// Most reads in flight.
pub const READS_MAX: u64 = 256;

/// Fewest slots: of a model that streams, one for each layer.
const fn slots_min(shape: &Shape) -> u64 {
    if shape.is_dense() { shape.layers } else { SLOTS_MIN }
}

const fn streams(inputs: &Inputs, slots: u64) -> bool {
    inputs.shape.is_dense() && slots < inputs.shape.neurons()
}

/// Bytes of the smallest budget. A dense model of a few layers may take less whole than its ring.
const fn least(inputs: &Inputs, slot_bytes: u64) -> u64 {
    let fewest = bytes_with(inputs, slot_bytes, slots_min(&inputs.shape));
    let whole = bytes_with(inputs, slot_bytes, inputs.shape.neurons());
    if inputs.shape.is_dense() && whole < fewest { whole } else { fewest }
}

/// The most slots that fit the budget, no more than there are neurons. Where the others stream,
/// as many for each layer.
const fn fill(inputs: &Inputs, slot_bytes: u64) -> u64 {
    let shape = &inputs.shape;
    let least = slots_min(shape);
    if bytes_with(inputs, slot_bytes, shape.neurons()) <= inputs.budget_bytes {
        return if shape.neurons() > least { shape.neurons() } else { least };
    }
    let step = if shape.is_dense() { shape.layers } else { 1 };
    let (mut low, mut high) = (least / step, shape.neurons() / step);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if bytes_with(inputs, slot_bytes, middle * step) <= inputs.budget_bytes {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low * step
}

/// Reads in flight and the bytes of each. Those that stream are large, but no larger than a layer;
/// where all neurons have slots, the smaller of both kinds is enough.
const fn reads(inputs: &Inputs, slots: u64) -> (u64, u64) {
    let (d, types) = (&inputs.device, &inputs.numerics.types);
    let small = (d.reads_in_flight, d.read_bytes_max);
    if !inputs.shape.is_dense() {
        return small;
    }
    let layer = types.expert_bytes(&inputs.shape) + types.record(&inputs.shape).read_slack();
    let large = (d.ring_reads, if layer < d.ring_read_bytes { layer } else { d.ring_read_bytes });
    let is_less = small.0 * (small.1 + REQUEST_BYTES) < large.0 * (large.1 + REQUEST_BYTES);
    if !streams(inputs, slots) && is_less { small } else { large }
}

/// Bytes of a budget with this many slots.
const fn bytes_with(inputs: &Inputs, slot_bytes: u64, slots: u64) -> u64 {
    total(&inputs.device, place(inputs, slot_bytes, slots).1)
}

const fn total(device: &Device, arena_bytes: u64) -> u64 {
    device.process_bytes + page_tables(device, arena_bytes) + arena_bytes
}

/// Page tables of a mapping, at all three levels that `VmPTE` counts. At each, the mapping may
/// start in the middle of a table.
const fn page_tables(device: &Device, arena_bytes: u64) -> u64 {
    let entries = device.page_bytes / 8;
    let mut mapped = arena_bytes.div_ceil(device.page_bytes);
    let mut tables = 0;
    let mut level = 1;
    while level <= 3 {
        mapped = mapped.div_ceil(entries) + 1;
        tables += mapped;
        level += 1;
    }
    tables * device.page_bytes
}

/// Lays out every region for a cache of `slots`; returns them with the arena's bytes.
const fn place(inputs: &Inputs, slot_bytes: u64, slots: u64) -> ([Region; REGIONS], u64) {
    let mut regions =
        [Region { id: RegionId::Resident, offset: 0, bytes: 0, align: SLOT_ALIGN }; REGIONS];
    let mut end = 0;
    let mut i = 0;
    while i < REGIONS {
        let id = RegionId::ALL[i];
        let align = align(id);
        regions[i] = Region { id, offset: 0, bytes: size(inputs, slot_bytes, slots, id), align };
        if matches!(id.life(), Life::Always) {
            regions[i].offset = round_up(end, align);
            end = regions[i].end();
        }
        i += 1;
    }
    let scratch = round_up(end, BLOCK_BYTES);
    let mut i = 0;
    while i < REGIONS {
        if !matches!(regions[i].id.life(), Life::Always) {
            regions[i].offset = overlay(&regions, i, scratch);
            if regions[i].end() > end {
                end = regions[i].end();
            }
        }
        i += 1;
    }
    (regions, round_up(end, inputs.device.page_bytes))
}

/// The lowest offset from `start` where region `index` meets no earlier scratch region that lives
/// at the same time. Each collision moves it behind the other region, so the search ends.
const fn overlay(regions: &[Region; REGIONS], index: usize, start: u64) -> u64 {
    let region = regions[index];
    let mut offset = start;
    let mut other = 0;
    while other < index {
        let o = regions[other];
        let scratch = !matches!(o.id.life(), Life::Always);
        let apart = offset >= o.end() || offset + region.bytes <= o.offset;
        if scratch && o.id.life().meets(region.id.life()) && !apart {
            offset = round_up(o.end(), region.align);
            other = 0;
        } else {
            other += 1;
        }
    }
    offset
}

const fn align(id: RegionId) -> u64 {
    match id {
        RegionId::Resident
        | RegionId::Tokenizer
        | RegionId::Staging
        | RegionId::EmbeddingRow
        | RegionId::Stacks => BLOCK_BYTES,
        _ => SLOT_ALIGN,
    }
}

const fn size(inputs: &Inputs, slot_bytes: u64, slots: u64, id: RegionId) -> u64 {
    let Inputs { shape: s, numerics: n, device: d, .. } = inputs;
    let (context, chunk) = (inputs.context_tokens, inputs.prefill_tokens);
    let widest = if s.hidden > s.query_dim() { s.hidden } else { s.query_dim() };
    let kv_bytes = s.layers * s.kv_heads * context * n.kv.row_bytes(s.head_dim);
    let (read_count, read_bytes) = reads(inputs, slots);
    match id {
        RegionId::Resident => Resident::new(s, &n.types).bytes,
        RegionId::Tokenizer => round_up(s.tokenizer_bytes, BLOCK_BYTES),
        RegionId::Rope => context * s.head_dim * 4,
        RegionId::Keys | RegionId::Values => kv_bytes,
        RegionId::Table => s.neurons() * 4,
        RegionId::Owners => slots * 4,
        RegionId::Slots => slots * slot_bytes,
        RegionId::Staging => read_count * read_bytes,
        RegionId::Requests => read_count * REQUEST_BYTES,
        RegionId::StagingStates => read_count * 4,
        RegionId::EmbeddingRow => {
            round_up(n.types.embedding.row_bytes(s.hidden) + TAG_BYTES, BLOCK_BYTES) + BLOCK_BYTES
        }
        RegionId::Tokens => context * 4,
        RegionId::Stacks => stack_count(inputs) * d.stack_bytes,
        RegionId::Residual | RegionId::Update => chunk * s.hidden * 4,
        RegionId::Input => chunk * padded_len(s.hidden) * 4,
        RegionId::InputCodes => chunk * batch_code_stride(widest),
        RegionId::InputScales => chunk * padded_groups(widest) * 4,
        RegionId::Qkv => chunk * s.qkv_dim() * 4,
        RegionId::Heads => chunk * padded_len(s.query_dim()) * 4,
        RegionId::Accumulators => inputs.threads * accumulator_len(s.hidden) * 16,
        RegionId::Router => s.experts * 4,
        RegionId::Choices => chunk * s.experts_used * CHOICE_BYTES,
        RegionId::BatchSums => chunk * accumulator_len(s.hidden) * 8,
        RegionId::BatchTiles => batch_tiles_bytes(s.hidden, chunk, inputs.threads),
        RegionId::Logits => s.vocab * 4,
        RegionId::Candidates => s.vocab * 8,
        RegionId::Encode => inputs.prompt_bytes_max().next_power_of_two() * ENCODE_BYTES_PER_BYTE,
        RegionId::Turn => inputs.turn_bytes_max(),
    }
}
