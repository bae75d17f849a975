//! Packing a vocabulary, encoding and decoding with it.
//!
//! Wanted ids come from the reference package `tokenizers` (data/tokenizer/make_vectors.py), from
//! the demo model's maker and, for other vocabularies, from llama.cpp's test vectors.
#![cfg(feature = "host")]

#[path = "tokenizer/reference.rs"]
mod reference;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ganglion::forge::gguf::Gguf;
use ganglion::forge::tokenizer::{TokenizerError, TokenizerSource, build};
use ganglion::forge::vocabulary;
use ganglion::image::tokenizer::{TokenType, TokenizerLayout};
use ganglion::token::{EncodeOptions, EncodeScratch, TokenError, Tokenizer, Utf8Stream};
use serde_json::Value;

const PIECE_BYTES_MAX: usize = 8192;

/// A packed section at an aligned address.
struct Section(Vec<u128>);

impl Section {
    fn new(bytes: &[u8]) -> Section {
        let mut words = vec![0; bytes.len().div_ceil(16)];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Section(words)
    }

    fn of(source: &TokenizerSource) -> Section {
        Section::new(&build(source).unwrap())
    }

    fn bytes(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }

    fn tokenizer(&self) -> Tokenizer<'_> {
        Tokenizer::new(bytemuck::cast_slice(&self.0)).unwrap()
    }
}

fn demo_file(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/demo/ganglion-demo-14m.");
    fs::read_to_string(format!("{folder}{name}")).unwrap()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The demo vocabulary from its Hugging Face form.
fn demo_source() -> TokenizerSource {
    let file = json(&demo_file("tokenizer.json"));
    let vocab = file["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![String::new(); vocab.len()];
    for (token, id) in vocab {
        tokens[id.as_u64().unwrap() as usize] = token.clone();
    }
    let mut types = vec![1; tokens.len()];
    types[0] = 3;
    let pair =
        |merge: &Value| format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap());
    let merges = file["model"]["merges"].as_array().unwrap().iter().map(pair).collect();
    TokenizerSource {
        model: "gpt2".into(),
        pre: "gpt-2".into(),
        tokens,
        types,
        merges,
        bos: Some(0),
        eos: Some(0),
        add_bos: true,
        ..TokenizerSource::default()
    }
}

fn gguf_source(path: &Path) -> TokenizerSource {
    vocabulary::read(&Gguf::open(path).unwrap()).unwrap()
}

/// Bytes as tokens, merges `a b`, `b c`, `ab c`, and one special token of each kind.
fn small_source() -> TokenizerSource {
    let mut source = TokenizerSource {
        tokens: demo_source().tokens[1..257].to_vec(),
        types: vec![1; 256],
        ..demo_source()
    };
    for (token, ty) in [
        ("ab", 1),
        ("bc", 1),
        ("abc", 1),
        ("<s>", 3),
        ("<unk>", 2),
        ("<tool>", 4),
        ("<tool>>", 4),
        ("Ω Ġ", 1),
    ] {
        source.tokens.push(token.into());
        source.types.push(ty);
    }
    source.merges = ["b c", "a b", "ab c"].map(String::from).to_vec();
    source.bos = Some(259);
    source.eos = None;
    source
}

const PLAIN: EncodeOptions = EncodeOptions { bos: false, parse_special: false };
const SPECIAL: EncodeOptions = EncodeOptions { bos: false, parse_special: true };
const BOS: EncodeOptions = EncodeOptions { bos: true, parse_special: false };

fn encode(tokenizer: &Tokenizer<'_>, text: &str, options: EncodeOptions) -> Vec<u32> {
    let mut words = vec![0; EncodeScratch::words(PIECE_BYTES_MAX)];
    let mut out = vec![0; text.len() + 1];
    let count = tokenizer
        .encode(text, options, &mut EncodeScratch::new(&mut words), &mut out)
        .unwrap_or_else(|error| panic!("{text:?}: {error}"));
    out.truncate(count);
    out
}

fn decode(tokenizer: &Tokenizer<'_>, ids: &[u32]) -> String {
    let mut stream = Utf8Stream::new();
    let mut text = String::new();
    for (index, &id) in ids.iter().enumerate() {
        let bytes = if index == 0 { tokenizer.first_bytes(id) } else { tokenizer.text_bytes(id) };
        stream.push(bytes, |part| text.push_str(part));
    }
    stream.finish(|part| text.push_str(part));
    text
}

#[test]
fn demo_prompts_and_their_continuations() {
    let section = Section::of(&demo_source());
    let tokenizer = section.tokenizer();
    assert!(tokenizer.adds_bos());
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(0), Some(0)));
    assert_eq!(tokenizer.token_count(), 2048);
    let golden = json(&demo_file("golden.json"));
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 4);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        assert_eq!(encode(&tokenizer, text, BOS), ids(&case["ids"]), "{text:?}");
        let spoken: Vec<u32> = ids(&case["greedy"]).into_iter().filter(|&id| id != 0).collect();
        let wanted = case["greedy_text"].as_str().unwrap().replace("<|endoftext|>", "");
        assert_eq!(decode(&tokenizer, &spoken), wanted);
    }
}

