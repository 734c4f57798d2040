//! A toy log client: the smallest program that promises durability, for testing the crash harness.
//!
//! Records are appended over a ring of zones, one write command each, and acknowledged once they
//! and every earlier record are durable. A record is a header block (and payload over more
//! blocks) with one CRC over all. *Trim* gives old records up; a zone is reset once a durable
//! record says that all its records are trimmed. Recovery scans all zones, takes the records
//! without a gap, and starts a new *epoch*: what an older epoch left behind the gap is dead.
//!
//! Its [`ToyDefect`]s are built in on purpose: the harness must catch each. Not for use.

use crate::crash::{Case, Subject};
use furrow_emu::Emulator;
use furrow_log::record::crc32c;
use furrow_rt::{Notify, PAGE_SIZE, Page, Pages, Rng, Rt};
use furrow_zone::{
    Action, BlockCount, Command, Geometry, Outcome, QueueId, Request, Target, ZoneId, ZoneState,
    ZonedDevice,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

const MAGIC: u64 = 0x746f_796c_6f67_0001;
const HEADER: usize = 48;
/// Most blocks of one record.
const RECORD_BLOCKS_MAX: u64 = 4;
/// Queues used: zones are spread over them, so records of two zones may complete out of order.
const QUEUES: u32 = 3;

/// A defect built in on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToyDefect {
    /// Acknowledges without a flush.
    SkippedFlush,
    /// Acknowledges before the write is answered.
    EarlyAck,
    /// Recovery takes records without checking their CRC.
    DroppedCrc,
    /// Resets zones before the record that trims them is durable.
    ReuseBeforeRelease,
}

impl ToyDefect {
    /// All of them.
    pub const ALL: [ToyDefect; 4] = [
        ToyDefect::SkippedFlush,
        ToyDefect::EarlyAck,
        ToyDefect::DroppedCrc,
        ToyDefect::ReuseBeforeRelease,
    ];
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Trim,
    Epoch,
}

#[derive(Clone, Debug)]
struct Record {
    id: u64,
    epoch: u64,
    /// Records below this id are trimmed.
    trim: u64,
    kind: Kind,
    payload: Vec<u8>,
}

impl Record {
    fn blocks(&self) -> u64 {
        (HEADER + self.payload.len()).div_ceil(PAGE_SIZE) as u64
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.payload.len());
        for word in [MAGIC, self.id, self.epoch, self.trim] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend((self.payload.len() as u32).to_le_bytes());
        bytes.extend((self.kind as u32).to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(&self.payload);
        let crc = crc32c(&bytes);
        bytes[40..44].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The record at the front of `bytes`; `None` if it is not whole.
    fn decode(bytes: &[u8], check_crc: bool) -> Option<Record> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if word(0)? != MAGIC {
            return None;
        }
        let length = (word(32)? & 0xffff_ffff) as usize;
        let kind = match word(32)? >> 32 {
            0 => Kind::Data,
            1 => Kind::Trim,
            2 => Kind::Epoch,
            _ => return None,
        };
        let mut whole = bytes.get(..HEADER + length)?.to_vec();
        let crc = u32::from_le_bytes(whole[40..44].try_into().ok()?);
        whole[40..48].fill(0);
        if check_crc && crc32c(&whole) != crc {
            return None;
        }
        let payload = whole.split_off(HEADER);
        Some(Record { id: word(8)?, epoch: word(16)?, trim: word(24)?, kind, payload })
    }
}

/// The payload of record `id` in the run of `seed`.
fn payload(seed: u64, id: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ id.wrapping_mul(0xd6e8_feb8_6659_fd93));
    let most = RECORD_BLOCKS_MAX * PAGE_SIZE as u64 - HEADER as u64;
    let length = match rng.below(3) {
        0 => rng.below(300),
        1 => rng.below(most),
        _ => most - rng.below(100),
    };
    let mut bytes = Vec::with_capacity(length as usize + 8);
    while bytes.len() < length as usize {
        bytes.extend(rng.next().to_le_bytes());
    }
    bytes.truncate(length as usize);
    bytes
}

/// The answers to the clients of a run, in order.
#[derive(Clone, Copy, Debug)]
enum Event {
    Acknowledged(u64),
    TrimAsked(u64),
    TrimAcknowledged(u64),
}

