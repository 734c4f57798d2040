//! The tables in memory: NAT and SIT.
//!
//! A table is an array of fixed-size entries, divided into *table pages*, the units in which the
//! table area is written. Table pages that were never touched take no memory. Entries changed since
//! the last checkpoint are *dirty* and go to the delta log. Table pages with entries in the delta
//! log are *stale*: their copy in the table area is older, and the next merge writes them.
//!
//! A checkpoint takes its snapshot by sharing table pages ([`Rc`]); a later change copies the page.

use crate::format::{NatEntry, SitEntry};
use furrow_log::audit::{equal, expect};
use furrow_zone::Result;
use std::collections::BTreeSet;
use std::rc::Rc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An entry of a table.
pub(crate) trait Entry:
    FromBytes + IntoBytes + Immutable + KnownLayout + Copy + 'static
{
}

impl Entry for NatEntry {}
impl Entry for SitEntry {}

/// A table in memory.
///
/// Invariants:
/// - `resident` is the number of table pages in memory.
/// - Dirty entries, and pages that are stale or to be merged, are in memory.
pub(crate) struct Table<E> {
    per_table_page: u32,
    len: u32,
    table_pages: Vec<Option<Rc<Vec<E>>>>,
    /// Number of table pages in memory.
    resident: usize,
    dirty: BTreeSet<u32>,
    stale: BTreeSet<u32>,
    /// Table pages that a merge still has to write.
    merging: BTreeSet<u32>,
}

impl<E: Entry> Table<E> {
    /// Builds a table of `len` zero entries, `per_table_page` in each table page.
    pub(crate) fn new(len: u32, per_table_page: u32) -> Table<E> {
        let table_pages = vec![None; len.div_ceil(per_table_page) as usize];
        let (dirty, stale, merging) = Default::default();
        Table { per_table_page, len, table_pages, resident: 0, dirty, stale, merging }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns entry `index`; zeros past the end.
    pub(crate) fn get(&self, index: u32) -> E {
        self.table_pages
            .get((index / self.per_table_page) as usize)
            .and_then(|table_page| table_page.as_ref())
            .and_then(|table_page| table_page.get((index % self.per_table_page) as usize))
            .copied()
            .unwrap_or_else(E::new_zeroed)
    }

    /// Changes entry `index` and marks it dirty.
    pub(crate) fn update(&mut self, index: u32, change: impl FnOnce(&mut E)) {
        self.dirty.insert(index);
        change(self.entry_mut(index));
    }

    fn entry_mut(&mut self, index: u32) -> &mut E {
        debug_assert!(index < self.len);
        let per_table_page = self.per_table_page as usize;
        let table_page = &mut self.table_pages[(index / self.per_table_page) as usize];
        self.resident += usize::from(table_page.is_none());
        let table_page =
            table_page.get_or_insert_with(|| Rc::new(vec![E::new_zeroed(); per_table_page]));
        &mut Rc::make_mut(table_page)[(index % self.per_table_page) as usize]
    }

    /// Sets an entry read back from the delta log, so its table page is stale. False if the index
    /// is out of range or the bytes have the wrong size.
    #[must_use]
    pub(crate) fn restore(&mut self, index: u32, bytes: &[u8]) -> bool {
        let Ok(entry) = E::read_from_bytes(bytes) else { return false };
        if index >= self.len {
            return false;
        }
        *self.entry_mut(index) = entry;
        self.stale.insert(index / self.per_table_page);
        true
    }

    /// Sets a table page read back from the table area. False if `bytes` is too short.
    #[must_use]
    pub(crate) fn restore_table_page(&mut self, table_page: u32, bytes: &[u8]) -> bool {
        let size = size_of::<E>() * self.per_table_page as usize;
        let Some(bytes) = bytes.get(..size) else { return false };
        self.resident += usize::from(self.table_pages[table_page as usize].is_none());
        let Ok(entries) = <[E]>::ref_from_bytes_with_elems(bytes, self.per_table_page as usize)
        else {
            // The bytes may be unaligned for `E`: copy entry by entry.
            let copied: Vec<E> = bytes
                .chunks_exact(size_of::<E>())
                .filter_map(|chunk| E::read_from_bytes(chunk).ok())
                .collect();
            self.table_pages[table_page as usize] = Some(Rc::new(copied));
            return true;
        };
        self.table_pages[table_page as usize] = Some(Rc::new(entries.to_vec()));
        true
    }

    /// Bytes of memory that the entries use.
    pub(crate) fn bytes(&self) -> u64 {
        let pointers = self.table_pages.len() * size_of::<Option<Rc<Vec<E>>>>();
        (self.resident * self.per_table_page as usize * size_of::<E>() + pointers) as u64
    }

    /// Number of entries that are dirty.
    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// True if entry `index` changed since the last snapshot.
    pub(crate) fn is_dirty(&self, index: u32) -> bool {
        self.dirty.contains(&index)
    }

    /// Entries that changed since the last snapshot, each with its index, in ascending order.
    pub(crate) fn dirty(&self) -> impl Iterator<Item = (u32, E)> + '_ {
        self.dirty.iter().map(|index| (*index, self.get(*index)))
    }

