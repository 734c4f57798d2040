//! Tests each kind of damage: the repair is planned, applied and checked, and intact files must
//! read as before.

mod vanish;

use super::*;
use crate::core::Inner;
use crate::format::{HOLE, NatEntry, Pointer};
use crate::tree::dirent;
use crate::tree::node::{as_inode, children};
use crate::tree::open_files::LastName;
use crate::types::{Ino, Kind, NewNode, WriteData, XattrMode};
use furrow_emu::{Emulator, Fates, Fault, FaultKind, Medium, Options, Snapshot};
use furrow_log::BlockAddr;
use furrow_log::pool::SuperzoneId;
use furrow_log::record::peek;
use furrow_rt::{Config, Page, Pages};
use furrow_zone::{BlockCount, Command, QueueId, Request, ZoneId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use zerocopy::FromBytes;

const SPEC: &str = "zones=64,zone-size=1MiB,zone-capacity=768KiB,max-active=14,channels=1";

/// For each path, the kind and content of the file, or the error of reading it.
type Tree = BTreeMap<String, Result<(Kind, Vec<u8>), ErrorKind>>;

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = furrow_rt::Rng::new(seed);
    (0..len).map(|_| rng.next() as u8).collect()
}

async fn write(fs: &Fs, ino: Ino, at: u64, data: &[u8]) -> Result<()> {
    for (part, chunk) in data.chunks(64 << 10).enumerate() {
        let at = at + (part as u64) * (64 << 10);
        fs.write(ino, WriteData::copy(fs.pool(), at, chunk)).await?;
    }
    Ok(())
}

/// Fills the file system with directories, files, a hard link, a symbolic link, a FIFO
/// and attributes.
async fn populate(fs: &Fs) -> Result<()> {
    let dir = fs.create(Ino::ROOT, b"dir", &NewNode::directory()).await?.ino;
    let below = fs.create(dir, b"below", &NewNode::directory()).await?.ino;
    let small = fs.create(dir, b"small", &NewNode::file()).await?.ino;
    write(fs, small, 0, &bytes(1, 10_000)).await?;
    fs.link(small, below, b"second").await?;
    let tall = fs.create(Ino::ROOT, b"tall", &NewNode::file()).await?.ino;
    write(fs, tall, 0, &bytes(2, 20_000)).await?;
    write(fs, tall, 500 * 4096, &bytes(3, 50_000)).await?;
    write(fs, tall, 1200 * 4096, &bytes(4, 9_000)).await?;
    fs.create(below, b"link", &NewNode::symlink(b"../small")).await?;
    fs.create(below, b"fifo", &NewNode { kind: Kind::Fifo, ..NewNode::file() }).await?;
    for n in 0..40u64 {
        let name = format!("file with a name of some length, number {n}");
        let file = fs.create(below, name.as_bytes(), &NewNode::file()).await?.ino;
        write(fs, file, 0, &bytes(100 + n, 3000 + n as usize * 200)).await?;
    }
    fs.setxattr(small, b"user.short", b"value", XattrMode::Set).await?;
    fs.setxattr(tall, b"user.a", &bytes(7, 3000), XattrMode::Set).await?;
    fs.setxattr(tall, b"user.b", &bytes(8, 9000), XattrMode::Set).await?;
    fs.sync().await
}

/// Reads all files, by path.
async fn tree(fs: &Fs) -> Result<Tree> {
    let mut found = Tree::new();
    let mut todo = vec![(Ino::ROOT, String::new())];
    while let Some((directory, path)) = todo.pop() {
        let mut cookie = 0;
        loop {
            let entries = fs.readdir(directory, cookie, 64).await?;
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            for entry in &entries {
                let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
                let attr = fs.lookup(directory, &entry.name).await?;
                let mut content = match attr.kind {
                    Kind::File => {
                        fs.read(attr.ino, 0, attr.size as usize).await.map(|d| d.to_vec())
                    }
                    Kind::Symlink => fs.readlink(attr.ino).await,
                    _ => Ok(Vec::new()),
                };
                for name in fs.listxattr(attr.ino).await.unwrap_or_default() {
                    let value = fs.getxattr(attr.ino, &name).await?;
                    content = content.map(|mut content| {
                        content.extend(&name);
                        content.extend(&value);
                        content
                    });
                }
                found.insert(path.clone(), content.map(|c| (attr.kind, c)).map_err(|e| e.kind()));
                if attr.kind == Kind::Directory {
                    todo.push((attr.ino, path));
                }
            }
        }
    }
    Ok(found)
}

