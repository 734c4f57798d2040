//! Snapshots are independent of the drive they were taken of, and a power cut leaves the state that
//! the fates of the commands in flight determine.

use crate::common::*;
use furrow_emu::{Emulator, Fate, Fates, Medium, Options, Parts, Plain, Unflushed};
use furrow_rt::{Config, Page, Pages, Rt};
use furrow_zone::{
    Action, BlockCount, Command, Geometry, Lba, PlainDevice, QueueId, Request, Status, ZoneId,
    ZoneState, ZonedDevice,
};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

#[test]
fn a_snapshot_and_its_drive_do_not_see_each_others_writes() {
    let geometry = geometry();
    let (rt, drive) = drive(&geometry);
    assert!(put(&rt, &drive, 0, 4, 10).is_ok());
    let snapshot = drive.snapshot();
    assert!(put(&rt, &drive, 4, 4, 20).is_ok());
    let rt2 = Rt::new(Config::simulated(2));
    let copy = Emulator::from_snapshot(&rt2, &snapshot, Options::simulated());
    assert!(put(&rt2, &copy, 4, 2, 31).is_ok());
    assert_eq!((pointer(&drive, 0), pointer(&copy, 0)), (8, 6));
    assert_eq!(get(&rt, &drive, 4, 4), Ok(image_of(&geometry, 20, 4)));
    assert_eq!(get(&rt2, &copy, 4, 2), Ok(image_of(&geometry, 31, 2)));
    let reset = manage(0, Action::Reset, &geometry);
    assert!(run(&rt2, &copy, Request::bare(reset)).status.is_ok());
    assert_eq!(get(&rt, &drive, 0, 4), Ok(image_of(&geometry, 10, 4)));
    let again = Emulator::from_snapshot(&rt2, &snapshot, Options::simulated());
    assert_eq!(get(&rt2, &again, 0, 4), Ok(image_of(&geometry, 10, 4)));
    assert_eq!(pointer(&again, 0), 4);
}

/// Some zones are set back to an older state; the other zones and the older snapshot do not change.
#[test]
fn zones_that_are_put_back_are_what_they_were() {
    for volatile in [false, true] {
        let geometry = Geometry { volatile_cache: volatile, ..geometry() };
        let (rt, drive) = drive(&geometry);
        assert!(put(&rt, &drive, 0, 4, 10).is_ok());
        let image = drive.snapshot();
        assert!(put(&rt, &drive, 4, 4, 20).is_ok() && put(&rt, &drive, 64, 4, 30).is_ok());
        drive.put_back(&image, 0..1).expect("nothing is in flight");
        assert_eq!((pointer(&drive, 0), pointer(&drive, 1)), (4, 4));
        assert_eq!(get(&rt, &drive, 0, 4), Ok(image_of(&geometry, 10, 4)));
        assert_eq!(get(&rt, &drive, 64, 4), Ok(image_of(&geometry, 30, 4)));
        let after = drive.snapshot().power_cut(&Fates::nothing(1));
        assert_eq!(after.report()[0].write_pointer.0, 4, "it is durable");
        assert!(put(&rt, &drive, 4, 2, 40).is_ok());
        drive.put_back(&image, 1..2).expect("nothing is in flight");
        assert_eq!((pointer(&drive, 0), pointer(&drive, 1)), (6, 0));
        let pending =
            drive.submit(QueueId(0), Request::with_data(write(6, 1), payload(&geometry, 1, 1)));
        assert!(drive.put_back(&image, 0..1).is_err(), "a command is in flight");
        drop(pending);
    }
}

/// Two writes to zone 0 in one queue and one write to zone 1 in another, all in flight.
fn three_in_flight(geometry: &Geometry) -> (Rt, Emulator) {
    let (rt, drive) = drive(geometry);
    for (queue, lba, tag) in [(0, 0, 10), (0, 4, 20), (1, 64, 30)] {
        let data = payload(geometry, tag, 4);
        drop(drive.submit(QueueId(queue), Request::with_data(write(lba, 4), data)));
    }
    (rt, drive)
}

