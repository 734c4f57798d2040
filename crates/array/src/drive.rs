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
use furrow_zone::{Geometry, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice};
use std::cell::{Ref, RefCell};
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
    /// The device's count of misses when this was opened.
    missed_before: u64,
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
        let missed_before = device.misses();
        let drive = Drive {
            device,
            writer,
            zones,
            budget,
            ring: StateRing::new(ring, &reports[start as usize..]),
            loose: RefCell::default(),
            missed_before,
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

    /// Reads blocks of metadata, such as headers and footers.
    pub async fn read(&self, at: BlockAddr, blocks: u32, pages: &Pool) -> Result<Pages> {
        read_blocks(&*self.device, QueueId(0), at, blocks, pages).await
    }

    /// Number of commands since the assembly that the drive answered as one that is gone: what a
    /// read of that time did not find proves nothing.
    pub fn misses(&self) -> u64 {
        self.device.misses() - self.missed_before
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
