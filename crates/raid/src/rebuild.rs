//! Replacing a failed drive by a new one, and the rebuild onto it.
//!
//! New segments have a zone on the new drive at once. Older segments are rebuilt one after the
//! other, oldest first, stripe by stripe from the other chunks; the map is not needed. A segment
//! counts as rebuilt when its zone has a footer. The next assembly empties a zone that a crash left
//! unfinished, and continues with the other segments. Until all segments are rebuilt, the member is
//! *rebuilding* and the array tolerates one failure less.

pub(crate) mod short_rows;
pub(crate) mod state;

use crate::format::{FooterEntry, NONE, kind};
use crate::lost_blocks::set::LostBlocks;
use crate::meta::footer::seal_entry;
use crate::meta::identity::{self, Identity};
use crate::meta::oob;
use crate::meta::open::RebuiltMeta;
use crate::read::place::Loud;
use crate::reconstruct::Reconstructed;
use crate::segment::{Segment, SegmentState};
use crate::table::Groups;
use crate::volume::Volume;
use crate::write::open::Open;
use furrow_array::drive::Drive;
use furrow_array::event::Event;
use furrow_array::member::{Member, MemberState};
use furrow_log::record::crc32c;
use furrow_log::writer::{Kind, WriteHandle, ZoneWrite};
use furrow_rt::{JoinHandle, Pages};
use furrow_zone::{Error, ErrorKind, Result, ZoneId};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use zerocopy::IntoBytes;

/// Number of rows written together.
const BATCH: u32 = 32;

/// Maximum number of batches that are read, or written, at a time; one if the rebuild pauses.
const AHEAD: usize = 8;

/// Number of zones that may fail in a row before the rebuild ends: a drive that is gone again and
/// again must not keep it running. More than the zones after which a new drive is taken out.
const FAILURES: u32 = 32;

/// Rebuilt rows of a zone, with their footer entries.
#[derive(Default)]
struct Batch {
    pages: Pages,
    oob: Vec<u8>,
    entries: Vec<FooterEntry>,
    /// The metadata stripes among the stripes of these rows.
    metadata: Vec<u32>,
    /// Rows that could not be reconstructed.
    short: Vec<u32>,
    /// Whether a stripe that was taken for one of data may be metadata of a drive that was gone.
    unsure: bool,
}

/// The progress of a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of segments to rebuild, including those in `done`.
    pub total: u32,
    /// Number of segments rebuilt.
    pub done: u32,
    /// Number of segments in `done` that were rebuilt before this run: before the rebuild was
    /// stopped, or before the last assembly.
    pub before: u32,
    /// Nanoseconds since this run of the rebuild began.
    pub elapsed: u64,
}

impl Progress {
    /// Nanoseconds that the rebuild will still take at the pace so far; `None` before a segment
    /// is done.
    pub fn remaining(&self) -> Option<u64> {
        let left = u64::from(self.total - self.done);
        let done = u64::from(self.done - self.before);
        (done > 0).then(|| self.elapsed / done * left)
    }
}

impl Volume {
    /// The progress of the rebuild; `None` if none runs.
    pub fn rebuilding(&self) -> Option<Progress> {
        let state = &self.0.rebuild;
        state.running.get().then(|| Progress {
            total: state.total.get(),
            done: state.done.get(),
            before: state.before.get(),
            elapsed: self.0.rt.now().since(state.began.get()),
        })
    }

    /// The progress of the rebuild, even if it does not run; `None` if there is nothing to rebuild.
    pub fn rebuilt(&self) -> Option<Progress> {
        let stopped = || {
            let done = self.built().len() as u32;
            Progress { total: done + self.unbuilt().1, done, before: done, elapsed: 0 }
        };
        let waits = self.0.array.lacking() != 0;
        self.rebuilding().or_else(|| waits.then(stopped))
    }

    /// The event that reported the end of the last rebuild; `None` if none has ended since
    /// the assembly.
    pub fn last_rebuild(&self) -> Option<Event> {
        self.0.rebuild.ended.borrow().clone()
    }

    /// Pause of the rebuild after every 32 rows, in nanoseconds.
    pub fn rebuild_pause(&self) -> u64 {
        self.0.rebuild.pause.get().unwrap_or(self.0.options.rebuild_pause)
    }

