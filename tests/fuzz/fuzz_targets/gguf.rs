//! Any bytes at all as a GGUF file.
#![no_main]

#[path = "../readers.rs"]
mod readers;

use libfuzzer_sys::fuzz_target;
use readers::Scratch;
use std::sync::LazyLock;

/// One folder a process.
static FOLDER: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("gguf", &[]));

fuzz_target!(|bytes: &[u8]| {
    FOLDER.gguf(bytes);
});
