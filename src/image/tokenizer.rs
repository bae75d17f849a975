//! The packed tokenizer: how its section of an image lies in memory.
//!
//! The packer (`forge::tokenizer`) writes it, the token room reads it in place; both ask here for
//! every offset. Little-endian, starts at a multiple of [`SECTION_ALIGN`]; the header's counts fix
//! the rest:
//!
//! ```text
//! TokenizerHeader
//! merges         Merge[merge_slots]        open addressing by (left, right), linear probing,
//!                                          entered by rank; holds look-ups of other kinds too,
//!                                          see CHARACTER and WHOLE
//! token_offsets  u32[token_count + 1]      token i = blob[token_offsets[i]..token_offsets[i + 1]]
//! byte_ids       u32[256]                  token a byte starts as or falls back to, or NONE; the
//!                                          last of several
//! special_first  u32[257]                  special_ids that start with byte b:
//!                                          special_first[b]..special_first[b + 1]
//! special_ids    u32[special_count]        by first byte, longest first, then by id
//! token_types    u8[token_count]           TokenType codes
//! blob           u8[blob_bytes]            the tokens' bytes, back to back
//! end_ids        u32[end_count]            tokens beside EOS and [`END_NAMES`] that end an answer
//! system         u8[system_bytes]          what a chat's system says unless told, UTF-8
//! ```
//!
//! Each table starts at a multiple of [`SECTION_ALIGN`], the gaps are zero.

use bytemuck::{Pod, Zeroable};

/// First bytes of the section; the last one is the version of this layout.
pub const MAGIC: [u8; 8] = *b"GNGLTOK1";
/// "No such token": an absent BOS or EOS, a byte without a token, an empty merge slot.
pub const NONE: u32 = u32::MAX;
/// In place of a merge's left token: `right` is a Unicode scalar value, `merged` the token it
/// starts as. Only where pieces start as characters.
pub const CHARACTER: u32 = u32::MAX - 1;
/// In place of a merge's left token: `right` is the [`piece_key`] of a token that merges do not
/// reach, or the next free one above; `merged` is that token. Only where a piece that is a token
/// is that token.
pub const WHOLE: u32 = u32::MAX - 2;
/// The sign that stands for a space in SentencePiece vocabularies.
pub const SPACE: char = '\u{2581}';
/// The section and each of its tables start at a multiple of this.
pub const SECTION_ALIGN: u64 = 16;
/// Names of control tokens that end an answer, in whatever vocabulary they are: those llama.cpp
/// knows, as far as families that run here have them.
pub const END_NAMES: [&str; 21] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
    // Code models go on with another file behind these.
    "<|fim_pad|>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<reponame>",
    "<|file_sep|>",
    "<PAD>",
];
/// Flag: the model expects BOS before a prompt.
pub const FLAG_ADD_BOS: u32 = 1;
/// Flag: a text gets a space before it, which is not part of it.
pub const FLAG_ADD_SPACE: u32 = 2;
/// The flags' bits 8 to 15 are the code of the model's [`ChatTemplate`], 0 where it is unknown.
pub const CHAT_TEMPLATE_SHIFT: u32 = 8;

/// The head of the section. Every field is little-endian.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable, PartialEq, Eq)]
pub struct TokenizerHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// Bytes of the section, header included.
    pub section_bytes: u32,
    /// [`TokenizerModel`] code.
    pub model: u32,
    /// [`PreTokenizer`] code.
    pub pre: u32,
    /// [`FLAG_ADD_BOS`], [`FLAG_ADD_SPACE`] and the code of a [`ChatTemplate`].
    pub flags: u32,
    /// Token that begins a text, or [`NONE`].
    pub bos: u32,
    /// Token that ends a text, or [`NONE`].
    pub eos: u32,
    /// Tokens in the vocabulary.
    pub token_count: u32,
    /// Bytes of the longest token.
    pub token_bytes_max: u32,
    /// Bytes of all tokens.
    pub blob_bytes: u32,
    /// Entries of the merge table.
    pub merge_count: u32,
    /// Slots of the merge table; more than `merge_count`.
    pub merge_slots: u32,
    /// Slots a look-up visits at most.
    pub merge_probe_max: u32,
    /// Special tokens: control, user-defined and unknown ones.
    pub special_count: u32,
    /// Tokens beside EOS and [`END_NAMES`] that end an answer.
    pub end_count: u16,
    /// Bytes of what a chat's system says unless told.
    pub system_bytes: u16,
}

