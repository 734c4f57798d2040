//! What is in large directories, in memory.
//!
//! A name can be in two blocks of each level of its directory, and to know that it is in none all
//! of them must be searched: with a million names that is fourteen blocks. And one that is there
//! costs its block, whose page, its frame and its place in the cache are each cold in the
//! processor's caches. So the names of each block that was searched once are kept here, together
//! with what they lead to, and the block's largest gap. A look-up then touches one short run of
//! memory; whole names are compared, so it is as exact as a search.
//!
//! **Names** are packed records in buckets by hash, a few in each, behind heads that tell which of
//! them to look at: what is cold of a bucket are the line of its heads and that of the record. The
//! table of buckets has one word for each, so that it is not cold itself. One bucket more is split
//! off the others with every few names that come (linear hashing), so nobody ever waits for all of
//! them to be moved. A name takes its length and some 22 bytes.
//!
//! Invariant: what is known of a block is what is in it: every change of a directory block goes
//! through [`Indexes::added`], [`Indexes::removed`] or [`Indexes::replaced`], or changes no name.
//! It is only a memory: nothing is lost by forgetting all of it, which happens when it takes more
//! than its share of the cache.

use crate::dirent::{self, BLOCK};
use crate::types::Kind;
use std::collections::BTreeMap;
use thin_vec::ThinVec;

/// Fewest bytes that are kept before all are forgotten: more than one search can learn.
const BYTES_MIN: usize = 4 << 20;
/// Of the cache's bytes, one in so many may be taken here.
const SHARE: usize = 4;
/// Offsets are multiples of four: a place is `block × 1024 + offset / 4`, in 32 bits.
const STEPS: u32 = BLOCK as u32 / 4;
/// In place of a gap: nothing is known of the block.
const UNKNOWN: u16 = u16::MAX;
/// Names in a bucket on average: so few buckets that the table of them stays in the processor's
/// caches, and so few names that their heads are within a line of it.
const PER_BUCKET: usize = 8;
/// What an allocation takes beside what was asked for.
const ALLOCATION: usize = 16;
/// What an allocated bucket begins with: its length and capacity.
const BUCKET: usize = 16;
/// Bytes of the number of names in a bucket.
const COUNT: usize = 2;
/// Bytes of a head: tag and length of the name.
const HEAD: usize = 2;
/// Bytes of a record before its name: hash, place, inode, kind.
const RECORD: usize = 13;

const _: () = assert!((dirent::blocks(dirent::MAX_LEVELS) as u64) * (STEPS as u64) < 1 << 32);

/// A name that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// Block of the directory.
    pub(crate) block: u32,
    /// Inode.
    pub(crate) ino: u32,
    /// What that is.
    pub(crate) kind: Kind,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// What the heads have of a hash: not the bits that choose the bucket.
fn tag(hash: u32) -> u8 {
    (hash >> 24) as u8
}

/// A name in a bucket: how many are before it, and where its record is.
#[derive(Clone, Copy)]
struct Spot {
    index: usize,
    start: usize,
    end: usize,
}

/// A few names: their number (2 bytes), for each a head (tag and length of the name), for each a
/// record (hash, place, inode, kind, name). Nothing at all if there are none.
#[derive(Default)]
struct Bucket(ThinVec<u8>);

impl Bucket {
    fn count(&self) -> usize {
        match self.0.get(..COUNT) {
            Some(count) => usize::from(u16::from_le_bytes([count[0], count[1]])),
            None => 0,
        }
    }

    fn set_count(&mut self, count: usize) {
        self.0[..COUNT].copy_from_slice(&(count as u16).to_le_bytes());
    }

