//! Exit codes: the sysexits numbers, so that shells and supervisors understand.

/// Asked to stop, or done.
pub const OK: u8 = 0;
/// Bad arguments: fix the command.
pub const USAGE: u8 = 64;
/// Damaged or foreign data: pack or copy it again.
pub const DATA: u8 = 65;
/// A file is missing or can't be opened.
pub const NO_INPUT: u8 = 66;
/// A broken invariant of our own: report it.
pub const SOFTWARE: u8 = 70;
/// The system refused memory, a lock or a thread.
pub const OS: u8 = 71;
/// Reading or writing failed.
pub const IO: u8 = 74;
/// Not now: too little free memory.
pub const RETRY: u8 = 75;
/// The plan does not fit this device.
pub const CONFIG: u8 = 78;
