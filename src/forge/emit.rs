//! A solved plan as Rust source, for build.rs: plain integers that the compiler checks again.

use crate::plan::Plan;

/// The source that `src/baked.rs` includes: `PLAN` and `IMAGE`, where the image lies by default.
pub fn plan_source(plan: &Plan, image: &str) -> String {
    format!(
        "/// The plan this binary was built for.\n\
         pub const PLAN: Plan = {plan:#?};\n\
         /// Where its image lies unless the command line says otherwise.\n\
         pub const IMAGE: &str = {image:?};\n"
    )
}