    /// All names, with their heads.
    fn spots(&self) -> impl Iterator<Item = ([u8; HEAD], Spot)> + '_ {
        let count = self.count();
        let mut end = COUNT + count * HEAD;
        (0..count).map(move |index| {
            let head = COUNT + index * HEAD;
            let head = [self.0[head], self.0[head + 1]];
            let start = end;
            end += RECORD + usize::from(head[1]);
            (head, Spot { index, start, end })
        })
    }

    fn hash(&self, spot: Spot) -> u32 {
        word(&self.0, spot.start)
    }

    fn place(&self, spot: Spot) -> u32 {
        word(&self.0, spot.start + 4)
    }

    fn name(&self, spot: Spot) -> &[u8] {
        &self.0[spot.start + RECORD..spot.end]
    }

    fn find(&self, hash: u32, name: &[u8]) -> Option<Known> {
        let wanted = [tag(hash), name.len() as u8];
        let same = |spot: &Spot| self.hash(*spot) == hash && self.name(*spot) == name;
        let mut spots = self.spots().filter(|(head, _)| *head == wanted).map(|(_, spot)| spot);
        let at = spots.find(same)?.start;
        let kind = Kind::from_code(self.0[at + 12])?;
        Some(Known { block: word(&self.0, at + 4) / STEPS, ino: word(&self.0, at + 8), kind })
    }

    /// Where the name of `hash` at `place` is.
    fn at_place(&self, hash: u32, place: u32) -> Option<Spot> {
        let mut spots = self.spots().filter(|(head, _)| head[0] == tag(hash));
        let found =
            spots.find(|(_, spot)| self.place(*spot) == place && self.hash(*spot) == hash)?;
        Some(found.1)
    }

    /// A name that is not there yet, from the fields of its record.
    fn add(&mut self, fields: [&[u8]; 2], head: [u8; HEAD]) {
        let count = self.count();
        let before = if count == 0 { COUNT } else { self.0.len() };
        let after = before + HEAD + fields[0].len() + fields[1].len();
        if self.0.capacity() < after {
            // What the allocator hands out anyway.
            let wanted = (after + BUCKET + ALLOCATION / 2).next_multiple_of(ALLOCATION);
            self.0.reserve_exact(wanted - BUCKET - ALLOCATION / 2 - self.0.len());
        }
        self.0.resize(before + HEAD, 0);
        let heads = COUNT + count * HEAD;
        self.0.copy_within(heads..before, heads + HEAD);
        self.0[heads..heads + HEAD].copy_from_slice(&head);
        fields.iter().for_each(|field| self.0.extend_from_slice(field));
        self.set_count(count + 1);
    }

    fn remove(&mut self, spot: Spot) {
        let count = self.count() - 1;
        if count == 0 {
            self.0 = ThinVec::new();
            return;
        }
        self.0.drain(spot.start..spot.end);
        let head = COUNT + spot.index * HEAD;
        self.0.drain(head..head + HEAD);
        self.set_count(count);
        if self.0.capacity() - self.0.len() > 4 * ALLOCATION {
            self.0.shrink_to_fit();
        }
    }

    /// What it takes beside its place in the table.
    fn held(&self) -> usize {
        match self.0.capacity() {
            0 => 0,
            capacity => BUCKET + capacity + ALLOCATION,
        }
    }
}

/// The names of one directory.
struct Names {
    buckets: Vec<Bucket>,
    count: usize,
    /// Bytes of the buckets' contents, with what is allocated ahead.
    held: usize,
}

impl Default for Names {
    fn default() -> Names {
        Names { buckets: vec![Bucket::default()], count: 0, held: 0 }
    }
}

impl Names {
    fn bucket_of(&self, hash: u32) -> usize {
        let (hash, len) = (hash as usize, self.buckets.len());
        let mask = len.next_power_of_two() - 1;
        if hash & mask < len { hash & mask } else { hash & (mask >> 1) }
    }

    fn find(&self, hash: u32, name: &[u8]) -> Option<Known> {
        self.buckets[self.bucket_of(hash)].find(hash, name)
    }

    /// Changes a bucket, and counts what it holds.
    fn change<T>(&mut self, bucket: usize, change: impl FnOnce(&mut Bucket) -> T) -> T {
        let bucket = &mut self.buckets[bucket];
        let before = bucket.held();
        let changed = change(bucket);
        self.held = self.held + bucket.held() - before;
        changed
    }

    fn add(&mut self, entry: &dirent::Entry<'_>, place: u32) {
        let mut fields = [0; RECORD];
        fields[..4].copy_from_slice(&entry.hash.to_le_bytes());
        fields[4..8].copy_from_slice(&place.to_le_bytes());
        fields[8..12].copy_from_slice(&entry.ino.to_le_bytes());
        fields[12] = entry.kind.code();
        let head = [tag(entry.hash), entry.name.len() as u8];
        let bucket = self.bucket_of(entry.hash);
        self.change(bucket, |bucket| bucket.add([&fields, entry.name], head));
        self.count += 1;
        if self.count > self.buckets.len() * PER_BUCKET {
            self.split();
        }
    }

    /// One bucket more, with half the names of one of the others.
    fn split(&mut self) {
        let new = self.buckets.len();
        self.buckets.push(Bucket::default());
        let from = new - self.buckets.len().next_power_of_two() / 2;
        let old = self.change(from, std::mem::take);
        for (head, spot) in old.spots() {
            let to = self.bucket_of(old.hash(spot));
            self.change(to, |bucket| bucket.add([&old.0[spot.start..spot.end], &[]], head));
        }
    }

    /// Where the name of `hash` at `place` is, and in which bucket.
    fn at_place(&self, hash: u32, place: u32) -> Option<(usize, Spot)> {
        let bucket = self.bucket_of(hash);
        Some((bucket, self.buckets[bucket].at_place(hash, place)?))
    }

    fn remove(&mut self, hash: u32, place: u32) {
        let Some((bucket, spot)) = self.at_place(hash, place) else { return };
        self.count -= 1;
        self.change(bucket, |bucket| bucket.remove(spot));
    }