#[test]
fn demo_stories_survive_a_round_trip() {
    let section = Section::of(&demo_source());
    let tokenizer = section.tokenizer();
    let long = json(&demo_file("long.json"));
    for key in ["ids", "held_out_ids"] {
        for story in ids(&long[key]).split(|&id| id == 0) {
            // A window may start within a story, but never within a word.
            let text = decode(&tokenizer, story);
            assert_eq!(encode(&tokenizer, &text, PLAIN), story, "{text:?}");
        }
    }
}

#[test]
fn the_model_file_holds_the_same_vocabulary() {
    let name = "/tests/data/demo/ganglion-demo-14m.f16.gguf";
    let path = PathBuf::from(format!("{}{name}", env!("CARGO_MANIFEST_DIR")));
    assert!(build(&gguf_source(&path)).unwrap() == build(&demo_source()).unwrap());
}

#[test]
fn reference_vectors() {
    let section = Section::of(&demo_source());
    let tokenizer = section.tokenizer();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer/vectors.json");
    let cases = json(&fs::read_to_string(path).unwrap());
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 300);
    for case in cases {
        let text = case[0].as_str().unwrap();
        let plain = ids(&case[1]);
        assert_eq!(encode(&tokenizer, text, PLAIN), plain, "{text:?}");
        assert_eq!(decode(&tokenizer, &plain), text);
        let special = if case[2].is_null() { plain } else { ids(&case[2]) };
        assert_eq!(encode(&tokenizer, text, SPECIAL), special, "{text:?}, special");
    }
}

#[test]
fn merges_by_rank_then_from_the_left() {
    let section = Section::of(&small_source());
    let tokenizer = section.tokenizer();
    let spelled = |text| {
        let ids = encode(&tokenizer, text, PLAIN);
        ids.iter().map(|&id| decode(&tokenizer, &[id])).collect::<Vec<_>>()
    };
    // `b c` goes first, so `ab c` never gets its chance.
    assert_eq!(spelled("abc"), ["a", "bc"]);
    assert_eq!(spelled("abab"), ["ab", "ab"]);
    assert_eq!(spelled("aabbc"), ["a", "ab", "bc"]);
    assert_eq!(spelled("Ω"), ["\u{fffd}", "\u{fffd}"]);
}

#[test]
fn special_tokens_only_when_asked() {
    let section = Section::of(&small_source());
    let tokenizer = section.tokenizer();
    let less = encode(&tokenizer, "<", PLAIN)[0];
    let spelled = encode(&tokenizer, "<s>", PLAIN);
    assert_eq!(spelled.len(), 3);
    assert_eq!(encode(&tokenizer, "<s>", BOS), [&[259], spelled.as_slice()].concat());
    assert_eq!(encode(&tokenizer, "<s><unk>", SPECIAL), [259, 260]);
    assert_eq!(encode(&tokenizer, "<<s>ab", SPECIAL), [less, 259, 256]);
    // User-defined tokens are part of the text; the longest wins.
    assert_eq!(encode(&tokenizer, "<<tool>><tool>ab<", PLAIN), [less, 262, 261, 256, less]);
    assert_eq!(tokenizer.token_type(259), Some(TokenType::Control));
    assert_eq!(tokenizer.token_type(264), None);
    assert_eq!(tokenizer.token_bytes(259), b"<s>");
    // A sign outside the byte-level alphabet: the token is plain text.
    assert_eq!(tokenizer.token_bytes(263), "Ω Ġ".as_bytes());
    assert_eq!(tokenizer.token_bytes(264), b"");
    assert_eq!(tokenizer.token_bytes(u32::MAX), b"");
    assert_eq!(tokenizer.token_bytes_max(), 7);
}

