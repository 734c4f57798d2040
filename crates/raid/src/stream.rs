//! Streams: what is written together, into one open segment at a time, stripe by stripe.
//!
//! Blocks gather in a stripe that is being filled; a full one, or one that nobody filled in time,
//! waits in line until the open segment takes it. Within a group of stripes Zone Appends land
//! anywhere; the next group begins only when no stripe of this one is in flight (ZapRAID, section
//! 3.2).

use crate::format::{FooterEntry, NONE, SegmentBody, block, kind};
use crate::member::Member;
use crate::meta::footer::seal_entry;
use crate::meta::inband::Cover;
use crate::meta::{Identity, OpenMeta};
use crate::paging::Pins;
use crate::table::Groups;
use crate::volume::{Segment, SegmentState, Volume};
use furrow_log::budget::{Class, Permit};
use furrow_log::record::{RecordId, seal};
use furrow_log::writer::{Durability, Kind};
use furrow_rt::{Nanos, Notify, Page, Pages};
use furrow_zone::{Error, Result, ZoneId};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use zerocopy::{FromZeros, IntoBytes};

/// What is written through a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Users' requests below a large chunk.
    Small,
    /// Users' larger requests.
    Large,
    /// What cleaning moves, mapping blocks.
    Internal,
}

/// One call that waits for its blocks to be durable.
pub(crate) struct Call {
    left: Cell<u32>,
    error: RefCell<Option<Error>>,
    /// Who waits: the caller, nobody else.
    waker: Cell<Option<Waker>>,
    /// Address and number of each block, if it wants to know.
    placed: Option<RefCell<Vec<(u64, u32)>>>,
    /// Mapping blocks that are changed when its stripes are durable.
    _pins: Option<Pins>,
}

impl Call {
    pub(crate) fn new(told: bool) -> Rc<Call> {
        Rc::new(Call::make(told, None))
    }

    /// Of a call that changes the map.
    pub(crate) fn pinning(pins: Option<Pins>) -> Rc<Call> {
        Rc::new(Call::make(false, pins))
    }

    fn make(told: bool, pins: Option<Pins>) -> Call {
        Call {
            left: Cell::new(0),
            error: RefCell::default(),
            waker: Cell::new(None),
            placed: told.then(RefCell::default),
            _pins: pins,
        }
    }

    pub(crate) async fn wait(&self) -> Result<()> {
        poll_fn(|context| {
            if self.left.get() == 0 {
                return Poll::Ready(());
            }
            self.waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
        self.error.borrow().clone().map_or(Ok(()), Err)
    }

    pub(crate) fn placed(&self) -> Vec<(u64, u32)> {
        self.placed.as_ref().map(RefCell::take).unwrap_or_default()
    }

    fn over(&self, error: Option<&Error>) {
        if let Some(error) = error {
            self.error.borrow_mut().get_or_insert_with(|| error.clone());
        }
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }
}

/// The place of a block that is to be moved. Its number alone does not tell it for ever: a slot is
/// used again, and the same address may come to lie at the same number of the next segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) number: u32,
    /// Sequence number of its segment.
    pub(crate) segment: u64,
}

/// A block on its way into a stripe.
pub(crate) struct Item {
    pub(crate) identity: Identity,
    pub(crate) page: Page,
    /// Moved: it counts only if its address is still mapped to this place.
    pub(crate) from: Option<Origin>,
    /// Of a trim record: blocks from its address on that it takes away.
    pub(crate) trimmed: u64,
}

/// A stripe before it is dispatched.
#[derive(Default)]
pub(crate) struct Stripe {
    pub(crate) items: Vec<Item>,
    pub(crate) calls: SmallVec<[Rc<Call>; 4]>,
    /// When its blocks came, summed up.
    pub(crate) came: u128,
}

impl Stripe {
    /// Whether it is what the volume moves or writes for itself.
    fn is_internal(&self) -> bool {
        let own = |item: &Item| item.from.is_some() || item.identity.kind == block::MAPPING;
        self.items.first().is_some_and(own)
    }

