//! Runs llama.cpp's llama-bench and our engine in turn, on the same weights, and compares them.
//!
//! For each plan a model of random weights in its shape is made, packed, and an engine built; all
//! of it stays in `llama-bench/` of the build folder. Then, round after round, both engines decode
//! from an empty context and run a prompt, next to a probe of the machine's read bandwidth. A
//! figure is the median of its rounds.

use anyhow::{Context, Result, bail};
use clap::Parser;
use common::{DRAM_BYTES, share, time, weights};
use model::Model;
use std::collections::BTreeMap;
use std::env;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::ExitCode;
use table::{Key, Series};

#[path = "../common.rs"]
#[allow(dead_code)] // the kernels' bench uses the rest
mod common;
mod engine;
mod model;
#[path = "../probe.rs"]
#[allow(dead_code)] // likewise
mod probe;
#[path = "../process.rs"]
mod process;
mod table;

/// Compares our engine with llama.cpp on the same random weights, in turn, in one run.
#[derive(Parser)]
#[command(
    name = "llama",
    bin_name = "cargo bench --features host --bench llama --",
    after_help = "Example:\n  cargo bench --features host --bench llama -- --llama-bench \
                  build/bin/llama-bench --models smollm2-135m-shape --repeats 9"
)]
struct Arguments {
    /// llama.cpp's llama-bench; without it, the environment's LLAMA_BENCH.
    #[arg(long, value_name = "PATH")]
    llama_bench: Option<PathBuf>,
    /// Plans of `plans/` to measure.
    #[arg(long, value_delimiter = ',', default_value = "smollm2-135m-shape,qwen2.5-1.5b-shape")]
    models: Vec<String>,
    /// Rounds; each runs everything once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Tokens of the prompt.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    prompt: u32,
    /// Tokens to decode, from an empty context.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// Thread counts to measure.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<u32>,
    /// Print one JSON object a row.
    #[arg(long)]
    json: bool,
    /// What cargo passes to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    process::ended("llama", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    let given = arguments.llama_bench.clone();
    let Some(llama) = given.or_else(|| env::var_os("LLAMA_BENCH").map(PathBuf::from)) else {
        println!("no llama-bench: name it with --llama-bench or LLAMA_BENCH; nothing compared");
        return Ok(());
    };
    if !llama.is_file() {
        bail!("{} is not a file; build llama-bench of llama.cpp", llama.display());
    }
    let models = arguments.models.iter().map(|name| Model::make(name));
    let models = models.collect::<Result<Vec<_>>>()?;
    let llama = engine::Llama::new(&llama)?;
    let mut all = BTreeMap::new();
    let mut probes = BTreeMap::new();
    let memory: &[u64] = bytemuck::cast_slice(weights(DRAM_BYTES));
    for round in 0..arguments.repeats {
        eprintln!("round {} of {}", round + 1, arguments.repeats);
        for &threads in &arguments.threads {
            let speeds: &mut Vec<f64> = probes.entry(threads).or_default();
            speeds.push(read_gb_s(memory, threads as usize));
            for (index, model) in models.iter().enumerate() {
                let mut engines: [&dyn engine::Engine; 2] = [&llama, &engine::Ours];
                // Neither always runs behind the other.
                engines.rotate_left(round as usize % 2);
                for engine in engines {
                    let speed = engine
                        .measure(model, threads, arguments.prompt, arguments.tokens)
                        .with_context(|| format!("{} on {}", engine.name(), model.name))?;
                    let key = Key { model: index, engine: engine.name(), threads };
                    let series: &mut Series = all.entry(key).or_default();
                    series.push(speed);
                }
            }
        }
    }
    table::print(&models, &all, &probes, arguments.json);
    Ok(())
}

/// Gigabytes a second that `threads` threads read of `memory`: the best of a few passes.
fn read_gb_s(memory: &[u64], threads: usize) -> f64 {
    const PASSES: usize = 5;
    let pass = |thread, threads| {
        black_box(probe::read(&memory[share(memory.len(), thread, threads)]));
    };
    let best = (0..PASSES).map(|_| time(threads, &pass)).min().expect("there are passes");
    size_of_val(memory) as f64 / best.as_nanos() as f64
}
