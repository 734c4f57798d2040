//! Reads the content of a drive: superblock, newest whole checkpoint, tables. Changes nothing.

use crate::durability::checkpoint::{Image, decode_image};
use crate::format::{
    CheckpointBody, HOLE, NatEntry, SitEntry, SuperblockBody, UnitRef, kind, table,
};
use crate::layout::{Layout, RING_ZONES};
use crate::tables::TablePages;
use crate::tables::table::Table;
pub(crate) use furrow_log::address::blocks_written as written;
use furrow_log::address::{BlockAddr, read_blocks};
use furrow_log::delta::{DeltaLayout, Extent};
use furrow_log::format::ExtentEntry;
use furrow_log::pool::SuperzoneState;
use furrow_log::record::{self, Expect, RecordHeader, RecordId};
pub(crate) use furrow_log::survey::reports as report;
use furrow_rt::buf::{concat, is_zero};
use furrow_rt::{Page, Pool};
use furrow_zone::{Error, ErrorKind, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice};
use std::collections::BTreeSet;
use zerocopy::FromBytes;

/// The state of a drive as found: mount and repair both start from it.
pub(crate) struct Found {
    pub(crate) layout: Layout,
    pub(crate) reports: Vec<ZoneReport>,
    pub(crate) id: RecordId,
    pub(crate) ring: u8,
    pub(crate) image: Image,
    /// Extents of each delta log.
    pub(crate) extents: Vec<Vec<Extent>>,
    pub(crate) table_pages: TablePages,
    /// True if no superblock copy is whole except those inside checkpoints.
    pub(crate) alone: bool,
    /// Zones of the ring whose copy of the superblock is damaged or cannot be read.
    pub(crate) bad_copies: Vec<ZoneId>,
    /// True if a newer checkpoint is damaged and was given up: records written after that
    /// checkpoint do not count.
    pub(crate) older: bool,
}

pub(crate) fn corrupt(device: &dyn ZonedDevice, message: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{}: {message}", device.name()))
}

/// Reads the superblock copy in `zone`, if it is whole.
///
/// # Errors
/// If the block cannot be read, or is a superblock that this version cannot use.
pub(crate) async fn superblock(
    device: &dyn ZonedDevice,
    zone: ZoneId,
    pages: &Pool,
) -> Result<Option<Layout>> {
    let geometry = device.geometry();
    let addr = BlockAddr::new(geometry, zone, 0);
    let block = match read_blocks(device, QueueId(0), addr, 1, pages).await {
        Ok(block) => block,
        Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(None),
        Err(error) => return Err(error.at("superblock")),
    };
    let Some(header) = record::peek(block[0].bytes()) else { return Ok(None) };
    if header.kind.get() != kind::SUPERBLOCK {
        return Ok(None);
    }
    let expect = Expect { kind: kind::SUPERBLOCK, ..Expect::default() };
    let (header, body) = match record::open(block[0].bytes(), &expect) {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::WrongFormat => {
            return Err(error.at(format!("{}: superblock", device.name())));
        }
        Err(_) => return Ok(None),
    };
    let Ok((body, _)) = SuperblockBody::read_from_prefix(body) else { return Ok(None) };
    usable(device, &header, &body).map(Some)
}

/// The layout that a superblock describes; `body` and `header` are those of its record.
///
/// # Errors
/// If this version cannot use the superblock.
fn usable(
    device: &dyn ZonedDevice,
    header: &RecordHeader,
    body: &SuperblockBody,
) -> Result<Layout> {
    if body.incompat.get() & crate::format::INCOMPAT_THIN_TABLES == 0 {
        let message = format!(
            "{}: the file system is of an early format, whose tables this version cannot read: \
             copy its files with the furrow that made it",
            device.name()
        );
        return Err(Error::new(ErrorKind::WrongFormat, message));
    }
    let unknown = body.incompat.get() & !crate::format::INCOMPAT_KNOWN;
    if unknown != 0 {
        let message = format!(
            "{}: the file system has features {unknown:#x} that this version does not know: use a \
             newer furrow",
            device.name()
        );
        return Err(Error::new(ErrorKind::WrongFormat, message));
    }
    Layout::decode(body, header.object, header.device, device.geometry())
        .map_err(|error| error.at(device.name()))
}

