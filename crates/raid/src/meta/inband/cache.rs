//! A cache of the lists of windows that were read from the drives.

use crate::format::BlockMeta;
use furrow_rt::Semaphore;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Maximum number of cached lists, of 3 KiB each.
const CACHED: usize = 1024;

/// Key of a cached list: sequence number of the segment, member, first stripe of the window, row in
/// the chunk.
pub(super) type Key = (u64, u32, u32, u32);

/// The list in a metadata block, by stripe of the window.
pub(super) type Metas = Rc<Vec<BlockMeta>>;

/// The readable part of a window's list, for one row of the chunks.
pub(super) struct Known {
    pub(super) metas: Metas,
    /// Whether the metadata block that lists the whole window is damaged.
    pub(super) lost: bool,
}

/// The cache, and the other state that readers of in-band metadata share.
pub(crate) struct State {
    pub(super) listings: RefCell<Cache>,
    /// Lets one task at a time read a segment's footers in place of a damaged metadata block.
    pub(super) footer_reads: Semaphore,
}

impl Default for State {
    fn default() -> State {
        State { listings: RefCell::default(), footer_reads: Semaphore::new(1) }
    }
}

impl State {
    /// Drops cached lists, because a drive was replaced.
    pub(crate) fn forget(&self) {
        self.listings.take();
    }
}

/// The lists read last, and the windows that a scrub is reading.
#[derive(Default)]
pub(super) struct Cache {
    pub(super) found: BTreeMap<Key, Known>,
    /// Keys of `found`, oldest first.
    order: VecDeque<Key>,
    /// Windows of the segment that is being scrubbed, by sequence number and first stripe: the
    /// scrub itself reports damage of their metadata blocks, and only if it affects valid blocks.
    pub(super) scrubbed: BTreeSet<(u64, u32)>,
}

impl Cache {
    pub(super) fn put(&mut self, key: Key, metas: Metas, lost: bool) {
        if self.found.insert(key, Known { metas, lost }).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > CACHED
            && let Some(oldest) = self.order.pop_front()
        {
            self.found.remove(&oldest);
        }
    }
}
