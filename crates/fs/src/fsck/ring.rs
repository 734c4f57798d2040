//! Checks superblock copies and the checkpoint ring, and finds the newest whole checkpoint.

use super::{Fsck, Superzone, Volume, state};
use crate::durability::recover::read::offline_superblock;
use crate::format::{
    self, COMPAT_KNOWN, CheckpointBody, HEADS_PER_STREAM, INCOMPAT_KNOWN, RO_COMPAT_KNOWN,
    StreamState, SummaryEntry, SuperblockBody, UnitRef, kind,
};
use crate::layout::{Layout, RING_ZONES};
use furrow_log::format::{Descriptor, ExtentEntry};
use furrow_log::record::{self, Expect, RecordHeader};
use furrow_rt::buf::{concat, is_zero};
use furrow_zone::{Error, ErrorKind, Result, ZoneId, ZoneState};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, KnownLayout};

const SUPERBLOCK: &str = "superblock";
const CHECKPOINT: &str = "checkpoint";

/// The age of a checkpoint, for comparison. Recovery rewrites the checkpoint that it found, and may
/// reuse the number of a torn one. The torn checkpoint may become whole when zeros fill the block
/// in which it was torn; the epoch then decides between the two.
fn age(header: &RecordHeader) -> (u64, u64) {
    (header.checkpoint.get(), header.epoch.get())
}

/// Reads superblock and checkpoint; `None` if damage prevents further checks.
pub(super) async fn read(fsck: &mut Fsck) -> Result<Option<Volume>> {
    let Some(plan) = superblocks(fsck).await? else { return Ok(None) };
    fsck.report.uuid = plan.uuid.to_string();
    let mut best: Option<(RecordHeader, Vec<u8>, u32)> = None;
    for ring in 0..RING_ZONES {
        let scanned = scan(fsck, &plan, ZoneId(plan.ring_start + ring)).await;
        if let Some((header, body)) = scanned.newest
            && best.as_ref().is_none_or(|best| age(&header) > age(&best.0))
        {
            best = Some((header, body, ring));
        }
    }
    check_offline(fsck, &plan, best.as_ref().map(|best| best.2));
    let Some((header, body, _)) = best else {
        let place = format!("ring, zones {} and {}", plan.ring_start, plan.ring_start + 1);
        fsck.add(CHECKPOINT, place, "a whole one", "none");
        return Ok(None);
    };
    fsck.report.checkpoint = header.checkpoint.get();
    Ok(decode(fsck, plan, header, &body))
}

/// Reports an offline zone of the ring if this zone may have held the newest checkpoint. If the
/// other zone, with the newest checkpoint found, has space left, the offline zone held only older
/// checkpoints: the ring leaves a zone only when the zone is full.
fn check_offline(fsck: &mut Fsck, plan: &Layout, best: Option<u32>) {
    let state = |ring: u32| fsck.reports[(plan.ring_start + ring) as usize].state;
    let Some(ring) = (0..RING_ZONES).find(|ring| state(*ring) == ZoneState::Offline) else {
        return;
    };
    let has_room = best.is_some_and(|best| {
        state(best).is_active() && fsck.written(ZoneId(plan.ring_start + best)) < plan.capacity
    });
    if !has_room {
        let place = format!("ring, zone {}", plan.ring_start + ring);
        fsck.add(CHECKPOINT, place, "the newest one", "an offline zone");
    }
}

