//! Tools: the arithmetic of the forward pass, as a table of kernels per instruction set.
//!
//! Used by `cluster`, `model` and `token`, through [`Kernels`]. Invariants: every table gives the
//! same bits as the twin (`twin.rs`), which is the definition of the canonical arithmetic; every
//! method checks its lengths before a kernel runs; nothing allocates, nothing calls libm.
//!
//! The C sources, their names and the arithmetic in short are in `kernels/README.md`.
#![allow(unsafe_code)] // calls into C kernels, each behind a check of lengths and of the CPU

pub mod accumulator;
#[cfg(target_arch = "aarch64")]
mod arm;
mod batch;
mod fast;
mod ffi;
mod isa;
mod kv;
pub mod math;
mod select;
#[cfg(test)]
mod tests;
mod twin;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use accumulator::{Accumulator, DownItem, Overflow, accumulator_len};
pub use batch::{
    BATCH_TOKENS_MAX, Batch, Columns, DownBatch, LINES, Sheet, batch_code_stride,
    down_scratch_bytes,
};
pub use isa::Isa;
pub use kv::{KvView, Q8Rows, quantize_groups};
pub use select::{Candidate, top_k_room};
pub use twin::KEY_BLOCK;

use crate::image::ActivationFn;
use crate::image::geometry::{GROUP, LANES, WeightType, padded_groups, padded_len};
use accumulator::UNIT_EXPONENTS;
use ffi::{AttendQ8, Attends, AttendsQ8, Bodies, Down, Filters, GateUps, Gates, Gemm, Lists, Sums};

/// A vector that rows are multiplied with.
///
/// f16 rows use `values`; q8 and q4 rows use `codes` and `scales`, as [`Kernels::quantize`] writes
/// them. A part that no row needs may be empty.
#[derive(Clone, Copy, Debug)]
pub struct Activation<'a> {
    len: usize,
    values: &'a [f32],
    codes: &'a [i8],
    scales: &'a [f32],
}

impl<'a> Activation<'a> {
    /// A vector of `len` values: `values` and `codes` are `padded_len(len)` long with a zero tail,
    /// `scales` is `padded_groups(len)` long; either kind may be empty.
    pub fn new(len: usize, values: &'a [f32], codes: &'a [i8], scales: &'a [f32]) -> Self {
        let (padded, groups) = (padded_len(len as u64), padded_groups(len as u64));
        assert!(values.is_empty() || values.len() as u64 == padded);
        assert!(codes.is_empty() || codes.len() as u64 == padded);
        assert!(codes.is_empty() == scales.is_empty());
        assert!(scales.is_empty() || scales.len() as u64 == groups);
        Activation { len, values, codes, scales }
    }
}

/// Memory that will be needed soon: a kernel asks for it little by little while it computes.
#[derive(Clone, Copy, Debug)]
pub struct Soon<'a> {
    places: &'a [&'a [u8]],
    bytes: usize,
    first: usize,
    last: usize,
}

impl<'a> Soon<'a> {
    /// Nothing.
    pub const NOTHING: Soon<'static> = Soon { places: &[], bytes: 0, first: 0, last: 0 };

    /// The first `bytes` of each of `places`, in two parts: what the gates' and ups' pass over as
    /// many records should ask for, and what the down columns' should.
    pub fn in_two(places: &'a [&'a [u8]], bytes: usize) -> (Soon<'a>, Soon<'a>) {
        assert!(places.len() <= PLACES_MAX);
        let last = places.len() * bytes.div_ceil(LINE_BYTES);
        // Measured on two threads: asking in the longer pass leaves the gates' its own lines.
        let middle = last / 5;
        (
            Soon { places, bytes, first: 0, last: middle },
            Soon { places, bytes, first: middle, last },
        )
    }
}

/// Most places of a [`Soon`], and records of a pass of [`Kernels::gate_up`].
pub const PLACES_MAX: usize = 64;
/// Bytes that a request for memory brings.
const LINE_BYTES: usize = 64;

