//! The lists of windows that were read from the drives, as long as they are kept.

use crate::format::BlockMeta;
use furrow_rt::Semaphore;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Most metadata blocks in memory: 3 KiB each.
const CACHED: usize = 1024;

/// Segment sequence number, member, first stripe of the window, row in the chunk.
pub(super) type Key = (u64, u32, u32, u32);

/// The list in a metadata block, by stripe of the window.
pub(super) type Metas = Rc<Vec<BlockMeta>>;

/// A window's list, as far as it is known.
pub(super) struct Known {
    pub(super) metas: Metas,
    /// The metadata block that lists the whole window is damaged.
    pub(super) lost: bool,
}

/// The state of in-band metadata.
pub(crate) struct State {
    pub(super) listings: RefCell<Cache>,
    /// Allows one reader at a time of a segment's footers, when a metadata block is missing.
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

/// Metadata blocks that were read.
#[derive(Default)]
pub(super) struct Cache {
    pub(super) found: BTreeMap<Key, Known>,
    /// In the order of arrival.
    order: VecDeque<Key>,
    /// Windows of the segment that is being scrubbed, by sequence number and first stripe: the
    /// scrub reports their damage, and only where it concerns valid blocks.
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
