//! Packs that are interrupted, disturbed or started twice.
//!
//! What an image holds is proved by `image`; here it must be the same however it came about.
#![cfg(feature = "host")]

#[path = "common/process.rs"]
mod process;
#[path = "common/refusal.rs"]
mod refusal;

use ganglion::forge::gguf;
use ganglion::forge::model::ModelFile;
use ganglion::forge::pack::{PackError, Start, pack};
use ganglion::forge::source::GgmlType;
use ganglion::image::Types;
use ganglion::image::WeightType::{F16, Q4, Q8};
use process::{Ended, forge, run};
use refusal::{Folder, Table, limit_file};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const DATA: i32 = 65;
const NO_INPUT: i32 = 66;
const IO: i32 = 74;
const RETRY: i32 = 75;
const TYPES: Types = Types { records: Q8, down: Q8, resident: Q8, head: Q8, embedding: F16 };

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// A folder with a copy of the demo model, and an image of it that was packed without a break.
struct Desk {
    folder: Folder,
    model: PathBuf,
    image: PathBuf,
    wanted: Vec<u8>,
}

impl Desk {
    fn new(test: &str) -> Desk {
        let folder = Folder::new(&format!("pack-{test}"));
        let model = folder.copy(data("demo/ganglion-demo-14m.f16.gguf"), "model.source");
        let image = folder.file("model.image");
        let desk = Desk { folder, model, image, wanted: Vec::new() };
        let ended = desk.pack(&[]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let wanted = fs::read(&desk.image).unwrap();
        fs::remove_file(&desk.image).unwrap();
        Desk { wanted, ..desk }
    }

    fn pack(&self, flags: &[&str]) -> Ended {
        run(forge().arg("pack").args([&self.model, &self.image]).args(flags))
    }

    fn part(&self) -> PathBuf {
        self.folder.file("model.image.part")
    }

    fn state(&self) -> PathBuf {
        self.folder.file("model.image.part.state")
    }

    /// First byte behind the records of layer `layers - 1`.
    fn end_of(&self, layers: u64) -> u64 {
        let model = ModelFile::open(&self.model).unwrap();
        let layer = model.shape.experts * TYPES.expert_bytes(&model.shape);
        self.wanted.len() as u64 - (model.shape.layers - layers) * layer
    }

    /// Leaves a pack that ran out of disk in the third layer.
    fn interrupt(&self) {
        let mut command = forge();
        limit_file(&mut command, self.end_of(2) + 5000);
        let mut table = Table::default();
        let says =
            ["model.image.part can't be written after ", "free some space", "are kept", "goes on"];
        table.row(command.arg("pack").args([&self.model, &self.image]), IO, &says);
        table.end();
        assert!(self.part().exists() && self.state().exists() && !self.image.exists());
    }

    /// The next pack must make the same image as ever, and tell how it began.
    fn finish(&self, says: &str) {
        let ended = self.pack(&[]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let began = ended.stderr.lines().next().unwrap_or_default();
        assert!(began.contains(says), "{says:?}, found {began:?}");
        assert!(fs::read(&self.image).unwrap() == self.wanted, "the image differs");
        assert!(!self.part().exists() && !self.state().exists(), "something was left");
        fs::remove_file(&self.image).unwrap();
    }
}

const ON: &str = "went on behind the 2 layers of an interrupted pack";
const ANEW: &str = "an interrupted pack was of other files or types: began anew";
const FRESH: &str = "relative error";

#[test]
fn an_interrupted_pack_goes_on() {
    let desk = Desk::new("goes-on");
    desk.finish(FRESH);
    desk.interrupt();
    desk.interrupt(); // twice in the same layer
    desk.finish(ON);
    // The losses are those of the whole model, not of the rest.
    let table = |ended: Ended| {
        let text = String::from_utf8(ended.stdout).unwrap();
        let mut value: Value = serde_json::from_str(&text).unwrap();
        value["weights"].take()
    };
    let whole = table(desk.pack(&["--json"]));
    desk.interrupt_over();
    let resumed = table(desk.pack(&["--json"]));
    assert_eq!(whole, resumed);
    assert_eq!(whole["gate"]["requantised"], 4 * 8 * 512 * 256);
}

impl Desk {
    /// As [`Desk::interrupt`], where the image is there already.
    fn interrupt_over(&self) {
        fs::remove_file(&self.image).unwrap();
        self.interrupt();
    }
}

#[test]
fn what_is_left_of_other_work_is_not_used() {
    let desk = Desk::new("anew");
    // Another type.
    desk.interrupt();
    let ended = desk.pack(&["--type", "q4"]);
    assert!(ended.code == Some(0) && ended.stderr.starts_with(ANEW), "{ended:?}");
    fs::remove_file(&desk.image).unwrap();
    // The source has another time.
    desk.interrupt();
    let file = File::options().write(true).open(&desk.model).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(1000)).unwrap();
    desk.finish(ANEW);
    // Another header of the same length and time.
    desk.interrupt();
    let time = file.metadata().unwrap().modified().unwrap();
    let bytes = fs::read(&desk.model).unwrap();
    let word = b"dReLU (relu(gate)";
    let at = bytes.windows(word.len()).position(|window| window == word).unwrap();
    file.write_all_at(b"DReLU", at as u64).unwrap();
    file.set_modified(time).unwrap();
    desk.finish(ANEW);
    // A state with a wrong bit; a cut one; an image that is shorter than the state says.
    desk.interrupt();
    let state = fs::read(desk.state()).unwrap();
    for at in [0, 40, state.len() / 2, state.len() - 3] {
        let mut wrong = state.clone();
        wrong[at] ^= 1;
        fs::write(desk.state(), wrong).unwrap();
        desk.finish(ANEW);
        desk.interrupt();
    }
    fs::write(desk.state(), &state[..state.len() / 2]).unwrap();
    desk.finish(ANEW);
    desk.interrupt();
    OpenOptions::new().write(true).open(desk.part()).unwrap().set_len(desk.end_of(2) - 1).unwrap();
    desk.finish(ANEW);
}

#[test]
fn damaged_layers_of_an_interrupted_pack_are_found() {
    let desk = Desk::new("damaged");
    desk.interrupt();
    let file = File::options().write(true).open(desk.part()).unwrap();
    file.write_all_at(&[0x55; 8], desk.end_of(1) + 100).unwrap();
    let mut table = Table::default();
    let says = ["does not verify", "of layer 1", "is damaged", "check the disk"];
    table.row(forge().arg("pack").args([&desk.model, &desk.image]), IO, &says);
    table.end();
    desk.finish(FRESH);
}

/// What `disturb` does to the source once some bytes are written stops the pack.
fn disturbed(test: &str, disturb: impl Fn(&Path)) -> (PackError, Desk) {
    let desk = Desk::new(test);
    let model = ModelFile::open(&desk.model).unwrap();
    let (mut done_once, middle) = (false, desk.end_of(1) / 2);
    let result = pack(&model, &TYPES, &desk.image, &mut |done, _| {
        if done > middle && !done_once {
            done_once = true;
            disturb(&desk.model);
        }
    });
    let error = result.expect_err("a disturbed pack was finished");
    assert!(!error.to_string().contains('\n'), "{error}");
    (error, desk)
}

#[test]
fn a_source_that_changes_is_noticed() {
    let append = |path: &Path| {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() + 1).unwrap();
    };
    let (error, desk) = disturbed("changed", append);
    assert!(error.to_string().contains("the file changed while it was read"), "{error}");
    assert!(!desk.part().exists() && !desk.state().exists() && !desk.image.exists());
    let cut = |path: &Path| OpenOptions::new().write(true).open(path).unwrap().set_len(1 << 20);
    let (error, desk) = disturbed("cut", |path| cut(path).unwrap());
    assert!(error.to_string().contains("file incomplete: it has 1048576 bytes"), "{error}");
    assert!(!desk.part().exists() && !desk.state().exists() && !desk.image.exists());
    // A file that is replaced by its name stays the one that was opened.
    let desk = Desk::new("replaced");
    let model = ModelFile::open(&desk.model).unwrap();
    let packed = pack(&model, &TYPES, &desk.image, &mut |_, _| {
        let _ = fs::remove_file(&desk.model);
    });
    assert_eq!(packed.unwrap_or_else(|error| panic!("{error}")).start, Start::Fresh);
    assert!(fs::read(&desk.image).unwrap() == desk.wanted);
    let mut table = Table::default();
    let says = ["model.source: cannot open", "check the path"];
    table.row(forge().arg("pack").args([&desk.model, &desk.image]), NO_INPUT, &says);
    table.end();
}

