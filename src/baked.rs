//! The plan this binary was built for, written by build.rs and proved again by the compiler.

#[allow(unused_imports)] // which of the names a plan uses depends on the plan
use crate::image::{ActivationFn::*, Biases, Shape, Types, WeightType::*};
use crate::plan::{Device, Inputs, KvType::*, Lock::*, Numerics, Plan, Region, RegionId::*, check};

include!(concat!(env!("OUT_DIR"), "/plan.rs"));

const _: () = assert!(check(&PLAN).is_ok(), "the plan does not pass its own check");
