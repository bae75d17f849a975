//! Room: model.