/// A slot of the merge table: tokens `left` and `right`, side by side, become `merged`. Entries of
/// other kinds have [`CHARACTER`] or [`WHOLE`] for `left`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable, PartialEq, Eq)]
pub struct Merge {
    /// Left token, or [`NONE`] in an empty slot.
    pub left: u32,
    /// Right token.
    pub right: u32,
    /// Place in the model's list of merges, or of the score among its scores: the lowest is
    /// applied first.
    pub rank: u32,
    /// The token they become.
    pub merged: u32,
}

impl Merge {
    /// A slot that holds nothing.
    pub const EMPTY: Merge = Merge { left: NONE, right: NONE, rank: NONE, merged: NONE };

    /// Slots of a table of `count` merges: two thirds full, and never without an empty slot.
    pub const fn slots(count: u32) -> u64 {
        count as u64 + count as u64 / 2 + 1
    }

    /// Slot where the search for a pair starts in a table of `slots`.
    pub const fn home(left: u32, right: u32, slots: u32) -> u32 {
        let key = ((left as u64) << 32) | right as u64;
        let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (((mixed >> 32) * slots as u64) >> 32) as u32
    }
}

/// Key of a piece in the merge table: the 32-bit FNV-1a hash of its bytes.
pub fn piece_key(piece: &[u8]) -> u32 {
    let mixed = |hash: u32, &byte: &u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    piece.iter().fold(0x811C_9DC5, mixed)
}

/// How a text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizerModel {
    /// Byte-level BPE: a piece starts as bytes, pairs merge by rank.
    Gpt2,
    /// SentencePiece: a piece starts as characters, spaces are [`SPACE`], pairs merge by the score
    /// of what they become; a character that is no token falls back to its bytes.
    Llama,
}

impl TokenizerModel {
    /// Every model, in the order of [`TokenizerModel::code`].
    pub const ALL: [TokenizerModel; 2] = [TokenizerModel::Gpt2, TokenizerModel::Llama];

    /// Value of GGUF's `tokenizer.ggml.model`.
    pub const fn name(self) -> &'static str {
        match self {
            TokenizerModel::Gpt2 => "gpt2",
            TokenizerModel::Llama => "llama",
        }
    }

    /// Number in the header.
    pub const fn code(self) -> u32 {
        match self {
            TokenizerModel::Gpt2 => 0,
            TokenizerModel::Llama => 1,
        }
    }

    /// The model of a header's number, or `None`.
    pub fn from_code(code: u32) -> Option<TokenizerModel> {
        Self::ALL.into_iter().find(|model| model.code() == code)
    }
}

/// How a text is cut into pieces that merges never cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreTokenizer {
    /// GPT-2's expression: contractions, words, numbers, other signs, white space.
    Gpt2,
    /// SmolLM's and StarCoder's: each digit alone, then GPT-2's between them.
    SmolLm,
    /// Qwen2's expression: a word takes the sign before it, other signs the line breaks behind
    /// them; each digit alone.
    Qwen2,
    /// Llama 3's expression: Qwen2's with up to three digits together. A piece that is a token is
    /// that token, whatever its merges say.
    LlamaBpe,
    /// Before each run of spaces: exact where no token of a SentencePiece vocabulary has a space
    /// behind another sign.
    Words,
    /// The text is one piece: any other SentencePiece vocabulary.
    Whole,
}

