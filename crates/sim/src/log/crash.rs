//! A ledger: a table of versions kept by `furrow-log` alone, to crash-test what engines share.
//!
//! Each *account* has a version. A new version is written as a block that names account and
//! version; the blocks alternate between the zones of a superzone. A *commit* drains and flushes
//! those blocks, appends the changed table entries to the delta log, flushes, and writes a
//! checkpoint record with FUA to a ring of two zones. Meanwhile the next versions are written. When
//! a half of the delta log is full, a commit stores the whole table and the log continues in the
//! other half; superzones without a valid block are released. The promise: after a crash, the table
//! is that of the last acknowledged commit, or of the commit in progress. Each block that the table
//! names has the content written there.
//!
//! The drive allows exactly as many active zones as streams are open: 1 for the ring, 1 for the
//! delta log, 2 for data. The defects are those of `furrow-log` ([`LogDefect`]). Nothing is
//! relocated, and a run ends when no superzone is free.

use crate::crash::{Case, Subject};
use furrow_emu::Emulator;
use furrow_log::delta::{DeltaLayout, DeltaLog, Extent};
use furrow_log::format::{Descriptor, ExtentEntry};
use furrow_log::pool::{DurableSnapshot, SuperzoneId, SuperzoneState, ZonePool, describe};
use furrow_log::record::{self, Expect, RecordId, Uuid, crc32c};
use furrow_log::survey;
use furrow_log::{
    BlockAddr, Durability, Kind, Order, Writer, WriterOptions, ZoneWrite, read_blocks,
};
use furrow_policy::LogDefect;
use furrow_rt::buf::concat;
use furrow_rt::{Page, Pages, Pool, Rng, Rt};
use furrow_zone::{BlockCount, Geometry, QueueId, ZoneId, ZoneReport, ZoneState, ZonedDevice};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

const ACCOUNTS: u32 = 24;
const ENTRY: usize = 16;
const WIDTH: u8 = 2;
const QUEUES: u16 = 3;
const RING: [ZoneId; 2] = [ZoneId(0), ZoneId(1)];
const MAIN: ZoneId = ZoneId(6);
const CHECKPOINT: u16 = 1;
const DELTA: u16 = 2;
/// Number of bytes before the lists in a checkpoint's body: the half of the delta log, and the
/// numbers of extents and of descriptors, 4 bytes each.
const FIXED: usize = 12;

const DEVICE: Uuid = Uuid([0x1e; 16]);
const OBJECT: Uuid = Uuid([0xd6; 16]);

/// Version by account; 0 = never written.
type Versions = Vec<u64>;

/// An event of a run.
#[derive(Clone, Debug)]
pub enum Event {
    /// A commit of these versions began.
    Began(Versions),
    /// The last commit that began was acknowledged.
    Acknowledged,
}

/// The events of a run, in order.
#[derive(Clone, Debug, Default)]
pub struct History(Vec<Event>);

/// An entry of the table: address, checksum and version of the account's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: BlockAddr,
    crc: u32,
    version: u64,
}

impl Entry {
    const NONE: Entry = Entry { at: BlockAddr::HOLE, crc: 0, version: 0 };

