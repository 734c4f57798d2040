//! Where names are in large directories, in memory.
//!
//! A name can be in two blocks of each level of its directory, and to know that it is in none all
//! of them must be searched: with a million names that is fourteen blocks, each cold in the
//! processor's caches. So for each block that was searched once, its names' hashes and places and
//! its largest gap are kept here. Records never move, so a place stays right until the name goes.
//!
//! Invariant: what is known of a block is what is in it: every change of a directory block goes
//! through [`Indexes::added`] or [`Indexes::removed`], or changes no place. It is only a memory:
//! nothing is lost by forgetting all of it, which happens when there is too much.

use crate::cache::FixedHasher;
use crate::dirent::{self, BLOCK};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::hash::BuildHasherDefault;

/// Fewest names that are kept before all are forgotten: more than one search can learn.
const NAMES_MIN: usize = 65_536;
/// Names kept for each page of cache: a few bytes each.
const NAMES_PER_PAGE: usize = 32;
/// Offsets are multiples of four: a place is `block × 1024 + offset / 4`, in 32 bits.
const STEPS: u32 = BLOCK as u32 / 4;
/// In place of a gap: nothing is known of the block.
const UNKNOWN: u16 = u16::MAX;

const _: () = assert!((dirent::blocks(dirent::MAX_LEVELS) as u64) * (STEPS as u64) < 1 << 32);

/// A map that is only ever looked up, never iterated.
#[allow(clippy::disallowed_types, reason = "a fixed hasher, and never iterated")]
type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<FixedHasher>>;

/// What is known of one directory.
#[derive(Default)]
struct Index {
    /// The place of the name of a hash.
    first: Map<u32, u32>,
    /// Places of further names of the same hash.
    others: BTreeMap<u32, SmallVec<[u32; 2]>>,
    /// Largest gap of each block, in bytes.
    gaps: Vec<u16>,
}

impl Index {
    fn add(&mut self, hash: u32, place: u32) {
        if let Some(first) = self.first.get(&hash) {
            if *first != place {
                self.others.entry(hash).or_default().push(place);
            }
        } else {
            self.first.insert(hash, place);
        }
    }

    fn remove(&mut self, hash: u32, place: u32) {
        let others = self.others.get_mut(&hash);
        if self.first.get(&hash) != Some(&place) {
            if let Some(others) = others {
                others.retain(|other| *other != place);
            }
            return;
        }
        match others.and_then(SmallVec::pop) {
            Some(other) => drop(self.first.insert(hash, other)),
            None => drop(self.first.remove(&hash)),
        }
    }

    fn set_gap(&mut self, block: u32, gap: u16) {
        let at = block as usize;
        if self.gaps.len() <= at {
            self.gaps.resize(at + 1, UNKNOWN);
        }
        self.gaps[at] = gap;
    }

    fn knows(&self, block: u32) -> bool {
        self.gaps.get(block as usize).is_some_and(|gap| *gap != UNKNOWN)
    }
}

/// What is known of directories; see the module's header.
pub(crate) struct Indexes {
    of: BTreeMap<u32, Index>,
    names: usize,
    /// Entries of all `gaps`.
    gaps: usize,
    most: usize,
}

impl Indexes {
    /// Knows nothing yet; in proportion to a cache of `pages`.
    pub(crate) fn new(pages: usize) -> Indexes {
        let most = pages.saturating_mul(NAMES_PER_PAGE).max(NAMES_MIN);
        Indexes { of: BTreeMap::new(), names: 0, gaps: 0, most }
    }

    /// Bytes of memory. Tables are between half and wholly taken: of names it is the mean.
    pub(crate) fn bytes(&self) -> u64 {
        (self.names * 14 + self.gaps * 2 + self.of.len() * size_of::<(u32, Index)>()) as u64
    }

    /// Before a search: forgets all if that is too much.
    pub(crate) fn tidy(&mut self) {
        if self.names > self.most {
            self.of.clear();
            (self.names, self.gaps) = (0, 0);
        }
    }

    /// True if it is known what is in `block` of directory `ino`.
    pub(crate) fn knows(&self, ino: u32, block: u32) -> bool {
        self.of.get(&ino).is_some_and(|index| index.knows(block))
    }

    /// Learns what is in a block; `None` is a hole.
    pub(crate) fn learn(&mut self, ino: u32, block: u32, page: Option<&[u8; BLOCK]>) {
        let index = self.of.entry(ino).or_default();
        if index.knows(block) {
            return;
        }
        if let Some(page) = page {
            for entry in dirent::iter(page) {
                index.add(entry.hash, block * STEPS + u32::from(entry.offset / 4));
                self.names += 1;
            }
        }
        let known = index.gaps.len();
        index.set_gap(block, page.map_or(BLOCK as u16, dirent::largest_gap));
        self.gaps += index.gaps.len() - known;
    }

    /// Where names of `hash` are, as far as is known: blocks and offsets.
    pub(crate) fn places(&self, ino: u32, hash: u32) -> SmallVec<[(u32, u16); 2]> {
        let Some(index) = self.of.get(&ino) else { return SmallVec::new() };
        let others = index.others.get(&hash);
        let all = index.first.get(&hash).into_iter().chain(others.into_iter().flatten());
        all.map(|place| (place / STEPS, (place % STEPS) as u16 * 4)).collect()
    }

