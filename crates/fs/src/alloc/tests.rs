//! Compares the allocator with a model, without a drive: random writes, appends, invalidations,
//! checkpoints, cleanings and closings of superzones. The accounts are compared after each step.

use super::heads::Head;
use super::place::Block;
use super::space::RESERVE;
use super::{Allocation, Allocator, ZoneAction};
use crate::format::{SUMMARY_MAGIC, SitEntry, SummaryEntry, SummaryHeader};
use crate::layout::Layout;
use crate::tables::table::Table;
use crate::types::MkfsOptions;
use furrow_log::pool::{SuperzoneId, SuperzoneState, ZonePool, describe};
use furrow_log::writer::{Kind as WriteKind, Order, Writer};
use furrow_policy::FsVariant;
use furrow_rt::{Completion, CompletionTable, Config, Nanos, Page, Pages, Pool, Rt};
use furrow_zone::{
    Action, Command, Geometry, Lba, Outcome, QueueId, Reports, Request, Status, ZoneId, ZonedDevice,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use zerocopy::{FromBytes, FromZeros};

/// A stand-in for a drive that accepts only the resets by which the pool releases superzones and
/// the flushes that prove them empty.
struct NoDrive {
    geometry: Geometry,
    table: CompletionTable<Outcome>,
}

impl ZonedDevice for NoDrive {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, _: QueueId, request: Request) -> Completion<Outcome> {
        match request.command {
            Command::Manage { action: Action::Reset, .. } | Command::Flush => {}
            command => panic!("the allocator sent {command:?}"),
        }
        let (ticket, completion) = self.table.open();
        let (status, lba) = (Status::Success, Lba(0));
        self.table.complete(ticket, Outcome { status, lba, data: Pages::new(), oob: Vec::new() });
        completion
    }

    fn report(&self, _: ZoneId, _: u32) -> Reports<'_> {
        panic!("the allocator asked for a report");
    }

    fn name(&self) -> String {
        "no drive".into()
    }
}

/// One step of the test.
#[derive(Clone, Debug)]
enum Step {
    /// Writes blocks of a stream.
    Write {
        stream: u8,
        blocks: u32,
    },
    /// Appends blocks of a stream. The allocator learns their owners from later [`Step::Tell`]s.
    Append {
        stream: u8,
        blocks: u32,
    },
    /// Tells the allocator the owner of an appended block, or that the block has no owner.
    Tell(prop::sample::Index),
    /// Overwrites or removes a block.
    Invalidate(prop::sample::Index),
    Snapshot,
    /// Makes the snapshot's checkpoint durable; superzones that were empty at the snapshot
    /// are released.
    Durable,
    /// Empties the superzone with the fewest valid blocks.
    Clean,
    /// Closes a parked superzone.
    Close {
        idle: bool,
    },
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        6 => (0u8..6, 1u32..80).prop_map(|(stream, blocks)| Step::Write { stream, blocks }),
        3 => (0u8..3, 1u32..40).prop_map(|(stream, blocks)| Step::Append { stream, blocks }),
        6 => index().prop_map(Step::Tell),
        8 => index().prop_map(Step::Invalidate),
        2 => Just(Step::Snapshot),
        2 => Just(Step::Durable),
        2 => Just(Step::Clean),
        2 => any::<bool>().prop_map(|idle| Step::Close { idle }),
        2 => (1u64..2_000).prop_map(Step::Wait),
    ]
}

/// The state of the allocator at a checkpoint's snapshot.
struct Snapshot {
    sit: Table<SitEntry>,
    heads: Vec<Head>,
    superzones: Vec<furrow_log::format::Descriptor>,
    accounts: (u64, Vec<u32>),
    empty: Vec<SuperzoneId>,
    allocated: usize,
    at_risk: u64,
}

