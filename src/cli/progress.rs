//! How far a long prompt is: a line on stderr that covers itself.
//!
//! Shown by `generate` where stderr is a terminal, and only while a prompt takes long.

use crate::sys::{Nanoseconds, Stderr, now, stderr_is_terminal};
use core::fmt;

/// A prompt that takes less is not worth a line.
const SILENT_NS: Nanoseconds = 1_000_000_000;
/// Time between two lines: a person reads no faster.
const STEP_NS: Nanoseconds = 200_000_000;

/// The progress of one prompt.
pub struct Progress {
    total: usize,
    started: Nanoseconds,
    /// When the next line is due.
    due: Nanoseconds,
    shown: bool,
}

impl Progress {
    /// Of a prompt of `total` tokens that begins now; silent unless `shows` and stderr is a
    /// terminal.
    pub fn new(total: usize, shows: bool) -> Progress {
        let started = now();
        let due = if shows && stderr_is_terminal() { started + SILENT_NS } else { u64::MAX };
        Progress { total, started, due, shown: false }
    }

    /// `done` tokens are done.
    pub fn show(&mut self, done: usize) {
        let time = now();
        if time < self.due || done == 0 {
            return;
        }
        (self.due, self.shown) = (time + STEP_NS, true);
        let line = ProgressLine { done, total: self.total, ns: time - self.started };
        Stderr::part(format_args!("\r{line}\x1b[K"));
    }

    /// The prompt is done: its line goes.
    pub fn clear(&mut self) {
        if core::mem::take(&mut self.shown) {
            Stderr::part(format_args!("\r\x1b[K"));
        }
    }
}

/// What the line says after `ns`: at least one token is done.
struct ProgressLine {
    done: usize,
    total: usize,
    ns: Nanoseconds,
}

impl fmt::Display for ProgressLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.done as f64 * 1e9 / self.ns as f64;
        let left = ((self.total - self.done) as f64 / rate) as u64;
        write!(f, "[prompt: {} of {} tokens, {rate:.1} tok/s, ", self.done, self.total)?;
        match left {
            0..60 => write!(f, "{left} s left]"),
            60..3600 => write!(f, "{} min {} s left]", left / 60, left % 60),
            _ => write!(f, "{} h {} min left]", left / 3600, left / 60 % 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ProgressLine;

    #[test]
    fn a_line_has_rate_and_time_left() {
        let line = |done, total, seconds: u64| {
            ProgressLine { done, total, ns: seconds * 1_000_000_000 }.to_string()
        };
        assert_eq!(line(100, 400, 2), "[prompt: 100 of 400 tokens, 50.0 tok/s, 6 s left]");
        assert_eq!(line(512, 512, 4), "[prompt: 512 of 512 tokens, 128.0 tok/s, 0 s left]");
        assert_eq!(line(2, 3000, 1), "[prompt: 2 of 3000 tokens, 2.0 tok/s, 24 min 59 s left]");
        assert_eq!(line(1, 9001, 2), "[prompt: 1 of 9001 tokens, 0.5 tok/s, 5 h 0 min left]");
    }
}
