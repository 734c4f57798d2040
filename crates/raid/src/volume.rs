//! The volume: what its parts share, and the calls of its users.
//!
//! Invariants
//! - A write is acknowledged only when all chunks of its stripes are written, except those of
//!   drives out of service, and when the failures of these drives are durably recorded on the
//!   others. A flush makes chunks in volatile caches durable.
//! - The map names a block only when its stripe is complete, so a read never finds a torn stripe.
//! - Of two blocks of one address the one with the higher sequence number is newer. Cleaning,
//!   repair and recovery move blocks without changing their sequence numbers.

use crate::counters::Counters;
use crate::format::{self, NONE};
use crate::map::Map;
use crate::options::Options;
use crate::paging::state::Paging;
use crate::segment::{Segment, SegmentState, Segments, Table};
use crate::shape::{Config, Shape};
use crate::table::StripeTable;
use crate::write::stream::Stream;
use furrow_array::event::Event;
use furrow_array::member::{Errors, Member, MemberState};
use furrow_array::service::Array;
use furrow_log::audit::{Broken, Count};
use furrow_log::{DurableSnapshot, Snapshot, Uuid};
use furrow_policy::{RaidDefect, StripeTables};
use furrow_rt::{Notify, Page, Pool, Ranges, Rt};
use furrow_zone::{Error, ErrorKind, Result};
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// Whether the volume works, is stopping, or has failed.
#[derive(Default)]
pub(crate) struct Life {
    dead: RefCell<Option<Error>>,
    stopping: Cell<bool>,
    stopped: Cell<bool>,
    /// Whether the assembly is over.
    pub(crate) serves: Cell<bool>,
}

/// The state that the parts of a volume share.
pub(crate) struct Inner {
    pub(crate) rt: Rt,
    pub(crate) config: Config,
    pub(crate) shape: Shape,
    pub(crate) options: Options,
    pub(crate) array: Array,
    pub(crate) segments: Table,
    pub(crate) paging: Rc<Paging>,
    pub(crate) meta: crate::meta::inband::cache::State,
    pub(crate) streams: Vec<Rc<Stream>>,
    pub(crate) pages: Pool,
    pub(crate) zero: Page,
    pub(crate) zero_crc: u32,
    pub(crate) checkpoint: crate::checkpoint::state::State,
    pub(crate) ranges: Ranges,
    pub(crate) space: crate::space::state::Space,
    /// Signals that the volume's background tasks may have work.
    pub(crate) wanted: Notify,
    pub(crate) rebuild: crate::rebuild::state::State,
    /// Notes the first account that went below zero; the volume then fails.
    pub(crate) broken: Broken,
    pub(crate) life: Life,
    pub(crate) counters: RefCell<Counters>,
    pub(crate) lifetimes: crate::lifetime::Lifetimes,
    pub(crate) lost_blocks: crate::lost_blocks::set::LostBlocks,
    /// How often [`Volume::stop_scrub`] was called. A running scrub ends when this number changes.
    pub(crate) scrub_stops: Cell<u64>,
    pub(crate) recovered: Cell<crate::recover::unfinished::Recovered>,
}

/// A volume that is in service. A clone is another handle of the same volume.
#[derive(Clone)]
pub struct Volume(pub(crate) Rc<Inner>);

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Volume({})", self.0.array.uuid())
    }
}

impl Volume {
    /// The volume's layout: sizes and numbers of zones, rows, segments and blocks.
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// The configuration that the volume was made with.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The volume's UUID.
    pub fn uuid(&self) -> Uuid {
        self.0.array.uuid()
    }

    /// The volume's size in blocks of 4 KiB.
    pub fn blocks(&self) -> u64 {
        self.0.shape.blocks
    }

    /// The counts of the volume's work since it was assembled.
    pub fn counters(&self) -> Counters {
        *self.0.counters.borrow()
    }

    /// UUID, state and error counts of each member, in the order of members.
    pub fn members(&self) -> Vec<(Uuid, MemberState, Errors)> {
        let of = |m: &Member| (m.uuid(), m.state(), m.errors());
        self.0.array.members().iter().map(of).collect()
    }

    /// Number of blocks of the volume that hold data.
    pub fn used(&self) -> u64 {
        self.0.segments.borrow().iter().map(|segment| u64::from(segment.valid)).sum()
    }

