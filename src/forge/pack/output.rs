//! The unfinished image: written section by section, in any order, told to a progress.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use super::Progress;
use crate::image::geometry::BLOCK_BYTES;
use crate::image::tag::crc32c;

/// The file and where it is written.
pub struct Output<'p> {
    file: BufWriter<File>,
    at: u64,
    crc: u32,
    /// Bytes written and read back so far.
    pub done: u64,
    all: u64,
    progress: Progress<'p>,
}

impl<'p> Output<'p> {
    /// A file of `bytes` in the end, of which `done` are written.
    pub fn new(file: File, done: u64, bytes: u64, progress: Progress<'p>) -> Output<'p> {
        let file = BufWriter::with_capacity(1 << 20, file);
        let mut out = Output { file, at: 0, crc: 0, done, all: 2 * bytes, progress };
        out.tell();
        out
    }

    /// Goes to byte `offset` and begins a sum.
    pub fn begin(&mut self, offset: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(offset))?;
        (self.at, self.crc) = (offset, 0);
        Ok(())
    }

    /// Where the next byte goes.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// CRC-32C of what was written since [`Output::begin`].
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Writes `bytes`.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.crc = crc32c(self.crc, bytes);
        self.at += bytes.len() as u64;
        self.done += bytes.len() as u64;
        self.tell();
        Ok(())
    }

    /// Writes zeros up to byte `end`, which is not behind.
    pub fn pad_to(&mut self, end: u64) -> io::Result<()> {
        let zeros = [0; BLOCK_BYTES as usize];
        while self.at < end {
            let count = (end - self.at).min(BLOCK_BYTES) as usize;
            self.write(&zeros[..count])?;
        }
        assert_eq!(self.at, end, "what was written does not exceed its place");
        Ok(())
    }

    /// Makes what was written outlast a crash.
    pub fn sync(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_data()
    }

    /// Tells the progress that the first `bytes` are read back.
    pub fn read_back(&mut self, bytes: u64) {
        self.done = self.all / 2 + bytes;
        self.tell();
    }

    fn tell(&mut self) {
        (self.progress)(self.done, self.all);
    }
}
