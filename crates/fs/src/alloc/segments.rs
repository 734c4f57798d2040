//! The segments of the main area: the table that says which of their blocks are valid (SIT).
//!
//! Checkpoints and merges read the table, and take the entries and pages to write from it. Apart
//! from repair, only [`Allocator::set_valid`] changes which blocks are valid. That function also
//! updates the accounts that are sums over the table.

use crate::alloc::Allocator;
use crate::format::SitEntry;
use crate::tables::table::Table;
use std::rc::Rc;

impl Allocator {
    /// The SIT.
    pub(crate) fn sit(&self) -> &Table<SitEntry> {
        &self.sit
    }

    /// Takes the entries that changed since the last snapshot.
    pub(crate) fn take_changed_segments(&mut self) -> Vec<(u32, SitEntry)> {
        self.sit.take_dirty()
    }

    /// Marks the entries `changed` and the table pages `stale` as unwritten again, because the
    /// checkpoint that took them will not be made.
    pub(crate) fn untake_segments(
        &mut self,
        changed: &[(u32, SitEntry)],
        stale: impl Iterator<Item = u32>,
    ) {
        self.sit.untake(changed, stale);
    }

    /// Begins a merge of the table pages that are stale, and of `more`.
    pub(crate) fn begin_segment_merge(&mut self, more: impl Iterator<Item = u32>) {
        self.sit.begin_merge(more);
    }

    /// Ends a merge: the pages it has not written are stale again.
    pub(crate) fn end_segment_merge(&mut self) {
        self.sit.unmerge();
    }

    /// A table page of the merge, to be written with its present content; `None` if the merge need
    /// not write it any more.
    pub(crate) fn merged_segments(&mut self, table_page: u32) -> Option<Rc<Vec<SitEntry>>> {
        self.sit.merged(table_page)
    }

    /// Takes the stale table pages, or with `all` every page, for a checkpoint to write. The pages
    /// are then no longer stale.
    pub(crate) fn take_segment_pages(&mut self, all: bool) -> Vec<(u32, Rc<Vec<SitEntry>>)> {
        if all { self.sit.take_all() } else { self.sit.take_stale() }
    }

    /// At repair, sets the valid blocks of a segment to `map`. [`Allocator::count_valid`] must be
    /// called afterwards.
    pub(crate) fn repair_segment(&mut self, segment: u32, map: [u8; 64]) {
        let valid: u32 = map.iter().map(|byte| byte.count_ones()).sum();
        self.sit.update(segment, |entry| {
            entry.map = map;
            entry.valid = (valid as u16).into();
        });
    }
}

#[cfg(test)]
impl Allocator {
    /// Changes an entry without making it dirty.
    pub(crate) fn corrupt_segment(&mut self, segment: u32, change: impl FnOnce(&mut SitEntry)) {
        self.sit.corrupt(segment, change);
    }

    /// Changes an entry so that the next checkpoint writes it.
    pub(crate) fn damage_segment(&mut self, segment: u32, change: impl FnOnce(&mut SitEntry)) {
        self.sit.update(segment, change);
    }
}