    pub(crate) fn over(&self, error: Option<&Error>) {
        self.calls.iter().for_each(|call| call.over(error));
    }

    /// Data block `at` of the stripe as footers know it; those that nobody filled are zeros.
    pub(crate) fn block(&self, at: usize, zero_crc: u32) -> (Option<Identity>, u32) {
        let empty = Identity { crc: zero_crc, ..Identity::default() };
        let identity = self.items.get(at).map_or(empty, |item| item.identity);
        (Some(identity), identity.crc)
    }

    pub(crate) fn tell(&self, number: impl Fn(usize) -> u32) {
        for call in &self.calls {
            let Some(placed) = &call.placed else { continue };
            let told = self.items.iter().enumerate();
            placed.borrow_mut().extend(told.map(|(i, item)| (item.identity.lba, number(i))));
        }
    }
}

/// A segment that a stream writes to.
pub(crate) struct Open {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    pub(crate) groups: Groups,
    /// By Zone Append.
    pub(crate) append: bool,
    /// The next stripe.
    pub(crate) next: Cell<u32>,
    pub(crate) in_flight: Cell<u32>,
    pub(crate) idle: Notify,
    /// No stripe is added any more, and it ends without footers.
    pub(crate) broken: Cell<bool>,
    /// What the footers will say, of each drive by row.
    pub(crate) footers: RefCell<Vec<Vec<FooterEntry>>>,
    /// Its metadata that is not on the drives yet.
    pub(crate) meta: OpenMeta,
}

/// A stream.
pub(crate) struct Stream {
    pub(crate) purpose: Use,
    pub(crate) chunk: u32,
    pub(crate) group: u32,
    pub(crate) filling: RefCell<Stripe>,
    /// When the last block came.
    last: Cell<Nanos>,
    timer: Cell<bool>,
    ready: RefCell<VecDeque<Stripe>>,
    pub(crate) open: RefCell<Option<Rc<Open>>>,
    opening: Cell<bool>,
    /// Blocks written through it: who wrote least is next.
    pub(crate) written: Cell<u64>,
}

impl Stream {
    pub(crate) fn new(purpose: Use, chunk: u32, group: u32) -> Rc<Stream> {
        Rc::new(Stream {
            purpose,
            chunk,
            group,
            filling: RefCell::default(),
            last: Cell::default(),
            timer: Cell::new(false),
            ready: RefCell::default(),
            open: RefCell::default(),
            opening: Cell::new(false),
            written: Cell::new(0),
        })
    }

    /// Whether stripes are in line.
    pub(crate) fn has_line(&self) -> bool {
        !self.ready.borrow().is_empty()
    }

    /// Whether some of them are what the volume moves or writes for itself.
    pub(crate) fn has_line_of_internal(&self) -> bool {
        self.ready.borrow().iter().any(Stripe::is_internal)
    }

    /// Whether its segment takes more stripes.
    pub(crate) fn takes_more(&self) -> bool {
        let open = self.open.borrow();
        open.as_ref().is_some_and(|open| {
            // The last one may be of metadata.
            let stripes = open.meta.data_stripes(open.groups.stripes);
            !open.broken.get() && open.next.get() < stripes
        })
    }

    fn is_idle(&self) -> bool {
        let open = self.open.borrow();
        self.ready.borrow().is_empty() && open.as_ref().is_none_or(|open| open.in_flight.get() == 0)
    }
}

impl Volume {
    /// The stream for a request of so many blocks (ZapRAID, section 3.4): one with a stripe to be
    /// filled, else an idle one, Zone Write before Zone Append, else the one that wrote least.
    pub(crate) fn route(&self, purpose: Use) -> Rc<Stream> {
        let of = |stream: &&Rc<Stream>| stream.purpose == purpose;
        let begun = |stream: &Rc<Stream>| !stream.filling.borrow().items.is_empty();
        let best = self.0.streams.iter().filter(of).min_by_key(|stream| {
            (!begun(stream), !stream.is_idle(), stream.group > 1, stream.written.get())
        });
        best.expect("invariant: there is a stream for everything").clone()
    }

