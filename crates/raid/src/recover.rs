//! Recovery: from the content of the drives to a volume in service.
//!
//! `recover/steps` is the table of its steps. Recovery begins with the newest state record, which
//! has segment table and map as of its snapshot. Rows that were written after the snapshot change
//! the map. Stripes that count but lack a chunk are then rewritten: otherwise the next failure of a
//! drive could take back blocks that users have read since this recovery.
//!
//! Before the checkpoint at its end, recovery resets only zones of unfinished rebuilds, and its
//! writes change nothing that the first steps find. So a crash during recovery is recovered like
//! the first crash. The exception is a lack of space for the last steps: then segments without
//! valid blocks are reset. Segments with blocks that a torn stripe replaced are kept until that
//! stripe is written again. If the space is still too small, zones that belong to no segment are
//! reset, too.

pub(crate) mod finish;
mod headless;
pub(crate) mod in_doubt;
mod repair_torn;
pub(crate) mod steps;
pub(crate) mod unfinished;

use crate::checkpoint::state::Image;
use crate::format::{CODED, FooterEntry, NONE, SegmentBody, SegmentEntry, TrimEntry, block, kind};
use crate::map::Map;
use crate::meta::footer::seal_entry;
use crate::meta::identity::{self, Identity};
use crate::meta::oob;
use crate::meta::scan::{Row, Rows, note_places, read_footers};
use crate::read::place::Loud;
use crate::recover::steps::{RECOVERY, Recovery};
use crate::segment::{Segment, SegmentState};
use crate::steps::{OF_RECOVERY, run};
use crate::table::{Groups, StripeTable};
use crate::volume::Volume;
use crate::write::line::SegmentWriter;
use crate::write::open::Open;
use furrow_array::member::{Member, MemberState};
use furrow_array::parity::reconstruct;
use furrow_log::BlockAddr;
use furrow_log::address::blocks_begun;
use furrow_log::budget::Class;
use furrow_log::record::{self, Expect};
use furrow_log::writer::{Kind, ZoneWrite};
use furrow_rt::Pages;
use furrow_zone::{Error, ErrorKind, Result, ZoneId, ZoneReport, ZoneState};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use zerocopy::{FromBytes, FromZeros};

/// A segment as the headers of its zones describe it.
pub(crate) struct Found {
    pub(crate) sequence: u64,
    slot: u32,
    pub(crate) groups: Groups,
    /// Members without a zone when the segment was begun, as bits.
    pub(crate) missing: u32,
    pub(crate) zones: Vec<Option<ZoneId>>,
    /// Members whose zone was written by a rebuild, as bits; such a zone counts only when it has
    /// its footer.
    pub(crate) rebuilt: u32,
}

/// The newest block of an address among the blocks written after the snapshot.
#[derive(Clone, Copy)]
struct Candidate {
    sequence: u64,
    segment: u64,
    number: u32,
    /// Whether the block's stripe lacks a chunk.
    torn: bool,
    /// Whether the block is damaged and cannot be reconstructed, because its stripe is damaged
    /// as well.
    lost: bool,
}

/// Whether chunks of a stripe that counts are missing or damaged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Short {
    Not,
    /// A member in service has no chunk, because the crash came before the chunk was written.
    Lacking,
    /// All chunks are there, and the damaged ones can be reconstructed.
    Damaged,
    /// All chunks were written, but too many of them are damaged.
    Lost,
}

/// A trim record that was written after the snapshot.
struct TrimRecord {
    sequence: u64,
    number: u32,
    lba: u64,
    /// Whether the record's stripe lacks a chunk.
    torn: bool,
}

/// The blocks and trims that were written after the snapshot.
#[derive(Default)]
struct Delta {
    blocks: BTreeMap<u64, Candidate>,
    /// Addresses and numbers of blocks that are older than the block of the same address
    /// in `blocks`.
    older: Vec<(u64, u32)>,
    trims: Vec<TrimRecord>,
    /// Numbers of the blocks of stripes that count but lack a chunk.
    torn: Vec<u32>,
    /// Numbers of the blocks of stripes that have all their chunks, some of them damaged.
    damaged: Vec<u32>,
    highest: u64,
}

