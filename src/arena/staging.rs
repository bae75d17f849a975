//! Staging: the buffers that reads land in, handed between readers and workers by a state word.
//!
//! ```text
//! free --fill--> filling --ready--> ready(0) --view--> ready(n views) --drop--> ...
//!      --release--> free
//! ```
#![allow(unsafe_code)] // buffers shared by state

use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const FILLING: u32 = 1;
const READY: u32 = 2;

/// A fixed set of equal buffers.
pub struct Staging<'a> {
    base: *mut u8,
    buffer_bytes: usize,
    states: &'a [AtomicU32],
    memory: core::marker::PhantomData<&'a mut [u8]>,
}

// SAFETY: the state word of a buffer admits one writer, or any number of readers.
unsafe impl Sync for Staging<'_> {}
// SAFETY: as above; nothing is tied to a thread.
unsafe impl Send for Staging<'_> {}

impl<'a> Staging<'a> {
    /// Cuts `memory` into one buffer a state word.
    pub fn new(memory: &'a mut [u8], states: &'a [AtomicU32]) -> Staging<'a> {
        let buffer_bytes = memory.len() / states.len();
        Staging {
            base: memory.as_mut_ptr(),
            buffer_bytes,
            states,
            memory: core::marker::PhantomData,
        }
    }

    /// Bytes of a buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Takes a free buffer for writing; `None` if it is not free.
    pub fn fill(&self, index: usize) -> Option<Filling<'_>> {
        let state = &self.states[index];
        state.compare_exchange(FREE, FILLING, Ordering::Acquire, Ordering::Relaxed).is_ok().then(
            || {
                // SAFETY: the state was free and is ours now: no other slice of it exists.
                let bytes = unsafe {
                    let first = self.base.add(index * self.buffer_bytes);
                    core::slice::from_raw_parts_mut(first, self.buffer_bytes)
                };
                Filling { bytes, state }
            },
        )
    }

    /// Looks at a ready buffer; `None` if it is not ready.
    pub fn view(&self, index: usize) -> Option<View<'_>> {
        let state = &self.states[index];
        let more = |now| (now >= READY).then_some(now + 1);
        state.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        // SAFETY: ready with our view counted: nobody writes until every view is dropped.
        let bytes = unsafe {
            let first = self.base.add(index * self.buffer_bytes);
            core::slice::from_raw_parts(first, self.buffer_bytes)
        };
        Some(View { bytes, state })
    }

    /// Gives a ready buffer back. Nobody may look at it any more.
    pub fn release(&self, index: usize) {
        let result =
            self.states[index].compare_exchange(READY, FREE, Ordering::AcqRel, Ordering::Relaxed);
        assert!(result.is_ok(), "buffer {index} released in state {result:?}");
    }
}

/// A buffer being written.
pub struct Filling<'a> {
    bytes: &'a mut [u8],
    state: &'a AtomicU32,
}

impl Filling<'_> {
    /// Lets others look at it.
    pub fn ready(self) {
        self.state.store(READY, Ordering::Release);
    }
}

impl Deref for Filling<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for Filling<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

/// A buffer being looked at.
pub struct View<'a> {
    bytes: &'a [u8],
    state: &'a AtomicU32,
}

impl Deref for View<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        self.state.fetch_sub(1, Ordering::Release);
    }
}
