//! Mount and recovery: the functions that the steps in `steps` run.
//!
//! The newest whole checkpoint contains the complete state at its snapshot. The sync log adds what
//! was fsynced later. Records are read in order, up to the first record that is missing, torn,
//! void, or depends on a write that did not reach the drive. Before recovery changes anything else
//! on the drive, it writes a copy of the checkpoint that names the replay end and a new epoch. From
//! then on a second crash replays exactly the same records, even if recovery has padded or reset
//! zones in the meantime.

mod log_end;
mod log_reader;
pub(crate) mod read;
pub(crate) mod replay;
mod steps;
mod sync_items;
pub(crate) mod sync_scan;

use read::Found;
pub(crate) use read::{report, written};
pub(crate) use steps::mount;
use sync_scan::SyncScan;

use crate::alloc::Allocator;
use crate::alloc::heads::Head;
use crate::core::{Core, Failed, Inner, Parts};
use crate::durability::namespace_log::NamespaceLog;
use crate::durability::sync::SyncLog;
use crate::durability::{CheckpointState, Durability};
use crate::format::{NatEntry, SitEntry, SummaryEntry, kind};
use crate::layout::Layout;
use crate::tables::Log;
use crate::tables::TableZones;
use crate::tables::Tables;
use crate::tables::table::Table;
use crate::tree::Tree;
use crate::types::{Ino, MountOptions};
use furrow_log::DurableSnapshot;
use furrow_log::address::{BlockAddr, blocks_begun};
use furrow_log::delta::{DeltaLayout, DeltaLog};
use furrow_log::pool::{SuperzoneId, SuperzoneState, ZonePool};
use furrow_log::record::{self};
use furrow_log::survey;
use furrow_log::writer::{Kind as WriteKind, Writer, WriterOptions, ZoneWrite};
use furrow_policy::{FsDefect, Pieces};
use furrow_rt::{Page, Pool, Rt};
use furrow_zone::{Error, ErrorKind, Geometry, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice};
use std::collections::BTreeMap;
use std::rc::Rc;
use zerocopy::FromZeros;

/// Number of commands that keep the dies of a zone busy at the same time, if the zone spans
/// many dies.
const PIECES: u32 = 4;
/// Number of hardware queues that zones are distributed over.
const QUEUES: u16 = 8;

/// Checks that all blocks written before the checkpoint are on the drive: the checkpoint waited
/// for them.
pub(crate) fn check_heads(device: &dyn ZonedDevice, found: &Found) -> Result<()> {
    let geometry = device.geometry();
    for head in &found.image.heads {
        let Some(superzone) = head.superzone else { continue };
        let descriptor = &found.image.descriptors[superzone as usize];
        let present = |i: &u32| descriptor.missing.get() >> i & 1 == 0;
        let first = descriptor.first.get();
        let zones: Vec<u32> =
            (0..u32::from(descriptor.width)).filter(present).map(|i| first + i).collect();
        let stripe = found.layout.stripe(zones.len().max(1) as u32);
        for (column, zone) in zones.iter().enumerate() {
            let report = &found.reports[*zone as usize];
            let least = stripe.fill(column as u32, head.next);
            let end = written(report, geometry);
            if end < least && report.state != ZoneState::Offline {
                let message = format!(
                    "{}: zone {zone} holds {end} blocks, but the checkpoint says at least {least}",
                    device.name()
                );
                return Err(Error::new(ErrorKind::Corrupt, message));
            }
        }
    }
    Ok(())
}

/// The layouts of a drive's delta logs.
pub(crate) fn delta_layouts(
    geometry: &Geometry,
    layout: &Layout,
    options: &MountOptions,
) -> Result<Vec<DeltaLayout>> {
    let sizes = [size_of::<NatEntry>() as u16, size_of::<SitEntry>() as u16];
    let mut deltas = Vec::new();
    for log in 0..layout.logs as usize {
        let halves = [layout.delta_half(log, 0), layout.delta_half(log, 1)];
        let mut delta = DeltaLayout::new(geometry, halves, &sizes, kind::DELTA)?;
        delta.defect = options.variant.defect.and_then(FsDefect::of_log);
        deltas.push(delta);
    }
    Ok(deltas)
}

