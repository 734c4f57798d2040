//! Tests: an audit notices each corruption of memory that `docs/inside/structure/corruptions.md`
//! lists for the file system (F1 to F16), and dirty pages that exceed the space left (F17). In a
//! working file system, an audit finds nothing wrong.

use super::alloc::is_set;
use crate::alloc::heads::Head;
use crate::core::Core;
use crate::tables::table_zones::zone_of;
use crate::tree::cache::{Entry, Key};
use crate::types::{SetAttr, XattrMode};
use crate::{
    CleanOptions, Fs, Ino, MkfsOptions, MountOptions, NewNode, Order, RenameMode, WriteData,
};
use furrow_emu::{Emulator, Medium, Options};
use furrow_log::pool::{SuperzoneId, SuperzoneState};
use furrow_policy::{FsVariant, Metadata, StreamHeads};
use furrow_rt::{Config, Nanos, Page, Rt};
use furrow_zone::{ErrorKind, Result, ZonedDevice};
use std::future::Future;
use std::rc::Rc;

const NARROW: &str = "zones=96,zone-size=256KiB,max-active=40,channels=1";
const STRIPED: &str = "zones=96,zone-size=256KiB,max-active=24,channels=2";

fn quiet() -> MountOptions {
    MountOptions { commit_interval: 100_000 * Nanos::SECOND, ..MountOptions::default() }
}

fn mounted<F: Future<Output = Result<()>> + 'static>(
    spec: &str,
    options: MountOptions,
    test: impl FnOnce(Fs) -> F + 'static,
) {
    let rt = Rt::new(Config::simulated(5));
    let geometry = furrow_zone::spec::parse_geometry(spec).unwrap();
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(&rt, geometry, medium, Options::fast()).unwrap();
    let (on, drive): (Rt, Rc<dyn ZonedDevice>) = (rt.clone(), Rc::new(drive));
    let done = rt.block_on(async move {
        let format = MkfsOptions { segment_blocks: Some(32), ..MkfsOptions::default() };
        Fs::format(&on, drive.clone(), &format).await?;
        let fs = Fs::mount(&on, drive.clone(), options.clone()).await?;
        fs.audit()?;
        test(fs).await
    });
    done.unwrap();
    rt.clear();
}

async fn file(fs: &Fs, name: &str) -> Result<Ino> {
    Ok(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino)
}

async fn write(fs: &Fs, ino: Ino, offset: u64, len: usize) -> Result<()> {
    fs.write(ino, WriteData::copy(fs.pool(), offset, &vec![7; len])).await
}

/// Corrupts the memory of `fs` by `mutate`, then checks that the audit names `account`.
fn corrupt(fs: &Fs, account: &str, mutate: impl FnOnce(&mut Core)) {
    fs.audit().unwrap();
    mutate(&mut fs.0.core.borrow_mut());
    let error = fs.audit().expect_err("the corruption is not noticed");
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(error.to_string().contains(account), "expected `{account}`, found: {error}");
    // No part of the corruption may reach the drive, so the engine must not write any more.
    fs.0.fail(&error);
}

/// Runs `test` on a file system on the drive [`NARROW`].
fn corrupted<F: Future<Output = Result<()>> + 'static>(test: impl FnOnce(Fs) -> F + 'static) {
    mounted(NARROW, quiet(), test);
}

#[test]
fn f1_valid_blocks_of_a_superzone() {
    corrupted(|fs| async move {
        let ino = file(&fs, "large").await?;
        write(&fs, ino, 0, 1 << 20).await?;
        fs.sync().await?;
        corrupt(&fs, "superzone_valid of superzone", |core| {
            let full =
                |id: &u32| core.alloc.zones().state(SuperzoneId(*id)) == SuperzoneState::Full;
            let all = 0..core.env.layout.superzones;
            let victim = all.filter(full).find(|id| core.alloc.valid_in(*id) > 0);
            core.alloc.corrupt_valid(victim.unwrap());
        });
        Ok(())
    });
}

