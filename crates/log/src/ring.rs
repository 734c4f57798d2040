//! The record ring: consecutive records, in halves of whole zones that take turns.
//!
//! An engine appends records to one half. When the half is full, the ring *turns*: the next half
//! begins with the whole state. The engine releases the old half once the new half's beginning is
//! durable, or keeps it until the next turn as a second copy of that beginning. So at any time one
//! half holds a whole beginning, and a power cut in the middle of a turn loses nothing.
//!
//! Zones fail. The ring has more zones than two halves take, and a half is made of any empty zones
//! of the ring. A zone that fails a write ends the half: the ring turns. A zone that cannot be
//! emptied is *failed*: no later half uses it.
//!
//! Invariants
//! - A record never crosses the end of a zone: the rest of the zone is filled with zeros.
//! - Records of a half lie in the order of their sequence numbers, and its zones in
//!   ascending order.
//! - A half's first zone is emptied before its other zones, so that the remains of a half are not
//!   taken for a half.
//! - Each half needs one active-zone permit while it holds records: a zone of a half is begun
//!   only when the zone before it is full. A turn neither fills nor finishes a zone, unless a
//!   zone failed.
//!
//! The ring does not know the meaning of its records.

mod audit;
#[cfg(test)]
mod tests;

use crate::address::{BlockAddr, blocks_per_zone, blocks_written, read_blocks};
use crate::budget::Permit;
use crate::pool::{DurableSnapshot, ZonePool};
use crate::record::{self, Expect, RecordHeader, RecordId, blocks_for};
use crate::writer::{Kind, WriteHandle, Writer, ZoneWrite};
use furrow_rt::buf::{concat, is_zero};
use furrow_rt::{Pages, Pool};
use furrow_zone::{
    Error, ErrorKind, Geometry, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use std::collections::BTreeSet;

/// Maximum number of zones in a half.
pub const HALF_MAX: u32 = 64;
/// Maximum number of zones beyond those of two halves.
pub const SPARES_MAX: u32 = 8;

/// The zones of a ring, which are consecutive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingZones {
    /// First zone of the ring.
    pub start: u32,
    /// Number of zones of each half. A half has fewer if too many zones of the ring have failed.
    pub half: u32,
    /// Number of zones beyond those of two halves.
    pub spares: u32,
}

impl RingZones {
    /// All zones of the ring, in order.
    pub fn zones(&self) -> impl Iterator<Item = ZoneId> + use<> {
        (self.start..self.end()).map(ZoneId)
    }

    /// Number of zones of the ring.
    pub fn count(&self) -> u32 {
        2 * self.half + self.spares
    }

    /// The first zone after the ring.
    pub fn end(&self) -> u32 {
        self.start + self.count()
    }

    /// Whether `zone` belongs to the ring.
    pub fn has(&self, zone: ZoneId) -> bool {
        (self.start..self.end()).contains(&zone.0)
    }
}

/// A record found in a ring.
#[derive(Clone, Debug)]
pub struct FoundRecord {
    /// Header of the record.
    pub header: RecordHeader,
    /// Body of the record.
    pub body: Vec<u8>,
    /// Zone of the record, and the block in the zone at which it begins.
    pub place: (ZoneId, u32),
}

/// A piece of a half, as [`read_half`] finds it.
#[derive(Clone, Debug)]
pub enum Piece {
    /// A whole record.
    Record(FoundRecord),
    /// A place (zone, block) that was written and holds no whole record: the end of the half,
    /// or damage.
    Gap(ZoneId, u32),
}

/// After a gap, the search for records in a zone stops after this many blank blocks.
const BLANK_MAX: u32 = 256;

