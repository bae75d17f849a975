//! `pack`: a model file -> an image, streaming, one expert in memory at a time.
//!
//! Used by `ganglion-forge pack` and by build.rs for the demo. The image is written under a
//! temporary name, read back and verified, and only then given its own name: a half-written image
//! is never left where one is looked for.

use super::gguf::Tensor;
use super::model::{Ffn, ModelFile, ModelFileError};
use super::quantize::{RowCodes, column_step, encode_column, encode_row, layout_row};
use super::verify::{VerifyError, verify_image};
use crate::image::geometry::{BLOCK_BYTES, round_up};
use crate::image::tag::{Identity, Part, Tag, crc32c};
use crate::image::{Header, Record, Resident, SectionKind, Types, WeightType};
use half::f16;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Activations up to 2 to this are held by the down unit of codes, whose multipliers are rounded.
const ACTIVATION_BITS: i32 = 13;
/// Of f16 columns each product is rounded: their unit is finer.
const F16_ACTIVATION_BITS: i32 = 10;
/// A multiplier of the fixed-point sum stays below 2 to this.
const MULTIPLIER_BITS: i32 = 27;
/// Smallest down unit the arithmetic is proven for.
const UNIT_EXPONENT_MIN: i32 = -60;

/// The smallest power of two that is not below `step`, a normal number above 0: its exponent.
fn exponent_above(step: f32) -> i32 {
    let bits = step.to_bits();
    let below = (bits >> 23) as i32 - 127;
    below + i32::from(bits & 0x7f_ffff != 0)
}

/// Why an image was not made.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The model file can't be packed.
    #[error("{0}")]
    Model(#[from] ModelFileError),
    /// Writing failed.
    #[error(
        "image {path} can't be written after {written} of {wanted} bytes: {source}; \
             free some space or choose another folder"
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
    },
    /// What was written does not read back.
    #[error("the image just written does not verify: {0}; check the disk")]
    Verify(#[from] VerifyError),
}

/// What was packed.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Bytes of the image.
    pub file_bytes: u64,
    /// Padding of the records section.
    pub waste_bytes: u64,
    /// Relative root-mean-square error of gate and up rows.
    pub row_error: f64,
    /// Relative root-mean-square error of down columns.
    pub column_error: f64,
}

/// Is told how many of all bytes are done.
pub type Progress<'p> = &'p mut dyn FnMut(u64, u64);

/// Packs `model` as `types` into `path`.
pub fn pack(
    model: &ModelFile,
    types: &Types,
    path: &Path,
    progress: Progress<'_>,
) -> Result<Packed, PackError> {
    let part = temporary(path);
    let result = write_image(model, types, &part, progress);
    let packed = result.and_then(|packed| {
        verify_image(&part, &mut |_, _| {})?;
        fs::rename(&part, path).map_err(|source| PackError::Write {
            path: path.display().to_string(),
            written: packed.file_bytes,
            wanted: packed.file_bytes,
            source,
        })?;
        Ok(packed)
    });
    if packed.is_err() {
        let _ = fs::remove_file(&part); // the first error is the one to tell
    }
    packed
}

/// The name an image has until it is whole.
pub fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

fn write_image(
    model: &ModelFile,
    types: &Types,
    path: &Path,
    progress: Progress<'_>,
) -> Result<Packed, PackError> {
    let header = Header::new(&model.name, &model.shape, types, model.constants);
    let wanted = header.file_bytes();
    let failed = |written, source| PackError::Write {
        path: path.display().to_string(),
        written,
        wanted,
        source,
    };
    let file = File::create(path).map_err(|source| failed(0, source))?;
    let mut packer = Packer {
        model,
        types,
        header,
        out: BufWriter::with_capacity(1 << 20, file),
        written: 0,
        progress,
        rows: Loss::default(),
        columns: Loss::default(),
    };
    packer.sections().map_err(|error| match error {
        Stop::Model(error) => error.into(),
        Stop::Io(source) => failed(packer.written, source),
    })?;
    let record = types.record(&model.shape);
    let used = model.shape.neurons() * record.raw_bytes();
    let section = packer.header.section(SectionKind::Records).bytes;
    Ok(Packed {
        file_bytes: wanted,
        waste_bytes: section - used,
        row_error: packer.rows.relative(),
        column_error: packer.columns.relative(),
    })
}

/// Squared error and squared weights.
#[derive(Default)]
struct Loss {
    error: f64,
    weight: f64,
}

