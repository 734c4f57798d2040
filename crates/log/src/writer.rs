//! The ordered writer: the only code that writes to zones.
//!
//! A caller submits writes to open zones ([`Writer::submit`]). The address is known at once
//! (*placed*); the returned [`WriteHandle`] resolves when the drive has answered (*durable*, as far
//! as requested and as the drive's cache allows). Submitting never waits: writes that cannot be
//! sent yet are queued here.
//!
//! Under [`Order::Append`] a caller may let the drive choose the place of pages in a zone
//! ([`Placement::Append`]): blocks are set aside at once, but the block at which each append begins
//! is known only at completion. A block whose content depends on these places can be set aside too
//! ([`Payload::Later`]).
//!
//! Invariants
//! - Each zone's writes reach the drive in the order of the calls, through one hardware queue, at
//!   exactly the addresses handed out. Appends reach the blocks set aside for appends.
//! - A sequence point is reached when every write dispatched before it has completed; later
//!   writes never delay it.
//! - After a failure, every later write of that zone fails too; other zones are not affected.
//!
//! The writer deliberately does not choose zones, keep data for readers, or relocate after a
//! failure: these are its engine's tasks (stop acknowledging, drain, relocate, checkpoint,
//! acknowledge). For an engine that relocates ([`Writer::relocates`]), waits return a failure at
//! once, and writes to a zone opened after a failed zone are held back until the failed zone is
//! closed ([`Writer::close`]). Every wait returns the failure until it is forgiven
//! ([`Writer::forgive`]).

use crate::address::{blocks_begun, blocks_per_zone, sectors_per_block};
use crate::budget::Permit;
use crate::in_flight::SequencePoint;
use crate::zone_queue::dispatcher::Dispatcher;
use crate::zone_queue::shared::{Shared, tail_sectors};
use crate::zone_queue::{Tell, What, ZoneQueue, not_open};
use flush_round::Flushes;
use furrow_policy::LogDefect;
use furrow_rt::{Page, Rt};
use furrow_zone::{
    Action, Command, Error, Geometry, QueueId, Request, Result, Target, ZoneId, ZoneReport,
    ZoneState, ZonedDevice,
};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

struct Inner {
    shared: Rc<Shared>,
    capacity: u32,
    zone_queues: RefCell<Vec<Option<Rc<ZoneQueue>>>>,
    flushes: Rc<Flushes>,
    defect: Option<LogDefect>,
}

/// A handle to a drive's writer. Cloning shares it.
#[derive(Clone)]
pub struct Writer(Rc<Inner>);

impl Writer {
    /// Creates a writer with default options, except for `order` and `queues`.
    pub fn new(rt: &Rt, device: Rc<dyn ZonedDevice>, order: Order, queues: u16) -> Writer {
        Writer::with_options(rt, device, WriterOptions { order, queues, ..Default::default() })
    }

    /// Creates the writer of `device`. A drive has only one.
    pub fn with_options(rt: &Rt, device: Rc<dyn ZonedDevice>, options: WriterOptions) -> Writer {
        let shared = Rc::new(Shared::new(rt, device, &options));
        let geometry = shared.device.geometry();
        let (capacity, zones) = (blocks_per_zone(geometry), geometry.zones);
        Writer(Rc::new(Inner {
            shared,
            capacity,
            zone_queues: RefCell::new((0..zones).map(|_| None).collect()),
            flushes: Rc::default(),
            defect: options.defect,
        }))
    }

    /// The drive to which this writer writes.
    pub fn device(&self) -> &Rc<dyn ZonedDevice> {
        &self.0.shared.device
    }

    /// The geometry of the drive to which this writer writes.
    pub fn geometry(&self) -> &Geometry {
        self.0.shared.device.geometry()
    }

    pub(crate) fn rt(&self) -> &Rt {
        &self.0.shared.rt
    }

