//! What a GGUF's keys say of a vocabulary, and what it means when they are absent.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use ganglion::forge::gguf;
use ganglion::forge::tokenizer::TokenizerSource;
use ganglion::forge::vocabulary;
use ganglion::image::tokenizer::TokenType;

use super::{Section, small_spm};

/// A file without tensors.
struct File {
    keys: u64,
    bytes: Vec<u8>,
}

impl File {
    fn new(model: &str, tokens: &[&str]) -> File {
        let file = File { keys: 0, bytes: Vec::new() };
        let file = file.string("tokenizer.ggml.model", model);
        file.array("tokenizer.ggml.tokens", 8, tokens, |bytes, token| put_text(bytes, token))
    }

    /// A key and the number of its value's type.
    fn key(mut self, key: &str, kind: u32) -> File {
        self.keys += 1;
        put_text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
        self
    }

    fn string(self, key: &str, value: &str) -> File {
        let mut file = self.key(key, 8);
        put_text(&mut file.bytes, value);
        file
    }

    fn number(self, key: &str, value: u32) -> File {
        let mut file = self.key(key, 4);
        file.bytes.extend(value.to_le_bytes());
        file
    }

    fn flag(self, key: &str, value: bool) -> File {
        let mut file = self.key(key, 7);
        file.bytes.push(value.into());
        file
    }

    fn array<T>(self, key: &str, kind: u32, values: &[T], put: fn(&mut Vec<u8>, &T)) -> File {
        let mut file = self.key(key, 9);
        file.bytes.extend(kind.to_le_bytes());
        file.bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| put(&mut file.bytes, value));
        file
    }

    fn types(self, types: &[i32]) -> File {
        self.array("tokenizer.ggml.token_type", 5, types, |bytes, value| {
            bytes.extend(value.to_le_bytes());
        })
    }

    fn scores(self, scores: &[f32]) -> File {
        self.array("tokenizer.ggml.scores", 6, scores, |bytes, value| {
            bytes.extend(value.to_le_bytes());
        })
    }

    fn merges(self, merges: &[&str]) -> File {
        self.array("tokenizer.ggml.merges", 8, merges, |bytes, merge| put_text(bytes, merge))
    }

    fn read(&self) -> Result<TokenizerSource, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ganglion-vocabulary-{}-{number}.gguf", std::process::id());
        let path = std::env::temp_dir().join(name);
        let head = [b"GGUF".as_slice(), &3u32.to_le_bytes(), &[0; 8], &self.keys.to_le_bytes()];
        fs::write(&path, [head.concat(), self.bytes.clone()].concat()).unwrap();
        let source = gguf::open(&path).and_then(|gguf| vocabulary::read(&gguf));
        fs::remove_file(&path).unwrap();
        source.map_err(|error| error.to_string())
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

#[test]
fn absent_keys_mean_what_the_model_means() {
    let bare = || File::new("llama", &["<unk>", "<s>", "</s>", "\u{2581}"]).scores(&[0.0; 4]);
    let source = bare().read().unwrap();
    assert_eq!((source.bos, source.eos), (Some(1), Some(2)));
    assert!(source.add_bos && source.add_space && source.merges.is_empty());
    assert_eq!(source.pre, "default");
    let told = bare()
        .flag("tokenizer.ggml.add_bos_token", false)
        .flag("tokenizer.ggml.add_space_prefix", false)
        .number("tokenizer.ggml.bos_token_id", 3)
        .read()
        .unwrap();
    assert_eq!((told.bos, told.add_bos, told.add_space), (Some(3), false, false));

    let bare = || File::new("gpt2", &["a", "b", "ab"]).merges(&["a b"]);
    let source = bare().read().unwrap();
    assert_eq!((source.bos, source.eos, source.add_bos), (None, None, false));
    assert!(!source.add_space && source.types == [1, 1, 1] && source.merges == ["a b"]);
    // Llama 3's expect BOS unless told, where they name one.
    let llama3 = || bare().string("tokenizer.ggml.pre", "llama-v3");
    assert!(!llama3().read().unwrap().add_bos);
    assert!(llama3().number("tokenizer.ggml.bos_token_id", 2).read().unwrap().add_bos);
    let error = File::new("gpt2", &["a"]).read().unwrap_err();
    assert!(error.contains("tokenizer.ggml.merges"), "{error}");
}

#[test]
fn an_answer_ends_in_several_ways() {
    let tokens =
        ["a", "<|im_end|>", "<|eot_id|>", "</s>", "<turn>", "<|endoftext|>", "<|tool|>", "<eos>"];
    let file = || File::new("gpt2", &tokens).merges(&[]).number("tokenizer.ggml.eos_token_id", 5);
    let source = file()
        .types(&[1, 3, 4, 1, 4, 3, 3, 5])
        .number("tokenizer.ggml.eot_token_id", 4)
        .read()
        .unwrap();
    assert_eq!(source.ends, [4]);
    // A user's text could spell a user-defined one. A normal token is a word, an unused one is
    // never produced.
    assert_eq!(source.types, [1, 3, 3, 1, 4, 3, 3, 5]);
    let section = Section::of(&TokenizerSource { pre: "gpt-2".into(), ..source });
    let tokenizer = section.tokenizer();
    let ends: Vec<u32> = (0..9).filter(|&id| tokenizer.is_end(id)).collect();
    assert_eq!(ends, [1, 2, 4, 5]);
    assert_eq!(tokenizer.token_type(2), Some(TokenType::Control));

    // Where the file has no types, the names are all there is.
    let source = file().read().unwrap();
    assert!(source.ends.is_empty());
    assert_eq!(source.types, [1, 3, 3, 3, 1, 3, 1, 3]);
}

#[test]
fn what_a_chat_needs_is_kept() {
    let section = Section::of(&small_spm());
    let tokenizer = section.tokenizer();
    assert_eq!(tokenizer.system_prompt(), "Be brief.");
    assert_eq!(tokenizer.chat_template(), None);
    let ends: Vec<u32> = (0..tokenizer.token_count()).filter(|&id| tokenizer.is_end(id)).collect();
    assert_eq!(ends, [1, 2]);
    assert!(tokenizer.adds_bos() && tokenizer.adds_space());
}
