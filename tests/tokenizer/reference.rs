//! Vocabularies of real models against the reference tokenizers.
//!
//! `GANGLION_DATA` names a folder with `tokenizer/` (llama.cpp's vocabularies and test vectors),
//! `GANGLION_MODELS` one with model files. `GANGLION_PYTHON` is a Python that has the packages
//! which data/tokenizer/reference.py names, `GANGLION_LLAMA` a folder with llama.cpp's programs;
//! `GANGLION_STRINGS` is how many strings they encode a vocabulary.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ganglion::forge::tokenizer::TokenizerSource;

use super::{PLAIN, SPECIAL, Section, decode, encode, gguf_source, ids, json, thinned};

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const QWEN2: &str = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf";

/// A file in the folder that an environment variable names, or a line that says it is not there.
fn file(variable: &str, name: &str) -> Option<PathBuf> {
    let path = env::var_os(variable).map(|folder| PathBuf::from(folder).join(name));
    let found = path.filter(|path| path.exists());
    if found.is_none() {
        println!("SKIP: {variable} names no folder with {name}");
    }
    found
}

/// llama.cpp's test vectors `NAME.inp` and `NAME.out` with the vocabulary of `model`.
fn vectors(model: Option<PathBuf>, name: &str) {
    let (Some(model), Some(texts), Some(wanted)) = (
        model,
        file("GANGLION_DATA", &format!("tokenizer/{name}.inp")),
        file("GANGLION_DATA", &format!("tokenizer/{name}.out")),
    ) else {
        return;
    };
    let section = Section::of(&gguf_source(&model));
    let tokenizer = section.tokenizer();
    let (texts, wanted) = (fs::read_to_string(texts).unwrap(), fs::read_to_string(wanted).unwrap());
    let texts: Vec<&str> = texts.split_terminator("\n__ggml_vocab_test__\n").collect();
    let wanted: Vec<&str> = wanted.lines().collect();
    assert!(texts.len() > 40 && texts.len() == wanted.len());
    for (text, wanted) in texts.into_iter().zip(wanted) {
        let wanted: Vec<u32> = wanted.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert_eq!(encode(&tokenizer, text, PLAIN), wanted, "{text:?}");
        assert_eq!(decode(&tokenizer, &wanted), text);
    }
}

#[test]
fn gpt2_vectors() {
    vectors(file("GANGLION_DATA", "tokenizer/vocab-gpt-2.gguf"), "gpt-2");
}

#[test]
fn qwen2_vectors() {
    vectors(file("GANGLION_MODELS", QWEN2), "qwen2");
}

#[test]
fn llama_spm_vectors() {
    vectors(file("GANGLION_DATA", "tokenizer/vocab-llama-spm.gguf"), "llama-spm");
}

/// The ends that llama.cpp lists for these files; but Qwen2's `</s>` is a normal token, a word like
/// any other, and stays one.
#[test]
fn ends_of_real_vocabularies() {
    let cases: [(&str, &[u32]); 2] =
        [(SMOLLM2, &[0, 2, 4]), (QWEN2, &[151_643, 151_645, 151_662, 151_663, 151_664])];
    for (name, wanted) in cases {
        let Some(path) = file("GANGLION_MODELS", name) else { continue };
        let section = Section::of(&gguf_source(&path));
        let tokenizer = section.tokenizer();
        let ends: Vec<u32> =
            (0..tokenizer.token_count()).filter(|&id| tokenizer.is_end(id)).collect();
        assert_eq!(ends, wanted, "{name}");
    }
}

/// Random and adversarial strings, both directions, by the vocabulary of `model`; cut by `pre` and
/// with fewer merges where that is given.
fn strings(model: Option<PathBuf>, pre: Option<&str>) {
    let Some(model) = model else { return };
    let Some(python) = env::var_os("GANGLION_PYTHON") else {
        println!("SKIP: GANGLION_PYTHON names no Python with the reference tokenizers");
        return;
    };
    let mut source = gguf_source(&model);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer/reference.py");
    let mut reference = Command::new(python);
    reference.arg(script);
    if let Some(pre) = pre {
        reference.args(["--pre", pre]);
        source.pre = pre.into();
        source.merges = thinned(&source.merges);
    }
    let count = env::var("GANGLION_STRINGS").unwrap_or("25000".into());
    reference.arg(&model).arg(count).stdout(Stdio::piped());
    compare(&source, &mut reference);
    if let Some(tool) = file("GANGLION_LLAMA", "llama-tokenize") {
        compare(&source, reference.arg("--llama").arg(tool));
    }
}

fn compare(source: &TokenizerSource, reference: &mut Command) {
    let section = Section::of(source);
    let tokenizer = section.tokenizer();
    let mut reference = reference.spawn().unwrap();
    let (mut encoded, mut decoded) = (0, 0);
    let mut wrong = Vec::new();
    for line in BufReader::new(reference.stdout.take().unwrap()).lines() {
        let case = json(&line.unwrap());
        let plain = ids(&case[1]);
        let mut check = |good: bool, way: &str| {
            if !good {
                wrong.push(format!("{way}: {case}"));
            }
        };
        if let Some(text) = case[0].as_str() {
            check(encode(&tokenizer, text, PLAIN) == plain, "plain");
            let special = || encode(&tokenizer, text, SPECIAL) == ids(&case[2]);
            check(case[2].is_null() || special(), "special");
            encoded += 1;
        }
        check(decode(&tokenizer, &plain) == case[3].as_str().unwrap(), "decoded");
        decoded += 1;
    }
    assert!(reference.wait().unwrap().success());
    assert!(encoded > 0 && decoded > encoded);
    let sample = &wrong[..wrong.len().min(20)];
    assert!(wrong.is_empty(), "{} differ: {sample:#?}", wrong.len());
    println!("{}: {encoded} strings, {decoded} lists of ids", source.pre);
}

#[test]
fn gpt2_strings() {
    strings(file("GANGLION_DATA", "tokenizer/vocab-gpt-2.gguf"), None);
}

/// Llama 3's own vocabulary is not to be had freely: GPT-2's, cut as Llama 3's.
#[test]
fn llama_bpe_strings() {
    strings(file("GANGLION_DATA", "tokenizer/vocab-gpt-2.gguf"), Some("llama-bpe"));
}

#[test]
fn llama_spm_strings() {
    strings(file("GANGLION_DATA", "tokenizer/vocab-llama-spm.gguf"), None);
}

#[test]
fn smollm_strings() {
    strings(file("GANGLION_MODELS", SMOLLM2), None);
}

#[test]
fn qwen2_strings() {
    strings(file("GANGLION_MODELS", QWEN2), None);
}