    /// Adds a block to the stripe that the stream fills. Never waits.
    pub(crate) fn put(&self, stream: &Rc<Stream>, item: Item, call: &Rc<Call>) {
        let now = self.0.rt.now_coarse();
        let full = {
            let mut filling = stream.filling.borrow_mut();
            if !filling.calls.last().is_some_and(|last| Rc::ptr_eq(last, call)) {
                filling.calls.push(call.clone());
                call.left.set(call.left.get() + 1);
            }
            filling.items.push(item);
            filling.came += u128::from(now.0);
            filling.items.len() as u32 == stream.chunk * self.0.shape.placement.k
        };
        stream.written.set(stream.written.get() + 1);
        if full {
            self.close_stripe(stream);
            return;
        }
        stream.last.set(now);
        if !stream.timer.replace(true) {
            self.0.rt.spawn_detached(pad_in_time(self.clone(), stream.clone()));
        }
    }

    /// The stripe being filled goes as it is.
    pub(crate) fn close_stripe(&self, stream: &Rc<Stream>) {
        let stripe = stream.filling.take();
        if stripe.items.is_empty() {
            return;
        }
        stream.ready.borrow_mut().push_back(stripe);
        self.pump(stream);
    }

    /// Puts a stripe back in line: the segment it was in failed.
    pub(crate) fn again(&self, stream: &Rc<Stream>, stripe: Stripe) {
        stream.ready.borrow_mut().push_front(stripe);
        self.count(|counters| counters.rewritten += 1);
        self.pump(stream);
    }

    /// Lets the `internal` stream have back what of its own is in line for a stream of users.
    pub(crate) fn take_back(&self, stream: &Stream, internal: &Rc<Stream>) {
        let (back, stay) = stream.ready.take().into_iter().partition(Stripe::is_internal);
        *stream.ready.borrow_mut() = back;
        self.hand_over(stream, internal);
        *stream.ready.borrow_mut() = stay;
    }

    /// Lets what is in line for one stream be written through another.
    pub(crate) fn hand_over(&self, from: &Stream, to: &Rc<Stream>) {
        let size = (to.chunk * self.0.shape.placement.k) as usize;
        // Taken first: the stream that takes them over may have lost its segment meanwhile, and be
        // the one they are in line for.
        let stripes = from.ready.take();
        for Stripe { items, calls, came } in stripes {
            let (count, mut items) = (items.len(), items.into_iter());
            for call in &calls {
                call.left.set(call.left.get() + count.div_ceil(size) as u32 - 1);
            }
            while items.len() > 0 {
                let items: Vec<Item> = items.by_ref().take(size).collect();
                let came = came * items.len() as u128 / count as u128;
                let stripe = Stripe { items, calls: calls.clone(), came };
                to.ready.borrow_mut().push_back(stripe);
            }
        }
        self.pump(to);
    }

    /// Nothing can be written any more: whoever waits is told.
    pub(crate) fn abandon(&self, stream: &Rc<Stream>, error: Option<Error>) {
        let stripes = std::mem::take(&mut *stream.ready.borrow_mut());
        let filling = stream.filling.take();
        stripes.into_iter().chain([filling]).for_each(|stripe| stripe.over(error.as_ref()));
    }

