//! The vocabulary of a GGUF file, as the tokenizer's packer wants it.
//!
//! Called by `forge::model`. Keys of `tokenizer.ggml` that are absent mean what the format's own
//! readers take them to mean.

use super::gguf::{Gguf, GgufError};
use super::tokenizer::TokenizerSource;

/// The vocabulary in `gguf`.
pub fn read(gguf: &Gguf) -> Result<TokenizerSource, GgufError> {
    let tokens = gguf.strings("tokenizer.ggml.tokens")?.to_vec();
    let types = match gguf.opt_i32s("tokenizer.ggml.token_type")? {
        Some(types) => types,
        None => vec![1; tokens.len()],
    };
    Ok(TokenizerSource {
        model: gguf.string("tokenizer.ggml.model")?.into(),
        pre: gguf.opt_string("tokenizer.ggml.pre")?.unwrap_or("default").into(),
        tokens,
        types,
        merges: gguf.strings("tokenizer.ggml.merges")?.to_vec(),
        bos: gguf.opt_u32("tokenizer.ggml.bos_token_id")?,
        eos: gguf.opt_u32("tokenizer.ggml.eos_token_id")?,
        add_bos: gguf.opt_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(false),
        ..TokenizerSource::default()
    })
}
