//! Packs a vocabulary into the tokenizer section of an image.
//!
//! Used by the packer and by build.rs. What it writes is laid out in `image::tokenizer`; the token
//! room reads it. The byte-level alphabet of GPT-2 vocabularies is undone here, so the engine sees
//! bytes only. Everything the engine would have to trust is checked here, and again there.

use std::collections::HashMap;

use bytemuck::{Zeroable, bytes_of, cast_slice};

use crate::image::tokenizer::{
    CHAT_TEMPLATE_SHIFT, ChatTemplate, FLAG_ADD_BOS, MAGIC, Merge, NONE, PreTokenizer, TokenType,
    TokenizerHeader, TokenizerLayout, TokenizerModel,
};

/// A vocabulary as a model file states it.
#[derive(Clone, Debug, Default)]
pub struct TokenizerSource {
    /// GGUF's `tokenizer.ggml.model`, such as `gpt2`.
    pub model: String,
    /// GGUF's `tokenizer.ggml.pre`, such as `gpt-2`.
    pub pre: String,
    /// The tokens' texts; a token's id is its place. Normal ones in the byte-level alphabet.
    pub tokens: Vec<String>,
    /// GGUF's `tokenizer.ggml.token_type`, one a token.
    pub types: Vec<i32>,
    /// Pairs `left right`, first applied first.
    pub merges: Vec<String>,
    /// Token that begins a text.
    pub bos: Option<u32>,
    /// Token that ends a text.
    pub eos: Option<u32>,
    /// Whether the model expects BOS before a prompt.
    pub add_bos: bool,
    /// Tokens beside EOS that end an answer.
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
    /// Types and tokens don't pair up.
    #[error("the vocabulary has {tokens} tokens but {types} token types: wanted one type a token")]
    TypeCount {
        /// Tokens in the source.
        tokens: usize,
        /// Types in the source.
        types: usize,
    },
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
    PreTokenizer::ALL.map(PreTokenizer::name).join(" or ")
}

/// The packed section of `source`, a whole number of 16-byte units.
pub fn build(source: &TokenizerSource) -> Result<Vec<u8>, TokenizerError> {
    let model = TokenizerModel::ALL
        .into_iter()
        .find(|model| model.name() == source.model)
        .ok_or_else(|| TokenizerError::UnknownModel { name: source.model.clone() })?;
    let pre = PreTokenizer::ALL
        .into_iter()
        .find(|pre| pre.name() == source.pre)
        .ok_or_else(|| TokenizerError::UnknownPreTokenizer { name: source.pre.clone() })?;
    check_tokens(source)?;

    let types = token_types(source)?;
    let byte_of = byte_alphabet();
    let texts: Vec<Vec<u8>> =
        source.tokens.iter().zip(&types).map(|(t, &ty)| token_bytes(t, ty, &byte_of)).collect();
    let mut offsets = vec![0u32];
    let mut blob = Vec::new();
    for text in &texts {
        blob.extend_from_slice(text);
        offsets.push(count("bytes", blob.len())?);
    }
    let merges = MergeTable::build(source)?;
    let (special_first, special_ids) = specials(&texts, &types);

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
        merge_count: count("merges", source.merges.len())?,
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
    put(layout.byte_ids, cast_slice(&byte_ids(&texts, &types)));
    put(layout.special_first, cast_slice(&special_first));
    put(layout.special_ids, cast_slice(&special_ids));
    put(layout.token_types, &type_codes);
    put(layout.blob, &blob);
    let mut ends = source.ends.clone();
    ends.sort_unstable();
    put(layout.end_ids, cast_slice(&ends));
    put(layout.system, source.system_prompt.as_bytes());
    Ok(section)
}

fn flags(source: &TokenizerSource) -> u32 {
    let bos = if source.add_bos { FLAG_ADD_BOS } else { 0 };
    bos | source.chat_template.map_or(0, ChatTemplate::code) << CHAT_TEMPLATE_SHIFT
}

