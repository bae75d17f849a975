//! Bad input against the real binaries: one sentence (what, where, wanted, found, what to do) and a
//! sysexits code; never a panic or a hang.
//!
//! Each test is a table. A row is a command, its exit code, and words its sentence must hold. Rows
//! that this machine or user can't set up say so on a line and are left out.
#![cfg(feature = "host")]

#[path = "common/process.rs"]
mod process;
#[path = "common/refusal.rs"]
mod refusal;

use ganglion::baked::{IMAGE, PLAN};
use ganglion::cli::{BootOptions, Fault, boot};
use ganglion::image::header::HEADER_BYTES;
use ganglion::image::tag::crc32c;
use ganglion::image::{Header, SectionKind, Shape, Types, WeightType};
use ganglion::kernel::Kernels;
use ganglion::plan::{Inputs, Lock, solve};
use process::{engine, forge, run, run_into};
use refusal::{Folder, PROMPT, Table, limit_file, limit_locked, text_of, unprivileged};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

// sysexits
const USAGE: i32 = 64;
const DATA: i32 = 65;
const NO_INPUT: i32 = 66;
const OS: i32 = 71;
const IO: i32 = 74;
const CONFIG: i32 = 78;

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

fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/demo/ganglion-demo-14m.f16.gguf")
}

fn demo_plan() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("plans/demo.toml")
}

#[test]
fn wrong_arguments_of_the_engine() {
    let long = "-".repeat(2000);
    let rows: &[(&[&str], &[&str])] = &[
        (&["sing"], &["no command \"sing\"", "run, bench"]),
        (&["run", "--tmp", "1"], &["no flag \"--tmp\"", "ganglion help"]),
        (&["run", &long], &["no flag"]),
        (&["run", "-n"], &["-n needs a value"]),
        (&["run", "--image"], &["--image needs a value"]),
        (&["run", "-n", "many"], &["-n takes a count, found \"many\""]),
        (&["run", "-n", "4294967296"], &["-n takes a count, found \"4294967296\""]),
        (&["run", "-n="], &["-n takes a count, found \"\""]),
        (&["run", "--seed", "-1"], &["--seed takes a whole number, found \"-1\""]),
        (&["run", "--json=yes"], &["--json takes no value"]),
        (&["run", "one", "two\nlines"], &["second prompt \"two\\nlines\"", "quotes"]),
        (&["run", "--threads", "0", PROMPT], &["--threads is 0", "1 to 2", "build again"]),
        (&["bench", "--threads", "99"], &["--threads is 99", "1 to 2", "build again"]),
        (&["run", "--isa", "sse9", PROMPT], &["no kernels for \"sse9\"", "twin"]),
        (&["run", "--temp", "hot", PROMPT], &["--temp takes a number", "\"hot\""]),
        (&["run", "--temp", "-1", PROMPT], &["temperature must be 0 (greedy) or a positive"]),
        (&["run", "--temp", "nan", PROMPT], &["temperature must be 0"]),
        (&["run", "--temp", "inf", PROMPT], &["temperature must be 0"]),
        (&["run", "--top-p", "0", PROMPT], &["top-p must be above 0 and at most 1"]),
        (&["run", "--top-p", "1.5", PROMPT], &["top-p must be above 0 and at most 1"]),
        (&["run", "--min-p", "-0.1", PROMPT], &["min-p must be from 0 to 1"]),
        (&["run", "--repeat-penalty", "0", PROMPT], &["repeat penalty must be a positive"]),
        (&["bench", "--repeat-penalty", "nan"], &["repeat penalty must be a positive"]),
    ];
    let mut table = Table::default();
    for (arguments, says) in rows {
        table.row(engine().args(*arguments), USAGE, says);
    }
    let says = ["no kernels for \"vax\""];
    table.row(engine().env("GANGLION_ISA", "vax").args(["run", PROMPT]), USAGE, &says);
    table.end();
}

