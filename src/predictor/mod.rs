//! Room: predictor.
