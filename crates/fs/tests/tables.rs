//! The zones of the tables: few at first, more as node ids are used, given back afterwards.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{quiet, sound};
use furrow_emu::{Emulator, Medium, Options};
use furrow_fs::{Fs, Ino, MkfsOptions, MountOptions, NewNode, StatFs};
use furrow_rt::{Config, Rt};
use furrow_zone::{Geometry, Result, ZonedDevice};
use std::future::Future;
use std::rc::Rc;

/// Table units are of a block, and 16 fill a zone.
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

/// Mounts what a power cut leaves now, and looks at it.
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
        // A mount counts what the tables have anew.
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
        // Merges leave the superzones, one after the other.
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

/// Ids run out only if the pool has nothing left; what is removed makes room again.
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

/// On the smallest drive the tables have two zones, and a checkpoint writes all of them anew when
/// one is full.
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