    fn replace(&mut self, hash: u32, place: u32, ino: u32, kind: Kind) {
        let Some((bucket, Spot { start, .. })) = self.at_place(hash, place) else { return };
        let bytes = &mut self.buckets[bucket].0;
        bytes[start + 8..start + 12].copy_from_slice(&ino.to_le_bytes());
        bytes[start + 12] = kind.code();
    }

    fn bytes(&self) -> usize {
        self.held + self.buckets.capacity() * size_of::<Bucket>()
    }
}

/// What is known of one directory.
#[derive(Default)]
struct Index {
    names: Names,
    /// Largest gap of each block, in bytes.
    gaps: Vec<u16>,
}

impl Index {
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

    fn bytes(&self) -> usize {
        let gaps = self.gaps.capacity() * size_of::<u16>();
        self.names.bytes() + gaps + size_of::<(u32, Index)>() + 2 * ALLOCATION
    }
}

fn place(block: u32, offset: u16) -> u32 {
    block * STEPS + u32::from(offset / 4)
}

/// What is known of directories; see the module's header.
pub(crate) struct Indexes {
    of: BTreeMap<u32, Index>,
    bytes: usize,
    most: usize,
}

impl Indexes {
    /// Knows nothing yet; in proportion to a cache of `pages`.
    pub(crate) fn new(pages: usize) -> Indexes {
        let most = (pages.saturating_mul(BLOCK) / SHARE).max(BYTES_MIN);
        Indexes { of: BTreeMap::new(), bytes: 0, most }
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Before a search: forgets all if that is too much.
    pub(crate) fn tidy(&mut self) {
        if self.bytes > self.most {
            self.of.clear();
            self.bytes = 0;
        }
    }

    /// True if it is known what is in `block` of directory `ino`.
    pub(crate) fn knows(&self, ino: u32, block: u32) -> bool {
        self.of.get(&ino).is_some_and(|index| index.knows(block))
    }

    /// The first of `blocks` of directory `ino` of which it is not known what is in it.
    pub(crate) fn unknown(&self, ino: u32, mut blocks: impl Iterator<Item = u32>) -> Option<u32> {
        let index = self.of.get(&ino);
        blocks.find(|block| index.is_none_or(|index| !index.knows(*block)))
    }

    /// Changes what is known of directory `ino`, and counts what it takes.
    fn change(&mut self, ino: u32, change: impl FnOnce(&mut Index)) {
        let before = self.of.get(&ino).map_or(0, Index::bytes);
        let index = self.of.entry(ino).or_default();
        change(index);
        self.bytes = self.bytes + index.bytes() - before;
    }

    /// The same, if it is known what is in `block`.
    fn change_known(&mut self, ino: u32, block: u32, change: impl FnOnce(&mut Index)) {
        if self.knows(ino, block) {
            self.change(ino, change);
        }
    }

    /// Learns what is in a block; `None` is a hole.
    pub(crate) fn learn(&mut self, ino: u32, block: u32, page: Option<&[u8; BLOCK]>) {
        if self.knows(ino, block) {
            return;
        }
        self.change(ino, |index| {
            for entry in page.into_iter().flat_map(dirent::iter) {
                index.names.add(&entry, place(block, entry.offset));
            }
            index.set_gap(block, page.map_or(BLOCK as u16, dirent::largest_gap));
        });
    }

    /// What `name`, of `hash`, leads to, as far as is known.
    pub(crate) fn find(&self, ino: u32, hash: u32, name: &[u8]) -> Option<Known> {
        self.of.get(&ino)?.names.find(hash, name)
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

    /// `entry` came into `block`, which is `page` now.
    pub(crate) fn added(
        &mut self,
        ino: u32,
        block: u32,
        entry: &dirent::Entry<'_>,
        page: &[u8; BLOCK],
    ) {
        self.change_known(ino, block, |index| {
            index.names.add(entry, place(block, entry.offset));
            index.set_gap(block, dirent::largest_gap(page));
        });
    }

    /// A name went from a block, which is `page` now.
    pub(crate) fn removed(
        &mut self,
        ino: u32,
        (block, offset): (u32, u16),
        hash: u32,
        page: &[u8; BLOCK],
    ) {
        self.change_known(ino, block, |index| {
            index.names.remove(hash, place(block, offset));
            index.set_gap(block, dirent::largest_gap(page));
        });
    }

    /// `entry` of `block` leads to another inode than before.
    pub(crate) fn replaced(&mut self, ino: u32, block: u32, entry: &dirent::Entry<'_>) {
        self.change_known(ino, block, |index| {
            index.names.replace(entry.hash, place(block, entry.offset), entry.ino, entry.kind);
        });
    }

    /// Directory `ino` is no more.
    pub(crate) fn forget(&mut self, ino: u32) {
        if let Some(index) = self.of.remove(&ino) {
            self.bytes -= index.bytes();
        }
    }
}

#[cfg(test)]
mod tests;