    fn encode(self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        bytes[..4].copy_from_slice(&self.at.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.crc.to_le_bytes());
        bytes[8..].copy_from_slice(&self.version.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Entry {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let version = u64::from(word(8)) | u64::from(word(12)) << 32;
        Entry { at: BlockAddr(word(0)), crc: word(4), version }
    }
}

fn stamp(account: u32, version: u64) -> Page {
    let mut page = Page::zeroed();
    for chunk in page.make_mut().chunks_mut(16) {
        chunk[..8].copy_from_slice(&u64::from(account).to_le_bytes());
        chunk[8..].copy_from_slice(&version.to_le_bytes());
    }
    page
}

fn id(epoch: u64, checkpoint: u64) -> RecordId {
    let (device, object) = (DEVICE, OBJECT);
    RecordId { kind: CHECKPOINT, epoch, checkpoint, sequence: checkpoint, device, object }
}

/// The content of a checkpoint record.
#[derive(Clone)]
struct Checkpoint {
    epoch: u64,
    number: u64,
    half: u8,
    extents: Vec<Extent>,
    descriptors: Vec<Descriptor>,
    /// The table before the extents of the delta log are applied to it.
    base: Vec<Entry>,
}

impl Checkpoint {
    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(u32::from(self.half).to_le_bytes());
        body.extend((self.extents.len() as u32).to_le_bytes());
        body.extend((self.descriptors.len() as u32).to_le_bytes());
        self.extents.iter().for_each(|extent| body.extend(extent.entry().as_bytes()));
        self.descriptors.iter().for_each(|descriptor| body.extend(descriptor.as_bytes()));
        self.base.iter().for_each(|entry| body.extend(entry.encode()));
        body
    }

    fn decode(header: &record::RecordHeader, body: &[u8]) -> Result<Checkpoint, String> {
        let short = || format!("checkpoint body of {} bytes", body.len());
        let (fixed, rest) = body.split_at_checked(FIXED).ok_or_else(short)?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| fixed[at + i]));
        let (extents, rest) = <[ExtentEntry]>::ref_from_prefix_with_elems(rest, word(4) as usize)
            .map_err(|_| short())?;
        let (descriptors, rest) =
            <[Descriptor]>::ref_from_prefix_with_elems(rest, word(8) as usize)
                .map_err(|_| short())?;
        if rest.len() != ACCOUNTS as usize * ENTRY {
            return Err(short());
        }
        let extents: Result<_, _> = extents.iter().map(Extent::parse).collect();
        Ok(Checkpoint {
            epoch: header.epoch.get(),
            number: header.checkpoint.get(),
            half: word(0) as u8,
            extents: extents.map_err(text)?,
            descriptors: descriptors.to_vec(),
            base: rest.chunks_exact(ENTRY).map(Entry::decode).collect(),
        })
    }
}

fn text(error: furrow_zone::Error) -> String {
    error.to_string()
}

/// The state found on a drive: the newest checkpoint, the index of its ring zone, and the table
/// that results from the checkpoint and the delta log.
struct Found {
    checkpoint: Checkpoint,
    zone: usize,
    table: Vec<Entry>,
}

struct State {
    epoch: u64,
    /// Number of the next checkpoint.
    next: u64,
    table: Vec<Entry>,
    dirty: BTreeSet<u32>,
    base: Vec<Entry>,
    extents: Vec<Extent>,
    log: DeltaLog,
    /// Index of the ring zone to which checkpoints are written.
    ring: usize,
    /// The superzone being written and its next block.
    active: Option<(SuperzoneId, u32)>,
    /// The superzone that was written before the active one.
    previous: Option<SuperzoneId>,
}

/// The ledger, open for commits.
struct Ledger {
    device: Rc<dyn ZonedDevice>,
    writer: Writer,
    pool: ZonePool,
    pages: Pool,
    state: RefCell<State>,
}

fn layout(device: &dyn ZonedDevice, defect: Option<LogDefect>) -> Result<DeltaLayout, String> {
    let halves = [vec![ZoneId(2), ZoneId(3)], vec![ZoneId(4), ZoneId(5)]];
    let layout = DeltaLayout::new(device.geometry(), halves, &[ENTRY as u16], DELTA);
    let mut layout = layout.map_err(text)?;
    layout.defect = defect;
    Ok(layout)
}

fn options(defect: Option<LogDefect>) -> WriterOptions {
    WriterOptions { order: Order::Queued, queues: QUEUES, depth: 4, defect, ..Default::default() }
}

async fn report(device: &dyn ZonedDevice, zone: ZoneId) -> Result<ZoneReport, String> {
    let reports = device.report(zone, 1).await.map_err(|status| format!("report: {status}"))?;
    reports.first().copied().ok_or_else(|| format!("no zone {zone}"))
}

