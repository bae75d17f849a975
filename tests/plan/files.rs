//! Plan, device and model files: what they say, and how wrong ones are refused.

use super::plans;
use ganglion::forge::inputs::{InputsError, byte_count, read};
use ganglion::image::WeightType;
use ganglion::plan::{Inputs, KvType, Lock};
use std::fs;
use std::path::PathBuf;

#[test]
fn byte_counts_have_units() {
    let table = [
        ("12GB", Some(12_000_000_000)), // 10^9, not 2^30
        ("7 GB", Some(7_000_000_000)),
        (" 7GB ", Some(7_000_000_000)),
        ("1.5GB", Some(1_500_000_000)),
        ("1.5GiB", Some(1_610_612_736)),
        ("1.5 KiB", Some(1536)),
        ("0.25MiB", Some(262_144)),
        ("0.1GiB", Some(107_374_182)), // 107,374,182.4
        ("14MB", Some(14_000_000)),
        ("64MiB", Some(67_108_864)),
        ("3kB", Some(3_000)),
        ("3KB", Some(3_000)),
        ("3KiB", Some(3_072)),
        ("0B", Some(0)),
        ("123", Some(123)),
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", None),
        ("18446744074GB", None),
        ("", None),
        ("GB", None),
        (".5GB", None),
        ("1.5.5GB", None),
        ("-1GB", None),
        ("+1GB", None),
        ("1e9", None),
        ("12gb", None),
        ("12Gb", None),
        ("12TB", None),
        ("12GBs", None),
        ("1 2GB", None),
        ("1,5GB", None),
        ("\u{661}GB", None),
    ];
    for (text, bytes) in table {
        assert_eq!(byte_count(text), bytes, "{text:?}");
    }
}

/// A `plans` folder of its own, removed with the value.
struct Folder(PathBuf);

const PLAN: &str = "model = \"m\"\ndevice = \"d\"\nbudget = \"64MB\"\ncontext_tokens = 64\n\
    prefill_tokens = 16\nthreads = 2\n\
    lock = \"off\"\n[numerics]\nrecords = \"q8\"\nresident = \"q4\"\nhead = \"f16\"\n\
    embedding = \"q8\"\nkv = \"f32\"\n";

impl Folder {
    fn new(test: &str) -> Folder {
        let name = format!("ganglion-plan-{}-{test}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        for (committed, name) in [
            ("devices/linux-x86_64.toml", "devices/d.toml"),
            ("models/ganglion-demo-14m.toml", "models/m.toml"),
        ] {
            let text = fs::read_to_string(plans().join(committed)).unwrap();
            folder.write(name, &text);
        }
        folder.write("mine/small.toml", PLAN);
        folder
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Replaces `from` by `to` in a file; the text must be there.
    fn change(&self, name: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.0.join(name)).unwrap();
        assert!(text.contains(from), "{name} has no {from:?}");
        self.write(name, &text.replace(from, to));
    }

    fn read(&self, budget: Option<&str>) -> Result<Inputs, InputsError> {
        read(&self.0.join("mine/small.toml"), budget).map(|source| source.inputs)
    }

    fn refusal(&self) -> String {
        self.read(None).unwrap_err().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_plan_file_says_what_it_says() {
    let folder = Folder::new("reads");
    let inputs = folder.read(None).unwrap();
    assert_eq!((inputs.name, inputs.model, inputs.device_name), ("mine/small", "m", "d"));
    assert_eq!((inputs.budget_bytes, inputs.context_tokens), (64_000_000, 64));
    assert_eq!((inputs.prefill_tokens, inputs.threads), (16, 2));
    assert_eq!(inputs.lock, Lock::Off);
    let types = inputs.numerics.types;
    assert_eq!((types.records, types.resident), (WeightType::Q8, WeightType::Q4));
    assert_eq!((types.head, types.embedding), (WeightType::F16, WeightType::Q8));
    assert_eq!(inputs.numerics.kv, KvType::Single);
    assert_eq!(folder.read(Some("12GB")).unwrap().budget_bytes, 12_000_000_000);
    let source = read(&folder.0.join("mine/small.toml"), None).unwrap();
    assert_eq!((source.image, source.files.len()), (None, 3));
    folder.change("mine/small.toml", "threads", "image = \"here.image\"\nthreads");
    let source = read(&folder.0.join("mine/small.toml"), None).unwrap();
    assert_eq!(source.image.as_deref(), Some("here.image"));
}

#[test]
fn an_unknown_key_is_refused_by_name() {
    for (file, table) in [
        ("mine/small.toml", "model ="),
        ("mine/small.toml", "records ="),
        ("devices/d.toml", "page_bytes ="),
        ("models/m.toml", "layers ="),
    ] {
        let folder = Folder::new("unknown");
        folder.change(file, table, &format!("colour = 7\n{table}"));
        let text = folder.refusal();
        assert!(text.contains("colour") && text.contains(file) && !text.contains('\n'), "{text}");
    }
}

#[test]
fn a_missing_key_is_named() {
    for (file, key) in [
        ("mine/small.toml", "context_tokens"),
        ("mine/small.toml", "prefill_tokens"),
        ("mine/small.toml", "kv"),
        ("devices/d.toml", "readers"),
        ("models/m.toml", "head_dim"),
    ] {
        let folder = Folder::new("missing-key");
        folder.change(file, &format!("{key} ="), "# ");
        let text = folder.refusal();
        assert!(text.contains(key) && text.contains(file), "{text}");
    }
}

#[test]
fn a_missing_file_is_named() {
    for file in ["mine/small.toml", "devices/d.toml", "models/m.toml"] {
        let folder = Folder::new("missing-file");
        fs::remove_file(folder.0.join(file)).unwrap();
        let text = folder.refusal();
        assert!(text.contains(file) && text.contains("can't be read"), "{text}");
    }
}

#[test]
fn a_wrong_value_is_named_with_what_would_do() {
    let table = [
        ("mine/small.toml", "\"64MB\"", "\"64 bananas\"", "budget", "GB"),
        ("mine/small.toml", "\"off\"", "\"maybe\"", "lock", "demand, try or off"),
        ("mine/small.toml", "kv = \"f32\"", "kv = \"q4\"", "kv", "f16, f32 or q8"),
        ("mine/small.toml", "records = \"q8\"", "records = \"q5\"", "records", "f16, q8 or q4"),
        ("mine/small.toml", "resident = \"q4\"", "resident = \"\"", "resident", "f16, q8 or q4"),
        ("mine/small.toml", "head = \"f16\"", "head = \"F16\"", "head", "f16, q8 or q4"),
        (
            "mine/small.toml",
            "embedding = \"q8\"",
            "embedding = \"f8\"",
            "embedding",
            "f16, q8 or q4",
        ),
        ("models/m.toml", "\"drelu\"", "\"tanh\"", "activation", "drelu, silu, relu or gelu"),
    ];
    for (file, from, to, key, wanted) in table {
        let folder = Folder::new("wrong-value");
        folder.change(file, from, to);
        let text = folder.refusal();
        let found = to.split('"').nth(1).unwrap();
        for word in [file, key, found, wanted] {
            assert!(text.contains(word), "{word} is not in: {text}");
        }
    }
    for (from, to, word) in [
        ("threads = 2", "threads = \"two\"", "threads"),
        ("threads = 2", "threads = -2", "threads"),
        ("[numerics]", "[numerics", "small.toml"),
    ] {
        let folder = Folder::new("wrong-toml");
        folder.change("mine/small.toml", from, to);
        let text = folder.refusal();
        assert!(text.contains(word) && !text.contains('\n'), "{text}");
    }
}