/// Marks blocks that hold summaries valid too, and makes all counts agree with that.
#[test]
fn more_valid_blocks_than_a_superzone_holds() {
    corrupted(|fs| async move {
        let ino = file(&fs, "large").await?;
        write(&fs, ino, 0, 1 << 20).await?;
        fs.sync().await?;
        corrupt(&fs, "valid blocks of superzone", |core| {
            let (segments, blocks) = (core.env.layout.segments, core.env.layout.segment_blocks);
            let state = |id: &u32| core.alloc.zones().state(SuperzoneId(*id));
            let mut all = 0..core.env.layout.superzones;
            let full = all.find(|id| state(id) == SuperzoneState::Full).unwrap();
            let first = full * segments;
            for segment in first..first + segments {
                core.alloc.corrupt_segment(segment, |entry| {
                    entry.map[..blocks as usize / 8].fill(0xff);
                    entry.valid = (blocks as u16).into();
                });
            }
            core.alloc.count_valid();
        });
        Ok(())
    });
}

#[test]
fn f2_the_bit_of_a_node_that_is_in_use() {
    corrupted(|fs| async move {
        let ino = file(&fs, "a").await?;
        for _ in 0..3 {
            // Change more of a node than a sync record can hold, so that each fsync writes the
            // node itself.
            write(&fs, ino, 0, 150 * 4096).await?;
            fs.fsync(ino, false).await?;
        }
        corrupt(&fs, "SitEntry::map of the block at", |core| {
            let addr = core.tables.nat().get(ino.0).addr.get();
            let (superzone, segment, block) = core.alloc.segment_of(addr).unwrap();
            let entry = core.alloc.sit().get(segment);
            let of = |head: &&Head| head.superzone == Some(superzone);
            let written =
                core.alloc.heads().find(of).unwrap().next % core.env.layout.segment_blocks;
            let garbage = (0..written).find(|block| !is_set(&entry, *block)).unwrap();
            core.alloc.corrupt_segment(segment, |entry| {
                entry.map[(block / 8) as usize] &= !(1 << (block % 8));
                entry.map[(garbage / 8) as usize] |= 1 << (garbage % 8);
            });
        });
        Ok(())
    });
}

/// Makes a file whose inode was written twice to one open segment; returns the former and the
/// present address of the inode.
async fn written_twice(fs: &Fs) -> Result<(Ino, u32, u32)> {
    let ino = file(fs, "twice").await?;
    // Change more of a node than a sync record can hold, so that each fsync writes the node itself.
    write(fs, ino, 0, 150 * 4096).await?;
    fs.fsync(ino, false).await?;
    let before = fs.0.core.borrow().tables.nat().get(ino.0).addr.get();
    write(fs, ino, 0, 150 * 4096).await?;
    fs.fsync(ino, false).await?;
    let core = fs.0.core.borrow();
    let now = core.tables.nat().get(ino.0).addr.get();
    let segment =
        |addr| core.alloc.segment_of(addr).map(|(superzone, segment, _)| (superzone, segment));
    assert_ne!(before, now);
    assert_eq!(segment(before), segment(now), "one segment");
    Ok((ino, before, now))
}

#[test]
fn f3_an_invalidation_that_was_lost() {
    corrupted(|fs| async move {
        let (_, before, _) = written_twice(&fs).await?;
        corrupt(&fs, "a clear bit, as its owner", |core| {
            let stream = core.alloc.stream_at(before);
            core.set_valid(before, true, stream);
        });
        Ok(())
    });
}

#[test]
fn f4_the_address_of_a_node() {
    corrupted(|fs| async move {
        let (ino, before, _) = written_twice(&fs).await?;
        let account = format!("SitEntry::map of the block at {before}, which node {ino} names");
        corrupt(&fs, &account, |core| {
            assert!(core.tables.nat().is_dirty(ino.0));
            core.tables.corrupt_node(ino.0, |entry| entry.addr = before.into());
        });
        Ok(())
    });
}

#[test]
fn f5_the_id_of_a_node_that_is_in_use() {
    corrupted(|fs| async move {
        let ino = file(&fs, "named").await?;
        corrupt(&fs, "which waits to be free", |core| core.tables.corrupt_freed_id(ino.0));
        Ok(())
    });
}

#[test]
fn f6_a_zone_of_tables_that_units_are_in() {
    let variant = FsVariant { metadata: Metadata::Pair, ..FsVariant::default() };
    let pair = MountOptions { variant, ..quiet() };
    mounted(NARROW, pair, |fs| async move {
        file(&fs, "a").await?;
        fs.sync().await?;
        corrupt(&fs, "TableZones::zones of zone", |core| {
            let mut units = core.tables.pages().iter().flatten();
            let zone = units.find_map(|unit| zone_of(unit, &core.env.geometry)).unwrap();
            core.tables.zone_was_reset(zone, true);
        });
        Ok(())
    });
}

