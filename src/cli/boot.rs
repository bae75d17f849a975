//! Boot: open, look, map, carve, fill, start, lock, seal; then a session runs.
//!
//! The only place where the engine is put together. Called by every command that needs the model,
//! and by the test suites with plans of their own.

use super::fault::Fault;
use crate::arena::{Arena, Staging};
use crate::cache::Cache;
use crate::cluster::{Dimensions, Streaming, Workshop};
use crate::image::header::HEADER_BYTES;
use crate::image::{Header, HeaderError, SectionKind};
use crate::kernel::Kernels;
use crate::kernel::accumulator::UNIT_EXPONENTS;
use crate::model::{KvCache, Model, ModelError, Parts, Weights, fill_rope_table};
use crate::plan::{Lock, Plan, RegionId, check};
use crate::storage::{Larder, RecordMap, RequestCell};
use crate::sys::{
    File, FileSystem, Stderr, Team, available_bytes, footprint, forbid_memory_calls, lock_all, now,
    page_bytes, path_text, pin_to_core, scope, start,
};
use crate::token::Tokenizer;
use core::ffi::CStr;

/// How to boot.
#[derive(Clone, Copy)]
pub struct BootOptions {
    /// Path of the image.
    pub image: &'static [u8],
    /// Compute threads, 1 to the plan's.
    pub threads: usize,
    /// Kernels of the instruction set to use.
    pub kernels: &'static Kernels,
    /// Kill the process where it asks for memory after the seal.
    pub prove_seal: bool,
    /// Stop where the process uses more than its budget.
    pub enforce_budget: bool,
    /// Refuse an image that lies in memory.
    pub refuse_memory_backed: bool,
}

/// A booted engine.
pub struct Session<'a> {
    /// The model.
    pub model: Model<'a>,
    /// Its tokenizer.
    pub tokenizer: Tokenizer<'a>,
    /// The conversation: tokens so far, and room for more.
    pub tokens: &'a mut [u32],
    /// How many of them, from the first on, the model has been given.
    pub cached: usize,
    /// Whether a long prompt shows its progress on stderr.
    pub shows_progress: bool,
    /// Most tokens of a prompt that go through the model together.
    pub chunk: usize,
    /// The image's header.
    pub header: &'a Header,
    /// Nanoseconds from the start of boot to the seal.
    pub boot_ns: u64,
}

