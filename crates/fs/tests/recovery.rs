//! Tests of recovery: a mount after a crash must end in every case, within the available space, and
//! in a time that the length of the sync log bounds.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, quiet, sound};
use furrow_emu::{Emulator, Fates, Fault, FaultKind, Options, Snapshot, When};
use furrow_fs::{
    CleanOptions, Fs, FsckOptions, GcOptions, Ino, MkfsOptions, MountOptions, NewNode, SetAttr,
    WriteData,
};
use furrow_policy::{FsVariant, SyncRecord};
use furrow_rt::{Config, Nanos, Rt};
use furrow_zone::{Command, ErrorKind, Result};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

fn on_drive<F: Future<Output = Result<()>> + 'static>(
    spec: &str,
    test: impl FnOnce(Rt, Emulator) -> F,
) {
    let (rt, made) = (Rt::new(Config::simulated(7)), (Options::fast(), MkfsOptions::default()));
    common::on_drive(rt, spec, made, test);
}

async fn write(fs: &Fs, ino: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
    fs.write(ino, WriteData::copy(fs.pool(), offset, bytes)).await
}

async fn file(fs: &Fs, name: &str) -> Result<Ino> {
    Ok(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino)
}

/// The drive after a power cut now.
fn cut(rt: &Rt, drive: &Emulator) -> Rc<Emulator> {
    let left = drive.snapshot().power_cut(&Fates::nothing(1));
    Rc::new(Emulator::from_snapshot(rt, &left, Options::fast()))
}

/// Removals are replayed and freed one by one, as in the original run. If their nodes stayed dirty
/// until the end of the replay, a full drive would lack the space for them.
#[test]
fn many_removals_are_replayed_on_a_full_drive() {
    let spec = "zones=64,zone-size=1MiB,max-active=14,channels=1";
    on_drive(spec, |rt, drive| async move {
        let options = MountOptions { cache_pages: 1024, ..quiet() };
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), options.clone()).await?;
        let other = file(&fs, "other").await?;
        const FILES: u64 = 1500;
        for n in 0..FILES {
            // A block that the inode's pointers do not reach adds a node.
            let far = file(&fs, &format!("far {n}")).await?;
            write(&fs, far, 600 * 4096, b"far").await?;
        }
        let filler = file(&fs, "filler").await?;
        let mut at = 0;
        let refused = loop {
            match write(&fs, filler, at, &[7; 16 * 4096]).await {
                Ok(()) => at += 16 * 4096,
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        fs.sync().await?;
        for n in 0..FILES {
            fs.unlink(Ino::ROOT, format!("far {n}").as_bytes()).await?;
        }
        fs.fsync(other, false).await?;
        let left = cut(&rt, &drive);
        drop(fs);
        let fs = Fs::mount(&rt, left.clone(), options).await?;
        let gone = fs.lookup(Ino::ROOT, b"far 0").await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
        assert_eq!(fs.getattr(filler).await?.size, at);
        fs.unmount().await?;
        sound(left).await
    });
}

/// The blocks that a checkpoint has written are garbage if the power fails before the checkpoint is
/// durable, and recovery must write all of them again. Even a full drive must have space for that,
/// no matter how much background cleaning has done.
#[test]
fn what_a_checkpoint_had_written_can_be_written_again_on_a_full_drive() {
    [false, true].into_iter().for_each(checkpoints_on_a_full_drive);
}

