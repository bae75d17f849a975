//! A layer's network for many tokens: each member of the team takes a share of the tokens through
//! all records, so that its sums are its own.
//!
//! Weights are used where they lie, in slots or staging, and the cache is not touched: after a
//! prompt it holds what it held before. Invariant: each token's output has the bits of
//! [`Workshop::run`].

use super::records::{Records, Shelf};
use super::wave::WaveCursor;
use super::{Chosen, ClusterError, GateUpBias, Streaming, Workshop};
use crate::kernel::{
    BATCH_TOKENS_MAX, Batch, Columns, DownBatch, Kernels, accumulator, accumulator_len,
};
use crate::plan::THREADS_MAX;
use crate::plan::scratch::{BATCH_NEURONS, batch_share, batch_tile_bytes};
use crate::predictor::Predictor;
use crate::storage::Landed;
use crate::sys::Lead;

/// Neurons whose gates and ups are in the tiles at a time.
const BLOCK: usize = BATCH_NEURONS as usize;

/// The input of a layer's network for many tokens.
#[derive(Clone, Copy)]
pub struct BatchInput<'x> {
    /// Layer.
    pub layer: u16,
    /// Normalised residual stream of each token.
    pub x: Batch<'x>,
    /// Experts that run, as many for each token, token after token.
    pub choices: &'x [Chosen],
    /// Of a network without experts.
    pub bias: GateUpBias<'x>,
    /// The layer's down unit is 2 to this.
    pub unit_exponent: i32,
}

/// Memory of a batch.
pub struct BatchMemory<'m> {
    /// i64[tokens][accumulator_len(hidden)].
    pub sums: &'m mut [i64],
    /// A tile for each thread's share.
    pub tiles: &'m mut [u8],
}

/// One thread's tokens, and what it needs for them.
struct Share<'m> {
    /// Experts of each token.
    choices: &'m [Chosen],
    x: Batch<'m>,
    sums: &'m mut [i64],
    gates: &'m mut [f32],
    ups: &'m mut [f32],
    scratch: &'m mut [u8],
    out: &'m mut [f32],
    /// The first thing that went wrong.
    fault: Option<ClusterError>,
}

type Shares<'m> = heapless::Vec<Share<'m>, { THREADS_MAX as usize }>;

impl<'m> Share<'m> {
    /// Cuts a batch into a share for each of `threads`; the last ones may be empty.
    fn team(
        threads: usize,
        hidden: usize,
        input: &BatchInput<'m>,
        memory: BatchMemory<'m>,
        out: &'m mut [f32],
    ) -> Shares<'m> {
        let tokens = input.x.tokens();
        let used = input.choices.len() / tokens;
        let share = batch_share(tokens as u64, threads as u64);
        let tile = batch_tile_bytes(hidden as u64, share) as usize;
        let share = share as usize;
        let (mut sums, mut tiles, mut out) = (memory.sums, memory.tiles, out);
        (0..threads)
            .map(|member| {
                let first = (member * share).min(tokens);
                let count = share.min(tokens - first);
                let (gates, rest) = take(&mut tiles, tile).split_at_mut(share * BLOCK * 4);
                let (ups, scratch) = rest.split_at_mut(share * BLOCK * 4);
                Share {
                    choices: &input.choices[first * used..(first + count) * used],
                    x: input.x.range(first..first + count),
                    sums: take(&mut sums, count * accumulator_len(hidden)),
                    gates: bytemuck::cast_slice_mut(gates),
                    ups: bytemuck::cast_slice_mut(ups),
                    scratch,
                    out: take(&mut out, count * hidden),
                    fault: None,
                }
            })
            .collect()
    }

    /// The tokens that an expert runs for, and its share of the output of each.
    fn tokens_of(&self, expert: u16) -> Tokens {
        let mut tokens = Tokens { at: heapless::Vec::new(), weights: heapless::Vec::new() };
        let used = self.choices.len() / self.x.tokens().max(1);
        for (token, choices) in self.choices.chunks_exact(used.max(1)).enumerate() {
            if let Some(chosen) = choices.iter().find(|chosen| chosen.expert() == expert) {
                let pushed = (tokens.at.push(token as u32), tokens.weights.push(chosen.weight));
                assert!(pushed == (Ok(()), Ok(())), "a batch is bounded");
            }
        }
        tokens
    }

    /// Turns the sums into the output.
    fn finish(&mut self, unit_exponent: i32, hidden: usize) {
        let sums = self.sums.chunks_exact(accumulator_len(hidden));
        for (out, sums) in self.out.chunks_exact_mut(hidden).zip(sums) {
            out.fill(0.0);
            accumulator::finish(sums, unit_exponent, out);
        }
    }
}

