//! Tests of failing zones: which operations continue, which are refused, and that no older state
//! is shown.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use furrow_emu::{Emulator, Fates, Fault, FaultKind, Medium, Options, Snapshot, When};
use furrow_fs::{
    Fs, FsckOptions, Ino, MkfsOptions, MountOptions, NewNode, OnDamage, WriteData, ZoneInfo,
    ZoneUse,
};
use furrow_rt::{Config, Nanos, Rt};
use furrow_zone::{ErrorKind, Result, ZoneId, ZonedDevice};
use std::future::Future;
use std::rc::Rc;

const DRIVE: &str = "zones=96,zone-size=1MiB,zone-capacity=772KiB,max-active=16,channels=2";

fn quiet(read_only: bool) -> MountOptions {
    let commit_interval = 100_000 * Nanos::SECOND;
    MountOptions { commit_interval, read_only, ..Default::default() }
}

/// Runs `work` on a new file system; returns the drive after a power cut, and the zone map
/// before it.
fn after<F: Future<Output = Result<Fs>> + 'static>(
    work: impl FnOnce(Fs, Emulator) -> F,
) -> (Snapshot, Vec<ZoneInfo>) {
    let rt = Rt::new(Config::shuffled(7));
    let geometry = furrow_zone::spec::parse_geometry(DRIVE).unwrap();
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(&rt, geometry, medium, Options::simulated()).unwrap();
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    let on = rt.clone();
    let fs = rt
        .block_on(async move {
            Fs::format(&on, device.clone(), &MkfsOptions::default()).await?;
            Fs::mount(&on, device, quiet(false)).await
        })
        .unwrap();
    let fs = rt.block_on(work(fs, drive.clone())).unwrap();
    // A drive that has disappeared reports no zones.
    let still = fs.clone();
    let zones = rt.block_on(async move { still.zone_map().await }).unwrap_or_default();
    let left = drive.snapshot().power_cut(&Fates::seeded(5));
    drop(fs);
    rt.clear();
    (left, zones)
}

/// Mounts `snapshot` after injecting `fault` in `zone`.
fn mounted<T: 'static, F: Future<Output = Result<T>> + 'static>(
    snapshot: &Snapshot,
    fault: FaultKind,
    zone: ZoneId,
    read_only: bool,
    look: impl FnOnce(Fs, Rc<dyn ZonedDevice>) -> F + 'static,
) -> Result<T> {
    let rt = Rt::new(Config::shuffled(3));
    let drive = Emulator::from_snapshot(&rt, snapshot, Options::simulated());
    drive.clear_faults(None).unwrap();
    drive.inject(Fault::new(fault).at_zone(zone)).unwrap();
    let device: Rc<dyn ZonedDevice> = Rc::new(drive);
    let on = rt.clone();
    let result = rt.block_on(async move {
        let fs = Fs::mount(&on, device.clone(), quiet(read_only)).await?;
        look(fs, device).await
    });
    rt.clear();
    result
}

async fn write(fs: &Fs, name: &str, byte: u8, blocks: usize) -> Result<Ino> {
    let ino = fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino;
    fs.write(ino, WriteData::copy(fs.pool(), 0, &vec![byte; blocks * 4096])).await?;
    Ok(ino)
}

async fn holds(fs: &Fs, name: &str, byte: u8, blocks: usize) -> Result<()> {
    let ino = fs.lookup(Ino::ROOT, name.as_bytes()).await?.ino;
    let found = fs.read(ino, 0, blocks * 4096).await?.to_vec();
    assert!(found == vec![byte; blocks * 4096], "{name}");
    Ok(())
}

fn first(zones: &[ZoneInfo], usage: ZoneUse) -> ZoneId {
    ZoneId(zones.iter().position(|zone| zone.usage == usage && zone.written > 0).unwrap() as u32)
}

/// Makes a warm and a cold file, which an unmount makes durable.
fn unmounted() -> (Snapshot, Vec<ZoneInfo>) {
    after(|fs, _| async move {
        write(&fs, "warm", 1, 40).await?;
        write(&fs, "cold.jpg", 2, 40).await?;
        fs.unmount().await?;
        Ok(fs)
    })
}

#[test]
fn files_elsewhere_go_on_when_a_zone_is_gone() {
    let (drive, zones) = unmounted();
    let gone = first(&zones, ZoneUse::Data(2));
    mounted(&drive, FaultKind::ZoneOffline, gone, false, |fs, _| async move {
        holds(&fs, "warm", 1, 40).await?;
        let lost = holds(&fs, "cold.jpg", 2, 40).await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::Io);
        assert!(lost.to_string().contains("Offline"), "{lost}");
        // New files can be written too, even in the class that lost its zone.
        let new = write(&fs, "new.jpg", 3, 40).await?;
        fs.fsync(new, false).await?;
        holds(&fs, "new.jpg", 3, 40).await?;
        fs.unmount().await
    })
    .unwrap();
}

