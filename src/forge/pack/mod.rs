//! `pack`: a model file -> an image, streaming, in bounded memory.
//!
//! Used by `ganglion-forge pack` and by build.rs for the demo. The image is written under a
//! temporary name, read back and verified, and only then given its own name: a half-written image
//! is never left where one is looked for. Records are written first, since a layer's down unit is
//! known behind its last column. A pack that was interrupted goes on behind its last finished
//! layer.

mod checkpoint;
mod loss;
mod outliers;
mod output;
mod records;
mod resident;

use super::decode;
use super::model::{ModelFile, ModelFileError};
use super::quantize::{RowCodes, encode_row, layout_row};
use super::source::{SourceError, Tensor};
use super::verify::{VerifyError, verify_image};
use crate::image::tag::crc32c;
use crate::image::{Header, SectionKind, Types, WeightType};
use checkpoint::Checkpoint;
use half::f16;
use output::Output;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

pub use checkpoint::Start;
pub use loss::{Class, Losses};

/// Why an image was not made.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The model file can't be packed.
    #[error("{error}{}", kept_text(*kept))]
    Model {
        /// Why.
        error: ModelFileError,
        /// Whether finished layers are kept.
        kept: bool,
    },
    /// A weight is beyond what its type can hold.
    #[error("tensor {tensor}: {place} holds a weight too large for {weight}; choose another type")]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// The row or column.
        place: String,
        /// The type.
        weight: &'static str,
    },
    /// Writing failed.
    #[error(
        "image {path} can't be written after {written} of {wanted} bytes: {source}; \
             free some space or choose another folder{}", kept_text(*kept)
    )]
    Write {
        /// The temporary file.
        path: String,
        /// Bytes written.
        written: u64,
        /// Bytes of the whole image.
        wanted: u64,
        /// What the system says.
        source: io::Error,
        /// Whether finished layers are kept.
        kept: bool,
    },
    /// Somebody else writes it.
    #[error("image {path} is being written by another pack; wait for it or choose another name")]
    Busy {
        /// The temporary file.
        path: String,
    },
    /// What was written does not read back.
    #[error("the image just written does not verify: {0}; check the disk")]
    Verify(#[from] VerifyError),
}

fn kept_text(kept: bool) -> &'static str {
    if kept { "; the finished layers are kept: the same command goes on from there" } else { "" }
}

impl From<ModelFileError> for PackError {
    fn from(error: ModelFileError) -> PackError {
        PackError::Model { error, kept: false }
    }
}

impl PackError {
    /// Whether finished layers may still be of use, once the cause is gone.
    fn may_go_on(&self) -> bool {
        match self {
            PackError::Write { .. } => true,
            PackError::Model { error: ModelFileError::Source(error), .. } => {
                error.fault.is_missing_file()
            }
            _ => false,
        }
    }

    fn keep(self) -> PackError {
        match self {
            PackError::Model { error, .. } => PackError::Model { error, kept: true },
            PackError::Write { path, written, wanted, source, .. } => {
                PackError::Write { path, written, wanted, source, kept: true }
            }
            other => other,
        }
    }
}

/// What was packed.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Bytes of the image.
    pub file_bytes: u64,
    /// Padding of the records section.
    pub waste_bytes: u64,
    /// Error against the source.
    pub losses: Losses,
    /// How it began.
    pub start: Start,
}

/// Is told how many of all bytes are done: the image is written and then read back.
pub type Progress<'p> = &'p mut dyn FnMut(u64, u64);

