//! Regression tests: each provokes a defect that the engine once had.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, SMALL};
use furrow_emu::{Emulator, Fates, Options};
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, SetAttr, WriteData, ZoneUse};
use furrow_rt::{Config, Nanos, Rt};
use furrow_zone::{Action, Command, Result, Target, ZonedDevice};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

/// Number of payload blocks in a superzone of a [`SMALL`] drive.
const PER: usize = 190;

fn on_drive<F: Future<Output = Result<()>> + 'static>(
    spec: &str,
    test: impl FnOnce(Rt, Emulator) -> F,
) {
    let (rt, made) = (Rt::new(Config::shuffled(7)), (Options::simulated(), MkfsOptions::default()));
    common::on_drive(rt, spec, made, test);
}

/// Mounts the state after a power cut, on a separate executor.
fn reopen<T: 'static, F: Future<Output = Result<T>> + 'static>(
    snapshot: &furrow_emu::Snapshot,
    look: impl FnOnce(Fs) -> F + 'static,
) -> Result<T> {
    let rt = Rt::new(Config::shuffled(3));
    let drive = Emulator::from_snapshot(&rt, snapshot, Options::simulated());
    let drive: Rc<dyn ZonedDevice> = Rc::new(drive);
    let on = rt.clone();
    let result = rt.block_on(async move {
        let fs = Fs::mount(&on, drive, quiet(65_536)).await?;
        look(fs).await
    });
    rt.clear();
    result
}

fn quiet(cache_pages: usize) -> MountOptions {
    MountOptions { commit_interval: 100_000 * Nanos::SECOND, cache_pages, ..Default::default() }
}

async fn write(fs: &Fs, ino: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
    fs.write(ino, WriteData::copy(fs.pool(), offset, bytes)).await
}

async fn mount(rt: &Rt, drive: &Emulator, cache: usize) -> Result<Fs> {
    Fs::mount(rt, Rc::new(drive.clone()), quiet(cache)).await
}

async fn file(fs: &Fs, name: &str) -> Result<Ino> {
    Ok(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino)
}

/// Makes a file that is written back because of cache pressure, never flushed, and then removed.
async fn come_and_go(fs: &Fs) -> Result<()> {
    let temp = file(fs, "temp").await?;
    for i in 0..16 {
        write(fs, temp, i * 64 * 4096, &vec![5; 64 * 4096]).await?;
    }
    fs.unlink(Ino::ROOT, b"temp").await
}

/// Overwrites and fsyncs `kept` after the snapshot of the checkpoint `syncing`. Crashes as soon as
/// the checkpoint is durable, and mounts again.
async fn crash_after_an_fsync_behind_a_cut(
    (rt, drive): (&Rt, &Emulator),
    fs: Fs,
    kept: Ino,
    syncing: impl Future<Output = Result<()>>,
    look: impl AsyncFnOnce(&Fs) -> Result<()>,
) -> Result<Fs> {
    write(&fs, kept, 0, b"new").await?;
    fs.fsync(kept, false).await?;
    syncing.await?;
    look(&fs).await?;
    drop(fs);
    let fs = mount(rt, drive, 512).await?;
    assert_eq!(fs.read(kept, 0, 3).await?.to_vec(), b"new");
    Ok(fs)
}

#[test]
fn a_stream_does_not_queue_behind_a_superzone_that_is_now_anothers() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive, 65_536).await?;
        // The cold data stream fills its superzone exactly and then pauses.
        let cold = file(&fs, "a.jpg").await?;
        write(&fs, cold, 0, &vec![1; PER * 4096]).await?;
        fs.sync().await?;
        let map = fs.zone_map().await?;
        let at = map.iter().position(|z| z.usage == ZoneUse::Data(2)).unwrap();
        assert_eq!(map[at].written, 193, "the superzone is full");
        fs.unlink(Ino::ROOT, b"a.jpg").await?;
        fs.sync().await?;
        assert_eq!(fs.zone_map().await?[at].usage, ZoneUse::Free);
        // The warm data stream reaches the same superzone.
        let warm = file(&fs, "warm").await?;
        let mut turns = 0;
        while fs.zone_map().await?[at].usage == ZoneUse::Free {
            write(&fs, warm, 0, &vec![2; 100 * 4096]).await?;
            fs.sync().await?;
            turns += 1;
            assert!(turns < 2000);
        }
        assert_eq!(fs.zone_map().await?[at].usage, ZoneUse::Data(1));
        // The cold stream continues writing.
        let cold = file(&fs, "b.jpg").await?;
        write(&fs, cold, 0, &[3; 4096]).await?;
        write(&fs, warm, 0, &[4; 4096]).await?;
        fs.sync().await?;
        fs.unmount().await
    });
}

