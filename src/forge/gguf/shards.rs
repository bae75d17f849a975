//! Models split over several GGUF files.
//!
//! Called by `open` for a file that says it is a shard. `split.no` counts from 0, `split.count` and
//! `split.tensors.count` are the same in every shard, and the first one has the model's metadata.
//! Shards named `NAME-00001-of-00003.gguf` are looked for by that name; where one of these is not
//! there, every GGUF file of the folder is asked what it is.

use std::fs;
use std::path::{Path, PathBuf};

use super::parse::Head;
use super::read_head;
use crate::forge::source::{Fault, Format, Metadata, Source, SourceError, SourceFile};

/// Most shards of a model: each is an open file.
const SHARDS_MAX: usize = 512;

/// Which shard a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// From 0.
    number: usize,
    count: usize,
    /// Tensors of all shards, where it says so.
    tensors: Option<i128>,
}

impl Place {
    /// What `metadata` says, or none where the file is whole.
    pub fn of(metadata: &Metadata) -> Result<Option<Place>, Fault> {
        let count = metadata.opt_int("split.count")?.unwrap_or(1);
        if count == 1 {
            return Ok(None);
        }
        let number = metadata.opt_int("split.no")?.unwrap_or(0);
        if !(1..=SHARDS_MAX as i128).contains(&count) || !(0..count).contains(&number) {
            return Err(Fault::ShardNumber { number: number + 1, count, max: SHARDS_MAX });
        }
        let tensors = metadata.opt_int("split.tensors.count")?;
        Ok(Some(Place { number: number as usize, count: count as usize, tensors }))
    }

    fn missing(self, number: usize) -> Fault {
        Fault::ShardMissing { number: number + 1, count: self.count }
    }
}

/// An opened shard.
type Shard = (SourceFile, Head);

/// Opens the shards that belong to the one at `path`.
pub(super) fn open(
    path: &Path,
    file: SourceFile,
    head: Head,
    place: Place,
) -> Result<Source, SourceError> {
    let mut shards: Vec<Option<Shard>> = (0..place.count).map(|_| None).collect();
    shards[place.number] = Some((file, head));
    match named_shards(path, place) {
        Some(names) => {
            for name in names.iter().filter(|name| name.as_path() != path) {
                let shard = read_head(name)?;
                let found = Place::of(&shard.1.metadata).map_err(|fault| fault.at(name))?;
                put(&mut shards, path, place, shard, found)?;
            }
        }
        None => search(&mut shards, path, place)?,
    }
    if let Some(number) = shards.iter().position(Option::is_none) {
        return Err(place.missing(number).at(path));
    }
    join(path, place, shards.into_iter().flatten())
}

/// The names of all shards, if `path` has the usual name of one and all are there.
fn named_shards(path: &Path, place: Place) -> Option<Vec<PathBuf>> {
    let name = path.file_name()?.to_str()?;
    let count = place.count;
    let usual = |number: usize| format!("-{number:05}-of-{count:05}.gguf");
    let stem = (1..=count).find_map(|number| name.strip_suffix(&usual(number)))?;
    let names = (1..=count).map(|number| path.with_file_name(format!("{stem}{}", usual(number))));
    let names: Vec<PathBuf> = names.collect();
    names.iter().all(|name| name.is_file()).then_some(names)
}

/// Takes every file of the folder that says it is one of the shards. One that can't be read may be
/// the one that is missing in the end, and is named then.
fn search(shards: &mut [Option<Shard>], path: &Path, place: Place) -> Result<(), SourceError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let io = |source| Fault::Io { action: "list", source }.at(folder);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let name = entry.map_err(io)?.path();
        let is_model = name.extension().is_some_and(|ending| ending == "gguf");
        if is_model && name.file_name() != path.file_name() {
            names.push(name);
        }
    }
    names.sort();
    let mut unread = None;
    for name in names {
        match read_head(&name) {
            Ok(shard) => match Place::of(&shard.1.metadata) {
                Ok(Some(found)) if found.count == place.count => {
                    put(shards, path, place, shard, Some(found))?;
                }
                _ => {} // another model
            },
            Err(error) => unread = unread.or(Some(error)),
        }
    }
    match unread {
        Some(error) if shards.iter().any(Option::is_none) => Err(error),
        _ => Ok(()),
    }
}

/// Puts a shard where it says it belongs.
fn put(
    shards: &mut [Option<Shard>],
    path: &Path,
    place: Place,
    shard: Shard,
    found: Option<Place>,
) -> Result<(), SourceError> {
    let name = shard.0.path.clone();
    let other = |path: &Path| path.display().to_string();
    let foreign =
        |what, found, wanted| Fault::ShardForeign { what, found, other: other(path), wanted };
    let found = found.unwrap_or(Place { number: 0, count: 1, tensors: None });
    if found.count != place.count {
        let (found, wanted) = (found.count as i128, place.count as i128);
        return Err(foreign("shards", found, wanted).at(&name));
    }
    if found.tensors != place.tensors {
        let (found, wanted) = (found.tensors.unwrap_or(0), place.tensors.unwrap_or(0));
        return Err(foreign("tensors in all", found, wanted).at(&name));
    }
    match &shards[found.number] {
        None => shards[found.number] = Some(shard),
        Some((taken, _)) => {
            let (number, count) = (found.number + 1, found.count);
            let fault = Fault::ShardTwice { number, count, other: other(&taken.path) };
            return Err(fault.at(&name));
        }
    }
    Ok(())
}

/// One model of all shards, in their order.
fn join(
    path: &Path,
    place: Place,
    shards: impl Iterator<Item = Shard>,
) -> Result<Source, SourceError> {
    let (mut files, mut tensors, mut metadata) = (Vec::new(), Vec::new(), None);
    for (number, (file, head)) in shards.enumerate() {
        tensors.extend(head.tensors.into_iter().map(|mut tensor| {
            tensor.pieces[0].file = number;
            tensor
        }));
        metadata.get_or_insert(head.metadata);
        files.push(file);
    }
    if let Some(wanted) = place.tensors.filter(|&wanted| wanted != tensors.len() as i128) {
        return Err(Fault::ShardTensors { found: tensors.len(), wanted }.at(path));
    }
    let metadata = metadata.expect("a split model has shards");
    Source::new(path, Format::Gguf, files, metadata, tensors)
}