impl Delta {
    /// Adds a block that was written after the snapshot.
    fn add(&mut self, lba: u64, new: Candidate) {
        let Some(known) = self.blocks.get_mut(&lba) else {
            self.blocks.insert(lba, new);
            return;
        };
        let newer = (known.sequence, known.segment) <= (new.sequence, new.segment);
        let old = if newer { std::mem::replace(known, new) } else { new };
        self.older.push((lba, old.number));
    }

    /// Whether a stripe that lacks a chunk determines the content of an address. `trims` are the
    /// ranges discarded by trim records in such stripes.
    fn is_torn(&self, trims: &[Range<u64>], lba: u64) -> bool {
        self.blocks.get(&lba).is_some_and(|newest| newest.torn)
            || trims.iter().any(|range| range.contains(&lba))
    }
}

/// The rows of a segment's zones, as they were read.
pub(crate) struct Scanned {
    rows: Vec<Rows>,
    /// For each zone, the number of rows that were written.
    upto: Vec<u32>,
}

impl Scanned {
    /// Drives whose chunk of a stripe has a damaged row, as bits.
    fn hurt(&self, groups: Groups, table: &StripeTable, stripe: u32) -> u32 {
        let is_hurt = |drive: u32| {
            let Some(place) = table.get(stripe, drive) else { return false };
            let first = groups.row(stripe, place) as usize;
            let rows = self.rows[drive as usize].get(first..first + groups.chunk as usize);
            rows.is_none_or(|rows| rows.iter().flatten().any(|row| !row.whole))
        };
        let drives = (0..self.rows.len() as u32).filter(|drive| is_hurt(*drive));
        drives.fold(0, |set, drive| set | 1 << drive)
    }

    /// Whether a row is damaged so much that its stripe is unknown.
    pub(crate) fn has_unknown(&self) -> bool {
        self.rows.iter().flatten().flatten().any(|row| !row.whole && row.stripe == NONE)
    }

    /// Drives, as bits, that have a row of unknown stripe where the chunk of `stripe` may be.
    pub(crate) fn unknown_of(&self, groups: Groups, stripe: u32) -> u32 {
        let first = groups.start(stripe) * groups.chunk;
        let last = groups.end(stripe) * groups.chunk;
        let may_have = |rows: &Rows| {
            let rows = rows.iter().take(last as usize).skip(first as usize).flatten();
            rows.into_iter().any(|row| !row.whole && row.stripe == NONE)
        };
        let drives = (0..).zip(&self.rows).filter(|(_, rows)| may_have(rows));
        drives.fold(0, |set, (drive, _)| set | 1u32 << drive)
    }

    /// Number of rows up to the last block found in any zone. The numbers in `upto` may be too
    /// high: they count a zone that was ended early as written to its end.
    fn last(&self) -> u32 {
        let of = |rows: &Rows| rows.iter().rposition(Option::is_some).map_or(0, |at| at as u32 + 1);
        self.rows.iter().map(of).max().unwrap_or(0)
    }

    /// Number of rows of the segment: up to the last block found in any zone, and up to the last
    /// stripe that one of these blocks belongs to. Zone Append may place a stripe before earlier
    /// ones of its group, and the earlier stripes may be missing.
    fn rows_of(&self, groups: Groups) -> u32 {
        let stripes = self.rows.iter().flatten().flatten().map(|row| row.stripe);
        let stripes = stripes.filter(|stripe| *stripe < groups.stripes);
        let stripes = stripes.max().map_or(0, |last| last + 1);
        self.last().next_multiple_of(groups.chunk).max(stripes * groups.chunk)
    }
}

impl Image {
    /// The entry for a segment in the checkpoint's image.
    pub(crate) fn entry(&self, found: &Found) -> Option<&SegmentEntry> {
        let of = |entry: &&SegmentEntry| {
            entry.slot.get() == found.slot && entry.sequence.get() == found.sequence
        };
        self.entries.iter().find(of)
    }
}

