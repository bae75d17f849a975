//! `ganglion-forge`: the host tool. `ganglion-forge help` lists what it does.

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use ganglion::forge::eval::{
    CHUNKS_MAX, CONTEXT_MAX, CONTEXT_MIN, EvalError, Request, evaluate, evaluation_json,
    evaluation_text,
};
use ganglion::forge::inputs::{self, byte_count};
use ganglion::forge::model::ModelFile;
use ganglion::forge::open::open_model;
use ganglion::forge::pack::{Packed, pack};
use ganglion::forge::progress::Progress;
use ganglion::forge::report::{loss_table, losses_json, start_line};
use ganglion::forge::shape::shape_toml;
use ganglion::forge::synth::{SynthType, synth};
use ganglion::forge::verify::{VerifyError, open_image, verify_image};
use ganglion::image::tokenizer::ChatTemplate;
use ganglion::image::{Header, SectionKind, Types, WeightType};
use ganglion::plan::{THREADS_MAX, bytes, check, report, solve};
use ganglion::sys::exit;
use ganglion::token::Tokenizer;
use serde_json::json;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Packs models, looks into images, solves plans.
#[derive(Parser)]
#[command(name = "ganglion-forge", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the plans/models/*.toml of a model file.
    #[command(
        after_help = "Example:\n  ganglion-forge shape model.source > plans/models/NAME.toml"
    )]
    Shape {
        /// The model: a GGUF file (any shard of a split one) or a folder of safetensors.
        model: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Pack a model file into an image.
    #[command(after_help = "Example:\n  ganglion-forge pack model.source model.image --type q8")]
    Pack {
        /// The model: a GGUF file (any shard of a split one) or a folder of safetensors.
        model: PathBuf,
        /// The image to make.
        image: PathBuf,
        /// How weights are stored.
        #[arg(long = "type", default_value = "q8")]
        weights: Weight,
        /// How down columns are stored, if not as --type.
        #[arg(long)]
        down: Option<Weight>,
        /// How the attention matrices are stored, if not as --type.
        #[arg(long)]
        resident: Option<Weight>,
        /// How the output head is stored [default: as --type, but q8 for q4].
        #[arg(long)]
        head: Option<Weight>,
        /// How token embeddings are stored.
        #[arg(long, default_value = "f16")]
        embedding: Weight,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print what an image holds.
    #[command(after_help = "Example:\n  ganglion-forge inspect model.image --verify")]
    Inspect {
        /// The image.
        image: PathBuf,
        /// Read every byte and check every checksum.
        #[arg(long)]
        verify: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Score a text: perplexity, and how near a reference's probabilities are.
    #[command(after_help = "Example:\n  ganglion-forge eval model.image --text wiki.test.raw")]
    Eval(EvalArguments),
    /// Make a model file of random weights, where bytes matter and text does not.
    #[command(
        after_help = "Example:\n  ganglion-forge synth plans/models/NAME.toml random.gguf --type q4"
    )]
    Synth {
        /// The shape, a file of plans/models.
        shape: PathBuf,
        /// The GGUF to make.
        model: PathBuf,
        /// How its matrices are stored.
        #[arg(long = "type", default_value = "q8")]
        weights: Weight,
        /// Same seed, same file.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Solve a plan and print it.
    #[command(after_help = "Example:\n  ganglion-forge plan plans/demo.toml --budget 16MB")]
    Plan {
        /// The plan, a TOML file.
        plan: PathBuf,
        /// Another budget than the plan's.
        #[arg(long, value_parser = parse_budget)]
        budget: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
struct EvalArguments {
    /// The image.
    image: PathBuf,
    /// The text, a file.
    #[arg(long)]
    text: PathBuf,
    /// Tokens of a chunk: the second half of each is scored [default: the reference's, or 512].
    #[arg(long, value_parser = clap::value_parser!(u64).range(CONTEXT_MIN..=CONTEXT_MAX))]
    context: Option<u64>,
    /// Chunks from the text's start [default: the reference's, or 4].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=CHUNKS_MAX))]
    chunks: Option<u64>,
    /// Compare with what `llama-perplexity --save-all-logits` wrote of the same text.
    #[arg(long)]
    reference: Option<PathBuf>,
    /// What the engine may use [default: everything is resident].
    #[arg(long, value_parser = budget_bytes)]
    budget: Option<u64>,
    /// Compute threads [default: one for each core].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
    threads: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Weight {
    F16,
    Q8,
    Q4,
}

impl From<Weight> for WeightType {
    fn from(weight: Weight) -> WeightType {
        match weight {
            Weight::F16 => WeightType::F16,
            Weight::Q8 => WeightType::Q8,
            Weight::Q4 => WeightType::Q4,
        }
    }
}

fn parse_budget(text: &str) -> Result<String, String> {
    budget_bytes(text).map(|_| text.to_string())
}

fn budget_bytes(text: &str) -> Result<u64, String> {
    byte_count(text)
        .ok_or_else(|| "a budget is a number with B, kB, MB, GB or KiB, MiB, GiB".into())
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    match run(arguments.command).and_then(|text| write_out(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("ganglion-forge: {error}"); // a sentence already holds its causes
    ExitCode::from(exit_code(error))
}

/// Help and version go out as they are; a wrong argument is told in one line.
fn refuse(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    let text = error.to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match write_out(&text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{text}");
            ExitCode::from(exit::USAGE)
        }
        _ => {
            // The first paragraph says what is wrong, the others repeat the help.
            let wrong: Vec<_> =
                text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
            let wrong = wrong.join(" ");
            let wrong = wrong.strip_prefix("error: ").unwrap_or(&wrong);
            eprintln!("ganglion-forge: {wrong}; `ganglion-forge help` lists the arguments");
            ExitCode::from(exit::USAGE)
        }
    }
}

/// Standard output that can't be written.
#[derive(Debug, thiserror::Error)]
#[error("the text can't be written to stdout: {0}")]
struct OutputError(#[from] io::Error);

fn write_out(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(written.map_err(OutputError)?)
}

/// A missing file, a full disk and damaged data are told apart, as in the engine.
fn exit_code(error: &anyhow::Error) -> u8 {
    use ganglion::forge::model::ModelFileError;
    use ganglion::forge::pack::PackError;
    let gguf = |error: &ModelFileError| match error {
        ModelFileError::Source(error) if error.fault.is_missing_file() => exit::NO_INPUT,
        _ => exit::DATA,
    };
    if let Some(error) = error.downcast_ref::<PackError>() {
        return match error {
            PackError::Write { .. } | PackError::Verify(_) => exit::IO,
            PackError::Model { error, .. } => gguf(error),
            PackError::TooLarge { .. } => exit::DATA,
            PackError::Busy { .. } => exit::RETRY,
        };
    }
    if let Some(error) = error.downcast_ref::<ModelFileError>() {
        return gguf(error);
    }
    if let Some(error) = error.downcast_ref::<EvalError>() {
        return error.exit_code();
    }
    if error.is::<OutputError>() {
        return exit::IO;
    }
    match error.downcast_ref::<VerifyError>() {
        Some(VerifyError::Read { .. }) => exit::NO_INPUT,
        Some(_) => exit::DATA,
        None => exit::CONFIG,
    }
}

/// Does what was asked; returns what to print.
fn run(command: Command) -> Result<String> {
    match command {
        Command::Shape { model, json } => {
            let model = open_model(&model)?;
            Ok(shape_text(&model, json))
        }
        Command::Pack { model, image, weights, down, resident, head, embedding, json } => {
            let own_head = if weights == Weight::Q4 { Weight::Q8 } else { weights };
            let types = Types {
                records: weights.into(),
                down: down.unwrap_or(weights).into(),
                resident: resident.unwrap_or(weights).into(),
                head: head.unwrap_or(own_head).into(),
                embedding: embedding.into(),
            };
            pack_command(&model, &image, &types, json)
        }
        Command::Inspect { image, verify, json } => inspect(&image, verify, json),
        Command::Eval(arguments) => eval(&arguments),
        Command::Synth { shape, model, weights, seed } => {
            synth_command(&shape, &model, weights, seed)
        }
        Command::Plan { plan, budget, json } => plan_text(&plan, budget.as_deref(), json),
    }
}

fn eval(arguments: &EvalArguments) -> Result<String> {
    let (image, text) = (&arguments.image, &arguments.text);
    let request = Request {
        image,
        text,
        context: arguments.context,
        chunks: arguments.chunks,
        reference: arguments.reference.as_deref(),
        budget_bytes: arguments.budget,
        threads: arguments.threads,
    };
    let mut progress = Progress::of_tokens("eval");
    let found = evaluate(&request, &mut |done, all| progress.tell(done, all));
    progress.end();
    let found = found?;
    if arguments.json {
        return Ok(format!("{:#}\n", evaluation_json(image, text, &found)));
    }
    Ok(evaluation_text(text, &found))
}

fn synth_command(shape: &Path, model: &Path, weights: Weight, seed: u64) -> Result<String> {
    let name = shape.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let shape = inputs::read_shape(shape)?;
    let kind = match weights {
        Weight::F16 => SynthType::F16,
        Weight::Q8 => SynthType::Q8,
        Weight::Q4 => SynthType::Q4,
    };
    let mut progress = Progress::new("synth");
    let made = synth(&name, &shape, kind, seed, model, &mut |done, all| progress.tell(done, all));
    progress.end();
    let bytes_made = made.with_context(|| {
        let path = model.display();
        format!("model {path} can't be written; free some space or choose another folder")
    })?;
    Ok(format!("{}: {} of random weights\n", model.display(), bytes(bytes_made)))
}

fn shape_text(model: &ModelFile, json: bool) -> String {
    if !json {
        return shape_toml(&model.name, &model.shape);
    }
    let s = &model.shape;
    let value = json!({
        "name": model.name, "layers": s.layers, "hidden": s.hidden, "heads": s.heads,
        "kv_heads": s.kv_heads, "head_dim": s.head_dim, "experts": s.experts,
        "experts_used": s.experts_used, "ff": s.ff, "vocab": s.vocab,
        "activation": s.activation.name(), "tied": s.tied, "qkv_bias": s.biases.qkv,
        "output_bias": s.biases.output, "ffn_bias": s.biases.ffn, "window": s.window,
        "tokenizer_bytes": s.tokenizer_bytes,
    });
    format!("{value:#}\n")
}

fn pack_command(model: &Path, image: &Path, types: &Types, json: bool) -> Result<String> {
    let model = open_model(model)?;
    let mut progress = Progress::new("pack");
    let packed = pack(&model, types, image, &mut |done, all| progress.tell(done, all));
    progress.end();
    let packed = packed?;
    start_line(packed.start).iter().for_each(|line| eprintln!("{line}"));
    eprint!("{}", loss_table(&model, types, &packed.losses));
    Ok(packed_text(&model, image, types, &packed, json)?)
}

fn packed_text(
    model: &ModelFile,
    image: &Path,
    types: &Types,
    packed: &Packed,
    json: bool,
) -> Result<String, std::fmt::Error> {
    if json {
        let value = json!({
            "image": image, "model": model.name, "bytes": packed.file_bytes,
            "waste_bytes": packed.waste_bytes, "records": types.records.name(),
            "down": types.down.name(),
            "resident": types.resident.name(), "head": types.head.name(),
            "embedding": types.embedding.name(),
            "weights": losses_json(model, types, &packed.losses),
            "chat_template": chat_template(model).map(ChatTemplate::name),
        });
        return Ok(format!("{value:#}\n"));
    }
    let mut text = String::new();
    writeln!(text, "{}: {} packed and verified", image.display(), bytes(packed.file_bytes))?;
    writeln!(
        text,
        "padding {} ({} %)",
        bytes(packed.waste_bytes),
        packed.waste_bytes * 100 / packed.file_bytes
    )?;
    match chat_template(model) {
        Some(template) => writeln!(text, "chat template {}", template.name())?,
        None => writeln!(
            text,
            "chat template none, or not a known one; `ganglion chat --template` takes {}",
            ChatTemplate::NAMES
        )?,
    }
    Ok(text)
}

/// The chat template that the image names.
fn chat_template(model: &ModelFile) -> Option<ChatTemplate> {
    Tokenizer::new(&model.tokenizer).ok()?.chat_template()
}

fn inspect(path: &Path, verify: bool, json: bool) -> Result<String> {
    let header = if verify {
        let mut progress = Progress::new("verify");
        let header = verify_image(path, &mut |done, all| progress.tell(done, all));
        progress.end();
        header?
    } else {
        open_image(path)?.1
    };
    image_text(path, &header, verify, json)
}

fn image_text(path: &Path, header: &Header, verified: bool, json: bool) -> Result<String> {
    let wrong = |error: ganglion::image::HeaderError| anyhow::anyhow!("{error}");
    let (shape, types) = (header.shape().map_err(wrong)?, header.types().map_err(wrong)?);
    let record = types.record(&shape);
    if json {
        let sections: serde_json::Map<_, _> = SectionKind::ALL
            .map(|kind| {
                let section = header.section(kind);
                (kind.name().into(), json!({"offset": section.offset, "bytes": section.bytes}))
            })
            .into_iter()
            .collect();
        let value = json!({
            "image": path, "model": header.name(), "bytes": header.file_bytes(),
            "neurons": shape.neurons(), "records": types.records.name(), "down": types.down.name(),
            "resident": types.resident.name(), "head": types.head.name(),
            "embedding": types.embedding.name(), "record_bytes": record.raw_bytes(),
            "packing": shape.packing().name(), "records_per_block": record.per_block,
            "unit_bytes": record.unit_bytes,
            "sections": sections, "verified": verified,
        });
        return Ok(format!("{value:#}\n"));
    }
    let mut text = String::new();
    writeln!(text, "{}: {}, {}", path.display(), header.name(), bytes(header.file_bytes()))?;
    writeln!(
        text,
        "records {}, resident {}, head {}, embedding {}",
        types.records.name(),
        types.resident.name(),
        types.head.name(),
        types.embedding.name()
    )?;
    writeln!(
        text,
        "{} neurons of {} bytes, {}, {} to a unit of {} bytes",
        shape.neurons(),
        record.raw_bytes(),
        shape.packing().name(),
        record.per_block,
        record.unit_bytes
    )?;
    for kind in SectionKind::ALL {
        let section = header.section(kind);
        writeln!(text, "{:<10} {:>14} {:>14}", kind.name(), section.offset, section.bytes)?;
    }
    if verified {
        writeln!(text, "every checksum holds")?;
    }
    Ok(text)
}

fn plan_text(path: &Path, budget: Option<&str>, json: bool) -> Result<String> {
    let source = inputs::read(path, budget)?;
    let name = path.display();
    let plan = solve(source.inputs).map_err(|error| anyhow::anyhow!("plan {name}: {error}"))?;
    check(&plan).map_err(|error| anyhow::anyhow!("plan {name}: {error}"))?;
    if json {
        let regions: Vec<_> = plan
            .regions
            .iter()
            .map(|r| json!({"name": r.id.name(), "offset": r.offset, "bytes": r.bytes}))
            .collect();
        let inputs = &plan.inputs;
        let value = json!({
            "plan": inputs.name, "model": inputs.model, "device": inputs.device_name,
            "budget_bytes": inputs.budget_bytes, "arena_bytes": plan.arena_bytes,
            "page_table_bytes": plan.page_table_bytes,
            "process_bytes": inputs.device.process_bytes, "unused_bytes": plan.unused_bytes,
            "slots": plan.slot_count, "slot_bytes": plan.slot_bytes,
            "neurons": inputs.shape.neurons(), "regions": regions,
            "numerics": format!("{:08x}", inputs.numerics.hash(&inputs.shape)),
        });
        return Ok(format!("{value:#}\n"));
    }
    let mut text = String::new();
    report(&plan, &mut text)?;
    Ok(text)
}
