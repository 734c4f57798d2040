//! The tables in memory: NAT and SIT.
//!
//! A table is an array of fixed-size entries, divided into *table pages*, in which it is written to
//! the table area. Table pages that were never touched take no memory. Entries changed since the
//! last checkpoint are *dirty* and go to the delta log. Table pages with entries in the delta log
//! are *stale*: their copy in the table area is older, and the next merge writes them.
//!
//! A checkpoint takes its snapshot by sharing table pages ([`Rc`]); a later change copies the page.

use crate::format::{NatEntry, SitEntry};
use furrow_log::audit::{Broken, at_most, broken, equal, expect};
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
    /// `Internal`, with the account.
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

    /// Table pages whose copy in the table area is older than memory.
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

    /// Shares every table page in memory, for a full rewrite. No page is stale then.
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

/// The node ids, used and free. The lowest free id is taken first, so that few table pages are in
/// use. A freed id can be taken again only after the next checkpoint.
///
/// Invariants:
/// - `count` is the number of bits in `used`.
/// - `free` is the number of clear bits below `limit`, except that of id 0.
/// - A freed id that waits for a checkpoint is in `used`, waits only once, and has no NAT entry.
///   Every other id in `used` has a NAT entry.
/// - No free id is below `next`, except ids that are held.
pub(crate) struct NodeIds {
    used: Vec<u64>,
    len: u32,
    /// Ids from `limit` on are not taken, because the tables have no space for them yet.
    limit: u32,
    /// Number of ids in use.
    count: u32,
    /// Number of free ids below `limit`.
    free: u32,
    /// Upper limit for ids in use: no id above this one is in use.
    top: u32,
    next: u32,
    /// Free ids that [`NodeIds::take`] must not take: see [`NodeIds::hold`].
    held: BTreeSet<u32>,
    /// Ids freed since the last snapshot.
    waiting: Vec<u32>,
    /// Ids freed before the snapshot of the checkpoint under way.
    snapshot: Vec<u32>,
    broken: Broken,
}

impl NodeIds {
    /// Builds the set of ids `1..len`, with the ids `used` taken.
    pub(crate) fn new(len: u32, used: impl Iterator<Item = u32>) -> NodeIds {
        let words = vec![0; (len as usize).div_ceil(64)];
        let mut ids = NodeIds {
            used: words,
            len,
            limit: len,
            count: 0,
            free: len - 1,
            top: 0,
            next: 1,
            held: BTreeSet::new(),
            waiting: vec![],
            snapshot: vec![],
            broken: Broken::default(),
        };
        for id in used {
            ids.claim(id);
        }
        ids
    }

    /// Makes the ids report accounts that go below zero to `broken`.
    pub(super) fn note_broken_in(&mut self, broken: &Broken) {
        self.broken = broken.clone();
    }

    /// True if `id` is taken, or was freed and waits for a checkpoint.
    pub(crate) fn is_used(&self, id: u32) -> bool {
        self.used[(id / 64) as usize] >> (id % 64) & 1 == 1
    }

    /// Bytes of memory in use.
    pub(crate) fn bytes(&self) -> u64 {
        let freed = self.waiting.len() + self.snapshot.len() + self.held.len();
        (self.used.len() * size_of::<u64>() + freed * size_of::<u32>()) as u64
    }

