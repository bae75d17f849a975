//! What the comparing benches share: engines built for a plan, processes that print JSON, errors.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The repository.
pub const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What a bench called `name` ends with; an error is told on a line.
pub fn ended(name: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {}", sentence(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes; many a sentence holds its own.
fn sentence(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for part in error.chain().map(ToString::to_string) {
        if !said.contains(&part) {
            let colon = if said.is_empty() { "" } else { ": " };
            said = format!("{said}{colon}{part}");
        }
    }
    said
}

/// The folder `name` of the build folder, made where it is not there.
pub fn build_folder(name: &str) -> Result<PathBuf> {
    // Cargo names a folder for tests inside its build folder.
    let build = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().context("a build folder")?;
    let folder = build.join(name);
    fs::create_dir_all(&folder).with_context(|| format!("{} can't be made", folder.display()))?;
    Ok(folder)
}

/// Builds the bare engine of a plan, with another budget where one is given. A folder of its own
/// keeps cargo from building it again.
pub fn build_engine(plan: &str, budget: Option<&str>, folder: &Path) -> Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--bin", "ganglion", "--target-dir"]).arg(folder);
    command.current_dir(ROOT).env("GANGLION_PLAN", plan).env_remove("GANGLION_BUDGET");
    command.envs(budget.map(|budget| ("GANGLION_BUDGET", budget)));
    if !command.status().context("cargo can't be started")?.success() {
        bail!("the engine of {plan} does not build");
    }
    Ok(folder.join("release/ganglion"))
}

/// What `command` prints as JSON; an error ends with the last line that it said.
pub fn json(command: &mut Command) -> Result<Value> {
    let output = command.output().with_context(|| format!("{command:?} can't be started"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", last_line(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("{command:?} prints no JSON"))
}

/// The last line of what a process said.
pub fn last_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    said.lines().last().unwrap_or("it says nothing").to_string()
}