struct Bench {
    rt: Rt,
    writer: Writer,
    layout: Rc<Layout>,
    groups: u32,
    alloc: Allocator,
    /// The blocks that are valid in the model.
    valid: BTreeSet<u32>,
    /// Owner of each block written since its superzone was released: (node, slot).
    owners: BTreeMap<u32, (u32, u16)>,
    /// Appended blocks whose owner the allocator does not know yet.
    untold: Vec<u32>,
    /// Number of blocks written to each zone.
    fill: BTreeMap<ZoneId, u32>,
    /// Zones opened and not yet reset.
    opened: BTreeSet<ZoneId>,
    /// Places of summaries that are written later.
    reserved: BTreeSet<(ZoneId, u32)>,
    allocated: Vec<Allocation>,
    at_risk: u64,
    snapshot: Option<Snapshot>,
    checkpoint: u64,
    next_owner: u32,
}

fn table(layout: &Layout) -> Table<SitEntry> {
    Table::new(layout.segment_count(), layout.sit_per_unit())
}

impl Bench {
    fn new(spec: &str, segment: u32) -> Bench {
        let rt = Rt::new(Config::simulated(1));
        let geometry = furrow_zone::spec::parse_geometry(spec).unwrap();
        let options = MkfsOptions { segment_blocks: Some(segment), ..MkfsOptions::default() };
        let layout = Rc::new(Layout::plan(&geometry, &options).unwrap());
        let drive = Rc::new(NoDrive { geometry: geometry.clone(), table: CompletionTable::new() });
        let writer = Writer::new(&rt, drive, Order::Queued, 1);
        let groups = layout.groups(&geometry);
        let first = ZoneId(layout.main_start);
        let mut superzones = describe(&geometry, first, layout.width as u8, &[]).unwrap();
        superzones.truncate(layout.superzones as usize);
        let zones = ZonePool::new(&writer, &superzones, groups).unwrap();
        let sit = table(&layout);
        let on = (&geometry, layout.clone());
        let pages = Pool::new(64);
        let alloc = Allocator::new(&rt, on, FsVariant::default(), zones, sit, pages).unwrap();
        Bench {
            rt,
            writer,
            layout,
            groups,
            alloc,
            valid: BTreeSet::new(),
            owners: BTreeMap::new(),
            untold: Vec::new(),
            fill: BTreeMap::new(),
            opened: BTreeSet::new(),
            reserved: BTreeSet::new(),
            allocated: Vec::new(),
            at_risk: 0,
            snapshot: None,
            checkpoint: 0,
            next_owner: 1,
        }
    }

    fn addr(&self, zone: ZoneId, offset: u32) -> u32 {
        furrow_log::address::BlockAddr::new(self.writer.geometry(), zone, offset).0
    }

    /// Carries out the allocator's decisions on the model's zones.
    fn carry_out(&mut self) {
        for action in self.alloc.take_actions() {
            match action {
                ZoneAction::Open { zone, after } => {
                    assert!(self.opened.insert(zone), "zone {zone} is opened twice");
                    assert_eq!(self.fill.get(&zone), None, "zone {zone} is not empty");
                    assert!(after.is_none_or(|after| self.opened.contains(&after)));
                    self.fill.insert(zone, 0);
                }
                ZoneAction::Write { zone, offset, page, kind } => {
                    self.take_block(zone, offset);
                    if kind == WriteKind::Summary {
                        self.check_summary(&page);
                    }
                }
                ZoneAction::Reserve { zone, offset } => {
                    self.take_block(zone, offset);
                    self.reserved.insert((zone, offset));
                }
                ZoneAction::Fill { zone, offset, page } => {
                    assert!(self.reserved.remove(&(zone, offset)), "zone {zone} offset {offset}");
                    self.check_summary(&page);
                }
                ZoneAction::Return { zones, permit } => {
                    let full = |zone: &ZoneId| self.fill[zone] == self.layout.capacity;
                    assert!(zones.iter().all(full), "permits of zones that are not full");
                    drop(permit);
                }
            }
        }
        for allocation in &self.alloc.allocated()[self.allocated.len()..] {
            self.allocated.push(*allocation);
        }
    }

    fn take_block(&mut self, zone: ZoneId, offset: u32) {
        assert!(self.opened.contains(&zone), "zone {zone} is written and was not opened");
        let fill = self.fill.get_mut(&zone).unwrap();
        assert_eq!(*fill, offset, "zone {zone} is not written in order");
        assert!(offset < self.layout.capacity, "zone {zone} is full");
        *fill += 1;
    }