/// Finds the superblock inside a whole checkpoint of the ring, for a drive without a whole
/// superblock copy. Blocks that cannot be read are skipped.
pub(crate) async fn superblock_of_checkpoints(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    pages: &Pool,
) -> Option<Layout> {
    let geometry = device.geometry();
    let expect = Expect { kind: kind::CHECKPOINT, ..Expect::default() };
    let first = geometry.conventional_zones;
    for zone in (first..geometry.zones).take(RING_ZONES as usize) {
        let end = written(&reports[zone as usize], geometry);
        for at in 1..end {
            let addr = BlockAddr::new(geometry, ZoneId(zone), at);
            let found = checkpoint_at(device, &expect, addr, end - at, pages).await;
            let Ok(Some((header, body))) = found else { continue };
            let Some(body) = body.get(CheckpointBody::SIZE..) else { continue };
            let Ok((body, _)) = SuperblockBody::read_from_prefix(body) else { continue };
            if let Ok(layout) = usable(device, &header, &body) {
                return Some(layout);
            }
        }
    }
    None
}

/// See [`crate::identify`].
pub(crate) async fn identify(
    device: &dyn ZonedDevice,
) -> Result<Option<(furrow_log::Uuid, String)>> {
    let (geometry, pages) = (device.geometry(), Pool::new(64));
    let first = geometry.conventional_zones;
    let mut copies = Vec::new();
    for zone in (first..geometry.zones).take(RING_ZONES as usize).map(ZoneId) {
        copies.extend(superblock(device, zone, &pages).await?);
    }
    match &copies[..] {
        // The newest checkpoint decides which label is valid.
        [one, other] if one.label != other.label => {
            let layout = find(device, &pages).await?.layout;
            return Ok(Some((layout.uuid, layout.label)));
        }
        [one, ..] => return Ok(Some((one.uuid, one.label.clone()))),
        [] => {}
    }
    let reports = furrow_log::survey::reports(device).await?;
    let layout = superblock_of_checkpoints(device, &reports, &pages).await;
    Ok(layout.map(|layout| (layout.uuid, layout.label)))
}

/// Reads the superblock and the newest whole checkpoint.
pub(crate) async fn find(device: &dyn ZonedDevice, pages: &Pool) -> Result<Found> {
    let geometry = device.geometry();
    BlockAddr::check(geometry)?;
    let reports = report(device).await?;
    let first = geometry.conventional_zones;
    let (mut layout, mut unread, mut bad_copies) = (None, None, Vec::new());
    for zone in (first..geometry.zones).take(RING_ZONES as usize).map(ZoneId) {
        if written(&reports[zone.0 as usize], geometry) > 0 {
            match superblock(device, zone, pages).await {
                Ok(Some(copy)) => layout = layout.or(Some(copy)),
                Ok(None) => bad_copies.push(zone),
                // The superblock copy in the other zone may be readable.
                Err(error) if error.kind() == ErrorKind::Io => {
                    bad_copies.push(zone);
                    unread = Some(error);
                }
                Err(_) if layout.is_some() => bad_copies.push(zone),
                Err(error) => return Err(error),
            }
        }
    }
    let alone = layout.is_none();
    if alone {
        layout = superblock_of_checkpoints(device, &reports, pages).await;
    }
    if let (None, Some(error)) = (&layout, unread) {
        return Err(error);
    }
    let Some(mut layout) = layout else {
        if let Some(error) = offline_superblock(device, &reports) {
            return Err(error);
        }
        let message = format!(
            "{}: no Furrow file system found: check that it is the device you mean",
            device.name()
        );
        return Err(Error::new(ErrorKind::WrongFormat, message));
    };
    let (header, body, ring) = newest_of_ring(device, &layout, &reports, pages).await?;
    // Take the label from the checkpoint: a crash while the label was changed may leave two
    // superblocks with different labels.
    if let Some((superblock, _)) = body
        .get(CheckpointBody::SIZE..)
        .and_then(|rest| SuperblockBody::read_from_prefix(rest).ok())
    {
        layout.label = crate::layout::label(&superblock);
    }
    let parsed = decode_image(&body)
        .ok_or_else(|| corrupt(device, "checkpoint: sections do not fit its length"))?;
    let (image, extents, table_pages) = parsed;
    let extents = check_image(device, &layout, &image, &extents, &table_pages)?;
    let id = header.id();
    let older = false;
    Ok(Found { layout, reports, id, ring, image, extents, table_pages, alone, bad_copies, older })
}

