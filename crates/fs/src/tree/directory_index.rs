//! An index in memory of the names in large directories.
//!
//! A name can be in two blocks of each level of its directory. A search for a missing name reads
//! both blocks of every level: fourteen blocks for a million names. A search for an existing name
//! needs only the block of the name. But the block's page, its frame and its entry in the page
//! cache are all cold in the processor's caches. So the index keeps the names of each block that
//! was once searched (`name_table`), with their inodes, and the block's largest gap. A look-up then
//! touches two places in one page of memory. Whole names are compared, so a look-up is as exact as
//! a search.
//!
//! Invariant: what the index holds of a block equals the block's present content. Every change of a
//! directory block goes through [`DirectoryIndexes::added`], [`DirectoryIndexes::removed`] or
//! [`DirectoryIndexes::replaced`], or changes no name. The index is only a copy: it can be dropped
//! completely without loss, and is dropped when it exceeds its share of the cache.

mod name_table;

use crate::tree::dirent::{self, BLOCK};
use crate::types::Kind;
use furrow_log::audit::{Broken, equal};
use furrow_zone::Result;
use name_table::NameTable;
use std::collections::BTreeMap;

/// Number of bytes that the index may always use; one search adds fewer.
const BYTES_MIN: usize = 4 << 20;
/// The index may use the capacity of the page cache, in bytes, divided by this number.
const SHARE: usize = 4;
/// Number of possible record offsets in a block, which are multiples of four. The place of a name
/// is `block × 1024 + offset / 4`, in 32 bits.
const STEPS: u32 = BLOCK as u32 / 4;
/// Value in place of a gap if the content of the block is unknown.
const UNKNOWN: u16 = u16::MAX;
/// Overhead of one allocation, in bytes.
const ALLOCATION: usize = 16;

const _: () = assert!((dirent::blocks(dirent::MAX_LEVELS) as u64) * (STEPS as u64) < 1 << 32);

/// What the index knows of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// Block of the directory that contains the name.
    pub(crate) block: u32,
    /// The inode that the name leads to.
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

/// Number of blocks whose gaps are stored together.
const GAPS: usize = 512;

/// The largest gap of each block, in bytes. Gaps are stored in groups, because a directory of many
/// levels uses few blocks, which are far apart.
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

    /// From now on, the index reports to `broken` each account that would go below zero.
    pub(super) fn note_broken_in(&mut self, broken: &Broken) {
        self.broken = broken.clone();
    }

    /// Bytes of memory in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Drops the whole index if it is too large. Must be called before a search.
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

    /// Changes the index of directory `ino`, and updates the count of bytes. `change` is
    /// called with the index and with the [`Broken`] to which it must report accounts that
    /// would go below zero.
    fn change(&mut self, ino: u32, change: impl FnOnce(&mut Index, &Broken)) {
        let before = self.of.get(&ino).map_or(0, Index::bytes);
        let index = self.of.entry(ino).or_default();
        change(index, &self.broken);
        let with_change = self.bytes + index.bytes();
        self.bytes = self.broken.less("DirectoryIndexes::bytes", with_change, before);
    }

    /// Like [`DirectoryIndexes::change`], but only if the content of `block` is known.
    fn change_known(&mut self, ino: u32, block: u32, change: impl FnOnce(&mut Index, &Broken)) {
        if self.knows(ino, block) {
            self.change(ino, change);
        }
    }

    /// Adds the content of `block` to the index; `page` is `None` if the block is a hole.
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

    /// Finds `name`, whose hash is `hash`, in the known content of directory `ino`.
    pub(crate) fn find(&self, ino: u32, hash: u32, name: &[u8]) -> Option<Known> {
        let (place, ino, kind) = self.of.get(&ino)?.names.find(hash, name)?;
        Some(Known { block: place / STEPS, ino, kind })
    }

    /// The first of `blocks` that has space for a name of `length` bytes. The index must know the
    /// content of all `blocks`.
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

    /// Updates the index after `entry` was added to `block`, whose content is now `page`.
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

    /// Updates the index after a name was removed from a block, whose content is now `page`.
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

    /// Updates the index after `entry` of `block` was pointed to another inode.
    pub(crate) fn replaced(&mut self, ino: u32, block: u32, entry: &dirent::Entry<'_>) {
        self.change_known(ino, block, |index, _| {
            index.names.replace(entry.hash, place(block, entry.offset), entry.ino, entry.kind);
        });
    }

    /// Compares the count of bytes with the indexes.
    ///
    /// # Errors
    /// `Internal`, naming the account that is wrong.
    pub(crate) fn audit(&self) -> Result<()> {
        let bytes = self.of.values().map(Index::bytes).sum();
        equal("DirectoryIndexes::bytes", bytes, self.bytes)
    }

    /// Drops the index of directory `ino`, which was freed.
    pub(crate) fn forget(&mut self, ino: u32) {
        if let Some(index) = self.of.remove(&ino) {
            let bytes = self.bytes;
            self.bytes = self.broken.less("DirectoryIndexes::bytes", bytes, index.bytes());
        }
    }
}

#[cfg(test)]
mod tests;
