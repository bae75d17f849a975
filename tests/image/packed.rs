//! The packed demo against its source, and images of files that hold codes of their own.

use super::{Gauss, decoded_column, decoded_row, row_code};
use ganglion::forge::gguf;
use ganglion::forge::model::ModelFile;
use ganglion::forge::pack::{Class, pack};
use ganglion::forge::source::{GgmlType, Tensor};
use ganglion::forge::verify::verify_image;
use ganglion::image::WeightType::{F16, Q4, Q8};
use ganglion::image::geometry::{padded_groups, row_scale_byte};
use ganglion::image::{Header, SectionKind, Shape, Types};
use half::f16;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const DEMO: &str = "tests/data/demo/ganglion-demo-14m.f16.gguf";

fn demo_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(DEMO)
}

/// An image read by its header alone.
struct Image {
    file: File,
    header: Header,
    shape: Shape,
    types: Types,
}

impl Image {
    fn open(path: &Path) -> Image {
        let header = verify_image(path, &mut |_, _| {}).unwrap_or_else(|error| panic!("{error}"));
        let (shape, types) = (header.shape().unwrap(), header.types().unwrap());
        Image { file: File::open(path).unwrap(), header, shape, types }
    }

    fn bytes(&self, kind: SectionKind, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, self.header.section(kind).offset + at).unwrap();
        bytes
    }

    /// Original index of each neuron of an expert.
    fn order(&self, expert: u64) -> Vec<u64> {
        let bytes = self.bytes(SectionKind::Order, expert * self.shape.ff * 4, self.shape.ff * 4);
        let words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        words.map(u64::from).collect()
    }

    /// Gate row, up row and down column of every neuron of an expert, counted over all layers.
    fn records(&self, expert: u64) -> Vec<[Vec<u8>; 3]> {
        let (record, size) = (self.types.record(&self.shape), self.types.expert_bytes(&self.shape));
        let bytes = self.bytes(SectionKind::Records, expert * size, size);
        let part = |at: u64, len: u64| bytes[at as usize..(at + len) as usize].to_vec();
        (0..self.shape.ff)
            .map(|neuron| record.offset(neuron))
            .map(|at| {
                [
                    part(at, record.row_bytes),
                    part(at + record.up(), record.row_bytes),
                    part(at + record.down(), record.column_bytes),
                ]
            })
            .collect()
    }
}

/// Most a q8 code may miss its weight by.
fn q8_bound(values: &[f32]) -> f32 {
    let largest = values.iter().fold(0f32, |max, value| max.max(value.abs()));
    // Half a step; the scale's f16 rounding; where the scale is subnormal, 127 of its steps.
    largest * (0.5 / 127.0 + 1.0 / 2048.0) + 127.0 * 2f32.powi(-25)
}

fn assert_near(source: &[f32], decoded: &[f32], group: usize, what: &str) {
    for (source, decoded) in source.chunks(group).zip(decoded.chunks(group)) {
        let bound = q8_bound(source);
        for (a, b) in source.iter().zip(decoded) {
            assert!((a - b).abs() <= bound, "{what}: {a} became {b}, more than {bound} off");
        }
    }
}

