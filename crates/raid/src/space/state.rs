//! The state of a volume's space: waiting writers, results of cleaning, an unfinished recovery.

use crate::recover::unfinished::UnfinishedRecovery;
use furrow_rt::Notify;
use furrow_zone::Error;
use std::cell::{Cell, RefCell};

/// The writers that wait for space, and what cleaning has gained.
/// [`Facts::state`](super::plan::Facts::state) derives the state of space from this.
///
/// Invariants
/// - `users` and `internal` count the segment writers in `Volume::wait_for_space`. The first stripe
///   in line for one of them wakes both lanes.
/// - While `none` is set, no writer begins to wait.
/// - At most one of `fruitless` and `ahead` is above 0.
pub(crate) struct Space {
    /// Signals an event that may have freed a segment.
    pub(crate) made: Notify,
    /// Number of users' segment writers that wait for space.
    pub(super) users: Cell<u32>,
    /// Whether the internal segment writer waits for space.
    pub(super) internal: Cell<bool>,
    /// While users wait: number of segments cleaned since users last began a segment.
    pub(super) fruitless: Cell<u32>,
    /// While no user waits: number of segments cleaned since users last began a segment.
    pub(super) ahead: Cell<u32>,
    /// Number of changes that may help cleaning, counted from 1.
    pub(super) changes: Cell<u64>,
    /// Set while the volume is out of space: the reason, and the number of valid blocks when it
    /// was set.
    pub(super) none: RefCell<Option<(Error, u64)>>,
    /// The remaining work of recovery before segments may be reset.
    pub(crate) recovery: RefCell<Option<UnfinishedRecovery>>,
}

impl Default for Space {
    fn default() -> Space {
        Space {
            made: Notify::new(),
            users: Cell::new(0),
            internal: Cell::new(false),
            fruitless: Cell::new(0),
            ahead: Cell::new(0),
            changes: Cell::new(1),
            none: RefCell::default(),
            recovery: RefCell::default(),
        }
    }
}

impl Space {
    /// Number of changes so far that may help cleaning.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// Whether a writer waits for space.
    pub(crate) fn is_wanted(&self) -> bool {
        self.users.get() > 0 || self.internal.get()
    }
}