impl Volume {
    /// Recovers the volume from the image of the newest state record, up to the point where the
    /// volume can be written.
    pub(crate) async fn recover(&self, zones: Vec<Vec<ZoneReport>>, image: Image) -> Result<()> {
        let mut recovery = Recovery::new(self, zones, image);
        run(&self.0.rt, OF_RECOVERY, RECOVERY, &mut recovery).await?;
        match self.finish_recovery().await {
            // The volume serves reads; writes wait until the last steps are done.
            Err(error) if error.kind() == ErrorKind::NoSpace && self.survives() => Ok(()),
            Err(_) if self.failed().is_some() && self.survives() => Ok(()),
            finished => finished,
        }
    }

    /// Fails if a drive did not answer for a moment during recovery: blocks of that drive may not
    /// have been read.
    pub(crate) fn check_read(&self) -> Result<()> {
        let mut drives = self.0.array.members().iter().filter_map(Member::drive);
        match drives.find(|drive| drive.misses() > 0) {
            None => Ok(()),
            Some(drive) => {
                let what = "it did not answer while the array was put together: nothing was \
                            changed, try again";
                Err(Error::new(ErrorKind::Io, what).at(drive.device().name()))
            }
        }
    }

    /// Whether a drive in service did not answer, if only for a moment.
    pub(crate) fn has_missed(&self) -> bool {
        self.check_read().is_err()
    }

    /// Returns the segments, oldest first; the zones that are not empty and belong to no segment;
    /// and, as bits, the members with zones that belong to no segment because their header cannot
    /// be read.
    ///
    /// # Errors
    /// `Corrupt` if no header of a segment is left and the newest state record does not list the
    /// segment, unless loss is accepted.
    pub(crate) async fn find_segments(
        &self,
        zones: &[Vec<ZoneReport>],
        image: &Image,
    ) -> Result<(Vec<Found>, Vec<(u32, ZoneId)>, u32)> {
        let mut found: BTreeMap<(u32, u64), Found> = BTreeMap::new();
        let mut blind = 0;
        let (mut strays, mut headless) = (Vec::new(), Vec::new());
        let drives = self.0.shape.placement.n;
        for (index, reports) in (0..).zip(zones) {
            let Some(drive) = self.0.array.member(index).drive() else { continue };
            for report in reports.iter().skip(self.0.shape.first_zone as usize) {
                if blocks_begun(report, drive.geometry()) == 0 {
                    continue;
                }
                let Some((sequence, body)) = self.header(index, report.zone).await else {
                    match self.headless(index, report).await {
                        Some(zone) => headless.push(zone),
                        None => {
                            strays.push((index, report.zone));
                            blind |= 1 << index;
                        }
                    }
                    continue;
                };
                let (slot, chunk) = (body.slot.get(), body.chunk.get());
                let stripes = self.0.shape.stripes(chunk);
                let groups = Groups { chunk, group: body.group.get(), stripes };
                let segment = found.entry((slot, sequence)).or_insert_with(|| Found {
                    sequence,
                    slot,
                    groups,
                    missing: u32::MAX,
                    zones: vec![None; drives as usize],
                    rebuilt: 0,
                });
                let missing = body.missing.get();
                segment.missing &= missing;
                segment.rebuilt |= missing & 1 << index;
                let known = &mut segment.zones[index as usize];
                match *known {
                    None => *known = Some(report.zone),
                    // A rebuild wrote both zones: it failed in one of them, and could not empty
                    // that zone.
                    Some(old) if read_footers(self, index, old, sequence).await.is_some() => {
                        strays.push((index, report.zone));
                    }
                    Some(old) => {
                        strays.push((index, old));
                        *known = Some(report.zone);
                    }
                }
            }
        }
        for zone in headless {
            if !headless::adopt(&zone, &mut found, image, self)? {
                strays.push((zone.index, zone.zone));
                blind |= 1 << zone.index;
            }
        }
        // If a slot has several segments, the newest counts: the zones of the others could not
        // be reset.
        let mut newest: BTreeMap<u32, Found> = BTreeMap::new();
        for ((slot, _), segment) in found {
            if let Some(old) = newest.insert(slot, segment) {
                let zones = (0u32..).zip(old.zones);
                strays.extend(zones.filter_map(|(index, zone)| Some((index, zone?))));
            }
        }
        let mut found: Vec<Found> = newest.into_values().collect();
        found.sort_by_key(|segment| segment.sequence);
        Ok((found, strays, blind))
    }

