//! The map from volume blocks to physical block numbers (L2P), in mapping blocks of 1,024 entries.
//!
//! A mapping block is on the drives (its number is in the *root*), in memory, or both. Entries
//! change in memory only; a checkpoint writes changed mapping blocks. `paging` chooses the mapping
//! blocks to evict by the CLOCK algorithm.

use crate::format::{MAPPED, NONE};
use furrow_rt::Page;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

/// A mapping block in memory.
type Leaf = Box<[u32; MAPPED as usize]>;

#[derive(Clone, Debug, Default)]
enum Slot {
    /// Every entry is [`NONE`], and the mapping block is not on the drives.
    #[default]
    Empty,
    /// On the drives only.
    Absent,
    Here {
        entries: Leaf,
        /// Whether the mapping block was used since the clock's hand passed it.
        used: Cell<bool>,
        /// Whether the mapping block is known to be in `dirty`, so that the set need not
        /// be searched.
        changed: bool,
    },
}

fn here(entries: Leaf) -> Slot {
    Slot::Here { entries, used: Cell::new(true), changed: false }
}

/// A mapping block that may be evicted from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    /// A mapping block whose present version is on the drives.
    Clean(u32),
    /// A mapping block that has to be written before it is evicted.
    Dirty(u32),
}

/// The map of a volume.
///
/// Invariants
/// - A mapping block that changed since it was written is in memory and in `dirty`.
/// - A mapping block that is not in memory is empty, or at the place on the drives that
///   `root` gives.
/// - `clock` has the mapping blocks in memory, each once; pinned ones are not evicted.
#[derive(Debug)]
pub(crate) struct Map {
    leaves: Vec<Slot>,
    /// For each mapping block, the number of its newest copy on the drives; [`NONE`] without
    /// a copy.
    root: Vec<u32>,
    dirty: BTreeSet<u32>,
    /// Mapping blocks in memory, in the order of the clock's hand.
    clock: Vec<u32>,
    hand: usize,
    /// Number of pins of each pinned mapping block.
    pins: BTreeMap<u32, u32>,
}

/// The mapping block that has the entry of `lba`, and the index of the entry in it.
fn split(lba: u64) -> (usize, usize) {
    ((lba / u64::from(MAPPED)) as usize, (lba % u64::from(MAPPED)) as usize)
}

impl Map {
    /// A map with the root of a checkpoint, and no mapping block in memory.
    pub(crate) fn new(root: Vec<u32>) -> Map {
        let slot = |number: &u32| if *number == NONE { Slot::Empty } else { Slot::Absent };
        let leaves = root.iter().map(slot).collect();
        let (dirty, clock, pins) = Default::default();
        Map { leaves, root, dirty, clock, hand: 0, pins }
    }

    /// The mapping block that has the entry of block `lba` of the volume.
    pub(crate) fn leaf(lba: u64) -> u32 {
        (lba / u64::from(MAPPED)) as u32
    }

    /// Whether a mapping block is in memory; if so, marks it as used.
    pub(crate) fn is_here(&self, leaf: u32) -> bool {
        let Slot::Here { used, .. } = &self.leaves[leaf as usize] else { return false };
        used.set(true);
        true
    }

    /// Whether a mapping block is neither in memory nor on the drives, so that all its entries
    /// are [`NONE`].
    pub(crate) fn is_empty(&self, leaf: u32) -> bool {
        matches!(self.leaves[leaf as usize], Slot::Empty)
    }

    /// Number of mapping blocks in memory.
    pub(crate) fn resident(&self) -> usize {
        self.clock.len()
    }

    /// Allocates memory for an empty mapping block.
    pub(crate) fn create(&mut self, leaf: u32) {
        if self.is_empty(leaf) {
            self.put(leaf, Box::new([NONE; MAPPED as usize]));
        }
    }

    fn put(&mut self, leaf: u32, entries: Leaf) {
        self.leaves[leaf as usize] = here(entries);
        self.clock.push(leaf);
    }

    /// Keeps a mapping block in memory until each pin is undone by [`Map::unpin`].
    pub(crate) fn pin(&mut self, leaf: u32) {
        *self.pins.entry(leaf).or_default() += 1;
    }

    /// Undoes one [`Map::pin`].
    pub(crate) fn unpin(&mut self, leaf: u32) {
        if let Some(count) = self.pins.get_mut(&leaf) {
            *count -= 1;
            if *count == 0 {
                self.pins.remove(&leaf);
            }
        }
    }

    /// Moves the clock's hand to the next mapping block that is unpinned and was not used since the
    /// hand last passed it, and returns that mapping block; `None` if there is none.
    pub(crate) fn victim(&mut self) -> Option<Victim> {
        for _ in 0..2 * self.clock.len() {
            self.hand = (self.hand + 1) % self.clock.len();
            let leaf = self.clock[self.hand];
            let Slot::Here { used, .. } = &self.leaves[leaf as usize] else { continue };
            if self.pins.contains_key(&leaf) || used.replace(false) {
                continue;
            }
            let dirty = self.dirty.contains(&leaf);
            return Some(if dirty { Victim::Dirty(leaf) } else { Victim::Clean(leaf) });
        }
        None
    }

