//! Asked to stop: INT and TERM set a flag that the token loop looks at.
#![allow(unsafe_code)] // sigaction, eventfd

use super::errno::{SysError, restore_errno};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);
static TERMINATE: AtomicBool = AtomicBool::new(false);
/// Wakes who waits for input when a signal comes, on whichever thread it comes; -1 is nobody.
static BELL: AtomicI32 = AtomicI32::new(-1);

/// INT and TERM end the token loop, the second one ends the process; PIPE is ignored, so that a
/// closed stdout is an error of write.
pub fn catch_stop_signals() {
    catch(libc::SA_RESTART | libc::SA_RESETHAND);
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Every INT and TERM from here on ends the token loop, and waiting for input too. For programs
/// that go on after one: see [`forget_interrupt`].
pub fn catch_every_stop_signal() -> Result<(), SysError> {
    // SAFETY: eventfd takes two numbers.
    let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if bell < 0 {
        return Err(SysError::last("eventfd"));
    }
    BELL.store(bell, Ordering::Relaxed);
    catch(libc::SA_RESTART);
    Ok(())
}

fn catch(flags: i32) {
    extern "C" fn stop(signal: i32) {
        restore_errno(|| {
            // The bell first: who sees the flag and forgets it silences the bell with it.
            ring();
            TERMINATE.fetch_or(signal == libc::SIGTERM, Ordering::SeqCst);
            STOP.store(true, Ordering::SeqCst);
        });
    }
    // SAFETY: all-zero bytes are a valid sigaction; the handler stores to atomics and writes to a
    // descriptor, which a handler may do.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = stop as extern "C" fn(i32) as usize;
        action.sa_flags = flags;
        libc::sigaction(libc::SIGINT, &action, core::ptr::null_mut());
        libc::sigaction(libc::SIGTERM, &action, core::ptr::null_mut());
    }
}

/// Makes the bell readable; where there is none, write refuses its number.
fn ring() {
    let one = 1u64;
    // SAFETY: eight bytes of `one` are written.
    unsafe { libc::write(BELL.load(Ordering::Relaxed), (&raw const one).cast(), size_of::<u64>()) };
}

/// Whether INT or TERM came.
pub fn stop_requested() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Forgets an INT that was served. TERM is never forgotten.
pub fn forget_interrupt() {
    if TERMINATE.load(Ordering::Relaxed) {
        return;
    }
    STOP.store(false, Ordering::Relaxed);
    let mut count = 0u64;
    // SAFETY: eight bytes of `count` are read; an empty bell refuses and is fine.
    unsafe {
        libc::read(BELL.load(Ordering::Relaxed), (&raw mut count).cast(), size_of::<u64>());
    }
}

/// Descriptor that becomes readable when INT or TERM comes; negative, which poll skips, where
/// [`catch_every_stop_signal`] was not called.
pub(super) fn bell() -> i32 {
    BELL.load(Ordering::Relaxed)
}
