//! Packs a vocabulary into the tokenizer section of an image.
//!
//! Used by the packer and by build.rs. What it writes is laid out in `image::tokenizer`; the token
//! room reads it. The byte-level alphabet of GPT-2 vocabularies and SentencePiece's sign for a
//! space are undone here, so the engine sees bytes only. Everything the engine would have to trust
//! is checked here, and again there.

mod merges;

use std::collections::HashMap;

use bytemuck::{Zeroable, bytes_of, cast_slice};

use crate::image::tokenizer::{
    CHAT_TEMPLATE_SHIFT, ChatTemplate, FLAG_ADD_BOS, FLAG_ADD_SPACE, MAGIC, NONE, PreTokenizer,
    SPACE, TokenType, TokenizerHeader, TokenizerLayout, TokenizerModel, WHOLE,
};
use merges::MergeTable;

/// A vocabulary as a model file states it.
#[derive(Clone, Debug, Default)]
pub struct TokenizerSource {
    /// GGUF's `tokenizer.ggml.model`, such as `gpt2`.
    pub model: String,
    /// GGUF's `tokenizer.ggml.pre`, such as `gpt-2`. SentencePiece's model needs none.
    pub pre: String,
    /// The tokens' texts; a token's id is its place. Normal ones in the byte-level alphabet, or
    /// with SentencePiece's sign for a space.
    pub tokens: Vec<String>,
    /// GGUF's `tokenizer.ggml.token_type`, one a token.
    pub types: Vec<i32>,
    /// Pairs `left right`, first applied first.
    pub merges: Vec<String>,
    /// One score a token, for SentencePiece's model: what becomes the highest one merges first.
    /// Without scores its model has merges.
    pub scores: Vec<f32>,
    /// Token that begins a text.
    pub bos: Option<u32>,
    /// Token that ends a text.
    pub eos: Option<u32>,
    /// Whether the model expects BOS before a prompt.
    pub add_bos: bool,
    /// Whether a text gets a space before it, which is not part of it.
    pub add_space: bool,
    /// Tokens beside EOS and those of known names that end an answer.
    pub ends: Vec<u32>,
    /// How the model wants a conversation written, where that is known.
    pub chat_template: Option<ChatTemplate>,
    /// What its template has the system say where the user sets nothing.
    pub system_prompt: String,
}