fn writer(
    rt: &Rt,
    device: &Rc<dyn ZonedDevice>,
    options: &MountOptions,
    layout: &Layout,
) -> Writer {
    let writer = WriterOptions {
        queues: QUEUES,
        order: options.order,
        command_blocks: options.variant.commands.blocks(),
        pieces: match options.variant.pieces {
            Pieces::ByZone if !layout.has_large_zones() => 1,
            Pieces::ByZone | Pieces::Several => PIECES,
            Pieces::Fixed(pieces) => pieces,
        },
        learns_pieces: !matches!(options.variant.pieces, Pieces::Fixed(_)),
        defect: options.variant.defect.and_then(FsDefect::of_log),
        ..WriterOptions::default()
    };
    Writer::with_options(rt, device.clone(), writer)
}

/// Builds the superzone pool of the checkpoint, updated by the sync records.
fn pool(writer: &Writer, found: &Found, scan: &SyncScan) -> Result<ZonePool> {
    let mut descriptors = scan.descriptors.clone();
    for chain in &scan.chains {
        // Every superzone of a head except the last one is written to its end.
        for superzone in chain.iter().rev().skip(1) {
            descriptors[*superzone as usize].state = SuperzoneState::Full as u8;
        }
    }
    let groups = found.layout.groups(writer.geometry());
    let zones = ZonePool::new(writer, &descriptors, groups)?;
    Ok(zones)
}

/// Opens the delta logs at the positions that the checkpoint names.
async fn delta_logs(
    writer: &Writer,
    pages: &Pool,
    found: &Found,
    deltas: Vec<DeltaLayout>,
    read_only: bool,
) -> Result<Vec<Log>> {
    let body = &found.image.body;
    let halves = [body.delta_half, body.sit_half].map(|half| half.get() as u8);
    let mut logs = Vec::new();
    for ((delta, half), extents) in deltas.into_iter().zip(halves).zip(&found.extents) {
        let delta = match read_only {
            true => DeltaLog::found(writer, delta, pages, half).await?,
            false => DeltaLog::recover(writer, delta, pages, None, half).await?,
        };
        logs.push(Log::new(delta, extents.clone()));
    }
    Ok(logs)
}

/// True if `zone` is not empty.
fn is_used(found: &Found, geometry: &Geometry, zone: ZoneId) -> bool {
    blocks_begun(&found.reports[zone.0 as usize], geometry) > 0
}

/// The state from which the next checkpoint continues: its position and its epoch.
fn checkpoint_state(found: &Found, geometry: &Geometry) -> CheckpointState {
    let start = found.layout.ring_start;
    CheckpointState {
        id: found.id.checkpoint,
        epoch: found.id.epoch + 1,
        ring: found.ring,
        ring_used: [0, 1].map(|ring| is_used(found, geometry, ZoneId(start + ring))),
        // If only checkpoints hold a whole superblock, the next checkpoint goes to the other zone
        // of the ring, where a new superblock copy is written first.
        leave_ring: found.alone,
        ..CheckpointState::default()
    }
}

/// The state of the sync log from which the next record continues.
fn sync_log(found: &Found, scan: &SyncScan, geometry: &Geometry) -> SyncLog {
    let used = |half| {
        let mut zones = found.layout.sync_half(half).into_iter();
        zones.any(|zone| is_used(found, geometry, zone))
    };
    SyncLog::new(scan.half, scan.next, scan.replay_end, [0, 1].map(used))
}

