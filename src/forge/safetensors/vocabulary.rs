//! tokenizer.json and tokenizer_config.json of a checkpoint -> the keys `tokenizer.*` of GGUF.
//!
//! Called once a checkpoint. A pre-tokenizer is recognised by what it does; one that is not among
//! those that GGUF has a name for here is refused, since another one would cut the text elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value as Json;

use super::config::{Config, Keys, whole};
use super::json;
use crate::forge::source::{Fault, Kind, SourceError, SourceFile, Value, quoted};

/// Contractions, words with a sign before them, other signs, line breaks, spaces; numbers stand
/// between [`WORDS_AND`] and [`AND_SIGNS`].
const WORDS_AND: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|";
const AND_SIGNS: &str = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Numbers in Qwen 2: each digit alone.
const QWEN2_NUMBERS: &str = r"\p{N}";
/// Numbers in Llama 3: up to three digits together.
const LLAMA3_NUMBERS: &str = r"\p{N}{1,3}";
/// SentencePiece's sign for a space.
const SPACE: &str = "\u{2581}";
/// Most token ids, those of holes included.
const TOKENS_MAX: u64 = 1 << 22;

// GGUF's token types.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// tokenizer.json, as far as it is asked.
#[derive(Deserialize)]
struct Tokenizer {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    #[serde(default)]
    post_processor: Json,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u64,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: Json,
    #[serde(default)]
    merges: Vec<Merge>,
    unk_token: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// Two tokens, as one text in older files.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair(String, String),
}

/// tokenizer_config.json, as far as it is asked.
#[derive(Deserialize, Default)]
struct Settings {
    bos_token: Option<Named>,
    eos_token: Option<Named>,
    add_bos_token: Option<bool>,
    chat_template: Option<Template>,
}

/// A token by its text, or by an object with it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Named {
    Text(String),
    Object { content: String },
}

impl Named {
    fn text(&self) -> &str {
        match self {
            Named::Text(text) | Named::Object { content: text } => text,
        }
    }
}