    /// Sets the pause in nanoseconds, also for a rebuild under way.
    pub fn set_rebuild_pause(&self, nanoseconds: u64) {
        self.0.rebuild.pause.set(Some(nanoseconds));
    }

    /// Starts or continues the rebuild, if a member has to be rebuilt and no rebuild is running.
    pub fn start_rebuild(&self) {
        let waits = |m: &&Member| m.state() == MemberState::Rebuilding;
        if !self.0.array.members().iter().any(|m| waits(&m)) || self.0.rebuild.running.replace(true)
        {
            return;
        }
        let state = &self.0.rebuild;
        state.began.set(self.0.rt.now());
        let (before, left) = (self.built().len() as u32, self.unbuilt().1);
        state.done.set(before);
        state.before.set(before);
        state.total.set(before + left);
        self.tell(Event::RebuildStarted { segments: left });
        let weak = Rc::downgrade(&self.0);
        self.0.rt.spawn_detached(async move {
            let Some(inner) = weak.upgrade() else { return };
            let volume = Volume(inner);
            // After a failure that no drive's short absence explains, the member stays in state
            // rebuilding, and the next assembly tries again.
            let result = volume.patiently(async || volume.rebuild().await).await;
            volume.0.rebuild.running.set(false);
            let whole = result.is_ok();
            let event = match result.map(|lost| lost.report()) {
                Ok((0, _)) => Event::RebuildFinished,
                Ok((blocks, ranges)) => Event::RebuildIncomplete { blocks, ranges },
                Err(error) => Event::RebuildStopped { why: error.to_string() },
            };
            *volume.0.rebuild.ended.borrow_mut() = Some(event.clone());
            volume.tell(event);
            if whole {
                // A member may have been replaced while this rebuild's checkpoint was written.
                volume.start_rebuild();
            }
            volume.0.wanted.notify_all();
        });
    }

    /// The slot and member to rebuild next: those of the oldest ended segment in which a rebuilding
    /// member has no zone. Also returns the number of all zones to rebuild.
    fn unbuilt(&self) -> (Option<(u32, u32)>, u32) {
        let segments = self.0.segments.borrow();
        let (mut oldest, mut count): (Option<(u64, u32, u32)>, u32) = (None, 0);
        for (index, member) in (0u32..).zip(self.0.array.members()) {
            if member.state() != MemberState::Rebuilding {
                continue;
            }
            for (slot, segment) in (0u32..).zip(&*segments) {
                let lacks = segment.zones[index as usize].is_none();
                if !lacks || matches!(segment.state, SegmentState::Free | SegmentState::Releasing) {
                    continue;
                }
                count += 1;
                let ended = matches!(segment.state, SegmentState::Sealed | SegmentState::Truncated);
                let older = oldest.is_none_or(|(sequence, ..)| segment.sequence < sequence);
                if ended && older && !segment.pinned {
                    oldest = Some((segment.sequence, slot, index));
                }
            }
        }
        (oldest.map(|(_, slot, index)| (slot, index)), count)
    }

    /// Rebuilds all segments. Returns the blocks of the volume that could not be restored.
    async fn rebuild(&self) -> Result<LostBlocks> {
        self.find_short_rows().await;
        let lost = LostBlocks::default();
        loop {
            self.rebuild_segments().await?;
            lost.join(&self.settle_short_rows().await?);
            // A member may have been replaced in the meantime, and its new drive has no restored
            // data yet.
            if self.unbuilt().1 == 0 {
                break;
            }
        }
        self.notice_gone();
        self.check_alive()?;
        let mut whole = false;
        for (index, member) in (0u32..).zip(self.0.array.members()) {
            if member.state() == MemberState::Rebuilding {
                self.0.array.set_state(index, MemberState::Active);
                whole = true;
            }
        }
        self.checkpoint(false).await?;
        match whole {
            true => Ok(lost),
            false => Err(Error::new(ErrorKind::Io, "the new drive failed")),
        }
    }

