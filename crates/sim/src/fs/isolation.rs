//! Damage of a file must not affect other files.
//!
//! Before some lives, one bit flips in a block of a file, on a copy of the drive. Then clients work
//! there as usual. An operation on a damaged file may give any answer. Every other operation, above
//! all an fsync, must work as without the damage. The copy is discarded afterwards.

use crate::fs::client::SharedHistory;
use crate::fs::crash::{Idle, Setup, work_around};
use crate::fs::faults::metadata_zones;
use crate::fs::history::History;
use crate::fs::model::Model;
use crate::fs::observe::{Recovered, Trouble, check, told};
use crate::fs::op::{Object, Op};
use furrow_emu::{Emulator, Fault, FaultKind, Options};
use furrow_fs::format::{LEVEL_INODE, NODE_MAGIC, NodeHeader};
use furrow_fs::{Fs, Ino, Kind, MountOptions, OnDamage, Seek, SetAttr};
use furrow_log::address::{BlockAddr, blocks_begun, read_blocks, sectors_per_block};
use furrow_rt::{Page, Pool, Rng, Rt};
use furrow_zone::{BlockCount, ErrorKind, Lba, QueueId, ZoneReport, ZonedDevice};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use zerocopy::FromBytes;

/// Number of blocks to try before giving up: many blocks belong to no file, few hold an inode.
const TRIES: u32 = 60;
/// Number of bytes read at a time.
const READ: u64 = 1 << 16;
/// Number of operations of each client.
const OPERATIONS: u32 = 40;

/// Whether an error of `kind` may come from a damaged file.
pub fn is_damage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Io | ErrorKind::Corrupt)
}

/// The files that are damaged.
#[derive(Debug, Default)]
pub struct Damaged {
    objects: BTreeSet<Object>,
    /// Whether a damaged file replaced another by a rename: the next record, for any fsync,
    /// includes the damaged file's content.
    carried: Cell<bool>,
}

impl Damaged {
    /// True if `op` may fail because of damage to an object that it touches, according to `model`.
    pub fn excuses(&self, op: &Op, model: &Model) -> bool {
        let synced = matches!(op, Op::Fsync { .. } | Op::Sync) && self.carried.get();
        synced || model.touched(op).iter().any(|object| self.objects.contains(object))
    }

    /// True if nothing is damaged.
    pub fn is_nothing(&self) -> bool {
        self.objects.is_empty()
    }

    /// Notes that `op` was done. A rename of a damaged file sets `carried`.
    pub fn note(&self, op: &Op, model: &Model) {
        if matches!(op, Op::Rename { .. }) && self.excuses(op, model) {
            self.carried.set(true);
        }
    }
}

fn mount_options(setup: &Setup, read_only: bool) -> MountOptions {
    MountOptions { read_only, on_damage: OnDamage::Continue, ..setup.mount.clone() }
}

/// Reads everything of a file. Returns the file's kind.
async fn is_whole(fs: &Fs, ino: Ino) -> furrow_zone::Result<Kind> {
    let attr = fs.getattr(ino).await?;
    for name in fs.listxattr(ino).await? {
        fs.getxattr(ino, &name).await?;
    }
    match attr.kind {
        Kind::Directory => drop(fs.readdir(ino, 0, usize::MAX).await?),
        Kind::Symlink => drop(fs.readlink(ino).await?),
        Kind::File => {
            let mut at = 0;
            while let Some(start) = fs.seek(ino, at, Seek::Data).await? {
                at = fs.seek(ino, start, Seek::Hole).await?.unwrap_or(attr.size);
                for from in (start..at).step_by(READ as usize) {
                    fs.read(ino, from, READ.min(at - from) as usize).await?;
                }
            }
        }
        _ => {}
    }
    Ok(attr.kind)
}

/// The objects of `recovered` that a mount for reading of `drive` finds damaged. `None` if a
/// directory or the whole file system is damaged, or if the damage is not of the wanted kind: in
/// inodes if `inodes` is true, elsewhere if not.
async fn owners(
    rt: &Rt,
    drive: Emulator,
    setup: &Setup,
    recovered: &Recovered,
    inodes: bool,
) -> Option<BTreeSet<Object>> {
    let fs = Fs::mount(rt, Rc::new(drive), mount_options(setup, true)).await.ok()?;
    if !fs.losses().is_empty() {
        return None;
    }
    let (mut found, mut unseen) = (BTreeSet::new(), false);
    for (object, ino) in &recovered.inos {
        unseen |= fs.getattr(Ino(ino.0)).await.is_err();
        match is_whole(&fs, Ino(ino.0)).await {
            Ok(_) => {}
            Err(error) if is_damage(error.kind()) => drop(found.insert(*object)),
            // In a zone that a power cut left full, a block that does not verify may never have
            // been written: then the sync record that names it does not count.
            Err(_) => return None,
        }
    }
    fs.unmount().await.ok()?;
    let names = |object: &Object| recovered.models.values().any(|m| m.names.is_directory(*object));
    let shared = found.iter().any(|object| Object::SHARED.contains(object));
    (!shared && unseen == inodes && !found.iter().any(names)).then_some(found)
}