    async fn header(&self, index: u32, zone: ZoneId) -> Option<(u64, SegmentBody)> {
        let member = self.0.array.member(index);
        let drive = member.drive()?;
        let at = BlockAddr::new(drive.geometry(), zone, 0);
        let pages = drive.read(at, 1, &self.0.pages).await.ok()?;
        let expect = Expect {
            kind: kind::SEGMENT,
            device: Some(member.uuid()),
            object: Some(self.0.array.uuid()),
        };
        let (header, body) = record::open(pages[0].bytes(), &expect).ok()?;
        let (body, _) = SegmentBody::read_from_prefix(body).ok()?;
        let whole = self.0.shape.fits(&body) && body.member.get() == index;
        whole.then_some((header.sequence.get(), body))
    }

    /// Puts a segment found on the drives into its slot.
    pub(crate) fn adopt(&self, found: &Found, state: SegmentState) {
        let drives = self.0.shape.placement.n;
        self.0.segments.borrow_mut()[found.slot as usize] = Segment {
            state,
            sequence: found.sequence,
            chunk: found.groups.chunk,
            group: found.groups.group,
            zones: found.zones.clone(),
            rows: self.0.shape.rows,
            rebuilt: found.rebuilt,
            ..Segment::free(drives)
        };
        for (zone, member) in found.zones.iter().zip(self.0.array.members()) {
            if let (Some(zone), Some(drive)) = (zone, member.drive())
                && let Some(owner) = drive.zones().owner(*zone)
                && drive.zones().state(owner) == furrow_log::SuperzoneState::Free
            {
                drive.zones().mark_full(owner);
            }
        }
    }

    pub(crate) async fn scan(&self, segment: &Found, zones: &[Vec<ZoneReport>]) -> Scanned {
        let mut flights = Vec::new();
        for (index, zone) in segment.zones.iter().enumerate() {
            let drive = self.0.array.members()[index].drive();
            let (Some(zone), Some(drive)) = (zone, drive) else {
                flights.push(None);
                continue;
            };
            let end = blocks_begun(&zones[index][zone.0 as usize], drive.geometry());
            let upto = end.saturating_sub(self.0.shape.offset(0)).min(self.0.shape.rows);
            let (volume, at) = (self.clone(), (*zone, segment.sequence));
            let of = (segment.slot, index as u32);
            let full = zones[index][zone.0 as usize].state == ZoneState::Full;
            let rows = self
                .0
                .rt
                .spawn(async move { volume.scan_rows(&drive, of, at, (upto, full)).await });
            flights.push(Some((upto, rows)));
        }
        let mut scanned = Scanned { rows: Vec::new(), upto: Vec::new() };
        for flight in flights {
            let (upto, rows) = match flight {
                Some((upto, rows)) => (upto, rows.await),
                None => (0, Vec::new()),
            };
            scanned.rows.push(rows);
            scanned.upto.push(upto);
        }
        scanned
    }

    /// The stripe table of a segment, with the places of the chunks that were found.
    pub(crate) fn places(&self, segment: &Found, scanned: &Scanned) -> StripeTable {
        let groups = segment.groups;
        let mut table = self.new_table(groups.stripes, groups.group);
        for (drive, rows) in (0..).zip(&scanned.rows) {
            let stripes = rows.iter().map(|row| row.map(|row| row.stripe));
            note_places(&mut table, groups, drive, stripes);
        }
        table
    }

