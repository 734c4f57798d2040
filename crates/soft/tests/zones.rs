//! Soft zones on an emulated plain drive: the rules of zones, flushes, power cuts, damage.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::conformance;
use furrow_emu::{Emulator, Fates, Medium, Options, Plain, Snapshot, Unflushed};
use furrow_log::Uuid;
use furrow_policy::SoftVariant;
use furrow_rt::{Config, Nanos, Page, Pages, Rt};
use furrow_soft::{MakeOptions, SoftDrive, make};
use furrow_zone::{
    Access, Action, BlockCount, ByteLen, Command, Error, ErrorKind, Fault, FaultKind, Lba,
    PlainDevice, QueueId, Request, Status, Target, ZoneId, ZoneState, ZonedDevice,
};
use std::rc::Rc;

const BYTES: u64 = 6 << 20;
pub(crate) const ZONE: u64 = 128 << 10;
pub(crate) const BLOCKS: u64 = ZONE / 4096;

pub(crate) fn on<T: 'static>(
    config: Config,
    start: Option<&Snapshot>,
    work: impl AsyncFnOnce(Rt, Emulator) -> T + 'static,
) -> T {
    let rt = Rt::new(config);
    let drive = match start {
        Some(snapshot) => Emulator::from_snapshot(&rt, snapshot, Options::simulated()),
        None => {
            let geometry = Plain::geometry(BYTES, true);
            let medium = Medium::memory(&geometry);
            Emulator::new(&rt, geometry, medium, Options::simulated()).unwrap()
        }
    };
    let engine = rt.clone();
    let done = rt.block_on(async move { work(engine, drive).await });
    rt.clear();
    done
}

pub(crate) async fn made(rt: &Rt, drive: &Emulator, records: u32) -> SoftDrive {
    made_of(rt, drive, ZONE, records).await
}

pub(crate) async fn made_of(rt: &Rt, drive: &Emulator, zone: u64, records: u32) -> SoftDrive {
    let plain = Plain::new(rt, Rc::new(drive.clone()));
    let options = MakeOptions { zone: ByteLen(zone), records: Some(records), uuid: Uuid([7; 16]) };
    make(&plain, &options).await.unwrap();
    opened(rt, drive, Access::ReadWrite).await.unwrap()
}

pub(crate) async fn opened(rt: &Rt, drive: &Emulator, access: Access) -> Result<SoftDrive, Error> {
    let plain = Rc::new(Plain::new(rt, Rc::new(drive.clone())));
    SoftDrive::open(rt, plain, access, SoftVariant::default()).await
}

pub(crate) fn write(zone: u64, from: u64, blocks: u64, fill: u8) -> Request {
    write_at(zone * BLOCKS + from, blocks, fill)
}

pub(crate) fn write_at(lba: u64, blocks: u64, fill: u8) -> Request {
    let data: Pages = (0..blocks).map(|_| Page::from_slice(&[fill; 4096])).collect();
    let command = Command::Write { lba: Lba(lba), blocks: BlockCount(blocks) };
    Request::with_data(command, data)
}

pub(crate) fn manage(zone: u64, action: Action) -> Request {
    Request::bare(Command::Manage { target: Target::Zone(Lba(zone * BLOCKS)), action })
}

pub(crate) async fn sent(drive: &SoftDrive, request: Request) -> Status {
    drive.submit(QueueId(0), request).await.status
}

pub(crate) async fn read(drive: &SoftDrive, zone: u64, block: u64) -> Result<u8, Status> {
    let command = Command::Read { lba: Lba(zone * BLOCKS + block), blocks: BlockCount(1) };
    let pages = Pages::from_iter([Page::zeroed()]);
    let outcome = drive.submit(QueueId(0), Request::with_data(command, pages)).await;
    match outcome.status {
        Status::Success => Ok(outcome.data[0][17]),
        status => Err(status),
    }
}

pub(crate) async fn zone(drive: &SoftDrive, zone: u32) -> (ZoneState, u64) {
    let report = drive.report(ZoneId(zone), 1).await.unwrap()[0];
    (report.state, report.write_pointer.0)
}