#[test]
fn f7_a_head_in_the_superzone_of_another() {
    corrupted(|fs| async move {
        let ino = file(&fs, "a").await?;
        write(&fs, ino, 0, 100).await?;
        fs.sync().await?;
        corrupt(&fs, "Head::superzone of", |core| {
            let heads: Vec<_> = core.alloc.heads().map(|head| head.superzone).collect();
            let open: Vec<usize> = (0..heads.len()).filter(|at| heads[*at].is_some()).collect();
            core.alloc.corrupt_head(open[0]).superzone = heads[open[1]];
        });
        Ok(())
    });
}

#[test]
fn f8_the_place_of_a_head() {
    corrupted(|fs| async move {
        let ino = file(&fs, "a").await?;
        write(&fs, ino, 0, 3 * 4096).await?;
        fs.sync().await?;
        corrupt(&fs, "Head::next of head", |core| {
            let segment = core.env.layout.segment_blocks;
            let head = core.alloc.heads().position(|head| {
                let block = head.next % segment;
                head.superzone.is_some() && block > 0 && block + 2 < segment
            });
            core.alloc.corrupt_head(head.unwrap()).next += 1;
        });
        Ok(())
    });
}

#[test]
fn f9_a_dirty_block_on_no_list() {
    corrupted(|fs| async move {
        let ino = file(&fs, "a").await?;
        write(&fs, ino, 0, 100).await?;
        corrupt(&fs, "Cache's list of dirty pages", |core| {
            assert!(core.cache.corrupt_dirty_data(ino.0, 0));
        });
        Ok(())
    });
}

#[test]
fn f10_a_dirty_page_that_can_be_evicted() {
    corrupted(|fs| async move {
        let ino = file(&fs, "a").await?;
        write(&fs, ino, 0, 100).await?;
        corrupt(&fs, "Cache's eviction list", |core| {
            let key = Key::Data(ino.0, 0);
            assert!(core.cache.audited(&key).is_some_and(Entry::is_dirty));
            core.cache.corrupt_eviction_list(&key);
        });
        Ok(())
    });
}

#[test]
fn a_clean_node_noted_as_moved_below() {
    corrupted(|fs| async move {
        let ino = file(&fs, "a").await?;
        fs.sync().await?;
        corrupt(&fs, "Cache::moved_below", |core| core.cache.corrupt_moved_below(ino.0));
        Ok(())
    });
}

#[test]
fn f11_pages_in_flight_for_ever() {
    corrupted(|fs| async move {
        let ino = file(&fs, "a").await?;
        write(&fs, ino, 0, 100).await?;
        fs.sync().await?;
        corrupt(&fs, "Dispatched::in_flight", |core| {
            core.durability.corrupt_in_flight(core.env.dirty_limit() + 1)
        });
        Ok(())
    });
}

#[test]
fn f12_an_orphan_that_has_a_name() {
    corrupted(|fs| async move {
        let ino = file(&fs, "a").await?;
        fs.open(ino).await?;
        corrupt(&fs, "orphans, inode", |core| core.tree.files_mut().lost_last_name(ino, false));
        Ok(())
    });
}

#[test]
fn f13_operations_that_no_record_tells_of() {
    corrupted(|fs| async move {
        file(&fs, "a").await?;
        corrupt(&fs, "NamespaceLog::unlogged", |core| core.durability.corrupt_logged());
        Ok(())
    });
}

#[test]
fn f14_a_changed_node_that_is_not_dirty() {
    corrupted(|fs| async move {
        let ino = file(&fs, "a").await?;
        fs.sync().await?;
        fs.unlink(Ino::ROOT, b"a").await?;
        let account = format!("Table::dirty of NAT entry {ino}");
        corrupt(&fs, &account, |core| assert!(core.tables.corrupt_dirty_node(ino.0)));
        Ok(())
    });
}

#[test]
fn f15_a_half_of_the_sync_log_with_records() {
    corrupted(|fs| async move {
        let ino = file(&fs, "a").await?;
        fs.sync().await?;
        let half = fs.0.core.borrow().durability.sync_half();
        while fs.0.core.borrow().durability.sync_half() == half {
            write(&fs, ino, 0, 100).await?;
            fs.fsync(ino, false).await?;
        }
        corrupt(&fs, "SyncLog::used of half", |core| {
            assert!(core.durability.corrupt_sync_used(half));
        });
        Ok(())
    });
}

