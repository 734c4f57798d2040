//! The ring of a drive's state records: how it is read, and how a record gets into it.
//!
//! Invariants
//! - The zone with the newest whole record is never emptied: only a [`Spare`] is, and the zone of
//!   the newest record becomes one only when a newer record in the other zone has been
//!   acknowledged. However often the drive refuses a record, the last one stays.
//! - Records are written one at a time, with FUA: at most the last of a zone is torn.

use crate::drive::Drive;
use crate::format::{INCOMPAT_KNOWN, RING_ZONES, kind};
use furrow_log::address::{blocks_begun, blocks_written};
use furrow_log::budget::Class;
use furrow_log::pool::DurableSnapshot;
use furrow_log::record::{self, Expect, RecordHeader};
use furrow_log::writer::{Durability, Kind, ZoneWrite};
use furrow_log::{BlockAddr, read_blocks};
use furrow_rt::{Page, Pages, Pool};
use furrow_zone::{
    Error, ErrorKind, Geometry, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use std::cell::{Cell, RefCell};
use zerocopy::FromBytes;

/// A whole record that was found in a drive's ring.
pub struct Found {
    /// Its header.
    pub header: RecordHeader,
    /// Its body.
    pub body: Vec<u8>,
    /// The record's zone of the ring: 0 or 1.
    pub ring: u32,
    /// Its first block in that zone.
    at: u32,
}

impl Found {
    /// How the ring with this newest record is continued.
    pub fn holds(&self, ring: &RingRead) -> Holds {
        Holds::Record { ring: self.ring, damaged: !ring.damage.is_empty() }
    }

    /// Whether it is the record of a spare rather than the state of an array.
    pub fn is_spare(&self) -> bool {
        self.header.kind.get() == kind::SPARE
    }

    /// State records come before records of spares, newer ones before older ones.
    fn rank(&self) -> (bool, u64) {
        (!self.is_spare(), self.header.sequence.get())
    }
}

/// Blocks of the ring that were written and hold no whole record.
pub struct Damage {
    /// Their zone.
    pub zone: ZoneId,
    /// The first of the blocks.
    pub block: u32,
    /// What the last record in them says, unverified, if it looks like that of a member or spare.
    pub header: Option<RecordHeader>,
    /// The damaged record was the newest: no newer whole one is on the drive.
    pub newest: bool,
    /// The drive cannot read it; otherwise its content is wrong.
    pub unread: bool,
}

/// What the ring of a drive was found to hold.
pub struct RingRead {
    /// The newest whole record.
    pub newest: Option<Found>,
    /// Damaged records. The torn end of a write that was never acknowledged is none.
    pub damage: Vec<Damage>,
    /// Why a block cannot be read.
    pub unread: Option<Error>,
}

impl RingRead {
    /// The damage of a record that was newer than every whole one.
    pub fn newest_damaged(&self) -> Option<&Damage> {
        self.damage.iter().find(|damage| damage.newest)
    }
}

/// First zone of the ring: conventional zones are not used.
pub fn ring_start(geometry: &Geometry) -> u32 {
    geometry.conventional_zones
}

/// Reads all records of a drive's ring.
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
        // A block of which the drive has a part was never acknowledged.
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
            // The rest of a zone that was finished early, or became read-only, was never written.
            let rest = matches!(report.state, ZoneState::Full | ZoneState::ReadOnly);
            match found {
                Place::Torn(blocks) => bad.spans(at, blocks),
                Place::Empty => bad.certain |= !rest && at >= bad.end,
                Place::Damaged(header, blocks) => {
                    bad.certain |= at >= bad.end;
                    // Of several records the last one is the newest; what is in the middle of a
                    // record has no header.
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
            // The ring continues in an empty zone: an older record there means that the zone was
            // left before the newest record was written.
            _ => !whole[ring as usize],
        };
    }
    Ok(read)
}

