//! What a fuzz target does with its bytes: body of `fuzz_targets/` and of the suite `mutations`.
//!
//! Any bytes at all: an error of one line, or a model whose every key and row can be read.
#![allow(dead_code)] // each target uses its part

use ganglion::forge::gguf;
use ganglion::forge::model::ModelFile;
use ganglion::forge::safetensors;
use ganglion::forge::source::{Source, SourceError};
use std::fs;
use std::path::{Path, PathBuf};

/// A scratch folder of this process, removed with the value.
pub struct Scratch(PathBuf);

impl Scratch {
    /// With these files in it.
    pub fn new(name: &str, files: &[(String, Vec<u8>)]) -> Scratch {
        let folder = format!("ganglion-fuzz-{name}-{}", std::process::id());
        // In memory where there is such a folder: thousands of files a second.
        let memory = PathBuf::from("/dev/shm");
        let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let scratch = Scratch(parent.join(folder));
        fs::create_dir_all(&scratch.0).expect("the temporary folder takes a folder");
        files.iter().for_each(|(name, bytes)| scratch.write(name, bytes));
        scratch
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join(name), bytes).expect("the temporary folder takes a file");
    }

    /// `bytes` as a GGUF file; whether it opened.
    pub fn gguf(&self, bytes: &[u8]) -> bool {
        self.write("model.source", bytes);
        judge(gguf::open(&self.0.join("model.source")))
    }

    /// `bytes` as the file `name` of the checkpoint in this folder, then `whole` again; whether it
    /// opened.
    pub fn checkpoint(&self, name: &str, bytes: &[u8], whole: &[u8]) -> bool {
        self.write(name, bytes);
        let opened = judge(safetensors::open(&self.0));
        self.write(name, whole);
        opened
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn judge(opened: Result<Source, SourceError>) -> bool {
    let source = match opened {
        Ok(source) => source,
        Err(error) => {
            one_line(&error.to_string());
            return false;
        }
    };
    for key in source.keys() {
        let _ = (source.opt_u64(key), source.opt_f32(key), source.opt_bool(key));
        let _ = (source.opt_string(key), source.opt_strings(key));
        let _ = (source.opt_i32s(key), source.opt_f32s(key));
    }
    for tensor in source.tensors() {
        let rows = source.rows_f32(tensor, 0, tensor.rows());
        assert_eq!(rows.is_ok(), tensor.kind.is_readable(), "{}", tensor.name);
    }
    if let Err(error) = ModelFile::new(source) {
        one_line(&error.to_string());
    }
    true
}

fn one_line(sentence: &str) {
    assert!(!sentence.contains('\n') && sentence.len() < 1000, "{sentence}");
}

/// The small models of `tests/data`, as seeds.
pub fn seeds(root: &Path) -> Vec<PathBuf> {
    let names = ["layout/tiny", "families/mixtral", "families/qwen2-yarn", "families/llama-biases"];
    names.map(|name| root.join(format!("tests/data/{name}.gguf"))).to_vec()
}
