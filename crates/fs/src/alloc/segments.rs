//! The segments of the main area: the table that says which of their blocks are valid (SIT).
//!
//! Others read it, and take from it what checkpoints and merges write. What it says of blocks is
//! changed by [`Allocator::set_valid`] alone, which keeps the accounts that are sums of it.

use crate::alloc::Allocator;
use crate::format::SitEntry;
use crate::tables::table::Table;
use std::rc::Rc;

impl Allocator {
    /// The SIT.
    pub(crate) fn sit(&self) -> &Table<SitEntry> {
        &self.sit
    }

    /// Entries that changed since the last snapshot, which takes them.
    pub(crate) fn take_changed_segments(&mut self) -> Vec<(u32, SitEntry)> {
        self.sit.take_dirty()
    }

    /// The checkpoint will not be for which entries `changed`, and table pages `stale`, were taken.
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

    /// Ends a merge: what it has not written is stale.
    pub(crate) fn end_segment_merge(&mut self) {
        self.sit.unmerge();
    }

    /// A table page of the merge, to be written as it is now; `None` if the merge need not write
    /// it any more.
    pub(crate) fn merged_segments(&mut self, table_page: u32) -> Option<Rc<Vec<SitEntry>>> {
        self.sit.merged(table_page)
    }

    /// The table pages that are stale, or `all`, which then are not: a checkpoint writes them.
    pub(crate) fn take_segment_pages(&mut self, all: bool) -> Vec<(u32, Rc<Vec<SitEntry>>)> {
        if all { self.sit.take_all() } else { self.sit.take_stale() }
    }

    /// At repair: what the SIT says of a segment. [`Allocator::count_valid`] must follow.
    pub(crate) fn repair_segment(&mut self, segment: u32, change: impl FnOnce(&mut SitEntry)) {
        self.sit.update(segment, change);
    }
}

#[cfg(test)]
impl Allocator {
    /// Changes an entry that does not become dirty by it.
    pub(crate) fn corrupt_segment(&mut self, segment: u32, change: impl FnOnce(&mut SitEntry)) {
        self.sit.corrupt(segment, change);
    }
}
