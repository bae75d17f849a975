//! The router: which experts run for a token, and with what share.

use crate::cluster::Chosen;
use crate::image::Shape;
use crate::image::shape::EXPERTS_USED_MAX;
use crate::kernel::math::{dot, exp};

/// Experts of a token, best first.
pub type Choice = heapless::Vec<Chosen, { EXPERTS_USED_MAX as usize }>;

/// The experts of a token whose normalised residual stream is `x`. `rows` is f32[experts][hidden];
/// `logits` is scratch, one an expert. `None` if a logit is not finite.
pub fn choose(shape: &Shape, rows: &[f32], x: &[f32], logits: &mut [f32]) -> Option<Choice> {
    if shape.is_routed() {
        best(rows, x, logits, shape.experts_used as usize)
    } else {
        only_expert()
    }
}

/// The `used` experts with the highest logits (the lower index wins a tie), their shares a softmax
/// over those.
fn best(rows: &[f32], x: &[f32], logits: &mut [f32], used: usize) -> Option<Choice> {
    for (logit, row) in logits.iter_mut().zip(rows.chunks_exact(x.len())) {
        *logit = dot(row, x);
    }
    if logits.iter().any(|logit| !logit.is_finite()) {
        return None;
    }
    let mut choice = Choice::new();
    for _ in 0..used {
        let best = best_of(logits);
        choice.push(Chosen::new(best as u16, logits[best])).ok()?;
        logits[best] = f32::NEG_INFINITY;
    }
    let highest = choice[0].weight;
    let mut sum = 0.0;
    for chosen in &mut choice {
        chosen.weight = exp(chosen.weight - highest);
        sum += chosen.weight;
    }
    choice.iter_mut().for_each(|chosen| chosen.weight /= sum);
    Some(choice)
}

/// The choice where there is one expert.
fn only_expert() -> Option<Choice> {
    Choice::from_slice(&[Chosen::new(0, 1.0)]).ok()
}

fn best_of(logits: &[f32]) -> usize {
    let better =
        |best: usize, index: usize| if logits[index] > logits[best] { index } else { best };
    (1..logits.len()).fold(0, better)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_experts_share_the_output() {
        // Rows of one input: the logits are the rows. Shares by hand: e^0 and e^-1 over their sum.
        let rows = [0.5, 2.0, -1.0, 3.0];
        let choice = best(&rows, &[1.0], &mut [0.0; 4], 2).unwrap();
        assert_eq!((choice[0].expert(), choice[1].expert()), (3, 1));
        assert!((choice[0].weight - 0.731_058_6).abs() < 1e-6);
        assert!((choice[1].weight - 0.268_941_4).abs() < 1e-6);
    }

    #[test]
    fn ties_go_to_the_lower_index_and_nan_is_told() {
        let choice = best(&[1.0, 1.0, 1.0], &[1.0], &mut [0.0; 3], 2).unwrap();
        assert_eq!((choice[0].expert(), choice[1].expert()), (0, 1));
        assert!(best(&[f32::NAN, 1.0], &[1.0], &mut [0.0; 2], 1).is_none());
    }
}