impl Loss {
    fn relative(&self) -> f64 {
        if self.weight > 0.0 { (self.error / self.weight).sqrt() } else { 0.0 }
    }
}

enum Stop {
    Model(ModelFileError),
    Io(io::Error),
}

impl<E: Into<ModelFileError>> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Model(error.into())
    }
}

struct Packer<'m, 'p> {
    model: &'m ModelFile,
    types: &'m Types,
    header: Header,
    out: BufWriter<File>,
    written: u64,
    progress: Progress<'p>,
    rows: Loss,
    columns: Loss,
}

impl Packer<'_, '_> {
    fn sections(&mut self) -> Result<(), Stop> {
        self.write(&[0; BLOCK_BYTES as usize])?; // the header's place; it is written last
        let (resident, units) = self.resident()?;
        self.section(SectionKind::Resident, &resident)?;
        let model = self.model;
        self.section(SectionKind::Tokenizer, &model.tokenizer)?;
        let order: Vec<u8> = (0..model.shape.layers * model.shape.experts)
            .flat_map(|_| 0..model.shape.ff as u32)
            .flat_map(u32::to_le_bytes)
            .collect();
        self.section(SectionKind::Order, &order)?;
        self.embedding()?;
        self.records(&units)?;
        self.out.seek(SeekFrom::Start(0)).map_err(Stop::Io)?;
        self.out.write_all(&self.header.to_bytes()).map_err(Stop::Io)?;
        self.out.flush().map_err(Stop::Io)?;
        self.out.get_ref().sync_all().map_err(Stop::Io)
    }

    /// A whole section with its checksum, padded to blocks.
    fn section(&mut self, kind: SectionKind, bytes: &[u8]) -> Result<(), Stop> {
        let section = self.header.section(kind);
        assert_eq!(section.offset, self.written, "sections follow each other");
        let mut padded = bytes.to_vec();
        padded.resize(section.bytes as usize, 0);
        self.header.set_section_crc(kind, crc32c(0, &padded));
        self.write(&padded)
    }

    /// The resident section, and the down unit of each layer.
    fn resident(&mut self) -> Result<(Vec<u8>, Vec<i32>), Stop> {
        let (model, types) = (self.model, self.types);
        let layout = Resident::new(&model.shape, types);
        let mut bytes = vec![0; layout.bytes as usize];
        let mut put = |part: crate::image::resident::Part, content: &[u8]| {
            assert_eq!(part.bytes, content.len() as u64, "a part has its laid-out size");
            let at = part.offset as usize;
            bytes[at..at + content.len()].copy_from_slice(content);
        };
        let mut units = Vec::new();
        for layer in 0..model.shape.layers {
            units.push(self.down_unit(layer)?);
            let parts = layout.layer(layer);
            let tensor = |role| model.layer_tensor(layer, role);
            put(parts.attn_norm, &floats(model, tensor("attn_norm.weight")?)?);
            put(parts.qkv, &qkv(model, layer, types.resident)?);
            put(parts.output, &matrix(model, tensor("attn_output.weight")?, types.resident)?);
            put(parts.ffn_norm, &floats(model, tensor("ffn_norm.weight")?)?);
            if model.shape.is_routed() {
                put(parts.router, &floats(model, tensor("ffn_gate_inp.weight")?)?);
            }
            let biases = model.shape.biases;
            if biases.qkv {
                put(parts.qkv_bias, &qkv_bias(model, layer)?);
            }
            if biases.output {
                put(parts.output_bias, &floats(model, tensor("attn_output.bias")?)?);
            }
            if biases.ffn {
                put(parts.gate_bias, &floats(model, tensor("ffn_gate.bias")?)?);
                put(parts.up_bias, &floats(model, tensor("ffn_up.bias")?)?);
                put(parts.down_bias, &floats(model, tensor("ffn_down.bias")?)?);
            }
        }
        put(layout.output_norm, &floats(model, model.gguf.tensor("output_norm.weight")?)?);
        put(layout.head, &matrix(model, model.head()?, types.head)?);
        let frequencies = &model.rope.frequencies;
        put(layout.rope, &frequencies.iter().flat_map(|f| f.to_le_bytes()).collect::<Vec<_>>());
        put(layout.down_units, &units.iter().flat_map(|u| u.to_le_bytes()).collect::<Vec<_>>());
        Ok((bytes, units))
    }

