//! Opens a model file of any format that is read.
//!
//! Called by `ganglion-forge`; build.rs, which packs a GGUF file, opens that itself and so needs no
//! reader of JSON.

use std::path::Path;

use super::gguf;
use super::model::{ModelFile, ModelFileError};
use super::safetensors;

/// Opens the model at `path`: a GGUF file or one of its shards, a folder with safetensors, or one
/// of these.
///
/// # Errors
/// As the formats' own `open`, and where it is not a model that can be packed.
pub fn open_model(path: &Path) -> Result<ModelFile, ModelFileError> {
    let is_checkpoint = path.is_dir() || path.extension().is_some_and(|e| e == "safetensors");
    let source = if is_checkpoint { safetensors::open(path)? } else { gguf::open(path)? };
    ModelFile::new(source)
}
