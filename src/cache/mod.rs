//! The shelves: which neuron lies in which slot.
//!
//! Called by cluster. Invariants: table and owners say the same (a slot's owner points back at the
//! slot); a pinned neuron keeps its slot; a hit writes at most its own table entry.
//!
//! The first policy is CLOCK: a hand goes round the slots and takes the first one whose neuron was
//! not used since the hand last passed.

use core::ops::Range;

/// Set in a table entry when its neuron is used, cleared when the hand passes.
const USED: u32 = 1 << 31;
/// A slot nobody owns.
const NOBODY: u32 = 0;
/// Ranges that can be pinned at once: one for each expert of a token.
const PINS_MAX: usize = crate::image::shape::EXPERTS_USED_MAX as usize;

/// Neuron -> slot, for every neuron of the model.
pub struct Cache<'a> {
    /// 0, or slot + 1, with [`USED`].
    table: &'a mut [u32],
    /// 0, or neuron + 1.
    owners: &'a mut [u32],
    hand: usize,
    /// Neurons that have a slot.
    held: usize,
    pins: heapless::Vec<Range<u32>, PINS_MAX>,
}

impl<'a> Cache<'a> {
    /// An empty cache over zeroed tables: one entry a neuron, one owner a slot.
    pub fn new(table: &'a mut [u32], owners: &'a mut [u32]) -> Cache<'a> {
        Cache { table, owners, hand: 0, held: 0, pins: heapless::Vec::new() }
    }

    /// Slots.
    pub fn slots(&self) -> usize {
        self.owners.len()
    }

    /// Whether every neuron of the model has a slot: then none is ever taken from another.
    pub fn is_whole(&self) -> bool {
        self.held == self.table.len()
    }

    /// The slot of a neuron.
    pub fn slot(&self, neuron: u32) -> Option<usize> {
        match self.table[neuron as usize] & !USED {
            0 => None,
            entry => Some(entry as usize - 1),
        }
    }

    /// The slot of a neuron that is about to be used.
    pub fn touch(&mut self, neuron: u32) -> Option<usize> {
        let slot = self.slot(neuron)?;
        self.table[neuron as usize] |= USED;
        Some(slot)
    }

    /// Keeps every neuron of `range` in its slot until [`Cache::unpin`].
    pub fn pin(&mut self, range: Range<u32>) {
        self.pins.push(range).expect("a token pins one range for each of its experts");
    }

    /// Lets go of every pinned range.
    pub fn unpin(&mut self) {
        self.pins.clear();
    }

    /// Gives a neuron that has none a slot, taking another's if all are held. `None` if every
    /// slot is pinned.
    pub fn admit(&mut self, neuron: u32) -> Option<usize> {
        assert!(self.slot(neuron).is_none(), "neuron {neuron} has a slot");
        let slot = self.victim()?;
        match self.owners[slot] {
            NOBODY => self.held += 1,
            owner => self.table[owner as usize - 1] = 0,
        }
        self.owners[slot] = neuron + 1;
        self.table[neuron as usize] = slot as u32 + 1;
        Some(slot)
    }

    /// The next slot that may be taken: within two turns of the hand, or none.
    fn victim(&mut self) -> Option<usize> {
        for _ in 0..2 * self.owners.len() {
            let slot = self.hand;
            self.hand = if slot + 1 == self.owners.len() { 0 } else { slot + 1 };
            let owner = self.owners[slot];
            if owner == NOBODY {
                return Some(slot);
            }
            if self.is_pinned(owner - 1) {
                continue;
            }
            let entry = &mut self.table[owner as usize - 1];
            if *entry & USED == 0 {
                return Some(slot);
            }
            *entry &= !USED;
        }
        None
    }

    fn is_pinned(&self, neuron: u32) -> bool {
        self.pins.iter().any(|range| range.contains(&neuron))
    }

    /// Whether table and owners say the same.
    pub fn is_consistent(&self) -> bool {
        let back =
            |(slot, &owner): (usize, &u32)| owner == NOBODY || self.slot(owner - 1) == Some(slot);
        let held = self.owners.iter().filter(|&&owner| owner != NOBODY).count();
        let entries = self.table.iter().filter(|&&entry| entry != 0).count();
        self.owners.iter().enumerate().all(back) && entries == held && held == self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hand_takes_what_was_not_used() {
        let (mut table, mut owners) = ([0; 6], [0; 3]);
        let mut cache = Cache::new(&mut table, &mut owners);
        for neuron in 0..3 {
            assert_eq!(cache.admit(neuron), Some(neuron as usize));
        }
        cache.touch(0);
        cache.touch(2);
        assert_eq!(cache.admit(3), Some(1), "neuron 1 was not used");
        assert_eq!(cache.slot(1), None);
        assert_eq!(cache.admit(4), Some(0), "2 was passed at the start of the turn, 0 is first");
        assert!(cache.is_consistent());
    }

    #[test]
    fn pinned_neurons_keep_their_slots() {
        let (mut table, mut owners) = ([0; 6], [0; 2]);
        let mut cache = Cache::new(&mut table, &mut owners);
        cache.admit(0);
        cache.admit(5);
        cache.pin(0..1);
        assert_eq!(cache.admit(1), Some(1));
        assert_eq!(cache.slot(0), Some(0));
        cache.pin(1..2);
        assert_eq!(cache.admit(2), None, "all slots are pinned");
        cache.unpin();
        assert!(cache.admit(2).is_some() && cache.is_consistent());
    }

    #[cfg(feature = "host")]
    proptest::proptest! {
        #[test]
        fn table_and_owners_always_agree(
            steps in proptest::collection::vec((0u32..40, 0u8..4), 1..400)
        ) {
            let (mut table, mut owners) = ([0; 40], [0; 7]);
            let mut cache = Cache::new(&mut table, &mut owners);
            for (neuron, action) in steps {
                match action {
                    0 => { cache.touch(neuron); }
                    1 => { cache.unpin(); cache.pin(neuron..neuron + 3); }
                    _ => if cache.slot(neuron).is_none() { cache.admit(neuron); },
                }
                proptest::prop_assert!(cache.is_consistent());
            }
        }
    }
}
