//! Paper: the bytes on flash, as the packer writes them and the engine reads them.
//!
//! Used by the packer (std), build.rs, the plan and the engine. Uses nothing but `core`, bytemuck
//! and half. Invariant: every offset in an image follows from its header by integer arithmetic;
//! nothing here depends on the machine that packs or reads.
//!
//! ```text
//! header 4 KiB | resident | tokenizer | order | embedding rows | neuron records
//! ```
//!
//! Every section starts at a multiple of [`geometry::BLOCK_BYTES`].

pub mod geometry;
pub mod header;
pub mod resident;
pub mod shape;
pub mod tag;
pub mod tokenizer;

pub use geometry::{Packing, Record, WeightType};
pub use header::{Header, HeaderError, Section, SectionKind};
pub use resident::Resident;
pub use shape::{ActivationFn, Biases, Shape, Types};
