//! Tests of a power cut followed by a flipped bit: acknowledged data is there, or its loss
//! is reported.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, quiet, sound};
use furrow_emu::{Emulator, Fates, Fault, FaultKind, Options};
use furrow_fs::format::{NODE_MAGIC, kind};
use furrow_fs::{
    Fs, FsckOptions, Ino, MkfsOptions, MountOptions, NewNode, Repair, RepairOptions, Verdict,
    WriteData, fsck,
};
use furrow_log::BlockAddr;
use furrow_log::address::{blocks_written, read_blocks};
use furrow_log::record::{RecordHeader, peek};
use furrow_rt::{Config, Page, Pages, Pool, Rt};
use furrow_zone::{
    Action, BlockCount, Command, ErrorKind, QueueId, Request, Result, Target, When, ZoneId,
    ZoneState, ZonedDevice,
};
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

const SPEC: &str = "zones=64,zone-size=1MiB,max-active=14,channels=1";
const FILES: u64 = 12;

fn on_drive<F: Future<Output = Result<()>> + 'static>(test: impl FnOnce(Rt, Emulator) -> F) {
    let (rt, made) = (Rt::new(Config::simulated(7)), (Options::fast(), MkfsOptions::default()));
    common::on_drive(rt, SPEC, made, test);
}

fn name(n: u64) -> Vec<u8> {
    format!("file {n}").into_bytes()
}

fn content(n: u64) -> Vec<u8> {
    (0..9000).map(|at| (at * 7 + n * 13 + 1) as u8).collect()
}

/// Makes [`FILES`] files, each with an fsync, and cuts the power.
async fn files_and_a_cut(rt: &Rt, drive: &Emulator) -> Result<Emulator> {
    let fs = Fs::mount(rt, Rc::new(drive.clone()), quiet()).await?;
    for n in 0..FILES {
        let file = fs.create(Ino::ROOT, &name(n), &NewNode::file()).await?.ino;
        fs.write(file, WriteData::copy(fs.pool(), 0, &content(n))).await?;
        fs.fsync(file, false).await?;
    }
    let left = drive.snapshot().power_cut(&Fates::nothing(1));
    drop(fs);
    Ok(Emulator::from_snapshot(rt, &left, Options::fast()))
}

/// The written blocks of a drive, in address order.
async fn blocks(drive: &Emulator) -> Vec<(BlockAddr, Page)> {
    let (geometry, pool) = (drive.geometry().clone(), Pool::new(4));
    let mut found = Vec::new();
    for zone in drive.report_now(ZoneId(0), geometry.zones).unwrap() {
        for offset in 0..blocks_written(&zone, &geometry) {
            let addr = BlockAddr::new(&geometry, zone.zone, offset);
            let page = read_blocks(drive, QueueId(0), addr, 1, &pool).await.unwrap();
            found.push((addr, page[0].clone()));
        }
    }
    found
}

/// The records of the kind `wanted`, each with its header.
async fn records(drive: &Emulator, wanted: u16) -> Vec<(BlockAddr, RecordHeader)> {
    let headers = blocks(drive).await.into_iter().map(|(addr, page)| (addr, peek(page.bytes())));
    let headers = headers.filter_map(|(addr, header)| Some((addr, header?)));
    headers.filter(|(_, header)| header.kind.get() == wanted).collect()
}

/// A copy of the drive with one bit flipped in each of these blocks.
async fn flipped(rt: &Rt, drive: &Emulator, addrs: &[BlockAddr]) -> Rc<Emulator> {
    let copy = Emulator::from_snapshot(rt, &drive.snapshot(), Options::fast());
    for addr in addrs {
        let lba = addr.lba(copy.geometry());
        let flip = Fault::new(FaultKind::BitFlip).at_blocks(lba, BlockCount(1)).times(1);
        copy.inject(flip).unwrap();
        let command = Command::Read { lba, blocks: BlockCount(1) };
        let data = Pages::from_iter([Page::zeroed()]);
        let _ = copy.submit(QueueId(0), Request::with_data(command, data)).await;
    }
    Rc::new(copy)
}

/// The numbers of the files whose content is intact.
async fn whole(fs: &Fs) -> Vec<u64> {
    let mut found = Vec::new();
    for n in 0..FILES {
        let Ok(attr) = fs.lookup(Ino::ROOT, &name(n)).await else { continue };
        if fs.read(attr.ino, 0, 9000).await.is_ok_and(|data| data.to_vec() == content(n)) {
            found.push(n);
        }
    }
    found
}

