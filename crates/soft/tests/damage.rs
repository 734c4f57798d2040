//! Flipped bits in the journal and the superblocks: acknowledged data survives, except what only
//! the last record names, or the drive is refused and stays unchanged.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::zones::{BLOCKS, made, manage, on, opened, read, sent, write, zone};
use furrow_emu::{Emulator, Fates, Options, Plain, Snapshot};
use furrow_rt::{Config, Page, Pages, Rng, Rt};
use furrow_soft::SoftDrive;
use furrow_zone::{
    Access, Action, Command, Error, ErrorKind, PlainDevice, Request, Status, ZoneId, ZoneState,
    ZonedDevice,
};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Number of zones that the tests use.
const ZONES: u64 = 6;

/// State and content of the first zones.
type Seen = Vec<(ZoneState, u64, Vec<Result<u8, Status>>)>;

async fn seen(soft: &SoftDrive) -> Seen {
    let mut all = Vec::new();
    for number in 0..=ZONES {
        let mut content = Vec::new();
        for block in 0..BLOCKS {
            content.push(read(soft, number, block).await);
        }
        let report = soft.report(ZoneId(number as u32), 1).await.unwrap()[0];
        // After a power cycle, an open zone is closed.
        let state = match report.state {
            ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen => ZoneState::Closed,
            state => state,
        };
        all.push((state, report.write_pointer.0, content));
    }
    all
}

/// A plain drive and its bytes.
struct Bytes(Plain);

impl Bytes {
    fn of(rt: &Rt, drive: &Emulator) -> Bytes {
        Bytes(Plain::new(rt, Rc::new(drive.clone())))
    }

    async fn block(&self, block: u64) -> Page {
        let read = self.0.read(block * 4096, Pages::from_iter([Page::zeroed()])).await;
        assert!(read.status.is_ok());
        read.data[0].clone()
    }

    async fn flip(&self, block: u64, byte: usize) {
        let mut page = self.block(block).await;
        page.make_mut()[byte] ^= 1 << (byte % 8);
        let written = self.0.write(block * 4096, Pages::from_iter([page]), 0).await;
        assert!(written.status.is_ok());
    }

    /// Reads the tables and the first records of both halves, as far as they were written: the
    /// other blocks were discarded, and may read as anything.
    async fn journal(&self, layout: &furrow_soft::Layout) -> Vec<u8> {
        let half = layout.journal + u64::from(layout.half);
        let mut all = Vec::new();
        let records = (3..9).map(|number| record(layout, number));
        for block in [0, layout.journal, half].into_iter().chain(records) {
            all.extend_from_slice(self.block(block).await.bytes());
        }
        all
    }
}

/// Runs random commands with `rounds` flushes. Returns the zones after each of the last
/// two flushes.
async fn used(soft: &SoftDrive, rng: &mut Rng, rounds: u64) -> [Seen; 2] {
    let mut ends = [0u64; ZONES as usize + 1];
    let mut left = [seen(soft).await, seen(soft).await];
    for round in 0..rounds {
        // The last round is only a write, whose record has one block: blocks discarded by a reset
        // are gone even if the reset's record is damaged.
        let last = round + 1 == rounds;
        for _ in 0..if last { 1 } else { 1 + rng.below(4) } {
            let number = if last { ZONES } else { rng.below(ZONES) };
            let end = &mut ends[number as usize];
            let count = (1 + rng.below(5)).min(BLOCKS - *end);
            let kind = if last { 7 } else { rng.below(8) };
            let done = match kind {
                _ if count == 0 => sent(soft, manage(number, Action::Reset)).await,
                0 => sent(soft, manage(number, Action::Reset)).await,
                1 => sent(soft, manage(number, Action::Finish)).await,
                _ => sent(soft, write(number, *end, count, rng.below(250) as u8 + 1)).await,
            };
            assert!(done.is_ok(), "{done}");
            *end = match kind {
                _ if count == 0 => 0,
                0 => 0,
                1 => BLOCKS,
                _ => *end + count,
            };
        }
        assert!(sent(soft, Request::bare(Command::Flush)).await.is_ok());
        left = [left[1].clone(), seen(soft).await];
    }
    left
}