/// Why a vocabulary can't be packed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TokenizerError {
    /// No code for this `tokenizer.ggml.model`.
    #[error("the tokenizer model `{name}` is not supported: wanted {}", names_of_models())]
    UnknownModel {
        /// As the file names it.
        name: String,
    },
    /// No code for this `tokenizer.ggml.pre`.
    #[error(
        "the pre-tokenizer `{name}` is not supported: wanted {}; another one would cut the text \
         elsewhere and change the model's input",
        names_of_pre_tokenizers()
    )]
    UnknownPreTokenizer {
        /// As the file names it.
        name: String,
    },
    /// No token at all.
    #[error("the vocabulary is empty: wanted at least one token, check the model file")]
    Empty,
    /// More than the section's 32-bit counts can say.
    #[error("the vocabulary has {found} {what}: wanted at most {max}")]
    TooMany {
        /// Tokens, merges or bytes.
        what: &'static str,
        /// How many there are.
        found: u64,
        /// How many there may be.
        max: u64,
    },
    /// Types or scores and tokens don't pair up.
    #[error(
        "the vocabulary has {tokens} tokens but {found} token {what}s: wanted one {what} a token"
    )]
    NotOneEach {
        /// A type or a score.
        what: &'static str,
        /// Tokens in the source.
        tokens: usize,
        /// Types or scores in the source.
        found: usize,
    },
    /// A score that can't be compared.
    #[error("the score of token {id} (`{token}`) is not a number: the model file is damaged")]
    BadScore {
        /// The token.
        id: usize,
        /// Its text.
        token: String,
    },
    /// Byte tokens are named by their byte.
    #[error("token {id} (`{token}`) stands for a byte: wanted a name from <0x00> to <0xFF>")]
    BadByte {
        /// The token.
        id: usize,
        /// Its text.
        token: String,
    },
    /// Every text has spaces.
    #[error("the vocabulary has no token for a space: wanted `{SPACE}`, check the model file")]
    NoSpace,
    /// A type GGUF doesn't define.
    #[error("token {id} (`{token}`) has the type {found}: wanted 1 to 6")]
    BadType {
        /// The token.
        id: usize,
        /// Its text.
        token: String,
        /// Its type.
        found: i32,
    },
    /// BOS, EOS or another end outside the vocabulary.
    #[error("the {what} token is {found}: wanted less than the {tokens} tokens of the vocabulary")]
    BadToken {
        /// Which of them.
        what: &'static str,
        /// The id in the source.
        found: u32,
        /// Tokens in the source.
        tokens: usize,
    },
    /// `add_bos` without a BOS.
    #[error("the model asks for a BOS token before each prompt but names none")]
    NoBos,
    /// Not two parts.
    #[error("merge {rank} (`{merge}`) is not a pair: wanted two tokens with one space between")]
    NotAPair {
        /// Place in the list.
        rank: usize,
        /// As the file states it.
        merge: String,
    },
    /// A part, or what they become, is no token.
    #[error("merge {rank} (`{merge}`) needs the token `{missing}`, which the vocabulary lacks")]
    MissingToken {
        /// Place in the list.
        rank: usize,
        /// As the file states it.
        merge: String,
        /// The token that isn't there.
        missing: String,
    },
    /// One pair, two ranks.
    #[error("merge {rank} (`{merge}`) repeats merge {first}: wanted each pair once")]
    Repeated {
        /// Place in the list.
        rank: usize,
        /// Where it stood first.
        first: u32,
        /// As the file states it.
        merge: String,
    },
}

fn names_of_models() -> String {
    TokenizerModel::ALL.map(TokenizerModel::name).join(" or ")
}

fn names_of_pre_tokenizers() -> String {
    let names: Vec<&str> =
        PreTokenizer::ALL.iter().filter_map(|pre| pre.names().first().copied()).collect();
    names.join(" or ")
}

/// What is known of each token once the source is checked.
struct Vocabulary {
    model: TokenizerModel,
    types: Vec<TokenType>,
    /// Each token's bytes in a text.
    texts: Vec<Vec<u8>>,
    /// Token each byte starts as or falls back to, or [`NONE`].
    byte_ids: Vec<u32>,
}

