//! A set of blocks that keeps a bounded number of ranges.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum number of ranges kept; further blocks are only counted.
const RANGES: usize = 4096;

/// A set of blocks that keeps a bounded number of ranges.
#[derive(Default)]
pub(crate) struct LostBlocks {
    /// Disjoint ranges that do not touch: first block, and the block after the last.
    ranges: RefCell<BTreeMap<u64, u64>>,
    blocks: Cell<u64>,
    /// Number of blocks that were counted only, because there was no free range.
    beyond: Cell<u64>,
}

impl LostBlocks {
    /// Whether the set has no blocks.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.get() + self.beyond.get() == 0
    }

    /// Adds a range of blocks.
    pub(crate) fn add(&self, range: Range<u64>) {
        if range.is_empty() || self.has(&range) {
            return;
        }
        let (mut first, mut end) = (range.start, range.end);
        let mut ranges = self.ranges.borrow_mut();
        let near = ranges.range(..=end).rev().take_while(|(_, last)| **last >= first);
        let near: Vec<(u64, u64)> = near.map(|(first, end)| (*first, *end)).collect();
        if near.is_empty() && ranges.len() >= RANGES {
            self.beyond.set(self.beyond.get() + (end - first));
            return;
        }
        let mut blocks = self.blocks.get();
        for (start, stop) in near {
            ranges.remove(&start);
            blocks -= stop - start;
            (first, end) = (first.min(start), end.max(stop));
        }
        ranges.insert(first, end);
        self.blocks.set(blocks + (end - first));
    }

    /// Adds the blocks of another set.
    pub(crate) fn join(&self, other: &LostBlocks) {
        other.ranges().into_iter().for_each(|range| self.add(range));
        self.beyond.set(self.beyond.get() + other.beyond.get());
    }

    /// The number of blocks in the set, and the ranges kept.
    pub(crate) fn report(&self) -> (u64, Vec<Range<u64>>) {
        (self.blocks.get() + self.beyond.get(), self.ranges())
    }

    /// Number of blocks in the kept ranges: by adding up the ranges, and by the set's own count.
    pub(crate) fn counted(&self) -> (u64, u64) {
        let ranges = self.ranges.borrow();
        (ranges.iter().map(|(first, end)| end - first).sum(), self.blocks.get())
    }

    fn has(&self, range: &Range<u64>) -> bool {
        let ranges = self.ranges.borrow();
        ranges.range(..=range.start).next_back().is_some_and(|(_, end)| *end >= range.end)
    }

    /// Removes a range of blocks.
    pub(crate) fn remove(&self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut ranges = self.ranges.borrow_mut();
        let touched = ranges.range(..range.end).rev().take_while(|(_, end)| **end > range.start);
        let touched: Vec<(u64, u64)> = touched.map(|(first, end)| (*first, *end)).collect();
        for (first, end) in touched {
            ranges.remove(&first);
            if first < range.start {
                ranges.insert(first, range.start);
            }
            if end > range.end {
                ranges.insert(range.end, end);
            }
            let gone = end.min(range.end) - first.max(range.start);
            self.blocks.set(self.blocks.get() - gone);
        }
    }

    pub(super) fn clear(&self) {
        self.ranges.borrow_mut().clear();
        self.blocks.set(0);
        self.beyond.set(0);
    }

    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        self.ranges.borrow().iter().map(|(first, end)| *first..*end).collect()
    }

    /// Forgets the blocks that were counted only.
    pub(super) fn forget_beyond(&self) {
        self.beyond.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn it_holds_what_a_set_of_blocks_would() {
        let (known, mut model, mut rng) = (LostBlocks::default(), BTreeSet::new(), Rng::new(7));
        for _ in 0..3000 {
            let first = rng.below(200);
            let range = first..first + rng.below(9);
            if rng.one_in(2) {
                known.add(range.clone());
                model.extend(range);
            } else {
                known.remove(range.clone());
                model.retain(|block| !range.contains(block));
            }
            let held: BTreeSet<u64> = known.ranges().into_iter().flatten().collect();
            assert_eq!(held, model);
            assert_eq!(known.blocks.get(), model.len() as u64);
            assert_eq!(known.is_empty(), model.is_empty());
            let apart = |pair: &[Range<u64>]| pair[0].end < pair[1].start;
            assert!(known.ranges().windows(2).all(apart), "ranges touch");
        }
        known.clear();
        assert!(known.is_empty());
    }

    #[test]
    fn beyond_its_bound_it_still_counts() {
        let known = LostBlocks::default();
        (0..RANGES as u64 + 5).for_each(|at| known.add(at * 2..at * 2 + 1));
        assert_eq!(known.ranges().len(), RANGES);
        assert_eq!(known.blocks.get() + known.beyond.get(), RANGES as u64 + 5);
    }
}
