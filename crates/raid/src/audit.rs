//! The audit: the volume's accounts in memory, each compared with a second source that must agree.
//!
//! A wrong account shows here before a read, a reset or a checkpoint depends on it. An audit reads
//! no drive and changes nothing, so it may run between any two tasks' turns, with writes in flight.
//! The simulation audits after every operation. In debug builds, a checkpoint audits at its
//! snapshot, and recovery audits after each step the state that the step has established.

#[cfg(test)]
mod corruptions;

use crate::format::{NONE, block, segment};
use crate::meta::footer;
use crate::recover::unfinished::Stage;
use crate::segment::{Segment, SegmentState};
use crate::volume::Volume;
use crate::write::open::Open;
use furrow_array::drive::Drive;
use furrow_array::member::MemberState;
use furrow_log::SuperzoneState;
use furrow_log::audit::{at_most, broken, equal, holds};
use furrow_zone::{Result, ZoneId};
use std::rc::Rc;

impl Volume {
    /// Checks the accounts in memory against each other. Reads no drive and changes nothing. While
    /// parts of the map are not in memory, the counts of valid blocks are checked against a bound
    /// only.
    ///
    /// # Errors
    /// `Corrupt`; the message names the account, with its required and its present value.
    pub fn audit(&self) -> Result<()> {
        self.audit_members()?;
        self.audit_map()?;
        self.audit_leaves()?;
        self.audit_segments()?;
        self.audit_streams()?;
        self.audit_zones()?;
        self.audit_valid()?;
        self.audit_drives()?;
        self.audit_permits()?;
        self.audit_tables()?;
        self.audit_trims()?;
        self.audit_fallback()
    }

    /// Every member that has not failed has a drive; a failed member has none. The array counts a
    /// member as rebuilding exactly if the member's state says so. The counts of the rebuild, and
    /// of lost blocks, are consistent.
    pub(crate) fn audit_members(&self) -> Result<()> {
        let rebuild = &self.0.rebuild;
        for (index, member) in (0u32..).zip(self.0.array.members()) {
            let state = member.state();
            let has = member.has_drive();
            let account = format_args!("drive of member {index}, which is {state:?}");
            equal(account, state != MemberState::Failed, has)?;
            let account =
                format_args!("whether member {index}, which is {state:?}, is to be rebuilt");
            let lacks = self.0.array.lacking() >> index & 1 == 1;
            equal(account, state == MemberState::Rebuilding, lacks)?;
        }
        let (total, done) = (rebuild.total.get(), rebuild.done.get());
        let account = "segments rebuilt";
        at_most(account, total, done)?;
        let idle = rebuild.is_running() || !rebuild.filling.get();
        holds("rebuild", idle, || {
            "expected it runs while it fills a zone, found it does not run".to_owned()
        })?;
        let (ranges, blocks) = self.0.lost_blocks.counted();
        equal("blocks known to be lost", ranges, blocks)
    }

    /// The map does not contradict itself: for example, every mapping block that changed is in the
    /// set that the next checkpoint writes.
    pub(crate) fn audit_map(&self) -> Result<()> {
        let map = self.0.paging.map();
        map.audit().map_err(|(leaf, what)| {
            broken(
                format_args!("mapping block {leaf}"),
                format_args!("expected not so, found {what}"),
            )
        })
    }

    /// Each segment's count of mapping blocks is the number of those that the root names in it,
    /// plus those that only the newest durable checkpoint may name.
    pub(crate) fn audit_leaves(&self) -> Result<()> {
        let (segments, map) = (self.0.segments.borrow(), self.0.paging.map());
        let mut named = vec![0; segments.len()];
        let checkpoint = &self.0.checkpoint;
        let (replaced, unnamed) = (checkpoint.replaced(), checkpoint.unnamed());
        let older = replaced.iter().chain(unnamed.iter()).map(|(_, number)| number);
        for number in map.root().iter().filter(|number| **number != NONE).chain(older) {
            if let Some(named) = named.get_mut(self.0.shape.slot(*number) as usize) {
                *named += 1;
            }
        }
        for ((slot, segment), named) in segments.iter().enumerate().zip(named) {
            equal(format_args!("mapping blocks of segment slot {slot}"), named, segment.leaves)?;
        }
        Ok(())
    }