#[test]
fn soft_zones_obey_the_rules_of_zones() {
    for seed in 0..4 {
        on(Config::shuffled(seed), None, async move |rt, drive| {
            let soft = made(&rt, &drive, 5).await;
            let found = conformance::run(&soft, seed, 1500, 1).await.unwrap();
            assert_eq!(found.cases().1, 0, "{}", found.table().join("\n"));
            assert!(found.commands() > 1500);
        });
    }
}

#[test]
fn a_flush_is_one_flush_of_the_drive_and_none_if_nothing_is_new() {
    on(Config::simulated(1), None, async |rt, drive| {
        let soft = made(&rt, &drive, 64).await;
        let (before, writes) = (soft.flushes(), drive.counters().writes);
        for round in 0..10 {
            assert!(sent(&soft, write(3, round, 1, 1)).await.is_ok());
            assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        }
        assert_eq!(soft.flushes() - before, 10);
        assert_eq!(drive.counters().writes - writes, 20, "ten writes, ten records");
        assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        assert_eq!(soft.flushes() - before, 10);
        // Flushes that are requested together are one flush.
        let all: Vec<_> = (0..5)
            .flat_map(|zone| {
                let fua = Request { fua: true, ..write(10 + zone, 0, 2, 1) };
                [soft.submit(QueueId(0), fua), soft.submit(QueueId(0), write(20 + zone, 0, 1, 1))]
            })
            .collect();
        for one in all {
            assert!(one.await.status.is_ok());
        }
        assert!(soft.flushes() - before <= 12, "{}", soft.flushes() - before);
    });
}

/// A record for every 64 MiB bounds what recovery has to read, and what a power cut can lose.
#[test]
fn without_a_flush_there_is_a_record_every_64_mib() {
    const MIB: u64 = 1 << 20;
    // Writes have 64 KiB each.
    const EVERY: u64 = 64 * MIB / (64 << 10);
    let rt = Rt::new(Config::simulated(1));
    let geometry = Plain::geometry(80 * MIB, true);
    let medium = Medium::memory(&geometry);
    let drive = Emulator::new(&rt, geometry, medium, Options::simulated()).unwrap();
    let engine = rt.clone();
    let snapshot = rt.block_on(async move {
        let soft = made_of(&engine, &drive, MIB, 64).await;
        let before = soft.flushes();
        let page = Page::from_slice(&[7; 4096]);
        for number in 0..EVERY {
            assert_eq!(soft.flushes(), before, "after {number} writes");
            let command = Command::Write { lba: Lba(number * 16), blocks: BlockCount(16) };
            let data = (0..16).map(|_| page.clone()).collect();
            assert!(sent(&soft, Request::with_data(command, data)).await.is_ok());
        }
        engine.sleep(Nanos::SECOND).await;
        assert_eq!(soft.flushes(), before + 1);
        drive.snapshot()
    });
    rt.clear();
    on(Config::simulated(2), Some(&snapshot.power_cut(&Fates::nothing(1))), async |rt, drive| {
        let soft = opened(&rt, &drive, Access::ReadOnly).await.unwrap();
        for number in 0..64 {
            assert_eq!(zone(&soft, number).await, (ZoneState::Full, MIB / 4096));
        }
    });
}

#[test]
fn a_power_cut_keeps_what_was_flushed_and_a_prefix_of_the_rest() {
    for (fate, seed) in [(Unflushed::Lost, 1), (Unflushed::Kept, 2), (Unflushed::Seeded, 3)] {
        let snapshot = on(Config::shuffled(seed), None, async |rt, drive| {
            let soft = made(&rt, &drive, 8).await;
            assert!(sent(&soft, write(0, 0, 4, 9)).await.is_ok());
            assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
            assert!(sent(&soft, write(0, 4, 4, 8)).await.is_ok());
            assert!(sent(&soft, write(1, 0, 16, 7)).await.is_ok());
            drive.snapshot()
        });
        let fates = Fates { commands: Some(Vec::new()), unflushed: fate, seed };
        on(Config::shuffled(seed), Some(&snapshot.power_cut(&fates)), async |rt, drive| {
            for access in [Access::ReadOnly, Access::ReadWrite] {
                let soft = opened(&rt, &drive, access).await.unwrap();
                // Recovery ignores blocks that no record names, even if they are there.
                assert_eq!(zone(&soft, 0).await, (ZoneState::Closed, 4));
                assert_eq!(zone(&soft, 1).await, (ZoneState::Empty, 0));
                assert_eq!(read(&soft, 0, 3).await, Ok(9));
                assert_eq!(read(&soft, 0, 4).await, Err(Status::Unwritten));
                let expected = match access {
                    Access::ReadOnly => Status::WriteFault,
                    _ => Status::Success,
                };
                assert_eq!(sent(&soft, write(0, 4, 1, 5)).await, expected);
            }
        });
    }
}