fn except(lost: &[u64]) -> Vec<u64> {
    (0..FILES).filter(|n| !lost.contains(n)).collect()
}

fn for_reading() -> MountOptions {
    MountOptions { read_only: true, ..quiet() }
}

/// Checks that the mount is refused and writes nothing, and that a mount for reading and a mount
/// after a repair show all files except `lost`. Returns the error.
async fn refused(rt: &Rt, drive: Rc<Emulator>, lost: &[u64]) -> Result<String> {
    let before = drive.counters();
    let error = Fs::mount(rt, drive.clone(), quiet()).await.err().expect("the mount is refused");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let after = drive.counters();
    assert_eq!((after.writes, after.management), (before.writes, before.management), "{error}");
    let text = error.to_string();
    assert!(text.contains("ro to read") && text.contains("fsck --repair"), "{text}");
    assert!(!text.contains('\n'), "{text}");
    let report = fsck(drive.clone(), &FsckOptions::default()).await?;
    assert!(!report.is_ok(), "fsck finds nothing: {text}");
    let fs = Fs::mount(rt, drive.clone(), for_reading()).await?;
    assert_eq!(whole(&fs).await, except(lost), "{:?}", fs.losses());
    assert!(!fs.losses().is_empty());
    fs.unmount().await?;
    let options = RepairOptions::default();
    let repair = Repair::plan(rt, drive.clone(), &options).await?;
    assert!(repair.is_useful() && repair.loses() != lost.is_empty(), "{:#?}", repair.actions);
    repair.apply(|_, _| {}).await?;
    sound(drive.clone()).await?;
    let fs = Fs::mount(rt, drive, quiet()).await?;
    assert_eq!(whole(&fs).await, except(lost));
    fs.unmount().await?;
    Ok(text)
}

#[test]
fn a_flipped_bit_in_a_sync_record_costs_its_own_file() {
    on_drive(|rt, drive| async move {
        let left = files_and_a_cut(&rt, &drive).await?;
        let records = records(&left, kind::SYNC).await;
        assert_eq!(records.len() as u64, FILES);
        for (addr, header) in &records {
            let n = header.sequence.get() - records[0].1.sequence.get();
            let text = refused(&rt, flipped(&rt, &left, &[*addr]).await, &[n]).await?;
            let named = format!("sync record {}", header.sequence);
            assert!(text.contains(&named), "{text}");
        }
        Ok(())
    });
}

/// Overwrites what was written in `zone` by as many blocks of `byte`.
async fn overwrite(drive: &Emulator, zone: ZoneId, byte: u8) {
    let geometry = drive.geometry().clone();
    let report = drive.report_now(zone, 1).unwrap()[0];
    let start = geometry.start(zone);
    let reset = Command::Manage { target: Target::Zone(start), action: Action::Reset };
    assert!(drive.submit(QueueId(0), Request::bare(reset)).await.status.is_ok());
    let per_block = furrow_fs::format::BLOCK as u64 / geometry.block_size.0;
    for block in 0..blocks_written(&report, &geometry) {
        let mut page = Page::zeroed();
        page.make_mut().fill(byte);
        let lba = furrow_zone::Lba(start.0 + u64::from(block) * per_block);
        let write = Command::Write { lba, blocks: BlockCount(per_block) };
        let data = Pages::from_iter([page]);
        assert!(drive.submit(QueueId(0), Request::with_data(write, data)).await.status.is_ok());
    }
}

/// The zones show that something was written: the log must not be taken to end where no record can
/// be read.
#[test]
fn a_sync_log_that_reads_as_zeros_or_noise_is_not_passed_over() {
    for byte in [0, 0x5a] {
        on_drive(move |rt, drive| async move {
            let drive = files_and_a_cut(&rt, &drive).await?;
            let of = |addr: BlockAddr| addr.zone(drive.geometry());
            let found = records(&drive, kind::SYNC).await;
            let zones: BTreeSet<ZoneId> = found.into_iter().map(|(addr, _)| of(addr)).collect();
            assert!(!zones.is_empty());
            for zone in zones {
                overwrite(&drive, zone, byte).await;
            }
            let all: Vec<u64> = (0..FILES).collect();
            let why = refused(&rt, Rc::new(drive), &all).await?;
            assert!(why.contains("sync record"), "{why}");
            Ok(())
        });
    }
}