/// The complete records of a ring zone. Blocks of a torn record may lie between them.
async fn scan(device: &dyn ZonedDevice, zone: ZoneId) -> Result<Vec<Checkpoint>, String> {
    let written = report(device, zone).await?.write_pointer.0 as u32;
    let from = BlockAddr::new(device.geometry(), zone, 0);
    let pages =
        read_blocks(device, QueueId(0), from, written, &Pool::new(4)).await.map_err(text)?;
    let bytes: Vec<u8> = concat(&pages);
    let expect = Expect { kind: CHECKPOINT, device: Some(DEVICE), object: Some(OBJECT) };
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match record::open(&bytes[at..], &expect) {
            Ok((header, body)) => {
                found.push(Checkpoint::decode(&header, body)?);
                at += header.blocks() as usize * 4096;
            }
            Err(_) => at += 4096,
        }
    }
    Ok(found)
}

/// Reads the state of the ledger from the drive, without changing it.
async fn load(device: &Rc<dyn ZonedDevice>, defect: Option<LogDefect>) -> Result<Found, String> {
    let mut newest: Option<(Checkpoint, usize)> = None;
    for (index, zone) in RING.into_iter().enumerate() {
        for checkpoint in scan(&**device, zone).await? {
            let age = |c: &Checkpoint| (c.epoch, c.number);
            if newest.as_ref().is_none_or(|(other, _)| age(other) < age(&checkpoint)) {
                newest = Some((checkpoint, index));
            }
        }
    }
    let (checkpoint, zone) = newest.ok_or("no checkpoint")?;
    let mut table = checkpoint.base.clone();
    let upto = id(checkpoint.epoch, checkpoint.number);
    let apply = |_, index: u32, payload: &[u8]| {
        if let Some(entry) = table.get_mut(index as usize) {
            *entry = Entry::decode(payload);
        }
        Ok(())
    };
    let layout = layout(&**device, defect)?;
    let pages = Pool::new(4);
    let replayed = layout.replay(&**device, &pages, &upto, &checkpoint.extents, apply);
    replayed.await.map_err(text)?;
    Ok(Found { checkpoint, zone, table })
}

/// Whether every block that the table names has the content written there.
async fn verify(device: &Rc<dyn ZonedDevice>, table: &[Entry]) -> Result<(), String> {
    for (account, entry) in (0..).zip(table).filter(|(_, entry)| entry.version > 0) {
        let read = read_blocks(&**device, QueueId(0), entry.at, 1, &Pool::new(1)).await;
        let page = read.map_err(|error| format!("account {account} {entry:?}: {error}"))?;
        if page[0].bytes() != stamp(account, entry.version).bytes()
            || crc32c(&page[0][..]) != entry.crc
        {
            return Err(format!("account {account}: another block is at {}", entry.at));
        }
    }
    Ok(())
}

fn versions(table: &[Entry]) -> Versions {
    table.iter().map(|entry| entry.version).collect()
}

/// Makes an empty ledger.
async fn make(rt: Rt, device: Rc<dyn ZonedDevice>) -> Result<(), String> {
    let writer = Writer::with_options(&rt, device.clone(), options(None));
    let checkpoint = Checkpoint {
        epoch: 1,
        number: 1,
        half: 0,
        extents: Vec::new(),
        descriptors: describe(device.geometry(), MAIN, WIDTH, &[]).map_err(text)?,
        base: vec![Entry::NONE; ACCOUNTS as usize],
    };
    let pages = record::seal(&id(1, 1), &checkpoint.encode(), &Pool::new(4));
    writer.open_empty(RING[0]);
    let written = writer.submit(ZoneWrite {
        durability: Durability::Fua,
        ..ZoneWrite::pages(RING[0], Kind::Checkpoint, pages)
    });
    written.await.map(drop).map_err(text)
}