    /// The first of `blocks`, all known, in which a name of `length` bytes finds room.
    pub(crate) fn room(
        &self,
        ino: u32,
        mut blocks: impl Iterator<Item = u32>,
        length: usize,
    ) -> Option<u32> {
        let gaps = &self.of.get(&ino)?.gaps;
        let need = dirent::space(length);
        let free = |block: &u32| {
            let gap = gaps.get(*block as usize).copied().unwrap_or(UNKNOWN);
            gap != UNKNOWN && usize::from(gap) >= need
        };
        blocks.find(free)
    }

    fn known(&mut self, ino: u32, block: u32) -> Option<&mut Index> {
        self.of.get_mut(&ino).filter(|index| index.knows(block))
    }

    /// What is known of directory `ino` follows a change at a place of a block, which is `page`
    /// now; false if nothing is known of it.
    fn follow(
        &mut self,
        ino: u32,
        (block, offset): (u32, u16),
        page: &[u8; BLOCK],
        change: impl FnOnce(&mut Index, u32),
    ) -> bool {
        let Some(index) = self.known(ino, block) else { return false };
        change(index, block * STEPS + u32::from(offset / 4));
        index.set_gap(block, dirent::largest_gap(page));
        true
    }

    /// A name came into a block, which is `page` now.
    pub(crate) fn added(&mut self, ino: u32, at: (u32, u16), hash: u32, page: &[u8; BLOCK]) {
        if self.follow(ino, at, page, |index, place| index.add(hash, place)) {
            self.names += 1;
        }
    }

    /// A name went from a block, which is `page` now.
    pub(crate) fn removed(&mut self, ino: u32, at: (u32, u16), hash: u32, page: &[u8; BLOCK]) {
        if self.follow(ino, at, page, |index, place| index.remove(hash, place)) {
            self.names = self.names.saturating_sub(1);
        }
    }

    /// Directory `ino` is no more.
    pub(crate) fn forget(&mut self, ino: u32) {
        if let Some(index) = self.of.remove(&ino) {
            let others: usize = index.others.values().map(SmallVec::len).sum();
            self.names = self.names.saturating_sub(index.first.len() + others);
            self.gaps -= index.gaps.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Kind;
    use proptest::prelude::*;

    #[test]
    fn too_much_is_forgotten_whole_and_what_is_gone_alone() {
        let mut indexes = Indexes::new(1);
        indexes.learn(7, 0, None);
        assert!(indexes.knows(7, 0) && !indexes.knows(7, 1) && !indexes.knows(8, 0));
        assert_eq!(indexes.room(7, 0..1, 255), Some(0));
        let mut page = [0; BLOCK];
        for n in 0..70_000u32 {
            let name = format!("{n}");
            let entry = dirent::Entry {
                ino: 2,
                hash: n,
                kind: Kind::File,
                name: name.as_bytes(),
                offset: 0,
            };
            dirent::init(&mut page);
            let offset = dirent::insert(&mut page, &entry).unwrap();
            indexes.added(7, (0, offset), n, &page);
        }
        indexes.tidy();
        assert!(!indexes.knows(7, 0));
        indexes.learn(7, 0, Some(&page));
        indexes.learn(9, 3, Some(&page));
        indexes.forget(7);
        assert!(!indexes.knows(7, 0) && indexes.knows(9, 3));
        assert_eq!(indexes.names, 1);
    }

    proptest! {
        /// Whatever is added and removed, what is known is what is there.
        #[test]
        fn what_is_known_is_what_is_there(
            ops in prop::collection::vec((0u8..8, 0u32..2, 0u8..60), 1..300),
        ) {
            let mut indexes = Indexes::new(1);
            let mut pages = [[0; BLOCK]; 2];
            indexes.learn(5, 0, None);
            for (op, block, n) in ops {
                let name = format!("{n}{}", "x".repeat(usize::from(n) * 4));
                // Few hashes, so that names share them.
                let (hash, name) = (u32::from(n % 7), name.as_bytes());
                let page = &mut pages[block as usize];
                let there = dirent::find(page, hash, name).map(|entry| entry.offset);
                match (op, there) {
                    (0..5, None) => {
                        let entry =
                            dirent::Entry { ino: 3, hash, kind: Kind::File, name, offset: 0 };
                        if indexes.knows(5, block) {
                            let room = indexes.room(5, block..block + 1, name.len());
                            let fits = dirent::probe(page, hash, name) == dirent::Probe::Room;
                            prop_assert_eq!(room.is_some(), fits);
                        }
                        if let Some(offset) = dirent::insert(page, &entry) {
                            indexes.added(5, (block, offset), hash, page);
                        }
                    }
                    (0..7, Some(offset)) => {
                        dirent::remove(page, hash, name);
                        indexes.removed(5, (block, offset), hash, page);
                    }
                    (7, _) => indexes.learn(5, block, Some(page)),
                    _ => {}
                }
                for block in 0..2u32 {
                    let mut known: Vec<(u32, u16)> = (0..7)
                        .flat_map(|hash| indexes.places(5, hash))
                        .filter(|place| place.0 == block)
                        .collect();
                    known.sort_unstable();
                    let there: Vec<(u32, u16)> = dirent::iter(&pages[block as usize])
                        .map(|entry| (block, entry.offset))
                        .collect();
                    if indexes.knows(5, block) {
                        prop_assert_eq!(known, there);
                    } else {
                        prop_assert!(known.is_empty());
                    }
                }
            }
        }
    }
}
