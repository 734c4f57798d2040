//! The state ring: how a drive's state records are read and written.
//!
//! Invariants
//! - Only a [`Spare`] is ever emptied, never the zone with the newest whole record. That zone
//!   becomes a spare when the drive has acknowledged a newer record in the other zone. So the last
//!   record stays, however often the drive refuses new ones.
//! - Records are written one at a time, with FUA, so only the last one of a zone can be torn.

use crate::drive::Drive;
use crate::format::{INCOMPAT_KNOWN, RING_ZONES, kind};
use furrow_log::address::{blocks_begun, blocks_written};
use furrow_log::budget::Class;
use furrow_log::pool::DurableSnapshot;
use furrow_log::record::{self, Expect, RecordHeader};
use furrow_log::writer::{Durability, Kind, ZoneWrite};
use furrow_log::{BlockAddr, read_blocks};
use furrow_rt::buf::{concat, is_zero};
use furrow_rt::{Pages, Pool};
use furrow_zone::{
    Error, ErrorKind, Geometry, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use std::cell::{Cell, RefCell};
use zerocopy::FromBytes;

/// A whole record that was found in a drive's state ring.
pub struct Found {
    /// Header of the record.
    pub header: RecordHeader,
    /// Body of the record.
    pub body: Vec<u8>,
    /// Zone of the ring that has the record: 0 or 1.
    pub ring: u32,
    /// First block of the record in that zone.
    at: u32,
}

impl Found {
    /// How the ring is continued if this is its newest record.
    pub fn holds(&self, ring: &RingRead) -> Holds {
        Holds::Record { ring: self.ring, damaged: !ring.damage.is_empty() }
    }

    /// Whether the record is a spare's instead of a state record.
    pub fn is_spare(&self) -> bool {
        self.header.kind.get() == kind::SPARE
    }

    /// Ranks records: state records above spares' records, then newer ones above older ones.
    fn rank(&self) -> (bool, u64) {
        (!self.is_spare(), self.header.sequence.get())
    }
}

/// Written blocks of the ring that hold no whole record.
pub struct Damage {
    /// Zone of the blocks.
    pub zone: ZoneId,
    /// The first of the blocks.
    pub block: u32,
    /// Unverified header of the last record in the blocks, if it looks like that of a member
    /// or spare.
    pub header: Option<RecordHeader>,
    /// Whether the damaged record was the newest: no newer whole one is on the drive.
    pub newest: bool,
    /// Whether the drive failed to read the blocks; otherwise their content is wrong.
    pub unread: bool,
}

/// The content of a drive's state ring.
pub struct RingRead {
    /// The newest whole record, if there is one.
    pub newest: Option<Found>,
    /// Damaged records, not counting the torn end of a write that was never acknowledged.
    pub damage: Vec<Damage>,
    /// One of the errors of blocks that could not be read.
    pub unread: Option<Error>,
}

impl RingRead {
    /// The damage of a record that was newer than every whole record, if there is such damage.
    pub fn newest_damaged(&self) -> Option<&Damage> {
        self.damage.iter().find(|damage| damage.newest)
    }
}

/// First zone of the state ring: it comes after the conventional zones, which are not used.
pub fn ring_start(geometry: &Geometry) -> u32 {
    geometry.conventional_zones
}

/// Reads all records of a drive's state ring.
///
/// # Errors
/// `Io` if the drive is gone; `WrongFormat` if a record is of a version that this program does not
/// know.
pub async fn read_ring(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    pages: &Pool,
) -> Result<RingRead> {
    let mut read = RingRead { newest: None, damage: Vec::new(), unread: None };
    let mut whole = [false; RING_ZONES as usize];
    for ring in 0..RING_ZONES {
        let zone = ZoneId(ring_start(device.geometry()) + ring);
        let Some(report) = reports.get(zone.0 as usize) else { break };
        let end = blocks_begun(report, device.geometry());
        // Only whole blocks count: a block that the drive has only in part was never acknowledged.
        let complete = blocks_written(report, device.geometry());
        let (mut at, mut bad) = (0, None);
        while at < end {
            let found = match place(device, zone, at, end, pages).await? {
                Place::Record(header, body) => {
                    read.damage.extend(bad.take().and_then(|bad: Bad| bad.before(at)));
                    let found = Found { header, body, ring, at };
                    at += header.blocks();
                    whole[ring as usize] = true;
                    if read.newest.as_ref().is_none_or(|best| found.rank() > best.rank()) {
                        read.newest = Some(found);
                    }
                    continue;
                }
                other if at < complete => other,
                _ => Place::Torn(1),
            };
            let bad = bad.get_or_insert_with(|| Bad::new(zone, at));
            // In a zone that was finished early or became read-only, blocks before `end` may never
            // have been written, so zeros there do not prove damage.
            let rest = matches!(report.state, ZoneState::Full | ZoneState::ReadOnly);
            match found {
                Place::Torn(blocks) => bad.spans(at, blocks),
                Place::Empty => bad.certain |= !rest && at >= bad.end,
                Place::Damaged(header, blocks) => {
                    bad.certain |= at >= bad.end;
                    // The last header belongs to the newest record. Blocks inside that record have
                    // no header, so the header found before is kept.
                    if at >= bad.end || header.is_some() {
                        bad.damage.header = header;
                    }
                    bad.spans(at, blocks);
                }
                Place::Unread(error) => {
                    read.unread = Some(error);
                    bad.certain |= !rest;
                    bad.damage.unread = true;
                }
                Place::Record(..) => {}
            }
            at += 1;
        }
        read.damage.extend(bad.and_then(Bad::at_end));
    }
    let newest = read.newest.as_ref().map(|found| (found.ring, found.at));
    for damage in &mut read.damage {
        let ring = damage.zone.0 - ring_start(device.geometry());
        damage.newest = match newest {
            Some((of, at)) if of == ring => damage.block > at,
            // This damage is in the zone without the newest record. The ring only enters an empty
            // zone. So if the damaged zone has a whole record, the ring left the zone before the
            // newest record was written.
            _ => !whole[ring as usize],
        };
    }
    Ok(read)
}

/// Consecutive blocks without a whole record.
struct Bad {
    damage: Damage,
    /// Whether the blocks are certainly not the torn end of a write.
    certain: bool,
    /// The first block after all records that headers in these blocks announce.
    end: u32,
}

impl Bad {
    fn new(zone: ZoneId, block: u32) -> Bad {
        let damage = Damage { zone, block, header: None, newest: false, unread: false };
        Bad { damage, certain: false, end: 0 }
    }

    fn spans(&mut self, at: u32, blocks: u32) {
        self.end = self.end.max(at.saturating_add(blocks));
    }

    /// The damage before a whole record at block `at`. `None` if that record lies within the blocks
    /// that a torn record's header claims: then the torn record was never acknowledged.
    fn before(self, at: u32) -> Option<Damage> {
        (self.end <= at && (self.certain || self.end == 0)).then_some(self.damage)
    }

    fn at_end(self) -> Option<Damage> {
        self.certain.then_some(self.damage)
    }
}

/// The content found at a block of the ring.
enum Place {
    Record(RecordHeader, Vec<u8>),
    /// The beginning of a record of this number of blocks; its end was never written.
    Torn(u32),
    /// Zeros.
    Empty,
    /// Other content, or a record of this number of blocks that is not whole.
    Damaged(Option<RecordHeader>, u32),
    Unread(Error),
}

async fn place(
    device: &dyn ZonedDevice,
    zone: ZoneId,
    at: u32,
    end: u32,
    pages: &Pool,
) -> Result<Place> {
    let unread = |error: Error| match error.is_gone() {
        true => Err(error),
        false => Ok(Place::Unread(error)),
    };
    let address = BlockAddr::new(device.geometry(), zone, at);
    let first = match read_blocks(device, QueueId(0), address, 1, pages).await {
        Ok(first) => first,
        // The block, or its end, was never written.
        Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Place::Torn(1)),
        Err(error) => return unread(error),
    };
    if is_zero(first[0].bytes()) {
        return Ok(Place::Empty);
    }
    let Some(header) = record::peek(first[0].bytes()) else {
        return Ok(Place::Damaged(looks_like_ours(first[0].bytes()), 0));
    };
    if header.blocks() > end - at {
        return Ok(Place::Torn(header.blocks()));
    }
    let whole = match read_blocks(device, QueueId(0), address, header.blocks(), pages).await {
        Ok(whole) => whole,
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            return Ok(Place::Torn(header.blocks()));
        }
        Err(error) => return unread(error),
    };
    let bytes = concat(&whole);
    let wanted = if header.kind.get() == kind::SPARE { kind::SPARE } else { kind::STATE };
    match record::open(&bytes, &Expect { kind: wanted, ..Expect::default() }) {
        Ok((header, body)) => {
            check_features(body).map_err(|error| error.at(device.name()))?;
            Ok(Place::Record(header, body.to_vec()))
        }
        Err(error) if error.kind() == ErrorKind::WrongFormat && header.kind.get() == wanted => {
            Err(error.at(device.name()))
        }
        // A whole record of another kind, for example of a file system.
        Err(_) if is_whole(&bytes, header.kind.get()) => Ok(Place::Damaged(None, header.blocks())),
        Err(_) if is_torn(&whole, &bytes, device.geometry()) => Ok(Place::Torn(header.blocks())),
        Err(_) => Ok(Place::Damaged(looks_like_ours(first[0].bytes()), header.blocks())),
    }
}

