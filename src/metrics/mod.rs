//! Room: metrics.
