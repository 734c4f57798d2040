//! Fsyncs that share a record, one of them of a damaged file.
//!
//! On a copy of a life's drive, the harness makes files of its own alongside those of the clients:
//! a large file, or a directory with long attributes, and a few small files. It changes all of
//! them. Then it damages node blocks that the fsync of the large file needs and that nothing has
//! read since the change. All files are synced at once, so they share a record, and the engine
//! finds the damage only while it builds that record. The fsync of the large file may succeed or
//! fail. The other fsyncs must succeed, and their files must be durable after a power cut. The copy
//! is discarded afterwards.

use crate::fs::crash::Setup;
use crate::fs::faults::metadata_zones;
use crate::fs::history::History;
use crate::fs::isolation::is_damage;
use crate::fs::observe::{Trouble, check, told};
use furrow_emu::{Emulator, Fates, Fault, FaultKind, Options};
use furrow_fs::format::{LEVEL_INODE, LEVEL_XATTR, NODE_MAGIC, NodeHeader};
use furrow_fs::{
    Attr, Fs, GcOptions, Ino, MountOptions, NewNode, OnDamage, SetAttr, Time, WriteData, XattrMode,
};
use furrow_log::address::{BlockAddr, blocks_begun, read_blocks, sectors_per_block};
use furrow_rt::{Nanos, PAGE_SIZE, Pool, Rng, Rt};
use furrow_zone::{BlockCount, ErrorKind, Lba, QueueId, Result, ZonedDevice};
use std::rc::Rc;
use zerocopy::FromBytes;

/// Number of small files alongside the damaged one: more than the records in flight.
const SMALL: u64 = 6;
/// Number of pages of the cache: the minimum, so that unused pages leave it.
const CACHE: usize = 256;
/// Number of blocks of a file that are read to push others out of the cache.
const READ: u64 = 320;

/// The kind of the damaged file, and which of its nodes are damaged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Large {
    /// A directory whose attributes have nodes of their own; these nodes are damaged.
    Directory,
    /// A file with index nodes and leaves; the leaves are damaged.
    Leaves,
    /// Like `Leaves`, but the index nodes are damaged.
    Index,
}

impl Large {
    /// Blocks of the file that are changed, each with a leaf of its own.
    fn blocks(self) -> &'static [u64] {
        match self {
            Large::Directory => &[],
            Large::Leaves | Large::Index => &[600, 3_000_000],
        }
    }

    fn called(self) -> &'static str {
        match self {
            Large::Directory => "an fsync that lacks attributes, beside others",
            Large::Leaves => "an fsync that lacks a leaf, beside others",
            Large::Index => "an fsync that lacks an index, beside others",
        }
    }

    fn is_damaged(self, level: u8) -> bool {
        match self {
            Large::Directory => level == LEVEL_XATTR,
            Large::Leaves => level == 0,
            Large::Index => (1..LEVEL_XATTR).contains(&level),
        }
    }
}

fn mount_options(setup: &Setup) -> MountOptions {
    MountOptions {
        cache_pages: CACHE,
        on_damage: OnDamage::Continue,
        // A record, not a checkpoint, must make the changes durable.
        commit_interval: 100_000 * Nanos::SECOND,
        // Cleaning could reset and fill a zone between the search for nodes and their damage.
        gc: GcOptions { background: false, ..setup.mount.gc },
        ..setup.mount.clone()
    }
}

async fn write(fs: &Fs, ino: Ino, block: u64, with: u8) -> Result<()> {
    let at = block * PAGE_SIZE as u64;
    fs.write(ino, WriteData::copy(fs.pool(), at, &[with; PAGE_SIZE])).await
}

/// Sets the mode of `ino` to its present value, so that there is something to sync.
async fn touch(fs: &Fs, ino: Ino) -> Result<Attr> {
    let mode = fs.getattr(ino).await?.mode;
    fs.setattr(ino, SetAttr { mode: Some(mode), ..SetAttr::default() }).await
}

/// The files that the harness makes for this test.
struct Own {
    large: Ino,
    small: Vec<Ino>,
    filler: Ino,
}

async fn make(fs: &Fs, kind: Large) -> Result<Own> {
    let create = async |name: &str, node: NewNode| {
        Ok::<Ino, furrow_zone::Error>(fs.create(Ino::ROOT, name.as_bytes(), &node).await?.ino)
    };
    let node = if kind == Large::Directory { NewNode::directory() } else { NewNode::file() };
    let large = create("a large one", node).await?;
    if kind == Large::Directory {
        fs.setxattr(large, b"user.long", &[5; 9_000], XattrMode::Set).await?;
    }
    for block in kind.blocks() {
        write(fs, large, *block, 1).await?;
    }
    let mut small = Vec::new();
    for n in 0..SMALL {
        let ino = create(&format!("a small one {n}"), NewNode::file()).await?;
        write(fs, ino, 0, 1).await?;
        small.push(ino);
    }
    let filler = create("a filler", NewNode::file()).await?;
    let read = if kind == Large::Directory { 0 } else { READ };
    for block in 0..read {
        write(fs, filler, block, 1).await?;
    }
    fs.sync().await?;
    Ok(Own { large, small, filler })
}