/// The kernels of one instruction set. Only tables that this machine can run are handed out.
pub struct Kernels {
    isa: Isa,
    /// The C functions, or `None` for the twins.
    bodies: Option<Bodies>,
    /// Where there are none, a list is done row by row.
    lists: Option<Lists>,
    /// Where there are none, gate rows and up rows are two passes.
    gate_ups: Option<GateUps>,
    /// Where there are none, columns go through 32-bit sums.
    sums: Option<Sums>,
    gates: Option<Gates>,
    /// Where there is none, q8 keys and values are the twin's.
    attend_q8: Option<AttendQ8>,
    /// Where there are none, queries are done one by one.
    attends: Option<Attends>,
    attends_q8: Option<AttendsQ8>,
    /// Where there are none, a batch is done token by token.
    gemm: Option<Gemm>,
    down: Option<Down>,
    filters: Option<Filters>,
    crc32c: fn(u32, &[u8]) -> u32,
}

impl Kernels {
    /// A table without C functions.
    const fn none(isa: Isa, crc32c: fn(u32, &[u8]) -> u32) -> Kernels {
        Kernels {
            isa,
            bodies: None,
            lists: None,
            gate_ups: None,
            sums: None,
            gates: None,
            attend_q8: None,
            attends: None,
            attends_q8: None,
            gemm: None,
            down: None,
            filters: None,
            crc32c,
        }
    }