/// Packs `model` as `types` into `path`.
pub fn pack(
    model: &ModelFile,
    types: &Types,
    path: &Path,
    progress: Progress<'_>,
) -> Result<Packed, PackError> {
    let part = temporary(path);
    let header = Header::new(&model.name, &model.shape, types, model.constants);
    let file_bytes = header.file_bytes();
    let failed = |written, source| PackError::Write {
        path: part.display().to_string(),
        written,
        wanted: file_bytes,
        source,
        kept: false,
    };
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
    let file = options.open(&part).map_err(|source| failed(0, source))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            return Err(PackError::Busy { path: part.display().to_string() });
        }
        // A file system without locks takes the risk.
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    let mut job = Job { model, types, path, part: &part, header };
    let result = job.run(file, progress).map_err(|(stop, written)| match stop {
        Stop::Pack(error) => error,
        Stop::Io(source) => failed(written, source),
    });
    match result {
        Err(error) if error.may_go_on() && Checkpoint::path(&part).exists() => Err(error.keep()),
        Err(error) => {
            Checkpoint::remove(&part);
            let _ = fs::remove_file(&part); // the first error is the one to tell
            Err(error)
        }
        packed => packed,
    }
}

/// The name an image has until it is whole.
pub fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

/// Why packing stopped.
enum Stop {
    Pack(PackError),
    Io(io::Error),
}

impl Stop {
    fn too_large(tensor: &str, place: &str, weight: WeightType) -> Stop {
        let (tensor, place) = (tensor.into(), place.into());
        Stop::Pack(PackError::TooLarge { tensor, place, weight: weight.name() })
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Io(error)
    }
}

impl From<ModelFileError> for Stop {
    fn from(error: ModelFileError) -> Stop {
        Stop::Pack(error.into())
    }
}

impl From<SourceError> for Stop {
    fn from(error: SourceError) -> Stop {
        ModelFileError::from(error).into()
    }
}

/// One image to be made.
struct Job<'m> {
    model: &'m ModelFile,
    types: &'m Types,
    path: &'m Path,
    part: &'m Path,
    header: Header,
}

impl Job<'_> {
    /// Packs, verifies, renames. A stop comes with the bytes written before it.
    fn run(&mut self, file: File, progress: Progress<'_>) -> Result<Packed, (Stop, u64)> {
        let begun = self.begin(&file).map_err(|error| (error.into(), 0))?;
        let (start, state) = begun;
        let (model, types) = (self.model, self.types);
        let file_bytes = self.header.file_bytes();
        let mut packer = Packer {
            model,
            types,
            header: self.header,
            out: Output::new(file, 0, file_bytes, progress),
            losses: state.losses,
            decoded: Vec::new(),
            parts: vec![None; (model.shape.layers * model.shape.experts) as usize],
        };
        packer.out.done = packer.records_start(state.units.len() as u64) - packer.records_start(0);
        let result = self.write(&mut packer, state.units).and_then(|()| self.publish(&mut packer));
        result.map_err(|stop| (stop, packer.out.done.min(file_bytes)))?;
        let used = model.shape.neurons() * types.record(&model.shape).raw_bytes();
        let waste_bytes = packer.header.section(SectionKind::Records).bytes - used;
        Ok(Packed { file_bytes, waste_bytes, losses: packer.losses, start })
    }

    /// What the unfinished image is of; another one is not continued.
    fn identity(&self) -> String {
        let sum = crc32c(crc32c(0, &self.header.to_bytes()), &self.model.tokenizer);
        format!("{sum:08x} of {}", self.model.source.identity())
    }

    /// Finds the finished layers of an interrupted pack and cuts off what is behind them.
    fn begin(&self, file: &File) -> io::Result<(Start, Checkpoint)> {
        let left = file.metadata()?.len();
        let layer_bytes = self.types.expert_bytes(&self.model.shape) * self.model.shape.experts;
        let records = self.header.section(SectionKind::Records).offset;
        let end = |state: &Checkpoint| records + state.units.len() as u64 * layer_bytes;
        let state = Checkpoint::load(self.part, &self.identity());
        let state = state.filter(|state| {
            left >= end(state) && state.units.len() as u64 <= self.model.shape.layers
        });
        let start = match &state {
            Some(state) => Start::Continued { layers: state.units.len() as u64 },
            None if Checkpoint::path(self.part).exists() => Start::Anew,
            None => Start::Fresh,
        };
        file.set_len(state.as_ref().map_or(0, end))?;
        Ok((start, state.unwrap_or_default()))
    }

    /// Writes what is not there yet, given the down units of finished layers.
    fn write(&self, packer: &mut Packer<'_, '_>, mut units: Vec<i32>) -> Result<(), Stop> {
        for layer in units.len() as u64..self.model.shape.layers {
            units.push(packer.layer(layer)?);
            packer.out.sync()?;
            self.model.source.check_unchanged()?;
            let state = Checkpoint { units: units.clone(), losses: packer.losses };
            state.save(self.part, &self.identity())?;
        }
        packer.embedding()?;
        packer.order()?;
        packer.tokenizer()?;
        packer.resident(&units)?;
        packer.out.begin(0)?;
        packer.out.write(&packer.header.to_bytes())?;
        packer.out.sync()?;
        Ok(self.model.source.check_unchanged()?)
    }

    /// Reads the image back and gives it its name.
    fn publish(&self, packer: &mut Packer<'_, '_>) -> Result<(), Stop> {
        let verified = verify_image(self.part, &mut |done, _| packer.out.read_back(done));
        verified.map_err(|error| Stop::Pack(error.into()))?;
        Checkpoint::remove(self.part);
        Ok(fs::rename(self.part, self.path)?)
    }
}

