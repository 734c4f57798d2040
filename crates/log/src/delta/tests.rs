//! Tests the log against a simple model: a map per table, and the extents a checkpoint would store.

use super::*;
use crate::budget::{Budget, Class};
use crate::pool::ZonePool;
use crate::record::Uuid;
use crate::toy::{Toy, geometry};
use crate::writer::Order;
use furrow_rt::{Config, Rt};
use furrow_zone::{BlockCount, Command, Lba};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::rc::Rc;

const TABLES: [u16; 3] = [12, 40, 700];
const KIND: u16 = 9;

type Tables = BTreeMap<(u8, u32), Vec<u8>>;
type Change = (u8, u32, Vec<u8>);

fn id(epoch: u64, checkpoint: u64) -> RecordId {
    let (device, object) = (Uuid([1; 16]), Uuid([2; 16]));
    RecordId { kind: 0, epoch, checkpoint, sequence: 0, device, object }
}

fn layout(toy: &Toy) -> DeltaLayout {
    let halves = [vec![ZoneId(0), ZoneId(1)], vec![ZoneId(2), ZoneId(3)]];
    DeltaLayout::new(toy.geometry(), halves, &TABLES, KIND).unwrap()
}

/// A drive that allows one active zone, which must be enough for the log.
fn drive(rt: &Rt, seed: u64, capacity: u64) -> Rc<Toy> {
    let mut shape = geometry(4, capacity);
    (shape.max_open, shape.max_active) = (Some(1), Some(1));
    Toy::on(rt, shape, seed)
}

fn change() -> impl Strategy<Value = Change> {
    (0..3u8, 0..30u32, any::<u8>()).prop_map(|(table, index, fill)| {
        (table, index, vec![fill; usize::from(TABLES[usize::from(table)])])
    })
}

fn entries(changes: &[Change]) -> impl Iterator<Item = (u8, u32, &[u8])> {
    changes.iter().map(|(table, index, payload)| (*table, *index, &payload[..]))
}

/// Returns the tables that a replay of `extents` gives.
fn replay(rt: &Rt, toy: &Rc<Toy>, upto: RecordId, extents: &[Extent]) -> Result<Tables> {
    let (toy, extents) = (toy.clone(), extents.to_vec());
    rt.block_on(async move {
        let mut tables = Tables::new();
        let apply = |table, index, payload: &[u8]| {
            tables.insert((table, index), payload.to_vec());
            Ok(())
        };
        let pages = Pool::new(16);
        layout(&toy).replay(&*toy, &pages, &upto, &extents, apply).await?;
        Ok(tables)
    })
}

fn append(rt: &Rt, log: &mut DeltaLog, id: RecordId, changes: &[Change], list: &mut Vec<Extent>) {
    let appended = log.append(&id, entries(changes), list).unwrap();
    rt.block_on(appended.written()).unwrap();
}

#[derive(Clone, Debug)]
enum Op {
    /// A checkpoint that becomes durable.
    Checkpoint(Vec<Change>),
    /// A checkpoint that wrote its deltas and then failed, so its extents are discarded.
    Attempt(Vec<Change>),
    /// A power cut while deltas are in flight, then a mount.
    Crash(Vec<Change>),
}

fn op() -> impl Strategy<Value = Op> {
    let changes = || proptest::collection::vec(change(), 0..60);
    prop_oneof![
        4 => changes().prop_map(Op::Checkpoint),
        1 => changes().prop_map(Op::Attempt),
        1 => changes().prop_map(Op::Crash),
    ]
}

/// A log under test, and the content it should have.
struct Run {
    rt: Rt,
    toy: Rc<Toy>,
    budget: Budget,
    seed: u64,
    log: DeltaLog,
    pool: ZonePool,
    epoch: u64,
    checkpoint: u64,
    extents: Vec<Extent>,
    /// The tables as of the last merge, after which the extents begin.
    merged: Tables,
    /// The tables as they are now.
    model: Tables,
}

