//! Tests of the zones of the tables: few at first, more as node ids are used, given
//! back afterwards.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{quiet, sound};
use furrow_emu::{Emulator, Medium, Options};
use furrow_fs::{CleanOptions, Fs, Ino, MkfsOptions, MountOptions, NewNode, StatFs, WriteData};
use furrow_rt::{Config, Rt};
use furrow_zone::{Geometry, Result, ZonedDevice};
use std::future::Future;
use std::rc::Rc;

/// A drive on which table pages have one block, and 16 of them fill a zone.
const MANY: &str = "zones=1000,zone-size=64KiB,zone-capacity=64KiB,max-active=14,channels=1";

fn geometry(spec: &str) -> Geometry {
    furrow_zone::spec::parse_geometry(spec).unwrap()
}

fn few() -> MkfsOptions {
    MkfsOptions { first_nodes: Some(1), ..MkfsOptions::default() }
}

async fn make(fs: &Fs, names: std::ops::Range<u32>) -> Result<()> {
    for n in names {
        fs.create(Ino::ROOT, format!("f{n}").as_bytes(), &NewNode::file()).await?;
    }
    Ok(())
}

fn used(space: &StatFs) -> u64 {
    space.inodes - space.inodes_free
}

/// Mounts the drive after a power cut now, and checks it.
async fn after_a_cut(rt: &Rt, drive: &Emulator, files: u32) -> Result<()> {
    let left = Rc::new(Emulator::from_snapshot(rt, &drive.snapshot(), Options::simulated()));
    sound(left.clone()).await?;
    let fs = Fs::mount(rt, left.clone(), quiet()).await?;
    for n in (0..files).step_by(97) {
        fs.lookup(Ino::ROOT, format!("f{n}").as_bytes()).await?;
    }
    fs.unmount().await?;
    sound(left).await
}