fn checkpoints_on_a_full_drive(background: bool) {
    const DIRECTORIES: u64 = 800;
    let spec = "zones=128,zone-size=256KiB,max-active=14,channels=1";
    on_drive(spec, move |rt, drive| async move {
        let gc = GcOptions { background, ..GcOptions::default() };
        let options = MountOptions { gc, ..quiet() };
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), options).await?;
        let mut directories = Vec::new();
        for n in 0..DIRECTORIES {
            let name = format!("d{n}");
            let made = fs.create(Ino::ROOT, name.as_bytes(), &NewNode::directory()).await?.ino;
            directories.push(made);
        }
        let filler = file(&fs, "filler").await?;
        let mut at = 0;
        while write(&fs, filler, at, &[7; 4 * 4096]).await.is_ok() {
            at += 4 * 4096;
        }
        fs.sync().await?;
        let all = CleanOptions { superzones: 100, garbage_percent: 5, ..CleanOptions::default() };
        fs.clean(all).await?;
        let shots: Rc<RefCell<Vec<Snapshot>>> = Rc::default();
        let (put, writes) = (shots.clone(), Cell::new(0));
        drive.set_observer(Rc::new(move |drive, info| {
            if matches!(info.command, Command::Write { .. }) {
                writes.set(writes.get() + 1);
                if writes.get() % 3 == 0 {
                    put.borrow_mut().push(drive.snapshot());
                }
            }
        }));
        // These changes add no blocks, but each record leaves a dirty inode.
        for (n, some) in directories.chunks(40).cycle().take(40).enumerate() {
            let mut synced = Vec::new();
            for dir in some {
                let mode = Some(0o700 + n as u16 % 8);
                fs.setattr(*dir, SetAttr { mode, ..SetAttr::default() }).await?;
                let (fs, dir) = (fs.clone(), *dir);
                synced.push(rt.spawn(async move { fs.fsync(dir, false).await }));
            }
            for done in synced {
                done.await?;
            }
        }
        fs.sync().await?;
        drive.clear_observer();
        drop(fs);
        let shots = std::mem::take(&mut *shots.borrow_mut());
        println!("{} power cuts", shots.len());
        assert!(shots.len() > 20);
        for (n, shot) in shots.iter().enumerate() {
            let left = shot.power_cut(&Fates::nothing(n as u64));
            let left = Rc::new(Emulator::from_snapshot(&rt, &left, Options::fast()));
            let fs = Fs::mount(&rt, left.clone(), quiet()).await.map_err(|e| e.at(n))?;
            fs.unmount().await.map_err(|e| e.at(n))?;
        }
        Ok(())
    });
}

/// Files that were made without a name and closed again leave only their creation in the sync log:
/// a replay may find more of them than may be open at the same time.
#[test]
fn many_files_without_a_name_are_replayed() {
    let spec = "zones=2400,zone-size=80KiB,max-active=40,channels=1";
    let made = MkfsOptions {
        width: Some(1),
        sync_zones: Some(12),
        segment_blocks: Some(10),
        ..MkfsOptions::default()
    };
    let rt = Rt::new(Config::simulated(7));
    common::on_drive(rt, spec, (Options::fast(), made), |rt, drive| async move {
        // Node changes in records would cause a checkpoint here, because superzones are so small.
        let variant = FsVariant { record: SyncRecord::AtOnce, ..FsVariant::default() };
        let options = MountOptions { variant, ..quiet() };
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), options).await?;
        let other = file(&fs, "other").await?;
        let mut open = Vec::new();
        while let Ok(attr) = fs.create_unnamed(Ino::ROOT, &NewNode::file()).await {
            open.push(attr.ino);
        }
        let most = open.len();
        for ino in open {
            fs.release(ino).await?;
        }
        fs.sync().await?;
        let before = fs.counters().checkpoints;
        let mut kept = Ino::ROOT;
        for n in 0..most + 100 {
            let unnamed = fs.create_unnamed(Ino::ROOT, &NewNode::file()).await?.ino;
            if n % 500 == 50 {
                write(&fs, unnamed, 0, b"unnamed").await?;
                fs.fsync(unnamed, false).await?;
            }
            if n == 2000 {
                write(&fs, unnamed, 0, b"kept").await?;
                fs.link(unnamed, Ino::ROOT, b"kept").await?;
                kept = unnamed;
            }
            fs.release(unnamed).await?;
        }
        fs.fsync(kept, false).await?;
        fs.fsync(other, false).await?;
        assert_eq!(fs.counters().checkpoints, before, "all of it is in the sync log");
        let left = cut(&rt, &drive);
        drop(fs);
        let fs = Fs::mount(&rt, left.clone(), quiet()).await?;
        assert_eq!(fs.lookup(Ino::ROOT, b"kept").await?.ino, kept);
        assert_eq!(fs.read(kept, 0, 10).await?.to_vec(), b"kept");
        fs.unmount().await?;
        sound(left).await
    });
}

