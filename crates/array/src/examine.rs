//! Reads what a drive's records say about its array, and looks for signs of an array on a drive
//! with damaged records.

use crate::drive::reports;
use crate::format::{MemberEntry, RING_ZONES, kind};
use crate::level::Level;
use crate::member::MemberState;
use crate::record::Record;
use crate::state_ring::{Damage, Found, Holds, RingRead, read_ring, ring_start};
use crate::{spare, stale};
use furrow_log::address::blocks_begun;
use furrow_log::record::{self, Expect};
use furrow_log::{BlockAddr, Uuid, read_blocks};
use furrow_rt::{Boxed, Pool};
use furrow_zone::{Error, ErrorKind, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice};
use std::rc::Rc;

/// Figures from a state record's payload, for reports about a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Number of blocks that the array's user serves.
    pub blocks: u64,
    /// Number of blocks written up to the record.
    pub written_blocks: u64,
    /// Number of segments begun up to the record.
    pub segments: u64,
}

/// Reads the payload of a state record, in the format of the array's user; an error says what is
/// wrong with the payload.
pub type ReadPayload = fn(&Record) -> std::result::Result<Told, &'static str>;

/// The content of a drive's newest state record.
#[derive(Clone, Debug)]
pub struct Examined {
    /// UUID of the array.
    pub array: Uuid,
    /// UUID of the drive in the array.
    pub device: Uuid,
    /// The drive's member number; `None` for a spare.
    pub member: Option<u32>,
    /// Number of members.
    pub drives: u32,
    /// RAID level.
    pub level: Level,
    /// Name of the array.
    pub label: String,
    /// The array's count of events in the newest state record.
    pub events: u64,
    /// Size of the volume in blocks.
    pub blocks: u64,
    /// When the array was made, seconds since 1970.
    pub created: i64,
    /// Whether the array was stopped cleanly.
    pub clean: bool,
    /// The members according to this drive's record; empty for a spare.
    pub members: Vec<(Uuid, MemberState)>,
    /// Number of the newest whole state record on the drive.
    pub record: u64,
    /// For each member, the number of the newest state record that the member certainly has; 0:
    /// not known.
    pub known: Vec<u64>,
    /// For each member, the array's count of events when the member was last in service.
    pub served: Vec<u64>,
    /// When the newest state record was written, seconds since 1970; 0: not known.
    pub recorded: i64,
    /// Number of the assembly that wrote the newest state record.
    pub epoch: u64,
    /// Number of the checkpoint in the newest state record.
    pub checkpoint: u64,
    /// Number of blocks written up to that checkpoint, with mapping blocks and trim records. Moved
    /// blocks do not count again.
    pub written_blocks: u64,
    /// Number of segments begun up to that checkpoint.
    pub segments: u64,
    /// If a newer record is damaged: its number, or 0 if the number cannot be read.
    pub damaged: Option<u64>,
}

impl Examined {
    /// For tests: the first state of a new array, as its member `member` has recorded it.
    #[cfg(test)]
    pub(crate) fn sample(
        array: Uuid,
        level: Level,
        members: Vec<(Uuid, MemberState)>,
        member: u32,
    ) -> Examined {
        let drives = members.len() as u32;
        Examined {
            array,
            device: members[member as usize].0,
            member: Some(member),
            drives,
            level,
            label: String::new(),
            events: 1,
            blocks: 1,
            created: 0,
            clean: true,
            members,
            record: 1,
            known: vec![0; drives as usize],
            served: vec![1; drives as usize],
            recorded: 0,
            epoch: 1,
            checkpoint: 1,
            written_blocks: 0,
            segments: 0,
            damaged: None,
        }
    }

    /// Whether this stands for a member without a whole record; see [`Damaged::stand_in`].
    pub(crate) fn is_stand_in(&self) -> bool {
        self.record == 0 && self.damaged.is_some()
    }
}

/// A drive without a whole record that still shows signs of being a member or a spare.
#[derive(Clone, Debug)]
pub struct Damaged {
    /// UUIDs of the array and of the drive, from the remains of records and from headers
    /// of segments.
    pub signs: Vec<(Uuid, Uuid)>,
}

impl Damaged {
    /// The newest state of the array, in the form in which this drive would have recorded it.
    /// `None` if that state does not name the drive as a member.
    pub fn stand_in(&self, newest: &Examined) -> Option<Examined> {
        let known = |(array, device): &(Uuid, Uuid)| {
            let seat = newest.members.iter().position(|(uuid, _)| uuid == device)?;
            (*array == newest.array).then_some((seat, *device))
        };
        let (seat, device) = self.signs.iter().find_map(known)?;
        let member = u32::try_from(seat).ok();
        let (damaged, clean) = (Some(0), false);
        Some(Examined { device, member, record: 0, events: 0, damaged, clean, ..newest.clone() })
    }
}

