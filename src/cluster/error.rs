//! Why a layer's network has no output.

use crate::storage::StorageError;
use core::fmt;

/// A layer's network could not be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterError {
    /// A record did not come from flash.
    Storage(StorageError),
    /// A neuron's contribution left the fixed-point range.
    Overflow {
        /// Layer.
        layer: u16,
        /// Expert.
        expert: u16,
    },
}

impl From<StorageError> for ClusterError {
    fn from(error: StorageError) -> ClusterError {
        ClusterError::Storage(error)
    }
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClusterError::Storage(error) => error.fmt(f),
            ClusterError::Overflow { layer, expert } => write!(
                f,
                "an activation of layer {layer}, expert {expert} is not finite or leaves the \
                 fixed-point range; pack the image from a sound model file, \
                 and report it if it stays"
            ),
        }
    }
}
