//! The state of checkpointing: the newest durable checkpoint, and what keeps blocks for it.

use crate::format::SegmentEntry;
use furrow_rt::Semaphore;
use std::cell::{Cell, Ref, RefCell};

/// The content of a checkpoint.
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
    /// The newest durable checkpoint.
    pub(super) id: Cell<u64>,
    /// Snapshots so far.
    pub(super) snapshots: Cell<u64>,
    /// Mapping blocks, with their old numbers, that the newest durable checkpoint may name and the
    /// root does not.
    pub(super) replaced: RefCell<Vec<(u32, u32)>>,
    /// Mapping blocks, taken from `replaced`, that the checkpoint whose record is being written
    /// does not name.
    pub(super) unnamed: RefCell<Vec<(u32, u32)>>,
    pub(super) image: RefCell<Image>,
    /// Blocks written before the snapshot.
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

    /// The newest durable checkpoint.
    pub(crate) fn id(&self) -> u64 {
        self.id.get()
    }

    /// Snapshots so far.
    pub(crate) fn snapshots(&self) -> u64 {
        self.snapshots.get()
    }

    /// The content of the newest durable checkpoint.
    pub(crate) fn image(&self) -> Ref<'_, Image> {
        self.image.borrow()
    }

    /// Blocks written before the snapshot.
    pub(crate) fn written(&self) -> u64 {
        self.written.get()
    }

    /// Mapping blocks, with their old numbers, that the newest durable checkpoint may name and the
    /// root does not.
    pub(crate) fn replaced(&self) -> Ref<'_, Vec<(u32, u32)>> {
        self.replaced.borrow()
    }

    /// Mapping blocks, with their old numbers, that the checkpoint whose record is being written
    /// does not name.
    pub(crate) fn unnamed(&self) -> Ref<'_, Vec<(u32, u32)>> {
        self.unnamed.borrow()
    }

    /// The root does not name the copy `number` of a mapping block any more.
    pub(crate) fn note_replaced(&self, leaf: u32, number: u32) {
        self.replaced.borrow_mut().push((leaf, number));
    }
}
