//! Why a file is not a model that can be packed.

use crate::forge::source::SourceError;
use crate::forge::tokenizer::TokenizerError;

/// Why a file is not a model that can be packed.
#[derive(Debug, thiserror::Error)]
pub enum ModelFileError {
    /// The file is not a sound GGUF.
    #[error("{0}")]
    Source(Box<SourceError>),
    /// Its tokenizer can't be packed.
    #[error("{path}: {source}")]
    Tokenizer {
        /// The file.
        path: String,
        /// What stands in the way.
        source: TokenizerError,
    },
    /// A key holds something this version doesn't run.
    #[error("{path}: {key} is {found:?}; this version runs {wanted}")]
    Unknown {
        /// The file.
        path: String,
        /// The key.
        key: String,
        /// What it holds.
        found: String,
        /// What it may hold.
        wanted: &'static str,
    },
    /// A dimension is outside the limits.
    #[error(
        "{path}: {name} is {found}, outside 1 to {limit}; the file is damaged or not a decoder"
    )]
    Shape {
        /// The file.
        path: String,
        /// The dimension.
        name: &'static str,
        /// Largest value.
        limit: u64,
        /// Its value.
        found: u64,
    },
    /// A dimension does not divide as it must.
    #[error("{path}: {name} is {found}, not a multiple of {of}; this version can't run that")]
    Multiple {
        /// The file.
        path: String,
        /// The dimension.
        name: &'static str,
        /// What it must be a multiple of.
        of: u64,
        /// Its value.
        found: u64,
    },
    /// The tokenizer has ids that no embedding row stands for.
    #[error(
        "{path}: the tokenizer has {tokens} tokens, token_embd.weight only {rows} rows; \
             the file is damaged or joined from two models"
    )]
    Vocabulary {
        /// The file.
        path: String,
        /// Tokens of the tokenizer.
        tokens: u64,
        /// Rows of the embedding matrix.
        rows: u64,
    },
    /// A weight is not a number.
    #[error(
        "{path}: tensor {name} holds a weight that is not finite in row {row}; \
             the file is damaged, get it again"
    )]
    NotFinite {
        /// The file.
        path: String,
        /// The tensor.
        name: String,
        /// The row.
        row: u64,
    },
    /// A tensor has other dimensions than the model's.
    #[error("{path}: tensor {name} is {found:?}, the model's dimensions ask for {wanted:?}")]
    TensorShape {
        /// The file.
        path: String,
        /// The tensor.
        name: String,
        /// What the dimensions ask for, row length first.
        wanted: Vec<u64>,
        /// What it has.
        found: Vec<u64>,
    },
}

impl From<SourceError> for ModelFileError {
    fn from(error: SourceError) -> ModelFileError {
        ModelFileError::Source(Box::new(error))
    }
}
