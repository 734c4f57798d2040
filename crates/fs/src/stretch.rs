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

use crate::core::Core;
use furrow_rt::Nanos;

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

impl Core {
    /// True if the present stretch has taken so long that others are to have a turn.
    pub(crate) fn is_long(&self) -> bool {
        let units = self.cache.looked() - self.stretch.base;
        units > UNITS_BEFORE_OTHERS && self.stretch.turn == self.rt.turn()
    }

    /// A step begins.
    pub(crate) fn begin_step(&mut self) {
        let turn = self.rt.turn();
        if self.stretch.turn != turn {
            let (base, began) = (self.cache.looked(), self.rt.now_coarse());
            self.stretch = Stretch { turn, base, began };
        }
    }

    /// It has ended.
    pub(crate) fn end_step(&mut self) {
        let units = self.cache.looked() - self.stretch.base;
        if units > UNITS_TIMED {
            let took = self.rt.now().since(self.stretch.began);
            let counters = &mut self.counters;
            counters.longest_stretch = counters.longest_stretch.max(units);
            counters.longest_stretch_time = counters.longest_stretch_time.max(took);
        }
    }
}