/// The places of all nodes to damage, old versions included.
async fn nodes_of(drive: &Emulator, first: usize, large: Ino, kind: Large) -> Vec<Lba> {
    let (geometry, pool) = (drive.geometry().clone(), Pool::new(4));
    let per_block = sectors_per_block(&geometry);
    let mut found = Vec::new();
    for zone in drive.snapshot().report().into_iter().skip(first) {
        let start = geometry.start(zone.zone).0;
        for offset in 0..blocks_begun(&zone, &geometry) {
            let at = BlockAddr::new(&geometry, zone.zone, offset);
            let Ok(pages) = read_blocks(drive, QueueId(0), at, 1, &pool).await else { continue };
            let Ok((header, _)) = NodeHeader::read_from_prefix(pages[0].bytes()) else { continue };
            if header.magic.get() == NODE_MAGIC
                && header.ino.get() == large.0
                && header.level != LEVEL_INODE
                && kind.is_damaged(header.level)
            {
                found.push(Lba(start + u64::from(offset) * per_block));
            }
        }
    }
    found
}

/// The outcome of a test with a damaged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// There was no space for the test.
    Nothing,
    /// No operation needed the damaged nodes.
    Unharmed,
    /// Only the fsync of the damaged file failed. Holds the name of the case.
    Damage(&'static str),
}

/// Syncs several files at once, one of them damaged, on a copy of `drive`.
///
/// # Errors
/// Names the file whose fsync failed because of another file's damage, or whose content was not
/// kept.
pub async fn sync_around_damage(
    rt: Rt,
    drive: Emulator,
    setup: Setup,
    history: History,
    seed: u64,
) -> std::result::Result<Met, Trouble> {
    // A separate random generator, so that seeds that once failed keep their runs.
    let mut rng = Rng::new(seed ^ 0xba7c_4000);
    let kind = [Large::Directory, Large::Leaves, Large::Index][rng.below(3) as usize];
    let drive = Emulator::from_snapshot(&rt, &drive.snapshot(), Options::simulated());
    let place = format!("beside a damaged {kind:?}");
    let fs = Fs::mount(&rt, Rc::new(drive.clone()), mount_options(&setup)).await;
    let fs = fs.map_err(told("mount"))?;
    let recovered = check(&fs, &history.cut(history.mark())).await?;
    let unless_full = |error: furrow_zone::Error| match error.kind() {
        ErrorKind::NoSpace => Ok(Met::Nothing),
        _ => Err(told("set-up")(error).at(&place)),
    };
    let own = match make(&fs, kind).await {
        Ok(own) => own,
        Err(error) => {
            return unless_full(error);
        }
    };
    // After the remount, the cache contains only the pages that the changes need.
    fs.unmount().await.map_err(told("unmount"))?;
    let fs = Fs::mount(&rt, Rc::new(drive.clone()), mount_options(&setup)).await;
    let fs = fs.map_err(told("mount"))?;
    // The clients' files are synced in the same records.
    let mut others: Vec<Ino> = recovered.inos.values().map(|ino| Ino(ino.0)).collect();
    let changed = async {
        for block in kind.blocks() {
            write(&fs, own.large, *block, 2).await?;
        }
        // This change does not read the attribute nodes.
        let mtime = Some(Time { seconds: 1, nanoseconds: 0 });
        fs.setattr(own.large, SetAttr { mtime, ..SetAttr::default() }).await?;
        for ino in &own.small {
            write(&fs, *ino, 0, 2).await?;
        }
        for ino in &others {
            touch(&fs, *ino).await?;
        }
        for block in
            (0..READ).cycle().take(if kind == Large::Directory { 0 } else { 2 * READ as usize })
        {
            fs.read(own.filler, block * PAGE_SIZE as u64, 1).await?;
        }
        Ok(())
    };
    if let Err(error) = changed.await {
        return unless_full(error);
    }
    let damaged = nodes_of(&drive, metadata_zones(&fs).await.len(), own.large, kind).await;
    for lba in &damaged {
        let flip = Fault::new(FaultKind::BitFlip).at_blocks(*lba, BlockCount(1));
        // A block that a crash tore cannot be read in any case.
        let _ = drive.inject(flip);
    }
    others.extend(&own.small);
    // The order is random, with the damaged file twice, so that it shares one of the records.
    others.insert(rng.below(others.len() as u64 + 1) as usize, own.large);
    others.insert(rng.below(others.len() as u64 + 1) as usize, own.large);
    let at = rng.below(others.len() as u64) as usize;
    others.rotate_left(at);
    let sync = |ino: &Ino| {
        let (fs, ino) = (fs.clone(), *ino);
        (ino, rt.spawn(async move { fs.fsync(ino, false).await }))
    };
    let tasks: Vec<_> = others.iter().map(sync).collect();
    let mut met = Met::Unharmed;
    for (ino, task) in tasks {
        match task.await {
            Ok(()) => {}
            Err(error) if ino == own.large && is_damage(error.kind()) => {
                met = Met::Damage(kind.called());
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(Met::Nothing),
            Err(error) => return Err(told(format!("fsync of inode {ino}"))(error).at(&place)),
        }
    }
    let after = drive.snapshot().power_cut(&Fates::seeded(rng.next()));
    drop(fs);
    let after = Emulator::from_snapshot(&rt, &after, Options::simulated());
    let fs = match Fs::mount(&rt, Rc::new(after), mount_options(&setup)).await {
        Ok(fs) => fs,
        // Recovery had to read the damaged nodes.
        Err(error) if is_damage(error.kind()) => return Ok(met),
        Err(error) => return Err(told("mount after a power cut")(error).at(&place)),
    };
    for ino in &own.small {
        let read = fs.read(*ino, 0, PAGE_SIZE).await;
        let read = read.map_err(|error| told("read")(error).at(&place))?.to_vec();
        if read != [2; PAGE_SIZE] {
            let what = format!("inode {ino} was synced {place}, and is not kept");
            return Err(what.into());
        }
    }
    Ok(met)
}
