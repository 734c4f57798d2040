//! Segment writer: stripes wait in line until the writer's open segment takes them in order.
//!
//! Zone Appends of a group land anywhere within the group, so the next group begins only when no
//! stripe of the present one is in flight (ZapRAID, section 3.2).

use crate::format::NONE;
use crate::meta::identity::Identity;
use crate::meta::windows::Cover;
use crate::volume::Volume;
use crate::write::flight::FlightObserver;
use crate::write::item::{Stripe, Use};
use crate::write::line::SegmentWriter;
use crate::write::open::Open;
use furrow_array::drive::Drive;
use furrow_array::member::Member;
use furrow_log::budget::Permit;
use furrow_zone::Result;
use std::rc::Rc;

impl FlightObserver for SegmentWriter {
    fn on_landed(self: Rc<Self>, volume: &Volume, open: &Rc<Open>, again: Option<Stripe>) {
        if let Some(stripe) = again {
            // The stripe's segment failed, so the stripe goes first into the next segment.
            self.ready.borrow_mut().push_front(stripe);
            volume.count(|counters| counters.rewritten += 1);
            volume.dispatch_ready(&self);
        }
        volume.end_flight(&self, open);
    }
}

impl Volume {
    /// Puts a stripe from the stripe builder in line.
    pub(crate) fn enqueue(&self, writer: &Rc<SegmentWriter>, stripe: Stripe) {
        writer.line_up(stripe);
        self.dispatch_ready(writer);
    }

    /// Dispatches those stripes in line that the open segment takes.
    pub(crate) fn dispatch_ready(&self, writer: &Rc<SegmentWriter>) {
        loop {
            if writer.ready.borrow().is_empty() || self.0.segments.is_quiesced() {
                return;
            }
            if self.failed().is_some() {
                return writer.abandon(self.failed().as_ref());
            }
            let Some(open) = writer.open.borrow().clone() else {
                if !writer.opening.replace(true) {
                    self.0.rt.spawn_detached(open_next(self.clone(), writer.clone()));
                } else if writer.purpose == Use::Internal
                    || self.0.space.is_wanted() && writer.line() == 1
                {
                    // The task that begins the segment may wait for space; it needs help only now
                    // that a stripe is in line.
                    self.0.wanted.notify_all();
                }
                return;
            };
            if open.broken.get() {
                self.detach(writer);
                continue;
            }
            let (next, in_flight) = (open.next.get(), open.in_flight.get());
            if open.meta.ends_window(next, open.groups.stripes) {
                self.send_metadata(writer, &open);
                continue;
            }
            let barrier = open.append && in_flight > 0 && open.groups.start(next) == next;
            if barrier || in_flight >= self.depth(writer) {
                return;
            }
            let Some(stripe) = writer.ready.borrow_mut().pop_front() else { return };
            open.next.set(next + 1);
            self.begin_flight(&open);
            let flight = self.send_stripe(writer.clone(), &open, next, stripe);
            flight.sent(self.join_cover(writer, &open));
            if open.next.get() == open.groups.stripes {
                self.detach(writer);
            }
        }
    }

    /// Maximum number of stripes that may be in flight in the writer's segment.
    fn depth(&self, writer: &SegmentWriter) -> u32 {
        let depth = self.0.options.depth;
        if writer.purpose == Use::Internal {
            self.0.shape.meta.internal_depth(depth)
        } else {
            depth
        }
    }

    /// The metadata stripe that has to list the stripe just sent; `None` if metadata is out
    /// of band.
    fn join_cover(&self, writer: &Rc<SegmentWriter>, open: &Rc<Open>) -> Option<Rc<Cover>> {
        let (cover, ask) = open.meta.join()?;
        if ask {
            let (volume, writer, open) = (self.clone(), writer.clone(), open.clone());
            self.0.rt.spawn_detached(async move { volume.send_due_metadata(&writer, &open) });
        }
        Some(cover)
    }

    /// Sends a metadata stripe if stripes wait for one and none is under way.
    fn send_due_metadata(&self, writer: &Rc<SegmentWriter>, open: &Rc<Open>) {
        if open.meta.is_due() {
            self.send_metadata(writer, open);
        }
    }

    /// Sends a metadata stripe to the drives, as the next stripe of the segment.
    fn send_metadata(&self, writer: &Rc<SegmentWriter>, open: &Rc<Open>) {
        let (number, stripes) = (open.next.get(), open.groups.stripes);
        let Some(mut sent) = open.meta.send(self, open.slot, number) else { return };
        open.next.set(number + 1);
        self.begin_flight(open);
        let taken = self.0.shape.placement.k * open.groups.chunk;
        self.count(|counters| counters.windows += u64::from(taken));
        let ours = writer.open.borrow().as_ref().is_some_and(|now| Rc::ptr_eq(now, open));
        if ours && number + 1 == stripes {
            self.detach(writer);
        }
        let (volume, writer, open) = (self.clone(), writer.clone(), open.clone());
        self.0.rt.spawn_detached(async move {
            let told = sent.wait(&volume, open.sequence).await;
            // In the footers, rows of metadata belong to no stripe, like the padding that
            // recovery writes.
            let none = (Some(Identity::default()), volume.0.zero_crc);
            for index in 0..volume.0.shape.placement.n {
                let rows = std::iter::repeat_n(none, open.groups.chunk as usize);
                volume.note_footer(&open, index, (number * open.groups.chunk, NONE), rows);
            }
            if told.1 {
                open.broken.set(true);
            }
            open.meta.on_complete(&sent, (number, stripes), told);
            volume.send_due_metadata(&writer, &open);
            volume.end_flight(&writer, &open);
        });
    }