/// Builds the engine's state as of the checkpoint, part by part. Only the superzone pool includes
/// what sync records change.
#[allow(clippy::too_many_arguments)]
pub(crate) async fn assemble(
    rt: &Rt,
    device: Rc<dyn ZonedDevice>,
    options: MountOptions,
    found: &Found,
    scan: &SyncScan,
    (nat, sit): (Table<NatEntry>, Table<SitEntry>),
    pages: Pool,
    deltas: Vec<DeltaLayout>,
) -> Result<Rc<Inner>> {
    let layout = Rc::new(found.layout.clone());
    let geometry = device.geometry().clone();
    let writer = writer(rt, &device, &options, &found.layout);
    let body = &found.image.body;
    let zones = pool(&writer, found, scan)?;
    let logs = delta_logs(&writer, &pages, found, deltas, options.read_only).await?;
    let table_zones = TableZones::recover(&layout, &zones, &found.reports);
    let tables = Tables::new(layout.nodes, nat, logs, table_zones, found.table_pages.clone());
    let on = (&geometry, layout.clone());
    let alloc = Allocator::new(rt, on, options.variant, zones, sit, pages.clone())?;
    let orphans = found.image.orphans.iter().map(|ino| Ino(*ino)).collect();
    let counts = (body.inodes.get(), body.generation.get());
    let parts = Parts {
        alloc,
        tables,
        tree: Tree::new(options.cache_pages, counts, orphans),
        durability: Durability::new(
            NamespaceLog::starting_at(body.namespace_sequence.get()),
            checkpoint_state(found, &geometry),
            sync_log(found, scan, &geometry),
        ),
    };
    let core = Core::new(rt, (device, writer), layout, options, pages, parts);
    Ok(Rc::new(Inner::new(core)))
}

/// Writes a copy of the checkpoint that names the replay end and a new epoch.
pub(crate) async fn name_replay_end(
    inner: &Rc<Inner>,
    found: &Found,
    scan: &SyncScan,
) -> Result<DurableSnapshot> {
    let (pool, writer, layout) = {
        let core = inner.core.borrow();
        (core.alloc.zones().clone(), core.env.writer.clone(), core.env.layout.clone())
    };
    open_logs(inner, found);
    let mut image = found.image.clone();
    image.body.sync_limit = scan.replay_end.into();
    image.body.flags = 0.into();
    let body = {
        let core = inner.core.borrow();
        core.encode_image(&image, core.tables.pages())
    };
    // If the current zone of the ring lacks space, reset the other zone, which holds only
    // older checkpoints.
    let (other, needed) = {
        let core = inner.core.borrow();
        let span = core.env.layout.checkpoint_span(record::blocks_for(body.len()));
        (1 - core.durability.checkpoint.ring, span > core.ring_space())
    };
    if needed && inner.core.borrow().durability.checkpoint.ring_used[usize::from(other)] {
        let zone = ZoneId(layout.ring_start + u32::from(other));
        // Flush first: the checkpoint found must be durable before the zone with older checkpoints
        // is reset.
        let durable = pool.snapshot().flushed().await?;
        pool.release_zone(zone, &durable).await?;
        inner.core.borrow_mut().durability.checkpoint.ring_used[usize::from(other)] = false;
    }
    if needed {
        free_a_permit(inner, &writer, found, scan).await?;
    }
    let id = found.id.checkpoint + 1;
    // The records must be durable first, because the checkpoint that names the replay end vouches
    // for them.
    writer.flush().await?;
    let recovered = pool.snapshot();
    let record = inner.core.borrow_mut().write_checkpoint(id, &body)?;
    writer.drain().await?;
    let durable = recovered.committed(record).await?;
    inner.core.borrow_mut().durability.checkpoint.id = id;
    Ok(durable)
}

/// Resets zones that neither the checkpoint nor a record refers to, because they may hold permits.
pub(crate) async fn reset_stale_zones(
    inner: &Rc<Inner>,
    found: &Found,
    scan: &SyncScan,
    durable: &DurableSnapshot,
) -> Result<()> {
    let pool = inner.core.borrow().alloc.zones().clone();
    finish_sync_zones(inner, found, scan).await?;
    let stale = stale_zones(inner, found, scan);
    stale.0.iter().for_each(|superzone| durable.note_empty(*superzone));
    inner.release_tables(durable, stale.2).await?;
    inner.release(durable, &stale.0, stale.1).await?;
    inner.core.borrow_mut().tables.delta_released();
    pool.adopt_reports(&found.reports);
    Ok(())
}