/// The first `count` elements of `rest`, which keeps the others.
fn take<'m, T>(rest: &mut &'m mut [T], count: usize) -> &'m mut [T] {
    let (first, others) = core::mem::take(rest).split_at_mut(count);
    *rest = others;
    first
}

/// Tokens of a share that an expert runs for.
struct Tokens {
    at: heapless::Vec<u32, BATCH_TOKENS_MAX>,
    weights: heapless::Vec<f32, BATCH_TOKENS_MAX>,
}

/// Down columns of the neurons whose gates and ups are in the tiles.
type Block<'b> = heapless::Vec<&'b [u8], BLOCK>;

/// One expert's work, shared by the team.
struct Task<'t> {
    kernels: &'static Kernels,
    shelf: Shelf<'t>,
    layer: u16,
    expert: u16,
    bias: GateUpBias<'t>,
    unit_exponent: i32,
}

impl Task<'_> {
    /// The neurons in slots.
    fn slots(&self, share: &mut Share<'_>) -> Result<(), ClusterError> {
        let first = self.shelf.first_neuron(self.layer, self.expert);
        self.all(share, self.shelf.in_slots(first, 0..self.shelf.dims.ff))
    }

    /// The neurons of the reads that landed.
    fn wave(&self, share: &mut Share<'_>) -> Result<(), ClusterError> {
        for landed in self.shelf.larder.wave() {
            self.landed(share, &landed.map_err(ClusterError::from)?)?;
        }
        Ok(())
    }

    /// The neurons of a read.
    fn landed(&self, share: &mut Share<'_>, landed: &Landed<'_>) -> Result<(), ClusterError> {
        self.all(share, self.shelf.landed(landed))
    }

    fn all<'b>(
        &self,
        share: &mut Share<'_>,
        runs: impl Iterator<Item = Records<'b>>,
    ) -> Result<(), ClusterError> {
        let tokens = share.tokens_of(self.expert);
        if tokens.at.is_empty() {
            return Ok(());
        }
        let mut block = Block::new();
        for run in runs {
            self.add(share, &tokens, &mut block, run)?;
        }
        self.down(share, &tokens, &mut block)
    }

    /// Gates and ups of a run join the block, which is emptied when it is full.
    fn add<'b>(
        &self,
        share: &mut Share<'_>,
        tokens: &Tokens,
        block: &mut Block<'b>,
        run: Records<'b>,
    ) -> Result<(), ClusterError> {
        let dims = &self.shelf.dims;
        let column_bytes = dims.record.column_bytes as usize;
        let x = share.x.of(&tokens.at);
        let mut done = 0;
        while done < run.count {
            let first = block.len();
            let part = run.part(done, (run.count - done).min(BLOCK - first));
            let range = first..first + part.count;
            let bias = self.bias.of(part.neuron, part.count);
            for (rows, bias, tile) in [
                (part.gates(), bias.gate, &mut *share.gates),
                (part.ups(), bias.up, &mut *share.ups),
            ] {
                let tile = &mut tile[..x.tokens() * BLOCK];
                let mut out = Columns::of(tile, BLOCK, range.clone());
                self.kernels.gemm(dims.weight, rows, part.stride(), x, &mut out);
                for line in tile.chunks_exact_mut(BLOCK) {
                    self.kernels.add(&mut line[first..][..bias.len()], bias);
                }
            }
            block.extend((0..part.count).map(|index| &part.down(index)[..column_bytes]));
            done += part.count;
            if block.is_full() {
                self.down(share, tokens, block)?;
            }
        }
        Ok(())
    }

    /// The block's activations times its down columns. The expert's share is part of the
    /// activation.
    fn down(
        &self,
        share: &mut Share<'_>,
        tokens: &Tokens,
        block: &mut Block<'_>,
    ) -> Result<(), ClusterError> {
        let (dims, count) = (&self.shelf.dims, block.len());
        let tiles = share.gates.chunks_exact_mut(BLOCK).zip(share.ups.chunks_exact(BLOCK));
        for ((gates, ups), weight) in tiles.zip(&tokens.weights) {
            let (gates, ups) = (&mut gates[..count], &ups[..count]);
            self.kernels.gate(dims.activation, gates, ups);
            gates.iter_mut().for_each(|gate| *gate *= weight);
        }
        let batch =
            DownBatch { columns: block, activations: share.gates, stride: BLOCK, at: &tokens.at };
        let hidden = dims.hidden;
        let (scratch, sums) = (&mut *share.scratch, &mut *share.sums);
        let done = self.kernels.accumulate_batch(
            dims.down,
            self.unit_exponent,
            hidden,
            batch,
            scratch,
            sums,
        );
        block.clear();
        let (layer, expert) = (self.layer, self.expert);
        done.map_err(|_| ClusterError::Overflow { layer, expert })
    }
}

