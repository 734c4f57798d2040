//! Known losses: blocks of the volume that the drives cannot provide any more.
//!
//! Reads and scrubs add blocks. A block is removed when it is written or trimmed, when a complete
//! scrub can read it after all, or when an operator clears it. The set is in memory only: after a
//! restart the next read or scrub finds the same blocks.
//!
//! Only blocks that the drives in service cannot provide count. While data is unavailable because
//! too many members are missing, nothing is added: those drives may return.

use crate::format::{MAPPED, NONE, block};
use crate::map::Map;
use crate::member::Errors;
use crate::read::Wanted;
use crate::reconstruct::Loud;
use crate::volume::Volume;
use furrow_zone::Result;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Most ranges kept; blocks beyond them are only counted.
const RANGES: usize = 4096;

/// A bounded set of blocks.
#[derive(Default)]
pub(crate) struct LostBlocks {
    /// Disjoint ranges that do not touch: first block, and the one after the last.
    ranges: RefCell<BTreeMap<u64, u64>>,
    blocks: Cell<u64>,
    /// Blocks that did not fit.
    beyond: Cell<u64>,
}

impl LostBlocks {
    /// Whether it holds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.get() + self.beyond.get() == 0
    }

    /// Adds a range.
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

    /// Adds what another set holds.
    pub(crate) fn join(&self, other: &LostBlocks) {
        other.ranges().into_iter().for_each(|range| self.add(range));
        self.beyond.set(self.beyond.get() + other.beyond.get());
    }

    /// How many blocks it holds, and its ranges.
    pub(crate) fn report(&self) -> (u64, Vec<Range<u64>>) {
        (self.blocks.get() + self.beyond.get(), self.ranges())
    }

    /// Blocks in its ranges, and its own count of them.
    pub(crate) fn counted(&self) -> (u64, u64) {
        let ranges = self.ranges.borrow();
        (ranges.iter().map(|(first, end)| end - first).sum(), self.blocks.get())
    }

    fn has(&self, range: &Range<u64>) -> bool {
        let ranges = self.ranges.borrow();
        ranges.range(..=range.start).next_back().is_some_and(|(_, end)| *end >= range.end)
    }

    /// Removes a range.
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

    fn clear(&self) {
        self.ranges.borrow_mut().clear();
        self.blocks.set(0);
        self.beyond.set(0);
    }

    fn ranges(&self) -> Vec<Range<u64>> {
        self.ranges.borrow().iter().map(|(first, end)| *first..*end).collect()
    }
}

/// What became of suspected blocks.
#[derive(Default)]
pub(crate) struct Judged {
    /// Numbers of blocks that are lost.
    pub(crate) lost: BTreeSet<u32>,
    /// Numbers of mapping blocks that only memory has.
    pub(crate) kept: BTreeSet<u32>,
    /// The blocks of the volume that are lost.
    pub(crate) blocks: LostBlocks,
}

impl Volume {
    /// Blocks of the volume that are known to be lost: how many, and the first ranges.
    pub fn lost(&self) -> (u64, Vec<Range<u64>>) {
        self.0.lost_blocks.report()
    }

    /// Clears the known losses and the members' error counts. The next read or scrub finds what is
    /// still lost.
    pub fn clear(&self) {
        self.0.lost_blocks.clear();
        self.0.members.iter().for_each(|member| member.errors.set(Errors::default()));
    }

    /// A read of blocks of one mapping block failed: adds those that are lost.
    pub(crate) async fn note_lost(&self, wanted: &[(u32, Wanted)]) {
        for (number, wanted) in wanted {
            if wanted.0 == block::DATA && self.cannot_be_had(*number, *wanted).await {
                self.0.lost_blocks.add(wanted.1..wanted.1 + 1);
            }
        }
    }

