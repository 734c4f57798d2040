//! The state of checkpointing: the newest durable checkpoint, and what keeps blocks for it.

use crate::format::SegmentEntry;
use furrow_rt::Semaphore;
use std::cell::{Cell, RefCell};

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
    pub(crate) id: Cell<u64>,
    /// Snapshots so far.
    pub(crate) snapshots: Cell<u64>,
    /// Mapping blocks, with their old numbers, that the newest durable checkpoint may name and the
    /// root does not.
    pub(crate) replaced: RefCell<Vec<(u32, u32)>>,
    /// Those of them that the checkpoint whose record is being written does not name.
    pub(crate) unnamed: RefCell<Vec<(u32, u32)>>,
    pub(crate) image: RefCell<Image>,
    /// Blocks written before the snapshot.
    pub(crate) written: Cell<u64>,
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
}
