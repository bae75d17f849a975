//! Proves a plan by arithmetic: called by build.rs, at compile time, at boot and in tests.

use super::error::PlanError;
use super::region::{REGIONS, RegionId};
use super::solve::{Plan, solve};

/// Largest unused share of a budget that could have held more: one slot and this.
pub const UNUSED_MAX: u64 = 2 << 20;

/// Checks every invariant of `plan`.
pub const fn check(plan: &Plan) -> Result<(), PlanError> {
    let mut i = 0;
    while i < REGIONS {
        if let Some(rule) = region_fault(plan, i) {
            return Err(PlanError::Region { id: RegionId::ALL[i], rule });
        }
        i += 1;
    }
    check_sums(plan)
}

const fn region_fault(plan: &Plan, index: usize) -> Option<&'static str> {
    let region = &plan.regions[index];
    if region.id as usize != index {
        return Some("stands in another region's place");
    }
    if region.bytes == 0 || !region.offset.is_multiple_of(region.align) {
        return Some("is empty or not aligned");
    }
    if region.end() > plan.arena_bytes {
        return Some("ends behind the arena");
    }
    let mut other = 0;
    while other < index {
        let o = &plan.regions[other];
        let apart = region.offset >= o.end() || region.end() <= o.offset;
        if !apart && region.id.life().meets(o.id.life()) {
            return Some("shares bytes with a region that lives at the same time");
        }
        other += 1;
    }
    None
}

const fn check_sums(plan: &Plan) -> Result<(), PlanError> {
    let inputs = &plan.inputs;
    if plan.total_bytes() + plan.unused_bytes != inputs.budget_bytes {
        return Err(PlanError::Sum {
            rule: "arena, page tables, process and unused make the budget",
            wanted: inputs.budget_bytes,
            found: plan.total_bytes() + plan.unused_bytes,
        });
    }
    let slots = plan.region(RegionId::Slots).bytes;
    if slots != plan.slot_count * plan.slot_bytes {
        return Err(PlanError::Sum {
            rule: "the slots region holds slot_count slots",
            wanted: plan.slot_count * plan.slot_bytes,
            found: slots,
        });
    }
    let whole = plan.slot_count >= inputs.shape.neurons();
    // Where neurons stream, each layer has as many slots.
    let last = if plan.streams { plan.slot_bytes * inputs.shape.layers } else { plan.slot_bytes };
    if !whole && plan.unused_bytes > last + UNUSED_MAX {
        return Err(PlanError::Sum {
            rule: "a budget smaller than the model is used but for the next slots and 2 MiB",
            wanted: last + UNUSED_MAX,
            found: plan.unused_bytes,
        });
    }
    match solve(*inputs) {
        Ok(again) => compare(plan, &again),
        Err(error) => Err(error),
    }
}

/// Compares every number of `plan` with those its inputs solve to.
const fn compare(plan: &Plan, again: &Plan) -> Result<(), PlanError> {
    let mut i = 0;
    while i < REGIONS {
        let (a, b) = (&plan.regions[i], &again.regions[i]);
        if a.offset != b.offset || a.bytes != b.bytes || a.align != b.align {
            let rule = "is not where and what the inputs ask for";
            return Err(PlanError::Region { id: b.id, rule });
        }
        i += 1;
    }
    let sums = [
        ("arena_bytes", plan.arena_bytes, again.arena_bytes),
        ("page_table_bytes", plan.page_table_bytes, again.page_table_bytes),
        ("unused_bytes", plan.unused_bytes, again.unused_bytes),
        ("slot_bytes", plan.slot_bytes, again.slot_bytes),
        ("slot_count", plan.slot_count, again.slot_count),
        ("streams", plan.streams as u64, again.streams as u64),
        ("reads_per_token_max", plan.reads_per_token_max, again.reads_per_token_max),
        ("probes_per_token_max", plan.probes_per_token_max, again.probes_per_token_max),
    ];
    let mut i = 0;
    while i < sums.len() {
        let (rule, found, wanted) = sums[i];
        if found != wanted {
            return Err(PlanError::Sum { rule, wanted, found });
        }
        i += 1;
    }
    Ok(())
}
