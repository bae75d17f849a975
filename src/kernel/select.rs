//! The largest of many values, in one pass.
//!
//! Used by token's sampler. The vector kernel [`Kernels::above`] drops what is no larger than the
//! k-th best so far; the little that is left is sorted out here.

use super::{Kernels, twin};
use bytemuck::{Pod, Zeroable};
use core::cmp::Ordering;

/// Values that are compared with one threshold: their indices fit a corner of the stack.
const CHUNK: usize = 512;
/// Values held, beside twice as many as are wanted, before the worst are dropped.
const SPARE: usize = 64;

/// A token that may come next, or any other value with its index.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct Candidate {
    /// The token.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
}

impl Candidate {
    /// Largest first, lowest id of equals; 0 and -0 are equal.
    pub fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
        (b.logit + 0.0).total_cmp(&(a.logit + 0.0)).then(a.id.cmp(&b.id))
    }
}

/// Room that `top_k` needs for the best `k`.
pub const fn top_k_room(k: usize) -> usize {
    2 * k + SPARE + CHUNK
}

/// The best so far of a pass.
struct Best<'r> {
    room: &'r mut [Candidate],
    held: usize,
    k: usize,
    /// What is no larger can't be among the best any more; `None` while there are fewer than k.
    threshold: Option<f32>,
}

impl Best<'_> {
    /// Takes the values of `x`, the first of which has the index `first`.
    fn add(&mut self, kernels: &Kernels, first: usize, x: &[f32]) {
        let mut found = [0; CHUNK];
        let count = match self.threshold {
            Some(threshold) => kernels.above(x, threshold, &mut found),
            None => twin::pick(x, &mut found, |value| !value.is_nan()),
        };
        let room = &mut self.room[self.held..][..count];
        for (candidate, &index) in room.iter_mut().zip(&found) {
            *candidate = Candidate { id: first as u32 + index, logit: x[index as usize] };
        }
        self.held += count;
        // Dropping is linear in what is held, and at least half of that is new: whatever the order
        // of values, the pass is linear.
        let is_first = self.threshold.is_none() && self.held >= self.k;
        if is_first || self.held >= 2 * self.k + SPARE {
            self.cut();
        }
    }

    /// Keeps the best k.
    fn cut(&mut self) {
        if self.held > self.k {
            self.room[..self.held].select_nth_unstable_by(self.k - 1, Candidate::by_rank);
            self.held = self.k;
        }
        if self.held == self.k {
            let worst = self.room[..self.k].iter().max_by(|a, b| Candidate::by_rank(a, b));
            self.threshold = worst.map(|worst| worst.logit);
        }
    }
}

/// See [`Kernels::top_k`].
pub(super) fn top_k<'r>(
    kernels: &Kernels,
    x: &[f32],
    k: usize,
    room: &'r mut [Candidate],
) -> &'r mut [Candidate] {
    if k == 0 {
        return &mut [];
    }
    let mut best = Best { room, held: 0, k, threshold: None };
    for (index, x) in x.chunks(CHUNK).enumerate() {
        best.add(kernels, index * CHUNK, x);
    }
    best.cut();
    let best = &mut best.room[..best.held];
    best.sort_unstable_by(Candidate::by_rank);
    best
}
