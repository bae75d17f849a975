//! Opens checkpoints of the transformers library: safetensors beside their JSON.
//!
//! Called by `forge::open` for a folder or one of its safetensors files. The checkpoint looks like
//! a GGUF file from outside: the same names and keys, dimensions row length first, the experts of a
//! layer as one tensor of several pieces. Rows of queries and keys stay in the order of halves
//! ([`Format::Safetensors`] says so).

mod config;
mod header;
mod names;
mod vocabulary;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::source::{
    Fault, Format, Metadata, Source, SourceError, SourceFile, Tensor, Value, quoted,
};
use crate::image::tag::crc32c;
use config::Config;
use names::{Name, gguf_name};

const INDEX: &str = "model.safetensors.index.json";
/// A larger JSON file is none of these.
const JSON_BYTES_MAX: u64 = 1 << 28;

/// Which tensor is in which file.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Opens the checkpoint in the folder `path`, or the one that the file `path` is part of.
///
/// # Errors
/// When a file is missing, can't be read, is cut short or damaged, belongs to another model, or
/// holds what this version does not read.
pub fn open(path: &Path) -> Result<Source, SourceError> {
    let io = |source| Fault::Io { action: "open", source }.at(path);
    let folder = if fs::metadata(path).map_err(io)?.is_dir() {
        path
    } else {
        path.parent().unwrap_or(Path::new(""))
    };
    let mut files = Vec::new();
    let tensors = tensors(path, folder, &mut files)?;
    let config_path = folder.join("config.json");
    let config: Config = json(&config_path, "config.json", &mut files)?;
    let mut keys = config.keys().map_err(|fault| fault.at(&config_path))?;
    keys.insert("general.name".into(), Value::String(name_of(folder)));
    let tensors = renamed(tensors, &config, &files).map_err(|fault| fault.at(path))?;
    check_config(&config, &tensors).map_err(|fault| fault.at(&config_path))?;
    keys.extend(vocabulary::keys(folder, &config, &mut files)?);
    Source::new(path, Format::Safetensors, files, Metadata::new(keys), tensors)
}

/// The folder's own name, which is the model's as a rule.
fn name_of(folder: &Path) -> String {
    let whole = fs::canonicalize(folder).unwrap_or_default();
    whole.file_name().map_or("model".into(), |name| name.to_string_lossy().into_owned())
}

/// Reads a JSON file, whose sum joins the model's identity.
fn json<T: DeserializeOwned>(
    path: &Path,
    what: &'static str,
    files: &mut Vec<SourceFile>,
) -> Result<T, SourceError> {
    if !path.exists() {
        return Err(Fault::PartMissing { what }.at(path));
    }
    let mut file = SourceFile::open(path)?;
    if file.bytes > JSON_BYTES_MAX {
        return Err(Fault::HeaderLength { found: file.bytes, max: JSON_BYTES_MAX }.at(path));
    }
    let mut text = vec![0; file.bytes as usize];
    file.read(&mut text, 0, &|| what.into())?;
    file.header_crc = crc32c(0, &text);
    files.push(file);
    let reason = |error: serde_json::Error| error.to_string();
    serde_json::from_slice(&text)
        .map_err(|error| Fault::Json { what, reason: reason(error) }.at(path))
}

/// The tensors of all files, under their own names.
fn tensors(
    path: &Path,
    folder: &Path,
    files: &mut Vec<SourceFile>,
) -> Result<Vec<Tensor>, SourceError> {
    let index_path = folder.join(INDEX);
    let index = match index_path.exists() {
        true => Some(json::<Index>(&index_path, INDEX, files)?.weight_map),
        false => None,
    };
    let names = match &index {
        Some(map) => map.values().cloned().collect::<BTreeSet<_>>().into_iter().collect(),
        None => vec![only_file(path, folder)?],
    };
    let mut tensors = Vec::new();
    for name in names {
        if Path::new(&name).file_name() != Some(name.as_ref()) {
            return Err(Fault::FileName { found: quoted(&name) }.at(&index_path));
        }
        let path = folder.join(&name);
        if !path.exists() {
            return Err(Fault::PartMissing { what: "a shard" }.at(&path));
        }
        let mut file = SourceFile::open(&path)?;
        let own = header::read(&mut file, files.len())?;
        files.push(file);
        if let Some(map) = &index {
            check_index(map, &name, &own).map_err(|fault| fault.at(&path))?;
        }
        tensors.extend(own);
    }
    Ok(tensors)
}

