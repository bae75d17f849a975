//! Real models in the folder that `GANGLION_MODELS` names; `.ci/fetch-models` fetches them.

use std::path::PathBuf;

/// SmolLM2-135M-Instruct.
pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Qwen2.5-Coder-1.5B-Instruct.
pub const QWEN: &str = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf";

/// The file, or a line that says that its test is skipped.
pub fn model_file(file: &str) -> Option<PathBuf> {
    let path = std::env::var_os("GANGLION_MODELS").map(|folder| PathBuf::from(folder).join(file));
    let found = path.filter(|path| path.is_file());
    if found.is_none() {
        println!("skipped: GANGLION_MODELS names no folder with {file}");
    }
    found
}
