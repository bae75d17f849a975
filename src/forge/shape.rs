//! `shape`: a model file -> `plans/models/NAME.toml`, what the planner needs to know of it.

use crate::image::Shape;

/// The model file of `shape`, as `plans/models/` holds it.
pub fn shape_toml(name: &str, shape: &Shape) -> String {
    format!(
        "# {name}. Written by `ganglion-forge shape`.\n\
         layers = {}\nhidden = {}\nheads = {}\nkv_heads = {}\nhead_dim = {}\nexperts = {}\n\
         experts_used = {}\nff = {}\nvocab = {}\nactivation = {:?}\ntied = {}\n\
         tokenizer_bytes = {}\n",
        shape.layers,
        shape.hidden,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        shape.experts,
        shape.experts_used,
        shape.ff,
        shape.vocab,
        shape.activation.name(),
        shape.tied,
        shape.tokenizer_bytes
    )
}
