//! Carving by region, and staging buffers between threads.

use super::*;
use crate::plan::solve;
use core::sync::atomic::AtomicU32;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn demo() -> Plan {
    solve(crate::baked::PLAN.inputs).unwrap()
}

#[test]
fn regions_are_zero_disjoint_and_given_once() {
    let plan = demo();
    let arena = Arena::new(&plan).unwrap();
    let slots: &mut [u8] = arena.carve(RegionId::Slots);
    assert_eq!(slots.len() as u64, plan.slot_count * plan.slot_bytes);
    assert!(slots.iter().all(|&byte| byte == 0));
    let table: &mut [u32] = arena.carve(RegionId::Table);
    slots.fill(0xff);
    assert!(table.iter().all(|&entry| entry == 0));
    let again = catch_unwind(AssertUnwindSafe(|| arena.carve::<u8>(RegionId::Slots).len()));
    assert!(again.is_err(), "a region is carved once");
    arena.seal();
    let late = catch_unwind(AssertUnwindSafe(|| arena.carve::<u8>(RegionId::Keys).len()));
    assert!(late.is_err(), "nothing is carved after the seal");
}

#[test]
fn scratch_gives_disjoint_parts_only() {
    let plan = demo();
    let arena = Arena::new(&plan).unwrap();
    let mut scratch = arena.scratch();
    let [residual, query] = scratch.floats([RegionId::Residual, RegionId::Qkv]);
    residual.fill(1.0);
    query.fill(2.0);
    let [residual] = scratch.floats([RegionId::Residual]);
    assert!(residual.iter().all(|&value| value == 1.0));
    let same = [RegionId::Qkv, RegionId::Qkv];
    let clash = catch_unwind(AssertUnwindSafe(|| scratch.parts(same).len()));
    assert!(clash.is_err(), "overlapping parts are refused");
}

#[test]
fn a_buffer_has_one_writer_or_many_readers() {
    let mut memory = vec![0u8; 2 * 4096];
    let states = [AtomicU32::new(0), AtomicU32::new(0)];
    let staging = Staging::new(&mut memory, &states);
    assert!(staging.view(0).is_none(), "free");
    let mut filling = staging.fill(0).unwrap();
    assert!(staging.fill(0).is_none() && staging.view(0).is_none(), "filling");
    filling[7] = 42;
    filling.ready();
    let (first, second) = (staging.view(0).unwrap(), staging.view(0).unwrap());
    assert_eq!((first[7], second[7]), (42, 42));
    assert!(staging.fill(0).is_none(), "ready");
    let early = catch_unwind(AssertUnwindSafe(|| staging.release(0)));
    assert!(early.is_err(), "somebody still looks at it");
    drop((first, second));
    staging.release(0);
    assert!(staging.fill(0).is_some() && staging.fill(1).is_some());
}