/// The events of a run.
#[derive(Clone, Debug, Default)]
pub struct History(Vec<Event>);

impl History {
    /// The number of events.
    pub fn mark(&self) -> usize {
        self.0.len()
    }

    /// What must hold after a crash when the history had `mark` events.
    pub fn cut(&self, mark: usize) -> Expected {
        let mut expected = Expected::default();
        for event in &self.0[..mark] {
            match *event {
                Event::Acknowledged(id) => {
                    expected.acknowledged = expected.acknowledged.max(id);
                }
                Event::TrimAsked(to) => expected.trim_asked = expected.trim_asked.max(to),
                Event::TrimAcknowledged(to) => {
                    expected.trim_acknowledged = expected.trim_acknowledged.max(to);
                }
            }
        }
        expected
    }
}

/// What must hold after a crash.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    acknowledged: u64,
    trim_asked: u64,
    trim_acknowledged: u64,
}

struct State {
    epoch: u64,
    next: u64,
    trim: u64,
    /// The zone of the next record.
    zone: ZoneId,
    offset: u64,
    free: VecDeque<ZoneId>,
    /// Full zones, oldest first, each with the id of its last record.
    full: VecDeque<(ZoneId, u64)>,
    /// Records whose write is not answered yet.
    pending: BTreeSet<u64>,
    failed: Option<String>,
}

/// The log.
pub struct ToyLog {
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    geometry: Geometry,
    defect: Option<ToyDefect>,
    state: RefCell<State>,
    changed: Notify,
}

/// What recovery found.
struct Scan {
    /// The records without a gap from the trim point on.
    records: Vec<Record>,
    trim: u64,
    /// Highest epoch seen anywhere.
    epoch: u64,
    states: Vec<ZoneState>,
    /// The last record id found in each zone.
    last_of_zone: BTreeMap<ZoneId, u64>,
}

fn queue(zone: ZoneId) -> QueueId {
    QueueId((zone.0 % QUEUES) as u16)
}

async fn command(
    device: &Rc<dyn ZonedDevice>,
    zone: ZoneId,
    command: Command,
) -> Result<(), String> {
    let outcome = device.submit(queue(zone), Request::bare(command)).await;
    checked(&outcome, &command)
}

fn checked(outcome: &Outcome, command: &Command) -> Result<(), String> {
    match outcome.status.is_ok() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", outcome.status)),
    }
}

async fn read_zone(device: &Rc<dyn ZonedDevice>, zone: ZoneId) -> Result<Vec<u8>, String> {
    let geometry = device.geometry();
    let (start, blocks) = (geometry.start(zone), geometry.zone_capacity.0);
    let pages: Pages = (0..blocks).map(|_| Page::zeroed()).collect();
    let command = Command::Read { lba: start, blocks: BlockCount(blocks) };
    let outcome = device.submit(queue(zone), Request::with_data(command, pages)).await;
    checked(&outcome, &command)?;
    Ok(outcome.data.iter().flat_map(|page| page.bytes().iter().copied()).collect())
}

fn zone_records(bytes: &[u8], check_crc: bool) -> Vec<Record> {
    let mut records = Vec::new();
    let mut at = 0;
    while let Some(record) = bytes.get(at..).and_then(|rest| Record::decode(rest, check_crc)) {
        at += record.blocks() as usize * PAGE_SIZE;
        records.push(record);
    }
    records
}

