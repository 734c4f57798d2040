//! The ids of nodes, used and free; an inode's number is the id of its first node.

use furrow_log::audit::{Broken, at_most, broken, equal, expect};
use furrow_zone::Result;
use std::collections::BTreeSet;

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

    /// From now on, the ids report to `broken` each account that would go below zero.
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
    /// `Internal`, naming the account that is wrong.
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

    /// Lets the ids that were freed before the snapshot be taken again, because the
    /// checkpoint is durable.
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