/// One template, or several by name.
#[derive(Deserialize)]
#[serde(untagged)]
enum Template {
    One(String),
    Several(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl Template {
    fn default(self) -> Option<String> {
        match self {
            Template::One(text) => Some(text),
            Template::Several(all) => {
                all.into_iter().find(|named| named.name == "default").map(|named| named.template)
            }
        }
    }
}

/// The keys of the vocabulary in `folder`; the files read join `files`.
pub fn keys(
    folder: &Path,
    config: &Config,
    files: &mut Vec<SourceFile>,
) -> Result<Keys, SourceError> {
    let path = folder.join("tokenizer.json");
    let tokenizer: Tokenizer = json(&path, "tokenizer.json", files)?;
    let settings_path = folder.join("tokenizer_config.json");
    let settings: Settings = match settings_path.exists() {
        true => json(&settings_path, "tokenizer_config.json", files)?,
        false => Settings::default(),
    };
    let mut keys = tokenizer.keys(config, &settings).map_err(|fault| fault.at(&path))?;
    let template = match template_file(folder)? {
        Some(text) => Some(text),
        None => settings.chat_template.and_then(Template::default),
    };
    keys.extend(template.map(|text| ("tokenizer.chat_template".into(), Value::String(text))));
    Ok(keys)
}

/// The chat template where it has a file of its own, as newer checkpoints do.
fn template_file(folder: &Path) -> Result<Option<String>, SourceError> {
    let path = folder.join("chat_template.jinja");
    if !path.exists() {
        return Ok(None);
    }
    let io = |source| Fault::Io { action: "read", source }.at(&path);
    std::fs::read_to_string(&path).map(Some).map_err(io)
}

impl Tokenizer {
    fn keys(self, config: &Config, settings: &Settings) -> Result<Keys, Fault> {
        let kind = self.model.kind.as_deref().unwrap_or("BPE");
        if kind != "BPE" {
            let wanted = "a BPE, byte-level or of SentencePiece";
            return Err(unread("the tokenizer model", kind, wanted));
        }
        let cuts = self.cuts()?;
        let table = self.table(cuts == Cuts::Scored)?;
        let id = |named: &Option<Named>, config: Option<u64>| {
            let named = named.as_ref().and_then(|named| table.id(named.text()));
            named.or(config).filter(|&id| id < table.tokens.len() as u64)
        };
        let bos = id(&settings.bos_token, config.bos());
        let eos = id(&settings.eos_token, config.eos());
        let begins = || bos.is_some_and(|bos| begins_with(&self.post_processor, bos, &table));
        let add_bos = settings.add_bos_token.unwrap_or_else(begins) && bos.is_some();
        let mut keys = Keys::new();
        let mut put = |key: &str, value| keys.insert(format!("tokenizer.ggml.{key}"), value);
        match cuts {
            Cuts::Named(pre) => {
                put("model", Value::String("gpt2".into()));
                put("pre", Value::String(pre.into()));
                put("merges", Value::Strings(self.model.merges.iter().map(Merge::text).collect()));
            }
            Cuts::Scored => {
                let scores = self.scores(&table)?;
                let bytes = scores.iter().flat_map(|score| score.to_le_bytes()).collect();
                put("model", Value::String("llama".into()));
                put("scores", Value::Array(Kind::F32, bytes));
                let prefix = self.adds_space();
                put("add_space_prefix", Value::scalar(Kind::Bool, &[u8::from(prefix)]));
            }
        }
        let types = table.types.iter().flat_map(|ty| ty.to_le_bytes()).collect();
        put("token_type", Value::Array(Kind::I32, types));
        bos.map(|bos| put("bos_token_id", whole(bos)));
        eos.map(|eos| put("eos_token_id", whole(eos)));
        put("add_bos_token", Value::scalar(Kind::Bool, &[u8::from(add_bos)]));
        put("tokens", Value::Strings(table.tokens));
        Ok(keys)
    }

    /// How the text is cut before its pieces are merged.
    fn cuts(&self) -> Result<Cuts, Fault> {
        let normalizer = flat(&self.normalizer, "normalizers");
        let steps = flat(&self.pre_tokenizer, "pretokenizers");
        if self.model.byte_fallback {
            return if is_sentence_piece(&normalizer, &steps) {
                Ok(Cuts::Scored)
            } else {
                let found = format!("{} {}", self.normalizer, self.pre_tokenizer);
                Err(unread("the normalizer", &found, "that of SentencePiece, before all words"))
            };
        }
        if !normalizer.iter().all(|step| kind_of(step) == "NFC") {
            let found = self.normalizer.to_string();
            return Err(unread("the normalizer", &found, "none or NFC"));
        }
        let pre = match steps.as_slice() {
            [bytes] if is_byte_level(bytes, true) => Some("gpt-2"),
            [digits, bytes] if is_byte_level(bytes, true) && is_each_digit(digits) => {
                Some("smollm")
            }
            [split, bytes] if is_byte_level(bytes, false) => named_split(split),
            _ => None,
        };
        let pre = pre.ok_or_else(|| {
            let found = self.pre_tokenizer.to_string();
            unread("the pre-tokenizer", &found, "that of gpt-2, smollm, qwen2 or llama-bpe")
        })?;
        if self.model.ignore_merges && pre != "llama-bpe" {
            return Err(unread("ignore_merges", "true", "false with this pre-tokenizer"));
        }
        Ok(Cuts::Named(pre))
    }

    /// Whether a text gets a space before it.
    fn adds_space(&self) -> bool {
        let prepends = |step: &&Json| kind_of(step) == "Prepend";
        let metaspace = |step: &&Json| {
            kind_of(step) == "Metaspace"
                && step["prepend_scheme"].as_str().is_none_or(|scheme| scheme != "never")
                && step["add_prefix_space"].as_bool() != Some(false)
        };
        flat(&self.normalizer, "normalizers").iter().any(prepends)
            || flat(&self.pre_tokenizer, "pretokenizers").iter().any(metaspace)
    }

    /// Every id's text and type.
    fn table(&self, scored: bool) -> Result<Table, Fault> {
        let mut vocab = BTreeMap::new();
        for (token, id) in self.model.vocab.as_object().into_iter().flatten() {
            let id =
                id.as_u64().ok_or_else(|| unread("a token id", &id.to_string(), "a number"))?;
            vocab.insert(id, (token.clone(), NORMAL));
        }
        for (token, ty) in vocab.values_mut().filter(|_| scored) {
            let is_byte = token.len() == 6 && token.starts_with("<0x") && token.ends_with('>');
            *ty = if is_byte { BYTE } else { *ty };
        }
        for added in &self.added_tokens {
            let plain = added.content.replace(SPACE, " ");
            let (text, ty) = match added.special {
                true => (added.content.clone(), CONTROL),
                false if scored => (plain, USER_DEFINED),
                false => (added.content.clone(), USER_DEFINED),
            };
            vocab.insert(added.id, (text, ty));
        }
        let unknown = self.model.unk_token.as_deref().unwrap_or_default();
        for (token, ty) in vocab.values_mut().filter(|(token, _)| scored && token == unknown) {
            (*ty, _) = (UNKNOWN, token);
        }
        let count = vocab.last_key_value().map_or(0, |(&id, _)| id.saturating_add(1));
        if count > TOKENS_MAX {
            return Err(unread("the largest token id", &count.to_string(), "below 4194304"));
        }
        let mut table = Table::default();
        for id in 0..count {
            let hole = || (format!("[hole {id}]"), UNUSED);
            let (token, ty) = vocab.remove(&id).unwrap_or_else(hole);
            table.ids.insert(token.clone(), id);
            table.tokens.push(token);
            table.types.push(ty);
        }
        Ok(table)
    }

    /// A score for every token, higher where its merges come earlier. In a vocabulary of
    /// SentencePiece the merges that make a token stand together.
    fn scores(&self, table: &Table) -> Result<Vec<f32>, Fault> {
        let never = -(table.tokens.len() as f32);
        let mut scores = vec![never; table.tokens.len()];
        let mut last = None;
        for (rank, merge) in self.model.merges.iter().enumerate() {
            let made = merge.text().replacen(' ', "", 1);
            let Some(id) = table.id(&made) else {
                return Err(unread("a merge", &merge.text(), "one that makes a token"));
            };
            if last == Some(id) {
                continue;
            }
            if scores[id as usize] != never {
                let wanted = "merges in the order of SentencePiece";
                return Err(unread("merge", &format!("{rank}, {made}"), wanted));
            }
            scores[id as usize] = -(rank as f32).min(-never - 1.0);
            last = Some(id);
        }
        Ok(scores)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cuts {
    /// Byte-level, with this pre-tokenizer of GGUF.
    Named(&'static str),
    /// SentencePiece: the text is merged by scores.
    Scored,
}

/// Tokens by id.
#[derive(Default)]
struct Table {
    tokens: Vec<String>,
    types: Vec<i32>,
    ids: HashMap<String, u64>,
}

impl Table {
    fn id(&self, token: &str) -> Option<u64> {
        self.ids.get(token).copied()
    }
}

impl Merge {
    fn text(&self) -> String {
        match self {
            Merge::Text(text) => text.clone(),
            Merge::Pair(left, right) => format!("{left} {right}"),
        }
    }
}

fn unread(what: &'static str, found: &str, wanted: &'static str) -> Fault {
    Fault::Vocabulary { what, found: quoted(found), wanted }
}

fn kind_of(step: &Json) -> &str {
    step["type"].as_str().unwrap_or_default()
}

/// The steps of a sequence, or the one step there is.
fn flat<'j>(step: &'j Json, members: &str) -> Vec<&'j Json> {
    match kind_of(step) {
        "" => Vec::new(),
        "Sequence" => step[members].as_array().into_iter().flatten().collect(),
        _ => vec![step],
    }
}

/// Spaces become [`SPACE`], and nothing else is changed or cut.
fn is_sentence_piece(normalizer: &[&Json], steps: &[&Json]) -> bool {
    let is_space = |value: &Json| value.as_str() == Some(SPACE);
    let replaces = |step: &&Json| match kind_of(step) {
        "Prepend" => is_space(&step["prepend"]),
        "Replace" => step["pattern"]["String"].as_str() == Some(" ") && is_space(&step["content"]),
        _ => false,
    };
    let metaspace = |step: &&Json| {
        kind_of(step) == "Metaspace"
            && is_space(&step["replacement"])
            && step["split"].as_bool() == Some(false)
    };
    let by_normalizer = !normalizer.is_empty() && normalizer.iter().all(replaces);
    let is_replaced = normalizer.iter().any(|step| kind_of(step) == "Replace");
    by_normalizer && is_replaced && steps.is_empty()
        || normalizer.is_empty() && steps.len() == 1 && steps.iter().all(metaspace)
}

fn is_byte_level(step: &Json, use_regex: bool) -> bool {
    kind_of(step) == "ByteLevel"
        && step["add_prefix_space"].as_bool() != Some(true)
        && step["use_regex"].as_bool().unwrap_or(true) == use_regex
}

fn is_each_digit(step: &Json) -> bool {
    kind_of(step) == "Digits" && step["individual_digits"].as_bool() == Some(true)
}

/// GGUF's name of a split by an expression.
fn named_split(step: &Json) -> Option<&'static str> {
    let isolated = step["behavior"].as_str() == Some("Isolated");
    let plain = kind_of(step) == "Split" && isolated && step["invert"].as_bool() != Some(true);
    let pattern = step["pattern"]["Regex"].as_str().filter(|_| plain)?;
    match pattern.strip_prefix(WORDS_AND)?.strip_suffix(AND_SIGNS)? {
        QWEN2_NUMBERS => Some("qwen2"),
        LLAMA3_NUMBERS => Some("llama-bpe"),
        _ => None,
    }
}

/// Whether a text alone gets the token `bos` before it.
fn begins_with(post_processor: &Json, bos: u64, table: &Table) -> bool {
    flat(post_processor, "processors").iter().any(|step| {
        let first = step["single"][0]["SpecialToken"]["id"].as_str();
        kind_of(step) == "TemplateProcessing" && first.and_then(|t| table.id(t)) == Some(bos)
    })
}
