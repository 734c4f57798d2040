//! Stretches: what is done before anybody else has a turn.
//!
//! An engine is one thread's: while an operation runs, everybody else waits. So an operation that
//! takes long goes in steps, each applied whole, and between two of them lets others run. How long
//! a step is decides what it looks at: *units* are blocks, nodes and names looked at in the cache,
//! and blocks that become garbage. Each kind of step has its own limit (`LEAVES_PER_STEP` and its
//! likes); what no step may go beyond, whatever a user does, is [`UNITS_MAX`], but for one that
//! writes all there is to be written: that is bounded by what may be dirty.
//!
//! Here they are counted. [`Inner::run`](crate::core::Inner::run) begins no step in a stretch that
//! has taken [`UNITS_BEFORE_OTHERS`] already, so that no loop of steps must think of it.

use furrow_rt::{Nanos, Rt};

/// Units after which others have a turn before the next step.
pub(crate) const UNITS_BEFORE_OTHERS: u64 = 2_048;
/// Units above which the clock is asked how long a stretch took.
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
    /// True if it has taken so long, `looked` units and in the executor's `turn`, that others are
    /// to have a turn.
    pub(crate) fn is_long(&self, looked: u64, turn: u64) -> bool {
        looked - self.base > UNITS_BEFORE_OTHERS && self.turn == turn
    }

    /// A step begins when `looked` units are counted: a new stretch, unless it is still the same
    /// turn.
    pub(crate) fn begin_step(&mut self, looked: u64, rt: &Rt) {
        let turn = rt.turn();
        if self.turn != turn {
            *self = Stretch { turn, base: looked, began: rt.now_coarse() };
        }
    }

    /// The step has ended: units of the stretch and how long it took, if it is worth counting.
    pub(crate) fn end_step(&self, looked: u64, rt: &Rt) -> Option<(u64, u64)> {
        let units = looked - self.base;
        (units > UNITS_TIMED).then(|| (units, rt.now().since(self.began)))
    }
}
