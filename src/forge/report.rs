//! What `pack` tells of the image it made: a table for the eye and the same as JSON.

use serde_json::{Value, json};

use super::model::ModelFile;
use super::pack::{Class, Losses, Start};
use crate::image::{Types, WeightType};

/// How an image came about, where that is worth a line.
#[must_use]
pub fn start_line(start: Start) -> Option<String> {
    match start {
        Start::Fresh => None,
        Start::Continued { layers } => {
            Some(format!("went on behind the {layers} layers of an interrupted pack"))
        }
        Start::Anew => Some("an interrupted pack was of other files or types: began anew".into()),
    }
}

/// A row for each class: stored as, made of, weights, how many of them copied, error.
#[must_use]
pub fn loss_table(model: &ModelFile, types: &Types, losses: &Losses) -> String {
    let mut text = format!(
        "{:<10} {:<6} {:<20} {:>15} {:>7} {:>14}\n",
        "weights", "type", "made of", "count", "copied", "relative error"
    );
    for class in Class::ALL {
        let loss = losses.of(class);
        let count = loss.copied + loss.requantised;
        text.push_str(&format!(
            "{:<10} {:<6} {:<20} {:>15} {:>5} % {:>14.6}\n",
            class.name(),
            stored(class, types).name(),
            sources(model, class).join(" "),
            count,
            loss.copied * 100 / count.max(1),
            loss.relative()
        ));
    }
    text
}

/// The table as an object by class.
#[must_use]
pub fn losses_json(model: &ModelFile, types: &Types, losses: &Losses) -> Value {
    let row = |class: Class| {
        let loss = losses.of(class);
        let value = json!({
            "type": stored(class, types).name(), "made_of": sources(model, class),
            "copied": loss.copied, "requantised": loss.requantised,
            "relative_error": loss.relative(),
        });
        (class.name().to_string(), value)
    };
    Value::Object(Class::ALL.map(row).into_iter().collect())
}

fn stored(class: Class, types: &Types) -> WeightType {
    match class {
        Class::Attention => types.resident,
        Class::Gate | Class::Up => types.records,
        Class::Down => types.down,
        Class::Embedding => types.embedding,
        Class::Head => types.head,
    }
}

/// The types of the tensors of `class` in the source, each once.
fn sources(model: &ModelFile, class: Class) -> Vec<&'static str> {
    let roles: &[&str] = match class {
        Class::Attention => &["attn_q", "attn_k", "attn_v", "attn_output"],
        Class::Gate => &["ffn_gate", "ffn_gate_exps"],
        Class::Up => &["ffn_up", "ffn_up_exps"],
        Class::Down => &["ffn_down", "ffn_down_exps"],
        Class::Embedding => &["token_embd"],
        Class::Head if model.shape.tied => &["token_embd"],
        Class::Head => &["output"],
    };
    let mut kinds = Vec::new();
    for tensor in model.source.tensors() {
        let role = tensor.name.strip_suffix(".weight").and_then(|name| name.rsplit('.').next());
        if role.is_some_and(|role| roles.contains(&role)) && !kinds.contains(&tensor.kind.name) {
            kinds.push(tensor.kind.name);
        }
    }
    kinds
}
