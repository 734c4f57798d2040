//! The mount of a repair: uses the readable structures, leaves out the damaged structures, and
//! reports the damage.
//!
//! The steps are those of an ordinary mount (`recover`), and use the same code except where that
//! code would give up. The last step is a checkpoint that lists only intact tables.

use super::tables;
use super::{Log, RepairOptions, quietly};
use crate::alloc::heads::Head;
use crate::core::Inner;
use crate::durability::checkpoint::{Image, decode_image};
use crate::durability::namespace_log::NameOp;
use crate::durability::recover::read::{
    Found, age, check_image, corrupt, lost_checkpoint, scan_ring, superblock,
    superblock_of_checkpoints,
};
use crate::durability::recover::replay::{
    Ahead, begin, changed_node, end, read_node, replay_attributes, replay_name, replay_nodes,
};
use crate::durability::recover::sync_scan::{Record, scan_sync_log};
use crate::durability::recover::{
    assemble, check_heads, delta_layouts, name_replay_end, reopen_superzones, report,
    reset_stale_zones,
};
use crate::format::SummaryEntry;
use crate::fsck::FsckReport;
use crate::fsck::ring::LostCheckpoint;
use crate::layout::{Layout, RING_ZONES};
use crate::tables::TablePages;
use crate::types::{Ino, MountOptions, RenameMode};
use furrow_log::address::BlockAddr;
use furrow_log::delta::Extent;
use furrow_log::pool::{SuperzoneId, SuperzoneState};
use furrow_log::record::RecordHeader;
use furrow_policy::{FsVariant, Metadata};
use furrow_rt::{Pool, Rt};
use furrow_zone::{
    Action, Command, Error, ErrorKind, QueueId, Request, Result, Target, ZoneId, ZoneState,
    ZonedDevice,
};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The content of a checkpoint: image, extents of the delta logs, table pages.
type Content = (Image, Vec<Vec<Extent>>, TablePages);

/// Mounts the readable part of the file system on `device`.
///
/// # Errors
/// If the superblock or the checkpoint cannot be used, or the drive fails.
pub(super) async fn mount(
    rt: &Rt,
    device: Rc<dyn ZonedDevice>,
    options: &RepairOptions,
    (before, lost): (&FsckReport, Option<LostCheckpoint>),
    log: &mut Log,
) -> Result<Rc<Inner>> {
    // Write the tables whole, because deltas would refer to damaged tables.
    let variant = FsVariant { metadata: Metadata::Pair, ..FsVariant::default() };
    let mount = MountOptions { variant, ..quietly() };
    let pages = Pool::new(4096);
    let (mut found, impossible) = find(&*device, options, &pages, lost.as_ref(), log).await?;
    let closed = close_broken_heads(&*device, &mut found, log);
    let mut scan = scan_sync_log(&*device, &found, &pages, false).await?;
    if let Some(newer) = scan.newer.take() {
        give_up_newer(&*device, options, newer.to_string(), log)?;
        found.older = true;
        scan = scan_sync_log(&*device, &found, &pages, false).await?;
    }
    // Report only lost records here; the replay reports the nodes that cannot be read.
    for lost in scan.lost.iter().filter(|lost| lost.records) {
        let place = (0, lost.what.clone());
        log.lost("sync record", place, &lost.why, "changes that only it held are given up");
    }
    for lost in lost.and_then(|lost| lost.header).into_iter().chain(impossible) {
        // Numbers and epochs are never reused, not even those of a damaged checkpoint.
        found.id.checkpoint = found.id.checkpoint.max(plausible(lost.checkpoint.get()));
        found.id.epoch = found.id.epoch.max(plausible(lost.epoch.get()));
    }
    let deltas = delta_layouts(device.geometry(), &found.layout, &mount)?;
    finish_delta_logs(&*device, &mut found).await?;
    let read = tables::read(&*device, &found, &pages, &deltas, log).await;
    let inner =
        assemble(rt, device, mount, &found, &scan, (read.nat, read.sit), pages, deltas).await?;
    for superzone in closed {
        inner.core.borrow().alloc.zones().mark_full(SuperzoneId(superzone));
    }
    let mut owners = tables::settle(&inner, &found, read.lost, log).await?;
    let ring = ["superblock", "checkpoint"];
    inner
        .core
        .borrow_mut()
        .durability
        .leave_ring(before.findings.iter().any(|finding| ring.contains(&finding.structure)));
    let replay_end = name_replay_end(&inner, &found, &scan).await?;
    reset_stale_zones(&inner, &found, &scan, &replay_end).await?;
    let chains = std::mem::take(&mut scan.chains);
    replay(&inner, scan.records, &mut owners, log).await?;
    inner.core.borrow_mut().limit_nodes();
    mend_open_summaries(&inner, &mut found, &owners);
    reopen_superzones(&inner, &found, &chains, &owners).await?;
    inner.core.borrow_mut().durability.require_checkpoint();
    inner.checkpoint(false).await?;
    Ok(inner)
}