/// Finishes unreferenced zones until the drive allows another active zone, for the ring. A power
/// cut may leave one active zone too many, if a stream had already entered its next superzone and
/// the drive lost the end of the previous one. Unreferenced zones may be reset only when the
/// checkpoint is durable. A finished zone keeps its content, so a second crash finds the same
/// records whole.
async fn free_a_permit(
    inner: &Inner,
    writer: &Writer,
    found: &Found,
    scan: &SyncScan,
) -> Result<()> {
    let (tables, layout) = {
        let core = inner.core.borrow();
        (core.stale_table_zones(&found.table_pages), core.env.layout.clone())
    };
    let surplus = survey::surplus(writer.geometry(), &found.reports);
    let owned = |zone: ZoneId| {
        let referred = |index: u32| scan.chains.iter().flatten().any(|other| *other == index);
        match inner.core.borrow().tables.zones().contains(zone) {
            true => !tables.contains(&zone),
            false => layout.superzone_of(zone).is_none_or(referred),
        }
    };
    let strays: Vec<ZoneReport> = survey::strays(&found.reports, owned).copied().collect();
    for report in strays.iter().take(surplus) {
        survey::finish(writer, report).await?;
    }
    Ok(())
}

/// Opens the zones of the ring and the tables at their write pointers, and sets the position of the
/// next sync record. The zones of the sync log may be written only after the checkpoint that names
/// the replay end.
fn open_logs(inner: &Rc<Inner>, found: &Found) {
    let core = &mut *inner.core.borrow_mut();
    let layout = core.env.layout.clone();
    core.open_table_area(&found.reports);
    let ring = layout.ring_start + u32::from(core.durability.checkpoint.ring);
    let report = &found.reports[ring as usize];
    if report.state.is_active() {
        core.env.writer.open_reported(report);
    }
    // Records continue behind everything that was written, even if a damaged checkpoint names
    // another position.
    let end = |zone: &ZoneId| blocks_begun(&found.reports[zone.0 as usize], &core.env.geometry);
    let ends: Vec<u32> = layout.sync_half(core.durability.sync.half()).iter().map(end).collect();
    core.durability.sync.go_on_at(row_end(&layout.sync_stripe(), &ends));
}

/// Continues in the zones of the sync log's current half, and pads them to the end of a row. Zones
/// of the other half that a power cut left active are finished, which returns their permits and
/// keeps their content.
async fn finish_sync_zones(inner: &Rc<Inner>, found: &Found, scan: &SyncScan) -> Result<()> {
    let before = {
        let core = &mut *inner.core.borrow_mut();
        let (stripe, next) = (core.env.layout.sync_stripe(), core.durability.sync.next());
        for (column, zone) in core.env.layout.sync_half(scan.half).into_iter().enumerate() {
            let report = &found.reports[zone.0 as usize];
            let goal = match next < stripe.blocks() {
                true => stripe.fill(column as u32, next),
                false => core.env.layout.capacity,
            };
            let empty = report.state == ZoneState::Empty;
            if report.state.is_active() || empty && goal > 0 {
                core.env.writer.open_reported(report);
                drop(core.env.writer.submit(ZoneWrite::zeros_to(zone, goal)));
                // The checkpoint that ends recovery will state that the zone continues behind a
                // torn block.
                core.env.writer.level(zone);
            }
        }
        core.env.layout.sync_half(1 - scan.half)
    };
    let writer = inner.core.borrow().env.writer.clone();
    for zone in before {
        let report = &found.reports[zone.0 as usize];
        if report.state.is_active() {
            survey::finish(&writer, report).await?;
        }
    }
    Ok(())
}

/// The first block in striping order behind all written blocks. `ends` has the number of blocks
/// written in each zone.
fn row_end(stripe: &crate::alloc::stripe::Stripe, ends: &[u32]) -> u32 {
    let last = ends.iter().enumerate().filter(|(_, end)| **end > 0);
    last.map(|(column, end)| stripe.index(column as u32, end - 1) + 1).max().unwrap_or(0)
}