    /// Restores every segment to the members that are being rebuilt.
    async fn rebuild_segments(&self) -> Result<()> {
        let (state, mut failures) = (&self.0.rebuild, 0);
        loop {
            self.check_alive()?;
            let (next, left) = self.unbuilt();
            state.total.set(state.total.get().max(state.before.get() + left));
            state.done.set(state.total.get() - left);
            match next {
                Some((slot, index)) => {
                    let done = self.rebuild_segment(slot, index).await;
                    let goes_on = || {
                        // If only a zone failed, the rebuild continues in another zone while the
                        // drive is in service.
                        let state = self.0.array.member(index).state();
                        self.failed().is_none() && state == MemberState::Rebuilding
                    };
                    match done {
                        Ok(()) => failures = 0,
                        Err(error) if error.kind() == ErrorKind::NoSpace || !goes_on() => {
                            return Err(error);
                        }
                        Err(error) if failures == FAILURES => return Err(error),
                        Err(_) => failures += 1,
                    }
                }
                None if left > 0 => {
                    // The writer of an open segment may wait for space that this rebuild has made,
                    // and the space tasks may have rested while a zone was filled.
                    self.0.wanted.notify_all();
                    // The remaining segments are open and have no zone of the member. They end when
                    // full, or are ended here if there is space.
                    self.leave_unfit();
                    self.0.rt.sleep(1_000_000).await;
                }
                None => break,
            }
        }
        self.0.wanted.notify_all();
        Ok(())
    }

    /// Rebuilds the zone that a member has in a segment.
    async fn rebuild_segment(&self, slot: u32, index: u32) -> Result<()> {
        let segment = {
            let segment = &mut self.0.segments.borrow_mut()[slot as usize];
            // The pin keeps the segment from being cleaned or released during its rebuild.
            segment.pinned = true;
            segment.clone()
        };
        self.0.rebuild.filling.set(true);
        let result = self.rebuild_zone(slot, index, &segment).await;
        self.0.rebuild.filling.set(false);
        self.0.segments.borrow_mut()[slot as usize].pinned = false;
        self.0.wanted.notify_all();
        result
    }

