//! Solves the plan, compiles the kernels, packs the demo model.
//!
//! `GANGLION_PLAN=path` picks the plan (default `plans/demo.toml`), `GANGLION_BUDGET=12GB` replaces
//! its budget. Plan, image format and packer are the engine's own files, compiled here too.

#[path = "src/image/mod.rs"]
#[allow(dead_code, unused_imports)] // the engine and the forge use the rest
mod image;

#[path = "src/plan/mod.rs"]
#[allow(dead_code, unused_imports)] // likewise
mod plan;

#[path = "src/forge"]
#[allow(dead_code)] // the forge uses the rest
mod forge {
    pub mod decode;
    pub mod emit;
    #[path = "gguf/mod.rs"]
    pub mod gguf;
    pub mod inputs;
    #[path = "model/mod.rs"]
    pub mod model;
    #[path = "pack/mod.rs"]
    pub mod pack;
    pub mod quantize;
    #[path = "source/mod.rs"]
    pub mod source;
    pub mod template;
    pub mod tokenizer;
    pub mod verify;
    pub mod vocabulary;
}

#[path = "kernels/compile.rs"]
mod kernels;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

const DEMO_PLAN: &str = "plans/demo.toml";
const DEMO_MODEL: &str = "tests/data/demo/ganglion-demo-14m.f16.gguf";
const DEMO_NAME: &str = "ganglion-demo-14m";

fn main() {
    if let Err(sentence) = build() {
        eprintln!("ganglion: {sentence}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    for file in ["build.rs", "src/plan", "src/image", "src/forge", "kernels", DEMO_MODEL] {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rerun-if-env-changed=GANGLION_PLAN");
    println!("cargo::rerun-if-env-changed=GANGLION_BUDGET");
    kernels::compile();
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets no OUT_DIR")?);
    solve_plan(&out)
}

fn solve_plan(out: &Path) -> Result<(), String> {
    let path = PathBuf::from(env::var_os("GANGLION_PLAN").unwrap_or(DEMO_PLAN.into()));
    let budget = env::var("GANGLION_BUDGET").ok();
    let source = forge::inputs::read(&path, budget.as_deref()).map_err(|e| e.to_string())?;
    for file in &source.files {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    let name = path.display();
    let plan = plan::solve(source.inputs).map_err(|error| format!("plan {name}: {error}"))?;
    plan::check(&plan).map_err(|error| format!("plan {name}: {error}"))?;
    let image = match source.image {
        Some(image) => image,
        None if plan.inputs.model == DEMO_NAME => pack_demo(&plan, out)?,
        None => format!("{}.image", plan.inputs.model),
    };
    let text = forge::emit::plan_source(&plan, &image);
    fs::write(out.join("plan.rs"), text)
        .map_err(|error| format!("plan.rs can't be written to {}: {error}", out.display()))
}

/// Packs the committed demo model with the plan's types; an image that is newer than the model
/// and the packer stays.
fn pack_demo(plan: &plan::Plan, out: &Path) -> Result<String, String> {
    let types = &plan.inputs.numerics.types;
    let names = [types.records, types.down, types.resident, types.head, types.embedding];
    let names = names.map(|weight| weight.name());
    let image = out.join(format!("{DEMO_NAME}.{}.image", names.join("-")));
    let text = image.to_str().ok_or("the build folder's name is not UTF-8")?.to_string();
    if is_newer(&image, &[Path::new(DEMO_MODEL), &env::current_exe().unwrap_or_default()]) {
        return Ok(text);
    }
    let model = forge::model::ModelFile::open(Path::new(DEMO_MODEL)).map_err(|e| e.to_string())?;
    forge::pack::pack(&model, types, &image, &mut |_, _| {}).map_err(|e| e.to_string())?;
    Ok(text)
}

fn is_newer(file: &Path, than: &[&Path]) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    time(file).is_some_and(|made| than.iter().all(|path| time(path).is_some_and(|t| t <= made)))
}