impl Ledger {
    /// Opens the ledger: recovers, begins an epoch, and empties zones that the crash left written
    /// but that no checkpoint refers to.
    async fn open(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        defect: Option<LogDefect>,
    ) -> Result<(Rc<Ledger>, Vec<Entry>), String> {
        let Found { checkpoint, zone, table } = load(&device, defect).await?;
        let writer = Writer::with_options(rt, device.clone(), options(defect));
        let pool = ZonePool::new(&writer, &checkpoint.descriptors, 2).map_err(text)?;
        let pages = Pool::new(16);
        let layout = layout(&*device, defect)?;
        let log = DeltaLog::recover(&writer, layout, &pages, None, checkpoint.half)
            .await
            .map_err(text)?;
        let state = State {
            epoch: checkpoint.epoch + 1,
            next: checkpoint.number + 1,
            table: table.clone(),
            dirty: BTreeSet::new(),
            base: checkpoint.base,
            extents: checkpoint.extents,
            log,
            ring: zone,
            active: None,
            previous: None,
        };
        let state = RefCell::new(state);
        let ledger = Rc::new(Ledger { device, writer, pool, pages, state });
        ledger.recover_ring(zone).await?;
        ledger.recover_active().await?;
        let reports = survey::reports(&*ledger.device).await.map_err(text)?;
        let strays = survey::strays(&reports, |zone| ledger.writer.is_open(zone));
        for report in strays.copied().collect::<Vec<_>>() {
            survey::finish(&ledger.writer, &report).await.map_err(text)?;
        }
        ledger.commit(None).await?;
        ledger.empty_leftovers().await?;
        Ok((ledger, table))
    }

    async fn report(&self, zone: ZoneId) -> Result<ZoneReport, String> {
        report(&*self.device, zone).await
    }

    /// Continues the ring after the newest checkpoint. If the zone of that checkpoint is full and
    /// the other zone has been begun, continues after the content of the other zone.
    async fn recover_ring(&self, newest: usize) -> Result<(), String> {
        let (here, there) =
            (self.report(RING[newest]).await?, self.report(RING[1 - newest]).await?);
        let full = |report: &ZoneReport| report.state == ZoneState::Full;
        let begun = !full(&there) && there.state != ZoneState::Empty;
        let ring = if full(&here) && begun { 1 - newest } else { newest };
        self.state.borrow_mut().ring = ring;
        self.writer.open_reported(if ring == newest { &here } else { &there });
        self.writer.keep_permit(RING[ring]);
        Ok(())
    }

    /// Aligns the write pointers of the superzone that was being written.
    async fn recover_active(&self) -> Result<(), String> {
        let ids = (0..self.pool.total()).map(SuperzoneId);
        for id in ids.filter(|id| self.pool.state(*id) == SuperzoneState::Active) {
            let zones = self.pool.get(id).zones;
            let mut rows = 0;
            for zone in &zones {
                rows = rows.max(self.writer.open_reported(&self.report(*zone).await?));
                self.writer.keep_permit(*zone);
            }
            zones.iter().for_each(|zone| {
                drop(self.writer.submit(ZoneWrite::zeros_to(*zone, rows)));
            });
            let mut state = self.state.borrow_mut();
            if rows == self.capacity() {
                self.pool.mark_full(id);
                state.previous = Some(id);
            } else {
                state.active = Some((id, rows * zones.len() as u32));
            }
        }
        Ok(())
    }

    /// Empties zones that no checkpoint refers to. May be called only after the new epoch's first
    /// checkpoint was written.
    async fn empty_leftovers(self: &Rc<Self>) -> Result<(), String> {
        let (other, clean) = {
            let state = self.state.borrow();
            let other = 1 - state.log.position().0;
            (other, state.log.is_clean(other))
        };
        if !clean {
            self.release_half(other).await?;
        }
        for id in (0..self.pool.total()).map(SuperzoneId) {
            let mut touched = false;
            for zone in self.pool.get(id).zones {
                touched |= self.report(zone).await?.state != ZoneState::Empty;
            }
            if self.pool.state(id) == SuperzoneState::Free && touched {
                let durable = self.durable()?;
                durable.note_empty(id);
                self.pool.release(id, &durable).await.map_err(text)?;
            }
        }
        self.release_dead().await
    }

    fn capacity(&self) -> u32 {
        self.writer.geometry().zone_capacity.0 as u32
    }

    fn is_valid(&self, table: &[Entry], id: SuperzoneId) -> bool {
        let geometry = self.writer.geometry();
        let owner = |entry: &Entry| self.pool.owner(entry.at.zone(geometry));
        table.iter().any(|entry| entry.version > 0 && owner(entry) == Some(id))
    }

