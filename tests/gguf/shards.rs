//! Models split over several files: every order, every name, and everything that can be wrong.

use super::process::{forge, run};
use super::refusal::Table;
use super::{
    F32, STRING, Scratch, U16, Writer, array, assert_sentence, fault_of, opened, string, typed,
};
use ganglion::forge::gguf;
use ganglion::forge::source::{Fault, SourceError};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder under the temporary folder, removed with the value.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ganglion-shards-{}-{number}", std::process::id());
        let folder = Self(std::env::temp_dir().join(name));
        fs::create_dir(&folder.0).unwrap();
        folder
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Opens the file `name`, which must fail; the fault, and the file it is in.
    fn fault(&self, name: &str) -> (Fault, String) {
        let error = gguf::open(&self.0.join(name)).expect_err("a damaged model was accepted");
        assert_sentence(&error, &error.path);
        (error.fault, file_name(&error.path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Shard `number` (from 0) of `count`, with the tensors that `names` are.
fn shard(number: u16, count: u16, all: u16, names: &[&str]) -> Writer {
    let mut writer = Writer::new();
    if number == 0 {
        writer = writer.key("general.architecture", typed(STRING, &string("llama")));
        writer = writer.key("scales", array(F32, 1, &1.5f32.to_le_bytes()));
    }
    for name in names {
        let data = f32::from(name.as_bytes()[0]).to_le_bytes().to_vec();
        writer = writer.tensor(name, &[1], 0, data);
    }
    writer
        .key("split.no", typed(U16, &number.to_le_bytes()))
        .key("split.count", typed(U16, &count.to_le_bytes()))
        .key("split.tensors.count", typed(U16, &all.to_le_bytes()))
}

/// The tensors a, b | c | d, e.
fn three() -> [Vec<u8>; 3] {
    [(0, &["a", "b"][..]), (1, &["c"]), (2, &["d", "e"])].map(|(n, t)| shard(n, 3, 5, t).bytes())
}

fn usual(number: usize) -> String {
    format!("model-{number:05}-of-00003.gguf")
}

fn assert_whole(path: &Path) {
    let gguf = gguf::open(path).unwrap_or_else(|error: SourceError| panic!("{error}"));
    assert_eq!(gguf.string("general.architecture").unwrap(), "llama");
    assert_eq!(gguf.f32s("scales").unwrap(), [1.5]);
    let names: Vec<&str> = gguf.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    for tensor in gguf.tensors() {
        let wanted = f32::from(tensor.name.as_bytes()[0]);
        assert_eq!(gguf.rows_f32(tensor, 0, 1).unwrap(), [wanted], "{}", tensor.name);
    }
}

#[test]
fn any_shard_opens_the_model() {
    let folder = Folder::new();
    let paths: Vec<PathBuf> =
        three().iter().enumerate().map(|(i, b)| folder.write(&usual(i + 1), b)).collect();
    paths.iter().for_each(|path| assert_whole(path));
    // A model beside it, split or not, is none of its business.
    folder.write("other-00001-of-00003.gguf", &three()[0]);
    folder.write("whole.gguf", &Writer::new().bytes());
    paths.iter().for_each(|path| assert_whole(path));
}

#[test]
fn shards_of_any_name_are_found_by_what_they_say() {
    let folder = Folder::new();
    let [first, second, third] = three();
    // In the wrong order by their names.
    folder.write(&usual(1), &third);
    folder.write(&usual(2), &first);
    folder.write(&usual(3), &second);
    (1..=3).for_each(|number| assert_whole(&folder.0.join(usual(number))));
    // Two of them named by hand.
    fs::rename(folder.0.join(usual(1)), folder.0.join("the end.gguf")).unwrap();
    fs::rename(folder.0.join(usual(3)), folder.0.join("b.gguf")).unwrap();
    folder.write("note.txt", b"not a model");
    folder.write("two-00001-of-00002.gguf", &shard(0, 2, 5, &["a"]).bytes());
    for name in ["the end.gguf", &usual(2), "b.gguf"] {
        assert_whole(&folder.0.join(name));
    }
    // A split of one shard is a whole file.
    opened(&shard(0, 1, 1, &["a"]));
}

#[test]
fn missing_shards_are_named() {
    for missing in 1..=3 {
        let folder = Folder::new();
        for (index, bytes) in three().iter().enumerate().filter(|(i, _)| i + 1 != missing) {
            folder.write(&usual(index + 1), bytes);
        }
        let given = usual(if missing == 1 { 2 } else { 1 });
        let (fault, _) = folder.fault(&given);
        assert!(matches!(fault, Fault::ShardMissing { number, count: 3 } if number == missing));
    }
}

#[test]
fn cut_shards_are_named() {
    for names in [["x.gguf", "y.gguf", "z.gguf"].map(String::from), [1, 2, 3].map(usual)] {
        for (index, bytes) in three().iter().enumerate() {
            let folder = Folder::new();
            for (name, bytes) in names.iter().zip(&three()) {
                folder.write(name, bytes);
            }
            for length in [bytes.len() - 1, bytes.len() - 5, 100, 20, 3, 0] {
                folder.write(&names[index], &bytes[..length]);
                let (fault, file) = folder.fault(&names[(index + 1) % 3]);
                assert!(matches!(fault, Fault::Truncated { .. }), "{fault}");
                assert_eq!(file, names[index], "cut to {length}");
            }
        }
    }
}

#[test]
fn foreign_and_doubled_shards_are_refused() {
    let [first, second, third] = three();
    let with = |two: &[u8]| {
        let folder = Folder::new();
        folder.write(&usual(1), &first);
        folder.write(&usual(2), two);
        folder.write(&usual(3), &third);
        let (fault, file) = folder.fault(&usual(1));
        (fault, file == usual(2))
    };
    let (fault, named) = with(&third);
    assert!(matches!(fault, Fault::ShardTwice { number: 3, count: 3, .. }), "{fault}");
    assert!(!named, "the second of the two is named, and the first in the sentence");
    let (fault, named) = with(&shard(1, 4, 5, &["c"]).bytes());
    assert!(matches!(fault, Fault::ShardForeign { found: 4, wanted: 3, .. }) && named, "{fault}");
    let (fault, named) = with(&shard(1, 3, 6, &["c", "x"]).bytes());
    assert!(matches!(fault, Fault::ShardForeign { found: 6, wanted: 5, .. }) && named, "{fault}");
    let (fault, named) = with(&small_whole());
    assert!(matches!(fault, Fault::ShardForeign { found: 1, wanted: 3, .. }) && named, "{fault}");
    let (fault, _) = with(&shard(1, 3, 5, &[]).bytes());
    assert!(matches!(fault, Fault::ShardTensors { found: 4, wanted: 5 }), "{fault}");
    let (fault, named) = with(&shard(1, 3, 5, &["e"]).bytes());
    assert!(matches!(fault, Fault::DuplicateTensor { .. }) && !named, "{fault}");
    let (fault, named) = with(b"GGML and more");
    assert!(matches!(fault, Fault::Magic { .. }) && named, "{fault}");
    // As it was, it opens.
    let folder = Folder::new();
    for (number, bytes) in [(1, &first), (2, &second), (3, &third)] {
        folder.write(&usual(number), bytes);
    }
    assert_whole(&folder.0.join(usual(1)));
}

/// The GGUF file `bytes` in `count` shards, its metadata in the first.
fn split(bytes: &[u8], count: usize) -> Vec<Vec<u8>> {
    let whole = Scratch::new(bytes);
    let gguf = gguf::open(&whole.0).unwrap();
    let tensors = gguf.tensors();
    // The metadata ends where the list begins: at the first tensor's name and its length.
    let start = string(&tensors[0].name);
    let start = bytes.windows(start.len()).position(|window| window == start).unwrap();
    let shards = tensors.chunks(tensors.len().div_ceil(count)).enumerate();
    shards
        .map(|(number, part)| {
            let mut writer = shard(number as u16, count as u16, tensors.len() as u16, &[]);
            writer.keys.retain(|(name, _)| name.starts_with("split."));
            for tensor in part {
                let mut data = vec![0; tensor.bytes as usize];
                gguf.read_raw(tensor, 0, &mut data).unwrap();
                writer = writer.tensor(&tensor.name, &tensor.dims, tensor.kind.id, data);
            }
            if number == 0 {
                writer.raw_keys = bytes[24..start].to_vec();
                writer.key_count = Some(gguf.keys().count() as u64 + 3);
            }
            writer.bytes()
        })
        .collect()
}

#[test]
fn a_split_model_packs_to_the_image_of_the_whole() {
    let folder = Folder::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let whole = fs::read(root.join("tests/data/layout/tiny.gguf")).unwrap();
    for (number, bytes) in split(&whole, 3).iter().enumerate() {
        folder.write(&usual(number + 1), bytes);
    }
    // As the golden image has it.
    let image = folder.0.join("tiny.image");
    let types = ["--type", "q4", "--resident", "q8", "--head", "f16", "--embedding", "q8"];
    let ended = run(forge().arg("pack").arg(folder.0.join(usual(2))).arg(&image).args(types));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let golden = fs::read(root.join("tests/data/layout/tiny.q4.image")).unwrap();
    assert!(fs::read(&image).unwrap() == golden, "the image differs from that of the whole file");

    let mut table = Table::default();
    let mut refused = |code: i32, says: &[&str]| {
        let given = folder.0.join(usual(1));
        table.row(forge().arg("shape").arg(&given), code, says);
        table.row(forge().arg("pack").arg(&given).arg(folder.0.join("new.image")), code, says);
        assert!(!folder.0.join("new.image").exists(), "an image was made of a bad model");
    };
    let third = fs::read(folder.0.join(usual(3))).unwrap();
    folder.write(&usual(3), &third[..third.len() / 2]);
    refused(65, &[&usual(3), "file incomplete", "fetch the file again"]);
    fs::remove_file(folder.0.join(usual(3))).unwrap();
    refused(66, &[&usual(1), "shard 3 of 3 is missing beside it"]);
    folder.write("by another name.gguf", &third);
    folder.write(&usual(2), &three()[1]);
    refused(65, &[&usual(2), "shard of another model", "tensors in all"]);
    table.end();
}

fn small_whole() -> Vec<u8> {
    Writer::new().tensor("c", &[1], 0, vec![0; 4]).bytes()
}

#[test]
fn joined_files_are_refused() {
    let [first, second, third] = three();
    let start = first.len() as u64;
    let fault = fault_of(&[first.clone(), second, third].concat());
    assert!(matches!(fault, Fault::Joined { offset } if offset == start), "{fault}");
    // Two whole models, the second at the next multiple of 32.
    let mut two = small_whole();
    two.resize(two.len().next_multiple_of(32), 0);
    let start = two.len() as u64;
    two.extend(small_whole());
    let fault = fault_of(&two);
    assert!(matches!(fault, Fault::Joined { offset } if offset == start), "{fault}");
}

#[test]
fn odd_split_numbers_are_refused() {
    let int = |value: i64| typed(super::I64, &value.to_le_bytes());
    for (number, count) in [(0, 0), (0, -1), (3, 3), (-1, 3), (0, 513), (i64::MAX, i64::MAX)] {
        let file = Writer::new().key("split.no", int(number)).key("split.count", int(count));
        let fault = file.fault();
        assert!(matches!(fault, Fault::ShardNumber { .. }), "{number} of {count}: {fault}");
    }
    let file = Writer::new().key("split.count", typed(STRING, &string("3")));
    assert!(matches!(file.fault(), Fault::WrongType { .. }));
}
