//! Finds the record ring on a drive: where halves begin, which of them counts, and whether an
//! offline zone may have held a newer half.

use crate::format::{INCOMPAT_KNOWN, INCOMPAT_ROLES, SuperblockBody, kind};
use crate::half_reader::{HalfOf, HalfReader};
use crate::recover::{Damage, Opened, Replay};
use furrow_log::address::{blocks_begun, blocks_per_zone, blocks_written};
use furrow_log::record::{self, Uuid};
use furrow_log::ring::{
    FoundRecord, HALF_MAX, Piece, RingRole, RingZones, SPARES_MAX, is_offline, read_half,
};
use furrow_log::{BlockAddr, read_blocks, survey};
use furrow_rt::Pool;
use furrow_rt::buf::is_zero;
use furrow_zone::{
    Error, ErrorKind, Geometry, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromBytes;

/// Number of zones of a drive in which a half of the ring may begin.
pub(crate) const MAY_BEGIN: u32 = 2 * HALF_MAX + SPARES_MAX;

/// The superblock of a half of the ring.
#[derive(Clone)]
pub(crate) struct Superblock {
    pub(crate) body: SuperblockBody,
    pub(crate) ring: RingZones,
    /// Zones of the half, in order.
    pub(crate) zones: Vec<ZoneId>,
    /// Zones of the ring that had failed when the half began.
    pub(crate) failed: BTreeSet<ZoneId>,
}

/// A half of the ring, as its beginning describes it.
#[derive(Clone)]
pub(crate) struct FoundHalf {
    pub(crate) turn: u64,
    pub(crate) store: Uuid,
    pub(crate) device: Uuid,
    pub(crate) superblock: Superblock,
    /// Whether the half's own superblock is damaged: `superblock` comes from an older half.
    pub(crate) headless: bool,
}

/// The halves of the record ring that were found on a drive.
pub(crate) struct FoundRing {
    pub(crate) zones: RingZones,
    /// The halves found, newest turn first.
    pub(crate) halves: Vec<FoundHalf>,
    /// Zones that were written, hold no readable record, and belong to none of these halves.
    pub(crate) unreadable: Vec<ZoneId>,
}

/// Returns the superblock in a record; `None` if the record holds none, or an invalid one.
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

/// Finds the halves of the ring by their superblocks, each in the first zone of its half. If a
/// newer half has records and no superblock, its superblock is damaged, and that of an older half
/// serves instead: it says the same, except for the zones of the half. Offline zones are not
/// searched; the caller judges whether they may have held the newest half.
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
    let mut halves: Vec<FoundHalf> = Vec::new();
    let may_begin = (geometry.conventional_zones..geometry.zones).map(ZoneId);
    for zone in may_begin.take(MAY_BEGIN as usize) {
        if halves.first().is_some_and(|found| !found.superblock.ring.has(zone)) {
            break;
        }
        if reports[zone.0 as usize].state == ZoneState::Offline {
            continue;
        }
        let mut found = None;
        read_half(device, reports, std::iter::once(zone), pages, |piece| {
            if let Piece::Record(record) = piece {
                let superblock = superblock_of(device, &record)?;
                found = superblock.map(|superblock| (record.header, superblock));
            }
            Ok(false)
        })
        .await?;
        let Some((header, mut superblock)) = found else { continue };
        if superblock.zones.is_empty() {
            // Without the feature of roles, the zones of a half are adjacent.
            let RingZones { start, half, .. } = superblock.ring;
            if zone.0 == start || zone.0 == start + half {
                superblock.zones = (zone.0..zone.0 + half).map(ZoneId).collect();
            }
        }
        if superblock.zones.first() == Some(&zone) {
            let (store, device) = (header.object, header.device);
            let turn = header.epoch.get();
            halves.push(FoundHalf { turn, store, device, superblock, headless: false });
        }
    }
    halves.sort_by_key(|found| std::cmp::Reverse(found.turn));
    let Some(newest) = halves.first() else { return Ok(None) };
    let zones = newest.superblock.ring;
    let (headless, unreadable) = headless(device, reports, pages, newest, &halves).await?;
    halves.splice(0..0, headless);
    Ok(Some(FoundRing { zones, halves, unreadable }))
}