#[test]
fn replay_takes_no_node_id_that_a_record_names() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive, 65_536).await?;
        let long = "n".repeat(240);
        let mut names = Vec::new();
        let mut raised = false;
        for i in 0..2500 {
            fs.sync().await?;
            // Make an inode, and a leaf whose id no name operation mentions.
            let big = file(&fs, &format!("big{i}")).await?;
            write(&fs, big, 450 * 4096, &[7; 4096]).await?;
            let before = fs.statfs().inodes_free;
            let name = format!("{long}{i}");
            file(&fs, &name).await?;
            names.push(name);
            if before - fs.statfs().inodes_free > 1 {
                fs.fsync(big, false).await?;
                raised = true;
                break;
            }
        }
        assert!(raised, "the directory needed a node");
        drop(fs);
        let fs = mount(&rt, &drive, 65_536).await?;
        for name in &names {
            fs.lookup(Ino::ROOT, name.as_bytes()).await?;
        }
        fs.unmount().await
    });
}

#[test]
fn no_sync_record_is_written_to_a_half_about_to_be_reset() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive, 65_536).await?;
        let map = fs.zone_map().await?;
        let sync: Vec<u32> =
            (0..96u32).filter(|z| map[*z as usize].usage == ZoneUse::SyncLog).collect();
        let reset = Rc::new(Cell::new(0u32));
        let seen = reset.clone();
        let starts: Vec<_> =
            sync.iter().map(|z| drive.geometry().start(furrow_zone::ZoneId(*z))).collect();
        drive.set_observer(Rc::new(move |_, info| {
            if let Command::Manage { target: Target::Zone(lba), action: Action::Reset } =
                info.command
                && starts.contains(&lba)
            {
                seen.set(seen.get() + 40);
            }
        }));
        let acked: Rc<RefCell<BTreeMap<Ino, u64>>> = Rc::default();
        type Shot = (furrow_emu::Snapshot, BTreeMap<Ino, u64>);
        let shots: Rc<RefCell<Vec<Shot>>> = Rc::default();
        let mut tasks: Vec<furrow_rt::JoinHandle<Result<()>>> = Vec::new();
        for t in 0..2u64 {
            let ino = file(&fs, &format!("f{t}")).await?;
            let (fs, acked, shots, drive, reset) =
                (fs.clone(), acked.clone(), shots.clone(), drive.clone(), reset.clone());
            let on = rt.clone();
            tasks.push(rt.spawn(async move {
                let mut rng = furrow_rt::Rng::new(t);
                for round in 1..2500u64 {
                    for _ in 0..rng.below(4) {
                        on.yield_now().await;
                    }
                    write(&fs, ino, 0, &round.to_le_bytes()).await?;
                    fs.fsync(ino, false).await?;
                    acked.borrow_mut().insert(ino, round);
                    if reset.get() > 0 {
                        reset.set(reset.get() - 1);
                        shots.borrow_mut().push((drive.snapshot(), acked.borrow().clone()));
                    }
                }
                Ok(())
            }));
        }
        // Fsync at the moment when a checkpoint is durable but has not released anything yet.
        let over = Rc::new(Cell::new(false));
        for t in 0..1 {
            let ino = file(&fs, &format!("s{t}")).await?;
            let (fs, acked, shots, drive, over, on) =
                (fs.clone(), acked.clone(), shots.clone(), drive.clone(), over.clone(), rt.clone());
            rt.spawn_detached(async move {
                let mut last = 0;
                let mut round = 0u64;
                while !over.get() {
                    let now = fs.counters().checkpoints;
                    if now == last {
                        on.yield_now().await;
                        continue;
                    }
                    last = now;
                    round += 1;
                    write(&fs, ino, 0, &round.to_le_bytes()).await.unwrap();
                    fs.fsync(ino, false).await.unwrap();
                    acked.borrow_mut().insert(ino, round);
                    for _ in 0..30 {
                        on.yield_now().await;
                    }
                    shots.borrow_mut().push((drive.snapshot(), acked.borrow().clone()));
                }
            });
        }
        for task in tasks {
            task.await?;
        }
        over.set(true);
        drive.clear_observer();
        println!("{} snapshots, {:?}", shots.borrow().len(), fs.counters().checkpoints);
        assert!(!shots.borrow().is_empty());
        for (shot, acked) in shots.borrow().iter() {
            let after = shot.power_cut(&Fates::nothing(1));
            let acked = acked.clone();
            reopen(&after, |fs| async move {
                for (ino, round) in acked {
                    let bytes = fs.read(ino, 0, 8).await?.to_vec();
                    let found = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
                    assert!(found >= round, "{ino}: {found}, fsynced {round}");
                }
                Ok(())
            })?;
        }
        fs.unmount().await
    });
}