fn is_whole(bytes: &[u8], kind: u16) -> bool {
    record::open(bytes, &Expect { kind, ..Expect::default() }).is_ok()
}

/// Whether the end of a record was never written: the drive then returns zeros there.
fn is_torn(pages: &Pages, bytes: &[u8], geometry: &Geometry) -> bool {
    let missing = pages.len() > 1 && pages.last().is_some_and(|page| is_zero(page.bytes()));
    missing || record::may_be_cut_off(bytes, geometry.block_size.0 as usize)
}

/// The header of a damaged block, if enough of it is intact to recognize the record of a member
/// or spare.
fn looks_like_ours(bytes: &[u8]) -> Option<RecordHeader> {
    let (header, _) = RecordHeader::read_from_prefix(bytes).ok()?;
    let signs = [
        header.magic.get() == furrow_log::format::RECORD_MAGIC,
        matches!(header.kind.get(), kind::STATE | kind::SPARE),
        header.version.get() == furrow_log::format::RECORD_VERSION,
        is_zero(&header.reserved),
    ];
    (signs.iter().filter(|sign| **sign).count() >= 3).then_some(header)
}

/// Fails if a record has incompatible features that this version does not know.
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

/// The content of a drive's state ring, which decides how the ring is continued.
#[derive(Clone, Copy, Debug)]
pub enum Holds {
    /// The ring has no whole record.
    Nothing,
    /// The ring has a whole record.
    Record {
        /// Zone of the ring with the newest whole record: 0 or 1.
        ring: u32,
        /// Whether the ring holds damaged records.
        damaged: bool,
    },
}

