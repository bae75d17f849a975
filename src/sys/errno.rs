//! What the kernel answered.

use core::fmt;

/// A system call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysError {
    /// Name of the call.
    pub call: &'static str,
    /// Its errno.
    pub errno: i32,
}

impl SysError {
    /// The error of the call that just failed on this thread.
    pub fn last(call: &'static str) -> SysError {
        SysError { call, errno: errno() }
    }
}

impl fmt::Display for SysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.errno {
            libc::EPERM => "operation not permitted",
            libc::ENOENT => "no such file or directory",
            libc::EIO => "input/output error",
            libc::EBADF => "bad file descriptor",
            libc::EAGAIN => "temporarily unavailable",
            libc::ENOMEM => "not enough memory or over a limit",
            libc::EACCES => "permission denied",
            libc::EISDIR => "is a directory",
            libc::ENOTDIR => "not a directory",
            libc::EINVAL => "invalid argument",
            libc::ENOSPC => "no space left",
            libc::EPIPE => "the reader closed it",
            libc::ELOOP => "too many symbolic links",
            libc::ENAMETOOLONG => "name too long",
            libc::ENOSYS => "not offered by this kernel",
            _ => return write!(f, "{} failed with errno {}", self.call, self.errno),
        };
        write!(f, "{} failed: {text} (errno {})", self.call, self.errno)
    }
}

/// errno of this thread.
#[allow(unsafe_code)] // reads a thread-local of libc
pub fn errno() -> i32 {
    // SAFETY: the pointer is to this thread's own errno, valid for its whole life.
    unsafe { *errno_location() }
}

/// Runs `handler`, the body of a signal handler, and leaves errno as the interrupted code had it.
#[allow(unsafe_code)] // writes a thread-local of libc
pub fn restore_errno(handler: impl FnOnce()) {
    let interrupted = errno();
    handler();
    // SAFETY: the pointer is to this thread's own errno, valid for its whole life.
    unsafe { *errno_location() = interrupted }
}

#[cfg(target_os = "android")]
use libc::__errno as errno_location;
#[cfg(not(target_os = "android"))]
use libc::__errno_location as errno_location;
