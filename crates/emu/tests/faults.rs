//! Each fault has the effect that the table at the top of `zone/src/fault.rs` states, at its place
//! and time.
#![allow(clippy::disallowed_methods, reason = "images are files")]

use crate::common::*;
use furrow_emu::{Emulator, Fault, FaultKind, Medium, Options, Place, When, create_image, open};
use furrow_rt::{Config, Nanos, Rt};
use furrow_zone::spec::DeviceSpec;
use furrow_zone::{
    Access, Action, BlockCount, Command, ErrorKind, Geometry, Lba, QueueId, Request, Status,
    ZoneId, ZoneState, ZonedDevice,
};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn zone(drive: &Emulator, zone: u32) -> furrow_zone::ZoneReport {
    drive.report_now(ZoneId(zone), 1).expect("a drive that answers")[0]
}

fn faulty(fault: Fault) -> (Rt, Emulator) {
    let (rt, drive) = drive(&geometry());
    drive.inject(fault).expect("a fault that can be");
    (rt, drive)
}

#[test]
fn a_power_cut_strikes_at_its_command() {
    let (rt, drive) = faulty(Fault::new(FaultKind::PowerCut).when(When::Nth(3)));
    assert!(put(&rt, &drive, 0, 2, 10).is_ok());
    assert!(put(&rt, &drive, 2, 2, 20).is_ok());
    assert_eq!(put(&rt, &drive, 4, 4, 30), Status::InternalError);
    assert_eq!(put(&rt, &drive, 4, 1, 30), Status::InternalError);
    drive.power_on();
    let after = zone(&drive, 0);
    assert_eq!(after.state, ZoneState::Closed);
    assert!((4..=8).contains(&after.write_pointer.0), "{after:?}");
    assert_eq!(get(&rt, &drive, 0, 2), Ok(image_of(&geometry(), 10, 2)));
    assert!(drive.faults().is_empty());
}

#[test]
fn a_read_error_hits_its_blocks_and_no_others() {
    let fault = Fault::new(FaultKind::ReadError).at_blocks(Lba(3), BlockCount(2));
    let (rt, drive) = faulty(fault);
    assert!(put(&rt, &drive, 0, 8, 10).is_ok());
    for (lba, blocks) in [(3, 1), (4, 1), (0, 8), (4, 3)] {
        assert_eq!(get(&rt, &drive, lba, blocks), Err(Status::UnrecoveredRead));
    }
    for (lba, blocks) in [(0, 3), (5, 3)] {
        let expected = &image_of(&geometry(), 10, 8)[lba as usize * 4096..];
        let found = get(&rt, &drive, lba, blocks).expect("outside the range");
        assert!(found == expected[..blocks as usize * 4096]);
    }
}

#[test]
fn a_failed_read_gives_its_pages_back() {
    let (rt, drive) = faulty(Fault::new(FaultKind::ReadError));
    let request = Request::with_data(read(0, 4), pages(&geometry(), 4));
    assert_eq!(run(&rt, &drive, request).data.len(), 4);
}

#[test]
fn a_write_error_writes_nothing() {
    let fault = Fault::new(FaultKind::WriteError).at_zone(ZoneId(1)).times(2);
    let (rt, drive) = faulty(fault);
    assert!(put(&rt, &drive, 0, 2, 10).is_ok());
    assert_eq!(put(&rt, &drive, 64, 2, 20), Status::WriteFault);
    assert_eq!(zone(&drive, 1).state, ZoneState::Empty);
    let request = Request::with_data(append(64, 2), payload(&geometry(), 20, 2));
    assert_eq!(run(&rt, &drive, request).status, Status::WriteFault);
    assert!(put(&rt, &drive, 64, 2, 20).is_ok(), "twice, not more");
    assert!(drive.faults().is_empty(), "a fault that has ended is not listed");
}

#[test]
fn a_torn_write_leaves_the_pointer_anywhere_in_its_range() {
    let ends: BTreeSet<u64> = (0..60)
        .map(|seed| {
            let rt = Rt::new(Config::simulated(seed));
            let medium = Medium::memory(&geometry());
            let drive = Emulator::new(&rt, geometry(), medium, Options::simulated()).unwrap();
            drive.inject(Fault::new(FaultKind::WriteTorn).when(When::Nth(2))).unwrap();
            assert!(put(&rt, &drive, 0, 3, 10).is_ok());
            assert_eq!(put(&rt, &drive, 3, 4, 20), Status::WriteFault);
            let end = zone(&drive, 0).write_pointer.0;
            let mut expected = image_of(&geometry(), 20, 4);
            expected[(end - 3) as usize * 4096..].fill(0);
            assert_eq!(get(&rt, &drive, 3, 4), Ok(expected));
            assert!(put(&rt, &drive, end, 1, 30).is_ok(), "it goes on at the pointer");
            end
        })
        .collect();
    assert_eq!(ends, (3..=7).collect());
}