/// A number from a damaged header; 0 if it is too large to be real.
fn plausible(number: u64) -> u64 {
    if number < 1 << 48 { number } else { 0 }
}

/// Finds the checkpoint to use and its place. Also returns the header of the newest checkpoint if
/// the content of the newest checkpoint is impossible.
async fn find(
    device: &dyn ZonedDevice,
    options: &RepairOptions,
    pages: &Pool,
    lost: Option<&LostCheckpoint>,
    log: &mut Log,
) -> Result<(Found, Option<RecordHeader>)> {
    let geometry = device.geometry();
    BlockAddr::check(geometry)?;
    let reports = report(device).await?;
    let ring: Vec<ZoneId> = (geometry.conventional_zones..geometry.zones)
        .take(RING_ZONES as usize)
        .map(ZoneId)
        .collect();
    let mut layouts = Vec::new();
    for zone in &ring {
        layouts.push(superblock(device, *zone, pages).await.ok().flatten());
    }
    let mut any = layouts.iter().flatten().next().cloned();
    let alone = any.is_none();
    if alone {
        any = superblock_of_checkpoints(device, &reports, pages).await;
        let place = format!("copy in zone {}", ring[0]);
        let action = "taken from a checkpoint, written again in the other zone of the ring";
        log.mended("superblock", (0, place), "no copy in the ring is whole", action);
    }
    let Some(any) = any else {
        return Err(corrupt(device, "no superblock that can be used is left: restore from a copy"));
    };
    let (mut below, mut impossible) = (u64::MAX, None);
    loop {
        let mut best: Option<(Layout, RecordHeader, Vec<u8>, u8)> = None;
        for (index, zone) in ring.iter().enumerate() {
            let layout = layouts[index].clone().unwrap_or_else(|| any.clone());
            let report = &reports[zone.0 as usize];
            let scanned = scan_ring(device, &layout, report, below, pages).await;
            if let Some((header, body)) = scanned.newest
                && best.as_ref().is_none_or(|best| age(&header) > age(&best.1))
            {
                best = Some((layout, header, body, index as u8));
            }
        }
        let Some((layout, header, body, ring)) = best else {
            return Err(corrupt(device, "no whole checkpoint is left: restore from a copy"));
        };
        if let Some(zone) = lost_checkpoint(device, &layout, &reports, Some(ring)) {
            let message = format!(
                "{}: zone {zone} is offline and may have held the newest checkpoint",
                device.name()
            );
            return Err(Error::new(ErrorKind::Io, message));
        }
        if let Some(lost) = lost.filter(|_| impossible.is_none()) {
            give_up_checkpoint(device, options, (lost, &header), log)?;
        }
        match content(device, &layout, &body) {
            Ok((image, extents, table_pages)) => {
                let older = lost.is_some() || impossible.is_some();
                let id = header.id();
                let bad_copies = Vec::new();
                let found = Found {
                    layout,
                    reports,
                    id,
                    ring,
                    image,
                    extents,
                    table_pages,
                    alone,
                    bad_copies,
                    older,
                };
                return Ok((found, impossible));
            }
            Err(error) => give_up_impossible(device, options, (&header, error), log)?,
        }
        below = header.checkpoint.get();
        impossible.get_or_insert(header);
    }
}

/// Decodes the body of a checkpoint, if its content is possible.
fn content(device: &dyn ZonedDevice, layout: &Layout, body: &[u8]) -> Result<Content> {
    let (image, extents, table_pages) = decode_image(body)
        .ok_or_else(|| corrupt(device, "checkpoint: sections do not fit its length"))?;
    let extents = check_image(device, layout, &image, &extents, &table_pages)?;
    Ok((image, extents, table_pages))
}