    /// Decides which stripes of a segment count. Collects the blocks and trims of these stripes
    /// that are newer than the snapshot: those from row `after` on. `gone`: see
    /// [`Volume::lost_in`].
    fn weigh(
        &self,
        segment: &Found,
        scanned: &Scanned,
        (mut table, gone): (StripeTable, u32),
        after: u32,
        delta: &mut Delta,
    ) {
        let shape = &self.0.shape;
        let (groups, placement) = (segment.groups, shape.placement);
        for (drive, rows) in (0..).zip(&scanned.rows) {
            for row in rows.iter().flatten().filter(|row| row.stripe < groups.stripes) {
                if placement.chunk(row.stripe, drive) < placement.k {
                    let sequence = Identity::from_bytes(&row.code).map_or(0, |i| i.sequence);
                    delta.highest = delta.highest.max(sequence);
                }
            }
        }
        for stripe in 0..groups.stripes {
            let there = table.drives_of(stripe);
            if there == 0 {
                continue;
            }
            let sound = there & !scanned.hurt(groups, &table, stripe);
            let enough =
                |set: u32| placement.recoverable(|c| set >> placement.drive(stripe, c) & 1 == 1);
            // A stripe may have been acknowledged if every member in service has its chunk, or may
            // have had it. If too much of the stripe is damaged, its blocks are lost, and reads of
            // them fail.
            let had = || there | gone | scanned.unknown_of(groups, stripe);
            let lost = !enough(sound) && enough(there) && !self.lacks(segment, had());
            if !enough(sound) && !lost {
                // The stripe does not count, so its chunks are removed from the table.
                (0..placement.n).for_each(|drive| table.remove(stripe, drive));
                continue;
            }
            let short = match () {
                _ if lost => Short::Lost,
                _ if self.lacks(segment, there) => Short::Lacking,
                _ if self.lacks(segment, sound) => Short::Damaged,
                _ => Short::Not,
            };
            for row in 0..groups.chunk {
                self.weigh_row(segment, scanned, &table, (stripe, row), short, after, delta);
            }
        }
        if groups.group > 1 {
            let known = &mut self.0.segments.borrow_mut()[segment.slot as usize];
            known.table = Some(Rc::new(RefCell::new(table)));
        }
    }

    /// Whether a member in service lacks its chunk although it has a zone in the segment, or should
    /// have one. A chunk that a rebuild will write does not count as lacking.
    fn lacks(&self, segment: &Found, there: u32) -> bool {
        (0..self.0.shape.placement.n).any(|drive| {
            let member = self.0.array.member(drive);
            let absent = segment.zones[drive as usize].is_none();
            let unbuilt = absent && member.state() == MemberState::Rebuilding;
            // A member in service may be missing from a segment's header because its drive was gone
            // for a moment, which no state record mentions.
            there >> drive & 1 == 0
                && (absent || segment.missing >> drive & 1 == 0)
                && member.drive().is_some()
                && !unbuilt
        })
    }

    #[allow(clippy::too_many_arguments, reason = "one row of one stripe, with where it is from")]
    fn weigh_row(
        &self,
        segment: &Found,
        scanned: &Scanned,
        table: &StripeTable,
        (stripe, row): (u32, u32),
        short: Short,
        after: u32,
        delta: &mut Delta,
    ) {
        let (shape, groups) = (&self.0.shape, segment.groups);
        let (placement, torn) = (shape.placement, short == Short::Lacking);
        let found = |chunk: u32| -> Option<Row> {
            let drive = placement.drive(stripe, chunk);
            let at = groups.row(stripe, table.get(stripe, drive)?) + row;
            *scanned.rows[drive as usize].get(at as usize)?
        };
        let code = |chunk: u32| found(chunk).map(|row| row.code);
        let codes: Vec<Option<[u8; CODED]>> = (0..placement.n).map(code).collect();
        let codes: Vec<Option<&[u8]>> =
            codes.iter().map(|code| code.as_ref().map(|code| &code[..])).collect();
        for chunk in 0..placement.k {
            let Some(identity) = reconstruct(&placement, &codes, chunk as usize)
                .and_then(|code| Identity::from_bytes(&code))
            else {
                continue;
            };
            let number = shape.number(segment.slot, stripe * groups.chunk + row, chunk);
            let (sequence, lba) = (identity.sequence, identity.lba);
            delta.highest = delta.highest.max(sequence);
            let replayed = stripe * groups.chunk >= after;
            match identity.kind {
                block::DATA | block::MAPPING if short == Short::Damaged => {
                    delta.damaged.push(number);
                }
                block::DATA | block::MAPPING if torn => delta.torn.push(number),
                block::TRIM if torn && replayed => delta.torn.push(number),
                _ => {}
            }
            if !replayed {
                continue;
            }
            match identity.kind {
                block::DATA if lba < shape.blocks => {
                    let segment = segment.sequence;
                    let lost = short == Short::Lost && found(chunk).is_none_or(|row| !row.whole);
                    delta.add(lba, Candidate { sequence, segment, number, torn, lost });
                }
                block::TRIM => delta.trims.push(TrimRecord { sequence, number, lba, torn }),
                _ => {}
            }
        }
    }