#[test]
fn zone_state_faults_of_a_zone_happen_at_once() {
    let (rt, drive) = drive(&geometry());
    for lba in [0, 64, 128] {
        assert!(put(&rt, &drive, lba, 4, 10).is_ok());
    }
    let kinds = [FaultKind::ZoneReadOnly, FaultKind::ZoneOffline, FaultKind::ZoneFull];
    for (index, kind) in (0..).zip(kinds) {
        drive.inject(Fault::new(kind).at_zone(ZoneId(index))).expect("an active zone");
    }
    assert!(drive.faults().is_empty());
    let states: Vec<ZoneState> = (0..3).map(|index| zone(&drive, index).state).collect();
    assert_eq!(states, [ZoneState::ReadOnly, ZoneState::Offline, ZoneState::Full]);
    let writes: Vec<Status> =
        [4, 68, 132].map(|lba| put(&rt, &drive, lba, 1, 10)).into_iter().collect();
    assert_eq!(writes, [Status::ZoneReadOnly, Status::ZoneOffline, Status::ZoneFull]);
    let data = image_of(&geometry(), 10, 4);
    assert_eq!(get(&rt, &drive, 0, 4), Ok(data.clone()));
    assert_eq!(get(&rt, &drive, 64, 4), Err(Status::ZoneOffline));
    assert_eq!(get(&rt, &drive, 128, 4), Ok(data));
    // A fault that cannot happen to its zone is refused with an error.
    let error = drive.inject(Fault::new(FaultKind::ZoneFull).at_zone(ZoneId(5))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("zone-full cannot happen at zone 5"), "{error}");
}

#[test]
fn a_zone_state_fault_may_wait_for_a_command() {
    let fault = Fault::new(FaultKind::ZoneReadOnly).at_zone(ZoneId(0)).when(When::Nth(2));
    let (rt, drive) = faulty(fault);
    assert!(put(&rt, &drive, 64, 1, 10).is_ok(), "another zone does not count");
    assert!(put(&rt, &drive, 0, 1, 10).is_ok());
    assert_eq!(put(&rt, &drive, 1, 1, 10), Status::ZoneReadOnly);
}

#[test]
fn a_drive_that_disappears_returns_after_its_commands() {
    let fault = Fault::new(FaultKind::Disappear { commands: Some(3) }).when(When::Nth(2));
    let (rt, drive) = faulty(fault);
    assert!(put(&rt, &drive, 0, 1, 10).is_ok());
    for _ in 0..3 {
        assert_eq!(put(&rt, &drive, 1, 1, 20), Status::InternalError);
    }
    assert!(put(&rt, &drive, 1, 1, 20).is_ok());
    drive.inject(Fault::new(FaultKind::Disappear { commands: None })).unwrap();
    for _ in 0..10 {
        assert_eq!(put(&rt, &drive, 2, 1, 20), Status::InternalError);
    }
    assert_eq!(drive.report_now(ZoneId(0), 1), Err(Status::InternalError));
    drive.power_on();
    assert!(put(&rt, &drive, 2, 1, 20).is_ok());
    assert_eq!(zone(&drive, 0).state, ZoneState::ImplicitlyOpen, "no power cycle");
}

#[test]
fn a_slow_drive_answers_late_and_has_done_it_already() {
    let slow = FaultKind::Slow { polls: 3, nanoseconds: 5 * Nanos::MICRO };
    let (rt, drive) = faulty(Fault::new(slow).when(When::Nth(1)));
    let data = payload(&geometry(), 10, 1);
    let late = drive.submit(QueueId(0), Request::with_data(write(0, 1), data));
    let data = payload(&geometry(), 20, 1);
    let soon = drive.submit(QueueId(0), Request::with_data(write(1, 1), data));
    assert!(rt.block_on(soon).status.is_ok(), "the second goes past the first");
    assert_eq!((rt.now(), pointer(&drive, 0)), (Nanos(0), 2));
    assert!(rt.block_on(late).status.is_ok());
    assert_eq!(rt.now(), Nanos(5 * Nanos::MICRO));
}