    /// Checks that a summary names the owner of every block of its segment.
    fn check_summary(&self, page: &Page) {
        let bytes = page.bytes();
        let size = size_of::<SummaryHeader>();
        let head = SummaryHeader::read_from_bytes(&bytes[..size]).unwrap();
        assert_eq!(head.magic.get(), SUMMARY_MAGIC);
        let superzone = head.superzone.get();
        let stripe = self.alloc.stripe(superzone);
        let range = stripe.segment_range(head.segment.get());
        let entries = bytes[size..].chunks_exact(size_of::<SummaryEntry>());
        assert_eq!(u32::from(head.count.get()), range.len() as u32 - 1);
        for (v, entry) in range.zip(entries.take(usize::from(head.count.get()))) {
            let entry = SummaryEntry::read_from_bytes(entry).unwrap();
            let (zone, offset) = self.alloc.place_in(superzone, v);
            let owner = self.owners.get(&self.addr(zone, offset)).copied().unwrap_or((0, 0));
            assert_eq!((entry.node.get(), entry.slot.get()), owner, "block {v} of {superzone}");
        }
    }

    fn has_space(&self, blocks: u32) -> bool {
        let kept = u64::from(RESERVE + 1) * u64::from(self.alloc.superzone_blocks());
        self.alloc.has_space(kept + 2 * u64::from(blocks))
    }

    fn owner(&mut self) -> (u32, u16) {
        self.next_owner += 1;
        (self.next_owner, (self.next_owner % 7) as u16)
    }

    fn write(&mut self, stream: u8, (node, slot): (u32, u16)) {
        // Note the owner before the actions are carried out: they may write the segment's summary,
        // which is compared with `owners`.
        let before = self.alloc.space_left();
        let (dirty, cleaning) = (0, self.alloc.for_cleaning);
        let addr = self.alloc.write(Block { stream, node, slot }, Page::zeroed(), dirty).unwrap();
        assert!(self.valid.insert(addr), "block {addr} is valid already");
        assert!(!self.owners.contains_key(&addr), "block {addr} is written twice");
        self.owners.insert(addr, (node, slot));
        self.at_risk += u64::from(!cleaning);
        assert_eq!(self.alloc.space_left(), before - 1, "room, after a block");
        self.carry_out();
    }

    fn append(&mut self, stream: u8) {
        let (head, zone, offset) = self.alloc.next_place(stream, 0).unwrap();
        self.carry_out();
        let addr = self.addr(zone, offset);
        let ends = self.alloc.set_aside(head);
        self.alloc.note_unstable(zone, offset + 1);
        self.take_block(zone, offset);
        self.at_risk += 1;
        self.untold.push(addr);
        if ends {
            self.alloc.finish_segment(head);
        }
        self.carry_out();
    }

    fn tell(&mut self, at: usize, owned: bool) {
        let addr = self.untold.swap_remove(at);
        let mut entry = SummaryEntry::new_zeroed();
        if owned {
            let (node, slot) = self.owner();
            entry = SummaryEntry { node: node.into(), slot: slot.into() };
            self.owners.insert(addr, (node, slot));
            self.alloc.set_valid(addr, true, 1);
            self.valid.insert(addr);
        }
        self.alloc.told(addr, entry);
        self.carry_out();
    }

    fn invalidate(&mut self, addr: u32) {
        assert!(self.valid.remove(&addr));
        self.alloc.invalidate(addr);
    }

    fn take_snapshot(&mut self) {
        // As in the engine, no append may be in flight at a snapshot.
        while let Some(last) = self.untold.len().checked_sub(1) {
            self.tell(last, last % 3 > 0);
        }
        let mut sit = table(&self.layout);
        for segment in 0..sit.len() {
            sit.update(segment, |entry| *entry = self.alloc.sit.get(segment));
        }
        self.alloc.snapshot();
        self.snapshot = Some(Snapshot {
            sit,
            heads: self.alloc.heads().cloned().collect(),
            superzones: self.alloc.zones.descriptors(),
            accounts: self.accounts(),
            empty: self.alloc.empty_superzones().collect(),
            allocated: self.allocated.len(),
            at_risk: self.at_risk,
        });
    }

