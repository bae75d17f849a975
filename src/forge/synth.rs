//! `synth`: a model file of a given shape with random weights, for when bytes matter and text does
//! not.
//!
//! A GGUF v3 file of the llama family that other engines read too. Weights are drawn as codes, so a
//! large file is made at disk speed; scales keep activations near one through the layers.

use super::model::source_ff;
use crate::image::{ActivationFn, Shape};
use half::f16;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// How synthetic matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynthType {
    /// Half floats.
    F16,
    /// GGUF Q8_0.
    Q8,
    /// GGUF Q4_0.
    Q4,
}

const ALIGNMENT: u64 = 32;
const F32: u32 = 0;

impl SynthType {
    const fn ggml_id(self) -> u32 {
        match self {
            SynthType::F16 => 1,
            SynthType::Q8 => 8,
            SynthType::Q4 => 2,
        }
    }

    const fn bytes(self, weights: u64) -> u64 {
        match self {
            SynthType::F16 => weights * 2,
            SynthType::Q8 => weights / 32 * 34,
            SynthType::Q4 => weights / 32 * 18,
        }
    }
}

struct Tensor {
    name: String,
    dims: Vec<u64>,
    fill: Fill,
}

/// What a tensor holds.
#[derive(Clone, Copy)]
enum Fill {
    /// Random weights.
    Matrix(SynthType),
    /// Floats, each 1.
    Ones,
    /// Random floats.
    Bias,
}

impl Tensor {
    fn weights(&self) -> u64 {
        self.dims.iter().product()
    }

    fn bytes(&self) -> u64 {
        match self.fill {
            Fill::Matrix(kind) => kind.bytes(self.weights()),
            Fill::Ones | Fill::Bias => self.weights() * 4,
        }
    }
}

