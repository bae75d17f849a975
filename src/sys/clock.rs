//! The monotonic clock.
#![allow(unsafe_code)] // clock_gettime

/// Nanoseconds since an arbitrary start.
pub type Nanoseconds = u64;

/// The monotonic clock now.
pub fn now() -> Nanoseconds {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, writable timespec.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    assert!(result == 0, "the monotonic clock always answers");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
