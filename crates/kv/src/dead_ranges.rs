//! Dead ranges: bytes of files that nobody reads again, and the holes that cleaning makes of them.
//!
//! A user says which bytes of a file nobody will read again ([`Store::forget`]). Nothing changes
//! at once: the bytes are there until their zone is cleaned, which then leaves out the blocks that
//! lie whole among them. What was left out is a hole of the file: offsets stay, it reads as zeros,
//! and it takes no room.
//!
//! What was said is not kept across a restart; holes are, they are extents without a place. A
//! program that knows nothing of holes must not open such a store, so the superblock says that
//! there are some before the first is made.

use crate::cleaning::garbage_left;
use crate::file::{Extent, File, FileId, Sums};
use crate::file_kind::Claim;
use crate::format::EXTENT_MAX;
use crate::store::Store;
use crate::zone_allocator::{Policy, Use};
use furrow_log::BlockAddr;
use furrow_rt::PAGE_SIZE;
use furrow_zone::{Error, ErrorKind, Result, ZoneId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What was moved so often, or more often, shares zones.
const GENERATIONS: u8 = 3;

impl Extent {
    /// Blocks without a place.
    pub(crate) fn hole(first: u32, blocks: u32) -> Extent {
        Extent { first, blocks, at: BlockAddr::HOLE, sums: Sums::Here(Rc::default()) }
    }

    pub(crate) fn is_hole(&self) -> bool {
        self.at == BlockAddr::HOLE
    }
}

/// Ranges of bytes of a file: where each begins and ends. They neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn add(&mut self, mut start: u64, mut end: u64) {
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

    /// Those before `size`.
    fn cut(&mut self, size: u64) {
        self.0.split_off(&size);
        if let Some(mut last) = self.0.last_entry() {
            let end = *last.get();
            last.insert(end.min(size));
        }
    }

    /// The whole blocks among them that lie in these, as runs of first and end.
    fn blocks(&self, first: u32, end: u32) -> impl Iterator<Item = (u32, u32)> {
        let page = PAGE_SIZE as u64;
        let (from, to) = (u64::from(first) * page, u64::from(end) * page);
        let before = self.0.range(..from).next_back();
        let each = before.into_iter().chain(self.0.range(from..to));
        each.filter_map(move |(start, stop)| {
            let run = ((*start).max(from).div_ceil(page), (*stop).min(to) / page);
            // Both lie between `first` and `end`.
            (run.0 < run.1).then_some((run.0 as u32, run.1 as u32))
        })
    }
}

/// What is known of a zone, for choosing what to clean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Age {
    /// How often what is in it was moved, at most.
    pub(crate) generation: u8,
    /// Blocks that had been written when it was opened.
    pub(crate) opened: u64,
}

/// What nobody reads any more.
#[derive(Default)]
pub(crate) struct Forgotten {
    files: BTreeMap<FileId, Ranges>,
    /// Holes are to be made: the superblock has to say so first.
    pub(crate) wanted: bool,
    /// The superblock that counts says so.
    pub(crate) told: bool,
}

impl Forgotten {
    /// Of a store that has holes already, or has none.
    pub(crate) fn new(holes: bool) -> Forgotten {
        Forgotten { wanted: holes, ..Forgotten::default() }
    }
}

impl Store {
    /// Says that nobody reads these bytes of a file again. Until their zone is cleaned they read
    /// as they were written, then as zeros. Of a file with several names nothing is forgotten:
    /// what is over under one name may be read by another.
    ///
    /// # Errors
    /// `NotFound` if it is neither open nor named, `Invalid` if it ends before that.
    pub fn forget(&self, id: FileId, offset: u64, len: u64) -> Result<()> {
        self.check_alive()?;
        let (size, names) = self.with(id, |file| (file.size, file.names))?;
        let end = offset.checked_add(len).filter(|end| *end <= size).ok_or_else(|| {
            let name = self.name_of(id);
            let message = format!("{name}: {len} bytes from {offset} on, it has {size}");
            Error::new(ErrorKind::Invalid, message)
        })?;
        if names > 1 {
            return Ok(());
        }
        let mut forgotten = self.0.forgotten.borrow_mut();
        forgotten.files.entry(id).or_default().add(offset, end);
        forgotten.wanted = true;
        Ok(())
    }

    /// What is written behind `size` is read again.
    pub(crate) fn keep_from(&self, id: FileId, size: u64) {
        if let Some(ranges) = self.0.forgotten.borrow_mut().files.get_mut(&id) {
            ranges.cut(size);
        }
    }

