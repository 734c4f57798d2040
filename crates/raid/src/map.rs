//! The map from volume blocks to physical block numbers (L2P), in mapping blocks of 1,024 entries.
//!
//! A mapping block is on the drives (its number is in the *root*), in memory, or both. Entries
//! change in memory only; a checkpoint writes the mapping blocks that changed.

use crate::format::{MAPPED, NONE};
use furrow_rt::Page;
use std::collections::BTreeSet;

/// A mapping block in memory.
type Leaf = Box<[u32; MAPPED as usize]>;

#[derive(Clone, Debug, Default)]
enum Slot {
    /// Every entry is [`NONE`], and none is on the drives.
    #[default]
    Empty,
    /// On the drives only.
    Absent,
    Here(Leaf),
}

/// The map of a volume.
#[derive(Debug)]
pub(crate) struct Map {
    leaves: Vec<Slot>,
    /// Where the newest written version of each is.
    root: Vec<u32>,
    dirty: BTreeSet<u32>,
}

/// The mapping block of `lba`, and the entry in it.
fn split(lba: u64) -> (usize, usize) {
    ((lba / u64::from(MAPPED)) as usize, (lba % u64::from(MAPPED)) as usize)
}

impl Map {
    /// A map with the root a checkpoint has.
    pub(crate) fn new(root: Vec<u32>) -> Map {
        let slot = |number: &u32| if *number == NONE { Slot::Empty } else { Slot::Absent };
        Map { leaves: root.iter().map(slot).collect(), root, dirty: BTreeSet::new() }
    }

    /// The mapping block that must be loaded before `lba` can be asked for or changed.
    pub(crate) fn missing(&self, lba: u64) -> Option<u32> {
        let (leaf, _) = split(lba);
        matches!(self.leaves[leaf], Slot::Absent).then_some(leaf as u32)
    }

    /// The block number of `lba`; [`NONE`] if it was never written, or trimmed.
    pub(crate) fn get(&self, lba: u64) -> u32 {
        let (leaf, entry) = split(lba);
        match &self.leaves[leaf] {
            Slot::Here(entries) => entries[entry],
            Slot::Empty => NONE,
            Slot::Absent => unreachable!("invariant: asked for only when loaded"),
        }
    }

    /// Changes the entry of `lba`; what it was.
    pub(crate) fn set(&mut self, lba: u64, number: u32) -> u32 {
        let (leaf, entry) = split(lba);
        if let Slot::Empty = self.leaves[leaf] {
            if number == NONE {
                return NONE;
            }
            self.leaves[leaf] = Slot::Here(Box::new([NONE; MAPPED as usize]));
        }
        let Slot::Here(entries) = &mut self.leaves[leaf] else {
            unreachable!("invariant: changed only when loaded")
        };
        let old = std::mem::replace(&mut entries[entry], number);
        if old != number {
            self.dirty.insert(leaf as u32);
        }
        old
    }

    /// A mapping block was read.
    pub(crate) fn load(&mut self, leaf: u32, page: &Page) {
        if let Slot::Absent = self.leaves[leaf as usize] {
            let mut entries = Box::new([NONE; MAPPED as usize]);
            for (entry, bytes) in entries.iter_mut().zip(page.bytes().chunks_exact(4)) {
                *entry = u32::from_le_bytes(bytes.try_into().expect("invariant: four bytes"));
            }
            self.leaves[leaf as usize] = Slot::Here(entries);
        }
    }

    /// Where the newest written version of a mapping block is.
    pub(crate) fn root_of(&self, leaf: u32) -> u32 {
        self.root[leaf as usize]
    }

    /// It was written anew; where it was.
    pub(crate) fn set_root(&mut self, leaf: u32, number: u32) -> u32 {
        std::mem::replace(&mut self.root[leaf as usize], number)
    }

    /// All of the root.
    pub(crate) fn root(&self) -> &[u32] {
        &self.root
    }

    /// The mapping blocks that changed since the last call, and their content.
    pub(crate) fn take_dirty(&mut self, page: impl Fn() -> Page) -> Vec<(u32, Page)> {
        let dirty = std::mem::take(&mut self.dirty);
        let content = |leaf: u32| {
            let Slot::Here(entries) = &self.leaves[leaf as usize] else {
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

    /// A mapping block has to be written (again): it moved, or writing it failed.
    pub(crate) fn mark_dirty(&mut self, leaf: u32) {
        self.dirty.insert(leaf);
    }

    /// Mapping blocks that changed since they were written.
    #[cfg(test)]
    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// How many of the `count` blocks from `lba` on are alike, mapped or not.
    pub(crate) fn run(&self, lba: u64, count: u64) -> (u64, bool) {
        let hole = self.get(lba) == NONE;
        let alike = (1..count)
            .take_while(|i| self.missing(lba + i).is_none() && (self.get(lba + i) == NONE) == hole);
        (1 + alike.count() as u64, hole)
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        let here = self.leaves.iter().filter(|slot| matches!(slot, Slot::Here(_))).count();
        here * MAPPED as usize * 4
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
        let written = map.take_dirty(Page::zeroed);
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
}
