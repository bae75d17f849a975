//! Every family of models: logits of tiny ones against an independent forward pass, what is refused
//! by name, and real models where they are to be had.
#![cfg(feature = "host")]

#[path = "common/engine.rs"]
mod engine;
#[path = "common/models.rs"]
mod models;
#[path = "common/process.rs"]
mod process;
#[path = "families/real.rs"]
mod real;
#[path = "common/refusal.rs"]
mod refusal;
#[path = "families/refused.rs"]
mod refused;

use engine::session_on;
use ganglion::forge::inputs::read_shape;
use ganglion::forge::model::ModelFile;
use ganglion::forge::pack::pack;
use ganglion::forge::shape::shape_toml;
use ganglion::image::{Biases, Types, WeightType};
use ganglion::kernel::Isa;
use ganglion::plan::{Inputs, KvType, Lock, Numerics, Plan, solve};
use refusal::Folder;
use std::path::{Path, PathBuf};

/// Models that `tests/data/families/make.py` wrote.
const MODELS: [&str; 11] = [
    "llama",
    "llama-linear",
    "llama3-factors",
    "llama3-keys",
    "llama-biases",
    "mistral-window",
    "mixtral",
    "mixtral-drelu",
    "qwen2",
    "qwen2-yarn",
    "qwen2-partial",
];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/families").join(name)
}

fn model(name: &str) -> ModelFile {
    ModelFile::open(&data(&format!("{name}.gguf"))).unwrap_or_else(|error| panic!("{error}"))
}

/// A plan that holds all of a model.
fn plan_of(model: &ModelFile, numerics: Numerics, context_tokens: u64) -> Plan {
    let inputs = Inputs {
        shape: model.shape,
        numerics,
        context_tokens,
        lock: Lock::Off,
        budget_bytes: 8 << 30,
        ..ganglion::baked::PLAN.inputs
    };
    let least = solve(inputs).unwrap_or_else(|error| panic!("{error}"));
    solve(Inputs { budget_bytes: least.total_bytes(), ..inputs }).unwrap()
}

fn numerics(weight: WeightType, embedding: WeightType, kv: KvType) -> Numerics {
    let types = Types { records: weight, down: weight, resident: weight, head: weight, embedding };
    Numerics { types, kv }
}

/// Token ids, and the reference's logits after each of them.
fn reference(name: &str) -> (Vec<u32>, Vec<Vec<f32>>) {
    let mut npz = npyz::npz::NpzArchive::open(data("logits.npz")).unwrap();
    let ids: Vec<i32> = npz.by_name("ids").unwrap().unwrap().into_vec().unwrap();
    let flat: Vec<f32> = npz.by_name(name).unwrap().unwrap().into_vec().unwrap();
    let lines = flat.chunks_exact(flat.len() / ids.len()).map(<[f32]>::to_vec).collect();
    (ids.into_iter().map(|id| id as u32).collect(), lines)
}

/// The largest difference from the reference at any position, token by token and in chunks.
fn worst(name: &str, weight: WeightType, kv: KvType, isa: Isa) -> f32 {
    let folder = Folder::new(&format!("families-{name}-{}-{}", weight.name(), isa.name()));
    let (model, image) = (model(name), folder.file("image"));
    let numerics = numerics(weight, WeightType::F16, kv);
    pack(&model, &numerics.types, &image, &mut |_, _| {}).unwrap();
    let (ids, wanted) = reference(name);
    let plan = plan_of(&model, numerics, ids.len() as u64);
    let image = image.to_str().unwrap().to_string().leak().as_bytes();
    session_on(image, &plan, 2, isa, |session| {
        let far = |ours: &[f32], theirs: &[f32]| {
            ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        let mut worst = 0.0f32;
        for (position, (&id, theirs)) in ids.iter().zip(&wanted).enumerate() {
            session.model.forward(id, position)?;
            worst = worst.max(far(session.model.logits()?, theirs));
        }
        for chunk in [session.chunk.min(ids.len()), 7] {
            for (index, ids) in ids.chunks(chunk).enumerate() {
                session.model.prefill(ids, index * chunk)?;
                let last = index * chunk + ids.len() - 1;
                worst = worst.max(far(session.model.logits()?, &wanted[last]));
            }
        }
        Ok(worst)
    })
}

/// Differences are told in parts of the largest logit, 3 to 21 here.
#[test]
fn logits_match_an_independent_forward_pass() {
    for name in MODELS {
        let (_, wanted) = reference(name);
        let largest = wanted.iter().flatten().fold(0.0, |most: f32, x| most.max(x.abs()));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let found = worst(name, WeightType::F16, KvType::Single, isa) / largest;
            println!("{name}, {}: max |dlogit| f16 {found:.1e} of the largest", isa.name());
            assert!(found <= 1e-3, "{name} {}: {found}", isa.name());
        }
        // Codes: a wrong order of rows or a missing bias would be far beyond their rounding.
        let found = worst(name, WeightType::Q8, KvType::Half, Isa::best()) / largest;
        println!("{name}: max |dlogit| q8 {found:.1e} of the largest");
        assert!(found <= 0.08, "{name}: {found}");
    }
}

#[test]
fn a_shape_that_was_written_reads_back() {
    let folder = Folder::new("families-shape");
    for name in MODELS {
        let shape = model(name).shape;
        let text = shape_toml(name, &shape);
        let file = folder.write(&format!("{name}.toml"), &text);
        assert_eq!(read_shape(&file).unwrap_or_else(|error| panic!("{error}")), shape, "{text}");
        // Files of models without them stay as they were.
        let has = |key: &str| text.lines().any(|line| line.starts_with(key));
        let biases = Biases {
            qkv: name.starts_with("qwen2") || name == "llama-biases",
            output: name == "llama-biases",
            ffn: name == "llama-biases",
        };
        assert_eq!(shape.biases, biases, "{name}");
        let keys = [has("qkv_bias"), has("output_bias"), has("ffn_bias"), has("window")];
        assert_eq!(keys, [biases.qkv, biases.output, biases.ffn, name == "mistral-window"]);
    }
}

/// Both are of the same weights: the factors are the tensor's, or follow from the keys.
#[test]
fn llama3_frequencies_by_tensor_and_by_keys_agree() {
    let (tensor, keys) = (model("llama3-factors").rope, model("llama3-keys").rope);
    for (a, b) in tensor.frequencies.iter().zip(&keys.frequencies) {
        assert!((a / b - 1.0).abs() < 1e-6, "{a} {b}");
    }
    assert_eq!((tensor.attention_factor, keys.attention_factor), (1.0, 1.0));
}