#[test]
fn a_record_behind_a_cut_survives_the_release_of_what_it_depended_on() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive, 512).await?;
        let kept = file(&fs, "kept").await?;
        write(&fs, kept, 0, b"old").await?;
        fs.sync().await?;
        come_and_go(&fs).await?;
        let resets = fs.counters().zone_resets;
        let syncing = rt.spawn({
            let fs = fs.clone();
            async move { fs.sync().await }
        });
        rt.yield_now().await;
        let released = async |fs: &Fs| {
            assert!(fs.counters().zone_resets > resets, "something was released");
            Ok(())
        };
        crash_after_an_fsync_behind_a_cut((&rt, &drive), fs, kept, syncing, released)
            .await?
            .unmount()
            .await
    });
}

#[test]
fn a_write_that_fills_a_small_cache_keeps_what_it_does_not_cover() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive, 256).await?;
        let ino = file(&fs, "f").await?;
        let all = 440 * 4096;
        write(&fs, ino, 0, &vec![1; all]).await?;
        fs.sync().await?;
        drop(fs);
        let fs = mount(&rt, &drive, 256).await?;
        let end = all - 2048;
        write(&fs, ino, 2048, &vec![2; end - 2048]).await?;
        fs.sync().await?;
        let tail = fs.read(ino, end as u64, 2048).await?.to_vec();
        assert!(tail == vec![1; 2048], "the tail of the last block was lost");
        fs.unmount().await
    });
}

#[test]
fn a_write_over_two_leaves_with_a_small_cache() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive, 256).await?;
        let ino = file(&fs, "f").await?;
        write(&fs, ino, 0, &vec![1; 1000 * 4096]).await?;
        write(&fs, ino, 1000 * 4096, &vec![1; 200 * 4096]).await?;
        fs.sync().await?;
        drop(fs);
        let fs = mount(&rt, &drive, 256).await?;
        write(&fs, ino, 0, &vec![2; 1000 * 4096]).await?;
        fs.sync().await?;
        fs.unmount().await
    });
}

#[test]
fn a_read_larger_than_the_cache_ends() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive, 256).await?;
        let ino = file(&fs, "f").await?;
        write(&fs, ino, 0, &vec![1; 400 * 4096]).await?;
        fs.sync().await?;
        let reads = Cell::new(0);
        drive.set_observer(Rc::new(move |_, info| {
            if let Command::Read { .. } = info.command {
                reads.set(reads.get() + 1);
                assert!(reads.get() < 20_000, "a read of 400 blocks never ends");
            }
        }));
        assert_eq!(fs.read(ino, 0, 400 * 4096).await?.to_vec(), vec![1; 400 * 4096]);
        drive.clear_observer();
        fs.unmount().await
    });
}

#[test]
fn what_a_truncation_cut_off_does_not_come_back() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive, 256).await?;
        let ino = file(&fs, "f").await?;
        let other = file(&fs, "other").await?;
        write(&fs, ino, 0, &[1; 8192]).await?;
        fs.sync().await?;
        write(&fs, other, 0, &vec![1; 200 * 4096]).await?;
        let cut = SetAttr { size: Some(100), ..SetAttr::default() };
        // Both writers are throttled; the write is served first.
        let mut writer = Box::pin(write(&fs, ino, 1 << 20, &[9; 4096]));
        let mut cutter = Box::pin(fs.setattr(ino, cut));
        let (mut written, mut done) = (false, false);
        std::future::poll_fn(|cx| {
            if !written && let Poll::Ready(result) = writer.as_mut().poll(cx) {
                result.unwrap();
                written = true;
            }
            if !done && let Poll::Ready(result) = cutter.as_mut().poll(cx) {
                result.unwrap();
                done = true;
            }
            if written && done { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        drop((writer, cutter));
        println!("size {}", fs.getattr(ino).await?.size);
        if fs.getattr(ino).await?.size == 100 {
            let grow = SetAttr { size: Some(2 << 20), ..SetAttr::default() };
            fs.setattr(ino, grow).await?;
            let read = fs.read(ino, 1 << 20, 4096).await?.to_vec();
            assert!(read == vec![0; 4096], "cut off, and back");
        }
        fs.unmount().await
    });
}

