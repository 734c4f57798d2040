//! An index in memory of the names in large directories.
//!
//! A name can be in two blocks of each level of its directory, and a search for a missing name
//! reads all of them: fourteen blocks for a million names. A search for an existing name costs the
//! block of the name; the block's page, frame and place in the page cache are each cold in the
//! processor's caches. So the index keeps the names of each block that was searched once
//! (`name_table`), with their inodes, and the block's largest gap. A look-up then touches two
//! places in one page of memory. Whole names are compared, so a look-up is as exact as a search.
//!
//! Invariant: the known content of a block is the content of the block. Every change of a directory
//! block goes through [`DirectoryIndexes::added`], [`DirectoryIndexes::removed`] or
//! [`DirectoryIndexes::replaced`], or changes no name. The index is only a copy: forgetting all of
//! it loses nothing, and happens when the index exceeds its share of the cache.

mod name_table;

use crate::accounts::{Broken, same};
use crate::tree::dirent::{self, BLOCK};
use crate::types::Kind;
use furrow_zone::Result;
use name_table::NameTable;
use std::collections::BTreeMap;

/// The index may always keep this many bytes: more than one search can learn.
const BYTES_MIN: usize = 4 << 20;
/// The index may take one of `SHARE` parts of the cache's bytes.
const SHARE: usize = 4;
/// Offsets are multiples of four: a place is `block × 1024 + offset / 4`, in 32 bits.
const STEPS: u32 = BLOCK as u32 / 4;
/// In place of a gap: the content of the block is unknown.
const UNKNOWN: u16 = u16::MAX;
/// Overhead of one allocation, in bytes.
const ALLOCATION: usize = 16;

const _: () = assert!((dirent::blocks(dirent::MAX_LEVELS) as u64) * (STEPS as u64) < 1 << 32);

/// A known name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// Block of the directory.
    pub(crate) block: u32,
    /// Inode.
    pub(crate) ino: u32,
    /// Kind of the inode.
    pub(crate) kind: Kind,
}

/// The known content of one directory.
#[derive(Default)]
struct Index {
    names: NameTable,
    gaps: Gaps,
}

/// Blocks whose gaps are stored together.
const GAPS: usize = 512;

/// Largest gap of each block, in bytes. A directory of many levels has few blocks, far apart.
#[derive(Default)]
struct Gaps {
    of: Vec<Option<Box<[u16; GAPS]>>>,
    /// Number of allocated groups of gaps.
    count: usize,
}

impl Gaps {
    fn get(&self, block: u32) -> u16 {
        let together = self.of.get(block as usize / GAPS).and_then(Option::as_ref);
        together.map_or(UNKNOWN, |gaps| gaps[block as usize % GAPS])
    }

    fn set(&mut self, block: u32, gap: u16) {
        let at = block as usize / GAPS;
        if self.of.len() <= at {
            self.of.resize(at + 1, None);
        }
        let gaps = self.of[at].get_or_insert_with(|| {
            self.count += 1;
            Box::new([UNKNOWN; GAPS])
        });
        gaps[block as usize % GAPS] = gap;
    }

    fn bytes(&self) -> usize {
        self.of.capacity() * size_of::<Option<Box<[u16; GAPS]>>>()
            + self.count * (size_of::<[u16; GAPS]>() + ALLOCATION)
    }
}

impl Index {
    fn knows(&self, block: u32) -> bool {
        self.gaps.get(block) != UNKNOWN
    }

    fn bytes(&self) -> usize {
        self.names.bytes() + self.gaps.bytes() + size_of::<(u32, Index)>() + 2 * ALLOCATION
    }
}

fn place(block: u32, offset: u16) -> u32 {
    block * STEPS + u32::from(offset / 4)
}

/// The known content of directories; see the module's header.
///
/// Invariants:
/// - `bytes` is the memory of the indexes of all directories.
pub(crate) struct DirectoryIndexes {
    of: BTreeMap<u32, Index>,
    bytes: usize,
    most: usize,
    broken: Broken,
}

impl DirectoryIndexes {
    /// An empty index for a cache of `pages` pages.
    pub(crate) fn new(pages: usize) -> DirectoryIndexes {
        let most = (pages.saturating_mul(BLOCK) / SHARE).max(BYTES_MIN);
        DirectoryIndexes { of: BTreeMap::new(), bytes: 0, most, broken: Broken::default() }
    }