    /// Releases the full superzones without a valid block. No commit is in progress, so memory
    /// agrees with the durable checkpoint.
    async fn release_dead(&self) -> Result<(), String> {
        for id in (0..self.pool.total()).map(SuperzoneId) {
            let dead = self.pool.state(id) == SuperzoneState::Full
                && !self.is_valid(&self.state.borrow().table, id);
            if dead && self.state.borrow().dirty.is_empty() {
                let durable = self.durable()?;
                durable.note_empty(id);
                self.pool.release(id, &durable).await.map_err(text)?;
            }
        }
        Ok(())
    }

    /// The newest durable snapshot.
    fn durable(&self) -> Result<DurableSnapshot, String> {
        self.pool.durable().ok_or_else(|| "no checkpoint is durable".into())
    }

    /// Tries to release superzones that are dead only in memory: no durable checkpoint shows them
    /// empty. The pool must refuse.
    async fn release_too_early(&self) -> Result<(), String> {
        let (now, durable) = (self.pool.snapshot(), self.durable()?);
        for id in (0..self.pool.total()).map(SuperzoneId) {
            let dead = self.pool.state(id) == SuperzoneState::Full
                && !self.is_valid(&self.state.borrow().table, id);
            if dead {
                now.note_empty(id);
                let _ = self.pool.release(id, &durable).await;
            }
        }
        Ok(())
    }

    /// The zone of the next data block; `None` if no superzone is free.
    fn place(&self) -> Option<ZoneId> {
        let mut state = self.state.borrow_mut();
        if let Some((id, block)) = state.active
            && block == self.pool.width(id) * self.capacity()
        {
            self.pool.mark_full(id);
            state.previous = Some(id);
            state.active = None;
        }
        if state.active.is_none() {
            let id = self.pool.allocate(&[])?;
            for column in 0..self.pool.width(id) {
                let zone = self.pool.zone(id, column);
                match state.previous.filter(|previous| *previous != id) {
                    Some(previous) => {
                        self.writer.open_zone_after(zone, self.pool.zone(previous, column));
                    }
                    None => self.writer.open_empty(zone),
                }
                self.writer.keep_permit(zone);
            }
            state.active = Some((id, 0));
        }
        let (id, block) = state.active?;
        state.active = Some((id, block + 1));
        Some(self.pool.zone(id, block % self.pool.width(id)))
    }

    /// Writes a new version of `account`. False if there is no space.
    fn put(&self, account: u32, version: u64) -> bool {
        let Some(zone) = self.place() else { return false };
        let page = stamp(account, version);
        let crc = crc32c(&page[..]);
        let pages = Pages::from_iter([page]);
        let offset = self.writer.submit(ZoneWrite::pages(zone, Kind::Data, pages)).at();
        let at = BlockAddr::new(self.writer.geometry(), zone, offset);
        let mut state = self.state.borrow_mut();
        state.table[account as usize] = Entry { at, crc, version };
        state.dirty.insert(account);
        true
    }

    /// Makes all earlier puts durable. Only one commit runs at a time. It takes its snapshot at
    /// once, so puts may continue while it waits.
    async fn commit(self: &Rc<Self>, history: Option<Rc<RefCell<History>>>) -> Result<(), String> {
        let tell = |event| {
            if let Some(history) = &history {
                history.borrow_mut().0.push(event);
            }
        };
        let snapshot = self.pool.snapshot();
        let (mut checkpoint, changed, merge, point) = self.cut();
        tell(Event::Began(versions(&self.committed(&checkpoint, &changed))));
        self.writer.wait(point).await.map_err(text)?;
        self.writer.flush().await.map_err(text)?;
        let id = id(checkpoint.epoch, checkpoint.number);
        if !merge && !changed.is_empty() {
            let entries = changed.iter().map(|(account, entry)| (0, *account, &entry[..]));
            let appended =
                self.state.borrow_mut().log.append(&id, entries, &mut checkpoint.extents);
            appended.map_err(text)?.written().await.map_err(text)?;
            self.writer.flush().await.map_err(text)?;
        }
        let pages = record::seal(&id, &checkpoint.encode(), &self.pages);
        let zone = self.ring_zone(pages.len() as u32).await?;
        let written = self.writer.submit(ZoneWrite {
            durability: Durability::Fua,
            ..ZoneWrite::pages(zone, Kind::Checkpoint, pages)
        });
        snapshot.committed(written).await.map_err(text)?;
        tell(Event::Acknowledged);
        {
            let mut state = self.state.borrow_mut();
            state.base = checkpoint.base;
            state.extents = checkpoint.extents;
        }
        if merge {
            let old = {
                let mut state = self.state.borrow_mut();
                let old = state.log.position().0;
                state.log.switch_half().map_err(text)?;
                old
            };
            self.release_half(old).await?;
        }
        Ok(())
    }

