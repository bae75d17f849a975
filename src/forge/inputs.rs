//! `plans/*.toml` -> plan inputs. Unknown keys are refused; a message names file and key.
//!
//! Used by build.rs and by `ganglion-forge`. A plan names its device and model; their files lie in
//! `devices/` and `models/` of the `plans` folder it belongs to.

use crate::image::{ActivationFn, Biases, Shape, Types, WeightType};
use crate::plan::{Device, Inputs, KvType, Lock, Numerics};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Why a plan file has no inputs.
#[derive(Debug, thiserror::Error)]
pub enum InputsError {
    /// A file can't be read.
    #[error("plan file {path} can't be read: {source}; check the name and GANGLION_PLAN")]
    Read {
        /// The file.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file is not what its kind must be.
    #[error("plan file {path} is wrong: {reason}")]
    Parse {
        /// The file.
        path: String,
        /// Where and why.
        reason: String,
    },
    /// A value is none of those known.
    #[error("plan file {path}: {key} = {found:?} is unknown; use {wanted}")]
    Value {
        /// The file.
        path: String,
        /// The key.
        key: &'static str,
        /// What it holds.
        found: String,
        /// What it may hold.
        wanted: &'static str,
    },
}

/// `plans/<name>.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    model: String,
    device: String,
    budget: String,
    context_tokens: u64,
    prefill_tokens: u64,
    threads: u64,
    lock: String,
    #[serde(default)]
    image: Option<String>,
    numerics: NumericsTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NumericsTable {
    records: String,
    #[serde(default)]
    down: Option<String>,
    resident: String,
    head: String,
    embedding: String,
    kv: String,
}

/// `plans/devices/<name>.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceFile {
    page_bytes: u64,
    process_bytes: u64,
    stack_bytes: u64,
    readers: u64,
    reads_in_flight: u64,
    read_bytes_max: u64,
    ring_reads: u64,
    ring_read_bytes: u64,
    huge_pages: bool,
    pin: bool,
}

/// `plans/models/<name>.toml`, written by `ganglion-forge shape`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelFile {
    layers: u64,
    hidden: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    experts: u64,
    experts_used: u64,
    ff: u64,
    vocab: u64,
    activation: String,
    tied: bool,
    #[serde(default)]
    qkv_bias: bool,
    #[serde(default)]
    output_bias: bool,
    #[serde(default)]
    ffn_bias: bool,
    #[serde(default)]
    window: u64,
    tokenizer_bytes: u64,
}

/// What a plan file says.
pub struct PlanSource {
    /// What the plan is solved from.
    pub inputs: Inputs,
    /// Where the image lies at run time, if the plan says so.
    pub image: Option<String>,
    /// Every file that was read.
    pub files: Vec<PathBuf>,
}

/// Reads the plan at `path` and the device and model files it names. `budget` replaces the plan's.
pub fn read(path: &Path, budget: Option<&str>) -> Result<PlanSource, InputsError> {
    let plan: PlanFile = parse(path)?;
    let root = plans_root(path);
    let device_path = root.join("devices").join(format!("{}.toml", plan.device));
    let model_path = root.join("models").join(format!("{}.toml", plan.model));
    let device: DeviceFile = parse(&device_path)?;
    let model: ModelFile = parse(&model_path)?;
    let inputs = Inputs {
        name: leak(plan_name(path, &root)),
        model: leak(plan.model.clone()),
        device_name: leak(plan.device.clone()),
        shape: model.shape(&model_path)?,
        numerics: plan.numerics.numerics(path)?,
        device: device.device(),
        budget_bytes: parse_bytes(path, "budget", budget.unwrap_or(&plan.budget))?,
        context_tokens: plan.context_tokens,
        prefill_tokens: plan.prefill_tokens,
        threads: plan.threads,
        lock: lock(path, &plan.lock)?,
    };
    let files = vec![path.to_path_buf(), device_path, model_path];
    Ok(PlanSource { inputs, image: plan.image, files })
}

/// Digits behind the point of a byte count.
const FRACTION_DIGITS_MAX: usize = 15;

/// Reads a file of `models/`.
pub fn read_shape(path: &Path) -> Result<Shape, InputsError> {
    let model: ModelFile = parse(path)?;
    model.shape(path)
}

