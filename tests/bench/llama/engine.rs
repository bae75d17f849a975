//! The two engines: one run of each, as a process of its own, and what it says of its speed.

use crate::model::Model;
use crate::process::json;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the engines are called in the table.
pub const LLAMA: &str = "llama.cpp";
pub const OURS: &str = "ganglion";

/// Tokens a second of one run.
#[derive(Clone, Copy)]
pub struct Speed {
    pub decode: f64,
    pub prefill: f64,
}

/// What can be measured.
pub trait Engine {
    /// Name in the table.
    fn name(&self) -> &'static str;

    /// Decodes `tokens` tokens from an empty context and runs a prompt of `prompt` tokens.
    fn measure(&self, model: &Model, threads: u32, prompt: u32, tokens: u32) -> Result<Speed>;
}

/// llama.cpp.
pub struct Llama {
    program: PathBuf,
}

impl Llama {
    /// The llama-bench at `program`, by its full path.
    pub fn new(program: &Path) -> Result<Llama> {
        let program = program.canonicalize().context("llama-bench")?;
        Ok(Llama { program })
    }
}

impl Engine for Llama {
    fn name(&self) -> &'static str {
        LLAMA
    }

    /// It warms up by itself, then takes the prompt and the tokens as two tests.
    fn measure(&self, model: &Model, threads: u32, prompt: u32, tokens: u32) -> Result<Speed> {
        let mut command = Command::new(&self.program);
        let [prompt, tokens, threads] = [prompt, tokens, threads].map(|n| n.to_string());
        command.arg("-m").arg(&model.gguf).args(["-p", &prompt, "-n", &tokens, "-t", &threads]);
        command.args(["-r", "1", "-o", "json"]).env("OMP_WAIT_POLICY", "passive");
        let tests = json(&mut command)?;
        let speed_of = |count: &str| {
            let tests = tests.as_array().context("llama-bench prints no list of tests")?;
            let test = tests.iter().find(|test| test[count].as_u64() > Some(0));
            let speed = test.and_then(|test| test["avg_ts"].as_f64());
            speed.with_context(|| format!("llama-bench tells no avg_ts of its {count} test"))
        };
        Ok(Speed { decode: speed_of("n_gen")?, prefill: speed_of("n_prompt")? })
    }
}

/// Ganglion.
pub struct Ours;

impl Ours {
    /// One `bench` of the engine: the figure called `figure`.
    fn bench(
        model: &Model,
        threads: u32,
        prompt: u32,
        tokens: u32,
        figure: &'static str,
    ) -> Result<f64> {
        let mut command = Command::new(&model.engine);
        let [prompt, tokens, threads] = [prompt, tokens, threads].map(|n| n.to_string());
        command.args(["bench", "--json", "--threads", &threads, "-n", &tokens]);
        command.args(["--prompt-tokens", &prompt, "--image"]).arg(&model.image);
        let figures = json(&mut command)?;
        figures[figure].as_f64().with_context(|| format!("ganglion bench tells no {figure}"))
    }
}

impl Engine for Ours {
    fn name(&self) -> &'static str {
        OURS
    }

    /// Two runs, since llama-bench decodes from an empty context too: behind the prompt, attention
    /// would have more to read. The first new token belongs to the prompt and is not timed.
    fn measure(&self, model: &Model, threads: u32, prompt: u32, tokens: u32) -> Result<Speed> {
        Ok(Speed {
            decode: Ours::bench(model, threads, 1, tokens + 1, "decode_tok_s")?,
            prefill: Ours::bench(model, threads, prompt, 1, "prefill_tok_s")?,
        })
    }
}
