//! Why a token has no logits.

use crate::cluster::ClusterError;
use crate::storage::StorageError;
use core::fmt;

/// A token could not be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelError {
    /// A feed-forward network failed.
    Cluster(ClusterError),
    /// An embedding row did not come from flash.
    Storage(StorageError),
    /// A value is not finite.
    NotFinite {
        /// Where.
        stage: &'static str,
        /// Layer, 0 where the stage says enough.
        layer: usize,
    },
}

impl From<ClusterError> for ModelError {
    fn from(error: ClusterError) -> ModelError {
        ModelError::Cluster(error)
    }
}

impl From<StorageError> for ModelError {
    fn from(error: StorageError) -> ModelError {
        ModelError::Storage(error)
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelError::Cluster(error) => error.fmt(f),
            ModelError::Storage(error) => error.fmt(f),
            ModelError::NotFinite { stage, layer } => write!(
                f,
                "a value in {stage} of layer {layer} is not finite; the weights are broken or of \
                 another model, pack the image again"
            ),
        }
    }
}