    /// Looks which of the suspected block numbers the map still names and the drives cannot provide
    /// now, and adds these blocks. With `renew`, mapping blocks that only memory still has are
    /// written again.
    ///
    /// # Errors
    /// If the volume cannot be written any more, or is being stopped.
    pub(crate) async fn judge_lost(
        &self,
        suspected: &BTreeSet<u32>,
        renew: bool,
    ) -> Result<Judged> {
        let (mut judged, mut named) = (Judged::default(), Vec::new());
        let leaves = if suspected.is_empty() { 0 } else { self.0.shape.mappings };
        for leaf in 0..leaves {
            let there = self.fetch_as(leaf, false, Loud::No).await;
            self.check_alive()?;
            let (map, first) = (self.0.map.borrow(), u64::from(leaf) * u64::from(MAPPED));
            let root = map.root_of(leaf);
            if there.is_err() {
                judged.lost.insert(root);
                judged.blocks.add(self.note_lost_leaf(leaf));
                continue;
            }
            let end = self.blocks().min(first + u64::from(MAPPED));
            let mapped = (first..end).map(|lba| (map.get(lba), (block::DATA, lba)));
            let all = mapped.chain([(root, (block::MAPPING, u64::from(leaf)))]);
            named.extend(all.filter(|(number, _)| suspected.contains(number)));
        }
        for (number, wanted) in named {
            if !self.cannot_be_had(number, wanted).await {
                continue;
            }
            if wanted.0 == block::DATA {
                judged.lost.insert(number);
                judged.blocks.add(wanted.1..wanted.1 + 1);
                self.0.lost_blocks.add(wanted.1..wanted.1 + 1);
                continue;
            }
            // The mapping block is in memory: its copy is damaged, and nothing is lost.
            judged.kept.insert(number);
            if renew && self.fetch_as(wanted.1 as u32, false, Loud::No).await.is_ok() {
                self.0.map.borrow_mut().mark_dirty(wanted.1 as u32);
            }
        }
        Ok(judged)
    }

    /// A mapping block cannot be read: adds the blocks that need it.
    pub(crate) fn note_lost_leaf(&self, leaf: u32) -> Range<u64> {
        if self.failed().is_some() || !self.survives() {
            return 0..0;
        }
        let first = u64::from(leaf) * u64::from(MAPPED);
        let end = self.blocks().min(first + u64::from(MAPPED));
        self.0.lost_blocks.add(first..end);
        first..end
    }

    /// Whether the block `number`, which must have the identity `wanted`, is mapped and cannot be
    /// provided by the present drives. Whoever asks has met its damage before and counted it.
    pub(crate) async fn cannot_be_had(&self, number: u32, wanted: Wanted) -> bool {
        let read = number == NONE || self.read_numbers(&[(number, wanted)], Loud::No).await.is_ok();
        if read || self.failed().is_some() || !self.survives() {
            return false;
        }
        match wanted.0 {
            block::DATA => {
                self.fetch_as(Map::leaf(wanted.1), false, Loud::No).await.is_ok()
                    && self.0.map.borrow().get(wanted.1) == number
            }
            _ => self.0.map.borrow().root_of(wanted.1 as u32) == number,
        }
    }

    /// After a complete scrub: blocks that can be read are not lost. Losses beyond the kept ranges
    /// were added again by the scrub.
    pub(crate) async fn check_lost(&self) {
        for range in self.0.lost_blocks.ranges() {
            for lba in range {
                if self.fetch_as(Map::leaf(lba), false, Loud::No).await.is_err() {
                    continue;
                }
                let number = self.0.map.borrow().get(lba);
                let wanted = [(number, (block::DATA, lba))];
                if number == NONE || self.read_numbers(&wanted, Loud::No).await.is_ok() {
                    self.0.lost_blocks.remove(lba..lba + 1);
                }
            }
        }
    }

    /// A complete scrub begins to add losses: those that did not fit are found again.
    pub(crate) fn recount_lost(&self) {
        self.0.lost_blocks.beyond.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::Rng;

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