#[test]
fn fsync_goes_on_after_a_crash_that_left_the_sync_half_full() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive, 65_536).await?;
        let map = fs.zone_map().await?;
        let second = map.iter().rposition(|z| z.usage == ZoneUse::SyncLog).unwrap();
        let start = drive.geometry().start(furrow_zone::ZoneId(second as u32));
        let shot: Rc<RefCell<Option<furrow_emu::Snapshot>>> = Rc::default();
        let put = shot.clone();
        drive.set_observer(Rc::new(move |drive, info| {
            if matches!(info.command, Command::Write { lba, .. } if lba == start) {
                put.borrow_mut().get_or_insert_with(|| drive.snapshot());
            }
        }));
        let ino = file(&fs, "f").await?;
        while shot.borrow().is_none() {
            write(&fs, ino, 0, b"x").await?;
            fs.fsync(ino, false).await?;
        }
        drive.clear_observer();
        let after = shot.borrow().as_ref().unwrap().power_cut(&Fates::nothing(1));
        reopen(&after, move |fs| async move {
            for _ in 0..3 {
                write(&fs, ino, 0, b"y").await?;
                fs.fsync(ino, false).await?;
            }
            fs.unmount().await
        })?;
        fs.unmount().await
    });
}

#[test]
fn recovery_stays_within_six_active_zones() {
    let spec = "zones=64,zone-size=1MiB,zone-capacity=772KiB,max-active=6,max-open=6,channels=1";
    on_drive(spec, |rt, drive| async move {
        let fs = mount(&rt, &drive, 65_536).await?;
        let first =
            fs.zone_map().await?.iter().rposition(|z| z.usage == ZoneUse::SyncLog).unwrap() + 1;
        // Some superzones hold old files; the superzones written after them do not.
        for i in 0..40 {
            let ino = file(&fs, &format!("f{i}")).await?;
            write(&fs, ino, 0, &vec![2; PER * 4096]).await?;
            fs.sync().await?;
        }
        let temp = file(&fs, "temp").await?;
        for _ in 0..220 {
            write(&fs, temp, 0, &vec![2; PER * 4096]).await?;
            fs.sync().await?;
        }
        let geometry = drive.geometry().clone();
        let opened = Rc::new(Cell::new(false));
        let shots: Rc<RefCell<Vec<furrow_emu::Snapshot>>> = Rc::default();
        let put = shots.clone();
        drive.set_observer(Rc::new(move |drive, info| {
            if opened.take() {
                put.borrow_mut().push(drive.snapshot());
            }
            if let Command::Write { lba, .. } = info.command {
                let start = |z: u32| geometry.start(furrow_zone::ZoneId(z));
                opened.set((first as u32..64).any(|z| start(z) == lba));
            }
        }));
        for i in 0..19 {
            // This checkpoint releases an old superzone, which is the next one to be taken.
            for old in [2 * i, 2 * i + 1] {
                fs.unlink(Ino::ROOT, format!("f{old}").as_bytes()).await?;
            }
            fs.sync().await?;
            // Make a record that will be replayed.
            let ino = file(&fs, &format!("{i}")).await?;
            fs.fsync(ino, false).await?;
            // The next checkpoint's snapshot takes that superzone; then the power fails.
            write(&fs, temp, 0, &vec![3; 500 * 4096]).await?;
            fs.sync().await?;
        }
        drive.clear_observer();
        println!("{} snapshots", shots.borrow().len());
        let mut failed = Vec::new();
        for (n, shot) in shots.borrow().iter().enumerate() {
            let after = shot.power_cut(&Fates::nothing(1));
            if let Err(error) = reopen(&after, |fs| async move { fs.unmount().await }) {
                failed.push(format!("{n}: {error}"));
            }
        }
        assert!(failed.is_empty(), "{failed:#?}");
        fs.unmount().await
    });
}

#[test]
fn a_sync_whose_caller_went_away_loses_nothing() {
    on_drive(SMALL, |rt, drive| async move {
        let fs = mount(&rt, &drive, 65_536).await?;
        let ino = file(&fs, "f").await?;
        write(&fs, ino, 0, b"content").await?;
        let mut sync = Box::pin(fs.sync());
        std::future::poll_fn(|cx| {
            let _ = sync.as_mut().poll(cx);
            Poll::Ready(())
        })
        .await;
        drop(sync);
        file(&fs, "g").await?;
        fs.unmount().await?;
        let fs = mount(&rt, &drive, 65_536).await?;
        let found = fs.lookup(Ino::ROOT, b"f").await?;
        assert_eq!(fs.read(found.ino, 0, 7).await?.to_vec(), b"content");
        fs.unmount().await
    });
}

