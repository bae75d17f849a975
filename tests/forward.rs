//! The engine against a plain f64 forward pass written here, on small random models of odd shapes:
//! dense and routed, every activation, biases, windows, tied and untied, sizes that are no multiple
//! of a group.
#![cfg(feature = "host")]

#[path = "common/engine.rs"]
mod engine;

use engine::session_on;
use ganglion::cli::{Fault, Session};
use ganglion::forge::model::{ModelFile, source_ff};
use ganglion::forge::pack::pack;
use ganglion::forge::source::Source;
use ganglion::forge::synth::{SynthType, synth};
use ganglion::image::{ActivationFn, Biases, Shape, Types, WeightType};
use ganglion::kernel::Isa;
use ganglion::plan::{Device, Inputs, KvType, Lock, Numerics, solve};
use std::path::{Path, PathBuf};

const TOKENS: [u32; 12] = [1, 17, 300, 42, 255, 0, 99, 311, 5, 5, 280, 64];

fn shape() -> Shape {
    Shape {
        layers: 2,
        hidden: 96,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        experts: 1,
        experts_used: 1,
        ff: 77,
        vocab: 320,
        activation: ActivationFn::SiLu,
        tied: true,
        biases: Biases::NONE,
        window: 0,
        tokenizer_bytes: 1,
    }
}

fn shapes() -> [(&'static str, Shape); 15] {
    let all = Biases { qkv: true, output: true, ffn: true };
    let odd = Shape { hidden: 288, heads: 6, kv_heads: 3, head_dim: 48, ff: 131, ..shape() };
    let routed = Shape { experts: 5, experts_used: 2, ..shape() };
    [
        ("dense", shape()),
        ("odd", Shape { tied: false, ..odd }),
        ("odd-drelu", Shape { activation: ActivationFn::DRelu, ..odd }),
        ("odd-relu", Shape { activation: ActivationFn::Relu, ..odd }),
        ("odd-gelu", Shape { activation: ActivationFn::Gelu, ..odd }),
        ("qkv-biases", Shape { biases: Biases { qkv: true, ..Biases::NONE }, ..shape() }),
        ("biases", Shape { biases: all, ..odd }),
        ("biases-drelu", Shape { biases: all, activation: ActivationFn::DRelu, ..odd }),
        ("window-1", Shape { window: 1, ..shape() }),
        ("window-5", Shape { window: 5, biases: all, ..shape() }),
        ("window-32", Shape { window: 32, ..odd }),
        ("window-45", Shape { window: 45, ..odd }),
        ("routed", Shape { activation: ActivationFn::DRelu, ..routed }),
        ("mixtral", Shape { experts_used: 3, ..routed }),
        ("gemma", Shape { activation: ActivationFn::Gelu, experts_used: 3, ..routed }),
    ]
}

/// A file of this suite, in a folder of its own.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("forward.{}.{name}", std::process::id()))
}

/// A matrix of the model file, as f64 rows.
struct Matrix(Vec<Vec<f64>>);

impl Matrix {
    fn of(gguf: &Source, name: &str, first: u64, count: u64) -> Matrix {
        let tensor = gguf.tensor(name).unwrap();
        let flat = gguf.rows_f32(tensor, first, count).unwrap();
        let rows = flat.chunks_exact(tensor.row_elements() as usize);
        Matrix(rows.map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect())
    }

    fn whole(gguf: &Source, name: &str) -> Matrix {
        Matrix::of(gguf, name, 0, gguf.tensor(name).unwrap().rows())
    }

    /// The bias of a layer's matrix, zero where the file has none.
    fn bias(gguf: &Source, layer: u64, role: &str, len: usize) -> Vec<f64> {
        let name = format!("blk.{layer}.{role}.bias");
        match gguf.opt_tensor(&name) {
            Some(_) => Matrix::whole(gguf, &name).0.remove(0),
            None => vec![0.0; len],
        }
    }

    fn times(&self, x: &[f64]) -> Vec<f64> {
        self.0.iter().map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }
}