/// Flips one bit at a time in each block that a start reads, except blocks of zones: only the very
/// last record can be mistaken for one that a power cut tore.
#[test]
fn a_flipped_bit_takes_nothing_that_was_acknowledged_but_with_the_last_record() {
    for seed in 0..24 {
        let mut rng = Rng::new(seed);
        let (records, rounds, again) = (2 + rng.below(9) as u32, 1 + rng.below(20), rng.one_in(3));
        let (snapshot, left, layout) = on(Config::shuffled(seed), None, async move |rt, drive| {
            let mut soft = made(&rt, &drive, records).await;
            let mut left = used(&soft, &mut rng, rounds).await;
            let layout = soft.superblock().layout;
            if again {
                soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
                left[0] = seen(&soft).await;
            }
            drop(soft);
            (drive.snapshot(), left, layout)
        });
        let last = Rc::new(std::cell::RefCell::new(BTreeSet::new()));
        for block in (0..layout.first).chain([layout.blocks - 1]) {
            for byte in [0, 9, 13, 40, 99, 120, 300, 4000] {
                let (left, last) = (left.clone(), last.clone());
                let start = snapshot.power_cut(&Fates::nothing(seed));
                on(Config::simulated(seed), Some(&start), async move |rt, drive| {
                    Bytes::of(&rt, &drive).flip(block, byte).await;
                    let soft = opened(&rt, &drive, Access::ReadWrite).await;
                    let soft = soft.unwrap_or_else(|error| {
                        panic!("seed {seed}, block {block}, byte {byte}: {error}")
                    });
                    let found = seen(&soft).await;
                    if found != left[1] {
                        assert_eq!(found, left[0], "seed {seed}, block {block}, byte {byte}");
                        last.borrow_mut().insert(block);
                    }
                });
            }
        }
        let most = usize::from(!again);
        assert!(last.borrow().len() <= most, "seed {seed}: {last:?} of {layout:?}");
    }
}

/// Returns the block of a record. The half in use is the second, because opening turned once: it
/// has a table, and records of one block each with the sequence numbers 3 and up.
fn record(layout: &furrow_soft::Layout, sequence: u64) -> u64 {
    layout.journal + u64::from(layout.half + layout.table) + sequence - 3
}

/// Runs several rounds, each of which writes one block of one zone.
async fn rounds(rt: &Rt, drive: &Emulator) -> furrow_soft::Layout {
    let soft = made(rt, drive, 16).await;
    for (number, from) in [(0, 0), (1, 0), (2, 0), (0, 1), (3, 0), (0, 2)] {
        assert!(sent(&soft, write(number, from, 1, 1 + number as u8)).await.is_ok());
        assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
    }
    soft.superblock().layout
}

#[test]
fn two_damaged_records_are_named_and_nothing_is_written_until_the_loss_is_accepted() {
    on(Config::simulated(1), None, async |rt, drive| {
        let layout = rounds(&rt, &drive).await;
        let bytes = Bytes::of(&rt, &drive);
        for sequence in [4, 5] {
            bytes.flip(record(&layout, sequence), 100).await;
        }
        let before = bytes.journal(&layout).await;
        let error = opened(&rt, &drive, Access::ReadWrite).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        // Record 6 repeats record 5, so only record 4 is lost. Later records name zones 0 and 3.
        let text = error.to_string();
        assert!(text.contains("record 4 of the journal"), "{text}");
        assert!(text.contains("in zones 1, 4-"), "{text}");
        assert!(text.contains("device check mem: --repair"), "{text}");
        let readable = opened(&rt, &drive, Access::ReadOnly).await.unwrap();
        assert!(readable.warnings().iter().any(|text| text.contains("record 4 of the journal")));
        assert_eq!(zone(&readable, 0).await, (ZoneState::Closed, 3));
        assert!(bytes.journal(&layout).await == before, "nothing is written");
        let soft = opened(&rt, &drive, Access::AcceptLoss).await.unwrap();
        for soft in [soft, opened(&rt, &drive, Access::ReadWrite).await.unwrap()] {
            let pointers = [zone(&soft, 0).await.1, zone(&soft, 1).await.1, zone(&soft, 2).await.1];
            assert_eq!(pointers, [3, 0, 1], "what record 4 says of zone 1 is lost");
            assert_eq!(zone(&soft, 3).await, (ZoneState::Closed, 1));
            assert_eq!(read(&soft, 0, 2).await, Ok(1));
            assert!(sent(&soft, write(1, 0, 1, 8)).await.is_ok());
        }
    });
}

