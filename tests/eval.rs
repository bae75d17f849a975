//! `ganglion-forge eval`: scores against a plain loop over the logits, agreement with a reference
//! that can be worked out, the same at every budget, and every refusal.
#![cfg(feature = "host")]

#[path = "common/engine.rs"]
mod engine;
#[path = "common/process.rs"]
mod process;
#[path = "common/refusal.rs"]
mod refusal;

use engine::{budget_of_everything, image, numerics, plan_of, session};
use ganglion::image::WeightType;
use ganglion::kernel::Isa;
use ganglion::plan::KvType;
use ganglion::token::{EncodeOptions, EncodeScratch};
use process::{forge, run};
use refusal::{Folder, Table};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// sysexits' EX_DATAERR, EX_NOINPUT and EX_CONFIG.
const DATA: i32 = 65;
const NO_INPUT: i32 = 66;
const CONFIG: i32 = 78;
const CONTEXT: usize = 32;
const CHUNKS: usize = 3;
const TEXT: &str = "\
    Once upon a time, there was a little girl named Lily. She loved to play outside in the park. \
    One day, she saw a big, red ball. She wanted to play with it, but it was too high. Lily asked \
    her mom to help her, and her mom said that they could get it down together with a long stick. \
    They were very happy and went home to have a good dinner with the whole family. Then they all \
    sat down in the warm kitchen.\n";

fn image_path() -> &'static Path {
    let types = numerics(WeightType::Q8, KvType::Half).types;
    Path::new(std::str::from_utf8(image(&types)).expect("a plain path"))
}

/// `eval` of the demo's image and `text`, in small chunks.
fn eval(text: &Path) -> Command {
    let mut command = forge();
    command.arg("eval").arg(image_path()).arg("--text").arg(text);
    command.args(["--context", "32", "--chunks", "3"]);
    command
}

fn json(command: &mut Command) -> Value {
    let ended = run(command.arg("--json"));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    serde_json::from_slice(&ended.stdout).expect("it prints JSON")
}

/// The text's tokens in whole chunks, and for every scored position the log-probabilities of all
/// tokens, one forward pass a token.
fn scores() -> (Vec<u32>, Vec<Vec<f64>>) {
    let numerics = numerics(WeightType::Q8, KvType::Half);
    let plan = plan_of(numerics, budget_of_everything(numerics)).unwrap();
    session(&plan, 1, Isa::best(), |session| {
        let text = TEXT.trim_end();
        let (mut words, mut tokens) = (vec![0; EncodeScratch::words(text.len() + 1)], vec![0; 999]);
        let bos = session.tokenizer.adds_bos();
        let options = EncodeOptions { bos, parse_special: false };
        let mut scratch = EncodeScratch::new(&mut words);
        let count = session.tokenizer.encode(text, options, &mut scratch, &mut tokens)?;
        assert!(count >= CONTEXT * CHUNKS, "the text has {count} tokens");
        tokens.truncate(CONTEXT * CHUNKS);
        let mut lines = Vec::new();
        for chunk in tokens.chunks_exact(CONTEXT) {
            for (position, &token) in chunk.iter().enumerate().take(CONTEXT - 1) {
                let begins = position == 0 && bos;
                let given = if begins { session.tokenizer.bos().unwrap() } else { token };
                session.model.forward(given, position)?;
                if position >= CONTEXT / 2 {
                    let logits = session.model.logits()?;
                    let sum = logits.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
                    lines.push(logits.iter().map(|&x| f64::from(x) - sum).collect());
                }
            }
        }
        Ok((tokens, lines))
    })
}

/// The tokens that come next at scored positions.
fn next_tokens(tokens: &[u32]) -> Vec<usize> {
    let chunks = tokens.chunks_exact(CONTEXT);
    chunks.flat_map(|chunk| &chunk[CONTEXT / 2 + 1..]).map(|&token| token as usize).collect()
}

fn is_near(found: &Value, wanted: f64) {
    let found = found.as_f64().expect("a number");
    assert!((found / wanted - 1.0).abs() < 1e-9, "{found}, wanted {wanted}");
}

/// A reference as llama.cpp writes it, every token of which is as likely as another.
fn uniform(tokens: &[u32], vocab: usize) -> Vec<u8> {
    let mut bytes = b"_logits_".to_vec();
    for number in [CONTEXT, vocab, tokens.len() / CONTEXT] {
        bytes.extend((number as u32).to_le_bytes());
    }
    tokens.iter().for_each(|token| bytes.extend(token.to_le_bytes()));
    for _ in next_tokens(tokens) {
        bytes.extend(0f32.to_le_bytes());
        bytes.extend((-(vocab as f32).ln()).to_le_bytes());
        bytes.resize(bytes.len() + 2 * vocab.next_multiple_of(2), 0);
    }
    bytes
}