fn norm(x: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().map(|x| x / (mean + 1e-5).sqrt()).collect() // synthetic norms are all one
}

fn rope(x: &mut [f64], head_dim: usize, position: usize) {
    for head in x.chunks_exact_mut(head_dim) {
        for (i, pair) in head.chunks_exact_mut(2).enumerate() {
            let angle = position as f64 * 10_000f64.powf(-2.0 * i as f64 / head_dim as f64);
            let (sin, cos) = angle.sin_cos();
            (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos);
        }
    }
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let highest = x.iter().copied().fold(f64::MIN, f64::max);
    let powers: Vec<f64> = x.iter().map(|x| (x - highest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}

fn add(x: &mut [f64], y: &[f64], factor: f64) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y * factor);
}

/// GELU in its tanh form.
fn gelu(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + u.tanh())
}

/// One expert's output.
fn network(gguf: &Source, s: &Shape, layer: u64, expert: u64, x: &[f64]) -> Vec<f64> {
    let role = |name: &str| {
        let suffix = if s.experts > 1 { "_exps" } else { "" };
        format!("blk.{layer}.ffn_{name}{suffix}.weight")
    };
    let ff = source_ff(s);
    let rows = |name: &str| {
        let mut out = Matrix::of(gguf, &role(name), expert * ff, ff).times(x);
        let len = out.len();
        add(&mut out, &Matrix::bias(gguf, layer, &format!("ffn_{name}"), len), 1.0);
        out
    };
    let (gate, up) = (rows("gate"), rows("up"));
    let middle: Vec<f64> = gate
        .iter()
        .zip(&up)
        .map(|(&g, &u)| match s.activation {
            ActivationFn::DRelu => g.max(0.0) * u.max(0.0),
            ActivationFn::SiLu => g / (1.0 + (-g).exp()) * u,
            ActivationFn::Relu => g.max(0.0) * u,
            ActivationFn::Gelu => gelu(g) * u,
        })
        .collect();
    let mut out = Matrix::of(gguf, &role("down"), expert * s.hidden, s.hidden).times(&middle);
    let len = out.len();
    add(&mut out, &Matrix::bias(gguf, layer, "ffn_down", len), 1.0);
    out
}

fn feed_forward(gguf: &Source, s: &Shape, layer: u64, x: &mut [f64]) {
    let input = norm(x);
    if s.experts == 1 {
        return add(x, &network(gguf, s, layer, 0, &input), 1.0);
    }
    let logits = Matrix::whole(gguf, &format!("blk.{layer}.ffn_gate_inp.weight")).times(&input);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order.truncate(s.experts_used as usize);
    let shares = softmax(&order.iter().map(|&e| logits[e]).collect::<Vec<_>>());
    for (&expert, share) in order.iter().zip(shares) {
        add(x, &network(gguf, s, layer, expert as u64, &input), share);
    }
}

