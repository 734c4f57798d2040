//! Lifetimes of users' blocks: how long a block written now is likely to stay.
//!
//! Blocks that die together should be written together: then a segment that is cleaned is almost
//! empty, and other segments keep almost all of their blocks. The volume keeps a mean lifetime for
//! each region of blocks, and expects the region to be overwritten as often as before: each
//! overwrite moves the mean by a quarter of its difference from the lifetime that has just ended.
//! Time is counted in blocks that users wrote, so it does not depend on a clock, and lifetimes are
//! compared with the size of the volume's segments together. The drives store no lifetimes: after a
//! restart the volume learns them anew.
//!
//! The idea is SepBIT's (FAST '22), which takes the lifetime of the overwritten block alone; with
//! few segments the mean of several lifetimes separates better.

use crate::shape::Shape;
use std::cell::{Cell, RefCell};

/// Minimum number of blocks in a region: 64 KiB.
const REGION: u64 = 16;
/// Maximum number of regions of a volume; their table then takes 4 MiB. In larger volumes, the
/// regions are larger.
const REGIONS: u64 = 1 << 19;
/// When this number of writes is counted as recent, the counts are halved, so that older writes
/// count less.
const RECENT: u32 = 1024;

/// How long a block is likely to stay valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lifetime {
    /// Shorter than it takes users to write a twelfth of the volume's segments.
    Short,
    Middle,
    /// As long as it takes users to write two thirds of the volume's segments, or longer. Also
    /// stands for an unknown lifetime.
    Long,
}

impl Lifetime {
    pub(crate) const ALL: [Lifetime; 3] = [Lifetime::Short, Lifetime::Middle, Lifetime::Long];
}

/// The last write of a region, and the mean lifetime of the region's blocks, in units
/// of [`Lifetimes::unit`].
#[derive(Clone, Copy, Default)]
struct Region {
    /// Time of the last write; 0: not written since the volume was assembled.
    last: u32,
    /// Mean lifetime; `u32::MAX`: not overwritten since the volume was assembled.
    mean: u32,
}

/// The lifetimes of the blocks of each region of a volume.
///
/// Invariant: of the `recent` writes that are counted, `short` were expected to have a
/// short lifetime.
pub(crate) struct Lifetimes {
    regions: RefCell<Vec<Region>>,
    /// Number of blocks in a region.
    size: u64,
    /// Number of blocks in a unit of time: a 64th of a segment.
    unit: u64,
    /// A lifetime below the first bound, in units, is short; from the second bound on it is long.
    bounds: (u32, u32),
    /// Number of blocks that users have written.
    now: Cell<u64>,
    recent: Cell<u32>,
    short: Cell<u32>,
    /// Number of users' writes under way, including those that wait for other writes of the
    /// same blocks.
    under_way: Cell<u32>,
}

impl Lifetimes {
    pub(crate) fn new(shape: &Shape) -> Lifetimes {
        let size = REGION.max(shape.blocks.div_ceil(REGIONS).next_power_of_two());
        let (segment, slots) = (u64::from(shape.per_segment()), u64::from(shape.slots));
        let unit = (segment / 64).max(1);
        let units = |blocks: u64| u32::try_from(blocks / unit).unwrap_or(u32::MAX);
        Lifetimes {
            regions: RefCell::default(),
            size,
            unit,
            bounds: (units(segment * slots / 12), units(segment * slots / 3 * 2)),
            now: Cell::new(0),
            recent: Cell::new(0),
            short: Cell::new(0),
            under_way: Cell::new(0),
        }
    }