    /// The smallest power of two in which the layer's largest column step times the largest
    /// activation stays below the multiplier's limit.
    fn down_unit(&self, layer: u64) -> Result<i32, Stop> {
        let mut step = 0.0f32;
        for expert in 0..self.model.shape.experts {
            for column in self.down_columns(layer, expert)? {
                step = step.max(column_step(self.types.records, &column));
            }
        }
        let bits = if step > 0.0 { exponent_above(step) } else { 0 };
        let held = match self.types.records {
            WeightType::F16 => F16_ACTIVATION_BITS,
            WeightType::Q8 | WeightType::Q4 => ACTIVATION_BITS,
        };
        Ok((bits + held - MULTIPLIER_BITS).clamp(UNIT_EXPONENT_MIN, 0))
    }

    fn embedding(&mut self) -> Result<(), Stop> {
        let (model, weight) = (self.model, self.types.embedding);
        let tensor = model.gguf.tensor("token_embd.weight")?;
        let section = self.header.section(SectionKind::Embedding);
        assert_eq!(section.offset, self.written, "sections follow each other");
        for token in 0..model.shape.vocab {
            let mut row = Vec::new();
            encode_tensor_row(model, tensor, token, weight, &mut row)?;
            let neuron = token as u32;
            let who = Identity { layer: 0, expert: 0, neuron, part: Part::Embedding };
            let tag = Tag::new(who, &row, crc32c);
            row.extend_from_slice(tag.bytes());
            self.write(&row)?;
        }
        self.pad_to(section.offset + section.bytes)
    }

    fn records(&mut self, units: &[i32]) -> Result<(), Stop> {
        assert_eq!(units.len() as u64, self.model.shape.layers);
        let shape = self.model.shape;
        for layer in 0..shape.layers {
            for expert in 0..shape.experts {
                self.expert(layer, expert)?;
            }
        }
        let section = self.header.section(SectionKind::Records);
        assert_eq!(section.offset + section.bytes, self.written, "the image has its laid-out size");
        Ok(())
    }

    fn expert(&mut self, layer: u64, expert: u64) -> Result<(), Stop> {
        let (model, weight) = (self.model, self.types.records);
        let record = self.types.record(&model.shape);
        let start = self.written;
        let gates = model.ffn_tensor(layer, Ffn::Gate)?;
        let ups = model.ffn_tensor(layer, Ffn::Up)?;
        for (neuron, column) in self.down_columns(layer, expert)?.into_iter().enumerate() {
            let row = expert * model.shape.ff + neuron as u64;
            let mut bytes = Vec::with_capacity(record.raw_bytes() as usize);
            let who = |part| Identity {
                layer: layer as u16,
                expert: expert as u16,
                neuron: neuron as u32,
                part,
            };
            encode_tensor_row(model, gates, row, weight, &mut bytes)?;
            let tag = Tag::new(who(Part::Gate), &bytes, crc32c);
            bytes.extend_from_slice(tag.bytes());
            let rest = bytes.len();
            encode_tensor_row(model, ups, row, weight, &mut bytes)?;
            encode_column(weight, &column, &mut bytes);
            let tag = Tag::new(who(Part::Rest), &bytes[rest..], crc32c);
            bytes.extend_from_slice(tag.bytes());
            self.measure(&record, &bytes, [(gates, row), (ups, row)], &column)?;
            self.pad_to(start + record.offset(neuron as u64))?;
            self.write(&bytes)?;
        }
        self.pad_to(start + self.types.expert_bytes(&model.shape))
    }

    /// Adds a record's loss against its source.
    fn measure(
        &mut self,
        record: &Record,
        bytes: &[u8],
        rows: [(&Tensor, u64); 2],
        column: &[f32],
    ) -> Result<(), Stop> {
        let weight = self.types.records;
        let mut decoded = vec![0.0; column.len()];
        let at = [0, record.up() as usize];
        for ((tensor, row), at) in rows.into_iter().zip(at) {
            let source = self.model.rows(tensor, row, 1)?;
            super::decode::row(weight, &bytes[at..at + record.row_bytes as usize], &mut decoded);
            add_loss(&mut self.rows, &source, &decoded);
        }
        let down = record.down() as usize;
        let stored = &bytes[down..down + record.column_bytes as usize];
        super::decode::column(weight, stored, &mut decoded);
        add_loss(&mut self.columns, column, &decoded);
        Ok(())
    }