/// Reads the superblock copies in the ring, and returns the plan they describe.
pub(super) async fn superblocks(fsck: &mut Fsck) -> Result<Option<Layout>> {
    let first = fsck.geometry.conventional_zones;
    let mut copies: Vec<(ZoneId, RecordHeader, SuperblockBody)> = Vec::new();
    let (mut traces, mut unread) = (false, None);
    for zone in (first..fsck.geometry.zones).take(RING_ZONES as usize).map(ZoneId) {
        if fsck.written(zone) == 0 {
            continue;
        }
        match superblock(fsck, zone).await {
            Ok((header, body)) => copies.push((zone, header, body)),
            Err(error) if error.kind() == ErrorKind::WrongFormat => return Err(error),
            Err(error) => {
                traces |= has_records(fsck, zone).await;
                if error.kind() == ErrorKind::Io {
                    unread = Some(error.clone());
                }
                fsck.add(SUPERBLOCK, format!("copy in zone {zone}"), "a whole one", error);
            }
        }
    }
    let found = match copies.first() {
        Some(copy) => Some(*copy),
        None => of_checkpoints(fsck).await?,
    };
    let Some((zone, header, body)) = found else {
        if traces {
            let name = fsck.device.name();
            fsck.report.notes.push(format!("{name}: no whole superblock: nothing else is checked"));
            return Ok(None);
        }
        // If the drive answers no read, nobody can tell what it holds.
        if let Some(error) = unread {
            return Err(error);
        }
        if let Some(error) = offline_superblock(&*fsck.device, &fsck.reports) {
            return Err(error);
        }
        let message = format!(
            "{}: no Furrow file system found: check that it is the device you mean",
            fsck.device.name()
        );
        return Err(Error::new(ErrorKind::WrongFormat, message));
    };
    for (other, other_header, other_body) in copies.iter().skip(1) {
        let same = (&header.object, &header.device, &but_label(&body))
            == (&other_header.object, &other_header.device, &but_label(other_body));
        if !same {
            let place = format!("copies in zones {zone} and {other}");
            fsck.add(SUPERBLOCK, place, "equal copies", "different ones");
        }
    }
    let at = match copies.is_empty() {
        false => format!("copy in zone {zone}"),
        true => format!("copy in a checkpoint in zone {zone}"),
    };
    check_superblock(fsck, &at, &header, &body)
}

/// A superblock with an empty label, for comparison. After a crash that interrupted a change of the
/// label, the labels of the copies may differ; the label in the newest checkpoint counts.
fn but_label(body: &SuperblockBody) -> SuperblockBody {
    SuperblockBody { label: [0; 64], ..*body }
}

/// Finds the superblock copy inside a whole checkpoint of the ring; returns it with the zone and
/// the header of the checkpoint.
async fn of_checkpoints(fsck: &Fsck) -> Result<Option<(ZoneId, RecordHeader, SuperblockBody)>> {
    let first = fsck.geometry.conventional_zones;
    let expect = Expect { kind: kind::CHECKPOINT, ..Expect::default() };
    for zone in (first..fsck.geometry.zones).take(RING_ZONES as usize).map(ZoneId) {
        let end = fsck.written(zone);
        for at in 1..end {
            let Ok((header, body)) = whole(fsck, &expect, zone, at, end).await else { continue };
            let body = body.get(CheckpointBody::SIZE..).unwrap_or_default();
            let Ok((body, _)) = SuperblockBody::read_from_prefix(body) else { continue };
            known_features(fsck, &body)?;
            // The header's sequence is that of the checkpoint; a superblock must have 0.
            let header = RecordHeader { sequence: 0.into(), ..header };
            return Ok(Some((zone, header, body)));
        }
    }
    Ok(None)
}

async fn superblock(fsck: &Fsck, zone: ZoneId) -> Result<(RecordHeader, SuperblockBody)> {
    let block = fsck.read_one(fsck.addr(zone, 0)).await?;
    let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, what);
    let expect = Expect { kind: kind::SUPERBLOCK, ..Expect::default() };
    let newer = |header: &RecordHeader| header.version.get() > record_version();
    let opened = record::open(block.bytes(), &expect).map_err(|error| {
        // A whole record of another kind is damage here; a record of a newer version is not.
        let header = record::peek(block.bytes());
        if error.kind() == ErrorKind::WrongFormat && header.as_ref().is_some_and(newer) {
            return error.at(format!("{}: superblock", fsck.device.name()));
        }
        corrupt(&error.to_string())
    });
    let (header, bytes) = opened?;
    let (body, rest) = SuperblockBody::read_from_prefix(bytes)
        .map_err(|_| corrupt(&format!("a body of {} bytes", bytes.len())))?;
    if !rest.is_empty() {
        return Err(corrupt(&format!("a body of {} bytes", bytes.len())));
    }
    known_features(fsck, &body)?;
    Ok((header, body))
}

