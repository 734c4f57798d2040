//! The names of one directory, by hash.
//!
//! Extendible hashing over pages: the first bits of a hash choose an entry of the directory of
//! pages, which is small enough to stay in the processor's caches. A full page is split, so that no
//! operation ever moves more than about a hundred names. In a page, slots with a tag of the hash
//! point to the records. A look-up of a name touches two cold cache lines: its slot and its record.
//! Slot and record are in one page of memory, which the kernel maps together with its neighbours.
//!
//! Names whose hashes share more first bits than chance explains would split pages endlessly, and
//! double the directory of pages each time. Such names are kept in a separate list, by hash.
//!
//! ```text
//! slots    128 × u32: tag in the upper half, offset of the record in the lower half
//! header   4 × u16: depth, slots in use, offset of the next record, bytes in removed records
//! records  hash u32, place u32, inode u32, kind u8 (0: removed), length u8, name
//! ```

use crate::tree::dirent::Entry;
use crate::types::Kind;
use furrow_log::audit::Broken;
use furrow_rt::{OwnedPage, PAGE_SIZE};
use std::collections::BTreeMap;

/// Number of slots in a page.
const SLOTS: usize = 128;
/// Largest number of slots in use. Some slots must stay empty, because a search ends at the first
/// empty slot.
const SLOTS_MOST: u16 = (SLOTS - SLOTS / 8) as u16;
/// Marks a slot whose record was removed: no record begins at this offset.
const GONE: u32 = 1;
/// Bytes of all slots, and so the offset of the header.
const HEADER: usize = SLOTS * 4;
/// Offset of the first record.
const RECORDS: usize = HEADER + 8;
/// Number of bytes of a record before its name.
const RECORD: usize = 14;
/// Largest number of bits of a hash that may choose a page.
const DEPTH_MOST: u32 = 24;
/// Largest number of entries in the directory of pages, per page; `ENTRIES_MIN` entries are always
/// allowed. A full page is not split if the split would double a directory that has reached this
/// limit: further names go to a list.
const ENTRIES_PER_PAGE: usize = 16;
const ENTRIES_MIN: usize = 1_024;
/// A full page is cleaned instead of split if it has at least this many bytes of removed records,
/// or if an eighth of its slots was removed.
const STALE: u16 = 512;

const _: () = assert!(RECORDS + RECORD + 255 <= PAGE_SIZE && PAGE_SIZE <= 1 << 16);

/// A name in its stored form.
#[derive(Clone, Copy)]
struct Record<'a> {
    hash: u32,
    place: u32,
    ino: u32,
    kind: u8,
    name: &'a [u8],
}

impl Record<'_> {
    fn bytes(&self) -> usize {
        RECORD + self.name.len()
    }
}

fn tag(hash: u32) -> u32 {
    (hash >> 7) & 0xffff
}

/// A page with some of the names.
struct Leaf(OwnedPage);