#[test]
fn limits_are_named() {
    let section = Section::of(&small_source());
    let tokenizer = section.tokenizer();
    let mut words = vec![0; EncodeScratch::words(5)];
    let mut scratch = EncodeScratch::new(&mut words);
    assert_eq!(scratch.piece_bytes_max(), 8);
    let mut out = [0; 3];
    let mut tokens = |text, options| tokenizer.encode(text, options, &mut scratch, &mut out);
    assert_eq!(tokens("aab", BOS), Ok(3));
    assert_eq!(tokens("aab ddddddd", BOS), Err(TokenError::TooManyTokens { total: 11, max: 3 }));
    assert_eq!(tokens("aaaa", PLAIN), Err(TokenError::TooManyTokens { total: 4, max: 3 }));
    let long = TokenError::PieceTooLong { bytes: 9, max: 8 };
    assert_eq!(tokens("aab dddddddd", BOS), Err(long));
    assert_eq!(out[1..], encode(&tokenizer, "aab", PLAIN));
    let mut none = EncodeScratch::new(&mut []);
    let long = TokenError::PieceTooLong { bytes: 1, max: 0 };
    assert_eq!(tokenizer.encode("a", PLAIN, &mut none, &mut out), Err(long));

    // Without BOS, and without a token for `d`, which is left out as the references do.
    let source = TokenizerSource { bos: None, add_bos: false, ..small_source() };
    let tokens = source.tokens.iter().map(|t| if t == "d" { "dab" } else { t }.into()).collect();
    let section = Section::of(&TokenizerSource { tokens, ..source });
    let tokenizer = section.tokenizer();
    let mut scratch = EncodeScratch::new(&mut words);
    let mut tokens = |text, options| tokenizer.encode(text, options, &mut scratch, &mut out);
    assert_eq!(tokens("a", BOS), Err(TokenError::NoBos));
    assert_eq!(tokens("ad", PLAIN), Ok(1));
    assert_eq!(tokens("dd", PLAIN), Ok(0));
}

#[test]
fn one_long_piece_takes_no_time() {
    let section = Section::of(&demo_source());
    let tokenizer = section.tokenizer();
    let mut words = vec![0; EncodeScratch::words(PIECE_BYTES_MAX)];
    let mut out = vec![0; PIECE_BYTES_MAX];
    for unit in ["a", "the", "etaoinshrdlu", "once", " ", "="] {
        let text = unit.repeat(PIECE_BYTES_MAX / unit.len());
        let mut scratch = EncodeScratch::new(&mut words);
        let start = Instant::now();
        let count = tokenizer.encode(&text, PLAIN, &mut scratch, &mut out).unwrap();
        let took = start.elapsed();
        assert!(took < Duration::from_millis(100), "{unit:?}: {took:?}");
        assert_eq!(decode(&tokenizer, &out[..count]), text);
    }
}