fn known_features(fsck: &Fsck, body: &SuperblockBody) -> Result<()> {
    let unknown = [
        ("incompatible", body.incompat.get() & !INCOMPAT_KNOWN),
        ("read-only compatible", body.ro_compat.get() & !RO_COMPAT_KNOWN),
        // Unknown compatible features are harmless to a mount, but this check would misjudge the
        // structures they add.
        ("compatible", body.compat.get() & !COMPAT_KNOWN),
    ];
    if let Some((what, bits)) = unknown.iter().find(|(_, bits)| *bits != 0) {
        let message = format!(
            "{}: {what} features {bits:#x} unknown to this version: use a newer furrow",
            fsck.device.name()
        );
        return Err(Error::new(ErrorKind::WrongFormat, message));
    }
    Ok(())
}

fn record_version() -> u16 {
    furrow_log::format::RECORD_VERSION
}

/// Whether the first blocks of `zone` hold any record of a file system. If so, a missing superblock
/// is damage, and the device is the right one.
async fn has_records(fsck: &Fsck, zone: ZoneId) -> bool {
    for offset in 0..fsck.written(zone).min(64) {
        let Ok(block) = fsck.read_one(fsck.addr(zone, offset)).await else { continue };
        let kinds = [kind::SUPERBLOCK, kind::CHECKPOINT];
        if record::peek(block.bytes()).is_some_and(|h| kinds.contains(&h.kind.get())) {
            return true;
        }
    }
    false
}

fn check_superblock(
    fsck: &mut Fsck,
    at: &str,
    header: &RecordHeader,
    body: &SuperblockBody,
) -> Result<Option<Layout>> {
    let end = body.label.iter().position(|b| *b == 0).unwrap_or(body.label.len());
    match std::str::from_utf8(&body.label[..end]) {
        Ok(label) => fsck.report.label = label.to_string(),
        Err(_) => fsck.add(SUPERBLOCK, format!("{at}: label"), "UTF-8", "other bytes"),
    }
    fsck.expect_zero(SUPERBLOCK, || format!("{at}: after the label"), &body.label[end..]);
    fsck.expect_zero(SUPERBLOCK, || format!("{at}: header, reserved"), &header.reserved);
    fsck.expect(SUPERBLOCK, || format!("{at}: header, durable"), 0, header.durable.get());
    fsck.expect(SUPERBLOCK, || format!("{at}: header, sequence"), 0, header.sequence.get());
    match Layout::read(body, header.object, header.device).checked(&fsck.geometry) {
        Ok(plan) => Ok(Some(plan)),
        Err(problems) => {
            for (field, expected, found) in problems {
                fsck.add(SUPERBLOCK, format!("{at}: {field}"), expected, found);
            }
            Ok(None)
        }
    }
}

/// A damaged checkpoint that is newer than the newest whole one.
pub(crate) struct LostCheckpoint {
    pub(crate) zone: ZoneId,
    pub(crate) offset: u32,
    /// The checkpoint's header, if it can be read; the header may be damaged too.
    pub(crate) header: Option<RecordHeader>,
}

/// Finds the last damaged checkpoint behind the newest whole one; a checkpoint that a crash tore is
/// not damaged. Continuing with the whole checkpoint loses the changes made after that checkpoint.
pub(crate) async fn lost_checkpoint(
    device: std::rc::Rc<dyn furrow_zone::ZonedDevice>,
) -> Result<Option<LostCheckpoint>> {
    let mut fsck = Fsck::new(device, super::FsckOptions { verify_data: false }).await?;
    let Some(plan) = superblocks(&mut fsck).await? else { return Ok(None) };
    let mut zones = Vec::new();
    for ring in 0..RING_ZONES {
        let zone = ZoneId(plan.ring_start + ring);
        zones.push((zone, scan(&mut fsck, &plan, zone).await));
    }
    let number = |scanned: &Scanned| scanned.newest.as_ref().map(|(h, _)| h.checkpoint.get());
    let best = zones.iter().filter_map(|(_, scanned)| number(scanned)).max();
    let mut lost = None;
    for (zone, scanned) in &zones {
        let Some(offset) = scanned.damaged_behind else { continue };
        // The ring is written zone by zone: if the other zone has a newer whole checkpoint, that
        // checkpoint is newer than every record here.
        if number(scanned).is_some() && number(scanned) < best {
            continue;
        }
        let block = fsck.read_one(fsck.addr(*zone, offset)).await;
        let header = block.ok().and_then(|block| record::peek(block.bytes()));
        let older = header.as_ref().is_some_and(|h| best >= Some(h.checkpoint.get()));
        // A zone with only damaged records that have older numbers is an old zone, which was about
        // to be reset.
        if number(scanned).is_none() && older {
            continue;
        }
        lost = Some(LostCheckpoint { zone: *zone, offset, header });
    }
    Ok(lost)
}