#[test]
fn a_read_only_zone_loses_nothing_and_is_written_no_more() {
    let (drive, zones) = unmounted();
    let fixed = first(&zones, ZoneUse::Data(2));
    mounted(&drive, FaultKind::ZoneReadOnly, fixed, false, |fs, device| async move {
        holds(&fs, "warm", 1, 40).await?;
        holds(&fs, "cold.jpg", 2, 40).await?;
        let new = write(&fs, "new.jpg", 3, 40).await?;
        fs.fsync(new, false).await?;
        fs.unmount().await?;
        let report = furrow_fs::fsck(device, &FsckOptions::default()).await?;
        assert!(report.is_ok(), "{:?}", report.findings);
        Ok(())
    })
    .unwrap();
}

/// A read-only zone: its content is moved while it can still be read, and the zone is retired.
#[test]
fn a_read_only_zone_is_evacuated_and_retired() {
    let (drive, zones) = unmounted();
    let fixed = first(&zones, ZoneUse::Data(2));
    mounted(&drive, FaultKind::ZoneReadOnly, fixed, false, move |fs, device| async move {
        while fs.counters().superzones_evacuated == 0 {
            fs.rt().sleep(Nanos::MILLI).await;
        }
        fs.sync().await?;
        let zone = fs.zone_map().await?[fixed.0 as usize];
        assert_eq!((zone.usage, zone.valid), (ZoneUse::Retired, 0));
        holds(&fs, "cold.jpg", 2, 40).await?;
        assert_eq!(fs.damaged_blocks(), Vec::<String>::new());
        fs.unmount().await?;
        let report = furrow_fs::fsck(device, &FsckOptions::default()).await?;
        assert!(report.is_ok(), "{:?}", report.findings.first());
        Ok(())
    })
    .unwrap();
}

/// The damaged files of an offline zone are reported, and the other zones of its superzone
/// are emptied.
#[test]
fn files_that_an_offline_zone_takes_are_named() {
    let (drive, zones) = unmounted();
    let gone = first(&zones, ZoneUse::Data(2));
    mounted(&drive, FaultKind::ZoneOffline, gone, false, move |fs, _| async move {
        while fs.damaged_blocks().is_empty() {
            fs.rt().sleep(Nanos::MILLI).await;
        }
        let cold = fs.lookup(Ino::ROOT, b"cold.jpg").await?.ino;
        let named = fs.damaged_blocks();
        assert!(named[0].contains(&format!("inode {cold}")), "{named:?}");
        holds(&fs, "warm", 1, 40).await?;
        fs.unmount().await
    })
    .unwrap();
}

#[test]
fn damage_makes_the_engine_read_only_if_it_is_told_so() {
    let (drive, zones) = unmounted();
    let gone = first(&zones, ZoneUse::Data(2));
    let rt = Rt::new(Config::shuffled(3));
    let drive = Emulator::from_snapshot(&rt, &drive, Options::simulated());
    drive.inject(Fault::new(FaultKind::ReadError).at_zone(gone)).unwrap();
    let (on, device): (Rt, Rc<dyn ZonedDevice>) = (rt.clone(), Rc::new(drive));
    rt.block_on(async move {
        let options = MountOptions { on_damage: OnDamage::ReadOnly, ..quiet(false) };
        let fs = Fs::mount(&on, device, options).await?;
        holds(&fs, "warm", 1, 40).await?;
        write(&fs, "before", 3, 1).await?;
        let error = holds(&fs, "cold.jpg", 2, 40).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        let refused = write(&fs, "after", 3, 1).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
        assert!(refused.to_string().contains("read-only after an error"), "{refused}");
        holds(&fs, "warm", 1, 40).await
    })
    .unwrap();
    rt.clear();
}