/// Superzones, and zones of the ring, the logs and the tables, that have content although neither
/// the checkpoint nor a record refers to them.
fn stale_zones(
    inner: &Rc<Inner>,
    found: &Found,
    scan: &SyncScan,
) -> (Vec<SuperzoneId>, Vec<ZoneId>, Vec<ZoneId>) {
    let core = &mut *inner.core.borrow_mut();
    let layout = core.env.layout.clone();
    let geometry = core.env.geometry.clone();
    let end = |zone: ZoneId| blocks_begun(&found.reports[zone.0 as usize], &geometry);
    let mut superzones = Vec::new();
    for index in 0..layout.superzones {
        let id = SuperzoneId(index);
        let zones = core.alloc.zones().get(id).zones;
        let full = found.image.descriptors[index as usize].state == SuperzoneState::Full as u8;
        let empty = if scan.chains.iter().flatten().any(|superzone| *superzone == index) {
            false
        } else {
            // The superzone was full at the checkpoint and has no valid block: it was released
            // since, or was about to be.
            core.alloc.zones().state(id) == SuperzoneState::Free
                || full && core.alloc.valid_in(index) == 0
        };
        // An emptied superzone becomes usable space only when it is released, and replay may need
        // the space.
        let free = core.alloc.zones().state(id) == SuperzoneState::Free;
        if empty && (!free || zones.iter().any(|z| end(*z) > 0)) {
            superzones.push(id);
        }
    }
    let mut zones = Vec::new();
    let other = 1 - core.durability.checkpoint.ring;
    if std::mem::take(&mut core.durability.checkpoint.ring_used[usize::from(other)]) {
        zones.push(ZoneId(layout.ring_start + u32::from(other)));
    }
    let mut add = |zones_of: Vec<ZoneId>| {
        zones.extend(zones_of.into_iter().filter(|zone| end(*zone) > 0));
    };
    for (index, log) in core.tables.logs().iter().enumerate() {
        if log.is_in_one_half() {
            add(layout.delta_half(index, 1 - log.delta.position().0));
        }
    }
    let other = 1 - scan.half;
    let start = found.image.body.sync_half.get() as u8;
    if start == scan.half {
        add(layout.sync_half(other));
        core.durability.sync.released(other);
    }
    (superzones, zones, core.stale_table_zones(&found.table_pages))
}

/// Continues in the superzones of each head: pads their zones to a common end in striping order,
/// and writes missing summaries.
pub(crate) async fn reopen_superzones(
    inner: &Rc<Inner>,
    found: &Found,
    chains: &[Vec<u32>],
    owners: &BTreeMap<u32, SummaryEntry>,
) -> Result<()> {
    inner.core.borrow_mut().alloc.adopt_heads(chains.len());
    for (head, chain) in chains.iter().enumerate() {
        for (index, superzone) in chain.iter().enumerate() {
            let last = index + 1 == chain.len();
            // The checkpoint knows the owners of blocks in the first superzone; those of later
            // superzones are known only from records.
            let known = found.image.heads.get(head).filter(|_| index == 0);
            let known = known.filter(|known| known.superzone.is_some());
            reopen_superzone(inner, found, head, *superzone, last, known, owners).await?;
        }
    }
    inner.core.borrow_mut().alloc.adopt_segments();
    let heads = inner.core.borrow().alloc.heads_count();
    for head in 0..heads {
        inner.adopt_head(head).await?;
    }
    Ok(())
}

