//! The number of bytes that a snapshot takes in the record ring: the count, and the size of
//! each entry.
//!
//! Invariant: the counts are the bytes of a snapshot of the present state, or more.

use crate::extent::{Extent, Sums};
use crate::file_kind::Family;
use crate::format::{EntryHead, ExtentEntry, FileEntry, NameEntry, YoungestEntry, ZoneEntry};
use std::cell::Cell;
use std::collections::BTreeMap;

/// Bytes of the entry of a file without extents.
pub(crate) const FILE_ENTRY: u64 = (EntryHead::SIZE + FileEntry::SIZE) as u64;

/// Bytes of a snapshot.
#[derive(Debug, Default)]
pub(crate) struct RingLoad {
    /// Bytes of the entries of names, files and zones, without the tails of files.
    entries: Cell<u64>,
    /// Bytes after the last whole block of files.
    tails: Cell<u64>,
}

/// Bytes that a file adds to a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileLoad {
    pub(crate) entries: u64,
    pub(crate) tail: u64,
}

impl RingLoad {
    pub(crate) fn total(&self) -> u64 {
        self.entries.get() + self.tails.get()
    }

    /// Counts a change of the bytes that a file adds to a snapshot.
    pub(crate) fn change(&self, before: FileLoad, now: FileLoad) {
        self.entries.set((self.entries.get() + now.entries).saturating_sub(before.entries));
        self.tails.set((self.tails.get() + now.tail).saturating_sub(before.tail));
    }

    /// Counts an entry of `bytes` that is added.
    pub(crate) fn add(&self, bytes: u64) {
        self.entries.set(self.entries.get() + bytes);
    }

    /// Counts an entry of `bytes` that is gone.
    pub(crate) fn remove(&self, bytes: u64) {
        self.entries.set(self.entries.get().saturating_sub(bytes));
    }

    /// Bytes after the last whole block of files.
    pub(crate) fn tails(&self) -> u64 {
        self.tails.get()
    }

    /// Returns the counts, for the audit.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.entries.get(), self.tails.get())
    }
}

/// Bytes of the entry of a name.
pub(crate) fn name_bytes(path: &str) -> u64 {
    (EntryHead::SIZE + NameEntry::SIZE + path.len()) as u64
}

/// Size in bytes of the entry of a file with these extents. The file's tail is not included.
pub(crate) fn file_bytes(extents: &[Extent]) -> u64 {
    let sums = |extent: &Extent| match &extent.sums {
        Sums::Here(sums) => 4 * sums.len(),
        Sums::At(_) => 0,
    };
    let each = extents.iter().map(|extent| (ExtentEntry::SIZE + sums(extent)) as u64);
    FILE_ENTRY + each.sum::<u64>()
}

/// Bytes of the entry of a zone.
pub(crate) fn zone_bytes(youngest: &BTreeMap<Family, u64>) -> u64 {
    let each = youngest.keys().map(|family| family.directory.len() + family.name.len());
    let each = each.map(|bytes| YoungestEntry::SIZE + bytes);
    (EntryHead::SIZE + ZoneEntry::SIZE + each.sum::<usize>()) as u64
}
