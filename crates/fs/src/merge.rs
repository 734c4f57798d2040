//! Merging the delta log into the tables, in the background.
//!
//! The delta log has two halves. When one has no room for another checkpoint's deltas, the
//! checkpoint goes on in the other, and the table units that are *behind* are written from memory,
//! a few at a time, while operations go on. Units not touched are not written. The first
//! checkpoint after the last of them lists no extent of the first half any more, so that half is
//! reset.
//!
//! Units are appended to one half of the table area. When a merge does not fit there, it writes
//! *all* units to the other half and the checkpoint that ends it takes over all of their places at
//! once: until then no checkpoint knows them, so whatever crashes leave of them is reset.
//!
//! Invariants
//! - A unit holds memory as it was when the unit was written. Checkpoints list places as of their
//!   cut, so every entry that is newer in the unit than in the tables as of the checkpoint before
//!   is among the deltas of the checkpoint that first lists it.
//! - There is always a way on without log: a checkpoint that finds the second half full before the
//!   merge is over writes what is behind by itself, and needs no deltas. It takes longer, so
//!   writers are slowed; they never fail.

use crate::checkpoint::UnitBytes;
use crate::core::{Core, Inner};
use crate::format::{UnitRef, kind};
use crate::types::Metadata;
use furrow_log::BlockAddr;
use furrow_log::record::{RecordHeader, seal};
use furrow_log::writer::{Durability, Kind as WriteKind};
use furrow_zone::{Result, ZoneId};
use std::collections::VecDeque;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

/// Blocks of units written before others may go on: 1 MiB.
const BATCH: u32 = 256;

/// A merge under way.
#[derive(Clone, Default)]
pub(crate) struct Merge {
    /// Units still to write, as indices of `State::units`.
    left: VecDeque<u32>,
    /// All units go to the other half: their places there.
    moved: Option<Moved>,
}

#[derive(Clone)]
struct Moved {
    units: Vec<UnitRef>,
    half: u8,
    next: u32,
}

/// Where the tables are as of a cut.
#[derive(Clone)]
pub(crate) struct TablePlaces {
    pub(crate) units: Vec<UnitRef>,
    pub(crate) half: u8,
    pub(crate) next: u32,
}

/// What a checkpoint does about a delta log that has no room for it.
pub(crate) enum Plan {
    /// There is room.
    Append,
    /// It goes on in the other half, and a merge begins.
    Switch,
    /// It writes what is behind itself.
    Write,
}

impl Core {
    /// Decides, at a cut, before dirty entries are taken: `needed` blocks for their deltas.
    pub(crate) fn plan_log(&mut self, needed: u32) -> Plan {
        self.end_merge();
        if self.options.metadata == Metadata::Pair {
            return Plan::Write;
        }
        if needed <= self.delta.room() {
            return Plan::Append;
        }
        let other = 1 - self.delta.position().0;
        let free = self.checkpoint.merge.is_none() && self.delta.is_clean(other);
        if free && needed <= self.delta.layout().half_blocks(other) {
            self.begin_merge();
            return Plan::Switch;
        }
        self.counters.merge_throttles += 1;
        Plan::Write
    }

    /// The units a checkpoint writes itself, and whether they go to the other half. Ends the merge
    /// under way.
    pub(crate) fn take_unmerged(&mut self) -> (Vec<UnitBytes>, bool) {
        self.nat.unmerge();
        self.sit.unmerge();
        if let Some(moved) = self.checkpoint.merge.take().and_then(|merge| merge.moved) {
            // What is in the other half so far is known to no checkpoint: all follows it there.
            self.checkpoint.table_half = moved.half;
            self.checkpoint.table_next = moved.next;
            return (self.take_units(true), false);
        }
        let rewrite = self.units_behind() * self.layout.unit_blocks > self.table_room();
        (self.take_units(rewrite), rewrite)
    }

    /// The units that are behind now are to be written.
    pub(crate) fn begin_merge(&mut self) {
        let fits = self.units_behind() * self.layout.unit_blocks <= self.table_room();
        let first_sit = self.layout.nat_units();
        let mut merge = Merge::default();
        if fits {
            merge.left.extend(self.nat.begin_merge(false));
            merge.left.extend(self.sit.begin_merge(false).into_iter().map(|u| first_sit + u));
        } else {
            merge.left.extend(self.nat.begin_merge(true));
            merge.left.extend(self.sit.begin_merge(true).into_iter().map(|u| first_sit + u));
            merge.moved = Some(self.begin_moving());
        }
        self.counters.merges += 1;
        self.checkpoint.merge = Some(merge);
    }

