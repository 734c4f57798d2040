//! Memory use of a mounted file system, by purpose.
//!
//! Every part is counted where it grows, so a query costs only a few additions, no matter how
//! much memory is in use. The engine queries after each operation and keeps the peak. Pages are
//! counted exactly. Maps and sets are estimated: the bytes of their entries, plus the average
//! free space in their nodes and tables. The program around the engine, its executor and the
//! drive are not included.

use furrow_rt::PAGE_SIZE;

pub(crate) const PAGE: u64 = PAGE_SIZE as u64;

/// Memory that a file system uses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Cached blocks of files and directories.
    pub data: u64,
    /// Cached nodes: inodes and pointer blocks.
    pub nodes: u64,
    /// Dirty pages not yet handed to the drive; they are already counted in `data` or `nodes`.
    pub dirty: u64,
    /// Pages handed to the drive, whose writes it has not answered yet. Pages that the cache holds
    /// unchanged are counted in `data` or `nodes` too, all others in `writes`.
    pub in_flight: u64,
    /// The cache's index of its pages, and its lists of dirty pages.
    pub cache_index: u64,
    /// Pages in flight to the drive that the cache no longer holds, or holds with newer content.
    pub writes: u64,
    /// Tables: addresses of nodes, valid blocks of segments, and the set of used node ids.
    pub tables: u64,
    /// Table changes on their way to the delta log, and the list of its extents.
    pub deltas: u64,
    /// Indexes of the names in large directories.
    pub directories: u64,
    /// Changes of names and nodes since the last checkpoint, which fsyncs log.
    pub changes: u64,
}

impl Memory {
    /// The sum of all parts; pages that are dirty or in flight are counted only once.
    pub fn total(&self) -> u64 {
        self.parts().iter().map(|part| part.2).sum()
    }

    /// The parts of [`Memory::total`]: name, description, bytes.
    pub fn parts(&self) -> [(&'static str, &'static str, u64); 8] {
        [
            ("data", "cached blocks of files and directories", self.data),
            ("nodes", "cached inodes and pointer blocks", self.nodes),
            ("cache_index", "finding cached pages", self.cache_index),
            ("writes", "on their way to the drive, not cached", self.writes),
            ("tables", "places of nodes, valid blocks", self.tables),
            ("deltas", "changes of the tables", self.deltas),
            ("directories", "places of names in large directories", self.directories),
            ("changes", "changes that fsyncs log", self.changes),
        ]
    }
}

/// Bytes of a hash table with space for `capacity` entries of `size` bytes: a power of two of
/// buckets, at most seven eighths full, with a control byte each.
pub(crate) fn map_bytes(capacity: usize, size: usize) -> u64 {
    if capacity == 0 { 0 } else { ((capacity * 8 / 7).next_power_of_two() * (size + 1)) as u64 }
}

/// Bytes of an ordered set of `len` entries of `size` bytes. Each node of the set has eleven
/// places, and two thirds of the places are used on average.
pub(crate) fn set_bytes(len: usize, size: usize) -> u64 {
    (len * size * 3 / 2 + len * 4) as u64
}
