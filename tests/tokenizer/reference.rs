//! Vocabularies of real models against the reference tokenizers.
//!
//! `GANGLION_DATA` names a folder with `tokenizer/` (llama.cpp's vocabularies and test vectors),
//! `GANGLION_MODELS` one with model files. `GANGLION_PYTHON` is a Python that has the packages
//! which data/tokenizer/reference.py names, `GANGLION_LLAMA` a folder with llama.cpp's programs;
//! `GANGLION_STRINGS` is how many strings they encode a vocabulary.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{PLAIN, SPECIAL, Section, decode, encode, gguf_source, ids, json};

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

/// Random and adversarial strings, both directions, by the vocabulary of `model`.
fn strings(model: Option<PathBuf>) {
    let Some(model) = model else { return };
    let Some(python) = env::var_os("GANGLION_PYTHON") else {
        println!("SKIP: GANGLION_PYTHON names no Python with the reference tokenizers");
        return;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer/reference.py");
    let count = env::var("GANGLION_STRINGS").unwrap_or("25000".into());
    let mut arguments = vec![script.into(), model.clone().into_os_string(), count.into()];
    compare(&model, &python, &arguments);
    if let Some(tool) = file("GANGLION_LLAMA", "llama-tokenize") {
        arguments.push(tool.into_os_string());
        compare(&model, &python, &arguments);
    }
}

fn compare(model: &Path, python: &std::ffi::OsStr, arguments: &[std::ffi::OsString]) {
    let section = Section::of(&gguf_source(model));
    let tokenizer = section.tokenizer();
    let mut reference =
        Command::new(python).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
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
    let sample = &wrong[..wrong.len().min(20)];
    assert!(wrong.is_empty(), "{} differ: {sample:#?}", wrong.len());
    println!("{}: {encoded} strings, {decoded} lists of ids", model.display());
}

#[test]
fn gpt2_strings() {
    strings(file("GANGLION_DATA", "tokenizer/vocab-gpt-2.gguf"));
}

#[test]
fn llama_spm_strings() {
    strings(file("GANGLION_DATA", "tokenizer/vocab-llama-spm.gguf"));
}

#[test]
fn smollm_strings() {
    strings(file("GANGLION_MODELS", SMOLLM2));
}

#[test]
fn qwen2_strings() {
    strings(file("GANGLION_MODELS", QWEN2));
}
