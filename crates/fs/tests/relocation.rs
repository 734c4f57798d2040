//! Tests of zones that fail while they are written: the file system continues, and loses nothing.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::disallowed_types, reason = "a notice is a function: its lines need a static")]

use furrow_emu::{Emulator, Fates, Fault, FaultKind, Medium, Options, When};
use furrow_fs::{Fs, FsckOptions, Ino, MkfsOptions, MountOptions, NewNode, Order, WriteData};
use furrow_fs::{ZoneInfo, ZoneUse};
use furrow_rt::{Config, Nanos, Rt};
use furrow_zone::{BlockCount, ErrorKind, Result, ZoneId, ZonedDevice};
use std::rc::Rc;
use std::sync::Mutex;

const DRIVE: &str =
    "zones=96,zone-size=1MiB,zone-capacity=772KiB,max-active=16,channels=2,max-append=64KiB";

/// Lasting failures of one zone while other zones can still be written.
const KINDS: [FaultKind; 4] =
    [FaultKind::WriteError, FaultKind::WriteTorn, FaultKind::ZoneReadOnly, FaultKind::ZoneFull];

/// Messages to operators from the drives of all tests.
static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn quiet(order: Order) -> MountOptions {
    let notice = |line: &str| TOLD.lock().unwrap().push(line.to_owned());
    let commit_interval = 100_000 * Nanos::SECOND;
    MountOptions { commit_interval, order, notice, ..Default::default() }
}

/// Messages to operators about the drive `name`.
fn told(name: &str) -> Vec<String> {
    let all = TOLD.lock().unwrap();
    all.iter().filter(|line| line.contains(&format!(" {name}: "))).cloned().collect()
}

fn drive(rt: &Rt, volatile: bool) -> Emulator {
    named(rt, volatile, Options::simulated().name)
}

fn named(rt: &Rt, volatile: bool, name: String) -> Emulator {
    let mut geometry = furrow_zone::spec::parse_geometry(DRIVE).unwrap();
    geometry.volatile_cache = volatile;
    let medium = Medium::memory(&geometry);
    Emulator::new(rt, geometry, medium, Options { name, ..Options::simulated() }).unwrap()
}

async fn mounted(rt: &Rt, drive: &Emulator, order: Order) -> Result<Fs> {
    let device: Rc<dyn ZonedDevice> = Rc::new(drive.clone());
    Fs::format(rt, device.clone(), &MkfsOptions::default()).await?;
    Fs::mount(rt, device, quiet(order)).await
}

/// The range of zones from the first to the last for which `wanted` holds.
async fn area(fs: &Fs, wanted: impl Fn(&ZoneInfo) -> bool) -> (u32, u32) {
    let zones = fs.zone_map().await.unwrap();
    let first = zones.iter().position(&wanted).unwrap() as u32;
    let last = zones.iter().rposition(wanted).unwrap() as u32;
    (first, last + 1)
}

fn strike(drive: &Emulator, fault: Fault, (first, end): (u32, u32)) {
    let geometry = drive.geometry().clone();
    let start = geometry.start(ZoneId(first));
    let blocks = BlockCount(u64::from(end - first) * geometry.zone_size.0);
    drive.inject(fault.at_blocks(start, blocks)).unwrap();
}

fn holds_files(zone: &ZoneInfo) -> bool {
    use ZoneUse::{Data, Free, Node};
    matches!(zone.usage, Free | Data(_) | Node(_))
}

async fn write(fs: &Fs, name: &str, byte: u8, blocks: usize) -> Result<Ino> {
    let ino = fs.create(Ino::ROOT, name.as_bytes(), &NewNode::file()).await?.ino;
    fs.write(ino, WriteData::copy(fs.pool(), 0, &vec![byte; blocks * 4096])).await?;
    Ok(ino)
}

async fn holds(fs: &Fs, name: &str, byte: u8, blocks: usize) {
    let ino = fs.lookup(Ino::ROOT, name.as_bytes()).await.unwrap().ino;
    let found = fs.read(ino, 0, blocks * 4096).await.unwrap().to_vec();
    assert!(found == vec![byte; blocks * 4096], "{name}");
}