fn drive(rt: &Rt) -> Emulator {
    let geometry = furrow_zone::spec::parse_geometry(SPEC).unwrap();
    let medium = Medium::memory(&geometry);
    Emulator::new(rt, geometry, medium, Options::simulated()).unwrap()
}

/// Flips a bit of the block at `addr` on the medium.
async fn rot(drive: &Emulator, addr: u32) {
    let lba = BlockAddr(addr).lba(drive.geometry());
    let fault = Fault::new(FaultKind::BitFlip).at_blocks(lba, BlockCount(1)).times(1);
    drive.inject(fault).unwrap();
    let command = Command::Read { lba, blocks: BlockCount(1) };
    let data = Pages::from_iter([Page::zeroed()]);
    assert!(drive.submit(QueueId(0), Request::with_data(command, data)).await.status.is_ok());
}

/// The expected outcome of a case.
#[derive(Default)]
struct Expect {
    /// Paths that may be missing or changed afterwards.
    lost: &'static [&'static str],
    /// The kind of structure that one of the findings must name.
    structure: &'static str,
    /// Whether the repair gives up any content.
    loses: bool,
    options: RepairOptions,
    /// Number of findings left after the repair.
    left: usize,
    /// Number of paths in lost+found.
    homeless: usize,
}

/// Makes a drive and damages it. Also returns the files that were readable before the damage.
async fn damaged(
    rt: &Rt,
    damage: impl AsyncFn(Rc<Inner>, Fs) -> Result<Vec<u32>>,
) -> Result<(Emulator, Tree)> {
    let drive = drive(rt);
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    Fs::format(rt, device.clone(), &Default::default()).await?;
    let fs = Fs::mount(rt, device.clone(), quietly()).await?;
    populate(&fs).await?;
    let before = tree(&fs).await?;
    // Pretend that the accounts never agreed, so that the damage made in memory can reach
    // the drive.
    fs.0.core.borrow_mut().health.set_sound(false);
    let blocks = damage(fs.0.clone(), fs.clone()).await?;
    fs.0.core.borrow_mut().durability.require_checkpoint();
    fs.unmount().await?;
    for addr in blocks {
        rot(&drive, addr).await;
    }
    Ok((drive, before))
}

async fn plan(rt: &Rt, drive: &Emulator, options: &RepairOptions) -> Result<Repair> {
    Repair::plan(rt, Rc::new(drive.clone()), options).await
}

/// Checks that every file on the drive reads as before, apart from the exceptions in `expect`.
async fn compare(rt: &Rt, drive: &Emulator, before: &Tree, expect: &Expect) -> Result<()> {
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    let fs = Fs::mount(rt, device, quietly()).await?;
    let after = tree(&fs).await?;
    for (path, was) in before {
        if expect.lost.iter().any(|lost| path.starts_with(lost)) {
            continue;
        }
        let homes = after.iter().filter(|(at, _)| at.starts_with("/lost+found/"));
        let found = after.get(path) == Some(was)
            || expect.homeless > 0 && homes.map(|(_, is)| is).any(|is| is == was);
        assert!(found, "{path} is not as it was");
    }
    let homeless = after.keys().filter(|path| path.starts_with("/lost+found/"));
    let homeless = homeless.filter(|path| path.matches('/').count() == 2).count();
    assert_eq!(homeless, expect.homeless, "{:?}", after.keys());
    fs.unmount().await
}

fn case(damage: impl AsyncFn(Rc<Inner>, Fs) -> Result<Vec<u32>> + 'static, expect: Expect) {
    let rt = Rt::new(Config::simulated(7));
    let on = rt.clone();
    let result = rt.block_on(async move {
        let (drive, before) = damaged(&on, damage).await?;
        let untouched = drive.snapshot();
        let repair = plan(&on, &drive, &expect.options).await?;
        let findings: Vec<String> = repair.before.findings.iter().map(|f| f.to_string()).collect();
        let actions = &repair.actions;
        assert!(
            repair.before.findings.iter().any(|f| f.structure == expect.structure),
            "{findings:#?}"
        );
        let verdict = if expect.left > 0 { Verdict::Better } else { Verdict::Sound };
        assert_eq!(repair.verdict, verdict, "{findings:#?} {actions:#?}");
        let left = repair.after.as_ref().map_or(0, |after| after.findings.len());
        assert_eq!(left, expect.left, "{:#?}", repair.after);
        assert_eq!(repair.loses(), expect.loses, "{actions:#?}");
        assert!(!actions.is_empty());
        // Planning a repair writes nothing to the drive.
        assert_eq!(drive.snapshot().report(), untouched.report());
        repair.apply(|_, _| {}).await?;
        let again = plan(&on, &drive, &expect.options).await?;
        assert_eq!(again.before.findings.len(), expect.left, "{:#?}", again.before.findings);
        compare(&on, &drive, &before, &expect).await
    });
    rt.clear();
    result.unwrap();
}