    /// Returns the hardware queue of `zone`: the queue it is bound to while it is open, otherwise
    /// an arbitrary one.
    pub fn queue(&self, zone: ZoneId) -> QueueId {
        let any = QueueId((zone.0 % self.0.shared.queues.count()) as u16);
        self.zone_queue(zone).map_or(any, |zone_queue| zone_queue.queue)
    }

    /// Whether `defect` is built in.
    pub(crate) fn has(&self, defect: LogDefect) -> bool {
        self.0.defect == Some(defect)
    }

    fn zone_queue(&self, zone: ZoneId) -> Option<Rc<ZoneQueue>> {
        self.0.zone_queues.borrow().get(zone.0 as usize).and_then(Clone::clone)
    }

    fn open_zone_queue(&self, zone: ZoneId) -> Rc<ZoneQueue> {
        self.zone_queue(zone).unwrap_or_else(|| panic!("{}", not_open(zone)))
    }

    fn start(
        &self,
        zone: ZoneId,
        at: u32,
        rest: Option<Range<u64>>,
        predecessor: Option<Rc<ZoneQueue>>,
    ) {
        // A zone that follows another uses the queue of its predecessor. Any other zone takes the
        // queue with the fewest zones.
        let queue = match &predecessor {
            Some(predecessor) => predecessor.queue,
            None => self.0.shared.queues.least(),
        };
        let zone_queue = ZoneQueue::new(zone, self.0.capacity, at, rest);
        let zone_queue = Rc::new(zone_queue.bound_to(queue, &self.0.shared.queues));
        if let Some(predecessor) = predecessor {
            zone_queue.follow(predecessor);
        }
        let old = self.0.zone_queues.borrow_mut()[zone.0 as usize].replace(zone_queue.clone());
        if let Some(old) = old {
            assert!(old.is_idle(), "zone {zone} opened again with writes in flight");
            drop(old.retire());
        }
        self.0.shared.rt.spawn_detached(Dispatcher::new(zone_queue, self.0.shared.clone()));
    }

    /// Takes the empty `zone` into use.
    ///
    /// # Panics
    /// If the drive has no such zone, or writes to the zone are in flight.
    pub fn open_empty(&self, zone: ZoneId) {
        self.start(zone, 0, None, None);
    }

    /// Takes a zone into use at the write pointer that the drive's report states: the only way to
    /// continue writing a zone that is not empty. Returns the block of the next write. Where
    /// logical blocks are 512 bytes, a torn write may have left the pointer within a block. Then
    /// the next write begins after that block, and the rest of the block is filled with zeros
    /// before the next write, or by [`Writer::level`]. If no whole block is left, there is no next
    /// write: zeros are written at once up to the zone's capacity, including the part after its
    /// last whole block. A zone that cannot be written any more counts as full.
    ///
    /// # Panics
    /// If the drive has no such zone, or writes to the zone are in flight.
    pub fn open_reported(&self, report: &ZoneReport) -> u32 {
        let geometry = self.geometry();
        let at = match report.state {
            ZoneState::Offline => self.0.capacity,
            _ => blocks_begun(report, geometry),
        };
        let closed =
            matches!(report.state, ZoneState::Full | ZoneState::ReadOnly | ZoneState::Offline);
        let last = at == self.0.capacity;
        let end = match last {
            true => geometry.zone_capacity.0,
            false => u64::from(at) * sectors_per_block(geometry),
        };
        let rest = report.write_pointer.0..end;
        let rest = (!closed && !rest.is_empty()).then_some(rest);
        self.start(report.zone, at, rest, None);
        if last {
            self.level(report.zone);
        }
        at
    }

    /// If a torn write left the write pointer of the open `zone` inside a block, fills the rest of
    /// the block now instead of before the next write. A sequence point taken afterwards covers
    /// this write.
    ///
    /// # Panics
    /// If the zone is not open.
    pub fn level(&self, zone: ZoneId) {
        self.open_zone_queue(zone).level(&self.0.shared);
    }

