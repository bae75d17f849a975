//! Files: direct, aligned, whole reads.
//!
//! A file is opened with O_DIRECT and probed by a real aligned read, since some file systems accept
//! the flag and then refuse the read. Where it is refused, reads go through the page cache and the
//! caller says so once.
#![allow(unsafe_code)] // open, pread, fstat

use super::errno::SysError;
use core::ffi::CStr;
use core::fmt;

/// Direct reads start, end and land at multiples of this.
const ALIGN: usize = 4096;
/// A read that makes no progress this many times in a row has failed.
const STALLS_MAX: u32 = 16;

/// What kind of file system a file lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// On a device.
    Disk,
    /// In memory (tmpfs, ramfs): outside the budget and no measure of flash.
    Memory,
    /// Behind a user-space server: slow, and direct reads are only so by name.
    Fuse,
}

/// A file opened for reading at offsets.
#[derive(Debug)]
pub struct File {
    fd: i32,
    bytes: u64,
    direct: bool,
    file_system: FileSystem,
}

/// Why a file can't be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// A system call failed.
    System(SysError),
    /// It is not a regular file.
    NotAFile,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::System(error) => error.fmt(f),
            OpenError::NotAFile => f.write_str("it is not a regular file"),
        }
    }
}

/// Why a read failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// pread failed with this errno.
    Errno(i32),
    /// The file ended, or reads made no progress, after this many bytes.
    Short(usize),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Errno(errno) => write!(f, "pread failed with errno {errno}"),
            ReadError::Short(bytes) => write!(f, "it ended after {bytes} bytes"),
        }
    }
}

#[repr(C, align(4096))]
struct Block([u8; ALIGN]);

impl File {
    /// Opens `path` for direct reads, or for buffered ones where direct reads are refused.
    pub fn open(path: &CStr) -> Result<File, OpenError> {
        match File::open_with(path, libc::O_DIRECT) {
            Ok(file) if file.probe() => Ok(file),
            Ok(_) => File::open_with(path, 0),
            Err(OpenError::System(error)) if error.errno == libc::EINVAL => {
                File::open_with(path, 0)
            }
            Err(error) => Err(error),
        }
    }

    fn open_with(path: &CStr, flag: i32) -> Result<File, OpenError> {
        // Without O_NONBLOCK, opening a pipe would wait for its writer. Files don't know the flag.
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | flag;
        // SAFETY: `path` ends with a zero byte; all-zero bytes are valid stat and statfs values
        // that the calls overwrite.
        unsafe {
            let fd = libc::open(path.as_ptr(), flags);
            if fd < 0 {
                return Err(OpenError::System(SysError::last("open")));
            }
            let mut file = File { fd, bytes: 0, direct: flag != 0, file_system: FileSystem::Disk };
            let mut stat: libc::stat = core::mem::zeroed();
            let mut volume: libc::statfs = core::mem::zeroed();
            if libc::fstat(fd, &mut stat) != 0 || libc::fstatfs(fd, &mut volume) != 0 {
                return Err(OpenError::System(SysError::last("fstat")));
            }
            if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
                return Err(OpenError::NotAFile);
            }
            file.bytes = stat.st_size as u64;
            file.file_system = file_system(volume.f_type as u32);
            Ok(file)
        }
    }

    /// A real aligned read of the first block; true for an empty file, whose reads end at once.
    fn probe(&self) -> bool {
        let mut block = Block([0; ALIGN]);
        pread(self.fd, &mut block.0, 0) >= 0
    }

    /// The first block; zeros behind the end of a shorter file.
    pub fn first_block(&self) -> Result<[u8; ALIGN], ReadError> {
        let mut block = Block([0; ALIGN]);
        let length = self.bytes.min(ALIGN as u64) as usize;
        match read_fully(&mut block.0, 0, |rest, at| pread(self.fd, rest, at)) {
            Err(ReadError::Short(got)) if got >= length / ALIGN * ALIGN => Ok(block.0),
            Err(error) => Err(error),
            Ok(()) => Ok(block.0),
        }
    }

    /// Bytes of the file when it was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether reads bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// What the file lies on.
    pub fn file_system(&self) -> FileSystem {
        self.file_system
    }

    /// Fills `into` from `offset`; both, and the length, are multiples of 4096.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), ReadError> {
        assert!(offset.is_multiple_of(ALIGN as u64) && into.len().is_multiple_of(ALIGN));
        assert!(into.as_ptr().addr().is_multiple_of(ALIGN), "direct reads land on blocks");
        read_fully(into, offset, |rest, at| pread(self.fd, rest, at))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and not used again.
        unsafe { libc::close(self.fd) };
    }
}

