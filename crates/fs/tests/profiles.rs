//! Tests of the layout that mkfs chooses for a drive: large zones and few active ones.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{self, sound};
use furrow_emu::{Emulator, Medium, Options};
use furrow_fs::{Fs, Ino, MkfsOptions, MkfsReport, MountOptions, NewNode, Order, WriteData};
use furrow_policy::{FsVariant, Pieces};
use furrow_rt::{Config, PAGE_SIZE, Rng, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{Geometry, Result, ZonedDevice};
use std::rc::Rc;

fn geometry(spec: &str) -> Geometry {
    match spec.parse::<DeviceSpec>().unwrap() {
        DeviceSpec::Memory(memory) => memory.geometry,
        other => panic!("{other:?} is not a drive in memory"),
    }
}

/// Makes a file system, writes files of all classes at the same time, mounts again, reads
/// and checks.
fn used(spec: &str) -> MkfsReport {
    let rt = Rt::new(Config::shuffled(7));
    let geometry = geometry(spec);
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(&rt, geometry, medium, Options::simulated()).unwrap();
    let device: Rc<dyn ZonedDevice> = Rc::new(drive);
    let engine = rt.clone();
    let report = rt.block_on(async move {
        let report = Fs::format(&engine, device.clone(), &MkfsOptions::default()).await?;
        let fs = Fs::mount(&engine, device.clone(), MountOptions::default()).await?;
        // Databases are hot, films cold; directories have streams of their own.
        let names = ["a", "b.db", "c.mp4", "d", "e.mp4", "f.db"];
        let writers: Vec<_> = names
            .into_iter()
            .enumerate()
            .map(|(tag, name)| {
                let fs = fs.clone();
                engine.spawn(async move {
                    let file = fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino;
                    for at in 0..40 {
                        let bytes = vec![tag as u8 + 1; 65_536];
                        fs.write(file, WriteData::copy(fs.pool(), at * 65_536, &bytes)).await?;
                        fs.fsync(file, at % 2 == 0).await?;
                    }
                    Ok::<Ino, furrow_zone::Error>(file)
                })
            })
            .collect();
        let mut files = Vec::new();
        for writer in writers {
            files.push(writer.await?);
        }
        fs.unmount().await?;
        drop(fs);
        sound(device.clone()).await?;
        let fs = Fs::mount(&engine, device.clone(), MountOptions::default()).await?;
        for (tag, file) in files.into_iter().enumerate() {
            for at in 0..40 {
                let read = fs.read(file, at * 65_536, 65_536).await?.to_vec();
                assert!(read.len() == 65_536 && read.iter().all(|byte| *byte == tag as u8 + 1));
            }
        }
        fs.unmount().await?;
        Ok::<MkfsReport, furrow_zone::Error>(report)
    });
    rt.clear();
    report.unwrap()
}

fn sum(report: &MkfsReport) -> u32 {
    report.budget.iter().map(|(_, zones)| zones).sum()
}

/// A zone is a thousandth of these drives or more, so logs and tables must take few zones. Their
/// zones need no striping.
#[test]
fn drives_of_large_zones_get_narrow_superzones_and_few_zones_of_logs() {
    for (spec, most) in [("mem:j5100", 2.0), ("mem:zn540-4t", 0.3)] {
        let report = used(spec);
        assert!(report.profile.starts_with("large zones: superzones of 1 zone, 6 streams"));
        assert_eq!((report.width, sum(&report)), (1, 10), "{report:?}");
        let share = f64::from(report.log_zones) * 100.0 / f64::from(geometry(spec).zones);
        assert!(share < most, "{spec}: {} zones are {share:.2} %", report.log_zones);
    }
}

/// The emulator refuses a write that opens one zone too many. Either streams share zones, or mkfs
/// refuses the drive with a message that names the shortage.
#[test]
fn streams_share_zones_where_few_may_be_active() {
    for (active, streams) in [(15, 6), (14, 6), (10, 6), (9, 4), (8, 4), (7, 2), (6, 2)] {
        let report = used(&format!("mem:zn540-4t,max-open={active},max-active={active}"));
        assert!(report.profile.contains(&format!("{streams} streams")), "{active}: {report:?}");
        assert!(sum(&report) <= active, "{active}: {report:?}");
    }
    let refused: Result<()> = {
        let rt = Rt::new(Config::simulated(1));
        let geometry = geometry("mem:zn540-4t,max-open=5,max-active=5");
        let medium = Medium::memory(&geometry);
        let drive = Emulator::new(&rt, geometry, medium, Options::simulated()).unwrap();
        let engine = rt.clone();
        let made = rt.block_on(async move {
            Fs::format(&engine, Rc::new(drive), &MkfsOptions::default()).await.map(drop)
        });
        rt.clear();
        made
    };
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("5 active zones, but 6 are needed"), "{refused}");
}

#[test]
fn small_zones_are_striped_over_the_channels() {
    let report = used("mem:pm1731a");
    assert!(report.profile.starts_with("small zones: superzones of 16 zones"), "{report:?}");
    assert!(report.profile.contains("sync log striped over"), "{report:?}");
}

/// A superzone is a sixtieth of the drive, and four superzones are reserved for cleaning: a drive
/// that is full to the last user block can be overwritten at random endlessly.
#[test]
fn a_full_drive_of_few_large_zones_is_cleaned_again_and_again() {
    let large_zones = Some(true);
    let format = MkfsOptions { large_zones, ..MkfsOptions::default() };
    let spec = "zones=72,zone-size=1MiB,max-active=14";
    for order in [Order::Queued, Order::Blocking, Order::Append] {
        let on = (Options::simulated(), format.clone());
        common::on_drive(Rt::new(Config::shuffled(5)), spec, on, move |rt, drive| async move {
            let device = Rc::new(drive);
            let variant = FsVariant { pieces: Pieces::Several, ..FsVariant::default() };
            let options = MountOptions { order, variant, ..MountOptions::default() };
            let fs = Fs::mount(&rt, device.clone(), options).await?;
            let ino = fs.create(Ino::ROOT, b"big", &NewNode::file()).await?.ino;
            let mut said = Vec::new();
            let stamp = |block: usize, version: u8| vec![version ^ block as u8; PAGE_SIZE];
            while fs.statfs().blocks_available > fs.statfs().blocks / 25 {
                let at = (said.len() * PAGE_SIZE) as u64;
                fs.write(ino, WriteData::copy(fs.pool(), at, &stamp(said.len(), 1))).await?;
                said.push(1);
            }
            let mut rng = Rng::new(7);
            for round in 0..3 * said.len() {
                let block = rng.below(said.len() as u64) as usize;
                said[block] = (round % 251) as u8;
                let data = stamp(block, said[block]);
                let at = (block * PAGE_SIZE) as u64;
                fs.write(ino, WriteData::copy(fs.pool(), at, &data)).await?;
                if round % 1000 == 0 {
                    fs.fsync(ino, false).await?;
                }
            }
            assert!(fs.counters().clean_victims > 60, "{order:?} {:?}", fs.counters());
            for (block, version) in said.iter().enumerate() {
                let found = fs.read(ino, (block * PAGE_SIZE) as u64, PAGE_SIZE).await?.to_vec();
                assert!(found == stamp(block, *version), "{order:?}: block {block}");
            }
            fs.unmount().await?;
            sound(device).await
        });
    }
}