/// Inode number of the file at `path`.
async fn ino(fs: &Fs, path: &str) -> Ino {
    let mut at = Ino::ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = fs.lookup(at, name.as_bytes()).await.unwrap().ino;
    }
    at
}

/// Changes node `nid`, bypassing the engine's usual steps.
async fn forge(inner: &Rc<Inner>, nid: u32, change: impl Fn(&mut [u8; 4096])) -> Result<()> {
    trees::edit(inner, nid, change).await
}

#[test]
fn nothing_is_done_where_nothing_is_wrong() {
    let rt = Rt::new(Config::simulated(7));
    let on = rt.clone();
    rt.block_on(async move {
        let (drive, _) = damaged(&on, async |_, _| Ok(vec![])).await?;
        let repair = plan(&on, &drive, &RepairOptions::default()).await?;
        assert_eq!((&repair.verdict, repair.size()), (&Verdict::Clean, (0, 0)));
        assert!(repair.apply(|_, _| {}).await.is_err());
        Ok::<(), Error>(())
    })
    .unwrap();
    rt.clear();
}

#[test]
fn wrong_link_counts_and_parents_are_counted() {
    let damage = async |inner: Rc<Inner>, fs: Fs| -> Result<Vec<u32>> {
        let (small, dir) = (ino(&fs, "dir/small").await, ino(&fs, "dir/below").await);
        forge(&inner, small.0, |b| crate::tree::node::as_inode_mut(b).head.links = 9.into())
            .await?;
        forge(&inner, dir.0, |b| crate::tree::node::as_inode_mut(b).head.links = 7.into()).await?;
        forge(&inner, dir.0, |b| crate::tree::node::as_inode_mut(b).head.parent = 1.into()).await?;
        Ok(vec![])
    };
    case(damage, Expect { structure: "inode", ..Expect::default() });
}

#[test]
fn names_that_lead_nowhere_or_are_wrong_go() {
    let damage = async |inner: Rc<Inner>, fs: Fs| -> Result<Vec<u32>> {
        let below = ino(&fs, "dir/below").await;
        let dir = ino(&fs, "dir").await;
        let small = ino(&fs, "dir/small").await;
        let relink = |directory: Ino, name: &'static [u8], ino: Ino, kind: Kind| {
            let inner = inner.clone();
            async move { inner.run(|core| core.relink(directory, name, ino, kind)).await }
        };
        relink(dir, b"to nothing", Ino(900), Kind::File).await?;
        relink(below, b"a circle", dir, Kind::Directory).await?;
        relink(below, b"another kind", small, Kind::Symlink).await?;
        inner
            .run(|core| {
                core.data(below, 0)?;
                core.prepare_path(below, 0)?;
                let seed = core.env.layout.hash_seed;
                let block = core.data_mut(below, 0);
                let name = dirent::iter(block).next().map(|entry| entry.name.to_vec());
                let name = name.expect("a name");
                let hash = dirent::hash(seed, &name).to_le_bytes();
                let at = block.windows(4).position(|bytes| bytes == hash).expect("its hash");
                block[at] ^= 1;
                Ok(())
            })
            .await?;
        Ok(vec![])
    };
    let expect = Expect { structure: "directory entry", loses: true, ..Expect::default() };
    case(damage, expect);
}

#[test]
fn what_has_no_name_gets_one_in_lost_found() {
    let damage = async |inner: Rc<Inner>, fs: Fs| -> Result<Vec<u32>> {
        let below = ino(&fs, "dir/below").await;
        let tall = ino(&fs, "tall").await;
        let names: [(Ino, &[u8]); 2] = [(ino(&fs, "dir").await, b"below"), (Ino::ROOT, b"tall")];
        for (directory, name) in names {
            inner
                .run(|core| {
                    let links = core.inode(if name == b"tall" { tall } else { below })?;
                    let links = links.head.links.get();
                    let last = (core.now(), LastName::Frees);
                    core.remove(directory, name, None, last).or_else(|stop| match stop {
                        crate::blocked::NotApplied::Failed(_) => Ok(None),
                        stop => Err(stop),
                    })?;
                    let _ = links;
                    Ok(())
                })
                .await?;
        }
        // Take the file off the list of orphans, so that it is in no directory and on no list.
        let core = &mut *inner.core.borrow_mut();
        core.tree.files_mut().forget_orphans();
        core.inode_mut(tall).head.links = 1.into();
        Ok(vec![])
    };
    let expect = Expect { structure: "inode", homeless: 1, ..Expect::default() };
    case(damage, expect);
}

