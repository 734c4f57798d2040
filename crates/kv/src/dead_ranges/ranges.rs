//! Dead ranges in memory: the byte ranges of each file that no program will read again.

use crate::extent::FileId;
use furrow_rt::PAGE_SIZE;
use std::collections::BTreeMap;

/// Byte ranges of a file, as a map from beginning to end. They neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn add(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        if let Some((from, to)) = self.0.range(..=start).next_back().map(|(a, b)| (*a, *b))
            && to >= start
        {
            (start, end) = (from, end.max(to));
        }
        while let Some((from, to)) = self.0.range(start..=end).next().map(|(a, b)| (*a, *b)) {
            self.0.remove(&from);
            end = end.max(to);
        }
        self.0.insert(start, end);
    }

    /// Drops the parts of ranges beyond byte `size`.
    pub(super) fn truncate(&mut self, size: u64) {
        self.0.split_off(&size);
        if let Some(mut last) = self.0.last_entry() {
            let end = *last.get();
            last.insert(end.min(size));
        }
    }

    /// Returns the whole blocks of `first..end` that lie in a range, as runs of first and end.
    pub(super) fn blocks(&self, first: u32, end: u32) -> impl Iterator<Item = (u32, u32)> {
        let page = PAGE_SIZE as u64;
        let (from, to) = (u64::from(first) * page, u64::from(end) * page);
        let before = self.0.range(..from).next_back();
        let each = before.into_iter().chain(self.0.range(from..to));
        each.filter_map(move |(start, stop)| {
            let run = ((*start).max(from).div_ceil(page), (*stop).min(to) / page);
            // Both ends fit into 32 bits: they lie between `first` and `end`.
            (run.0 < run.1).then_some((run.0 as u32, run.1 as u32))
        })
    }
}

/// The dead ranges of all files.
#[derive(Default)]
pub(crate) struct Forgotten {
    pub(super) files: BTreeMap<FileId, Ranges>,
    /// Whether holes exist or will be made: the superblock must announce them before the first
    /// is made.
    pub(crate) wanted: bool,
    /// Whether the present superblock announces holes.
    pub(crate) told: bool,
}

impl Forgotten {
    /// Creates the state for a store. `holes` says whether the store has holes already.
    pub(crate) fn new(holes: bool) -> Forgotten {
        Forgotten { wanted: holes, ..Forgotten::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_and_whole_blocks_found() {
        let mut rng = furrow_rt::Rng::new(9);
        let page = PAGE_SIZE as u64;
        for _ in 0..300 {
            let size = 12 * page;
            let mut all = Ranges::default();
            let mut bytes = vec![false; size as usize / 512];
            for _ in 0..rng.below(20) {
                let start = rng.below(size / 512);
                let end = (start + rng.below(20)).min(size / 512);
                all.add(start * 512, end * 512);
                bytes[start as usize..end as usize].fill(true);
            }
            let pairs: Vec<(u64, u64)> = all.0.iter().map(|(a, b)| (*a, *b)).collect();
            assert!(pairs.windows(2).all(|pair| pair[0].1 < pair[1].0), "{pairs:?}");
            let (first, end) = (rng.below(6) as u32, 6 + rng.below(7) as u32);
            let mut found = [false; 12];
            for (from, to) in all.blocks(first, end) {
                assert!(first <= from && from < to && to <= end);
                found[from as usize..to as usize].fill(true);
            }
            for block in 0..12u32 {
                let whole = bytes[block as usize * 8..][..8].iter().all(|byte| *byte);
                let inside = (first..end).contains(&block);
                assert_eq!(found[block as usize], whole && inside, "block {block} of {pairs:?}");
            }
        }
    }
}