/// What the parts of an image are written with.
struct Packer<'m, 'p> {
    model: &'m ModelFile,
    types: &'m Types,
    header: Header,
    out: Output<'p>,
    losses: Losses,
    /// The last row or column, as it reads back.
    decoded: Vec<f32>,
    /// The neurons of each expert's outliers, as far as they are known.
    parts: Vec<Option<Vec<u64>>>,
}

impl Packer<'_, '_> {
    /// Appends a row as `weight` to `out`: the file's own codes where it has that type, else made
    /// from its floats. Adds its loss to that of `class`.
    fn encode(
        &mut self,
        tensor: &Tensor,
        row: u64,
        weight: WeightType,
        class: Class,
        out: &mut Vec<u8>,
    ) -> Result<(), Stop> {
        let (start, values) = (out.len(), self.model.rows(tensor, row, 1)?);
        let is_copy = ModelFile::has_codes_of(tensor, weight);
        if is_copy && weight != WeightType::F16 {
            let mut raw = vec![0; tensor.row_bytes() as usize];
            self.model.source.read_raw(tensor, row * tensor.row_bytes(), &mut raw)?;
            layout_row(weight, &ggml_codes(weight, &raw), out);
        } else {
            encode_row(weight, &values, out);
        }
        self.decoded.resize(values.len(), 0.0);
        decode::row(weight, &out[start..], &mut self.decoded);
        if !self.losses.of_mut(class).add(&values, &self.decoded, is_copy) {
            return Err(Stop::too_large(&tensor.name, &format!("row {row}"), weight));
        }
        Ok(())
    }
}

/// The codes of GGUF blocks of Q8_0 (f16, 32 x i8) or Q4_0 (f16, 16 bytes: weight j low, j + 16
/// high).
fn ggml_codes(weight: WeightType, raw: &[u8]) -> RowCodes {
    let block_bytes = if weight == WeightType::Q8 { 34 } else { 18 };
    let mut row = RowCodes { codes: Vec::new(), scales: Vec::new() };
    for block in raw.chunks_exact(block_bytes) {
        row.scales.push(f16::from_le_bytes([block[0], block[1]]));
        if weight == WeightType::Q8 {
            // -128 would leave the kernels' proven range; GGUF writers never make it.
            row.codes.extend(block[2..].iter().map(|&byte| (byte as i8).max(-127)));
        } else {
            row.codes.extend(block[2..].iter().map(|&byte| (byte & 15) as i8 - 8));
            row.codes.extend(block[2..].iter().map(|&byte| (byte >> 4) as i8 - 8));
        }
    }
    row
}
