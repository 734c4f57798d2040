//! A drive of the array: its writer, its zones, its permits, and the ring of its state records.
//!
//! Invariants
//! - At any moment one zone of the ring holds a whole state record: the other zone is reset only
//!   after a newer one is durable.
//! - One permit is reserved for the ring, regardless of the needs of segments.

use crate::format::{INCOMPAT_KNOWN, RING_ZONES, kind};
use crate::volume::Options;
use furrow_log::address::blocks_begun;
use furrow_log::budget::{Budget, Class};
use furrow_log::pool::{DurableSnapshot, ZonePool, describe};
use furrow_log::record::{self, Expect, RecordHeader};
pub(crate) use furrow_log::survey::reports;
use furrow_log::writer::{Durability, Kind, Order, Writer, WriterOptions, ZoneWrite};
use furrow_log::{BlockAddr, read_blocks};
use furrow_policy::{AppendPieces, Join, ZoneWrites};
use furrow_rt::{Pages, Pool, Rt};
use furrow_zone::{
    Error, ErrorKind, Geometry, QueueId, Result, Status, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Permits of a drive without a limit.
const UNLIMITED: u32 = 64;

/// Number of commands that waiting appended chunks are merged into; fewer if they would be below 16
/// KiB.
pub const APPEND_PIECES: u32 = 2;

/// How drives are written to.
#[derive(Clone, Copy, Debug)]
pub struct DriveOptions {
    /// Hardware queues of each drive.
    pub queues: u16,
    /// Most commands in flight per zone.
    pub depth: u32,
}

impl Default for DriveOptions {
    fn default() -> Self {
        DriveOptions { queues: 4, depth: 16 }
    }
}

/// The newest record found in a drive's ring.
pub(crate) struct Found {
    pub(crate) header: RecordHeader,
    pub(crate) body: Vec<u8>,
    /// The record's zone of the ring: 0 or 1.
    pub(crate) ring: u32,
}

impl Found {
    /// Whether it is the record of a spare rather than the state of an array.
    pub(crate) fn is_spare(&self) -> bool {
        self.header.kind.get() == kind::SPARE
    }

    /// State records come before records of spares, newer ones before older ones.
    fn rank(&self) -> (bool, u64) {
        (!self.is_spare(), self.header.sequence.get())
    }
}

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
    ring: Cell<u32>,
    /// Whether the other zone of the ring holds anything.
    other: Cell<bool>,
    /// Zones that hold data and belong to no segment: being filled by a rebuild, found by recovery
    /// to belong to nothing, being emptied, or impossible to empty.
    pub(crate) loose: RefCell<BTreeSet<ZoneId>>,
    /// The drive seemed to be gone when zone metadata was read.
    missed: Cell<bool>,
}

/// First zone of the ring: conventional zones are not used.
pub(crate) fn ring_start(geometry: &Geometry) -> u32 {
    geometry.conventional_zones
}

/// Reads the newest whole state record of a drive, or its record as a spare; `None` if the drive
/// has neither.
///
/// # Errors
/// `Io` if the drive is gone, or if no record was found and a block cannot be read; `WrongFormat`
/// if the newest is of a version that this program does not know.
pub(crate) async fn newest_state(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    pages: &Pool,
) -> Result<Option<Found>> {
    let mut best: Option<Found> = None;
    let mut unread = None;
    for ring in 0..RING_ZONES {
        let zone = ring_start(device.geometry()) + ring;
        let Some(report) = reports.get(zone as usize) else { break };
        let end = blocks_begun(report, device.geometry());
        let mut at = 0;
        while at < end {
            match state_at(device, ZoneId(zone), at, end, pages).await {
                Ok(Some((header, body))) => {
                    at += header.blocks();
                    let found = Found { header, body, ring };
                    if best.as_ref().is_none_or(|best| found.rank() > best.rank()) {
                        best = Some(found);
                    }
                }
                Ok(None) => at += 1,
                Err(error) if error.kind() == ErrorKind::WrongFormat => return Err(error),
                Err(error) if error.is_gone() => return Err(error),
                Err(error) => {
                    // A full or closed zone may end before its capacity; blocks beyond that cannot
                    // be read.
                    if error.kind() != ErrorKind::Corrupt {
                        unread = Some(error);
                    }
                    at += 1;
                }
            }
        }
    }
    match (best, unread) {
        (None, Some(error)) => Err(error),
        (best, _) => Ok(best),
    }
}