async fn scan(device: &Rc<dyn ZonedDevice>, check_crc: bool) -> Result<Scan, String> {
    let zones = device.geometry().zones;
    let report = device.report(ZoneId(0), zones).await.map_err(|status| status.to_string())?;
    let mut by_id: BTreeMap<u64, Vec<Record>> = BTreeMap::new();
    let mut last_of_zone = BTreeMap::new();
    for zone in report.iter().filter(|zone| zone.state != ZoneState::Empty) {
        for record in zone_records(&read_zone(device, zone.zone).await?, check_crc) {
            let last = last_of_zone.entry(zone.zone).or_insert(0);
            *last = (*last).max(record.id);
            by_id.entry(record.id).or_default().push(record);
        }
    }
    let states = report.iter().map(|zone| zone.state).collect();
    let epoch = by_id.values().flatten().map(|record| record.epoch).max().unwrap_or(0);
    let take = |id: u64, most: u64| {
        by_id.get(&id)?.iter().filter(|r| r.epoch <= most).max_by_key(|r| r.epoch).cloned()
    };
    // The newest epoch holds the newest records; the log ends where they end.
    let newest = |r: &Record| r.epoch == epoch;
    let first = by_id.iter().find(|(_, versions)| versions.iter().any(newest)).map(|(&id, _)| id);
    let mut last = None;
    let mut id = first.unwrap_or(0);
    while let Some(record) = take(id, epoch).filter(|r| r.epoch == epoch) {
        last = Some(record);
        id += 1;
    }
    let mut records = Vec::new();
    let mut trim = 0;
    if let Some(mut at) = last {
        trim = at.trim;
        while at.id > trim {
            let before = take(at.id - 1, at.epoch).ok_or_else(|| {
                format!("record {} is gone, records from {trim} on are not trimmed", at.id - 1)
            })?;
            records.push(std::mem::replace(&mut at, before));
        }
        records.push(at);
        records.reverse();
    }
    Ok(Scan { records, trim, epoch, states, last_of_zone })
}

impl ToyLog {
    /// Opens the log on `device`, which may be empty, after recovering what a crash left. Also
    /// returns the records found.
    async fn open(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        defect: Option<ToyDefect>,
    ) -> Result<(Rc<ToyLog>, Scan), String> {
        let scan = scan(&device, defect != Some(ToyDefect::DroppedCrc)).await?;
        let geometry = device.geometry().clone();
        let (mut free, mut dead, mut full) = (VecDeque::new(), Vec::new(), Vec::new());
        for (index, state) in scan.states.iter().enumerate() {
            let zone = ZoneId(index as u32);
            if *state == ZoneState::Empty {
                free.push_back(zone);
                continue;
            }
            if state.is_active() {
                let finish = Command::Manage {
                    target: Target::Zone(geometry.start(zone)),
                    action: Action::Finish,
                };
                command(&device, zone, finish).await?;
            }
            // A zone without whole records, or with trimmed ones only, holds nothing.
            match scan.last_of_zone.get(&zone) {
                Some(&last) if last >= scan.trim => full.push((last, zone)),
                last => dead.push((last.copied().unwrap_or(0), zone)),
            }
        }
        dead.sort();
        for (_, zone) in dead {
            command(&device, zone, Command::reset(&geometry, zone)).await?;
            free.push_back(zone);
        }
        full.sort();
        let zone = free.pop_front().ok_or("no empty zone")?;
        let state = State {
            epoch: scan.epoch + 1,
            next: scan.records.last().map_or(1, |record| record.id + 1),
            trim: scan.trim.max(1),
            zone,
            offset: 0,
            free,
            full: full.into_iter().map(|(last, zone)| (zone, last)).collect(),
            pending: BTreeSet::new(),
            failed: None,
        };
        let log = Rc::new(ToyLog {
            rt: rt.clone(),
            device,
            geometry,
            defect,
            state: RefCell::new(state),
            changed: Notify::new(),
        });
        let id = log.append(Kind::Epoch, Vec::new).await?;
        log.commit(id).await?;
        Ok((log, scan))
    }

    /// Appends a record and returns its id; it is durable after [`ToyLog::commit`].
    async fn append(
        self: &Rc<Self>,
        kind: Kind,
        payload: impl Fn() -> Vec<u8>,
    ) -> Result<u64, String> {
        self.append_with(kind, |_| payload()).await
    }

    async fn append_with(
        self: &Rc<Self>,
        kind: Kind,
        payload: impl Fn(u64) -> Vec<u8>,
    ) -> Result<u64, String> {
        loop {
            let waiting = self.changed.wait();
            if let Some(why) = &self.state.borrow().failed {
                return Err(why.clone());
            }
            let next = self.state.borrow().next;
            let bytes = payload(next);
            let blocks = (HEADER + bytes.len()).div_ceil(PAGE_SIZE) as u64;
            // One zone is reserved for the records that free others.
            if self.make_room(blocks, if kind == Kind::Data { 1 } else { 0 }) {
                self.place(kind, bytes);
                return Ok(next);
            }
            waiting.await;
        }
    }

