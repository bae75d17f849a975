//! Rotary positions of a model file: frequencies with their scaling, and the order of turned rows.
//!
//! Called by `forge::model`. The engine has one rope: pairs of neighbours, one frequency each. What
//! a file has otherwise is turned into that when it is packed.
//!
//! ```text
//! plain    f_i = base^(-2i / turned)
//! linear   f_i / factor
//! llama3   f_i where its wavelength is below original / high, f_i / factor where it is above
//!          original / low, a mix of both between them ("Llama 3.1" frequencies)
//! yarn     f_i where it turns more than beta_fast times over the original context, f_i / factor
//!          where it turns less than beta_slow times, a mix of both between them; and cos and sin
//!          grow by 0.1 ln(factor) + 1 (Peng et al. 2023, arXiv 2309.00071, sections 3.2 and 3.4)
//! factors  f_i / rope_freqs[i], the same scalings as a tensor
//! ```

use super::family::RopeOrder;
use super::{Keys, ModelFileError};
use crate::forge::source::Source;
use std::f64::consts::TAU;

/// Base of the frequencies where a file names none.
const BASE: f32 = 10_000.0;
/// YaRN's own, where a file names none: turns over the original context.
const BETA_FAST: f32 = 32.0;
/// The same.
const BETA_SLOW: f32 = 1.0;

/// How queries and keys are turned by their positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Angle of each pair of a head's values from one position to the next.
    pub frequencies: Vec<f64>,
    /// What cos and sin are multiplied by.
    pub attention_factor: f32,
    /// Rows of q and k in the file.
    pub rows: RopeRows,
}

/// Where the rows of q and k lie in the file, of the order in which the engine wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeRows {
    order: RopeOrder,
    head_dim: u64,
    /// Values of a head that are turned, from the first on.
    turned: u64,
}

impl RopeRows {
    /// The file's row that is row `row` of the image.
    pub fn source(&self, row: u64) -> u64 {
        let within = row % self.head_dim;
        match self.order {
            RopeOrder::Halves if within < self.turned => {
                row - within + within / 2 + within % 2 * (self.turned / 2)
            }
            _ => row,
        }
    }
}

impl Rope {
    /// The rope of a file whose q and k rows are in `order`.
    pub(super) fn read(
        source: &Source,
        keys: &Keys<'_>,
        order: RopeOrder,
    ) -> Result<Rope, ModelFileError> {
        let head_dim = keys.head_dim()?;
        let turned = keys.opt_number("rope.dimension_count")?.unwrap_or(head_dim);
        if turned == 0 || turned % 2 != 0 || turned > head_dim {
            let wanted = "an even number of values, no more than a head has";
            return Err(keys.unknown("rope.dimension_count", turned, wanted));
        }
        let base = f64::from(keys.positive("rope.freq_base")?.unwrap_or(BASE));
        if base <= 1.0 {
            return Err(keys.unknown("rope.freq_base", base, "bases above 1"));
        }
        let (scaling, attention_factor) = Scaling::read(keys)?;
        if attention_factor != 1.0 && turned != head_dim {
            let wanted = "an attention factor over whole heads";
            return Err(keys.unknown("rope.dimension_count", turned, wanted));
        }
        let plain = (0..turned / 2).map(|i| base.powf(-2.0 * i as f64 / turned as f64));
        let mut frequencies = scaling.scale(base, plain.collect());
        if let Some(factors) = factors(source, turned / 2)? {
            frequencies.iter_mut().zip(factors).for_each(|(f, factor)| *f /= f64::from(factor));
        }
        // Angle 0 turns nothing.
        frequencies.resize(head_dim as usize / 2, 0.0);
        let rows = RopeRows { order, head_dim, turned };
        Ok(Rope { frequencies, attention_factor, rows })
    }
}

/// The tensor of factors, if there is one; each is a positive number.
fn factors(source: &Source, wanted: u64) -> Result<Option<Vec<f32>>, ModelFileError> {
    let Some(tensor) = source.opt_tensor("rope_freqs.weight") else { return Ok(None) };
    let path = || source.path().display().to_string();
    let name = || tensor.name.clone();
    if tensor.dims != [wanted] {
        let (wanted, found) = (vec![wanted], tensor.dims.clone());
        return Err(ModelFileError::TensorShape { path: path(), name: name(), wanted, found });
    }
    let factors = source.rows_f32(tensor, 0, 1)?;
    if factors.iter().all(|factor| factor.is_finite() && *factor > 0.0) {
        return Ok(Some(factors));
    }
    Err(ModelFileError::NotFinite { path: path(), name: name(), row: 0 })
}

