//! Images that are missing, closed, cut, damaged, or of another kind.

use super::{DATA, IO, NO_INPUT, demo_model};
use crate::process::{engine, forge, run};
use crate::refusal::{Folder, Table, text_of, unprivileged};
use ganglion::baked::IMAGE;
use ganglion::image::header::HEADER_BYTES;
use ganglion::image::tag::crc32c;
use ganglion::image::{ActivationFn, Header, SectionKind, Shape, Types, WeightType};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The image this binary was built for.
struct Demo {
    header: Header,
    shape: Shape,
    types: Types,
}

impl Demo {
    fn new() -> Demo {
        let mut block = [0; HEADER_BYTES];
        let mut file = File::open(IMAGE).unwrap();
        file.read_exact(&mut block).unwrap();
        let header = Header::read(&block, file.metadata().unwrap().len()).unwrap();
        Demo { header, shape: header.shape().unwrap(), types: header.types().unwrap() }
    }

    /// Byte of the image where the record of a neuron starts.
    fn record(&self, layer: u64, expert: u64, neuron: u64) -> u64 {
        let expert = layer * self.shape.experts + expert;
        self.header.section(SectionKind::Records).offset
            + expert * self.types.expert_bytes(&self.shape)
            + self.types.record(&self.shape).offset(neuron)
    }

    /// Byte of the image where the embedding row of a token starts.
    fn embedding(&self, token: u64) -> u64 {
        self.header.section(SectionKind::Embedding).offset
            + token * self.types.embedding_row_bytes(&self.shape)
    }
}

/// Flips a bit of a byte; flipping it twice mends it.
fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// A file of `bytes` bytes that starts with `header`; the rest is a hole.
fn sparse(folder: &Folder, header: &[u8; HEADER_BYTES], bytes: u64) -> PathBuf {
    let path = folder.write("sparse.image", header);
    OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes).unwrap();
    path
}

/// The header with a 32-bit field changed and its own checksum right.
fn resealed(header: &Header, at: usize, value: u32) -> [u8; HEADER_BYTES] {
    let mut block = header.to_bytes();
    block[at..at + 4].copy_from_slice(&value.to_le_bytes());
    block[16..20].fill(0);
    let crc = crc32c(0, &block);
    block[16..20].copy_from_slice(&crc.to_le_bytes());
    block
}