    /// The down matrix of an expert by columns: one a neuron, hidden values each.
    fn down_columns(&self, layer: u64, expert: u64) -> Result<Vec<Vec<f32>>, Stop> {
        let shape = &self.model.shape;
        let (hidden, ff) = (shape.hidden as usize, shape.ff as usize);
        let tensor = self.model.ffn_tensor(layer, Ffn::Down)?;
        let rows = self.model.rows(tensor, expert * shape.hidden, shape.hidden)?;
        let column = |neuron| (0..hidden).map(|row| rows[row * ff + neuron]).collect();
        Ok((0..ff).map(column).collect())
    }

    fn pad_to(&mut self, end: u64) -> Result<(), Stop> {
        let zeros = [0; BLOCK_BYTES as usize];
        while self.written < end {
            let count = (end - self.written).min(BLOCK_BYTES) as usize;
            self.write(&zeros[..count])?;
        }
        assert_eq!(self.written, end, "what was written does not exceed its place");
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        self.out.write_all(bytes).map_err(Stop::Io)?;
        self.written += bytes.len() as u64;
        (self.progress)(self.written, self.header.file_bytes());
        Ok(())
    }
}

fn add_loss(loss: &mut Loss, source: &[f32], decoded: &[f32]) {
    for (&s, &d) in source.iter().zip(decoded) {
        loss.error += f64::from(s - d).powi(2);
        loss.weight += f64::from(s).powi(2);
    }
}

fn floats(model: &ModelFile, tensor: &Tensor) -> Result<Vec<u8>, Stop> {
    let values = model.rows(tensor, 0, tensor.rows())?;
    Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

fn matrix(model: &ModelFile, tensor: &Tensor, weight: WeightType) -> Result<Vec<u8>, Stop> {
    let mut bytes = Vec::new();
    for row in 0..tensor.rows() {
        encode_tensor_row(model, tensor, row, weight, &mut bytes)?;
    }
    Ok(bytes)
}

/// Query, key and value rows of a layer, those that are turned in the engine's order.
fn qkv(model: &ModelFile, layer: u64, weight: WeightType) -> Result<Vec<u8>, Stop> {
    let mut bytes = Vec::new();
    for role in ["attn_q.weight", "attn_k.weight"] {
        let tensor = model.layer_tensor(layer, role)?;
        for row in 0..tensor.rows() {
            let row = model.rope.rows.source(row);
            encode_tensor_row(model, tensor, row, weight, &mut bytes)?;
        }
    }
    bytes.extend(matrix(model, model.layer_tensor(layer, "attn_v.weight")?, weight)?);
    Ok(bytes)
}

/// Biases of query, key and value, in the order of [`qkv`].
fn qkv_bias(model: &ModelFile, layer: u64) -> Result<Vec<u8>, Stop> {
    let mut bytes = Vec::new();
    for role in ["attn_q.bias", "attn_k.bias"] {
        let values = model.rows(model.layer_tensor(layer, role)?, 0, 1)?;
        let turned = (0..values.len() as u64).map(|at| values[model.rope.rows.source(at) as usize]);
        bytes.extend(turned.flat_map(f32::to_le_bytes));
    }
    bytes.extend(floats(model, model.layer_tensor(layer, "attn_v.bias")?)?);
    Ok(bytes)
}

/// A row as `weight`: the file's own codes where it has that type, else made from its floats.
fn encode_tensor_row(
    model: &ModelFile,
    tensor: &Tensor,
    row: u64,
    weight: WeightType,
    out: &mut Vec<u8>,
) -> Result<(), Stop> {
    if ModelFile::has_codes_of(tensor, weight) {
        let mut raw = vec![0; tensor.row_bytes() as usize];
        model.gguf.read_raw(tensor, row * tensor.row_bytes(), &mut raw)?;
        layout_row(weight, &ggml_codes(weight, &raw), out);
    } else {
        encode_row(weight, &model.rows(tensor, row, 1)?, out);
    }
    Ok(())
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

/// Bytes of an image of `model` as `types`.
pub fn image_bytes(model: &ModelFile, types: &Types) -> u64 {
    round_up(
        Header::new(&model.name, &model.shape, types, model.constants).file_bytes(),
        BLOCK_BYTES,
    )
}

#[cfg(test)]
mod tests {
    use super::exponent_above;

    #[test]
    fn a_power_of_two_is_its_own_bound() {
        let ulp = |x: f32| f32::from_bits(x.to_bits() + 1);
        for (step, exponent) in
            [(1.0, 0), (ulp(1.0), 1), (0.03125, -5), (ulp(0.03125), -4), (0.75, 0), (3.0, 2)]
        {
            assert_eq!(exponent_above(step), exponent, "{step}");
        }
    }
}
