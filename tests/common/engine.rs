//! A booted engine for the suites: any numerics, budget, threads and kernels, in this process.
#![allow(dead_code)] // each suite uses its part

use ganglion::cli::generate::{Limits, encode, generate};
use ganglion::cli::{BootOptions, Fault, Session, boot};
use ganglion::forge::model::ModelFile;
use ganglion::forge::pack::pack;
use ganglion::image::{Types, WeightType};
use ganglion::kernel::{Isa, Kernels};
use ganglion::plan::{KvType, Lock, Numerics, Plan, PlanError, solve};
use ganglion::token::{Sampler, SamplerConfig};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The demo's files.
pub fn demo(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/demo").join(name)
}

/// A JSON file of the demo.
pub fn demo_json(name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(demo(name)).expect("the demo's files are committed");
    serde_json::from_str(&text).expect("they are JSON")
}

/// Numerics whose rows, head and records share a type; embeddings are f16.
pub fn numerics(weight: WeightType, kv: KvType) -> Numerics {
    // The reference's Q4_0 file keeps the embedding matrix, and so the tied head, at Q8_0.
    let head = if weight == WeightType::Q4 { WeightType::Q8 } else { weight };
    let embedding = WeightType::F16;
    let types = Types { records: weight, down: weight, resident: weight, head, embedding };
    Numerics { types, kv }
}

/// The demo's plan with other numerics and budget; memory is not locked.
pub fn plan_of(numerics: Numerics, budget_bytes: u64) -> Result<Plan, PlanError> {
    let inputs = ganglion::baked::PLAN.inputs;
    solve(ganglion::plan::Inputs { numerics, budget_bytes, lock: Lock::Off, ..inputs })
}

/// The budget that holds every neuron, with nothing unused.
pub fn budget_of_everything(numerics: Numerics) -> u64 {
    let plan = plan_of(numerics, 1 << 30).expect("a gigabyte holds the demo");
    assert_eq!(plan.slot_count, plan.inputs.shape.neurons());
    plan.total_bytes()
}

/// The smallest budget that plans.
pub fn smallest_budget(numerics: Numerics) -> u64 {
    match plan_of(numerics, 1) {
        Err(PlanError::BudgetTooSmall { wanted_bytes, .. }) => wanted_bytes,
        other => panic!("one byte is too small: {other:?}"),
    }
}

/// The demo packed as `types`, made once a process.
pub fn image(types: &Types) -> &'static [u8] {
    static MADE: Mutex<BTreeMap<String, &'static [u8]>> = Mutex::new(BTreeMap::new());
    let names = [types.records, types.down, types.resident, types.head, types.embedding];
    let key = names.map(|weight| weight.name()).join("-");
    let mut made = MADE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    made.entry(key.clone()).or_insert_with(|| {
        let name = format!("demo.{key}.{}.image", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let model = ModelFile::open(&demo("ganglion-demo-14m.f16.gguf")).expect("it is sound");
        pack(&model, types, &path, &mut |_, _| {}).expect("there is space");
        path.to_str().expect("a plain path").to_string().leak().as_bytes()
    })
}

/// Boots `plan` over the demo packed as its types.
pub fn session<R>(
    plan: &Plan,
    threads: usize,
    isa: Isa,
    then: impl FnOnce(&mut Session<'_>) -> Result<R, Fault>,
) -> R {
    session_on(image(&plan.inputs.numerics.types), plan, threads, isa, then)
}

/// Boots `plan` over `image`.
pub fn session_on<R>(
    image: &'static [u8],
    plan: &Plan,
    threads: usize,
    isa: Isa,
    then: impl FnOnce(&mut Session<'_>) -> Result<R, Fault>,
) -> R {
    let options = BootOptions {
        image,
        threads,
        kernels: Kernels::of(isa).expect("the suite asks only for available kernels"),
        prove_seal: false,
        enforce_budget: false,
        refuse_memory_backed: false,
    };
    boot(plan, &options, then).unwrap_or_else(|fault| panic!("{fault}"))
}

/// Tokens, the bits of the last logits, and misses of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub tokens: Vec<u32>,
    pub logits: Vec<u32>,
    pub misses: u64,
}

/// Continues `prompt` in a fresh session by `tokens` tokens, past the end of the text.
pub fn continued(
    session: &mut Session<'_>,
    prompt: &str,
    config: SamplerConfig,
    tokens: u32,
) -> Result<Run, Fault> {
    let prompt = encode(session, prompt)?;
    let mut sampler = Sampler::new(config).unwrap();
    let limits = Limits { tokens, ignore_end: true };
    let measured = generate(session, prompt, &mut sampler, limits, |_| Ok(()))?;
    assert_eq!(measured.tokens, u64::from(tokens));
    assert!(session.model.workshop.is_consistent());
    let end = prompt + tokens as usize;
    let logits = session.model.logits()?.iter().map(|x| x.to_bits()).collect();
    let misses = session.model.workshop.counters.misses;
    Ok(Run { tokens: session.tokens[..end].to_vec(), logits, misses })
}
