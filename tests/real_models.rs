//! Real models that are larger than their budgets: the same text and the same bits of the last
//! logits whether their networks stream or lie in memory, on any number of threads.
//!
//! `GANGLION_MODELS` names their folder.
#![cfg(feature = "host")]

#[path = "common/engine.rs"]
mod engine;
#[path = "common/models.rs"]
mod models;
#[path = "common/process.rs"]
mod process;
#[path = "common/refusal.rs"]
mod refusal;

use engine::{Run, continued, session_on};
use ganglion::forge::inputs::read;
use ganglion::forge::model::ModelFile;
use ganglion::forge::pack::pack;
use ganglion::kernel::Isa;
use ganglion::plan::{Inputs, Lock, Plan, PlanError, solve};
use ganglion::token::SamplerConfig;
use models::{QWEN, SMOLLM2, model_file};
use refusal::Folder;
use std::collections::BTreeSet;
use std::path::Path;

const PROMPT: &str = "# Sorts a list of numbers in place.\ndef quicksort(values):\n";
const TOKENS: u32 = 64;

/// A plan of `plans/`, its memory not locked.
fn inputs(plan: &str) -> Inputs {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans").join(plan);
    let source = read(&path, None).unwrap_or_else(|error| panic!("{error}"));
    Inputs { lock: Lock::Off, ..source.inputs }
}

/// The smallest budget that plans.
fn smallest_budget(inputs: Inputs) -> u64 {
    match solve(Inputs { budget_bytes: 1, ..inputs }) {
        Err(PlanError::BudgetTooSmall { wanted_bytes, .. }) => wanted_bytes,
        other => panic!("one byte is too small: {other:?}"),
    }
}

/// Continues the prompt on `threads` threads.
fn run(image: &'static [u8], plan: &Plan, threads: usize) -> Run {
    session_on(image, plan, threads, Isa::best(), |session| {
        continued(session, PROMPT, SamplerConfig::GREEDY, TOKENS)
    })
}

/// Packs `file` as `inputs` want it; a run at each budget, on one thread and on two, must be that
/// of a plan that holds everything.
fn check(file: &str, inputs: Inputs, budgets: &[u64]) {
    let Some(source) = model_file(file) else { return };
    let folder = Folder::new(&format!("real-models-{file}"));
    let image = folder.file("image");
    let model = ModelFile::open(&source).unwrap_or_else(|error| panic!("{error}"));
    pack(&model, &inputs.numerics.types, &image, &mut |_, _| {}).unwrap();
    let image = image.to_str().unwrap().to_string().leak().as_bytes();
    let plan = |budget_bytes| solve(Inputs { budget_bytes, ..inputs }).unwrap();

    let everything = plan(plan(8 << 30).total_bytes());
    let wanted = run(image, &everything, 1);
    assert!(!everything.streams && wanted.misses == 0, "{file}: {} misses", wanted.misses);
    let known: BTreeSet<u32> = wanted.tokens.iter().copied().collect();
    assert!(known.len() > 16, "{file}: no text: {:?}", wanted.tokens);
    assert!(wanted.logits.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{file}");

    let mut ways = vec![(everything, 2)];
    ways.extend(budgets.iter().flat_map(|&budget| [1, 2].map(|threads| (plan(budget), threads))));
    for (plan, threads) in ways {
        let found = run(image, &plan, threads);
        let budget = plan.inputs.budget_bytes;
        println!("{file}: {budget} B, {threads} threads: {} misses", found.misses);
        assert_eq!(found.misses > 0, plan.streams, "{file}: {budget} B");
        assert_eq!(found.tokens, wanted.tokens, "{file}: {budget} B, {threads} threads");
        assert!(found.logits == wanted.logits, "{file}: {budget} B, {threads} threads: logits");
    }
}

#[test]
fn qwen_streams_what_memory_would_say() {
    let inputs = inputs("qwen2.5-coder-1.5b-instruct/500mb.toml");
    check(QWEN, inputs, &[400, 500, 700].map(|megabytes| megabytes * 1_000_000));
}

#[test]
fn smollm2_streams_what_memory_would_say() {
    let inputs = inputs("smollm2-135m-instruct.toml");
    check(SMOLLM2, inputs, &[smallest_budget(inputs), inputs.budget_bytes, 175_000_000]);
}
