//! Vocabularies of tokenizer.json under GGUF's keys, and those that are refused.

use super::checkpoint;
use super::refusal::Folder;
use ganglion::forge::safetensors;
use ganglion::forge::source::{Fault, Source, SourceError};
use serde_json::{Value, json};
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

/// The expression of Qwen 2's file.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// That of Llama 3's.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// A checkpoint whose tokenizer files were changed.
fn opened(change: impl FnOnce(&mut Value, &mut Value)) -> Result<Source, SourceError> {
    static NEXT: AtomicU32 = AtomicU32::new(0); // tests run side by side
    let folder = Folder::new(&format!("vocabulary-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    let checkpoint = checkpoint("families/llama.gguf", "llama");
    checkpoint.write(&folder.0, 1);
    let (mut tokenizer, mut settings) = (checkpoint.tokenizer(), checkpoint.settings());
    change(&mut tokenizer, &mut settings);
    for (name, value) in [("tokenizer.json", tokenizer), ("tokenizer_config.json", settings)] {
        fs::write(folder.file(name), value.to_string()).unwrap();
    }
    safetensors::open(&folder.0)
}

fn split(pattern: &str) -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
    ]})
}

#[test]
fn pre_tokenizers_are_recognised_by_what_they_do() {
    let digits = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    ]});
    let gpt2 = json!({"type": "ByteLevel", "add_prefix_space": false});
    let known = [
        (gpt2, "gpt-2"),
        (digits, "smollm"),
        (split(QWEN2), "qwen2"),
        (split(LLAMA3), "llama-bpe"),
    ];
    for (steps, name) in known {
        let source = opened(|tokenizer, _| tokenizer["pre_tokenizer"] = steps).unwrap();
        assert_eq!(source.string("tokenizer.ggml.model").unwrap(), "gpt2");
        assert_eq!(source.string("tokenizer.ggml.pre").unwrap(), name);
    }
    let unknown = [
        json!({"type": "ByteLevel", "add_prefix_space": true}),
        json!({"type": "Whitespace"}),
        split(&QWEN2.replace(r"\p{N}|", r"\p{N}{1,2}|")),
        json!(null),
    ];
    for steps in unknown {
        let error = opened(|tokenizer, _| tokenizer["pre_tokenizer"] = steps).unwrap_err();
        assert!(error.path.ends_with("tokenizer.json"), "{error}");
        assert!(matches!(error.fault, Fault::Vocabulary { .. }), "{error}");
        assert!(error.to_string().contains("the pre-tokenizer is"), "{error}");
    }
}

#[test]
fn special_tokens_and_what_begins_a_text() {
    let source = opened(|tokenizer, settings| {
        tokenizer["added_tokens"] = json!([
            {"id": 0, "content": "<|endoftext|>", "special": true},
            {"id": 40, "content": "<tool>", "special": false},
            {"id": 43, "content": "<|im_end|>", "special": true},
        ]);
        tokenizer["post_processor"] = json!({"type": "Sequence", "processors": [
            {"type": "ByteLevel"},
            {"type": "TemplateProcessing", "single": [
                {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A"}},
            ]},
        ]});
        settings["add_bos_token"] = json!(null);
        settings["bos_token"] = json!("<|endoftext|>");
        settings["eos_token"] = json!({"content": "<|im_end|>"});
        settings["chat_template"] = json!([
            {"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ yes }}"},
        ]);
    });
    let source = source.unwrap();
    let tokens = source.strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens[39..], ["ab", "<tool>", "[hole 41]", "[hole 42]", "<|im_end|>"]);
    let types = source.i32s("tokenizer.ggml.token_type").unwrap();
    assert_eq!((types[0], &types[39..]), (3, &[1, 4, 5, 5, 3][..]));
    assert_eq!(source.u32("tokenizer.ggml.bos_token_id").unwrap(), 0);
    assert_eq!(source.u32("tokenizer.ggml.eos_token_id").unwrap(), 43);
    assert!(source.bool("tokenizer.ggml.add_bos_token").unwrap());
    assert_eq!(source.string("tokenizer.chat_template").unwrap(), "{{ yes }}");
}

