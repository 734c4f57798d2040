//! Dead ranges: bytes of files that no program will read again, and the holes that cleaning makes
//! of them.
//!
//! A user says which bytes of a file will not be read again ([`Store::forget`]). The bytes stay
//! until their zone is cleaned. Cleaning leaves out blocks that lie entirely in a dead range; these
//! become a hole of the file: offsets stay, the hole reads as zeros and takes no space.
//!
//! Dead ranges are not kept across a restart; holes are, as extents without a place. A program that
//! does not know holes must not open such a store, so the superblock announces them before the
//! first is made.

pub(crate) mod ranges;

use crate::extent::{Extent, FileId};
use crate::file::File;
use crate::file_kind::Claim;
use crate::format::EXTENT_MAX;
use crate::store::Store;
use crate::zone_allocator::{Policy, Use, garbage_left};
use furrow_zone::{Error, ErrorKind, Result, ZoneId};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks that were moved at least this many times share zones. Blocks moved fewer times are
/// separated by their number of moves.
const GENERATIONS: u8 = 3;

impl Store {
    /// Says that these bytes of a file will not be read again. Until the zone of the bytes is
    /// cleaned, reads return the bytes as they were written. Afterwards, reads return zeros for
    /// whole blocks of the range. For a file with several names, this does nothing: a reader under
    /// another name may still need the bytes.
    ///
    /// # Errors
    /// `NotFound` if the file is neither open nor named, `Invalid` if the range goes beyond the
    /// file's end; the store's error if the store has failed.
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

    /// Notes that bytes from `size` on will be written again, so they are not dead any more.
    pub(crate) fn keep_from(&self, id: FileId, size: u64) {
        if let Some(ranges) = self.0.forgotten.borrow_mut().files.get_mut(&id) {
            ranges.truncate(size);
        }
    }

    /// Counts, for each zone, the dead blocks that still count as valid.
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

    /// Splits an extent into runs of blocks: first, end, and whether the run may still be read.
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

    /// Returns the full zone whose cleaning pays most, and the number of blocks to move. By the
    /// cost-benefit rule of Rosenblum and Ousterhout, a zone pays more the fewer blocks are moved,
    /// and the longer it has been unchanged.
    pub(crate) fn victim_by_benefit(&self, except: &BTreeSet<ZoneId>) -> Option<(ZoneId, u32)> {
        let zones = &self.0.zones;
        zones.close_full();
        let forgotten = self.forgotten_by_zone();
        let now = zones.clock();
        let capacity = zones.capacity();
        let needed = self.garbage_needed();
        let each = zones.full_zones().into_iter().filter_map(|zone| {
            let valid = zones.valid(zone);
            let dead = forgotten.get(&zone).copied().unwrap_or(0);
            let live = zones.less("valid blocks that somebody reads", valid, dead);
            // A zone without valid blocks is reset, not cleaned.
            let garbage = zones.less("garbage of a zone", capacity, live);
            let out = zones.is_uncleanable(zone) || except.contains(&zone);
            if valid == 0 || garbage < needed || out {
                return None;
            }
            let age = zones.less("age of a zone", now, zones.age(zone).opened).max(1);
            let (free, cost) = (u128::from(garbage), u128::from(capacity + live));
            Some((free * u128::from(age) * 1024 / cost, zone, live))
        });
        each.max().map(|(_, zone, live)| (zone, live))
    }

    /// Minimum garbage, in blocks, for which a zone is cleaned: half a zone at the threshold where
    /// cleaning begins, and less when fewer zones are free. Cleaning zones with hardly any garbage
    /// would copy everything again and again for free zones that no writer needs yet.
    fn garbage_needed(&self) -> u32 {
        let (zones, pool) = (&self.0.zones, &self.0.zones.pool);
        let begin = u64::from(self.0.options.clean_below) * u64::from(pool.total()) / 100;
        // When writers wait for space, every zone with garbage is worth cleaning.
        let kept = u64::from(zones.kept(Claim::Others));
        let above = |zones: u64| zones.saturating_sub(kept);
        let (free, begin) = (above(u64::from(pool.free_count())), above(begin).max(1));
        let half = u64::from(zones.capacity() / 2);
        let least = garbage_left(zones.capacity()) + 1;
        ((half * free.min(begin) / begin) as u32).max(least)
    }

    /// Returns the use of the zone that receives blocks moved out of this zone.
    pub(crate) fn moving_out_of(&self, zone: ZoneId) -> Use {
        let zones = &self.0.zones;
        match zones.policy() {
            Policy::Generations => Use::Moved((zones.age(zone).generation + 1).min(GENERATIONS)),
            _ => Use::Moved(0),
        }
    }
}

/// Joins adjacent holes, up to the length of an extent. Returns the first block that changed.
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
