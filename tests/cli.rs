//! The door as its users meet it: help, JSON, streams, Ctrl-C.
#![cfg(feature = "host")]

use serde_json::Value;
use std::io::Read;
use std::process::{Command, Output, Stdio};

const ENGINE: &str = env!("CARGO_BIN_EXE_ganglion");
const FORGE: &str = env!("CARGO_BIN_EXE_ganglion-forge");

fn output(binary: &str, arguments: &[&str]) -> Output {
    Command::new(binary).args(arguments).output().expect("the binary runs")
}

fn stdout(binary: &str, arguments: &[&str]) -> String {
    let output = output(binary, arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(binary: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout(binary, arguments)).expect("it is one JSON object")
}

#[test]
fn every_command_has_help_with_an_example() {
    for command in ["run", "chat", "bench", "plan", "check"] {
        let help = stdout(ENGINE, &[command, "--help"]);
        assert!(help.contains(&format!("Example:\n  ganglion {command}")), "{help}");
        assert!(help.lines().all(|line| line.len() <= 100), "{help}");
    }
    for command in ["shape", "pack", "inspect", "plan"] {
        let help = stdout(FORGE, &[command, "--help"]);
        assert!(help.contains(&format!("Example:\n  ganglion-forge {command}")), "{help}");
    }
    assert!(stdout(ENGINE, &["help"]).contains("ganglion run PROMPT"));
    assert!(stdout(ENGINE, &["--version"]).starts_with("ganglion "));
}

#[test]
fn run_streams_text_to_stdout_and_one_line_to_stderr() {
    let run = output(ENGINE, &["run", "-n", "24", "Once upon a time"]);
    let text = String::from_utf8(run.stdout).unwrap();
    // The reference's greedy continuation (golden.json).
    assert!(text.starts_with("Once upon a time, there was a little girl named Lily."), "{text}");
    let said = String::from_utf8(run.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    for part in ["[24 tokens", "tok/s", "first token", "misses", "read", "memory", "numerics"] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn json_has_the_text_and_every_figure() {
    let run = json(ENGINE, &["run", "-n", "24", "--json", "Once \"upon\"\na\ttime"]);
    assert_eq!(run["prompt"], "Once \"upon\"\na\ttime");
    assert_eq!((run["tokens"].as_u64(), run["stop"].as_str()), (Some(24), Some("tokens")));
    let bench = json(ENGINE, &["bench", "-n", "40", "--json"]);
    let figures = [
        "boot_ms",
        "first_token_ms",
        "prefill_tok_s",
        "decode_tok_s",
        "token_mean_ms",
        "token_p50_ms",
        "token_p99_ms",
        "token_max_ms",
        "miss_rate",
        "first_16_miss_rate",
        "decode_bytes",
        "decode_reads",
        "memory_bytes",
        "budget_bytes",
        "minor_faults",
        "major_faults",
        "involuntary_switches",
    ];
    for figure in figures {
        assert!(bench[figure].is_number(), "{figure} in {bench}");
    }
    let misses = bench["misses"].as_f64().unwrap();
    let rate = misses / (misses + bench["hits"].as_f64().unwrap());
    assert!((rate - bench["miss_rate"].as_f64().unwrap()).abs() < 1e-3);
    assert_eq!(json(ENGINE, &["check", "--json"])["ok"], true);
    assert_eq!(json(ENGINE, &["plan", "--json"])["plan"], "demo");
}

#[test]
fn bench_makes_a_prompt_of_any_length() {
    let bench =
        |tokens: &str| json(ENGINE, &["bench", "--json", "-n", "4", "--prompt-tokens", tokens]);
    for tokens in [1, 100, 511] {
        let made = bench(&tokens.to_string());
        assert_eq!(
            (made["prompt_tokens"].as_u64(), made["major_faults"].as_u64()),
            (Some(tokens), Some(0))
        );
        // The context of 512 tokens ends the last one.
        let stop = if tokens == 511 { "context" } else { "tokens" };
        assert_eq!(made["stop"], stop);
    }
    // The same tokens each time: the same neurons are looked up.
    assert_eq!(bench("40")["misses"], bench("40")["misses"]);
}

#[test]
fn the_seed_decides_the_text() {
    let run = |seed| stdout(ENGINE, &["run", "-n", "40", "--temp", "1", "--seed", seed, "One day"]);
    assert_eq!(run("5"), run("5"));
    assert_ne!(run("5"), run("6"));
}

#[test]
fn ctrl_c_ends_with_the_summary_line() {
    let mut child = Command::new(ENGINE)
        .args(["run", "--ignore-end", "--isa", "twin", "Once upon a time"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = child.stdout.take().unwrap();
    let mut first = [0; 40];
    text.read_exact(&mut first).unwrap(); // it has begun to speak
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let (mut rest, mut said) = (String::new(), String::new());
    text.read_to_string(&mut rest).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert!(rest.ends_with('\n'), "{rest:?}");
    assert!(said.starts_with('[') && said.contains("numerics"), "{said}");
}