#[test]
fn one_pack_at_a_time() {
    let desk = Desk::new("busy");
    let part = File::create(desk.part()).unwrap();
    part.lock().unwrap();
    let mut table = Table::default();
    let says = ["model.image.part is being written by another pack", "wait for it"];
    table.row(forge().arg("pack").args([&desk.model, &desk.image]), RETRY, &says);
    table.end();
    drop(part);
    desk.finish(FRESH);
}

#[test]
fn weights_that_a_type_cannot_hold_are_named() {
    let folder = Folder::new("pack-large");
    let model = folder.copy(data("layout/tiny.gguf"), "tiny.gguf");
    let gguf = gguf::open(&model).unwrap();
    let image = folder.file("tiny.image");
    let file = OpenOptions::new().write(true).open(&model).unwrap();
    let of_floats = |role: &&&str| {
        let tensor = gguf.opt_tensor(&format!("blk.0.{role}.weight"));
        tensor.is_some_and(|tensor| tensor.kind == GgmlType::F32)
    };
    let roles =
        ["attn_q", "attn_v", "attn_output", "ffn_up_exps", "ffn_gate_exps", "ffn_down_exps"];
    let roles: Vec<&&str> = roles.iter().filter(of_floats).collect();
    assert!(roles.len() >= 2, "{roles:?}");
    for role in roles {
        let tensor = gguf.tensor(&format!("blk.0.{role}.weight")).unwrap();
        let at = tensor.pieces[0].offset;
        let mut kept = [0; 4];
        gguf.read_raw(tensor, 0, &mut kept).unwrap();
        file.write_all_at(&1e30f32.to_le_bytes(), at).unwrap();
        for (weight, name) in [(F16, "f16"), (Q8, "q8"), (Q4, "q4")] {
            let types =
                Types { records: weight, down: weight, resident: weight, head: Q8, embedding: F16 };
            let opened = ModelFile::open(&model).unwrap();
            let error = pack(&opened, &types, &image, &mut |_, _| {}).unwrap_err().to_string();
            let wanted = format!("holds a weight too large for {name}; choose another type");
            assert!(error.contains(&wanted) && error.contains(&tensor.name), "{error}");
        }
        let mut table = Table::default();
        let says = ["holds a weight too large for q8"];
        table.row(forge().arg("pack").args([&model, &image]), DATA, &says);
        table.end();
        file.write_all_at(&kept, at).unwrap();
    }
    assert!(!image.exists());
}