    /// Blocks of each zone that nobody reads any more, though they count.
    pub(crate) fn forgotten_by_zone(&self) -> BTreeMap<ZoneId, u32> {
        let mut by_zone = BTreeMap::new();
        let mut forgotten = self.0.forgotten.borrow_mut();
        if !forgotten.told {
            return by_zone;
        }
        let files = self.0.files.borrow();
        forgotten.files.retain(|id, _| files.contains_key(id));
        for (id, ranges) in &forgotten.files {
            let Some(file) = files.get(id).filter(|file| file.names < 2) else { continue };
            for extent in file.extents.iter().filter(|extent| !extent.is_hole()) {
                let runs = ranges.blocks(extent.first, extent.end());
                let blocks: u32 = runs.map(|(first, end)| end - first).sum();
                if blocks > 0 {
                    *by_zone.entry(self.zone_of(extent.at)).or_default() += blocks;
                }
            }
        }
        by_zone
    }

    /// An extent in runs of blocks: first and end of each, and whether somebody may read it.
    pub(crate) fn runs_of(&self, id: FileId, extent: &Extent) -> Vec<(u32, u32, bool)> {
        let whole = vec![(extent.first, extent.end(), true)];
        let forgotten = self.0.forgotten.borrow();
        let alone = self.with(id, |file| file.names < 2).unwrap_or(false);
        let Some(ranges) = forgotten.files.get(&id).filter(|_| forgotten.told && alone) else {
            return whole;
        };
        let (mut runs, mut at) = (Vec::new(), extent.first);
        for (first, end) in ranges.blocks(extent.first, extent.end()) {
            if at < first {
                runs.push((at, first, true));
            }
            runs.push((first, end, false));
            at = end;
        }
        if at < extent.end() {
            runs.push((at, extent.end(), true));
        }
        runs
    }

    /// The full zone whose cleaning pays most, and how many of its blocks are moved then: the more
    /// the less of it is moved, and the longer it has been so (Rosenblum and Ousterhout's cost and
    /// benefit).
    pub(crate) fn victim_by_benefit(&self) -> Option<(ZoneId, u32)> {
        let zones = &self.0.zones;
        zones.close_full();
        let forgotten = self.forgotten_by_zone();
        let now = zones.clock();
        let capacity = zones.capacity();
        let needed = self.garbage_needed();
        let each = zones.full_zones().into_iter().filter_map(|zone| {
            let valid = zones.valid(zone);
            let dead = forgotten.get(&zone).copied().unwrap_or(0);
            let live = zones.account("valid blocks that somebody reads", valid.checked_sub(dead));
            // One in which nothing counts is reset anyway.
            let garbage = zones.account("garbage of a zone", capacity.checked_sub(live));
            if valid == 0 || garbage < needed || zones.is_uncleanable(zone) {
                return None;
            }
            let age = now.checked_sub(zones.age(zone).opened);
            let age = zones.account("age of a zone", age).max(1);
            let (free, cost) = (u128::from(garbage), u128::from(capacity + live));
            Some((free * u128::from(age) * 1024 / cost, zone, live))
        });
        each.max().map(|(_, zone, live)| (zone, live))
    }

    /// Blocks of garbage from which on a zone is cleaned: half of it where cleaning begins, and
    /// less as fewer zones are free. To clean zones that hold hardly any would copy all there is
    /// again and again, only for free zones that nobody asks for yet.
    fn garbage_needed(&self) -> u32 {
        let (zones, pool) = (&self.0.zones, &self.0.zones.pool);
        let begin = u64::from(self.0.options.clean_below) * u64::from(pool.total()) / 100;
        // Where files have to wait for room, whatever can be cleaned is.
        let kept = u64::from(zones.kept(Claim::Others));
        let above = |zones: u64| zones.saturating_sub(kept);
        let (free, begin) = (above(u64::from(pool.free_count())), above(begin).max(1));
        let half = u64::from(zones.capacity() / 2);
        let least = garbage_left(zones.capacity()) + 1;
        ((half * free.min(begin) / begin) as u32).max(least)
    }

    /// What a zone is open for that takes what is moved out of this one.
    pub(crate) fn moving_out_of(&self, zone: ZoneId) -> Use {
        let zones = &self.0.zones;
        match zones.policy() {
            Policy::Generations => Use::Moved((zones.age(zone).generation + 1).min(GENERATIONS)),
            _ => Use::Moved(0),
        }
    }
}

/// Makes one hole of those that touch, as far as an extent goes. Answers the first block of what
/// changed.
pub(crate) fn join_holes(file: &mut File) -> Option<u32> {
    let mut changed: Option<u32> = None;
    let mut at = 1;
    while at < file.extents.len() {
        let (before, now) = (&file.extents[at - 1], &file.extents[at]);
        if before.is_hole() && now.is_hole() && before.blocks + now.blocks <= EXTENT_MAX {
            let joined = Extent::hole(before.first, before.blocks + now.blocks);
            changed = Some(changed.map_or(joined.first, |first| first.min(joined.first)));
            file.extents.splice(at - 1..=at, [joined]);
        } else {
            at += 1;
        }
    }
    changed
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
