//! Chat: turns as the models' own templates write them, and the command as its users meet it.
#![cfg(feature = "host")]

#[path = "common/engine.rs"]
mod engine;
#[path = "common/process.rs"]
mod process;
#[path = "chat/rendering.rs"]
mod rendering;
#[path = "chat/same_text.rs"]
mod same_text;
#[path = "chat/terminal.rs"]
mod terminal;

use process::{Ended, run, run_with};
use serde_json::Value;
use std::process::Command;

const CHAT: [&str; 3] = ["chat", "--template", "chatml"];

fn chat(arguments: &[&str]) -> Command {
    let mut command = process::engine();
    command.args(CHAT).args(arguments);
    command
}

fn talk(arguments: &[&str], input: &str) -> Ended {
    run_with(&mut chat(arguments), input.as_bytes())
}

/// The turns of a chat in JSON, which must end well.
fn turns(arguments: &[&str], input: &str) -> Vec<Value> {
    let ended = talk(&[arguments, &["--json"]].concat(), input);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let text = String::from_utf8(ended.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn number(turn: &Value, key: &str) -> u64 {
    turn[key].as_u64().unwrap_or_else(|| panic!("{key} in {turn}"))
}

#[test]
fn only_what_is_new_is_given_to_the_model() {
    let said = turns(&["-n", "20"], "One day,\nTim saw a dog.\nThen\n");
    assert_eq!(said.len(), 3);
    let mut cached = 0;
    for (index, turn) in said.iter().enumerate() {
        cached += number(turn, "prompt_tokens") + number(turn, "tokens");
        assert_eq!(number(turn, "context_tokens"), cached, "{turn}");
        assert_eq!(number(turn, "turn"), index as u64 + 1);
        assert_eq!(number(turn, "major_faults"), 0);
    }
    // What the second turn gives beside its message are the marks between two messages.
    let second = number(&said[1], "prompt_tokens");
    assert!(second < number(&said[0], "prompt_tokens") + number(&said[0], "tokens"));
    assert_eq!(said[1]["prompt"], "Tim saw a dog.");
}

#[test]
fn answers_stream_to_stdout_and_all_else_goes_to_stderr() {
    let ended =
        talk(&["-n", "8", "Once upon a time"], "/help\n/stats\n/sing\n /sing\n\n/exit\nx\n");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // Two answers: of the argument and of the message that only looks like a command.
    let answers = String::from_utf8(ended.stdout).unwrap();
    let both = turns(&["-n", "8", "Once upon a time"], " /sing\n");
    let texts = both.iter().map(|turn| turn["text"].as_str().unwrap());
    assert_eq!(answers, texts.map(|text| format!("{text}\n")).collect::<String>());
    for said in ["/paste ", "[turns 1, context ", " of 512 tokens]", "numerics", "\"/sing\""] {
        assert!(ended.stderr.contains(said), "{said} in {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("> "), "no prompt sign in a pipe: {}", ended.stderr);
}

#[test]
fn a_reset_forgets_all() {
    let said = turns(&["-n", "12", "--temp", "0.9", "--seed", "3"], "Hi\nMore\n/reset\nHi\nMore\n");
    assert_eq!(said.len(), 4);
    for (before, after) in [(0, 2), (1, 3)] {
        for key in ["text", "prompt_tokens", "context_tokens", "turn"] {
            assert_eq!(said[before][key], said[after][key]);
        }
    }
    let stats = turns(&["-n", "12"], "Hi\n/stats\n/reset\n/stats\n");
    assert_eq!(stats[1]["context_tokens"], stats[0]["context_tokens"]);
    let empty = serde_json::json!({"turns": 0, "context_tokens": 0, "context_tokens_max": 512});
    assert_eq!(stats[2], empty);
}

#[test]
fn a_message_may_have_several_lines() {
    let said = turns(&["-n", "4"], "One \\\ntwo\\\n\\\nend\n/paste\na\n/b\n\nc\\\n/end\nlast");
    let prompts: Vec<&str> = said.iter().map(|turn| turn["prompt"].as_str().unwrap()).collect();
    assert_eq!(prompts, ["One \ntwo\n\nend", "a\n/b\n\nc\\", "last"]);
}

#[test]
fn the_seal_holds_through_a_conversation() {
    let ended = talk(&["--prove-seal", "-n", "30"], "Hi\n/paste\nx\n/end\n/stats\n/reset\nAgain\n");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("ganglion:").count(), 1, "{}", ended.stderr); // no end token
}

/// A chat that ends with `code` and a sentence that holds `says`.
fn refused(mut command: Command, input: &[u8], code: i32, says: &[&str]) {
    let ended = run_with(&mut command, input);
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert_eq!(ended.code, Some(code), "{}", ended.stderr);
    assert!(last.starts_with("ganglion: "), "{}", ended.stderr);
    says.iter().for_each(|words| assert!(last.contains(words), "{words} in {last}"));
}

#[test]
fn what_cannot_be_answered_is_refused_with_a_sentence() {
    let mut plain = process::engine();
    plain.arg("chat");
    refused(plain, b"Hi\n", 64, &["names no chat template", "--template", "mistral-v7"]);
    let long = "word ".repeat(2_000);
    refused(chat(&[]), long.as_bytes(), 65, &["the message has 10", "room for 8704"]);
    let many = "a b ".repeat(300);
    refused(chat(&[]), many.as_bytes(), 65, &["the prompt has 6", "the context holds 512"]);
    let full = format!("Hi\n{}\n", "a b ".repeat(250));
    refused(chat(&["-n", "9"]), full.as_bytes(), 65, &["of the context's 512", "/reset"]);
    refused(chat(&[]), b"caf\xe9\n", 65, &["not UTF-8 from byte 3"]);
    let mut other = process::engine();
    other.args(["run", "--template", "chatml", "Hi"]);
    refused(other, b"", 64, &["--template belongs to `ganglion chat`"]);
    let ended = run(chat(&[]).args(["--template", "vicuna"]));
    assert!(ended.code == Some(64) && ended.stderr.contains("\"vicuna\""), "{}", ended.stderr);
}

#[test]
fn in_json_a_refused_message_has_an_object_of_its_own() {
    let paste = format!("/paste\n{}/end\n", "0123456789\n".repeat(1_000));
    let input = format!("Hi\n{}\n{paste}{}\nAgain\n", "a b ".repeat(250), "x".repeat(9_000));
    let said = turns(&["-n", "9"], &input);
    let error = |turn: &Value| turn["error"].as_str().unwrap_or_default().to_string();
    assert_eq!(said.len(), 5);
    assert!(error(&said[1]).contains("of the context's 512"), "{}", said[1]);
    assert!(error(&said[2]).contains("room for 8704"), "{}", said[2]);
    assert!(error(&said[3]).contains("room for 8704"), "{}", said[3]);
    // Nothing was lost: the next turn goes on where the first one ended.
    let two = turns(&["-n", "9"], "Hi\nAgain\n");
    for key in ["text", "context_tokens", "turn"] {
        assert_eq!(said[4][key], two[1][key]);
    }
}

#[test]
fn a_full_context_ends_the_answer_with_a_sentence() {
    let message = format!("{}Then", "a b ".repeat(200));
    let ended = talk(&["--ignore-end"], &format!("{message}\n/stats\n/reset\n/stats\n"));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for said in [
        "the context of 512 tokens is full",
        "[turns 1, context 512 of 512",
        "[turns 0, context 0 of 512",
    ] {
        assert!(ended.stderr.contains(said), "{said} in {}", ended.stderr);
    }
    assert_eq!(turns(&["--ignore-end"], &message)[0]["stop"], "context");
}