/// Logits after each token, all in f64.
fn reference(gguf: &Source, s: &Shape, tokens: &[u32]) -> Vec<Vec<f64>> {
    let (head_dim, group) = (s.head_dim as usize, (s.heads / s.kv_heads) as usize);
    let embedding = Matrix::whole(gguf, "token_embd.weight");
    let head = if s.tied { "token_embd.weight" } else { "output.weight" };
    let head = Matrix::whole(gguf, head);
    let mut caches = vec![(Vec::new(), Vec::new()); s.layers as usize];
    let mut all = Vec::new();
    let window = if s.window == 0 { tokens.len() } else { s.window as usize };
    for (position, &token) in tokens.iter().enumerate() {
        let mut x = embedding.0[token as usize].clone();
        for layer in 0..s.layers {
            let product = |role: &str, x: &[f64]| {
                let name = format!("blk.{layer}.{role}.weight");
                let mut out = Matrix::whole(gguf, &name).times(x);
                let len = out.len();
                add(&mut out, &Matrix::bias(gguf, layer, role, len), 1.0);
                out
            };
            let input = norm(&x);
            let mut query = product("attn_q", &input);
            let mut key = product("attn_k", &input);
            rope(&mut query, head_dim, position);
            rope(&mut key, head_dim, position);
            let (keys, values): &mut (Vec<Vec<f64>>, Vec<Vec<f64>>) = &mut caches[layer as usize];
            keys.push(key);
            values.push(product("attn_v", &input));
            let mut heads = Vec::new();
            for (index, q) in query.chunks_exact(head_dim).enumerate() {
                let part = index / group * head_dim..(index / group + 1) * head_dim;
                let score = |k: &Vec<f64>| {
                    let dot: f64 = k[part.clone()].iter().zip(q).map(|(k, q)| k * q).sum();
                    dot / (head_dim as f64).sqrt()
                };
                let unseen = keys.len().saturating_sub(window);
                let scores = keys.iter().skip(unseen).map(score);
                let weights = softmax(&scores.collect::<Vec<_>>());
                let mut out = vec![0.0; head_dim];
                for (value, weight) in values.iter().skip(unseen).zip(weights) {
                    add(&mut out, &value[part.clone()], weight);
                }
                heads.extend(out);
            }
            add(&mut x, &product("attn_output", &heads), 1.0);
            feed_forward(gguf, s, layer, &mut x);
        }
        all.push(head.times(&norm(&x)));
    }
    all
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// A model file with its f64 logits.
struct Case {
    name: &'static str,
    source: PathBuf,
    model: ModelFile,
    tokens: Vec<u32>,
    reference: Vec<Vec<f64>>,
}

impl Case {
    fn new(name: &'static str, shape: &Shape) -> Case {
        let source = file(&format!("{name}.gguf"));
        synth(name, shape, SynthType::F16, 7, &source, &mut |_, _| {}).unwrap();
        let model = ModelFile::open(&source).unwrap();
        assert_eq!(model.shape, Shape { tokenizer_bytes: model.shape.tokenizer_bytes, ..*shape });
        // Past several blocks of keys, where there is a window.
        let rounds = if shape.window == 0 { 1 } else { 8 };
        let tokens = TOKENS.repeat(rounds);
        let reference = reference(&model.source, shape, &tokens);
        Case { name, source, model, tokens, reference }
    }

    /// Largest difference of the engine's logits, with half of the neurons in slots, and the bits
    /// of the last ones; prefill in chunks must give the same.
    fn run(&self, types: Types, kv: KvType, isa: Isa, threads: usize) -> (f64, Vec<u32>) {
        let image = file(&format!("{}.image", self.name));
        pack(&self.model, &types, &image, &mut |_, _| {}).unwrap();
        let baked = ganglion::baked::PLAN.inputs;
        let inputs = Inputs {
            shape: self.model.shape,
            numerics: Numerics { types, kv },
            context_tokens: self.tokens.len() as u64,
            lock: Lock::Off,
            device: Device { ring_reads: 2, ..baked.device },
            ..baked
        };
        let whole = solve(Inputs { budget_bytes: 1 << 30, ..inputs }).unwrap();
        let half = whole.total_bytes() - whole.slot_count / 2 * whole.slot_bytes;
        let plan = solve(Inputs { budget_bytes: half, ..inputs }).unwrap();
        let bytes = image.to_str().unwrap().to_string().leak().as_bytes();
        let result = session_on(bytes, &plan, threads, isa, |session| self.compare(session));
        std::fs::remove_file(image).unwrap();
        result
    }

    fn compare(&self, session: &mut Session<'_>) -> Result<(f64, Vec<u32>), Fault> {
        let (mut worst, mut each) = (0.0f64, Vec::new());
        for (position, &token) in self.tokens.iter().enumerate() {
            session.model.forward(token, position)?;
            let logits = session.model.logits()?;
            for (ours, theirs) in logits.iter().zip(&self.reference[position]) {
                worst = worst.max((f64::from(*ours) - theirs).abs());
            }
            each.push(bits(logits));
        }
        let one_by_one = bits(session.model.logits()?);
        for chunk in [self.tokens.len().min(session.chunk), 5] {
            for (index, tokens) in self.tokens.chunks(chunk).enumerate() {
                session.model.prefill(tokens, index * chunk)?;
            }
            let same = bits(session.model.logits()?) == one_by_one;
            assert!(
                same,
                "{}: chunks of {chunk}, {}",
                self.name,
                session.model.kernels().isa().name()
            );
        }
        for chunk in [self.tokens.len().min(session.chunk), 5, 1] {
            for first in (0..self.tokens.len()).step_by(chunk) {
                let tokens = &self.tokens[first..self.tokens.len().min(first + chunk)];
                session.model.prefill_every(tokens, first)?;
                for line in 0..tokens.len() {
                    let same = bits(session.model.logits_of(line)?) == each[first + line];
                    assert!(same, "{}: line {line} of {first}, chunks of {chunk}", self.name);
                }
            }
        }
        Ok((worst, one_by_one))
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.source); // the test's own outcome is the one to tell
    }
}