    /// Accounts that go below zero are noted in `broken` from now on.
    pub(super) fn note_broken_in(&mut self, broken: &Broken) {
        self.broken = broken.clone();
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// To be called before a search: forgets everything if the index is too large.
    pub(crate) fn tidy(&mut self) {
        if self.bytes > self.most {
            self.of.clear();
            self.bytes = 0;
        }
    }

    /// True if the content of `block` of directory `ino` is known.
    pub(crate) fn knows(&self, ino: u32, block: u32) -> bool {
        self.of.get(&ino).is_some_and(|index| index.knows(block))
    }

    /// The first of `blocks` of directory `ino` whose content is unknown.
    pub(crate) fn unknown(&self, ino: u32, mut blocks: impl Iterator<Item = u32>) -> Option<u32> {
        let index = self.of.get(&ino);
        blocks.find(|block| index.is_none_or(|index| !index.knows(*block)))
    }

    /// Changes the index of directory `ino`, and updates the count of bytes. The change notes
    /// accounts of the index that go below zero in the [`Broken`] that it is given.
    fn change(&mut self, ino: u32, change: impl FnOnce(&mut Index, &Broken)) {
        let before = self.of.get(&ino).map_or(0, Index::bytes);
        let index = self.of.entry(ino).or_default();
        change(index, &self.broken);
        let with_change = self.bytes + index.bytes();
        self.bytes = self.broken.less("DirectoryIndexes::bytes", with_change, before);
    }

    /// Does the same, but only if the content of `block` is known.
    fn change_known(&mut self, ino: u32, block: u32, change: impl FnOnce(&mut Index, &Broken)) {
        if self.knows(ino, block) {
            self.change(ino, change);
        }
    }

    /// Learns the content of a block; `None` is a hole.
    pub(crate) fn learn(&mut self, ino: u32, block: u32, page: Option<&[u8; BLOCK]>) {
        if self.knows(ino, block) {
            return;
        }
        self.change(ino, |index, _| {
            for entry in page.into_iter().flat_map(dirent::iter) {
                index.names.add(&entry, place(block, entry.offset));
            }
            index.gaps.set(block, page.map_or(BLOCK as u16, dirent::largest_gap));
        });
    }

    /// The inode that `name`, of `hash`, leads to, if known.
    pub(crate) fn find(&self, ino: u32, hash: u32, name: &[u8]) -> Option<Known> {
        let (place, ino, kind) = self.of.get(&ino)?.names.find(hash, name)?;
        Some(Known { block: place / STEPS, ino, kind })
    }

    /// The first of `blocks`, all known, with space for a name of `length` bytes.
    pub(crate) fn block_with_space(
        &self,
        ino: u32,
        mut blocks: impl Iterator<Item = u32>,
        length: usize,
    ) -> Option<u32> {
        let gaps = &self.of.get(&ino)?.gaps;
        let need = dirent::space(length);
        let free = |block: &u32| {
            let gap = gaps.get(*block);
            gap != UNKNOWN && usize::from(gap) >= need
        };
        blocks.find(free)
    }

    /// Notes that `entry` was added to `block`, whose content is now `page`.
    pub(crate) fn added(
        &mut self,
        ino: u32,
        block: u32,
        entry: &dirent::Entry<'_>,
        page: &[u8; BLOCK],
    ) {
        self.change_known(ino, block, |index, _| {
            index.names.add(entry, place(block, entry.offset));
            index.gaps.set(block, dirent::largest_gap(page));
        });
    }

    /// Notes that a name was removed from a block, whose content is now `page`.
    pub(crate) fn removed(
        &mut self,
        ino: u32,
        (block, offset): (u32, u16),
        hash: u32,
        page: &[u8; BLOCK],
    ) {
        self.change_known(ino, block, |index, broken| {
            index.names.remove(hash, place(block, offset), broken);
            index.gaps.set(block, dirent::largest_gap(page));
        });
    }

    /// Notes that `entry` of `block` now leads to another inode.
    pub(crate) fn replaced(&mut self, ino: u32, block: u32, entry: &dirent::Entry<'_>) {
        self.change_known(ino, block, |index, _| {
            index.names.replace(entry.hash, place(block, entry.offset), entry.ino, entry.kind);
        });
    }

    /// Compares the count of bytes with the indexes.
    ///
    /// # Errors
    /// `Internal`, with the account.
    pub(crate) fn audit(&self) -> Result<()> {
        let bytes = self.of.values().map(Index::bytes).sum();
        same(format_args!("DirectoryIndexes::bytes"), bytes, self.bytes)
    }

    /// Forgets directory `ino`, which was freed.
    pub(crate) fn forget(&mut self, ino: u32) {
        if let Some(index) = self.of.remove(&ino) {
            let bytes = self.bytes;
            self.bytes = self.broken.less("DirectoryIndexes::bytes", bytes, index.bytes());
        }
    }
}

#[cfg(test)]
mod tests;