    /// Drops a mapping block from memory.
    pub(crate) fn evict(&mut self, leaf: u32) {
        debug_assert!(!self.dirty.contains(&leaf) && !self.pins.contains_key(&leaf));
        let known = self.root[leaf as usize] != NONE;
        self.leaves[leaf as usize] = if known { Slot::Absent } else { Slot::Empty };
        if self.clock.get(self.hand) != Some(&leaf) {
            self.hand = self.clock.iter().position(|other| *other == leaf).unwrap_or(0);
        }
        self.clock.swap_remove(self.hand);
        self.hand = self.hand.saturating_sub(1);
    }

    /// The mapping block that must be loaded before the entry of `lba` can be read or changed.
    pub(crate) fn missing(&self, lba: u64) -> Option<u32> {
        let (leaf, _) = split(lba);
        matches!(self.leaves[leaf], Slot::Absent).then_some(leaf as u32)
    }

    /// The block number of `lba`; [`NONE`] if it was never written, or is trimmed.
    pub(crate) fn get(&self, lba: u64) -> u32 {
        let (leaf, entry) = split(lba);
        match &self.leaves[leaf] {
            Slot::Here { entries, .. } => entries[entry],
            Slot::Empty => NONE,
            Slot::Absent => unreachable!("invariant: asked for only when loaded"),
        }
    }

    /// Changes the entry of `lba`; returns the old one.
    pub(crate) fn set(&mut self, lba: u64, number: u32) -> u32 {
        let (leaf, entry) = split(lba);
        if let Slot::Empty = self.leaves[leaf] {
            if number == NONE {
                return NONE;
            }
            self.create(leaf as u32);
        }
        let Slot::Here { entries, changed, .. } = &mut self.leaves[leaf] else {
            unreachable!("invariant: changed only when loaded")
        };
        let old = std::mem::replace(&mut entries[entry], number);
        if old != number && !std::mem::replace(changed, true) {
            self.dirty.insert(leaf as u32);
        }
        old
    }

    /// Puts a mapping block that was read from the drives into memory, unless it is there already.
    pub(crate) fn load(&mut self, leaf: u32, page: &Page) {
        if let Slot::Absent = self.leaves[leaf as usize] {
            let mut entries = Box::new([NONE; MAPPED as usize]);
            for (entry, bytes) in entries.iter_mut().zip(page.bytes().chunks_exact(4)) {
                *entry = u32::from_le_bytes(bytes.try_into().expect("invariant: four bytes"));
            }
            self.put(leaf, entries);
        }
    }

    /// The number of a mapping block's newest copy on the drives.
    pub(crate) fn root_of(&self, leaf: u32) -> u32 {
        self.root[leaf as usize]
    }

    /// Notes that a new copy of a mapping block was written; returns the number of the old copy.
    pub(crate) fn set_root(&mut self, leaf: u32, number: u32) -> u32 {
        std::mem::replace(&mut self.root[leaf as usize], number)
    }

    /// The address and number of each mapped block whose mapping block is in memory.
    pub(crate) fn mapped(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        (0u64..).zip(&self.leaves).flat_map(|(leaf, slot)| {
            let entries = match slot {
                Slot::Here { entries, .. } => &entries[..],
                Slot::Empty | Slot::Absent => &[],
            };
            let first = leaf * u64::from(MAPPED);
            (first..).zip(entries.iter().copied()).filter(|(_, number)| *number != NONE)
        })
    }

    /// Number of mapping blocks that are on the drives only.
    pub(crate) fn absent(&self) -> usize {
        self.leaves.iter().filter(|slot| matches!(slot, Slot::Absent)).count()
    }

    /// The number of the first mapping block whose state contradicts itself, and the contradiction.
    /// `Ok` if there is none.
    pub(crate) fn audit(&self) -> std::result::Result<(), (u32, &'static str)> {
        let mut resident = 0;
        for ((leaf, slot), root) in (0u32..).zip(&self.leaves).zip(&self.root) {
            let dirty = self.dirty.contains(&leaf);
            let wrong = match slot {
                Slot::Here { changed, .. } => {
                    resident += 1;
                    (*changed && !dirty).then_some("changed, and not among the dirty ones")
                }
                _ if dirty => Some("dirty, and not in memory"),
                Slot::Absent if *root == NONE => Some("on the drives only, and at no place there"),
                Slot::Absent if self.pins.contains_key(&leaf) => Some("pinned, and not in memory"),
                Slot::Empty if *root != NONE => Some("empty, and on the drives"),
                Slot::Empty | Slot::Absent => None,
            };
            wrong.map_or(Ok(()), |wrong| Err((leaf, wrong)))?;
        }
        let mut clock = self.clock.clone();
        clock.sort_unstable();
        clock.dedup();
        let here = |leaf: &&u32| matches!(self.leaves[**leaf as usize], Slot::Here { .. });
        if clock.len() != self.clock.len() || clock.iter().filter(here).count() != resident {
            return Err((resident as u32, "in memory, and the clock has others"));
        }
        Ok(())
    }