    /// The number of segments in each state. A segment has a zone of every drive.
    pub fn segments(&self) -> Segments {
        let mut all = Segments::default();
        for segment in &*self.0.segments.borrow() {
            *match segment.state {
                SegmentState::Free => &mut all.free,
                SegmentState::Open => &mut all.open,
                SegmentState::Sealed => &mut all.sealed,
                SegmentState::Truncated => &mut all.truncated,
                SegmentState::Releasing => &mut all.releasing,
            } += 1;
        }
        all
    }

    /// An empty stripe table for a segment of `stripes` stripes in groups of `group` stripes.
    pub(crate) fn new_table(&self, stripes: u32, group: u32) -> StripeTable {
        let drives = self.0.shape.placement.n;
        match self.0.options.variant.tables {
            StripeTables::Places => StripeTable::new(stripes, drives, group),
            StripeTables::Searched => StripeTable::searched(stripes, drives, group),
        }
    }

    /// Bytes of memory that the map takes, and that the stripe tables take.
    pub fn memory(&self) -> (usize, usize) {
        let segments = self.0.segments.borrow();
        let tables = segments.iter().filter_map(|segment| segment.table.as_ref());
        (self.0.paging.map().bytes(), tables.map(|table| table.borrow().bytes()).sum())
    }

    pub(crate) fn has(&self, defect: RaidDefect) -> bool {
        self.0.options.variant.has(defect)
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.0.counters.borrow_mut());
    }

    /// Waits for the next event. Each event goes to one caller only.
    pub async fn next_event(&self) -> Event {
        self.0.array.next_event().await
    }

    pub(crate) fn tell(&self, event: Event) {
        self.0.array.tell(event);
    }

    /// The reason why nothing can be written any more; `None` while the volume can be written.
    pub fn failed(&self) -> Option<Error> {
        self.0.life.dead.borrow().clone()
    }

    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.failed() {
            Some(error) => Err(error),
            None if self.is_stopping() => {
                Err(Error::new(ErrorKind::ReadOnly, "the volume is being stopped"))
            }
            None => Ok(()),
        }
    }

    /// Makes the volume refuse requests that change it, from now on.
    pub(crate) fn begin_stop(&self) {
        self.0.life.stopping.set(true);
    }

    /// Whether requests that change the volume are refused because it is being stopped.
    pub(crate) fn is_stopping(&self) -> bool {
        self.0.life.stopping.get()
    }

    /// Lets the last background task end; nothing is left to do.
    pub(crate) fn end_stop(&self) {
        self.0.life.stopped.set(true);
    }

    /// Whether the last background task may end.
    pub(crate) fn has_stopped(&self) -> bool {
        self.0.life.stopped.get()
    }

    pub(crate) fn die(&self, error: Error) {
        if self.0.life.dead.borrow().is_none() {
            self.tell(Event::ArrayFailed { why: error.to_string() });
        }
        self.0.life.dead.borrow_mut().get_or_insert(error);
        self.0.array.give_up_noting();
        self.0.space.made.notify_all();
        self.0.wanted.notify_all();
        self.0.segments.wake_idle();
        self.give_up_paging();
        for stream in &self.0.streams {
            stream.abandon(self.failed().as_ref());
        }
    }

    pub(crate) fn check_range(&self, block: u64, count: u64) -> Result<()> {
        match block.checked_add(count) {
            Some(end) if end <= self.blocks() => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "blocks {block} + {count} are past the end of the volume of {} blocks",
                    self.blocks()
                ),
            )),
        }
    }

    /// Makes acknowledged writes durable: flushes the drives that have a volatile cache.
    ///
    /// # Errors
    /// An error if more drives have failed than the level tolerates, or if the volume is
    /// being stopped.
    pub async fn flush(&self) -> Result<()> {
        self.check_alive()?;
        if self.has(RaidDefect::SkippedFlush) {
            return Ok(());
        }
        self.flush_drives().await
    }

    pub(crate) async fn flush_drives(&self) -> Result<()> {
        let mut snapshots = self.snapshots();
        if self.has(RaidDefect::UnflushedMember)
            && let Some(last) = snapshots.last_mut()
        {
            *last = None;
        }
        self.make_durable(snapshots).await.map(drop)
    }

    /// For each member in service, a snapshot of its drive's zones.
    pub(crate) fn snapshots(&self) -> Vec<Option<Snapshot>> {
        let members = self.0.array.members().iter();
        members.map(|member| member.drive().map(|drive| drive.zones().snapshot())).collect()
    }

    /// Makes snapshots durable: flushes their drives, all at once. A drive whose flush fails is
    /// taken out of service.
    ///
    /// # Errors
    /// An error if too few members are left.
    pub(crate) async fn make_durable(
        &self,
        snapshots: Vec<Option<Snapshot>>,
    ) -> Result<Vec<Option<DurableSnapshot>>> {
        type Flight = Pin<Box<dyn Future<Output = Result<DurableSnapshot>>>>;
        // A drive without a volatile cache has no flush to wait for, so it needs no task.
        let flight = |snapshot: Snapshot, cached: bool| -> Flight {
            let flushed = snapshot.flushed();
            if cached { Box::pin(self.0.rt.spawn(flushed)) } else { Box::pin(flushed) }
        };
        let flights =
            snapshots.into_iter().zip(self.0.array.members()).map(|(snapshot, member)| {
                let cached = member.drive().is_some_and(|drive| drive.geometry().volatile_cache);
                snapshot.map(|snapshot| flight(snapshot, cached))
            });
        let flights: Vec<Option<Flight>> = flights.collect();
        let mut durable = Vec::with_capacity(flights.len());
        for (index, flight) in (0..).zip(flights) {
            durable.push(match flight {
                None => None,
                Some(flight) => match flight.await {
                    Ok(snapshot) => Some(snapshot),
                    Err(error) => {
                        self.member_failed(index, error);
                        None
                    }
                },
            });
        }
        self.failures_noted().await?;
        Ok(durable)
    }

    /// Counts one more valid block in the segment of block `number`.
    pub(crate) fn credit(&self, number: u32) {
        let slot = self.0.shape.slot(number) as usize;
        self.0.segments.borrow_mut()[slot].valid += 1;
    }

    pub(crate) fn debit(&self, number: u32) {
        if number == NONE {
            return;
        }
        let slot = self.0.shape.slot(number);
        if self.less_in(slot, "valid blocks", |segment| &mut segment.valid) == 0 {
            self.0.wanted.notify_all();
        }
    }

    /// Subtracts one from an account of a segment. Returns the new value.
    pub(crate) fn less_in(
        &self,
        slot: u32,
        account: &str,
        of: impl Fn(&mut Segment) -> &mut u32,
    ) -> u32 {
        let before = *of(&mut self.0.segments.borrow_mut()[slot as usize]);
        let left = self.less(format_args!("{account} of segment slot {slot}"), before, 1);
        *of(&mut self.0.segments.borrow_mut()[slot as usize]) = left;
        left
    }

    /// Subtracts from an account, as [`Broken::less`] describes.
    pub(crate) fn less<T: Count>(&self, account: impl Display, from: T, by: T) -> T {
        let left = self.0.broken.less(account, from, by);
        self.check_accounts();
        left
    }

    /// Makes the volume fail if an account went below zero. Nothing is written or reset from then
    /// on, since the accounts decide which segments are reset.
    pub(crate) fn check_accounts(&self) {
        if let Some(why) = self.0.broken.first() {
            let what = format!("{why}: only reads are answered");
            self.die(Error::new(ErrorKind::Corrupt, what));
        }
    }

    /// The mapped and unmapped parts of a range: the length of each, and whether it is a hole.
    ///
    /// # Errors
    /// `Invalid` if the range is past the end of the volume; `Io` or `Corrupt` if the map cannot
    /// be read.
    pub async fn extents(&self, block: u64, count: u64) -> Result<Vec<(u64, bool)>> {
        self.check_range(block, count)?;
        let (mut at, mut found): (u64, Vec<(u64, bool)>) = (block, Vec::new());
        while at < block + count {
            let leaf = Map::leaf(at);
            self.fetch(leaf, false).await?;
            let end = (block + count).min((u64::from(leaf) + 1) * u64::from(format::MAPPED));
            let map = self.0.paging.map();
            while at < end {
                let (length, hole) = map.run(at, end - at);
                at += length;
                match found.last_mut() {
                    Some(last) if last.1 == hole => last.0 += length,
                    _ => found.push((length, hole)),
                }
            }
        }
        Ok(found)
    }
}