#[test]
fn prompts_that_do_not_fit() {
    let mut table = Table::default();
    let words = "word ".repeat(600);
    let says = ["the prompt has ", " tokens, the context holds 512", "shorten it"];
    table.row(engine().args(["run", &words]), DATA, &says);
    table.row(engine().args(["bench", &words]), DATA, &says);
    let says = ["a piece of 20000 bytes without a word boundary, wanted at most 8192"];
    table.row(engine().arg("run").arg("a".repeat(20_000)), DATA, &says);
    let says = ["the prompt is not UTF-8 from byte 3 on", "encoding"];
    table.row(engine().arg("run").arg(OsStr::from_bytes(b"abc\xff")), DATA, &says);
    table.row(engine().arg("run").arg(OsStr::from_bytes(b"abc\xe2\x82")), DATA, &says);
    table.end();

    // Without a prompt the text starts at the model's own beginning.
    let empty = run(engine().args(["run", "-n", "4", ""]));
    let none = run(engine().args(["run", "-n", "4"]));
    for ended in [&empty, &none] {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.stdout.len() > 4, "{ended:?}");
    }
    assert_eq!(empty.stdout, none.stdout);
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
    let rows = ["missing.image", "dangling", "loop", "notes.txt/below", "."];
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
        fs::set_permissions(path, Permissions::from_mode(0)).unwrap();
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
        table.run(&image, DATA, &["cut.image"]);
        table.verify(&image, DATA, &["cut.image"]);
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
        ("the image has 64273", Shape { tokenizer_bytes: 64273, ..shape }),
    ];
    for (says, shape) in shapes {
        let other = Header::new("other", &shape, &types, header.constants());
        let image = sparse(&folder, &other.to_bytes(), other.file_bytes());
        table.run(&image, DATA, &["sparse.image", says, "this binary was built for"]);
    }
    let (half, q4) = (WeightType::F16, WeightType::Q4);
    let kinds = [
        ("record type", Types { records: q4, ..types }),
        ("resident type", Types { resident: half, ..types }),
        ("head type", Types { head: q4, ..types }),
        ("embedding type", Types { embedding: q4, ..types }),
    ];
    for (says, types) in kinds {
        let other = Header::new("other", &shape, &types, header.constants());
        let image = sparse(&folder, &other.to_bytes(), other.file_bytes());
        table.run(&image, DATA, &["sparse.image", says, "this binary was built for"]);
    }
    // A real one, by the packer.
    let packed = folder.file("q4.image");
    let made = run(forge().arg("pack").arg(demo_model()).arg(&packed).args(["--type", "q4"]));
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    table.run(&packed, DATA, &["q4.image", "record type", "this binary was built for"]);

    let mut newer = header.to_bytes();
    newer[8] += 1;
    let layout = resealed(&header, 12, 1);
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
    let says = ["record layout 1, this engine reads 0", "pack the image again"];
    table.run(&sparse(&folder, &layout, bytes), DATA, &says);
    for (at, value, says) in fields {
        let image = sparse(&folder, &resealed(&header, at, value), bytes);
        table.run(&image, DATA, &[says, "means nothing", "pack it again"]);
    }
    table.end();
}