/// The content of one zone of the ring.
#[derive(Default)]
struct Scanned {
    newest: Option<(RecordHeader, Vec<u8>)>,
    /// The last damaged record after `newest`.
    damaged_behind: Option<u32>,
}

/// Scans one zone of the ring: every record in it must be whole or torn.
async fn scan(fsck: &mut Fsck, plan: &Layout, zone: ZoneId) -> Scanned {
    let end = fsck.written(zone);
    let mut found = Scanned::default();
    // Block 0 is the superblock. A zone just entered may hold nothing else yet.
    let mut at = 1;
    // The block where the second copy of a checkpoint begins.
    let mut copy = None;
    // A change of the label begins a new zone, so all records of a zone have the label of the
    // zone's superblock.
    let label = superblock(fsck, zone).await.ok().map(|(_, body)| body.label);
    while at < end {
        let place = format!("zone {zone} offset {at}");
        match judge(fsck, plan, zone, at, end).await {
            Found::Whole(header, body) => {
                if let Some((older, _)) = &found.newest
                    && age(&header) < age(older)
                {
                    let expected = format!("a number from {} on", older.checkpoint);
                    fsck.add(CHECKPOINT, &place, expected, header.checkpoint);
                }
                let behind = body.get(CheckpointBody::SIZE..).unwrap_or_default();
                if let Some(label) = label
                    && let Ok((copied, _)) = SuperblockBody::read_from_prefix(behind)
                    && copied.label != label
                {
                    fsck.add(CHECKPOINT, place, "the label of the zone's superblock", "another");
                }
                let (second, blocks) = (copy == Some(at), header.blocks());
                at += blocks;
                let twice = plan.has_proofs();
                copy = (!second && twice && 2 * blocks < plan.capacity).then_some(at);
                found = Scanned { newest: Some((header, body)), damaged_behind: None };
                continue;
            }
            // Records may follow padding: a crash can interrupt the filling of a zone, and the next
            // mount then continues in that zone.
            Found::Padding | Found::Torn => {}
            Found::Damaged(why) => {
                if copy == Some(at) {
                    fsck.add(CHECKPOINT, place, "a second copy of the checkpoint before", why);
                } else {
                    found.damaged_behind = Some(at);
                    fsck.add(CHECKPOINT, place, "a whole record", why);
                }
            }
        }
        // The length of the record is unknown: continue at the next header.
        at += 1;
        while at < end && !has_header(fsck, zone, at).await {
            at += 1;
        }
    }
    found
}

enum Found {
    Whole(RecordHeader, Vec<u8>),
    /// A record that was begun, and interrupted by a crash.
    Torn,
    /// Zeros: the zone was filled when the ring entered the other zone.
    Padding,
    Damaged(String),
}

async fn has_header(fsck: &Fsck, zone: ZoneId, at: u32) -> bool {
    let block = fsck.read_one(fsck.addr(zone, at)).await;
    block.is_ok_and(|block| record::peek(block.bytes()).is_some())
}

