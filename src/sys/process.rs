//! What the kernel says of this process: peak memory, page tables, faults, switches.
#![allow(unsafe_code)] // open, read, getrusage

use core::ffi::CStr;

/// Peak memory of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Peak resident bytes.
    pub peak_bytes: u64,
    /// Page-table bytes.
    pub page_table_bytes: u64,
    /// Locked bytes.
    pub locked_bytes: u64,
}

impl Footprint {
    /// What the budget must hold: `VmHWM + VmPTE`.
    pub fn total(&self) -> u64 {
        self.peak_bytes + self.page_table_bytes
    }
}

/// Faults and switches of all threads since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Page faults that read nothing.
    pub minor: u64,
    /// Page faults that read from disk.
    pub major: u64,
    /// Times the scheduler took a core away.
    pub involuntary_switches: u64,
}

impl Faults {
    /// What happened since `before`.
    pub fn since(&self, before: &Faults) -> Faults {
        Faults {
            minor: self.minor - before.minor,
            major: self.major - before.major,
            involuntary_switches: self.involuntary_switches - before.involuntary_switches,
        }
    }
}

/// Peak memory so far, from /proc/self/status; zeros where that can't be read.
pub fn footprint() -> Footprint {
    let mut buffer = [0; 4096];
    let Some(text) = read_proc(c"/proc/self/status", &mut buffer) else {
        return Footprint::default();
    };
    Footprint {
        peak_bytes: kilobytes(text, b"VmHWM:").unwrap_or(0),
        page_table_bytes: kilobytes(text, b"VmPTE:").unwrap_or(0),
        locked_bytes: kilobytes(text, b"VmLck:").unwrap_or(0),
    }
}

/// Faults and switches so far.
pub fn faults() -> Faults {
    // SAFETY: all-zero bytes are a valid rusage, and getrusage writes one.
    let usage = unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    Faults {
        minor: usage.ru_minflt as u64,
        major: usage.ru_majflt as u64,
        involuntary_switches: usage.ru_nivcsw as u64,
    }
}

/// Reads a small file of /proc.
pub(super) fn read_proc<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: `path` ends with a zero byte, the buffer's pointer and length belong together, and
    // the descriptor is closed where it was opened.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return None;
        }
        let mut done = 0;
        loop {
            let got = libc::read(fd, buffer[done..].as_mut_ptr().cast(), buffer.len() - done);
            if got <= 0 {
                break;
            }
            done += got as usize;
        }
        libc::close(fd);
        (done > 0).then_some(&buffer[..done])
    }
}

/// The number behind `key` in a "Key:   123 kB" file, in bytes.
pub(super) fn kilobytes(text: &[u8], key: &[u8]) -> Option<u64> {
    let line = text.split(|&byte| byte == b'\n').find(|line| line.starts_with(key))?;
    let digits = line.iter().filter(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0')) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kilobytes_reads_a_status_line() {
        let text = b"Name:\tx\nVmHWM:\t    1234 kB\nVmPTE:\t  44 kB\n";
        assert_eq!(kilobytes(text, b"VmHWM:"), Some(1234 * 1024));
        assert_eq!(kilobytes(text, b"VmPTE:"), Some(44 * 1024));
        assert_eq!(kilobytes(text, b"VmLck:"), None);
    }

    #[test]
    fn this_process_has_a_footprint() {
        assert!(footprint().peak_bytes > 100_000);
        assert!(faults().minor > 0);
    }
}
