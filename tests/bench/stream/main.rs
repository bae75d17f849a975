//! Runs a model that is larger than its budget: our engine and llama.cpp in turn, beside what the
//! disk gives.
//!
//! Round after round, for each budget: a probe of the disk's rate for large direct reads; our
//! engine built for the budget; llama.cpp in a memory cgroup of the same size with a cold page
//! cache, its weights as they lie in the file (`-nr`) at two readaheads, and repacked, as it does
//! by itself. A figure is the median of its rounds; what gave no figure once is not run again.
//! Engines stay in `stream-bench/` of the build folder.

use anyhow::{Context, Result};
use clap::Parser;
use contender::{Llama, Ours};
use disk::Probe;
use ganglion::forge::inputs;
use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use system::{MemoryGroup, Readahead, drop_caches};
use table::{Budget, Row};

#[path = "../common.rs"]
#[allow(dead_code)] // the kernels' bench uses the rest
mod common;
mod contender;
mod disk;
#[path = "../process.rs"]
mod process;
mod system;
mod table;

/// The readahead that most Linux machines have.
const USUAL_READAHEAD_KIB: u32 = 128;

/// Compares our engine with llama.cpp on a model that is larger than its budget, in one run.
#[derive(Parser)]
#[command(
    name = "stream",
    bin_name = "cargo bench --features host --bench stream --",
    after_help = "Example:\n  cargo bench --features host --bench stream -- --image \
                  qwen.q4.image --llama llama.cpp/build/bin --gguf qwen.q4_0.gguf --budgets \
                  400MB,500MB,700MB --repeats 5\n\nllama.cpp needs root and cgroup version 1; \
                  --gguf is of the same weights: llama-quantize --allow-requantize M.gguf \
                  qwen.q4_0.gguf Q4_0, where the image is packed from M.gguf with --type q4."
)]
struct Arguments {
    /// The packed model, on a disk.
    #[arg(long, value_name = "PATH")]
    image: Option<PathBuf>,
    /// Its plan.
    #[arg(long, default_value = "plans/qwen2.5-coder-1.5b-instruct/500mb.toml")]
    plan: String,
    /// Budgets in place of the plan's.
    #[arg(long, value_delimiter = ',', default_value = "400MB,500MB,700MB")]
    budgets: Vec<String>,
    /// The folder of llama.cpp's programs; without it, the environment's GANGLION_LLAMA.
    #[arg(long, value_name = "FOLDER")]
    llama: Option<PathBuf>,
    /// The model for llama.cpp, on a disk.
    #[arg(long, value_name = "PATH")]
    gguf: Option<PathBuf>,
    /// Rounds; each runs everything once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// New tokens of our engine.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..))]
    tokens: u32,
    /// New tokens of llama.cpp.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(2..))]
    llama_tokens: u32,
    /// Seconds after which a run of llama.cpp is given up.
    #[arg(long, default_value_t = 120)]
    limit: u64,
    /// Print one JSON object a row.
    #[arg(long)]
    json: bool,
    /// What cargo passes to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    process::ended("stream", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    let Some(image) = &arguments.image else {
        println!("no image: pack a model and name it with --image; nothing measured");
        return Ok(());
    };
    let image = image.canonicalize().with_context(|| format!("{}", image.display()))?;
    let plan = inputs::read(&Path::new(process::ROOT).join(&arguments.plan), None)?;
    let mut probe = Probe::new(&image, &plan.inputs.device)?;
    let llama = match llama(arguments) {
        Ok(llama) => Some(llama),
        Err(why) => {
            eprintln!("skipped llama.cpp: {why:#}");
            None
        }
    };
    let budgets = arguments.budgets.iter().map(|name| {
        let bytes = inputs::byte_count(name).with_context(|| {
            format!("the budget {name} is wrong; use a number with MB, GB, MiB or GiB")
        })?;
        let ours = ours(arguments, name, &image)?;
        let theirs = llama.iter().flat_map(|llama| rivals(arguments, llama));
        let rows = std::iter::once(Row::new(Box::new(ours))).chain(theirs).collect();
        Ok(Budget { name: name.clone(), bytes, rows })
    });
    let mut budgets = budgets.collect::<Result<Vec<_>>>()?;
    let mut rates = Vec::new();
    for round in 0..arguments.repeats {
        for budget in &mut budgets {
            eprintln!("round {} of {}: {}", round + 1, arguments.repeats, budget.name);
            rates.push(probe.rates()?);
            budget.rows.iter_mut().try_for_each(|row| row.measure(budget.bytes))?;
        }
    }
    table::print(&budgets, &rates, arguments.json);
    Ok(())
}

fn ours(arguments: &Arguments, budget: &str, image: &Path) -> Result<Ours> {
    let folder = process::build_folder("stream-bench")?.join(budget);
    let engine = process::build_engine(&arguments.plan, Some(budget), &folder)?;
    Ok(Ours { engine, image: image.into(), tokens: arguments.tokens })
}

/// llama.cpp and its model, where this machine lets them be measured.
struct Rival {
    program: PathBuf,
    gguf: PathBuf,
    readahead: u32,
}

fn llama(arguments: &Arguments) -> Result<Rival> {
    let given =
        arguments.llama.clone().or_else(|| env::var_os("GANGLION_LLAMA").map(PathBuf::from));
    let folder = given.context("name its folder with --llama or GANGLION_LLAMA")?;
    let gguf = arguments.gguf.as_ref().context("name its model with --gguf")?;
    let path = |path: &Path| path.canonicalize().with_context(|| format!("{}", path.display()));
    let (program, gguf) = (path(&folder.join("llama-completion"))?, path(gguf)?);
    let ahead = Readahead::of(&gguf)?;
    let readahead = ahead.kib()?;
    // What a run needs is asked for once before the rounds.
    ahead.set(readahead)?;
    MemoryGroup::new(1 << 30)?;
    drop_caches()?;
    Ok(Rival { program, gguf, readahead })
}

fn rivals(arguments: &Arguments, rival: &Rival) -> Vec<Row> {
    let ways = [(false, rival.readahead), (false, USUAL_READAHEAD_KIB), (true, rival.readahead)];
    let row = |(repack, readahead)| {
        Row::new(Box::new(Llama {
            program: rival.program.clone(),
            gguf: rival.gguf.clone(),
            tokens: arguments.llama_tokens,
            repack,
            readahead,
            limit: Duration::from_secs(arguments.limit),
        }))
    };
    ways.map(row).into()
}