/// Checks that after a power cut the files are on the drive, and that fsck finds nothing.
fn check_left(drive: &Emulator, files: u8, blocks: usize) {
    let left = drive.snapshot().power_cut(&Fates::seeded(5));
    let rt = Rt::new(Config::shuffled(3));
    let drive = Emulator::from_snapshot(&rt, &left, Options::simulated());
    drive.clear_faults(None).unwrap();
    let device: Rc<dyn ZonedDevice> = Rc::new(drive);
    let on = rt.clone();
    rt.block_on(async move {
        let fs = Fs::mount(&on, device.clone(), quiet(Order::Queued)).await.unwrap();
        for n in 0..files {
            holds(&fs, &format!("f{n}"), n, blocks).await;
        }
        fs.unmount().await.unwrap();
        let report = furrow_fs::fsck(device, &FsckOptions::default()).await.unwrap();
        assert!(report.is_ok(), "{:?}", report.findings.first());
    });
    rt.clear();
}

/// Files are written and synced one after the other; no caller notices the failure of a zone.
#[test]
fn an_fsync_outlives_the_zone_it_was_written_to() {
    let mut struck = 0;
    for (case, kind) in KINDS.into_iter().enumerate() {
        for nth in [1, 2, 3, 5, 8, 13, 21, 34] {
            for order in [Order::Blocking, Order::Queued, Order::Append] {
                let volatile = (case as u64 + nth) % 2 == 1;
                let rt = Rt::new(Config::shuffled(nth));
                let name = format!("{kind}-{nth}-{order:?}");
                let drive = named(&rt, volatile, name.clone());
                let (on, device) = (rt.clone(), drive.clone());
                let failures = rt.block_on(async move {
                    let fs = mounted(&on, &device, order).await.unwrap();
                    let fault = Fault::new(kind).when(When::Nth(nth)).times(1);
                    strike(&device, fault, area(&fs, holds_files).await);
                    for n in 0..40u8 {
                        let ino = write(&fs, &format!("f{n}"), n, 9).await.unwrap();
                        let synced = fs.fsync(ino, false).await;
                        synced.unwrap_or_else(|e| panic!("{kind} {nth} {order:?}: {e}"));
                    }
                    for n in 0..40u8 {
                        holds(&fs, &format!("f{n}"), n, 9).await;
                    }
                    fs.counters().zone_failures
                });
                struck += u32::from(failures > 0);
                let told = told(&name);
                assert_eq!(told.len() as u64, failures, "{told:?}");
                assert!(told.iter().all(|line| line.contains(" failed: ")), "{told:?}");
                check_left(&drive, 40, 9);
                rt.clear();
            }
        }
    }
    // Some faults have no effect: a zone that is not active cannot become full.
    assert!(struck > 80, "{struck} of 96");
}

/// Many failures at the same time, repeatedly: each answered fsync is durable.
#[test]
fn zones_fail_again_and_again_under_many_clients() {
    for (seed, order) in [(1, Order::Queued), (2, Order::Append), (3, Order::Blocking)] {
        let rt = Rt::new(Config::shuffled(seed));
        let drive = drive(&rt, seed == 2);
        let (on, device) = (rt.clone(), drive.clone());
        let failures = rt.block_on(async move {
            let fs = mounted(&on, &device, order).await.unwrap();
            let place = area(&fs, holds_files).await;
            for kind in [FaultKind::WriteError, FaultKind::WriteTorn] {
                strike(&device, Fault::new(kind).when(When::Every(23)).times(6), place);
            }
            let clients: Vec<_> = (0..8u8)
                .map(|client| {
                    let fs = fs.clone();
                    on.spawn(async move {
                        for turn in 0..20u8 {
                            let n = client * 20 + turn;
                            let ino = write(&fs, &format!("f{n}"), n, 17).await.unwrap();
                            fs.fsync(ino, false).await.unwrap();
                        }
                    })
                })
                .collect();
            for client in clients {
                client.await;
            }
            fs.counters().zone_failures
        });
        assert!(failures > 5, "{failures}");
        check_left(&drive, 160, 17);
        rt.clear();
    }
}