/// The age of a checkpoint: number and epoch. Recovery rewrites the checkpoint that it found, with
/// the next number and in a new epoch. So if two checkpoints have the same number, the one with the
/// newer epoch counts. The checkpoint with the older epoch was torn, and recovery may have made it
/// whole by filling one of its blocks with zeros.
pub(crate) fn age(header: &RecordHeader) -> (u64, u64) {
    (header.checkpoint.get(), header.epoch.get())
}

/// Finds the newest whole checkpoint, and its zone of the ring.
///
/// A block that cannot be read may be a newer checkpoint. Continuing with an older one would
/// silently lose acknowledged data, so the mount fails instead.
async fn newest_of_ring(
    device: &dyn ZonedDevice,
    layout: &Layout,
    reports: &[ZoneReport],
    pages: &Pool,
) -> Result<(RecordHeader, Vec<u8>, u8)> {
    let mut best: Option<(RecordHeader, Vec<u8>, u8)> = None;
    let mut unread: Option<(Error, (u64, u64))> = None;
    let mut damaged = Vec::new();
    for ring in 0..RING_ZONES {
        let zone = ZoneId(layout.ring_start + ring);
        let scanned = scan_ring(device, layout, &reports[zone.0 as usize], u64::MAX, pages).await;
        let id = scanned.newest.as_ref().map(|(header, _)| age(header));
        if let Some(error) = scanned.unread {
            unread = Some((error, id.unwrap_or((u64::MAX, 0))));
        }
        damaged.extend(scanned.damaged.map(|damaged| (zone, damaged, id)));
        if let Some((header, body)) = scanned.newest
            && best.as_ref().is_none_or(|best| age(&header) > age(&best.0))
        {
            best = Some((header, body, ring as u8));
        }
    }
    if let Some(zone) = lost_checkpoint(device, layout, reports, best.as_ref().map(|best| best.2)) {
        let message = format!(
            "{}: checkpoint ring: zone {zone} is offline and may have held the newest checkpoint",
            device.name()
        );
        return Err(Error::new(ErrorKind::Io, message));
    }
    if let Some(best) = &best {
        let newest = age(&best.0);
        let newer = |(_, (_, header), id): &&(ZoneId, (u32, Option<RecordHeader>), Option<_>)| {
            // The ring is written zone by zone. A zone that has only damaged records with older
            // numbers was about to be reset.
            match id {
                Some(id) => *id >= newest,
                None => header.as_ref().is_none_or(|h| h.checkpoint > best.0.checkpoint),
            }
        };
        if let Some((zone, (offset, _), _)) = damaged.iter().find(newer) {
            let what = format!(
                "the checkpoint at zone {zone} offset {offset} is damaged, and newer than {}, the \
                 newest whole one",
                best.0.checkpoint
            );
            return Err(corrupt(device, what));
        }
    }
    match (best, unread) {
        // The unreadable block is in the older zone, so its checkpoint is older too.
        (Some(best), Some((_, id))) if id < age(&best.0) => Ok(best),
        (_, Some((error, _))) => Err(error.at("checkpoint ring")),
        (Some(best), None) => Ok(best),
        (None, None) => Err(corrupt(device, "no whole checkpoint in the ring")),
    }
}

/// Finds an offline zone of the ring that may hold the newest checkpoint. The ring leaves a zone
/// only when the zone is full. So if the zone that is not offline has space left, it holds the
/// newest checkpoint, and the result is `None`.
pub(crate) fn lost_checkpoint(
    device: &dyn ZonedDevice,
    layout: &Layout,
    reports: &[ZoneReport],
    best: Option<u8>,
) -> Option<ZoneId> {
    let report = |ring: u32| &reports[(layout.ring_start + ring) as usize];
    let offline = (0..RING_ZONES).find(|ring| report(*ring).state == ZoneState::Offline)?;
    let room = best.is_some_and(|ring| {
        let report = report(u32::from(ring));
        report.state.is_active() && written(report, device.geometry()) < layout.capacity
    });
    (!room).then_some(ZoneId(layout.ring_start + offline))
}

