//! Why a plan can't be made, in one sentence with the numbers.

use super::region::RegionId;
use crate::image::geometry::GROUP;
use core::fmt;

/// Why inputs have no plan, or a plan does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// A dimension of the model is zero or outside the limits.
    Shape {
        /// Field.
        name: &'static str,
        /// Largest value.
        limit: u64,
        /// Its value.
        found: u64,
    },
    /// A setting of the plan or device is outside its range.
    Setting {
        /// Field.
        name: &'static str,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
        /// Its value.
        found: u64,
    },
    /// A number is not a multiple of what it must be.
    Multiple {
        /// Field.
        name: &'static str,
        /// What it must be a multiple of.
        of: u64,
        /// Its value.
        found: u64,
    },
    /// Keys and values are to be codes, and a head is not made of whole groups.
    KvGroups {
        /// Width of a head.
        found: u64,
    },
    /// A number is not a power of two.
    PowerOfTwo {
        /// Field.
        name: &'static str,
        /// Its value.
        found: u64,
    },
    /// The budget does not hold one token's working set.
    BudgetTooSmall {
        /// The budget.
        budget_bytes: u64,
        /// The smallest budget that plans.
        wanted_bytes: u64,
        /// Of that: the process outside the arena.
        process_bytes: u64,
        /// Of that: weights used for every token.
        resident_bytes: u64,
        /// Of that: cached keys and values.
        kv_bytes: u64,
    },
    /// A region of the plan breaks a rule.
    Region {
        /// The region.
        id: RegionId,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// A sum of the plan breaks a rule.
    Sum {
        /// The rule, or the number that is not what the inputs solve to.
        rule: &'static str,
        /// What the rule allows.
        wanted: u64,
        /// What the plan has.
        found: u64,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PlanError::Shape { name, limit, found } => write!(
                f,
                "the model's {name} is {found}, outside 1 to {limit}; mend the model file"
            ),
            PlanError::Setting { name, min, max, found } => {
                write!(f, "{name} is {found}, outside {min} to {max}; mend the plan or device file")
            }
            PlanError::Multiple { name, of, found } => write!(
                f,
                "{name} is {found}, not a multiple of {of}; mend the model or device file"
            ),
            PlanError::KvGroups { found } => write!(
                f,
                "kv = \"q8\" wants heads of a multiple of {GROUP} values, and the model's head_dim \
                 is {found}; set kv = \"f16\" in the plan"
            ),
            PlanError::PowerOfTwo { name, found } => {
                write!(f, "{name} is {found}, not a power of two; mend the device file")
            }
            PlanError::BudgetTooSmall {
                budget_bytes,
                wanted_bytes,
                process_bytes,
                resident_bytes,
                kv_bytes,
            } => write!(
                f,
                "the budget of {budget_bytes} bytes is too small: the smallest that plans is \
                 {wanted_bytes} bytes (process {process_bytes}, resident weights \
                 {resident_bytes}, keys and values {kv_bytes}); \
                 raise the budget or shorten the context"
            ),
            PlanError::Region { id, rule } => {
                write!(f, "region {} {rule}; solve the plan again", id.name())
            }
            PlanError::Sum { rule, wanted, found } => {
                write!(f, "{rule}: wanted {wanted}, found {found}; solve the plan again")
            }
        }
    }
}