#[test]
fn bad_vocabularies_are_refused_in_a_sentence() {
    let small = small_source();
    let refused = |source: TokenizerSource, wanted: &str| {
        let error: TokenizerError = build(&source).expect_err(wanted);
        assert_eq!(error.to_string(), wanted);
    };
    let merges = |list: &[&str]| TokenizerSource {
        merges: list.iter().map(|merge| merge.to_string()).collect(),
        ..small.clone()
    };
    refused(
        TokenizerSource { model: "bert".into(), ..small.clone() },
        "the tokenizer model `bert` is not supported: wanted gpt2 or llama",
    );
    refused(
        TokenizerSource { pre: "default".into(), ..small.clone() },
        "the pre-tokenizer `default` is not supported: wanted gpt-2 or smollm or qwen2 or \
         llama-bpe; another one would cut the text elsewhere and change the model's input",
    );
    refused(
        TokenizerSource { tokens: vec![], ..small.clone() },
        "the vocabulary is empty: wanted at least one token, check the model file",
    );
    refused(
        TokenizerSource { types: vec![1; 3], ..small.clone() },
        "the vocabulary has 264 tokens but 3 token types: wanted one type a token",
    );
    refused(
        TokenizerSource { types: vec![7; 264], ..small.clone() },
        "token 0 (`!`) has the type 7: wanted 1 to 6",
    );
    refused(
        TokenizerSource { eos: Some(264), ..small.clone() },
        "the EOS token is 264: wanted less than the 264 tokens of the vocabulary",
    );
    refused(
        TokenizerSource { bos: None, ..small.clone() },
        "the model asks for a BOS token before each prompt but names none",
    );
    refused(
        merges(&["a b", "ab"]),
        "merge 1 (`ab`) is not a pair: wanted two tokens with one space between",
    );
    refused(
        merges(&["a b", "a bcd"]),
        "merge 1 (`a bcd`) needs the token `bcd`, which the vocabulary lacks",
    );
    refused(merges(&["c a"]), "merge 0 (`c a`) needs the token `ca`, which the vocabulary lacks");
    refused(
        merges(&["a b", "b c", "a b"]),
        "merge 2 (`a b`) repeats merge 0: wanted each pair once",
    );
}

/// SplitMix64: enough to choose what to damage.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}

#[test]
fn a_damaged_section_never_panics() {
    let good = build(&small_source()).unwrap();
    let mut words = vec![0; EncodeScratch::words(64)];
    let mut out = [0; 64];
    let layout = TokenizerLayout::of(bytemuck::from_bytes(&Section::new(&good).bytes()[..64]));
    let parts = [
        0,
        layout.merges,
        layout.token_offsets,
        layout.byte_ids,
        layout.special_first,
        layout.special_ids,
        layout.token_types,
        layout.blob,
        layout.section_bytes,
    ]
    .map(|offset| offset as usize);
    let (mut refused, mut accepted) = (0, 0);
    for seed in 0..10_000 {
        let mut random = Random(seed);
        let mut section = Section::new(&good);
        let bytes = section.bytes();
        for _ in 0..=random.below(3) {
            let part = random.below(parts.len() - 1);
            let at = parts[part] + random.below(parts[part + 1] - parts[part]);
            let word = [random.below(264) as u32, u32::MAX, 1 << random.below(32)][random.below(3)];
            match random.below(3) {
                0 => bytes[at / 4 * 4..][..4].copy_from_slice(&word.to_le_bytes()),
                1 => bytes[at] ^= 1 << random.below(8),
                _ => bytes[at] = random.below(256) as u8,
            }
        }
        let length = if random.below(8) == 0 { random.below(good.len()) } else { good.len() };
        let Ok(tokenizer) = Tokenizer::new(&section.bytes()[..length]) else {
            refused += 1;
            continue;
        };
        accepted += 1;
        let mut scratch = EncodeScratch::new(&mut words);
        for text in ["abcabcaabbcc", "<s>ab<tool>>é<unk>Ω<", "  don't 12 \u{1F642}\n"] {
            for options in [PLAIN, EncodeOptions { bos: true, parse_special: true }] {
                let _ = tokenizer.encode(text, options, &mut scratch, &mut out);
            }
        }
        let _ = decode(&tokenizer, &(0..270).collect::<Vec<_>>());
        let _ = tokenizer.encode(&"abc".repeat(9), PLAIN, &mut scratch, &mut []);
    }
    assert!(refused > 500 && accepted > 500, "{refused} refused, {accepted} accepted");
}

