//! How far a long job is: bytes, rate, time left.
//!
//! Used by every command that takes longer than a moment. On a terminal it is a bar; elsewhere a
//! line now and then, none for a short job.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressStyle};

/// Between two lines, where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// A job under way.
pub struct Progress {
    what: &'static str,
    bar: Option<ProgressBar>,
    began: Instant,
    /// Done when first told: what an earlier run did says nothing of the rate.
    first: Option<u64>,
    lines: u32,
}

impl Progress {
    /// A job that is named `what` on its lines.
    #[must_use]
    pub fn new(what: &'static str) -> Progress {
        let bar = stderr().is_terminal().then(|| {
            let template = "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
            let style = ProgressStyle::with_template(template).expect("the template is sound");
            ProgressBar::no_length().with_style(style)
        });
        Progress { what, bar, began: Instant::now(), first: None, lines: 0 }
    }

    /// Tells bytes done and bytes in all.
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
            BinaryBytes(done),
            BinaryBytes(all),
            BinaryBytes(rate as u64),
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