    /// Number of ids taken, including freed ids that wait for a checkpoint.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Freed ids that wait for a checkpoint.
    pub(crate) fn freed(&self) -> impl Iterator<Item = u32> + '_ {
        self.waiting.iter().chain(&self.snapshot).copied()
    }

    /// Compares the accounts of ids with each other.
    ///
    /// # Errors
    /// `Internal`, with the account.
    pub(crate) fn audit(&self) -> Result<()> {
        let below = |end: u32| {
            let whole = (end / 64) as usize;
            let used: u32 = self.used[..whole].iter().map(|word| word.count_ones()).sum();
            let part = self.used.get(whole).map_or(0, |word| word & ((1 << (end % 64)) - 1));
            used + part.count_ones()
        };
        let used = below(self.len);
        equal("NodeIds::count", used, self.count)?;
        let free = self.limit - 1 - below(self.limit);
        equal("NodeIds::free", free, self.free)?;
        equal("used ids below NodeIds::top", used, below(self.top.min(self.len - 1) + 1))?;
        let lower = self.next.min(self.limit);
        let held = self.held.range(1..lower).filter(|id| !self.is_used(**id)).count() as u32;
        equal("free ids below NodeIds::next", lower - 1, below(lower) + held)?;
        let mut freed: Vec<u32> = self.freed().collect();
        freed.sort_unstable();
        if let Some(pair) = freed.windows(2).find(|pair| pair[0] == pair[1]) {
            let account = format_args!("NodeIds::waiting, id {}", pair[0]);
            return Err(broken(account, "expected it once, found it twice"));
        }
        for id in freed {
            let account = format_args!("NodeIds::used of id {id}, which waits to be free");
            expect(account, id < self.len && self.is_used(id), "still taken")?;
        }
        at_most("NodeIds::limit", self.len, self.limit)
    }

    /// Takes the particular id `id`, for replay. True if it was free.
    pub(crate) fn claim(&mut self, id: u32) -> bool {
        if id == 0 || id >= self.len || self.is_used(id) {
            return false;
        }
        self.used[(id / 64) as usize] |= 1 << (id % 64);
        self.count += 1;
        self.top = self.top.max(id);
        self.free = self.broken.less("NodeIds::free", self.free, u32::from(id < self.limit));
        true
    }

    /// The limit below which ids may be taken.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Sets the limit below which ids may be taken.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        let limit = limit.clamp(1, self.len);
        let (low, high) = (limit.min(self.limit), limit.max(self.limit));
        let used = (low..high.min(self.top + 1)).filter(|id| self.is_used(*id)).count() as u32;
        let free = high - low - used;
        if limit > self.limit {
            self.free += free;
        } else {
            self.free = self.broken.less("NodeIds::free", self.free, free);
        }
        self.limit = limit;
    }

    /// The highest id that is in use, or was freed and still waits for a checkpoint.
    pub(crate) fn highest(&mut self) -> u32 {
        while self.top > 0 && !self.is_used(self.top) {
            self.top -= 1;
        }
        self.top
    }

    /// Reserves `ids` for [`NodeIds::claim`], until [`NodeIds::unhold`].
    pub(crate) fn hold(&mut self, ids: impl Iterator<Item = u32>) {
        self.held.extend(ids);
    }

    /// Ends [`NodeIds::hold`].
    pub(crate) fn unhold(&mut self) {
        self.held.clear();
        self.next = 1;
    }

    /// Takes the lowest free id.
    pub(crate) fn take(&mut self) -> Option<u32> {
        while self.free > 0 && self.next < self.limit {
            let id = self.next;
            if id.is_multiple_of(64) && self.used[(id / 64) as usize] == u64::MAX {
                self.next += 64;
                continue;
            }
            self.next += 1;
            if !self.held.contains(&id) && self.claim(id) {
                return Some(id);
            }
        }
        None
    }

    /// Frees `id`; it can be taken again after the next checkpoint.
    pub(crate) fn put(&mut self, id: u32) {
        self.waiting.push(id);
    }

    /// Number of ids that can be taken now.
    pub(crate) fn free_count(&self) -> u32 {
        self.free
    }

    /// Number of ids not in use, including those that wait for a checkpoint, or for space in
    /// the tables.
    pub(crate) fn unused_count(&self) -> u32 {
        self.len - 1 - self.count + self.waiting_count()
    }

    /// Number of freed ids that wait for a checkpoint.
    pub(crate) fn waiting_count(&self) -> u32 {
        (self.waiting.len() + self.snapshot.len()) as u32
    }

    /// Takes a checkpoint's snapshot: ids freed so far become free when the checkpoint is durable.
    pub(crate) fn snapshot(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        self.snapshot.extend(waiting);
    }

    /// Frees the ids that were freed before the snapshot, because the checkpoint is durable.
    pub(crate) fn durable(&mut self) {
        for id in std::mem::take(&mut self.snapshot) {
            self.used[(id / 64) as usize] &= !(1 << (id % 64));
            self.count = self.broken.less("NodeIds::count", self.count, 1);
            self.free += u32::from(id < self.limit);
            self.next = self.next.min(id);
        }
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

    #[test]
    fn a_freed_id_returns_only_after_a_checkpoint() {
        let mut ids = NodeIds::new(4, [1].into_iter());
        assert_eq!((ids.take(), ids.take(), ids.take()), (Some(2), Some(3), None));
        ids.put(2);
        assert_eq!(ids.take(), None);
        ids.snapshot();
        ids.put(3);
        ids.durable();
        assert_eq!((ids.take(), ids.take()), (Some(2), None));
        assert_eq!(ids.unused_count(), 1);
    }

    #[test]
    fn the_lowest_id_below_the_limit_is_taken() {
        let mut ids = NodeIds::new(1000, [1, 700].into_iter());
        ids.set_limit(4);
        assert_eq!((ids.free_count(), ids.unused_count(), ids.highest()), (2, 997, 700));
        assert_eq!((ids.take(), ids.take(), ids.take()), (Some(2), Some(3), None));
        ids.set_limit(800);
        assert_eq!(ids.free_count(), 795);
        ids.put(2);
        ids.snapshot();
        ids.durable();
        assert_eq!((ids.take(), ids.take()), (Some(2), Some(4)));
        ids.set_limit(5);
        assert_eq!((ids.free_count(), ids.take()), (0, None));
        ids.set_limit(10_000);
        assert_eq!((ids.limit(), ids.free_count()), (1000, 994));
    }
}