    /// True if the current zone has space for `blocks`; otherwise continues in a free zone if that
    /// leaves `spare` free zones.
    fn make_room(self: &Rc<Self>, blocks: u64, spare: usize) -> bool {
        let mut state = self.state.borrow_mut();
        if state.offset + blocks <= self.geometry.zone_capacity.0 {
            return true;
        }
        if state.free.len() <= spare {
            return false;
        }
        let last = state.next - 1;
        let old = state.zone;
        state.full.push_back((old, last));
        state.zone = state.free.pop_front().expect("invariant: counted above");
        let finish = state.offset < self.geometry.zone_capacity.0;
        state.offset = 0;
        drop(state);
        if finish {
            let finish = Command::Manage {
                target: Target::Zone(self.geometry.start(old)),
                action: Action::Finish,
            };
            // Commands of one queue start in order, so this comes behind the zone's writes.
            self.watch(finish, self.device.submit(queue(old), Request::bare(finish)), None);
        }
        true
    }

    fn place(self: &Rc<Self>, kind: Kind, payload: Vec<u8>) {
        let mut state = self.state.borrow_mut();
        let (id, epoch, trim) = (state.next, state.epoch, state.trim);
        let record = Record { id, epoch, trim, kind, payload };
        let lba = furrow_zone::Lba(self.geometry.start(state.zone).0 + state.offset);
        let pages: Pages = record.encode().chunks(PAGE_SIZE).map(Page::from_slice).collect();
        let blocks = BlockCount(pages.len() as u64);
        let write = Command::Write { lba, blocks };
        state.offset += blocks.0;
        state.next += 1;
        state.pending.insert(id);
        let queue = queue(state.zone);
        drop(state);
        let answer = self.device.submit(queue, Request::with_data(write, pages));
        self.watch(write, answer, Some(id));
    }

    fn watch(
        self: &Rc<Self>,
        command: Command,
        answer: furrow_rt::Completion<Outcome>,
        id: Option<u64>,
    ) {
        let this = self.clone();
        self.rt.spawn_detached(async move {
            let outcome = answer.await;
            let mut state = this.state.borrow_mut();
            if let Err(why) = checked(&outcome, &command) {
                state.failed = Some(why);
            }
            if let Some(id) = id {
                state.pending.remove(&id);
            }
            drop(state);
            this.changed.notify_all();
        });
    }

    /// Waits until record `id` and all before it are durable.
    async fn commit(&self, id: u64) -> Result<(), String> {
        while self.defect != Some(ToyDefect::EarlyAck) {
            let waiting = self.changed.wait();
            {
                let state = self.state.borrow();
                if let Some(why) = &state.failed {
                    return Err(why.clone());
                }
                if state.pending.first().is_none_or(|&first| first > id) {
                    break;
                }
            }
            waiting.await;
        }
        if !matches!(self.defect, Some(ToyDefect::SkippedFlush | ToyDefect::EarlyAck)) {
            command(&self.device, ZoneId(0), Command::Flush).await?;
        }
        Ok(())
    }

    /// Trims the records below `to` and resets the zones that hold no others.
    async fn trim(self: &Rc<Self>, to: u64) -> Result<(), String> {
        {
            let mut state = self.state.borrow_mut();
            state.trim = state.trim.max(to);
        }
        let id = self.append(Kind::Trim, Vec::new).await?;
        if self.defect != Some(ToyDefect::ReuseBeforeRelease) {
            self.commit(id).await?;
        }
        // Oldest first, one at a time, so that the remaining records have no gap.
        loop {
            let zone = {
                let mut state = self.state.borrow_mut();
                match state.full.front() {
                    Some(&(zone, last)) if last < to => state.full.pop_front().map(|_| zone),
                    _ => None,
                }
            };
            let Some(zone) = zone else { break };
            command(&self.device, zone, Command::reset(&self.geometry, zone)).await?;
            self.state.borrow_mut().free.push_back(zone);
            self.changed.notify_all();
        }
        self.commit(id).await
    }

    fn free_zones(&self) -> usize {
        self.state.borrow().free.len()
    }
}

/// Runs `clients` that append `appends` records each and trim when space gets short.
pub async fn run(
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    seed: u64,
    defect: Option<ToyDefect>,
    history: Rc<RefCell<History>>,
) -> Result<(), String> {
    let (log, _) = ToyLog::open(&rt, device, defect).await?;
    let mut rng = Rng::new(seed);
    let clients = 1 + rng.below(4);
    let tasks: Vec<_> = (0..clients)
        .map(|client| rt.spawn(run_client(log.clone(), seed, client, history.clone())))
        .collect();
    for task in tasks {
        task.await?;
    }
    Ok(())
}

