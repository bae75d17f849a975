//! What `eval` tells: lines for the eye and the same as JSON.

use std::path::Path;

use serde_json::{Value, json};

use super::{Agreement, Evaluation};

/// Perplexity, and how near the reference is.
#[must_use]
pub fn evaluation_text(text: &Path, found: &Evaluation) -> String {
    let (perplexity, error) = found.likelihood().perplexity();
    let after: Vec<_> =
        found.chunks.iter().map(|mean| format!("{:.4}", mean.perplexity().0)).collect();
    let mut lines = vec![
        format!(
            "{}: {} chunks of {} tokens of {}, {} scored, numerics {:08x}",
            found.model,
            found.chunks.len(),
            found.context,
            text.display(),
            found.likelihood().count(),
            found.numerics
        ),
        format!("after each chunk       {}", after.join(" ")),
        format!("perplexity             {perplexity:.4} +- {error:.4}"),
    ];
    if let Some(agreement) = &found.agreement {
        let (reference, error) = agreement.reference.perplexity();
        let (top, divergence) = (agreement.top, agreement.divergence);
        lines.extend([
            format!("reference's            {reference:.4} +- {error:.4}"),
            format!("ours / reference's     {:.5}", perplexity / reference),
            format!(
                "same likeliest token   {:.3} % +- {:.3} %",
                top.value() * 100.0,
                top.error() * 100.0
            ),
            format!(
                "mean divergence        {:.6} +- {:.6} nats",
                divergence.value(),
                divergence.error()
            ),
        ]);
    }
    lines.join("\n") + "\n"
}

/// The same as an object.
#[must_use]
pub fn evaluation_json(image: &Path, text: &Path, found: &Evaluation) -> Value {
    let (perplexity, error) = found.likelihood().perplexity();
    let after: Vec<_> = found.chunks.iter().map(|mean| mean.perplexity().0).collect();
    json!({
        "image": image, "model": found.model, "text": text, "context": found.context,
        "chunks": found.chunks.len(), "scored": found.likelihood().count(),
        "numerics": format!("{:08x}", found.numerics), "after_each_chunk": after,
        "perplexity": perplexity, "perplexity_error": error,
        "reference": found.agreement.as_ref().map(|near| agreement_json(perplexity, near)),
    })
}

fn agreement_json(perplexity: f64, agreement: &Agreement) -> Value {
    let (reference, error) = agreement.reference.perplexity();
    json!({
        "perplexity": reference, "perplexity_error": error, "ratio": perplexity / reference,
        "same_top": agreement.top.value(), "same_top_error": agreement.top.error(),
        "divergence": agreement.divergence.value(),
        "divergence_error": agreement.divergence.error(),
    })
}
