//! Sections that contradict themselves: each is refused in a sentence, or read without a panic.

use ganglion::forge::tokenizer::{TokenizerSource, build};
use ganglion::image::tokenizer::{ChatTemplate, TokenizerHeader, TokenizerLayout};
use ganglion::token::{EncodeOptions, EncodeScratch, Tokenizer};

use super::{PLAIN, SPECIAL, Section, decode, encode, small_source, small_spm};

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

/// One source of each kind of entry and table.
fn kinds() -> [TokenizerSource; 3] {
    let chat = TokenizerSource {
        ends: vec![256, 259],
        chat_template: Some(ChatTemplate::ChatMl),
        system_prompt: "Be brief, é.".into(),
        ..small_source()
    };
    let whole = TokenizerSource { pre: "llama-bpe".into(), ..chat.clone() };
    let whole = TokenizerSource { merges: vec!["b c".into(), "a b".into()], ..whole };
    [chat, whole, small_spm()]
}

/// A damaged section is refused or read; nothing panics, nothing takes long.
fn damage(source: &TokenizerSource) {
    let good = build(source).unwrap();
    let mut words = vec![0; EncodeScratch::words(64)];
    let mut out = [0; 64];
    let layout = TokenizerLayout::of(bytemuck::from_bytes(&Section::new(&good).bytes()[..64]));
    let mut parts = [
        0,
        layout.merges,
        layout.token_offsets,
        layout.byte_ids,
        layout.special_first,
        layout.special_ids,
        layout.token_types,
        layout.blob,
        layout.end_ids,
        layout.system,
        layout.section_bytes,
    ]
    .map(|offset| offset as usize)
    .to_vec();
    parts.dedup();
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
        let _ = (tokenizer.chat_template(), tokenizer.system_prompt(), tokenizer.is_end(3));
        let _ = tokenizer.encode(&"abc".repeat(9), PLAIN, &mut scratch, &mut []);
    }
    assert!(refused > 500 && accepted > 500, "{refused} refused, {accepted} accepted");
}

#[test]
fn a_damaged_section_never_panics() {
    kinds().iter().for_each(damage);
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
fn every_claim_of_the_later_tables_is_checked() {
    let [chat, _, spm] = kinds();
    let header: TokenizerHeader = *bytemuck::from_bytes(&Section::of(&chat).bytes()[..64]);
    let layout = TokenizerLayout::of(&header);
    let mut section = Section::of(&spm);
    let spm_layout = TokenizerLayout::of(bytemuck::from_bytes(&section.bytes()[..64]));
    let merges = &section.bytes()[spm_layout.merges as usize..spm_layout.token_offsets as usize];
    let merges: &[[u32; 4]] = bytemuck::cast_slice(merges);
    let space = merges.iter().position(|entry| entry[1] == 0x2581).unwrap();
    let cases: [(u64, u32, &str); 3] = [
        (20, 1 << 12, "chat template"),
        (layout.end_ids, 264, "ends an answer"),
        (layout.system + 8, 0x2EFF_C362, "UTF-8"),
    ];
    for (at, word, wanted) in cases {
        let sentence = refusal(&chat, at, &[word]);
        assert!(sentence.contains(wanted), "{wanted}: {sentence}");
    }
    // The space's token becomes that of another character, one whose search starts near enough.
    let at = spm_layout.merges + 16 * space as u64 + 4;
    let mut sentences = (0x2582..0x25A0).map(|character| refusal(&spm, at, &[character]));
    assert!(sentences.any(|sentence| sentence.contains("tokens for a space is 0")));
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