    /// Dispatches what is in line as far as the open segment takes it.
    pub(crate) fn pump(&self, stream: &Rc<Stream>) {
        loop {
            if stream.ready.borrow().is_empty() || self.0.quiesced.get() > 0 {
                return;
            }
            if self.failed().is_some() {
                return self.abandon(stream, self.failed());
            }
            let Some(open) = stream.open.borrow().clone() else {
                if !stream.opening.replace(true) {
                    self.0.rt.spawn_detached(open_next(self.clone(), stream.clone()));
                } else if stream.purpose == Use::Internal {
                    // It waits for room perhaps, and until now had nothing to write.
                    self.0.wanted.notify_all();
                }
                return;
            };
            if open.broken.get() {
                self.detach(stream);
                continue;
            }
            let (next, in_flight) = (open.next.get(), open.in_flight.get());
            if open.meta.ends_window(next, open.groups.stripes) {
                self.send_metadata(stream, &open);
                continue;
            }
            let barrier = open.append && in_flight > 0 && open.groups.start(next) == next;
            if barrier || in_flight >= self.depth(stream) {
                return;
            }
            let Some(stripe) = stream.ready.borrow_mut().pop_front() else { return };
            open.next.set(next + 1);
            self.dispatch(stream, &open, next, stripe);
            if open.next.get() == open.groups.stripes {
                self.detach(stream);
            }
        }
    }

    /// Stripes that may be in flight.
    fn depth(&self, stream: &Stream) -> u32 {
        let depth = self.0.options.depth;
        if stream.purpose == Use::Internal {
            self.0.shape.meta.internal_depth(depth)
        } else {
            depth
        }
    }

    /// What a stripe that was just sent has to wait for; `None` if nothing.
    pub(crate) fn join_cover(&self, stream: &Rc<Stream>, open: &Rc<Open>) -> Option<Rc<Cover>> {
        let (cover, ask) = open.meta.join()?;
        if ask {
            let (volume, stream, open) = (self.clone(), stream.clone(), open.clone());
            self.0.rt.spawn_detached(async move { volume.cover(&stream, &open) });
        }
        Some(cover)
    }

    /// Sends a metadata stripe if any stripes wait for one and none is under way.
    fn cover(&self, stream: &Rc<Stream>, open: &Rc<Open>) {
        if open.meta.is_due() {
            self.send_metadata(stream, open);
        }
    }

    /// Sends a metadata stripe to the drives, as the next of the segment.
    fn send_metadata(&self, stream: &Rc<Stream>, open: &Rc<Open>) {
        let (number, stripes) = (open.next.get(), open.groups.stripes);
        let Some(mut sent) = open.meta.send(self, open.slot, number) else { return };
        open.next.set(number + 1);
        self.0.in_flight.set(self.0.in_flight.get() + 1);
        open.in_flight.set(open.in_flight.get() + 1);
        let taken = self.0.shape.placement.k * open.groups.chunk;
        self.count(|counters| counters.windows += u64::from(taken));
        let ours = stream.open.borrow().as_ref().is_some_and(|now| Rc::ptr_eq(now, open));
        if ours && number + 1 == stripes {
            self.detach(stream);
        }
        let (volume, stream, open) = (self.clone(), stream.clone(), open.clone());
        self.0.rt.spawn_detached(async move {
            let told = sent.wait(&volume, open.sequence).await;
            // To the footers its rows belong to nothing, as rows that fill up after a crash.
            let none = (Some(Identity::default()), volume.0.zero_crc);
            for index in 0..volume.0.shape.placement.n {
                let rows = std::iter::repeat_n(none, open.groups.chunk as usize);
                volume.note_footer(&open, index, (number * open.groups.chunk, NONE), rows);
            }
            if told.1 {
                open.broken.set(true);
            }
            open.meta.landed(&sent, (number, stripes), told);
            volume.cover(&stream, &open);
            volume.stripe_over(&stream, &open);
        });
    }

    /// The stream leaves its segment, which ends when nothing of it is in flight.
    pub(crate) fn detach(&self, stream: &Stream) {
        if let Some(open) = stream.open.take() {
            let rows = open.next.get() * open.groups.chunk;
            self.0.segments.borrow_mut()[open.slot as usize].rows = rows;
            self.0.ending.set(self.0.ending.get() + 1);
            self.0.rt.spawn_detached(conclude(self.clone(), open));
        }
    }

