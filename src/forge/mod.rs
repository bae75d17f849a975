//! The forge: what happens before the engine runs. Std only (feature `host`).
//!
//! `ganglion-forge` is its one binary; build.rs compiles the parts it needs from the same files.
//!
//! ```text
//! OPEN    gguf or safetensors -> source::Source -> model::ModelFile
//! SHAPE   model::ModelFile -> plans/models/NAME.toml
//! PACK    model::ModelFile -> quantize -> pack -> verify
//! EVAL    image, text -> plan::solve -> cli::boot -> perplexity
//! PLAN    inputs::read -> plan::solve -> emit (build.rs) or a report
//! ```

pub mod decode;
pub mod emit;
pub mod eval;
pub mod gguf;
pub mod inputs;
pub mod model;
pub mod open;
pub mod pack;
pub mod progress;
pub mod quantize;
pub mod report;
pub mod safetensors;
pub mod shape;
pub mod source;
pub mod synth;
pub mod template;
pub mod tokenizer;
pub mod verify;
pub mod vocabulary;
