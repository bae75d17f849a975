//! The cellar: one mapping, carved by plan region, then sealed.
//!
//! Carved once at boot by the door; every room above holds slices of it. Invariants: each region is
//! handed out once, so no two owners share a byte; after [`Arena::seal`] nothing is carved.
#![allow(unsafe_code)] // slices of the mapping

mod staging;

pub use staging::{Filling, Staging, View};

use crate::plan::{Life, Plan, REGIONS, RegionId, check};
use crate::sys::{Mapping, SysError};
use bytemuck::Zeroable;
use core::sync::atomic::{AtomicBool, Ordering};

/// The arena of a plan.
pub struct Arena<'p> {
    plan: &'p Plan,
    mapping: Mapping,
    carved: [AtomicBool; REGIONS],
    scratch_given: AtomicBool,
    sealed: AtomicBool,
}

impl<'p> Arena<'p> {
    /// Maps the plan's arena and touches every page of it.
    pub fn new(plan: &'p Plan) -> Result<Arena<'p>, SysError> {
        assert!(check(plan).is_ok(), "an arena is made from a proven plan");
        let mapping = Mapping::new(plan.arena_bytes as usize, plan.inputs.device.huge_pages)?;
        mapping.touch();
        Ok(Arena {
            plan,
            mapping,
            carved: [const { AtomicBool::new(false) }; REGIONS],
            scratch_given: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
        })
    }

    /// A region that lives always, as zeroed `T`s. Each region is carved once, before the seal.
    #[allow(clippy::mut_from_ref)] // each region is handed out once
    pub fn carve<T: Zeroable>(&self, id: RegionId) -> &mut [T] {
        assert!(!self.sealed.load(Ordering::SeqCst), "{} carved after the seal", id.name());
        assert!(matches!(id.life(), Life::Always), "{} is scratch", id.name());
        let twice = self.carved[id as usize].swap(true, Ordering::SeqCst);
        assert!(!twice, "{} carved twice", id.name());
        let region = self.plan.region(id);
        let (first, count) = (region.offset as usize, region.bytes as usize / size_of::<T>());
        assert!(region.end() <= self.mapping.bytes() as u64);
        // SAFETY: in bounds of the mapping; no other slice covers these bytes, since regions that
        // live always overlap nothing (plan::check) and each is carved once; the bytes are zero,
        // a valid T; the alignment is asserted.
        unsafe {
            let base = self.mapping.base().add(first).cast::<T>();
            assert!(base.is_aligned());
            core::slice::from_raw_parts_mut(base.as_ptr(), count)
        }
    }

    /// The scratch regions, which overlap by lifetime. Given once.
    pub fn scratch(&self) -> Scratch<'_> {
        let twice = self.scratch_given.swap(true, Ordering::SeqCst);
        assert!(!twice && !self.sealed.load(Ordering::SeqCst), "scratch is given once, at boot");
        let first = RegionId::ALL
            .iter()
            .filter(|id| !matches!(id.life(), Life::Always))
            .map(|&id| self.plan.region(id).offset)
            .min()
            .expect("every plan has scratch");
        let bytes = self.plan.arena_bytes - first;
        // SAFETY: in bounds; regions that live always end before the first scratch region
        // (plan::check forbids overlap, and solve places scratch last).
        let memory = unsafe {
            let base = self.mapping.base().add(first as usize);
            core::slice::from_raw_parts_mut(base.as_ptr(), bytes as usize)
        };
        Scratch { plan: self.plan, first, memory }
    }

    /// From here on nothing is carved.
    pub fn seal(&self) {
        self.sealed.store(true, Ordering::SeqCst);
    }
}

/// Memory whose regions overlap by lifetime. A stage borrows the regions it needs; the borrow
/// checker keeps stages apart.
pub struct Scratch<'a> {
    plan: &'a Plan,
    first: u64,
    memory: &'a mut [u8],
}

impl Scratch<'_> {
    /// The bytes of `ids`, which must not overlap.
    pub fn parts<const N: usize>(&mut self, ids: [RegionId; N]) -> [&mut [u8]; N] {
        let ranges = ids.map(|id| {
            let region = self.plan.region(id);
            (region.offset - self.first) as usize..(region.end() - self.first) as usize
        });
        self.memory.get_disjoint_mut(ranges).expect("regions of one stage are disjoint")
    }

    /// The regions `ids` as f32.
    pub fn floats<const N: usize>(&mut self, ids: [RegionId; N]) -> [&mut [f32]; N] {
        self.parts(ids).map(bytemuck::cast_slice_mut)
    }
}

#[cfg(test)]
mod tests;