/// The error if an offline zone of the ring leaves open whether the drive has a file system.
pub(crate) fn offline_superblock(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
) -> Option<Error> {
    let first = device.geometry().conventional_zones as usize;
    let mut ring = reports.iter().skip(first).take(RING_ZONES as usize);
    let zone = ring.find(|report| report.state == ZoneState::Offline)?.zone;
    let message = format!(
        "{}: zone {zone} is offline, and a superblock may have been there: restore from a copy",
        device.name()
    );
    Some(Error::new(ErrorKind::Io, message))
}

/// The content of a zone of the ring.
#[derive(Default)]
pub(crate) struct RingZone {
    /// The last whole checkpoint.
    pub(crate) newest: Option<(RecordHeader, Vec<u8>)>,
    /// The error of a block after `newest` that could not be read.
    pub(crate) unread: Option<Error>,
    /// A damaged checkpoint after `newest`: its block, and its header if that can be read.
    damaged: Option<(u32, Option<RecordHeader>)>,
}

/// Scans the ring zone of `report`; only checkpoints with a number below `below` count.
pub(crate) async fn scan_ring(
    device: &dyn ZonedDevice,
    layout: &Layout,
    report: &ZoneReport,
    below: u64,
    pages: &Pool,
) -> RingZone {
    let expect =
        Expect { kind: kind::CHECKPOINT, device: Some(layout.device), object: Some(layout.uuid) };
    let end = written(report, device.geometry());
    let mut scanned = RingZone::default();
    // The block to read next, the end of the previous record, and the start of a checkpoint's
    // second copy.
    let (mut at, mut after, mut copy) = (1, 1, None);
    while at < end {
        let addr = BlockAddr::new(device.geometry(), report.zone, at);
        match checkpoint_at(device, &expect, addr, end - at, pages).await {
            Ok(Some((header, body))) => {
                let blocks = header.blocks();
                let second = copy == Some(at);
                at += blocks;
                after = at;
                copy = (!second && layout.checkpoint_span(blocks) > blocks).then_some(at);
                if header.checkpoint.get() < below {
                    scanned = RingZone { newest: Some((header, body)), ..RingZone::default() };
                }
                continue;
            }
            Ok(None) => {
                let of_record = at == after;
                if copy != Some(at)
                    && let Some(header) =
                        damaged(device, &expect, (report, at), end, of_record, pages).await
                {
                    scanned.damaged = Some((at, header));
                }
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {}
            Err(error) => scanned.unread = Some(error),
        }
        at += 1;
    }
    scanned
}

/// Tells a damaged record from one that a crash cut off. The incomplete record is at block `at` of
/// a ring zone that is written up to `end`. It counts as cut off if the written part of the zone
/// ends inside it, if another checkpoint begins inside it, if its last block looks torn, or if the
/// zone is full or read-only and one of the record's blocks is all zeros.
///
/// Returns `None` for a record that was cut off or cannot be read, `Some` for a damaged one, with
/// its header if that is readable. Set `first` if a record must begin at `at`.
async fn damaged(
    device: &dyn ZonedDevice,
    expect: &Expect,
    (report, at): (&ZoneReport, u32),
    end: u32,
    first: bool,
    pages: &Pool,
) -> Option<Option<RecordHeader>> {
    let geometry = device.geometry();
    let place = |at| BlockAddr::new(geometry, report.zone, at);
    let block = read_blocks(device, QueueId(0), place(at), 1, pages).await.ok()?;
    let zeros = |page: &Page| is_zero(page.bytes());
    let Some(header) = record::peek(block[0].bytes()) else {
        return (first && !zeros(&block[0])).then_some(None);
    };
    let blocks = header.blocks();
    if blocks > end - at {
        return None;
    }
    for next in at + 1..at + blocks {
        if let Ok(Some(_)) = checkpoint_at(device, expect, place(next), end - next, pages).await {
            return None;
        }
    }
    let all = read_blocks(device, QueueId(0), place(at), blocks, pages).await.ok()?;
    let doubtful = matches!(report.state, ZoneState::Full | ZoneState::ReadOnly);
    if doubtful && all.iter().any(zeros) {
        return None;
    }
    let torn = record::may_be_cut_off(&concat(&all), geometry.block_size.0 as usize);
    (!torn).then_some(Some(header))
}

/// Reads the whole checkpoint at `addr`, within `most` blocks, if there is one.
async fn checkpoint_at(
    device: &dyn ZonedDevice,
    expect: &Expect,
    addr: BlockAddr,
    most: u32,
    pages: &Pool,
) -> Result<Option<(RecordHeader, Vec<u8>)>> {
    let block = read_blocks(device, QueueId(0), addr, 1, pages).await?;
    let blocks = match record::peek(block[0].bytes()) {
        Some(header) if header.kind.get() == kind::CHECKPOINT => header.blocks(),
        _ => 0,
    };
    if blocks == 0 || blocks > most {
        return Ok(None);
    }
    let bytes = concat(&read_blocks(device, QueueId(0), addr, blocks, pages).await?);
    Ok(record::open(&bytes, expect).ok().map(|(header, body)| (header, body.to_vec())))
}

/// Checks the content of a checkpoint against the layout, so that later code cannot go out
/// of range.
pub(crate) fn check_image(
    device: &dyn ZonedDevice,
    layout: &Layout,
    image: &Image,
    extents: &[ExtentEntry],
    table_pages: &TablePages,
) -> Result<Vec<Vec<Extent>>> {
    let bad = |message: String| Err(corrupt(device, format!("checkpoint: {message}")));
    let (heads, least) = (image.heads.len() as u32, layout.streams);
    let most = least * crate::format::HEADS_PER_STREAM;
    if !(least..=most).contains(&heads) {
        return bad(format!("{heads} heads of streams, expected {least} to {most}"));
    }
    for (table_pages, most) in table_pages.iter().zip([layout.nat_units(), layout.sit_units()]) {
        if table_pages.len() > most as usize {
            return bad(format!("{} pages of a table, expected up to {most}", table_pages.len()));
        }
    }
    if image.descriptors.len() != layout.superzones as usize {
        let found = image.descriptors.len();
        return bad(format!("{found} superzones, expected {}", layout.superzones));
    }
    for (index, descriptor) in image.descriptors.iter().enumerate() {
        let (first, width) = (descriptor.first.get(), u32::from(descriptor.width));
        let expected = layout.superzone_start(index as u32);
        if (first, width) != (expected, layout.width) {
            return bad(format!("superzone {index} is {width} zones from {first}"));
        }
    }
    let mut open = BTreeSet::new();
    for head in &image.heads {
        let Some(superzone) = head.superzone else { continue };
        let descriptor = image.descriptors.get(superzone as usize);
        let ok = descriptor.is_some_and(|descriptor| {
            let width = layout.width - descriptor.missing.get().count_ones().min(layout.width);
            descriptor.state == SuperzoneState::Active as u8
                && head.next < layout.stripe(width).blocks()
                && head.summary.len() as u32 == head.next % layout.segment_blocks
        });
        if !ok || !open.insert(superzone) {
            return bad(format!("head at block {} of superzone {superzone}", head.next));
        }
    }
    let sync_blocks = layout.sync_stripe().blocks();
    if image.body.sync_half.get() > 1 || image.body.sync_next.get() > sync_blocks {
        return bad("sync log position out of range".into());
    }
    if image.body.delta_half.get() > 1 || image.body.sit_half.get() > 1 {
        return bad("half of a delta log out of range".into());
    }
    if image.orphans.iter().any(|ino| *ino == 0 || *ino >= layout.nodes) {
        return bad("orphan out of range".into());
    }
    check_units(device, layout, image, table_pages)?;
    let first = image.body.log_extents.get() as usize;
    if first > extents.len() || layout.logs == 1 && first < extents.len() {
        return bad(format!("{first} of {} extents are of the first log", extents.len()));
    }
    let (first, second) = extents.split_at(first);
    let parse = |extents: &[ExtentEntry]| -> Result<Vec<Extent>> {
        extents.iter().map(Extent::parse).collect()
    };
    Ok(vec![parse(first)?, parse(second)?])
}

/// Checks that the table pages lie completely within zones of the tables.
fn check_units(
    device: &dyn ZonedDevice,
    layout: &Layout,
    image: &Image,
    table_pages: &TablePages,
) -> Result<()> {
    let area: BTreeSet<ZoneId> = layout.table_area().collect();
    for table_page in
        table_pages.iter().flatten().filter(|table_page| table_page.addr.get() != HOLE)
    {
        let place = BlockAddr(table_page.addr.get()).locate(device.geometry());
        let ok = place.is_some_and(|(zone, offset)| {
            let superzone = layout.superzone_of(zone);
            let descriptor = superzone.map(|index| &image.descriptors[index as usize]);
            let taken = descriptor.is_some_and(|d| d.state == SuperzoneState::Tables as u8);
            (taken || area.contains(&zone)) && layout.capacity - offset >= layout.unit_blocks
        });
        if !ok {
            let message =
                format!("checkpoint: table page at block {} of no table", table_page.addr);
            return Err(corrupt(device, message));
        }
    }
    Ok(())
}

/// Reads the tables: the table pages first, then the deltas, extent by extent.
pub(crate) async fn tables(
    device: &dyn ZonedDevice,
    found: &Found,
    pages: &Pool,
    deltas: &[DeltaLayout],
) -> Result<(Table<NatEntry>, Table<SitEntry>)> {
    let layout = &found.layout;
    let mut nat = Table::<NatEntry>::new(layout.nodes, layout.nat_per_unit());
    let mut sit = Table::<SitEntry>::new(layout.segment_count(), layout.sit_per_unit());
    for (table, table_pages) in found.table_pages.iter().enumerate() {
        for (table_page, place) in
            (0..).zip(table_pages).filter(|(_, place)| place.addr.get() != HOLE)
        {
            let index = table_page + if table == 0 { 0 } else { layout.nat_units() };
            let bytes = read_unit(device, layout, index as usize, place, pages).await?;
            let ok = match table {
                0 => nat.restore_table_page(table_page, &bytes),
                _ => sit.restore_table_page(table_page, &bytes),
            };
            if !ok {
                return Err(corrupt(device, format!("table page {index} is too short")));
            }
        }
    }
    let mut apply = |which: u8, index: u32, payload: &[u8]| {
        let ok = match which {
            table::NAT => nat.restore(index, payload),
            table::SIT => sit.restore(index, payload),
            _ => false,
        };
        if ok {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Corrupt, format!("entry {index} of table {which}")))
        }
    };
    for (delta, extents) in deltas.iter().zip(&found.extents) {
        delta.replay(device, pages, &found.id, extents, &mut apply).await?;
    }
    for (segment, entry) in sit.iter() {
        let set: u32 = entry.map.iter().map(|byte| byte.count_ones()).sum();
        if set != u32::from(entry.valid.get()) {
            let message = format!("segment {segment}: {set} blocks set, {} valid", entry.valid);
            return Err(corrupt(device, message));
        }
    }
    Ok((nat, sit))
}

pub(crate) async fn read_unit(
    device: &dyn ZonedDevice,
    layout: &Layout,
    index: usize,
    table_page: &UnitRef,
    pages: &Pool,
) -> Result<Vec<u8>> {
    let addr = BlockAddr(table_page.addr.get());
    let place = format!("{}: table page {index} at block {addr}", device.name());
    let blocks = read_blocks(device, QueueId(0), addr, layout.unit_blocks, pages).await;
    let bytes = concat(&blocks.map_err(|error| error.at(&place))?);
    let expect =
        Expect { kind: kind::UNIT, device: Some(layout.device), object: Some(layout.uuid) };
    let (header, body) = record::open(&bytes, &expect).map_err(|error| error.at(&place))?;
    if header.crc != table_page.crc || header.sequence.get() != index as u64 {
        let (expected, found) = (table_page.crc.get(), header.crc.get());
        let message = format!("{place}: expected CRC {expected:08x}, found {found:08x}");
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    Ok(body.to_vec())
}
