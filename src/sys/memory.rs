//! Memory: one mapping, its pages, the lock.
#![allow(unsafe_code)] // mmap and friends

use super::errno::SysError;
use core::fmt;
use core::ptr::NonNull;

const HUGE_PAGE: usize = 2 << 20;

/// An anonymous mapping, zeroed, unmapped on drop. Starts at a huge-page boundary.
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory; who may touch which bytes is the arena's business.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes`, a whole number of pages, and hints huge pages if asked.
    pub fn new(bytes: usize, huge_pages: bool) -> Result<Mapping, SysError> {
        let reserve = bytes + HUGE_PAGE;
        // SAFETY: a new anonymous mapping touches no memory that exists.
        let raw = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(core::ptr::null_mut(), reserve, protection, flags, -1, 0)
        };
        if raw == libc::MAP_FAILED {
            return Err(SysError::last("mmap"));
        }
        let head = raw.cast::<u8>().align_offset(HUGE_PAGE);
        // SAFETY: `head` is below HUGE_PAGE, so head, the mapping and the tail cut the reserve.
        unsafe {
            let base = raw.cast::<u8>().add(head);
            if head > 0 {
                libc::munmap(raw, head);
            }
            if head < HUGE_PAGE {
                libc::munmap(base.add(bytes).cast(), HUGE_PAGE - head);
            }
            if huge_pages {
                libc::madvise(base.cast(), bytes, libc::MADV_HUGEPAGE); // a hint: may be refused
            }
            Ok(Mapping { base: NonNull::new(base).expect("mmap never answers null"), bytes })
        }
    }

    /// Touches every page once, so that later first writes never fault.
    pub fn touch(&self) {
        for offset in (0..self.bytes).step_by(page_bytes()) {
            // SAFETY: the byte lies in the mapping; called before anything is carved, and a zero
            // written over a zero changes nothing.
            unsafe { self.base.as_ptr().add(offset).write_volatile(0) };
        }
    }

    /// First byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrowed from it outlives it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Bytes of a memory page.
pub fn page_bytes() -> usize {
    // SAFETY: sysconf reads a constant.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Bytes the system says a new program may use, from /proc/meminfo; `None` where it doesn't say.
pub fn available_bytes() -> Option<u64> {
    let mut buffer = [0; 1024];
    let text = super::process::read_proc(c"/proc/meminfo", &mut buffer)?;
    super::process::kilobytes(text, b"MemAvailable:")
}

/// Why memory could not be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockError {
    /// What the kernel answered.
    pub error: SysError,
    /// The limit on locked bytes; `u64::MAX` for none.
    pub limit_bytes: u64,
    /// Bytes we wanted to lock.
    pub wanted_bytes: u64,
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "memory is not locked: {}, wanted {} bytes, the limit is {}; \
             raise RLIMIT_MEMLOCK or give CAP_IPC_LOCK",
            self.error, self.wanted_bytes, self.limit_bytes
        )
    }
}

/// Locks everything mapped now, so that no page is ever taken away. `wanted_bytes` is for the
/// message only.
pub fn lock_all(wanted_bytes: u64) -> Result<(), LockError> {
    // SAFETY: mlockall changes no memory.
    if unsafe { libc::mlockall(libc::MCL_CURRENT) } == 0 {
        return Ok(());
    }
    let error = SysError::last("mlockall");
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid, writable rlimit.
    let limit_bytes = match unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } {
        0 => limit.rlim_cur,
        _ => 0,
    };
    Err(LockError { error, limit_bytes, wanted_bytes })
}