#[test]
fn appends_land_in_another_order_and_say_where() {
    let mut orders = BTreeSet::new();
    for seed in 0..40 {
        let rt = Rt::new(Config::simulated(seed));
        let medium = Medium::memory(&geometry());
        let drive = Emulator::new(&rt, geometry(), medium, Options::simulated()).unwrap();
        drive.inject(Fault::new(FaultKind::ReorderAppends)).unwrap();
        let waiting: Vec<_> = (0..4)
            .map(|tag| {
                let data = payload(&geometry(), 10 * tag, 1);
                drive.submit(QueueId(0), Request::with_data(append(0, 1), data))
            })
            .collect();
        let landed: Vec<u64> = waiting
            .into_iter()
            .map(|completion| rt.block_on(completion))
            .map(|outcome| {
                assert!(outcome.status.is_ok());
                outcome.lba.0
            })
            .collect();
        for (tag, lba) in (0..4).zip(&landed) {
            assert_eq!(get(&rt, &drive, *lba, 1), Ok(image_of(&geometry(), 10 * tag, 1)));
        }
        orders.insert(landed);
    }
    assert!(orders.len() > 8, "{orders:?}");
    assert!(orders.iter().all(|order| order.iter().collect::<BTreeSet<_>>().len() == 4));
}

fn bits_apart(a: &[u8], b: &[u8]) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum()
}

#[test]
fn one_bit_of_a_stored_block_flips_and_stays_flipped() {
    let (rt, drive) = drive(&geometry());
    assert!(put(&rt, &drive, 0, 4, 10).is_ok());
    let before = drive.snapshot();
    drive.inject(Fault::new(FaultKind::BitFlip).at_blocks(Lba(2), BlockCount(1))).unwrap();
    let good = image_of(&geometry(), 10, 4);
    let found = get(&rt, &drive, 0, 4).expect("silent");
    assert_eq!(bits_apart(&found, &good), 1);
    assert_eq!(bits_apart(&found[2 * 4096..3 * 4096], &good[2 * 4096..3 * 4096]), 1);
    assert_eq!(get(&rt, &drive, 0, 4), Ok(found));
    let rt2 = Rt::new(Config::simulated(2));
    let copy = Emulator::from_snapshot(&rt2, &before, Options::simulated());
    assert_eq!(get(&rt2, &copy, 0, 4), Ok(good), "the snapshot is as it was");
    // The first flip strikes a write, the second one a read.
    drive.inject(Fault::new(FaultKind::BitFlip)).unwrap();
    assert!(put(&rt, &drive, 64, 2, 30).is_ok());
    let found = get(&rt, &drive, 64, 2).expect("silent");
    assert_eq!(bits_apart(&found, &image_of(&geometry(), 30, 2)), 1);
    // Blocks that were never written have no bit to flip.
    let error = drive.inject(Fault::new(FaultKind::BitFlip).at_blocks(Lba(200), BlockCount(4)));
    assert!(error.unwrap_err().to_string().contains("Unwritten"));
}

#[test]
fn every_kth_and_one_in_n_strike_as_often_as_they_say() {
    let (rt, drive) = faulty(Fault::new(FaultKind::ReadError).when(When::Every(3)));
    let failed: Vec<bool> = (0..9).map(|_| get(&rt, &drive, 0, 1).is_err()).collect();
    assert_eq!(failed, [false, false, true, false, false, true, false, false, true]);
    let (rt, drive) = faulty(Fault::new(FaultKind::ReadError).when(When::OneIn(4)));
    let failed = (0..400).filter(|_| get(&rt, &drive, 0, 1).is_err()).count();
    assert!((60..140).contains(&failed), "{failed} of 400");
}