#[test]
fn every_combination_of_fates_leaves_what_it_says() {
    let geometry = geometry();
    let (_rt, drive) = three_in_flight(&geometry);
    let snapshot = drive.snapshot();
    let all = Fates::combinations(&snapshot.in_flight(), 5);
    assert_eq!(all.len(), 27);
    for fates in all {
        let after = snapshot.power_cut(&fates);
        let commands = fates.commands.clone().expect("combinations are explicit");
        let blocks = |fate: Fate| match fate {
            Fate::NotStarted => 0,
            Fate::Torn(done) => done,
            Fate::Done => 4,
        };
        let first = blocks(commands[0]);
        let zone0 = if first == 4 { 4 + blocks(commands[1]) } else { first };
        let zone1 = blocks(commands[2]);
        let report = after.report();
        for (zone, expected) in [(0, zone0), (1, zone1)] {
            assert_eq!(report[zone].write_pointer.0, expected, "{fates:?}");
            let state = if expected > 0 { ZoneState::Closed } else { ZoneState::Empty };
            assert_eq!(report[zone].state, state, "{fates:?}");
        }
        let rt = Rt::new(Config::simulated(3));
        let drive = Emulator::from_snapshot(&rt, &after, Options::simulated());
        let mut expected = image_of(&geometry, 10, 4);
        expected.extend(image_of(&geometry, 20, 4));
        expected[zone0 as usize * 4096..].fill(0);
        assert_eq!(get(&rt, &drive, 0, 8), Ok(expected), "{fates:?}");
        rt.clear();
    }
}

#[test]
fn seeded_fates_reach_every_end_and_only_allowed_ones() {
    let (_rt, drive) = three_in_flight(&geometry());
    let snapshot = drive.snapshot();
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..3000 {
        let report = snapshot.power_cut(&Fates::seeded(seed)).report();
        seen.insert((report[0].write_pointer.0, report[1].write_pointer.0));
    }
    // Zone 0 ends at 0..=8 and zone 1 at 0..=4, independently of each other.
    assert!(seen.iter().all(|&(a, b)| a <= 8 && b <= 4));
    assert_eq!(seen.len(), 9 * 5, "{seen:?}");
}

#[test]
fn a_volatile_cache_loses_only_what_no_flush_covered() {
    let geometry = Geometry { volatile_cache: true, ..geometry() };
    let (rt, drive) = drive(&geometry);
    assert!(put(&rt, &drive, 0, 6, 10).is_ok());
    // A flush covers only writes that were done before its submission. So it does not cover `late`,
    // although `late` is carried out before the flush.
    let late = payload(&geometry, 50, 2);
    let reserve_block = drive.submit(QueueId(0), Request::with_data(write(6, 2), late));
    let flush = drive.submit(QueueId(0), Request::bare(Command::Flush));
    rt.block_on(async move { (reserve_block.await.status, flush.await.status) });
    assert!(put(&rt, &drive, 8, 3, 20).is_ok());
    let lost = Fates { commands: None, unflushed: Unflushed::Lost, seed: 1 };
    let kept = Fates { commands: None, unflushed: Unflushed::Kept, seed: 1 };
    let snapshot = drive.snapshot();
    assert_eq!(snapshot.power_cut(&lost).report()[0].write_pointer.0, 6);
    assert_eq!(snapshot.power_cut(&kept).report()[0].write_pointer.0, 11);
    let ends: std::collections::BTreeSet<u64> = (0..100)
        .map(|seed| snapshot.power_cut(&Fates::seeded(seed)).report()[0].write_pointer.0)
        .collect();
    assert_eq!(ends, (6..=11).collect());
    // With FUA a write is durable without a flush, and so are the earlier blocks of the zone.
    let mut fua = Request::with_data(write(11, 1), payload(&geometry, 60, 1));
    fua.fua = true;
    assert!(run(&rt, &drive, fua).status.is_ok());
    let after = drive.snapshot().power_cut(&lost);
    assert_eq!(after.report()[0].write_pointer.0, 12);
    // Blocks that survived a cut are durable from then on.
    assert_eq!(after.power_cut(&lost).report()[0].write_pointer.0, 12);
}

#[test]
fn a_reset_of_a_zone_voids_the_flush_in_flight_for_it() {
    let geometry = Geometry { volatile_cache: true, ..geometry() };
    let (rt, drive) = drive(&geometry);
    assert!(put(&rt, &drive, 0, 6, 10).is_ok());
    let reset = manage(0, Action::Reset, &geometry);
    let reset = drive.submit(QueueId(0), Request::bare(reset));
    let data = payload(&geometry, 20, 6);
    let again = drive.submit(QueueId(0), Request::with_data(write(0, 6), data));
    let flush = drive.submit(QueueId(0), Request::bare(Command::Flush));
    rt.block_on(async move { (reset.await.status, again.await.status, flush.await.status) });
    assert_eq!(pointer(&drive, 0), 6);
    let lost = Fates { commands: None, unflushed: Unflushed::Lost, seed: 1 };
    assert_eq!(drive.snapshot().power_cut(&lost).report()[0].write_pointer.0, 0);
}

