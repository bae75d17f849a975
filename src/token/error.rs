//! What can go wrong between text and tokens.

use core::fmt;

/// Errors of the token room; each prints as one sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// The packed tokenizer contradicts itself.
    Section {
        /// What was checked.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What the value must be to `bound`: `exactly`, `at most`, `at least`.
        rule: &'static str,
        /// The value it was held against.
        bound: u64,
    },
    /// BOS was asked for and the vocabulary names none.
    NoBos,
    /// The vocabulary has no token for a byte of the text.
    NoByteToken {
        /// The byte.
        byte: u8,
    },
    /// A word, number or run of spaces is larger than the memory set aside for one.
    PieceTooLong {
        /// Its bytes.
        bytes: usize,
        /// Bytes there is room for.
        max: usize,
    },
    /// The text has more tokens than there is room for.
    TooManyTokens {
        /// Tokens of the whole text, BOS included.
        total: usize,
        /// Tokens there is room for.
        max: usize,
    },
    /// A setting of the sampler makes no sense.
    Setting {
        /// The setting and its range.
        wanted: &'static str,
    },
    /// The model's output is NaN or infinite.
    NotANumber {
        /// The token it belongs to.
        id: u32,
    },
    /// The caller's candidates and the logits don't fit together.
    Candidates {
        /// Logits given.
        logits: usize,
        /// Candidates lent.
        candidates: usize,
    },
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            TokenError::Section { what, found, rule, bound } => write!(
                f,
                "the tokenizer in the image is damaged: {what} is {found}, wanted {rule} {bound}; \
                 pack the model again"
            ),
            TokenError::NoBos => {
                f.write_str("a BOS token was asked for, but the model's vocabulary names none")
            }
            TokenError::NoByteToken { byte } => write!(
                f,
                "the model's vocabulary has no token for byte {byte:#04x} of the text; take that \
                 character out"
            ),
            TokenError::PieceTooLong { bytes, max } => write!(
                f,
                "the text has a piece of {bytes} bytes without a word boundary, wanted at most \
                 {max}; put spaces into it or build a plan with a longer context"
            ),
            TokenError::TooManyTokens { total, max } => write!(
                f,
                "the text has {total} tokens, there is room for {max}; shorten it or build a plan \
                 with a longer context"
            ),
            TokenError::Setting { wanted } => write!(f, "a sampler setting is wrong: {wanted}"),
            TokenError::NotANumber { id } => write!(
                f,
                "the model's output for token {id} is not a finite number; check the image with \
                 `ganglion check`"
            ),
            TokenError::Candidates { logits, candidates } => write!(
                f,
                "the sampler got {logits} logits and room for {candidates} candidates, wanted at \
                 least one logit and as much room as logits"
            ),
        }
    }
}

impl core::error::Error for TokenError {}
