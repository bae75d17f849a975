//! Damaged model files by the thousand: the bodies of the fuzz targets on mutations of good files.
//!
//! Two seconds a reader, or `GANGLION_MUTATION_SECONDS`; CI gives each a minute. The same seed
//! (`GANGLION_MUTATION_SEED`) makes the same files, and the number of one that fails is printed.
//! Memory is limited, so that an allocation as large as a file claims to need ends the test.
#![cfg(feature = "host")]
#![allow(unsafe_code)] // a limit for this process

#[path = "fuzz/readers.rs"]
mod readers;
#[path = "safetensors/writer.rs"]
mod writer;

use readers::{Scratch, seeds};
use std::fs;
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

/// Address space of this process, its threads' stacks and arenas included.
const MEMORY_MAX: u64 = 1 << 30;
/// One file must not take longer, on a machine that others use too.
const FILE_MAX: Duration = Duration::from_secs(20);

fn limit_memory() {
    static LIMIT: Once = Once::new();
    LIMIT.call_once(|| {
        let limit = libc::rlimit { rlim_cur: MEMORY_MAX, rlim_max: MEMORY_MAX };
        // SAFETY: setrlimit reads the struct it is given.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    });
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// xorshift64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    /// A place in `length` bytes; every other time near the start, where headers are.
    fn place(&mut self, length: usize) -> usize {
        let near = length.min(4096);
        if self.below(2) == 0 { self.below(near) } else { self.below(length) }
    }
}

const WORDS: [u64; 10] = [0, 1, 2, 7, 31, 255, 1 << 31, 1 << 60, i64::MAX as u64, u64::MAX];
const TEXTS: [&str; 12] = [
    "0",
    "-1",
    "1e999",
    "18446744073709551616",
    "null",
    "[]",
    "{}",
    "\"\"",
    "\"\\ud800\"",
    "[[[[[[",
    "9223372036854775807",
    "true",
];

fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            bytes.push(0);
        }
        let at = random.place(bytes.len());
        let rest = bytes.len() - at;
        match random.below(9) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.below(256) as u8,
            2 => {
                let word = WORDS[random.below(WORDS.len())].to_le_bytes();
                let count = rest.min(if random.below(2) == 0 { 4 } else { 8 });
                bytes[at..at + count].copy_from_slice(&word[..count]);
            }
            3 => drop(bytes.drain(at..at + 1 + random.below(rest.min(64)))),
            4 => {
                let count = random.below(rest.min(64));
                let copy = bytes[at..at + count].to_vec();
                bytes.splice(at..at, copy);
            }
            5 => bytes.truncate(at),
            6 => {
                let other = &others[random.below(others.len())];
                let from = random.place(other.len());
                let count = random.below((other.len() - from).min(512));
                bytes.splice(at..at, other[from..from + count].iter().copied());
            }
            7 => {
                // A number of a text becomes another value.
                let is_digit = |byte: &u8| byte.is_ascii_digit();
                let start = bytes[at..].iter().position(is_digit).map_or(at, |skip| at + skip);
                let end = bytes[start..].iter().position(|byte| !is_digit(byte));
                let end = end.map_or(bytes.len(), |count| start + count);
                bytes.splice(start..end, TEXTS[random.below(TEXTS.len())].bytes());
            }
            _ => {
                let other = random.place(bytes.len());
                bytes.swap(at, other);
            }
        }
    }
}

/// Gives mutations of `files` to `read` until the time is over; `read` says whether one opened.
fn drive(name: &str, files: &[Vec<u8>], mut read: impl FnMut(usize, &[u8]) -> bool) {
    limit_memory();
    let time = Duration::from_secs(number("GANGLION_MUTATION_SECONDS", 2));
    let seed = number("GANGLION_MUTATION_SEED", 0x9e37_79b9_7f4a_7c15).max(1);
    for (index, bytes) in files.iter().enumerate() {
        assert!(read(index, bytes), "file {index} is sound before it is changed");
    }
    let (mut random, began, mut count, mut opened) = (Random(seed), Instant::now(), 0u64, 0u64);
    while began.elapsed() < time {
        let index = random.below(files.len());
        let mut bytes = files[index].clone();
        mutate(&mut bytes, files, &mut random);
        let start = Instant::now();
        // Where the reader fails, the harness prints which file it was.
        let told = Told(name, seed, count);
        opened += u64::from(read(index, &bytes));
        assert!(start.elapsed() < FILE_MAX, "it hangs");
        std::mem::forget(told);
        count += 1;
    }
    println!("{name}: {count} files, {opened} opened");
    assert!(count > 100 && opened > 0 && opened < count, "{opened} of {count} opened");
}

/// Prints where a run stood when it is dropped by a panic.
struct Told<'n>(&'n str, u64, u64);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        eprintln!("{}: file {} of seed {}", self.0, self.2, self.1);
    }
}

#[test]
fn gguf_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files: Vec<Vec<u8>> = seeds(root).iter().map(|path| fs::read(path).unwrap()).collect();
    let scratch = Scratch::new("mutated-gguf", &[]);
    drive("gguf", &files, |_, bytes| scratch.gguf(bytes));
}

#[test]
fn files_of_a_checkpoint() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let checkpoint = writer::Checkpoint::open(&seeds(root)[1], "mixtral");
    let files = checkpoint.files(2);
    let scratch = Scratch::new("mutated-checkpoint", &files);
    let (names, contents): (Vec<_>, Vec<_>) = files.into_iter().unzip();
    drive("checkpoint", &contents.clone(), |index, bytes| {
        scratch.checkpoint(&names[index], bytes, &contents[index])
    });
}