/// Returns the newest half without a superblock, if it is newer than `newest`, the newest half with
/// one. Also returns the zones of the ring that were written and hold no record.
async fn headless(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    pages: &Pool,
    newest: &FoundHalf,
    halves: &[FoundHalf],
) -> Result<(Option<FoundHalf>, Vec<ZoneId>)> {
    let (mut turns, mut unreadable) = (BTreeMap::<u64, Vec<ZoneId>>::new(), Vec::new());
    for zone in newest.superblock.ring.zones() {
        let known = halves.iter().any(|half| half.superblock.zones.contains(&zone));
        if known || reports[zone.0 as usize].state == ZoneState::Offline {
            continue;
        }
        let (mut turn, mut any) = (None, false);
        let read = read_half(device, reports, std::iter::once(zone), pages, |piece| {
            let Piece::Record(FoundRecord { header, .. }) = piece else { return Ok(true) };
            any = true;
            let ours = header.kind.get() == kind::ENTRIES && header.object == newest.store;
            turn = ours.then(|| header.epoch.get());
            Ok(!ours)
        });
        match read.await {
            // Data that an earlier failure left in a zone belongs to no half.
            Err(_) if newest.superblock.failed.contains(&zone) => continue,
            read => read?,
        }
        if let Some(turn) = turn.filter(|turn| *turn > newest.turn) {
            turns.entry(turn).or_default().push(zone);
        }
        let failed = newest.superblock.failed.contains(&zone);
        if !any && !failed && lost_its_begin(device, &reports[zone.0 as usize], pages).await? {
            unreadable.push(zone);
        }
    }
    let half = turns.pop_last().map(|(turn, zones)| FoundHalf {
        turn,
        store: newest.store,
        device: newest.device,
        superblock: Superblock { zones, ..newest.superblock.clone() },
        headless: true,
    });
    Ok((half, unreadable))
}

/// Whether the first block of a zone was written whole and is not a record. A power cut does not
/// cause that: it keeps what was written first. It can only tear a block of several sectors, or
/// leave a full or read-only zone that holds nothing.
///
/// # Errors
/// An error if the drive was gone for a moment.
async fn lost_its_begin(
    device: &dyn ZonedDevice,
    report: &ZoneReport,
    pages: &Pool,
) -> Result<bool> {
    let geometry = device.geometry();
    let written = blocks_written(report, geometry);
    if written == 0 {
        return Ok(false);
    }
    let at = BlockAddr::new(geometry, report.zone, 0);
    let exact = report.state.is_active();
    let first = match read_blocks(device, QueueId(0), at, 1, pages).await {
        Ok(first) => first,
        Err(error) if error.is_gone() => return Err(error),
        // `Corrupt`: the drive says that the block was never written.
        Err(error) => return Ok(exact || error.kind() != ErrorKind::Corrupt),
    };
    let bytes = first[0].bytes();
    let zeros = is_zero(bytes);
    let cut_off = record::peek(bytes).is_some_and(|header| header.blocks() > written)
        || record::may_be_cut_off(bytes, geometry.block_size.0 as usize);
    Ok(!cut_off && (exact || !zeros))
}

/// Returns the first offline zone in which a store's ring may have begun.
pub(crate) fn offline_beginning(geometry: &Geometry, reports: &[ZoneReport]) -> Option<ZoneId> {
    let first = geometry.conventional_zones as usize;
    let mut may_begin = reports.iter().skip(first).take(MAY_BEGIN as usize);
    may_begin.find(|report| report.state == ZoneState::Offline).map(|report| report.zone)
}