/// Reads the whole checkpoint at block `at` of a zone written up to `end`; the error says why there
/// is none.
async fn whole(
    fsck: &Fsck,
    expect: &Expect,
    zone: ZoneId,
    at: u32,
    end: u32,
) -> Result<(RecordHeader, Vec<u8>), String> {
    let first = fsck.read_one(fsck.addr(zone, at)).await.map_err(|error| error.to_string())?;
    let header = record::peek(first.bytes()).ok_or("no record header")?;
    let blocks = header.blocks();
    if blocks > end - at {
        return Err(format!("{blocks} blocks by its length, {} are written", end - at));
    }
    let pages = fsck.read(fsck.addr(zone, at), blocks).await.map_err(|error| error.to_string())?;
    let bytes = concat(&pages);
    let (header, body) = record::open(&bytes, expect).map_err(|error| error.to_string())?;
    Ok((header, body.to_vec()))
}

/// Judges the record at block `at` of a ring zone written up to `end`.
async fn judge(fsck: &Fsck, plan: &Layout, zone: ZoneId, at: u32, end: u32) -> Found {
    let expect =
        Expect { kind: kind::CHECKPOINT, device: Some(plan.device), object: Some(plan.uuid) };
    let why = match whole(fsck, &expect, zone, at, end).await {
        Ok((header, body)) => return Found::Whole(header, body),
        Err(why) => why,
    };
    let Ok(block) = fsck.read_one(fsck.addr(zone, at)).await else { return Found::Damaged(why) };
    let Some(header) = record::peek(block.bytes()) else {
        let zeros = is_zero(block.bytes());
        return if zeros { Found::Padding } else { Found::Damaged(why) };
    };
    // A crash cut the record off if fewer blocks than it needs lie before the next whole record or
    // the end. The record needs the smaller of its length and the size computed from its own
    // counts, as damage may have changed one of them.
    let needed = needed_blocks(block.bytes()).unwrap_or(u32::MAX).min(header.blocks());
    if needed > end - at {
        return Found::Torn;
    }
    for next in at + 1..at + needed {
        if whole(fsck, &expect, zone, next, end).await.is_ok() {
            return Found::Torn;
        }
    }
    match torn_within(fsck, (zone, at), needed).await {
        true => Found::Torn,
        false => Found::Damaged(why),
    }
}

/// True if a crash cut off the record at `at` within its last block, and recovery filled the rest
/// of that block with zeros. The block then has only zeros where the record should end.
async fn torn_within(fsck: &Fsck, (zone, at): (ZoneId, u32), blocks: u32) -> bool {
    let mut all = Vec::new();
    for block in at..at + blocks.max(1) {
        let Ok(page) = fsck.read_one(fsck.addr(zone, block)).await else { return false };
        all.extend_from_slice(page.bytes());
    }
    record::may_be_cut_off(&all, fsck.geometry.block_size.0 as usize)
}

/// Number of blocks that the checkpoint at the front of `block` needs, computed from the
/// checkpoint's own counts; `None` if some of the counts are not in this block.
fn needed_blocks(block: &[u8]) -> Option<u32> {
    let (_, rest) = RecordHeader::read_from_prefix(block).ok()?;
    let (body, rest) = CheckpointBody::read_from_prefix(rest).ok()?;
    let (_, mut rest) = SuperblockBody::read_from_prefix(rest).ok()?;
    let mut bytes = RecordHeader::SIZE + CheckpointBody::SIZE + SuperblockBody::SIZE;
    for _ in 0..body.streams.get() {
        let (stream, later) = StreamState::read_from_prefix(rest).ok()?;
        let entries = (stream.summary.get() as usize).checked_mul(size_of::<SummaryEntry>())?;
        bytes = bytes.checked_add(size_of::<StreamState>())?.checked_add(entries)?;
        rest = later;
    }
    for (count, size) in [
        (body.extents, size_of::<ExtentEntry>()),
        (body.units, size_of::<UnitRef>()),
        (body.superzones, size_of::<Descriptor>()),
        (body.orphans, 4),
    ] {
        bytes = bytes.checked_add((count.get() as usize).checked_mul(size)?)?;
    }
    u32::try_from(bytes.div_ceil(format::BLOCK)).ok()
}