    /// Counts, for each segment, the mapping blocks that the root names in it.
    fn count_leaves(&self) {
        let map = self.0.paging.map();
        let mut segments = self.0.segments.borrow_mut();
        for number in map.root().iter().filter(|number| **number != NONE) {
            if let Some(segment) = segments.get_mut(self.0.shape.slot(*number) as usize) {
                segment.leaves += 1;
            }
        }
    }

    /// Applies the blocks and trims written after the snapshot to the map.
    async fn apply(&self, delta: &Delta, image: &Image) -> Result<()> {
        let (mut trims, mut torn) = (Vec::new(), Vec::new());
        for record in &delta.trims {
            let wanted = (record.number, (block::TRIM, record.lba));
            let page = match self.read_numbers(&[wanted], Loud::Yes).await {
                Ok(mut pages) => pages.remove(0),
                Err(_) if self.has_missed() => return self.check_read(),
                Err(_) if self.0.options.accept_loss => continue,
                Err(error) => {
                    let what = format!(
                        "the record of a trim cannot be read, and which blocks it trimmed is not \
                         known: {error}: accept the loss (--accept-loss): they then read as before"
                    );
                    return Err(Error::new(error.kind(), what));
                }
            };
            let expect =
                Expect { kind: kind::TRIM, object: Some(self.0.array.uuid()), device: None };
            let (_, body) = record::open(page.bytes(), &expect)?;
            for entry in body.chunks_exact(TrimEntry::SIZE) {
                let Ok(entry) = TrimEntry::read_from_bytes(entry) else { continue };
                let (first, count) = (entry.lba.get(), entry.blocks.get());
                self.check_range(first, count)?;
                let range = first..first + count;
                torn.extend(record.torn.then(|| range.clone()));
                trims.push((record.sequence, range));
            }
            // The record must stay until a checkpoint holds the effect of the trim.
            let slot = self.0.shape.slot(record.number) as usize;
            self.0.segments.borrow_mut()[slot].needed = self.0.checkpoint.snapshots() + 1;
        }
        let replaced = |lba: u64, old: Option<u32>| {
            if let Some(old) = old.filter(|_| delta.is_torn(&torn, lba)) {
                let newest = delta.blocks.get(&lba).filter(|newest| newest.torn);
                self.fall_back_on(old, newest.map(|newest| newest.number));
            }
        };
        for (_, range) in &trims {
            let mut at = range.start;
            while at < range.end {
                let leaf = Map::leaf(at);
                self.fetch(leaf, false).await?;
                while at < range.end && Map::leaf(at) == leaf {
                    replaced(at, self.turn(at, NONE, image));
                    at += 1;
                }
            }
        }
        for (lba, candidate) in &delta.blocks {
            let gone = |(sequence, range): &(u64, Range<u64>)| {
                *sequence > candidate.sequence && range.contains(lba)
            };
            if trims.iter().any(gone) {
                replaced(*lba, Some(candidate.number));
            } else {
                self.fetch(Map::leaf(*lba), true).await?;
                replaced(*lba, self.turn(*lba, candidate.number, image));
                if candidate.lost {
                    self.0.lost_blocks.add(*lba..*lba + 1);
                }
            }
        }
        delta.older.iter().for_each(|(lba, number)| replaced(*lba, Some(*number)));
        Ok(())
    }

