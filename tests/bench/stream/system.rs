//! What a measurement asks of Linux: a memory limit, a cold page cache, another readahead.
#![allow(unsafe_code)] // signals

use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const MEMORY_GROUPS: &str = "/sys/fs/cgroup/memory";
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("{} can't be read", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{} can't be written", path.display()))
}

/// Writes back what is not written yet and drops every page that only caches a file.
pub fn drop_caches() -> Result<()> {
    if !Command::new("sync").status().context("sync can't be started")?.success() {
        bail!("sync failed");
    }
    write(Path::new(DROP_CACHES), "3")
}

/// A memory cgroup (version 1), removed at the end.
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// A group whose processes have `bytes` for all of their memory, the cached files included.
    pub fn new(bytes: u64) -> Result<MemoryGroup> {
        let name = format!("ganglion-stream-{}", std::process::id());
        let path = Path::new(MEMORY_GROUPS).join(name);
        fs::create_dir(&path).with_context(|| {
            format!("{} can't be made; that needs root and cgroup version 1", path.display())
        })?;
        let group = MemoryGroup(path);
        write(&group.0.join("memory.limit_in_bytes"), &bytes.to_string())?;
        write(&group.0.join("memory.swappiness"), "0")?;
        Ok(group)
    }

    /// A command that runs `program` in the group from its first byte on.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(self.0.join("cgroup.procs")).arg(program);
        command
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("{} can't be removed: {error}", self.0.display());
        }
    }
}

/// How far ahead the block device below a file reads.
pub struct Readahead(PathBuf);

impl Readahead {
    /// Of the device on which `file` lies.
    pub fn of(file: &Path) -> Result<Readahead> {
        let device = file.metadata().with_context(|| format!("{}", file.display()))?.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let device = device.canonicalize().with_context(|| {
            format!("{} is on no block device: {} is missing", file.display(), device.display())
        })?;
        // A partition's queue is its disk's.
        let queue =
            device.ancestors().map(|above| above.join("queue")).find(|queue| queue.is_dir());
        let queue = queue.with_context(|| format!("{} has no queue", device.display()))?;
        Ok(Readahead(queue.join("read_ahead_kb")))
    }

    /// In KiB.
    pub fn kib(&self) -> Result<u32> {
        let text = read(&self.0)?;
        text.trim().parse().with_context(|| format!("{} is no number", self.0.display()))
    }

    /// Sets it to `kib` until what is returned is dropped.
    pub fn set(&self, kib: u32) -> Result<Restored<'_>> {
        let was = self.kib()?;
        catch_signals(nothing as *const () as libc::sighandler_t);
        let restored = Restored { readahead: self, was };
        write(&self.0, &kib.to_string())?;
        Ok(restored)
    }
}

/// A readahead that comes back, also where Ctrl-C or TERM ends the measured process.
pub struct Restored<'a> {
    readahead: &'a Readahead,
    was: u32,
}

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        if let Err(error) = write(&self.readahead.0, &self.was.to_string()) {
            eprintln!("{error}; it was {}", self.was);
        }
        catch_signals(libc::SIG_DFL);
    }
}

/// Unlike an ignored signal, one that is caught still ends a child.
extern "C" fn nothing(_: libc::c_int) {}

fn catch_signals(handler: libc::sighandler_t) {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler is the default or does nothing.
        unsafe { libc::signal(signal, handler) };
    }
}
