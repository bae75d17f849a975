//! `shape`: a model file -> `plans/models/NAME.toml`, what the planner needs to know of it.

use super::model::{outliers, source_ff};
use crate::image::Shape;
use std::fmt::Write;

/// The model file of `shape`, as `plans/models/` holds it. What most models do not have is only
/// there where this one has it.
pub fn shape_toml(name: &str, shape: &Shape) -> String {
    let mut text = format!(
        "# {name}. Written by `ganglion-forge shape`.\n\
         layers = {}\nhidden = {}\nheads = {}\nkv_heads = {}\nhead_dim = {}\nexperts = {}\n\
         experts_used = {}\nff = {}{}\nvocab = {}\nactivation = {:?}\ntied = {}\n",
        shape.layers,
        shape.hidden,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        shape.experts,
        shape.experts_used,
        shape.ff,
        match outliers(shape.activation) {
            0 => String::new(),
            parts => format!(" # the model's {} and {parts} parts of outliers", source_ff(shape)),
        },
        shape.vocab,
        shape.activation.name(),
        shape.tied,
    );
    let biases = shape.biases;
    for (key, is_there) in
        [("qkv_bias", biases.qkv), ("output_bias", biases.output), ("ffn_bias", biases.ffn)]
    {
        if is_there {
            text.push_str(key);
            text.push_str(" = true\n");
        }
    }
    if shape.window > 0 {
        writeln!(text, "window = {}", shape.window).expect("a string takes all");
    }
    writeln!(text, "tokenizer_bytes = {}", shape.tokenizer_bytes).expect("a string takes all");
    text
}
