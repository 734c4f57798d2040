//! Tests of data by Zone Append, on a drive that may reorder appends: the place of data is known
//! only when the drive has answered, and all metadata that refers to the data waits for the answer.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, sound};
use furrow_emu::{Emulator, Fault, FaultKind, Options, When};
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, Order, WriteData};
use furrow_rt::{Config, Nanos, PAGE_SIZE, Rng, Rt};
use furrow_zone::{Result, ZonedDevice};
use std::future::Future;
use std::rc::Rc;

/// A drive with superzones of two zones and 4 KiB appends, so that reordered blocks land in each
/// other's places.
const DRIVE: &str = "zones=120,zone-size=4MiB,channels=2,dies=8,max-active=32,max-append=4KiB";

fn on_drive<F: Future<Output = Result<()>> + 'static>(
    seed: u64,
    test: impl FnOnce(Rt, Emulator) -> F,
) {
    let format = MkfsOptions { width: Some(2), ..MkfsOptions::default() };
    let rt = Rt::new(Config::shuffled(seed));
    common::on_drive(rt, DRIVE, (Options::simulated(), format), |rt, drive| {
        drive.inject(Fault::new(FaultKind::ReorderAppends).when(When::OneIn(2))).unwrap();
        test(rt, drive)
    });
}

fn options() -> MountOptions {
    let commit_interval = 100_000 * Nanos::SECOND;
    MountOptions { order: Order::Append, commit_interval, ..MountOptions::default() }
}

async fn mount(rt: &Rt, drive: &Emulator) -> Result<Fs> {
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    Fs::mount(rt, device, options()).await
}

async fn file(fs: &Fs, name: &str) -> Result<Ino> {
    Ok(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino)
}

/// A block whose content identifies file, block and version.
fn content(file: u64, block: u64, version: u64) -> Vec<u8> {
    let mut rng = Rng::new(file << 40 ^ block << 8 ^ version);
    (0..PAGE_SIZE / 8).flat_map(|_| rng.next().to_le_bytes()).collect()
}

async fn put(fs: &Fs, ino: Ino, block: u64, version: u64) -> Result<()> {
    let bytes = content(u64::from(ino.0), block, version);
    let at = block * PAGE_SIZE as u64;
    fs.write(ino, WriteData::copy(fs.pool(), at, &bytes)).await.map(drop)
}

async fn holds(fs: &Fs, ino: Ino, block: u64, version: u64) -> Result<bool> {
    let read = fs.read(ino, block * PAGE_SIZE as u64, PAGE_SIZE).await?.to_vec();
    Ok(read == content(u64::from(ino.0), block, version))
}

/// Two files of three segments each, synced while the other one is written: pointers lead to the
/// right data, summaries name the owners (fsck compares), and data was written by append only.
#[test]
fn appended_data_is_found_where_the_drive_put_it() {
    on_drive(3, |rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let (a, b) = (file(&fs, "a").await?, file(&fs, "b").await?);
        let writers: Vec<_> = [a, b]
            .map(|ino| {
                let fs = fs.clone();
                rt.spawn(async move {
                    for block in 0..800 {
                        put(&fs, ino, block, 1).await?;
                        if block % 97 == 0 {
                            fs.fsync(ino, true).await?;
                        }
                    }
                    fs.fsync(ino, false).await
                })
            })
            .into();
        for writer in writers {
            writer.await?;
        }
        let blocks = 2 * 800;
        let appended = drive.counters().appends;
        assert!(appended >= blocks, "{appended} appends for {blocks} blocks");
        let written = fs.counters().data_bytes / PAGE_SIZE as u64;
        assert!(written < appended + blocks / 8, "{written} blocks of data, {appended} appended");
        fs.unmount().await?;
        drop(fs);
        sound(Rc::new(drive.clone())).await?;
        let fs = mount(&rt, &drive).await?;
        for block in 0..800 {
            assert!(holds(&fs, a, block, 1).await? && holds(&fs, b, block, 1).await?, "{block}");
        }
        fs.unmount().await
    });
}