impl Leaf {
    fn new(depth: u32) -> Leaf {
        let mut leaf = Leaf(OwnedPage::zeroed());
        leaf.set(Field::Depth, depth as u16);
        leaf.set(Field::End, RECORDS as u16);
        leaf
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    fn set_word(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn get(&self, field: Field) -> u16 {
        let at = HEADER + 2 * field as usize;
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    fn set(&mut self, field: Field, value: u16) {
        let at = HEADER + 2 * field as usize;
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn record(&self, at: usize) -> Record<'_> {
        let length = usize::from(self.0[at + 13]);
        Record {
            hash: self.word(at),
            place: self.word(at + 4),
            ino: self.word(at + 8),
            kind: self.0[at + 12],
            name: &self.0[at + RECORD..at + RECORD + length],
        }
    }

    /// The slot and the offset of the record with `hash` that satisfies `wanted`.
    fn seek(&self, hash: u32, wanted: impl Fn(&Record<'_>) -> bool) -> Option<(usize, usize)> {
        let tag = tag(hash);
        let mut slot = hash as usize % SLOTS;
        loop {
            let found = self.word(4 * slot);
            let at = (found & 0xffff) as usize;
            if found == 0 {
                return None;
            }
            if found >> 16 == tag && at >= RECORDS {
                let record = self.record(at);
                if record.hash == hash && wanted(&record) {
                    return Some((slot, at));
                }
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let end = usize::from(self.get(Field::End));
        let mut next = RECORDS;
        let all = std::iter::from_fn(move || {
            let record = (next < end).then(|| self.record(next))?;
            next += record.bytes();
            Some(record)
        });
        all.filter(|record| record.kind != 0)
    }

    fn has_space(&self, record: &Record<'_>) -> bool {
        let end = usize::from(self.get(Field::End)) + record.bytes();
        self.get(Field::Used) < SLOTS_MOST && end <= PAGE_SIZE
    }

    /// True if enough records were removed that rewriting the page is worthwhile.
    fn is_stale(&self) -> bool {
        let live = self.records().count() as u16;
        self.get(Field::Removed) >= STALE || self.get(Field::Used) - live >= SLOTS_MOST / 8
    }

    /// Adds a name; the page must have space for it.
    fn push(&mut self, record: &Record<'_>) {
        let mut slot = record.hash as usize % SLOTS;
        while self.word(4 * slot) != 0 {
            slot = (slot + 1) % SLOTS;
        }
        let at = usize::from(self.get(Field::End));
        self.set_word(4 * slot, tag(record.hash) << 16 | at as u32);
        self.set_word(at, record.hash);
        self.set_word(at + 4, record.place);
        self.set_word(at + 8, record.ino);
        self.0[at + 12] = record.kind;
        self.0[at + 13] = record.name.len() as u8;
        self.0[at + RECORD..at + record.bytes()].copy_from_slice(record.name);
        self.set(Field::End, (at + record.bytes()) as u16);
        self.set(Field::Used, self.get(Field::Used) + 1);
    }

    fn remove(&mut self, (slot, at): (usize, usize)) {
        self.set_word(4 * slot, GONE);
        self.0[at + 12] = 0;
        let bytes = self.record(at).bytes() as u16;
        self.set(Field::Removed, self.get(Field::Removed) + bytes);
    }

    /// Rewrites the page without the removed records.
    fn clean(&mut self) {
        let old = std::mem::replace(self, Leaf::new(u32::from(self.get(Field::Depth))));
        old.records().for_each(|record| self.push(&record));
    }
}

/// The fields of a page's header.
#[derive(Clone, Copy)]
enum Field {
    /// Number of first bits that the hashes of all names in the page share.
    Depth,
    /// Number of slots that are not empty.
    Used,
    /// Offset of the next record.
    End,
    /// Number of bytes in removed records.
    Removed,
}

/// A name whose hash shares its first bits with too many other names.
struct Crowded {
    ino: u32,
    kind: u8,
    name: Box<[u8]>,
}

/// The names of one directory.
///
/// Invariants: `entries` has `2^depth` elements. All elements whose indexes agree in the first
/// bits, up to the depth of their page, name the same page. The page has all names whose hashes
/// begin with these bits, except those in `crowd`.
#[derive(Default)]
pub(super) struct NameTable {
    depth: u32,
    entries: Vec<u32>,
    leaves: Vec<Leaf>,
    /// Names that are in no page, by hash and place.
    crowd: BTreeMap<(u32, u32), Crowded>,
    count: usize,
}

impl NameTable {
    /// Number of names.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Bytes of memory in use.
    pub(super) fn bytes(&self) -> usize {
        self.leaves.len() * PAGE_SIZE
            + self.leaves.capacity() * size_of::<Leaf>()
            + self.entries.capacity() * size_of::<u32>()
            + self.crowd.len() * (size_of::<((u32, u32), Crowded)>() + 64)
    }

    fn entry_of(&self, hash: u32) -> usize {
        // Shift in 64 bits, because at depth 0 all 32 bits are shifted out.
        (u64::from(hash) >> (32 - self.depth)) as usize
    }

    fn leaf_of(&self, hash: u32) -> Option<usize> {
        Some(*self.entries.get(self.entry_of(hash))? as usize)
    }

    /// The place, inode and kind of `name`.
    pub(super) fn find(&self, hash: u32, name: &[u8]) -> Option<(u32, u32, Kind)> {
        let leaf = &self.leaves[self.leaf_of(hash)?];
        if let Some((_, at)) = leaf.seek(hash, |record| record.name == name) {
            let Record { place, ino, kind, .. } = leaf.record(at);
            return Some((place, ino, Kind::from_code(kind)?));
        }
        let mut crowd = self.crowd.range((hash, 0)..=(hash, u32::MAX));
        let ((_, place), found) = crowd.find(|(_, found)| *found.name == *name)?;
        Some((*place, found.ino, Kind::from_code(found.kind)?))
    }

    /// Adds a name that is not in the table yet.
    pub(super) fn add(&mut self, entry: &Entry<'_>, place: u32) {
        let Entry { hash, ino, name, .. } = *entry;
        let record = Record { hash, place, ino, kind: entry.kind.code(), name };
        self.count += 1;
        if self.leaves.is_empty() {
            *self = NameTable {
                leaves: vec![Leaf::new(0)],
                entries: vec![0],
                count: 1,
                ..NameTable::default()
            };
        }
        while let Some(at) = self.leaf_of(hash) {
            let leaf = &mut self.leaves[at];
            if leaf.has_space(&record) {
                return leaf.push(&record);
            }
            if leaf.is_stale() {
                leaf.clean();
                continue;
            }
            let differ = leaf.records().fold(0, |differ, other| differ | (other.hash ^ hash));
            if differ.leading_zeros() >= DEPTH_MOST || !self.may_split(at) {
                let (kind, name) = (record.kind, name.into());
                self.crowd.insert((hash, place), Crowded { ino, kind, name });
                return;
            }
            self.split(hash, at);
        }
    }

    /// True if page `at` may be split without making the directory of pages too large.
    fn may_split(&self, at: usize) -> bool {
        let doubles = u32::from(self.leaves[at].get(Field::Depth)) == self.depth;
        let most = ENTRIES_MIN.max(ENTRIES_PER_PAGE * self.leaves.len());
        !doubles || self.entries.len() < most
    }

    /// Moves half of the names of page `at` to a new page. `hash` is a hash that leads to
    /// page `at`.
    fn split(&mut self, hash: u32, at: usize) {
        let depth = u32::from(self.leaves[at].get(Field::Depth));
        if depth == self.depth {
            self.entries = self.entries.iter().flat_map(|leaf| [*leaf, *leaf]).collect();
            self.depth += 1;
        }
        let new = self.leaves.len();
        self.leaves.push(Leaf::new(depth + 1));
        let old = std::mem::replace(&mut self.leaves[at], Leaf::new(depth + 1));
        let half = 1 << (self.depth - depth - 1);
        let first = self.entry_of(hash) / (2 * half) * (2 * half);
        self.entries[first + half..first + 2 * half].fill(new as u32);
        for record in old.records() {
            let upper = record.hash >> (31 - depth) & 1 == 1;
            self.leaves[if upper { new } else { at }].push(&record);
        }
    }

    /// Removes the name with `hash` at `place`, if it exists. If the count of names would go below
    /// zero, `broken` is told.
    pub(super) fn remove(&mut self, hash: u32, place: u32, broken: &Broken) {
        let Some(at) = self.leaf_of(hash) else { return };
        let leaf = &mut self.leaves[at];
        if let Some(found) = leaf.seek(hash, |record| record.place == place) {
            leaf.remove(found);
        } else if self.crowd.remove(&(hash, place)).is_none() {
            return;
        }
        self.count = broken.less("NameTable::count", self.count, 1);
        if self.count == 0 {
            *self = NameTable::default();
        }
    }

    /// Points the name with `hash` at `place`, if it exists, to inode `ino`.
    pub(super) fn replace(&mut self, hash: u32, place: u32, ino: u32, kind: Kind) {
        let Some(at) = self.leaf_of(hash) else { return };
        let leaf = &mut self.leaves[at];
        if let Some((_, at)) = leaf.seek(hash, |record| record.place == place) {
            leaf.set_word(at + 8, ino);
            leaf.0[at + 12] = kind.code();
        } else if let Some(name) = self.crowd.get_mut(&(hash, place)) {
            (name.ino, name.kind) = (ino, kind.code());
        }
    }
}