#[test]
fn states_of_zones_outlive_the_power() {
    let snapshot = on(Config::simulated(1), None, async |rt, drive| {
        let soft = made(&rt, &drive, 8).await;
        for number in 0..4 {
            assert!(sent(&soft, write(number, 0, 3, 1)).await.is_ok());
        }
        assert!(sent(&soft, manage(1, Action::Finish)).await.is_ok());
        assert!(sent(&soft, manage(2, Action::Reset)).await.is_ok());
        assert!(sent(&soft, write(4, 0, 16, 1)).await.is_ok());
        assert!(sent(&soft, write(4, 16, 16, 1)).await.is_ok());
        assert!(sent(&soft, manage(5, Action::Finish)).await.is_ok());
        assert!(sent(&soft, manage(5, Action::Reset)).await.is_ok());
        assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        drive.snapshot()
    });
    on(Config::simulated(2), Some(&snapshot.power_cut(&Fates::nothing(1))), async |rt, drive| {
        let soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
        assert_eq!(zone(&soft, 0).await, (ZoneState::Closed, 3));
        assert_eq!(zone(&soft, 1).await, (ZoneState::Full, BLOCKS));
        assert_eq!(read(&soft, 1, 3).await, Err(Status::Unwritten), "it was finished there");
        assert_eq!(zone(&soft, 2).await, (ZoneState::Empty, 0));
        assert_eq!(zone(&soft, 4).await, (ZoneState::Full, BLOCKS));
        assert_eq!(zone(&soft, 5).await, (ZoneState::Empty, 0));
    });
}

#[test]
fn a_reset_of_more_zones_than_a_record_holds_is_durable() {
    const ZONES: u64 = 500;
    let snapshot = on(Config::simulated(1), None, async |rt, drive| {
        // A record of one block has space for about 200 changes of state.
        let soft = made_of(&rt, &drive, 8192, 1).await;
        for number in 0..ZONES {
            assert!(sent(&soft, write_at(number * 2, 1, 1)).await.is_ok());
        }
        assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        let reset = Command::Manage { target: Target::All, action: Action::Reset };
        assert!(sent(&soft, Request::bare(reset)).await.is_ok());
        drive.snapshot()
    });
    on(Config::simulated(2), Some(&snapshot.power_cut(&Fates::nothing(1))), async |rt, drive| {
        let soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
        for number in 0..ZONES as u32 {
            assert_eq!(zone(&soft, number).await, (ZoneState::Empty, 0), "zone {number}");
        }
    });
}

#[test]
fn a_command_behind_a_reset_waits_for_it_in_order() {
    for seed in 0..20 {
        on(Config::shuffled(seed), None, async |rt, drive| {
            let soft = made(&rt, &drive, 3).await;
            assert!(sent(&soft, write(6, 0, 5, 1)).await.is_ok());
            let commands = [
                manage(6, Action::Reset),
                write(6, 0, 2, 2),
                write(6, 2, 1, 3),
                manage(6, Action::Reset),
                write(6, 0, 1, 4),
                manage(6, Action::Finish),
            ];
            let answers = commands.map(|request| soft.submit(QueueId(0), request));
            for answer in answers {
                assert!(answer.await.status.is_ok());
            }
            assert_eq!(read(&soft, 6, 0).await, Ok(4));
            assert_eq!(read(&soft, 6, 1).await, Err(Status::Unwritten));
            let again = opened(&rt, &drive, Access::ReadOnly).await.unwrap();
            assert_eq!(zone(&again, 6).await, (ZoneState::Full, BLOCKS));
            assert_eq!(read(&again, 6, 0).await, Ok(4));
        });
    }
}

