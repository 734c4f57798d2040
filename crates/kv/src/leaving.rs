//! Blocks that count as valid although a file has given them up, or no file refers to them yet.
//!
//! Blocks that a file has given up count as valid until a group commit that records the change is
//! durable. Such blocks are first retired, then part of the group commit under way, then gone.
//! Blocks that cleaning has written count as valid from their write on, before the file refers to
//! them.

use crate::extent::FileId;
use furrow_zone::ZoneId;
use std::cell::{Ref, RefCell};

/// A number of blocks of a file in a zone: zone, file, number.
pub(crate) type Blocks = (ZoneId, FileId, u32);

/// The blocks that count and that no file refers to.
#[derive(Default)]
pub(crate) struct Leaving {
    /// Blocks that stop counting once the next group commit is durable.
    retired: RefCell<Vec<Blocks>>,
    /// Blocks that stop counting once the present group commit is durable.
    retiring: RefCell<Vec<Blocks>>,
    /// Blocks that cleaning has written and no file refers to yet.
    moving: RefCell<Vec<Blocks>>,
}

impl Leaving {
    /// Retires blocks: they stop counting once the next group commit is durable.
    pub(crate) fn retire(&self, blocks: Blocks) {
        self.retired.borrow_mut().push(blocks);
    }

    /// Whether the next group commit will retire blocks.
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.borrow().is_empty()
    }

    /// Begins a group commit: it retires everything retired so far.
    pub(crate) fn begin_commit(&self) {
        self.retiring.borrow_mut().append(&mut self.retired.borrow_mut());
    }

    /// Returns the blocks that the present group commit retires.
    pub(crate) fn in_commit(&self) -> Ref<'_, Vec<Blocks>> {
        self.retiring.borrow()
    }

    /// Ends a durable group commit. Returns the blocks that it retired, which count no longer.
    pub(crate) fn end_commit(&self) -> Vec<Blocks> {
        std::mem::take(&mut *self.retiring.borrow_mut())
    }

    /// Begins to count blocks that cleaning has written and no file refers to yet.
    pub(crate) fn begin_move(&self, blocks: Blocks) {
        self.moving.borrow_mut().push(blocks);
    }

    /// Ends the count of blocks that cleaning has written: a file refers to them now, or they are
    /// retired.
    pub(crate) fn end_move(&self, blocks: Blocks) {
        let mut moving = self.moving.borrow_mut();
        if let Some(at) = moving.iter().position(|other| *other == blocks) {
            moving.swap_remove(at);
        }
    }

    /// Calls `each` with the blocks of all three lists.
    pub(crate) fn for_each(&self, mut each: impl FnMut(Blocks)) {
        for list in [&self.retired, &self.retiring, &self.moving] {
            list.borrow().iter().for_each(|blocks| each(*blocks));
        }
    }

    /// Counts the blocks of all three lists.
    pub(crate) fn total(&self) -> u64 {
        let mut total = 0;
        self.for_each(|(_, _, blocks)| total += u64::from(blocks));
        total
    }
}
