//! Makes a file system.

use crate::durability::recover::report;
use crate::format::{
    CheckpointBody, HEADS_PER_STREAM, LEVEL_INODE, NatEntry, ROOT_NODE, SitEntry, StreamState,
    SummaryEntry, SuperblockBody, UnitRef, class, kind, table,
};
use crate::layout::{Layout, OPEN_MIN};
use crate::tree::node::{as_inode_mut, new_node, stamp};
use crate::types::{Kind, MkfsOptions, MkfsReport, Time};
use furrow_log::BlockAddr;
use furrow_log::delta::{DeltaLayout, DeltaLog, Extent};
use furrow_log::format::{Descriptor, ExtentEntry};
use furrow_log::pool::{SuperzoneState, ZonePool, describe};
use furrow_log::record::{RecordId, Uuid, blocks_for, check_label, crc32c, peek, seal};
use furrow_log::writer::{Durability, Kind as WriteKind, Order, Writer, ZoneWrite};
use furrow_rt::{Pages, Pool, Rt};
use furrow_zone::{Error, ErrorKind, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice};
use std::rc::Rc;
use zerocopy::{FromZeros, IntoBytes};

/// See [`crate::Fs::format`].
pub(crate) async fn format(
    rt: &Rt,
    device: Rc<dyn ZonedDevice>,
    options: &MkfsOptions,
) -> Result<MkfsReport> {
    let geometry = device.geometry().clone();
    BlockAddr::check(&geometry)?;
    check_label(&options.label)?;
    let mut layout = Layout::plan(&geometry, options).map_err(|error| error.at(device.name()))?;
    let mut rng = rt.fork_rng();
    layout.uuid = options.uuid.unwrap_or_else(|| Uuid::random(&mut rng));
    layout.device = Uuid::random(&mut rng);
    let drawn = rng.next();
    layout.hash_seed = options.hash_seed.unwrap_or(drawn);
    layout.created = rt.wall().0;
    let pages = Pool::new(256);
    check_checkpoint(&layout).map_err(|error| error.at(device.name()))?;
    refuse_used(&*device, &layout, options, &pages).await?;
    home(&descriptors(&*device, &layout).await?)?;
    // Nothing is written before this line.
    let writer = Writer::new(rt, device.clone(), Order::Queued, 8);
    empty(&writer).await?;
    write(rt, &writer, &layout, &pages).await?;
    Ok(MkfsReport {
        uuid: layout.uuid.to_string(),
        label: layout.label.clone(),
        width: layout.width,
        superzones: layout.superzones,
        main_bytes: u64::from(layout.superzones)
            * u64::from(layout.stripe(layout.width).payload_blocks())
            * crate::format::BLOCK as u64,
        budget: layout.budget(),
        max_active: geometry.max_active,
        profile: layout.profile(&geometry, options),
        log_zones: layout.main_start - layout.ring_start,
    })
}

/// Checks that the checkpoints of a busy file system fit a zone after the superblock: unlike the
/// first checkpoint, such a checkpoint also has table pages, open summaries and orphans.
fn check_checkpoint(layout: &Layout) -> Result<()> {
    let units = (layout.nat_units() + layout.sit_units()) as usize;
    let streams = layout.streams as usize;
    let most = first_checkpoint_bytes(layout)
        + units * size_of::<UnitRef>()
        + streams * 8 * layout.segment_blocks as usize
        + streams * HEADS_PER_STREAM as usize * size_of::<StreamState>()
        + 4 * OPEN_MIN;
    if blocks_for(most) < layout.capacity {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "zones of {} blocks are too small for checkpoints of {} blocks and a superblock",
            layout.capacity,
            blocks_for(most)
        ),
    ))
}

