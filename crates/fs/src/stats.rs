//! Counters of a mount.

use crate::memory_use::Memory;
use crate::stretch::Stretch;
use crate::types::Counters;
use furrow_rt::Rt;

/// Counters, and the peak of memory use.
#[derive(Default)]
pub(crate) struct Stats {
    pub(crate) counters: Counters,
    memory_peak: Memory,
    stretch: Stretch,
}

impl Stats {
    /// True if the present stretch has taken so long that other tasks should run. `looked` is the
    /// number of units counted so far.
    pub(crate) fn is_long(&self, looked: u64, turn: u64) -> bool {
        self.stretch.is_long(looked, turn)
    }

    /// Notes that a step begins.
    pub(crate) fn begin_step(&mut self, looked: u64, rt: &Rt) {
        self.stretch.begin_step(looked, rt);
    }

    /// Notes that the step has ended.
    pub(crate) fn end_step(&mut self, looked: u64, rt: &Rt) {
        if let Some((units, took)) = self.stretch.end_step(looked, rt) {
            let counters = &mut self.counters;
            counters.longest_stretch_units = counters.longest_stretch_units.max(units);
            counters.longest_stretch_ns = counters.longest_stretch_ns.max(took);
        }
    }

    /// Updates the peak of memory use; `now` is the present use.
    pub(crate) fn note_memory(&mut self, now: Memory) {
        if now.total() > self.memory_peak.total() {
            self.memory_peak = now;
        }
    }

    /// The peak of memory use.
    pub(crate) fn memory_peak(&self) -> Memory {
        self.memory_peak
    }
}