/// The data fsynced last is in the sync log. Without the log only an older state is left, which a
/// mount for reading shows and reports. Without checkpoints, nothing is left.
#[test]
fn an_older_state_is_never_shown_in_silence() {
    let (drive, zones) = after(|fs, _| async move {
        let ino = write(&fs, "file", 1, 3).await?;
        fs.sync().await?;
        fs.write(ino, WriteData::copy(fs.pool(), 0, &[2; 4096])).await?;
        fs.fsync(ino, false).await?;
        Ok(fs)
    });
    for (usage, read_only) in
        [(ZoneUse::SyncLog, false), (ZoneUse::Checkpoint, false), (ZoneUse::Checkpoint, true)]
    {
        let gone = first(&zones, usage);
        let look = |_, _| async { Ok(()) };
        let error = mounted(&drive, FaultKind::ZoneOffline, gone, read_only, look).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("zone {gone} is offline")), "{text}");
        assert!(!text.contains("mkfs"), "{text}");
    }
    let gone = first(&zones, ZoneUse::SyncLog);
    mounted(&drive, FaultKind::ZoneOffline, gone, true, move |fs, _| async move {
        let said = format!("zone {gone}, for the sync log, is offline");
        assert!(fs.losses().iter().any(|line| line.starts_with(&said)), "{:?}", fs.losses());
        holds(&fs, "file", 1, 3).await
    })
    .unwrap();
    // If the zone is only read-only, a mount for reading shows everything.
    for usage in [ZoneUse::SyncLog, ZoneUse::Checkpoint] {
        let fixed = first(&zones, usage);
        mounted(&drive, FaultKind::ZoneReadOnly, fixed, true, |fs, _| async move {
            holds(&fs, "file", 2, 1).await
        })
        .unwrap();
    }
}

/// The drive disappears, or zones fail while the engine runs: the engine continues elsewhere or
/// stops acknowledging, and acknowledged data survives.
#[test]
fn what_was_acknowledged_survives_a_zone_that_fails_in_use() {
    let (mut noticed, mut went_on) = (0, 0);
    for kind in [
        FaultKind::WriteError,
        FaultKind::WriteTorn,
        FaultKind::ZoneReadOnly,
        FaultKind::ZoneFull,
        FaultKind::Disappear { commands: Some(7) },
    ] {
        for nth in [1, 2, 3, 5, 8, 13, 21] {
            let acknowledged = Rc::new(std::cell::Cell::new(0));
            let told = acknowledged.clone();
            let (drive, _) = after(|fs, drive| async move {
                drive.inject(Fault::new(kind).when(When::Nth(nth)))?;
                for n in 0..20u8 {
                    // If the write fails before the fsync, the file was not acknowledged.
                    let Ok(ino) = write(&fs, &format!("f{n}"), n, 9).await else { break };
                    if fs.fsync(ino, false).await.is_err() {
                        let refused = fs.create(Ino::ROOT, b"later", &NewNode::file()).await;
                        assert_eq!(
                            refused.unwrap_err().kind(),
                            ErrorKind::ReadOnly,
                            "{kind} {nth}"
                        );
                        break;
                    }
                    told.set(n + 1);
                }
                Ok(fs)
            });
            let count = acknowledged.get();
            let away = matches!(kind, FaultKind::Disappear { .. });
            assert!(count < 20 || !away, "{kind} {nth}");
            noticed += u32::from(count < 20 && !away);
            went_on += u32::from(count == 20);
            mounted(&drive, FaultKind::ZoneReadOnly, ZoneId(95), true, move |fs, _| async move {
                for n in 0..count {
                    holds(&fs, &format!("f{n}"), n, 9).await?;
                }
                Ok(())
            })
            .unwrap();
        }
    }
    assert!(noticed > 0 && went_on > 20, "{noticed} and {went_on} of 28");
}

/// Makes each zone offline, one after the other, after an unmount and after a power cut: a mount is
/// refused only if the zone held, or may have held, something that the mount needs.
#[test]
fn a_mount_is_refused_only_for_a_zone_that_it_needs() {
    let crashed = after(|fs, _| async move {
        for n in 0..6 {
            let ino = write(&fs, &format!("f{n}"), n, 40).await?;
            fs.fsync(ino, false).await?;
        }
        Ok(fs)
    });
    for ((drive, zones), clean) in [(unmounted(), true), (crashed, false)] {
        let sync = |zone: &ZoneInfo| zone.usage == ZoneUse::SyncLog;
        let first = zones.iter().position(sync).unwrap();
        // The first half of the log is written; the other half is empty.
        let half = first..first + zones.iter().filter(|zone| sync(zone)).count() / 2;
        for (index, zone) in zones.iter().enumerate() {
            let needed = match zone.usage {
                ZoneUse::Checkpoint | ZoneUse::DeltaLog | ZoneUse::Tables => zone.written > 0,
                // These zones hold inodes of directories, whose names are replayed.
                ZoneUse::Node(_) => !clean,
                _ => !clean && half.contains(&index),
            };
            let gone = ZoneId(index as u32);
            let done = mounted(&drive, FaultKind::ZoneOffline, gone, false, |fs, _| async move {
                let _ = fs.unmount().await;
                Ok(())
            });
            match done {
                Err(error) => assert!(needed, "zone {gone}, {:?}: {error}", zone.usage),
                Ok(()) => assert!(!needed || zone.usage != ZoneUse::Checkpoint, "zone {gone}"),
            }
        }
    }
}