    fn accounts(&self) -> (u64, Vec<u32>) {
        let by_superzone = self.alloc.valid_by_superzone().map(|(_, valid)| valid).collect();
        (self.alloc.valid(), by_superzone)
    }

    fn make_durable(&mut self) {
        let Some(snapshot) = self.snapshot.take() else { return };
        self.checkpoint += 1;
        self.alloc.flushed(self.alloc.stamp());
        self.alloc.checkpoint_durable();
        self.allocated.drain(..snapshot.allocated);
        self.at_risk -= snapshot.at_risk;
        let pool = self.alloc.zones.clone();
        let proof = self.rt.block_on(pool.snapshot().flushed()).unwrap();
        for id in &snapshot.empty {
            assert_eq!(self.alloc.valid_in(id.0), 0, "superzone {id} was empty at the snapshot");
            let zones = pool.get(*id).zones;
            let (before, free) = (self.alloc.space_left(), self.alloc.payload_of(*id));
            let (pool, id, proof) = (pool.clone(), *id, proof.clone());
            proof.note_empty(id);
            self.rt.block_on(async move { pool.release(id, &proof).await }).unwrap();
            assert_eq!(self.alloc.space_left(), before + u64::from(free), "room, after a release");
            let per_zone = self.layout.capacity;
            for zone in zones {
                self.fill.remove(&zone);
                self.opened.remove(&zone);
                let first = self.addr(zone, 0);
                self.owners.retain(|addr, _| !(first..first + per_zone).contains(addr));
            }
        }
        self.mount(snapshot);
    }

    /// Checks that a mount of the checkpoint has the accounts of its snapshot.
    fn mount(&self, snapshot: Snapshot) {
        let geometry = self.writer.geometry();
        let zones = ZonePool::new(&self.writer, &snapshot.superzones, self.groups).unwrap();
        let on = (geometry, self.layout.clone());
        let (variant, pages) = (FsVariant::default(), Pool::new(4));
        let mut alloc = Allocator::new(&self.rt, on, variant, zones, snapshot.sit, pages).unwrap();
        alloc.adopt_heads(snapshot.heads.len());
        for (head, at) in snapshot.heads.into_iter().enumerate() {
            if at.superzone.is_some() {
                alloc.reopen(head, at);
            }
        }
        assert!(alloc.take_actions().is_empty(), "nothing was left to be written");
        let by_superzone: Vec<u32> = alloc.valid_by_superzone().map(|(_, valid)| valid).collect();
        assert_eq!((alloc.valid(), by_superzone), snapshot.accounts, "accounts after a mount");
    }

    fn clean(&mut self) {
        let full = |id: &SuperzoneId| self.alloc.zones.state(*id) == SuperzoneState::Full;
        let all = (0..self.layout.superzones).map(SuperzoneId);
        let victim = all.filter(full).min_by_key(|id| self.alloc.valid_in(id.0));
        let Some(victim) = victim.filter(|id| self.alloc.valid_in(id.0) > 0) else { return };
        if u64::from(self.alloc.valid_in(victim.0)) > self.alloc.spare(0) {
            return;
        }
        let here = |addr: &u32| self.alloc.segment_of(*addr).is_some_and(|at| at.0 == victim.0);
        let valid: Vec<u32> = self.valid.iter().copied().filter(here).collect();
        self.alloc.for_cleaning = true;
        for addr in valid {
            let owner = self.owners[&addr];
            self.write(2, owner);
            self.invalidate(addr);
        }
        self.alloc.for_cleaning = false;
        assert_eq!(self.alloc.valid_in(victim.0), 0, "a victim is empty");
    }

