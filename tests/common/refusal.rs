//! What a refusal must look like, and the folders and users that refusals need.
#![allow(dead_code)] // each suite uses its part
#![allow(unsafe_code)] // limits of the processes that are started

use crate::process::{Ended, engine, forge, run};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a failing `run` may have written before it failed.
pub const PROMPT: &str = "Once upon a time";
/// A user without rights.
const NOBODY: u32 = 65534;

/// Rows that ran, and what was wrong with them.
#[derive(Default)]
pub struct Table {
    rows: usize,
    wrong: Vec<String>,
}

impl Table {
    /// `command` must end with `code` and one sentence that holds every one of `says`.
    pub fn row(&mut self, command: &mut Command, code: i32, says: &[&str]) {
        let ended = run(command);
        self.judge(command, &ended, code, says);
    }

    /// The engine on `image`: `run` of the usual prompt.
    pub fn run(&mut self, image: &Path, code: i32, says: &[&str]) {
        self.row(engine().args(["run", "-n", "4", PROMPT, "--image"]).arg(image), code, says);
    }

    /// The engine's `check` and the host tool's `inspect --verify` on `image`.
    pub fn verify(&mut self, image: &Path, code: i32, says: &[&str]) {
        self.row(engine().args(["check", "--image"]).arg(image), code, says);
        self.row(forge().args(["inspect", "--verify"]).arg(image), code, says);
    }

    pub fn judge(&mut self, command: &Command, ended: &Ended, code: i32, says: &[&str]) {
        self.rows += 1;
        let mut faults = Vec::new();
        if ended.code != Some(code) {
            faults.push(format!("exit code {:?}, wanted {code}", ended.code));
        }
        let name = command.get_program().to_string_lossy();
        let name = if name.ends_with("forge") { "ganglion-forge: " } else { "ganglion: " };
        let line = ended.stderr.strip_suffix('\n').unwrap_or("");
        if !line.starts_with(name) || line.contains('\n') {
            faults.push(format!("stderr is not one line that starts with {name:?}"));
        }
        for bad in ["panicked", "broken invariant", "(killed"] {
            if ended.stderr.contains(bad) {
                faults.push(format!("stderr says {bad:?}"));
            }
        }
        for words in says {
            if !line.contains(words) {
                faults.push(format!("the sentence does not say {words:?}"));
            }
        }
        if line.matches("(os error ").count() > 1 {
            faults.push("the sentence says its cause twice".into());
        }
        if !ended.stdout.is_empty() && ended.stdout != PROMPT.as_bytes() {
            faults.push(format!("stdout holds {:?}", String::from_utf8_lossy(&ended.stdout)));
        }
        if !faults.is_empty() {
            let shown: String = format!("{command:?}").chars().take(300).collect();
            self.wrong.push(format!("{shown}\n  {}\n  {}", faults.join("\n  "), ended.stderr));
        }
    }

    /// Every row must have been right.
    pub fn end(self) {
        assert!(self.rows > 0, "an empty table proves nothing");
        assert!(self.wrong.is_empty(), "of {} rows:\n{}", self.rows, self.wrong.join("\n"));
    }
}

/// A folder of a test's own, removed with the value.
pub struct Folder(pub PathBuf);

impl Folder {
    /// In the build folder, on the same disk as the image.
    pub fn new(test: &str) -> Folder {
        Folder::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bad-input-{test}")))
    }

    /// Where any user may look.
    pub fn open_to_all(test: &str) -> Folder {
        let name = format!("ganglion-bad-input-{test}-{}", std::process::id());
        let folder = Folder::at(std::env::temp_dir().join(name));
        fs::set_permissions(&folder.0, Permissions::from_mode(0o755)).unwrap();
        folder
    }

    pub fn at(path: PathBuf) -> Folder {
        let _ = fs::remove_dir_all(&path); // of a run that was killed
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        fs::create_dir_all(self.file(name).parent().unwrap()).unwrap();
        fs::write(self.file(name), bytes).unwrap();
        self.file(name)
    }

    /// A copy of `from`, readable by all.
    pub fn copy(&self, from: impl AsRef<Path>, name: &str) -> PathBuf {
        fs::copy(from, self.file(name)).unwrap();
        self.file(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn is_root() -> bool {
    // SAFETY: geteuid reads a number.
    unsafe { libc::geteuid() == 0 }
}

/// `program` without any special right, if this is root; else as it is.
pub fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_remove("GANGLION_ISA");
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// Lets `command` lock at most `bytes` bytes.
pub fn limit_locked(command: &mut Command, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: between fork and exec only setrlimit is called, which is safe there.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// Lets `command` write at most `bytes` bytes to a file; more is an error, not a signal.
pub fn limit_file(command: &mut Command, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: between fork and exec only signal and setrlimit are called, which are safe there.
    unsafe {
        command.pre_exec(move || {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

/// A path for a sentence.
pub fn text_of(path: &Path) -> String {
    path.to_str().unwrap().to_string()
}