#[test]
fn the_observer_sees_each_command_in_flight_and_may_fork_there() {
    let (rt, drive) = three_in_flight(&geometry());
    let seen = Rc::new(RefCell::new(Vec::new()));
    let theirs = seen.clone();
    drive.set_observer(Rc::new(move |drive, info| {
        assert!(drive.in_flight().contains(info));
        let snapshot = drive.snapshot();
        let written: u64 = snapshot.report().iter().map(|zone| zone.write_pointer.0).sum();
        theirs.borrow_mut().push((drive.in_flight_len(), written));
    }));
    rt.run_ready();
    assert_eq!(*seen.borrow(), [(3, 0), (2, 4), (1, 8)]);
    drive.clear_observer();
    assert_eq!(drive.in_flight_len(), 0);
}

#[test]
fn a_power_cut_in_place_answers_what_was_in_flight_and_stays_dark() {
    let geometry = geometry();
    let (rt, drive) = drive(&geometry);
    let data = payload(&geometry, 10, 4);
    let first = drive.submit(QueueId(0), Request::with_data(write(0, 4), data));
    drive.power_cut(&Fates::of(vec![Fate::Torn(3)], 0));
    assert_eq!(rt.block_on(first).status, Status::InternalError);
    assert_eq!(drive.report_now(ZoneId(0), 1), Err(Status::InternalError));
    assert_eq!(put(&rt, &drive, 64, 1, 1), Status::InternalError);
    drive.power_on();
    let report = drive.report_now(ZoneId(0), 1).expect("power is on");
    assert_eq!(report[0].write_pointer, BlockCount(3));
    assert_eq!(report[0].state, ZoneState::Closed);
    assert!(put(&rt, &drive, 3, 1, 7).is_ok());
}

/// The drive had given a torn append all of its blocks: a later append cannot begin within them.
#[test]
fn an_append_behind_a_torn_one_is_not_started() {
    let geometry = geometry();
    let (_rt, drive) = drive(&geometry);
    for zone in [0, 0, 64] {
        let data = payload(&geometry, 0, 4);
        drop(drive.submit(QueueId(0), Request::with_data(append(zone, 4), data)));
    }
    let written = |fates: [Fate; 3]| {
        let report = drive.snapshot().power_cut(&Fates::of(fates.to_vec(), 0)).report();
        [report[0].write_pointer.0, report[1].write_pointer.0]
    };
    assert_eq!(written([Fate::Torn(3), Fate::Done, Fate::Done]), [3, 4]);
    assert_eq!(written([Fate::Torn(3), Fate::Torn(1), Fate::Done]), [3, 4]);
    assert_eq!(written([Fate::Done, Fate::Torn(3), Fate::Done]), [7, 4]);
    assert_eq!(written([Fate::NotStarted, Fate::Done, Fate::NotStarted]), [4, 0]);
}

#[test]
fn one_seed_gives_one_run_and_shuffling_keeps_each_queues_order() {
    let order = |seed: u64| {
        let rt = Rt::new(Config::shuffled(seed));
        let geometry = geometry();
        let medium = furrow_emu::Medium::memory(&geometry);
        let drive = Emulator::new(&rt, geometry.clone(), medium, Options::simulated()).unwrap();
        let seen = Rc::new(RefCell::new(Vec::new()));
        let theirs = seen.clone();
        drive.set_observer(Rc::new(move |_, info| {
            theirs.borrow_mut().push((info.queue.0, info.sequence));
        }));
        for round in 0..4 {
            for queue in 0..3 {
                let lba = u64::from(queue) * 64 + round;
                let data = payload(&geometry, lba, 1);
                drop(drive.submit(QueueId(queue), Request::with_data(write(lba, 1), data)));
            }
        }
        rt.run_ready();
        assert_eq!(drive.counters().failed, 0, "each queue's writes stay in order");
        let seen = seen.borrow().clone();
        (seen, rt.event_hash())
    };
    assert_eq!(order(1), order(1));
    let orders: std::collections::BTreeSet<_> = (0..10).map(|seed| order(seed).0).collect();
    assert!(orders.len() > 5, "the seed decides the order across queues");
}

