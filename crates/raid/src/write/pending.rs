//! Blocks that users' requests are writing, and which write of each is the newest that is durable.
//!
//! Several writes of one block may be in flight at once, in stripes that complete in any order. The
//! one with the highest sequence number wins, as it does in recovery: a write that completes after
//! a newer one changes nothing, and a write that would be dispatched after a newer one completed is
//! left out of its stripe.

use furrow_rt::Notify;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// The writes of one block.
#[derive(Default)]
struct Block {
    /// Writes that have not ended.
    writes: u32,
    /// Sequence number of the newest of them that is durable; 0: none is.
    durable: u64,
}

/// The blocks with writes that have not ended.
///
/// Invariant: a block is listed as long as a [`PendingWrite`] of it exists.
#[derive(Default)]
pub(crate) struct Pending {
    blocks: RefCell<BTreeMap<u64, Block>>,
    /// The last write of a block ended.
    ended: Notify,
}

impl Pending {
    /// A write of a block begins.
    pub(crate) fn begin(self: &Rc<Self>, lba: u64) -> PendingWrite {
        self.blocks.borrow_mut().entry(lba).or_default().writes += 1;
        PendingWrite { pending: self.clone(), lba }
    }

    /// Waits until no block of the range is being written.
    pub(crate) async fn settle(&self, range: Range<u64>) {
        loop {
            let ended = self.ended.wait();
            if self.blocks.borrow().range(range.clone()).next().is_none() {
                return;
            }
            ended.await;
        }
    }
}

/// A write of one block. It ends when this is dropped.
pub(crate) struct PendingWrite {
    pending: Rc<Pending>,
    lba: u64,
}

impl PendingWrite {
    /// The write with this sequence number is durable.
    pub(crate) fn set_durable(&self, sequence: u64) {
        if let Some(block) = self.pending.blocks.borrow_mut().get_mut(&self.lba) {
            block.durable = block.durable.max(sequence);
        }
    }

    /// Whether a write newer than `sequence` is durable.
    pub(crate) fn is_outdated(&self, sequence: u64) -> bool {
        let blocks = self.pending.blocks.borrow();
        blocks.get(&self.lba).is_some_and(|block| block.durable > sequence)
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        let mut blocks = self.pending.blocks.borrow_mut();
        let Some(block) = blocks.get_mut(&self.lba) else { return };
        block.writes -= 1;
        if block.writes == 0 {
            blocks.remove(&self.lba);
            drop(blocks);
            self.pending.ended.notify_all();
        }
    }
}