fn on<F: Future<Output = Result<()>> + 'static>(
    seed: u64,
    spec: &str,
    test: impl FnOnce(Rt, Emulator) -> F,
) {
    let rt = Rt::new(Config::shuffled(seed));
    let geometry = geometry(spec);
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(&rt, geometry, medium, Options::simulated()).unwrap();
    let test = test(rt.clone(), drive);
    let result = rt.block_on(test);
    rt.clear();
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn tables_take_superzones_as_ids_are_used_and_give_them_back() {
    on(1, MANY, |rt, drive| async move {
        let device = Rc::new(drive.clone());
        Fs::format(&rt, device.clone(), &few()).await?;
        let fs = Fs::mount(&rt, device.clone(), quiet()).await?;
        let before = fs.statfs();
        for hundred in 0..60 {
            make(&fs, hundred * 100..hundred * 100 + 100).await?;
            fs.sync().await?;
            if hundred % 12 == 0 {
                after_a_cut(&rt, &drive, hundred * 100).await?;
            }
        }
        let (full, counters) = (fs.statfs(), fs.counters());
        assert!(used(&full) > 6000);
        assert!(counters.table_superzones_taken > 2, "{counters:?}");
        assert!(full.blocks_logs > before.blocks_logs && full.blocks < before.blocks);
        assert!((1..full.blocks_logs).contains(&full.blocks_logs_used));
        after_a_cut(&rt, &drive, 6000).await?;
        // A mount must find the same zones of the tables.
        fs.unmount().await?;
        sound(device.clone()).await?;
        let fs = Fs::mount(&rt, device.clone(), quiet()).await?;
        assert_eq!(fs.statfs().blocks_logs, full.blocks_logs);
        for n in 0..6000 {
            fs.unlink(Ino::ROOT, format!("f{n}").as_bytes()).await?;
            if n % 100 == 0 {
                fs.sync().await?;
            }
        }
        // Merges move tables out of the superzones, one superzone after the other.
        let taken = (full.blocks_logs - before.blocks_logs) / 16;
        let mut round = 0;
        while fs.counters().table_superzones_returned < taken {
            assert!(round < 20_000, "{:?}", fs.counters());
            let name = format!("g{}", round % 50);
            match round / 50 % 2 {
                0 => drop(fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?),
                _ => fs.unlink(Ino::ROOT, name.as_bytes()).await?,
            }
            if round % 10 == 0 {
                fs.sync().await?;
            }
            round += 1;
        }
        assert_eq!(fs.statfs().blocks_logs, before.blocks_logs);
        after_a_cut(&rt, &drive, 0).await?;
        fs.unmount().await?;
        sound(device).await
    });
}

/// Node ids run out only if no superzone is left to take; removals then free space.
#[test]
fn a_full_drive_is_out_of_inodes_at_last() {
    on(2, MANY, |rt, drive| async move {
        let device = Rc::new(drive.clone());
        Fs::format(&rt, device.clone(), &few()).await?;
        let fs = Fs::mount(&rt, device.clone(), quiet()).await?;
        let mut made = 0;
        let error = loop {
            match make(&fs, made..made + 1).await {
                Ok(()) => made += 1,
                Err(error) => break error,
            }
            if made % 500 == 0 {
                fs.sync().await?;
            }
        };
        assert_eq!(error.kind(), furrow_zone::ErrorKind::NoSpace);
        assert!(made > 7500, "{made}: {error}, {:?}", fs.statfs());
        fs.sync().await?;
        after_a_cut(&rt, &drive, made).await?;
        for n in 0..100 {
            fs.unlink(Ino::ROOT, format!("f{n}").as_bytes()).await?;
        }
        make(&fs, 100_000..100_050).await?;
        fs.unmount().await?;
        sound(device).await
    });
}

/// On the smallest drive the tables have two zones, and a checkpoint rewrites all table pages when
/// one zone is full.
#[test]
fn two_zones_suffice_on_the_smallest_drive() {
    let spec = "zones=18,zone-size=80KiB,zone-capacity=80KiB,max-active=6,channels=1";
    on(3, spec, |rt, drive| async move {
        let device = Rc::new(drive.clone());
        let report = Fs::format(&rt, device.clone(), &MkfsOptions::default()).await?;
        assert_eq!(report.superzones, 9);
        let options = MountOptions { commit_interval: 1_000_000, ..quiet() };
        let fs = Fs::mount(&rt, device.clone(), options).await?;
        make(&fs, 0..20).await?;
        for round in 0..400 {
            fs.unlink(Ino::ROOT, format!("f{round}").as_bytes()).await?;
            make(&fs, round + 20..round + 21).await?;
            fs.sync().await?;
            if round % 50 == 0 {
                let left =
                    Rc::new(Emulator::from_snapshot(&rt, &drive.snapshot(), Options::simulated()));
                let fs = Fs::mount(&rt, left.clone(), quiet()).await?;
                fs.lookup(Ino::ROOT, format!("f{}", round + 20).as_bytes()).await?;
                fs.unmount().await?;
                sound(left).await?;
            }
        }
        assert!(fs.counters().table_bytes > 40 * 4096, "{:?}", fs.counters());
        let _ = drive.geometry();
        fs.unmount().await?;
        sound(device).await
    });
}

/// NAT and SIT have separate logs if the drive's active zones allow that, and otherwise share one;
/// the drive itself refuses a write that would open one zone too many.
#[test]
fn logs_keep_to_the_budget_whatever_the_drive_allows() {
    for (permits, logs) in [(6, 1), (7, 1), (8, 1), (11, 1), (12, 2), (14, 2), (20, 2)] {
        let spec = format!(
            "zones=200,zone-size=128KiB,zone-capacity=96KiB,max-active={permits},channels=1"
        );
        on(permits, &spec, move |rt, drive| async move {
            let device = Rc::new(drive.clone());
            let report = Fs::format(&rt, device.clone(), &MkfsOptions::default()).await?;
            let sum: u32 = report.budget.iter().map(|(_, zones)| zones).sum();
            assert!(u64::from(sum) <= permits, "{:?}", report.budget);
            let lines = report.budget.iter().filter(|(what, _)| what.contains("delta log"));
            assert_eq!(lines.count(), logs, "{:?}", report.budget);
            let options = MountOptions { commit_interval: 1_000_000, ..quiet() };
            let fs = Fs::mount(&rt, device.clone(), options).await?;
            make(&fs, 0..200).await?;
            for round in 0..700u32 {
                let ino = fs.lookup(Ino::ROOT, format!("f{}", round % 200).as_bytes()).await?.ino;
                let bytes = vec![(round % 250) as u8 + 1; 40_000];
                fs.write(ino, WriteData::copy(fs.pool(), 0, &bytes)).await?;
                match round % 3 {
                    0 => fs.fsync(ino, false).await?,
                    _ => fs.sync().await?,
                }
                if round % 140 == 139 {
                    let options = CleanOptions { garbage_percent: 0, ..CleanOptions::default() };
                    fs.clean(options).await?;
                    after_a_cut(&rt, &drive, 200).await?;
                }
            }
            let counters = fs.counters();
            assert!(counters.merges > 0 && counters.clean_victims > 0, "{counters:?}");
            fs.unmount().await?;
            sound(device).await
        });
    }
}

#[test]
fn too_few_active_zones_are_refused_with_the_sum() {
    let spec = "zones=200,zone-size=128KiB,zone-capacity=96KiB,max-active=5,channels=1";
    on(4, spec, |rt, drive| async move {
        let device = Rc::new(drive);
        let made = Fs::format(&rt, device.clone(), &MkfsOptions::default()).await;
        let error = made.unwrap_err().to_string();
        assert!(error.contains("5 active zones, but 6 are needed: checkpoint ring 1 +"), "{error}");
        Ok(())
    });
}