/// The state record, or record of a spare, at block `at` of a ring zone, if it is whole.
async fn state_at(
    device: &dyn ZonedDevice,
    zone: ZoneId,
    at: u32,
    end: u32,
    pages: &Pool,
) -> Result<Option<(RecordHeader, Vec<u8>)>> {
    let address = BlockAddr::new(device.geometry(), zone, at);
    let first = read_blocks(device, QueueId(0), address, 1, pages).await?;
    let Some(header) = record::peek(first[0].bytes()) else { return Ok(None) };
    if header.blocks() > end - at {
        return Ok(None);
    }
    let whole = read_blocks(device, QueueId(0), address, header.blocks(), pages).await?;
    let bytes: Vec<u8> = whole.iter().flat_map(|page| page.iter().copied()).collect();
    let wanted = if header.kind.get() == kind::SPARE { kind::SPARE } else { kind::STATE };
    match record::open(&bytes, &Expect { kind: wanted, ..Expect::default() }) {
        Ok((header, body)) => {
            check_features(body).map_err(|error| error.at(device.name()))?;
            Ok(Some((header, body.to_vec())))
        }
        Err(error) if error.kind() == ErrorKind::WrongFormat && header.kind.get() == wanted => {
            Err(error.at(device.name()))
        }
        Err(_) => Ok(None),
    }
}

/// Refuses records of a newer version.
fn check_features(body: &[u8]) -> Result<()> {
    let incompat = body.get(16..24).map(|bytes| {
        u64::from_le_bytes(bytes.try_into().expect("invariant: eight bytes were taken"))
    });
    match incompat {
        Some(bits) if bits & !INCOMPAT_KNOWN != 0 => Err(Error::new(
            ErrorKind::WrongFormat,
            format!(
                "the array has features this program does not know ({:#x}): use a newer version",
                bits & !INCOMPAT_KNOWN
            ),
        )),
        _ => Ok(()),
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.writer.let_go();
    }
}

impl Drive {
    /// Opens a drive in the state of its reports; `ring` is the zone of the ring to continue in.
    pub(crate) fn open(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        reports: &[ZoneReport],
        ring: u32,
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
        let other = reports[(start + 1 - ring) as usize].state != ZoneState::Empty;
        let drive = Drive {
            device,
            writer,
            zones,
            budget,
            ring: Cell::new(ring),
            other: Cell::new(other),
            loose: RefCell::default(),
            missed: Cell::default(),
        };
        let zone = drive.ring_zone();
        let report = &reports[zone.0 as usize];
        drive.writer.open_reported(report);
        if report.state == ZoneState::Empty || report.state.is_active() {
            drive.attach_ring();
        }
        Ok(drive)
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn ring_zone(&self) -> ZoneId {
        ZoneId(ring_start(self.geometry()) + self.ring.get())
    }

    fn attach_ring(&self) {
        // The class's reserve is only for the ring. No permit is available only while a finished
        // zone has not yet given its permit back, and the zone's queue waits for that.
        if let Some(permit) = self.budget.try_acquire(Class::Metadata, 1) {
            self.writer.attach(self.ring_zone(), permit);
        }
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

    /// Writes a state record; durable when this returns.
    ///
    /// # Errors
    /// If both zones of the ring refuse the record.
    pub(crate) async fn write_state(&self, record: Pages) -> Result<()> {
        let blocks = record.len() as u32;
        let mut last = None;
        for _ in 0..RING_ZONES {
            if self.writer.space_left(self.ring_zone()) < blocks {
                self.turn_ring().await?;
            }
            let (zone, newer) = (self.ring_zone(), self.zones.snapshot());
            let written = self.writer.submit(ZoneWrite {
                durability: Durability::Fua,
                ..ZoneWrite::pages(zone, Kind::Checkpoint, record.clone())
            });
            match newer.committed(written).await {
                Ok(durable) => return self.clear_other(&durable).await,
                Err(error) if !self.answers() => return Err(error),
                Err(error) => last = Some(error),
            }
            // The zone cannot be written: its content stays until the other zone has a record.
            self.turn_ring().await?;
        }
        Err(last.expect("invariant: the loop ends early or with an error"))
    }

    /// Continues in the ring's other zone, and empties that zone first if necessary.
    async fn turn_ring(&self) -> Result<()> {
        let old = self.ring_zone();
        // The permit passes from one zone to the other; otherwise both zones would need one at
        // once.
        let _ = self.writer.finish(old).await;
        self.ring.set(1 - self.ring.get());
        let zone = self.ring_zone();
        if self.other.replace(true) {
            let durable = self.zones.snapshot().flushed().await?;
            self.zones.release_zone(zone, &durable).await?;
        }
        self.writer.open_empty(zone);
        self.attach_ring();
        Ok(())
    }

    /// A record is durable: the other zone is not needed any more.
    async fn clear_other(&self, durable: &DurableSnapshot) -> Result<()> {
        if !self.other.get() {
            return Ok(());
        }
        let other = ZoneId(ring_start(self.geometry()) + 1 - self.ring.get());
        if self.zones.release_zone(other, durable).await.is_ok() {
            self.other.set(false);
        }
        Ok(())
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