impl PreTokenizer {
    /// Every pre-tokenizer, in the order of [`PreTokenizer::code`].
    pub const ALL: [PreTokenizer; 6] = [
        PreTokenizer::Gpt2,
        PreTokenizer::SmolLm,
        PreTokenizer::Qwen2,
        PreTokenizer::LlamaBpe,
        PreTokenizer::Words,
        PreTokenizer::Whole,
    ];

    /// Values of GGUF's `tokenizer.ggml.pre` that mean this one's cuts, its usual name first; none
    /// where the file does not choose.
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            PreTokenizer::Gpt2 => {
                &["gpt-2", "phi-2", "mpt", "olmo", "jais", "a.x-4.0", "mellum", "trillion"]
            }
            PreTokenizer::SmolLm => {
                &["smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b"]
            }
            PreTokenizer::Qwen2 => {
                &["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "kormo"]
            }
            PreTokenizer::LlamaBpe => {
                &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"]
            }
            PreTokenizer::Words | PreTokenizer::Whole => &[],
        }
    }

    /// Number in the header.
    pub const fn code(self) -> u32 {
        match self {
            PreTokenizer::Gpt2 => 0,
            PreTokenizer::SmolLm => 1,
            PreTokenizer::Qwen2 => 2,
            PreTokenizer::LlamaBpe => 3,
            PreTokenizer::Words => 4,
            PreTokenizer::Whole => 5,
        }
    }

    /// The pre-tokenizer of a header's number, or `None`.
    pub fn from_code(code: u32) -> Option<PreTokenizer> {
        Self::ALL.into_iter().find(|pre| pre.code() == code)
    }

    /// Whether a piece that is a token is that token, whatever its merges say.
    pub const fn takes_whole_pieces(self) -> bool {
        matches!(self, PreTokenizer::LlamaBpe)
    }
}

/// How a conversation is written as one text. Codes start at 1: 0 is "none, or not known".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatTemplate {
    /// `<|im_start|>role`, a line break, the message, `<|im_end|>`.
    ChatMl,
    /// `<s>[INST] .. [/INST] .. </s>`, the system's words between `<<SYS>>` and `<</SYS>>`.
    Llama2,
    /// `<|start_header_id|>role<|end_header_id|>`, the message, `<|eot_id|>`.
    Llama3,
    /// As Llama 3, with dates before the system's words.
    Llama31,
    /// `[INST] .. [/INST]..</s>`, the system's words before the user's first ones.
    Mistral,
    /// As Mistral, with a space before `[INST]` and behind `[/INST]`.
    MistralV1,
    /// As Mistral, with no space before `[/INST]` and one behind.
    MistralV3,
    /// As version 3, the system's words between `[SYSTEM_PROMPT]` and `[/SYSTEM_PROMPT]`.
    MistralV7,
}

impl ChatTemplate {
    /// Every template, in the order of [`ChatTemplate::code`].
    pub const ALL: [ChatTemplate; 8] = [
        ChatTemplate::ChatMl,
        ChatTemplate::Llama2,
        ChatTemplate::Llama3,
        ChatTemplate::Llama31,
        ChatTemplate::Mistral,
        ChatTemplate::MistralV1,
        ChatTemplate::MistralV3,
        ChatTemplate::MistralV7,
    ];
    /// All names, for messages.
    pub const NAMES: &str =
        "chatml, llama-2, llama-3, llama-3.1, mistral, mistral-v1, mistral-v3 or mistral-v7";