    /// Makes the other half of the table area the one to write to, its permit included.
    fn begin_moving(&mut self) -> Moved {
        let half = 1 - self.checkpoint.table_half;
        self.leave_table_half(half);
        self.checkpoint.table_used[usize::from(half)] = true;
        let units = vec![self.hole_unit(); self.checkpoint.units.len()];
        Moved { units, half, next: 0 }
    }

    fn hole_unit(&self) -> UnitRef {
        UnitRef { addr: crate::format::HOLE.into(), crc: 0.into() }
    }

    /// Fills the open zone of the half written so far, so that its permit goes to `half`.
    fn leave_table_half(&mut self, half: u8) {
        let capacity = self.layout.capacity;
        let old = self.layout.table_half(self.checkpoint.table_half);
        let (at, offset) = (
            (self.checkpoint.table_next / capacity) as usize,
            self.checkpoint.table_next % capacity,
        );
        let previous = (at < old.len() && offset > 0).then(|| old[at]);
        if let Some(zone) = previous {
            self.fill_zone(zone);
        }
        let first = self.layout.table_half(half)[0];
        self.open_after(first, previous);
    }

    /// If a merge has written its last unit, the next checkpoint needs nothing older of the log.
    fn end_merge(&mut self) {
        if self.checkpoint.merge.as_ref().is_none_or(|merge| !merge.left.is_empty()) {
            return;
        }
        if let Some(moved) = self.checkpoint.merge.take().and_then(|merge| merge.moved) {
            self.checkpoint.units = moved.units;
            self.checkpoint.table_half = moved.half;
            self.checkpoint.table_next = moved.next;
        }
        let half = self.delta.position().0;
        self.checkpoint.extents.retain(|extent| extent.half == half);
    }

    /// True while the half of the table area not in use is being filled.
    pub(crate) fn is_moving_tables(&self) -> bool {
        self.checkpoint.merge.as_ref().is_some_and(|merge| merge.moved.is_some())
    }

    /// Where the tables are now.
    pub(crate) fn table_places(&self) -> TablePlaces {
        TablePlaces {
            units: self.checkpoint.units.clone(),
            half: self.checkpoint.table_half,
            next: self.checkpoint.table_next,
        }
    }

    /// Writes the next few units of the merge; false if there is nothing left to write.
    fn merge_some(&mut self) -> bool {
        let Some(mut merge) = self.checkpoint.merge.take() else { return false };
        let count = (BATCH / self.layout.unit_blocks).max(1) as usize;
        let batch: Vec<u32> = merge.left.drain(..count.min(merge.left.len())).collect();
        let checkpoint = self.checkpoint.id + 1;
        for index in &batch {
            let Some(bytes) = self.unit_bytes(*index) else { continue };
            self.counters.merge_bytes += bytes.len() as u64;
            let (half, next) = match &merge.moved {
                Some(moved) => (moved.half, moved.next),
                None => (self.checkpoint.table_half, self.checkpoint.table_next),
            };
            let (unit, next) = self.write_unit(checkpoint, *index, &bytes, half, next);
            match &mut merge.moved {
                Some(moved) => {
                    moved.units[*index as usize] = unit;
                    moved.next = next;
                }
                None => {
                    self.checkpoint.units[*index as usize] = unit;
                    self.checkpoint.table_next = next;
                }
            }
        }
        let more = !merge.left.is_empty();
        self.checkpoint.forced |= !more;
        self.checkpoint.merge = Some(merge);
        more
    }

    /// A unit as it is in memory, which its copy then is not behind any more.
    fn unit_bytes(&mut self, index: u32) -> Option<Vec<u8>> {
        match index.checked_sub(self.layout.nat_units()) {
            None => self.nat.merged(index).map(|entries| entries.as_bytes().to_vec()),
            Some(unit) => self.sit.merged(unit).map(|entries| entries.as_bytes().to_vec()),
        }
    }

    fn units_behind(&self) -> u32 {
        (self.nat.behind().len() + self.sit.behind().len()) as u32
    }

    /// Blocks the current half of the tables still takes, in whole units.
    fn table_room(&self) -> u32 {
        let (unit, capacity) = (self.layout.unit_blocks, self.layout.capacity);
        let per_zone = capacity / unit * unit;
        let total = per_zone * self.layout.table_zones;
        let (zone, offset) =
            (self.checkpoint.table_next / capacity, self.checkpoint.table_next % capacity);
        let used = zone * per_zone + offset.next_multiple_of(unit).min(per_zone);
        total.saturating_sub(used)
    }

