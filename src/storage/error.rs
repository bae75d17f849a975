//! Why bytes did not come from flash.

use crate::sys::ReadError;
use core::fmt;

/// A read that failed after its retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageError {
    /// The kernel refused, or the file ended.
    Read {
        /// Byte offset in the image.
        offset: u64,
        /// What happened.
        error: ReadError,
    },
    /// A record's tag does not hold.
    Record {
        /// Layer of the record.
        layer: u16,
        /// Expert of the record.
        expert: u16,
        /// Neuron within the expert.
        neuron: u32,
    },
    /// An embedding row's tag does not hold.
    Embedding {
        /// Token of the row.
        token: u32,
    },
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            StorageError::Read { offset, error: ReadError::Errno(errno) } => write!(
                f,
                "reading the image at byte {offset} failed three times (errno {errno}); \
                 check the disk and its log"
            ),
            StorageError::Read { offset, error: ReadError::Short(got) } => write!(
                f,
                "reading the image at byte {offset} ended after {got} bytes; \
                 the file was cut while in use, copy or pack it again"
            ),
            StorageError::Record { layer, expert, neuron } => write!(
                f,
                "neuron {neuron} of layer {layer}, expert {expert} is damaged in the image \
                 (its checksum failed three times); copy or pack the image again"
            ),
            StorageError::Embedding { token } => write!(
                f,
                "the embedding row of token {token} is damaged in the image \
                 (its checksum failed three times); copy or pack the image again"
            ),
        }
    }
}
