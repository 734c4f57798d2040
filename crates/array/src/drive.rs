//! A drive of the array: its writer, its zones and its permits.
//!
//! Invariants
//! - One permit is reserved for the state ring, however many permits segments need.

use crate::format::RING_ZONES;
use crate::state_ring::{Holds, StateRing, ring_start};
use furrow_log::budget::{Budget, Class};
use furrow_log::pool::{DurableSnapshot, ZonePool, describe};
pub use furrow_log::survey::reports;
use furrow_log::writer::{Writer, WriterOptions};
use furrow_log::{BlockAddr, read_blocks};
use furrow_rt::{Pages, Pool, Rt};
use furrow_zone::{
    Error, Geometry, QueueId, Result, Status, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Number of permits for a drive that does not limit its active zones.
const UNLIMITED: u32 = 64;

/// A drive of the array.
///
/// Invariants
/// - A zone of the pool that is full or active belongs to a segment, or is in `loose`.
/// - Permits are held for zones in use, and for a segment or a rebuilt zone that is about to begin.
pub struct Drive {
    pub(crate) device: Rc<dyn ZonedDevice>,
    pub(crate) writer: Writer,
    pub(crate) zones: ZonePool,
    pub(crate) budget: Budget,
    pub(crate) ring: StateRing,
    /// Zones that hold data and belong to no segment: a rebuild is filling them, recovery found
    /// them without a segment, or they are being emptied or cannot be emptied.
    pub(crate) loose: RefCell<BTreeSet<ZoneId>>,
    /// Whether the drive seemed to be gone during a read of metadata.
    missed: Cell<u64>,
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.writer.let_go();
    }
}

impl Drive {
    /// Opens a drive, given the states of its zones (`reports`) and the content of its state ring
    /// (`ring`).
    pub fn open(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        reports: &[ZoneReport],
        ring: Holds,
        writer: &WriterOptions,
    ) -> Result<Drive> {
        let geometry = device.geometry().clone();
        let start = ring_start(&geometry);
        let bad: Vec<ZoneId> = reports
            .iter()
            .filter(|r| matches!(r.state, ZoneState::ReadOnly | ZoneState::Offline))
            .map(|r| r.zone)
            .collect();
        let writer = Writer::with_options(rt, device.clone(), writer.clone());
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

    /// The drive's geometry.
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    /// The device behind this drive.
    #[inline]
    pub fn device(&self) -> &Rc<dyn ZonedDevice> {
        &self.device
    }

    /// The writer of the drive's zones.
    #[inline]
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// The pool of the zones after the state ring.
    #[inline]
    pub fn zones(&self) -> &ZonePool {
        &self.zones
    }

    /// The budget of active zones.
    #[inline]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Zones that hold data and belong to no segment.
    pub fn loose(&self) -> Ref<'_, BTreeSet<ZoneId>> {
        self.loose.borrow()
    }

    /// Reads blocks of metadata, such as headers and footers. Notes if the drive is gone; see
    /// [`Drive::has_missed`].
    pub async fn read(&self, at: BlockAddr, blocks: u32, pages: &Pool) -> Result<Pages> {
        let read = read_blocks(&*self.device, QueueId(0), at, blocks, pages).await;
        if read.as_ref().is_err_and(Error::is_gone) {
            self.missed.set(self.missed.get() + 1);
        }
        read
    }

    /// Notes the status of a read command for metadata: an internal error may mean that the drive
    /// is gone.
    pub fn note(&self, status: Status) {
        self.missed.set(self.missed.get() + u64::from(status == Status::InternalError));
    }

    /// Whether the drive was gone, even for a moment, during a read of metadata: that read
    /// proves nothing.
    pub fn has_missed(&self) -> bool {
        self.misses() > 0
    }

    /// Number of reads of metadata during which the drive was gone.
    pub fn misses(&self) -> u64 {
        self.missed.get()
    }

    /// Whether the drive answers.
    pub fn answers(&self) -> bool {
        self.device.answers()
    }

    /// Notes that a zone holds data and belongs to no segment.
    pub fn note_loose(&self, zone: ZoneId) {
        self.loose.borrow_mut().insert(zone);
    }

    /// Notes that a zone belongs to a segment, or is empty.
    pub fn note_held(&self, zone: ZoneId) {
        self.loose.borrow_mut().remove(&zone);
    }

    /// Empties a zone that no longer belongs to a segment, after making the drive's present content
    /// durable. A zone that cannot be reset leaves the pool.
    ///
    /// # Errors
    /// An error if the drive does not answer; the zone then stays full.
    pub async fn empty(&self, zone: ZoneId) -> Result<()> {
        let Some(owner) = self.zones.owner(zone) else { return Ok(()) };
        self.note_loose(zone);
        let snapshot = self.zones.snapshot();
        snapshot.note_empty(owner);
        let durable = snapshot.flushed().await?;
        self.empty_by(zone, &durable).await
    }

    /// Empties a zone that no longer belongs to a segment; the snapshot `durable` proves that the
    /// zone's content is not needed.
    ///
    /// # Errors
    /// An error if the drive does not answer; the zone then stays full.
    pub async fn empty_by(&self, zone: ZoneId, durable: &DurableSnapshot) -> Result<()> {
        let Some(owner) = self.zones.owner(zone) else { return Ok(()) };
        self.note_loose(zone);
        self.zones.release(owner, durable).await?;
        self.note_held(zone);
        Ok(())
    }
}