#[test]
fn the_demo_image_holds_the_demo() {
    let image = Image::open(Path::new(ganglion::baked::IMAGE));
    let gguf = gguf::open(&demo_path()).unwrap();
    let shape = image.shape;
    assert_eq!(image.types.records, Q8, "the default plan packs q8 records");
    let (hidden, ff) = (shape.hidden as usize, shape.ff as usize);
    for layer in 0..shape.layers {
        let tensor =
            |role: &str| gguf.tensor(&format!("blk.{layer}.ffn_{role}_exps.weight")).unwrap();
        let (gate, up, down) = (tensor("gate"), tensor("up"), tensor("down"));
        for expert in 0..shape.experts {
            let order = image.order(layer * shape.experts + expert);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..shape.ff), "the order is a permutation");
            let rows =
                |tensor: &Tensor, count| gguf.rows_f32(tensor, expert * count, count).unwrap();
            let (gates, ups) = (rows(gate, shape.ff), rows(up, shape.ff));
            let downs = rows(down, shape.hidden);
            let records = image.records(layer * shape.experts + expert);
            for (record, original) in records.iter().zip(order) {
                let what = format!("layer {layer}, expert {expert}, neuron {original}");
                let at = original as usize * hidden;
                for (bytes, source) in record.iter().zip([&gates, &ups]) {
                    assert_near(
                        &source[at..at + hidden],
                        &decoded_row(Q8, bytes, hidden),
                        32,
                        &what,
                    );
                }
                let source: Vec<f32> =
                    (0..hidden).map(|row| downs[row * ff + original as usize]).collect();
                assert_near(&source, &decoded_column(Q8, &record[2], hidden), hidden, &what);
            }
        }
    }
}

#[test]
fn the_demo_image_holds_its_embeddings() {
    let image = Image::open(Path::new(ganglion::baked::IMAGE));
    let gguf = gguf::open(&demo_path()).unwrap();
    assert_eq!(image.types.embedding, F16);
    let (shape, hidden) = (image.shape, image.shape.hidden as usize);
    let row_bytes = image.types.embedding_row_bytes(&shape);
    let tensor = gguf.tensor("token_embd.weight").unwrap();
    for token in 0..shape.vocab {
        let bytes = image.bytes(SectionKind::Embedding, token * row_bytes, row_bytes);
        let source = gguf.rows_f32(tensor, token, 1).unwrap();
        assert_eq!(decoded_row(F16, &bytes, hidden), source, "token {token}");
    }
}

#[test]
fn a_damaged_image_does_not_verify() {
    let image = Image::open(Path::new(ganglion::baked::IMAGE));
    let copy = Scratch::new("damaged.image");
    fs::copy(ganglion::baked::IMAGE, &copy.0).unwrap();
    let file = File::options().write(true).read(true).open(&copy.0).unwrap();
    for kind in SectionKind::ALL {
        let at = image.header.section(kind).offset + 100;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
        let refused = verify_image(&copy.0, &mut |_, _| {}).err();
        let error = refused.unwrap_or_else(|| panic!("{} is damaged", kind.name())).to_string();
        assert!(error.contains("checksum") && error.contains("damaged.image"), "{error}");
        file.write_all_at(&byte, at).unwrap();
    }
    assert!(verify_image(&copy.0, &mut |_, _| {}).is_ok());
    file.set_len(image.header.file_bytes() - 1).unwrap();
    let error = verify_image(&copy.0, &mut |_, _| {}).err().unwrap().to_string();
    assert!(error.contains("incomplete"), "{error}");
}

/// A file under the temporary folder, removed with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("ganglion-image-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Blocks of Q8_0 or Q4_0 with random codes and scales, as a quantising program would leave them.
fn random_blocks(kind: GgmlType, blocks: u64, gauss: &mut Gauss) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..blocks {
        let scale = f16::from_f32(0.001 + 0.01 * gauss.uniform() as f32);
        bytes.extend_from_slice(&scale.to_le_bytes());
        // As writers of Q8_0 do, without -128.
        bytes.extend(
            (2..kind.block_bytes)
                .map(|_| (gauss.uniform() * 255.0) as u8 ^ 0x80)
                .map(|byte| if byte == 0x80 { 0x7f } else { byte }),
        );
    }
    bytes
}