#[test]
fn a_wrong_sit_is_made_again() {
    let damage = async |inner: Rc<Inner>, _: Fs| -> Result<Vec<u32>> {
        let core = &mut *inner.core.borrow_mut();
        let used: Vec<u32> = (0..core.alloc.sit().len())
            .filter(|s| core.alloc.sit().get(*s).valid.get() > 2)
            .collect();
        let mut map = core.alloc.sit().get(used[0]).map;
        map[0] ^= 0x55;
        core.alloc.repair_segment(used[0], map);
        let other = used[1 % used.len()];
        core.alloc.damage_segment(other, |entry| entry.valid = (entry.valid.get() + 3).into());
        Ok(vec![])
    };
    case(damage, Expect { structure: "SIT entry", ..Expect::default() });
}

/// Marks as in use some blocks that the streams have not written yet.
async fn unwritten_in_use(inner: Rc<Inner>, _: Fs) -> Result<Vec<u32>> {
    let core = &mut *inner.core.borrow_mut();
    let segments = core.env.layout.segments;
    let last = |superzone: u32| (superzone + 1) * segments - 1;
    let mut open: Vec<u32> = core.alloc.open_superzones().map(|(superzone, _)| superzone).collect();
    open.retain(|superzone| core.alloc.sit().get(last(*superzone)).valid.get() == 0);
    assert!(!open.is_empty());
    for superzone in &open {
        let mut map = core.alloc.sit().get(last(*superzone)).map;
        map[0] = 0x7f;
        core.alloc.repair_segment(last(*superzone), map);
    }
    Ok(vec![])
}

#[test]
fn blocks_that_were_never_written_are_not_in_use() {
    case(unwritten_in_use, Expect { structure: "SIT entry", ..Expect::default() });
}

#[test]
fn nothing_is_written_where_blocks_are_called_in_use() {
    let rt = Rt::new(Config::simulated(7));
    let on = rt.clone();
    rt.block_on(async move {
        let (drive, _) = damaged(&on, unwritten_in_use).await?;
        let fs = Fs::mount(&on, Rc::new(drive), quietly()).await?;
        let core = fs.0.core.borrow();
        for (superzone, room) in core.alloc.open_superzones() {
            let whole = core.alloc.payload_of(SuperzoneId(superzone));
            assert!(core.alloc.valid_in(superzone) + room <= whole, "superzone {superzone}");
        }
        Ok::<(), Error>(())
    })
    .unwrap();
    rt.clear();
}

/// Address of node `nid`.
async fn addr_of(inner: &Rc<Inner>, nid: u32) -> u32 {
    inner.core.borrow().tables.nat().get(nid).addr.get()
}

#[test]
fn a_nat_entry_that_leads_elsewhere_is_found_again() {
    let damage = async |inner: Rc<Inner>, fs: Fs| -> Result<Vec<u32>> {
        let (small, tall) = (ino(&fs, "dir/small").await, ino(&fs, "tall").await);
        let elsewhere = addr_of(&inner, small.0).await;
        // Change the table entry directly, and write nothing afterwards that would correct it.
        let tables = &mut inner.core.borrow_mut().tables;
        tables.set_node(tall.0, NatEntry { addr: elsewhere.into(), ..tables.nat().get(tall.0) });
        Ok(vec![])
    };
    case(damage, Expect { structure: "node", ..Expect::default() });
}

#[test]
fn a_damaged_leaf_is_a_hole_and_a_damaged_inode_is_gone() {
    let damage = async |inner: Rc<Inner>, fs: Fs| -> Result<Vec<u32>> {
        let tall = ino(&fs, "tall").await;
        let small = ino(&fs, "dir/small").await;
        let page = inner.run(|core| core.node(tall.0).cloned()).await?;
        let leaf = children(as_inode(&page))[1].get();
        Ok(vec![addr_of(&inner, leaf).await, addr_of(&inner, small.0).await])
    };
    let lost = &["/tall", "/dir/small", "/dir/below/second"];
    case(damage, Expect { structure: "node", loses: true, lost, ..Expect::default() });
}

