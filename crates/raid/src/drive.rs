//! A drive of the array: its writer, its zones and its permits.
//!
//! Invariants
//! - One permit is reserved for the ring of state records, regardless of the needs of segments.

use crate::format::RING_ZONES;
use crate::options::Options;
use crate::state_ring::{Holds, StateRing, ring_start};
use furrow_log::budget::{Budget, Class};
use furrow_log::pool::{DurableSnapshot, ZonePool, describe};
pub(crate) use furrow_log::survey::reports;
use furrow_log::writer::{Order, Writer, WriterOptions};
use furrow_log::{BlockAddr, read_blocks};
use furrow_policy::{AppendPieces, Join, ZoneWrites};
use furrow_rt::{Pages, Pool, Rt};
use furrow_zone::{
    Error, Geometry, QueueId, Result, Status, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Permits of a drive without a limit.
const UNLIMITED: u32 = 64;

/// Number of commands that waiting appended chunks are merged into; fewer if they would be below 16
/// KiB.
pub const APPEND_PIECES: u32 = 2;

/// A drive of the array.
///
/// Invariants
/// - A zone of the pool that is full or active belongs to a segment, or is in `loose`.
/// - Permits are held for zones in use, and for a segment or a rebuilt zone that is about to begin.
pub(crate) struct Drive {
    pub(crate) device: Rc<dyn ZonedDevice>,
    pub(crate) writer: Writer,
    pub(crate) zones: ZonePool,
    pub(crate) budget: Budget,
    pub(crate) ring: StateRing,
    /// Zones that hold data and belong to no segment: being filled by a rebuild, found by recovery
    /// to belong to nothing, being emptied, or impossible to empty.
    pub(crate) loose: RefCell<BTreeSet<ZoneId>>,
    /// The drive seemed to be gone when zone metadata was read.
    missed: Cell<bool>,
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.writer.let_go();
    }
}

impl Drive {
    /// Opens a drive in the state of its reports; `ring` is what its ring was found to hold.
    pub(crate) fn open(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        reports: &[ZoneReport],
        ring: Holds,
        options: &Options,
    ) -> Result<Drive> {
        let geometry = device.geometry().clone();
        let start = ring_start(&geometry);
        let bad: Vec<ZoneId> = reports
            .iter()
            .filter(|r| matches!(r.state, ZoneState::ReadOnly | ZoneState::Offline))
            .map(|r| r.zone)
            .collect();
        let variant = &options.variant;
        let writer = Writer::with_options(
            rt,
            device.clone(),
            WriterOptions {
                order: match variant.writes {
                    ZoneWrites::Append => Order::Append,
                    ZoneWrites::Blocking => Order::Blocking,
                },
                queues: options.drive.queues,
                depth: options.drive.depth,
                join: variant.join == Join::Adjacent,
                append_pieces: match variant.append_pieces {
                    AppendPieces::Chosen => APPEND_PIECES,
                    AppendPieces::Each => 0,
                    AppendPieces::Fixed(pieces) => pieces,
                },
                ..WriterOptions::default()
            },
        );
        let descriptors = describe(&geometry, ZoneId(start + RING_ZONES), 1, &bad)?;
        let zones = ZonePool::new(&writer, &descriptors, 1)?;
        let permits = geometry.max_active.unwrap_or(UNLIMITED);
        let budget = Budget::new(permits, &[(Class::Metadata, 1)]);
        let drive = Drive {
            device,
            writer,
            zones,
            budget,
            ring: StateRing::new(ring, &reports[start as usize..]),
            loose: RefCell::default(),
            missed: Cell::default(),
        };
        drive.open_ring(reports);
        Ok(drive)
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    /// Reads blocks of a zone that hold its own metadata.
    pub(crate) async fn read(&self, at: BlockAddr, blocks: u32, pages: &Pool) -> Result<Pages> {
        let read = read_blocks(&*self.device, QueueId(0), at, blocks, pages).await;
        if read.as_ref().is_err_and(Error::is_gone) {
            self.missed.set(true);
        }
        read
    }

    /// Notes the result of a read of out-of-band metadata.
    pub(crate) fn note(&self, status: Status) {
        self.missed.set(self.missed.get() || status == Status::InternalError);
    }

    /// Whether the drive was gone, even for a moment, when a zone was read: the result then proves
    /// nothing.
    pub(crate) fn has_missed(&self) -> bool {
        self.missed.get()
    }

    /// True if the drive answers.
    pub(crate) fn answers(&self) -> bool {
        self.device.answers()
    }

    /// Notes that a zone with data belongs to no segment.
    pub(crate) fn note_loose(&self, zone: ZoneId) {
        self.loose.borrow_mut().insert(zone);
    }

    /// Notes that a zone belongs to a segment, or holds nothing.
    pub(crate) fn note_held(&self, zone: ZoneId) {
        self.loose.borrow_mut().remove(&zone);
    }

    /// Empties a zone that belongs to no segment any more, once the content of the drive is
    /// durable. A zone that cannot be reset leaves the pool.
    ///
    /// # Errors
    /// If the drive does not answer; the zone stays full then.
    pub(crate) async fn empty(&self, zone: ZoneId) -> Result<()> {
        let Some(owner) = self.zones.owner(zone) else { return Ok(()) };
        self.note_loose(zone);
        let snapshot = self.zones.snapshot();
        snapshot.note_empty(owner);
        let durable = snapshot.flushed().await?;
        self.empty_by(zone, &durable).await
    }

    /// Empties a zone that belongs to no segment any more, proved by a snapshot that shows it
    /// empty.
    ///
    /// # Errors
    /// If the drive does not answer; the zone stays full then.
    pub(crate) async fn empty_by(&self, zone: ZoneId, durable: &DurableSnapshot) -> Result<()> {
        let Some(owner) = self.zones.owner(zone) else { return Ok(()) };
        self.note_loose(zone);
        self.zones.release(owner, durable).await?;
        self.note_held(zone);
        Ok(())
    }
}