#[test]
fn faults_are_checked_listed_and_cleared() {
    let (rt, drive) = drive(&geometry());
    let outside = [
        Fault::new(FaultKind::ReadError).at_zone(ZoneId(8)),
        Fault::new(FaultKind::ReadError).at_blocks(Lba(8 * 64), BlockCount(1)),
        Fault::new(FaultKind::ReadError).at_blocks(Lba(0), BlockCount(0)),
    ];
    for fault in outside {
        assert_eq!(drive.inject(fault).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let first = Fault::new(FaultKind::ReadError);
    let second = Fault::new(FaultKind::WriteError).when(When::Nth(9));
    drive.inject(first).unwrap();
    drive.inject(second).unwrap();
    assert_eq!(drive.faults(), [first, second]);
    drive.clear_faults(Some(0)).unwrap();
    assert_eq!(drive.faults(), [second]);
    assert_eq!(drive.clear_faults(Some(1)).unwrap_err().kind(), ErrorKind::NotFound);
    drive.clear_faults(None).unwrap();
    assert!(put(&rt, &drive, 0, 1, 10).is_ok());
    for _ in 0..furrow_zone::fault::MAX_FAULTS {
        drive.inject(first).unwrap();
    }
    assert_eq!(drive.inject(first).unwrap_err().kind(), ErrorKind::NoSpace);
}

fn open_image(path: &Path) -> (Rt, Emulator) {
    let rt = Rt::new(Config::simulated(3));
    let spec: DeviceSpec = path.display().to_string().parse().expect("a plain path");
    let drive = open(&rt, &spec, Access::ReadWrite).expect("an image");
    (rt, (*drive).clone())
}

/// Faults that an image gets while it is not in use take effect when it is used, count down across
/// uses, and have permanent effects.
#[test]
fn an_image_keeps_its_faults() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("faults.zns");
    create_image(&path, &geometry(), true).unwrap();
    let every: Vec<Fault> = [
        FaultKind::WriteTorn,
        FaultKind::Disappear { commands: Some(7) },
        FaultKind::Disappear { commands: None },
        FaultKind::Slow { polls: 2, nanoseconds: 77 },
        FaultKind::ReorderAppends,
        FaultKind::PowerCut,
        FaultKind::ZoneOffline,
    ]
    .into_iter()
    .map(|kind| Fault::new(kind).when(When::Nth(1_000_000)))
    .chain([
        Fault::new(FaultKind::WriteError).at_zone(ZoneId(1)).times(2),
        Fault::new(FaultKind::ReadError).at_blocks(Lba(5), BlockCount(2)).when(When::OneIn(9)),
        Fault::new(FaultKind::BitFlip).when(When::Every(1 << 40)),
    ])
    .collect();
    let (rt, drive) = open_image(&path);
    every.iter().for_each(|fault| drive.inject(*fault).unwrap());
    assert!(put(&rt, &drive, 128, 1, 10).is_ok());
    drive.inject(Fault::new(FaultKind::ZoneReadOnly).at_zone(ZoneId(2))).unwrap();
    rt.clear();
    drop(drive);

    let (rt, drive) = open_image(&path);
    let kept = drive.faults();
    assert_eq!(kept.len(), every.len());
    for (kept, fault) in kept.iter().zip(&every) {
        assert_eq!((kept.kind, kept.place, kept.when), (fault.kind, fault.place, fault.when));
    }
    assert_eq!(zone(&drive, 2).state, ZoneState::ReadOnly);
    assert_eq!(put(&rt, &drive, 64, 1, 10), Status::WriteFault);
    rt.clear();
    drop(drive);

    let (rt, drive) = open_image(&path);
    assert_eq!(put(&rt, &drive, 64, 1, 10), Status::WriteFault);
    assert!(put(&rt, &drive, 64, 1, 10).is_ok(), "twice in all");
    drive.clear_faults(None).unwrap();
    rt.clear();
    drop(drive);
    assert!(open_image(&path).1.faults().is_empty());
    // The last handle was dropped, and the lock with it.
    open_image(&path);
}

/// A power cut of a drive in an image affects the image: the state after the cut is found when the
/// image is opened again.
#[test]
fn a_power_cut_of_an_image_is_found_when_it_is_opened() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("power.zns");
    let geometry = Geometry { volatile_cache: true, ..geometry() };
    create_image(&path, &geometry, true).unwrap();
    let (rt, drive) = open_image(&path);
    assert!(put(&rt, &drive, 0, 4, 10).is_ok());
    assert!(run(&rt, &drive, Request::bare(Command::Flush)).status.is_ok());
    assert!(put(&rt, &drive, 4, 4, 20).is_ok());
    let open_zone = manage(3, Action::Open, &geometry);
    assert!(run(&rt, &drive, Request::bare(open_zone)).status.is_ok());
    let lost =
        furrow_emu::Fates { commands: None, unflushed: furrow_emu::Unflushed::Lost, seed: 0 };
    drive.power_cut(&lost);
    rt.clear();
    drop(drive);
    let (rt, drive) = open_image(&path);
    let after = zone(&drive, 0);
    assert_eq!((after.state, after.write_pointer), (ZoneState::Closed, BlockCount(4)));
    assert_eq!(zone(&drive, 3).state, ZoneState::Empty);
    let mut expected = image_of(&geometry, 10, 4);
    expected.extend([0; 4 * 4096]);
    assert_eq!(get(&rt, &drive, 0, 8), Ok(expected));
    rt.clear();
}

#[test]
fn places_and_moments_read_as_sentences() {
    let fault = Fault::new(FaultKind::Disappear { commands: Some(3) })
        .at_blocks(Lba(7), BlockCount(2))
        .when(When::Every(5));
    let shown = format!("{}; {}; {}", fault.kind, fault.place, fault.when);
    assert_eq!(shown, "disappear for 3 commands; blocks 7+2; one command in every 5");
    assert_eq!(Place::Zone(ZoneId(3)).to_string(), "zone 3");
}