/// The address of each written block of `zones`, as its first logical block; if `inodes`, only
/// blocks that hold an inode.
async fn blocks(drive: &Emulator, zones: &[ZoneReport], inodes: bool) -> Vec<Lba> {
    let (geometry, pool) = (drive.geometry().clone(), Pool::new(4));
    let per_block = sectors_per_block(&geometry);
    let mut found = Vec::new();
    for zone in zones {
        let start = geometry.start(zone.zone).0;
        for offset in 0..blocks_begun(zone, &geometry) {
            let at = BlockAddr::new(&geometry, zone.zone, offset);
            if inodes {
                let page = read_blocks(drive, QueueId(0), at, 1, &pool).await;
                let is_inode = |page: &Page| {
                    let header = NodeHeader::read_from_prefix(page.bytes());
                    header.is_ok_and(|(h, _)| h.magic.get() == NODE_MAGIC && h.level == LEVEL_INODE)
                };
                if !page.is_ok_and(|pages| pages.iter().any(is_inode)) {
                    continue;
                }
            }
            found.push(Lba(start + u64::from(offset) * per_block));
        }
    }
    found
}

/// Fsyncs all objects at once, so that many fsyncs share a record. Only the fsync of a damaged
/// object may fail.
async fn sync_all(
    rt: &Rt,
    fs: &Fs,
    recovered: &Recovered,
    damaged: &Damaged,
) -> Result<(), Trouble> {
    let change = |(object, ino): (&Object, &crate::fs::op::Ino)| {
        let (fs, ino) = (fs.clone(), Ino(ino.0));
        let task = rt.spawn(async move {
            // This change gives the sync something to write, and does not affect the
            // clients' models.
            let mode = fs.getattr(ino).await?.mode;
            fs.setattr(ino, SetAttr { mode: Some(mode), ..SetAttr::default() }).await?;
            Ok::<(), furrow_zone::Error>(())
        });
        (*object, task)
    };
    let changed: Vec<_> = recovered.inos.iter().map(change).collect();
    let mut synced = Vec::new();
    for (object, task) in changed {
        // Damaged files are synced too, changed or not.
        let _ = task.await;
        let (fs, ino) = (fs.clone(), Ino(recovered.inos[&object].0));
        synced.push((object, async move { fs.fsync(ino, false).await }));
    }
    let tasks: Vec<_> = synced.into_iter().map(|(object, sync)| (object, rt.spawn(sync))).collect();
    for (object, task) in tasks {
        match task.await {
            Err(error) if !damaged.objects.contains(&object) => {
                let place = format!("fsync of {object:?} beside {damaged:?}");
                return Err(told(place)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Damages a block of a file on a copy of `drive`, and lets copies of `clients` work there. False
/// if no suitable block was found.
///
/// # Errors
/// Describes how the damage affected another file.
pub async fn work_around_damage(
    rt: Rt,
    drive: Emulator,
    setup: Setup,
    clients: Idle,
    history: History,
    seed: u64,
) -> Result<bool, Trouble> {
    let mut rng = Rng::new(seed ^ 0xb1_57a4);
    let drive = drive.snapshot();
    let copy = || Emulator::from_snapshot(&rt, &drive, Options::simulated());
    let expected = history.cut(history.mark());
    if !Object::SHARED.iter().all(|object| expected.inos.contains_key(object)) {
        return Ok(false);
    }
    let sound = copy();
    let fs = Fs::mount(&rt, Rc::new(sound.clone()), mount_options(&setup, true)).await;
    let fs = fs.map_err(told("mount for reading"))?;
    let recovered = check(&fs, &expected).await?;
    let first = metadata_zones(&fs).await.len();
    fs.unmount().await.map_err(told("unmount"))?;
    let written = |zone: &furrow_zone::ZoneReport| zone.write_pointer.0 > 0;
    let zones: Vec<_> = drive.report().into_iter().skip(first).filter(written).collect();
    // Half of the runs damage an inode, since inodes are a small part of the blocks.
    let inodes = rng.one_in(2);
    let blocks = blocks(&sound, &zones, inodes).await;
    for _ in 0..TRIES {
        if blocks.is_empty() {
            return Ok(false);
        }
        let block = blocks[rng.below(blocks.len() as u64) as usize];
        let flip = Fault::new(FaultKind::BitFlip).at_blocks(block, BlockCount(1));
        let (looked_at, used) = (copy(), copy());
        if looked_at.inject(flip).is_err() || used.inject(flip).is_err() {
            continue;
        }
        let Some(objects) = owners(&rt, looked_at, &setup, &recovered, inodes).await else {
            continue;
        };
        if objects.is_empty() {
            continue;
        }
        let fs = match Fs::mount(&rt, Rc::new(used), mount_options(&setup, false)).await {
            Ok(fs) => fs,
            // Recovery had to read the damaged block.
            Err(error) if is_damage(error.kind()) => continue,
            Err(error) => return Err(told("mount")(error)),
        };
        let damaged = Rc::new(Damaged { objects, carried: Cell::new(false) });
        sync_all(&rt, &fs, &recovered, &damaged).await?;
        let history: SharedHistory = Rc::new(RefCell::new(History::resume(
            recovered.models.clone(),
            recovered.inos.clone(),
        )));
        let clients = crate::fs::sim::adopt(clients, &recovered);
        let place = format!("beside {damaged:?}");
        let load = (OPERATIONS, setup.cleanings);
        let done = work_around(&rt, &fs, clients, load, &history, &damaged).await;
        done.map_err(|trouble| trouble.at(&place))?;
        return Ok(true);
    }
    Ok(false)
}