#[test]
fn a_zone_that_fails_a_write_can_be_read_and_not_written() {
    on(Config::shuffled(5), None, async |rt, drive| {
        let soft = made(&rt, &drive, 2).await;
        assert!(sent(&soft, write(2, 0, 2, 1)).await.is_ok());
        let at = soft.superblock().layout.first * 8 + (2 * BLOCKS + 2) * 8;
        let fault = Fault::new(FaultKind::WriteError).at_blocks(Lba(at), BlockCount(8));
        drive.inject(fault).unwrap();
        let first = soft.submit(QueueId(0), write(2, 2, 2, 2));
        let second = soft.submit(QueueId(0), write(2, 4, 2, 3));
        let flush = soft.submit(QueueId(0), Request::bare(Command::Flush));
        assert_eq!(first.await.status, Status::WriteFault);
        let _ = second.await;
        assert!(flush.await.status.is_ok());
        assert_eq!(zone(&soft, 2).await.0, ZoneState::ReadOnly);
        assert_eq!(read(&soft, 2, 1).await, Ok(1));
        assert_eq!(sent(&soft, write(2, 6, 1, 1)).await, Status::ZoneReadOnly);
        let again = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
        assert_eq!(zone(&again, 2).await.0, ZoneState::ReadOnly);
        assert_eq!(read(&again, 2, 1).await, Ok(1));
    });
}

#[test]
fn a_failure_in_a_large_round_writes_nothing_beyond_the_journal() {
    on(Config::simulated(1), None, async |rt, drive| {
        // A record of one block has space for 166 ranges of one block each.
        let soft = made_of(&rt, &drive, 8192, 1).await;
        assert!(sent(&soft, write_at(0, 1, 9)).await.is_ok());
        assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        let soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
        let at = (soft.superblock().layout.first + 2 * 5) * 8;
        drive.inject(Fault::new(FaultKind::WriteError).at_blocks(Lba(at), BlockCount(8))).unwrap();
        let all: Vec<_> =
            (1..300).map(|zone| soft.submit(QueueId(0), write_at(2 * zone, 1, 1))).collect();
        let mut failed = 0;
        for one in all {
            failed += u32::from(!one.await.status.is_ok());
        }
        assert_eq!(failed, 1);
        assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        for soft in [soft, opened(&rt, &drive, Access::ReadWrite).await.unwrap()] {
            assert_eq!(zone(&soft, 5).await.0, ZoneState::ReadOnly);
            assert_eq!(zone(&soft, 299).await.1, 1);
            let command = Command::Read { lba: Lba(0), blocks: BlockCount(1) };
            let pages = Pages::from_iter([Page::zeroed()]);
            let outcome = soft.submit(QueueId(0), Request::with_data(command, pages)).await;
            assert_eq!((outcome.status, outcome.data[0][17]), (Status::Success, 9));
        }
    });
}

#[test]
fn a_finish_behind_a_write_that_fails_does_not_call_its_blocks_written() {
    for seed in 0..10 {
        on(Config::shuffled(seed), None, async move |rt, drive| {
            let soft = made(&rt, &drive, 8).await;
            assert!(sent(&soft, write(2, 0, 2, 1)).await.is_ok());
            let at = soft.superblock().layout.first * 8 + (2 * BLOCKS + 2) * 8;
            let fault = Fault::new(FaultKind::WriteError).at_blocks(Lba(at), BlockCount(8));
            drive.inject(fault).unwrap();
            let failing = soft.submit(QueueId(0), write(2, 2, 2, 2));
            let flush = soft.submit(QueueId(0), Request::bare(Command::Flush));
            rt.yield_now().await;
            let finish = soft.submit(QueueId(0), manage(2, Action::Finish));
            assert_eq!(failing.await.status, Status::WriteFault);
            assert!(flush.await.status.is_ok());
            let _ = finish.await;
            assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
            let again = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
            assert_eq!(zone(&again, 2).await.0, ZoneState::ReadOnly, "seed {seed}");
            assert_eq!(read(&again, 2, 1).await, Ok(1));
        });
    }
}