/// Builds the error that no store was found.
pub(crate) async fn none_found(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    pages: &Pool,
) -> Error {
    let offline = offline_beginning(device.geometry(), reports);
    if let Some(uuid) = identify_by(device, reports, pages).await {
        let (kind, why) = match offline {
            Some(zone) => (ErrorKind::Io, format!("cannot be read: zone {zone} is offline")),
            None => (ErrorKind::Corrupt, "are damaged".to_owned()),
        };
        let name = device.name();
        let message = format!("{name}: the superblocks of store {uuid} {why}: restore a backup");
        return Error::new(kind, message);
    }
    match offline {
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

/// Whether a half newer than this one may have counted. A newer half can count only if this half
/// says that the ring `turns`, or if the first zone of this half could not be emptied.
fn may_have_newer(half: &Superblock, turns: bool, reports: &[ZoneReport]) -> bool {
    let state = |zone: ZoneId| reports.get(zone.0 as usize).map(|report| report.state);
    let first = half.zones.first().copied();
    turns || first.is_some_and(|first| state(first) == Some(ZoneState::ReadOnly))
}

/// Returns an offline zone that may have held a half newer than this one.
fn offline_newer(half: &Superblock, turns: bool, reports: &[ZoneReport]) -> Option<ZoneId> {
    let offline = |zone: &ZoneId| reports[zone.0 as usize].state == ZoneState::Offline;
    let mut zones = half.ring.zones().filter(|_| may_have_newer(half, turns, reports));
    zones.find(|zone| offline(zone) && !half.failed.contains(zone))
}

/// Reads the newest half with a whole snapshot; with `older`, even if a newer half may be missing.
/// Where the newest half is damaged, the half before it is used if it holds the same state.
/// [`Opened::damage`] then has the lost records; the caller decides whether to accept the loss.
pub(crate) async fn find(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    pages: &Pool,
    older: bool,
) -> Result<Opened> {
    let geometry = device.geometry();
    BlockAddr::check(geometry).map_err(|error| error.at(device.name()))?;
    let Some(mut ring) = find_ring(device, reports, pages).await? else {
        return Err(none_found(device, reports, pages).await);
    };
    let scan = |half: FoundHalf, copy: Option<Replay>| {
        let there = |zone: &ZoneId| reports[zone.0 as usize].state != ZoneState::Offline || !older;
        let zones: Vec<ZoneId> = half.superblock.zones.iter().copied().take_while(there).collect();
        let FoundHalf { store, turn, headless, .. } = half;
        let first = zones.first().copied();
        let of = HalfOf { store, turn, first, headless };
        HalfReader::new(of, copy).read(device, reports, zones, pages)
    };
    let mut superseded = false;
    let mut halves = std::mem::take(&mut ring.halves).into_iter().peekable();
    while let Some(half) = halves.next() {
        let mut found = scan(half.clone(), None).await?;
        let mut zones = half.superblock.zones.clone();
        if !found.is_sound()
            && let Some(before) = halves.peek()
        {
            let copy = scan(before.clone(), None).await;
            let same = |copy: &HalfReader| copy.is_sound() && copy.replay.same;
            if let Ok(copy) = copy
                && same(&copy)
                && before.turn + 1 == half.turn
            {
                found = scan(half.clone(), Some(copy.replay)).await?;
                if !found.has_rounds {
                    superseded = true;
                    continue;
                }
                zones.extend(before.superblock.zones.iter().copied());
            }
        }
        if !found.replay.whole && found.damage.is_empty() {
            superseded = true;
            continue;
        }
        let turns = found.replay.turns;
        if let Some(zone) = offline_newer(&half.superblock, turns, reports).filter(|_| !older) {
            return Err(is_offline(device, zone));
        }
        if !older && may_have_newer(&half.superblock, turns, reports) {
            let what = "written, and no record can be read there: the newest half of the ring may \
                        have begun here, with all that was made, changed or synced last";
            let lost = |zone| Damage { place: (zone, 0), what: what.into() };
            found.damage.extend(ring.unreadable.iter().copied().map(lost));
        }
        let label = half.superblock.body.label;
        let label = label.split(|byte| *byte == 0).next().unwrap_or_default();
        return Ok(Opened {
            label: String::from_utf8_lossy(label).into_owned(),
            created: half.superblock.body.created.get(),
            uuid: half.store,
            device: half.device,
            ring: half.superblock.ring,
            half: zones,
            failed: half.superblock.failed,
            turn: half.turn,
            records: found.records,
            sound: found.untouched,
            damage: found.damage,
            end: found.gap,
            turns,
            superseded,
            rolled_back: 0,
            replay: found.replay,
        });
    }
    if let Some(zone) = offline_beginning(geometry, reports).filter(|zone| ring.zones.has(*zone)) {
        return Err(is_offline(device, zone));
    }
    let message = "no half of the record ring has a whole snapshot";
    Err(Error::new(ErrorKind::Corrupt, message).at(device.name()))
}

/// Returns the UUID of the store that has records where a ring may begin.
pub(crate) async fn identify_by(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    pages: &Pool,
) -> Option<Uuid> {
    let geometry = device.geometry();
    let first = geometry.conventional_zones;
    for report in reports.iter().skip(first as usize).take(MAY_BEGIN as usize) {
        // Looks for the superblock or, if that is damaged, for the first record of the snapshot
        // after it.
        for (offset, wanted) in [(0, kind::SUPERBLOCK), (1, kind::ENTRIES)] {
            if offset >= blocks_begun(report, geometry) {
                break;
            }
            let at = BlockAddr::new(geometry, report.zone, offset);
            let Ok(page) = read_blocks(device, QueueId(0), at, 1, pages).await else { continue };
            let header = page.first().and_then(|page| record::peek(page.bytes()));
            if let Some(header) = header.filter(|header| header.kind.get() == wanted) {
                return Some(header.object);
            }
        }
    }
    None
}

/// Whether any zone in which a store's ring may begin starts with a store's superblock.
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