/// Writes records to a drive's state ring.
pub struct StateRing {
    /// The zone of the ring to which records are written.
    current: Cell<u32>,
    /// Whether the current zone takes no more records.
    closed: Cell<bool>,
    /// Whether each zone of the ring holds data.
    used: [Cell<bool>; RING_ZONES as usize],
    newest: RefCell<Option<Newest>>,
    /// The other zone of the ring, if that zone can never be emptied. Then no record can be written
    /// once the current zone is full.
    lost: Cell<Option<ZoneId>>,
}

/// The newest whole record, which was found at assembly or written and acknowledged since.
struct Newest {
    ring: u32,
    /// Proof that the record is durable. `None` for a record that was found at assembly: it may be
    /// only in the drive's cache.
    proof: Option<DurableSnapshot>,
}

/// The zone of the ring without the newest whole record: the only one that may be emptied.
struct Spare {
    ring: u32,
    proof: Option<DurableSnapshot>,
}

impl StateRing {
    /// The ring of a drive, with the content `holds`; `reports` are those of the ring's zones.
    pub fn new(holds: Holds, reports: &[ZoneReport]) -> StateRing {
        let used = |ring: usize| reports.get(ring).is_some_and(|r| r.state != ZoneState::Empty);
        let (current, closed, newest) = match holds {
            Holds::Nothing => (0, used(0), None),
            Holds::Record { ring, damaged } => (ring, damaged, Some(Newest { ring, proof: None })),
        };
        StateRing {
            current: Cell::new(current),
            closed: Cell::new(closed),
            used: std::array::from_fn(|ring| Cell::new(used(ring))),
            newest: RefCell::new(newest),
            lost: Cell::new(None),
        }
    }

    fn spare(&self) -> Spare {
        match &*self.newest.borrow() {
            Some(newest) => Spare { ring: 1 - newest.ring, proof: newest.proof.clone() },
            None => Spare { ring: 1 - self.current.get(), proof: None },
        }
    }
}

impl Drive {
    fn ring_zone(&self, ring: u32) -> ZoneId {
        ZoneId(ring_start(self.geometry()) + ring)
    }

    /// Takes the current zone of the ring into use, at the write pointer that its report gives.
    pub fn open_ring(&self, reports: &[ZoneReport]) {
        let zone = self.ring_zone(self.ring.current.get());
        let report = &reports[zone.0 as usize];
        self.writer.open_reported(report);
        if report.state == ZoneState::Empty || report.state.is_active() {
            self.attach_ring(zone);
        }
    }