    /// Notes a user's write of `count` blocks, and returns how long the first of these blocks is
    /// likely to stay.
    pub(crate) fn note(&self, block: u64, count: u64) -> Lifetime {
        self.now.set(self.now.get() + count);
        // One more than the time, because 0 stands for a region that was never written.
        let now = (self.now.get() / self.unit + 1) as u32;
        let mut regions = self.regions.borrow_mut();
        let (first, last) = (block / self.size, (block + count - 1) / self.size);
        if regions.len() as u64 <= last {
            regions.resize(last as usize + 1, Region { last: 0, mean: u32::MAX });
        }
        // `parts` writes of this size overwrite a region once.
        let parts = (self.size / count.min(self.size)) as u32;
        for region in &mut regions[first as usize..=last as usize] {
            let before = std::mem::replace(&mut region.last, now);
            if before > 0 {
                let life = now.wrapping_sub(before).saturating_mul(parts);
                // The cap lets a few short lifetimes make the mean short again, however long the
                // region was idle.
                let mean = region.mean.min(life.saturating_mul(16).max(self.bounds.1));
                region.mean = mean - mean / 4 + life / 4;
            }
        }
        let lifetime = self.of(regions[first as usize].mean);
        self.recent.set(self.recent.get() + 1);
        self.short.set(self.short.get() + u32::from(lifetime == Lifetime::Short));
        if self.recent.get() == RECENT {
            self.recent.set(RECENT / 2);
            self.short.set(self.short.get() / 2);
        }
        lifetime
    }

    fn of(&self, mean: u32) -> Lifetime {
        match mean {
            mean if mean < self.bounds.0 => Lifetime::Short,
            mean if mean < self.bounds.1 => Lifetime::Middle,
            _ => Lifetime::Long,
        }
    }

    /// Whether enough recent writes are counted, and at least an eighth and at most seven eighths
    /// of them were of short lifetime. Otherwise separating lifetimes gains nothing.
    pub(crate) fn differ(&self) -> bool {
        let (all, short) = (u64::from(self.recent.get()), u64::from(self.short.get()));
        all >= u64::from(RECENT) / 4 && short * 8 >= all && short * 8 <= all * 7
    }

    /// Counts a user's write as under way until the returned value is dropped.
    pub(crate) fn begin_write(&self) -> UnderWay<'_> {
        self.under_way.set(self.under_way.get() + 1);
        UnderWay(&self.under_way)
    }

    /// Number of users' writes under way.
    pub(crate) fn under_way(&self) -> u32 {
        self.under_way.get()
    }
}

/// A user's write that is under way.
pub(crate) struct UnderWay<'a>(&'a Cell<u32>);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifetimes() -> Lifetimes {
        Lifetimes {
            regions: RefCell::default(),
            size: 16,
            unit: 1,
            bounds: (1_000, 10_000),
            now: Cell::new(0),
            recent: Cell::new(0),
            short: Cell::new(0),
            under_way: Cell::new(0),
        }
    }

    #[test]
    fn what_is_overwritten_often_is_expected_to_be_overwritten_soon() {
        let lifetimes = lifetimes();
        let (hot, cold) = (0, 16 * 500);
        assert_eq!(lifetimes.note(hot, 16), Lifetime::Long);
        for round in 0..2_000 {
            let now = lifetimes.note(hot, 16);
            assert!(round < 20 || now == Lifetime::Short, "{round}");
            lifetimes.note(cold + 16 * (round % 400), 16);
        }
        // 800 writes of 16 blocks lie between two writes of the same region.
        assert_eq!(lifetimes.note(cold + 16 * 7, 16), Lifetime::Long);
        assert!(lifetimes.differ());
    }

    /// Small writes hit a region more often than they hit each of its blocks.
    #[test]
    fn a_region_that_is_written_block_by_block_lives_as_long_as_its_blocks() {
        let lifetimes = lifetimes();
        for _ in 0..50 {
            for block in 0..200 {
                lifetimes.note(block, 1);
            }
        }
        // Each block is overwritten after 200 blocks, but its region with the next block.
        assert_eq!(lifetimes.note(3, 1), Lifetime::Short);
        for _ in 0..50 {
            for block in 0..2_000 {
                lifetimes.note(block, 1);
            }
        }
        assert_ne!(lifetimes.note(3, 1), Lifetime::Long);
    }

    #[test]
    fn lifetimes_that_are_all_alike_separate_nothing() {
        let (even, hot) = (lifetimes(), lifetimes());
        for i in 0..5_000 {
            even.note(16 * (i % 100), 16);
            hot.note(16 * (i % 10), 16);
        }
        assert!(!even.differ() && !hot.differ());
    }
}
