//! The vocabulary of a GGUF file, as the tokenizer's packer wants it.
//!
//! Called by `forge::model`. Keys of `tokenizer.ggml` that are absent mean what llama.cpp takes
//! them to mean, with one exception: a byte-level vocabulary that names no BOS or EOS has none.
//! `add_eos_token` is not followed: a prompt is there to be continued.

use super::source::{Source, SourceError};
use super::template::{recognise, system_prompt};
use super::tokenizer::TokenizerSource;
use crate::image::tokenizer::{END_NAMES, PreTokenizer, TokenType, TokenizerModel};

/// Keys of tokens that end an answer, beside EOS.
const END_KEYS: [&str; 5] = [
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

const NORMAL: i32 = TokenType::Normal.code() as i32;
const CONTROL: i32 = TokenType::Control.code() as i32;
const USER_DEFINED: i32 = TokenType::UserDefined.code() as i32;

/// The vocabulary in `gguf`.
pub fn read(source: &Source) -> Result<TokenizerSource, SourceError> {
    let model = source.string("tokenizer.ggml.model")?;
    let pre = source.opt_string("tokenizer.ggml.pre")?.unwrap_or("default");
    let tokens = source.strings("tokenizer.ggml.tokens")?.to_vec();
    let scored = model == TokenizerModel::Llama.name();
    let id_of = |key: &str, default: u32| {
        let absent = Some(default).filter(|&id| scored && (id as usize) < tokens.len());
        Ok::<_, SourceError>(source.opt_u32(key)?.or(absent))
    };
    let bos = id_of("tokenizer.ggml.bos_token_id", 1)?;
    let eos = id_of("tokenizer.ggml.eos_token_id", 2)?;
    let add_bos = scored || PreTokenizer::LlamaBpe.names().contains(&pre);
    let stated = source.opt_i32s("tokenizer.ggml.token_type")?;
    let mut types = stated.clone().unwrap_or_else(|| vec![NORMAL; tokens.len()]);
    control_ends(&tokens, &mut types, stated.is_some());
    let mut ends = Vec::new();
    for key in END_KEYS {
        ends.extend(source.opt_u32(key)?);
    }
    ends.sort_unstable();
    ends.dedup();
    ends.retain(|&id| Some(id) != eos);
    let key = "tokenizer.ggml.merges";
    let merges =
        if scored { source.opt_strings(key)?.unwrap_or_default() } else { source.strings(key)? };
    let template = source.opt_string("tokenizer.chat_template")?.unwrap_or_default();
    Ok(TokenizerSource {
        model: model.into(),
        pre: pre.into(),
        types,
        merges: merges.to_vec(),
        scores: source.opt_f32s("tokenizer.ggml.scores")?.unwrap_or_default(),
        bos,
        eos,
        add_bos: source
            .opt_bool("tokenizer.ggml.add_bos_token")?
            .unwrap_or(add_bos && bos.is_some()),
        add_space: scored && source.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
        ends,
        tokens,
        chat_template: recognise(template),
        system_prompt: system_prompt(template),
    })
}

/// Makes each token that ends an answer by its name a control token: as text, a user's message
/// could spell it and end its turn. Where the file states types, a normal token of such a name is a
/// word like any other.
fn control_ends(tokens: &[String], types: &mut [i32], are_stated: bool) {
    for (token, ty) in tokens.iter().zip(types) {
        let is_added = !are_stated || *ty == USER_DEFINED;
        if is_added && END_NAMES.contains(&token.as_str()) {
            *ty = CONTROL;
        }
    }
}
