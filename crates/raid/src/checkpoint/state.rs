//! The state of checkpointing: the newest durable checkpoint, and the mapping blocks kept for it.

use crate::format::SegmentEntry;
use furrow_rt::Semaphore;
use std::cell::{Cell, Ref, RefCell};

/// The content of a checkpoint: the segments that are not free, and the place of each
/// mapping block.
#[derive(Clone, Default)]
pub(crate) struct Image {
    pub(crate) entries: Vec<SegmentEntry>,
    pub(crate) root: Vec<u32>,
    pub(crate) sequence: u64,
    pub(crate) next_segment: u64,
}

/// The state of checkpointing.
///
/// Invariants
/// - No durable checkpoint is ahead of the snapshots: `id` is at most `snapshots`.
/// - A mapping block that `replaced` or `unnamed` lists is counted in its segment's `leaves`.
pub(crate) struct State {
    /// Number of the newest durable checkpoint.
    pub(super) id: Cell<u64>,
    /// Number of the newest snapshot.
    pub(super) snapshots: Cell<u64>,
    /// Old copies of mapping blocks, each given by the mapping block and the block number of the
    /// copy. The newest durable checkpoint may name these copies; the root does not.
    pub(super) replaced: RefCell<Vec<(u32, u32)>>,
    /// Old copies of mapping blocks, taken from `replaced`, that the checkpoint whose record is
    /// being written does not name.
    pub(super) unnamed: RefCell<Vec<(u32, u32)>>,
    pub(super) image: RefCell<Image>,
    /// Number of blocks that users had written between the assembly and the newest snapshot.
    pub(super) written: Cell<u64>,
    pub(super) one: Semaphore,
    pub(super) record: Semaphore,
}

impl State {
    pub(crate) fn new(id: u64, image: Image) -> State {
        State {
            id: Cell::new(id),
            snapshots: Cell::new(id),
            replaced: RefCell::default(),
            unnamed: RefCell::default(),
            image: RefCell::new(image),
            written: Cell::new(0),
            one: Semaphore::new(1),
            record: Semaphore::new(1),
        }
    }

    /// Number of the newest durable checkpoint.
    pub(crate) fn id(&self) -> u64 {
        self.id.get()
    }

    /// Number of the newest snapshot.
    pub(crate) fn snapshots(&self) -> u64 {
        self.snapshots.get()
    }

    /// The content of the newest durable checkpoint.
    pub(crate) fn image(&self) -> Ref<'_, Image> {
        self.image.borrow()
    }

    /// Number of blocks that users had written between the assembly and the newest snapshot.
    pub(crate) fn written(&self) -> u64 {
        self.written.get()
    }

    /// Old copies of mapping blocks, each given by the mapping block and the block number of the
    /// copy. The newest durable checkpoint may name these copies; the root does not.
    pub(crate) fn replaced(&self) -> Ref<'_, Vec<(u32, u32)>> {
        self.replaced.borrow()
    }

    /// Old copies of mapping blocks, each given by the mapping block and the block number of the
    /// copy. The checkpoint whose record is being written does not name these copies.
    pub(crate) fn unnamed(&self) -> Ref<'_, Vec<(u32, u32)>> {
        self.unnamed.borrow()
    }

    /// Notes that the root no longer names the copy `number` of a mapping block.
    pub(crate) fn note_replaced(&self, leaf: u32, number: u32) {
        self.replaced.borrow_mut().push((leaf, number));
    }
}