    /// Lets no stream go on with a segment that a member in service has no zone of: the next have.
    /// But where no segment can be begun, what is open is all the room there is: it is written on.
    pub(crate) fn leave_unfit(&self) {
        let mut free = self.free_segments();
        for stream in &self.0.streams {
            let Some(open) = stream.open.borrow().clone() else { continue };
            let lacks = {
                let segments = self.0.segments.borrow();
                let mut zones = segments[open.slot as usize].zones.iter().zip(&self.0.members);
                zones.any(|(zone, member)| zone.is_none() && member.drive().is_some())
            };
            if lacks && free > 0 {
                free -= 1;
                open.broken.set(true);
                self.detach(stream);
            }
        }
    }

    /// Begins a segment for the stream: waits for room, then for permits.
    async fn open_segment(&self, stream: &Stream) -> Result<Rc<Open>> {
        let floor = if stream.purpose == Use::Internal { 0 } else { self.0.shape.kept };
        loop {
            self.check_not_failed()?;
            if self.free_segments() <= floor {
                self.wait_for_space(stream.purpose).await?;
                continue;
            }
            let mut permits = Vec::new();
            for member in &self.0.members {
                permits.push(match member.drive() {
                    Some(drive) => Some(drive.budget.acquire(Class::User, 1).await),
                    None => None,
                });
            }
            // A drive may have come while the others' permits were waited for: its zone would lack,
            // and a rebuild would wait until the segment is full.
            let came = |(member, permit): (&Member, &Option<Permit>)| {
                permit.is_none() && member.drive().is_some()
            };
            if self.free_segments() <= floor || self.0.members.iter().zip(&permits).any(came) {
                continue;
            }
            if stream.purpose != Use::Internal {
                self.space_found();
            }
            return Ok(self.begin(stream, permits));
        }
    }

    fn check_not_failed(&self) -> Result<()> {
        self.failed().map_or(Ok(()), Err)
    }

    /// Takes a slot and a zone of each drive, and writes the headers.
    fn begin(&self, stream: &Stream, permits: Vec<Option<furrow_log::Permit>>) -> Rc<Open> {
        let shape = &self.0.shape;
        let sequence = self.0.next_segment.get();
        self.0.next_segment.set(sequence + 1);
        let stripes = shape.stripes(stream.chunk);
        let mut append = stream.group > 1;
        let mut zones: Vec<Option<ZoneId>> = Vec::new();
        for (member, permit) in self.0.members.iter().zip(permits) {
            // A member that failed or came meanwhile has no permit or no drive: it is left out.
            let zone = member.drive().zip(permit).and_then(|(drive, permit)| {
                let zone = drive.zones.zone(drive.zones.allocate(&[])?, 0);
                drive.writer.open_empty(zone);
                drive.writer.attach(zone, permit);
                append &= drive.writer.append_limit() >= stream.chunk;
                Some(zone)
            });
            zones.push(zone);
        }
        let group = if append { stream.group.min(stripes) } else { 1 };
        let mut segments = self.0.segments.borrow_mut();
        let slot = segments.iter().position(|s| s.state == SegmentState::Free);
        let slot = slot.expect("invariant: a free slot was counted in this stretch");
        let drives = shape.placement.n;
        let table = self.new_table(stripes, group);
        segments[slot] = Segment {
            state: SegmentState::Open,
            sequence,
            chunk: stream.chunk,
            group,
            zones,
            table: (group > 1).then(|| Rc::new(RefCell::new(table))),
            ..Segment::free(drives)
        };
        self.write_headers(slot as u32, &segments[slot]);
        // What no chunk comes to lie in, since its member failed, belongs to no stripe.
        let rows = vec![seal_entry(None, 0, NONE); shape.rows as usize];
        let groups = Groups { chunk: stream.chunk, group, stripes };
        let footers = RefCell::new(vec![rows; drives as usize]);
        let open = self.open_at(slot as u32, sequence, (groups, append), 0, footers);
        segments[slot].meta = open.meta.clone();
        open
    }