    /// The name a user chooses it by.
    pub const fn name(self) -> &'static str {
        match self {
            ChatTemplate::ChatMl => "chatml",
            ChatTemplate::Llama2 => "llama-2",
            ChatTemplate::Llama3 => "llama-3",
            ChatTemplate::Llama31 => "llama-3.1",
            ChatTemplate::Mistral => "mistral",
            ChatTemplate::MistralV1 => "mistral-v1",
            ChatTemplate::MistralV3 => "mistral-v3",
            ChatTemplate::MistralV7 => "mistral-v7",
        }
    }

    /// The template of that name, or `None`.
    pub fn parse(name: &[u8]) -> Option<ChatTemplate> {
        Self::ALL.into_iter().find(|template| template.name().as_bytes() == name)
    }

    /// Number in the header's flags.
    pub const fn code(self) -> u32 {
        match self {
            ChatTemplate::ChatMl => 1,
            ChatTemplate::Llama2 => 2,
            ChatTemplate::Llama3 => 3,
            ChatTemplate::Llama31 => 4,
            ChatTemplate::Mistral => 5,
            ChatTemplate::MistralV1 => 6,
            ChatTemplate::MistralV3 => 7,
            ChatTemplate::MistralV7 => 8,
        }
    }

    /// The template of a number in the header's flags, or `None`.
    pub fn from_code(code: u32) -> Option<ChatTemplate> {
        Self::ALL.into_iter().find(|template| template.code() == code)
    }
}

/// What a token is for. Codes are those of GGUF's `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// Text.
    Normal,
    /// Stands for what the vocabulary can't say.
    Unknown,
    /// Steers the model (BOS, EOS, roles of a chat); not text.
    Control,
    /// Text added after training of the vocabulary; matched before anything else.
    UserDefined,
    /// Never produced.
    Unused,
    /// One byte.
    Byte,
}

impl TokenType {
    /// Number in the table of types and in GGUF.
    pub const fn code(self) -> u8 {
        match self {
            TokenType::Normal => 1,
            TokenType::Unknown => 2,
            TokenType::Control => 3,
            TokenType::UserDefined => 4,
            TokenType::Unused => 5,
            TokenType::Byte => 6,
        }
    }

    /// The type of a number, or `None`.
    pub const fn from_code(code: u8) -> Option<TokenType> {
        match code {
            1 => Some(TokenType::Normal),
            2 => Some(TokenType::Unknown),
            3 => Some(TokenType::Control),
            4 => Some(TokenType::UserDefined),
            5 => Some(TokenType::Unused),
            6 => Some(TokenType::Byte),
            _ => None,
        }
    }

    /// Whether a text is searched for it as a whole.
    pub const fn is_special(self) -> bool {
        matches!(self, TokenType::Control | TokenType::UserDefined | TokenType::Unknown)
    }
}

/// Byte offsets of the tables from the start of the section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenizerLayout {
    /// Of the merge table.
    pub merges: u64,
    /// Of the tokens' offsets.
    pub token_offsets: u64,
    /// Of the tokens bytes start as.
    pub byte_ids: u64,
    /// Of the index of the special tokens.
    pub special_first: u64,
    /// Of the special tokens.
    pub special_ids: u64,
    /// Of the tokens' types.
    pub token_types: u64,
    /// Of the tokens' bytes.
    pub blob: u64,
    /// Of the tokens that end an answer.
    pub end_ids: u64,
    /// Of what a chat's system says.
    pub system: u64,
    /// Bytes of the section.
    pub section_bytes: u64,
}

impl TokenizerLayout {
    /// The layout that follows from the counts of `header`, whatever they are: no sum of 32-bit
    /// counts overflows here.
    pub const fn of(header: &TokenizerHeader) -> TokenizerLayout {
        let merges = align(size_of::<TokenizerHeader>() as u64);
        let slots = header.merge_slots as u64;
        let token_offsets = align(merges + slots * size_of::<Merge>() as u64);
        let byte_ids = align(token_offsets + (header.token_count as u64 + 1) * 4);
        let special_first = align(byte_ids + 256 * 4);
        let special_ids = align(special_first + 257 * 4);
        let token_types = align(special_ids + header.special_count as u64 * 4);
        let blob = align(token_types + header.token_count as u64);
        let end_ids = align(blob + header.blob_bytes as u64);
        let system = align(end_ids + header.end_count as u64 * 4);
        let section_bytes = align(system + header.system_bytes as u64);
        TokenizerLayout {
            merges,
            token_offsets,
            byte_ids,
            special_first,
            special_ids,
            token_types,
            blob,
            end_ids,
            system,
            section_bytes,
        }
    }
}