/// Six characters, of which two merges make three tokens.
fn sentence_piece() -> (Value, Value) {
    let tokenizer = json!({
        "added_tokens": [
            {"id": 0, "content": "<unk>", "special": true},
            {"id": 1, "content": "<s>", "special": true},
            {"id": 2, "content": "</s>", "special": true},
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        ]},
        "pre_tokenizer": null,
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": {
                "<unk>": 0, "<s>": 1, "</s>": 2, "<0x00>": 3, "\u{2581}a": 4, "ab": 5,
                "\u{2581}ab": 6, "\u{2581}": 7, "a": 8, "b": 9,
            },
            "merges": ["\u{2581} a", ["a", "b"], "\u{2581}a b", "\u{2581} ab"],
        },
    });
    (tokenizer, json!({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true}))
}

#[test]
fn sentence_piece_gets_scores() {
    let both = |change: fn(&mut Value)| {
        opened(|tokenizer, settings| {
            (*tokenizer, *settings) = sentence_piece();
            change(tokenizer);
        })
    };
    let source = both(|_| {}).unwrap();
    assert_eq!(source.string("tokenizer.ggml.model").unwrap(), "llama");
    assert_eq!(source.i32s("tokenizer.ggml.token_type").unwrap(), [2, 3, 3, 6, 1, 1, 1, 1, 1, 1]);
    let scores = source.f32s("tokenizer.ggml.scores").unwrap();
    assert!(scores[4] > scores[5] && scores[5] > scores[6] && scores[6] > scores[7], "{scores:?}");
    assert!(source.bool("tokenizer.ggml.add_space_prefix").unwrap());
    // The newer form of the same.
    let metaspace = |scheme: &str| {
        let step = json!({"type": "Metaspace", "replacement": "\u{2581}", "split": false,
            "prepend_scheme": scheme});
        let source = opened(|tokenizer, settings| {
            (*tokenizer, *settings) = sentence_piece();
            (tokenizer["normalizer"], tokenizer["pre_tokenizer"]) = (json!(null), step);
        });
        source.unwrap().bool("tokenizer.ggml.add_space_prefix").unwrap()
    };
    assert!(metaspace("first") && metaspace("always") && !metaspace("never"));
    // Merges in an order that no scores have, or of no token; other models; cuts before the merges.
    let wrong: [fn(&mut Value); 5] = [
        |t| t["model"]["merges"] = json!(["\u{2581}a b", "a b", "\u{2581} ab"]),
        |t| t["model"]["merges"] = json!(["b a"]),
        |t| t["model"]["type"] = json!("Unigram"),
        |t| t["normalizer"] = json!({"type": "Lowercase"}),
        |t| t["pre_tokenizer"] = json!({"type": "Whitespace"}),
    ];
    for change in wrong {
        let error = both(change).unwrap_err();
        assert!(matches!(error.fault, Fault::Vocabulary { .. }), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn a_vocabulary_of_wild_ids_is_refused() {
    for id in [json!(1u64 << 40), json!(u64::MAX)] {
        let error = opened(|tokenizer, _| tokenizer["model"]["vocab"]["zz"] = id).unwrap_err();
        assert!(error.to_string().contains("largest token id"), "{error}");
    }
    let error = opened(|tokenizer, _| tokenizer["model"]["vocab"]["zz"] = json!("7")).unwrap_err();
    assert!(error.to_string().contains("a token id is"), "{error}");
    let folder = Folder::new("no-vocabulary");
    checkpoint("families/llama.gguf", "llama").write(&folder.0, 1);
    fs::remove_file(folder.file("tokenizer.json")).unwrap();
    let error = safetensors::open(&folder.0).unwrap_err();
    assert!(matches!(error.fault, Fault::PartMissing { what: "tokenizer.json" }), "{error}");
}
