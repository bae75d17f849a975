//! What the benches share: memory on huge pages, pinned threads under one clock, figures.
#![allow(unsafe_code)] // huge pages, processors

use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes that no cache holds.
pub const DRAM_BYTES: usize = 256 << 20;

/// Zeroed memory on huge pages, never given back.
pub fn pages(bytes: usize) -> &'static mut [u8] {
    mapping(bytes, libc::MADV_HUGEPAGE)
}

/// Zeroed memory at a border of huge pages, with an advice for `madvise`, never given back.
pub fn mapping(bytes: usize, advice: libc::c_int) -> &'static mut [u8] {
    const HUGE: usize = 2 << 20;
    let length = bytes.next_multiple_of(HUGE) + HUGE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh private mapping, aligned within itself, that nobody else knows.
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0);
        assert_ne!(base, libc::MAP_FAILED, "memory for the bench");
        libc::madvise(base, length, advice);
        let start = (base as usize).next_multiple_of(HUGE);
        std::slice::from_raw_parts_mut(start as *mut u8, bytes)
    }
}

/// Bytes whose pairs are half floats of ordinary size.
pub fn weights(bytes: usize) -> &'static [u8] {
    let memory = pages(bytes);
    let mut state = 1u32;
    for byte in memory.iter_mut() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = 0x20 | (state >> 28) as u8;
    }
    memory
}

/// The part of `count` things that a thread takes.
pub fn share(count: usize, thread: usize, threads: usize) -> Range<usize> {
    count * thread / threads..count * (thread + 1) / threads
}

/// Runs `run(thread, threads)` on `threads` threads at once; the time of all.
pub fn time(threads: usize, run: &(dyn Fn(usize, usize) + Sync)) -> Duration {
    let barrier = Barrier::new(threads);
    let spans: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    pin(thread);
                    barrier.wait();
                    let start = Instant::now();
                    run(thread, threads);
                    (start, Instant::now())
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("no case panics")).collect()
    });
    // From the first start to the last end: a thread that was held up counts.
    let start = spans.iter().map(|span| span.0).min().expect("a thread");
    let end = spans.iter().map(|span| span.1).max().expect("a thread");
    end - start
}

/// Keeps this thread on one processor, as the engine's are: left alone, two may share one.
fn pin(thread: usize) {
    // SAFETY: a set of processors on the stack, for the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(thread, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// The middle one of `values`; of an even count the larger of the two.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// A median and its range.
pub struct Figure {
    /// The middle one.
    pub median: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Figure {
    /// Of at least one value.
    pub fn of(values: &[f64]) -> Figure {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        Figure { median: median(values), least, most }
    }

    /// With one digit behind the point.
    pub fn text(&self) -> String {
        format!("{:.1} ({:.1}..{:.1})", self.median, self.least, self.most)
    }
}
