//! Finds the record ring on a drive: where halves begin, which of them counts, and whether an
//! offline zone may have held a newer one.

use crate::format::{INCOMPAT_KNOWN, INCOMPAT_ROLES, SuperblockBody, kind};
use crate::recover::{Opened, Replay};
use furrow_log::address::{blocks_begun, blocks_per_zone};
use furrow_log::record::{self, RecordHeader};
use furrow_log::ring::{
    FoundRecord, HALF_MAX, RingRole, RingZones, SPARES_MAX, is_offline, read_half,
};
use furrow_log::{BlockAddr, read_blocks, survey};
use furrow_rt::Pool;
use furrow_zone::{
    Error, ErrorKind, Geometry, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use std::collections::BTreeSet;
use zerocopy::FromBytes;

/// Zones of a drive in which a half of the ring may begin.
pub(crate) const MAY_BEGIN: u32 = 2 * HALF_MAX + SPARES_MAX;

/// The content of a half of the ring.
struct Half {
    header: RecordHeader,
    replay: Replay,
}

/// The superblock of a half of the ring.
#[derive(Clone)]
pub(crate) struct Superblock {
    pub(crate) body: SuperblockBody,
    pub(crate) ring: RingZones,
    /// Zones of the half, in order.
    pub(crate) zones: Vec<ZoneId>,
    /// Zones of the ring that had failed.
    pub(crate) failed: BTreeSet<ZoneId>,
}

/// The ring of a drive.
pub(crate) struct FoundRing {
    pub(crate) zones: RingZones,
    /// The halves found, newest turn first.
    pub(crate) halves: Vec<(u64, Superblock)>,
}

/// Reads a half of the ring; `None` if it does not begin with a superblock and a whole snapshot.
async fn read(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    zones: &[ZoneId],
    pages: &Pool,
) -> Result<Option<Half>> {
    let mut half: Option<Half> = None;
    let mut broken = None;
    read_half(device, reports, zones.iter().copied(), pages, |record| {
        let sequence = record.header.sequence.get();
        match &mut half {
            None => {
                if superblock_of(device, &record)?.is_none() {
                    return Ok(false);
                }
                let replay = Replay { record: sequence, ..Replay::default() };
                half = Some(Half { header: record.header, replay });
            }
            Some(half) => {
                let same = record.header.kind.get() == kind::ENTRIES
                    && record.header.object == half.header.object
                    && record.header.epoch == half.header.epoch
                    && sequence == half.replay.record + 1;
                if !same {
                    return Ok(false);
                }
                // A whole record with impossible content is damage, not the end of the half.
                if let Err(error) = half.replay.apply(&record) {
                    broken = Some(error.at(format!("{}: record {sequence}", device.name())));
                    return Ok(false);
                }
            }
        }
        Ok(true)
    })
    .await?;
    match (half.filter(|half| half.replay.whole), broken) {
        (Some(_), Some(error)) => Err(error),
        (half, _) => Ok(half),
    }
}

/// The superblock in a record; `None` if the record is none, or an invalid one.
pub(crate) fn superblock_of(
    device: &dyn ZonedDevice,
    record: &FoundRecord,
) -> Result<Option<Superblock>> {
    if record.header.kind.get() != kind::SUPERBLOCK {
        return Ok(None);
    }
    let Ok((body, roles)) = SuperblockBody::read_from_prefix(&record.body) else {
        return Ok(None);
    };
    let wrong = |what: String| Err(Error::new(ErrorKind::WrongFormat, what).at(device.name()));
    let unknown = body.incompat.get() & !INCOMPAT_KNOWN;
    if unknown != 0 {
        return wrong(format!(
            "the store has features this program does not know ({unknown:#x}): use a newer version"
        ));
    }
    let geometry = device.geometry();
    let (zones, blocks) = (body.zones.get(), body.zone_blocks.get());
    let expected = (geometry.zones, blocks_per_zone(geometry));
    if (zones, blocks) != expected {
        return wrong(format!(
            "a store of {zones} zones of {blocks} blocks, the drive has {} of {}",
            expected.0, expected.1
        ));
    }
    let (start, half, spares) =
        (body.ring_start.get(), body.half_zones.get(), body.spare_zones.get());
    let ring = RingZones { start, half, spares };
    let fits = start == geometry.conventional_zones
        && (1..=HALF_MAX).contains(&half)
        && spares <= SPARES_MAX
        && ring.end() < geometry.zones;
    if !fits {
        return Ok(None);
    }
    let (mut of_half, mut failed) = (Vec::new(), BTreeSet::new());
    if body.incompat.get() & INCOMPAT_ROLES != 0 {
        if roles.len() != ring.count() as usize {
            return Ok(None);
        }
        for (zone, role) in ring.zones().zip(roles) {
            match RingRole::from_byte(*role) {
                Some(RingRole::Other) => {}
                Some(RingRole::Half) => of_half.push(zone),
                Some(RingRole::Failed) => drop(failed.insert(zone)),
                None => return Ok(None),
            }
        }
    }
    Ok(Some(Superblock { body, ring, zones: of_half, failed }))
}

/// Finds the halves of the ring by their superblocks, each in the first zone of its half. Nothing
/// is found in offline zones; the caller judges whether they may have held the newest half.
///
/// # Errors
/// `Io` if a zone cannot be read although the drive lists it as readable, `WrongFormat` if this
/// program does not know the store's format.
pub(crate) async fn find_ring(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    pages: &Pool,
) -> Result<Option<FoundRing>> {
    let geometry = device.geometry();
    let mut halves: Vec<(u64, Superblock)> = Vec::new();
    let may_begin = (geometry.conventional_zones..geometry.zones).map(ZoneId);
    for zone in may_begin.take(MAY_BEGIN as usize) {
        if halves.first().is_some_and(|(_, found)| !found.ring.has(zone)) {
            break;
        }
        if reports[zone.0 as usize].state == ZoneState::Offline {
            continue;
        }
        let mut found = None;
        read_half(device, reports, std::iter::once(zone), pages, |record| {
            found = superblock_of(device, &record)?.map(|body| (record.header.epoch.get(), body));
            Ok(false)
        })
        .await?;
        let Some((turn, mut superblock)) = found else { continue };
        if superblock.zones.is_empty() {
            // Without that feature the halves are adjacent.
            let RingZones { start, half, .. } = superblock.ring;
            if zone.0 == start || zone.0 == start + half {
                superblock.zones = (zone.0..zone.0 + half).map(ZoneId).collect();
            }
        }
        if superblock.zones.first() == Some(&zone) {
            halves.push((turn, superblock));
        }
    }
    halves.sort_by_key(|(turn, _)| std::cmp::Reverse(*turn));
    let Some(zones) = halves.first().map(|(_, newest)| newest.ring) else { return Ok(None) };
    Ok(Some(FoundRing { zones, halves }))
}

/// The first offline zone in which a store may have begun.
pub(crate) fn offline_beginning(geometry: &Geometry, reports: &[ZoneReport]) -> Option<ZoneId> {
    let first = geometry.conventional_zones as usize;
    let mut may_begin = reports.iter().skip(first).take(MAY_BEGIN as usize);
    may_begin.find(|report| report.state == ZoneState::Offline).map(|report| report.zone)
}

/// The error that there is no store, as far as can be seen.
pub(crate) fn none_found(device: &dyn ZonedDevice, reports: &[ZoneReport]) -> Error {
    match offline_beginning(device.geometry(), reports) {
        Some(zone) => {
            let message = format!(
                "{}: no store is found, but zone {zone} is offline, where one may have begun",
                device.name()
            );
            Error::new(ErrorKind::Io, message)
        }
        None => Error::new(ErrorKind::WrongFormat, format!("{}: no store", device.name())),
    }
}

/// An offline zone that may have held something newer than this half. If the half's first zone
/// could have been emptied and still holds data, no newer half ever counted.
pub(crate) fn may_be_newer(half: &Superblock, reports: &[ZoneReport]) -> Option<ZoneId> {
    let state = |zone: ZoneId| reports.get(zone.0 as usize).map(|report| report.state);
    let first = half.zones.first().copied()?;
    if state(first) != Some(ZoneState::ReadOnly) {
        return None;
    }
    let offline = |zone: &ZoneId| state(*zone) == Some(ZoneState::Offline);
    half.ring.zones().find(|zone| offline(zone) && !half.failed.contains(zone))
}

/// Reads the newest half with a whole snapshot; with `older` even if a newer one may be missing.
pub(crate) async fn find(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    pages: &Pool,
    older: bool,
) -> Result<Opened> {
    let geometry = device.geometry();
    BlockAddr::check(geometry).map_err(|error| error.at(device.name()))?;
    let Some(ring) = find_ring(device, reports, pages).await? else {
        return Err(none_found(device, reports));
    };
    for (turn, superblock) in ring.halves {
        let there = |zone: &ZoneId| reports[zone.0 as usize].state != ZoneState::Offline || !older;
        let zones: Vec<ZoneId> = superblock.zones.iter().copied().take_while(there).collect();
        let Some(found) = read(device, reports, &zones, pages).await? else { continue };
        if let Some(zone) = may_be_newer(&superblock, reports).filter(|_| !older) {
            return Err(is_offline(device, zone));
        }
        let label = superblock.body.label;
        let label = label.split(|byte| *byte == 0).next().unwrap_or_default();
        return Ok(Opened {
            label: String::from_utf8_lossy(label).into_owned(),
            created: superblock.body.created.get(),
            uuid: found.header.object,
            device: found.header.device,
            ring: superblock.ring,
            half: superblock.zones,
            failed: superblock.failed,
            turn,
            replay: found.replay,
        });
    }
    if let Some(zone) = offline_beginning(geometry, reports).filter(|zone| ring.zones.has(*zone)) {
        return Err(is_offline(device, zone));
    }
    let message = "no half of the record ring has a whole snapshot";
    Err(Error::new(ErrorKind::Corrupt, message).at(device.name()))
}

/// Whether a drive begins as a store does.
///
/// # Errors
/// `Io` if the drive does not answer.
pub async fn is_store(device: &dyn ZonedDevice) -> Result<bool> {
    let geometry = device.geometry();
    let pages = Pool::new(8);
    let reports = survey::reports(device).await?;
    for zone in (geometry.conventional_zones..geometry.zones).take(MAY_BEGIN as usize) {
        if blocks_begun(&reports[zone as usize], geometry) == 0 {
            continue;
        }
        let at = BlockAddr::new(geometry, ZoneId(zone), 0);
        let Ok(page) = read_blocks(device, QueueId(0), at, 1, &pages).await else { continue };
        let header = record::peek(page[0].bytes());
        if header.is_some_and(|header| header.kind.get() == kind::SUPERBLOCK) {
            return Ok(true);
        }
    }
    Ok(false)
}