#[test]
fn model_files_that_are_not_sound() {
    let folder = Folder::new("gguf");
    let model = folder.copy(demo_model(), "hurt.gguf");
    let target = folder.file("new.image");
    let mut table = Table::default();
    let mut pack = |code, says: &[&str]| {
        table.row(forge().arg("pack").arg(&model).arg(&target), code, says);
        assert!(!target.exists(), "an image was made of a bad model");
        assert!(!folder.file("new.image.part").exists(), "half an image was left");
    };
    let bytes = fs::read(&model).unwrap();
    let file = OpenOptions::new().write(true).open(&model).unwrap();

    // Fields changed in place: behind its name, a key has a type (4 bytes) and, if it is a string,
    // a length (8); a tensor has a dimension count (4), then its dimensions.
    let find = |name: &str| {
        let at = bytes.windows(name.len()).position(|window| window == name.as_bytes());
        (at.unwrap_or_else(|| panic!("the model has no {name}")) + name.len()) as u64
    };
    let (embedding, gates) = (find("token_embd.weight"), find("blk.2.ffn_gate_exps.weight"));
    let family = find("general.architecture") + 12;
    let activation = find("powerinfer.ffn_activation") + 12;
    let zero = 0u64.to_le_bytes();
    let rows: [(u64, &[u8], &[&str]); 11] = [
        (0, b"GGML", &["not a GGUF file", "check the path"]),
        (4, &[9, 0, 0, 0], &["GGUF version 9, wanted 2 or 3"]),
        (embedding + 4, &zero, &["dimension 0 of tensor \"token_embd.weight\" is 0"]),
        (embedding + 12, &zero, &["dimension 1 of tensor \"token_embd.weight\" is 0"]),
        (gates + 20, &zero, &["dimension 2 of tensor \"blk.2.ffn_gate_exps.weight\" is 0"]),
        (embedding, &[5, 0, 0, 0], &["has 5 dimensions, wanted 1 to 4"]),
        (embedding + 4, &[0xff; 8], &["token_embd.weight", "damaged"]),
        (embedding + 20, &[99, 0, 0, 0], &["unknown type 99"]),
        (gates + 4, &512u64.to_le_bytes(), &["blk.2.ffn_gate_exps.weight"]),
        (family, b"qwen2", &["general.architecture is \"qwen2\"", "the llama family"]),
        (activation, b"dgelu", &["powerinfer.ffn_activation is \"dgelu\"", "drelu"]),
    ];
    for (at, value, says) in rows {
        file.write_all_at(value, at).unwrap();
        pack(DATA, &[&["hurt.gguf"], says].concat());
        file.write_all_at(&bytes[at as usize..at as usize + value.len()], at).unwrap();
    }
    // Cut: in the data, between the tensors, in the list, in the keys, in the first fields.
    let whole = bytes.len() as u64;
    let parts = [whole - 1, whole - 4096, whole / 2, whole / 4, 1 << 20, gates + 30, gates + 3];
    let starts = [100_000, 50_000, 20_000, 5000, 1000, 300, 64, 33, 24, 23, 16, 15, 8, 7, 4, 3, 0];
    for bytes in parts.into_iter().chain([embedding + 5]).chain(starts) {
        file.set_len(bytes).unwrap();
        pack(DATA, &["hurt.gguf", "file incomplete", &format!("it has {bytes} bytes"), "fetch"]);
    }
    table.end();
}

