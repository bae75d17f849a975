//! The ground: the only room that talks to the kernel.
//!
//! Called by every room above; offers safe functions over memory, files, threads, clock, signals
//! and the process's own figures. Invariants: no call here allocates from a heap, and after
//! [`seal`] none maps, grows or protects memory.

mod clock;
mod errno;
mod file;
mod input;
mod log;
mod memory;
mod process;
mod seal;
mod signal;
mod team;
mod thread;

pub use clock::{Nanoseconds, now};
pub use errno::SysError;
pub use file::{File, FileSystem, OpenError, ReadError};
pub use input::{Input, Line, TERMINAL_LINE_BYTES_MAX, stderr_is_terminal, stdin_is_terminal};
pub use log::{Output, Stderr, path_text};
pub use memory::{LockError, Mapping, available_bytes, lock_all, page_bytes};
pub use process::{Faults, Footprint, faults, footprint};
pub use seal::forbid_memory_calls;
pub use signal::{catch_every_stop_signal, catch_stop_signals, forget_interrupt, stop_requested};
pub use team::{Claims, Lead, Team};
pub use thread::{Scope, WaitWord, pin_to_core, scope};
pub mod exit;
pub mod start;
