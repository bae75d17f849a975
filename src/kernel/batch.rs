//! Many tokens at a time: their vectors, and a matrix of results that a team fills.
//!
//! Used by prefill. Invariant: each result has the bits of the kernel for one token.

use super::Activation;
use super::accumulator::accumulator_len;
use crate::image::geometry::{padded_groups, padded_len};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Neurons that a batched down kernel takes at a time.
pub(super) const CHUNK_NEURONS: usize = 256;
/// Bytes of a batched down kernel's tile of widened weights.
pub(super) const TILE_BYTES: usize = 32 << 10;
/// Tokens that it takes at a time.
pub(super) const TOKEN_BLOCK: usize = 6;
/// Bytes of a token's factors, and of the flag behind them.
pub(super) const FACTOR_BYTES: usize = 4 * CHUNK_NEURONS;

/// Codes from one token of a batch of vectors of `len` values to the next: `padded_len`, and a gap
/// where tokens would share too few sets of a first-level cache.
pub const fn batch_code_stride(len: usize) -> usize {
    let padded = padded_len(len as u64) as usize;
    if padded.is_multiple_of(2048) { padded + 512 } else { padded }
}

/// Most tokens of a batch.
pub const BATCH_TOKENS_MAX: usize = 512;

/// All lines of a batch, in order.
pub static LINES: [u32; BATCH_TOKENS_MAX] = {
    let mut lines = [0; BATCH_TOKENS_MAX];
    let mut line = 0;
    while line < lines.len() {
        lines[line] = line as u32;
        line += 1;
    }
    lines
};

/// Vectors that rows are multiplied with, one a token: some lines of a matrix whose parts are those
/// of an [`Activation`], line after line.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub(super) len: usize,
    lines: usize,
    pub(super) values: &'a [f32],
    pub(super) codes: &'a [i8],
    pub(super) scales: &'a [f32],
    /// Line of each token.
    pub(super) at: &'a [u32],
}

impl<'a> Batch<'a> {
    /// All of `lines` vectors of `len` values. A line has `padded_len(len)` values with a zero
    /// tail, [`batch_code_stride`] codes of which it uses `padded_len(len)`, and
    /// `padded_groups(len)` scales; either kind may be empty.
    pub fn new(
        len: usize,
        lines: usize,
        values: &'a [f32],
        codes: &'a [i8],
        scales: &'a [f32],
    ) -> Batch<'a> {
        let (padded, groups) =
            (padded_len(len as u64) as usize, padded_groups(len as u64) as usize);
        assert!(values.is_empty() || values.len() == lines * padded);
        assert!(codes.is_empty() || codes.len() == lines * batch_code_stride(len));
        assert!(codes.is_empty() == scales.is_empty());
        assert!(scales.is_empty() || scales.len() == lines * groups);
        Batch { len, lines, values, codes, scales, at: &LINES[..lines] }
    }

    /// The vectors of some lines, in the order of `at`.
    pub fn of(&self, at: &'a [u32]) -> Batch<'a> {
        assert!(at.iter().all(|&line| (line as usize) < self.lines));
        Batch { at, ..*self }
    }

    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.at.len()
    }

    /// The vector of one token.
    pub fn token(&self, token: usize) -> Activation<'a> {
        let line = self.at[token] as usize;
        let padded = padded_len(self.len as u64) as usize;
        let groups = padded_groups(self.len as u64) as usize;
        let codes = part(self.codes, line, batch_code_stride(self.len));
        let used = if codes.is_empty() { 0 } else { padded };
        let (values, scales) = (part(self.values, line, padded), part(self.scales, line, groups));
        Activation::new(self.len, values, &codes[..used], scales)
    }
}

/// The elements of a line, of which each has `each`; nothing of a part that is not there.
fn part<T>(all: &[T], line: usize, each: usize) -> &[T] {
    if all.is_empty() { all } else { &all[line * each..][..each] }
}

/// A matrix `[token][column]` whose columns are claimed, part by part, by the members of a team.
#[derive(Debug)]
pub struct Sheet<'a> {
    base: *mut f32,
    tokens: usize,
    width: usize,
    part: usize,
    next: AtomicUsize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: it only hands out columns, each of them once.
unsafe impl Sync for Sheet<'_> {}

impl<'a> Sheet<'a> {
    /// A matrix over `out`, rows of `width` columns; each claim is of `part` columns.
    pub fn new(out: &'a mut [f32], width: usize, part: usize) -> Sheet<'a> {
        assert!(width > 0 && part > 0 && out.len().is_multiple_of(width));
        let tokens = out.len() / width;
        let next = AtomicUsize::new(0);
        Sheet { base: out.as_mut_ptr(), tokens, width, part, next, lifetime: PhantomData }
    }

    /// The next columns that nobody has claimed, or `None` at the end.
    pub fn claim(&self) -> Option<Columns<'_>> {
        let first = self.next.fetch_add(self.part, Ordering::Relaxed);
        (first < self.width).then(|| Columns {
            // SAFETY: `first` is a column of the first token.
            base: unsafe { self.base.add(first) },
            tokens: self.tokens,
            stride: self.width,
            first,
            count: self.part.min(self.width - first),
            lifetime: PhantomData,
        })
    }
}

/// Some columns of a [`Sheet`], for all its tokens.
#[derive(Debug)]
pub struct Columns<'a> {
    pub(super) base: *mut f32,
    pub(super) tokens: usize,
    pub(super) stride: usize,
    first: usize,
    count: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

impl<'a> Columns<'a> {
    /// All columns of `out`, rows of `width` columns.
    pub fn all(out: &'a mut [f32], width: usize) -> Columns<'a> {
        assert!(width > 0 && out.len().is_multiple_of(width));
        let (base, tokens) = (out.as_mut_ptr(), out.len() / width);
        Columns { base, tokens, stride: width, first: 0, count: width, lifetime: PhantomData }
    }

    /// Index of the first column in the sheet.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Columns.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The columns of one token.
    pub fn token(&mut self, token: usize) -> &mut [f32] {
        assert!(token < self.tokens);
        // SAFETY: within the sheet; these columns were handed out once, and `self` is borrowed.
        unsafe { core::slice::from_raw_parts_mut(self.base.add(token * self.stride), self.count) }
    }
}

/// A chunk of neurons for a chunk of tokens.
#[derive(Clone, Copy, Debug)]
pub struct DownBatch<'a> {
    /// Down columns, one a neuron.
    pub columns: &'a [&'a [u8]],
    /// Activation of neuron i for a token at `token * stride + i`.
    pub activations: &'a [f32],
    /// Floats from one token's activations to the next.
    pub stride: usize,
    /// Line of sums of each token.
    pub at: &'a [u32],
}

/// Bytes of scratch, at any address, that a batched down sum of `hidden` outputs needs.
pub const fn down_scratch_bytes(hidden: usize, tokens: usize) -> usize {
    let tokens = tokens.next_multiple_of(TOKEN_BLOCK);
    let (batched, single) =
        (TILE_BYTES + 64 + tokens * (FACTOR_BYTES + 1), 64 + 8 * accumulator_len(hidden));
    if batched > single { batched } else { single }
}