#[test]
fn plans_that_do_not_hold() {
    let folder = Folder::new("plans");
    let plans = demo_plan().parent().unwrap().to_path_buf();
    let names = ["demo.toml", "devices/linux-x86_64.toml", "models/ganglion-demo-14m.toml"];
    let sources = names.map(|name| fs::read_to_string(plans.join(name)).unwrap());
    let (demo, device, model) = (names[0], names[1], names[2]);
    let edits: [(&str, &str, &str, &[&str]); 22] = [
        (demo, "lock =", "colour = 3\nlock =", &["unknown field `colour`", "budget"]),
        (demo, "kv =", "kw = 1\nkv =", &["unknown field `kw`"]),
        (device, "pin =", "pins = 1\npin =", &["unknown field `pins`"]),
        (model, "tied =", "tie = 1\ntied =", &["unknown field `tie`"]),
        (demo, "threads = 2\n", "", &["missing field `threads`"]),
        (demo, "threads = 2", "threads = two", &["plan file", "is wrong"]),
        (demo, "threads = 2", "threads = -2", &["is wrong", "integer `-2`"]),
        (demo, "threads = 2", "threads = 0", &["threads is 0, outside 1 to 16"]),
        (demo, "threads = 2", "threads = 17", &["threads is 17, outside 1 to 16"]),
        (demo, "context_tokens = 512", "context_tokens = 0", &["context_tokens is 0, outside 1"]),
        (demo, "linux-x86_64", "toaster", &["devices/toaster.toml can't be read"]),
        (demo, "ganglion-demo-14m\"", "no-model\"", &["models/no-model.toml can't be read"]),
        (demo, "14MB", "14XB", &["budget = \"14XB\" is unknown", "kB, MB, GB or KiB"]),
        (demo, "14MB", "1MB", &["budget of 1000000 bytes", "process 3000000"]),
        (demo, "14MB", "0", &["budget is 0, outside 1 to"]),
        (demo, "\"try\"", "\"maybe\"", &["lock = \"maybe\" is unknown", "demand, try or off"]),
        (demo, "records = \"q8\"", "records = \"q3\"", &["records = \"q3\"", "f16, q8 or q4"]),
        (demo, "kv = \"f16\"", "kv = \"q8\"", &["kv = \"q8\" is unknown", "f16 or f32"]),
        (device, "= 4096", "= 5000", &["page_bytes (a power of two) is 5000"]),
        (device, "readers = 4", "readers = 0", &["readers is 0, outside 1 to 16"]),
        (model, "\"drelu\"", "\"gelu\"", &["activation = \"gelu\" is unknown", "drelu"]),
        (model, "head_dim = 32", "head_dim = 0", &["head_dim is 0, outside 1 to 1024"]),
    ];
    let mut table = Table::default();
    for (edited, from, to, says) in edits {
        for (name, source) in names.iter().zip(&sources) {
            let text = if *name == edited { source.replacen(from, to, 1) } else { source.clone() };
            assert_eq!(&text == source, *name != edited, "{name} has no {from:?}");
            folder.write(name, text);
        }
        table.row(forge().arg("plan").arg(folder.file(demo)), CONFIG, &[&["demo"], says].concat());
    }
    let broken = folder.write("broken.toml", [0xff, 0xfe, 0]);
    table.row(forge().arg("plan").arg(&broken), CONFIG, &["broken.toml", "UTF-8"]);
    let missing = folder.file("missing.toml");
    table.row(forge().arg("plan").arg(&missing), CONFIG, &["missing.toml can't be read"]);
    table.row(forge().arg("plan").arg(&folder.0), CONFIG, &["can't be read", "check the name"]);
    let says =
        ["the budget of 1000000 bytes is too small: the smallest that plans is ", "raise the"];
    let mut small = forge();
    table.row(small.arg("plan").arg(demo_plan()).args(["--budget", "1MB"]), CONFIG, &says);

    let rows: [(&[&str], &[&str]); 6] = [
        (&["plan", "x.toml", "--budget", "9XB"], &["'9XB'", "--budget", "MB, GB"]),
        (&["pack", "model.gguf"], &["required", "<IMAGE>", "ganglion-forge help"]),
        (&["pack", "a", "b", "--type", "q3"], &["'q3'", "--type", "f16, q8, q4"]),
        (&["inspect", "a", "b"], &["'b'", "ganglion-forge help"]),
        (&["plan", "--jsn", "x"], &["'--jsn'", "ganglion-forge help"]),
        (&["sing"], &["'sing'", "ganglion-forge help"]),
    ];
    for (arguments, says) in rows {
        table.row(forge().args(arguments), USAGE, says);
    }
    table.end();
}

