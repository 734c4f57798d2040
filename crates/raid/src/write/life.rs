//! The life of an open segment, from the allocation of a zone on each drive to its footers.

use crate::format::{FooterEntry, NONE, SegmentBody, kind};
use crate::meta::footer::seal_entry;
use crate::meta::open::OpenMeta;
use crate::segment::{Segment, SegmentState};
use crate::table::Groups;
use crate::volume::Volume;
use crate::write::item::Block;
use crate::write::open::Open;
use furrow_log::budget::Permit;
use furrow_log::record::{RecordId, seal};
use furrow_log::writer::{Kind, ZoneWrite};
use furrow_rt::{Notify, Pages};
use furrow_zone::{Result, ZoneId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zerocopy::{FromZeros, IntoBytes};

impl Volume {
    /// Begins a segment: takes a slot and a zone of each drive, and writes the headers.
    pub(crate) fn begin_segment(
        &self,
        (chunk, group): (u32, u32),
        permits: Vec<Option<Permit>>,
    ) -> Rc<Open> {
        let shape = &self.0.shape;
        let sequence = self.0.segments.take_next();
        let stripes = shape.stripes(chunk);
        let mut append = group > 1;
        let mut zones: Vec<Option<ZoneId>> = Vec::new();
        for (member, permit) in self.0.array.members().iter().zip(permits) {
            // Since the permits were taken, a member may have failed, and then has no drive; or it
            // may have got a new drive, for which there is no permit. In both cases, the segment
            // gets no zone of the member.
            let zone = member.drive().zip(permit).and_then(|(drive, permit)| {
                let zone = drive.zones().zone(drive.zones().allocate(&[])?, 0);
                drive.writer().open_empty(zone);
                drive.writer().attach(zone, permit);
                append &= drive.writer().append_limit() >= chunk;
                Some(zone)
            });
            zones.push(zone);
        }
        let group = if append { group.min(stripes) } else { 1 };
        let mut segments = self.0.segments.borrow_mut();
        let slot = segments.iter().position(|s| s.state == SegmentState::Free);
        let slot = slot.expect("invariant: a free slot was counted in this stretch");
        let drives = shape.placement.n;
        let table = self.new_table(stripes, group);
        segments[slot] = Segment {
            state: SegmentState::Open,
            sequence,
            chunk,
            group,
            zones,
            table: (group > 1).then(|| Rc::new(RefCell::new(table))),
            ..Segment::free(drives)
        };
        self.write_headers(slot as u32, &segments[slot]);
        // Rows belong to no stripe until a chunk is noted in them. The rows of a chunk whose write
        // fails stay like that.
        let rows = vec![seal_entry(None, 0, NONE); shape.rows as usize];
        let groups = Groups { chunk, group, stripes };
        let footers = RefCell::new(vec![rows; drives as usize]);
        let open = self.open_at(slot as u32, sequence, (groups, append), 0, footers);
        segments[slot].meta = open.meta.clone();
        open
    }

    /// An open segment whose next stripe is `next`.
    pub(crate) fn open_at(
        &self,
        slot: u32,
        sequence: u64,
        (groups, append): (Groups, bool),
        next: u32,
        footers: RefCell<Vec<Vec<FooterEntry>>>,
    ) -> Rc<Open> {
        Rc::new(Open {
            slot,
            sequence,
            groups,
            append,
            next: Cell::new(next),
            in_flight: Cell::new(0),
            idle: Notify::new(),
            broken: Cell::new(false),
            footers,
            meta: OpenMeta::new(self.0.shape.meta, groups.chunk, self.0.shape.placement.n),
        })
    }

    fn write_headers(&self, slot: u32, segment: &Segment) {
        for (index, zone) in segment.zones.iter().enumerate() {
            let member = &self.0.array.members()[index];
            let (Some(zone), Some(drive)) = (zone, member.drive()) else { continue };
            let header = self.segment_header(slot, index as u32, segment);
            // If the header fails, every later write to the zone fails, too, so the result
            // is ignored.
            drop(drive.writer().submit(ZoneWrite::pages(*zone, Kind::Summary, header)));
        }
    }

    /// The header record of a member's zone of a segment.
    pub(crate) fn segment_header(&self, slot: u32, index: u32, segment: &Segment) -> Pages {
        let mut body = SegmentBody::new_zeroed();
        body.slot = slot.into();
        body.member = index.into();
        body.chunk = segment.chunk.into();
        body.group = segment.group.into();
        body.rows = self.0.shape.rows.into();
        body.missing = segment.missing().into();
        let id = self.record_id(kind::SEGMENT, index, segment.sequence);
        seal(&id, body.as_bytes(), &self.0.pages)
    }

    pub(crate) fn record_id(&self, kind: u16, index: u32, sequence: u64) -> RecordId {
        RecordId {
            kind,
            epoch: self.0.array.epoch(),
            checkpoint: self.0.checkpoint.id(),
            sequence,
            device: self.0.array.member(index).uuid(),
            object: self.0.array.uuid(),
        }
    }

    /// Writes the footers of a segment all of whose rows are written.
    pub(crate) async fn write_footers(&self, open: &Open) -> Result<()> {
        let zones = self.0.segments.borrow()[open.slot as usize].zones.clone();
        let (mut flights, since) = (Vec::new(), self.asked());
        for (index, zone) in zones.iter().enumerate() {
            let (Some(zone), Some(drive)) = (*zone, self.0.array.members()[index].drive()) else {
                continue;
            };
            let footer = self.footer(open, index as u32);
            let start = self.0.shape.footer_start();
            let position = drive.writer().position(zone);
            if position < start {
                drop(drive.writer().submit(ZoneWrite::zeros_to(zone, start)));
            }
            // After a crash, part of the footer may be on the drive already. It is continued, since
            // its content is the same as before.
            let skip = position.saturating_sub(start) as usize;
            if skip > 0 {
                self.note_recovered(|recovered| recovered.torn_footers += 1);
            }
            let rest = Pages::from_iter(footer.into_iter().skip(skip));
            let written = drive.writer().submit(ZoneWrite::pages(zone, Kind::Summary, rest));
            flights.push((index as u32, written));
        }
        let mut result = Ok(());
        for (index, done) in flights {
            if let Err(error) = done.await {
                self.note_write_error((index, since), Some(open.sequence), &error);
                result = Err(error);
            }
        }
        result
    }

    /// The footer of a member's zone: entries for that zone, and for the zones of the drives
    /// after it.
    pub(crate) fn footer(&self, open: &Open, index: u32) -> Pages {
        let shape = &self.0.shape;
        let footers = open.footers.borrow();
        let drives = (0..shape.footer_copies()).map(|copy| (index + copy) % shape.placement.n);
        let entries: Vec<&[u8]> = drives.map(|drive| footers[drive as usize].as_bytes()).collect();
        let id = self.record_id(kind::FOOTER, index, open.sequence);
        // A footer must have the same content after a crash, so it holds nothing that depends on
        // the time of writing.
        let id = RecordId { epoch: 0, checkpoint: 0, ..id };
        seal(&id, &entries.concat(), &self.0.pages)
    }

    /// Ends a segment: as sealed if `whole`, as truncated if not.
    pub(crate) async fn end_segment(&self, open: &Open, whole: bool) {
        let zones = self.0.segments.borrow()[open.slot as usize].zones.clone();
        let drives: Vec<_> = zones
            .iter()
            .zip(self.0.array.members())
            .filter_map(|(zone, member)| Some(((*zone)?, member.drive()?)))
            .collect();
        if whole {
            let written =
                zones.iter().zip(self.0.array.members()).filter(|(zone, _)| zone.is_some());
            written.for_each(|(_, member)| member.forget_refusals());
        }
        for (zone, drive) in &drives {
            if !whole && drive.writer().is_open(*zone) {
                // `close` fails only if the drive is gone, which is noticed elsewhere.
                let _ = drive.writer().close(*zone).await;
            }
            if let Some(owner) = drive.zones().owner(*zone)
                && drive.zones().state(owner) != furrow_log::SuperzoneState::Retired
            {
                drive.zones().mark_full(owner);
            }
        }
        {
            let mut segments = self.0.segments.borrow_mut();
            let segment = &mut segments[open.slot as usize];
            segment.state = if whole { SegmentState::Sealed } else { SegmentState::Truncated };
            segment.rows = open.next.get() * open.groups.chunk;
            segment.meta = OpenMeta::default();
        }
    }

    /// Notes, for the footers, the blocks of the chunk that begins at `row` of a drive's zone.
    pub(crate) fn note_footer(
        &self,
        open: &Open,
        drive: u32,
        (row, stripe): (u32, u32),
        blocks: impl Iterator<Item = Block>,
    ) {
        let mut footers = open.footers.borrow_mut();
        for (entry, (identity, crc)) in
            footers[drive as usize][row as usize..].iter_mut().zip(blocks)
        {
            *entry = seal_entry(identity, crc, stripe);
        }
    }
}
