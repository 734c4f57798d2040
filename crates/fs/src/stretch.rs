//! Stretches: what is done before anybody else has a turn.
//!
//! An engine runs on one thread: while an operation runs, everything else waits. So an operation
//! that takes long runs in steps, each applied whole, and lets others run between two steps. The
//! length of a step is measured by the pages it looks at: *units* are blocks, nodes and names
//! looked at in the cache, and blocks that become garbage. Each kind of step has its own limit
//! (`LEAVES_PER_STEP` and the like). The tests bound every stretch, no matter what a user does
//! (`tests/stretches.rs`), except one that writes all dirty pages: the limit of dirty pages bounds
//! that one.
//!
//! This file counts units. [`Inner::run`](crate::core::Inner::run) begins no step in a stretch that
//! has taken [`UNITS_BEFORE_OTHERS`] already, so that loops of steps need not check.

use furrow_rt::{Nanos, Rt};

/// Units after which other tasks have a turn before the next step.
pub(crate) const UNITS_BEFORE_OTHERS: u64 = 2_048;
/// Units above which the duration of a stretch is measured.
const UNITS_TIMED: u64 = 512;

/// The stretch under way.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stretch {
    turn: u64,
    /// Units counted when it began.
    base: u64,
    began: Nanos,
}

impl Stretch {
    /// True if the stretch has taken so long, by `looked` units and in the executor's `turn`, that
    /// other tasks should have a turn.
    pub(crate) fn is_long(&self, looked: u64, turn: u64) -> bool {
        looked - self.base > UNITS_BEFORE_OTHERS && self.turn == turn
    }

    /// A step begins when `looked` units are counted: in a new stretch, unless the turn is the
    /// same.
    pub(crate) fn begin_step(&mut self, looked: u64, rt: &Rt) {
        let turn = rt.turn();
        if self.turn != turn {
            *self = Stretch { turn, base: looked, began: rt.now_coarse() };
        }
    }

    /// The step has ended: units and duration of the stretch, if these are worth counting.
    pub(crate) fn end_step(&self, looked: u64, rt: &Rt) -> Option<(u64, u64)> {
        let units = looked - self.base;
        (units > UNITS_TIMED).then(|| (units, rt.now().since(self.began)))
    }
}
