//! Counters of a mount.

use crate::memory::Memory;
use crate::stretch::Stretch;
use crate::types::Counters;
use furrow_rt::Rt;

/// Counters, and the peak of the memory held.
#[derive(Default)]
pub(crate) struct Stats {
    pub(crate) counters: Counters,
    memory_peak: Memory,
    stretch: Stretch,
}

impl Stats {
    /// True if the present stretch has taken so long that other tasks should have a turn. `looked`
    /// units were counted so far.
    pub(crate) fn is_long(&self, looked: u64, turn: u64) -> bool {
        self.stretch.is_long(looked, turn)
    }

    /// A step begins.
    pub(crate) fn begin_step(&mut self, looked: u64, rt: &Rt) {
        self.stretch.begin_step(looked, rt);
    }

    /// The step has ended.
    pub(crate) fn end_step(&mut self, looked: u64, rt: &Rt) {
        if let Some((units, took)) = self.stretch.end_step(looked, rt) {
            let counters = &mut self.counters;
            counters.longest_stretch_units = counters.longest_stretch_units.max(units);
            counters.longest_stretch_ns = counters.longest_stretch_ns.max(took);
        }
    }

    /// Keeps `now`, the memory held, if it is the peak.
    pub(crate) fn note_memory(&mut self, now: Memory) {
        if now.total() > self.memory_peak.total() {
            self.memory_peak = now;
        }
    }

    /// The peak of the memory held.
    pub(crate) fn memory_peak(&self) -> Memory {
        self.memory_peak
    }
}