    /// A free slot is empty. Each sequence number belongs to one segment and is below the next one
    /// to be given. No durable checkpoint is newer than the newest snapshot.
    pub(crate) fn audit_segments(&self) -> Result<()> {
        let segments = self.0.segments.borrow();
        let mut sequences = Vec::new();
        for (slot, segment) in segments.iter().enumerate() {
            if segment.state != SegmentState::Free {
                sequences.push((segment.sequence, slot));
                continue;
            }
            let Segment { valid, leaves, needed, fallback, .. } = segment;
            let none = (*valid, *leaves, *needed, *fallback) == (0, 0, 0, 0)
                && segment.zones.iter().all(Option::is_none)
                && segment.table.is_none()
                && !segment.pinned;
            let found = || {
                format!(
                    "{valid} valid blocks, {leaves} mapping blocks, trims until checkpoint \
                     {needed}, {fallback} older blocks, zones {:?}",
                    segment.zones
                )
            };
            if !none {
                return Err(broken(
                    format_args!("free segment slot {slot}"),
                    format_args!("expected nothing in it, found {}", found()),
                ));
            }
        }
        sequences.sort_unstable();
        if let Some(pair) = sequences.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let account = format_args!("sequence number {}", pair[0].0);
            return Err(broken(
                account,
                format_args!("expected slot {}, found {} too", pair[0].1, pair[1].1),
            ));
        }
        let (next, last) = (self.0.segments.next(), sequences.last().map_or(0, |last| last.0));
        let account = "newest segment";
        holds(account, last < next, || format!("expected below {next}, found {last}"))?;
        let (taken, id) = (self.0.checkpoint.snapshots(), self.0.checkpoint.id());
        let account = "newest durable checkpoint";
        at_most(account, taken, id)
    }

    /// The segments that streams write to, and the segments that are being ended.
    fn opens(&self) -> Vec<Rc<Open>> {
        let written =
            self.0.streams.iter().filter_map(|stream| stream.writer.open.borrow().clone());
        written.chain(self.0.segments.ending().iter().cloned()).collect()
    }

    /// Each open segment belongs to one stream, or is being ended; all stripes in flight belong to
    /// these segments.
    pub(crate) fn audit_streams(&self) -> Result<()> {
        let (segments, opens) = (self.0.segments.borrow(), self.opens());
        let mut writers = vec![0; segments.len()];
        let mut in_flight = 0;
        for open in &opens {
            let (slot, sequence) = (open.slot, open.sequence);
            let known = &segments[slot as usize];
            let account = format_args!("sequence number of open segment slot {slot}");
            equal(account, known.sequence, sequence)?;
            let account = format_args!("next stripe of open segment slot {slot}");
            let (next, stripes) = (open.next.get(), open.groups.stripes);
            at_most(account, stripes, next)?;
            let account = format_args!("stripe of open segment slot {slot}: chunk and group");
            let (of, is) = ((known.chunk, known.group), (open.groups.chunk, open.groups.group));
            holds(account, of == is, || format!("expected {of:?}, found {is:?}"))?;
            writers[slot as usize] += 1;
            in_flight += open.in_flight.get();
        }
        for ((slot, segment), writers) in segments.iter().enumerate().zip(writers) {
            let account = format_args!("writers of segment slot {slot}, {:?}", segment.state);
            equal(account, u32::from(segment.state == SegmentState::Open), writers)?;
        }
        let account = "stripes in flight against those of open segments";
        equal(account, in_flight, self.0.segments.in_flight())
    }

    /// Each zone of a drive belongs to at most one segment, and is in the state of that segment. A
    /// zone that is full or active belongs to a segment, or is known to be loose.
    pub(crate) fn audit_zones(&self) -> Result<()> {
        for (index, member) in (0u32..).zip(self.0.array.members()) {
            if let Some(drive) = member.drive() {
                self.audit_zones_of(index, &drive)?;
            }
        }
        Ok(())
    }

    fn audit_zones_of(&self, index: u32, drive: &Drive) -> Result<()> {
        use SegmentState::{Free, Open, Releasing, Sealed, Truncated};
        use SuperzoneState::{Active, Full, Retired};
        let segments = self.0.segments.borrow();
        let state =
            |zone: ZoneId| drive.zones().owner(zone).map(|owner| drive.zones().state(owner));
        let mut owners: Vec<Option<u32>> = vec![None; drive.geometry().zones as usize];
        let ending = self.0.segments.ending();
        for (slot, segment) in (0u32..).zip(&*segments) {
            let Some(zone) = segment.zones[index as usize] else { continue };
            let now = state(zone);
            let ends = || ending.iter().any(|open| open.slot == slot);
            let fits = match (segment.state, now) {
                (Open, Some(Active)) | (Sealed | Truncated | Releasing, Some(Full | Retired)) => {
                    true
                }
                (Open, Some(Full | Retired)) => ends(),
                // A zone of this segment that was just reset may belong to another segment already.
                (Releasing, Some(_)) => continue,
                (Free | Open | Sealed | Truncated | Releasing, _) => false,
            };
            let account = format_args!("zone {zone} of member {index}, of segment slot {slot}");
            let expected = format!("the pool's state of a segment that is {:?}", segment.state);
            holds(account, fits, || format!("expected {expected}, found {now:?}"))?;
            let owner = owners.get_mut(zone.0 as usize);
            if let Some(other) = owner.and_then(|owner| owner.replace(slot)) {
                let account = format_args!("owner of zone {zone} of member {index}");
                return Err(broken(
                    account,
                    format_args!("expected segment slot {other}, found {slot}"),
                ));
            }
        }
        let loose = drive.loose();
        for (zone, owner) in (0..).map(ZoneId).zip(&owners) {
            let Some(now @ (Full | Active)) = state(zone) else { continue };
            let account = format_args!("zone {zone} of member {index}, which is {now:?}");
            let known = owner.is_some() || loose.contains(&zone);
            holds(account, known, || "expected a segment that has it, found none".to_owned())?;
        }
        Ok(())
    }

    /// Each segment's count of valid blocks is the number of map entries that lead into it. Every
    /// such entry leads to a row that was written.
    pub(crate) fn audit_valid(&self) -> Result<()> {
        if self.stage() == Some(Stage::Applying) {
            return Ok(());
        }
        let (segments, map, shape) = (self.0.segments.borrow(), self.0.paging.map(), &self.0.shape);
        // For each slot, the number of rows in which blocks may lie.
        let rows: Vec<u32> = (0u32..).zip(&*segments).map(|(slot, s)| self.rows(slot, s)).collect();
        let mut counts = vec![0u32; segments.len()];
        let per_slot = shape.rows * shape.placement.k;
        for (lba, number) in map.mapped() {
            let slot = (number / per_slot) as usize;
            let Some(count) = counts.get_mut(slot) else {
                return Err(broken(
                    format_args!("place of block {lba}"),
                    format_args!("expected one of a slot, found {number}"),
                ));
            };
            *count += 1;
            let row = number % per_slot / shape.placement.k;
            if row >= rows[slot] {
                let account = format_args!("row in segment slot {slot} of block {lba}");
                return Err(broken(
                    account,
                    format_args!("expected below {}, found {row}", rows[slot]),
                ));
            }
        }
        let absent = map.absent() as u64 * u64::from(crate::format::MAPPED);
        let mut beyond = 0;
        for ((slot, segment), count) in segments.iter().enumerate().zip(counts) {
            let account = format_args!("valid blocks of segment slot {slot}, {:?}", segment.state);
            if absent == 0 || segment.valid < count {
                equal(account, count, segment.valid)?;
            }
            beyond += u64::from(segment.valid - count);
        }
        let account = "valid blocks that no mapping block in memory leads to";
        at_most(account, absent, beyond)
    }

    fn stage(&self) -> Option<Stage> {
        self.0.space.recovery.borrow().as_ref().map(|recovery| recovery.stage)
    }

    fn rows(&self, slot: u32, segment: &Segment) -> u32 {
        let written = |open: &Rc<Open>| open.next.get() * open.groups.chunk;
        match segment.state {
            SegmentState::Free | SegmentState::Releasing => 0,
            SegmentState::Open => {
                self.opens().iter().find(|open| open.slot == slot).map_or(0, written)
            }
            SegmentState::Sealed => self.0.shape.rows,
            SegmentState::Truncated => segment.rows,
        }
    }

    /// The accounts that `furrow_log` keeps of each drive agree with each other.
    fn audit_drives(&self) -> Result<()> {
        for (index, member) in self.0.array.members().iter().enumerate() {
            let Some(drive) = member.drive() else { continue };
            let audits =
                drive.zones().audit().and(drive.budget().audit()).and(drive.writer().audit());
            audits.map_err(|error| error.at(format!("member {index}")))?;
        }
        Ok(())
    }

    /// The number of permits held of each drive is that of its zones in use. More permits may be
    /// held while a segment is begun or a zone is rebuilt.
    pub(crate) fn audit_permits(&self) -> Result<()> {
        let opening =
            self.0.streams.iter().filter(|stream| stream.writer.is_opening()).count() as u32;
        let most = opening + u32::from(self.0.rebuild.filling.get());
        for (index, member) in (0u32..).zip(self.0.array.members()) {
            let Some(drive) = member.drive() else { continue };
            let held = drive.budget().total() - drive.budget().available();
            let zones = drive.writer().permits();
            let account = format_args!("permits held of member {index}");
            let expected = format!("{zones} of zones in use and at most {most} on their way");
            let fits = (zones..=zones + most).contains(&held);
            holds(account, fits, || format!("expected {expected}, found {held}"))?;
        }
        Ok(())
    }

    /// The chunks of a group on one drive have different places. In an open segment, the footers to
    /// be written agree with the stripe table.
    pub(crate) fn audit_tables(&self) -> Result<()> {
        let segments = self.0.segments.borrow();
        for (slot, segment) in segments.iter().enumerate() {
            let Some(table) = &segment.table else { continue };
            if let Some((stripe, drive, place)) = table.borrow().clash() {
                let account = format_args!(
                    "place in its group of stripe {stripe} on member {drive}, segment slot {slot}"
                );
                return Err(broken(
                    account,
                    format_args!("expected one that no other chunk has, found {place}"),
                ));
            }
        }
        for open in self.opens() {
            let Some(table) = &segments[open.slot as usize].table else { continue };
            let (table, footers, groups) = (table.borrow(), open.footers.borrow(), open.groups);
            if table.is_searched() {
                continue;
            }
            for (drive, rows) in (0u32..).zip(&*footers) {
                for stripe in 0..open.next.get() {
                    let Some(place) = table.get(stripe, drive) else { continue };
                    let row = groups.row(stripe, place);
                    let listed = rows[row as usize].stripe.get();
                    // A chunk damaged before recovery is not listed; the damage is found when it
                    // is read.
                    if listed == NONE {
                        continue;
                    }
                    let (slot, account) = (open.slot, "stripe in the footer");
                    equal(
                        format_args!("{account} of member {drive}, row {row}, segment slot {slot}"),
                        stripe,
                        listed,
                    )?;
                }
            }
        }
        Ok(())
    }

    /// A segment with trim records stays until a checkpoint holds these trims.
    pub(crate) fn audit_trims(&self) -> Result<()> {
        let (segments, taken) = (self.0.segments.borrow(), self.0.checkpoint.snapshots());
        for (slot, segment) in segments.iter().enumerate() {
            let (needed, most) = (segment.needed, taken + 1);
            let account =
                format_args!("checkpoint that segment slot {slot} waits for with its trims");
            at_most(account, most, needed)?;
        }
        // Skip this check during recovery, which also finds trim records that do not count, and
        // after the volume has failed: a drive may hold the record of a refused trim, but nothing
        // is reset any more.
        if self.stage().is_some() || self.failed().is_some() {
            return Ok(());
        }
        let image = self.0.checkpoint.image();
        for open in self.opens() {
            let segment = &segments[open.slot as usize];
            if segment.needed > 0 || open.in_flight.get() > 0 || open.broken.get() {
                continue;
            }
            // Rows from the entry's `rows` on were written after the durable checkpoint's snapshot.
            let known = image.entries.iter().find(|entry| {
                entry.slot.get() == open.slot && entry.sequence.get() == open.sequence
            });
            let first = match known {
                Some(entry) if entry.state == segment::OPEN => entry.rows.get(),
                Some(_) => continue,
                None if open.sequence < image.next_segment => continue,
                None => 0,
            };
            let footers = open.footers.borrow();
            let trim = |row: &u32| {
                footers.iter().any(|rows| {
                    let found = footer::open_entry(&rows[*row as usize]);
                    found.is_some_and(|(i, _)| i.is_some_and(|i| i.kind == block::TRIM))
                })
            };
            let end = open.next.get() * open.groups.chunk;
            if let Some(row) = (first..end).find(trim) {
                let slot = open.slot;
                let account =
                    format!("checkpoint that segment slot {slot} waits for with its trims");
                return Err(broken(
                    account,
                    format_args!("expected {}, for row {row}, found 0", taken + 1),
                ));
            }
        }
        Ok(())
    }

    /// A segment stays while recovery may fall back on blocks in it, because the stripes that
    /// replaced them lack a chunk.
    pub(crate) fn audit_fallback(&self) -> Result<()> {
        let (segments, recovery) = (self.0.segments.borrow(), self.0.space.recovery.borrow());
        let mut kept = vec![0; segments.len()];
        if let Some(recovery) = recovery.as_ref().filter(|u| u.stage < Stage::Repaired) {
            let slots = recovery.older.values().flatten().chain(&recovery.trimmed);
            slots.for_each(|slot| kept[*slot as usize] += 1);
        }
        for ((slot, segment), kept) in segments.iter().enumerate().zip(kept) {
            equal(
                format_args!("older blocks kept in segment slot {slot}"),
                kept,
                segment.fallback,
            )?;
        }
        Ok(())
    }
}