#[test]
fn f16_the_permits_of_a_head() {
    let variant = FsVariant { heads: StreamHeads::Fixed(2), ..FsVariant::default() };
    let more = MountOptions { variant, ..quiet() };
    mounted(NARROW, more, |fs| async move {
        let ino = file(&fs, "large").await?;
        write(&fs, ino, 0, 1 << 20).await?;
        fs.sync().await?;
        corrupt(&fs, "Turn::permit of head", |core| {
            let first = core.env.layout.streams as usize;
            let open: Vec<bool> = core.alloc.heads().map(|head| head.superzone.is_some()).collect();
            let head = (first..open.len()).find(|head| open[*head]);
            let head = head.expect("a head beyond the first");
            core.alloc.corrupt_permit(head);
        });
        Ok(())
    });
}

#[test]
fn f17_more_dirty_pages_than_there_is_room_for() {
    corrupted(|fs| async move {
        let ino = file(&fs, "a").await?;
        write(&fs, ino, 0, 100).await?;
        corrupt(&fs, "dirty pages, by the space left for them", |core| {
            for block in 0..core.alloc.space_left() as u32 {
                core.cache.insert(Key::Data(ino.0, block + 1), Entry::dirty(Page::zeroed()));
            }
        });
        Ok(())
    });
}

/// Runs a few operations, with an audit after each.
async fn work(fs: &Fs) -> Result<()> {
    let directory = fs.create(Ino::ROOT, b"directory", &NewNode::directory()).await?.ino;
    fs.audit()?;
    let mut inos = Vec::new();
    for n in 0..40 {
        let name = format!("file {n}");
        let ino = fs.create(directory, name.as_bytes(), &NewNode::file()).await?.ino;
        fs.audit()?;
        write(fs, ino, 4096 * (n % 3), 1 << (10 + n % 8)).await?;
        fs.audit()?;
        if n % 3 == 0 {
            fs.fsync(ino, false).await?;
            fs.audit()?;
        }
        inos.push((name, ino));
    }
    write(fs, inos[0].1, 3 << 20, 700_000).await?;
    fs.audit()?;
    for (n, (name, ino)) in inos.iter().enumerate() {
        match n % 5 {
            0 => fs.unlink(directory, name.as_bytes()).await?,
            1 => {
                let to = (Ino::ROOT, &b"replaced"[..]);
                fs.rename((directory, name.as_bytes()), to, RenameMode::Replace).await?;
            }
            2 => {
                let changes = SetAttr { size: Some(5000), ..SetAttr::default() };
                fs.setattr(*ino, changes).await.map(drop)?;
            }
            3 => fs.setxattr(*ino, b"user.some", &[1; 3000], XattrMode::Set).await?,
            _ => write(fs, *ino, 0, 50_000).await?,
        }
        fs.audit()?;
        if n % 8 == 0 {
            fs.sync().await?;
            fs.audit()?;
        }
    }
    let unnamed = fs.create_unnamed(directory, &NewNode::file()).await?.ino;
    write(fs, unnamed, 0, 10_000).await?;
    fs.audit()?;
    fs.clean(CleanOptions { garbage_percent: 0, ..CleanOptions::default() }).await?;
    fs.audit()?;
    fs.release(unnamed).await?;
    fs.audit()
}

#[test]
fn nothing_is_wrong_in_a_file_system_at_work() {
    let orders = [Order::Queued, Order::Append];
    for (spec, order) in [NARROW, STRIPED].into_iter().flat_map(|s| orders.map(|o| (s, o))) {
        for heads in [StreamHeads::Quota, StreamHeads::Fixed(2)] {
            let variant = FsVariant { heads, ..FsVariant::default() };
            let options = MountOptions { order, variant, ..quiet() };
            mounted(spec, options.clone(), move |fs| async move {
                work(&fs).await?;
                let (rt, device) = (fs.rt().clone(), fs.0.core.borrow().env.device.clone());
                fs.unmount().await?;
                let fs = Fs::mount(&rt, device, options).await?;
                fs.audit()?;
                let all = fs.readdir(Ino::ROOT, 0, 100).await?;
                fs.audit()?;
                assert_eq!(all.len(), 2);
                fs.unmount().await
            });
        }
    }
}
