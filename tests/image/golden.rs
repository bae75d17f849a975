//! Layout 1 is frozen: images that another program wrote (`tests/data/layout/make.py`), byte for
//! byte.

use super::process::{engine, forge, run};
use super::refusal::{Folder, Table};
use super::{column, row};
use ganglion::forge::model::ModelFile;
use ganglion::forge::pack::pack;
use ganglion::image::WeightType::{self, F16, Q4, Q8};
use ganglion::image::header::{HEADER_BYTES, LAYOUT};
use ganglion::image::tag::crc32c;
use ganglion::image::{Header, SectionKind, Types};
use std::fs;
use std::path::{Path, PathBuf};

/// sysexits' EX_DATAERR.
const DATA: i32 = 65;
/// Vectors of rows.f32, back to back.
const LENGTHS: [usize; 5] = [1, 31, 300, 1100, 96];
/// Images of tiny.gguf and dense.gguf. Each role of weights meets each type.
const IMAGES: [(&str, Types); 6] = [
    ("tiny.q4.image", Types { records: Q4, down: Q4, resident: Q8, head: F16, embedding: Q8 }),
    ("tiny.q8.image", Types { records: Q8, down: Q8, resident: F16, head: Q4, embedding: F16 }),
    ("tiny.f16.image", Types { records: F16, down: F16, resident: Q4, head: Q8, embedding: Q4 }),
    ("tiny.q4-q8.image", Types { records: Q4, down: Q8, resident: Q8, head: F16, embedding: Q8 }),
    ("dense.q8.image", Types { records: Q8, down: Q8, resident: Q8, head: Q8, embedding: F16 }),
    (
        "dense.q4-f16.image",
        Types { records: Q4, down: F16, resident: Q8, head: Q8, embedding: F16 },
    ),
];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/layout").join(name)
}

fn golden(name: &str) -> Vec<u8> {
    fs::read(data(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The section of an image that holds byte `at`, and the byte within it.
fn place(header: &Header, at: u64) -> (&'static str, u64) {
    let offset = |kind| at.wrapping_sub(header.section(kind).offset);
    let holds = |kind: &SectionKind| offset(*kind) < header.section(*kind).bytes;
    let found = SectionKind::ALL.into_iter().find(holds);
    found.map_or(("header", at), |kind| (kind.name(), offset(kind)))
}

/// Where the images first differ, and in how many bytes.
fn difference(packed: &[u8], golden: &[u8]) -> Option<String> {
    let header = Header::read(golden, golden.len() as u64).unwrap_or_else(|e| panic!("{e}"));
    if packed.len() != golden.len() {
        return Some(format!("it has {} bytes, golden {}", packed.len(), golden.len()));
    }
    let differ: Vec<usize> = (0..golden.len()).filter(|&at| packed[at] != golden[at]).collect();
    let &first = differ.iter().find(|&&at| at >= HEADER_BYTES).or(differ.first())?;
    let (section, at) = place(&header, first as u64);
    Some(format!(
        "{} bytes differ, first byte {at} of section {section}: {:#04x}, golden {:#04x}",
        differ.len(),
        packed[first],
        golden[first]
    ))
}

#[test]
fn the_packer_writes_layout_1_byte_for_byte() {
    assert_eq!(LAYOUT, 1, "another layout needs golden images of its own");
    let folder = Folder::new("golden");
    let mut offences = Vec::new();
    for (name, types) in IMAGES {
        let source = data(&format!("{}.gguf", name.split('.').next().unwrap()));
        let model = ModelFile::open(&source).unwrap_or_else(|error| panic!("{error}"));
        let path = folder.file(name);
        pack(&model, &types, &path, &mut |_, _| {}).unwrap_or_else(|error| panic!("{error}"));
        let found = difference(&fs::read(&path).unwrap(), &golden(name));
        offences.extend(found.map(|difference| format!("{name}: {difference}")));
    }
    assert!(offences.is_empty(), "pack no longer writes layout 1:\n{}", offences.join("\n"));
}

#[test]
fn rows_and_columns_of_odd_lengths() {
    let (source, codes) = (golden("rows.f32"), golden("rows.codes"));
    let values = source.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap()));
    let (values, mut rest): (Vec<f32>, &[u8]) = (values.collect(), &codes);
    let mut start = 0;
    for length in LENGTHS {
        let vector = &values[start..start + length];
        start += length;
        for weight in WeightType::ALL {
            for (what, found) in [("row", row(weight, vector)), ("column", column(weight, vector))]
            {
                let wanted = rest.split_off(..found.len()).expect("rows.codes is whole");
                let differs = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
                assert_eq!(differs, None, "{} {what} of {length}: first byte", weight.name());
            }
        }
    }
    assert!(start == values.len() && rest.is_empty(), "rows.f32 and rows.codes are used up");
}

#[test]
fn an_image_of_an_older_layout_is_refused() {
    let folder = Folder::new("older-layout");
    let mut table = Table::default();
    for (name, _) in IMAGES {
        let mut image = golden(name);
        // Layout and the header's own checksum, as the header says.
        image[12..16].copy_from_slice(&0u32.to_le_bytes());
        image[16..20].fill(0);
        let crc = crc32c(0, &image[..HEADER_BYTES]);
        image[16..20].copy_from_slice(&crc.to_le_bytes());
        let path = folder.write(name, &image);
        let says = [name, "layout 0, this engine reads 1", "ganglion-forge pack MODEL.gguf IMAGE"];
        table.run(&path, DATA, &says);
        table.verify(&path, DATA, &says);
        table.row(engine().args(["bench", "-n", "4", "--image"]).arg(&path), DATA, &says);
        // As it is, the host tool reads it: nothing but the layout stood in the way.
        let whole = run(forge().args(["inspect", "--verify"]).arg(data(name)));
        assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    }
    table.end();
}