/// The sentence that refuses `source` with the 32-bit `words` at byte `at` of its section.
fn refusal(source: &TokenizerSource, at: u64, words: &[u32]) -> String {
    let mut section = Section::of(source);
    let damage: &[u8] = bytemuck::cast_slice(words);
    section.bytes()[at as usize..][..damage.len()].copy_from_slice(damage);
    match Tokenizer::new(section.bytes()) {
        Ok(_) => format!("{words:?} at {at} were accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_claim_is_checked() {
    let source = small_source();
    let mut section = Section::of(&source);
    let layout = TokenizerLayout::of(bytemuck::from_bytes(&section.bytes()[..64]));
    let merges: &[[u32; 4]] = bytemuck::cast_slice(
        &section.bytes()[layout.merges as usize..layout.token_offsets as usize],
    );
    let occupied = merges.iter().position(|merge| merge[0] != u32::MAX).unwrap();
    let merge = layout.merges + 16 * occupied as u64;
    let special_first = |byte: u8| layout.special_first + 4 * u64::from(byte);
    let cases: [(u64, &[u32], &str); 23] = [
        (8, &[0], "stated size"),
        (12, &[2], "model code"),
        (16, &[6], "pre-tokenizer code"),
        (20, &[4], "flags"),
        (24, &[264], "BOS or EOS"),
        (24, &[u32::MAX], "BOS"),
        (28, &[264], "BOS or EOS"),
        (32, &[0], "stated size"),
        (36, &[8], "longest token"),
        (44, &[2], "merge count"),
        (44, &[4], "number of merges"),
        (44, &[5], "merge slots"),
        (52, &[0], "longest search"),
        (52, &[6], "longest search"),
        (merge, &[264], "merge's token"),
        (merge + 8, &[3], "merge count"),
        (layout.token_offsets, &[1], "first token's offset"),
        (layout.token_offsets + 8, &[0], "token's offset"),
        (layout.byte_ids, &[264], "byte, BOS or EOS"),
        (layout.special_first, &[1], "index of special tokens"),
        (special_first(b'='), &[5; 256 - b'=' as usize + 1], "last index of special tokens"),
        (layout.special_ids, &[264], "special token's size"),
        (layout.token_types, &[0x0101_0701], "token's type"),
    ];
    for (at, words, wanted) in cases {
        let sentence = refusal(&source, at, words);
        assert!(sentence.contains(wanted), "{wanted}: {sentence}");
    }
    // `<s>` without bytes: its end moves to its start, and another token stays the longest.
    let mut source = source;
    source.tokens.push("longest".repeat(3));
    source.types.push(1);
    let mut section = Section::of(&source);
    let end = layout.token_offsets + 4 * 260;
    let start = bytemuck::cast_slice::<u8, u32>(section.bytes())[end as usize / 4 - 1];
    let sentence = refusal(&source, end, &[start]);
    assert!(sentence.contains("special token's size"), "{sentence}");
}

#[test]
fn half_a_character_is_never_a_special_token() {
    let mut source = small_source();
    source.tokens.extend(["é".to_string(), "longest here".to_string()]);
    source.types = [vec![1; 264], vec![4, 1]].concat();
    let mut section = Section::of(&source);
    let layout = TokenizerLayout::of(bytemuck::from_bytes(&section.bytes()[..64]));
    let words: &mut [u32] = bytemuck::cast_slice_mut(&mut section.0);
    // The token loses its first byte, and the index learns what it starts with now.
    words[layout.token_offsets as usize / 4 + 264] += 1;
    words[layout.special_first as usize / 4..][0xAA..0xC4].fill(1);
    let tokenizer = section.tokenizer();
    assert_eq!(tokenizer.token_bytes(264), [0xA9]);
    assert_eq!(encode(&tokenizer, "é", SPECIAL).len(), 2);
}

#[test]
fn a_misplaced_or_foreign_section_is_refused() {
    let good = build(&small_source()).unwrap();
    let mut shifted = Section::new(&[&[0; 4], good.as_slice()].concat());
    let error = Tokenizer::new(&shifted.bytes()[1..]).unwrap_err();
    assert!(error.to_string().contains("address"), "{error}");
    let mut foreign = Section::new(&good);
    foreign.bytes()[7] = b'2';
    let error = Tokenizer::new(foreign.bytes()).unwrap_err();
    assert!(error.to_string().contains("magic"), "{error}");
    let error = Tokenizer::new(&Section::new(&good).bytes()[..32]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the tokenizer in the image is damaged: its size in bytes is 32, wanted at least 64; pack \
         the model again"
    );
}