#[test]
fn several_damaged_records_cost_their_own_files() {
    on_drive(|rt, drive| async move {
        let left = files_and_a_cut(&rt, &drive).await?;
        let records = records(&left, kind::SYNC).await;
        let first = records[0].1.sequence.get();
        let at = |n: u64| records.iter().find(|r| r.1.sequence.get() - first == n).unwrap().0;
        for lost in [[2, 3, 7], [0, 1, 2], [4, 9, 10]] {
            let hit = flipped(&rt, &left, &lost.map(at)).await;
            refused(&rt, hit, &lost).await?;
        }
        Ok(())
    });
}

#[test]
fn a_flipped_bit_in_a_checkpoint_or_superblock_costs_nothing() {
    on_drive(|rt, drive| async move {
        let left = files_and_a_cut(&rt, &drive).await?;
        let mut all = records(&left, kind::CHECKPOINT).await;
        // Each checkpoint is written twice.
        let twice = all.iter().filter(|(_, one)| {
            all.iter().filter(|(_, other)| other.checkpoint == one.checkpoint).count() == 2
        });
        assert_eq!(twice.count(), all.len());
        all.extend(records(&left, kind::SUPERBLOCK).await);
        for (addr, _) in all {
            let hit = flipped(&rt, &left, &[addr]).await;
            let fs = Fs::mount(&rt, hit.clone(), quiet()).await?;
            assert_eq!(whole(&fs).await, except(&[]));
            fs.unmount().await?;
        }
        Ok(())
    });
}

/// Both copies of the newest checkpoint are damaged: records written after it prove that
/// it existed.
#[test]
fn an_older_checkpoint_is_never_used_in_silence() {
    on_drive(|rt, drive| async move {
        let left = files_and_a_cut(&rt, &drive).await?;
        let all = records(&left, kind::CHECKPOINT).await;
        let newest = all.iter().map(|(_, header)| header.checkpoint.get()).max().unwrap();
        let both: Vec<BlockAddr> = all
            .iter()
            .filter(|(_, header)| header.checkpoint.get() == newest)
            .map(|(addr, _)| *addr)
            .collect();
        assert_eq!(both.len(), 2);
        let hit = flipped(&rt, &left, &both).await;
        let error = Fs::mount(&rt, hit.clone(), quiet()).await.err().expect("refused");
        assert!(error.to_string().contains("checkpoint"), "{error}");
        let report = fsck(hit.clone(), &FsckOptions::default()).await?;
        assert!(report.findings.iter().any(|f| f.structure == "checkpoint"), "{report:?}");
        // A mount for reading shows the state of the previous checkpoint, and reports the loss.
        let fs = Fs::mount(&rt, hit.clone(), for_reading()).await?;
        assert!(fs.losses().iter().any(|line| line.contains("checkpoint")), "{:?}", fs.losses());
        fs.unmount().await?;
        let repair = Repair::plan(&rt, hit.clone(), &RepairOptions::default()).await?;
        assert!(!repair.is_useful(), "{:?}", repair.verdict);
        let options = RepairOptions { older_checkpoint: true, ..RepairOptions::default() };
        let repair = Repair::plan(&rt, hit, &options).await?;
        assert!(repair.is_useful() && repair.loses(), "{:?}", repair.verdict);
        Ok(())
    });
}

/// A damaged block of a file costs only that file, even in a full zone, whose write pointer does
/// not show whether a block arrived.
#[test]
fn a_damaged_block_of_a_full_zone_costs_its_own_file() {
    on_drive(|rt, drive| async move {
        let left = files_and_a_cut(&rt, &drive).await?;
        let all = blocks(&left).await;
        for n in [0, 5, FILES - 1] {
            let data = &content(n)[..4096];
            let (addr, _) = all.iter().find(|(_, page)| page.bytes()[..] == *data).unwrap();
            let hit = flipped(&rt, &left, &[*addr]).await;
            let (zone, _) = addr.locate(hit.geometry()).unwrap();
            hit.inject(Fault::new(FaultKind::ZoneFull).at_zone(zone)).unwrap();
            assert_eq!(hit.report_now(zone, 1).unwrap()[0].state, ZoneState::Full);
            let fs = Fs::mount(&rt, hit, quiet()).await?;
            assert_eq!(whole(&fs).await, except(&[n]));
            let ino = fs.lookup(Ino::ROOT, &name(n)).await?.ino;
            assert_eq!(fs.read(ino, 0, 10).await.unwrap_err().kind(), ErrorKind::Corrupt);
            fs.unmount().await?;
        }
        Ok(())
    });
}

