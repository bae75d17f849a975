//! Why a text can't be scored.

use std::io;

use crate::cli::Fault;
use crate::forge::verify::VerifyError;
use crate::image::HeaderError;
use crate::model::ModelError;
use crate::plan::PlanError;
use crate::sys::exit;
use crate::token::TokenError;

/// Why there is no score.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// The image can't be opened.
    #[error(transparent)]
    Image(#[from] VerifyError),
    /// The image's header names what this version does not know.
    #[error("image {path} can't be used: {error}")]
    Header {
        /// The file.
        path: String,
        /// Why.
        error: HeaderError,
    },
    /// The engine stopped.
    #[error("{0}")]
    Engine(Fault),
    /// The image has no plan of this size.
    #[error("there is no plan for this evaluation: {0}")]
    Plan(PlanError),
    /// The text or the reference can't be read.
    #[error("{what} {path} can't be read: {source}; check the name and the disk")]
    Read {
        /// Text or reference.
        what: &'static str,
        /// The file.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// The text is not text.
    #[error("text {path} is not UTF-8 from byte {at} on; convert it")]
    NotUtf8 {
        /// The file.
        path: String,
        /// First byte that is not.
        at: usize,
    },
    /// The text is too short.
    #[error(
        "text {path} has {found} tokens, {chunks} chunks of {context} need {wanted}; give a longer \
         text, fewer --chunks or a smaller --context"
    )]
    TooShort {
        /// The file.
        path: String,
        /// Its tokens.
        found: usize,
        /// Tokens of the chunks.
        wanted: usize,
        /// Chunks.
        chunks: usize,
        /// Tokens of a chunk.
        context: usize,
    },
    /// The reference is not a file of logits.
    #[error("reference {path} can't be used: {reason}; write it with `--save-all-logits`")]
    Format {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// The reference is of other things than asked for.
    #[error("reference {path} does not fit: {reason}")]
    Mismatch {
        /// The file.
        path: String,
        /// What differs, and what to do.
        reason: String,
    },
}

impl EvalError {
    /// The sysexits code of this error.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            EvalError::Image(VerifyError::Read { .. }) | EvalError::Read { .. } => exit::NO_INPUT,
            EvalError::Engine(fault) => fault.exit_code(),
            EvalError::Plan(_) => exit::CONFIG,
            _ => exit::DATA,
        }
    }
}

impl From<Fault> for EvalError {
    fn from(fault: Fault) -> EvalError {
        EvalError::Engine(fault)
    }
}

impl From<ModelError> for EvalError {
    fn from(error: ModelError) -> EvalError {
        EvalError::Engine(error.into())
    }
}

impl From<TokenError> for EvalError {
    fn from(error: TokenError) -> EvalError {
        EvalError::Engine(error.into())
    }
}