#[test]
fn damaged_attributes_are_given_up_from_there_on() {
    let damage = async |inner: Rc<Inner>, fs: Fs| -> Result<Vec<u32>> {
        let tall = ino(&fs, "tall").await;
        let nids = inner.run(|core| core.xattr_nids(tall)).await?.0;
        assert!(nids.len() > 1);
        Ok(vec![addr_of(&inner, nids[1]).await])
    };
    case(damage, Expect { structure: "node", loses: true, lost: &["/tall"], ..Expect::default() });
}

#[test]
fn a_damaged_block_of_a_directory_sends_its_names_to_lost_found() {
    let damage = async |inner: Rc<Inner>, fs: Fs| -> Result<Vec<u32>> {
        let dir = ino(&fs, "dir").await;
        let page = inner.run(|core| core.node(dir.0).cloned()).await?;
        let used = |p: &&Pointer| p.addr.get() != HOLE;
        Ok(as_inode(&page).slots.iter().filter(used).map(|p| p.addr.get()).collect())
    };
    let expect = Expect {
        structure: "data",
        loses: true,
        homeless: 1,
        lost: &["/dir"],
        ..Expect::default()
    };
    case(damage, expect);
}

async fn content_of_small(inner: Rc<Inner>, fs: Fs) -> Result<Vec<u32>> {
    let small = ino(&fs, "dir/small").await;
    let page = inner.run(|core| core.node(small.0).cloned()).await?;
    Ok(vec![as_inode(&page).slots[1].addr.get()])
}

#[test]
fn a_damaged_block_of_content_becomes_a_hole_only_if_that_is_asked_for() {
    let options = RepairOptions { zero_bad_data: true, ..RepairOptions::default() };
    let lost = &["/dir/small", "/dir/below/second"];
    case(
        content_of_small,
        Expect { structure: "data", loses: true, lost, options, ..Expect::default() },
    );
    let rt = Rt::new(Config::simulated(7));
    let on = rt.clone();
    rt.block_on(async move {
        let (drive, _) = damaged(&on, content_of_small).await?;
        let repair = plan(&on, &drive, &RepairOptions::default()).await?;
        assert!(matches!(repair.verdict, Verdict::Hopeless(_)), "{:?}", repair.verdict);
        assert_eq!(repair.fate(&repair.before.findings[0]), Fate::Left);
        Ok::<(), Error>(())
    })
    .unwrap();
    rt.clear();
}

/// First blocks of the records of `kind` in the zones `zones`.
async fn records(inner: &Rc<Inner>, kind: u16, zones: std::ops::Range<u32>) -> Vec<u32> {
    let (device, geometry, pool) = {
        let core = inner.core.borrow();
        (core.env.device.clone(), core.env.geometry.clone(), core.env.pages.clone())
    };
    let mut found = Vec::new();
    for report in device.report(ZoneId(0), geometry.zones).await.unwrap() {
        if !zones.contains(&report.zone.0) {
            continue;
        }
        for block in 0..crate::durability::recover::written(&report, &geometry) {
            let addr = BlockAddr::new(&geometry, report.zone, block);
            let read = furrow_log::read_blocks(&*device, QueueId(0), addr, 1, &pool).await;
            let Ok(page) = read else { continue };
            if peek(page[0].bytes()).is_some_and(|header| header.kind.get() == kind) {
                found.push(addr.0);
            }
        }
    }
    found
}

/// Writes the tables whole; later changes go to the delta log as usual.
async fn write_tables(inner: &Rc<Inner>) -> Result<()> {
    inner.core.borrow_mut().env.options.variant.metadata = furrow_policy::Metadata::Pair;
    inner.core.borrow_mut().durability.require_checkpoint();
    inner.checkpoint(false).await?;
    inner.core.borrow_mut().env.options.variant.metadata = furrow_policy::Metadata::Log;
    Ok(())
}

#[test]
fn damaged_tables_are_made_again_from_what_is_there() {
    let damage = async |inner: Rc<Inner>, _: Fs| -> Result<Vec<u32>> {
        write_tables(&inner).await?;
        let core = inner.core.borrow();
        let units = core.tables.pages().iter().flatten().map(|unit| unit.addr.get());
        Ok(units.filter(|addr| *addr != HOLE).collect())
    };
    case(damage, Expect { structure: "table page", ..Expect::default() });
}

#[test]
fn a_damaged_delta_log_is_made_again_from_what_is_there() {
    let damage = async |inner: Rc<Inner>, _: Fs| -> Result<Vec<u32>> {
        let core = inner.core.borrow();
        let extent = core.tables.logs()[0].extents.last().expect("an extent");
        let zone = core.env.layout.delta_half(0, extent.half)[0];
        Ok(vec![BlockAddr::new(&core.env.geometry, zone, extent.first).0])
    };
    case(damage, Expect { structure: "delta log", ..Expect::default() });
}

