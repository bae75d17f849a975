//! Solves the plan, compiles the kernels, packs the demo model.
//!
//! `GANGLION_PLAN=path` picks the plan (default `plans/demo.toml`), `GANGLION_BUDGET=12GB` replaces
//! its budget. The plan's source, the image format and the packer are the engine's own files.

#[path = "src/image/mod.rs"]
#[allow(dead_code)]
mod image;

#[path = "src/plan/mod.rs"]
#[allow(dead_code)]
mod plan;

#[path = "src/forge"]
#[allow(dead_code)]
mod forge {
    pub mod emit;
    pub mod inputs;
}

use std::env;
use std::path::{Path, PathBuf};

const DEMO_PLAN: &str = "plans/demo.toml";

fn main() {
    if let Err(sentence) = build() {
        eprintln!("ganglion: {sentence}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed=GANGLION_PLAN");
    println!("cargo::rerun-if-env-changed=GANGLION_BUDGET");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/plan");
    println!("cargo::rerun-if-changed=src/image");
    println!("cargo::rerun-if-changed=src/forge");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets no OUT_DIR")?);
    solve_plan(&out)
}

fn solve_plan(out: &Path) -> Result<(), String> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets no folder")?);
    let path = root.join(env::var_os("GANGLION_PLAN").unwrap_or(DEMO_PLAN.into()));
    let budget = env::var("GANGLION_BUDGET").ok();
    let source =
        forge::inputs::read(&path, budget.as_deref()).map_err(|error| error.to_string())?;
    for file in &source.files {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    let name = path.display();
    let plan = plan::solve(source.inputs).map_err(|error| format!("plan {name}: {error}"))?;
    plan::check(&plan).map_err(|error| format!("plan {name}: {error}"))?;
    let image = source.image.unwrap_or_default();
    std::fs::write(out.join("plan.rs"), forge::emit::plan_source(&plan, &image))
        .map_err(|error| format!("plan.rs can't be written to {}: {error}", out.display()))
}