/// A byte count with a decimal (kB, MB, GB) or binary (KiB, MiB, GiB) unit: "12GB", "1.5 GiB".
pub fn byte_count(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit.trim() {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let bytes = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    if fraction.len() > FRACTION_DIGITS_MAX || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = fraction.bytes().fold(0, |sum, byte| sum * 10 + u128::from(byte - b'0'));
    let part = digits * u128::from(unit) / 10_u128.pow(fraction.len() as u32);
    bytes.checked_add(part as u64)
}

/// The `plans` folder a plan file belongs to: the nearest one above it with `devices` in it.
fn plans_root(path: &Path) -> PathBuf {
    let above = path.ancestors().skip(1).find(|folder| folder.join("devices").is_dir());
    above.unwrap_or_else(|| path.parent().unwrap_or(Path::new("."))).to_path_buf()
}

fn plan_name(path: &Path, root: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).with_extension("").display().to_string()
}

/// Plans are few and live as long as the tool: their names may too.
fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, InputsError> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path)
        .map_err(|source| InputsError::Read { path: name.clone(), source })?;
    toml::from_str(&text)
        .map_err(|error| InputsError::Parse { path: name, reason: toml_reason(&error, &text) })
}

/// What the parser says, and the line it says it of.
fn toml_reason(error: &toml::de::Error, text: &str) -> String {
    let said = error.message().replace('\n', " ");
    match error.span() {
        Some(span) => {
            let number = text[..span.start].matches('\n').count();
            let line = text.lines().nth(number).unwrap_or_default().trim();
            format!("line {} ({line}): {said}; plans/README.md lists the keys", number + 1)
        }
        None => format!("{said}; plans/README.md lists the keys"),
    }
}

fn parse_bytes(path: &Path, key: &'static str, text: &str) -> Result<u64, InputsError> {
    byte_count(text)
        .ok_or_else(|| unknown(path, key, text, "a number with B, kB, MB, GB or KiB, MiB, GiB"))
}

fn unknown(path: &Path, key: &'static str, found: &str, wanted: &'static str) -> InputsError {
    InputsError::Value { path: path.display().to_string(), key, found: found.into(), wanted }
}

fn weight(path: &Path, key: &'static str, text: &str) -> Result<WeightType, InputsError> {
    let known = WeightType::ALL.into_iter().find(|weight| weight.name() == text);
    known.ok_or_else(|| unknown(path, key, text, "f16, q8 or q4"))
}

fn lock(path: &Path, text: &str) -> Result<Lock, InputsError> {
    match text {
        "demand" => Ok(Lock::Demand),
        "try" => Ok(Lock::Try),
        "off" => Ok(Lock::Off),
        _ => Err(unknown(path, "lock", text, "demand, try or off")),
    }
}

impl NumericsTable {
    fn numerics(&self, path: &Path) -> Result<Numerics, InputsError> {
        let types = Types {
            records: weight(path, "records", &self.records)?,
            down: weight(path, "down", self.down.as_ref().unwrap_or(&self.records))?,
            resident: weight(path, "resident", &self.resident)?,
            head: weight(path, "head", &self.head)?,
            embedding: weight(path, "embedding", &self.embedding)?,
        };
        let kv = KvType::ALL.into_iter().find(|known| known.name() == self.kv);
        let kv = kv.ok_or_else(|| unknown(path, "kv", &self.kv, "f16, f32 or q8"))?;
        Ok(Numerics { types, kv })
    }
}

impl DeviceFile {
    fn device(&self) -> Device {
        Device {
            page_bytes: self.page_bytes,
            process_bytes: self.process_bytes,
            stack_bytes: self.stack_bytes,
            readers: self.readers,
            reads_in_flight: self.reads_in_flight,
            read_bytes_max: self.read_bytes_max,
            ring_reads: self.ring_reads,
            ring_read_bytes: self.ring_read_bytes,
            huge_pages: self.huge_pages,
            pin: self.pin,
        }
    }
}

impl ModelFile {
    fn shape(&self, path: &Path) -> Result<Shape, InputsError> {
        let known = ActivationFn::ALL.into_iter().find(|known| known.name() == self.activation);
        let activation = known
            .ok_or_else(|| unknown(path, "activation", &self.activation, ActivationFn::NAMES))?;
        Ok(Shape {
            layers: self.layers,
            hidden: self.hidden,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            experts: self.experts,
            experts_used: self.experts_used,
            ff: self.ff,
            vocab: self.vocab,
            activation,
            tied: self.tied,
            biases: Biases { qkv: self.qkv_bias, output: self.output_bias, ffn: self.ffn_bias },
            window: self.window,
            tokenizer_bytes: self.tokenizer_bytes,
        })
    }
}