    /// Collects everything that a commit makes durable, in one stretch without waiting.
    #[allow(clippy::type_complexity, reason = "four things that belong together once")]
    fn cut(&self) -> (Checkpoint, Vec<(u32, [u8; ENTRY])>, bool, furrow_log::SequencePoint) {
        let state = &mut *self.state.borrow_mut();
        let dirty = std::mem::take(&mut state.dirty);
        let entry = |account: u32| (account, state.table[account as usize].encode());
        let changed: Vec<_> = dirty.into_iter().map(entry).collect();
        let merge = state.log.worst_case_blocks(&[changed.len() as u32]) > state.log.space_left();
        let (base, extents) = if merge {
            (state.table.clone(), Vec::new())
        } else {
            (state.base.clone(), state.extents.clone())
        };
        let half = state.log.position().0;
        let checkpoint = Checkpoint {
            epoch: state.epoch,
            number: state.next,
            half: if merge { 1 - half } else { half },
            extents,
            descriptors: self.pool.descriptors(),
            base,
        };
        state.next += 1;
        (checkpoint, changed, merge, self.writer.sequence_point())
    }

    /// The table at the snapshot of a commit in progress.
    fn committed(&self, checkpoint: &Checkpoint, changed: &[(u32, [u8; ENTRY])]) -> Vec<Entry> {
        let state = self.state.borrow();
        // Nothing was written since the snapshot, so the table in memory is the snapshot's.
        let mut table = state.table.clone();
        for (account, entry) in changed {
            table[*account as usize] = Entry::decode(entry);
        }
        debug_assert!(state.dirty.is_empty() && checkpoint.number < state.next);
        table
    }

    /// Returns the ring zone that takes a record of `blocks` blocks: the present one, or the other,
    /// emptied, if the present one is too full.
    async fn ring_zone(&self, blocks: u32) -> Result<ZoneId, String> {
        let ring = self.state.borrow().ring;
        if self.writer.space_left(RING[ring]) >= blocks {
            return Ok(RING[ring]);
        }
        drop(self.writer.submit(ZoneWrite::zeros_to(RING[ring], self.capacity())));
        let next = RING[1 - ring];
        // Before the first commit there is no durable snapshot, so the drive is flushed.
        let durable = match self.pool.durable() {
            Some(durable) => durable,
            None => self.pool.snapshot().flushed().await.map_err(text)?,
        };
        self.pool.release_zone(next, &durable).await.map_err(text)?;
        self.writer.open_zone_after(next, RING[ring]);
        self.writer.keep_permit(next);
        self.state.borrow_mut().ring = 1 - ring;
        Ok(next)
    }

    async fn release_half(&self, half: u8) -> Result<(), String> {
        let zones = self.state.borrow().log.half_zones(half);
        let durable = self.durable()?;
        for zone in zones {
            self.pool.release_zone(zone, &durable).await.map_err(text)?;
        }
        self.state.borrow_mut().log.half_released(half);
        Ok(())
    }
}