/// Blocks are changed, truncated or removed while their append is in flight: the newer content
/// counts, not the content of the append.
#[test]
fn what_changes_on_its_way_is_not_overwritten_by_it() {
    for seed in 0..8 {
        on_drive(seed, move |rt, drive| async move {
            let fs = mount(&rt, &drive).await?;
            let (kept, cut, gone) =
                (file(&fs, "kept").await?, file(&fs, "cut").await?, file(&fs, "gone").await?);
            for block in 0..64 {
                for ino in [kept, cut, gone] {
                    put(&fs, ino, block, 1).await?;
                }
            }
            let syncing = {
                let fs = fs.clone();
                rt.spawn(async move { fs.sync().await })
            };
            // Let the appends begin.
            for _ in 0..20 + 5 * seed {
                rt.yield_now().await;
            }
            for block in (0..64).step_by(3) {
                put(&fs, kept, block, 2).await?;
            }
            let short = furrow_fs::SetAttr { size: Some(0), ..Default::default() };
            fs.setattr(cut, short).await?;
            put(&fs, cut, 5, 3).await?;
            fs.unlink(Ino::ROOT, b"gone").await?;
            syncing.await?;
            fs.unmount().await?;
            drop(fs);
            sound(Rc::new(drive.clone())).await?;
            let fs = mount(&rt, &drive).await?;
            for block in 0..64 {
                assert!(holds(&fs, kept, block, 1 + u64::from(block % 3 == 0)).await?, "{block}");
            }
            assert!(holds(&fs, cut, 5, 3).await?);
            let hole = fs.read(cut, 0, PAGE_SIZE).await?.to_vec();
            assert!(hole.iter().all(|byte| *byte == 0), "what was cut off came back");
            fs.unmount().await
        });
    }
}

/// The drive disappears during appends: the engine reports this and stops writing, and its tasks
/// still end.
#[test]
fn a_failed_append_ends_in_an_error_and_nothing_waits_for_ever() {
    on_drive(5, |rt, drive| async move {
        let fs = mount(&rt, &drive).await?;
        let a = file(&fs, "a").await?;
        put(&fs, a, 0, 1).await?;
        fs.fsync(a, false).await?;
        for block in 0..600 {
            put(&fs, a, block, 2).await?;
        }
        let away = FaultKind::Disappear { commands: Some(1) };
        drive.inject(Fault::new(away).when(When::Nth(100)).times(1)).unwrap();
        let error = fs.fsync(a, false).await.unwrap_err();
        assert!(error.to_string().contains("zone"), "{error}");
        assert!(put(&fs, a, 0, 3).await.is_err(), "it goes on writing");
        assert!(fs.unmount().await.is_err());
        drop(fs);
        drive.clear_faults(None).unwrap();
        let fs = mount(&rt, &drive).await?;
        assert!(holds(&fs, a, 0, 1).await? || holds(&fs, a, 0, 2).await?);
        fs.unmount().await?;
        drop(fs);
        sound(Rc::new(drive.clone())).await?;
        Ok(())
    });
}

/// The drive refuses an append: the blocks of that append go elsewhere, and the file is synced.
#[test]
fn a_failed_append_is_made_elsewhere() {
    for nth in [1, 20, 100] {
        on_drive(nth, move |rt, drive| async move {
            let fs = mount(&rt, &drive).await?;
            let a = file(&fs, "a").await?;
            for block in 0..600 {
                put(&fs, a, block, 2).await?;
            }
            drive.inject(Fault::new(FaultKind::WriteError).when(When::Nth(nth)).times(1)).unwrap();
            fs.fsync(a, false).await?;
            assert_eq!(fs.counters().zone_failures, 1, "{nth}");
            fs.unmount().await?;
            drop(fs);
            let fs = mount(&rt, &drive).await?;
            for block in 0..600 {
                assert!(holds(&fs, a, block, 2).await?, "{nth}: block {block}");
            }
            fs.unmount().await?;
            drop(fs);
            sound(Rc::new(drive.clone())).await
        });
    }
}