    async fn rebuild_zone(&self, slot: u32, index: u32, segment: &Segment) -> Result<()> {
        let gone = || Error::new(ErrorKind::Io, format!("member {index} failed in its rebuild"));
        let others = self.other_footers(slot, segment).await?;
        let member = self.0.array.member(index);
        let drive = member.drive().ok_or_else(gone)?;
        let permit = member.permit().await.filter(|(now, _)| Rc::ptr_eq(now, &drive));
        let (_, permit) = permit.ok_or_else(gone)?;
        let Some(owner) = drive.zones().allocate(&[]) else {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("{}: no zone is left to rebuild on", drive.device().name()),
            ));
        };
        let zone = drive.zones().zone(owner, 0);
        drive.writer().open_empty(zone);
        drive.writer().attach(zone, permit);
        drive.note_loose(zone);
        let since = self.asked();
        let filled = self.rebuild_into(&drive, zone, (slot, index), segment, others).await;
        drive.zones().mark_full(owner);
        if let Err(error) = filled {
            // Without a drive that the array needs, the error is not one of the new drive.
            if self.survives() {
                self.note_write_error((index, since), None, &error);
            }
            // The zone's content does not count. If the zone cannot be emptied, the pool takes it
            // out of use.
            let _ = drive.empty(zone).await;
            return Err(error);
        }
        // During the rebuild of the zone, its drive may have failed and been replaced.
        if !member.drive().is_some_and(|now| Rc::ptr_eq(&now, &drive)) {
            return Err(gone());
        }
        member.forget_refusals();
        let (rows, groups) = (self.ended_rows(segment), self.groups_of(segment));
        let now = &mut self.0.segments.borrow_mut()[slot as usize];
        if let Some(table) = &now.table {
            let mut table = table.borrow_mut();
            for stripe in 0..rows / segment.chunk {
                table.set(stripe, index, stripe - groups.start(stripe));
            }
        }
        now.zones[index as usize] = Some(zone);
        now.rebuilt |= 1 << index;
        drive.note_held(zone);
        self.count(|counters| counters.rebuilt += 1);
        Ok(())
    }

    /// Number of data rows in an ended segment.
    fn ended_rows(&self, segment: &Segment) -> u32 {
        match segment.state {
            SegmentState::Sealed => self.0.shape.rows,
            _ => segment.rows,
        }
    }

    /// Fills a zone with the content of a member's zone of a segment. Writes a footer even if the
    /// segment has none, because the footer makes a rebuilt zone count.
    async fn rebuild_into(
        &self,
        drive: &Drive,
        zone: ZoneId,
        (slot, index): (u32, u32),
        segment: &Segment,
        others: Vec<Vec<FooterEntry>>,
    ) -> Result<()> {
        let header = self.segment_header(slot, index, segment);
        drop(drive.writer().submit(ZoneWrite::pages(zone, Kind::Summary, header)));
        let rows = self.ended_rows(segment);
        let own = self.rebuild_data((slot, index), segment, drive, (zone, rows)).await?;
        let footer = self.rebuilt_footer((slot, index), segment, others, own);
        self.notice_gone();
        self.check_survives()?;
        drop(drive.writer().submit(ZoneWrite::zeros_to(zone, self.0.shape.footer_start())));
        drive.writer().submit(ZoneWrite::pages(zone, Kind::Summary, footer)).await?;
        drive.writer().flush().await
    }

    fn groups_of(&self, segment: &Segment) -> Groups {
        let stripes = self.0.shape.stripes(segment.chunk);
        Groups { chunk: segment.chunk, group: segment.group, stripes }
    }

    /// Writes the data rows of a member's zone, and returns their footer entries. Reads some rows
    /// while it computes and writes the rows before them.
    async fn rebuild_data(
        &self,
        (slot, index): (u32, u32),
        segment: &Segment,
        drive: &Drive,
        (zone, rows): (ZoneId, u32),
    ) -> Result<Vec<FooterEntry>> {
        let (mut entries, mut next) = (Vec::new(), 0);
        let mut batches: VecDeque<JoinHandle<Batch>> = VecDeque::new();
        let mut writes: VecDeque<WriteHandle> = VecDeque::new();
        let mut result = Ok(());
        let mut meta = RebuiltMeta::new(self.0.shape.meta, segment.chunk);
        let id = self.record_id(kind::WINDOW, index, segment.sequence);
        while result.is_ok() && (next < rows || !batches.is_empty()) {
            let pause = self.rebuild_pause();
            let ahead = if pause > 0 { 1 } else { AHEAD };
            while next < rows && batches.len() < ahead {
                let count = BATCH.next_multiple_of(segment.chunk).min(rows - next);
                let (volume, segment) = (self.clone(), segment.clone());
                let beside = oob::bytes(drive.geometry());
                let range = next..next + count;
                next += count;
                batches.push_back(self.0.rt.spawn(async move {
                    volume.rebuild_rows((slot, index), &segment, range, beside).await
                }));
            }
            let Some(batch) = batches.pop_front() else { break };
            let mut batch = batch.await;
            // Rows that a vanished drive held are not lost. A zone that is rebuilt without them
            // gets no footer, so it does not count.
            self.notice_gone();
            result = self.check_survives();
            if result.is_ok() && batch.unsure {
                let what = format!("a drive did not answer while segment {slot} was rebuilt");
                result = Err(Error::new(ErrorKind::Io, what));
            }
            if result.is_err() {
                break;
            }
            {
                let mut short = self.0.rebuild.short.borrow_mut();
                batch.short.iter().for_each(|row| short.add((slot, segment.sequence), *row));
            }
            let first = entries.len() as u32 / segment.chunk;
            let Batch { pages, oob, metadata, .. } = &mut batch;
            meta.weave((&self.0.pages, &id), (first, segment.chunk), metadata, pages, oob);
            entries.extend(batch.entries);
            let write = ZoneWrite::pages(zone, Kind::Data, batch.pages);
            writes.push_back(drive.writer().submit(ZoneWrite { oob: &batch.oob, ..write }));
            if writes.len() > ahead
                && let Some(written) = writes.pop_front()
            {
                result = written.await.map(drop);
            }
            if pause > 0 {
                self.0.rt.sleep(pause).await;
            }
        }
        // Waits for every write, also after a failure: the caller may reset the zone.
        for written in writes {
            let written = written.await;
            if result.is_ok() {
                result = written.map(drop);
            }
        }
        result.map(|()| entries)
    }

    /// Rows of a member's zone, reconstructed from the other members. A row that cannot be
    /// reconstructed is written as a row of no stripe.
    async fn rebuild_rows(
        &self,
        (slot, index): (u32, u32),
        segment: &Segment,
        rows: Range<u32>,
        beside: usize,
    ) -> Batch {
        let placement = self.0.shape.placement;
        let (mut flights, mut metadata) = (Vec::new(), Vec::new());
        let (mut batch, mut row) = (Batch::default(), rows.start);
        while row < rows.end {
            let stripe = row / segment.chunk;
            let count = (segment.chunk - row % segment.chunk).min(rows.end - row);
            let missed = self.missed();
            let is_metadata = self.is_metadata(slot, segment, stripe).await;
            // The metadata of a drive that was gone would be missing on the new drive for good.
            batch.unsure |= !is_metadata && self.missed() != missed;
            if is_metadata {
                metadata.push(stripe);
                flights.push((stripe, row, count, (false, None)));
                row += count;
                continue;
            }
            let (volume, chunk) = (self.clone(), placement.chunk(stripe, index));
            let made = self.0.rt.spawn(async move {
                volume.reconstruct_rows((slot, row), count, chunk, Loud::Yes).await
            });
            flights.push((stripe, row, count, (chunk < placement.k, Some(made))));
            row += count;
        }
        batch.metadata = metadata;
        for (stripe, first, count, (data, made)) in flights {
            let is_metadata = made.is_none();
            let made = match made {
                Some(made) => made.await.unwrap_or_default(),
                None => Vec::new(),
            };
            let mut made = made.into_iter().map(std::result::Result::ok);
            for (row, made) in (first..first + count).map(|row| (row, made.next().flatten())) {
                let (page, meta) = match made {
                    Some(Reconstructed { code, page }) => {
                        let own = crc32c(page.bytes());
                        let identity = Identity::from_bytes(&code).filter(|_| data);
                        batch.entries.push(seal_entry(identity, own, stripe));
                        (page, identity::seal(&code, segment.sequence, stripe, own))
                    }
                    None => {
                        batch.short.extend((!is_metadata).then_some(row));
                        batch.entries.push(seal_entry(None, 0, NONE));
                        let meta = identity::filler(segment.sequence, self.0.zero_crc);
                        (self.0.zero.clone(), meta)
                    }
                };
                batch.pages.push(page);
                let start = batch.oob.len();
                batch.oob.resize(start + beside, 0);
                batch.oob[start..start + crate::format::BlockMeta::SIZE]
                    .copy_from_slice(meta.as_bytes());
            }
        }
        batch
    }

    /// For each zone of a segment, the entries that the segment's footers have for it; fillers if
    /// none has.
    ///
    /// # Errors
    /// `Io` if a drive was gone, even for a moment: a rebuilt zone would keep the fillers in place
    /// of entries that are only missing now.
    async fn other_footers(&self, slot: u32, segment: &Segment) -> Result<Vec<Vec<FooterEntry>>> {
        let missed = self.missed();
        let others = crate::meta::scan::footers_of(self, segment).await;
        self.notice_gone();
        if self.missed() != missed {
            let what = format!("a drive did not answer while segment {slot} was rebuilt");
            return Err(Error::new(ErrorKind::Io, what));
        }
        let empty = || {
            let filler = seal_entry(Some(Identity::default()), self.0.zero_crc, NONE);
            vec![filler; self.0.shape.rows as usize]
        };
        Ok(others.into_iter().map(|entries| entries.unwrap_or_else(empty)).collect())
    }

    /// The footer of a rebuilt zone: the entries `own` for the zone's own rows and, for the other
    /// zones that the footer describes, the entries of `footers`.
    fn rebuilt_footer(
        &self,
        (slot, index): (u32, u32),
        segment: &Segment,
        mut footers: Vec<Vec<FooterEntry>>,
        own: Vec<FooterEntry>,
    ) -> Pages {
        // Rows that the zone never had belong to no stripe, as in every truncated segment.
        footers[index as usize][..own.len()].copy_from_slice(&own);
        let open: Rc<Open> = self.open_at(
            slot,
            segment.sequence,
            (self.groups_of(segment), false),
            0,
            RefCell::new(footers),
        );
        self.footer(&open, index)
    }

    /// Empties zones whose rebuild a crash interrupted; called at assembly.
    pub(crate) async fn drop_unbuilt(&self, zones: &[(u32, ZoneId)]) {
        for (index, zone) in zones {
            let Some(drive) = self.0.array.member(*index).drive() else { continue };
            // If a zone cannot be emptied, the pool takes it out of use.
            let _ = drive.empty(*zone).await;
        }
    }
}
