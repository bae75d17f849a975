//! Room: forge.

pub mod gguf;
pub mod tokenizer;