/// Any unflushed sectors of a plain drive may survive, even from the second of two writes without
/// the first; flushed sectors survive completely.
#[test]
fn a_plain_drive_loses_any_sectors_that_were_not_flushed() {
    const SECTORS: u64 = 64;
    let rt = Rt::new(Config::simulated(1));
    let geometry = Plain::geometry(SECTORS * 512, true);
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(&rt, geometry, medium, Options::simulated()).expect("valid");
    let plain = Plain::new(&rt, Rc::new(drive.clone()));
    let fill = |byte: u8| (0..8).map(|_| Page::from_slice(&[byte; 4096])).collect::<Pages>();
    let write = |byte| assert!(rt.block_on(plain.write(0, fill(byte), 0)).status.is_ok());
    write(1);
    assert!(rt.block_on(plain.flush()).status.is_ok());
    write(2);
    write(3);
    let snapshot = drive.snapshot();
    let mut seen = [false; 4];
    let mut mixed = 0;
    for seed in 0..60 {
        let all = [Unflushed::Lost, Unflushed::Kept, Unflushed::Seeded, Unflushed::Cached];
        for unflushed in all {
            let fates = Fates { commands: None, unflushed, seed };
            let rt = Rt::new(Config::simulated(2));
            let mut after = snapshot.power_cut(&fates);
            if unflushed == Unflushed::Cached {
                // First the program is killed, then the power fails.
                after = after.power_cut(&Fates { unflushed: Unflushed::Lost, ..fates });
            }
            let drive = Emulator::from_snapshot(&rt, &after, Options::simulated());
            let plain = Plain::new(&rt, Rc::new(drive));
            let pages = rt.block_on(plain.read(0, fill(9))).data;
            let bytes = pages.iter().flat_map(|page| page.chunks(512).map(|sector| sector[7]));
            let bytes: Vec<u8> = bytes.collect();
            match unflushed {
                Unflushed::Lost | Unflushed::Cached => {
                    assert!(bytes.iter().all(|byte| *byte == 1));
                }
                Unflushed::Kept => assert!(bytes.iter().all(|byte| *byte == 3)),
                Unflushed::Seeded => {
                    bytes.iter().for_each(|byte| seen[usize::from(*byte)] = true);
                    mixed += u32::from(bytes.iter().any(|byte| *byte != bytes[0]));
                }
            }
        }
    }
    assert_eq!(seen, [false, true, true, true]);
    assert!(mixed > 10, "{mixed}");
}

/// A drive that stands for two drives has two caches: a flush covers one, and a power cut draws a
/// fate for each.
#[test]
fn parts_of_a_drive_have_caches_of_their_own() {
    let rt = Rt::new(Config::simulated(1));
    let geometry = Geometry { volatile_cache: true, ..Geometry::unlimited(4, 16, 16) };
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(&rt, geometry, medium, Options::simulated()).expect("valid");
    drive.split_cache(Parts { zones: 2, queues: 16 });
    let sent = |queue, request| rt.block_on(drive.submit(QueueId(queue), request)).status;
    for (queue, lba) in [(0, 0), (1, 16), (16, 32), (17, 48)] {
        let command = Command::Write { lba: Lba(lba), blocks: BlockCount(1) };
        let data = Pages::from_iter([Page::zeroed()]);
        assert!(sent(queue, Request::with_data(command, data)).is_ok());
    }
    let written = |fates: &Fates| {
        let reports = drive.snapshot().power_cut(fates).report();
        reports.iter().map(|report| report.write_pointer.0).collect::<Vec<_>>()
    };
    let lost = Fates { commands: None, unflushed: Unflushed::Lost, seed: 1 };
    assert_eq!(written(&lost), [0, 0, 0, 0]);
    let seeded = |seed| Fates { commands: None, unflushed: Unflushed::Seeded, seed };
    let ends: BTreeSet<Vec<u64>> = (0..60).map(|seed| written(&seeded(seed))).collect();
    assert!(ends.contains([0, 0, 1, 1].as_slice()) && ends.contains([1, 1, 0, 0].as_slice()));
    assert!(sent(17, Request::bare(Command::Flush)).is_ok());
    assert_eq!(written(&lost), [0, 0, 1, 1]);
}

/// Each read of a discarded sector may return something else, until the sector is written.
#[test]
fn a_discarded_sector_changes_from_read_to_read() {
    let rt = Rt::new(Config::simulated(1));
    let geometry = Plain::geometry(64 * 512, true);
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(&rt, geometry, medium, Options::simulated()).expect("valid");
    let plain = Plain::new(&rt, Rc::new(drive));
    let page = |byte: u8| Pages::from_iter([Page::from_slice(&[byte; 4096])]);
    assert!(rt.block_on(plain.write(4096, page(7), 0)).status.is_ok());
    assert!(rt.block_on(plain.discard(4096, 4096)).status.is_ok());
    let read = || rt.block_on(plain.read(4096, page(9))).data[0].bytes().to_vec();
    let reads: Vec<Vec<u8>> = (0..20).map(|_| read()).collect();
    assert!(reads.iter().any(|bytes| *bytes != reads[0]));
    assert!(rt.block_on(plain.write(4096, page(7), 0)).status.is_ok());
    assert!((0..20).all(|_| read().iter().all(|byte| *byte == 7)));
}
