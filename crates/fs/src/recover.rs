//! Mount and recovery, as a list of steps (see [`STEPS`]).
//!
//! The last whole checkpoint says everything but what the sync log adds. Records are read in
//! order and cut at the first that is missing, torn, void, or depends on a write that did not
//! reach the drive. Before anything is changed on the drive, a copy of the checkpoint is written
//! that names the cut and a new epoch: from then on a second crash replays exactly the same
//! records, whatever recovery has padded or reset meanwhile.

use crate::cache::Cache;
use crate::checkpoint::{self, Image, decode_image};
use crate::core::{ChangedNodes, Core, Inner};
use crate::format::{
    HOLE, NatEntry, SitEntry, SummaryEntry, SuperblockBody, UnitRef, item, kind, table,
};
use crate::layout::{Layout, RING_ZONES};
use crate::names::{Decoder, NameLog, NameOp};
use crate::node;
use crate::place::{NODE_SLOT, Stream};
use crate::sync;
use crate::table::{NodeIds, Table};
use crate::types::{Counters, Ino, MountOptions, SetAttr, Time};
use furrow_log::address::{BlockAddr, blocks_per_zone, read_blocks};
use furrow_log::delta::{DeltaLayout, DeltaLog, Extent};
use furrow_log::format::{Descriptor, ExtentEntry};
use furrow_log::pool::{ReleaseProof, SuperzoneId, SuperzoneState, ZonePool};
use furrow_log::record::{self, Expect, RecordHeader, RecordId};
use furrow_log::writer::{Kind as WriteKind, Writer, WriterOptions};
use furrow_rt::{Notify, Page, Pages, Pool, Rt, Semaphore};
use furrow_zone::{
    Error, ErrorKind, Geometry, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use zerocopy::{FromBytes, FromZeros};

/// The steps of a mount, in order, as they appear in the trace.
pub const STEPS: &[&str] = &[
    "superblock",
    "newest whole checkpoint",
    "tables by extent",
    "sync records, cut at the first that does not hold",
    "checkpoint that names the cut, of a new epoch",
    "zones nothing refers to are reset",
    "lagging zones padded",
    "sync records replayed",
    "orphans removed",
    "checkpoint",
];

/// Hardware queues zones are spread over.
const QUEUES: u16 = 8;

/// A drive as it was found: what mount and fsck both begin with.
pub(crate) struct Found {
    pub(crate) layout: Layout,
    pub(crate) reports: Vec<ZoneReport>,
    pub(crate) id: RecordId,
    pub(crate) ring: u8,
    pub(crate) image: Image,
    pub(crate) extents: Vec<Extent>,
    pub(crate) units: Vec<UnitRef>,
}

/// A sync record that counts.
struct Record {
    names: Vec<(u64, NameOp)>,
    nodes: Vec<(u32, NatEntry)>,
    freed: Vec<u32>,
    attributes: Vec<(Ino, SetAttr, Time)>,
}

/// What the sync log adds.
struct Roll {
    records: Vec<Record>,
    /// First sequence that does not count.
    cut: u64,
    /// Where the log goes on.
    half: u8,
    next: u32,
    descriptors: Vec<Descriptor>,
    /// Superzones each stream took, the checkpoint's first.
    chains: Vec<Vec<u32>>,
}

fn corrupt(device: &dyn ZonedDevice, message: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{}: {message}", device.name()))
}

/// Blocks written in a zone, as far as they can be read.
pub(crate) fn written(report: &ZoneReport, geometry: &Geometry) -> u32 {
    let sectors = furrow_log::address::sectors_per_block(geometry).max(1);
    match report.state {
        ZoneState::Offline => 0,
        ZoneState::Full | ZoneState::ReadOnly => blocks_per_zone(geometry),
        _ => (report.write_pointer.0 / sectors).min(u64::from(blocks_per_zone(geometry))) as u32,
    }
}

/// Every zone's report.
pub(crate) fn report(device: &dyn ZonedDevice) -> Result<Vec<ZoneReport>> {
    let zones = device.geometry().zones;
    let reports = device
        .report(ZoneId(0), zones)
        .map_err(|status| Error::device(&device.name(), "report zones", status))?;
    if reports.len() != zones as usize {
        let message = format!("reported {} of {zones} zones", reports.len());
        return Err(Error::new(ErrorKind::Io, format!("{}: {message}", device.name())));
    }
    Ok(reports)
}

/// The superblock copy in `zone`, if there is a whole one.
async fn superblock(
    device: &dyn ZonedDevice,
    zone: ZoneId,
    pages: &Pool,
) -> Result<Option<Layout>> {
    let geometry = device.geometry();
    let addr = BlockAddr::new(geometry, zone, 0);
    let Ok(block) = read_blocks(device, QueueId(0), addr, 1, pages).await else {
        return Ok(None);
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
    let unknown = body.incompat.get() & !crate::format::INCOMPAT_KNOWN;
    if unknown != 0 {
        let message = format!(
            "{}: the file system has features {unknown:#x} that this version does not know: use a \
             newer furrow",
            device.name()
        );
        return Err(Error::new(ErrorKind::WrongFormat, message));
    }
    let layout = Layout::decode(&body, header.object, header.device, geometry)
        .map_err(|error| error.at(device.name()))?;
    Ok(Some(layout))
}

/// Reads the superblock and the newest whole checkpoint.
pub(crate) async fn find(device: &dyn ZonedDevice, pages: &Pool) -> Result<Found> {
    let geometry = device.geometry();
    BlockAddr::check(geometry)?;
    let reports = report(device)?;
    let first = geometry.conventional_zones;
    let mut layout = None;
    for zone in (first..geometry.zones).take(RING_ZONES as usize) {
        if written(&reports[zone as usize], geometry) > 0 && layout.is_none() {
            layout = superblock(device, ZoneId(zone), pages).await?;
        }
    }
    let Some(layout) = layout else {
        let message = format!(
            "{}: no Furrow file system found: make one with `furrow mkfs`, or check the device",
            device.name()
        );
        return Err(Error::new(ErrorKind::WrongFormat, message));
    };
    let mut best: Option<(RecordHeader, Vec<u8>, u8)> = None;
    for ring in 0..RING_ZONES {
        let zone = ZoneId(layout.ring_start + ring);
        let end = written(&reports[zone.0 as usize], geometry);
        let newest = newest_checkpoint(device, &layout, zone, end, pages).await;
        if let Some((header, body)) = newest
            && best.as_ref().is_none_or(|b| header.checkpoint.get() > b.0.checkpoint.get())
        {
            best = Some((header, body, ring as u8));
        }
    }
    let Some((header, body, ring)) = best else {
        return Err(corrupt(device, "no whole checkpoint in the ring; run furrow fsck"));
    };
    let parsed = decode_image(&body)
        .ok_or_else(|| corrupt(device, "checkpoint: sections do not fit its length"))?;
    let (image, extents, units) = parsed;
    let extents = check_image(device, &layout, &image, &extents, &units)?;
    let id = header.id();
    Ok(Found { layout, reports, id, ring, image, extents, units })
}

async fn newest_checkpoint(
    device: &dyn ZonedDevice,
    layout: &Layout,
    zone: ZoneId,
    end: u32,
    pages: &Pool,
) -> Option<(RecordHeader, Vec<u8>)> {
    let expect =
        Expect { kind: kind::CHECKPOINT, device: Some(layout.device), object: Some(layout.uuid) };
    let mut newest = None;
    let mut at = 1;
    while at < end {
        let addr = BlockAddr::new(device.geometry(), zone, at);
        let read = |blocks| read_blocks(device, QueueId(0), addr, blocks, pages);
        let Ok(block) = read(1).await else {
            at += 1;
            continue;
        };
        let blocks = match record::peek(block[0].bytes()) {
            Some(header) if header.kind.get() == kind::CHECKPOINT => header.blocks(),
            _ => 0,
        };
        if blocks == 0 || blocks > end - at {
            at += 1;
            continue;
        }
        let Ok(all) = read(blocks).await else {
            at += 1;
            continue;
        };
        let bytes = concat(&all);
        match record::open(&bytes, &expect) {
            Ok((header, body)) => {
                newest = Some((header, body.to_vec()));
                at += blocks;
            }
            Err(_) => at += 1,
        }
    }
    newest
}

pub(crate) fn concat(pages: &Pages) -> Vec<u8> {
    pages.iter().flat_map(|page| page.bytes().iter().copied()).collect()
}

/// Checks what a checkpoint says against the layout, so that nothing later can go out of range.
fn check_image(
    device: &dyn ZonedDevice,
    layout: &Layout,
    image: &Image,
    extents: &[ExtentEntry],
    units: &[UnitRef],
) -> Result<Vec<Extent>> {
    let bad = |message: String| Err(corrupt(device, format!("checkpoint: {message}")));
    if image.streams.len() != layout.streams as usize {
        return bad(format!("{} streams, expected {}", image.streams.len(), layout.streams));
    }
    let expected = (layout.nat_units() + layout.sit_units()) as usize;
    if units.len() != expected {
        return bad(format!("{} table units, expected {expected}", units.len()));
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
    for stream in &image.streams {
        let Some(superzone) = stream.superzone else { continue };
        let descriptor = image.descriptors.get(superzone as usize);
        let ok = descriptor.is_some_and(|descriptor| {
            let width = layout.width - descriptor.missing.get().count_ones().min(layout.width);
            descriptor.state == SuperzoneState::Active as u8
                && stream.next < layout.stripe(width).blocks()
                && stream.summary.len() as u32 == stream.next % layout.segment_blocks
        });
        if !ok || !open.insert(superzone) {
            return bad(format!("stream at block {} of superzone {superzone}", stream.next));
        }
    }
    let sync_blocks = layout.sync_stripe().blocks();
    if image.body.sync_half.get() > 1 || image.body.sync_next.get() > sync_blocks {
        return bad("sync log position out of range".into());
    }
    if image.body.delta_half.get() > 1 || image.body.table_half.get() > 1 {
        return bad("half of delta log or tables out of range".into());
    }
    if image.orphans.iter().any(|ino| *ino == 0 || *ino >= layout.nodes) {
        return bad("orphan out of range".into());
    }
    extents.iter().map(Extent::parse).collect()
}

/// Reads the tables: units, then deltas by extent.
pub(crate) async fn tables(
    device: &dyn ZonedDevice,
    found: &Found,
    pages: &Pool,
    delta: &DeltaLayout,
) -> Result<(Table<NatEntry>, Table<SitEntry>)> {
    let layout = &found.layout;
    let mut nat = Table::<NatEntry>::new(layout.nodes, layout.nat_per_unit());
    let mut sit = Table::<SitEntry>::new(layout.segment_count(), layout.sit_per_unit());
    for (index, unit) in found.units.iter().enumerate() {
        if unit.addr.get() == HOLE {
            continue;
        }
        let bytes = read_unit(device, layout, index, unit, pages).await?;
        let nat_units = layout.nat_units() as usize;
        let ok = match index.checked_sub(nat_units) {
            None => nat.restore_unit(index as u32, &bytes),
            Some(unit) => sit.restore_unit(unit as u32, &bytes),
        };
        if !ok {
            return Err(corrupt(device, format!("table unit {index} is too short")));
        }
    }
    let apply = |which: u8, index: u32, payload: &[u8]| {
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
    delta.replay(device, pages, &found.id, &found.extents, apply).await?;
    for segment in 0..sit.len() {
        let entry = sit.get(segment);
        let set: u32 = entry.map.iter().map(|byte| byte.count_ones()).sum();
        if set != u32::from(entry.valid.get()) {
            let message = format!("segment {segment}: {set} blocks set, {} valid", entry.valid);
            return Err(corrupt(device, message));
        }
    }
    Ok((nat, sit))
}

async fn read_unit(
    device: &dyn ZonedDevice,
    layout: &Layout,
    index: usize,
    unit: &UnitRef,
    pages: &Pool,
) -> Result<Vec<u8>> {
    let addr = BlockAddr(unit.addr.get());
    let place = format!("{}: table unit {index} at block {addr}", device.name());
    let blocks = read_blocks(device, QueueId(0), addr, layout.unit_blocks, pages).await;
    let bytes = concat(&blocks.map_err(|error| error.at(&place))?);
    let expect =
        Expect { kind: kind::UNIT, device: Some(layout.device), object: Some(layout.uuid) };
    let (header, body) = record::open(&bytes, &expect).map_err(|error| error.at(&place))?;
    if header.crc != unit.crc || header.sequence.get() != index as u64 {
        let (expected, found) = (unit.crc.get(), header.crc.get());
        let message = format!("{place}: expected CRC {expected:08x}, found {found:08x}");
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    Ok(body.to_vec())
}

/// Reads the sync log as far as it counts.
async fn roll(device: &dyn ZonedDevice, found: &Found, pages: &Pool) -> Result<Roll> {
    let body = &found.image.body;
    let mut roll = Roll {
        records: Vec::new(),
        cut: body.sync_sequence.get(),
        half: body.sync_half.get() as u8,
        next: body.sync_next.get(),
        descriptors: found.image.descriptors.clone(),
        chains: found.image.streams.iter().map(|s| s.superzone.into_iter().collect()).collect(),
    };
    let mut turned = false;
    while roll.cut < body.sync_limit.get() {
        let read = read_record(device, found, roll.half, roll.next, roll.cut, pages).await;
        let Some((blocks, bytes)) = read else {
            if turned {
                break;
            }
            // The log goes on at the front of the other half, if this one had no room.
            turned = true;
            let other = 1 - roll.half;
            let there = read_record(device, found, other, 0, roll.cut, pages).await;
            if there.is_none() {
                break;
            }
            (roll.half, roll.next) = (other, 0);
            continue;
        };
        let Some(record) = accept(device.geometry(), found, &mut roll, &bytes) else { break };
        if !nodes_hold(device, found, &record, pages).await {
            break;
        }
        roll.records.push(record);
        roll.next += blocks;
        roll.cut += 1;
    }
    Ok(roll)
}

/// Whether the nodes a record names are in the zones whose write pointer says nothing: a power
/// cut may have moved a zone to full, and a read-only one has none.
async fn nodes_hold(
    device: &dyn ZonedDevice,
    found: &Found,
    record: &Record,
    pages: &Pool,
) -> bool {
    for (nid, entry) in &record.nodes {
        let addr = BlockAddr(entry.addr.get());
        let Some((zone, _)) = addr.locate(device.geometry()) else { return false };
        let state = found.reports[zone.0 as usize].state;
        if !matches!(state, ZoneState::Full | ZoneState::ReadOnly) {
            continue;
        }
        let Ok(block) = read_blocks(device, QueueId(0), addr, 1, pages).await else {
            return false;
        };
        let whole = record::crc32c(block[0].bytes()) == entry.crc.get();
        if !whole || node::check(&block[0], *nid, entry.ino.get()).is_err() {
            return false;
        }
    }
    true
}

/// The whole record with `sequence` at that place, if there is one.
async fn read_record(
    device: &dyn ZonedDevice,
    found: &Found,
    half: u8,
    at: u32,
    sequence: u64,
    pages: &Pool,
) -> Option<(u32, Vec<u8>)> {
    let layout = &found.layout;
    let (stripe, zones) = (layout.sync_stripe(), layout.sync_half(half));
    let mut bytes: Vec<u8> = Vec::new();
    let mut blocks = 1;
    let mut read = 0;
    while read < blocks {
        if at + read >= stripe.blocks() {
            return None;
        }
        let (column, offset) = stripe.place(at + read);
        let zone = zones[column as usize];
        if offset >= written(&found.reports[zone.0 as usize], device.geometry()) {
            return None;
        }
        let addr = BlockAddr::new(device.geometry(), zone, offset);
        let block = read_blocks(device, QueueId(0), addr, 1, pages).await.ok()?;
        if read == 0 {
            blocks = record::peek(block[0].bytes())?.blocks();
        }
        bytes.extend_from_slice(block[0].bytes());
        read += 1;
    }
    let expect =
        Expect { kind: kind::SYNC, device: Some(layout.device), object: Some(layout.uuid) };
    let (header, body) = record::open(&bytes, &expect).ok()?;
    let epoch = found.image.body.sync_epoch;
    (header.sequence.get() == sequence && header.epoch == epoch).then(|| (blocks, body.to_vec()))
}

/// Parses a record and checks that all it depends on is there; `None` cuts the log.
fn accept(geometry: &Geometry, found: &Found, roll: &mut Roll, body: &[u8]) -> Option<Record> {
    let layout = &found.layout;
    let mut descriptors = roll.descriptors.clone();
    let mut chains = roll.chains.clone();
    let mut record = Record { names: vec![], nodes: vec![], freed: vec![], attributes: vec![] };
    let mut depends = Vec::new();
    let mut input = Decoder(body);
    while !input.0.is_empty() {
        match input.u8()? {
            tag @ (item::CREATE | item::LINK | item::REMOVE | item::RENAME) => {
                record.names.push(NameOp::decode(tag, &mut input)?);
            }
            item::NODE => {
                let (nid, ino) = (input.u32()?, input.u32()?);
                let mut entry = NatEntry::new_zeroed();
                entry.ino = ino.into();
                entry.addr = input.u32()?.into();
                entry.crc = input.u32()?.into();
                if nid == 0 || nid >= layout.nodes || ino == 0 || ino >= layout.nodes {
                    return None;
                }
                record.nodes.push((nid, entry));
            }
            item::FREED => {
                let (nid, _) = (input.u32()?, input.u32()?);
                record.freed.push(nid);
            }
            item::ALLOCATED => {
                let (stream, superzone) = (input.u8()?, input.u32()?);
                let generation = input.u32()?;
                let descriptor = descriptors.get_mut(superzone as usize)?;
                // The checkpoint has it already, and perhaps let it be released since.
                let then = &found.image.descriptors[superzone as usize];
                let free = then.state == SuperzoneState::Free as u8;
                if then.generation.get() == generation && !free {
                    continue;
                }
                descriptor.generation = generation.into();
                descriptor.state = SuperzoneState::Active as u8;
                let chain = chains.get_mut(usize::from(stream))?;
                if !chain.contains(&superzone) {
                    chain.push(superzone);
                }
            }
            item::DEPENDS => depends.push((input.u32()?, input.u32()?, input.u32()?)),
            item::ATTRIBUTES => {
                let ino = Ino(input.u32()?);
                let changes = SetAttr {
                    mode: Some(input.u16()?),
                    uid: Some(input.u32()?),
                    gid: Some(input.u32()?),
                    size: None,
                    atime: Some(input.time()?),
                    mtime: Some(input.time()?),
                };
                record.attributes.push((ino, changes, input.time()?));
            }
            item::RANGE => {
                let _ = (input.u32()?, input.u32()?, input.u32()?);
            }
            _ => return None,
        }
    }
    for (zone, generation, end) in depends {
        let superzone = layout.superzone_of(ZoneId(zone))? as usize;
        // What was full at the checkpoint's cut was durable before it; so was what has been
        // released since. The zone may be empty by now, or hold something else.
        let then = &found.image.descriptors[superzone];
        let full = then.state == SuperzoneState::Full as u8;
        if then.generation.get() > generation || (full && then.generation.get() == generation) {
            continue;
        }
        let known = descriptors[superzone].generation.get();
        if known != generation || written(&found.reports[zone as usize], geometry) < end {
            return None;
        }
    }
    roll.descriptors = descriptors;
    roll.chains = chains;
    Some(record)
}

/// Mounts the file system on `device`.
pub(crate) async fn mount(
    rt: &Rt,
    device: Rc<dyn ZonedDevice>,
    options: MountOptions,
) -> Result<Rc<Inner>> {
    let pages = Pool::new(options.cache_pages.min(65_536));
    let found = find(&*device, &pages).await?;
    trace(rt, 1);
    let unknown = found.layout.ro_compat & !crate::format::RO_COMPAT_KNOWN;
    if unknown != 0 && !options.read_only {
        let message = format!(
            "{}: the file system has features {unknown:#x} that this version can only read: mount \
             it read-only",
            device.name()
        );
        return Err(Error::new(ErrorKind::WrongFormat, message));
    }
    let roll = roll(&*device, &found, &pages).await?;
    let delta = delta_layout(device.geometry(), &found.layout, &options)?;
    let (nat, sit) = tables(&*device, &found, &pages, &delta).await?;
    trace(rt, 3);
    let inner = assemble(rt, device, options, &found, &roll, (nat, sit), pages, delta)?;
    if inner.core.borrow().options.read_only {
        replay(&inner, roll.records, &mut BTreeMap::new()).await?;
        return Ok(inner);
    }
    prepare_drive(&inner, &found, &roll).await?;
    let mut owners = BTreeMap::new();
    // Padding needs the owners replay finds, and replay nothing that padding does.
    let chains = roll.chains;
    replay(&inner, roll.records, &mut owners).await?;
    trace(rt, 7);
    settle_streams(&inner, &found, &chains, &owners).await?;
    trace(rt, 6);
    reap_orphans(&inner).await?;
    trace(rt, 8);
    inner.core.borrow_mut().checkpoint.forced = true;
    inner.checkpoint(false).await?;
    trace(rt, 9);
    inner.start_commits();
    Ok(inner)
}

fn trace(rt: &Rt, step: u64) {
    rt.trace(&[0x6d_6f75_6e74, step]);
}

pub(crate) fn delta_layout(
    geometry: &Geometry,
    layout: &Layout,
    options: &MountOptions,
) -> Result<DeltaLayout> {
    let sizes = [size_of::<NatEntry>() as u16, size_of::<SitEntry>() as u16];
    let halves = [layout.delta_half(0), layout.delta_half(1)];
    #[allow(unused_mut)]
    let mut delta = DeltaLayout::new(geometry, halves, &sizes, kind::DELTA)?;
    #[cfg(feature = "canary")]
    if options.canary == Some(crate::types::Canary::IgnoredExtent) {
        delta.canary = Some(furrow_log::writer::Canary::IgnoreExtent);
    }
    let _ = options;
    Ok(delta)
}

fn writer(rt: &Rt, device: &Rc<dyn ZonedDevice>, options: &MountOptions) -> Writer {
    #[allow(unused_mut)]
    let mut writer = WriterOptions { queues: QUEUES, ..WriterOptions::default() };
    #[cfg(feature = "canary")]
    {
        use crate::types::Canary;
        writer.canary = match options.canary {
            Some(Canary::SkippedFlush) => Some(furrow_log::writer::Canary::SkipFlush),
            Some(Canary::ReuseBeforeRelease) => Some(furrow_log::writer::Canary::EarlyRelease),
            _ => None,
        };
    }
    let _ = options;
    Writer::with_options(rt, device.clone(), writer)
}

/// The state of the checkpoint and what the records change of the pool.
#[allow(clippy::too_many_arguments)]
fn assemble(
    rt: &Rt,
    device: Rc<dyn ZonedDevice>,
    options: MountOptions,
    found: &Found,
    roll: &Roll,
    (nat, sit): (Table<NatEntry>, Table<SitEntry>),
    pages: Pool,
    delta: DeltaLayout,
) -> Result<Rc<Inner>> {
    let layout = Rc::new(found.layout.clone());
    let geometry = device.geometry().clone();
    let writer = writer(rt, &device, &options);
    let mut descriptors = roll.descriptors.clone();
    for chain in &roll.chains {
        // All but the last of a stream's superzones are written to their end.
        for superzone in chain.iter().rev().skip(1) {
            descriptors[*superzone as usize].state = SuperzoneState::Full as u8;
        }
    }
    let zones = ZonePool::new(&writer, &descriptors, 1)?;
    zones.checkpoint_durable(found.id.checkpoint);
    let body = &found.image.body;
    let delta = DeltaLog::recover(&writer, delta, &pages, None, body.delta_half.get() as u8)?;
    let end = |zone: ZoneId| written(&found.reports[zone.0 as usize], &geometry);
    let used = |zones: Vec<ZoneId>| zones.into_iter().any(|zone| end(zone) > 0);
    let state = checkpoint::State {
        id: found.id.checkpoint,
        epoch: found.id.epoch + 1,
        ring: found.ring,
        ring_used: [0, 1].map(|ring| end(ZoneId(layout.ring_start + ring)) > 0),
        table_half: body.table_half.get() as u8,
        table_next: table_next(&layout, body.table_half.get() as u8, &end),
        table_used: [0, 1].map(|half| used(layout.table_half(half))),
        extents: found.extents.clone(),
        units: found.units.clone(),
        forced: false,
    };
    let mut superzone_valid = vec![0; layout.superzones as usize];
    for segment in 0..sit.len() {
        let valid = u32::from(sit.get(segment).valid.get());
        superzone_valid[(segment / layout.segments) as usize] += valid;
    }
    let used_ids = (1..nat.len()).filter(|nid| nat.get(*nid).ino.get() != 0);
    let ids = NodeIds::new(layout.nodes, used_ids);
    let core = Core {
        rt: rt.clone(),
        device,
        writer,
        zones,
        delta,
        cache: Cache::new(options.cache_pages.max(256)),
        nat,
        sit,
        superzone_valid,
        ids,
        streams: vec![Stream::default(); layout.streams as usize],
        names: NameLog::starting_at(body.namespace_sequence.get()),
        changed_nodes: ChangedNodes::default(),
        allocated: Vec::new(),
        allocated_cut: 0,
        unstable: BTreeMap::new(),
        stamp: 0,
        open: BTreeMap::new(),
        orphans: found.image.orphans.iter().map(|ino| Ino(*ino)).collect(),
        inodes: body.inodes.get(),
        generation: body.generation.get(),
        checkpoint: state,
        sync: sync::State {
            half: roll.half,
            next: roll.next,
            sequence: roll.cut,
            used: [0, 1].map(|half| used(layout.sync_half(half))),
            in_flight: 0,
        },
        sync_waiters: Vec::new(),
        sync_round: sync::Round::default(),
        counters: Counters::default(),
        tickets: Vec::new(),
        failed: None,
        in_flight: 0,
        zero: Page::zeroed(),
        geometry,
        layout,
        options,
        replaying: false,
        pages: pages.clone(),
    };
    Ok(Rc::new(Inner {
        rt: rt.clone(),
        pages,
        core: RefCell::new(core),
        progress: Notify::new(),
        checkpoint_lock: Semaphore::new(1),
        ended: Cell::new(false),
        write_back_running: Cell::new(false),
    }))
}

/// First block behind everything written in a half of the tables.
fn table_next(layout: &Layout, half: u8, end: &impl Fn(ZoneId) -> u32) -> u32 {
    let zones = layout.table_half(half);
    let last = zones.iter().rposition(|zone| end(*zone) > 0);
    last.map_or(0, |index| index as u32 * layout.capacity + end(zones[index]))
}

/// Writes the checkpoint that names the cut, then empties what nothing refers to.
async fn prepare_drive(inner: &Rc<Inner>, found: &Found, roll: &Roll) -> Result<()> {
    let (pool, writer, layout) = {
        let core = inner.core.borrow();
        (core.zones.clone(), core.writer.clone(), core.layout.clone())
    };
    open_logs(inner, found);
    let mut image = found.image.clone();
    image.body.sync_limit = roll.cut.into();
    image.body.flags = 0.into();
    let body = inner.core.borrow().encode_image(&image);
    // The ring's other zone holds nothing newer: make room there if this one has none.
    let (other, needed) = {
        let core = inner.core.borrow();
        (1 - core.checkpoint.ring, record::blocks_for(body.len()) > core.ring_room())
    };
    if needed && inner.core.borrow().checkpoint.ring_used[usize::from(other)] {
        let zone = ZoneId(layout.ring_start + u32::from(other));
        pool.release_zone(zone, ReleaseProof::by(found.id.checkpoint)).await?;
        inner.core.borrow_mut().checkpoint.ring_used[usize::from(other)] = false;
    }
    let id = found.id.checkpoint + 1;
    inner.core.borrow_mut().write_checkpoint(id, &body);
    writer.drain().await?;
    {
        let mut core = inner.core.borrow_mut();
        core.checkpoint.id = id;
        pool.checkpoint_durable(id);
    }
    trace(&inner.rt, 4);
    let stale = stale_zones(inner, found, roll);
    inner.release(id, &stale.0, stale.1).await?;
    inner.core.borrow_mut().delta_released();
    pool.adopt_reports(&found.reports);
    trace(&inner.rt, 5);
    Ok(())
}

/// Takes the zones of ring, tables and sync log into use where they were left.
fn open_logs(inner: &Rc<Inner>, found: &Found) {
    let core = &mut *inner.core.borrow_mut();
    let layout = core.layout.clone();
    let mut zones = vec![ZoneId(layout.ring_start + u32::from(core.checkpoint.ring))];
    let table = layout.table_half(core.checkpoint.table_half);
    let at = core.checkpoint.table_next / layout.capacity;
    zones.extend(table.get(at as usize));
    zones.extend(layout.sync_half(core.sync.half));
    for zone in zones {
        let report = &found.reports[zone.0 as usize];
        if report.state.is_active() {
            core.writer.open_zone(zone, written(report, &core.geometry));
        }
    }
    // Rows of the sync log are made even: records go on behind everything written.
    let stripe = layout.sync_stripe();
    let sync = layout.sync_half(core.sync.half);
    let ends: Vec<u32> =
        sync.iter().map(|z| written(&found.reports[z.0 as usize], &core.geometry)).collect();
    core.sync.next = row_end(&stripe, &ends).max(core.sync.next.min(stripe.blocks()));
}

/// First block, in striping order, behind everything written in zones written up to `ends`.
fn row_end(stripe: &crate::stripe::Stripe, ends: &[u32]) -> u32 {
    let last = ends.iter().enumerate().filter(|(_, end)| **end > 0);
    last.map(|(column, end)| stripe.index(column as u32, end - 1) + 1).max().unwrap_or(0)
}

/// Superzones and log zones with content that neither the checkpoint nor a record refers to.
fn stale_zones(inner: &Rc<Inner>, found: &Found, roll: &Roll) -> (Vec<SuperzoneId>, Vec<ZoneId>) {
    let core = &mut *inner.core.borrow_mut();
    let layout = core.layout.clone();
    let geometry = core.geometry.clone();
    let end = |zone: ZoneId| written(&found.reports[zone.0 as usize], &geometry);
    let mut superzones = Vec::new();
    for index in 0..layout.superzones {
        let id = SuperzoneId(index);
        let zones = core.zones.get(id).zones;
        let full = found.image.descriptors[index as usize].state == SuperzoneState::Full as u8;
        let empty = if roll.chains.iter().flatten().any(|superzone| *superzone == index) {
            false
        } else {
            // Full at the checkpoint with nothing valid: released since, or about to be.
            core.zones.state(id) == SuperzoneState::Free
                || full && core.superzone_valid[index as usize] == 0
        };
        if empty && zones.iter().any(|z| end(*z) > 0) {
            superzones.push(id);
        }
    }
    let mut zones = Vec::new();
    let other = 1 - core.checkpoint.ring;
    if std::mem::take(&mut core.checkpoint.ring_used[usize::from(other)]) {
        zones.push(ZoneId(layout.ring_start + u32::from(other)));
    }
    let mut add = |zones_of: Vec<ZoneId>| {
        zones.extend(zones_of.into_iter().filter(|zone| end(*zone) > 0));
    };
    let other = 1 - core.delta.position().0;
    if core.checkpoint.extents.iter().all(|extent| extent.half != other) {
        add(layout.delta_half(other));
    }
    let other = 1 - core.checkpoint.table_half;
    if !core.table_half_live(other) {
        add(layout.table_half(other));
        core.checkpoint.table_used[usize::from(other)] = false;
    }
    let other = 1 - roll.half;
    let start = found.image.body.sync_half.get() as u8;
    if start == roll.half {
        add(layout.sync_half(other));
        core.sync.used[usize::from(other)] = false;
    }
    (superzones, zones)
}

/// Replays records. `owners` collects who owns the blocks they bring in.
async fn replay(
    inner: &Rc<Inner>,
    records: Vec<Record>,
    owners: &mut BTreeMap<u32, SummaryEntry>,
) -> Result<()> {
    let read_only = std::mem::replace(&mut inner.core.borrow_mut().options.read_only, false);
    {
        let core = &mut *inner.core.borrow_mut();
        core.replaying = true;
        // What replay allocates itself must not take an id that a record names.
        let created = records.iter().flat_map(|r| &r.names).filter_map(|(_, op)| match op {
            NameOp::Create { ino, .. } => Some(*ino),
            _ => None,
        });
        let moved = records.iter().flat_map(|r| &r.nodes).map(|(nid, _)| *nid);
        core.ids.hold(created.chain(moved));
    }
    for record in records {
        for (number, op) in &record.names {
            if *number < inner.core.borrow().names.next() {
                continue;
            }
            replay_name(inner, op).await?;
        }
        replay_nodes(inner, &record, owners).await?;
        for (ino, changes, ctime) in &record.attributes {
            let set = inner
                .run(|core| {
                    core.setattr(*ino, changes)?;
                    core.inode_mut(*ino).head.ctime = node::stamp(*ctime);
                    Ok(())
                })
                .await;
            match set {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => other?,
            }
        }
    }
    let core = &mut *inner.core.borrow_mut();
    core.options.read_only = read_only;
    core.replaying = false;
    core.ids.unhold();
    Ok(())
}

async fn replay_name(inner: &Rc<Inner>, op: &NameOp) -> Result<()> {
    let what = || format!("sync log: replay of {op:?}");
    inner
        .run(|core| match op {
            NameOp::Create { .. } => core.create(op).map(|_| ()),
            NameOp::Link { ino, parent, time, name } => {
                core.link(Ino(*ino), Ino(*parent), name, *time).map(|_| ())
            }
            NameOp::Remove { parent, time, name } => {
                core.remove(Ino(*parent), name, None, *time).map(|_| ())
            }
            NameOp::Rename { from, to, mode, time, old, new } => {
                core.rename((Ino(*from), old), (Ino(*to), new), *mode, *time).map(|_| ())
            }
        })
        .await
        .map_err(|error| match error.kind() {
            ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::Corrupt => error.at(what()),
            // It succeeded when it was logged: what it is replayed on is not what it was.
            _ => Error::new(ErrorKind::Corrupt, error.at(what()).to_string()),
        })
}

/// Reads a node block and checks it.
async fn read_node(inner: &Rc<Inner>, nid: u32, entry: NatEntry) -> Result<Page> {
    let (device, pages) = {
        let core = inner.core.borrow();
        (core.device.clone(), core.pages.clone())
    };
    let addr = BlockAddr(entry.addr.get());
    let mut block = read_blocks(&*device, QueueId(0), addr, 1, &pages).await?;
    let page = block.pop().ok_or_else(|| corrupt(&*device, "empty read"))?;
    let (expected, found) = (entry.crc.get(), record::crc32c(page.bytes()));
    let checked = node::check(&page, nid, entry.ino.get());
    if expected != found || checked.is_err() {
        let why = checked.err().unwrap_or_else(|| format!("CRC {found:08x}"));
        let message = format!("node {nid} at block {addr}: expected CRC {expected:08x}, {why}");
        return Err(corrupt(&*device, message));
    }
    Ok(page)
}

/// Puts the nodes of a record in their new places, and derives the SIT from the difference.
async fn replay_nodes(
    inner: &Rc<Inner>,
    record: &Record,
    owners: &mut BTreeMap<u32, SummaryEntry>,
) -> Result<()> {
    let mut gone: BTreeSet<u32> = BTreeSet::new();
    let changed = record.nodes.iter().map(|(nid, _)| *nid).chain(record.freed.iter().copied());
    for nid in changed {
        let old = inner.core.borrow().nat.get(nid);
        if old.ino.get() != 0 && old.addr.get() != HOLE {
            let page = read_node(inner, nid, old).await?;
            gone.insert(old.addr.get());
            gone.extend(node::pointers(&page).iter().map(|(_, p)| p.addr.get()));
        }
    }
    let mut fresh = Vec::new();
    for (nid, entry) in &record.nodes {
        fresh.push((*nid, *entry, read_node(inner, *nid, *entry).await?));
    }
    let core = &mut *inner.core.borrow_mut();
    // All that went before all that came: a block may have moved from one node to another.
    for addr in gone {
        core.invalidate(addr);
    }
    for nid in &record.freed {
        if core.nat.get(*nid).ino.get() != 0 {
            core.cache.remove(&crate::cache::Key::Node(*nid));
            core.nat.update(*nid, |entry| *entry = FromZeros::new_zeroed());
            core.ids.put(*nid);
        }
    }
    for (nid, entry, page) in fresh {
        let ino = entry.ino.get();
        if nid == ino {
            core.cache.remove_from(ino, 0..);
        }
        core.cache.remove(&crate::cache::Key::Node(nid));
        core.ids.claim(nid);
        core.nat.update(nid, |e| *e = entry);
        let stream = |core: &Core, addr| core.stream_at(addr);
        let mut own = |core: &mut Core, addr: u32, slot: u16| {
            let stream = stream(core, addr);
            core.set_valid(addr, true, stream);
            let owner = SummaryEntry { node: nid.into(), slot: slot.into() };
            owners.insert(addr, owner);
        };
        own(core, entry.addr.get(), NODE_SLOT);
        for (slot, pointer) in node::pointers(&page) {
            own(core, pointer.addr.get(), slot);
        }
    }
    Ok(())
}

/// Goes on where each stream's zones were left: rows made even, summaries that are missing
/// written.
async fn settle_streams(
    inner: &Rc<Inner>,
    found: &Found,
    chains: &[Vec<u32>],
    owners: &BTreeMap<u32, SummaryEntry>,
) -> Result<()> {
    for (stream, chain) in chains.iter().enumerate() {
        for (index, superzone) in chain.iter().enumerate() {
            let last = index + 1 == chain.len();
            // The checkpoint knows who owns what in the first; of later ones only records do.
            let known = if index == 0 { Some(&found.image.streams[stream]) } else { None };
            settle(inner, found, stream, *superzone, last, known, owners).await?;
        }
    }
    Ok(())
}

async fn settle(
    inner: &Rc<Inner>,
    found: &Found,
    stream: usize,
    superzone: u32,
    last: bool,
    known: Option<&Stream>,
    owners: &BTreeMap<u32, SummaryEntry>,
) -> Result<()> {
    let id = SuperzoneId(superzone);
    let (zones, stripe, writer, geometry) = {
        let core = inner.core.borrow();
        let zones = core.zones.get(id).zones;
        (zones, core.stripe(superzone), core.writer.clone(), core.geometry.clone())
    };
    let report = |zone: &ZoneId| found.reports[zone.0 as usize];
    let ends: Vec<u32> = zones.iter().map(|zone| written(&report(zone), &geometry)).collect();
    for (zone, end) in zones.iter().zip(&ends) {
        let state = report(zone).state;
        if state.is_active() || state == ZoneState::Empty {
            writer.open_zone(*zone, *end);
        }
    }
    let broken =
        |zone: &ZoneId| matches!(report(zone).state, ZoneState::ReadOnly | ZoneState::Offline);
    if zones.iter().any(broken) {
        // It cannot be written evenly any more: it stays as it is until nothing in it is valid.
        for zone in zones.iter().filter(|zone| report(zone).state.is_active()) {
            writer.finish(*zone).await?;
        }
        inner.core.borrow_mut().zones.mark_full(id);
        return Ok(());
    }
    let goal = if last { row_end(&stripe, &ends) } else { stripe.blocks() };
    let goal = goal.max(known.map_or(0, |stream| stream.next));
    let core = &mut *inner.core.borrow_mut();
    let start = known.map_or(0, |stream| stream.next);
    let mut summary: Vec<SummaryEntry> = known.map(|s| s.summary.clone()).unwrap_or_default();
    // Walk in striping order from where the checkpoint knows all: what is on the drive is passed,
    // what is missing is padded, summaries that are missing are built from what is known.
    for v in start..goal {
        let (column, offset) = stripe.place(v);
        let missing = offset >= ends[column as usize];
        if stripe.is_summary(v) {
            core.streams[stream].summary = std::mem::take(&mut summary);
            let page = core.summary_page(stream, superzone, v / stripe.segment);
            if missing {
                core.write_at(superzone, v, page, WriteKind::Summary);
            }
            continue;
        }
        if missing {
            core.write_at(superzone, v, Page::zeroed(), WriteKind::Padding);
        }
        if !stripe.is_padding(v) {
            let addr = BlockAddr::new(&geometry, zones[column as usize], offset).0;
            let nobody = SummaryEntry::new_zeroed();
            summary.push(owners.get(&addr).copied().unwrap_or(nobody));
        }
    }
    if last && goal < stripe.blocks() {
        core.streams[stream] =
            Stream { superzone: Some(superzone), next: goal, summary, previous: None };
        core.settle(stream);
    } else {
        core.zones.mark_full(id);
        if last {
            let previous = Some((superzone, core.zones.generation(id)));
            core.streams[stream] = Stream { previous, ..Stream::default() };
        }
    }
    Ok(())
}

/// Frees inodes that were unlinked while open.
async fn reap_orphans(inner: &Rc<Inner>) -> Result<()> {
    loop {
        let next = inner.core.borrow().orphans.first().copied();
        let Some(ino) = next else { return Ok(()) };
        while !inner.run(|core| core.reap(ino)).await? {}
    }
}