#[test]
fn after_a_failed_flush_nothing_is_written() {
    on(Config::simulated(1), None, async |rt, drive| {
        let soft = made(&rt, &drive, 8).await;
        assert!(sent(&soft, write(0, 0, 1, 1)).await.is_ok());
        let journal = Lba(soft.superblock().layout.journal * 8);
        let blocks = BlockCount(u64::from(soft.superblock().layout.half) * 16);
        let fault = Fault::new(FaultKind::WriteError).at_blocks(journal, blocks);
        drive.inject(fault).unwrap();
        assert_eq!(sent(&soft, Request::bare(Command::Flush)).await, Status::WriteFault);
        assert_eq!(sent(&soft, write(0, 1, 1, 1)).await, Status::WriteFault);
        assert_eq!(sent(&soft, Request::bare(Command::Flush)).await, Status::WriteFault);
        assert_eq!(read(&soft, 0, 0).await, Ok(1));
    });
}

#[test]
fn a_drive_that_hangs_one_read_owes_an_answer_and_can_be_given_up() {
    on(Config::simulated(3), None, async |rt, drive| {
        let soft = made(&rt, &drive, 8).await;
        assert!(sent(&soft, write(2, 0, 2, 1)).await.is_ok());
        assert_eq!(soft.oldest(), None);
        let hour = 3600 * Nanos::SECOND;
        drive.inject(Fault::new(FaultKind::Slow { polls: 0, nanoseconds: hour })).unwrap();
        let hung = soft.clone();
        let answer = rt.spawn(async move { read(&hung, 2, 1).await });
        rt.sleep(Nanos::SECOND).await;
        let oldest = soft.oldest();
        assert!(oldest.is_some());
        rt.sleep(Nanos::SECOND).await;
        assert_eq!(soft.oldest(), oldest);
        soft.give_up();
        assert_eq!(answer.await, Err(Status::InternalError));
        assert_eq!(soft.oldest(), None);
    });
}

#[test]
fn what_is_no_soft_drive_is_none() {
    on(Config::simulated(1), None, async |rt, drive| {
        let plain = Plain::new(&rt, Rc::new(drive.clone()));
        assert_eq!(furrow_soft::identify(&plain).await.unwrap(), None);
        let error = opened(&rt, &drive, Access::ReadOnly).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongFormat);
        let soft = made(&rt, &drive, 4).await;
        let found = furrow_soft::identify(&plain).await.unwrap();
        assert_eq!(found.as_ref(), Some(soft.superblock()));
    });
}

#[test]
fn a_block_in_doubt_that_cannot_be_read_is_named_and_can_be_given_up() {
    on(Config::simulated(1), None, async |rt, drive| {
        let soft = made(&rt, &drive, 16).await;
        assert!(sent(&soft, write(3, 0, 16, 1)).await.is_ok());
        // No record says that this flush was done, so its blocks are in doubt.
        assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        let block = soft.superblock().layout.first + 3 * BLOCKS + 5;
        let place = (Lba(block * 8), BlockCount(8));
        drive.inject(Fault::new(FaultKind::ReadError).at_blocks(place.0, place.1)).unwrap();
        let error = opened(&rt, &drive, Access::ReadWrite).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        let named = format!("zone 3 block 5, byte {} of the drive", block * 4096);
        assert!(error.to_string().contains(&named), "{error}");
        drive.clear_faults(None).unwrap();
        let plain = Plain::new(&rt, Rc::new(drive.clone()));
        let zeros = Pages::from_iter([Page::zeroed()]);
        assert!(plain.write(block * 4096, zeros, 0).await.status.is_ok());
        let soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
        assert_eq!(zone(&soft, 3).await, (ZoneState::Closed, 5));
    });
}