#[test]
fn a_damaged_record_and_a_damaged_table_have_copies() {
    on(Config::simulated(1), None, async |rt, drive| {
        let layout = rounds(&rt, &drive).await;
        let bytes = Bytes::of(&rt, &drive);
        bytes.flip(record(&layout, 5), 100).await;
        bytes.flip(layout.journal + u64::from(layout.half), 200).await;
        let soft = opened(&rt, &drive, Access::ReadOnly).await.unwrap();
        let warnings = soft.warnings().join("\n");
        assert!(warnings.contains("record 5 of the journal"), "{warnings}");
        assert!(warnings.contains("the table of half 1"), "{warnings}");
        let soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
        assert_eq!(zone(&soft, 0).await, (ZoneState::Closed, 3));
        assert_eq!(zone(&soft, 2).await, (ZoneState::Closed, 1));
        drop(soft);
        let soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
        assert_eq!(soft.warnings(), [""; 0], "opening wrote a table");
        // If the other half is damaged too, the content of the table is lost.
        for half in [0, 1] {
            bytes.flip(layout.journal + half * u64::from(layout.half), 200).await;
        }
        let error = opened(&rt, &drive, Access::ReadWrite).await.unwrap_err();
        assert!(error.to_string().contains("the table of each half"), "{error}");
    });
}

#[test]
fn each_superblock_is_mended_from_the_other() {
    on(Config::simulated(1), None, async |rt, drive| {
        let layout = rounds(&rt, &drive).await;
        let bytes = Bytes::of(&rt, &drive);
        let places = [(0, "the superblock is damaged"), (layout.blocks - 1, "the copy of the")];
        for (block, why) in places {
            let whole = bytes.block(block).await;
            for byte in (0..176).chain([4095]) {
                bytes.flip(block, byte).await;
                let soft = opened(&rt, &drive, Access::ReadOnly).await.unwrap();
                assert!(soft.warnings().iter().any(|text| text.contains(why)), "byte {byte}");
                let soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
                assert_eq!(zone(&soft, 0).await, (ZoneState::Closed, 3));
                assert_eq!(bytes.block(block).await.bytes(), whole.bytes(), "byte {byte}");
            }
        }
        for (block, _) in places {
            bytes.flip(block, 100).await;
        }
        let error: Error = opened(&rt, &drive, Access::ReadWrite).await.unwrap_err();
        assert!(error.to_string().contains("superblock"), "{error}");
    });
}

/// Restarts after the process was killed: the drive has kept its power and its cache.
fn killed(snapshot: &Snapshot) -> (Rt, Emulator) {
    let rt = Rt::new(Config::simulated(3));
    let drive = Emulator::from_snapshot(&rt, snapshot, Options::simulated());
    (rt, drive)
}

/// Each write of the plain drive may fail for a time, while the journal turns or at a start: at
/// each moment the drive has a table that is known to be durable.
#[test]
fn a_start_after_failed_writes_keeps_the_last_durable_table() {
    use furrow_zone::{Fault, FaultKind, When};
    for seed in 0..40 {
        let snapshot = on(Config::shuffled(seed), None, async move |rt, drive| {
            let soft = made(&rt, &drive, 2).await;
            for round in 0..5 {
                assert!(sent(&soft, write(0, round, 1, 1)).await.is_ok());
                assert!(sent(&soft, Request::bare(Command::Flush)).await.is_ok());
            }
            let fault = Fault::new(FaultKind::WriteError).when(When::Nth(1 + seed % 7)).times(12);
            drive.inject(fault).unwrap();
            for round in 5..9 {
                let _ = sent(&soft, write(1, round - 5, 1, 1)).await;
                let _ = sent(&soft, Request::bare(Command::Flush)).await;
            }
            for _ in 0..3 {
                let _ = opened(&rt, &drive, Access::ReadWrite).await;
            }
            drive.clear_faults(None).unwrap();
            drive.snapshot()
        });
        let (rt, drive) = killed(&snapshot);
        let (engine, other) = (rt.clone(), drive.clone());
        let snapshots = rt.block_on(async move {
            let all = Rc::new(std::cell::RefCell::new(Vec::new()));
            let taken = all.clone();
            other.set_observer(Rc::new(move |drive: &Emulator, _: &_| {
                taken.borrow_mut().push(drive.snapshot());
            }));
            drop(opened(&engine, &other, Access::ReadWrite).await.unwrap());
            other.clear_observer();
            all.take()
        });
        rt.clear();
        for snapshot in snapshots {
            for fates in [Fates::nothing(seed), Fates::seeded(seed), Fates::seeded(!seed)] {
                let cut = snapshot.power_cut(&fates);
                on(Config::simulated(2), Some(&cut), async |rt, drive| {
                    let soft = opened(&rt, &drive, Access::ReadWrite).await.unwrap();
                    assert!(zone(&soft, 0).await.1 >= 5);
                    assert_eq!(read(&soft, 0, 4).await, Ok(1));
                });
            }
        }
    }
}