/// The build script as cargo runs it, on a budget that holds no plan.
#[test]
fn a_build_without_a_plan() {
    let builds = Path::new(env!("OUT_DIR")).parent().unwrap().parent().unwrap();
    let scripts = fs::read_dir(builds).unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        let ours = path.file_name()?.to_str()?.starts_with("ganglion-");
        let script = path.join("build-script-build");
        let made = fs::metadata(&script).and_then(|data| data.modified()).ok()?;
        ours.then_some((made, script))
    });
    let Some((_, script)) = scripts.max() else {
        eprintln!("skipped: the build folder holds no build script");
        return;
    };
    let folder = Folder::new("build");
    let build = |key: &str, value: &str| {
        let mut command = Command::new(&script);
        command.current_dir(env!("CARGO_MANIFEST_DIR")).env("OUT_DIR", &folder.0);
        command.env_remove("CARGO_CFG_TARGET_ARCH"); // no kernels: the plan is what is asked for
        command.env_remove("GANGLION_PLAN").env(key, value);
        let ended = run(&mut command);
        assert_ne!(ended.code, Some(0), "{key}={value} was built");
        assert!(!folder.file("plan.rs").exists(), "{key}={value} has a plan");
        ended.stderr
    };
    let rows: [(&str, &str, &[&str]); 3] = [
        ("GANGLION_BUDGET", "1MB", &["plans/demo.toml", "1000000 bytes is too small", "raise"]),
        ("GANGLION_BUDGET", "1XB", &["budget = \"1XB\" is unknown", "MB, GB"]),
        ("GANGLION_PLAN", "plans/no.toml", &["plans/no.toml can't be read", "GANGLION_PLAN"]),
    ];
    for (key, value, says) in rows {
        let stderr = build(key, value);
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.starts_with("ganglion: "), "{stderr}");
        says.iter().for_each(|words| assert!(stderr.contains(words), "no {words:?}: {stderr}"));
    }
}

#[test]
fn an_image_in_memory() {
    let kind = Command::new("stat").args(["-f", "-c", "%T", "/dev/shm"]).output().unwrap();
    if kind.stdout.trim_ascii() != b"tmpfs" {
        eprintln!("skipped: /dev/shm is no tmpfs");
        return;
    }
    let name = format!("/dev/shm/ganglion-bad-input-{}", std::process::id());
    let folder = Folder::at(PathBuf::from(name));
    let image = folder.copy(IMAGE, "demo.image");
    let wanted = run(engine().args(["run", "-n", "8", PROMPT]));
    let ended = run(engine().args(["run", "-n", "8", PROMPT, "--image"]).arg(&image));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout, wanted.stdout, "memory or flash, the text is the same");
    let warnings = ended.stderr.matches("lies in memory (tmpfs)").count();
    assert_eq!(warnings, 1, "{}", ended.stderr);
    let mut table = Table::default();
    let says = [&*text_of(&image), "lies in memory (tmpfs)", "copy it to a disk"];
    table.row(engine().args(["bench", "--image"]).arg(&image), CONFIG, &says);
    table.end();
}

#[test]
fn memory_that_may_not_be_locked() {
    let folder = Folder::open_to_all("lock");
    let ganglion = folder.copy(env!("CARGO_BIN_EXE_ganglion"), "ganglion");
    let suite = folder.copy(std::env::current_exe().unwrap(), "suite");
    let image = folder.copy(IMAGE, "demo.image");
    assert_eq!(PLAN.inputs.lock, Lock::Try);
    let wanted = run(engine().args(["run", "-n", "8", PROMPT]));
    for (limit, errno) in [(0, libc::EPERM), (65536, libc::ENOMEM)] {
        let says = [
            format!("(errno {errno})"),
            format!("wanted {} bytes, the limit is {limit}", PLAN.total_bytes()),
            "raise RLIMIT_MEMLOCK or give CAP_IPC_LOCK".to_string(),
        ];
        let mut command = unprivileged(&ganglion);
        limit_locked(&mut command, limit);
        let ended = run(command.args(["run", "-n", "8", PROMPT, "--image"]).arg(&image));
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(ended.stdout, wanted.stdout, "the text is written all the same");
        let lines: Vec<_> = ended.stderr.lines().filter(|line| line.contains("lock")).collect();
        assert_eq!(lines.len(), 1, "said once: {}", ended.stderr);
        says.iter().for_each(|words| assert!(lines[0].contains(words), "{words}: {}", lines[0]));

        let mut command = unprivileged(&suite);
        limit_locked(&mut command, limit);
        command.env("GANGLION_DEMAND_IMAGE", &image);
        let ended = run(command.args(["--exact", "demanded_lock_in_a_child", "--nocapture"]));
        assert_eq!(ended.code, Some(OS), "{ended:?}");
        let demands = "ganglion: the plan demands locked memory, but memory is not locked: ";
        let line = ended.stderr.lines().find(|line| line.starts_with(demands));
        let line = line.unwrap_or_else(|| panic!("{}", ended.stderr));
        says.iter().for_each(|words| assert!(line.contains(words), "{words}: {line}"));
        assert!(line.contains("set lock = \"try\""), "{line}");
    }
}

