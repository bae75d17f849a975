//! Text in: lines from standard input through a fixed buffer.
#![allow(unsafe_code)] // poll, read, isatty

use super::errno::SysError;
use super::signal::{bell, stop_requested};

const BUFFER_BYTES: usize = 4096;
/// Most bytes of a line that a terminal hands over; it drops the rest of a longer one (the kernel's
/// line discipline, in canonical mode).
pub const TERMINAL_LINE_BYTES_MAX: usize = 4095;

/// What came of asking for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line of so many bytes without its line break. Where they are more than there was room for,
    /// the first ones were kept and the rest of the line is gone.
    Bytes(usize),
    /// Nothing comes any more.
    End,
    /// INT or TERM came first.
    Stopped,
}

/// Standard input, buffered.
pub struct Input {
    buffer: [u8; BUFFER_BYTES],
    /// What was read and not yet handed out: buffer[start..end].
    start: usize,
    end: usize,
}

impl Input {
    /// Standard input.
    pub const fn stdin() -> Input {
        Input { buffer: [0; BUFFER_BYTES], start: 0, end: 0 }
    }

    /// Takes the next line into the front of `line`.
    pub fn line(&mut self, line: &mut [u8]) -> Result<Line, SysError> {
        let mut bytes = 0;
        loop {
            if stop_requested() {
                return Ok(Line::Stopped);
            }
            if self.start == self.end {
                match self.fill()? {
                    Some(0) if bytes == 0 => return Ok(Line::End),
                    Some(0) => return Ok(Line::Bytes(bytes)),
                    Some(_) => {}
                    None => return Ok(Line::Stopped),
                }
            }
            let new = &self.buffer[self.start..self.end];
            let at_break = new.iter().position(|&byte| byte == b'\n');
            let part = &new[..at_break.unwrap_or(new.len())];
            let room = line.get_mut(bytes..).unwrap_or_default();
            let kept = part.len().min(room.len());
            room[..kept].copy_from_slice(&part[..kept]);
            bytes += part.len();
            self.start += part.len() + usize::from(at_break.is_some());
            if at_break.is_some() {
                return Ok(Line::Bytes(bytes));
            }
        }
    }

    /// Waits for bytes; how many came, 0 at the end of the input, `None` where INT or TERM came.
    fn fill(&mut self) -> Result<Option<usize>, SysError> {
        loop {
            let readable = libc::POLLIN;
            let watch = |fd| libc::pollfd { fd, events: readable, revents: 0 };
            let mut watched = [watch(libc::STDIN_FILENO), watch(bell())];
            // SAFETY: the pointer and count are those of `watched`.
            let ready = unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as _, -1) };
            if ready < 0 && SysError::last("poll").errno != libc::EINTR {
                return Err(SysError::last("poll"));
            }
            if ready <= 0 {
                continue;
            }
            if watched[1].revents != 0 {
                return Ok(None);
            }
            // SAFETY: the pointer and length are those of the buffer.
            let got = unsafe {
                libc::read(libc::STDIN_FILENO, self.buffer.as_mut_ptr().cast(), BUFFER_BYTES)
            };
            if got >= 0 {
                (self.start, self.end) = (0, got as usize);
                return Ok(Some(self.end));
            }
            let error = SysError::last("read");
            if error.errno != libc::EINTR && error.errno != libc::EAGAIN {
                return Err(error);
            }
        }
    }
}

/// Whether standard input is a terminal.
pub fn stdin_is_terminal() -> bool {
    is_terminal(libc::STDIN_FILENO)
}

/// Whether standard error is a terminal.
pub fn stderr_is_terminal() -> bool {
    is_terminal(libc::STDERR_FILENO)
}

fn is_terminal(fd: i32) -> bool {
    // SAFETY: isatty takes a number.
    unsafe { libc::isatty(fd) == 1 }
}