/// Writes a model of `shape` to `path`; tells `progress` bytes done and bytes in all.
pub fn synth(
    name: &str,
    shape: &Shape,
    kind: SynthType,
    seed: u64,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<u64> {
    let tensors = tensors(shape, kind);
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut head = header(name, shape, &tensors);
    head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
    out.write_all(&head)?;
    let total = tensors.iter().map(|t| t.bytes().next_multiple_of(ALIGNMENT)).sum::<u64>();
    let mut random = Random(seed | 1);
    let mut done = 0;
    for tensor in &tensors {
        write_tensor(tensor, &mut random, &mut out)?;
        let padding = tensor.bytes().next_multiple_of(ALIGNMENT) - tensor.bytes();
        out.write_all(&[0; ALIGNMENT as usize][..padding as usize])?;
        done += tensor.bytes() + padding;
        progress(done, total);
    }
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(head.len() as u64 + total)
}

fn tensors(s: &Shape, kind: SynthType) -> Vec<Tensor> {
    let ff = source_ff(s);
    let tensor = |name: String, dims: &[u64], fill| Tensor { name, dims: dims.into(), fill };
    let matrix = |name, dims: &[u64]| tensor(name, dims, Fill::Matrix(kind));
    let floats = |name, dims: &[u64]| tensor(name, dims, Fill::Ones);
    let mut all = vec![matrix("token_embd.weight".into(), &[s.hidden, s.vocab])];
    for layer in 0..s.layers {
        let name = |role: &str| format!("blk.{layer}.{role}.weight");
        all.push(floats(name("attn_norm"), &[s.hidden]));
        all.push(matrix(name("attn_q"), &[s.hidden, s.query_dim()]));
        all.push(matrix(name("attn_k"), &[s.hidden, s.kv_dim()]));
        all.push(matrix(name("attn_v"), &[s.hidden, s.kv_dim()]));
        all.push(matrix(name("attn_output"), &[s.query_dim(), s.hidden]));
        all.push(floats(name("ffn_norm"), &[s.hidden]));
        if s.is_routed() {
            all.push(floats(name("ffn_gate_inp"), &[s.hidden, s.experts]));
            all.push(matrix(name("ffn_gate_exps"), &[s.hidden, ff, s.experts]));
            all.push(matrix(name("ffn_up_exps"), &[s.hidden, ff, s.experts]));
            all.push(matrix(name("ffn_down_exps"), &[ff, s.hidden, s.experts]));
        } else {
            all.push(matrix(name("ffn_gate"), &[s.hidden, ff]));
            all.push(matrix(name("ffn_up"), &[s.hidden, ff]));
            all.push(matrix(name("ffn_down"), &[ff, s.hidden]));
        }
        for (role, values) in biases(s) {
            all.push(tensor(format!("blk.{layer}.{role}.bias"), &[values], Fill::Bias));
        }
    }
    all.push(floats("output_norm.weight".into(), &[s.hidden]));
    if !s.tied {
        all.push(matrix("output.weight".into(), &[s.hidden, s.vocab]));
    }
    all
}

/// The biases of a layer, and how many values each has.
fn biases(s: &Shape) -> Vec<(&'static str, u64)> {
    let (query, key) = (s.query_dim(), s.kv_dim());
    let mut all = Vec::new();
    if s.biases.qkv {
        all.extend([("attn_q", query), ("attn_k", key), ("attn_v", key)]);
    }
    if s.biases.output {
        all.push(("attn_output", s.hidden));
    }
    if s.biases.ffn {
        all.extend([("ffn_gate", source_ff(s)), ("ffn_up", source_ff(s)), ("ffn_down", s.hidden)]);
    }
    all
}

fn header(name: &str, s: &Shape, tensors: &[Tensor]) -> Vec<u8> {
    let mut meta = Metadata::default();
    meta.string("general.architecture", "llama");
    meta.string("general.name", name);
    meta.number("llama.block_count", s.layers);
    meta.number("llama.context_length", 4096);
    meta.number("llama.embedding_length", s.hidden);
    meta.number("llama.feed_forward_length", source_ff(s));
    meta.number("llama.attention.head_count", s.heads);
    meta.number("llama.attention.head_count_kv", s.kv_heads);
    meta.number("llama.attention.key_length", s.head_dim);
    meta.number("llama.attention.value_length", s.head_dim);
    meta.number("llama.rope.dimension_count", s.head_dim);
    meta.number("llama.vocab_size", s.vocab);
    meta.float("llama.attention.layer_norm_rms_epsilon", 1e-5);
    meta.float("llama.rope.freq_base", 10_000.0);
    if s.window > 0 {
        meta.number("llama.attention.sliding_window", s.window);
    }
    if s.is_routed() {
        meta.number("llama.expert_count", s.experts);
        meta.number("llama.expert_used_count", s.experts_used);
    }
    if s.activation != ActivationFn::SiLu {
        meta.string("powerinfer.ffn_activation", s.activation.name());
    }
    meta.vocabulary(s.vocab as usize);
    let mut head = b"GGUF".to_vec();
    head.extend(3u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend(meta.count.to_le_bytes());
    head.extend(meta.bytes);
    let mut offset = 0u64;
    for tensor in tensors {
        push_string(&mut head, &tensor.name);
        head.extend((tensor.dims.len() as u32).to_le_bytes());
        tensor.dims.iter().for_each(|dim| head.extend(dim.to_le_bytes()));
        let kind = match tensor.fill {
            Fill::Matrix(kind) => kind.ggml_id(),
            Fill::Ones | Fill::Bias => F32,
        };
        head.extend(kind.to_le_bytes());
        head.extend(offset.to_le_bytes());
        offset += tensor.bytes().next_multiple_of(ALIGNMENT);
    }
    head
}

/// GGUF key-value pairs.
#[derive(Default)]
struct Metadata {
    count: u64,
    bytes: Vec<u8>,
}

impl Metadata {
    fn key(&mut self, key: &str, kind: u32) {
        self.count += 1;
        push_string(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn number(&mut self, key: &str, value: u64) {
        self.key(key, 4);
        self.bytes.extend((value as u32).to_le_bytes());
    }

    fn float(&mut self, key: &str, value: f32) {
        self.key(key, 6);
        self.bytes.extend(value.to_le_bytes());
    }

    fn string(&mut self, key: &str, value: &str) {
        self.key(key, 8);
        push_string(&mut self.bytes, value);
    }

    fn strings(&mut self, key: &str, values: &[String]) {
        self.key(key, 9);
        self.bytes.extend(8u32.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| push_string(&mut self.bytes, value));
    }

    /// A byte-level vocabulary: every byte, then merges of a token with a byte, shortest first.
    fn vocabulary(&mut self, vocab: usize) {
        let bytes: Vec<String> = (0..=255).map(byte_text).collect();
        let mut tokens = bytes.clone();
        let mut merges = Vec::new();
        let mut left = 0;
        while tokens.len() < vocab.saturating_sub(1) {
            let (first, second) = (tokens[left / 256].clone(), &bytes[left % 256]);
            left += 1;
            merges.push(format!("{first} {second}"));
            tokens.push(format!("{first}{second}"));
        }
        tokens.truncate(vocab.saturating_sub(1));
        tokens.push("<|endoftext|>".into());
        let end = tokens.len() as u64 - 1;
        self.string("tokenizer.ggml.model", "gpt2");
        self.string("tokenizer.ggml.pre", "gpt-2");
        self.strings("tokenizer.ggml.tokens", &tokens);
        self.strings("tokenizer.ggml.merges", &merges);
        self.number("tokenizer.ggml.bos_token_id", end);
        self.number("tokenizer.ggml.eos_token_id", end);
        let kinds = (0..tokens.len() as u64).map(|id| if id == end { 3i32 } else { 1 });
        self.key("tokenizer.ggml.token_type", 9);
        self.bytes.extend(5u32.to_le_bytes());
        self.bytes.extend((tokens.len() as u64).to_le_bytes());
        kinds.for_each(|kind| self.bytes.extend(kind.to_le_bytes()));
    }
}

fn push_string(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// GPT-2's printable stand-in of a byte.
fn byte_text(byte: u8) -> String {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let code = if printable(byte) {
        u32::from(byte)
    } else {
        256 + (0..byte).filter(|&b| !printable(b)).count() as u32
    };
    char::from_u32(code).map(String::from).expect("code points below 512 are letters")
}

fn write_tensor(tensor: &Tensor, random: &mut Random, out: &mut impl Write) -> io::Result<()> {
    // Uniform codes have a deviation of 0.577 of their range; rows of unit gain keep the scale.
    let step = |range: f64| f16::from_f64(1.7 / range / (tensor.dims[0] as f64).sqrt());
    let mut uniform = || (random.next() as i32 as f64) / f64::from(i32::MAX);
    match tensor.fill {
        Fill::Ones => (0..tensor.weights()).try_for_each(|_| out.write_all(&1f32.to_le_bytes())),
        Fill::Bias => (0..tensor.weights())
            .try_for_each(|_| out.write_all(&((uniform() * 0.5) as f32).to_le_bytes())),
        Fill::Matrix(SynthType::F16) => (0..tensor.weights()).try_for_each(|_| {
            let scaled = uniform() * 1.7 / (tensor.dims[0] as f64).sqrt();
            out.write_all(&f16::from_f64(scaled).to_le_bytes())
        }),
        // A mean other than 0 would add up over a row, and grow from layer to layer.
        Fill::Matrix(SynthType::Q8) => blocks(tensor, step(127.0), 32, random, out, |byte| {
            if byte == 0x80 { 0 } else { byte } // -128
        }),
        Fill::Matrix(SynthType::Q4) => blocks(tensor, step(8.0), 16, random, out, |byte| {
            let code = |nibble: u8| if nibble == 0 { 8 } else { nibble }; // -8
            code(byte & 15) | code(byte >> 4) << 4
        }),
    }
}

fn blocks(
    tensor: &Tensor,
    step: f16,
    code_bytes: usize,
    random: &mut Random,
    out: &mut impl Write,
    code: impl Fn(u8) -> u8,
) -> io::Result<()> {
    let mut block = vec![0; 2 + code_bytes];
    block[..2].copy_from_slice(&step.to_le_bytes());
    for _ in 0..tensor.weights() / 32 {
        for part in block[2..].chunks_mut(8) {
            part.copy_from_slice(&random.next().to_le_bytes());
            part.iter_mut().for_each(|byte| *byte = code(*byte));
        }
        out.write_all(&block)?;
    }
    Ok(())
}

/// Marsaglia's xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