/// Columns of type `down`, everything else of type `weight`.
fn types(weight: WeightType, down: WeightType) -> Types {
    let embedding = WeightType::F16;
    Types { records: weight, down, resident: weight, head: weight, embedding }
}

/// The largest difference on any instruction set, all of which give the same bits, on one thread
/// and on two.
fn worst(case: &Case, types: Types, kv: KvType) -> f64 {
    let (worst, wanted) = case.run(types, kv, Isa::Twin, 1);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        let (_, found) = case.run(types, kv, isa, 2);
        assert!(found == wanted, "{}: other bits by {}", case.name, isa.name());
    }
    worst
}

#[test]
fn small_models_of_odd_shapes_match_plain_arithmetic() {
    for (name, shape) in shapes() {
        let case = Case::new(name, &shape);
        let f16 = worst(&case, types(WeightType::F16, WeightType::F16), KvType::Single);
        let q8 = worst(&case, types(WeightType::Q8, WeightType::Q8), KvType::Single);
        println!("{name}: max |dlogit| f16 {f16:.1e}, q8 {q8:.1e}");
        assert!(f16 < 1e-3, "{name}: {f16}");
        assert!(q8 < 0.15, "{name}: {q8}");
    }
}

#[test]
fn columns_of_another_type_match_plain_arithmetic() {
    let routed = Shape { experts: 3, experts_used: 2, activation: ActivationFn::DRelu, ..shape() };
    for (name, shape) in [("mixed-routed", routed), ("mixed-dense", shape())] {
        let case = Case::new(name, &shape);
        for (weight, down, most) in [
            (WeightType::F16, WeightType::Q8, 0.15),
            (WeightType::Q8, WeightType::F16, 0.15),
            (WeightType::Q8, WeightType::Q4, 1.0),
            (WeightType::F16, WeightType::Q4, 1.0),
            (WeightType::Q4, WeightType::Q8, 3.0),
        ] {
            let found = worst(&case, types(weight, down), KvType::Single);
            let names = (weight.name(), down.name());
            println!("{name}: max |dlogit| {names:?} {found:.1e}");
            assert!(found < most, "{name} {names:?}: {found}");
        }
    }
}

/// Heads of one group and of three.
#[test]
fn keys_and_values_of_codes_are_near_plain_arithmetic() {
    let one = Shape { head_dim: 32, ..shape() };
    let three = Shape { head_dim: 96, activation: ActivationFn::Relu, ..shape() };
    let window = Shape { window: 37, ..one };
    for (name, shape) in [("one-group", one), ("three-groups", three), ("window-of-codes", window)]
    {
        let f16 = types(WeightType::F16, WeightType::F16);
        let found = worst(&Case::new(name, &shape), f16, KvType::Byte);
        println!("{name}: max |dlogit| kv q8 {found:.1e}");
        assert!(found > 1e-5 && found < 0.05, "{name}: {found}");
    }
}