#[test]
fn what_was_promised_on_a_full_drive_finds_its_place() {
    for seed in 0..8u64 {
        on_drive(SMALL, move |rt, drive| async move {
            let fs = mount(&rt, &drive, 4096).await?;
            let mut rng = furrow_rt::Rng::new(seed);
            let mut dirs = vec![Ino::ROOT];
            for i in 0..4 {
                let name = format!("d{i}");
                dirs.push(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::directory()).await?.ino);
            }
            let mut files: Vec<(Ino, String, Ino)> = Vec::new();
            let (mut n, mut full) = (0u64, 0);
            let fatal = |e: furrow_zone::Error| {
                let text = e.to_string();
                assert!(!text.contains("promised"), "seed {seed}: {text}");
                assert!(!text.contains("read-only"), "seed {seed}: {text}");
            };
            // The drive is full after about four hundred rounds.
            for _ in 0..2500 {
                let dir = dirs[rng.below(dirs.len() as u64) as usize];
                let pick = rng.below(files.len().max(1) as u64) as usize;
                match rng.below(if full > 20 { 12 } else { 8 }) {
                    0..=4 => {
                        n += 1;
                        let end = ["", ".jpg", ".txt"][rng.below(3) as usize];
                        let name = format!("{n}{end}");
                        match fs.create(dir, name.as_bytes(), &NewNode::file()).await {
                            Ok(made) => {
                                let len = 1 + rng.below(600) as usize * 1024;
                                if let Err(e) = write(&fs, made.ino, 0, &vec![1; len]).await {
                                    full += 1;
                                    fatal(e);
                                }
                                files.push((dir, name, made.ino));
                            }
                            Err(e) => {
                                full += 1;
                                fatal(e);
                            }
                        }
                    }
                    5 if !files.is_empty() => {
                        fs.fsync(files[pick].2, false).await.unwrap_or_else(fatal);
                    }
                    6 => fs.sync().await.unwrap_or_else(fatal),
                    7 | 8 if !files.is_empty() => {
                        let cut = SetAttr { size: Some(rng.below(9000)), ..SetAttr::default() };
                        fs.setattr(files[pick].2, cut).await.map(|_| ()).unwrap_or_else(fatal);
                    }
                    _ if !files.is_empty() => {
                        let (dir, name, _) = files[pick].clone();
                        match fs.unlink(dir, name.as_bytes()).await {
                            Ok(()) => drop(files.swap_remove(pick)),
                            Err(e) => fatal(e),
                        }
                    }
                    _ => {}
                }
                if full > 60 {
                    full = 0;
                }
            }
            println!("seed {seed}: {} files", files.len());
            fs.unmount().await?;
            mount(&rt, &drive, 4096).await?.unmount().await
        });
    }
}

#[test]
fn a_record_behind_a_cut_does_not_bring_back_what_the_checkpoint_released() {
    let spec = "zones=64,zone-size=1MiB,zone-capacity=772KiB,max-active=6,max-open=6,channels=1";
    on_drive(spec, |rt, drive| async move {
        let fs = mount(&rt, &drive, 512).await?;
        let kept = file(&fs, "kept").await?;
        for _ in 0..150 {
            write(&fs, kept, 0, b"old").await?;
            fs.sync().await?;
        }
        come_and_go(&fs).await?;
        // All earlier writes are durable after this fsync, so no later record depends on them.
        fs.fsync(kept, false).await?;
        write(&fs, kept, 0, b"mid").await?;
        fs.fsync(kept, false).await?;
        let syncing = fs.clone();
        let mut syncing = Box::pin(async move { syncing.sync().await });
        std::future::poll_fn(|cx| {
            assert!(syncing.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        let show = async |fs: &Fs| {
            let free = fs.zone_map().await?.iter().filter(|z| z.usage == ZoneUse::Free).count();
            println!("{free} free before");
            Ok(())
        };
        let at = (&rt, &drive);
        let fs = crash_after_an_fsync_behind_a_cut(at, fs, kept, syncing, show).await?;
        let padding = fs.counters().padding_bytes / 4096;
        assert!(padding < 193, "recovery padded {padding} blocks");
        fs.unmount().await
    });
}