    /// Counts a stripe of data or metadata as in flight.
    fn begin_flight(&self, open: &Open) {
        self.0.segments.begin_flight();
        open.in_flight.set(open.in_flight.get() + 1);
    }

    /// Ends the flight of a stripe of data or metadata.
    fn end_flight(&self, writer: &Rc<SegmentWriter>, open: &Rc<Open>) {
        let left = self.less("stripes in flight of a segment", open.in_flight.get(), 1);
        open.in_flight.set(left);
        self.0.segments.end_flight(&self.0.broken);
        self.check_accounts();
        if open.in_flight.get() == 0 {
            open.idle.notify_all();
        }
        if self.0.segments.in_flight() == 0 {
            self.0.segments.wake_idle();
            if self.0.space.is_wanted() {
                self.0.wanted.notify_all();
            }
        }
        self.dispatch_ready(writer);
    }

    /// Detaches the writer from its segment. The segment ends when none of its stripes is
    /// in flight.
    fn detach(&self, writer: &SegmentWriter) {
        if let Some(open) = writer.open.take() {
            let rows = open.next.get() * open.groups.chunk;
            self.0.segments.borrow_mut()[open.slot as usize].rows = rows;
            self.0.segments.begin_ending(&open);
            self.0.rt.spawn_detached(conclude(self.clone(), open));
        }
    }

    /// Ends open segments that lack a zone of a member in service: the segments that follow will
    /// have one. If no segment can be begun, the open ones stay in use, because they are the
    /// only space.
    pub(crate) fn leave_unfit(&self) {
        let mut free = self.free_segments();
        for writer in self.0.streams.iter().map(|stream| &stream.writer) {
            let Some(open) = writer.open.borrow().clone() else { continue };
            let lacks = {
                let segments = self.0.segments.borrow();
                let mut zones =
                    segments[open.slot as usize].zones.iter().zip(self.0.array.members());
                zones.any(|(zone, member)| zone.is_none() && member.drive().is_some())
            };
            if lacks && free > 0 {
                free -= 1;
                open.broken.set(true);
                self.detach(writer);
            }
        }
    }

    /// Begins a segment for the writer: waits for space, then for permits.
    async fn open_segment(&self, writer: &SegmentWriter) -> Result<Rc<Open>> {
        let floor = if writer.purpose == Use::Internal { 0 } else { self.0.shape.kept };
        loop {
            self.check_not_failed()?;
            if self.free_segments() <= floor {
                self.wait_for_space(writer.purpose).await?;
                continue;
            }
            let mut permits = Vec::new();
            for member in self.0.array.members() {
                permits.push(member.permit().await);
            }
            // A drive may have been added during the wait for the other drives' permits. The
            // segment would not have a zone of that drive, and a rebuild would wait until the
            // segment is full. A permit of the member's former drive does not count.
            let came = |(member, known): (&Member, &Option<(Rc<Drive>, Permit)>)| {
                let is_known = |now| known.as_ref().is_some_and(|(old, _)| Rc::ptr_eq(old, &now));
                member.drive().is_some_and(|now| !is_known(now))
            };
            if self.free_segments() <= floor
                || self.0.array.members().iter().zip(&permits).any(came)
            {
                continue;
            }
            let permits =
                permits.into_iter().map(|known| known.map(|(_, permit)| permit)).collect();
            if writer.purpose != Use::Internal {
                self.space_found();
            }
            return Ok(self.begin_segment((writer.chunk, writer.group), permits));
        }
    }

    fn check_not_failed(&self) -> Result<()> {
        self.failed().map_or(Ok(()), Err)
    }
}

/// Gives the writer its next segment.
async fn open_next(volume: Volume, writer: Rc<SegmentWriter>) {
    match volume.open_segment(&writer).await {
        Ok(open) => *writer.open.borrow_mut() = Some(open),
        Err(error) => writer.abandon(Some(&error)),
    }
    writer.opening.set(false);
    writer.moved_on.notify_all();
    volume.dispatch_ready(&writer);
    if writer.purpose == Use::Internal {
        volume.0.wanted.notify_all();
    }
}

/// Ends a segment to which no stripe is added any more, once its flights have ended.
async fn conclude(volume: Volume, open: Rc<Open>) {
    while open.in_flight.get() > 0 {
        open.idle.wait().await;
    }
    let whole = !open.broken.get()
        && open.next.get() == open.groups.stripes
        && volume.write_footers(&open).await.is_ok();
    volume.end_segment(&open, whole).await;
    volume.0.segments.end_ending(&open);
    volume.0.wanted.notify_all();
}