    /// An open segment that goes on at stripe `next`.
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
            let member = &self.0.members[index];
            let (Some(zone), Some(drive)) = (zone, member.drive()) else { continue };
            let header = self.segment_header(slot, index as u32, segment);
            let (_, done) = drive.writer.write(*zone, Kind::Summary, header, Durability::Cached);
            // What follows in the zone fails if this does.
            drop(done);
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
            epoch: self.0.epoch,
            checkpoint: self.0.checkpoint.id.get(),
            sequence,
            device: self.0.members[index as usize].uuid.get(),
            object: self.0.uuid,
        }
    }

    /// Writes the footers of a segment whose rows are all written, from row `rows` of the data on.
    pub(crate) async fn write_footers(&self, open: &Open) -> Result<()> {
        let zones = self.0.segments.borrow()[open.slot as usize].zones.clone();
        let mut flights = Vec::new();
        for (index, zone) in zones.iter().enumerate() {
            let (Some(zone), Some(drive)) = (*zone, self.0.members[index].drive()) else {
                continue;
            };
            let footer = self.footer(open, index as u32);
            let start = self.0.shape.footer_start();
            let written = drive.writer.position(zone);
            if written < start {
                drop(drive.writer.fill(zone, start));
            }
            // After a crash some of it may be there: what is left of it is the same.
            let skip = written.saturating_sub(start) as usize;
            if skip > 0 {
                self.note_recovered(|recovered| recovered.torn_footers += 1);
            }
            let rest = Pages::from_iter(footer.into_iter().skip(skip));
            let (_, done) = drive.writer.write(zone, Kind::Summary, rest, Durability::Cached);
            flights.push((index as u32, done));
        }
        let mut result = Ok(());
        for (index, done) in flights {
            if let Err(error) = done.await {
                self.note_write_error(index, Some(open.sequence), &error);
                result = Err(error);
            }
        }
        result
    }

    /// The footer of a member's zone: entries of its own, and of the drives after it.
    pub(crate) fn footer(&self, open: &Open, index: u32) -> Pages {
        let shape = &self.0.shape;
        let footers = open.footers.borrow();
        let drives = (0..shape.footer_copies()).map(|copy| (index + copy) % shape.placement.n);
        let entries: Vec<&[u8]> = drives.map(|drive| footers[drive as usize].as_bytes()).collect();
        let id = self.record_id(kind::FOOTER, index, open.sequence);
        // Footers must come out the same after a crash: nothing of a record's time is in them.
        let id = RecordId { epoch: 0, checkpoint: 0, ..id };
        seal(&id, &entries.concat(), &self.0.pages)
    }
}

/// Fills the stream's stripe with zeros when nobody else did in time.
async fn pad_in_time(volume: Volume, stream: Rc<Stream>) {
    loop {
        let due = stream.last.get().after(volume.0.options.pad_after);
        volume.0.rt.sleep_until(due).await;
        if stream.filling.borrow().items.is_empty() {
            break;
        }
        if stream.last.get().after(volume.0.options.pad_after) <= volume.0.rt.now() {
            volume.close_stripe(&stream);
            break;
        }
    }
    stream.timer.set(false);
    if !stream.filling.borrow().items.is_empty() && !stream.timer.replace(true) {
        volume.0.rt.spawn_detached(Box::pin(pad_in_time(volume.clone(), stream.clone()))
            as std::pin::Pin<Box<dyn std::future::Future<Output = ()>>>);
    }
}

/// Gives the stream its next segment.
async fn open_next(volume: Volume, stream: Rc<Stream>) {
    match volume.open_segment(&stream).await {
        Ok(open) => *stream.open.borrow_mut() = Some(open),
        Err(error) => volume.abandon(&stream, Some(error)),
    }
    stream.opening.set(false);
    volume.pump(&stream);
    if stream.purpose == Use::Internal {
        volume.0.wanted.notify_all();
    }
}