/// Reads a half and passes its records and gaps, in order, to `each`, which returns whether to
/// continue. After a gap come all whole records in the rest of the half, wherever they begin. Only
/// the caller knows whether a record was expected in the gap, and whether the later records count.
///
/// # Errors
/// `Io` if a block that was written cannot be read, or if a zone that may hold records is offline;
/// `WrongFormat` if a record is of a newer version; or the error of `each`.
pub async fn read_half(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    zones: impl Iterator<Item = ZoneId>,
    pages: &Pool,
    mut each: impl FnMut(Piece) -> Result<bool>,
) -> Result<()> {
    let geometry = device.geometry();
    let mut gap = false;
    for zone in zones {
        let missing = || Error::new(ErrorKind::Io, format!("{}: no report", device.name()));
        let report = reports.get(zone.0 as usize).ok_or_else(missing)?;
        if report.state == ZoneState::Offline {
            return Err(is_offline(device, zone));
        }
        let (mut at, end) = (0, blocks_written(report, geometry));
        // The start of the present gap, whether `each` has got the gap, and the number of blank
        // blocks at its end.
        let (mut from, mut told, mut blank) = (None, false, 0);
        while at < end && blank < BLANK_MAX {
            let record = record_at(device, zone, at, end, pages).await?;
            let filled = match record {
                Some(_) => None,
                None => is_filled(device, zone, at, pages).await?,
            };
            if record.is_none() {
                from.get_or_insert(at);
            }
            // Zeros that fill the rest of a zone are not a gap; neither are blocks that were
            // never written.
            let is_gap = record.is_some() || at == 0 || filled == Some(false);
            if let Some(start) = from.filter(|_| is_gap && !told) {
                (gap, told) = (true, true);
                if !each(Piece::Gap(zone, start))? {
                    return Ok(());
                }
            }
            let Some(record) = record else {
                blank = if filled == Some(false) { 0 } else { blank + 1 };
                at += 1;
                continue;
            };
            at += record.header.blocks();
            (from, told, blank) = (None, false, 0);
            if !each(Piece::Record(record))? {
                return Ok(());
            }
        }
        if end < blocks_per_zone(geometry) && !gap {
            return Ok(());
        }
    }
    Ok(())
}

/// Builds the error for an offline zone of a ring, whose records may have no other copy.
pub fn is_offline(device: &dyn ZonedDevice, zone: ZoneId) -> Error {
    let message = format!(
        "{}: zone {zone} is offline, and the newest records may have been there: older records do \
         not replace them; bring the zone back, or restore a backup",
        device.name()
    );
    Error::new(ErrorKind::Io, message)
}