    /// The units that are behind, or all.
    fn take_units(&mut self, all: bool) -> Vec<UnitBytes> {
        let (nat, sit) = if all {
            (self.nat.take_all(), self.sit.take_all())
        } else {
            (self.nat.take_behind(), self.sit.take_behind())
        };
        let first_sit = self.layout.nat_units() as usize;
        let nat = nat.into_iter().map(|(unit, e)| (unit as usize, e.as_bytes().to_vec()));
        let sit = sit.into_iter();
        let sit = sit.map(|(unit, e)| (first_sit + unit as usize, e.as_bytes().to_vec()));
        nat.chain(sit).collect()
    }

    /// Writes units and says where they are; a rewrite goes to the other half.
    pub(crate) fn write_units(&mut self, checkpoint: u64, units: Vec<UnitBytes>, rewrite: bool) {
        if rewrite {
            let half = 1 - self.checkpoint.table_half;
            self.leave_table_half(half);
            self.checkpoint.table_half = half;
            self.checkpoint.table_next = 0;
        }
        let half = self.checkpoint.table_half;
        for (index, bytes) in units {
            let next = self.checkpoint.table_next;
            let (unit, next) = self.write_unit(checkpoint, index as u32, &bytes, half, next);
            self.checkpoint.units[index] = unit;
            self.checkpoint.table_next = next;
        }
        self.checkpoint.table_used[usize::from(half)] = true;
    }

    /// Writes a unit at block `next` of `half`, or in the next zone: its place, and the next.
    fn write_unit(
        &mut self,
        checkpoint: u64,
        index: u32,
        bytes: &[u8],
        half: u8,
        next: u32,
    ) -> (UnitRef, u32) {
        let capacity = self.layout.capacity;
        let zones = self.layout.table_half(half);
        let (mut zone, mut offset) = (next / capacity, next % capacity);
        if offset + self.layout.unit_blocks > capacity {
            self.fill_zone(zones[zone as usize]);
            zone += 1;
            offset = 0;
            self.open_after(zones[zone as usize], Some(zones[zone as usize - 1]));
        }
        let id = self.record_id(kind::UNIT, checkpoint, u64::from(index));
        let pages = seal(&id, bytes, &self.pages);
        let header = RecordHeader::read_from_prefix(pages[0].bytes()).map(|(h, _)| h);
        let crc = header.expect("invariant: a record opens with its header").crc;
        let blocks = pages.len() as u32;
        let zone_id = zones[zone as usize];
        self.ensure_open(zone_id, offset);
        let placed = self.dispatch(zone_id, pages, WriteKind::Table, Durability::Cached);
        debug_assert_eq!(placed, offset);
        let addr = BlockAddr::new(&self.geometry, zone_id, offset).0;
        self.checkpoint.table_used[usize::from(half)] = true;
        (UnitRef { addr: addr.into(), crc }, zone * capacity + offset + blocks)
    }

    /// Pads a zone to its end, so that it gives its permit back.
    pub(crate) fn fill_zone(&mut self, zone: ZoneId) {
        if self.writer.is_open(zone) {
            drop(self.writer.fill(zone, self.layout.capacity));
        }
    }

    pub(crate) fn open_after(&mut self, zone: ZoneId, previous: Option<ZoneId>) {
        match previous {
            Some(previous) if self.writer.is_open(previous) => {
                self.writer.open_zone_after(zone, previous);
            }
            _ => self.writer.open_zone(zone, 0),
        }
    }
}

impl Inner {
    /// After recovery: goes on with the merge that a crash or an unmount has interrupted.
    pub(crate) fn resume_merge(self: &Rc<Self>) {
        {
            let core = &mut *self.core.borrow_mut();
            if core.options.metadata == Metadata::Pair {
                return;
            }
            let half = core.delta.position().0;
            let one_half = core.checkpoint.extents.iter().all(|extent| extent.half == half);
            // The checkpoint that ended recovery may have begun one.
            if one_half || core.checkpoint.merge.is_some() {
                return;
            }
            core.begin_merge();
        }
        self.start_merge();
    }

    /// Starts writing the units of the merge, if one has just begun.
    pub(crate) fn start_merge(self: &Rc<Self>) {
        if self.core.borrow().checkpoint.merge.is_none() || self.merge_running.replace(true) {
            return;
        }
        let inner = self.clone();
        self.rt.spawn_detached(async move {
            if let Err(error) = inner.merge().await {
                inner.fail(&error);
            }
            inner.merge_running.set(false);
        });
    }

    async fn merge(self: &Rc<Self>) -> Result<()> {
        loop {
            let (more, mark, writer) = {
                let core = &mut *self.core.borrow_mut();
                if self.ended.get() || core.failed.is_some() {
                    return Ok(());
                }
                let more = core.merge_some();
                (more, core.writer.mark(), core.writer.clone())
            };
            if !more {
                return Ok(());
            }
            // One batch at a time, so that it does not stand in the way of what users wait for.
            writer.wait(mark).await?;
            self.rt.yield_now().await;
        }
    }
}
