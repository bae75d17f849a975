//! What a plan is solved from: a model's shape, a device's figures, a budget, a context.

use super::numerics::Numerics;
use crate::image::Shape;

/// What to do where the system refuses to lock memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Stop with the numbers.
    Demand,
    /// Say so once and go on.
    Try,
    /// Never ask.
    Off,
}

/// Figures of a device, from `plans/devices/*.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Bytes of a memory page.
    pub page_bytes: u64,
    /// Everything of the process that is not the arena: binary, libc, main stack, its page tables.
    pub process_bytes: u64,
    /// Bytes of a worker's or reader's stack.
    pub stack_bytes: u64,
    /// Reader threads.
    pub readers: u64,
    /// Reads in flight, each with its own staging buffer.
    pub reads_in_flight: u64,
    /// Largest read, and bytes of a staging buffer; a multiple of the flash block.
    pub read_bytes_max: u64,
    /// Reads in flight of a dense model, each with its own part of the ring; a power of two.
    pub ring_reads: u64,
    /// Largest of these reads; a multiple of the flash block.
    pub ring_read_bytes: u64,
    /// Whether to ask for huge pages.
    pub huge_pages: bool,
    /// Whether to pin each worker to a core.
    pub pin: bool,
}

/// Everything a plan is solved from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// Name of the plan.
    pub name: &'static str,
    /// Name of the model.
    pub model: &'static str,
    /// Name of the device.
    pub device_name: &'static str,
    /// The model's dimensions.
    pub shape: Shape,
    /// What the numbers depend on.
    pub numerics: Numerics,
    /// The device's figures.
    pub device: Device,
    /// What everything we start may use: `VmHWM + VmPTE` stays below it.
    pub budget_bytes: u64,
    /// Tokens of a conversation, prompt included.
    pub context_tokens: u64,
    /// Tokens of a prompt that go through a layer together.
    pub prefill_tokens: u64,
    /// Compute threads, the main one included.
    pub threads: u64,
    /// What to do where memory can't be locked.
    pub lock: Lock,
}

/// Bytes of a turn beside its message: the marks of its template.
const MARK_BYTES: u64 = 512;

/// Bytes of text a token stands for at most, in the mean over a whole prompt.
const PROMPT_BYTES_PER_TOKEN: u64 = 16;

impl Inputs {
    /// Longest piece of a prompt (a word, or a run of spaces) that can be cut into tokens.
    pub const fn prompt_bytes_max(&self) -> u64 {
        self.context_tokens * PROMPT_BYTES_PER_TOKEN
    }

    /// Longest turn of a chat: as much as a prompt, and the marks around it.
    pub const fn turn_bytes_max(&self) -> u64 {
        self.prompt_bytes_max() + MARK_BYTES
    }
}