/// Decodes a state record that was found on a drive, and its payload.
///
/// # Errors
/// `Corrupt` if the content of the record or of its payload is invalid.
pub(crate) fn open(found: &Found, name: &str, read: ReadPayload) -> Result<(Record, Told)> {
    let whole = Record::decode(&found.body, found.header.object);
    let read = whole.and_then(|record| read(&record).map(|told| (record, told)));
    read.map_err(|what| Error::new(ErrorKind::Corrupt, format!("{name}: state record: {what}")))
}

/// The content of a state record and its payload, in the form for reports.
pub(crate) fn says(record: &Record, told: Told, found: &Found, ring: &RingRead) -> Examined {
    let state = |m: &MemberEntry| MemberState::from_byte(m.state).unwrap_or(MemberState::Failed);
    let number = |damage: &Damage| damage.header.map_or(0, |header| header.sequence.get());
    Examined {
        array: found.header.object,
        device: found.header.device,
        member: Some(record.member),
        drives: record.identity.drives,
        level: record.identity.level,
        label: record.identity.label.clone(),
        events: record.events,
        blocks: told.blocks,
        created: record.identity.created,
        clean: record.clean,
        members: record.members.iter().map(|m| (m.uuid, state(m))).collect(),
        record: found.header.sequence.get(),
        known: record.members.iter().map(|m| stale::known(&found.header, m)).collect(),
        served: record.members.iter().map(|m| m.events.get()).collect(),
        recorded: record.recorded,
        epoch: found.header.epoch.get(),
        checkpoint: found.header.checkpoint.get(),
        written_blocks: told.written_blocks,
        segments: told.segments,
        damaged: ring.newest_damaged().map(number),
    }
}

/// Reads what `device` records about its array.
///
/// # Errors
/// `NotFound` if the drive belongs to no array, `WrongFormat` if the array is of a newer version,
/// `Corrupt` if the drive's records are damaged, `Io` if the drive cannot be read.
#[inline(never)]
pub fn examine(device: &dyn ZonedDevice, read: ReadPayload) -> Boxed<'_, Result<Examined>> {
    Box::pin(async move {
        let (found, ring, _) = find(device).await?;
        if found.is_spare() {
            return spare::examined(&found, &device.name());
        }
        let (record, told) = open(&found, &device.name(), read)?;
        Ok(says(&record, told, &found, &ring))
    })
}

/// The error for a drive that has no whole record.
///
/// # Errors
/// `Corrupt` if the drive shows that it is a member or spare with damaged records, `NotFound` if it
/// shows no such sign.
pub(crate) fn no_record(name: &str, ring: &RingRead, damaged: &Damaged) -> Error {
    let Some((array, device)) = damaged.signs.first() else {
        let what = format!(
            "{name}: not a member of a Furrow array: make one with `furrow raid create`, or check \
             the device"
        );
        return Error::new(ErrorKind::NotFound, what);
    };
    let place = match ring.damage.first() {
        Some(damage) => format!(" at zone {} block {}", damage.zone, damage.block),
        None => String::new(),
    };
    let what = format!(
        "{name}: damaged record of a Furrow array member{place}: it is drive {device} of \
         array {array}: assemble it with the other members, whose records replace the damaged one; \
         do not make anything else of it"
    );
    Error::new(ErrorKind::Corrupt, what)
}

/// Looks for signs that a drive without a whole record is a member or spare nevertheless. `None` if
/// the drive has a whole record, or no such sign.
///
/// # Errors
/// `WrongFormat` if the array is of a newer version, `Io` if the drive cannot be read.
#[inline(never)]
pub fn damaged_member(device: &dyn ZonedDevice) -> Boxed<'_, Result<Option<Damaged>>> {
    Box::pin(async move {
        let zones = reports(device).await?;
        let ring = read_ring(device, &zones, &Pool::new(64)).await?;
        if ring.newest.is_some() {
            return Ok(None);
        }
        let damaged = signs(device, &ring, &zones).await?;
        Ok(Some(damaged).filter(|damaged| !damaged.signs.is_empty()))
    })
}

