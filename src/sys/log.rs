//! Text out: fixed buffers over write(2). Text goes to stdout, everything else to stderr.
#![allow(unsafe_code)] // write

use super::errno::SysError;
use core::fmt::{self, Write};

const BUFFER_BYTES: usize = 1024;

/// A buffered file descriptor. Nothing is lost silently: the first failed write is kept.
pub struct Output {
    fd: i32,
    buffer: heapless::Vec<u8, BUFFER_BYTES>,
    error: Option<SysError>,
}

impl Output {
    /// Standard output.
    pub const fn stdout() -> Output {
        Output { fd: libc::STDOUT_FILENO, buffer: heapless::Vec::new(), error: None }
    }

    /// Appends bytes; writes when the buffer is full.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = BUFFER_BYTES - self.buffer.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now).expect("cut to the room that is left");
            if self.buffer.is_full() {
                self.write_out();
            }
            bytes = later;
        }
    }

    /// Writes what is buffered; the first error since the start, if there was one.
    pub fn flush(&mut self) -> Result<(), SysError> {
        self.write_out();
        self.error.map_or(Ok(()), Err)
    }

    fn write_out(&mut self) {
        if self.error.is_none() {
            self.error = write_all(self.fd, &self.buffer).err();
        }
        self.buffer.clear();
    }
}

impl Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// Standard error, written at once so that lines of several threads don't mix.
pub struct Stderr;

impl Stderr {
    /// Writes one line.
    pub fn line(text: fmt::Arguments<'_>) {
        let mut line = Line(heapless::Vec::new());
        let _ = line.write_fmt(text);
        if line.0.push(b'\n').is_err() {
            *line.0.last_mut().expect("the buffer is full, so it has a last byte") = b'\n';
        }
        let _ = write_all(libc::STDERR_FILENO, &line.0); // nowhere left to tell
    }

    /// Writes a part of a line: a prompt sign, a progress line that the next one covers.
    pub fn part(text: fmt::Arguments<'_>) {
        let mut line = Line(heapless::Vec::new());
        let _ = line.write_fmt(text);
        let _ = write_all(libc::STDERR_FILENO, &line.0); // nowhere left to tell
    }
}

struct Line(heapless::Vec<u8, BUFFER_BYTES>);

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = BUFFER_BYTES - self.0.len();
        let kept = &text.as_bytes()[..room.min(text.len())];
        self.0.extend_from_slice(kept).map_err(|_| fmt::Error)
    }
}

/// A path as text: what is not UTF-8 is shown up to there.
pub fn path_text(path: &[u8]) -> &str {
    match core::str::from_utf8(path) {
        Ok(text) => text,
        Err(error) => core::str::from_utf8(&path[..error.valid_up_to()]).unwrap_or(""),
    }
}

fn write_all(fd: i32, mut bytes: &[u8]) -> Result<(), SysError> {
    while !bytes.is_empty() {
        // SAFETY: the pointer and length are those of `bytes`.
        let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        if written < 0 {
            let error = SysError::last("write");
            if error.errno == libc::EINTR {
                continue;
            }
            return Err(error);
        }
        bytes = &bytes[written as usize..];
    }
    Ok(())
}