    /// Maps `lba` to `number`. If the segment of the old block was not released since the
    /// checkpoint, subtracts the block from the segment's count and returns its number.
    fn turn(&self, lba: u64, number: u32, image: &Image) -> Option<u32> {
        let old = self.0.paging.map_mut().set(lba, number);
        if number != NONE {
            self.credit(number);
        }
        if old == NONE {
            return None;
        }
        let slot = self.0.shape.slot(old);
        let now = self.0.segments.borrow()[slot as usize].sequence;
        let same = image
            .entries
            .iter()
            .any(|entry| entry.slot.get() == slot && entry.sequence.get() == now);
        same.then(|| {
            self.debit(old);
            old
        })
    }

    /// Continues writing to a segment that was open at the crash, or ends it.
    async fn reopen_segment(
        &self,
        segment: Found,
        scanned: Scanned,
        zones: &[Vec<ZoneReport>],
    ) -> Result<()> {
        let groups = segment.groups;
        let rows = scanned.upto.iter().copied().max().unwrap_or(0);
        let next = match rows {
            0 => 0,
            rows => groups.end((rows - 1) / groups.chunk),
        };
        let footers = RefCell::new(self.footers_from(&segment, &scanned));
        let append = groups.group > 1;
        let open = self.open_at(segment.slot, segment.sequence, (groups, append), next, footers);
        let at = (segment.sequence, next);
        open.meta.resume(at, groups.chunk, &scanned.rows, self.0.zero_crc);
        self.0.segments.borrow_mut()[segment.slot as usize].meta = open.meta.clone();
        let fit = self.reopen_zones(&segment, zones).await;
        if !fit || !self.fill_up(&open, &segment, next * groups.chunk).await {
            open.broken.set(true);
            self.end_segment(&open, false).await;
            let known = &mut self.0.segments.borrow_mut()[segment.slot as usize];
            known.rows = scanned.rows_of(groups);
            return Ok(());
        }
        let unbuilt = |(zone, member): (&Option<ZoneId>, &Member)| {
            zone.is_none() && member.state() == MemberState::Rebuilding
        };
        let narrow = segment.zones.iter().zip(self.0.array.members()).any(unbuilt);
        self.note_recovered(|recovered| recovered.narrow += u64::from(narrow));
        let fits = |writer: &&Rc<SegmentWriter>| {
            writer.chunk == groups.chunk
                && (writer.group > 1) == append
                && writer.open.borrow().is_none()
        };
        match self.0.streams.iter().map(|stream| &stream.writer).find(fits) {
            Some(writer) if next < groups.stripes => {
                *writer.open.borrow_mut() = Some(open.clone());
            }
            _ => {
                let whole = next == groups.stripes && self.write_footers(&open).await.is_ok();
                self.end_segment(&open, whole).await;
            }
        }
        Ok(())
    }

    /// Reopens the zones of a segment. False if one of them cannot be written further, or if a
    /// member in service has none. A member under rebuild may have no zone: without this exception,
    /// recovery would need a new segment for its own writes, and space for that segment may be
    /// missing.
    async fn reopen_zones(&self, segment: &Found, zones: &[Vec<ZoneReport>]) -> bool {
        let mut fit = true;
        for (index, member) in self.0.array.members().iter().enumerate() {
            let Some(drive) = member.drive() else { continue };
            let Some(zone) = segment.zones[index] else {
                fit &= member.state() == MemberState::Rebuilding;
                continue;
            };
            let report = &zones[index][zone.0 as usize];
            let full = report.state == ZoneState::Full;
            drive.writer().open_reported(report);
            drive.writer().level(zone);
            if let Some(owner) = drive.zones().owner(zone) {
                if drive.zones().state(owner) == furrow_log::SuperzoneState::Retired {
                    fit = false;
                    continue;
                }
                drive.zones().activate(owner);
            }
            if !report.state.is_active() && !full {
                fit = false;
            } else if full {
                // A zone that was finished early is full as well, but has no footer.
                let footer = read_footers(self, index as u32, zone, segment.sequence).await;
                fit &= footer.is_some();
            } else {
                match drive.budget().try_acquire(Class::User, 1) {
                    Some(permit) => drive.writer().attach(zone, permit),
                    None => fit = false,
                }
            }
        }
        fit
    }