/// The packed section of `source`, a whole number of 16-byte units.
pub fn build(source: &TokenizerSource) -> Result<Vec<u8>, TokenizerError> {
    let model = TokenizerModel::ALL
        .into_iter()
        .find(|model| model.name() == source.model)
        .ok_or_else(|| TokenizerError::UnknownModel { name: source.model.clone() })?;
    let pre = pre_tokenizer(model, source)?;
    check_tokens(source)?;

    let types = token_types(source)?;
    let texts = token_texts(model, source, &types)?;
    let byte_ids = byte_ids(model, &texts, &types);
    let (special_first, special_ids) = specials(&texts, &types);
    let vocabulary = Vocabulary { model, types, texts, byte_ids };
    let merges = MergeTable::build(source, &vocabulary, pre)?;
    let Vocabulary { types, texts, byte_ids, .. } = vocabulary;
    let mut offsets = vec![0u32];
    let mut blob = Vec::new();
    for text in &texts {
        blob.extend_from_slice(text);
        offsets.push(count("bytes", blob.len())?);
    }

    let mut header = TokenizerHeader {
        magic: MAGIC,
        model: model.code(),
        pre: pre.code(),
        flags: flags(source),
        bos: source.bos.unwrap_or(NONE),
        eos: source.eos.unwrap_or(NONE),
        token_count: count("tokens", texts.len())?,
        token_bytes_max: texts.iter().map(Vec::len).max().unwrap_or(0) as u32,
        blob_bytes: count("bytes", blob.len())?,
        merge_count: merges.count,
        merge_slots: merges.slots.len() as u32,
        merge_probe_max: merges.probe_max,
        special_count: special_ids.len() as u32,
        end_count: short_count("tokens that end an answer", source.ends.len())?,
        system_bytes: short_count("bytes of a system prompt", source.system_prompt.len())?,
        ..Zeroable::zeroed()
    };
    let layout = TokenizerLayout::of(&header);
    header.section_bytes = count("bytes once packed", layout.section_bytes as usize)?;

    let type_codes: Vec<u8> = types.iter().map(|ty| ty.code()).collect();
    let mut section = vec![0; layout.section_bytes as usize];
    let mut put = |at: u64, bytes: &[u8]| {
        section[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    };
    put(0, bytes_of(&header));
    put(layout.merges, cast_slice(&merges.slots));
    put(layout.token_offsets, cast_slice(&offsets));
    put(layout.byte_ids, cast_slice(&byte_ids));
    put(layout.special_first, cast_slice(&special_first));
    put(layout.special_ids, cast_slice(&special_ids));
    put(layout.token_types, &type_codes);
    put(layout.blob, &blob);
    put(layout.end_ids, cast_slice(&source.ends));
    put(layout.system, source.system_prompt.as_bytes());
    Ok(section)
}

fn flags(source: &TokenizerSource) -> u32 {
    let bos = if source.add_bos { FLAG_ADD_BOS } else { 0 };
    let space = if source.add_space { FLAG_ADD_SPACE } else { 0 };
    bos | space | source.chat_template.map_or(0, ChatTemplate::code) << CHAT_TEMPLATE_SHIFT
}

/// `found` as a 16-bit count of the section.
fn short_count(what: &'static str, found: usize) -> Result<u16, TokenizerError> {
    let max = u64::from(u16::MAX);
    let found = found as u64;
    found.try_into().map_err(|_| TokenizerError::TooMany { what, found, max })
}

/// `found` as a count of the section. The last 32-bit values are kept for [`WHOLE`] and the like.
fn count(what: &'static str, found: usize) -> Result<u32, TokenizerError> {
    u32::try_from(found).ok().filter(|&n| n < WHOLE).ok_or(TokenizerError::TooMany {
        what,
        found: found as u64,
        max: u64::from(WHOLE - 1),
    })
}

/// How the text is cut: as a byte-level file says by name; SentencePiece's files leave it open.
fn pre_tokenizer(
    model: TokenizerModel,
    source: &TokenizerSource,
) -> Result<PreTokenizer, TokenizerError> {
    match model {
        TokenizerModel::Gpt2 => PreTokenizer::ALL
            .into_iter()
            .find(|pre| pre.names().contains(&source.pre.as_str()))
            .ok_or_else(|| TokenizerError::UnknownPreTokenizer { name: source.pre.clone() }),
        TokenizerModel::Llama if source.tokens.iter().any(|token| has_space_inside(token)) => {
            Ok(PreTokenizer::Whole)
        }
        TokenizerModel::Llama => Ok(PreTokenizer::Words),
    }
}

/// Whether a space stands behind another sign.
fn has_space_inside(token: &str) -> bool {
    token.trim_start_matches(SPACE).contains(SPACE)
}

fn check_tokens(source: &TokenizerSource) -> Result<(), TokenizerError> {
    let tokens = source.tokens.len();
    if tokens == 0 {
        return Err(TokenizerError::Empty);
    }
    if source.types.len() != tokens {
        return Err(TokenizerError::NotOneEach { what: "type", tokens, found: source.types.len() });
    }
    let named = [("BOS", source.bos), ("EOS", source.eos)];
    let named = named.into_iter().filter_map(|(what, id)| Some((what, id?)));
    let ends = source.ends.iter().map(|&id| ("end-of-turn", id));
    if let Some((what, found)) = named.chain(ends).find(|&(_, id)| id as usize >= tokens) {
        return Err(TokenizerError::BadToken { what, found, tokens });
    }
    if source.add_bos && source.bos.is_none() {
        return Err(TokenizerError::NoBos);
    }
    Ok(())
}

fn token_types(source: &TokenizerSource) -> Result<Vec<TokenType>, TokenizerError> {
    let typed = source.types.iter().zip(&source.tokens).enumerate();
    typed
        .map(|(id, (&found, token))| {
            u8::try_from(found)
                .ok()
                .and_then(TokenType::from_code)
                .ok_or_else(|| TokenizerError::BadType { id, token: token.clone(), found })
        })
        .collect()
}

/// The byte each sign of the byte-level alphabet stands for.
///
/// Printable Latin-1 stands for itself; the other 68 bytes, ascending, are the signs from U+0100
/// on.
fn byte_alphabet() -> HashMap<char, u8> {
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => (char::from(byte), byte),
            _ => {
                next += 1;
                (char::from_u32(next - 1).expect("a sign of Latin Extended-A"), byte)
            }
        })
        .collect()
}

