//! Rounds of the journal during failures of writes, resets and power cuts.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::zones::{
    BLOCKS, ZONE, made, made_of, manage, on, opened, read, sent, write, write_at, zone,
};
use furrow_emu::{Emulator, Fates, Plain, Snapshot, Unflushed};
use furrow_policy::SoftVariant;
use furrow_rt::{Completion, CompletionTable, Config, Nanos, Pages, Rt};
use furrow_soft::SoftDrive;
use furrow_zone::{
    Access, Action, BlockCount, ByteLen, Command, Fault, FaultKind, Lba, Outcome, PlainDevice,
    QueueId, Request, Status, ZoneState, ZonedDevice,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Returns the place of a zone's block on the emulated plain drive, in sectors.
fn place(soft: &SoftDrive, zone: u64, block: u64) -> Lba {
    Lba((soft.superblock().layout.first + zone * BLOCKS + block) * 8)
}

fn slow(soft: &SoftDrive, zone: u64, block: u64) -> Fault {
    Fault::new(FaultKind::Slow { polls: 0, nanoseconds: Nanos::SECOND })
        .at_blocks(place(soft, zone, block), BlockCount(8))
}

#[test]
fn a_write_behind_two_resets_of_its_zone_is_answered() {
    on(Config::simulated(1), None, async |rt, drive| {
        let soft = made(&rt, &drive, 8).await;
        assert!(sent(&soft, write(6, 0, 5, 1)).await.is_ok());
        let one = soft.submit(QueueId(0), manage(6, Action::Reset));
        let two = soft.submit(QueueId(0), manage(6, Action::Reset));
        let behind = soft.submit(QueueId(0), write(6, 0, 1, 2));
        assert!(one.await.status.is_ok());
        assert!(two.await.status.is_ok());
        rt.sleep(10 * Nanos::SECOND).await;
        assert_eq!(soft.oldest(), None, "all are answered");
        assert!(behind.await.status.is_ok());
    });
}

#[test]
fn a_command_that_waits_is_owed_though_the_plain_drive_owes_nothing() {
    on(Config::simulated(1), None, async |rt, drive| {
        let (soft, plain) = watched_of(&rt, &drive, ZONE, 8).await;
        plain.hold(place(&soft, 1, 0).0 * 512, Nanos::SECOND);
        let write = soft.submit(QueueId(0), write(1, 0, 1, 1));
        rt.sleep(Nanos::SECOND / 2).await;
        assert_eq!(plain.oldest(), None);
        assert!(soft.oldest().is_some());
        assert!(write.await.status.is_ok());
        assert_eq!(soft.oldest(), None);
    });
}

/// A write that was sent after a round began fails during that round. The record of the next round
/// names the blocks before it, and also the failure.
#[test]
fn a_failure_is_named_behind_the_blocks_before_it() {
    let snapshot = on(Config::simulated(1), None, async |rt, drive| {
        let soft = made(&rt, &drive, 16).await;
        drive.inject(slow(&soft, 1, 0).times(1)).unwrap();
        let fault = Fault::new(FaultKind::WriteError);
        drive.inject(fault.at_blocks(place(&soft, 2, 4), BlockCount(8))).unwrap();
        let late = soft.submit(QueueId(0), write(1, 0, 1, 1));
        let first = soft.submit(QueueId(0), Request::bare(Command::Flush));
        rt.sleep(Nanos::SECOND / 10).await;
        assert!(sent(&soft, write(2, 0, 4, 2)).await.is_ok());
        assert_eq!(sent(&soft, write(2, 4, 2, 3)).await, Status::WriteFault);
        assert!(late.await.status.is_ok());
        assert!(first.await.status.is_ok());
        for round in 0..2 {
            assert!(sent(&soft, write(3, round, 1, 1)).await.is_ok());
            assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        }
        assert_eq!(zone(&soft, 2).await.0, ZoneState::ReadOnly);
        assert_eq!(read(&soft, 2, 3).await, Ok(2));
        drive.clear_faults(None).unwrap();
        drive.snapshot()
    });
    on(Config::simulated(2), Some(&snapshot.power_cut(&Fates::nothing(1))), async |rt, drive| {
        let soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
        assert_eq!(zone(&soft, 2).await.0, ZoneState::ReadOnly);
        assert_eq!(read(&soft, 2, 3).await, Ok(2));
    });
}

/// The drive took the later write, but the zone ends at the earlier one, which failed.
#[test]
fn a_write_behind_a_failed_one_of_its_zone_fails() {
    on(Config::simulated(1), None, async |rt, drive| {
        let (soft, plain) = watched_of(&rt, &drive, ZONE, 8).await;
        let fault = Fault::new(FaultKind::WriteError);
        drive.inject(fault.at_blocks(place(&soft, 2, 0), BlockCount(8))).unwrap();
        plain.hold(place(&soft, 2, 1).0 * 512, Nanos::SECOND);
        let first = soft.submit(QueueId(0), write(2, 0, 1, 1));
        let behind = soft.submit(QueueId(0), write(2, 1, 1, 1));
        assert_eq!(first.await.status, Status::WriteFault);
        assert_eq!(behind.await.status, Status::WriteFault);
        assert_eq!(zone(&soft, 2).await, (ZoneState::ReadOnly, 0));
    });
}

/// A plain drive that holds back chosen writes, and watches tables of zones and flushes.
pub(crate) struct Watched {
    rt: Rt,
    plain: Plain,
    drive: Emulator,
    table: CompletionTable<Outcome>,
    /// Places of writes that are held back, in bytes, and for how many nanoseconds.
    held: RefCell<Vec<(u64, u64)>>,
    /// Bytes at which the tables of the halves begin.
    halves: [u64; 2],
    /// Snapshots of the drive after each table.
    at_tables: Rc<RefCell<Vec<Snapshot>>>,
    /// Number of tables since the last flush, and the highest such number.
    unflushed: Cell<(u32, u32)>,
}

impl Watched {
    /// Holds back a write at `byte`.
    pub(crate) fn hold(&self, byte: u64, nanoseconds: u64) {
        self.held.borrow_mut().push((byte, nanoseconds));
    }
}

impl PlainDevice for Watched {
    fn size(&self) -> ByteLen {
        self.plain.size()
    }

    fn max_transfer(&self) -> ByteLen {
        self.plain.max_transfer()
    }

    fn read(&self, at: u64, data: Pages) -> Completion<Outcome> {
        self.plain.read(at, data)
    }

    fn write(&self, at: u64, data: Pages, stream: u8) -> Completion<Outcome> {
        let held = self.held.borrow().iter().find(|(place, _)| *place == at).copied();
        let is_table = self.halves.contains(&at);
        if is_table {
            let (now, most) = self.unflushed.get();
            self.unflushed.set((now + 1, most.max(now + 1)));
        }
        let (ticket, completion) = self.table.open();
        let (rt, plain, table) = (self.rt.clone(), self.plain.clone(), self.table.clone());
        let (at_tables, drive) = (self.at_tables.clone(), self.drive.clone());
        self.rt.spawn_detached(async move {
            if let Some((_, nanoseconds)) = held {
                rt.sleep(nanoseconds).await;
            }
            let outcome = plain.write(at, data, stream).await;
            if is_table {
                at_tables.borrow_mut().push(drive.snapshot());
            }
            table.complete(ticket, outcome);
        });
        completion
    }

    fn flush(&self) -> Completion<Outcome> {
        self.unflushed.set((0, self.unflushed.get().1));
        self.plain.flush()
    }

    fn discard(&self, at: u64, length: u64) -> Completion<Outcome> {
        self.plain.discard(at, length)
    }

    fn oldest(&self) -> Option<u64> {
        self.plain.oldest()
    }

    fn give_up(&self) {
        self.plain.give_up();
    }

    fn name(&self) -> String {
        self.plain.name()
    }
}

/// Makes and opens soft zones of `zone` bytes with `records` blocks for records.
pub(crate) async fn watched_of(
    rt: &Rt,
    drive: &Emulator,
    zone: u64,
    records: u32,
) -> (SoftDrive, Rc<Watched>) {
    let soft = made_of(rt, drive, zone, records).await;
    let layout = soft.superblock().layout;
    drop(soft);
    let half = |half: u64| (layout.journal + half * u64::from(layout.half)) * 4096;
    let plain = Rc::new(Watched {
        rt: rt.clone(),
        plain: Plain::new(rt, Rc::new(drive.clone())),
        drive: drive.clone(),
        table: CompletionTable::new(),
        held: RefCell::default(),
        halves: [half(0), half(1)],
        at_tables: Rc::default(),
        unflushed: Cell::default(),
    });
    let dyn_plain: Rc<dyn PlainDevice> = plain.clone();
    let soft = SoftDrive::open(rt, dyn_plain, Access::ReadWrite, SoftVariant::default());
    (soft.await.unwrap(), plain)
}

/// A write fails in a round that began a half of the journal, and the half has no space for the
/// failure. So the round begins the other half, which has the only durable table.
#[test]
fn a_second_turn_in_a_round_comes_behind_a_flush() {
    on(Config::simulated(1), None, async move |rt, drive| {
        let (soft, plain) = watched_of(&rt, &drive, 8192, 1).await;
        assert!(sent(&soft, write_at(0, 1, 9)).await.is_ok());
        assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        let first = soft.superblock().layout.first;
        let fault = Fault::new(FaultKind::WriteError);
        drive.inject(fault.at_blocks(Lba((first + 2 * 5) * 8), BlockCount(8))).unwrap();
        plain.hold((first + 2 * 5) * 4096, Nanos::SECOND);
        // Each part of the round fills a half of the journal. The failure needs another half.
        let all: Vec<_> =
            (1..600).map(|zone| soft.submit(QueueId(0), write_at(2 * zone, 1, 1))).collect();
        assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        for one in all {
            one.await;
        }
        assert_eq!(plain.unflushed.get().1, 1, "tables without a flush between");
        assert_eq!(plain.at_tables.borrow().len(), 10, "halves that were begun");
    });
}

/// The journal still says that the zone is written: if the write was sent, it would overwrite the
/// old life.
#[test]
fn a_write_behind_a_reset_that_failed_is_not_sent() {
    let snapshot = on(Config::simulated(1), None, async |rt, drive| {
        let soft = made(&rt, &drive, 8).await;
        assert!(sent(&soft, write(6, 0, 5, 1)).await.is_ok());
        assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        assert!(sent(&soft, write(7, 0, 1, 1)).await.is_ok());
        assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        let journal = Lba(soft.superblock().layout.journal * 8);
        let blocks = BlockCount(u64::from(soft.superblock().layout.half) * 16);
        drive.inject(Fault::new(FaultKind::WriteError).at_blocks(journal, blocks)).unwrap();
        let reset = soft.submit(QueueId(0), manage(6, Action::Reset));
        let behind = soft.submit(QueueId(0), write(6, 0, 2, 2));
        assert!(!reset.await.status.is_ok());
        assert_eq!(behind.await.status, Status::WriteFault);
        drive.clear_faults(None).unwrap();
        drive.snapshot()
    });
    let fates = Fates { commands: None, unflushed: Unflushed::Kept, seed: 1 };
    on(Config::simulated(2), Some(&snapshot.power_cut(&fates)), async |rt, drive| {
        let soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
        assert_eq!(zone(&soft, 6).await.1, 5);
        for block in 0..5 {
            assert_eq!(read(&soft, 6, block).await, Ok(1), "block {block}");
        }
    });
}

/// A finish and other commands wait for a reset; the finish belongs to an earlier life of the zone
/// than the writes after it. Power fails when the next round's table is on the drive but its
/// record is not.
#[test]
fn a_finish_counts_the_blocks_of_its_own_life() {
    let snapshots = on(Config::simulated(1), None, async move |rt, drive| {
        let (soft, plain) = watched_of(&rt, &drive, ZONE, 1).await;
        assert!(sent(&soft, write(6, 0, 12, 77)).await.is_ok());
        assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        let commands = [
            manage(6, Action::Reset),
            write(6, 0, 2, 2),
            manage(6, Action::Finish),
            manage(6, Action::Reset),
            write(6, 0, 10, 3),
        ];
        let [_, _, finish, _, _] = commands.map(|request| soft.submit(QueueId(0), request));
        plain.at_tables.borrow_mut().clear();
        assert!(finish.await.status.is_ok());
        rt.sleep(Nanos::SECOND).await;
        plain.at_tables.take()
    });
    assert!(!snapshots.is_empty());
    for snapshot in snapshots {
        let fates = Fates { commands: Some(Vec::new()), unflushed: Unflushed::Kept, seed: 1 };
        on(Config::simulated(2), Some(&snapshot.power_cut(&fates)), async |rt, drive| {
            let soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
            let more = read(&soft, 6, 2).await.is_ok();
            assert!(zone(&soft, 6).await.0 != ZoneState::Full || !more, "two were written");
        });
    }
}

/// A reset, which waits for a write, is accepted before the round of an earlier flush begins. The
/// blocks that the flush covers must survive.
#[test]
fn what_a_flush_covers_outlives_a_reset_that_was_begun() {
    let snapshot = on(Config::simulated(1), None, async |rt, drive| {
        let (soft, plain) = watched_of(&rt, &drive, ZONE, 16).await;
        let byte = |zone, block| place(&soft, zone, block).0 * 512;
        assert!(sent(&soft, write(2, 0, 2, 1)).await.is_ok());
        assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        plain.hold(byte(1, 0), Nanos::SECOND);
        plain.hold(byte(2, 6), 2 * Nanos::SECOND);
        let _late = soft.submit(QueueId(0), write(1, 0, 1, 1));
        let _first = soft.submit(QueueId(0), Request::bare(Command::Flush));
        rt.sleep(Nanos::SECOND / 2).await;
        assert!(sent(&soft, write(2, 2, 4, 1)).await.is_ok());
        let flush = soft.submit(QueueId(0), Request::bare(Command::Flush));
        let _more = soft.submit(QueueId(0), write(2, 6, 1, 1));
        let _reset = soft.submit(QueueId(0), manage(2, Action::Reset));
        assert!(flush.await.status.is_ok());
        drive.snapshot()
    });
    on(Config::simulated(2), Some(&snapshot.power_cut(&Fates::nothing(1))), async |rt, drive| {
        let soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
        let found = zone(&soft, 2).await.1;
        assert!(found == 0 || found >= 6, "{found} blocks of six that were flushed");
    });
}

/// A record names the blocks of a write that fails while its zone is being reset. Power fails when
/// the next round's table is on the drive but its record is not.
#[test]
fn a_failure_amid_a_reset_ends_the_old_life_there() {
    let snapshots = on(Config::simulated(1), None, async |rt, drive| {
        let (soft, plain) = watched_of(&rt, &drive, ZONE, 1).await;
        let byte = |zone, block| place(&soft, zone, block).0 * 512;
        assert!(sent(&soft, write(2, 0, 2, 1)).await.is_ok());
        assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
        plain.hold(byte(2, 2), Nanos::SECOND);
        let fault = Fault::new(FaultKind::WriteError);
        drive.inject(fault.at_blocks(place(&soft, 2, 2), BlockCount(8))).unwrap();
        let failing = soft.submit(QueueId(0), write(2, 2, 4, 5));
        let flush = soft.submit(QueueId(0), Request::bare(Command::Flush));
        rt.sleep(Nanos::SECOND / 2).await;
        let reset = soft.submit(QueueId(0), manage(2, Action::Reset));
        plain.at_tables.borrow_mut().clear();
        assert_eq!(failing.await.status, Status::WriteFault);
        assert!(flush.await.status.is_ok());
        assert!(reset.await.status.is_ok());
        drive.clear_faults(None).unwrap();
        plain.at_tables.take()
    });
    assert!(!snapshots.is_empty());
    for snapshot in snapshots {
        let fates = Fates { commands: Some(Vec::new()), unflushed: Unflushed::Kept, seed: 1 };
        on(Config::simulated(2), Some(&snapshot.power_cut(&fates)), async |rt, drive| {
            let soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
            // In a read-only zone every block can be read, and its pointer says nothing.
            let (state, written) = zone(&soft, 2).await;
            assert!(state == ZoneState::ReadOnly || written <= 2, "{state:?}, {written} written");
        });
    }
}

/// A flush covers a write that waits for the reset of its zone when the flush is submitted.
#[test]
fn a_flush_covers_a_write_behind_a_reset() {
    let snapshot = on(Config::simulated(1), None, async |rt, drive| {
        let soft = made(&rt, &drive, 16).await;
        assert!(sent(&soft, write(2, 0, 5, 1)).await.is_ok());
        let reset = soft.submit(QueueId(0), manage(2, Action::Reset));
        let behind = soft.submit(QueueId(0), write(2, 0, 3, 2));
        assert!(soft.flush_covers_submitted());
        let flush = soft.submit(QueueId(0), Request::bare(Command::Flush));
        assert!(flush.await.status.is_ok());
        assert!(behind.await.status.is_ok());
        assert!(reset.await.status.is_ok());
        drive.snapshot()
    });
    on(Config::simulated(2), Some(&snapshot.power_cut(&Fates::nothing(1))), async |rt, drive| {
        let soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
        assert_eq!(zone(&soft, 2).await.1, 3);
        assert_eq!(read(&soft, 2, 2).await, Ok(2));
    });
}