    fn close(&mut self, idle: bool) {
        let Some(head) = self.alloc.head_to_close(idle, 0) else { return };
        let zones = self.alloc.begin_closing(head);
        self.carry_out();
        if zones.is_empty() {
            return;
        }
        // The zones are finished: nothing more is written to them.
        for zone in zones {
            self.fill.insert(zone, self.layout.capacity);
        }
        self.alloc.end_closing(head);
        self.carry_out();
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Write { stream, blocks } if self.has_space(blocks) => {
                for _ in 0..blocks {
                    let owner = self.owner();
                    self.write(stream, owner);
                }
            }
            Step::Append { stream, blocks } if self.has_space(blocks) => {
                (0..blocks).for_each(|_| self.append(stream));
            }
            Step::Tell(index) if !self.untold.is_empty() => {
                let at = index.index(self.untold.len());
                self.tell(at, !at.is_multiple_of(4));
            }
            Step::Invalidate(index) if !self.valid.is_empty() => {
                let all: Vec<u32> = self.valid.iter().copied().collect();
                let first = index.index(all.len());
                for addr in all.iter().skip(first).take(40) {
                    self.invalidate(*addr);
                }
            }
            Step::Snapshot => self.take_snapshot(),
            Step::Durable => self.make_durable(),
            Step::Clean => self.clean(),
            Step::Close { idle } => self.close(idle),
            Step::Wait(milliseconds) => {
                let rt = self.rt.clone();
                self.rt.block_on(async move { rt.sleep(milliseconds * Nanos::MILLI).await });
            }
            _ => {}
        }
        self.check();
    }

    /// Checks every account against the model.
    fn check(&self) {
        let alloc = &self.alloc;
        assert_eq!(alloc.valid(), self.valid.len() as u64, "valid blocks of the main area");
        let mut by_superzone = vec![0; self.layout.superzones as usize];
        let mut by_segment: BTreeMap<u32, u32> = BTreeMap::new();
        for addr in &self.valid {
            assert!(alloc.is_valid(*addr), "block {addr}");
            let (superzone, segment, _) = alloc.segment_of(*addr).unwrap();
            by_superzone[superzone as usize] += 1;
            *by_segment.entry(segment).or_default() += 1;
        }
        let found: Vec<u32> = alloc.valid_by_superzone().map(|(_, valid)| valid).collect();
        assert_eq!(found, by_superzone, "valid blocks by superzone");
        for segment in 0..alloc.sit.len() {
            let entry = alloc.sit.get(segment);
            let bits: u32 = entry.map.iter().map(|byte| byte.count_ones()).sum();
            let expected = by_segment.get(&segment).copied().unwrap_or(0);
            let found = (u32::from(entry.valid.get()), bits);
            assert_eq!(found, (expected, expected), "valid blocks of segment {segment}");
        }
        self.check_room();
        let mut open = BTreeSet::new();
        for (superzone, _) in alloc.open_superzones() {
            assert!(open.insert(superzone), "two heads write to superzone {superzone}");
            let state = alloc.zones.state(SuperzoneId(superzone));
            assert_eq!(state, SuperzoneState::Active, "superzone {superzone} of a head");
        }
        assert_eq!(alloc.zones.count(SuperzoneState::Active) as usize, open.len(), "active");
        let (permits, held) = alloc.permits();
        // Every write has completed by now: a permit is held by a head or a log, or is free.
        assert_eq!(held, alloc.permits_of_heads(), "permits taken, by who holds them");
        let geometry = self.writer.geometry();
        let active = self.fill.values().filter(|fill| **fill < self.layout.capacity).count();
        let held = held - self.layout.log_permits();
        assert!(active as u32 <= held, "{active} active zones, {held} permits");
        assert!(permits <= geometry.max_active.unwrap(), "permits of the drive");
        for (zone, end) in alloc.unstable() {
            assert!(end <= self.fill.get(&zone).copied().unwrap_or(u32::MAX), "zone {zone}");
        }
        assert_eq!(alloc.allocated(), &self.allocated[..], "superzones since the checkpoint");
        let needs = alloc.recovery_needs(0) - 8;
        assert_eq!(needs, self.at_risk, "blocks at risk");
    }

    /// Checks the space left: payload blocks of free superzones, and the unwritten payload blocks
    /// of open ones.
    fn check_room(&self) {
        let mut room = 0;
        for id in (0..self.layout.superzones).map(SuperzoneId) {
            let stripe = self.alloc.stripe(id.0);
            let zones = self.alloc.zones.get(id).zones;
            let payload = |v: &u32| !stripe.is_summary(*v) && !stripe.is_padding(*v);
            let missing = |v: &u32| {
                let (column, offset) = stripe.place(*v);
                offset >= self.fill.get(&zones[column as usize]).copied().unwrap_or(0)
            };
            room += match self.alloc.zones.state(id) {
                SuperzoneState::Free => u64::from(self.alloc.payload_of(id)),
                SuperzoneState::Active => {
                    (0..stripe.blocks()).filter(|v| payload(v) && missing(v)).count() as u64
                }
                _ => 0,
            };
        }
        assert_eq!(self.alloc.space_left(), room, "room");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.rt.clear();
    }
}