/// Ends a segment that gets no more stripes.
async fn conclude(volume: Volume, open: Rc<Open>) {
    while open.in_flight.get() > 0 {
        open.idle.wait().await;
    }
    let whole = !open.broken.get()
        && open.next.get() == open.groups.stripes
        && volume.write_footers(&open).await.is_ok();
    volume.end_segment(&open, whole).await;
    volume.0.ending.set(volume.0.ending.get() - 1);
    volume.0.idle.notify_all();
    volume.0.wanted.notify_all();
}

impl Volume {
    /// Notes that a segment is written to its end, or ends it early.
    pub(crate) async fn end_segment(&self, open: &Open, whole: bool) {
        let zones = self.0.segments.borrow()[open.slot as usize].zones.clone();
        let drives: Vec<_> = zones
            .iter()
            .zip(&self.0.members)
            .filter_map(|(zone, member)| Some(((*zone)?, member.drive()?)))
            .collect();
        if whole {
            let written = zones.iter().zip(&self.0.members).filter(|(zone, _)| zone.is_some());
            written.for_each(|(_, member)| member.refusals.forget());
        }
        for (zone, drive) in &drives {
            if !whole && drive.writer.is_open(*zone) {
                // One that cannot be ended is of a drive that is gone.
                let _ = drive.writer.close(*zone).await;
            }
            if let Some(owner) = drive.zones.owner(*zone)
                && drive.zones.state(owner) != furrow_log::SuperzoneState::Retired
            {
                drive.zones.mark_full(owner);
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

    /// What the footers will say of the chunk at `row` of a drive's zone.
    pub(crate) fn note_footer(
        &self,
        open: &Open,
        drive: u32,
        (row, stripe): (u32, u32),
        blocks: impl Iterator<Item = crate::write::Block>,
    ) {
        let mut footers = open.footers.borrow_mut();
        for (entry, (identity, crc)) in
            footers[drive as usize][row as usize..].iter_mut().zip(blocks)
        {
            *entry = seal_entry(identity, crc, stripe);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Level, Options, create};
    use furrow_emu::{Emulator, Medium, Options as DriveOptions};
    use furrow_log::record::crc32c;
    use furrow_rt::{Config as RtConfig, Rt};
    use furrow_zone::{Geometry, ZonedDevice};

    /// Who makes room hands over what streams without a segment have in line; the one that takes it
    /// may lose its own on the way, and is then among those. (Simulation, seed 3029.)
    #[test]
    fn a_stream_may_be_handed_its_own_line() {
        let rt = Rt::new(RtConfig::simulated(1));
        let geometry = Geometry { oob_bytes: 64, ..Geometry::unlimited(32, 256, 256) };
        let drives = (0..3).map(|_| {
            let medium = Medium::memory(&geometry);
            let drive = Emulator::new(&rt, geometry.clone(), medium, DriveOptions::simulated());
            Rc::new(drive.unwrap()) as Rc<dyn ZonedDevice>
        });
        let (drives, engine) = (drives.collect(), rt.clone());
        let config = Config::new(Level::Raid5, &geometry);
        rt.block_on(async move {
            let volume =
                create(&engine, drives, &config, &Options::default(), false).await.unwrap();
            let (stream, call) = (volume.route(Use::Small), Call::new(false));
            volume.0.quiesced.set(1);
            for lba in 0..6 {
                let page = Page::from_slice(&[lba as u8 + 1; 9]);
                let (crc, sequence) = (crc32c(page.bytes()), volume.next_sequence());
                let identity = Identity { lba, sequence, crc, kind: block::DATA };
                volume.put(&stream, Item { identity, page, from: None, trimmed: 0 }, &call);
            }
            let lined = stream.ready.borrow().len();
            assert!(lined > 1);
            volume.hand_over(&stream, &stream);
            assert_eq!(stream.ready.borrow().len(), lined);
            volume.0.quiesced.set(0);
            volume.pump(&stream);
            volume.close_stripe(&stream);
            call.wait().await.unwrap();
            let read = volume.read(0, 6).await.unwrap();
            assert!(read.iter().map(|page| page[8]).eq(1..=6));
            volume.stop().await.unwrap();
        });
        rt.clear();
    }
}