    /// Takes the empty `zone` into use as the continuation of `previous`, which takes no further
    /// writes. Nothing is sent to `zone` before `previous` is full or was reset; then `zone` takes
    /// over the permit. So a chain of zones needs one permit, and no caller waits.
    ///
    /// # Panics
    /// If the drive has no such zone, or writes to the zone are in flight.
    pub fn open_zone_after(&self, zone: ZoneId, previous: ZoneId) {
        let predecessor = self.zone_queue(previous).inspect(|zone_queue| zone_queue.seal());
        self.start(zone, 0, None, predecessor);
    }

    /// Holds back writes to the open `zone` until `previous` is full.
    pub(crate) fn follow(&self, zone: ZoneId, previous: ZoneId) {
        self.open_zone_queue(zone).follow(self.open_zone_queue(previous));
    }

    /// Ties `permit` to the open `zone`: the permit is given back when the zone is full, finished
    /// or reset.
    ///
    /// # Panics
    /// If the zone is not open.
    pub fn attach(&self, zone: ZoneId, permit: Permit) {
        self.open_zone_queue(zone).attach(permit);
    }

    /// Keeps the permit of the open `zone` even when the zone is full, until the zone opened after
    /// it takes the permit over, or `zone` is forgotten. For a stream that must always be able to
    /// begin another zone.
    ///
    /// # Panics
    /// If the zone is not open.
    pub fn keep_permit(&self, zone: ZoneId) {
        self.open_zone_queue(zone).expect_successor();
    }

    /// True if any zone is open in this writer.
    pub(crate) fn has_open_zones(&self) -> bool {
        self.0.zone_queues.borrow().iter().any(Option::is_some)
    }

    /// True if `zone` is open in this writer.
    pub fn is_open(&self, zone: ZoneId) -> bool {
        self.zone_queue(zone).is_some()
    }

    /// The offset of the next write of `zone`, in blocks.
    ///
    /// # Panics
    /// If the zone is not open.
    pub fn position(&self, zone: ZoneId) -> u32 {
        self.open_zone_queue(zone).position()
    }

    /// Number of blocks that can still be written to `zone`.
    ///
    /// # Panics
    /// If the zone is not open.
    pub fn space_left(&self, zone: ZoneId) -> u32 {
        self.0.capacity - self.position(zone)
    }

