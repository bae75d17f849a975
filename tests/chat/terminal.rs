//! What needs signals or a terminal: Ctrl-C, Ctrl-D, the prompt sign, the progress of a prompt.
#![allow(unsafe_code)] // a terminal and its processes

use super::{chat, process, turns};
use process::LIMIT;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

fn signal(child: &Child, signal: i32) {
    // SAFETY: kill takes two numbers; the process is ours and not yet waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// A chat whose answers take long, and its first answer begun.
fn talking() -> (Child, ChildStdin, BufReader<std::process::ChildStdout>) {
    let mut child = chat(&["--isa", "twin", "--ignore-end", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdin.write_all(b"Once upon a time\n").unwrap();
    let mut begun = [0; 60];
    stdout.read_exact(&mut begun).unwrap();
    (child, stdin, stdout)
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_conversation() {
    let (mut child, mut stdin, mut stdout) = talking();
    signal(&child, libc::SIGINT);
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert!(line.contains("\"stop\":\"signal\",") && line.contains("\"turn\":1,"), "{line}");
    stdin.write_all(b"/stats\nThen\n").unwrap();
    let mut next = [0; 200];
    stdout.read_exact(&mut next).unwrap();
    let next = String::from_utf8_lossy(&next).into_owned();
    assert!(next.starts_with("{\"turns\":1,") && next.contains("{\"prompt\":\"Then\""), "{next}");
    signal(&child, libc::SIGINT);
    let mut rest = String::new();
    stdout.read_line(&mut rest).unwrap();
    assert!(rest.contains("\"turn\":2,"), "{rest}");
    // Nothing is being said: now it leaves.
    signal(&child, libc::SIGINT);
    assert_eq!(process::wait(&mut child).and_then(|status| status.code()), Some(0));
}

#[test]
fn term_ends_the_answer_and_the_chat() {
    let (mut child, _stdin, mut stdout) = talking();
    signal(&child, libc::SIGTERM);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"stop\":\"signal\""), "{rest}");
    assert_eq!(process::wait(&mut child).and_then(|status| status.code()), Some(0));
}

/// A process that has a terminal for itself.
struct Terminal {
    child: Child,
    keys: File,
    screen: Receiver<Vec<u8>>,
    /// What was shown and not yet looked for.
    shown: String,
}

impl Terminal {
    fn new(command: &mut Command) -> Terminal {
        let (mut ours, mut theirs) = (0, 0);
        let null = std::ptr::null_mut();
        // SAFETY: openpty writes two descriptors, which nothing else owns.
        let (ours, theirs) = unsafe {
            assert_eq!(libc::openpty(&mut ours, &mut theirs, null, null.cast(), null.cast()), 0);
            (File::from_raw_fd(ours), File::from_raw_fd(theirs))
        };
        let stdio = || Stdio::from(theirs.try_clone().unwrap());
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        // SAFETY: between fork and exec only setsid and ioctl are called, which are safe there.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                match libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = command.spawn().unwrap();
        let (send, screen) = channel();
        let mut reader = ours.try_clone().unwrap();
        thread::spawn(move || {
            let mut bytes = [0; 1024];
            // The terminal is an error once the process is gone.
            while let Ok(count) = reader.read(&mut bytes) {
                if count == 0 || send.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        assert!(ours.as_raw_fd() >= 0);
        Terminal { child, keys: ours, screen, shown: String::new() }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `text` is shown; what was shown up to its end.
    fn see(&mut self, text: &str) -> String {
        let started = Instant::now();
        loop {
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            let left = LIMIT.saturating_sub(started.elapsed());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("{text:?} is not shown, but {:?}", self.shown),
            }
        }
    }

    fn code(&mut self) -> Option<i32> {
        process::wait(&mut self.child).and_then(|status| status.code())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_terminal_has_a_prompt_sign_and_its_keys_work() {
    let spoken = turns(&["-n", "12"], "One day\\\nTim\n");
    let begun = spoken[0]["text"].as_str().unwrap().split_whitespace().next().unwrap();
    let mut terminal = Terminal::new(&mut chat(&["--isa", "twin", "--ignore-end", "-n", "400"]));
    terminal.see("template chatml, 512 tokens of context; /help lists the commands\r\n> ");
    terminal.press("One day\\\n");
    terminal.see("\r\n. ");
    terminal.press("Tim\n");
    terminal.see("Tim\r\n");
    terminal.see(begun);
    terminal.press("\x03");
    terminal.see("\r\n> ");
    terminal.press("/stats\n");
    terminal.see("[turns 1, ");
    terminal.see("\r\n> ");
    terminal.press(&format!("{}\n", "a b ".repeat(300)));
    terminal.see("/reset begins a new conversation");
    terminal.see("\r\n> ");
    terminal.press(&format!("{}\n", "long ".repeat(1_000)));
    terminal.see("over 4095 bytes");
    terminal.see("\r\n> ");
    terminal.press("/paste\n");
    terminal.see("\r\n. ");
    terminal.press("\x03"); // leaves the message alone
    terminal.see("\r\n> ");
    terminal.press("\x03");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn a_long_message_shows_its_progress_and_can_be_stopped() {
    let mut terminal = Terminal::new(&mut chat(&["--isa", "twin", "-n", "4"]));
    terminal.see("\r\n> ");
    terminal.press(&format!("{}\n", "There was a dog. ".repeat(80)));
    terminal.see("\r[prompt: ");
    let line = terminal.see(" left]");
    assert!(
        line.contains(" of ") && line.contains(" tokens, ") && line.contains(" tok/s"),
        "{line}"
    );
    terminal.press("\x03");
    terminal.see("\r\x1b[K"); // the line is gone
    terminal.see("the message is not part of the conversation\r\n> ");
    terminal.press("/stats\n");
    terminal.see("[turns 0, context 0 of 512 tokens]");
    terminal.press("Hi\n");
    terminal.see("Hi\r\n");
    terminal.see("\r\n> ");
    terminal.press("/stats\n");
    terminal.see("[turns 1, ");
    terminal.press("/exit\n");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn run_shows_its_progress_too_and_then_the_text() {
    let prompt = "There was a dog. ".repeat(80);
    let mut command = process::engine();
    let mut terminal = Terminal::new(command.args(["run", "--isa", "twin", "-n", "4", &prompt]));
    let before = terminal.see(" left]");
    assert!(before.starts_with("\r[prompt: "), "{before}");
    let text = terminal.see("numerics");
    let (_, text) = text.rsplit_once("\x1b[K").unwrap();
    assert!(text.starts_with(&prompt), "{text}");
    assert_eq!(terminal.code(), Some(0));
}

#[test]
fn ctrl_d_leaves() {
    let mut terminal = Terminal::new(&mut chat(&["-n", "4"]));
    terminal.see("\r\n> ");
    terminal.press("Hi\n");
    terminal.see("Hi\r\n");
    terminal.see("\r\n> ");
    terminal.press("\x04");
    terminal.see("\r\n");
    assert_eq!(terminal.code(), Some(0));
}