    fn footers_from(&self, segment: &Found, scanned: &Scanned) -> Vec<Vec<FooterEntry>> {
        let (shape, groups) = (&self.0.shape, segment.groups);
        let mut footers =
            vec![vec![FooterEntry::new_zeroed(); shape.rows as usize]; shape.placement.n as usize];
        let filler = seal_entry(Some(Identity::default()), self.0.zero_crc, NONE);
        for (index, entries) in (0u32..).zip(&mut footers) {
            entries.fill(filler);
            for (entry, row) in entries.iter_mut().zip(&scanned.rows[index as usize]) {
                let Some(row) = row.filter(|row| row.stripe < groups.stripes) else { continue };
                let data = shape.placement.chunk(row.stripe, index) < shape.placement.k;
                let identity = Identity::from_bytes(&row.code).filter(|_| data);
                *entry = seal_entry(identity, row.crc, row.stripe);
            }
        }
        footers
    }

    /// Fills the zones of a segment with filler blocks up to row `upto`. False if one of
    /// them fails.
    async fn fill_up(&self, open: &Open, segment: &Found, upto: u32) -> bool {
        let (mut flights, since) = (Vec::new(), self.asked());
        for (index, zone) in segment.zones.iter().enumerate() {
            let drive = self.0.array.members()[index].drive();
            let (Some(zone), Some(drive)) = (zone, drive) else { continue };
            let at = drive.writer().position(*zone);
            let end = self.0.shape.offset(upto);
            let meta = identity::filler(open.sequence, self.0.zero_crc);
            let mut from = at;
            while from < end {
                let count = (end - from).min(256);
                let oob = oob::repeat(drive.geometry(), count as usize, &meta);
                let pages = Pages::from_elem(self.0.zero.clone(), count as usize);
                let write = ZoneWrite::pages(*zone, Kind::Padding, pages);
                let written = drive.writer().submit(ZoneWrite { oob: &oob, ..write });
                flights.push((index as u32, written));
                from += count;
            }
        }
        let mut whole = true;
        for (index, done) in flights {
            if let Err(error) = done.await {
                self.note_write_error((index, since), Some(open.sequence), &error);
                whole = false;
            }
        }
        whole
    }

    /// Removes from a segment the zones of unfinished rebuilds: these zones have no footer, and
    /// their headers say that the segment was begun without their members.
    pub(crate) async fn take_unbuilt(
        &self,
        segment: &mut Found,
        zones: &[Vec<ZoneReport>],
    ) -> Vec<(u32, ZoneId)> {
        let mut unbuilt = Vec::new();
        for index in 0..self.0.shape.placement.n {
            let Some(zone) = segment.zones[index as usize] else { continue };
            if segment.rebuilt >> index & 1 == 0 {
                continue;
            }
            let active = zones[index as usize][zone.0 as usize].state.is_active();
            if active || read_footers(self, index, zone, segment.sequence).await.is_none() {
                unbuilt.push((index, zone));
                segment.zones[index as usize] = None;
            }
        }
        unbuilt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With Zone Append, a later stripe of a group may be in the first row of every drive while
    /// earlier stripes are missing. If a rebuild covered only the written rows, it would leave the
    /// later stripe out.
    #[test]
    fn a_segment_has_the_rows_of_a_stripe_that_landed_before_its_turn() {
        let groups = Groups { chunk: 2, group: 8, stripes: 20 };
        let row = |stripe| Some(Row { stripe, ..Row::UNKNOWN });
        let early = vec![row(3), row(3)];
        let scanned = Scanned { rows: vec![early; 4], upto: vec![2; 4] };
        assert_eq!((scanned.last(), scanned.rows_of(groups)), (2, 8));
        let alone = |rows| Scanned { rows: vec![rows, Vec::new()], upto: vec![0; 2] };
        let late = vec![None, None, None, None, row(0), row(0)];
        assert_eq!(alone(late).rows_of(groups), 6);
        // A row that belongs to no stripe still counts as a row of the segment.
        assert_eq!(alone(vec![row(NONE)]).rows_of(groups), 2);
        assert_eq!(alone(vec![None]).rows_of(groups), 0);
    }
}
