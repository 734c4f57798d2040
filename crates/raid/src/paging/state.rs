//! The state of the map's memory.

use crate::format::MAPPED;
use crate::map::Map;
use furrow_rt::{Notify, Permit, Semaphore};
use std::cell::{Cell, Ref, RefCell, RefMut};
use std::ops::Range;
use std::rc::Rc;

/// Minimum number of mapping blocks in memory: one that users pin, one that internal work pins, one
/// to load or evict.
const LEAST: usize = 3;

/// The callers that pin mapping blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinner {
    User,
    Internal,
}

/// The map, and the limits of its memory.
///
/// Invariants, where there is a limit
/// - Users' requests pin at most half of `limit` mapping blocks, the volume's own work a quarter;
///   each may pin at least one.
/// - `loading` is the number of mapping blocks that are being read.
pub(crate) struct Paging {
    map: RefCell<Map>,
    /// Maximum number of mapping blocks in memory; `None`: no limit.
    pub(super) limit: Option<usize>,
    pub(super) users: Semaphore,
    pub(super) internal: Semaphore,
    /// Maximum number of mapping blocks that a user's request may pin at once.
    pub(super) most: u64,
    /// Held by the task that writes mapping blocks.
    pub(crate) writes: Semaphore,
    /// Number of mapping blocks that are being read.
    pub(super) loading: Cell<usize>,
    /// Signals that a further mapping block may be evictable, or that the volume has failed.
    pub(super) changed: Notify,
}

impl Paging {
    /// The memory of `map`, limited to `bytes` bytes together with the copies that a checkpoint
    /// makes; 0: no limit.
    pub(crate) fn new(map: Map, bytes: u64) -> Rc<Paging> {
        let limit = (bytes > 0).then(|| LEAST.max((bytes / 2 / (u64::from(MAPPED) * 4)) as usize));
        let users = limit.map_or(u64::MAX / 2, |limit| (limit as u64 / 2).max(1));
        let internal = limit.map_or(u64::MAX / 2, |limit| (limit as u64 / 4).max(1));
        Rc::new(Paging {
            map: RefCell::new(map),
            limit,
            users: Semaphore::new(users),
            internal: Semaphore::new(internal),
            most: if limit.is_some() { users.div_ceil(4) } else { u64::MAX / 2 },
            writes: Semaphore::new(1),
            loading: Cell::new(0),
            changed: Notify::new(),
        })
    }

    /// The map.
    pub(crate) fn map(&self) -> Ref<'_, Map> {
        self.map.borrow()
    }

    /// The map, for changes.
    pub(crate) fn map_mut(&self) -> RefMut<'_, Map> {
        self.map.borrow_mut()
    }

    /// Pins that do not hold a mapping block yet; the caller adds those from `first` on.
    pub(super) fn pins(self: &Rc<Self>, first: u32, permit: Permit) -> Pins {
        Pins { paging: self.clone(), leaves: first..first, _permit: permit }
    }
}

/// Keeps mapping blocks in memory as long as this value lives.
pub(crate) struct Pins {
    paging: Rc<Paging>,
    pub(super) leaves: Range<u32>,
    _permit: Permit,
}

impl Drop for Pins {
    fn drop(&mut self) {
        let mut map = self.paging.map_mut();
        self.leaves.clone().for_each(|leaf| map.unpin(leaf));
        drop(map);
        self.paging.changed.notify_all();
    }
}