/// A node that a record names is damaged: the mount is refused, and all other files can be read.
#[test]
fn a_damaged_node_costs_its_own_file() {
    on_drive(|rt, drive| async move {
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
        for n in 0..FILES {
            let file = fs.create(Ino::ROOT, &name(n), &NewNode::file()).await?.ino;
            // Change much of the leaf, so that the leaf itself is written.
            for block in 0..120 {
                let bytes = [n as u8 + 1; 4096];
                fs.write(file, WriteData::copy(fs.pool(), (600 + 3 * block) * 4096, &bytes))
                    .await?;
            }
            fs.write(file, WriteData::copy(fs.pool(), 0, &content(n))).await?;
            fs.fsync(file, false).await?;
        }
        let left = drive.snapshot().power_cut(&Fates::nothing(1));
        drop(fs);
        let left = Emulator::from_snapshot(&rt, &left, Options::fast());
        let nodes = blocks(&left).await.into_iter().filter(|(_, page)| {
            page.bytes()[..4] == NODE_MAGIC.to_le_bytes() && page.bytes()[16] == 0
        });
        let nodes: Vec<BlockAddr> = nodes.map(|(addr, _)| addr).collect();
        assert!(nodes.len() as u64 >= FILES);
        for full in [false, true] {
            let hit = flipped(&rt, &left, &[nodes[4]]).await;
            let (zone, _) = nodes[4].locate(hit.geometry()).unwrap();
            if full {
                hit.inject(Fault::new(FaultKind::ZoneFull).at_zone(zone)).unwrap();
            }
            let error = Fs::mount(&rt, hit.clone(), quiet()).await.err().expect("refused");
            assert!(error.to_string().contains("node"), "{error}");
            let fs = Fs::mount(&rt, hit.clone(), for_reading()).await?;
            assert!(whole(&fs).await.len() as u64 >= FILES - 1, "{:?}", fs.losses());
            fs.unmount().await?;
            let repair = Repair::plan(&rt, hit.clone(), &RepairOptions::default()).await?;
            assert!(repair.is_useful() && repair.loses(), "{:?}", repair.verdict);
            repair.apply(|_, _| {}).await?;
            let fs = Fs::mount(&rt, hit, quiet()).await?;
            assert!(whole(&fs).await.len() as u64 >= FILES - 1);
            fs.unmount().await?;
        }
        Ok(())
    });
}

/// For each metadata zone that is offline: a mount for writing is refused with advice, a mount for
/// reading shows the remaining files, and fsck names the zone.
#[test]
fn a_zone_for_metadata_that_is_offline_hides_no_files() {
    on_drive(|rt, drive| async move {
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
        // Sync some of the files, so that the ring's second zone and the delta log are used.
        for n in 0..FILES {
            let file = fs.create(Ino::ROOT, &name(n), &NewNode::file()).await?.ino;
            fs.write(file, WriteData::copy(fs.pool(), 0, &content(n))).await?;
            if n < FILES / 2 {
                fs.sync().await?;
            } else {
                fs.fsync(file, false).await?;
            }
        }
        let left = drive.snapshot().power_cut(&Fates::nothing(1));
        drop(fs);
        let left = Emulator::from_snapshot(&rt, &left, Options::fast());
        let delta = records(&left, kind::DELTA).await;
        let sync = records(&left, kind::SYNC).await;
        let zone = |found: &[(BlockAddr, RecordHeader)]| {
            let newest = found.iter().max_by_key(|(_, header)| header.checkpoint.get()).unwrap();
            newest.0.locate(left.geometry()).unwrap().0
        };
        for (zone, least) in [(zone(&delta), FILES), (zone(&sync), FILES / 2)] {
            let hit = Rc::new(Emulator::from_snapshot(&rt, &left.snapshot(), Options::fast()));
            hit.inject(Fault::new(FaultKind::ZoneOffline).at_zone(zone)).unwrap();
            let error = Fs::mount(&rt, hit.clone(), quiet()).await.err().expect("refused");
            assert!(error.to_string().contains("mount it with ro"), "{zone}: {error}");
            let report = fsck(hit.clone(), &FsckOptions::default()).await?;
            assert!(!report.is_ok(), "{zone}");
            let note = format!("zone {zone} is offline");
            assert!(report.notes.iter().any(|n| n.starts_with(&note)), "{:?}", report.notes);
            let fs = Fs::mount(&rt, hit.clone(), for_reading()).await?;
            let found = whole(&fs).await;
            assert!(found.len() as u64 >= least, "{zone}: {found:?}: {:?}", fs.losses());
            let named = |line: &String| line.starts_with(&format!("zone {zone}, for "));
            assert!(fs.losses().iter().any(named), "{:?}", fs.losses());
            fs.unmount().await?;
            let repair = Repair::plan(&rt, hit, &RepairOptions::default()).await?;
            let Verdict::Hopeless(why) = repair.verdict else { panic!("{:?}", repair.verdict) };
            assert!(why.contains("copy the files out of a mount with ro"), "{why}");
        }
        Ok(())
    });
}