/// Refuses a drive that is not empty, unless forced.
async fn refuse_used(
    device: &dyn ZonedDevice,
    layout: &Layout,
    options: &MkfsOptions,
    pages: &Pool,
) -> Result<()> {
    let reports = report(device).await?;
    furrow_log::survey::check_capacities(device, &reports)?;
    let logs = layout.ring_start..layout.main_start;
    if let Some(bad) = reports.iter().find(|r| broken(r.state) && logs.contains(&r.zone.0)) {
        let message = format!(
            "{}: zone {} is {:?}, and the logs need it: this drive cannot be used",
            device.name(),
            bad.zone,
            bad.state
        );
        return Err(Error::new(ErrorKind::Io, message));
    }
    if options.force {
        return Ok(());
    }
    let used = reports.iter().find(|r| r.state != ZoneState::Empty && !broken(r.state));
    let Some(used) = used.filter(|r| !device.geometry().is_conventional(r.zone)) else {
        return Ok(());
    };
    let addr = BlockAddr::new(device.geometry(), used.zone, 0);
    let block = furrow_log::read_blocks(device, QueueId(0), addr, 1, pages).await;
    let furrow = block.is_ok_and(|b| peek(b[0].bytes()).is_some());
    let what = if furrow { "holds a Furrow file system" } else { "is not empty" };
    let message =
        format!("{}: the drive {what} (zone {}): use -f to overwrite it", device.name(), used.zone);
    Err(Error::new(ErrorKind::Busy, message))
}

/// Describes the superzones of `layout`, leaving out zones that cannot be written.
async fn descriptors(device: &dyn ZonedDevice, layout: &Layout) -> Result<Vec<Descriptor>> {
    let bad: Vec<ZoneId> =
        report(device).await?.iter().filter(|r| broken(r.state)).map(|r| r.zone).collect();
    let first = ZoneId(layout.main_start);
    let mut all = describe(device.geometry(), first, layout.width as u8, &bad)?;
    all.truncate(layout.superzones as usize);
    Ok(all)
}

/// The first superzone without missing zones.
fn home(superzones: &[Descriptor]) -> Result<usize> {
    superzones.iter().position(|d| d.missing.get() == 0).ok_or_else(|| {
        Error::new(ErrorKind::Io, "every superzone has a zone that cannot be written")
    })
}

fn broken(state: ZoneState) -> bool {
    matches!(state, ZoneState::ReadOnly | ZoneState::Offline)
}

/// Resets every zone that is not empty, because a stale write pointer would disturb a later mount.
async fn empty(writer: &Writer) -> Result<()> {
    let device = writer.device().clone();
    let geometry = device.geometry();
    let holds = |zone: &ZoneReport| {
        let conventional = geometry.is_conventional(zone.zone);
        !conventional && !broken(zone.state) && zone.state != ZoneState::Empty
    };
    let used: Vec<ZoneId> =
        report(&*device).await?.iter().filter(|r| holds(r)).map(|r| r.zone).collect();
    ZonePool::wipe(writer, used.into_iter()).await
}