async fn only_superblock(inner: Rc<Inner>, _: Fs) -> Result<Vec<u32>> {
    let core = inner.core.borrow();
    let zone = ZoneId(core.env.layout.ring_start + u32::from(core.durability.ring()));
    Ok(vec![BlockAddr::new(&core.env.geometry, zone, 0).0])
}

#[test]
fn where_the_only_superblock_is_lost_checkpoints_have_it() {
    case(only_superblock, Expect { structure: "superblock", ..Expect::default() });
}

#[test]
fn a_mount_without_a_superblock_writes_a_new_one() {
    let rt = Rt::new(Config::simulated(7));
    let on = rt.clone();
    rt.block_on(async move {
        let (drive, before) = damaged(&on, only_superblock).await?;
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        let fs = Fs::mount(&on, device.clone(), quietly()).await?;
        fs.unmount().await?;
        let report = fsck(device, &FsckOptions::default()).await?;
        assert!(report.is_ok(), "{:?}", report.findings);
        compare(&on, &drive, &before, &Expect::default()).await
    })
    .unwrap();
    rt.clear();
}

#[test]
fn a_damaged_newest_checkpoint_is_given_up_only_if_that_is_asked_for() {
    let rt = Rt::new(Config::simulated(7));
    let on = rt.clone();
    rt.block_on(async move {
        let drive = drive(&on);
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        Fs::format(&on, device.clone(), &Default::default()).await?;
        let fs = Fs::mount(&on, device.clone(), quietly()).await?;
        populate(&fs).await?;
        let before = tree(&fs).await?;
        fs.create(Ino::ROOT, b"later", &NewNode::file()).await?;
        fs.sync().await?;
        let ring = fs.0.core.borrow().env.layout.ring_start;
        let newest = records(&fs.0, crate::format::kind::CHECKPOINT, ring..ring + 2).await;
        drop(fs);
        // One damaged copy of the checkpoint does no harm.
        let [.., first, second] = newest[..] else { panic!("no checkpoint") };
        rot(&drive, second).await;
        let repair = plan(&on, &drive, &RepairOptions::default()).await?;
        assert_eq!((&repair.verdict, repair.loses()), (&Verdict::Sound, false));
        rot(&drive, first).await;
        let error = Fs::mount(&on, device.clone(), quietly()).await.err().expect("no mount");
        assert!(error.to_string().contains("and newer than"), "{error}");
        let repair = plan(&on, &drive, &RepairOptions::default()).await?;
        let Verdict::Hopeless(why) = &repair.verdict else { panic!("{:?}", repair.verdict) };
        assert!(why.contains("would lose"), "{why}");
        let options = RepairOptions { older_checkpoint: true, ..RepairOptions::default() };
        let repair = plan(&on, &drive, &options).await?;
        assert_eq!(repair.verdict, Verdict::Sound, "{:#?}", repair.actions);
        assert!(repair.loses());
        repair.apply(|_, _| {}).await?;
        let expect = Expect::default();
        compare(&on, &drive, &before, &expect).await?;
        let fs = Fs::mount(&on, device, quietly()).await?;
        assert!(fs.lookup(Ino::ROOT, b"later").await.is_err());
        fs.unmount().await
    })
    .unwrap();
    rt.clear();
}

/// Writes a checkpoint that is newer than all others and whole, but has impossible content.
async fn forge_checkpoint(fs: &Fs) -> Result<()> {
    let (device, layout, pool, ring) = {
        let core = fs.0.core.borrow();
        let ring = ZoneId(core.env.layout.ring_start + u32::from(core.durability.ring()));
        (core.env.device.clone(), core.env.layout.clone(), core.env.pages.clone(), ring)
    };
    let geometry = device.geometry();
    let reports = device.report(ring, 1).await.unwrap();
    let end = crate::durability::recover::read::written(&reports[0], geometry);
    let scanned = crate::durability::recover::read::scan_ring;
    let scanned = scanned(&*device, &layout, &reports[0], u64::MAX, &pool).await;
    let (header, mut body) = scanned.newest.expect("a checkpoint");
    let (fields, _) = crate::format::CheckpointBody::mut_from_prefix(&mut body).unwrap();
    fields.sync_half = 7.into();
    let mut id = header.id();
    id.checkpoint += 1;
    let pages = furrow_log::record::seal(&id, &body, &pool);
    let blocks = BlockCount(pages.len() as u64 * furrow_log::address::sectors_per_block(geometry));
    let lba = BlockAddr::new(geometry, ring, end).lba(geometry);
    let write = Request::with_data(Command::Write { lba, blocks }, pages);
    assert!(device.submit(QueueId(0), write).await.status.is_ok());
    Ok(())
}

