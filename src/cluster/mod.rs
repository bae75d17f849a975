//! Room: cluster.
