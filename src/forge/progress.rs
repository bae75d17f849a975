//! How far a long job is: bytes or tokens, rate, time left.
//!
//! Used by every command that takes longer than a moment. On a terminal it is a bar; elsewhere a
//! line now and then, none for a short job.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressStyle};

/// Between two lines, where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// What a job counts.
#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Tokens,
}

impl Unit {
    /// The bar.
    const fn template(self) -> &'static str {
        match self {
            Unit::Bytes => "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
            Unit::Tokens => "{bar:30} {pos} of {len} tokens, {per_sec}, {eta} left",
        }
    }

    fn count(self, count: u64) -> String {
        match self {
            Unit::Bytes => BinaryBytes(count).to_string(),
            Unit::Tokens => format!("{count} tokens"),
        }
    }
}

/// A job under way.
pub struct Progress {
    what: &'static str,
    unit: Unit,
    bar: Option<ProgressBar>,
    began: Instant,
    /// Done when first told: what an earlier run did says nothing of the rate.
    first: Option<u64>,
    lines: u32,
}

impl Progress {
    /// A job of bytes that is named `what` on its lines.
    #[must_use]
    pub fn new(what: &'static str) -> Progress {
        Progress::of(what, Unit::Bytes)
    }

    /// A job of tokens.
    #[must_use]
    pub fn of_tokens(what: &'static str) -> Progress {
        Progress::of(what, Unit::Tokens)
    }

    fn of(what: &'static str, unit: Unit) -> Progress {
        let bar = stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(unit.template());
            ProgressBar::no_length().with_style(style.expect("the template is sound"))
        });
        Progress { what, unit, bar, began: Instant::now(), first: None, lines: 0 }
    }

    /// Tells what is done, and all there is to do.
    pub fn tell(&mut self, done: u64, all: u64) {
        let first = *self.first.get_or_insert_with(|| {
            if let Some(bar) = &self.bar {
                bar.set_position(done);
                bar.reset_eta();
            }
            done
        });
        if let Some(bar) = &self.bar {
            bar.set_length(all);
            bar.set_position(done);
            return;
        }
        let passed = self.began.elapsed();
        if passed < LINE_EVERY * (self.lines + 1) {
            return;
        }
        self.lines = (passed.as_secs() / LINE_EVERY.as_secs()) as u32;
        let rate = (done - first) as f64 / passed.as_secs_f64();
        let left = Duration::from_secs_f64(((all - done) as f64 / rate.max(1.0)).min(1e9).ceil());
        eprintln!(
            "{}: {} of {}, {}/s, {} left",
            self.what,
            self.unit.count(done),
            self.unit.count(all),
            self.unit.count(rate as u64),
            HumanDuration(left),
        );
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
