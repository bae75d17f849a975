//! Packing a vocabulary, encoding and decoding with it.
//!
//! Wanted ids come from the reference package `tokenizers` (data/tokenizer/make_vectors.py), from
//! the demo model's maker and, for other vocabularies, from llama.cpp's test vectors.
#![cfg(feature = "host")]

#[path = "tokenizer/damage.rs"]
mod damage;
#[path = "tokenizer/reference.rs"]
mod reference;
#[path = "tokenizer/vocabulary.rs"]
mod vocabularies;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ganglion::forge::gguf;
use ganglion::forge::tokenizer::{TokenizerError, TokenizerSource, build};
use ganglion::forge::vocabulary;
use ganglion::image::tokenizer::TokenType;
use ganglion::token::{EncodeOptions, EncodeScratch, Start, TokenError, Tokenizer, Utf8Stream};
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
    vocabulary::read(&gguf::open(path).unwrap()).unwrap()
}

/// Merges without every fifth, so that some tokens are left to whole pieces.
fn thinned(merges: &[String]) -> Vec<String> {
    let kept = merges.iter().enumerate().filter(|(rank, _)| rank % 5 != 4);
    kept.map(|(_, merge)| merge.clone()).collect()
}

/// The SentencePiece vocabulary of data/tokenizer/spm.json, and its cases.
fn spm_source() -> (TokenizerSource, Value) {
    let file = json(&vector_file("spm.json"));
    let tokens: Vec<String> = serde_json::from_value(file["tokens"].clone()).unwrap();
    let types = [vec![2, 3, 3], vec![6; 256], vec![1; tokens.len() - 259]].concat();
    let source = TokenizerSource {
        model: "llama".into(),
        types,
        scores: (0..tokens.len()).map(|id| -((id / 4) as f32)).collect(),
        tokens,
        bos: Some(1),
        eos: Some(2),
        add_bos: true,
        add_space: true,
        ..TokenizerSource::default()
    };
    (source, file["cases"].clone())
}