impl Run {
    fn new(seed: u64, capacity: u64) -> Run {
        let rt = Rt::new(Config::shuffled(seed));
        let toy = drive(&rt, seed, capacity);
        let budget = Budget::new(1, &[]);
        let writer = Writer::new(&rt, toy.clone(), Order::Queued, 4);
        let permit = budget.try_acquire(Class::Metadata, 1);
        let log = DeltaLog::new(&writer, layout(&toy), &Pool::new(16), permit);
        let pool = ZonePool::new(&writer, &[], 1).unwrap();
        let (merged, model) = (Tables::new(), Tables::new());
        let (epoch, checkpoint, extents) = (1, 0, Vec::new());
        Run { rt, toy, budget, seed, log, pool, epoch, checkpoint, extents, merged, model }
    }

    /// Does what an engine does when the half is too full: merges, switches to the other half, and
    /// releases the full half.
    fn make_room(&mut self, changes: &[Change]) {
        let mut counts = [0; 3];
        changes.iter().for_each(|change| counts[usize::from(change.0)] += 1);
        if self.log.worst_case_blocks(&counts) <= self.log.space_left() {
            return;
        }
        let old = self.log.position().0;
        self.merged = self.model.clone();
        self.extents.clear();
        self.release(1 - old);
        self.log.switch_half().unwrap();
        self.release(old);
    }

    fn release(&mut self, half: u8) {
        let (pool, zones) = (self.pool.clone(), self.log.half_zones(half));
        self.rt.block_on(async move {
            let durable = pool.snapshot().flushed().await.unwrap();
            for zone in zones {
                pool.release_zone(zone, &durable).await.unwrap();
            }
        });
        self.log.half_released(half);
    }

    fn step(&mut self, op: Op) {
        self.checkpoint += 1;
        let id = id(self.epoch, self.checkpoint);
        let (Op::Checkpoint(mut changes) | Op::Attempt(mut changes) | Op::Crash(mut changes)) =
            op.clone();
        // Sort by table: the worst case holds only for this order.
        changes.sort_by_key(|change| change.0);
        self.make_room(&changes);
        let mut list = self.extents.clone();
        match op {
            Op::Checkpoint(_) => {
                append(&self.rt, &mut self.log, id, &changes, &mut list);
                self.extents = list;
                let changes = changes.into_iter().map(|(t, index, payload)| ((t, index), payload));
                self.model.extend(changes);
            }
            Op::Attempt(_) => append(&self.rt, &mut self.log, id, &changes, &mut list),
            Op::Crash(_) => {
                drop(self.log.append(&id, entries(&changes), &mut list).unwrap());
                self.crash();
            }
        }
    }

    fn crash(&mut self) {
        // Let part of the writes complete before the power cut.
        for _ in 0..self.seed % 7 {
            furrow_rt::Source::poll(&*self.toy);
            if self.seed.is_multiple_of(2) {
                self.rt.run_ready();
            }
        }
        self.rt.clear();
        self.toy.cut();
        self.epoch += 1;
        self.rt = Rt::new(Config::shuffled(self.seed ^ self.epoch));
        self.rt.add_source(self.toy.clone());
        let writer = Writer::new(&self.rt, self.toy.clone(), Order::Queued, 4);
        self.pool = ZonePool::new(&writer, &[], 1).unwrap();
        self.budget = Budget::new(1, &[]);
        let permit = self.budget.try_acquire(Class::Metadata, 1);
        let half = self.log.position().0;
        let (layout, pages) = (layout(&self.toy), Pool::new(16));
        let recovered =
            async move { DeltaLog::recover(&writer, layout, &pages, permit, half).await };
        self.log = self.rt.block_on(recovered).unwrap();
    }

