//! What the disk gives to large direct reads: the bound of an engine whose weights stream from it.

use crate::common::mapping;
use anyhow::{Context, Result, bail};
use ganglion::plan::Device;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Gigabytes a second of one pass over the file.
#[derive(Clone, Copy)]
pub struct Rates {
    /// Into huge pages, as the arena's are: a large read is a few pieces for the disk.
    pub huge: f64,
    /// Into ordinary pages: a large read is as many pieces as it has pages.
    pub ordinary: f64,
}

/// A file, and memory for the reads of the device's readers.
pub struct Probe {
    file: File,
    piece: usize,
    pieces: u64,
    huge: &'static mut [u8],
    ordinary: &'static mut [u8],
}

impl Probe {
    /// Reads of `path` as `device` does them where a dense model streams.
    pub fn new(path: &Path, device: &Device) -> Result<Probe> {
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(libc::O_DIRECT).open(path);
        let file =
            file.with_context(|| format!("{} can't be read past the cache", path.display()))?;
        let piece = device.ring_read_bytes as usize;
        let pieces = file.metadata()?.len() / device.ring_read_bytes;
        if pieces < device.readers {
            bail!("{} has fewer than {} reads of {piece} B", path.display(), device.readers);
        }
        let memory = |advice| {
            let memory = mapping(piece * device.readers as usize, advice);
            memory.fill(1); // pages are there before the clock runs
            memory
        };
        let (huge, ordinary) = (memory(libc::MADV_HUGEPAGE), memory(libc::MADV_NOHUGEPAGE));
        Ok(Probe { file, piece, pieces, huge, ordinary })
    }

    /// Reads the file twice.
    pub fn rates(&mut self) -> Result<Rates> {
        let (file, piece, pieces) = (&self.file, self.piece, self.pieces);
        Ok(Rates {
            huge: gb_s(file, piece, pieces, self.huge)?,
            ordinary: gb_s(file, piece, pieces, self.ordinary)?,
        })
    }
}

/// Reads the first `pieces` of `file`, each reader the next one into its piece of `memory`.
fn gb_s(file: &File, piece: usize, pieces: u64, memory: &mut [u8]) -> Result<f64> {
    let next = AtomicU64::new(0);
    let read = |buffer: &mut [u8]| {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= pieces {
                return Ok(());
            }
            file.read_exact_at(buffer, index * piece as u64)?;
        }
    };
    let start = Instant::now();
    let read_all: Result<(), std::io::Error> = thread::scope(|scope| {
        let buffers = memory.chunks_exact_mut(piece);
        let readers: Vec<_> = buffers.map(|buffer| scope.spawn(|| read(buffer))).collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader does not panic"))
    });
    read_all.context("the probe of the disk")?;
    Ok((pieces * piece as u64) as f64 / start.elapsed().as_nanos() as f64)
}