/// The other half of the test above, which starts it with limits; alone it has nothing to do.
#[test]
fn demanded_lock_in_a_child() {
    let Some(image) = std::env::var_os("GANGLION_DEMAND_IMAGE") else {
        return;
    };
    let plan = solve(Inputs { lock: Lock::Demand, ..PLAN.inputs }).unwrap();
    let options = BootOptions {
        image: image.as_bytes().to_vec().leak(),
        threads: 1,
        kernels: Kernels::best(),
        prove_seal: false,
        enforce_budget: false,
        refuse_memory_backed: false,
    };
    match boot(&plan, &options, |_| Ok(())) {
        Ok(()) => println!("everything was locked"),
        Err(fault) => {
            assert!(matches!(fault, Fault::Lock(_)), "{fault}");
            eprintln!("ganglion: {fault}");
            std::process::exit(fault.exit_code().into());
        }
    }
}

#[test]
fn a_full_disk_while_packing() {
    let folder = Folder::new("full");
    let image = folder.write("new.image", "what was there before");
    let mut table = Table::default();
    // A limit on file sizes is a full disk that needs no disk.
    let mut command = forge();
    limit_file(&mut command, 1 << 20);
    let says = ["new.image.part can't be written after ", " bytes: ", "free some space"];
    table.row(command.arg("pack").arg(demo_model()).arg(&image), IO, &says);
    table.end();
    assert_eq!(fs::read(&image).unwrap(), b"what was there before");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "half an image was left");

    // A real one, in a mount that only the child sees.
    let script = "mount -t tmpfs -o size=1m none \"$0\" || exit 99; \
                  \"$1\" pack \"$2\" \"$0/new.image\"; code=$?; ls -A \"$0\"; exit $code";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(&folder.0);
    let ended = run(command.arg(env!("CARGO_BIN_EXE_ganglion-forge")).arg(demo_model()));
    if !ended.stderr.starts_with("ganglion-forge: ") {
        eprintln!("skipped: no mount of our own: {}", ended.stderr.trim());
        return;
    }
    assert_eq!(ended.code, Some(IO), "{}", ended.stderr);
    assert!(ended.stderr.contains("No space left on device"), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert_eq!(ended.stdout, b"", "half an image was left");
}

#[test]
fn a_stdout_that_takes_nothing() {
    let plan = text_of(&demo_plan());
    let model = text_of(&demo_model());
    let commands: [(fn() -> Command, &[&str]); 11] = [
        (engine, &["run", "-n", "4", PROMPT]),
        (engine, &["run", "-n", "4", "--json", PROMPT]),
        (engine, &["bench", "-n", "4"]),
        (engine, &["plan"]),
        (engine, &["plan", "--json"]),
        (engine, &["check"]),
        (engine, &["help"]),
        (engine, &["--version"]),
        (forge, &["plan", &plan]),
        (forge, &["shape", &model, "--json"]),
        (forge, &["inspect", IMAGE]),
    ];
    let mut table = Table::default();
    for (tool, arguments) in commands {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let errno = if tool == engine as fn() -> Command { "(errno " } else { "(os error " };
        for (stdout, number) in [(Stdio::from(full), libc::ENOSPC), (writer.into(), libc::EPIPE)] {
            let mut command = tool();
            let ended = run_into(command.args(arguments), stdout);
            let errno = format!("{errno}{number})");
            let says = ["the text can't be written to stdout", &errno];
            table.judge(&command, &ended, IO, &says);
        }
    }
    table.end();
}