/// Takes `count` values of type `T` from the front of `rest`.
fn section<T: FromBytes + Immutable + KnownLayout>(rest: &mut &[u8], count: u32) -> Option<Vec<T>> {
    let size = size_of::<T>().checked_mul(count as usize)?;
    let (now, later) = rest.split_at_checked(size)?;
    *rest = later;
    now.chunks_exact(size_of::<T>()).map(|chunk| T::read_from_bytes(chunk).ok()).collect()
}

fn decode(fsck: &mut Fsck, plan: Layout, header: RecordHeader, bytes: &[u8]) -> Option<Volume> {
    let sections = (|| {
        let (body, rest) = CheckpointBody::read_from_prefix(bytes).ok()?;
        let (superblock, mut rest) = SuperblockBody::read_from_prefix(rest).ok()?;
        let streams: Vec<StreamState> = section(&mut rest, body.streams.get())?;
        let extents: Vec<ExtentEntry> = section(&mut rest, body.extents.get())?;
        let units: Vec<UnitRef> = section(&mut rest, body.units.get())?;
        let descriptors: Vec<Descriptor> = section(&mut rest, body.superzones.get())?;
        let orphans: Vec<U32> = section(&mut rest, body.orphans.get())?;
        let summaries: Option<Vec<Vec<SummaryEntry>>> =
            streams.iter().map(|stream| section(&mut rest, stream.summary.get())).collect();
        let whole = rest.is_empty();
        let lists = (streams, extents, units, descriptors, orphans, summaries?);
        whole.then_some((body, superblock, lists))
    })();
    let Some((body, superblock, lists)) = sections else {
        let found = format!("{} bytes that its counts do not add up to", bytes.len());
        fsck.add(CHECKPOINT, "sections", "sections that fit its length", found);
        return None;
    };
    fsck.report.label = crate::layout::label(&superblock);
    let unlabelled = Layout { label: String::new(), ..plan.clone() };
    if but_label(&superblock) != unlabelled.encode() {
        fsck.add(
            CHECKPOINT,
            "copy of the superblock",
            "what the superblock says",
            "something else",
        );
    }
    let (streams, extents, units, descriptors, orphans, summaries) = lists;
    let superzones = check_descriptors(fsck, &plan, &descriptors);
    let orphans = orphans.into_iter().map(U32::get).collect();
    fsck.report.clean = body.flags.get() & 1 == 1;
    let volume =
        Volume { plan, header, body, streams, extents, units, superzones, orphans, summaries };
    check_body(fsck, &volume).then_some(volume)
}

/// Checks the fields of the checkpoint's body; false if they prevent further checks.
fn check_body(fsck: &mut Fsck, volume: &Volume) -> bool {
    let Volume { plan, header, body, .. } = volume;
    let place = |field: &'static str| move || field.to_string();
    let mut ok = true;
    fsck.expect_zero(CHECKPOINT, place("header, reserved"), &header.reserved);
    fsck.expect(CHECKPOINT, place("header, durable"), 0, header.durable.get());
    fsck.expect(CHECKPOINT, place("header, sequence"), header.checkpoint, header.sequence);
    fsck.expect_zero(CHECKPOINT, place("reserved"), &body.reserved.to_bytes());
    fsck.expect(CHECKPOINT, place("flags"), body.flags.get() & 1, body.flags.get());
    let (heads, most) = (body.streams.get(), plan.streams * HEADS_PER_STREAM);
    if !(plan.streams..=most).contains(&heads) {
        fsck.add(CHECKPOINT, "streams", format!("{} to {most}", plan.streams), heads);
        ok = false;
    }
    ok &= fsck.expect(CHECKPOINT, place("superzones"), plan.superzones, body.superzones.get());
    let mut range = |field: &'static str, value: u32, high: u32| {
        if value > high {
            fsck.add(CHECKPOINT, field, format!("at most {high}"), value);
            ok = false;
        }
    };
    range("delta_half", body.delta_half.get(), 1);
    range("sit_half", body.sit_half.get(), plan.logs - 1);
    range("nat_units", body.nat_units.get(), plan.nat_units().min(body.units.get()));
    range("units", body.units.get(), body.nat_units.get().saturating_add(plan.sit_units()));
    range("log_extents", body.log_extents.get(), body.extents.get());
    if plan.logs == 1 {
        range("extents", body.extents.get(), body.log_extents.get());
        range("sit_next", body.sit_next.get(), 0);
    }
    range("sync_half", body.sync_half.get(), 1);
    range("sync_next", body.sync_next.get(), plan.sync_stripe().blocks());
    let (epoch, sync_epoch) = (header.epoch, body.sync_epoch);
    let unlimited = body.sync_limit.get() == u64::MAX;
    // Only recovery sets a limit, in the first checkpoint of its new epoch.
    if (unlimited && sync_epoch != epoch) || (!unlimited && sync_epoch >= epoch) {
        let expected = if unlimited { format!("{epoch}") } else { format!("below {epoch}") };
        fsck.add(CHECKPOINT, "sync_epoch", expected, sync_epoch);
    }
    if body.sync_limit < body.sync_sequence {
        let expected = format!("{} or more", body.sync_sequence);
        fsck.add(CHECKPOINT, "sync_limit", expected, body.sync_limit);
    }
    if body.written.get() < 0 {
        fsck.add(CHECKPOINT, "written", "a time after 1970", body.written);
    }
    let mut last = 0;
    for (index, orphan) in volume.orphans.iter().enumerate() {
        if *orphan <= last || *orphan >= plan.nodes {
            let expected = format!("inodes up to {}, ascending", plan.nodes - 1);
            fsck.add(CHECKPOINT, format!("orphan {index}"), expected, orphan);
        }
        last = *orphan;
    }
    ok
}