/// Boots `plan` and runs `then` with the session; everything is given back afterwards.
pub fn boot<R>(
    plan: &Plan,
    options: &BootOptions,
    then: impl FnOnce(&mut Session<'_>) -> Result<R, Fault>,
) -> Result<R, Fault> {
    let started = now();
    check(plan).map_err(Fault::Plan)?;
    let pages = page_bytes() as u64;
    if pages != plan.inputs.device.page_bytes {
        return Err(Fault::PageBytes { wanted: plan.inputs.device.page_bytes, found: pages });
    }
    let (file, header) = open_image(plan, options)?;
    if let Some(available) = available_bytes().filter(|&bytes| bytes < plan.arena_bytes) {
        return Err(Fault::NoRoom { wanted: plan.arena_bytes, available });
    }
    let arena = Arena::new(plan).map_err(|error| Fault::Arena {
        error,
        bytes: plan.arena_bytes,
        available: available_bytes().unwrap_or(0),
    })?;
    let resident = section(&arena, &file, &header, options, SectionKind::Resident)?;
    let tokenizer = section(&arena, &file, &header, options, SectionKind::Tokenizer)?;
    Booting { plan, options, arena: &arena, header: &header, started }
        .start(file, resident, tokenizer, then)
}

/// Opens the image, says what is unusual about its place, reads and compares its header.
fn open_image(plan: &Plan, options: &BootOptions) -> Result<(File, Header), Fault> {
    let path = options.image;
    let mut buffer = [0; 1024];
    if path.is_empty() || path.len() >= buffer.len() {
        return Err(Fault::ImageName);
    }
    buffer[..path.len()].copy_from_slice(path);
    let name = CStr::from_bytes_until_nul(&buffer).map_err(|_| Fault::ImageName)?;
    if name.count_bytes() != path.len() {
        return Err(Fault::ImageName);
    }
    let file = File::open(name).map_err(|error| Fault::ImageOpen { path, error })?;
    match file.file_system() {
        FileSystem::Memory if options.refuse_memory_backed => {
            return Err(Fault::MemoryBacked { path });
        }
        FileSystem::Memory => Stderr::line(format_args!(
            "ganglion: image {} lies in memory (tmpfs): it takes memory outside the budget, and \
             its speed is not that of flash",
            path_text(path)
        )),
        FileSystem::Fuse => Stderr::line(format_args!(
            "ganglion: image {} lies behind a user-space file system: reads are slow, move it to \
             the device's own storage",
            path_text(path)
        )),
        FileSystem::Disk if !file.is_direct() => Stderr::line(format_args!(
            "ganglion: image {} lies on a file system without direct reads: they go through the \
             page cache, outside the budget",
            path_text(path)
        )),
        FileSystem::Disk => {}
    }
    let block = file.first_block().map_err(|error| Fault::ImageRead { path, error })?;
    let kept = HEADER_BYTES.min(file.bytes() as usize);
    let header =
        Header::read(&block[..kept], file.bytes()).map_err(|error| Fault::Image { path, error })?;
    header
        .matches(&plan.inputs.shape, &plan.inputs.numerics.types)
        .map_err(|error| Fault::Image { path, error })?;
    let (trained, context) = (header.constants().context_trained, plan.inputs.context_tokens);
    if u64::from(trained) < context {
        Stderr::line(format_args!(
            "ganglion: the plan has {context} tokens of context, the model was trained for \
             {trained}: longer texts may lose their thread"
        ));
    }
    Ok((file, header))
}

/// Reads a section that stays in memory into its region.
fn section<'r>(
    arena: &'r Arena<'_>,
    file: &File,
    header: &Header,
    options: &BootOptions,
    kind: SectionKind,
) -> Result<&'r [u8], Fault> {
    let region = match kind {
        SectionKind::Resident => RegionId::Resident,
        _ => RegionId::Tokenizer,
    };
    let (path, section, bytes) = (options.image, header.section(kind), arena.carve(region));
    file.read_at(section.offset, bytes).map_err(|error| Fault::ImageRead { path, error })?;
    if options.kernels.crc32c(0, bytes) != section.crc {
        return Err(Fault::ImageSection { path, section: kind.name() });
    }
    Ok(bytes)
}

struct Booting<'b> {
    plan: &'b Plan,
    options: &'b BootOptions,
    arena: &'b Arena<'b>,
    header: &'b Header,
    started: u64,
}

