//! What a pack that was interrupted left behind, and whether the next one may go on from there.
//!
//! Called by [`super::pack`]. Beside the unfinished image lies a text of a few lines, written again
//! after each finished layer: whose image it is, the finished layers' down units, the losses so
//! far, and a sum over all that. It counts only for the same source, shape, types and packer.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::loss::Losses;
use crate::image::tag::crc32c;

/// Changes whenever records of an older packer must not be mixed with those of this one.
const FIRST_LINE: &str = "ganglion-forge pack 1";

/// The state after some finished layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checkpoint {
    /// Down unit of each finished layer.
    pub units: Vec<i32>,
    /// Losses of their records.
    pub losses: Losses,
}

/// How a pack began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With nothing before it.
    Fresh,
    /// Behind the finished layers of an interrupted one.
    Continued {
        /// How many.
        layers: u64,
    },
    /// From the first layer, since what an interrupted one left is of other files or types.
    Anew,
}

impl Checkpoint {
    /// Where the state of the unfinished image `part` is kept.
    pub fn path(part: &Path) -> PathBuf {
        let mut name = part.as_os_str().to_owned();
        name.push(".state");
        PathBuf::from(name)
    }

    /// Keeps the state for `part`, an image of `identity`.
    pub fn save(&self, part: &Path, identity: &str) -> io::Result<()> {
        let units: Vec<String> = self.units.iter().map(i32::to_string).collect();
        let units = units.join(" ");
        let mut text = format!("{FIRST_LINE}\n{identity}\n{units}\n{}", self.losses.to_lines());
        text.push_str(&format!("{:08x}\n", crc32c(0, text.as_bytes())));
        fs::write(Checkpoint::path(part), text)
    }

    /// The state kept for `part`, if it is of `identity`.
    pub fn load(part: &Path, identity: &str) -> Option<Checkpoint> {
        let text = fs::read_to_string(Checkpoint::path(part)).ok()?;
        let (body, sum) = text.trim_end().rsplit_once('\n')?;
        let body = format!("{body}\n");
        if u32::from_str_radix(sum, 16).ok()? != crc32c(0, body.as_bytes()) {
            return None;
        }
        let mut lines = body.lines();
        if lines.next()? != FIRST_LINE || lines.next()? != identity {
            return None;
        }
        let units = lines.next()?.split(' ').map(|word| word.parse().ok());
        let units = units.collect::<Option<Vec<i32>>>()?;
        Some(Checkpoint { units, losses: Losses::from_lines(&mut lines)? })
    }

    /// Forgets the state for `part`.
    pub fn remove(part: &Path) {
        let _ = fs::remove_file(Checkpoint::path(part)); // one that is not there needs no removing
    }
}