    /// For each mapping block, the number of its newest copy on the drives.
    pub(crate) fn root(&self) -> &[u32] {
        &self.root
    }

    /// Takes at most `most` mapping blocks, from `first` on, that changed since they were last
    /// taken. Returns their content, and pins each of them.
    pub(crate) fn take_dirty(
        &mut self,
        first: u32,
        most: usize,
        page: impl Fn() -> Page,
    ) -> Vec<(u32, Page)> {
        let dirty: Vec<u32> = self.dirty.range(first..).copied().take(most).collect();
        for leaf in &dirty {
            self.dirty.remove(leaf);
            if let Slot::Here { changed, .. } = &mut self.leaves[*leaf as usize] {
                *changed = false;
            }
            self.pin(*leaf);
        }
        let content = |leaf: u32| {
            let Slot::Here { entries, .. } = &self.leaves[leaf as usize] else {
                unreachable!("invariant: what changed is in memory")
            };
            let mut page = page();
            for (bytes, entry) in page.make_mut().chunks_exact_mut(4).zip(entries.iter()) {
                bytes.copy_from_slice(&entry.to_le_bytes());
            }
            (leaf, page)
        };
        dirty.into_iter().map(content).collect()
    }

    /// Makes the next checkpoint write a mapping block, because it is to be moved or a write of
    /// it failed.
    pub(crate) fn mark_dirty(&mut self, leaf: u32) {
        self.dirty.insert(leaf);
    }

    /// Number of mapping blocks that changed since they were written.
    #[cfg(test)]
    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// Removes a mapping block from the set of changed ones: a corruption, for tests of the audit.
    #[cfg(test)]
    pub(crate) fn lose_dirty(&mut self, leaf: u32) -> bool {
        let changed = matches!(self.leaves[leaf as usize], Slot::Here { changed: true, .. });
        changed && self.dirty.remove(&leaf)
    }

    /// The number of blocks from `lba` on, up to `count`, that are alike: all mapped or all
    /// unmapped; and whether they are unmapped. Counts only blocks whose mapping block is
    /// in memory.
    pub(crate) fn run(&self, lba: u64, count: u64) -> (u64, bool) {
        let hole = self.get(lba) == NONE;
        let alike = (1..count)
            .take_while(|i| self.missing(lba + i).is_none() && (self.get(lba + i) == NONE) == hole);
        (1 + alike.count() as u64, hole)
    }

    /// Bytes that the map takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.resident() * MAPPED as usize * 4
            + self.root.len() * 4
            + self.leaves.len() * std::mem::size_of::<Slot>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::{Page, Rng};

    #[test]
    fn entries_survive_being_written_and_loaded() {
        let mut map = Map::new(vec![NONE; 3]);
        let mut rng = Rng::new(5);
        let mut model = vec![NONE; 3 * MAPPED as usize];
        for _ in 0..4000 {
            let lba = rng.below(2 * u64::from(MAPPED) + 3);
            let number = if rng.below(4) == 0 { NONE } else { rng.below(1 << 20) as u32 };
            assert_eq!(map.set(lba, number), std::mem::replace(&mut model[lba as usize], number));
        }
        assert!(map.dirty_count() >= 2);
        let written = map.take_dirty(0, usize::MAX, Page::zeroed);
        assert_eq!(map.dirty_count(), 0);
        let mut root = vec![NONE; 3];
        for (leaf, _) in &written {
            root[*leaf as usize] = 100 + leaf;
        }
        let mut again = Map::new(root);
        for (leaf, page) in &written {
            assert_eq!(again.missing(u64::from(*leaf) * 1024), Some(*leaf));
            again.load(*leaf, page);
        }
        for (lba, number) in model.iter().enumerate() {
            assert_eq!(again.get(lba as u64), *number);
        }
        assert_eq!(again.dirty_count(), 0);
    }

    #[test]
    fn the_clock_spares_what_was_used_and_what_is_pinned() {
        let mut map = Map::new(vec![7; 4]);
        (0..4).for_each(|leaf| map.load(leaf, &Page::zeroed()));
        map.pin(2);
        map.set(u64::from(MAPPED), 9);
        // All mapping blocks were used once: the hand's first turn clears their marks.
        let mut seen = Vec::new();
        while let Some(victim) = map.victim() {
            match victim {
                Victim::Clean(leaf) => {
                    seen.push(leaf);
                    map.evict(leaf);
                    assert!(!map.is_here(leaf));
                }
                Victim::Dirty(leaf) => {
                    let taken = map.take_dirty(leaf, 1, Page::zeroed);
                    assert_eq!(taken[0].0, 1);
                    map.unpin(1);
                }
            }
        }
        seen.sort_unstable();
        assert_eq!((seen, map.resident()), (vec![0, 1, 3], 1));
    }
}
