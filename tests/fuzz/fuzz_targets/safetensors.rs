//! Any bytes at all as one of the files of a checkpoint: the first byte chooses which.
#![no_main]

#[path = "../readers.rs"]
mod readers;
#[path = "../../safetensors/writer.rs"]
mod writer;

use libfuzzer_sys::fuzz_target;
use readers::{Scratch, seeds};
use std::path::Path;
use std::sync::LazyLock;

static FILES: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    writer::Checkpoint::open(&seeds(&root)[1], "mixtral").files(2)
});
/// One folder a process.
static FOLDER: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("safetensors", &FILES));

fuzz_target!(|bytes: &[u8]| {
    if let Some((&choice, bytes)) = bytes.split_first() {
        let (name, whole) = &FILES[usize::from(choice) % FILES.len()];
        FOLDER.checkpoint(name, bytes, whole);
    }
});
