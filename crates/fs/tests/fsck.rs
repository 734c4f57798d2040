//! Tests that fsck finds no fault in a file system after an unmount or a crash.

#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use furrow_emu::{Emulator, Fates, Fault, FaultKind, Medium, Options, Snapshot, When};
use furrow_fs::{
    Fs, FsckOptions, FsckReport, Ino, MkfsOptions, MountOptions, NewNode, RenameMode, SetAttr,
    WriteData, fsck,
};
use furrow_rt::{Config, Rng, Rt};
use furrow_zone::{ErrorKind, Result, ZonedDevice};
use std::rc::Rc;

const SMALL: &str = "zones=96,zone-size=1MiB,zone-capacity=772KiB,max-active=14,channels=2";

/// Drives for power cuts, with and without a volatile cache, wide and narrow.
const DRIVES: [&str; 4] = [
    SMALL,
    "zones=96,zone-size=1MiB,zone-capacity=772KiB,max-active=14,channels=2,volatile-cache=on",
    "zones=200,zone-size=512KiB,zone-capacity=300KiB,max-active=30,channels=3,volatile-cache=on",
    "zones=64,zone-size=1MiB,max-active=8,channels=1",
];

/// A formatted drive.
fn formatted(rt: &Rt, spec: &str, options: &MkfsOptions) -> Emulator {
    let geometry = furrow_zone::spec::parse_geometry(spec).unwrap();
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(rt, geometry, medium, Options::simulated()).unwrap();
    let (on, device): (Rt, Rc<dyn ZonedDevice>) = (rt.clone(), Rc::new(drive.clone()));
    let options = options.clone();
    rt.block_on(async move { Fs::format(&on, device, &options).await }).unwrap();
    drive
}

fn check(rt: &Rt, drive: &Emulator) -> FsckReport {
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    rt.block_on(async move { fsck(device, &FsckOptions::default()).await }).unwrap()
}

fn assert_ok(report: &FsckReport, what: &str) {
    let findings: Vec<String> = report.findings.iter().map(|f| f.to_string()).collect();
    assert!(findings.is_empty(), "{what}: {report:#?}");
}