    /// The exact reference, on every machine.
    pub fn twin() -> &'static Kernels {
        &twin::TWIN
    }

    /// The table of `isa`, or `None` if this machine can't run it.
    pub fn of(isa: Isa) -> Option<&'static Kernels> {
        let table = match isa {
            Isa::Twin => &twin::TWIN,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &x86::AVX2,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &x86::AVX512,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &arm::NEON,
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod => &arm::DOTPROD,
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => &arm::I8MM,
            #[allow(unreachable_patterns)] // instruction sets of other architectures
            _ => &twin::TWIN,
        };
        isa.available().then_some(table)
    }

    /// The fastest table of this machine.
    pub fn best() -> &'static Kernels {
        Kernels::of(Isa::best()).unwrap_or(&twin::TWIN)
    }

    /// Instruction set of this table.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Quantises `x` (k values) to `codes` (`padded_len(k)`, interleaved) and one scale for each
    /// group of 32 (`padded_groups(k)`).
    ///
    /// `scale = amax / 127`, `code = round_half_even(x * (127 / amax))`; a group below 2^-100 is
    /// zero. False if a value is not finite: its group is zero then.
    #[must_use]
    pub fn quantize(&self, x: &[f32], codes: &mut [i8], scales: &mut [f32]) -> bool {
        assert!(codes.len() as u64 == padded_len(x.len() as u64));
        assert!(scales.len() as u64 == padded_groups(x.len() as u64));
        match &self.bodies {
            None => twin::quantize(x, codes, scales),
            // SAFETY: lengths are checked above; tables are only handed out where they can run.
            Some(bodies) => unsafe { fast::quantize(bodies, x, codes, scales) },
        }
    }

    /// Dot product of `row` (`ty.row_bytes(x.len())` bytes) with `x`.
    pub fn dot(&self, ty: WeightType, row: &[u8], x: Activation<'_>) -> f32 {
        let mut out = [0.0];
        self.matvec(ty, row, row.len(), x, &mut out);
        out[0]
    }

    /// `out[i] = row i . x` for `out.len()` rows, `row_stride` bytes apart.
    pub fn matvec(
        &self,
        ty: WeightType,
        rows: &[u8],
        row_stride: usize,
        x: Activation<'_>,
        out: &mut [f32],
    ) {
        let Some(last) = out.len().checked_sub(1) else { return };
        let row_bytes = ty.row_bytes(x.len as u64) as usize;
        assert!(row_bytes <= row_stride && rows.len() >= last * row_stride + row_bytes);
        match ty {
            WeightType::F16 => assert!(!x.values.is_empty()),
            WeightType::Q8 | WeightType::Q4 => assert!(!x.codes.is_empty()),
        }
        match &self.bodies {
            None => twin::matvec(ty, rows, row_stride, x, out),
            // SAFETY: lengths are checked above and in `Activation::new`; the CPU has this table.
            Some(bodies) => unsafe { fast::matvec(bodies, ty, rows, row_stride, x, out) },
        }
    }

    /// Gates and ups of `records`, at most [`PLACES_MAX`]: each starts with its gate row, `up`
    /// bytes behind it is its up row. Same bits as [`Kernels::dot`].
    #[allow(clippy::too_many_arguments)] // records, what they are, what follows, two results
    pub fn gate_up(
        &self,
        ty: WeightType,
        records: &[&[u8]],
        up: usize,
        soon: Soon<'_>,
        x: Activation<'_>,
        gates: &mut [f32],
        ups: &mut [f32],
    ) {
        assert!(gates.len() == records.len() && ups.len() == records.len());
        assert!(records.len() <= PLACES_MAX);
        if records.is_empty() {
            return;
        }
        let row_bytes = ty.row_bytes(x.len as u64) as usize;
        assert!(records.iter().all(|record| record.len() >= up + row_bytes));
        match &self.gate_ups {
            // SAFETY: lengths are checked above and in `Activation::new`; the CPU has this table.
            Some(kernels) if ty != WeightType::F16 && !x.codes.is_empty() => unsafe {
                fast::gate_up(kernels, ty, records, up, soon, x, gates, ups);
            },
            _ => {
                for ((record, gate), up_value) in records.iter().zip(gates).zip(ups) {
                    *gate = self.dot(ty, &record[..row_bytes], x);
                    *up_value = self.dot(ty, &record[up..up + row_bytes], x);
                }
            }
        }
    }

    /// `out[i] = rows[i] . x`, for rows that lie anywhere; each holds `ty.row_bytes(x.len())`.
    pub fn rows(&self, ty: WeightType, rows: &[&[u8]], x: Activation<'_>, out: &mut [f32]) {
        assert!(rows.len() == out.len());
        let row_bytes = ty.row_bytes(x.len as u64) as usize;
        assert!(rows.iter().all(|row| row.len() >= row_bytes));
        let has = if ty == WeightType::F16 { x.values.len() } else { x.codes.len() };
        assert!(has > 0);
        match &self.lists {
            // SAFETY: lengths are checked above and in `Activation::new`; the CPU has this table.
            Some(lists) => unsafe { fast::rows(lists, ty, rows, x, out) },
            None => {
                for (row, out) in rows.iter().zip(out) {
                    *out = self.dot(ty, row, x);
                }
            }
        }
    }

    /// Activations of neurons from their gates and ups, into `gate`: relu, [`math::silu`] or
    /// [`math::gelu`] of the gate times up, or times relu of up. A NaN goes on.
    pub fn gate(&self, activation: ActivationFn, gate: &mut [f32], up: &[f32]) {
        assert!(gate.len() == up.len());
        match &self.gates {
            // SAFETY: lengths are checked above; the CPU has this table.
            Some(gates) => unsafe { fast::gate(gates, activation, gate, up) },
            None => twin::gate(activation, gate, up),
        }
    }

    /// For every vector of `batch`: column i of its line of `out` becomes row i of `rows`,
    /// `row_stride` bytes apart, times the vector. Same bits as [`Kernels::dot`].
    pub fn gemm(
        &self,
        ty: WeightType,
        rows: &[u8],
        row_stride: usize,
        batch: Batch<'_>,
        out: &mut Columns<'_>,
    ) {
        assert!(out.tokens == batch.tokens());
        let Some(last) = out.count().checked_sub(1) else { return };
        let row_bytes = ty.row_bytes(batch.len as u64) as usize;
        assert!(row_bytes <= row_stride && rows.len() >= last * row_stride + row_bytes);
        let has = if ty == WeightType::F16 { batch.values.len() } else { batch.codes.len() };
        assert!(batch.tokens() == 0 || has > 0);
        match &self.gemm {
            // SAFETY: lengths are checked above and in `Batch::new`; the CPU has this table.
            Some(gemm) => unsafe { fast::gemm(gemm, ty, rows, row_stride, batch, out) },
            None => {
                for token in 0..batch.tokens() {
                    self.matvec(ty, rows, row_stride, batch.token(token), out.token(token));
                }
            }
        }
    }

    /// Adds each item's activation times its down column to `sums`, in units of
    /// 2^`unit_exponent` (-60..=0).
    ///
    /// After an error the sums are not usable until they are cleared.
    pub fn accumulate(
        &self,
        ty: WeightType,
        unit_exponent: i32,
        items: &[DownItem<'_>],
        soon: Soon<'_>,
        sums: &mut Accumulator<'_>,
    ) -> Result<(), Overflow> {
        assert!(UNIT_EXPONENTS.contains(&unit_exponent));
        let column_bytes = ty.column_bytes(sums.hidden() as u64) as usize;
        assert!(items.iter().all(|item| item.column.len() == column_bytes));
        match (&self.bodies, &self.sums) {
            // SAFETY: lengths are checked above and in `Accumulator::new`; the CPU has this table.
            (_, Some(kernels)) if ty != WeightType::F16 => unsafe {
                fast::accumulate_wide(kernels, ty, unit_exponent, items, soon, sums)
            },
            // SAFETY: as above.
            (Some(bodies), _) => unsafe {
                fast::accumulate(bodies, ty, unit_exponent, items, sums)
            },
            (None, _) => twin::accumulate(ty, unit_exponent, items, sums),
        }
    }

    /// Adds the down contributions of many neurons to the sums of many tokens: lines
    /// `[accumulator_len(hidden)]` of `sums`, the integers that [`Kernels::accumulate`] gives.
    /// `scratch` holds [`down_scratch_bytes`].
    ///
    /// The first overflow is found by chunks of neurons, then tokens. After an error the sums are
    /// not usable.
    pub fn accumulate_batch(
        &self,
        ty: WeightType,
        unit_exponent: i32,
        hidden: usize,
        batch: DownBatch<'_>,
        scratch: &mut [u8],
        sums: &mut [i64],
    ) -> Result<(), Overflow> {
        let (neurons, tokens, length) =
            (batch.columns.len(), batch.at.len(), accumulator_len(hidden));
        assert!(UNIT_EXPONENTS.contains(&unit_exponent));
        let column_bytes = ty.column_bytes(hidden as u64) as usize;
        assert!(batch.columns.iter().all(|column| column.len() == column_bytes));
        assert!(batch.at.iter().all(|&line| sums.len() >= (line as usize + 1) * length));
        assert!(scratch.len() >= down_scratch_bytes(hidden, tokens));
        let Some(last) = tokens.checked_sub(1) else { return Ok(()) };
        assert!(neurons <= batch.stride);
        assert!(batch.activations.len() >= last * batch.stride + neurons);
        match &self.down {
            // SAFETY: lengths are checked above; the CPU has this table.
            Some(down) if ty != WeightType::F16 => unsafe {
                fast::accumulate_batch(down, ty, unit_exponent, hidden, batch, scratch, sums)
            },
            _ => self.accumulate_tokens(ty, unit_exponent, hidden, batch, scratch, sums),
        }
    }

    /// A batch, token by token.
    fn accumulate_tokens(
        &self,
        ty: WeightType,
        unit_exponent: i32,
        hidden: usize,
        batch: DownBatch<'_>,
        scratch: &mut [u8],
        sums: &mut [i64],
    ) -> Result<(), Overflow> {
        const ITEMS: usize = 32;
        let length = accumulator_len(hidden);
        let skipped = scratch.as_ptr().align_offset(align_of::<i32>());
        let rows: &mut [i32] = bytemuck::cast_slice_mut(&mut scratch[skipped..][..8 * length]);
        let (low, high) = rows.split_at_mut(length);
        for (token, &line) in batch.at.iter().enumerate() {
            let sums = &mut sums[line as usize * length..][..length];
            let mut sums = Accumulator::over(hidden, low, high, sums);
            let activations = &batch.activations[token * batch.stride..][..batch.columns.len()];
            let chunks = batch.columns.chunks(ITEMS).zip(activations.chunks(ITEMS));
            for (index, (columns, activations)) in chunks.enumerate() {
                let items: heapless::Vec<DownItem<'_>, ITEMS> = columns
                    .iter()
                    .zip(activations)
                    .map(|(&column, &activation)| DownItem { activation, column })
                    .collect();
                self.accumulate(ty, unit_exponent, &items, Soon::NOTHING, &mut sums)
                    .map_err(|overflow| Overflow { item: index * ITEMS + overflow.item })?;
            }
            sums.flush();
        }
        Ok(())
    }

    /// Attention of one query head over `n >= 1` cached keys and values of its head; `q` and `out`
    /// have head_dim values, a multiple of 16, or of 32 where keys and values are q8. Softmax runs
    /// over blocks of [`KEY_BLOCK`] keys; the first `unseen` of them, less than a block, are as if
    /// they were not there.
    pub fn attend(&self, q: &[f32], kv: KvView<'_>, unseen: usize, scale: f32, out: &mut [f32]) {
        assert!(!q.is_empty() && (q.len() as u64).is_multiple_of(LANES) && out.len() == q.len());
        assert!(kv.rows(q.len()).is_some_and(|rows| rows > unseen) && unseen < KEY_BLOCK);
        let q8 = self.attend_q8.as_ref();
        match &self.bodies {
            None => twin::attend(q, kv, unseen, scale, out),
            // SAFETY: lengths are checked above; the CPU has this table.
            Some(bodies) => unsafe { fast::attend(bodies, q8, q, kv, unseen, scale, out) },
        }
    }

    /// Attention of the query heads of one key-value head at several positions in a row, each over
    /// the keys up to its own: what [`Kernels::attend`] gives for each.
    ///
    /// `out`'s columns are the heads' `head_dim` values, head after head, its tokens the positions.
    /// `q` is laid out alike, `q_stride` floats from one position to the next. `kv` holds the keys
    /// that the last position sees; each position before it sees one less.
    pub fn attend_block(
        &self,
        q: &[f32],
        q_stride: usize,
        head_dim: usize,
        kv: KvView<'_>,
        scale: f32,
        out: &mut Columns<'_>,
    ) {
        let (positions, width) = (out.tokens, out.count());
        assert!(head_dim > 0 && (head_dim as u64).is_multiple_of(LANES));
        assert!(positions > 0 && width.is_multiple_of(head_dim) && width <= q_stride);
        assert!(q.len() >= (positions - 1) * q_stride + width);
        let keys = kv.rows(head_dim).unwrap_or(0);
        assert!(keys >= positions);
        match (&self.attends, &self.attends_q8, kv) {
            // SAFETY: lengths are checked above; the CPU has this table.
            (_, Some(attends), KvView::Q8 { keys, values }) => unsafe {
                fast::attend_block_q8(attends, q, q_stride, head_dim, (keys, values), scale, out);
            },
            // SAFETY: as above.
            (Some(attends), _, KvView::F32 { .. } | KvView::F16 { .. }) => unsafe {
                fast::attend_block(attends, q, q_stride, head_dim, kv, scale, out);
            },
            _ => {
                for position in 0..positions {
                    let seen = kv.first((keys - positions + 1 + position) * head_dim);
                    let queries = q[position * q_stride..][..width].chunks_exact(head_dim);
                    let heads = out.token(position).chunks_exact_mut(head_dim);
                    for (q, out) in queries.zip(heads) {
                        self.attend(q, seen, 0, scale, out);
                    }
                }
            }
        }
    }

    /// Replaces each value by its [`math::exp`].
    pub fn exp(&self, x: &mut [f32]) {
        match &self.bodies {
            None => twin::exp(x),
            // SAFETY: one slice; the CPU has this table.
            Some(bodies) => unsafe { fast::exp(bodies, x) },
        }
    }

    /// `out = x / sqrt(mean(x^2) + eps) * weight`.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert!(!x.is_empty() && weight.len() == x.len() && out.len() == x.len());
        match &self.bodies {
            None => twin::rms_norm(x, weight, eps, out),
            // SAFETY: lengths are checked above; the CPU has this table.
            Some(bodies) => unsafe { fast::rms_norm(bodies, x, weight, eps, out) },
        }
    }

    /// Rotates the pairs (x[0], x[1]), (x[2], x[3]) ... of one head; `cos_sin` holds a (cos, sin)
    /// for each pair.
    pub fn rope(&self, x: &mut [f32], cos_sin: &[f32]) {
        assert!(x.len().is_multiple_of(2) && cos_sin.len() == x.len());
        match &self.bodies {
            None => twin::rope(x, cos_sin),
            // SAFETY: lengths are checked above; the CPU has this table.
            Some(bodies) => unsafe { fast::rope(bodies, x, cos_sin) },
        }
    }

    /// `x += y`.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        assert!(x.len() == y.len());
        match &self.bodies {
            None => twin::add(x, y),
            // SAFETY: lengths are checked above; the CPU has this table.
            Some(bodies) => unsafe { fast::add(bodies, x, y) },
        }
    }

    /// Bits of the half floats nearest to `x`, ties to even.
    pub fn to_f16(&self, x: &[f32], out: &mut [u16]) {
        assert!(x.len() == out.len());
        match &self.bodies {
            None => twin::to_f16(x, out),
            // SAFETY: lengths are checked above; the CPU has this table.
            Some(bodies) => unsafe { fast::to_f16(bodies, x, out) },
        }
    }

    /// Index of the largest value, the lowest one of equals; NaN never wins. `None` if there is
    /// nothing but NaN.
    pub fn argmax(&self, x: &[f32]) -> Option<usize> {
        match &self.bodies {
            None => twin::argmax(x),
            // SAFETY: one slice; the CPU has this table.
            Some(bodies) => unsafe { fast::argmax(bodies, x) },
        }
    }

    /// Indices of the values greater than `threshold`, ascending, into the front of `out`, which is
    /// as long as `x`; their count. What is behind them is anything; NaN is never greater.
    pub fn above(&self, x: &[f32], threshold: f32, out: &mut [u32]) -> usize {
        assert!(out.len() >= x.len() && u32::try_from(x.len()).is_ok());
        match &self.filters {
            // SAFETY: lengths are checked above; the CPU has this table.
            Some(filters) => unsafe { fast::above(filters, x, threshold, out) },
            None => twin::pick(x, out, |value| value > threshold),
        }
    }

    /// The `k` largest values with their indices, largest first, the lower index of equals; fewer
    /// if `x` has fewer that are numbers. One pass; `room` holds [`top_k_room`] of `k`.
    pub fn top_k<'r>(&self, x: &[f32], k: usize, room: &'r mut [Candidate]) -> &'r mut [Candidate] {
        assert!(room.len() >= top_k_room(k) && u32::try_from(x.len()).is_ok());
        select::top_k(self, x, k, room)
    }

    /// CRC-32C of `bytes`; `seed` is 0, or the value of the bytes before.
    pub fn crc32c(&self, seed: u32, bytes: &[u8]) -> u32 {
        (self.crc32c)(seed, bytes)
    }

    /// The checksum as a plain function, as [`crate::image::tag`] takes it.
    pub fn crc32c_fn(&self) -> fn(u32, &[u8]) -> u32 {
        self.crc32c
    }
}

/// Writes a row's `out.len()` weights as f32, scale times code: for embedding rows.
pub fn dequantize_row(ty: WeightType, row: &[u8], out: &mut [f32]) {
    assert!(row.len() as u64 >= ty.row_bytes(out.len() as u64));
    let groups = padded_groups(out.len() as u64) as usize;
    for (index, out) in out.iter_mut().enumerate() {
        *out = match ty {
            WeightType::F16 => twin::f16_at(row, index),
            WeightType::Q8 | WeightType::Q4 => {
                let group = index / GROUP as usize;
                let scale = twin::row_scale(ty, row, groups, group);
                scale * twin::row_code(ty, row, groups, index) as f32
            }
        };
    }
}
