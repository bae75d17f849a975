//! What a comparison needs of a plan: a GGUF of random weights, our image of it, our engine.
//!
//! All three stay in `llama-bench/` of the build folder and are made again only where they do not
//! fit the plan any more.

use crate::process::{ROOT, build_engine, build_folder};
use anyhow::{Context, Result};
use ganglion::forge::gguf;
use ganglion::forge::inputs;
use ganglion::forge::model::ModelFile;
use ganglion::forge::pack::{pack, temporary};
use ganglion::forge::source::Source;
use ganglion::forge::synth::{SynthType, synth};
use ganglion::forge::verify::open_image;
use ganglion::image::{Header, SectionKind, Shape, Types, WeightType};
use ganglion::plan::bytes;
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
use std::path::{Path, PathBuf};

/// Same file each time.
const SEED: u64 = 1;

/// A model that both engines can run.
pub struct Model {
    /// The plan's name.
    pub name: String,
    /// llama.cpp's file.
    pub gguf: PathBuf,
    /// Ours.
    pub image: PathBuf,
    /// Our engine, built for the plan.
    pub engine: PathBuf,
    /// Weight bytes a decoded token reads of the GGUF.
    pub gguf_token_bytes: u64,
    /// Weight bytes a decoded token reads of the image.
    pub image_token_bytes: u64,
}

impl Model {
    /// Makes what is missing for `plans/NAME.toml`.
    pub fn make(name: &str) -> Result<Model> {
        let plan = format!("plans/{name}.toml");
        let inputs = inputs::read(&Path::new(ROOT).join(&plan), None)?.inputs;
        let types = inputs.numerics.types;
        let folder = build_folder("llama-bench")?;
        let gguf = folder.join(format!("{name}.{}.gguf", types.records.name()));
        let is_new = make_gguf(&gguf, inputs.model, &inputs.shape, types.records)?;
        let image = folder.join(format!("{name}.image"));
        let header = make_image(&image, &gguf, &inputs.shape, &types, is_new)?;
        let engine = build_engine(&plan, None, &folder.join(format!("{name}.engine")))?;
        for file in [&gguf, &image, &engine] {
            let size = fs::metadata(file).map_or(0, |data| data.len());
            eprintln!("{:>10}  {}", bytes(size).to_string(), file.display());
        }
        Ok(Model {
            name: name.into(),
            gguf_token_bytes: gguf_token_bytes(&gguf::open(&gguf)?, &inputs.shape),
            image_token_bytes: image_token_bytes(&header, &inputs.shape, &types),
            gguf,
            image,
            engine,
        })
    }
}

/// Makes the GGUF unless there is one of this shape; tells whether it did.
fn make_gguf(path: &Path, name: &str, shape: &Shape, records: WeightType) -> Result<bool> {
    if ModelFile::open(path).is_ok_and(|model| model.shape == *shape) {
        return Ok(false);
    }
    let kind = match records {
        WeightType::F16 => SynthType::F16,
        WeightType::Q8 => SynthType::Q8,
        WeightType::Q4 => SynthType::Q4,
    };
    let part = temporary(path);
    let bar = progress_bar(path);
    synth(name, shape, kind, SEED, &part, &mut |done, all| show(&bar, done, all))
        .and_then(|_| fs::rename(&part, path))
        .with_context(|| format!("{} can't be written", path.display()))?;
    bar.finish_and_clear();
    Ok(true)
}

/// Packs the image unless there is one that fits the plan; always where the GGUF is new.
fn make_image(
    path: &Path,
    gguf: &Path,
    shape: &Shape,
    types: &Types,
    is_new: bool,
) -> Result<Header> {
    let fits = |header: &Header| !is_new && header.matches(shape, types).is_ok();
    if let Some((_, header)) = open_image(path).ok().filter(|(_, header)| fits(header)) {
        return Ok(header);
    }
    let bar = progress_bar(path);
    pack(&ModelFile::open(gguf)?, types, path, &mut |done, all| show(&bar, done, all))?;
    bar.finish_and_clear();
    Ok(open_image(path)?.1)
}

/// Resident weights, the records of the experts that run, one embedding row.
fn image_token_bytes(header: &Header, shape: &Shape, types: &Types) -> u64 {
    let records = shape.layers * shape.experts_used * shape.ff * types.record(shape).raw_bytes();
    let resident = header.section(SectionKind::Resident).bytes;
    resident + records + types.embedding.row_bytes(shape.hidden)
}

/// The same of the GGUF: an embedding matrix that is no head gives one row.
fn gguf_token_bytes(gguf: &Source, shape: &Shape) -> u64 {
    let tensors = gguf.tensors().iter();
    tensors
        .map(|tensor| match tensor.name.as_str() {
            "token_embd.weight" if !shape.tied => tensor.row_bytes(),
            name if name.contains("_exps.") => tensor.bytes / shape.experts * shape.experts_used,
            _ => tensor.bytes,
        })
        .sum()
}

fn progress_bar(path: &Path) -> ProgressBar {
    let template = "{msg}: {bar:30} {bytes} of {total_bytes}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("the template is sound");
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ProgressBar::no_length().with_style(style).with_message(name)
}

fn show(bar: &ProgressBar, done: u64, all: u64) {
    bar.set_length(all);
    bar.set_position(done);
}
