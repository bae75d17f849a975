//! Sizes of the memory that kernels work in beside their operands: the plan gives it, the kernels
//! use it.

use super::solve::THREADS_MAX;
use crate::image::geometry::{GROUP, padded_len, round_up};

/// Most tokens of a prefill chunk.
pub const BATCH_TOKENS_MAX: u64 = 512;
/// Neurons that a batched down kernel takes at a time.
pub const BATCH_NEURONS: u64 = 256;
/// Tokens that it takes at a time.
pub const BATCH_TOKENS: u64 = 3;
/// Bytes of its tile of widened weights.
pub const DOWN_TILE_BYTES: u64 = 32 << 10;
/// Bytes of its multipliers of a token.
pub const MULTIPLIER_BYTES: u64 = 4 * BATCH_NEURONS;
/// Bytes of what it knows of a token's multipliers.
pub const ABOUT_BYTES: u64 = 16;

/// Sums a thread keeps of a down projection: hidden, rounded up to whole groups.
pub const fn accumulator_len(hidden: u64) -> u64 {
    round_up(hidden, GROUP)
}

/// Codes from one token of a batch of vectors of `len` values to the next: `padded_len`, and a gap
/// where tokens would share too few sets of a first-level cache.
pub const fn batch_code_stride(len: u64) -> u64 {
    let padded = padded_len(len);
    if padded.is_multiple_of(2048) { padded + 512 } else { padded }
}

/// Bytes of scratch, at any address, that a batched down sum of `hidden` outputs needs.
pub const fn down_scratch_bytes(hidden: u64, tokens: u64) -> u64 {
    let tokens = round_up(tokens, BATCH_TOKENS);
    // Multipliers of a token and what is known of them; or, token by token, two rows of sums.
    let batched = DOWN_TILE_BYTES + 64 + tokens * (MULTIPLIER_BYTES + ABOUT_BYTES);
    let single = 64 + 8 * accumulator_len(hidden);
    if batched > single { batched } else { single }
}

/// Tokens of a batch that each of `threads` takes, the last ones perhaps fewer.
pub const fn batch_share(tokens: u64, threads: u64) -> u64 {
    tokens.div_ceil(threads)
}

/// Bytes that one thread needs for its share of a batch: gates and ups of [`BATCH_NEURONS`], and
/// the scratch of the down sum.
pub const fn batch_tile_bytes(hidden: u64, share: u64) -> u64 {
    round_up(2 * share * BATCH_NEURONS * 4 + down_scratch_bytes(hidden, share), 64)
}

/// Bytes of all tiles, for `threads` or fewer.
pub const fn batch_tiles_bytes(hidden: u64, tokens: u64, threads: u64) -> u64 {
    assert!(threads <= THREADS_MAX);
    let mut most = 0;
    let mut count = 1;
    while count <= threads {
        let bytes = count * batch_tile_bytes(hidden, batch_share(tokens, count));
        if bytes > most {
            most = bytes;
        }
        count += 1;
    }
    most
}