#[test]
fn a_checkpoint_of_impossible_content_is_refused_and_given_up_if_that_is_asked_for() {
    let rt = Rt::new(Config::simulated(7));
    let on = rt.clone();
    rt.block_on(async move {
        let drive = drive(&on);
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        Fs::format(&on, device.clone(), &Default::default()).await?;
        let fs = Fs::mount(&on, device.clone(), quietly()).await?;
        populate(&fs).await?;
        let before = tree(&fs).await?;
        fs.sync().await?;
        forge_checkpoint(&fs).await?;
        drop(fs);
        let error = Fs::mount(&on, device.clone(), quietly()).await.err().expect("no mount");
        assert!(error.to_string().contains("sync log position"), "{error}");
        let repair = plan(&on, &drive, &RepairOptions::default()).await?;
        assert_eq!(repair.before.findings[0].structure, "checkpoint");
        let Verdict::Hopeless(why) = &repair.verdict else { panic!("{:?}", repair.verdict) };
        for says in ["content is impossible", "sync log position", "--older-checkpoint"] {
            assert!(why.contains(says), "{why}");
        }
        assert!(repair.apply(|_, _| {}).await.is_err());
        let options = RepairOptions { older_checkpoint: true, ..RepairOptions::default() };
        let repair = plan(&on, &drive, &options).await?;
        assert_eq!(repair.verdict, Verdict::Sound, "{:#?}", repair.after);
        assert!(repair.loses());
        repair.apply(|_, _| {}).await?;
        compare(&on, &drive, &before, &Expect::default()).await
    })
    .unwrap();
    rt.clear();
}

#[test]
fn a_superzone_with_a_damaged_summary_is_emptied() {
    let damage = async |inner: Rc<Inner>, fs: Fs| -> Result<Vec<u32>> {
        // Write enough content to close some segments.
        let more = fs.create(Ino::ROOT, b"more", &NewNode::file()).await?.ino;
        write(&fs, more, 0, &bytes(77, 3 << 20)).await?;
        fs.unlink(Ino::ROOT, b"tall").await?;
        fs.sync().await?;
        let core = inner.core.borrow();
        let closed = (0..core.env.layout.superzones).find(|index| {
            core.alloc.valid_in(*index) > 10
                && core.alloc.zones().state(SuperzoneId(*index))
                    == furrow_log::pool::SuperzoneState::Full
        });
        let index = closed.expect("a full superzone");
        let stripe = core.alloc.stripe(index);
        let (column, offset) = stripe.place(stripe.summary_index(0));
        let zone = core.alloc.zones().zone(SuperzoneId(index), column);
        Ok(vec![BlockAddr::new(&core.env.geometry, zone, offset).0])
    };
    case(damage, Expect { structure: "summary", lost: &["/tall"], ..Expect::default() });
}

#[test]
fn a_lost_root_is_made_again_and_all_is_in_lost_found() {
    let damage =
        async |inner: Rc<Inner>, _: Fs| -> Result<Vec<u32>> { Ok(vec![addr_of(&inner, 1).await]) };
    let lost = &["/dir", "/dir/"];
    case(damage, Expect { structure: "node", loses: true, homeless: 2, lost, ..Expect::default() });
}

