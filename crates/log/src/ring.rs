//! The record ring: records one after the other, in two halves of whole zones.
//!
//! An engine appends records to one half. When the half is full it *turns*: the other half begins
//! with all that counts, written whole, and the first is released once that is durable. So one half
//! always holds a whole beginning, and a power cut in the middle of a turn costs nothing.
//!
//! Invariants
//! - A record never crosses the end of a zone: what is left of the zone is filled with zeros.
//! - Records of a half lie in the order of their sequence numbers.
//! - Each half needs an active-zone permit while it holds something: within a half a zone is not
//!   begun before the one before it is full. Nothing is filled or finished for a turn.
//!
//! It does not know what the records say.

use crate::address::{BlockAddr, blocks_per_zone, blocks_written, read_blocks};
use crate::budget::Permit;
use crate::pool::{ReleaseProof, ZonePool};
use crate::record::{self, Expect, RecordHeader, RecordId, blocks_for};
use crate::writer::{Durability, Kind, Writer, Written};
use furrow_rt::Pool;
use furrow_zone::{
    Error, ErrorKind, Geometry, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};

/// The zones of a ring: two halves, each of consecutive zones, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingZones {
    /// First zone of the first half.
    pub start: u32,
    /// Zones of each half.
    pub half: u32,
}

impl RingZones {
    /// Zones of a half, in order.
    pub fn zones(&self, half: u8) -> impl Iterator<Item = ZoneId> + use<> {
        let first = self.start + u32::from(half) * self.half;
        (first..first + self.half).map(ZoneId)
    }

    /// The first zone behind the ring.
    pub fn end(&self) -> u32 {
        self.start + 2 * self.half
    }
}

/// A record that was found.
#[derive(Clone, Debug)]
pub struct FoundRecord {
    /// Its header.
    pub header: RecordHeader,
    /// Its body.
    pub body: Vec<u8>,
}