/// A block of the delta log that the drive cannot read is treated like a damaged one.
#[test]
fn an_unreadable_delta_log_hides_no_files_from_a_mount_for_reading() {
    on_drive(|rt, drive| async move {
        let left = Rc::new(files_and_a_cut(&rt, &drive).await?);
        let (addr, _) = records(&left, kind::DELTA).await[0];
        let lba = addr.lba(left.geometry());
        left.inject(Fault::new(FaultKind::ReadError).at_blocks(lba, BlockCount(1))).unwrap();
        let error = Fs::mount(&rt, left.clone(), quiet()).await.err().expect("refused");
        assert!(error.to_string().contains("mount it with ro"), "{error}");
        let fs = Fs::mount(&rt, left.clone(), for_reading()).await?;
        assert_eq!(whole(&fs).await, except(&[]), "{:?}", fs.losses());
        assert!(!fs.losses().is_empty());
        fs.unmount().await?;
        let repair = Repair::plan(&rt, left, &RepairOptions::default()).await?;
        assert!(repair.is_useful() && !repair.loses(), "{:?}", repair.verdict);
        Ok(())
    });
}

static SAID: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

#[test]
fn a_mount_says_that_a_copy_of_the_superblock_is_damaged() {
    on_drive(|rt, drive| async move {
        let left = files_and_a_cut(&rt, &drive).await?;
        let (addr, _) = records(&left, kind::SUPERBLOCK).await[0];
        let notice = |line: &str| {
            SAID.fetch_add(usize::from(line.contains("superblock in zone")), Relaxed);
        };
        for (drive, said) in [(Rc::new(left.clone()), 0), (flipped(&rt, &left, &[addr]).await, 1)] {
            let fs = Fs::mount(&rt, drive, MountOptions { notice, ..for_reading() }).await?;
            fs.unmount().await?;
            assert_eq!(SAID.swap(0, Relaxed), said);
        }
        Ok(())
    });
}

/// Whichever writes fail, and however often the file system is mounted during that time: the ring
/// keeps its last whole checkpoint, and all files are there once writes succeed again.
#[test]
fn mounts_whose_writes_all_fail_destroy_nothing() {
    on_drive(|rt, drive| async move {
        let left = Rc::new(files_and_a_cut(&rt, &drive).await?);
        for round in 0..24u64 {
            let fault =
                Fault::new([FaultKind::WriteError, FaultKind::WriteTorn][round as usize % 2]);
            left.inject(fault.when(When::Every(1 + round / 4))).unwrap();
            if let Ok(fs) = Fs::mount(&rt, left.clone(), quiet()).await {
                let _ = fs.unmount().await;
            }
            left.clear_faults(None).unwrap();
            let fs = Fs::mount(&rt, left.clone(), for_reading()).await?;
            assert_eq!(whole(&fs).await, except(&[]), "round {round}");
            assert!(fs.losses().is_empty(), "round {round}: {:?}", fs.losses());
            fs.unmount().await?;
        }
        let fs = Fs::mount(&rt, left.clone(), quiet()).await?;
        assert_eq!(whole(&fs).await, except(&[]));
        fs.unmount().await?;
        sound(left).await
    });
}
