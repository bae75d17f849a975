//! Model files that this version does not run are refused by name: a tensor or a key left out would
//! change the text.

use super::data;
use super::process::forge;
use super::refusal::{Folder, Table};
use ganglion::forge::gguf;
use ganglion::forge::model::ModelFile;
use std::fs;

/// sysexits' EX_DATAERR.
const DATA: i32 = 65;

/// A change of a file's list of keys and tensors.
enum Edit {
    /// A string, wherever it stands first: a key, a value or a tensor's name.
    Text(&'static str, &'static str),
    /// The value of a 32-bit key.
    Number(&'static str, u32),
}

use Edit::{Number, Text};

/// A GGUF string.
fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn find(bytes: &[u8], part: &[u8]) -> usize {
    let at = bytes.windows(part.len()).position(|window| window == part);
    at.unwrap_or_else(|| panic!("{:?} is not in the file", String::from_utf8_lossy(part)))
}

/// A model of `tests/data/families` with changes in its head.
fn edited(name: &str, edits: &[Edit]) -> Vec<u8> {
    let path = data(&format!("{name}.gguf"));
    let (bytes, gguf) = (fs::read(&path).unwrap(), gguf::open(&path).unwrap());
    let last = gguf.tensors().last().unwrap();
    // A tensor's name, number of dimensions, dimensions, type and offset.
    let name = string(&last.name);
    let end = find(&bytes, &name) + name.len() + 4 + 8 * last.dims.len() + 4 + 8;
    let (mut head, data) = (bytes[..end].to_vec(), &bytes[end.next_multiple_of(32)..]);
    for edit in edits {
        match edit {
            Text(from, to) => {
                let (from, to) = (string(from), string(to));
                let at = find(&head, &from);
                head.splice(at..at + from.len(), to);
            }
            Number(key, value) => {
                let key = string(key);
                let at = find(&head, &key) + key.len() + 4;
                head[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    head.resize(head.len().next_multiple_of(32), 0);
    [&head, data].concat()
}

fn float(value: f32) -> u32 {
    value.to_bits()
}

#[test]
fn what_would_change_the_text_is_refused_by_name() {
    let folder = Folder::new("families-refused");
    let mut table = Table::default();
    let mut row = |name: &str, edits: &[Edit], says: &[&str]| {
        let file = folder.write("model.source", edited(name, edits));
        table.row(forge().arg("shape").arg(&file), DATA, &[&["model.source"], says].concat());
    };
    let known = "the families llama, mistral, mixtral and qwen2";
    for family in ["falcon", "opt", "gptneox", "gemma", "phi2", "qwen2moe", "llama4"] {
        let said = format!("general.architecture is \"{family}\"");
        row("qwen2", &[Text("qwen2", family)], &[&said, known]);
    }
    // Keys.
    let scale = [Text("llama.rope.freq_base", "llama.logit_scale")];
    row("llama", &scale, &["a key is \"llama.logit_scale\"", "models without it"]);
    let experts = [Text("qwen2.rope.freq_base", "qwen2.expert_count")];
    row("qwen2", &experts, &["a key is \"qwen2.expert_count\""]);
    // Tensors.
    let norm = [Text("blk.0.ffn_gate.bias", "blk.0.ffn_norm.bias")];
    row("llama-biases", &norm, &["a tensor is \"blk.0.ffn_norm.bias\"", "models without it"]);
    let other = [Text("blk.1.attn_k.bias", "blk.1.attn_k_norm.bias")];
    row("qwen2", &other, &["no tensor \"blk.1.attn_k.bias\""]);
    let late = [Text("blk.0.attn_output.bias", "blk.0.attn_sinks.bias")];
    row("llama-biases", &late, &["a tensor is \"blk.0.attn_sinks.bias\""]);
    // Rope.
    let scaling = "rope scaling none, linear, llama3 and yarn";
    for kind in ["dynamic", "longrope", "ntk"] {
        let said = format!("qwen2.rope.scaling.type is \"{kind}\"");
        row("qwen2-yarn", &[Text("yarn", kind)], &[&said, scaling]);
    }
    let turned = "qwen2.rope.dimension_count";
    for (count, said) in [(0, "is \"0\""), (13, "is \"13\""), (18, "is \"18\"")] {
        row("qwen2-partial", &[Number(turned, count)], &[turned, said, "an even number"]);
    }
    let whole = "an attention factor over whole heads";
    row("qwen2-yarn", &[Number(turned, 8)], &["is \"8\"", whole]);
    for base in [0.0, -1.0] {
        let edits = [Number("llama.rope.freq_base", float(base))];
        row("llama", &edits, &["llama.rope.freq_base is", "numbers above 0"]);
    }
    for base in [f32::NAN, f32::INFINITY] {
        let edits = [Number("llama.rope.freq_base", float(base))];
        row("llama", &edits, &["\"llama.rope.freq_base\" holds", "does not fit f32"]);
    }
    let one = [Number("llama.rope.freq_base", float(1.0))];
    row("llama", &one, &["llama.rope.freq_base is \"1\"", "bases above 1"]);
    let low = [Number("llama.rope.scaling.low_freq_factor", float(4.0))];
    row("llama3-keys", &low, &["low_freq_factor is \"4\"", "below the high_freq_factor"]);
    // Heads.
    let wide = [Number("llama.attention.value_length", 32)];
    row("llama", &wide, &["llama.attention.value_length is \"32\"", "values as wide as keys"]);
    let odd = [
        Number("llama.attention.key_length", 24),
        Number("llama.attention.value_length", 24),
        Number("llama.rope.dimension_count", 24),
    ];
    row("llama", &odd, &["head_dim (a multiple of 16) is 24"]);
    table.end();
}

#[test]
fn a_window_that_no_plan_reaches_is_none() {
    let folder = Folder::new("families-window");
    for (keys, window) in [(0, 0), (1, 1), (1 << 20, 1 << 20), ((1 << 20) + 1, 0), (u32::MAX, 0)] {
        let edits = [Number("llama.attention.sliding_window", keys)];
        let file = folder.write("model.source", edited("mistral-window", &edits));
        let model = ModelFile::open(&file).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(model.shape.window, window, "{keys}");
    }
}