fn vector_file(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer/");
    fs::read_to_string(format!("{folder}{name}")).unwrap()
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

/// Bytes, four characters and what they merge to; the name of a control token is no merge.
fn small_spm() -> TokenizerSource {
    let named = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let text = ["\u{2581}", "a", "b", "<", "s", ">", "ab", "\u{2581}a", "\u{2581}ab", "abab", "<s"];
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    tokens.extend(named.chain(text.map(String::from)));
    tokens.push("<tool>".into());
    let types = [vec![2, 3, 3], vec![6; 256], vec![1; text.len()], vec![4]].concat();
    let scores = (0..tokens.len()).map(|id| if id < 3 { 0.0 } else { -(id as f32) }).collect();
    let (ends, system_prompt) = (vec![1], "Be brief.".into());
    let spm = spm_source().0;
    TokenizerSource { tokens, types, scores, ends, system_prompt, ..spm }
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
    let mut is_first = true;
    for &id in ids {
        let bytes = if is_first { tokenizer.first_bytes(id) } else { tokenizer.text_bytes(id) };
        stream.push(bytes, |part| text.push_str(part));
        is_first &= tokenizer.text_bytes(id).is_empty();
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
    let cases = json(&vector_file("vectors.json"));
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
fn the_same_vocabulary_under_other_expressions() {
    let cases = json(&vector_file("pre.json"));
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 150);
    for (index, pre) in ["smollm", "qwen2", "llama-bpe"].into_iter().enumerate() {
        let mut source = TokenizerSource { pre: pre.into(), ..demo_source() };
        if pre == "llama-bpe" {
            source.merges = thinned(&source.merges);
        }
        let section = Section::of(&source);
        let tokenizer = section.tokenizer();
        for case in cases {
            let (text, wanted) = (case[0].as_str().unwrap(), ids(&case[index + 1]));
            assert_eq!(encode(&tokenizer, text, PLAIN), wanted, "{pre}: {text:?}");
            assert_eq!(decode(&tokenizer, &wanted), text, "{pre}");
        }
    }
}

#[test]
fn sentencepiece_vectors() {
    let (source, cases) = spm_source();
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 150);
    // A token with a space inside that no text here has: the text is one piece then.
    let mut whole = source.clone();
    whole.tokens.push("\u{1F999}\u{2581}".into());
    whole.types.push(1);
    whole.scores.push(0.0);
    for source in [source, whole] {
        let section = Section::of(&source);
        let tokenizer = section.tokenizer();
        for case in cases {
            let (text, wanted) = (case[0].as_str().unwrap(), ids(&case[1]));
            assert_eq!(encode(&tokenizer, text, PLAIN), wanted, "{text:?}");
            assert_eq!(decode(&tokenizer, &wanted), text.replace('\u{2581}', " "));
        }
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
fn sentencepiece_by_hand() {
    let section = Section::of(&small_spm());
    let tokenizer = section.tokenizer();
    let spelled = |text, options| {
        let ids = encode(&tokenizer, text, options);
        let names = ids.iter().map(|&id| small_spm().tokens[id as usize].clone());
        names.collect::<Vec<_>>().join(" ")
    };
    // `ab` has the highest score of all that two neighbours become.
    assert_eq!(spelled("abab", PLAIN), "▁ab ab");
    assert_eq!(spelled("b abab", PLAIN), "▁ b ▁ab ab");
    assert_eq!(spelled("babab", PLAIN), "▁ b abab");
    assert_eq!(spelled("é a", PLAIN), "▁ <0xC3> <0xA9> ▁a");
    // The name of a control token is text; a space goes before a text, and after such a token.
    assert_eq!(spelled("<s>", PLAIN), "▁ <s >");
    assert_eq!(spelled("a<s>a<s>", SPECIAL), "▁a <s> ▁a <s>");
    assert_eq!(spelled("a<tool>a", PLAIN), "▁a <tool> ▁a");
    assert_eq!(decode(&tokenizer, &encode(&tokenizer, " a  é", PLAIN)), " a  é");
    assert_eq!(decode(&tokenizer, &[1, 266, 0, 266]), "a a");
    assert_eq!((tokenizer.first_bytes(266), tokenizer.text_bytes(266)), (&b"a"[..], &b" a"[..]));

    let bare = TokenizerSource { add_space: false, ..small_spm() };
    let section = Section::of(&bare);
    let tokenizer = section.tokenizer();
    assert_eq!(encode(&tokenizer, "ab a", PLAIN), [265, 266]);
    assert_eq!(tokenizer.first_bytes(266), b" a");

    // Without byte tokens a character that is no token can't be said.
    let mut mute = small_spm();
    mute.types[3..259].fill(5);
    let section = Section::of(&mute);
    let mut words = vec![0; EncodeScratch::words(64)];
    let mut scratch = EncodeScratch::new(&mut words);
    let found = section.tokenizer().encode("é", PLAIN, &mut scratch, &mut [0; 8]);
    assert_eq!(found, Err(TokenError::NoByteToken { byte: 0xC3 }));
}

#[test]
fn marks_are_read_where_they_are_ones_own() {
    let section = Section::of(&small_source());
    let tokenizer = section.tokenizer();
    let text = "<s>ab<s><tool>ab<s>";
    let marked = |marks: &[std::ops::Range<usize>]| {
        let is_mark = |found: std::ops::Range<usize>| {
            marks.iter().any(|mark| mark.start <= found.start && found.end <= mark.end)
        };
        let mut words = vec![0; EncodeScratch::words(64)];
        let mut scratch = EncodeScratch::new(&mut words);
        let mut out = [0; 32];
        let begun = tokenizer.encode_marked(text, Start::Bos, is_mark, &mut scratch, &mut out);
        let count = begun.unwrap();
        out[..count].to_vec()
    };
    let spelled = encode(&tokenizer, "<s>", PLAIN);
    let ab = 256;
    let wanted = [&[259, 259, ab], &*spelled, &[261, ab, 259]].concat();
    assert_eq!(marked(&[0..3, 16..19]), wanted);
    // Half in what is one's own is not one's own.
    let wanted = [&[259], &*spelled, &[ab, 259, 261, ab], &*spelled].concat();
    assert_eq!(marked(&[0..2, 5..8, 17..19]), wanted);
    assert_eq!(
        marked(&[0..8, 8..19]),
        encode(&tokenizer, text, EncodeOptions { bos: true, ..SPECIAL })
    );
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

fn refused(source: TokenizerSource, wanted: &str) {
    let error: TokenizerError = build(&source).expect_err(wanted);
    assert_eq!(error.to_string(), wanted);
}

#[test]
fn bad_vocabularies_are_refused_in_a_sentence() {
    let small = small_source();
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

#[test]
fn bad_sentencepiece_vocabularies_are_refused_in_a_sentence() {
    let spm = small_spm();
    refused(
        TokenizerSource { scores: vec![0.0; 2], ..spm.clone() },
        "the vocabulary has 271 tokens but 2 token scores: wanted one score a token",
    );
    let mut scores = spm.scores.clone();
    scores[262] = f32::NAN;
    refused(
        TokenizerSource { scores, ..spm.clone() },
        "the score of token 262 (`<`) is not a number: the model file is damaged",
    );
    let named = |id: usize, name: &str| {
        let mut tokens = spm.tokens.clone();
        tokens[id] = name.into();
        TokenizerSource { tokens, ..spm.clone() }
    };
    refused(
        named(3, "<0x0>"),
        "token 3 (`<0x0>`) stands for a byte: wanted a name from <0x00> to <0xFF>",
    );
    refused(
        named(259, "_"),
        "the vocabulary has no token for a space: wanted `\u{2581}`, check the model file",
    );
    refused(
        named(259, &"a".repeat(1025)),
        "the vocabulary has 1025 bytes in one token: wanted at most 1024",
    );
    refused(
        TokenizerSource { system_prompt: "a".repeat(65536), ..small_source() },
        "the vocabulary has 65536 bytes of a system prompt: wanted at most 65535",
    );
    refused(
        TokenizerSource { ends: vec![264], ..small_source() },
        "the end-of-turn token is 264: wanted less than the 264 tokens of the vocabulary",
    );
}