/// A mount reads many blocks of the sync log, and many of the nodes in its records, in parallel. On
/// a drive that takes 100 µs for each command, reading them one by one would take 100 µs for each
/// block of the log and for each old and new node.
#[test]
fn a_long_sync_log_is_replayed_in_little_time() {
    let spec = "zones=96,zone-size=32MiB,max-active=14,channels=1";
    on_drive(spec, |rt, drive| async move {
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
        let mut inos = Vec::new();
        for n in 0..200 {
            inos.push(file(&fs, &n.to_string()).await?);
        }
        fs.sync().await?;
        let before = fs.counters().checkpoints;
        for n in 0..1_600u64 {
            let ino = inos[n as usize % inos.len()];
            write(&fs, ino, n * 4096, &n.to_le_bytes()).await?;
            fs.fsync(ino, false).await?;
        }
        assert_eq!(fs.counters().checkpoints, before, "all of it is in the sync log");
        let left = cut(&rt, &drive);
        drop(fs);
        let slow = FaultKind::Slow { polls: 0, nanoseconds: 100 * Nanos::MICRO };
        left.inject(Fault::new(slow).when(When::Always)).unwrap();
        let (began, reads) = (rt.now(), left.counters().reads);
        let fs = Fs::mount(&rt, left.clone(), quiet()).await?;
        let took = rt.now().since(began);
        let reads = left.counters().reads - reads;
        println!("{} ms, {reads} reads", took / Nanos::MILLI);
        // Reading 1,600 records and 3,200 nodes one by one would take half a second.
        assert!(took < 100 * Nanos::MILLI, "{} ms, {reads} reads", took / Nanos::MILLI);
        for n in 1_400..1_600u64 {
            let ino = inos[n as usize % inos.len()];
            assert_eq!(fs.read(ino, n * 4096, 8).await?.to_vec(), n.to_le_bytes());
        }
        Ok(())
    });
}

/// Whenever the power fails, either the old label or the new one counts: for a reader of the drive,
/// for a check, and for the mount, which keeps it.
#[test]
fn a_label_that_is_changed_is_the_old_one_or_the_new_one() {
    on_drive("zones=64,zone-size=1MiB,max-active=14,channels=1", |rt, drive| async move {
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
        assert_eq!(fs.identity().0, "");
        let ino = file(&fs, "file").await?;
        write(&fs, ino, 0, b"content").await?;
        fs.fsync(ino, false).await?;
        let shots: Rc<RefCell<Vec<Snapshot>>> = Rc::default();
        let put = shots.clone();
        drive.set_observer(Rc::new(move |drive, _| put.borrow_mut().push(drive.snapshot())));
        fs.set_label("new").await?;
        let during = shots.borrow().len();
        fs.sync().await?;
        fs.unmount().await?;
        drive.clear_observer();
        let shots = std::mem::take(&mut *shots.borrow_mut());
        let mut labels = Vec::new();
        for (n, shot) in shots.iter().enumerate() {
            let left = shot.power_cut(&Fates::nothing(n as u64));
            let left = Rc::new(Emulator::from_snapshot(&rt, &left, Options::fast()));
            let (_, label) = furrow_fs::identify(&*left).await?.unwrap();
            assert!(["", "new"].contains(&&*label), "{label}");
            let report = furrow_fs::fsck(left.clone(), &FsckOptions::default()).await?;
            assert!(report.findings.is_empty(), "cut {n}: {:?}", report.findings);
            assert_eq!(report.label, label, "cut {n}");
            let fs = Fs::mount(&rt, left.clone(), quiet()).await.map_err(|e| e.at(n))?;
            assert_eq!(fs.identity().0, label, "cut {n}");
            let found = fs.lookup(Ino::ROOT, b"file").await?.ino;
            assert_eq!(fs.read(found, 0, 7).await?.to_vec(), b"content");
            fs.unmount().await.map_err(|e| e.at(n))?;
            sound(left.clone()).await?;
            assert_eq!(furrow_fs::identify(&*left).await?.unwrap().1, label, "cut {n}");
            labels.push(label);
        }
        assert!(labels[0].is_empty() && labels[during..].iter().all(|label| label == "new"));
        println!("{} power cuts, {during} during the change", labels.len());
        let fs = Fs::mount(&rt, Rc::new(drive.clone()), quiet()).await?;
        for bad in ["x".repeat(64), "a\0b".to_owned()] {
            assert_eq!(fs.set_label(&bad).await.unwrap_err().kind(), ErrorKind::Invalid);
        }
        fs.set_label("").await?;
        assert_eq!(fs.identity().0, "");
        Ok(())
    });
}