/// The one file with the weights, where no index tells of several.
fn only_file(path: &Path, folder: &Path) -> Result<String, SourceError> {
    let name_of = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    if !path.is_dir() {
        return Ok(name_of(path).unwrap_or_default());
    }
    let io = |source| Fault::Io { action: "list", source }.at(folder);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let path: PathBuf = entry.map_err(io)?.path();
        if path.extension().is_some_and(|ending| ending == "safetensors") {
            names.extend(name_of(&path));
        }
    }
    if names.len() > 1 {
        names.retain(|name| name == "model.safetensors");
    }
    names.pop().ok_or_else(|| Fault::NoWeights.at(folder))
}

/// The file `name` must hold what the index says, and nothing else.
fn check_index(
    map: &BTreeMap<String, String>,
    name: &str,
    tensors: &[Tensor],
) -> Result<(), Fault> {
    let own: BTreeSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let said = |tensor: &str| map.get(tensor).is_some_and(|file| file == name);
    if let Some(tensor) = own.iter().find(|tensor| !said(tensor)) {
        return Err(Fault::NotIndexed { tensor: quoted(tensor) });
    }
    let lacks = map.iter().find(|(tensor, file)| *file == name && !own.contains(tensor.as_str()));
    match lacks {
        Some((tensor, _)) => Err(Fault::NotInShard { tensor: quoted(tensor) }),
        None => Ok(()),
    }
}

/// The tensors under the names of GGUF, experts joined.
fn renamed(
    tensors: Vec<Tensor>,
    config: &Config,
    files: &[SourceFile],
) -> Result<Vec<Tensor>, Fault> {
    let mut out = Vec::new();
    let mut experts: BTreeMap<String, BTreeMap<u64, Tensor>> = BTreeMap::new();
    for tensor in tensors {
        match gguf_name(&tensor.name) {
            Name::Derived => {}
            // A tied checkpoint may hold the embedding matrix twice.
            Name::Whole(name) if name == "output.weight" && config.tied() => {}
            Name::Whole(name) => out.push(Tensor { name, ..tensor }),
            Name::Expert { name, expert } => {
                experts.entry(name).or_default().insert(expert, tensor);
            }
        }
    }
    for (name, parts) in experts {
        out.push(joined(name, parts, config.experts().unwrap_or(0), files)?);
    }
    Ok(out)
}

/// The `count` experts of a layer as one tensor, the expert its last dimension.
fn joined(
    name: String,
    mut parts: BTreeMap<u64, Tensor>,
    count: u64,
    files: &[SourceFile],
) -> Result<Tensor, Fault> {
    let found = parts.len() as u64;
    if (0..count).any(|expert| !parts.contains_key(&expert)) || found != count {
        return Err(Fault::Experts { tensor: quoted(&name), found, wanted: count });
    }
    let first = parts.remove(&0).expect("there is an expert 0");
    let (mut dims, mut pieces) = (first.dims.clone(), first.pieces.clone());
    for tensor in parts.into_values() {
        if (&tensor.dims, tensor.kind) != (&first.dims, first.kind) {
            let file = files[tensor.pieces[0].file].path.display().to_string();
            return Err(Fault::ExpertShape { tensor: quoted(&tensor.name), file });
        }
        pieces.extend(tensor.pieces);
    }
    dims.push(count);
    let bytes = first.bytes.checked_mul(count);
    let bytes = bytes.ok_or(Fault::TooLarge { tensor: quoted(&name), dims: dims.clone() })?;
    Ok(Tensor { name, dims, kind: first.kind, bytes, pieces })
}

/// What config.json says of the matrices that nobody else compares with it.
fn check_config(config: &Config, tensors: &[Tensor]) -> Result<(), Fault> {
    let find = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
    let (found, wanted) = (config.vocab(), find("token_embd.weight").map(Tensor::rows));
    if let Some(wanted) = wanted.filter(|&wanted| wanted != found) {
        let wanted = format!("the {wanted} rows of model.embed_tokens.weight");
        return Err(Fault::ConfigTensors { key: "vocab_size", found: found.to_string(), wanted });
    }
    if !config.tied() && find("output.weight").is_none() {
        let wanted = "a tensor lm_head.weight, which is not there".into();
        let key = "tie_word_embeddings";
        return Err(Fault::ConfigTensors { key, found: "false".into(), wanted });
    }
    Ok(())
}
