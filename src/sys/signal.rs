//! Asked to stop: INT and TERM set a flag that the token loop looks at.
#![allow(unsafe_code)] // sigaction

use core::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

/// INT and TERM end the token loop; PIPE is ignored, so that a closed stdout is an error of write.
pub fn catch_stop_signals() {
    extern "C" fn stop(_: i32) {
        STOP.store(true, Ordering::Relaxed);
    }
    // SAFETY: all-zero bytes are a valid sigaction; the handler only stores to an atomic.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = stop as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
        libc::sigaction(libc::SIGINT, &action, core::ptr::null_mut());
        libc::sigaction(libc::SIGTERM, &action, core::ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
}

/// Whether INT or TERM came.
pub fn stop_requested() -> bool {
    STOP.load(Ordering::Relaxed)
}