/// Reads blocks of a zone; `None` if the drive reports that some of them were never written.
async fn blocks_at(
    device: &dyn ZonedDevice,
    (zone, at): (ZoneId, u32),
    blocks: u32,
    pages: &Pool,
) -> Result<Option<Pages>> {
    let addr = BlockAddr::new(device.geometry(), zone, at);
    match read_blocks(device, QueueId(0), addr, blocks, pages).await {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether block `at` holds zeros, as in the filled rest of a zone; `None` if it was never written.
async fn is_filled(
    device: &dyn ZonedDevice,
    zone: ZoneId,
    at: u32,
    pages: &Pool,
) -> Result<Option<bool>> {
    let page = blocks_at(device, (zone, at), 1, pages).await?;
    let zeros = |page: Pages| page.iter().all(|page| is_zero(page.bytes()));
    Ok(page.map(zeros))
}

/// Returns the record at block `at` of a zone that was written up to `end`, if a whole record
/// is there.
async fn record_at(
    device: &dyn ZonedDevice,
    zone: ZoneId,
    at: u32,
    end: u32,
    pages: &Pool,
) -> Result<Option<FoundRecord>> {
    let Some(first) = blocks_at(device, (zone, at), 1, pages).await? else { return Ok(None) };
    let Some(header) = first.first().and_then(|page| record::peek(page.bytes())) else {
        return Ok(None);
    };
    if header.blocks() == 0 || header.blocks() > end - at {
        return Ok(None);
    }
    let whole = match header.blocks() {
        1 => Some(first),
        blocks => blocks_at(device, (zone, at), blocks, pages).await?,
    };
    let Some(whole) = whole else { return Ok(None) };
    let bytes = concat(&whole);
    match record::open(&bytes, &Expect { kind: header.kind.get(), ..Expect::default() }) {
        Ok((header, body)) => {
            Ok(Some(FoundRecord { header, body: body.to_vec(), place: (zone, at) }))
        }
        Err(error) if error.kind() == ErrorKind::WrongFormat => Err(error.at(device.name())),
        Err(_) => Ok(None),
    }
}

/// The role of a zone of a ring in relation to the half that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RingRole {
    /// The zone neither belongs to this half nor failed: later halves may use it.
    Other = 0,
    /// The zone belongs to this half.
    Half = 1,
    /// The zone failed: no later half uses it.
    Failed = 2,
}

impl RingRole {
    /// Decodes a stored role.
    pub fn from_byte(byte: u8) -> Option<RingRole> {
        [RingRole::Other, RingRole::Half, RingRole::Failed].get(usize::from(byte)).copied()
    }
}

/// The writing end of a ring.
///
/// Invariants
/// - No zone is in `half`, `old`, `kept` or `failed` twice, or in two of them.
/// - Zones of the half before `current` are written to their ends, and zones after it are empty.
///   Every zone of the ring that is in none of `half`, `old`, `kept` and `failed` is empty.
/// - Zones of `half` and `old` are emptied only with the proof that a whole beginning in another
///   half is durable, zones of `kept` only while the present half holds one.
/// - One zone of the half holds a permit.
pub struct RecordRing {
    writer: Writer,
    pages: Pool,
    zones: RingZones,
    /// Zones of the half that is being written, in order.
    half: Vec<ZoneId>,
    /// Index in `half` of the zone that is being written.
    current: usize,
    /// Zones of earlier halves that are not empty yet, in the order in which to empty them.
    old: Vec<ZoneId>,
    /// Zones of the half before the present one, if it is kept as a second copy of the present
    /// half's beginning.
    kept: Vec<ZoneId>,
    failed: BTreeSet<ZoneId>,
    /// The permit for the zone of an earlier half that a power cut left active.
    other_permit: Option<Permit>,
}

impl RecordRing {
    /// Creates a ring that is not writing a half yet: [`RecordRing::turn`] begins one. `old` are
    /// the zones of the half that counts, and `other_permit` is the permit of that half. All zones
    /// outside `old` and `failed` are empty.
    pub fn new(
        writer: &Writer,
        pages: &Pool,
        zones: RingZones,
        (old, failed): (Vec<ZoneId>, BTreeSet<ZoneId>),
        other_permit: Option<Permit>,
    ) -> RecordRing {
        let (writer, pages, half) = (writer.clone(), pages.clone(), Vec::new());
        let kept = Vec::new();
        RecordRing { writer, pages, zones, half, current: 0, old, kept, failed, other_permit }
    }

    fn capacity(&self) -> u32 {
        blocks_per_zone(self.writer.geometry())
    }

    /// Zones of the half that is being written.
    pub fn half(&self) -> &[ZoneId] {
        &self.half
    }

    /// Returns the role of each zone of the ring, in order.
    pub fn roles(&self) -> Vec<RingRole> {
        let role = |zone| match () {
            () if self.half.contains(&zone) => RingRole::Half,
            () if self.failed.contains(&zone) => RingRole::Failed,
            () => RingRole::Other,
        };
        self.zones.zones().map(role).collect()
    }

    /// Number of blocks in each later half, unless more zones of the ring fail.
    pub fn half_blocks(&self) -> u32 {
        let usable = self.zones.count().saturating_sub(self.failed.len() as u32);
        (usable / 2).clamp(1, self.zones.half) * self.capacity()
    }

    /// Number of blocks left in the half, if none are lost at the ends of zones.
    pub fn space_left(&self) -> u32 {
        let Some(zone) = self.half.get(self.current) else { return 0 };
        let behind = self.half.len() - self.current - 1;
        self.writer.space_left(*zone) + behind as u32 * self.capacity()
    }

    /// Whether records of `blocks` blocks in total, the longest of `longest` blocks, certainly fit
    /// into the half and leave `more` blocks.
    pub fn has_space(&self, (blocks, longest): (u32, u32), more: u32) -> bool {
        // A record does not cross the end of a zone, so up to `longest` blocks are lost at
        // each end.
        let ends = self.half.len().saturating_sub(1) as u32;
        longest <= self.capacity() && blocks + more + ends * longest <= self.space_left()
    }

    /// Appends a record and dispatches it. The caller guarantees that records below sequence
    /// `durable` are durable.
    ///
    /// # Errors
    /// `NoSpace` if the record does not fit: the ring has to turn. Nothing was done then.
    pub fn append(&mut self, id: &RecordId, durable: u64, body: &[u8]) -> Result<WriteHandle> {
        let (blocks, room) = (blocks_for(body.len()), self.space_left());
        let full = || {
            let message =
                format!("a record of {blocks} blocks, but the ring's half has {room} left");
            Error::new(ErrorKind::NoSpace, message)
        };
        let mut zone = *self.half.get(self.current).ok_or_else(full)?;
        if blocks > self.writer.space_left(zone) {
            let next = self.half.get(self.current + 1).filter(|_| blocks <= self.capacity());
            let next = *next.ok_or_else(full)?;
            drop(self.writer.submit(ZoneWrite::zeros_to(zone, self.capacity())));
            self.current += 1;
            self.writer.open_zone_after(next, zone);
            self.writer.keep_permit(next);
            zone = next;
        }
        let pages = record::seal_after(id, durable, body, &self.pages);
        Ok(self.writer.submit(ZoneWrite::pages(zone, Kind::Checkpoint, pages)))
    }

    /// Begins another half in empty zones, and ties `permit` to its first zone. The half's
    /// beginning takes `blocks` blocks, in records of at most `longest` blocks; if necessary the
    /// half has more zones than usual.
    ///
    /// # Errors
    /// `Io` if no empty zone is left.
    pub fn turn(&mut self, permit: Option<Permit>, (blocks, longest): (u32, u32)) -> Result<()> {
        let taken = |zone: &ZoneId| {
            let earlier = self.old.contains(zone) || self.kept.contains(zone);
            self.half.contains(zone) || earlier || self.failed.contains(zone)
        };
        let empty = self.zones.zones().filter(|zone| !taken(zone));
        let room = self.capacity().saturating_sub(longest).max(1);
        let zones = self.zones.half.max(blocks.div_ceil(room));
        let next: Vec<ZoneId> = empty.take(zones as usize).collect();
        let Some(first) = next.first().copied() else {
            let message = format!(
                "{}: no zone of the record ring (zones {} to {}) is left that can be written, {} \
                 failed: files can be read; open it again, and replace the drive if that does not \
                 help",
                self.writer.device().name(),
                self.zones.start,
                self.zones.end() - 1,
                self.failed.len()
            );
            return Err(Error::new(ErrorKind::Io, message));
        };
        // Zones that were not begun are still empty, so they need not be emptied.
        self.half.truncate(self.current + 1);
        self.old.append(&mut self.half);
        (self.half, self.current) = (next, 0);
        self.writer.open_empty(first);
        self.writer.keep_permit(first);
        if let Some(permit) = permit {
            self.writer.attach(first, permit);
        }
        Ok(())
    }

    /// Zones of the half up to the one that is being written.
    pub fn begun(&self) -> Vec<ZoneId> {
        self.half.iter().take(self.current + 1).copied().collect()
    }

    /// Ends the half after a zone failed, so that no half is being written. If the half does not
    /// count, later halves can use the half's zones that were not begun.
    pub fn end_half(&mut self, counts: bool) {
        if !counts {
            self.half.truncate(self.current + 1);
        }
        self.old.append(&mut self.half);
        self.current = 0;
    }

    /// Zones of earlier halves, in the order in which to empty them once the present half
    /// is durable.
    pub fn old(&self) -> Vec<ZoneId> {
        self.old.clone()
    }

    /// Keeps these zones of an earlier half until the ring turns again.
    pub fn keep(&mut self, zones: Vec<ZoneId>) {
        self.old.retain(|zone| !zones.contains(zone));
        self.kept = zones;
    }

    /// Zones of the kept half, to be emptied before the ring turns.
    pub fn kept(&self) -> Vec<ZoneId> {
        self.kept.clone()
    }

    /// Notes that a zone of an earlier half is empty, or has failed.
    pub fn emptied(&mut self, zone: ZoneId, empty: bool) {
        self.old.retain(|other| *other != zone);
        self.kept.retain(|other| *other != zone);
        if !empty {
            self.failed.insert(zone);
        }
        if self.old.is_empty() && self.kept.is_empty() {
            self.other_permit = None;
        }
    }
}

/// Empties a zone of a ring. Returns false if the zone failed: it cannot be reset, and is read-only
/// or offline.
///
/// # Errors
/// The errors of [`ZonePool::release_zone`].
pub async fn empty_zone(
    pool: &ZonePool,
    device: &dyn ZonedDevice,
    zone: ZoneId,
    proof: &DurableSnapshot,
) -> Result<bool> {
    let state = async || {
        let refused = |s| Error::device(&device.name(), format!("report of zone {zone}"), s);
        let reports = device.report(zone, 1).await.map_err(refused)?;
        Ok::<_, Error>(reports.first().map(|report| report.state))
    };
    let is_bad = |state| matches!(state, Some(ZoneState::ReadOnly | ZoneState::Offline));
    if state().await? == Some(ZoneState::Empty) || pool.try_release_zone(zone, proof).await? {
        return Ok(true);
    }
    // The zone holds an older half, which must not remain alongside a newer half. The zone does not
    // count as failed, because the zone could still be written.
    match is_bad(state().await?) {
        true => Ok(false),
        false => Err(Error::new(
            ErrorKind::Io,
            format!("{}: zone {zone} cannot be reset: replace the drive", device.name()),
        )),
    }
}

/// Number of zones of a half for records of `bytes` in total, on a drive of `geometry`: at least
/// one, and at most [`HALF_MAX`].
pub fn half_for(geometry: &Geometry, bytes: u64) -> u32 {
    let zone = u64::from(blocks_per_zone(geometry)) * crate::format::BLOCK_SIZE as u64;
    bytes.div_ceil(zone.max(1)).clamp(1, u64::from(HALF_MAX)) as u32
}
