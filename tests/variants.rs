//! The binary that users flash, built at five budgets: the budget is true, nothing is allocated
//! after the seal, the text is the same.
//!
//! Builds the bare engine with cargo in a folder of its own, once a budget, as `variants` will.
#![cfg(feature = "host")]
#![allow(unsafe_code)] // the canary maps memory under the filter

#[path = "common/engine.rs"]
mod engine;

use engine::{budget_of_everything, smallest_budget};
use ganglion::baked::PLAN;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// How far the process line of the plan may be from what the process uses.
const PROCESS_SLACK: u64 = 256 << 10;

/// One cargo at a time: the variants share a target folder.
static BUILDING: Mutex<()> = Mutex::new(());

fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("variants")
}

/// Builds the engine at `budget` bytes and copies it to a name of its own.
fn build(budget: u64) -> PathBuf {
    let _one = BUILDING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let binary = target().join(format!("ganglion-{budget}"));
    let output = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet", "--bin", "ganglion", "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", target())
        .env("GANGLION_BUDGET", budget.to_string())
        .env_remove("GANGLION_PLAN")
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::copy(target().join("release/ganglion"), &binary).expect("the build made a binary");
    binary
}

fn json(binary: &Path, arguments: &[&str]) -> Value {
    let output = Command::new(binary).args(arguments).output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {:?} {said}", output.status);
    serde_json::from_slice(&output.stdout).expect("--json prints JSON")
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} in {value}"))
}

fn budgets() -> [u64; 5] {
    let numerics = PLAN.inputs.numerics;
    let (least, most) = (smallest_budget(numerics), budget_of_everything(numerics));
    [0, 10, 40, 70, 100].map(|percent| least + (most - least) * percent / 100)
}

/// The best of three runs: only the kernel's own compaction may fault, and not three times.
fn faults(binary: &Path, arguments: &[&str]) -> (u64, u64) {
    let run = |_| {
        let value = json(binary, arguments);
        (number(&value, "minor_faults"), number(&value, "major_faults"))
    };
    (0..3).map(run).min().expect("three runs")
}

#[test]
fn every_budget_is_true_and_gives_the_same_text() {
    let mut texts = Vec::new();
    for budget in budgets() {
        let binary = build(budget);
        let plan = json(&binary, &["plan", "--json"]);
        let slack = number(&plan, "slot_bytes") + (2 << 20);
        assert!(number(&plan, "unused_bytes") <= slack, "{plan}");
        for threads in ["1", "2"] {
            let run = ["run", "Once upon a time", "-n", "256", "--ignore-end", "-t", threads];
            let sampling = ["--temp", "0.8", "--seed", "11", "--json", "--prove-seal"];
            let arguments = [&run[..], &sampling[..]].concat();
            let value = json(&binary, &arguments);
            check_memory(&plan, &value, budget);
            texts.push(value["text"].as_str().unwrap().to_string());
            let chat = ["chat", "--template", "chatml", "-n", "64", "-t", threads];
            let value = json(&binary, &[&chat[..], &["--json", "--prove-seal", "Hi"]].concat());
            check_memory(&plan, &value, budget);
            if number(&value, "locked_bytes") >= number(&plan, "arena_bytes") {
                assert_eq!(faults(&binary, &arguments), (0, 0), "faults of the token loop");
            } else {
                println!("skipped: faults are counted only where memory may be locked");
            }
        }
    }
    assert!(texts[0].len() > 300, "{}", texts[0]);
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:#?}");
}

fn check_memory(plan: &Value, run: &Value, budget: u64) {
    let used = number(run, "memory_bytes");
    let keys = ["arena_bytes", "page_table_bytes", "process_bytes"];
    let planned: u64 = keys.iter().map(|key| number(plan, key)).sum();
    println!("budget {budget}: planned {planned}, used {used}");
    assert_eq!(number(run, "budget_bytes"), budget);
    assert!(used <= budget, "used {used} of {budget}");
    assert!(used <= planned, "used {used}, planned {planned}");
    let locked = number(run, "locked_bytes") >= number(plan, "arena_bytes");
    assert!(!locked || used + PROCESS_SLACK >= planned, "used {used}, planned {planned}");
}

#[test]
fn the_bare_binary_imports_no_allocator() {
    let binary = build(budgets()[2]);
    let Ok(output) = Command::new("nm").args(["-D", "--undefined-only"]).arg(&binary).output()
    else {
        return println!("skipped: nm is not installed");
    };
    let symbols = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .map(|name| name.split('@').next().unwrap_or(name))
        .collect();
    assert!(names.contains(&"pread"), "the list is that of the engine: {names:?}");
    let allocators = ["alloc", "free", "memalign", "brk", "strdup", "fopen", "dlopen"];
    let found = names.iter().find(|name| allocators.iter().any(|part| name.contains(part)));
    assert_eq!(found, None);
}

#[test]
fn the_seal_kills_who_asks_for_memory() {
    const CHILD: &str = "GANGLION_SEAL_CANARY";
    if std::env::var_os(CHILD).is_some() {
        ganglion::sys::forbid_memory_calls().expect("seccomp is offered");
        // SAFETY: a new anonymous mapping touches no memory that exists.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0);
        }
        unreachable!("the filter let mmap through");
    }
    use std::os::unix::process::ExitStatusExt;
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_seal_kills_who_asks_for_memory", "--nocapture"])
        .env(CHILD, "1")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status:?}");
}