/// A run of blocks without a whole record.
struct Bad {
    damage: Damage,
    /// It is no torn end of a write.
    certain: bool,
    /// The block behind the last one that a record in it claims.
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

    /// The damage in front of a whole record at block `at`: none if the record begins where a torn
    /// one ended, in the middle of what that one claims.
    fn before(self, at: u32) -> Option<Damage> {
        (self.end <= at && (self.certain || self.end == 0)).then_some(self.damage)
    }

    fn at_end(self) -> Option<Damage> {
        self.certain.then_some(self.damage)
    }
}

/// What is at a block of the ring.
enum Place {
    Record(RecordHeader, Vec<u8>),
    /// The beginning of a record of that many blocks, whose end was never written.
    Torn(u32),
    /// Zeros.
    Empty,
    /// Something else, or a record of that many blocks that is not whole.
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
        // The block, or the end of it, was never written.
        Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Place::Torn(1)),
        Err(error) => return unread(error),
    };
    if is_zero(&first[0]) {
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
    let bytes: Vec<u8> = whole.iter().flat_map(|page| page.iter().copied()).collect();
    let wanted = if header.kind.get() == kind::SPARE { kind::SPARE } else { kind::STATE };
    match record::open(&bytes, &Expect { kind: wanted, ..Expect::default() }) {
        Ok((header, body)) => {
            check_features(body).map_err(|error| error.at(device.name()))?;
            Ok(Place::Record(header, body.to_vec()))
        }
        Err(error) if error.kind() == ErrorKind::WrongFormat && header.kind.get() == wanted => {
            Err(error.at(device.name()))
        }
        // A whole record of something else, such as a file system.
        Err(_) if is_whole(&bytes, header.kind.get()) => Ok(Place::Damaged(None, header.blocks())),
        Err(_) if is_torn(&whole, &bytes, device.geometry()) => Ok(Place::Torn(header.blocks())),
        Err(_) => Ok(Place::Damaged(looks_like_ours(first[0].bytes()), header.blocks())),
    }
}

fn is_whole(bytes: &[u8], kind: u16) -> bool {
    record::open(bytes, &Expect { kind, ..Expect::default() }).is_ok()
}

fn is_zero(page: &Page) -> bool {
    page.bytes().iter().all(|byte| *byte == 0)
}

/// Whether the end of a record is missing: zeros are where the drive was never written.
fn is_torn(pages: &Pages, bytes: &[u8], geometry: &Geometry) -> bool {
    let missing = pages.len() > 1 && pages.last().is_some_and(is_zero);
    missing || record::may_be_cut_off(bytes, geometry.block_size.0 as usize)
}

