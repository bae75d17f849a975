//! What is measured: our engine, and llama.cpp in a memory cgroup of the same budget.

use crate::process::{json, last_line};
use crate::system::{MemoryGroup, Readahead, drop_caches};
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// What both continue.
const PROMPT: &str = "# Sorts a list of numbers in place.\ndef quicksort(values):\n";
/// Longest context of llama.cpp's, as the plans'.
const CONTEXT: &str = "1024";

/// What one run says.
pub enum Outcome {
    /// Its speed behind the prompt, and what it read for each of those tokens.
    Ran { tok_s: f64, token_bytes: f64 },
    /// Why there is no figure.
    Failed(String),
}

/// What can be measured.
pub trait Contender {
    /// Name in the table.
    fn name(&self) -> String;

    /// One run within `budget` bytes.
    fn measure(&self, budget: u64) -> Result<Outcome>;
}

/// Ganglion, built for the budget.
pub struct Ours {
    pub engine: PathBuf,
    pub image: PathBuf,
    pub tokens: u32,
}

impl Contender for Ours {
    fn name(&self) -> String {
        "ganglion".into()
    }

    fn measure(&self, _: u64) -> Result<Outcome> {
        let mut command = Command::new(&self.engine);
        command.args(["bench", "--json", "-n", &self.tokens.to_string(), "--image"]);
        let figures = json(command.arg(&self.image).arg(PROMPT))?;
        let figure = |name: &str| {
            figures[name].as_f64().with_context(|| format!("ganglion bench tells no {name}"))
        };
        let token_bytes = figure("decode_bytes")? / figure("tokens")?;
        Ok(Outcome::Ran { tok_s: figure("decode_tok_s")?, token_bytes })
    }
}

/// llama.cpp, from a cold page cache.
pub struct Llama {
    /// Its llama-completion.
    pub program: PathBuf,
    pub gguf: PathBuf,
    pub tokens: u32,
    /// Whether it may keep a copy of the weights in an order of its own.
    pub repack: bool,
    /// KiB that the block device reads ahead.
    pub readahead: u32,
    /// When it is given up.
    pub limit: Duration,
}

impl Contender for Llama {
    fn name(&self) -> String {
        let repack = if self.repack { "repacked" } else { "-nr" };
        format!("llama.cpp {repack}, readahead {} KiB", self.readahead)
    }

    fn measure(&self, budget: u64) -> Result<Outcome> {
        let readahead = Readahead::of(&self.gguf)?;
        let _restored = readahead.set(self.readahead)?;
        let group = MemoryGroup::new(budget)?;
        let mut command = group.command(&self.program);
        command.arg("-m").arg(&self.gguf).args(["-p", PROMPT, "-n", &self.tokens.to_string()]);
        command.args(["-no-cnv", "--no-warmup", "--ignore-eos", "--temp", "0"]);
        command.args(["-t", "2", "-c", CONTEXT]).env("OMP_WAIT_POLICY", "passive");
        command.args((!self.repack).then_some("-nr"));
        drop_caches()?;
        let watched = Watched::run(&mut command, PROMPT.len(), self.limit)?;
        self.judge(&watched)
    }
}

impl Llama {
    fn judge(&self, watched: &Watched) -> Result<Outcome> {
        let Some(status) = watched.status else {
            let (limit, after) = (self.limit.as_secs(), watched.text);
            let text = if after > PROMPT.len() { "no end" } else { "no token" };
            return Ok(Outcome::Failed(format!("{text} within {limit} s")));
        };
        if status.signal() == Some(libc::SIGKILL) {
            return Ok(Outcome::Failed("killed for memory".into()));
        }
        if !status.success() {
            bail!("{} failed: {}", self.program.display(), last_line(&watched.stderr));
        }
        let said = String::from_utf8_lossy(&watched.stderr);
        let (tok_s, count) = speed(&said).context("llama-completion tells no eval time")?;
        Ok(Outcome::Ran { tok_s, token_bytes: watched.decode_bytes as f64 / count })
    }
}

/// Tokens a second behind the prompt, and their number: "eval time = 382.64 ms / 7 runs
/// ( 54.66 ms per token, 18.29 tokens per second)".
fn speed(said: &str) -> Option<(f64, f64)> {
    let line = said.lines().find(|line| line.contains(" eval time") && line.contains("runs"))?;
    let before = |mark: &str| line.split(mark).next()?.split_whitespace().last()?.parse().ok();
    Some((before(" tokens per second")?, before(" runs")?))
}

/// A process under a time limit, and what it read from the disk behind its prompt.
struct Watched {
    /// None where it was killed at the limit.
    status: Option<ExitStatus>,
    /// Bytes of text, the prompt's included.
    text: usize,
    stderr: Vec<u8>,
    decode_bytes: u64,
}

impl Watched {
    /// How often its counter of bytes is looked at: a token takes a hundred times longer.
    const PAUSE: Duration = Duration::from_millis(4);

    /// Runs `command`, which first repeats a prompt of `prompt` bytes.
    fn run(command: &mut Command, prompt: usize, limit: Duration) -> Result<Watched> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("{command:?} can't be started"))?;
        let (text, said) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let stdout = child.stdout.take().expect("stdout is a pipe");
        let stderr = child.stderr.take().expect("stderr is a pipe");
        let length = || text.lock().expect("nobody panics").len();
        let (status, decode_bytes) = thread::scope(|scope| {
            scope.spawn(|| collect(stdout, &text));
            scope.spawn(|| collect(stderr, &said));
            watch(&mut child, limit, &|| length() > prompt)
        })?;
        let (text, stderr) = (length(), said.into_inner().expect("nobody panics"));
        Ok(Watched { status, text, stderr, decode_bytes })
    }
}

/// Waits for the end, at most until the limit; the bytes read since `begun` came true.
fn watch(
    child: &mut Child,
    limit: Duration,
    begun: &dyn Fn() -> bool,
) -> Result<(Option<ExitStatus>, u64)> {
    let start = Instant::now();
    let (mut first, mut last) = (None, 0);
    while start.elapsed() < limit {
        last = read_bytes(child.id()).unwrap_or(last);
        if first.is_none() && begun() {
            first = Some(last);
        }
        if let Some(status) = child.try_wait()? {
            return Ok((Some(status), last - first.unwrap_or(last)));
        }
        thread::sleep(Watched::PAUSE);
    }
    child.kill()?;
    child.wait()?;
    Ok((None, last - first.unwrap_or(last)))
}

/// What the process had the disk read; nothing once it has ended.
fn read_bytes(process: u32) -> Option<u64> {
    let counters = fs::read_to_string(format!("/proc/{process}/io")).ok()?;
    counters.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()
}

fn collect(mut pipe: impl Read, into: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = pipe.read(&mut buffer) {
        into.lock().expect("nobody panics").extend_from_slice(&buffer[..count]);
    }
}
