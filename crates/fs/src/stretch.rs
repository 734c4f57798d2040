//! Stretches: the work that the engine does before other tasks can run.
//!
//! An engine runs on one thread: while an operation runs, everything else waits. So a long
//! operation runs in steps, each applied completely, and other tasks can run between two steps. The
//! length of a step is measured in *units*: blocks, nodes and names looked at in the cache, and
//! blocks that become garbage. Each kind of step has its own limit (`LEAVES_PER_STEP` and similar
//! constants). The tests bound every stretch, whatever a user does (`tests/stretches.rs`). Only a
//! stretch that writes all dirty pages may be longer, up to the limit of dirty pages.
//!
//! This file counts units. [`Inner::run`](crate::core::Inner::run) begins no step in a stretch that
//! has already taken [`UNITS_BEFORE_OTHERS`] units, so loops of steps need not check.

use furrow_rt::{Nanos, Rt};

/// Number of units after which other tasks run before the next step.
pub(crate) const UNITS_BEFORE_OTHERS: u64 = 2_048;
/// The duration of a stretch is measured only if it takes more units than this.
const UNITS_TIMED: u64 = 512;

/// The stretch under way.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stretch {
    turn: u64,
    /// Number of units counted when the stretch began.
    base: u64,
    began: Nanos,
}

impl Stretch {
    /// True if the stretch has taken so long that other tasks should run: `looked` is the number of
    /// units counted so far, and `turn` is the executor's present turn.
    pub(crate) fn is_long(&self, looked: u64, turn: u64) -> bool {
        looked - self.base > UNITS_BEFORE_OTHERS && self.turn == turn
    }

    /// Notes that a step begins when `looked` units are counted. The step begins a new stretch,
    /// unless the executor's turn is still the same.
    pub(crate) fn begin_step(&mut self, looked: u64, rt: &Rt) {
        let turn = rt.turn();
        if self.turn != turn {
            *self = Stretch { turn, base: looked, began: rt.now_coarse() };
        }
    }

    /// Notes that the step has ended. Returns the units and the duration of the stretch so far, if
    /// it is long enough to be counted.
    pub(crate) fn end_step(&self, looked: u64, rt: &Rt) -> Option<(u64, u64)> {
        let units = looked - self.base;
        (units > UNITS_TIMED).then(|| (units, rt.now().since(self.began)))
    }
}
