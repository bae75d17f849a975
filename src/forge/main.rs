//! `ganglion-forge`: the host tool.
fn main() {}
