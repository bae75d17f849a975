//! Broken checkpoints: each one sentence and an exit code.

use super::checkpoint;
use super::process::forge;
use super::refusal::{Folder, Table};
use super::writer::{self, Spec, file, with_header};
use ganglion::forge::safetensors;
use ganglion::forge::source::{Fault, SourceError};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

const DATA: i32 = 65;
const NO_INPUT: i32 = 66;

/// A folder that no other test of this file has.
fn folder(name: &str) -> Folder {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    Folder::new(&format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// Opens the folder, which must fail with a proper sentence.
fn error_of(folder: &Path) -> SourceError {
    let error = safetensors::open(folder).expect_err("a broken checkpoint was accepted");
    let text = error.to_string();
    let sentence = text.strip_prefix(&format!("{}: ", error.path.display())).expect("no path");
    assert!(sentence.len() < 400 && !sentence.contains('\n'), "{text}");
    assert!(sentence.contains([';', ':', ',']), "{text}");
    error
}

fn small() -> Vec<Spec> {
    let spec = |name: &str, shape: &[u64]| {
        let data = vec![0; shape.iter().product::<u64>() as usize * 4];
        Spec { name: name.into(), dtype: "F32", shape: shape.to_vec(), data }
    };
    vec![spec("a", &[4, 2]), spec("b", &[3]), spec("c", &[])]
}

/// The fault of a lone safetensors file.
fn fault_of(bytes: &[u8]) -> Fault {
    let folder = folder("header");
    folder.write("model.safetensors", bytes);
    let error = error_of(&folder.0);
    assert!(error.path.ends_with("model.safetensors"), "{error}");
    error.fault
}

fn changed(change: impl FnOnce(&mut Map<String, Value>)) -> Fault {
    fault_of(&file(&small(), change))
}

#[test]
fn cut_at_every_byte() {
    let bytes = file(&small(), |_| {});
    for length in 0..bytes.len() {
        let fault = fault_of(&bytes[..length]);
        assert!(matches!(fault, Fault::Truncated { has, .. } if has == length as u64), "{fault}");
    }
    // Whole, it is the JSON that is missing.
    let folder = Folder::new("header-whole");
    folder.write("model.safetensors", &bytes);
    let error = error_of(&folder.0);
    assert!(matches!(error.fault, Fault::PartMissing { what: "config.json" }), "{error}");
    let longer = fault_of(&[&bytes[..], &[0]].concat());
    assert!(matches!(longer, Fault::Unclaimed { .. }), "{longer}");
}

#[test]
fn headers_that_lie_about_places() {
    let at = |name: &'static str, from: u64, to: u64| {
        changed(move |header| header[name]["data_offsets"] = json!([from, to]))
    };
    assert!(matches!(at("a", 0, 31), Fault::HeldBytes { start: 0, end: 31, wanted: 32, .. }));
    assert!(matches!(at("a", 32, 0), Fault::HeldBytes { .. }));
    assert!(matches!(at("a", u64::MAX, 31), Fault::HeldBytes { .. }));
    assert!(matches!(at("b", u64::MAX - 12, u64::MAX), Fault::Truncated { .. }));
    assert!(matches!(at("b", 40, 52), Fault::Truncated { .. }));
    assert!(matches!(at("b", 28, 40), Fault::Overlap { .. }));
    assert!(matches!(at("b", 0, 12), Fault::Overlap { .. }));
    assert!(matches!(at("c", 40, 44), Fault::Overlap { .. }));
    assert!(matches!(at("b", 36, 48), Fault::Unclaimed { .. }));
    let gap = changed(|header| drop(header.remove("b")));
    assert!(matches!(gap, Fault::Unclaimed { .. }), "{gap}");
}

#[test]
fn headers_that_lie_about_shapes() {
    let shape = |shape: Value| changed(move |header| header["b"]["shape"] = shape);
    assert!(matches!(shape(json!([0])), Fault::ZeroDimension { .. }));
    assert!(matches!(shape(json!([4])), Fault::HeldBytes { .. }));
    assert!(matches!(shape(json!([1u64 << 62, 4])), Fault::TooLarge { .. }));
    assert!(matches!(shape(json!([u64::MAX, u64::MAX])), Fault::TooLarge { .. }));
    assert!(matches!(shape(json!([1, 1, 1, 1, 3])), Fault::DimensionCount { found: 5, .. }));
    for odd in [json!([-3]), json!([3.5]), json!("3"), json!(null)] {
        assert!(matches!(shape(odd), Fault::Json { .. }));
    }
    let dtype = |dtype: &'static str| changed(move |header| header["b"]["dtype"] = json!(dtype));
    assert!(matches!(dtype("F8_E4M3"), Fault::Dtype { .. }));
    assert!(matches!(dtype("Q4_0"), Fault::Dtype { .. }));
    assert!(matches!(dtype("MXFP4"), Fault::Dtype { .. }));
    assert!(matches!(dtype("F64"), Fault::HeldBytes { .. }));
}

#[test]
fn headers_that_are_none() {
    let huge = |length: u64| fault_of(&[&length.to_le_bytes()[..], b"{}      "].concat());
    assert!(matches!(huge(100_000_001), Fault::HeaderLength { .. }));
    assert!(matches!(huge(u64::MAX), Fault::HeaderLength { .. }));
    assert!(matches!(huge(9), Fault::Truncated { .. }));
    assert!(matches!(fault_of(b"GGUF\x03\0\0\0 and more"), Fault::GgufInside));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let nested = format!("{{\"__metadata__\": {deep}}}");
    let texts =
        ["", "{", "[]", "{\"a\": 1}", "{\"a\": {}}", "{} x", "{\"a\": \"\\ud800\"}", &nested];
    for text in texts {
        let fault = fault_of(&with_header(text, &[]));
        assert!(matches!(fault, Fault::Json { .. }), "{fault}");
    }
    assert!(matches!(fault_of(&with_header("\u{0}", &[])), Fault::Json { .. }));
    // A name twice: the second begins where the first does.
    let twice = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\
                 \"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
    let folder = Folder::new("twice");
    checkpoint("families/llama.gguf", "llama").write_json(&folder.0);
    folder.write("model.safetensors", with_header(twice, &[0; 8]));
    let fault = error_of(&folder.0).fault;
    assert!(
        matches!(fault, Fault::ConfigTensors { .. } | Fault::DuplicateTensor { .. }),
        "{fault}"
    );
}

/// A checkpoint of three shards after `change`, by the binary.
fn refused(change: impl FnOnce(&Folder), code: i32, says: &[&str], table: &mut Table) {
    let folder = folder("shards");
    checkpoint("families/mixtral.gguf", "mixtral").write(&folder.0, 3);
    change(&folder);
    table.row(forge().arg("shape").arg(&folder.0), code, says);
    let image = folder.file("x.image");
    table.row(forge().arg("pack").arg(&folder.0).arg(&image), code, says);
    assert!(
        !image.exists() && !folder.file("x.image.part").exists(),
        "an image was left: {says:?}"
    );
}

#[test]
fn shards_and_files_that_do_not_belong_together() {
    let mut table = Table::default();
    let second = writer::shard_name(2, 3);
    let index = "model.safetensors.index.json";
    refused(
        |folder| fs::remove_file(folder.file(&second)).unwrap(),
        NO_INPUT,
        &[&second, "a shard is missing"],
        &mut table,
    );
    let cut = |folder: &Folder| {
        let bytes = fs::read(folder.file(&second)).unwrap();
        folder.write(&second, &bytes[..bytes.len() - 1]);
    };
    refused(cut, DATA, &[&second, "file incomplete", "fetch the file again"], &mut table);
    let swapped = |folder: &Folder| {
        fs::copy(folder.file(&writer::shard_name(1, 3)), folder.file(&second)).unwrap();
    };
    refused(swapped, DATA, &[&second, "the shard is of another model"], &mut table);
    let fewer = |folder: &Folder| {
        let path = folder.file(&second);
        folder.write(&path.file_name().unwrap().to_string_lossy(), file(&[], |_| {}));
    };
    refused(fewer, DATA, &[&second, "no tensor", "says is here"], &mut table);
    let away = |folder: &Folder| {
        let map = json!({"weight_map": {"a": "../secret.safetensors"}});
        folder.write(index, map.to_string());
    };
    refused(away, DATA, &[index, "../secret.safetensors", "wanted one beside it"], &mut table);
    let torn = |folder: &Folder| drop(folder.write(index, "{\"weight_map\": {"));
    refused(torn, DATA, &[index, "can't be read", "fetch it again"], &mut table);
    let gone = |folder: &Folder| fs::remove_file(folder.file(index)).unwrap();
    refused(gone, NO_INPUT, &["no weights", index], &mut table);
    for name in ["config.json", "tokenizer.json"] {
        let gone = |folder: &Folder| fs::remove_file(folder.file(name)).unwrap();
        refused(gone, NO_INPUT, &[name, "is missing", "fetch it"], &mut table);
        let torn = |folder: &Folder| drop(folder.write(name, "{"));
        refused(torn, DATA, &[name, "can't be read", "fetch it again"], &mut table);
    }
    table.end();
}

#[test]
fn configurations_that_do_not_fit() {
    let rows: [(&str, Value, &[&str]); 12] = [
        ("model_type", json!("gemma2"), &["config.json", "model_type is \"gemma2\"", "qwen2"]),
        ("quantization_config", json!({"quant_method": "awq"}), &["\"awq\"", "BF16"]),
        ("hidden_act", json!("gelu"), &["hidden_act is \"gelu\"", "silu"]),
        ("vocab_size", json!(41), &["vocab_size is 41", "the 40 rows of model.embed_tokens"]),
        ("num_local_experts", json!(4), &["has 3 experts, config.json says 4"]),
        ("num_local_experts", json!(2), &["has 3 experts, config.json says 2"]),
        ("num_local_experts", json!(null), &["has 3 experts, config.json says 0"]),
        ("num_hidden_layers", json!(3), &["no tensor \"blk.2.attn_norm.weight\""]),
        ("hidden_size", json!(32), &["blk.0.attn_norm.weight", "[24]", "[32]"]),
        ("num_attention_heads", json!(0), &["heads is 0"]),
        ("rope_scaling", json!({"rope_type": "dynamic", "factor": 2.0}), &["dynamic"]),
        ("hidden_size", json!("wide"), &["config.json can't be read", "invalid type"]),
    ];
    let mut table = Table::default();
    for (key, value, says) in rows {
        let change = |folder: &Folder| {
            let text = fs::read_to_string(folder.file("config.json")).unwrap();
            let mut config: Value = serde_json::from_str(&text).unwrap();
            config[key] = value;
            folder.write("config.json", config.to_string());
        };
        refused(change, DATA, says, &mut table);
    }
    table.end();
}

#[test]
fn a_head_of_its_own_must_be_there() {
    let folder = folder("head");
    let tied = checkpoint("families/llama.gguf", "llama");
    tied.write(&folder.0, 1);
    let mut config = tied.config();
    config["tie_word_embeddings"] = json!(false);
    folder.write("config.json", config.to_string());
    let error = error_of(&folder.0);
    assert!(matches!(error.fault, Fault::ConfigTensors { key: "tie_word_embeddings", .. }));
    // A copy of the embedding matrix under the head's name is none of a tied model's.
    let mut tensors = tied.tensors();
    let head = tensors.iter().find(|tensor| tensor.name.contains("embed_tokens")).unwrap();
    tensors.push(Spec { name: "lm_head.weight".into(), ..head.clone() });
    folder.write("model.safetensors", file(&tensors, |_| {}));
    folder.write("config.json", tied.config().to_string());
    assert!(safetensors::open(&folder.0).unwrap().opt_tensor("output.weight").is_none());
}

#[test]
fn experts_that_differ_are_named() {
    let folder = Folder::new("experts");
    let checkpoint = checkpoint("families/mixtral.gguf", "mixtral");
    checkpoint.write_json(&folder.0);
    let mut tensors = checkpoint.tensors();
    let odd = tensors.iter_mut().find(|tensor| tensor.name.contains("experts.1.w2")).unwrap();
    odd.shape.reverse();
    folder.write("model.safetensors", file(&tensors, |_| {}));
    let error = error_of(&folder.0);
    assert!(matches!(error.fault, Fault::ExpertShape { .. }), "{error}");
    // A tensor that no name stands for changes the text: it is refused by whoever builds the model.
    let mut tensors = checkpoint.tensors();
    tensors.push(Spec {
        name: "model.extra".into(),
        dtype: "F32",
        shape: vec![1],
        data: vec![0; 4],
    });
    folder.write("model.safetensors", file(&tensors, |_| {}));
    let mut table = Table::default();
    table.row(forge().arg("shape").arg(&folder.0), DATA, &["model.extra", "models without it"]);
    table.end();
}