/// Applies random changes of all kinds, including changes that are refused.
async fn churn(fs: &Fs, rng: &mut Rng, steps: u32) -> Result<()> {
    let mut dirs = vec![Ino::ROOT];
    let mut names: Vec<(Ino, Vec<u8>)> = Vec::new();
    for step in 0..steps {
        let dir = dirs[rng.below(dirs.len() as u64) as usize];
        let name = format!("n{}-{}", step, "x".repeat(rng.below(60) as usize)).into_bytes();
        let old =
            (!names.is_empty()).then(|| names[rng.below(names.len() as u64) as usize].clone());
        let result = match (rng.below(14), old) {
            (0, _) => fs.create(dir, &name, &NewNode::directory()).await.map(|a| {
                dirs.push(a.ino);
                names.push((dir, name));
            }),
            (1, _) => fs.create(dir, &name, &NewNode::symlink(b"some/target")).await.map(|_| {
                names.push((dir, name));
            }),
            (2..6, _) | (_, None) => match fs.create(dir, &name, &NewNode::file()).await {
                Ok(file) => {
                    names.push((dir, name));
                    let bytes: Vec<u8> = (0..rng.below(60_000)).map(|_| rng.next() as u8).collect();
                    let at = if rng.below(8) == 0 { 5 << 20 } else { rng.below(9000) };
                    fs.write(file.ino, WriteData::copy(fs.pool(), at, &bytes)).await
                }
                Err(error) => Err(error),
            },
            (6, Some((parent, old))) => match fs.rmdir(parent, &old).await {
                Err(error) if error.kind() == ErrorKind::NotDirectory => {
                    fs.unlink(parent, &old).await
                }
                other => other,
            },
            (7, Some((parent, old))) => {
                names.push((dir, name.clone()));
                fs.rename((parent, &old), (dir, &name), RenameMode::Replace).await
            }
            (8, Some((parent, old))) => match fs.lookup(parent, &old).await {
                Ok(attr) => fs.link(attr.ino, dir, &name).await.map(|_| names.push((dir, name))),
                Err(error) => Err(error),
            },
            (9, Some((parent, old))) => {
                let (other, new) = names[rng.below(names.len() as u64) as usize].clone();
                fs.rename((parent, &old), (other, &new), RenameMode::Exchange).await
            }
            (10..12, Some((parent, old))) => match fs.lookup(parent, &old).await {
                Ok(attr) => {
                    let size = rng.below(80_000);
                    let change = SetAttr { size: Some(size), ..SetAttr::default() };
                    fs.setattr(attr.ino, change).await.map(drop)
                }
                Err(error) => Err(error),
            },
            (12, Some((parent, old))) => match fs.lookup(parent, &old).await {
                Ok(attr) => fs.fsync(attr.ino, false).await,
                Err(error) => Err(error),
            },
            _ if rng.below(4) == 0 => fs.sync().await,
            _ => Ok(()),
        };
        use ErrorKind::{Exists, Invalid, IsDirectory, NoSpace, NotDirectory, NotEmpty, NotFound};
        let expected = [Exists, Invalid, IsDirectory, NoSpace, NotDirectory, NotEmpty, NotFound];
        match result {
            Err(error) if !expected.contains(&error.kind()) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[test]
fn a_new_file_system_is_clean() {
    let rt = Rt::new(Config::simulated(1));
    let drive = formatted(&rt, SMALL, &MkfsOptions { label: "fresh".into(), ..Default::default() });
    let report = check(&rt, &drive);
    assert_ok(&report, "fresh");
    assert!(report.clean && report.label == "fresh" && report.exit_code() == 0);
    assert_eq!((report.statistics.inodes, report.statistics.directories), (1, 1));
}

/// For some seeds, a subsegment as long as a segment, the longest possible; otherwise `None`.
fn whole_segment(seed: u64, segment: Option<u32>) -> Option<u32> {
    segment.filter(|blocks| *blocks == 16 && seed % 2 == 1)
}

#[test]
fn what_the_engine_leaves_is_clean() {
    for seed in 0..12 {
        let rt = Rt::new(Config::shuffled(seed));
        let segment = [None, Some(16), Some(100)][(seed % 3) as usize];
        let options = MkfsOptions {
            segment_blocks: segment,
            subsegment_blocks: whole_segment(seed, segment),
            ..Default::default()
        };
        let drive = formatted(&rt, SMALL, &options);
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        let on = rt.clone();
        rt.block_on(async move {
            let mut rng = Rng::new(seed);
            for _ in 0..3 {
                let fs = Fs::mount(&on, device.clone(), MountOptions::default()).await?;
                churn(&fs, &mut rng, 250).await?;
                fs.unmount().await?;
                let report = fsck(device.clone(), &FsckOptions::default()).await?;
                assert_ok(&report, &format!("seed {seed}"));
                assert!(report.clean && report.statistics.inodes > 1);
            }
            Ok::<(), furrow_zone::Error>(())
        })
        .unwrap();
        rt.clear();
    }
}

/// Cuts the power at random moments: fsck finds nothing before and after the next mount.
#[test]
fn what_a_power_cut_leaves_is_no_damage() {
    let mut replayed = 0;
    for seed in 1000..1060 {
        let rt = Rt::new(Config::shuffled(seed));
        let spec = DRIVES[(seed % 4) as usize];
        let segment_blocks = [None, Some(16), Some(100)][(seed % 3) as usize];
        let subsegment_blocks = whole_segment(seed, segment_blocks);
        let options = MkfsOptions { segment_blocks, subsegment_blocks, ..Default::default() };
        let drive = formatted(&rt, spec, &options);
        let (on, live) = (rt.clone(), drive.clone());
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        let cut: Snapshot = rt.block_on(async move {
            let fs = Fs::mount(&on, device, MountOptions::default()).await.unwrap();
            let mut rng = Rng::new(seed);
            let before = 20 + rng.below(300) as u32;
            churn(&fs, &mut rng, before).await.unwrap();
            // The power cut comes in the middle of an fsync, if that is still in progress.
            let file = fs.create(Ino::ROOT, b"last", &NewNode::file()).await.unwrap();
            let bytes = vec![7; 100_000];
            fs.write(file.ino, WriteData::copy(fs.pool(), 0, &bytes)).await.unwrap();
            let syncing = fs.clone();
            let task = on.spawn(async move { syncing.fsync(file.ino, false).await });
            for _ in 0..rng.below(40) {
                on.yield_now().await;
            }
            let cut = live.snapshot().power_cut(&Fates::seeded(seed));
            drop(task);
            cut
        });
        rt.clear();

        let rt = Rt::new(Config::shuffled(seed + 1));
        let drive = Emulator::from_snapshot(&rt, &cut, Options::simulated());
        let report = check(&rt, &drive);
        assert_ok(&report, &format!("seed {seed}, after the cut"));
        replayed += report.statistics.sync_records;
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        let on = rt.clone();
        rt.block_on(async move {
            let fs = Fs::mount(&on, device, MountOptions::default()).await.unwrap();
            let mut rng = Rng::new(seed);
            churn(&fs, &mut rng, 40).await.unwrap();
            fs.unmount().await.unwrap();
        });
        assert_ok(&check(&rt, &drive), &format!("seed {seed}, after recovery"));
        rt.clear();
    }
    assert!(replayed > 20, "{replayed} sync records seen");
}

/// A drive that vanishes at any command of a check, for good or for a moment, ends it with an
/// error, and without findings.
#[test]
fn a_drive_that_vanishes_during_the_check_is_not_damaged() {
    [None, Some(1), Some(3)].into_iter().for_each(vanishes_during_the_check);
}

fn vanishes_during_the_check(commands: Option<u64>) {
    let rt = Rt::new(Config::simulated(1));
    let drive = formatted(&rt, SMALL, &MkfsOptions::default());
    let (on, device): (Rt, Rc<dyn ZonedDevice>) = (rt.clone(), Rc::new(drive.clone()));
    let filled: Result<()> = rt.block_on(async move {
        let fs = Fs::mount(&on, device, MountOptions::default()).await?;
        churn(&fs, &mut Rng::new(1), 200).await?;
        fs.unmount().await
    });
    filled.unwrap();
    let mut failed = 0;
    for at in 1.. {
        let vanish = Fault::new(FaultKind::Disappear { commands });
        drive.inject(vanish.when(When::Nth(at)).times(1)).unwrap();
        let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
        match rt.block_on(async move { fsck(device, &FsckOptions::default()).await }) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{at}: {error}"),
            Ok(report) => {
                assert_ok(&report, &at.to_string());
                break;
            }
        }
        failed += 1;
        drive.clear_faults(None).unwrap();
        drive.power_on();
    }
    assert!(failed > 50, "{failed}");
}
