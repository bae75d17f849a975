//! Ganglion: runs language models larger than the memory they may use.
//!
//! The floor plan. Rooms are numbered; a room uses only rooms with smaller numbers, and the two
//! blueprints (0) use nothing but `core`. `tests/tidy.rs` checks it.
//!
//! ```text
//!  0 plan       what we promise: every byte of memory, solved at build time
//!  0 image      bytes on flash: header, resident section, neuron records, tags
//!  1 sys        the ground: the only room that talks to the kernel
//!  1 metrics    the meters: fixed histograms and counters
//!  2 arena      the cellar: one mapping, carved by plan region, then sealed
//!  3 storage    the larder: bounded reads from flash into staging, tags verified
//!  4 cache      the shelves: which neuron lies in which slot
//!  5 predictor  the scout: which neurons will fire
//!  6 kernel     the tools: hand-written kernels and their exact Rust twins
//!  7 cluster    the workshop: neuron clusters, hits while misses fly
//!  8 model      the living room: the forward pass
//!  9 token      the voice: tokenizer, sampler, chat templates
//! 10 cli        the door: run, chat, bench, plan, check
//!    forge      std only (feature `host`): shape, pack, inspect, eval, plan
//! ```
#![cfg_attr(not(any(test, feature = "host")), no_std)]

pub mod plan; // 0
pub mod image; // 0
pub mod sys; // 1
pub mod metrics; // 1
pub mod arena; // 2
pub mod storage; // 3
pub mod cache; // 4
pub mod predictor; // 5
pub mod kernel; // 6
pub mod cluster; // 7
pub mod model; // 8
pub mod token; // 9
pub mod cli; // 10

pub mod baked;

#[cfg(feature = "host")]
pub mod forge;