async fn reopen_superzone(
    inner: &Rc<Inner>,
    found: &Found,
    head: usize,
    superzone: u32,
    last: bool,
    known: Option<&Head>,
    owners: &BTreeMap<u32, SummaryEntry>,
) -> Result<()> {
    let id = SuperzoneId(superzone);
    let (zones, stripe, writer, geometry) = {
        let core = inner.core.borrow();
        let zones = core.alloc.zones().get(id).zones;
        (zones, core.alloc.stripe(superzone), core.env.writer.clone(), core.env.geometry.clone())
    };
    let report = |zone: &ZoneId| found.reports[zone.0 as usize];
    // A block torn by the power cut counts as written, and belongs to no file.
    let ends: Vec<u32> = zones.iter().map(|zone| blocks_begun(&report(zone), &geometry)).collect();
    for zone in &zones {
        let state = report(zone).state;
        if state.is_active() || state == ZoneState::Empty {
            writer.open_reported(&report(zone));
            // The checkpoint that ends recovery will state that the zone is written up to here.
            writer.level(*zone);
        }
    }
    let goal = if last { row_end(&stripe, &ends) } else { stripe.blocks() };
    let goal = goal.max(known.map_or(0, |known| known.next));
    let broken =
        |zone: &ZoneId| matches!(report(zone).state, ZoneState::ReadOnly | ZoneState::Offline);
    // Damaged tables or nodes can mark blocks valid that were never written. The addresses of such
    // blocks must not be given to other blocks.
    let taken = inner.core.borrow().alloc.has_valid_from(superzone, goal);
    if taken || zones.iter().any(broken) {
        // The superzone can no longer be written evenly, or its unwritten blocks are marked valid.
        // It stays unchanged until all its blocks are invalid.
        for zone in zones.iter().filter(|zone| report(zone).state.is_active()) {
            writer.finish(*zone).await?;
        }
        let core = &mut *inner.core.borrow_mut();
        core.alloc.zones().mark_full(id);
        core.alloc.claim_segments(superzone, core.alloc.stream_of_head(head));
        return Ok(());
    }
    let core = &mut *inner.core.borrow_mut();
    let start = known.map_or(0, |known| known.next);
    let mut summary: Vec<SummaryEntry> =
        known.map(|known| known.summary.clone()).unwrap_or_default();
    // Walk in striping order from the point up to which the checkpoint knows all owners. Skip
    // blocks that are on the drive, pad missing blocks, and build missing summaries from the
    // known owners.
    for v in start..goal {
        let (column, offset) = stripe.place(v);
        let missing = offset >= ends[column as usize];
        if stripe.is_summary(v) {
            let entries = std::mem::take(&mut summary);
            let page = core.alloc.rebuild_summary(head, superzone, v / stripe.segment, entries);
            if missing {
                core.alloc.write_at(superzone, v, page, WriteKind::Summary);
                core.carry_out();
            }
            continue;
        }
        if missing {
            core.alloc.write_at(superzone, v, Page::zeroed(), WriteKind::Padding);
            core.carry_out();
        }
        if !stripe.is_padding(v) {
            let addr = BlockAddr::new(&geometry, zones[column as usize], offset).0;
            let nobody = SummaryEntry::new_zeroed();
            summary.push(owners.get(&addr).copied().unwrap_or(nobody));
        }
    }
    if last && goal < stripe.blocks() {
        let at = Head { superzone: Some(superzone), next: goal, summary, previous: None };
        core.alloc.reopen(head, at);
        core.carry_out();
    } else {
        core.alloc.leave_full(head, superzone, last);
    }
    Ok(())
}

/// Frees inodes that were unlinked while open. The resulting changes are not written during this
/// work, because most of them concern nodes that are about to be freed.
pub(crate) async fn reap_orphans(inner: &Rc<Inner>) -> Result<()> {
    let orphans: Vec<Ino> = inner.core.borrow().tree.files().orphans().iter().copied().collect();
    inner.core.borrow_mut().health.set_replaying(true);
    let reaped = reap_all(inner, orphans).await;
    // Leave replay mode after an error too: only in replay may an operation exceed the limits and
    // write to a read-only mount.
    inner.core.borrow_mut().health.set_replaying(false);
    reaped
}

async fn reap_all(inner: &Rc<Inner>, inos: Vec<Ino>) -> Result<()> {
    for ino in inos {
        reap(inner, ino).await?;
    }
    Ok(())
}

/// Frees an inode without names. If its nodes cannot be read, the inode stays for a later mount to
/// free: no other file and no caller needs it.
pub(crate) async fn reap(inner: &Rc<Inner>, ino: Ino) -> Result<()> {
    loop {
        match inner.run_quietly(|core| core.reap(ino)).await.map_err(Failed::into_error) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}