/// `found` as a 16-bit count of the section.
fn short_count(what: &'static str, found: usize) -> Result<u16, TokenizerError> {
    let max = u64::from(u16::MAX);
    let found = found as u64;
    found.try_into().map_err(|_| TokenizerError::TooMany { what, found, max })
}

/// `found` as a count of the section. The last 32-bit value is kept for [`NONE`].
fn count(what: &'static str, found: usize) -> Result<u32, TokenizerError> {
    u32::try_from(found).ok().filter(|&n| n != NONE).ok_or(TokenizerError::TooMany {
        what,
        found: found as u64,
        max: u64::from(NONE - 1),
    })
}

fn check_tokens(source: &TokenizerSource) -> Result<(), TokenizerError> {
    let tokens = source.tokens.len();
    if tokens == 0 {
        return Err(TokenizerError::Empty);
    }
    if source.types.len() != tokens {
        return Err(TokenizerError::TypeCount { tokens, types: source.types.len() });
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

/// Bytes of a token. Added tokens are plain text, and so is a normal one with a sign outside the
/// alphabet: vocabularies extended by hand have such.
fn token_bytes(token: &str, ty: TokenType, byte_of: &HashMap<char, u8>) -> Vec<u8> {
    let coded = matches!(ty, TokenType::Normal | TokenType::Byte);
    let bytes: Option<Vec<u8>> =
        if coded { token.chars().map(|sign| byte_of.get(&sign).copied()).collect() } else { None };
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// Token each byte starts as. Some vocabularies lack bytes that valid UTF-8 never holds.
fn byte_ids(texts: &[Vec<u8>], types: &[TokenType]) -> Vec<u32> {
    let mut ids = vec![NONE; 256];
    for (id, (text, ty)) in texts.iter().zip(types).enumerate() {
        if let ([byte], TokenType::Normal | TokenType::Byte) = (text.as_slice(), ty) {
            ids[usize::from(*byte)] = id as u32;
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

/// The merges of a vocabulary, hashed.
struct MergeTable {
    slots: Vec<Merge>,
    probe_max: u32,
}

impl MergeTable {
    fn build(source: &TokenizerSource) -> Result<MergeTable, TokenizerError> {
        let mut id_of = HashMap::with_capacity(source.tokens.len());
        id_of.extend(
            source.tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id as u32)),
        );
        let merges = count("merges", source.merges.len())?;
        let slots = count("merge slots", Merge::slots(merges) as usize)?;
        let mut table = MergeTable { slots: vec![Merge::EMPTY; slots as usize], probe_max: 0 };
        for (rank, merge) in source.merges.iter().enumerate() {
            let (left, right) = merge
                .split_once(' ')
                .filter(|(left, right)| !left.is_empty() && !right.is_empty())
                .ok_or_else(|| TokenizerError::NotAPair { rank, merge: merge.clone() })?;
            let find = |token: &str| {
                id_of.get(token).copied().ok_or_else(|| TokenizerError::MissingToken {
                    rank,
                    merge: merge.clone(),
                    missing: token.to_string(),
                })
            };
            let (left_id, right_id) = (find(left)?, find(right)?);
            let merged = find(&format!("{left}{right}"))?;
            let entry = Merge { left: left_id, right: right_id, rank: rank as u32, merged };
            table.insert(entry).map_err(|first| TokenizerError::Repeated {
                rank,
                first,
                merge: merge.clone(),
            })?;
        }
        Ok(table)
    }

    /// Puts `entry` into the first empty slot from its home on, or returns the rank its pair has.
    fn insert(&mut self, entry: Merge) -> Result<(), u32> {
        let slots = self.slots.len();
        let home = Merge::home(entry.left, entry.right, slots as u32) as usize;
        for probe in 0..slots {
            let slot = &mut self.slots[(home + probe) % slots];
            if *slot == Merge::EMPTY {
                *slot = entry;
                self.probe_max = self.probe_max.max(probe as u32 + 1);
                return Ok(());
            }
            if (slot.left, slot.right) == (entry.left, entry.right) {
                return Err(slot.rank);
            }
        }
        unreachable!("the table has more slots than merges");
    }
}