/// Bytes of each token in a text. Added tokens are plain text, and so is a normal one with a sign
/// outside the byte-level alphabet: vocabularies extended by hand have such.
fn token_texts(
    model: TokenizerModel,
    source: &TokenizerSource,
    types: &[TokenType],
) -> Result<Vec<Vec<u8>>, TokenizerError> {
    use TokenizerModel::{Gpt2, Llama};
    let byte_of = byte_alphabet();
    let coded = |token: &str| -> Option<Vec<u8>> {
        token.chars().map(|sign| byte_of.get(&sign).copied()).collect()
    };
    let plain = |token: &str| token.as_bytes().to_vec();
    let typed = source.tokens.iter().zip(types).enumerate();
    let text = |(id, (token, &ty)): (usize, (&String, &TokenType))| match (model, ty) {
        (_, TokenType::Byte) if byte_of_name(token).is_some() => {
            Ok(byte_of_name(token).into_iter().collect())
        }
        (Llama, TokenType::Byte) => Err(TokenizerError::BadByte { id, token: token.clone() }),
        (Llama, TokenType::Normal) => Ok(token.replace(SPACE, " ").into_bytes()),
        (Gpt2, TokenType::Normal | TokenType::Byte) => {
            Ok(coded(token).unwrap_or_else(|| plain(token)))
        }
        _ => Ok(plain(token)),
    };
    typed.map(text).collect()
}

/// The byte that a byte token is named by, such as `<0x0A>`.
fn byte_of_name(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)
}

/// Token each byte starts as or falls back to. Some vocabularies lack bytes that valid UTF-8 never
/// holds. In SentencePiece's a sign of one byte is not the byte's token.
fn byte_ids(model: TokenizerModel, texts: &[Vec<u8>], types: &[TokenType]) -> Vec<u32> {
    let mut ids = vec![NONE; 256];
    for (id, (text, &ty)) in texts.iter().zip(types).enumerate() {
        let stands_for_bytes =
            ty == TokenType::Byte || model == TokenizerModel::Gpt2 && ty == TokenType::Normal;
        if let (true, &[byte]) = (stands_for_bytes, text.as_slice()) {
            ids[usize::from(byte)] = id as u32;
        }
    }
    ids
}

/// The special tokens by first byte, longest first, and where each first byte's begin.
fn specials(texts: &[Vec<u8>], types: &[TokenType]) -> (Vec<u32>, Vec<u32>) {
    let mut ids: Vec<u32> = (0..texts.len())
        .filter(|&id| types[id].is_special() && !texts[id].is_empty())
        .map(|id| id as u32)
        .collect();
    let text = |id: u32| &texts[id as usize];
    ids.sort_by_key(|&id| (text(id)[0], std::cmp::Reverse(text(id).len()), id));
    let first = (0..=256usize)
        .map(|byte| ids.partition_point(|&id| usize::from(text(id)[0]) < byte) as u32)
        .collect();
    (first, ids)
}