/// The superzone that lost a zone is emptied; its content stays readable all the time.
#[test]
fn the_superzone_that_failed_is_emptied() {
    let rt = Rt::new(Config::shuffled(9));
    let drive = drive(&rt, false);
    let (on, device) = (rt.clone(), drive.clone());
    rt.block_on(async move {
        let fs = mounted(&on, &device, Order::Queued).await.unwrap();
        let ino = write(&fs, "f0", 0, 100).await.unwrap();
        fs.fsync(ino, false).await.unwrap();
        let fault = Fault::new(FaultKind::ZoneReadOnly).when(When::Nth(1)).times(1);
        strike(&device, fault, area(&fs, |zone| matches!(zone.usage, ZoneUse::Data(_))).await);
        let ino = write(&fs, "f1", 1, 100).await.unwrap();
        fs.fsync(ino, false).await.unwrap();
        assert_eq!(fs.counters().zone_failures, 1);
        while fs.counters().superzones_evacuated == 0 {
            holds(&fs, "f0", 0, 100).await;
            fs.rt().sleep(Nanos::MILLI).await;
        }
        fs.sync().await.unwrap();
        let retired = |zone: &&ZoneInfo| zone.usage == ZoneUse::Retired;
        let zones = fs.zone_map().await.unwrap();
        assert_eq!(zones.iter().filter(retired).count(), 1);
        assert_eq!(zones.iter().find(retired).unwrap().valid, 0);
        assert_eq!(fs.damaged_blocks(), Vec::<String>::new());
        holds(&fs, "f0", 0, 100).await;
        fs.unmount().await.unwrap();
    });
    check_left(&drive, 2, 100);
    rt.clear();
}

/// A zone of the sync log fails: records continue in the other half.
#[test]
fn the_sync_log_goes_on_in_its_other_half() {
    for kind in [FaultKind::WriteError, FaultKind::WriteTorn, FaultKind::ZoneFull] {
        for nth in [1, 2, 4, 9, 12] {
            let rt = Rt::new(Config::shuffled(nth));
            let drive = drive(&rt, nth == 2);
            let (on, device) = (rt.clone(), drive.clone());
            rt.block_on(async move {
                let fs = mounted(&on, &device, Order::Queued).await.unwrap();
                let first = write(&fs, "f0", 0, 5).await.unwrap();
                fs.fsync(first, false).await.unwrap();
                let zones = area(&fs, |zone| zone.usage == ZoneUse::SyncLog).await;
                strike(&device, Fault::new(kind).when(When::Nth(nth)).times(1), zones);
                for n in 1..30u8 {
                    let ino = write(&fs, &format!("f{n}"), n, 5).await.unwrap();
                    let synced = fs.fsync(ino, false).await;
                    synced.unwrap_or_else(|error| panic!("{kind} {nth}: {error}"));
                }
                assert_eq!(fs.counters().zone_failures, 1, "{kind} {nth}");
            });
            check_left(&drive, 30, 5);
            rt.clear();
        }
    }
}

/// The zones that fail here cannot be replaced: the engine stops, and acknowledged data is there.
#[test]
fn without_checkpoints_or_tables_the_engine_is_read_only() {
    for usage in [ZoneUse::Checkpoint, ZoneUse::DeltaLog] {
        let rt = Rt::new(Config::shuffled(4));
        let drive = drive(&rt, false);
        let (on, device) = (rt.clone(), drive.clone());
        rt.block_on(async move {
            let fs = mounted(&on, &device, Order::Queued).await.unwrap();
            let ino = write(&fs, "f0", 0, 5).await.unwrap();
            fs.fsync(ino, false).await.unwrap();
            let fault = Fault::new(FaultKind::WriteError).when(When::Nth(1)).times(1);
            strike(&device, fault, area(&fs, |zone| zone.usage == usage).await);
            let error = fs.sync().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            let refused = write(&fs, "f1", 1, 5).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
            holds(&fs, "f0", 0, 5).await;
            assert!(fs.unmount().await.is_err());
        });
        check_left(&drive, 1, 5);
        rt.clear();
    }
}