async fn run(
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    seed: u64,
    defect: Option<LogDefect>,
    history: Rc<RefCell<History>>,
) -> Result<(), String> {
    let (ledger, _) = Ledger::open(&rt, device, defect).await?;
    let mut rng = Rng::new(seed);
    let mut version = 0;
    for _ in 0..30 {
        let commit = {
            let (ledger, history) = (ledger.clone(), history.clone());
            rt.spawn(async move { ledger.commit(Some(history)).await })
        };
        // The commit takes its snapshot when its task first runs, and then runs concurrently.
        rt.yield_now().await;
        for _ in 0..rng.below(12) {
            version += 1;
            // Accounts mostly take turns, so that old superzones become empty.
            let account = (version as u32 + rng.below(2) as u32) % ACCOUNTS;
            if !ledger.put(account, version) {
                break;
            }
            if rng.one_in(4) {
                rt.yield_now().await;
            }
        }
        ledger.release_too_early().await?;
        commit.await?;
        ledger.commit(Some(history.clone())).await?;
        ledger.release_dead().await?;
    }
    Ok(())
}

/// Opens the ledger after a crash, compares its versions with `expected`, and then writes to it
/// without changing a version.
async fn check(
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    seed: u64,
    defect: Option<LogDefect>,
    expected: Vec<Versions>,
) -> Result<(), String> {
    let (ledger, table) = Ledger::open(&rt, device.clone(), defect).await?;
    let found = versions(&table);
    if !expected.contains(&found) {
        return Err(format!("versions {found:?}, expected one of {expected:?}"));
    }
    verify(&device, &table).await?;
    let mut rng = Rng::new(seed);
    for _ in 0..3 {
        for _ in 0..4 {
            let account = rng.below(u64::from(ACCOUNTS)) as u32;
            if found[account as usize] > 0 {
                ledger.put(account, found[account as usize]);
            }
        }
        ledger.commit(None).await?;
        ledger.release_dead().await?;
    }
    let again = load(&device, defect).await?;
    if versions(&again.table) != found {
        return Err(format!("versions {:?} after use, were {found:?}", versions(&again.table)));
    }
    verify(&device, &again.table).await
}

/// The ledger under the crash harness.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogSubject {
    /// The defect built into `furrow-log`, if any.
    pub defect: Option<LogDefect>,
}

impl Subject for LogSubject {
    type History = History;
    type Expected = Vec<Versions>;

    fn name(&self) -> String {
        match self.defect {
            None => "ledger".to_owned(),
            Some(defect) => format!("ledger:{defect:?}"),
        }
    }

    fn drive(&self, case: Case) -> Geometry {
        let mut rng = Rng::new(case.seed ^ 0x1ed9);
        let capacity = 7 + rng.below(8);
        Geometry {
            max_open: Some(4),
            max_active: Some(4),
            max_transfer: Some(BlockCount(3)),
            unwritten_reads_fail: true,
            volatile_cache: case.volatile,
            ..Geometry::unlimited(16 + 2 * rng.below(3) as u32, capacity + rng.below(4), capacity)
        }
    }

    fn prepare(&self, rt: &Rt, device: Rc<dyn ZonedDevice>, _: Case) -> Result<(), String> {
        rt.block_on(make(rt.clone(), device))
    }

    fn run(
        &self,
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        case: Case,
        history: Rc<RefCell<History>>,
    ) -> Result<(), String> {
        rt.block_on(run(rt.clone(), device, case.seed, self.defect, history))
    }

    fn mark(history: &History) -> usize {
        history.0.len()
    }

    fn expect(&self, history: &History, mark: usize) -> Vec<Versions> {
        let mut expected = vec![vec![0; ACCOUNTS as usize]];
        for event in &history.0[..mark] {
            match event {
                Event::Began(versions) => expected.push(versions.clone()),
                Event::Acknowledged => drop(expected.drain(..expected.len() - 1)),
            }
        }
        expected
    }

    fn reopen(
        &self,
        rt: &Rt,
        drive: &Emulator,
        case: Case,
        expected: &Vec<Versions>,
    ) -> Result<(), String> {
        rt.block_on(check(
            rt.clone(),
            Rc::new(drive.clone()),
            case.seed,
            self.defect,
            expected.clone(),
        ))
    }
}
