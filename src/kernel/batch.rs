//! Many tokens at a time: their vectors, and a matrix of results that a team fills.
//!
//! Used by prefill. Invariant: each result has the bits of the kernel for one token.

use super::Activation;
use crate::image::geometry::{padded_groups, padded_len};
use crate::plan::scratch;
use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Neurons that a batched down kernel takes at a time.
pub(super) const CHUNK_NEURONS: usize = scratch::BATCH_NEURONS as usize;
/// Bytes of a batched down kernel's tile of widened weights.
pub(super) const TILE_BYTES: usize = scratch::DOWN_TILE_BYTES as usize;
/// Tokens that it takes at a time.
pub(super) const TOKEN_BLOCK: usize = scratch::BATCH_TOKENS as usize;
/// Bytes of a token's factors.
pub(super) const FACTOR_BYTES: usize = scratch::MULTIPLIER_BYTES as usize;

/// Codes from one token of a batch of vectors of `len` values to the next.
pub const fn batch_code_stride(len: usize) -> usize {
    scratch::batch_code_stride(len as u64) as usize
}

/// Most tokens of a batch.
pub const BATCH_TOKENS_MAX: usize = scratch::BATCH_TOKENS_MAX as usize;

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

    /// The lines of `range` as a batch of their own.
    pub fn range(&self, range: Range<usize>) -> Batch<'a> {
        let padded = padded_len(self.len as u64) as usize;
        let groups = padded_groups(self.len as u64) as usize;
        let values = lines(self.values, &range, padded);
        let codes = lines(self.codes, &range, batch_code_stride(self.len));
        Batch::new(self.len, range.len(), values, codes, lines(self.scales, &range, groups))
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
        let line = line..line + 1;
        let codes = lines(self.codes, &line, batch_code_stride(self.len));
        let used = if codes.is_empty() { 0 } else { padded };
        let values = lines(self.values, &line, padded);
        let scales = lines(self.scales, &line, groups);
        Activation::new(self.len, values, &codes[..used], scales)
    }
}

/// The elements of some lines, `each` a line; nothing of a part that is not there.
fn lines<'a, T>(all: &'a [T], range: &Range<usize>, each: usize) -> &'a [T] {
    if all.is_empty() { all } else { &all[range.start * each..range.end * each] }
}

/// A matrix `[token][column]` whose blocks are claimed, one by one, by the members of a team.
#[derive(Debug)]
pub struct Sheet<'a> {
    base: *mut f32,
    tokens: usize,
    width: usize,
    /// Tokens and columns of a block.
    block: (usize, usize),
    next: AtomicUsize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: it only hands out blocks, each of them once.
unsafe impl Sync for Sheet<'_> {}

impl<'a> Sheet<'a> {
    /// A matrix over `out`, rows of `width` columns; each claim is of a block of (tokens, columns).
    pub fn new(out: &'a mut [f32], width: usize, block: (usize, usize)) -> Sheet<'a> {
        assert!(width > 0 && block.0 > 0 && block.1 > 0 && out.len().is_multiple_of(width));
        let tokens = out.len() / width;
        let next = AtomicUsize::new(0);
        Sheet { base: out.as_mut_ptr(), tokens, width, block, next, lifetime: PhantomData }
    }

    /// The next block that nobody has claimed, or `None` at the end. Blocks of the same columns
    /// follow each other.
    pub fn claim(&self) -> Option<Columns<'_>> {
        let claim = self.next.fetch_add(1, Ordering::Relaxed);
        let (tokens, columns) = self.block;
        let down = self.tokens.div_ceil(tokens);
        let (token, first) = (claim % down.max(1) * tokens, claim / down.max(1) * columns);
        (down > 0 && first < self.width).then(|| Columns {
            // SAFETY: `token` and `first` are inside the matrix.
            base: unsafe { self.base.add(token * self.width + first) },
            tokens: tokens.min(self.tokens - token),
            stride: self.width,
            token,
            first,
            count: columns.min(self.width - first),
            lifetime: PhantomData,
        })
    }
}

/// A block of a [`Sheet`]: some columns of some tokens.
#[derive(Debug)]
pub struct Columns<'a> {
    pub(super) base: *mut f32,
    pub(super) tokens: usize,
    pub(super) stride: usize,
    token: usize,
    first: usize,
    count: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

impl<'a> Columns<'a> {
    /// The columns of `range` of `out`, rows of `width` columns.
    pub fn of(out: &'a mut [f32], width: usize, range: Range<usize>) -> Columns<'a> {
        assert!(range.end <= width && range.start < width && out.len().is_multiple_of(width));
        Columns {
            // Nothing is behind it where there are no tokens.
            base: out.as_mut_ptr().wrapping_add(range.start),
            tokens: out.len() / width,
            stride: width,
            token: 0,
            first: range.start,
            count: range.len(),
            lifetime: PhantomData,
        }
    }

    /// Index of the first token in the sheet.
    pub fn first_token(&self) -> usize {
        self.token
    }

    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Index of the first column in the sheet.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Columns.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The columns of one token of the block.
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
    scratch::down_scratch_bytes(hidden as u64, tokens as u64) as usize
}