/// How frequencies are changed for contexts longer than the first training's, `original` tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scaling {
    None,
    Linear { factor: f64 },
    Llama3 { factor: f64, low: f64, high: f64, original: f64 },
    Yarn { factor: f64, fast: f64, slow: f64, original: f64 },
}

impl Scaling {
    /// The scaling, and the attention factor that belongs to it.
    fn read(keys: &Keys<'_>) -> Result<(Scaling, f32), ModelFileError> {
        let factor = match keys.positive("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => keys.positive("rope.scale_linear")?, // its older name
        };
        let unnamed = if factor.is_some() { "linear" } else { "none" };
        let kind = keys.opt_string("rope.scaling.type")?.unwrap_or(unnamed);
        let attention = keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let factor = f64::from(factor.unwrap_or(1.0));
        match kind {
            "none" => Ok((Scaling::None, attention)),
            "linear" => Ok((Scaling::Linear { factor }, attention)),
            "llama3" => Ok((Scaling::llama3(keys, factor)?, attention)),
            "yarn" => {
                let own = keys.positive("rope.scaling.yarn_attn_factor")?;
                let own = own.unwrap_or((0.1 * factor.max(1.0).ln() + 1.0) as f32);
                Ok((Scaling::yarn(keys, factor)?, attention * own))
            }
            _ => {
                let wanted = "rope scaling none, linear, llama3 and yarn";
                Err(keys.unknown("rope.scaling.type", kind, wanted))
            }
        }
    }

    fn llama3(keys: &Keys<'_>, factor: f64) -> Result<Scaling, ModelFileError> {
        let low = f64::from(keys.positive("rope.scaling.low_freq_factor")?.unwrap_or(1.0));
        let high = f64::from(keys.positive("rope.scaling.high_freq_factor")?.unwrap_or(4.0));
        if low >= high {
            let wanted = "a low_freq_factor below the high_freq_factor";
            return Err(keys.unknown("rope.scaling.low_freq_factor", low, wanted));
        }
        Ok(Scaling::Llama3 { factor, low, high, original: original(keys)? })
    }

    fn yarn(keys: &Keys<'_>, factor: f64) -> Result<Scaling, ModelFileError> {
        let mixed = keys.positive("rope.scaling.yarn_ext_factor")?.unwrap_or(1.0);
        if mixed != 1.0 {
            return Err(keys.unknown("rope.scaling.yarn_ext_factor", mixed, "1"));
        }
        let fast = f64::from(keys.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(BETA_FAST));
        let slow = f64::from(keys.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(BETA_SLOW));
        Ok(Scaling::Yarn { factor, fast, slow, original: original(keys)? })
    }

    /// Scales frequencies that were made from `base`.
    fn scale(self, base: f64, mut frequencies: Vec<f64>) -> Vec<f64> {
        let pairs = frequencies.len() as f64;
        for (i, f) in frequencies.iter_mut().enumerate() {
            // How much of the frequency is divided by the factor, from 0 to 1.
            let (factor, share) = match self {
                Scaling::None => continue,
                Scaling::Linear { factor } => (factor, 1.0),
                Scaling::Llama3 { factor, low, high, original } => {
                    let turns = original * *f / TAU;
                    (factor, 1.0 - ((turns - low) / (high - low)).clamp(0.0, 1.0))
                }
                Scaling::Yarn { factor, fast, slow, original } => {
                    // The pair that turns so many times over the original context.
                    let pair = |turns: f64| pairs * (original / (turns * TAU)).ln() / base.ln();
                    let first = pair(fast).floor().max(0.0);
                    let last = pair(slow).ceil().min(2.0 * pairs - 1.0);
                    let width = (last - first).max(0.001);
                    (factor, ((i as f64 - first) / width).clamp(0.0, 1.0))
                }
            };
            *f = *f * (1.0 - share) + *f / factor * share;
        }
        frequencies
    }
}

/// Tokens of the context that the model was first trained for.
fn original(keys: &Keys<'_>) -> Result<f64, ModelFileError> {
    match keys.opt_number("rope.scaling.original_context_length")? {
        Some(0) | None => Ok(keys.number("context_length")? as f64),
        Some(original) => Ok(original as f64),
    }
}