/// The header of a damaged block, if enough of it is left to take the block for the record of a
/// member or spare.
fn looks_like_ours(bytes: &[u8]) -> Option<RecordHeader> {
    let (header, _) = RecordHeader::read_from_prefix(bytes).ok()?;
    let signs = [
        header.magic.get() == furrow_log::format::RECORD_MAGIC,
        matches!(header.kind.get(), kind::STATE | kind::SPARE),
        header.version.get() == furrow_log::format::RECORD_VERSION,
        header.reserved.iter().all(|byte| *byte == 0),
    ];
    (signs.iter().filter(|sign| **sign).count() >= 3).then_some(header)
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

/// How a drive's ring is continued.
#[derive(Clone, Copy, Debug)]
pub enum Holds {
    /// No whole record.
    Nothing,
    /// The newest whole record is in a zone of the ring.
    Record {
        /// Zone of the ring: 0 or 1.
        ring: u32,
        /// Whether the ring holds damaged records.
        damaged: bool,
    },
}

/// The writing end of a drive's ring.
pub struct StateRing {
    /// The zone of the ring that is written.
    current: Cell<u32>,
    /// That zone takes no more records.
    closed: Cell<bool>,
    /// Zones of the ring that hold anything.
    used: [Cell<bool>; RING_ZONES as usize],
    newest: RefCell<Option<Newest>>,
    /// The other zone, if it can never be emptied: when this one is full, there is no place for a
    /// record.
    lost: Cell<Option<ZoneId>>,
}

/// Where the newest whole record is: it was read, or its write was acknowledged.
struct Newest {
    ring: u32,
    /// Shows it durable; a record that was read may be in the drive's cache only.
    proof: Option<DurableSnapshot>,
}

/// A zone of the ring without the newest whole record: the only one that may be emptied.
struct Spare {
    ring: u32,
    proof: Option<DurableSnapshot>,
}

impl StateRing {
    /// The ring that was found to hold that; `reports` are those of its zones.
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

    /// Takes the ring's zone into use where its report says its write pointer is.
    pub fn open_ring(&self, reports: &[ZoneReport]) {
        let zone = self.ring_zone(self.ring.current.get());
        let report = &reports[zone.0 as usize];
        self.writer.open_reported(report);
        if report.state == ZoneState::Empty || report.state.is_active() {
            self.attach_ring(zone);
        }
    }

    fn attach_ring(&self, zone: ZoneId) {
        // The class's reserve is only for the ring. No permit is available only while a finished
        // zone has not yet given its permit back, and the zone's queue waits for that.
        if let Some(permit) = self.budget.try_acquire(Class::Metadata, 1) {
            self.writer.attach(zone, permit);
        }
    }

    /// Writes a state record; durable when this returns.
    ///
    /// # Errors
    /// If both zones of the ring refuse the record: the newest one is still there then.
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
                // The next record is tried in the zone without the newest whole one.
                Err(error) => last = Some(error),
            }
            self.ring.closed.set(true);
        }
        Err(last.expect("invariant: the loop ends early or with an error"))
    }

    /// The next record goes to an empty zone of the ring. When it is there, the other zone is
    /// emptied, whatever it holds.
    pub fn leave_ring_zone(&self) {
        self.ring.closed.set(true);
    }

    /// The zone of the ring that is written.
    pub fn ring_zone_now(&self) -> ZoneId {
        self.ring_zone(self.ring.current.get())
    }

    /// Continues in the ring's zone without the newest whole record, and empties it first if
    /// necessary.
    async fn turn_ring(&self) -> Result<()> {
        let old = self.ring_zone(self.ring.current.get());
        // The permit passes from one zone to the other; otherwise both zones would need one at
        // once.
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

    /// A record is durable: the other zone is not needed any more.
    async fn clear_spare(&self) -> Result<()> {
        let spare = self.ring.spare();
        let zone = self.ring_zone(spare.ring);
        if self.ring.used[spare.ring as usize].get() && self.empty_spare(spare).await.is_err() {
            // A zone that cannot be emptied now is emptied before the ring continues there.
            let report = self.device.report(zone, 1).await.ok();
            let state = report.and_then(|reports| reports.first().map(|report| report.state));
            if matches!(state, Some(ZoneState::ReadOnly | ZoneState::Offline)) {
                self.ring.lost.set(Some(zone));
            }
        }
        Ok(())
    }

    /// The zone of the ring that can never be written again, if there is one: records find place
    /// only until the other zone is full.
    pub fn lost_ring_zone(&self) -> Option<ZoneId> {
        self.ring.lost.get()
    }

    async fn empty_spare(&self, spare: Spare) -> Result<()> {
        let Spare { ring, proof } = spare;
        let newest = self.ring.newest.borrow().as_ref().map(|newest| newest.ring);
        assert_ne!(newest, Some(ring), "the newest state record is in this zone of the ring");
        let proof = match proof {
            Some(proof) => proof,
            // What was read is durable then.
            None => self.zones.snapshot().flushed().await?,
        };
        self.zones.release_zone(self.ring_zone(ring), &proof).await?;
        self.ring.used[ring as usize].set(false);
        Ok(())
    }
}