/// Checks that the descriptors are disjoint, within the main area, and in possible states.
fn check_descriptors(fsck: &mut Fsck, plan: &Layout, descriptors: &[Descriptor]) -> Vec<Superzone> {
    const DESCRIPTOR: &str = "superzone descriptor";
    let mut superzones = Vec::with_capacity(descriptors.len());
    for (index, descriptor) in descriptors.iter().enumerate() {
        let place = |field: &'static str| move || format!("superzone {index}: {field}");
        let first = u64::from(plan.main_start) + index as u64 * u64::from(plan.width);
        let found = u64::from(descriptor.first.get());
        fsck.expect(DESCRIPTOR, place("first"), first, found);
        fsck.expect(DESCRIPTOR, place("width"), plan.width, u32::from(descriptor.width));
        fsck.expect_zero(DESCRIPTOR, place("reserved"), &descriptor.reserved);
        let missing = u64::from(descriptor.missing.get());
        if missing >> plan.width != 0 {
            let expected = format!("bits below {}", plan.width);
            fsck.add(DESCRIPTOR, place("missing")(), expected, format!("{missing:#x}"));
        }
        let zones: Vec<ZoneId> = (0..plan.width)
            .filter(|i| missing >> i & 1 == 0)
            .map(|i| ZoneId(first as u32 + i))
            .filter(|zone| zone.0 < fsck.geometry.zones)
            .collect();
        let bad = |zone: ZoneId| {
            use furrow_zone::ZoneState::{Offline, ReadOnly};
            matches!(fsck.reports[zone.0 as usize].state, Offline | ReadOnly)
        };
        let dead = (0..plan.width).filter(|i| missing >> i & 1 == 1);
        let healthy: Vec<u32> = dead
            .map(|i| first as u32 + i)
            .filter(|zone| *zone < fsck.geometry.zones && !bad(ZoneId(*zone)))
            .collect();
        if !healthy.is_empty() {
            // A zone that could not be reset is left out of its superzone, even if the drive
            // reports the zone as healthy.
            fsck.report.notes.push(format!("superzone {index} leaves out zones {healthy:?}"));
        }
        if descriptor.state > state::TABLES
            || zones.is_empty() != (descriptor.state == state::RETIRED)
        {
            let expected = format!("a state that fits {} zones", zones.len());
            fsck.add(DESCRIPTOR, place("state")(), expected, descriptor.state);
        }
        let (generation, state) = (descriptor.generation.get(), descriptor.state);
        superzones.push(Superzone { zones, generation, state });
    }
    superzones
}
