//! Blocks of checksums kept in memory.

use furrow_log::BlockAddr;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Maximum number of blocks of checksums kept in memory.
const CACHED: usize = 1024;

/// Checksums of extents, by the place of their block of checksums.
#[derive(Default)]
pub(crate) struct SumsCache(RefCell<BTreeMap<BlockAddr, Rc<Vec<u32>>>>);

impl SumsCache {
    /// Returns the checksums at a place, if they are in memory.
    pub(crate) fn get(&self, at: BlockAddr) -> Option<Rc<Vec<u32>>> {
        self.0.borrow().get(&at).cloned()
    }

    /// Adds checksums to the cache. If the cache is full, drops other checksums first.
    pub(crate) fn keep(&self, at: BlockAddr, sums: Rc<Vec<u32>>) {
        let mut cache = self.0.borrow_mut();
        if cache.len() >= CACHED {
            cache.pop_first();
        }
        cache.insert(at, sums);
    }

    /// Drops the checksums of a place that another extent may get.
    pub(crate) fn forget(&self, at: BlockAddr) {
        self.0.borrow_mut().remove(&at);
    }
}