fn pread(fd: i32, into: &mut [u8], offset: u64) -> isize {
    // SAFETY: the pointer and length are those of `into`.
    let got = unsafe { libc::pread(fd, into.as_mut_ptr().cast(), into.len(), offset as i64) };
    if got < 0 { -(super::errno::errno() as isize) } else { got }
}

/// Reads until `into` is full. `read` answers bytes, 0 at the end of the file, or minus an errno.
/// A short read goes on from the last whole block, since a direct read must start on one.
fn read_fully(
    into: &mut [u8],
    offset: u64,
    mut read: impl FnMut(&mut [u8], u64) -> isize,
) -> Result<(), ReadError> {
    let mut done = 0;
    let mut stalls = 0;
    while done < into.len() {
        let got = read(&mut into[done..], offset + done as u64);
        if got == 0 {
            return Err(ReadError::Short(done));
        }
        let interrupted = got == -(libc::EINTR as isize) || got == -(libc::EAGAIN as isize);
        if got < 0 && !interrupted {
            return Err(ReadError::Errno(-got as i32));
        }
        let before = done;
        if got > 0 {
            let reached = done + got as usize;
            done = if reached == into.len() { reached } else { reached / ALIGN * ALIGN };
        }
        stalls = if done > before { 0 } else { stalls + 1 };
        if stalls > STALLS_MAX {
            return Err(ReadError::Short(done));
        }
    }
    Ok(())
}

fn file_system(magic: u32) -> FileSystem {
    match magic {
        0x0102_1994 | 0x8584_58f6 => FileSystem::Memory, // tmpfs, ramfs
        0x6573_5546 => FileSystem::Fuse,
        _ => FileSystem::Disk,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i * 31 + i / 251) as u8).collect()
    }

    #[test]
    fn short_and_interrupted_reads_are_resumed() {
        let file = source(5 * ALIGN);
        let mut into = vec![0; 5 * ALIGN];
        let answers = [3000, -(libc::EINTR as isize), 5000, -(libc::EAGAIN as isize), 1, 8192];
        let mut call = 0;
        let read = |rest: &mut [u8], at: u64| {
            let answer = answers.get(call).copied().unwrap_or(isize::MAX);
            call += 1;
            if answer < 0 {
                return answer;
            }
            assert!(at.is_multiple_of(ALIGN as u64), "a direct read starts on a block");
            let got = rest.len().min(answer as usize);
            rest[..got].copy_from_slice(&file[at as usize..at as usize + got]);
            got as isize
        };
        assert_eq!(read_fully(&mut into, 0, read), Ok(()));
        assert_eq!(into, file);
    }

    #[test]
    fn the_end_of_the_file_and_errors_are_told() {
        let mut into = vec![0; 2 * ALIGN];
        let mut first = true;
        let ends = |_: &mut [u8], _: u64| if core::mem::take(&mut first) { 4096 } else { 0 };
        assert_eq!(read_fully(&mut into, 0, ends), Err(ReadError::Short(4096)));
        let fails = |_: &mut [u8], _: u64| -(libc::EIO as isize);
        assert_eq!(read_fully(&mut into, 0, fails), Err(ReadError::Errno(libc::EIO)));
        let stalls = |_: &mut [u8], _: u64| 100;
        assert_eq!(read_fully(&mut into, 0, stalls), Err(ReadError::Short(0)));
    }

    #[test]
    fn file_systems_are_told_apart() {
        assert_eq!(file_system(libc::TMPFS_MAGIC as u32), FileSystem::Memory);
        assert_eq!(file_system(libc::EXT4_SUPER_MAGIC as u32), FileSystem::Disk);
    }

    #[test]
    fn folders_and_missing_files_are_refused() {
        assert!(matches!(File::open(c"/"), Err(OpenError::NotAFile)));
        match File::open(c"/no such file") {
            Err(OpenError::System(error)) => assert_eq!(error.errno, libc::ENOENT),
            other => panic!("{other:?}"),
        }
    }
}