#[test]
fn a_text_scores_what_its_logits_say() {
    let folder = Folder::new("scores");
    let text = folder.write("story.txt", TEXT);
    let (tokens, lines) = scores();
    let losses = lines.iter().zip(next_tokens(&tokens)).map(|(line, next)| -line[next]);
    let losses: Vec<f64> = losses.collect();
    let found = json(&mut eval(&text));
    is_near(&found["perplexity"], (losses.iter().sum::<f64>() / losses.len() as f64).exp());
    assert_eq!(found["scored"], losses.len());
    let of_chunk = losses.len() / CHUNKS;
    for (index, after) in found["after_each_chunk"].as_array().unwrap().iter().enumerate() {
        let losses = &losses[..(index + 1) * of_chunk];
        is_near(after, (losses.iter().sum::<f64>() / losses.len() as f64).exp());
    }
}

#[test]
fn every_budget_and_team_scores_the_same() {
    let folder = Folder::new("budgets");
    let text = folder.write("story.txt", TEXT);
    let wanted = json(&mut eval(&text));
    for (budget, threads) in [("12MB", "1"), ("14MB", "2"), ("40MB", "2")] {
        let found = json(eval(&text).args(["--budget", budget, "--threads", threads]));
        assert_eq!(found, wanted, "{budget}, {threads} threads");
    }
}

/// A reference that knows nothing: its perplexity is its vocabulary, its likeliest token the first,
/// and the divergence from it the mean of our own log-probabilities less its one.
#[test]
fn the_agreement_with_a_reference_by_hand() {
    let folder = Folder::new("reference");
    let text = folder.write("story.txt", TEXT);
    let (tokens, lines) = scores();
    let vocab = lines[0].len();
    let reference = folder.write("uniform.logits", uniform(&tokens, vocab));
    let found = json(eval(&text).arg("--reference").arg(&reference));
    let least = f64::from(-(vocab as f32).ln());
    let divergence = |line: &Vec<f64>| {
        line.iter().map(|ours| least.exp() * (least - ours)).sum::<f64>() / lines.len() as f64
    };
    let near = &found["reference"];
    is_near(&near["perplexity"], (-least).exp());
    is_near(&near["divergence"], lines.iter().map(divergence).sum());
    assert_eq!(near["same_top"], 0.0, "the first token of the vocabulary is never likeliest");
    is_near(&near["ratio"], found["perplexity"].as_f64().unwrap() / (-least).exp());
}

#[test]
fn what_cannot_be_scored_is_told() {
    let folder = Folder::new("eval");
    let text = folder.write("story.txt", TEXT);
    let mut table = Table::default();
    let missing = folder.file("missing.txt");
    table.row(&mut eval(&missing), NO_INPUT, &["text", "missing.txt", "can't be read"]);
    let short = folder.write("short.txt", "Once upon a time");
    table.row(&mut eval(&short), DATA, &["short.txt has", "3 chunks of 32 need 96"]);
    let latin = folder.write("latin.txt", b"caf\xe9");
    table.row(&mut eval(&latin), DATA, &["latin.txt is not UTF-8 from byte 3 on"]);
    table.row(eval(&text).args(["--budget", "1MB"]), CONFIG, &["no plan", "1000000"]);
    let mut other = forge();
    other.arg("eval").arg(&text).arg("--text").arg(&text);
    table.row(&mut other, DATA, &["story.txt"]);

    let (tokens, lines) = scores();
    let vocab = lines[0].len();
    let whole = uniform(&tokens, vocab);
    let mut with = |name: &str, bytes: &[u8], code: i32, says: &[&str]| {
        let reference = folder.write(name, bytes);
        let mut command = eval(&text);
        table.row(command.arg("--reference").arg(&reference), code, &[&[name], says].concat());
    };
    with("cut", &whole[..whole.len() - 1], DATA, &["its header asks for"]);
    with("tiny", &whole[..9], DATA, &["it has 9 bytes, a header has 20"]);
    with("foreign", &[b"_logots_", &whole[8..]].concat(), DATA, &["does not begin with"]);
    let zero = [&whole[..8], &[0; 4], &whole[12..]].concat();
    with("empty", &zero, DATA, &["its context is 0, wanted 6"]);
    with("model", &uniform(&tokens, vocab - 2), DATA, &["another model", "vocabulary"]);
    let mut others = tokens.clone();
    others[5] += 1;
    with("text", &uniform(&others, vocab), DATA, &["another text or tokenizer: token 5"]);
    let two = uniform(&tokens[..2 * CONTEXT], vocab);
    with("two", &two, DATA, &["it has 2 chunks, --chunks says 3"]);
    let reference = folder.write("whole", &whole);
    let mut command = forge();
    command.arg("eval").arg(image_path()).arg("--text").arg(&text).args(["--context", "16"]);
    let says = ["chunks have 32 tokens, --context says 16"];
    table.row(command.arg("--reference").arg(&reference), DATA, &says);
    let missing = folder.file("none.logits");
    let mut command = eval(&text);
    table.row(command.arg("--reference").arg(&missing), NO_INPUT, &["reference", "none.logits"]);
    table.end();
}