    fn check(&self) {
        self.log.audit(&self.extents).unwrap();
        self.log.writer.audit().unwrap();
        self.budget.audit().unwrap();
        let upto = id(self.epoch, self.checkpoint);
        let mut tables = self.merged.clone();
        tables.extend(replay(&self.rt, &self.toy, upto, &self.extents).unwrap());
        assert_eq!(tables, self.model);
        for extent in &self.extents {
            assert_eq!(Extent::parse(&extent.entry()).unwrap(), *extent);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.rt.clear();
    }
}

/// The audit finds a half that is marked clean although the half holds blocks of extents, even if
/// only the writer's account or only the extents show these blocks.
#[test]
fn the_audit_finds_a_half_that_is_not_clean() {
    let mut run = Run::new(1, 12);
    run.step(Op::Checkpoint(vec![(0, 1, vec![1; 12])]));
    run.log.switch_half().unwrap();
    run.step(Op::Checkpoint(vec![]));
    run.check();
    run.log.clean[0] = true;
    let found = run.log.audit(&[]).unwrap_err().to_string();
    assert!(found.contains("half 0: expected nothing of it, found 12 blocks in zone 0"), "{found}");
    run.log.writer.forget(ZoneId(0));
    let found = run.log.audit(&run.extents).unwrap_err().to_string();
    assert!(found.contains("half 0: expected extents up to block 0"), "{found}");
}

proptest! {
    /// After checkpoints, failed attempts, power cuts and half switches in any order, the tables of
    /// the last merge and the extents since then give the model, on a drive with one active zone.
    /// Blocks of failed attempts lie between the extents and are never seen.
    #[test]
    fn extents_give_exactly_what_was_checkpointed(
        seed in any::<u64>(),
        capacity in 12..20u64,
        ops in proptest::collection::vec(op(), 1..30),
    ) {
        let mut run = Run::new(seed, capacity);
        for op in ops {
            run.step(op);
            run.check();
        }
    }

    /// A flipped bit in any block of the extents is noticed.
    #[test]
    fn damage_is_found(
        seed in any::<u64>(),
        changes in proptest::collection::vec(change(), 1..80),
        place in any::<prop::sample::Index>(),
        byte in 0..4096usize,
        bit in 0..8u32,
    ) {
        let mut run = Run::new(seed, 64);
        run.step(Op::Checkpoint(changes));
        let block = place.index(run.extents[0].blocks as usize) as u32;
        let (zone, offset) = run.log.layout().place(0, block).unwrap();
        run.toy.flip(zone, u64::from(offset), byte, bit);
        let error = replay(&run.rt, &run.toy, id(1, 1), &run.extents).unwrap_err();
        let place = format!("toy: delta log zone {zone} offset {offset}");
        prop_assert!(error.to_string().contains(&place), "{}", error);
    }

    /// Blocks with a valid checksum and any body give an error or entries of the right size, and
    /// no panic.
    #[test]
    fn any_body_is_survived(
        mut body in proptest::collection::vec(0..8u8, 0..200),
        payload in 0..3usize,
    ) {
        if body.len() > 8 {
            body[4..6].copy_from_slice(&TABLES[payload].to_le_bytes());
        }
        let toy = Toy::new(geometry(4, 16), 1);
        let apply = &mut |table: u8, _, payload: &[u8]| {
            assert_eq!(payload.len(), usize::from(TABLES[usize::from(table)]));
            Ok(())
        };
        let _ = layout(&toy).apply(&body, apply);
    }

    /// The worst case covers every append whose entries come table by table.
    #[test]
    fn the_worst_case_is_one(counts in [0..500u32, 0..300u32, 0..20u32]) {
        let rt = Rt::new(Config::simulated(1));
        let toy = Toy::on(&rt, geometry(4, 4096), 1);
        let writer = Writer::new(&rt, toy.clone(), Order::Queued, 1);
        let log = DeltaLog::new(&writer, layout(&toy), &Pool::new(1), None);
        let changes: Vec<Change> = (0..3u8)
            .flat_map(|table| {
                let payload = vec![7; usize::from(TABLES[usize::from(table)])];
                (0..counts[usize::from(table)]).map(move |index| (table, index, payload.clone()))
            })
            .collect();
        let blocks = log.pack(entries(&changes)).unwrap().len() as u32;
        let bound = log.worst_case_blocks(&counts);
        prop_assert!(blocks <= bound && bound <= blocks + 2, "{} of {}", blocks, bound);
        rt.clear();
    }
}

/// Adjacent checkpoints share an extent; blocks of a failed attempt between them split it.
#[test]
fn extents_merge_only_when_adjacent() {
    let mut run = Run::new(3, 32);
    let changes: Vec<Change> = vec![(0, 1, vec![1; 12])];
    run.step(Op::Checkpoint(changes.clone()));
    run.step(Op::Checkpoint(changes.clone()));
    assert_eq!((run.extents.len(), run.extents[0].blocks), (1, 2));
    run.step(Op::Attempt(changes.clone()));
    run.step(Op::Checkpoint(changes));
    assert_eq!((run.extents.len(), run.extents[1].first), (2, 3));
    run.check();
}

/// Whole blocks of another checkpoint are refused, whether an extent list reaches past the blocks
/// of its checkpoint or names the blocks of a later attempt.
#[test]
fn blocks_of_other_checkpoints_are_refused() {
    let mut run = Run::new(4, 32);
    let changes: Vec<Change> = vec![(1, 5, vec![3; 40])];
    run.step(Op::Checkpoint(changes.clone()));
    let listed = run.extents.clone();
    run.step(Op::Attempt(changes.clone()));
    let refused = |extents: &[Extent], upto, word: &str| {
        let error = replay(&run.rt, &run.toy, upto, extents).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    };
    let longer = [Extent { blocks: 2, ..listed[0] }];
    refused(&longer, id(1, 1), "epoch 1 checkpoint 2");
    refused(&longer, id(1, 9), "have checksum");
    let swapped = [Extent { first: 1, ..listed[0] }];
    refused(&swapped, id(1, 9), "have checksum");
    refused(&[Extent { first: 2, ..listed[0] }], id(1, 9), "Unwritten");
    refused(&[Extent { first: 60, blocks: 9, ..listed[0] }], id(1, 9), "outside the log");
    refused(&listed, RecordId { device: Uuid([8; 16]), ..id(1, 9) }, "device");
    refused(&listed, id(0, 9), "epoch");
}

/// Two exchanged blocks are each whole, and an extent made to fit them has the right checksum. The
/// places in their headers reveal the exchange.
#[test]
fn misplaced_blocks_are_refused() {
    let mut run = Run::new(8, 32);
    for fill in 0..2 {
        run.step(Op::Checkpoint(vec![(0, 1, vec![fill; 12])]));
    }
    run.toy.swap((ZoneId(0), 0), (ZoneId(0), 1));
    let blocks = (0..2).map(|block| run.toy.sector(ZoneId(0), block).unwrap());
    let crc = blocks.fold(0, |crc, block| crc32c_append(crc, &block));
    let fitted = [Extent { crc, ..run.extents[0] }];
    let error = replay(&run.rt, &run.toy, id(1, 2), &fitted).unwrap_err();
    assert!(error.to_string().contains("place"), "{error}");
}

/// An append that does not fit changes nothing; nor does an append with an entry of the wrong size.
#[test]
fn a_refused_append_changes_nothing() {
    let mut run = Run::new(5, 12);
    let many: Vec<Change> = (0..500).map(|index| (2, index, vec![1; 700])).collect();
    let mut list = Vec::new();
    let Err(error) = run.log.append(&id(1, 1), entries(&many), &mut list) else {
        panic!("500 entries of 700 bytes fitted 24 blocks");
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    for wrong in [(0u8, 1, vec![1; 13]), (3, 1, vec![1; 12])] {
        assert!(run.log.append(&id(1, 1), entries(&[wrong]), &mut list).is_err());
    }
    run.rt.run_ready();
    assert!(list.is_empty() && run.toy.log().is_empty() && run.log.is_clean(0));
    let error = (0..2).map(|_| run.log.switch_half()).find_map(Result::err);
    assert!(error.is_none(), "two clean halves");
    append(&run.rt, &mut run.log, id(1, 2), &many[..3], &mut list);
    run.log.switch_half().unwrap();
    assert_eq!(run.log.switch_half().unwrap_err().kind(), ErrorKind::Busy);
}

/// If a power cut left a zone short, recovery fills it, and the log continues at the write pointer
/// of the last zone written.
#[test]
fn recovery_fills_what_a_power_cut_left_short() {
    let rt = Rt::new(Config::shuffled(6));
    let toy = Toy::on(&rt, geometry(4, 12), 6);
    for (lba, blocks) in [(0, 5), (16, 3)] {
        let command = Command::Write { lba: Lba(lba), blocks: BlockCount(blocks) };
        toy.machine(|machine| machine.apply(&command).map(drop)).unwrap();
    }
    let writer = Writer::new(&rt, toy.clone(), Order::Queued, 1);
    let layout = layout(&toy);
    let found = async move { DeltaLog::recover(&writer, layout, &Pool::new(4), None, 0).await };
    let mut log = rt.block_on(found).unwrap();
    assert_eq!((log.position(), log.space_left()), ((0, 15), 9));
    let mut list = Vec::new();
    append(&rt, &mut log, id(2, 1), &[(0, 1, vec![1; 12])], &mut list);
    rt.run_ready();
    let state = toy.machine(|machine| machine.zone(ZoneId(0)).unwrap().state);
    assert_eq!((state, list[0].first), (ZoneState::Full, 15));
    assert!(log.is_clean(1) && !log.is_clean(0));
    rt.clear();
}

/// On a drive with one active zone, a power cut left a zone short that precedes full zones: the
/// log's next zone waits until the short zone is filled.
#[test]
fn recovery_keeps_to_one_active_zone() {
    let rt = Rt::new(Config::shuffled(7));
    let mut shape = geometry(6, 12);
    (shape.max_open, shape.max_active) = (Some(1), Some(1));
    let toy = Toy::on(&rt, shape, 7);
    for (lba, blocks) in [(16, 8), (24, 4), (0, 5)] {
        let command = Command::Write { lba: Lba(lba), blocks: BlockCount(blocks) };
        toy.machine(|machine| machine.apply(&command).map(drop)).unwrap();
    }
    let writer = Writer::new(&rt, toy.clone(), Order::Queued, 4);
    let halves = [(0..3).map(ZoneId).collect(), (3..6).map(ZoneId).collect()];
    let layout = DeltaLayout::new(toy.geometry(), halves, &TABLES, KIND).unwrap();
    let found = async move { DeltaLog::recover(&writer, layout, &Pool::new(4), None, 0).await };
    let mut log = rt.block_on(found).unwrap();
    assert_eq!(log.position(), (0, 24));
    let mut list = Vec::new();
    append(&rt, &mut log, id(2, 1), &[(0, 1, vec![1; 12])], &mut list);
    assert_eq!((list[0].first, toy.machine(|machine| machine.active_zones())), (24, 1));
    rt.clear();
}

#[test]
fn a_layout_that_makes_no_sense_is_refused() {
    let shape = geometry(4, 12);
    let new = |a: &[u32], b: &[u32], tables: &[u16]| {
        let half = |zones: &[u32]| zones.iter().map(|zone| ZoneId(*zone)).collect();
        DeltaLayout::new(&shape, [half(a), half(b)], tables, KIND).map(drop)
    };
    assert!(new(&[0], &[1], &[8]).is_ok());
    assert!(new(&[], &[1], &[8]).is_err());
    assert!(new(&[0], &[0], &[8]).is_err());
    assert!(new(&[0], &[4], &[8]).is_err());
    assert!(new(&[0], &[1], &[4000]).is_err());
}