/// Handles a newest checkpoint that is whole but has impossible content: continues with the
/// previous one, if the options permit that.
fn give_up_impossible(
    device: &dyn ZonedDevice,
    options: &RepairOptions,
    (header, error): (&RecordHeader, Error),
    log: &mut Log,
) -> Result<()> {
    let number = header.checkpoint;
    let problem = format!("its checksum is right, but its content is impossible ({error})");
    if !options.older_checkpoint {
        let message = format!(
            "{}: checkpoint {number}: {problem}. Using the checkpoint before it would lose all \
             later changes. To accept this loss: --older-checkpoint",
            device.name()
        );
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let place = (0, format!("number {number}"));
    log.lost(
        "checkpoint",
        place,
        problem,
        "given up, with all changes since the checkpoint before it",
    );
    Ok(())
}

/// Handles a damaged newest checkpoint: continues with the previous one, if the options
/// permit that.
fn give_up_checkpoint(
    device: &dyn ZonedDevice,
    options: &RepairOptions,
    (lost, header): (&LostCheckpoint, &RecordHeader),
    log: &mut Log,
) -> Result<()> {
    let place = format!("zone {} offset {}", lost.zone, lost.offset);
    let number = lost.header.map_or("of unknown number".into(), |h| h.checkpoint.to_string());
    let problem = format!("checkpoint {number} is damaged, and newer than the newest whole one");
    let behind = format!("all changes since checkpoint {}", header.checkpoint);
    if !options.older_checkpoint {
        let message = format!(
            "{}: {place}: {problem}. Using checkpoint {} would lose {behind}. To accept this loss: \
             --older-checkpoint",
            device.name(),
            header.checkpoint
        );
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    log.lost("checkpoint", (0, place), problem, format!("given up, with {behind}"));
    Ok(())
}

/// Handles a record that was written after a checkpoint newer than the newest whole one: continues
/// with the whole one, if the options permit that.
fn give_up_newer(
    device: &dyn ZonedDevice,
    options: &RepairOptions,
    problem: String,
    log: &mut Log,
) -> Result<()> {
    if !options.older_checkpoint {
        let message = format!(
            "{}: {problem}. Using the older checkpoint would lose all later changes. To accept \
             this loss: --older-checkpoint",
            device.name()
        );
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let place = (0, "the newest".to_owned());
    log.lost(
        "checkpoint",
        place,
        problem,
        "given up, with all changes since the checkpoint before it",
    );
    Ok(())
}

/// Finds heads whose zones hold less than the checkpoint says. Closes their superzones without
/// further writes; these heads continue elsewhere. Returns the closed superzones.
fn close_broken_heads(device: &dyn ZonedDevice, found: &mut Found, log: &mut Log) -> Vec<u32> {
    let mut closed = Vec::new();
    while let Err(error) = check_heads(device, found) {
        let heads = std::mem::take(&mut found.image.heads);
        let broken = heads.iter().position(|head| {
            found.image.heads = vec![head.clone()];
            check_heads(device, found).is_err()
        });
        found.image.heads = heads;
        let Some(head) = broken.map(|at| std::mem::take(&mut found.image.heads[at])) else { break };
        let Some(superzone) = head.superzone else { break };
        let place = format!("superzone {superzone}");
        log.mended("stream", (0, place), error, "the stream continues elsewhere");
        if let Some(descriptor) = found.image.descriptors.get_mut(superzone as usize) {
            descriptor.state = SuperzoneState::Full as u8;
        }
        closed.push(superzone);
    }
    closed
}

/// Finishes the zones of the delta logs, because a repair writes no deltas and needs other
/// active zones. A previous repair that a power cut ended may have left active zones that no
/// checkpoint knows.
async fn finish_delta_logs(device: &dyn ZonedDevice, found: &mut Found) -> Result<()> {
    let geometry = device.geometry();
    let logs = (0..found.layout.logs as usize).flat_map(|log| [(log, 0), (log, 1)]);
    let zones: Vec<ZoneId> =
        logs.flat_map(|(log, half)| found.layout.delta_half(log, half)).collect();
    for zone in zones {
        let report = &mut found.reports[zone.0 as usize];
        if report.state.is_active() {
            let target = Target::Zone(geometry.start(zone));
            let finish = Request::bare(Command::Manage { target, action: Action::Finish });
            let status = device.submit(QueueId(0), finish).await.status;
            if !status.is_ok() {
                return Err(Error::device(
                    &device.name(),
                    format!("finish of zone {zone}"),
                    status,
                ));
            }
            report.state = ZoneState::Full;
        }
    }
    Ok(())
}

/// Replays those records that can be replayed.
async fn replay(
    inner: &Rc<Inner>,
    records: Vec<Record>,
    owners: &mut BTreeMap<u32, SummaryEntry>,
    log: &mut Log,
) -> Result<()> {
    begin(inner, &records);
    for record in records {
        replay_names(inner, &record, log).await;
        let readable = keep_readable(inner, &record, log).await;
        replay_nodes(inner, &readable, &Ahead::new(), owners).await?;
        if let Err(error) = replay_attributes(inner, &record).await {
            log.lost("sync record", (0, "attributes".into()), error, "left as they were");
        }
    }
    end(inner);
    Ok(())
}

/// Replays the name changes of a record as far as possible: a change may need another change whose
/// record is lost.
async fn replay_names(inner: &Rc<Inner>, record: &Record, log: &mut Log) {
    for (number, op) in &record.names {
        let next = inner.core.borrow().durability.next_name();
        if *number < next {
            continue;
        }
        if *number > next {
            let place = match *number - next {
                1 => format!("name change {next}"),
                _ => format!("name changes {next} to {}", number - 1),
            };
            let action = "left out, together with later changes that need them";
            log.lost("sync record", (0, place), "in no record that can be read", action);
            (next..*number).for_each(|_| inner.core.borrow_mut().durability.skip_name());
        }
        let done = match replay_name(inner, op).await {
            Err(error) => replay_anyhow(inner, op, error, log).await,
            done => done,
        };
        if let Err(error) = done {
            log.lost("sync record", (0, format!("name change {number}")), error, "left out");
        }
        // A change that was made in another way, or left out, has not advanced the number of the
        // next change.
        if inner.core.borrow().durability.next_name() == *number {
            inner.core.borrow_mut().durability.skip_name();
        }
    }
}

/// The replay of a name change has failed with `error`. Makes the change in another way, if the
/// present names and inodes explain the error. After damage to tables, the search for nodes may
/// have found nodes that are newer than the change. Or a lost change had taken the name from the
/// inode that still has it.
async fn replay_anyhow(inner: &Rc<Inner>, op: &NameOp, error: Error, log: &mut Log) -> Result<()> {
    let (parent, name, ino, kind) = match op {
        NameOp::Create { parent, name, ino, kind, .. } => (Ino(*parent), name, *ino, Some(*kind)),
        NameOp::Link { parent, name, ino, .. } => (Ino(*parent), name, *ino, None),
        // Remove the name without reading its inode, which may be unreadable.
        NameOp::Remove { parent, name, .. } => {
            let gone = inner.run(|core| core.unlist(Ino(*parent), name)).await?;
            return gone.map_or(Err(error), |_| Ok(()));
        }
        NameOp::Rename { from, old, to, new, mode: RenameMode::Replace, .. } => {
            let moved = inner.run(|core| core.unlist(Ino(*from), old)).await?;
            let Some((ino, kind)) = moved else { return Err(error) };
            inner.run(|core| core.unlist(Ino(*to), new)).await?;
            return inner.run(|core| core.relink(Ino(*to), new, ino, kind)).await;
        }
        NameOp::Rename { .. } => return Err(error),
    };
    let there = inner.run(|core| core.lookup(parent, name)).await;
    match there {
        Ok(there) if there.ino.0 == ino => return Ok(()),
        Err(missing) if missing.kind() == ErrorKind::NotFound => {}
        // The name leads to another inode, or to one that cannot be read.
        _ => match inner.run(|core| core.unlist(parent, name)).await? {
            Some((old, kind)) if old.0 == ino => {
                return inner.run(|core| core.relink(parent, name, old, kind)).await;
            }
            Some((old, _)) => {
                let problem = format!("a change that is lost took its name from it ({op})");
                log.lost("inode", (old.0, old.to_string()), problem, "left nameless");
            }
            None => {}
        },
    }
    let used = inner.core.borrow().tables.nat().get(ino).ino.get() != 0;
    match kind.filter(|_| used) {
        Some(kind) => inner.run(|core| core.relink(parent, name, Ino(ino), kind)).await,
        None => replay_name(inner, op).await,
    }
}

/// Part of a message: the blocks of inode `ino` that were written according to `record`.
fn blocks(record: &Record, ino: u32) -> String {
    let ranges = record.ranges.iter().filter(|(of, ..)| *of == ino);
    let ranges = ranges.map(|(_, first, count)| match count {
        1 => format!("{first}"),
        _ => format!("{first} to {}", first + count - 1),
    });
    let ranges: Vec<String> = ranges.collect();
    if ranges.is_empty() { String::new() } else { format!(", blocks {}", ranges.join(", ")) }
}

/// The record without the nodes that cannot be read. A node that cannot be read still replaces its
/// older version: the file loses the content in the node rather than show an earlier state.
async fn keep_readable(inner: &Rc<Inner>, record: &Record, log: &mut Log) -> Record {
    let mut readable = Record::default();
    readable.freed.clone_from(&record.freed);
    for (nid, entry) in &record.nodes {
        let old = inner.core.borrow().tables.nat().get(*nid);
        let unread = old.ino.get() != 0
            && old.addr.get() != crate::format::HOLE
            && read_node(inner, *nid, old).await.is_err();
        if unread {
            // The old node is about to be replaced; the blocks that it marked valid are counted
            // again later.
            inner.core.borrow_mut().tables.forget_node(*nid);
        }
        match read_node(inner, *nid, *entry).await {
            Ok(_) => readable.nodes.push((*nid, *entry)),
            Err(error) => {
                let ino = entry.ino.get();
                let place = format!("{nid} of inode {ino}{}", blocks(record, ino));
                log.lost("node", (ino, place), error, "changes synced in it are given up");
                let core = &mut *inner.core.borrow_mut();
                core.cache.remove(&crate::tree::cache::Key::Node(*nid));
                core.tables.adopt_node(*nid, *entry);
            }
        }
    }
    for change in &record.changes {
        let old = inner.core.borrow().tables.nat().get(change.nid);
        let used = old.ino.get() != 0 && old.addr.get() != crate::format::HOLE;
        if change.new && used {
            // The table is damaged, and older than the record: the id still belongs to an
            // earlier node.
            inner.core.borrow_mut().tables.forget_node(change.nid);
        }
        let named = readable.nodes.iter().find(|(nid, _)| *nid == change.nid);
        let named = match named {
            Some((nid, entry)) => Some(read_node(inner, *nid, *entry).await),
            None => None,
        };
        let made = match &named {
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(page)) => changed_node(inner, change, Some(page), &Ahead::new()).await,
            None => changed_node(inner, change, None, &Ahead::new()).await,
        };
        match made {
            Ok(_) => readable.changes.push(change.clone()),
            Err(error) => {
                let place =
                    format!("{} of inode {}{}", change.nid, change.ino, blocks(record, change.ino));
                let given_up = "changes synced in it are given up";
                log.lost("node", (change.ino, place), error, given_up);
            }
        }
    }
    for nid in &record.freed {
        let old = inner.core.borrow().tables.nat().get(*nid);
        let used = old.ino.get() != 0 && old.addr.get() != crate::format::HOLE;
        if used && read_node(inner, *nid, old).await.is_err() {
            let core = &mut *inner.core.borrow_mut();
            core.tables.forget_node(*nid);
        }
    }
    readable
}

/// Corrects the summaries of open segments with the true owners of their blocks.
fn mend_open_summaries(inner: &Rc<Inner>, found: &mut Found, owners: &BTreeMap<u32, SummaryEntry>) {
    let core = inner.core.borrow();
    for head in &mut found.image.heads {
        let Head { superzone: Some(superzone), next, summary, .. } = head else { continue };
        let id = SuperzoneId(*superzone);
        let stripe = core.alloc.stripe(*superzone);
        let start = *next - *next % stripe.segment.max(1);
        for (block, entry) in summary.iter_mut().enumerate() {
            let (column, offset) = stripe.place(start + block as u32);
            if column >= core.alloc.zones().width(id) {
                continue;
            }
            let zone = core.alloc.zones().zone(id, column);
            let addr = BlockAddr::new(&core.env.geometry, zone, offset).0;
            if let Some(owner) = owners.get(&addr) {
                *entry = *owner;
            }
        }
    }
}