impl Booting<'_> {
    fn start<R>(
        &self,
        file: File,
        resident: &[u8],
        tokenizer: &[u8],
        then: impl FnOnce(&mut Session<'_>) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let (plan, arena, kernels) = (self.plan, self.arena, self.options.kernels);
        let (shape, types) = (plan.inputs.shape, plan.inputs.numerics.types);
        let cells: &[RequestCell] = arena.carve(RegionId::Requests);
        let states = arena.carve(RegionId::StagingStates);
        let staging = Staging::new(arena.carve(RegionId::Staging), states);
        let map = RecordMap::new(self.header, &shape, &types);
        let larder = Larder::new(file, map, kernels.crc32c_fn(), cells, staging);
        let team = Team::new(self.options.threads);
        let weights = Weights::new(resident, shape, types);
        self.check_units(&weights)?;
        let rope = arena.carve(RegionId::Rope);
        let factor = self.header.constants().attention_factor;
        fill_rope_table(weights.rope_frequencies(), factor, rope);
        let slots = arena.carve(RegionId::Slots);
        let cache = Cache::new(arena.carve(RegionId::Table), arena.carve(RegionId::Owners));
        let dims = Dimensions {
            hidden: shape.hidden as usize,
            experts: shape.experts as u32,
            ff: shape.ff as u32,
            activation: shape.activation,
            weight: types.records,
            down: types.down,
            record: types.record(&shape),
            slot_bytes: plan.slot_bytes as usize,
        };
        let layers = shape.layers as u16;
        let held = plan.slot_count as u32 / u32::from(layers);
        let streaming = plan.streams.then_some(Streaming { layers, held });
        let context = plan.inputs.context_tokens as usize;
        let (keys, values) = (arena.carve(RegionId::Keys), arena.carve(RegionId::Values));
        let model = Model::new(Parts {
            kernels,
            lead: team.lead(),
            shape,
            constants: self.header.constants(),
            embedding: types.embedding,
            weights,
            rope,
            kv: KvCache::new(keys, values, plan.inputs.numerics.kv, &shape, context),
            scratch: arena.scratch(),
            embedding_row: arena.carve(RegionId::EmbeddingRow),
            workshop: Workshop::new(kernels, &larder, cache, slots, dims, streaming),
        });
        let tokenizer = Tokenizer::new(tokenizer)?;
        let (wanted, found) = (shape.vocab, u64::from(tokenizer.token_count()));
        if found > wanted {
            let error = HeaderError::Mismatch { name: "vocab", wanted, found };
            return Err(Fault::Image { path: self.options.image, error });
        }
        let mut session = Session {
            model,
            tokenizer,
            tokens: arena.carve(RegionId::Tokens),
            cached: 0,
            shows_progress: false,
            chunk: plan.inputs.prefill_tokens as usize,
            header: self.header,
            boot_ns: 0,
        };
        self.run(&larder, &team, &mut session, then)
    }

    /// The arithmetic of the down projection is proven for units of this range only.
    fn check_units(&self, weights: &Weights<'_>) -> Result<(), Fault> {
        for layer in 0..self.plan.inputs.shape.layers as usize {
            let found = weights.down_unit(layer);
            if !UNIT_EXPONENTS.contains(&found) {
                return Err(Fault::DownUnit { path: self.options.image, layer, found });
            }
        }
        Ok(())
    }

    /// Starts readers and workers, fills the slots, locks, seals, runs `then`, stops the threads.
    fn run<'a, R>(
        &self,
        larder: &Larder<'_>,
        team: &Team,
        session: &mut Session<'a>,
        then: impl FnOnce(&mut Session<'a>) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let device = &self.plan.inputs.device;
        let stacks: &mut [u8] = self.arena.carve(RegionId::Stacks);
        let mut stacks = stacks.chunks_exact_mut(device.stack_bytes as usize);
        let serve_reads = || larder.serve();
        let serve_jobs = || team.serve(|member| self.pin(member));
        scope(|scope| {
            let _stop = StopOnDrop { larder, team };
            let mut spawn = |body| {
                let stack = stacks.next().expect("the plan has a stack for every thread");
                scope.spawn(stack, body).map_err(Fault::Thread)
            };
            for _ in 0..device.readers {
                spawn(&serve_reads)?;
            }
            for _ in 1..self.options.threads {
                spawn(&serve_jobs)?;
            }
            self.pin(0);
            let layers = self.plan.inputs.shape.layers as u16;
            session.model.workshop.warm(layers).map_err(ModelError::from)?;
            self.seal()?;
            session.boot_ns = now() - self.started;
            then(session)
        })
    }

    fn pin(&self, member: usize) {
        if self.plan.inputs.device.pin && !pin_to_core(member) {
            Stderr::line(format_args!("ganglion: thread {member} can't be pinned to a core"));
        }
    }

    /// Locks memory as the plan asks, then ends everything that could get more.
    fn seal(&self) -> Result<(), Fault> {
        start::touch_stack();
        let lock = self.plan.inputs.lock;
        if lock != Lock::Off
            && let Err(error) = lock_all(self.plan.total_bytes())
        {
            if lock == Lock::Demand {
                return Err(Fault::Lock(error));
            }
            Stderr::line(format_args!("ganglion: {error}"));
        }
        self.arena.seal();
        if self.options.prove_seal {
            forbid_memory_calls().map_err(Fault::Seal)?;
        }
        let (used, budget) = (footprint().total(), self.plan.inputs.budget_bytes);
        if self.options.enforce_budget && used > budget {
            let fault = Fault::OverBudget { used, budget };
            if lock == Lock::Demand {
                return Err(fault);
            }
            Stderr::line(format_args!("ganglion: {fault}"));
        }
        Ok(())
    }
}

/// Lets every thread leave, however the session ends.
struct StopOnDrop<'a, 'l> {
    larder: &'a Larder<'l>,
    team: &'a Team,
}

impl Drop for StopOnDrop<'_, '_> {
    fn drop(&mut self) {
        self.larder.stop();
        self.team.dismiss();
    }
}