#[test]
fn images_that_are_not_there() {
    let folder = Folder::new("missing");
    let text = folder.write("notes.txt", "not an image");
    let pipe = folder.file("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::fs::symlink(folder.file("nothing"), folder.file("dangling")).unwrap();
    std::os::unix::fs::symlink(folder.file("loop"), folder.file("loop")).unwrap();
    let make = "ganglion-forge pack";
    let rows: [(PathBuf, &[&str]); 9] = [
        (folder.file("missing.image"), &["no such file or directory (errno 2)", make, "--image"]),
        (folder.file("dangling"), &["no such file", make]),
        (folder.file("loop"), &["too many symbolic links", make]),
        (text.join("below"), &["not a directory", make]),
        (folder.0.clone(), &["not a regular file", make]),
        (pipe, &["not a regular file", make]),
        (PathBuf::from("/dev/null"), &["not a regular file", make]),
        (PathBuf::new(), &["name is empty or too long", "--image"]),
        (PathBuf::from("x".repeat(5000)), &["name is empty or too long", "--image"]),
    ];
    let mut table = Table::default();
    for (path, says) in rows {
        let named = if says[0].contains("too long") { String::new() } else { text_of(&path) };
        for command in ["run", "bench", "check"] {
            let says: Vec<&str> = says.iter().copied().chain([named.as_str()]).collect();
            table.row(engine().args([command, "--image"]).arg(&path), NO_INPUT, &says);
        }
    }
    let rows = ["missing.image", "dangling", "loop", "notes.txt/below", ".", "pipe"];
    for name in rows {
        let path = folder.file(name);
        let says = [&*text_of(&path), "check the "];
        table.row(forge().arg("inspect").arg(&path), NO_INPUT, &says);
        table.row(forge().arg("shape").arg(&path), NO_INPUT, &says[..1]);
        let target = folder.file("new.image");
        table.row(forge().arg("pack").arg(&path).arg(target), NO_INPUT, &says[..1]);
    }
    table.end();
}

#[test]
fn images_that_may_not_be_read() {
    let folder = Folder::open_to_all("rights");
    let ganglion = folder.copy(env!("CARGO_BIN_EXE_ganglion"), "ganglion");
    let forge = folder.copy(env!("CARGO_BIN_EXE_ganglion-forge"), "ganglion-forge");
    let closed = folder.write("closed.image", "GANGLION");
    let inside = folder.write("closed/inside.image", "GANGLION");
    let target = folder.file("closed/new.image");
    for path in [&closed, &folder.file("closed")] {
        fs::set_permissions(path, Permissions::from_mode(0o000)).unwrap();
    }
    let mut table = Table::default();
    for path in [&closed, &inside] {
        let says = [&*text_of(path), "permission denied", "errno 13"];
        for command in ["run", "bench", "check"] {
            let mut command_line = unprivileged(&ganglion);
            table.row(command_line.args([command, "--image"]).arg(path), NO_INPUT, &says);
        }
        let says = [&*text_of(path), "Permission denied", "check the "];
        table.row(unprivileged(&forge).arg("inspect").arg(path), NO_INPUT, &says);
        table.row(unprivileged(&forge).arg("shape").arg(path), NO_INPUT, &says);
    }
    let model = folder.copy(demo_model(), "demo.gguf");
    let says = ["new.image", "can't be written", "Permission denied", "choose another folder"];
    table.row(unprivileged(&forge).arg("pack").arg(model).arg(target), IO, &says);
    fs::set_permissions(folder.file("closed"), Permissions::from_mode(0o755)).unwrap();
    table.end();
}

#[test]
fn images_cut_short_or_too_long() {
    let folder = Folder::new("cut");
    let image = folder.copy(IMAGE, "cut.image");
    let whole = fs::metadata(&image).unwrap().len();
    let file = OpenOptions::new().write(true).open(&image).unwrap();
    let mut table = Table::default();
    let lengths = [whole + 4096, whole + 1, whole - 1, whole - 4096, whole / 2 + 77, whole / 2];
    for bytes in lengths.into_iter().chain([1 << 20, 8192, 4097, 4096]) {
        file.set_len(bytes).unwrap();
        let found = format!("says {whole} bytes, it has {bytes}");
        let says = ["cut.image", "the file is incomplete", &*found, "copy or pack it again"];
        table.run(&image, DATA, &says);
        table.verify(&image, DATA, &says);
    }
    for bytes in [4095, 512, 100, 8] {
        file.set_len(bytes).unwrap();
        let found = format!("its header alone has 4096 bytes, it has {bytes}");
        let says = ["cut.image", "the file is incomplete", &*found, "copy or pack it again"];
        table.run(&image, DATA, &says);
        table.verify(&image, DATA, &says);
    }
    for bytes in [7, 1, 0] {
        file.set_len(bytes).unwrap();
        let says = ["cut.image", "does not start with \"GANGLION\"", "ganglion-forge pack"];
        table.run(&image, DATA, &says);
        table.verify(&image, DATA, &says);
    }
    table.end();
}

#[test]
fn damaged_headers_and_sections() {
    let folder = Folder::new("sections");
    let image = folder.copy(IMAGE, "hurt.image");
    let demo = Demo::new();
    let mut table = Table::default();
    // Checksum, shape, types, section table, the unused end; then magic.
    for at in [16, 24, 32, 96, 100, 144, 160, 200, 250, 1000, HEADER_BYTES as u64 - 1] {
        flip(&image, at);
        table.run(&image, DATA, &["hurt.image", "header fails its checksum", "pack the image"]);
        flip(&image, at);
    }
    flip(&image, 3);
    table.run(&image, DATA, &["hurt.image", "does not start with \"GANGLION\""]);
    flip(&image, 3);
    for kind in [SectionKind::Resident, SectionKind::Tokenizer, SectionKind::Order] {
        let section = demo.header.section(kind);
        let says = format!("section {} fails its checksum", kind.name());
        for at in [0, 1234, section.bytes - 1] {
            flip(&image, section.offset + at);
            table.verify(&image, DATA, &["hurt.image", &says, "copy or pack it again"]);
            if kind != SectionKind::Order {
                table.run(&image, DATA, &["hurt.image", &says, "copy or pack it again"]);
            }
            flip(&image, section.offset + at);
        }
    }
    table.end();
    let mended = run(engine().args(["check", "--image"]).arg(&image));
    assert_eq!(mended.code, Some(0), "the rows left damage behind: {}", mended.stderr);
}

#[test]
fn damaged_records_and_rows() {
    let folder = Folder::new("records");
    let image = folder.copy(IMAGE, "hurt.image");
    let demo = Demo::new();
    let record = demo.types.record(&demo.shape);
    let mut table = Table::default();

    // Hot: read at boot. Gate, its tag's identity and checksum, up, down, the last tag.
    let parts = [0, record.gate_tag(), record.up() - 1, record.up(), record.down()];
    for at in parts.into_iter().chain([record.raw_bytes() - 1]) {
        flip(&image, demo.record(1, 2, 5) + at);
        let says = ["neuron 5 of layer 1, expert 2 is damaged", "checksum", "pack"];
        table.run(&image, DATA, &says);
        table.verify(&image, DATA, &says);
        flip(&image, demo.record(1, 2, 5) + at);
    }
    // The last neuron of all.
    let (layer, expert, neuron) =
        (demo.shape.layers - 1, demo.shape.experts - 1, demo.shape.ff - 1);
    flip(&image, demo.record(layer, expert, neuron) + 7);
    let says = format!("neuron {neuron} of layer {layer}, expert {expert} is damaged");
    table.verify(&image, DATA, &[&says]);
    flip(&image, demo.record(layer, expert, neuron) + 7);
    // Cold: read when the token asks for it, whichever expert it chooses.
    let cold: Vec<u64> = (0..demo.shape.experts)
        .flat_map(|expert| (demo.shape.ff - 64..demo.shape.ff).map(move |n| (expert, n)))
        .map(|(expert, neuron)| demo.record(2, expert, neuron))
        .collect();
    cold.iter().for_each(|&at| flip(&image, at));
    table.run(&image, DATA, &["of layer 2, expert ", "is damaged", "pack the image again"]);
    let says = ["of layer 2, expert ", "is damaged"];
    table.row(engine().args(["bench", "-n", "4", "--image"]).arg(&image), DATA, &says);
    cold.iter().for_each(|&at| flip(&image, at));
    // A whole, sound record in another's place.
    let file = OpenOptions::new().read(true).write(true).open(&image).unwrap();
    let mut blocks = [vec![0; record.unit_bytes as usize], vec![0; record.unit_bytes as usize]];
    file.read_exact_at(&mut blocks[0], demo.record(0, 3, 0)).unwrap();
    file.read_exact_at(&mut blocks[1], demo.record(0, 4, 0)).unwrap();
    file.write_all_at(&blocks[0], demo.record(0, 4, 0)).unwrap();
    table.run(&image, DATA, &["neuron 0 of layer 0, expert 4 is damaged"]);
    file.write_all_at(&blocks[1], demo.record(0, 4, 0)).unwrap();
    // Embedding rows: one by `check`, all of them by the first token.
    flip(&image, demo.embedding(300) + 9);
    table.verify(&image, DATA, &["the embedding row of token 300 is damaged", "pack"]);
    flip(&image, demo.embedding(300) + 9);
    (0..demo.shape.vocab).for_each(|token| flip(&image, demo.embedding(token)));
    table.run(&image, DATA, &["the embedding row of token ", "pack the image again"]);
    table.end();
}

#[test]
fn images_of_another_kind() {
    let folder = Folder::new("foreign");
    let Demo { header, shape, types } = Demo::new();
    let mut table = Table::default();
    let says = ["notes.txt", "does not start with \"GANGLION\"", "ganglion-forge pack"];
    let notes = folder.write("notes.txt", "A text of a few bytes.\n".repeat(1000));
    table.run(&notes, DATA, &says);
    table.verify(&notes, DATA, &says);
    table.run(&demo_model(), DATA, &["does not start with \"GANGLION\""]);

    let shapes = [
        ("layers = 4, the image has 5", Shape { layers: 5, ..shape }),
        ("hidden = 256, the image has 512", Shape { hidden: 512, ..shape }),
        ("heads = 8, the image has 16", Shape { heads: 16, ..shape }),
        ("kv_heads = 2, the image has 4", Shape { kv_heads: 4, ..shape }),
        ("head_dim = 32, the image has 64", Shape { head_dim: 64, ..shape }),
        ("experts = 8, the image has 4", Shape { experts: 4, ..shape }),
        ("experts_used = 2, the image has 3", Shape { experts_used: 3, ..shape }),
        ("ff = 512, the image has 511", Shape { ff: 511, ..shape }),
        ("vocab = 2048, the image has 32000", Shape { vocab: 32000, ..shape }),
        ("tied = 1, the image has 0", Shape { tied: false, ..shape }),
        ("activation = 1, the image has 2", Shape { activation: ActivationFn::SiLu, ..shape }),
        ("the image has 64273", Shape { tokenizer_bytes: 64273, ..shape }),
    ];
    for (says, shape) in shapes {
        let other = Header::new("other", &shape, &types, header.constants());
        let image = sparse(&folder, &other.to_bytes(), other.file_bytes());
        table.run(&image, DATA, &["sparse.image", says, "this binary was built for"]);
    }
    let (half, q4) = (WeightType::F16, WeightType::Q4);
    let kinds = [
        ("records as q8, the image has q4", Types { records: q4, down: q4, ..types }),
        ("resident weights as q8, the image has f16", Types { resident: half, ..types }),
        ("the head as q8, the image has q4", Types { head: q4, ..types }),
        ("embeddings as f16, the image has q4", Types { embedding: q4, ..types }),
    ];
    for (says, types) in kinds {
        let other = Header::new("other", &shape, &types, header.constants());
        let image = sparse(&folder, &other.to_bytes(), other.file_bytes());
        table.run(&image, DATA, &["sparse.image", says, "pack the model as the plan says"]);
    }
    // A real one, by the packer.
    let packed = folder.file("q4.image");
    let made = run(forge().arg("pack").arg(demo_model()).arg(&packed).args(["--type", "q4"]));
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    table.run(&packed, DATA, &["q4.image", "records as q8, the image has q4", "pack the model"]);

    let mut newer = header.to_bytes();
    newer[8] += 1;
    let layout = resealed(&header, 12, 0);
    let fields: [(usize, u32, &str); 7] = [
        (20, 9, "activation = 9"),
        (96, 0, "layers = 0"),
        (100, u32::MAX, "hidden = 4294967295"),
        (108, 3, "heads (a multiple of kv_heads) = 8"),
        (120, 9, "experts_used = 9"),
        (140, 7, "record type = 7"),
        (168, 1, "resident = "),
    ];
    let bytes = header.file_bytes();
    let says = ["format version 2, this engine reads 1", "update the engine or pack"];
    table.run(&sparse(&folder, &newer, bytes), DATA, &says);
    let says = ["layout 0, this engine reads 1", "ganglion-forge pack MODEL.gguf IMAGE"];
    table.run(&sparse(&folder, &layout, bytes), DATA, &says);
    for (at, value, says) in fields {
        let image = sparse(&folder, &resealed(&header, at, value), bytes);
        table.run(&image, DATA, &[says, "means nothing", "pack it again"]);
    }
    table.end();
}

/// Sections that mean nothing although every checksum holds: a packer's error, or malice.
#[test]
fn sealed_nonsense() {
    let folder = Folder::new("nonsense");
    let image = folder.copy(IMAGE, "odd.image");
    let demo = Demo::new();
    let mut table = Table::default();
    let kinds = [
        (SectionKind::Resident, "odd.image: the down unit of layer 0 is 2^"),
        (SectionKind::Tokenizer, "the tokenizer in the image is damaged: "),
    ];
    for (kind, says) in kinds {
        for fill in [0x81, 0x7f, 0x01] {
            let section = demo.header.section(kind);
            let nonsense = vec![fill; section.bytes as usize];
            let file = OpenOptions::new().read(true).write(true).open(&image).unwrap();
            let mut sound = vec![0; nonsense.len()];
            file.read_exact_at(&mut sound, section.offset).unwrap();
            let mut header = demo.header;
            header.set_section_crc(kind, crc32c(0, &nonsense));
            file.write_all_at(&nonsense, section.offset).unwrap();
            file.write_all_at(&header.to_bytes(), 0).unwrap();
            table.run(&image, DATA, &[says, "pack "]);
            file.write_all_at(&sound, section.offset).unwrap();
            file.write_all_at(&demo.header.to_bytes(), 0).unwrap();
        }
    }
    table.end();
}
