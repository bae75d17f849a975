//! The voice: text to tokens, tokens to text, logits to the next token.
//!
//! Called by cli (`run`, `chat`, `bench`). Reads the tokenizer section of the
//! image in place; owns no memory but what callers lend.
//!
//! Invariants: a section is checked once, in [`Tokenizer::new`], and no text or token id can cause
//! a panic afterwards; the same section and text give the same tokens; the same logits, seed and
//! history give the same sample, bit for bit.

mod encode;
mod error;
mod pre;
mod sampler;
mod stream;
mod template;
mod tokenizer;

pub use crate::kernel::Candidate;
pub use encode::{EncodeOptions, EncodeScratch, Start};
pub use error::TokenError;
pub use sampler::{Sampler, SamplerConfig};
pub use stream::Utf8Stream;
pub use template::{Place, Turn, write_turn};
pub use tokenizer::Tokenizer;
