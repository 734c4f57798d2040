//! Who waits for space, and what is known of it.

use crate::recover::unfinished::UnfinishedRecovery;
use furrow_rt::Notify;
use furrow_zone::Error;
use std::cell::{Cell, RefCell};

/// Who waits for space, and what is known of it. Its state is
/// [`Facts::state`](super::plan::Facts::state).
///
/// Invariants
/// - `users` and `internal` are the segment writers in `Volume::wait_for_space`. The first
///   stripe that comes in line for one of them wakes both lanes.
/// - While `none` is set, no writer begins to wait.
/// - At most one of `fruitless` and `ahead` is above 0.
#[derive(Default)]
pub(crate) struct Space {
    /// Something happened that may make space.
    pub(crate) made: Notify,
    /// Segment writers of users that wait for it.
    pub(super) users: Cell<u32>,
    /// The internal segment writer waits for it.
    pub(super) internal: Cell<bool>,
    /// Segments cleaned since users got one, while they wait.
    pub(super) fruitless: Cell<u32>,
    /// The same, while they do not.
    pub(super) ahead: Cell<u32>,
    /// There is none, and why; blocks that counted when that was found.
    pub(super) none: RefCell<Option<(Error, u64)>>,
    /// What recovery has still to do before anything may be reset.
    pub(crate) recovery: RefCell<Option<UnfinishedRecovery>>,
}

impl Space {
    /// Whether somebody waits.
    pub(crate) fn is_wanted(&self) -> bool {
        self.users.get() > 0 || self.internal.get()
    }
}