/// The demo with its gate and up matrices replaced by random blocks of `kind`; metadata and all
/// other tensors stay.
fn quantised_demo(kind: GgmlType, path: &Path) {
    let source = demo_path();
    let gguf = gguf::open(&source).unwrap();
    let file = fs::read(&source).unwrap();
    // The metadata ends where the tensor list begins: at the first tensor's name and its length.
    let first = &gguf.tensors()[0];
    let mut needle = (first.name.len() as u64).to_le_bytes().to_vec();
    needle.extend_from_slice(first.name.as_bytes());
    let start = file.windows(needle.len()).position(|window| window == needle).unwrap();
    let alignment = gguf.opt_u32("general.alignment").unwrap().unwrap_or(32) as usize;
    let mut out = file[..start].to_vec();
    let (mut data, mut gauss) = (Vec::new(), Gauss(4));
    for tensor in gguf.tensors() {
        let replaced = tensor.name.contains("gate_exps") || tensor.name.contains("up_exps");
        let content = if replaced {
            random_blocks(kind, tensor.rows() * tensor.row_elements() / 32, &mut gauss)
        } else {
            let start = tensor.pieces[0].offset as usize;
            file[start..start + tensor.bytes as usize].to_vec()
        };
        out.extend_from_slice(&(tensor.name.len() as u64).to_le_bytes());
        out.extend_from_slice(tensor.name.as_bytes());
        out.extend_from_slice(&(tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().for_each(|dim| out.extend_from_slice(&dim.to_le_bytes()));
        let id = if replaced { kind.id } else { tensor.kind.id };
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&(data.len() as u64).to_le_bytes());
        data.extend_from_slice(&content);
        data.resize(data.len().next_multiple_of(alignment), 0);
    }
    out.resize(out.len().next_multiple_of(alignment), 0);
    out.extend_from_slice(&data);
    fs::write(path, out).unwrap();
}

#[test]
fn codes_of_the_source_reach_the_image_unchanged() {
    for (weight, kind) in [(Q8, GgmlType::Q8_0), (Q4, GgmlType::Q4_0)] {
        let model_file = Scratch::new(&format!("{}.gguf", weight.name()));
        let image_file = Scratch::new(&format!("{}.image", weight.name()));
        quantised_demo(kind, &model_file.0);
        let model = ModelFile::open(&model_file.0).unwrap();
        let types = Types { records: weight, down: weight, resident: Q8, head: Q8, embedding: F16 };
        let packed = pack(&model, &types, &image_file.0, &mut |_, _| {}).unwrap();
        eprintln!("{packed:?}");
        for class in [Class::Gate, Class::Up] {
            let loss = packed.losses.of(class);
            let of_all = (loss.copied, loss.requantised, loss.error);
            let weights = model.shape.neurons() * model.shape.hidden;
            assert_eq!(of_all, (weights, 0, 0.0), "{weight:?}: rows are copied");
        }
        let image = Image::open(&image_file.0);
        let shape = image.shape;
        let groups = padded_groups(shape.hidden);
        let code_bytes = kind.block_bytes - 2;
        for layer in 0..shape.layers {
            for (part, role) in ["gate", "up"].into_iter().enumerate() {
                let name = format!("blk.{layer}.ffn_{role}_exps.weight");
                let tensor = model.source.tensor(&name).unwrap();
                let mut blocks = vec![0; tensor.bytes as usize];
                model.source.read_raw(tensor, 0, &mut blocks).unwrap();
                let mut blocks = blocks.chunks_exact(kind.block_bytes as usize);
                for expert in 0..shape.experts {
                    // Rows follow the original order, which the demo's image keeps.
                    for record in image.records(layer * shape.experts + expert) {
                        for group in 0..shape.hidden / 32 {
                            let block = blocks.next().unwrap();
                            let at = row_scale_byte(groups, group, code_bytes) as usize;
                            assert_eq!(record[part][at..at + 2], block[..2], "{name}");
                            for within in 0..32 {
                                let byte = block[2 + (within % code_bytes) as usize];
                                let wanted = match weight {
                                    Q8 => byte as i8,
                                    _ if within < 16 => (byte & 15) as i8 - 8,
                                    _ => (byte >> 4) as i8 - 8,
                                };
                                let index = 32 * group + within;
                                let found = row_code(weight, &record[part], groups, index);
                                assert_eq!(found, wanted, "{name}");
                            }
                        }
                    }
                }
            }
        }
    }
}
