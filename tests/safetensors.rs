//! Checkpoints of safetensors and JSON: the same image as from the GGUF file of the same weights,
//! and a sentence for everything that can be wrong.
#![cfg(feature = "host")]

#[path = "safetensors/broken.rs"]
mod broken;
#[path = "common/process.rs"]
mod process;
#[path = "common/refusal.rs"]
mod refusal;
#[path = "safetensors/vocabulary.rs"]
mod vocabulary;
#[path = "safetensors/writer.rs"]
mod writer;

use ganglion::forge::model::ModelFile;
use ganglion::forge::open::open_model;
use ganglion::forge::pack::pack;
use ganglion::forge::source::Format;
use ganglion::image::Types;
use ganglion::image::WeightType::{self, F16, Q4, Q8};
use refusal::Folder;
use std::fs;
use std::path::{Path, PathBuf};
use writer::Checkpoint;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn checkpoint(name: &str, kind: &'static str) -> Checkpoint {
    Checkpoint::open(&data(name), kind)
}

/// The image of `model` as `weight`.
fn image(model: &ModelFile, weight: WeightType, path: &Path) -> Vec<u8> {
    let types =
        Types { records: weight, down: weight, resident: weight, head: weight, embedding: F16 };
    pack(model, &types, path, &mut |_, _| {}).unwrap_or_else(|error| panic!("{error}"));
    fs::read(path).unwrap()
}

/// Families, as tests/data/families has them, with the number of shards.
const FAMILIES: [(&str, &str, usize); 10] = [
    ("families/llama.gguf", "llama", 1),
    ("families/llama-biases.gguf", "llama", 2),
    ("families/llama-linear.gguf", "llama", 3),
    ("families/llama3-keys.gguf", "llama", 1),
    ("families/mistral-window.gguf", "mistral", 2),
    ("families/mixtral.gguf", "mixtral", 4),
    ("families/mixtral-drelu.gguf", "mixtral", 2),
    ("families/qwen2.gguf", "qwen2", 1),
    ("families/qwen2-yarn.gguf", "qwen2", 2),
    ("demo/ganglion-demo-14m.f16.gguf", "mixtral", 3),
];

#[test]
fn a_checkpoint_packs_to_the_image_of_its_gguf() {
    let folder = Folder::new("same-image");
    for (file, kind, shards) in FAMILIES {
        let checkpoint = checkpoint(file, kind);
        let name = checkpoint.gguf.string("general.name").unwrap().to_string();
        let inside = folder.file(&name);
        fs::create_dir(&inside).unwrap();
        checkpoint.write(&inside, shards);
        let paths = [
            inside.clone(),
            inside.join(match shards {
                1 => "model.safetensors".into(),
                count => writer::shard_name(count, count),
            }),
        ];
        let gguf = open_model(&data(file)).unwrap();
        for (path, weight) in paths.iter().zip([Q8, Q4]) {
            let model = open_model(path).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(model.source.format(), Format::Safetensors);
            let found = image(&model, weight, &folder.file("found.image"));
            let wanted = image(&gguf, weight, &folder.file("wanted.image"));
            let differ = (0..wanted.len()).filter(|&at| found.get(at) != wanted.get(at));
            let differ: Vec<usize> = differ.collect();
            assert!(
                found.len() == wanted.len() && differ.is_empty(),
                "{name}: {} bytes differ, from {:?} on",
                differ.len(),
                differ.first()
            );
        }
    }
}

/// The demo's own tokenizer.json, which the tokenizers package wrote.
#[test]
fn the_demo_by_its_own_tokenizer_file() {
    let folder = Folder::new("own-tokenizer");
    let checkpoint = checkpoint("demo/ganglion-demo-14m.f16.gguf", "mixtral");
    checkpoint.write(&folder.0, 1);
    let own = data("demo/ganglion-demo-14m.tokenizer.json");
    fs::copy(own, folder.file("tokenizer.json")).unwrap();
    let model = open_model(&folder.0).unwrap_or_else(|error| panic!("{error}"));
    let gguf = open_model(&data("demo/ganglion-demo-14m.f16.gguf")).unwrap();
    assert_eq!(model.tokenizer, gguf.tokenizer);
}