async fn run_client(
    log: Rc<ToyLog>,
    seed: u64,
    client: u64,
    history: Rc<RefCell<History>>,
) -> Result<(), String> {
    let tell = |event| history.borrow_mut().0.push(event);
    let mut rng = Rng::new(seed ^ (client + 1) << 32);
    let mut acknowledged = 0;
    for _ in 0..20 {
        if client == 0 && log.free_zones() <= 3 {
            let to = history.borrow().cut(history.borrow().mark()).acknowledged.max(1);
            tell(Event::TrimAsked(to));
            log.trim(to).await?;
            tell(Event::TrimAcknowledged(to));
        }
        if client > 0 && log.free_zones() <= 2 {
            // Only client 0 frees space, and it may have ended already.
            break;
        }
        let batch = 1 + rng.below(3);
        for _ in 0..batch {
            acknowledged = log.append_with(Kind::Data, |id| payload(seed, id)).await?;
        }
        log.commit(acknowledged).await?;
        tell(Event::Acknowledged(acknowledged));
    }
    Ok(())
}

/// Opens the log after a crash and compares with what is expected; then uses it.
pub async fn check(
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    seed: u64,
    defect: Option<ToyDefect>,
    expected: Expected,
) -> Result<(), String> {
    let (log, scan) = ToyLog::open(&rt, device.clone(), defect).await?;
    let last = scan.records.last().map_or(0, |record| record.id);
    let Expected { acknowledged, trim_asked, trim_acknowledged } = expected;
    if last < acknowledged {
        return Err(format!("records end at {last}, {acknowledged} was acknowledged"));
    }
    if scan.trim < trim_acknowledged || scan.trim > trim_asked.max(1) {
        return Err(format!(
            "trimmed to {}, not between {trim_acknowledged} and {trim_asked}",
            scan.trim
        ));
    }
    check_records(&scan, seed)?;
    // The log is usable: one more record is appended, and all are found again.
    let id = log.append_with(Kind::Data, |id| payload(seed, id)).await?;
    log.commit(id).await?;
    let again = self::scan(&device, defect != Some(ToyDefect::DroppedCrc)).await?;
    check_records(&again, seed)?;
    match again.records.last() {
        Some(record) if record.id == id => Ok(()),
        other => Err(format!("record {id} was added, the last is {:?}", other.map(|r| r.id))),
    }
}

fn check_records(scan: &Scan, seed: u64) -> Result<(), String> {
    for record in scan.records.iter().filter(|record| record.kind == Kind::Data) {
        if record.payload != payload(seed, record.id) {
            return Err(format!("record {} holds something else", record.id));
        }
    }
    Ok(())
}

/// The toy log under the crash harness.
#[derive(Clone, Copy, Debug, Default)]
pub struct Toy {
    /// The defect it has, if any.
    pub defect: Option<ToyDefect>,
}

impl Subject for Toy {
    type History = History;
    type Expected = Expected;

    fn name(&self) -> String {
        match self.defect {
            None => "toy".to_owned(),
            Some(defect) => format!("toy:{defect:?}"),
        }
    }

    fn drive(&self, case: Case) -> Geometry {
        let mut rng = Rng::new(case.seed ^ 0xd217);
        let capacity = 9 + rng.below(12);
        Geometry {
            max_open: Some(6),
            max_active: Some(8),
            volatile_cache: case.volatile,
            ..Geometry::unlimited(10 + rng.below(5) as u32, capacity + rng.below(4), capacity)
        }
    }

    /// Each recovery takes a fresh zone and frees none, and there are few.
    fn cuts_most(&self) -> usize {
        2
    }

    fn prepare(&self, _: &Rt, _: Rc<dyn ZonedDevice>, _: Case) -> Result<(), String> {
        Ok(())
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
        history.mark()
    }

    fn expect(&self, history: &History, mark: usize) -> Expected {
        history.cut(mark)
    }

    fn reopen(
        &self,
        rt: &Rt,
        drive: &Emulator,
        case: Case,
        expected: &Expected,
    ) -> Result<(), String> {
        rt.block_on(check(rt.clone(), Rc::new(drive.clone()), case.seed, self.defect, *expected))
    }
}