/// Four groups of dies, and three permits beyond those of the logs and the first heads.
#[test]
fn superzones_are_lent_on_dies_where_the_stream_has_none() {
    const WARM: u8 = 1;
    const COLD: u8 = 2;
    let spec = "zones=64,zone-size=512KiB,max-active=16,channels=1,dies=4";
    let mut bench = Bench::new(spec, 8);
    assert_eq!((bench.groups, bench.alloc.permits()), (4, (13, 10)));
    bench.alloc.set_quota(WARM.into(), 4);
    // Write whole segments: a superzone with a begun segment is not lent.
    bench.run(Step::Write { stream: WARM, blocks: 42 });
    assert_eq!(bench.alloc.permits().1, 13, "no permits are left");
    bench.alloc.set_quota(WARM.into(), 1);
    bench.alloc.set_quota(COLD.into(), 4);
    bench.run(Step::Write { stream: COLD, blocks: 28 });
    let groups = |bench: &Bench| {
        let heads: Vec<usize> = bench.alloc.written_by(COLD.into()).collect();
        let superzones =
            heads.into_iter().filter_map(|head| bench.alloc.cursors[head].head.superzone);
        superzones.map(|id| bench.alloc.zones.group(SuperzoneId(id))).collect::<Vec<u32>>()
    };
    let written = groups(&bench);
    let apart: BTreeSet<u32> = written.iter().copied().collect();
    assert!(written.len() >= 3 && apart.len() == written.len(), "{written:?}");
    // A superzone on a group that the stream already writes to was not lent: it is closed for
    // its permits.
    let lent = bench.alloc.lent_to(COLD.into()).count();
    assert_eq!(lent, written.len() - 1);
    assert_eq!(bench.alloc.head_to_close(false, 0).is_some(), lent < 3, "{written:?}");
    // A borrower hands superzones back when its quota falls. The owner takes them back only when it
    // has no other parked superzones.
    bench.alloc.set_quota(COLD.into(), 2);
    assert_eq!(bench.alloc.lent_to(COLD.into()).count(), 1);
    bench.alloc.set_quota(WARM.into(), 4);
    assert_eq!(bench.alloc.lent_to(COLD.into()).count(), 1);
    bench.alloc.set_quota(WARM.into(), 8);
    assert_eq!(bench.alloc.lent_to(COLD.into()).count(), 0);
    bench.run(Step::Write { stream: WARM, blocks: 40 });
    bench.run(Step::Write { stream: COLD, blocks: 40 });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 2_000, ..<_>::default() })]

    #[test]
    fn accounts_agree_with_the_model(
        steps in prop::collection::vec(step(), 1..120),
        drive in prop_oneof![
            Just(("zones=64,zone-size=128KiB,max-active=14,channels=1", 8)),
            Just(("zones=80,zone-size=156KiB,max-active=24,channels=1", 13)),
            Just(("zones=60,zone-size=64KiB,max-active=8,channels=1", 16)),
        ],
    ) {
        let mut bench = Bench::new(drive.0, drive.1);
        bench.check();
        steps.into_iter().for_each(|step| bench.run(step));
    }
}
