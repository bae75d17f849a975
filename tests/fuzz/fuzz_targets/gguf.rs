//! Any bytes at all through the GGUF reader: an error or a file whose every tensor can be read.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use ganglion::forge::gguf::Gguf;
use libfuzzer_sys::fuzz_target;

/// One file a process, written again for each input.
static PATH: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("ganglion-fuzz-{}", std::process::id())));

fuzz_target!(|bytes: &[u8]| {
    fs::write(&*PATH, bytes).expect("the temporary folder takes a file");
    let gguf = match Gguf::open(&PATH) {
        Ok(gguf) => gguf,
        Err(error) => {
            assert!(!error.to_string().contains('\n'));
            return;
        }
    };
    for key in gguf.keys() {
        let _ = (gguf.opt_u64(key), gguf.opt_f32(key), gguf.opt_bool(key), gguf.opt_string(key));
        let _ = (gguf.opt_strings(key), gguf.opt_i32s(key), gguf.opt_f32s(key));
    }
    for tensor in gguf.tensors() {
        let rows = gguf.rows_f32(tensor, 0, tensor.rows());
        assert_eq!(rows.is_ok(), tensor.kind.is_readable());
    }
});
