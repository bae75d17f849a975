//! The larder: bounded reads of neuron records from flash into staging, every tag verified.
//!
//! The main thread submits a wave of reads, readers fill staging buffers, workers take them in the
//! order they land, the main thread releases the wave. A dense model's reads come by themselves, in
//! the order of their use: see [`cycle`]. Called by cluster (records) and model (embedding rows).
//! Invariants: never more reads in flight than the plan has buffers; no byte of a record is seen
//! before its tag held; a damaged read is tried again, then told.

mod cycle;
mod error;
mod readers;
mod records;

pub use cycle::Taken;
pub use error::StorageError;
pub use readers::{Landed, Larder, RequestCell, Run};
pub use records::RecordMap;