/// Writes the root directory, its table entries and the first checkpoint.
async fn write(rt: &Rt, writer: &Writer, layout: &Layout, pages: &Pool) -> Result<()> {
    let id = RecordId {
        kind: kind::DELTA,
        epoch: 1,
        checkpoint: 1,
        sequence: 0,
        device: layout.device,
        object: layout.uuid,
    };
    let (seconds, nanoseconds) = rt.wall();
    let mut root = new_node(pages, (ROOT_NODE, ROOT_NODE), 0, LEVEL_INODE, class::DIRECTORY);
    let head = &mut as_inode_mut(root.make_mut()).head;
    head.kind = Kind::Directory.code();
    head.mode = 0o755.into();
    head.links = 2.into();
    head.parent = ROOT_NODE.into();
    let now = stamp(Time { seconds, nanoseconds });
    (head.atime, head.mtime, head.ctime, head.btime) = (now, now, now, now);
    let crc = crc32c(root.bytes());
    // The number of the stream of directory nodes, which gets the first superzone without
    // missing zones.
    let stream = match layout.streams {
        6 => 3,
        4 => 2,
        _ => 1,
    };
    // Zones may have failed since the check: a reset shows it.
    let mut all = descriptors(&**writer.device(), layout).await?;
    let home = home(&all)?;
    let zone = ZoneId(layout.superzone_start(home as u32));
    writer.open_empty(zone);
    let pages_of: Pages = smallvec::smallvec![root];
    drop(writer.submit(ZoneWrite::pages(zone, WriteKind::Node, pages_of)));
    let addr = BlockAddr::new(writer.geometry(), zone, 0).0;
    let nat =
        NatEntry { addr: addr.into(), crc: crc.into(), ino: ROOT_NODE.into(), reserved: 0.into() };
    let mut sit = SitEntry::new_zeroed();
    sit.valid = 1.into();
    sit.stream = stream as u8;
    sit.changed = (seconds as u32).into();
    sit.map[0] = 1;
    let sizes = [size_of::<NatEntry>() as u16, size_of::<SitEntry>() as u16];
    let entries = [
        (table::NAT, ROOT_NODE, nat.as_bytes()),
        (table::SIT, home as u32 * layout.segments, sit.as_bytes()),
    ];
    let mut logs = Vec::new();
    for log in 0..layout.logs as usize {
        let halves = [layout.delta_half(log, 0), layout.delta_half(log, 1)];
        let delta = DeltaLayout::new(writer.geometry(), halves, &sizes, kind::DELTA)?;
        let mut delta = DeltaLog::new(writer, delta, pages, None);
        let mut extents = Vec::new();
        let of =
            |entry: &(u8, u32, &[u8])| usize::from(entry.0).min(layout.logs as usize - 1) == log;
        delta.append(&id, entries.into_iter().filter(of), &mut extents)?.written().await?;
        logs.push((extents, delta.position().1));
    }
    writer.drain().await?;
    writer.flush().await?;
    all[home].state = SuperzoneState::Active as u8;
    let body = first_checkpoint(layout, (stream, home as u32), &all, &logs, seconds);
    let ring = ZoneId(layout.ring_start);
    assert!(
        body.len() <= first_checkpoint_bytes(layout),
        "invariant: the checkpoint is as large as was checked"
    );
    writer.open_empty(ring);
    let superblock = RecordId { kind: kind::SUPERBLOCK, checkpoint: 0, ..id };
    let superblock = seal(&superblock, layout.encode().as_bytes(), pages);
    let durability = Durability::Fua;
    let superblock = ZoneWrite::pages(ring, WriteKind::Checkpoint, superblock);
    drop(writer.submit(ZoneWrite { durability, ..superblock }));
    let checkpoint = RecordId { kind: kind::CHECKPOINT, sequence: 1, ..id };
    let mut checkpoint = seal(&checkpoint, &body, pages);
    let blocks = checkpoint.len() as u32;
    let copies = layout.checkpoint_span(blocks) / blocks;
    checkpoint = (0..copies).flat_map(|_| checkpoint.iter().cloned()).collect();
    let checkpoint = ZoneWrite::pages(ring, WriteKind::Checkpoint, checkpoint);
    drop(writer.submit(ZoneWrite { durability, ..checkpoint }));
    writer.drain().await?;
    writer.flush().await
}

/// The size of [`first_checkpoint`] if each log has one extent.
fn first_checkpoint_bytes(layout: &Layout) -> usize {
    size_of::<CheckpointBody>()
        + size_of::<SuperblockBody>()
        + layout.streams as usize * size_of::<StreamState>()
        + layout.logs as usize * size_of::<ExtentEntry>()
        + layout.superzones as usize * size_of::<Descriptor>()
        + size_of::<SummaryEntry>()
}

fn first_checkpoint(
    layout: &Layout,
    (stream, home): (usize, u32),
    descriptors: &[Descriptor],
    logs: &[(Vec<Extent>, u32)],
    written: i64,
) -> Vec<u8> {
    let extents = || logs.iter().flat_map(|(extents, _)| extents);
    let body = CheckpointBody {
        flags: 1.into(),
        streams: layout.streams.into(),
        extents: (extents().count() as u32).into(),
        log_extents: (logs[0].0.len() as u32).into(),
        superzones: layout.superzones.into(),
        delta_next: logs[0].1.into(),
        sit_next: logs.get(1).map_or(0, |log| log.1).into(),
        sync_limit: u64::MAX.into(),
        sync_epoch: 1.into(),
        written: written.into(),
        inodes: 1.into(),
        generation: 1.into(),
        ..CheckpointBody::new_zeroed()
    };
    let mut out = body.as_bytes().to_vec();
    out.extend(layout.encode().as_bytes());
    for index in 0..layout.streams as usize {
        let first = index == stream;
        let state = StreamState {
            superzone: if first { home } else { u32::MAX }.into(),
            next: u32::from(first).into(),
            summary: u32::from(first).into(),
            reserved: 0.into(),
        };
        out.extend(state.as_bytes());
    }
    for extent in extents() {
        out.extend(extent.entry().as_bytes());
    }
    out.extend(descriptors.as_bytes());
    let owner =
        SummaryEntry { node: ROOT_NODE.into(), slot: crate::alloc::place::NODE_SLOT.into() };
    out.extend(owner.as_bytes());
    out
}