#[test]
fn a_power_cut_anywhere_in_a_repair_leaves_what_the_next_one_finishes() {
    let rt = Rt::new(Config::simulated(7));
    let on = rt.clone();
    let damage = async |inner: Rc<Inner>, fs: Fs| -> Result<Vec<u32>> {
        write_tables(&inner).await?;
        let tall = ino(&fs, "tall").await;
        let small = ino(&fs, "dir/small").await;
        forge(&inner, small.0, |b| crate::tree::node::as_inode_mut(b).head.links = 9.into())
            .await?;
        let page = inner.run(|core| core.node(tall.0).cloned()).await?;
        let leaf = children(as_inode(&page))[1].get();
        inner.checkpoint(false).await?;
        let core = inner.core.borrow();
        let unit = core.tables.pages().iter().flatten().find(|unit| unit.addr.get() != HOLE);
        let unit = unit.expect("a unit").addr.get();
        Ok(vec![core.tables.nat().get(leaf).addr.get(), unit])
    };
    let (drive, before) = rt.block_on(async move { damaged(&on, damage).await }).unwrap();
    let on = rt.clone();
    let states: Rc<RefCell<Vec<Snapshot>>> = Rc::default();
    let seen = states.clone();
    let of = drive.clone();
    rt.block_on(async move {
        let repair = plan(&on, &of, &RepairOptions::default()).await?;
        assert_eq!(repair.verdict, Verdict::Sound, "{:#?}", repair.actions);
        of.set_observer(Rc::new(move |drive: &Emulator, _: &furrow_emu::CommandInfo| {
            seen.borrow_mut().push(drive.snapshot());
        }));
        repair.apply(|_, _| {}).await
    })
    .unwrap();
    rt.clear();
    let states = states.take();
    assert!(states.len() > 10, "{}", states.len());
    for (cut, state) in states.iter().enumerate() {
        let rt = Rt::new(Config::simulated(cut as u64));
        let left = state.power_cut(&Fates::seeded(cut as u64));
        let drive = Emulator::from_snapshot(&rt, &left, Options::simulated());
        let (on, before) = (rt.clone(), before.clone());
        let done = rt.block_on(async move {
            let repair = plan(&on, &drive, &RepairOptions::default()).await?;
            let verdict = &repair.verdict;
            assert!(
                matches!(verdict, Verdict::Sound | Verdict::Clean),
                "cut {cut}: {verdict:?} {:#?}",
                repair.before.findings
            );
            if repair.is_useful() {
                repair.apply(|_, _| {}).await?;
            }
            let expect = Expect { lost: &["/tall"], ..Expect::default() };
            compare(&on, &drive, &before, &expect).await
        });
        rt.clear();
        if let Err(error) = done {
            panic!("cut {cut}: {error}");
        }
    }
}

#[test]
fn numbers_of_inodes_and_times_that_cannot_be_are_set_to_what_can() {
    let damage = async |inner: Rc<Inner>, fs: Fs| -> Result<Vec<u32>> {
        let small = ino(&fs, "dir/small").await;
        forge(&inner, small.0, |b| {
            let head = &mut crate::tree::node::as_inode_mut(b).head;
            head.blocks = 77.into();
            head.mtime.nanoseconds = u32::MAX.into();
            head.flags = 3;
        })
        .await?;
        // Make a node that nothing leads to.
        let core = &mut *inner.core.borrow_mut();
        let entry = core.tables.nat().get(small.0);
        let nid = core.tables.take_id().expect("an id");
        core.tables.set_node(nid, entry);
        core.tree.set_inodes(core.tree.inodes() + 5);
        Ok(vec![])
    };
    case(damage, Expect { structure: "inode", ..Expect::default() });
}

/// The drive loses the node that a sync record changes. A mount refuses; a repair gives up the
/// change, reports it, and keeps the synced content of other files.
#[test]
fn a_change_of_a_node_that_is_damaged_is_given_up() {
    let rt = Rt::new(Config::simulated(7));
    let on = rt.clone();
    let result = rt.block_on(async move {
        let drive = drive(&on);
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        Fs::format(&on, device.clone(), &Default::default()).await?;
        let fs = Fs::mount(&on, device.clone(), quietly()).await?;
        let changed = fs.create(Ino::ROOT, b"changed", &NewNode::file()).await?.ino;
        let other = fs.create(Ino::ROOT, b"other", &NewNode::file()).await?.ino;
        for ino in [changed, other] {
            write(&fs, ino, 0, &bytes(1, 9000)).await?;
        }
        fs.sync().await?;
        let node = fs.0.core.borrow().tables.nat().get(changed.0).addr.get();
        for ino in [changed, other] {
            write(&fs, ino, 0, &bytes(2, 9000)).await?;
            fs.fsync(ino, false).await?;
            let core = fs.0.core.borrow();
            let entry = core.cache.peek(&crate::tree::cache::Key::Node(ino.0)).unwrap();
            assert!(entry.is_dirty() && entry.logged().is_some());
        }
        drop(fs);
        rot(&drive, node).await;
        let refused = Fs::mount(&on, device.clone(), quietly()).await.err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        let repair = plan(&on, &drive, &RepairOptions::default()).await?;
        let said: Vec<String> = repair.actions.iter().map(|action| format!("{action:?}")).collect();
        let given_up = |said: &String| said.contains("changes synced in it are given up");
        assert!(repair.loses() && said.iter().any(given_up), "{said:#?}");
        repair.apply(|_, _| {}).await?;
        let fs = Fs::mount(&on, device, quietly()).await?;
        assert_eq!(fs.read(other, 0, 9000).await?.to_vec(), bytes(2, 9000));
        fs.unmount().await
    });
    rt.clear();
    result.unwrap();
}
