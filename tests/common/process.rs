//! The binaries run as processes, each under a time limit.
#![allow(dead_code)] // each suite uses its part

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A process that takes longer hangs.
pub const LIMIT: Duration = Duration::from_secs(30);

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; `None` where a signal or the time limit ended it.
    pub code: Option<i32>,
    /// What it wrote to stdout.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr.
    pub stderr: String,
}

/// The engine, with nothing of this environment that changes what it does.
pub fn engine() -> Command {
    bare(env!("CARGO_BIN_EXE_ganglion"))
}

/// The host tool.
pub fn forge() -> Command {
    bare(env!("CARGO_BIN_EXE_ganglion-forge"))
}

fn bare(path: &str) -> Command {
    let mut command = Command::new(path);
    command.env_remove("GANGLION_ISA");
    command
}

/// Runs `command` to its end and collects what it says; kills it at the limit.
pub fn run(command: &mut Command) -> Ended {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = collect(child.stdout.take().expect("stdout is a pipe"));
    let stderr = collect(child.stderr.take().expect("stderr is a pipe"));
    let status = wait(&mut child);
    let mut stderr = String::from_utf8_lossy(&stderr.join().unwrap()).into_owned();
    if status.is_none() {
        stderr.push_str("(killed at the time limit)");
    }
    Ended { code: status.and_then(|s| s.code()), stdout: stdout.join().unwrap(), stderr }
}

/// As [`run`], with `input` on stdin, all at once.
pub fn run_with(command: &mut Command, input: &[u8]) -> Ended {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (mut stdin, input) = (child.stdin.take().expect("stdin is a pipe"), input.to_vec());
    let writer = thread::spawn(move || {
        let _ = stdin.write_all(&input); // who refuses the first line reads no more
    });
    let stdout = collect(child.stdout.take().expect("stdout is a pipe"));
    let stderr = collect(child.stderr.take().expect("stderr is a pipe"));
    let status = wait(&mut child);
    writer.join().unwrap();
    let stderr = String::from_utf8_lossy(&stderr.join().unwrap()).into_owned();
    Ended { code: status.and_then(|s| s.code()), stdout: stdout.join().unwrap(), stderr }
}

/// As [`run`], with a stdout of the caller's.
pub fn run_into(command: &mut Command, stdout: Stdio) -> Ended {
    command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = collect(child.stderr.take().expect("stderr is a pipe"));
    let status = wait(&mut child);
    let stderr = String::from_utf8_lossy(&stderr.join().unwrap()).into_owned();
    Ended { code: status.and_then(|s| s.code()), stdout: Vec::new(), stderr }
}

fn collect(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes); // a killed process leaves what it wrote
        bytes
    })
}

/// Waits for the end, at most until the limit.
pub fn wait(child: &mut Child) -> Option<ExitStatus> {
    let started = Instant::now();
    while started.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}