    /// Sets blocks of the zone aside for a write, and dispatches the write. Never waits.
    ///
    /// # Panics
    /// If the zone is not open or has too little space left ([`Writer::space_left`]),
    /// or if an append has more pages than [`Writer::append_limit`] or a payload other
    /// than [`Payload::Pages`].
    pub fn submit<P>(&self, write: ZoneWrite<'_, P>) -> WriteHandle
    where
        P: IntoIterator<Item = Page, IntoIter: ExactSizeIterator>,
    {
        let ZoneWrite { zone, kind, payload, oob, placement, durability, observer } = write;
        // The drive must not choose the place of a reserved block, which has no page yet, nor of
        // zeros, which lead up to a given block.
        assert!(
            placement == Placement::Position || matches!(payload, Payload::Pages(_)),
            "zone {zone}: only pages can be appended"
        );
        let zone_queue = self.open_zone_queue(zone);
        let (mut what, mut pages) = (What::Here, None);
        let blocks = match payload {
            Payload::Pages(list) => pages.insert(list.into_iter()).len() as u32,
            Payload::ZerosTo(upto) => {
                let position = zone_queue.position();
                upto.max(position) - position
            }
            Payload::Later => {
                what = What::Late(None);
                1
            }
        };
        let fua = durability == Durability::Fua;
        if blocks == 0 {
            let at = zone_queue.position();
            return WriteHandle {
                zone_queue: None,
                at,
                end: at,
                sequence: None,
                fua: false,
                landed: None,
            };
        }
        let mut landed = None;
        if placement == Placement::Append {
            let position = zone_queue.position();
            what = self.as_append(zone, position, blocks);
            if observer.is_none() {
                landed = Some(Rc::new(Cell::new(position)));
            }
        }
        let tell = match (observer, &landed) {
            (Some((observer, part)), _) => Tell::Observer(observer, part),
            (None, Some(landed)) => Tell::Place(landed.clone()),
            (None, None) => Tell::Nobody,
        };
        self.0.shared.counters.borrow_mut().bytes[kind as usize] +=
            u64::from(blocks) * crate::format::BLOCK_SIZE as u64;
        let (at, sequence) =
            zone_queue.push(&self.0.shared, blocks, (pages, oob), fua, (what, tell));
        let early = self.has(LogDefect::EarlyAck);
        let zone_queue = (!early).then_some(zone_queue);
        WriteHandle { zone_queue, at, end: at + blocks, sequence: Some(sequence), fua, landed }
    }

    /// Maximum number of blocks in an append ([`Placement::Append`]); 0 if the order is not
    /// [`Order::Append`], or the drive takes no append of a whole block.
    pub fn append_limit(&self) -> u32 {
        self.0.shared.blocks_per_append
    }

    /// Decides how an append of `blocks` at `position` is carried out: as a write if it ends a zone
    /// whose capacity includes part of a block.
    fn as_append(&self, zone: ZoneId, position: u32, blocks: u32) -> What {
        let limit = self.0.shared.blocks_per_append;
        assert!(blocks <= limit, "append of {blocks} blocks to zone {zone}, at most {limit}");
        let ragged = tail_sectors(self.geometry()) > 0 && position + blocks == self.0.capacity;
        if ragged { What::Here } else { What::Append }
    }

    /// Sets the page of the reserved block `at` of `zone` ([`Payload::Later`]). Does nothing if the
    /// zone failed meanwhile.
    pub fn fill_reserved(&self, zone: ZoneId, at: u32, page: Page) {
        if let Some(zone_queue) = self.zone_queue(zone) {
            zone_queue.fill_reserved(at, page);
        }
    }

    /// Returns the present point in the order of dispatch, to wait for with [`Writer::wait`].
    pub fn sequence_point(&self) -> SequencePoint {
        self.0.shared.in_flight.borrow().point()
    }

    /// Waits until every write dispatched before `point` has completed.
    ///
    /// # Errors
    /// The first failure of these writes that was neither forgotten nor forgiven. If the engine
    /// relocates, the failure is returned at once.
    pub async fn wait(&self, point: SequencePoint) -> Result<()> {
        self.wait_excusing(point, |_| false).await
    }

    /// Waits like [`Writer::wait`], but ignores failures of zones for which `excused` is true.
    ///
    /// # Errors
    /// The errors of [`Writer::wait`], for the zones that are not excused.
    pub async fn wait_excusing(
        &self,
        point: SequencePoint,
        excused: impl Fn(ZoneId) -> bool,
    ) -> Result<()> {
        if self.has(LogDefect::EarlyAck) {
            return Ok(());
        }
        std::future::poll_fn(|cx| {
            let mut in_flight = self.0.shared.in_flight.borrow_mut();
            let reached = in_flight.reached(point);
            if (reached || self.0.shared.failed.are_relocated())
                && let Some(error) = self.0.shared.failed.before(point.0, &excused)
            {
                return Poll::Ready(Err(error));
            }
            if reached {
                return Poll::Ready(Ok(()));
            }
            in_flight.wake_at(point, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Waits until every write dispatched before the call has completed, successfully or not.
    pub async fn completed(&self) {
        let point = self.sequence_point();
        std::future::poll_fn(|cx| {
            let mut in_flight = self.0.shared.in_flight.borrow_mut();
            if in_flight.reached(point) {
                return Poll::Ready(());
            }
            in_flight.wake_at(point, cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Waits until every write dispatched before the call has completed.
    ///
    /// # Errors
    /// The errors of [`Writer::wait`].
    pub async fn drain(&self) -> Result<()> {
        self.wait(self.sequence_point()).await
    }

    /// Waits until no write to `zone` is in flight or queued, whether the writes succeeded or not.
    pub async fn drained(&self, zone: ZoneId) {
        if let Some(zone_queue) = self.zone_queue(zone) {
            std::future::poll_fn(|cx| zone_queue.poll_idle(cx)).await;
        }
    }

    /// Upper bound of the number of writes dispatched and not completed.
    pub fn in_flight(&self) -> usize {
        self.0.shared.in_flight.borrow().len()
    }

    /// Number of pages of writes dispatched and not completed: the memory that the writer holds.
    pub fn pages_in_flight(&self) -> usize {
        self.0.shared.in_flight.borrow().pages()
    }

    /// Makes `zone` full without writing the rest, once none of its writes is in flight. On most
    /// drives, this costs about as much as writing the rest. The permit is given back.
    ///
    /// # Errors
    /// `Invalid` if the zone is not open, the failure of one of its writes, or the drive's refusal.
    pub async fn finish(&self, zone: ZoneId) -> Result<()> {
        let zone_queue = self.zone_queue(zone).ok_or_else(|| not_open(zone))?;
        zone_queue.seal();
        let (shared, capacity) = (self.0.shared.clone(), self.0.capacity);
        // The finish runs in a separate task, so it runs to completion even if the caller drops
        // its future.
        let task = self.0.shared.rt.spawn(async move {
            std::future::poll_fn(|cx| zone_queue.poll_idle(cx)).await;
            if let Some(error) = zone_queue.failed() {
                return Err(error);
            }
            if zone_queue.done() == capacity {
                return Ok(());
            }
            let target = Target::Zone(shared.device.geometry().start(zone));
            let command = Command::Manage { target, action: Action::Finish };
            let status =
                shared.device.submit(zone_queue.queue, Request::bare(command)).await.status;
            if !status.is_ok() {
                let what = format!("finish of zone {zone}");
                return Err(Error::device(&shared.device.name(), what, status));
            }
            shared.counters.borrow_mut().finishes += 1;
            zone_queue.finished();
            Ok(())
        });
        task.await
    }

    /// Takes `zone` out of use: the zone was reset, or is full and needs no bookkeeping. Gives back
    /// the zone's permit and forgets its failure.
    ///
    /// # Panics
    /// If writes to the zone are in flight.
    pub fn forget(&self, zone: ZoneId) {
        let zone_queue = self.0.zone_queues.borrow_mut()[zone.0 as usize].take();
        if let Some(zone_queue) = zone_queue {
            assert!(zone_queue.is_idle(), "zone {zone} forgotten with writes in flight");
            drop(zone_queue.retire());
        }
        self.0.shared.failed.drop_of(zone);
    }

    /// Returns the writer's counters.
    pub fn counters(&self) -> Counters {
        *self.0.shared.counters.borrow()
    }

    pub(crate) fn count_reset(&self) {
        self.0.shared.counters.borrow_mut().resets += 1;
    }

    /// Does what [`Writer::forget`] does, unless writes to the zone are in flight, which happens
    /// only with the defect that resets zones too early.
    pub(crate) fn forget_reset(&self, zone: ZoneId) {
        if self.zone_queue(zone).is_none_or(|zone_queue| zone_queue.is_idle()) {
            self.forget(zone);
        }
    }
}

mod audit;
pub(crate) mod counters;
pub(crate) mod failed_zones;
mod failure;
mod flush;
mod flush_round;
pub(crate) mod options;
#[cfg(test)]
mod tests;
mod write_handle;
pub(crate) mod zone_write;

pub use counters::{Counters, Kind};
pub use failed_zones::Failure;
pub use flush_round::EarlyFlush;
pub use options::{Order, WriterOptions};
pub use write_handle::WriteHandle;
pub use zone_write::{Durability, Payload, Placement, WriteObserver, ZoneWrite};