/// The signs of an array on a drive without a whole record.
async fn signs(device: &dyn ZonedDevice, ring: &RingRead, zones: &[ZoneReport]) -> Result<Damaged> {
    let pages = Pool::new(64);
    let mut signs = Vec::new();
    // Whole segment headers come first, since a damaged record cannot be verified.
    for report in zones.iter().skip((ring_start(device.geometry()) + RING_ZONES) as usize) {
        if blocks_begun(report, device.geometry()) == 0 {
            continue;
        }
        let at = BlockAddr::new(device.geometry(), report.zone, 0);
        let first = match read_blocks(device, QueueId(0), at, 1, &pages).await {
            Ok(first) => first,
            Err(error) if error.is_gone() => return Err(error),
            Err(_) => continue,
        };
        let expect = Expect { kind: kind::SEGMENT, ..Expect::default() };
        if let Ok((header, _)) = record::open(first[0].bytes(), &expect) {
            signs.push((header.object, header.device));
            break;
        }
    }
    let headers = ring.damage.iter().filter_map(|damage| damage.header);
    signs.extend(headers.map(|header| (header.object, header.device)));
    Ok(Damaged { signs })
}

/// The newest record of a drive, the rest of its state ring, and the reports of its zones.
///
/// # Errors
/// The errors of [`examine`].
pub async fn find(device: &dyn ZonedDevice) -> Result<(Found, RingRead, Vec<ZoneReport>)> {
    match look(device).await? {
        Looked::Record(found, ring, zones) => Ok((found, ring, zones)),
        Looked::Damaged(damaged, ring, _) => Err(no_record(&device.name(), &ring, &damaged)),
    }
}

/// The content that was found in a drive's state ring.
pub(crate) enum Looked {
    /// The drive has a whole record.
    Record(Found, RingRead, Vec<ZoneReport>),
    /// The drive has no whole record, and shows these signs.
    Damaged(Damaged, RingRead, Vec<ZoneReport>),
}

/// Reads a drive's state ring, and looks for signs if it has no whole record.
pub(crate) async fn look(device: &dyn ZonedDevice) -> Result<Looked> {
    let zones = reports(device).await?;
    let mut ring = read_ring(device, &zones, &Pool::new(64)).await?;
    if let Some(found) = ring.newest.take() {
        return Ok(Looked::Record(found, ring, zones));
    }
    let damaged = signs(device, &ring, &zones).await?;
    match ring.unread.take() {
        Some(error) if damaged.signs.is_empty() => Err(error),
        _ => Ok(Looked::Damaged(damaged, ring, zones)),
    }
}

/// Fails if a drive is not empty.
///
/// # Errors
/// `Exists` if the drive is not empty, `Io` if it does not answer.
#[inline(never)]
pub fn check_empty(device: &dyn ZonedDevice) -> Boxed<'_, Result<()>> {
    Box::pin(async move {
        let used = |zone: &ZoneReport| !matches!(zone.state, ZoneState::Empty | ZoneState::Offline);
        let Some(used) = reports(device).await?.into_iter().find(used) else { return Ok(()) };
        let (name, zone) = (device.name(), used.zone);
        let what = format!(
            "{name}: zone {zone} is not empty: use --force if what the drive holds may be lost"
        );
        Err(Error::new(ErrorKind::Exists, what))
    })
}

/// Empties every zone that is not empty and can be reset. Returns the reports of all
/// zones afterwards.
pub async fn erase(device: &dyn ZonedDevice) -> Result<Vec<ZoneReport>> {
    erase_but(device, None).await
}

/// Like [`erase`], but keeps zone `ring` of the state ring.
pub async fn erase_but(device: &dyn ZonedDevice, ring: Option<u32>) -> Result<Vec<ZoneReport>> {
    let zones = reports(device).await?;
    furrow_log::survey::check_capacities(device, &zones)?;
    let kept = ring.map(|ring| ZoneId(ring_start(device.geometry()) + ring));
    let held = |zone: &&ZoneReport| {
        Some(zone.zone) != kept
            && !matches!(zone.state, ZoneState::Empty | ZoneState::Offline | ZoneState::ReadOnly)
            && !device.geometry().is_conventional(zone.zone)
    };
    for zone in zones.iter().filter(held) {
        let command = furrow_zone::Command::reset(device.geometry(), zone.zone);
        let request = furrow_zone::Request::bare(command);
        let status = device.submit(furrow_zone::QueueId(0), request).await.status;
        if !status.is_ok() {
            let what = format!("reset of zone {}", zone.zone);
            return Err(Error::device(&device.name(), what, status));
        }
    }
    reports(device).await
}

/// A drive given to [`assemble`](crate::assemble), with its newest record.
pub(crate) struct Given {
    pub(crate) device: Rc<dyn ZonedDevice>,
    pub(crate) found: Found,
    /// The content of the drive's state ring, which decides how the ring is continued.
    pub(crate) holds: Holds,
    pub(crate) zones: Vec<ZoneReport>,
}