impl Workshop<'_> {
    /// Writes the network's output for each token of a batch to `out`, f32[tokens][hidden].
    pub fn run_batch(
        &mut self,
        lead: &mut Lead<'_>,
        input: BatchInput<'_>,
        memory: BatchMemory<'_>,
        out: &mut [f32],
    ) -> Result<(), ClusterError> {
        let hidden = self.dims.hidden;
        let mut shares = Share::team(lead.threads(), hidden, &input, memory, out);
        lead.each(&mut shares, &|_, share| share.sums.fill(0));
        for expert in 0..self.dims.experts as u16 {
            if input.choices.iter().any(|chosen| chosen.expert() == expert) {
                match self.streaming {
                    Some(streaming) => self.stream_layer(streaming, lead, &input, &mut shares)?,
                    None => self.run_expert(lead, &input, expert, &mut shares)?,
                }
            }
        }
        lead.each(&mut shares, &|_, share| share.finish(input.unit_exponent, hidden));
        Ok(())
    }

    /// One expert's neurons: those in slots while the first misses fly, then the misses.
    fn run_expert(
        &mut self,
        lead: &mut Lead<'_>,
        input: &BatchInput<'_>,
        expert: u16,
        shares: &mut Shares<'_>,
    ) -> Result<(), ClusterError> {
        let BatchInput { layer, bias, unit_exponent, .. } = *input;
        let chosen = [Chosen::new(expert, 1.0)];
        let mut hits = self.count_hits(layer, expert);
        let mut cursor = WaveCursor::new();
        while !cursor.is_done(&chosen) {
            let (cache, larder, dims) = (&self.cache, self.larder, self.dims);
            let wave = cursor.next(cache, larder, &dims, layer, &chosen, Predictor::None);
            larder.submit(&wave);
            self.count_wave(&wave);
            let shelf = self.shelf();
            let kernels = self.kernels;
            let task = Task { kernels, shelf, layer, expert, bias, unit_exponent };
            if core::mem::take(&mut hits) {
                lead.each(shares, &|_, share| share.fault = task.slots(share).err());
            }
            larder.wait();
            if !wave.is_empty() {
                lead.each(shares, &|_, share| {
                    share.fault = share.fault.or_else(|| task.wave(share).err());
                });
            }
            larder.release();
            if let Some(fault) = shares.iter().find_map(|share| share.fault) {
                return Err(fault);
            }
        }
        Ok(())
    }

    /// A dense layer's neurons: those in slots, then its reads of the cycle.
    fn stream_layer(
        &mut self,
        streaming: Streaming,
        lead: &mut Lead<'_>,
        input: &BatchInput<'_>,
        shares: &mut Shares<'_>,
    ) -> Result<(), ClusterError> {
        let BatchInput { layer, bias, unit_exponent, .. } = *input;
        let end = self.layer_end(streaming, layer);
        let (kernels, shelf, larder) = (self.kernels, self.shelf(), self.larder);
        let task = Task { kernels, shelf, layer, expert: 0, bias, unit_exponent };
        lead.each(shares, &|_, share| share.fault = task.slots(share).err());
        while let Some(taken) = larder.take_below(end) {
            let landed = taken.landed()?;
            lead.each(shares, &|_, share| {
                share.fault = share.fault.or_else(|| task.landed(share, &landed).err());
            });
        }
        match shares.iter().find_map(|share| share.fault) {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    /// Counts an expert's neurons by whether they have a slot; whether one has.
    fn count_hits(&mut self, layer: u16, expert: u16) -> bool {
        let first = self.dims.first_neuron(layer, expert);
        let held = (first..first + self.dims.ff).filter(|&n| self.cache.slot(n).is_some()).count();
        self.counters.hits += held as u64;
        self.counters.misses += u64::from(self.dims.ff) - held as u64;
        held > 0
    }
}