    fn attach_ring(&self, zone: ZoneId) {
        // Only the ring uses this class's reserve. If no permit is available, a finished zone has
        // not yet given its permit back; the queue of the new zone waits for that.
        if let Some(permit) = self.budget.try_acquire(Class::Metadata, 1) {
            self.writer.attach(zone, permit);
        }
    }

    /// Writes a state record, which is durable when the call returns.
    ///
    /// # Errors
    /// An error if the drive does not answer, or if neither zone of the ring takes the record; the
    /// drive then still has the previous record.
    pub async fn write_state(&self, record: Pages) -> Result<()> {
        let blocks = record.len() as u32;
        let mut last = None;
        for _ in 0..RING_ZONES {
            let full = self.writer.space_left(self.ring_zone(self.ring.current.get())) < blocks;
            if full || self.ring.closed.get() {
                self.turn_ring().await?;
            }
            let ring = self.ring.current.get();
            self.ring.used[ring as usize].set(true);
            let newer = self.zones.snapshot();
            let written = self.writer.submit(ZoneWrite {
                durability: Durability::Fua,
                ..ZoneWrite::pages(self.ring_zone(ring), Kind::Checkpoint, record.clone())
            });
            match newer.committed(written).await {
                Ok(durable) => {
                    self.ring.newest.replace(Some(Newest { ring, proof: Some(durable) }));
                    return self.clear_spare().await;
                }
                Err(error) if !self.answers() => return Err(error),
                // The record is tried next in the zone without the newest whole record.
                Err(error) => last = Some(error),
            }
            self.ring.closed.set(true);
        }
        Err(last.expect("invariant: the loop ends early or with an error"))
    }

    /// Makes the next record go to the other zone of the ring. When that record is durable, the
    /// zone of the earlier records is emptied, whatever its content.
    pub fn leave_ring_zone(&self) {
        self.ring.closed.set(true);
    }

    /// The zone of the ring to which records are written.
    pub fn ring_zone_now(&self) -> ZoneId {
        self.ring_zone(self.ring.current.get())
    }

    /// Continues the ring in the zone without the newest whole record, after emptying that zone
    /// if necessary.
    async fn turn_ring(&self) -> Result<()> {
        let old = self.ring_zone(self.ring.current.get());
        // Finishing the old zone frees its permit for the new zone; otherwise both zones would need
        // a permit at once.
        if self.writer.finish(old).await.is_err() {
            let _ = self.writer.close(old).await;
        }
        let spare = self.ring.spare();
        let ring = spare.ring;
        if self.ring.used[ring as usize].get() {
            self.empty_spare(spare).await?;
        }
        let zone = self.ring_zone(ring);
        self.writer.open_empty(zone);
        self.attach_ring(zone);
        self.ring.current.set(ring);
        self.ring.closed.set(false);
        Ok(())
    }

    /// Empties the zone without the newest record, because a newer record is durable in the
    /// current zone.
    async fn clear_spare(&self) -> Result<()> {
        let spare = self.ring.spare();
        let zone = self.ring_zone(spare.ring);
        if self.ring.used[spare.ring as usize].get() && self.empty_spare(spare).await.is_err() {
            // If the zone cannot be emptied now, it is emptied before the ring continues there.
            let report = self.device.report(zone, 1).await.ok();
            let state = report.and_then(|reports| reports.first().map(|report| report.state));
            if matches!(state, Some(ZoneState::ReadOnly | ZoneState::Offline)) {
                self.ring.lost.set(Some(zone));
            }
        }
        Ok(())
    }

    /// The zone of the ring that can never be written again, if there is one. Records can then be
    /// written only until the other zone is full.
    pub fn lost_ring_zone(&self) -> Option<ZoneId> {
        self.ring.lost.get()
    }

    async fn empty_spare(&self, spare: Spare) -> Result<()> {
        let Spare { ring, proof } = spare;
        let newest = self.ring.newest.borrow().as_ref().map(|newest| newest.ring);
        assert_ne!(newest, Some(ring), "the newest state record is in this zone of the ring");
        let proof = match proof {
            Some(proof) => proof,
            // The snapshot's flush makes the record that was found durable.
            None => self.zones.snapshot().flushed().await?,
        };
        self.zones.release_zone(self.ring_zone(ring), &proof).await?;
        self.ring.used[ring as usize].set(false);
        Ok(())
    }
}