/// Reads the records of a half in their order, up to the first place where there is none: `each`
/// gets one after the other, and says whether to go on.
///
/// # Errors
/// `Io` if a block that was written cannot be read, or what `each` returned. A record that is torn
/// or damaged ends the half: whether one was to be there is for the caller to know.
pub async fn read_half(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    zones: impl Iterator<Item = ZoneId>,
    pages: &Pool,
    mut each: impl FnMut(FoundRecord) -> Result<bool>,
) -> Result<()> {
    let geometry = device.geometry();
    for zone in zones {
        let missing = || Error::new(ErrorKind::Io, format!("{}: no report", device.name()));
        let report = reports.get(zone.0 as usize).ok_or_else(missing)?;
        let (mut at, end) = (0, blocks_written(report, geometry));
        while at < end {
            let Some(record) = record_at(device, zone, at, end, pages).await? else {
                // The next zone is entered where zeros fill this one up.
                if at > 0 && is_filled(device, zone, at, pages).await? {
                    break;
                }
                return Ok(());
            };
            at += record.header.blocks();
            if !each(record)? {
                return Ok(());
            }
        }
        if at == 0 {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether block `at` holds the zeros that fill a zone up.
async fn is_filled(device: &dyn ZonedDevice, zone: ZoneId, at: u32, pages: &Pool) -> Result<bool> {
    let addr = BlockAddr::new(device.geometry(), zone, at);
    let page = read_blocks(device, QueueId(0), addr, 1, pages).await?;
    Ok(page[0].bytes().iter().all(|byte| *byte == 0))
}

/// The record at block `at` of a zone that was written up to `end`, if there is a whole one.
async fn record_at(
    device: &dyn ZonedDevice,
    zone: ZoneId,
    at: u32,
    end: u32,
    pages: &Pool,
) -> Result<Option<FoundRecord>> {
    let addr = BlockAddr::new(device.geometry(), zone, at);
    let first = read_blocks(device, QueueId(0), addr, 1, pages).await?;
    let Some(header) = record::peek(first[0].bytes()) else { return Ok(None) };
    if header.blocks() == 0 || header.blocks() > end - at {
        return Ok(None);
    }
    let whole = match header.blocks() {
        1 => first,
        blocks => read_blocks(device, QueueId(0), addr, blocks, pages).await?,
    };
    let bytes: Vec<u8> = whole.iter().flat_map(|page| page.iter().copied()).collect();
    match record::open(&bytes, &Expect { kind: header.kind.get(), ..Expect::default() }) {
        Ok((header, body)) => Ok(Some(FoundRecord { header, body: body.to_vec() })),
        Err(error) if error.kind() == ErrorKind::WrongFormat => Err(error.at(device.name())),
        Err(_) => Ok(None),
    }
}

/// The writing end of a ring.
pub struct RecordRing {
    writer: Writer,
    pages: Pool,
    zones: RingZones,
    half: u8,
    /// The zone of the half that is written, counted from its first.
    current: u32,
    /// Whether the other half is empty on the drive.
    other_clean: bool,
    /// For the zone of the other half that a power cut left active.
    other_permit: Option<Permit>,
}

impl RecordRing {
    /// A ring that goes on in the empty `half`; the other one may hold what it will. The permits
    /// are for the zones of this half and of the other.
    pub fn begin(
        writer: &Writer,
        pages: &Pool,
        zones: RingZones,
        half: u8,
        (permit, other_permit): (Option<Permit>, Option<Permit>),
    ) -> RecordRing {
        let (writer, pages) = (writer.clone(), pages.clone());
        let other_clean = false;
        let ring = RecordRing { writer, pages, zones, half, current: 0, other_clean, other_permit };
        ring.open_first(permit);
        ring
    }

    fn open_first(&self, permit: Option<Permit>) {
        let first = self.zone(0);
        self.writer.open_empty(first);
        self.writer.keep_permit(first);
        if let Some(permit) = permit {
            self.writer.attach(first, permit);
        }
    }

    /// Which half is written.
    pub fn half(&self) -> u8 {
        self.half
    }

    fn zone(&self, current: u32) -> ZoneId {
        ZoneId(self.zones.start + u32::from(self.half) * self.zones.half + current)
    }

    fn capacity(&self) -> u32 {
        blocks_per_zone(self.writer.geometry())
    }

    /// Blocks that are left of the half, if nothing is lost at the ends of zones.
    pub fn room(&self) -> u32 {
        let zones = self.zones.half - self.current - 1;
        self.writer.room(self.zone(self.current)) + zones * self.capacity()
    }

    /// Whether a record with a body of `body` bytes fits what is left of the half.
    pub fn fits(&self, body: usize) -> bool {
        let blocks = blocks_for(body);
        blocks <= self.capacity()
            && (blocks <= self.writer.room(self.zone(self.current))
                || self.current + 1 < self.zones.half)
    }

    /// Appends a record and dispatches it.
    ///
    /// # Errors
    /// `NoSpace` if it does not fit: the ring has to turn. Nothing was done then.
    pub fn append(&mut self, id: &RecordId, body: &[u8]) -> Result<Written> {
        if !self.fits(body.len()) {
            let (blocks, room) = (blocks_for(body.len()), self.room());
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("a record of {blocks} blocks, {room} are left of the ring's half"),
            ));
        }
        let mut zone = self.zone(self.current);
        if blocks_for(body.len()) > self.writer.room(zone) {
            drop(self.writer.fill(zone, self.capacity()));
            let previous = zone;
            self.current += 1;
            zone = self.zone(self.current);
            self.writer.open_zone_after(zone, previous);
            self.writer.keep_permit(zone);
        }
        let pages = record::seal(id, body, &self.pages);
        Ok(self.writer.write(zone, Kind::Checkpoint, pages, Durability::Cached).1)
    }

    /// Goes on in the other half, which must be empty, with a permit for its zones.
    ///
    /// # Errors
    /// `Busy` if the other half was not released yet.
    pub fn turn(&mut self, permit: Option<Permit>) -> Result<()> {
        if !self.other_clean {
            let message = "the other half of the record ring was not released yet";
            return Err(Error::new(ErrorKind::Busy, message));
        }
        (self.half, self.current, self.other_clean) = (1 - self.half, 0, false);
        self.open_first(permit);
        Ok(())
    }

    /// Zones of the half that is not written.
    pub fn other(&self) -> impl Iterator<Item = ZoneId> + use<> {
        self.zones.zones(1 - self.half)
    }

    /// The zones of the half that is not written are empty.
    pub fn other_released(&mut self) {
        self.other_clean = true;
        self.other_permit = None;
    }
}

/// Empties zones one by one, those that are not empty.
///
/// # Errors
/// As [`ZonePool::release_zone`].
pub async fn release_zones(
    pool: &ZonePool,
    device: &dyn ZonedDevice,
    zones: impl Iterator<Item = ZoneId>,
    proof: ReleaseProof,
) -> Result<()> {
    for zone in zones {
        let refused = |s| Error::device(&device.name(), format!("report of zone {zone}"), s);
        let reports = device.report(zone, 1).map_err(refused)?;
        if reports.first().is_some_and(|report| report.state != ZoneState::Empty) {
            pool.release_zone(zone, proof).await?;
        }
    }
    Ok(())
}

/// Zones of a half for records of so many bytes in all, of a drive like this: at least one, and at
/// most 64.
pub fn half_for(geometry: &Geometry, bytes: u64) -> u32 {
    let zone = u64::from(blocks_per_zone(geometry)) * crate::format::BLOCK_SIZE as u64;
    bytes.div_ceil(zone.max(1)).clamp(1, 64) as u32
}
