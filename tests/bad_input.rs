//! Bad input against the real binaries: one sentence (what, where, wanted, found, what to do) and a
//! sysexits code; never a panic or a hang.
//!
//! Each test is a table. A row is a command, its exit code, and words its sentence must hold. Rows
//! that this machine or user can't set up say so on a line and are left out.
#![cfg(feature = "host")]

#[path = "bad_input/images.rs"]
mod images;
#[path = "common/process.rs"]
mod process;
#[path = "common/refusal.rs"]
mod refusal;

use ganglion::baked::{IMAGE, PLAN};
use ganglion::cli::{BootOptions, Fault, boot};
use ganglion::forge::gguf;
use ganglion::kernel::Kernels;
use ganglion::plan::{Inputs, Lock, solve};
use process::{engine, forge, run, run_into};
use refusal::{Folder, PROMPT, Table, limit_file, limit_locked, text_of, unprivileged};
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

// sysexits
const USAGE: i32 = 64;
const DATA: i32 = 65;
const NO_INPUT: i32 = 66;
const OS: i32 = 71;
const IO: i32 = 74;
const CONFIG: i32 = 78;

fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/demo/ganglion-demo-14m.f16.gguf")
}

fn demo_plan() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("plans/demo.toml")
}

#[test]
fn wrong_arguments_of_the_engine() {
    let long = "-".repeat(2000);
    let threads = format!("1 to {}", PLAN.inputs.threads);
    let rows: &[(&[&str], &[&str])] = &[
        (&["sing"], &["no command \"sing\"", "run, chat, bench"]),
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
        (&["bench", "--prompt-tokens", "9", "one"], &["--prompt-tokens makes", "\"one\""]),
        (&["bench", "--prompt-tokens", "0"], &["there is no prompt"]),
        (&["run", "--threads", "0", PROMPT], &["--threads is 0", &threads, "build again"]),
        (&["bench", "--threads", "99"], &["--threads is 99", &threads, "build again"]),
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
    let words = "word ".repeat(PLAN.inputs.context_tokens as usize);
    let context = PLAN.inputs.context_tokens;
    let holds = format!(" tokens, the context holds {context}");
    let says = ["the prompt has ", &*holds, "shorten it"];
    table.row(engine().args(["run", &words]), DATA, &says);
    table.row(engine().args(["bench", &words]), DATA, &says);
    let one_too_many = context.to_string();
    table.row(engine().args(["bench", "--prompt-tokens", &one_too_many]), DATA, &says);
    let most = PLAN.inputs.prompt_bytes_max();
    let says =
        format!("a piece of {} bytes without a word boundary, wanted at most {most}", most * 2);
    table.row(engine().arg("run").arg("a".repeat(most as usize * 2)), DATA, &[&says]);
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
    let nan = 0x7e00u16.to_le_bytes();
    let gguf = gguf::open(&model).unwrap();
    let third_row = |name: &str| {
        let tensor = gguf.tensor(name).unwrap();
        tensor.pieces[0].offset + 2 * tensor.row_bytes()
    };
    let (query, up) = (third_row("blk.3.attn_q.weight"), third_row("blk.1.ffn_up_exps.weight"));
    let norm = find("blk.0.ffn_norm.weight") - "ffn_norm.weight".len() as u64;
    let rows: [(u64, &[u8], &[&str]); 15] = [
        (embedding + 12, &2047u64.to_le_bytes(), &["has 2048 tokens", "only 2047 rows"]),
        (norm, b"ffn_gate", &["blk.0.ffn_norm.weight"]),
        (query, &nan, &["tensor blk.3.attn_q.weight", "not finite in row 2"]),
        (up, &nan, &["tensor blk.1.ffn_up_exps.weight", "not finite in row 2"]),
        (0, b"GGML", &["not a GGUF file", "check the path"]),
        (4, &[9, 0, 0, 0], &["GGUF version 9, wanted 2 or 3"]),
        (embedding + 4, &zero, &["dimension 0 of tensor \"token_embd.weight\" is 0"]),
        (embedding + 12, &zero, &["dimension 1 of tensor \"token_embd.weight\" is 0"]),
        (gates + 20, &zero, &["dimension 2 of tensor \"blk.2.ffn_gate_exps.weight\" is 0"]),
        (embedding, &[5, 0, 0, 0], &["has 5 dimensions, wanted 1 to 4"]),
        (embedding + 4, &[0xff; 8], &["token_embd.weight", "damaged"]),
        (embedding + 20, &[99, 0, 0, 0], &["unknown type 99"]),
        (gates + 4, &512u64.to_le_bytes(), &["blk.2.ffn_gate_exps.weight"]),
        (
            family,
            b"gemma",
            &["general.architecture is \"gemma\"", "llama, mistral, mixtral and qwen2"],
        ),
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
    let starts = [embedding + 5, 50_000, 20_000, 5000, 1000, 300, 64, 33, 24, 23, 16, 15, 8, 7];
    let mut lengths: Vec<u64> = parts.into_iter().chain(starts).chain([4, 3, 0]).collect();
    lengths.sort_by(|a, b| b.cmp(a)); // a file that grows again is not the model's start
    for bytes in lengths {
        file.set_len(bytes).unwrap();
        let has = format!("it has {bytes} bytes");
        pack(DATA, &["hurt.gguf", "file incomplete", &has, "fetch the file again"]);
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
    // A file, a key in it, what its line becomes, and the sentence.
    let edits: [(&str, &str, &str, &[&str]); 22] = [
        (demo, "lock", "lock = \"try\"\ncolour = 3", &["unknown field `colour`", "budget"]),
        (demo, "kv", "kv = \"f16\"\nkw = 1", &["unknown field `kw`"]),
        (device, "pin", "pins = false", &["unknown field `pins`"]),
        (model, "tied", "tie = true", &["unknown field `tie`"]),
        (demo, "threads", "", &["missing field `threads`"]),
        (demo, "threads", "threads = two", &["plan file", "is wrong"]),
        (demo, "threads", "threads = -2", &["is wrong", "integer `-2`"]),
        (demo, "threads", "threads = 0", &["threads is 0, outside 1 to 16"]),
        (demo, "threads", "threads = 17", &["threads is 17, outside 1 to 16"]),
        (demo, "context_tokens", "context_tokens = 0", &["context_tokens is 0, outside 1 to"]),
        (demo, "device", "device = \"toaster\"", &["devices/toaster.toml can't be read"]),
        (demo, "model", "model = \"no-model\"", &["models/no-model.toml can't be read"]),
        (demo, "budget", "budget = \"14XB\"", &["budget = \"14XB\" is unknown", "kB, MB, GB"]),
        (demo, "budget", "budget = \"1MB\"", &["budget of 1000000 bytes is too small"]),
        (demo, "budget", "budget = \"0\"", &["budget is 0, outside 1 to"]),
        (demo, "lock", "lock = \"maybe\"", &["lock = \"maybe\" is unknown", "demand, try or off"]),
        (demo, "records", "records = \"q3\"", &["records = \"q3\" is unknown", "f16, q8 or q4"]),
        (demo, "kv", "kv = \"q4\"", &["kv = \"q4\" is unknown", "f16, f32 or q8"]),
        (device, "page_bytes", "page_bytes = 5000", &["page_bytes is 5000, not a power of two"]),
        (device, "readers", "readers = 0", &["readers is 0, outside 1 to 16"]),
        (
            model,
            "activation",
            "activation = \"tanh\"",
            &["activation = \"tanh\" is unknown", "drelu, silu, relu or gelu"],
        ),
        (model, "head_dim", "head_dim = 0", &["head_dim is 0, outside 1 to 1024"]),
    ];
    let mut table = Table::default();
    for (edited, key, line, says) in edits {
        for (name, source) in names.iter().zip(&sources) {
            let is_key = |found: &str| found.split('=').next().is_some_and(|k| k.trim() == key);
            let change = |found| if *name == edited && is_key(found) { line } else { found };
            let text = source.lines().map(change).collect::<Vec<_>>().join("\n");
            assert_eq!(text != source.trim_end(), *name == edited, "{name} has no {key}");
            folder.write(name, text);
        }
        table.row(forge().arg("plan").arg(folder.file(demo)), CONFIG, &[&["plan"], says].concat());
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
        (&["pack", "model.source"], &["required", "<IMAGE>", "ganglion-forge help"]),
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

    // A folder in the image's place.
    let mut table = Table::default();
    let says = ["can't be written after ", "Is a directory", "choose another folder"];
    fs::create_dir(folder.file("taken")).unwrap();
    table.row(forge().arg("pack").arg(demo_model()).arg(folder.file("taken")), IO, &says);
    table.end();
    assert!(!folder.file("taken.part").exists(), "an image was left under its temporary name");
    fs::remove_dir(folder.file("taken")).unwrap();

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
    type Tool = fn() -> Command;
    let commands: [(Tool, &[&str]); 11] = [
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
        for (stdout, errno) in [(Stdio::from(full), libc::ENOSPC), (writer.into(), libc::EPIPE)] {
            let mut command = tool();
            let ended = run_into(command.args(arguments), stdout);
            let says = ["the text can't be written to stdout", &format!("{errno})")];
            table.judge(&command, &ended, IO, &says);
        }
    }
    table.end();
}