const fn align(offset: u64) -> u64 {
    offset.div_ceil(SECTION_ALIGN) * SECTION_ALIGN
}

const _: () = assert!(size_of::<TokenizerHeader>() == 64 && size_of::<Merge>() == 16);
const _: () = assert!(cfg!(target_endian = "little"), "images are read in place, little-endian");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_name_what_they_came_from() {
        for (index, model) in TokenizerModel::ALL.into_iter().enumerate() {
            assert_eq!(model.code() as usize, index);
            assert_eq!(TokenizerModel::from_code(model.code()), Some(model));
        }
        for (index, pre) in PreTokenizer::ALL.into_iter().enumerate() {
            assert_eq!(pre.code() as usize, index);
            assert_eq!(PreTokenizer::from_code(pre.code()), Some(pre));
        }
        for (index, template) in ChatTemplate::ALL.into_iter().enumerate() {
            assert_eq!(template.code() as usize, index + 1);
            assert_eq!(ChatTemplate::from_code(template.code()), Some(template));
            assert_eq!(ChatTemplate::parse(template.name().as_bytes()), Some(template));
            assert!(ChatTemplate::NAMES.contains(template.name()));
        }
        assert_eq!(ChatTemplate::from_code(0), None);
        assert_eq!(TokenizerModel::from_code(2), None);
        assert_eq!(PreTokenizer::from_code(6), None);
        for code in 1..=6 {
            assert_eq!(TokenType::from_code(code).map(TokenType::code), Some(code));
        }
        assert_eq!(TokenType::from_code(0), None);
        assert_eq!(TokenType::from_code(7), None);
    }

    #[test]
    fn a_name_means_one_pre_tokenizer() {
        let mut names: Vec<&str> =
            PreTokenizer::ALL.iter().flat_map(|pre| pre.names()).copied().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn keys_are_the_published_hash() {
        // Test vectors of the FNV authors.
        assert_eq!(piece_key(b""), 0x811c_9dc5);
        assert_eq!(piece_key(b"a"), 0xe40c_292c);
        assert_eq!(piece_key(b"foobar"), 0xbf9c_f968);
    }

    #[test]
    fn a_small_section_by_hand() {
        let header = TokenizerHeader {
            token_count: 5,
            blob_bytes: 17,
            merge_slots: 4,
            special_count: 1,
            ..Zeroable::zeroed()
        };
        let layout = TokenizerLayout::of(&header);
        assert_eq!(layout.merges, 64);
        assert_eq!(layout.token_offsets, 64 + 4 * 16);
        assert_eq!(layout.byte_ids, 128 + 32); // 6 offsets: 24 bytes
        assert_eq!(layout.special_first, 160 + 1024);
        assert_eq!(layout.special_ids, 1184 + 1040); // 257 * 4 = 1028
        assert_eq!(layout.token_types, 2224 + 16);
        assert_eq!(layout.blob, 2240 + 16);
        assert_eq!(layout.section_bytes, 2256 + 32);
        // The tables of 0 bytes leave the section as it is.
        assert_eq!((layout.end_ids, layout.system), (2288, 2288));
        let layout =
            TokenizerLayout::of(&TokenizerHeader { end_count: 5, system_bytes: 1, ..header });
        assert_eq!((layout.end_ids, layout.system), (2288, 2288 + 32));
        assert_eq!(layout.section_bytes, 2320 + 16);
    }

    #[test]
    fn homes_stay_in_the_table_and_spread() {
        let slots = 97;
        let mut hits = [0u32; 97];
        for left in 0..97 {
            for right in 0..100 {
                hits[Merge::home(left, right, slots) as usize] += 1;
            }
        }
        // 100 a slot on average; a fair spread stays within five standard deviations (50).
        assert!(hits.iter().all(|&hit| (50..150).contains(&hit)), "{hits:?}");
        assert_eq!(Merge::slots(0), 1);
        assert_eq!(Merge::slots(4), 7);
        assert!(Merge::slots(u32::MAX) > u64::from(u32::MAX));
    }
}
