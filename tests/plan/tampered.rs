//! `check` against plans with one number changed.

use super::{MIB, is_sentence, tight};
use ganglion::plan::{Plan, PlanError, RegionId, check};

fn region_refused(plan: &Plan, what: &str) {
    let refused = check(plan);
    assert!(matches!(refused, Err(PlanError::Region { .. })), "{what}: {refused:?}");
}

fn sum_refused(plan: &Plan, what: &str) {
    let refused = check(plan);
    assert!(matches!(refused, Err(PlanError::Sum { .. })), "{what}: {refused:?}");
}

#[test]
fn check_sees_every_tampered_region() {
    let plan = tight();
    for (index, region) in plan.regions.iter().enumerate() {
        let with = |change: &dyn Fn(&mut Plan)| {
            let mut plan = plan;
            change(&mut plan);
            plan
        };
        let name = region.id.name();
        for by in [1, region.align, 4096, plan.arena_bytes] {
            region_refused(&with(&|p| p.regions[index].offset += by), name);
        }
        if region.offset > 0 {
            region_refused(&with(&|p| p.regions[index].offset -= region.align), name);
        }
        region_refused(&with(&|p| p.regions[index].bytes = 0), name);
        region_refused(&with(&|p| p.regions[index].bytes += plan.arena_bytes), name);
        region_refused(&with(&|p| p.regions[index].align *= 2), name);
        for by in [1, 64, 4096] {
            let grown = with(&|p| p.regions[index].bytes += by);
            let shrunk = with(&|p| p.regions[index].bytes -= by.min(region.bytes / 2));
            if region.id == RegionId::Slots {
                assert!(check(&grown).is_err(), "slots grown by {by}");
                sum_refused(&shrunk, name); // the slots region holds slot_count slots
            } else {
                region_refused(&grown, name);
                region_refused(&shrunk, name);
            }
        }
        let next = (index + 1) % plan.regions.len();
        region_refused(&with(&|p| p.regions.swap(index, next)), name);
        region_refused(&with(&|p| p.regions[index].id = plan.regions[next].id), name);
        if plan.regions[next].offset != region.offset {
            region_refused(&with(&|p| p.regions[index].offset = plan.regions[next].offset), name);
        }
    }
}

#[test]
fn check_sees_every_tampered_sum() {
    let plan = tight();
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan;
        change(&mut plan);
        plan
    };
    type Field = fn(&mut Plan) -> &mut u64;
    let fields: [(&str, Field); 8] = [
        ("arena_bytes", |p| &mut p.arena_bytes),
        ("page_table_bytes", |p| &mut p.page_table_bytes),
        ("unused_bytes", |p| &mut p.unused_bytes),
        ("slot_bytes", |p| &mut p.slot_bytes),
        ("slot_count", |p| &mut p.slot_count),
        ("reads_per_token_max", |p| &mut p.reads_per_token_max),
        ("probes_per_token_max", |p| &mut p.probes_per_token_max),
        ("process_bytes", |p| &mut p.inputs.device.process_bytes),
    ];
    for (name, field) in fields {
        sum_refused(&with(&|p| *field(p) += 1), name);
        if name == "arena_bytes" {
            region_refused(&with(&|p| *field(p) = 4096), name);
        } else if *field(&mut plan.clone()) > 0 {
            sum_refused(&with(&|p| *field(p) -= 1), name);
        }
    }
    // Sums that still add up.
    let moved = with(&|p| {
        p.page_table_bytes -= 4096;
        p.unused_bytes += 4096;
    });
    sum_refused(&moved, "page tables hidden in unused");
    let moved = with(&|p| {
        p.arena_bytes += p.unused_bytes;
        p.unused_bytes = 0;
    });
    sum_refused(&moved, "unused hidden in the arena");
}

#[test]
fn check_tells_which_rule_a_region_breaks() {
    let plan = tight();
    let rule = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan;
        change(&mut plan);
        match check(&plan) {
            Err(PlanError::Region { id, rule }) => (id, rule),
            other => panic!("{other:?}"),
        }
    };
    use RegionId::{Candidates, Keys, Logits, Slots, Tokens, Values};
    let (keys, slots) = (plan.region(Keys), plan.region(Slots));
    let shared = "shares bytes with a region that lives at the same time";
    assert_eq!(rule(&|p| p.regions[Values as usize].offset = keys.offset), (Values, shared));
    assert_eq!(rule(&|p| p.regions[Values as usize].offset = keys.end() - 64), (Values, shared));
    assert_eq!(rule(&|p| p.regions[Tokens as usize].offset = slots.offset + 64), (Tokens, shared));
    let logits = plan.region(Logits).offset;
    assert_eq!(rule(&|p| p.regions[Candidates as usize].offset = logits), (Candidates, shared));
    assert_eq!(rule(&|p| p.regions[Keys as usize].bytes = 0), (Keys, "is empty or not aligned"));
    assert_eq!(rule(&|p| p.regions[Keys as usize].offset += 1), (Keys, "is empty or not aligned"));
    let behind = plan.arena_bytes;
    assert_eq!(
        rule(&|p| p.regions[Keys as usize].offset = behind),
        (Keys, "ends behind the arena")
    );
    let moved = (Slots, "stands in another region's place");
    assert_eq!(rule(&|p| p.regions[Slots as usize].id = Keys), moved);
    let odd = (Keys, "is not where and what the inputs ask for");
    assert_eq!(rule(&|p| p.regions[Keys as usize].bytes -= 64), odd);
    assert_eq!(rule(&|p| p.regions[Keys as usize].align = 32), odd);
}

#[test]
fn check_sees_a_plan_that_wastes_its_budget() {
    let mut plan = tight();
    plan.inputs.budget_bytes += 3 * MIB;
    plan.unused_bytes += 3 * MIB;
    sum_refused(&plan, "a cache smaller than the budget allows");
    let mut plan = tight();
    plan.inputs.budget_bytes -= plan.unused_bytes + 4096;
    assert!(check(&plan).is_err(), "a budget below the plan");
}

#[test]
fn a_tampered_plan_is_told_in_one_sentence() {
    let mut plan = tight();
    plan.unused_bytes += 1;
    let text = check(&plan).unwrap_err().to_string();
    assert!(is_sentence(&text) && text.contains(&plan.inputs.budget_bytes.to_string()), "{text}");
    let mut plan = tight();
    plan.regions[RegionId::Keys as usize].offset += 64;
    let text = check(&plan).unwrap_err().to_string();
    assert!(text.starts_with("region ") && text.contains("solve the plan again"), "{text}");
}
