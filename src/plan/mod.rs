//! Blueprint: what we promise. Every byte of memory is decided here, before anything runs.
//!
//! `solve` turns [`Inputs`] into a [`Plan`]; `check` proves a plan by arithmetic. Both are `const`,
//! integers only, and compiled four times from this one source: build.rs, engine, forge, tests.
//! Invariants: a plan that passes [`check`] fits its budget, and no two regions that live at the
//! same time share a byte.
//!
//! GB is 10^9 bytes, GiB 2^30.

mod check;
mod error;
mod inputs;
mod numerics;
mod region;
mod report;
pub mod scratch;
mod solve;

pub use check::check;
pub use error::PlanError;
pub use inputs::{Device, Inputs, Lock};
pub use numerics::{ARITHMETIC, KvType, Numerics};
pub use region::{Life, REGIONS, Region, RegionId};
pub use report::{bytes, report};
pub use solve::{CHOICE_BYTES, Plan, READERS_MAX, READS_MAX, THREADS_MAX, solve};

#[cfg(test)]
mod tests;