    /// Compares the table's accounts with its pages.
    ///
    /// # Errors
    /// `Internal`, naming the account that is wrong.
    pub(crate) fn audit(&self, name: &str) -> Result<()> {
        let resident = self.table_pages.iter().flatten().count();
        equal(format_args!("Table::resident of {name}"), resident, self.resident)?;
        let exists = |page: u32| self.table_pages.get(page as usize).is_some_and(Option::is_some);
        for index in &self.dirty {
            let account = format_args!("Table::dirty of {name}, entry {index}");
            expect(account, *index < self.len && exists(*index / self.per_table_page), "an entry")?;
        }
        for page in self.stale.iter().chain(&self.merging) {
            let account = format_args!("Table::stale and Table::merging of {name}, page {page}");
            expect(account, exists(*page), "a table page in memory")?;
        }
        Ok(())
    }

    /// Takes the dirty entries, which are then clean; their table pages are stale.
    pub(crate) fn take_dirty(&mut self) -> Vec<(u32, E)> {
        let dirty = std::mem::take(&mut self.dirty);
        for index in &dirty {
            self.stale.insert(index / self.per_table_page);
        }
        dirty.into_iter().map(|index| (index, self.get(index))).collect()
    }

    /// Marks the entries `dirty` as dirty and the table pages `stale` as stale again, because the
    /// checkpoint that took them will not be made.
    pub(crate) fn untake(&mut self, dirty: &[(u32, E)], stale: impl Iterator<Item = u32>) {
        self.dirty.extend(dirty.iter().map(|(index, _)| *index));
        self.stale.extend(stale);
    }

    /// Table pages whose copy in the table area is older than the page in memory, except the pages
    /// that a merge still has to write.
    pub(crate) fn stale(&self) -> &BTreeSet<u32> {
        &self.stale
    }

    /// Number of table pages up to the last one that was ever touched.
    pub(crate) fn touched(&self) -> u32 {
        let last = self.table_pages.iter().rposition(Option::is_some);
        last.map_or(0, |last| last as u32 + 1)
    }

    /// Number of table pages in memory.
    pub(crate) fn existing(&self) -> u32 {
        self.resident as u32
    }

    /// Entries of table pages that were ever touched, with their index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &E)> {
        let table_pages = (0..)
            .zip(&self.table_pages)
            .filter_map(|(u, table_page)| Some((u, table_page.as_ref()?)));
        let entries = table_pages
            .flat_map(|(u, table_page)| (u * self.per_table_page..).zip(table_page.iter()));
        entries.filter(|(index, _)| *index < self.len)
    }

    /// Begins a merge of the table pages that are stale, and of `more`.
    pub(crate) fn begin_merge(&mut self, more: impl Iterator<Item = u32>) {
        debug_assert!(self.merging.is_empty(), "a merge begins while one is under way");
        self.merging = std::mem::take(&mut self.stale);
        self.merging.extend(more);
        self.merging.retain(|table_page| self.table_pages[*table_page as usize].is_some());
    }

    /// Table pages that the merge still has to write.
    pub(crate) fn merging(&self) -> &BTreeSet<u32> {
        &self.merging
    }

    /// Shares a table page of the merge, to be written with its present content; the page is no
    /// longer stale. `None` if the merge need not write the page any more.
    pub(crate) fn merged(&mut self, table_page: u32) -> Option<Rc<Vec<E>>> {
        if !self.merging.remove(&table_page) {
            return None;
        }
        self.stale.remove(&table_page);
        self.table_pages[table_page as usize].clone()
    }

    /// Ends a merge: the pages it has not written are stale again.
    pub(crate) fn unmerge(&mut self) {
        let left = std::mem::take(&mut self.merging);
        self.stale.extend(left);
    }

    /// Shares the stale table pages with the checkpoint that writes them; they are no longer stale.
    pub(crate) fn take_stale(&mut self) -> Vec<(u32, Rc<Vec<E>>)> {
        let stale = std::mem::take(&mut self.stale);
        stale.into_iter().filter_map(|u| Some((u, self.table_pages[u as usize].clone()?))).collect()
    }

    /// Shares every table page in memory, for a full rewrite. Afterwards no page is stale.
    pub(crate) fn take_all(&mut self) -> Vec<(u32, Rc<Vec<E>>)> {
        self.stale.clear();
        let table_pages = self.table_pages.iter().enumerate();
        table_pages.filter_map(|(u, table_page)| Some((u as u32, table_page.clone()?))).collect()
    }
}

#[cfg(test)]
impl<E: Entry> Table<E> {
    /// Changes an entry without making it dirty.
    pub(crate) fn corrupt(&mut self, index: u32, change: impl FnOnce(&mut E)) {
        change(self.entry_mut(index));
    }

    /// Forgets that an entry is dirty.
    pub(crate) fn corrupt_dirty(&mut self, index: u32) -> bool {
        self.dirty.remove(&index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_not_changed_by_later_updates() {
        let mut table = Table::<NatEntry>::new(100, 10);
        table.update(42, |e| e.addr = 7.into());
        assert_eq!(table.take_dirty().len(), 1);
        let table_pages = table.take_stale();
        table.update(42, |e| e.addr = 8.into());
        assert_eq!(table_pages.len(), 1);
        assert_eq!(table_pages[0].1[2].addr.get(), 7);
        assert_eq!(table.get(42).addr.get(), 8);
        assert_eq!(table.get(1000).addr.get(), 0);
        let mut back = Table::<NatEntry>::new(100, 10);
        assert!(back.restore_table_page(4, table_pages[0].1.as_bytes()));
        assert_eq!(back.get(42).addr.get(), 7);
        assert!(!back.restore(100, back.get(0).as_bytes().to_vec().as_slice()));
    }
}
