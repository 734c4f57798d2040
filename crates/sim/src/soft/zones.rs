//! Clients that use zones directly, and the contract of a zoned drive as their oracle.
//!
//! Each client has zones of its own and draws its operations from the seed: writes, several at
//! once; flushes; writes with FUA; finishes; resets, some with a write right after them. In some
//! runs a client does not wait for writes and resets, so flushes, finishes and resets follow while
//! those are in flight. The content of a block depends on zone, block and *life* (number of resets
//! of the zone). Some blocks are zeros, and some are the same in each life, so that an old life or
//! a discarded block can look like a new one.
//!
//! If the plain drive has faults, a write may fail. The client stops using that zone, and stops
//! altogether if anything else fails: the layer then writes nothing until it is opened again.
//!
//! After a power cut a zone must be in the last life whose reset was answered or that has a durable
//! block, or in a later life that was begun. The zone must end after the last block that a flush
//! covers, and not after the last block that was written. Every block must read as it was written,
//! at every read. A flush covers the writes that its client sent before it, as
//! [`ZonedDevice::flush_covers_submitted`] promises, and the writes of other clients that were
//! answered before it.

use furrow_rt::{JoinHandle, PAGE_SIZE, Page, Pages, Rng, Rt};
use furrow_zone::{
    Action, BlockCount, Command, Lba, QueueId, Request, Status, Target, ZoneId, ZoneState,
    ZonedDevice,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// An event of a run. Blocks count from the zone's start, and `to` is the first block after
/// the range.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A write was sent in this life of the zone.
    Sent {
        zone: u32,
        life: u32,
        to: u32,
    },
    /// A write was answered.
    Answered {
        zone: u32,
        life: u32,
        to: u32,
    },
    /// A write with FUA was answered.
    Durable {
        zone: u32,
        life: u32,
        to: u32,
    },
    /// A write from this block on failed.
    Failed {
        zone: u32,
        life: u32,
        from: u32,
    },
    /// A flush was sent by the client that uses every `clients`-th zone from `number` on.
    FlushSent {
        id: u32,
        clients: u32,
        number: u32,
    },
    /// A flush was answered, and so were the writes that its client had sent before.
    FlushAnswered(u32),
    FinishSent {
        zone: u32,
        life: u32,
    },
    FinishAnswered {
        zone: u32,
        life: u32,
    },
    /// A reset that begins the next life was sent.
    ResetSent {
        zone: u32,
    },
    /// The reset that begins this life was answered.
    ResetAnswered {
        zone: u32,
        life: u32,
    },
}

/// The events of a run.
#[derive(Clone, Debug, Default)]
pub struct History(Vec<Event>);

/// One life of a zone: what is written to the zone between two resets.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    /// Number of blocks sent to the drive.
    sent: u32,
    /// Number of blocks whose write was answered.
    answered: u32,
    /// Number of blocks that are certainly durable, by a flush or by FUA.
    durable: u32,
    finish_sent: bool,
    finished: bool,
    /// The first block of a write that failed. Blocks from it on may be lost, durable or not.
    failed: Option<u32>,
}

impl Life {
    /// The number of blocks that must still exist.
    fn kept(&self) -> u32 {
        self.durable.min(self.failed.unwrap_or(u32::MAX))
    }
}

/// The lives of a zone that a power cut may leave on the drive.
#[derive(Clone, Debug)]
struct Lives {
    /// Number of the first life.
    first: u32,
    lives: Vec<Life>,
}

impl Default for Lives {
    fn default() -> Lives {
        Lives { first: 0, lives: vec![Life::default()] }
    }
}

/// What must hold after a crash, by zone.
#[derive(Clone, Debug, Default)]
pub struct Expected(BTreeMap<u32, Lives>);

/// Start of the message of a read error.
const READ: &str = "read of block";
/// Number of blocks that [`probe`] writes to a zone.
const PROBED: u32 = 3;

impl Expected {
    /// Widens the expectation by the effects that a [`probe`] may have had: more blocks in a life,
    /// or the next life.
    pub fn probed(&mut self, zones: u32) {
        for zone in 0..zones {
            let lives = &mut self.0.entry(zone).or_default().lives;
            lives.iter_mut().for_each(|life| life.sent += PROBED);
            lives.push(Life { sent: PROBED, ..Life::default() });
        }
    }

    fn life(&mut self, zone: u32, life: u32) -> Option<&mut Life> {
        let lives = self.0.entry(zone).or_default();
        lives.lives.get_mut(life.checked_sub(lives.first)? as usize)
    }

    /// Records that the blocks before `to` are durable in life `life`. If one of these blocks must
    /// still exist, earlier lives are over.
    fn durable(&mut self, zone: u32, life: u32, to: u32) {
        let Some(of) = self.life(zone, life) else { return };
        of.durable = of.durable.max(to);
        // Without a kept block the life's first write failed, and the reset before it may have
        // failed too.
        if of.kept() > 0 {
            self.begun(zone, life);
        }
    }

    /// Records that the lives of `zone` before `life` are over.
    fn begun(&mut self, zone: u32, life: u32) {
        let lives = self.0.entry(zone).or_default();
        let over = life.saturating_sub(lives.first) as usize;
        lives.lives.drain(..over.min(lives.lives.len() - 1));
        lives.first = lives.first.max(life);
    }
}

impl History {
    /// The number of events.
    pub fn mark(&self) -> usize {
        self.0.len()
    }

    /// What must hold after a crash when the history had `mark` events.
    pub fn cut(&self, mark: usize) -> Expected {
        let mut expected = Expected::default();
        // For each flush in progress, the blocks that it covers: zone, life, and the first block
        // after them.
        let mut flushes: BTreeMap<u32, Vec<(u32, u32, u32)>> = BTreeMap::new();
        for event in &self.0[..mark] {
            match *event {
                Event::Sent { zone, life, to } => {
                    expected.life(zone, life).into_iter().for_each(|l| l.sent = to);
                }
                Event::Answered { zone, life, to } => {
                    let life = expected.life(zone, life);
                    life.into_iter().for_each(|l| l.answered = l.answered.max(to));
                }
                Event::Durable { zone, life, to } => expected.durable(zone, life, to),
                Event::Failed { zone, life, from } => {
                    expected.life(zone, life).into_iter().for_each(|life| {
                        life.failed = Some(life.failed.map_or(from, |before| before.min(from)));
                    });
                }
                Event::FlushSent { id, clients, number } => {
                    let covered = expected.0.iter().flat_map(|(zone, lives)| {
                        let each = (lives.first..).zip(&lives.lives);
                        let own = zone % clients == number;
                        each.map(move |(number, life)| {
                            (*zone, number, if own { life.sent } else { life.answered })
                        })
                    });
                    flushes.insert(id, covered.collect());
                }
                Event::FlushAnswered(id) => {
                    for (zone, life, to) in flushes.remove(&id).unwrap_or_default() {
                        expected.durable(zone, life, to);
                    }
                }
                Event::FinishSent { zone, life } => {
                    expected.life(zone, life).into_iter().for_each(|l| l.finish_sent = true);
                }
                Event::FinishAnswered { zone, life } => {
                    expected.life(zone, life).into_iter().for_each(|l| {
                        l.finished = true;
                        l.durable = l.sent;
                    });
                }
                Event::ResetSent { zone } => {
                    let lives = expected.0.entry(zone).or_default();
                    lives.lives.push(Life::default());
                }
                Event::ResetAnswered { zone, life } => expected.begun(zone, life),
            }
        }
        expected
    }
}

/// The content of block `block` of `zone` in the given life.
fn content(seed: u64, zone: u32, life: u32, block: u32) -> Page {
    let place = u64::from(zone) << 32 | u64::from(block);
    let mut rng = Rng::new(seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut page = Page::zeroed();
    match rng.below(4) {
        0 => return page,
        1 => {}
        _ => rng = Rng::new(rng.next() ^ u64::from(life)),
    }
    for bytes in page.make_mut().chunks_mut(16) {
        bytes[..8].copy_from_slice(&rng.next().to_le_bytes());
    }
    page
}

fn start(device: &dyn ZonedDevice, zone: u32) -> Lba {
    device.geometry().start(ZoneId(zone))
}

fn manage(device: &dyn ZonedDevice, zone: u32, action: Action) -> Request {
    Request::bare(Command::Manage { target: Target::Zone(start(device, zone)), action })
}

fn checked(status: Status, what: &str) -> Result<(), String> {
    if status.is_ok() { Ok(()) } else { Err(format!("{what}: {status}")) }
}

/// The state of a zone as its client knows it.
#[derive(Clone, Copy, Default)]
struct Mine {
    life: u32,
    pointer: u32,
    full: bool,
}

struct Client {
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    seed: u64,
    rng: Rng,
    history: Rc<RefCell<History>>,
    zones: BTreeMap<u32, Mine>,
    /// The client uses every `clients`-th zone from `number` on.
    clients: u32,
    number: u32,
    /// Number of the last flush. No other client uses the same numbers.
    flush: u32,
    /// Whether the client continues while writes and resets are in flight.
    hasty: bool,
    /// Writes in flight, each with its zone.
    writes: Vec<(u32, JoinHandle<Status>)>,
    /// Resets in flight, each with its zone.
    resets: Vec<(u32, JoinHandle<Status>)>,
    /// Whether the plain drive has faults, so that writes may fail.
    faulty: bool,
}

impl Client {
    fn tell(&self, event: Event) {
        self.history.borrow_mut().0.push(event);
    }

    /// Sends a write of at most `most` blocks to `zone`; a task records its answer.
    fn write(&mut self, zone: u32, most: u64, fua: bool) {
        let Some(mine) = self.zones.get(&zone).copied() else { return };
        let capacity = self.device.geometry().zone_capacity.0 as u32;
        let blocks = (1 + self.rng.below(most) as u32).min(capacity - mine.pointer);
        if blocks == 0 || mine.full {
            return;
        }
        let (life, from) = (mine.life, mine.pointer);
        let to = from + blocks;
        let data: Pages = (from..to).map(|block| content(self.seed, zone, life, block)).collect();
        let lba = start(&*self.device, zone).0 + u64::from(from);
        let blocks = BlockCount(u64::from(blocks));
        let command = match self.rng.one_in(4) {
            true => Command::Append { zone_start: start(&*self.device, zone), blocks },
            false => Command::Write { lba: Lba(lba), blocks },
        };
        self.tell(Event::Sent { zone, life, to });
        let request = Request { fua, ..Request::with_data(command, data) };
        let answer = self.device.submit(QueueId(0), request);
        self.zones.insert(zone, Mine { pointer: to, ..mine });
        let history = self.history.clone();
        let written = self.rt.spawn(async move {
            let outcome = answer.await;
            history.borrow_mut().0.push(match fua {
                _ if !outcome.status.is_ok() => Event::Failed { zone, life, from },
                true => Event::Durable { zone, life, to },
                false => Event::Answered { zone, life, to },
            });
            match outcome.lba.0 == lba || !outcome.status.is_ok() {
                true => outcome.status,
                false => Status::InternalError,
            }
        });
        self.writes.push((zone, written));
    }

    /// Waits for all writes and resets in flight. A zone whose write failed is not used any more.
    /// Returns false if the client ends.
    async fn wait(&mut self) -> Result<bool, String> {
        let mut continues = true;
        for (zone, reset) in std::mem::take(&mut self.resets) {
            let status = reset.await;
            // The reset fails because a write to the zone failed before it.
            if status == Status::InvalidTransition && self.faulty {
                self.zones.remove(&zone);
            } else {
                continues &= self.continues(status, "reset")?;
            }
        }
        for (zone, write) in std::mem::take(&mut self.writes) {
            let status = write.await;
            if !status.is_ok() && self.faulty {
                self.zones.remove(&zone);
            } else {
                checked(status, "write")?;
            }
        }
        Ok(continues)
    }

    /// Like [`Client::wait`], but a hasty client mostly does not wait.
    async fn sent(&mut self) -> Result<bool, String> {
        if self.hasty && !self.rng.one_in(3) { Ok(true) } else { self.wait().await }
    }

    /// Returns false if the client ends, because the layer writes nothing any more.
    fn continues(&self, status: Status, what: &str) -> Result<bool, String> {
        match status.is_ok() {
            false if self.faulty => Ok(false),
            _ => checked(status, what).map(|()| true),
        }
    }

    async fn flush(&mut self) -> Result<bool, String> {
        self.flush += 1;
        let Client { flush: id, clients, number, .. } = *self;
        self.tell(Event::FlushSent { id, clients, number });
        let answer = self.device.submit(QueueId(0), Request::bare(Command::Flush)).await;
        // The history must have the failed writes before the answer of the flush.
        if !self.wait().await? || !self.continues(answer.status, "flush")? {
            return Ok(false);
        }
        self.tell(Event::FlushAnswered(id));
        Ok(true)
    }

    async fn reset(&mut self, zone: u32) -> Result<bool, String> {
        let Some(mine) = self.zones.get(&zone) else { return Ok(true) };
        let life = mine.life + 1;
        self.tell(Event::ResetSent { zone });
        let answer = self.device.submit(QueueId(0), manage(&*self.device, zone, Action::Reset));
        self.zones.insert(zone, Mine { life, ..Mine::default() });
        let history = self.history.clone();
        let reset = self.rt.spawn(async move {
            let status = answer.await.status;
            if status.is_ok() {
                history.borrow_mut().0.push(Event::ResetAnswered { zone, life });
            }
            status
        });
        self.resets.push((zone, reset));
        if self.rng.one_in(2) {
            self.write(zone, 4, self.seed.is_multiple_of(2));
        }
        self.sent().await
    }

    async fn finish(&mut self, zone: u32) -> Result<bool, String> {
        let Some(mine) = self.zones.get_mut(&zone) else { return Ok(true) };
        let life = mine.life;
        if u64::from(mine.pointer) == self.device.geometry().zone_capacity.0 {
            return Ok(true);
        }
        mine.full = true;
        self.tell(Event::FinishSent { zone, life });
        let request = manage(&*self.device, zone, Action::Finish);
        let answer = self.device.submit(QueueId(0), request).await;
        if !self.wait().await? {
            return Ok(false);
        }
        // An earlier write to the zone failed.
        if !self.zones.contains_key(&zone) {
            return Ok(true);
        }
        if !self.continues(answer.status, "finish")? {
            return Ok(false);
        }
        self.tell(Event::FinishAnswered { zone, life });
        Ok(true)
    }

    async fn work(mut self, steps: u32) -> Result<(), String> {
        let zones: Vec<u32> = self.zones.keys().copied().collect();
        for _ in 0..steps {
            let zone = zones[self.rng.below(zones.len() as u64) as usize];
            let full = self.zones.get(&zone).is_some_and(|mine| {
                mine.full || u64::from(mine.pointer) == self.device.geometry().zone_capacity.0
            });
            let continues = match self.rng.below(12) {
                _ if full && self.rng.one_in(2) => self.reset(zone).await?,
                0..=5 => {
                    // Sends several writes at once, to one zone or to several.
                    let one = self.hasty && self.rng.one_in(2);
                    for _ in 0..1 + self.rng.below(3) {
                        let other = zones[self.rng.below(zones.len() as u64) as usize];
                        self.write(if one { zone } else { other }, 6, false);
                    }
                    self.sent().await?
                }
                6 | 7 => self.flush().await?,
                8 => {
                    self.write(zone, 3, true);
                    self.sent().await?
                }
                9 => self.finish(zone).await?,
                10 => self.reset(zone).await?,
                _ => {
                    if !self.wait().await? {
                        return Ok(());
                    }
                    let Some(mine) = self.zones.get(&zone).copied() else { continue };
                    let (life, to) = (mine.life, mine.pointer);
                    match compare(&*self.device, self.seed, (zone, life), to).await {
                        Err(why) if self.faulty && why.starts_with(READ) => {}
                        same => same?,
                    }
                    true
                }
            };
            if !continues {
                return Ok(());
            }
        }
        self.wait().await.map(drop)
    }
}

/// Runs the clients of `seed` to their end, which may come early if the plain drive is `faulty`.
pub async fn run(
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    (seed, faulty): (u64, bool),
    history: Rc<RefCell<History>>,
) -> Result<(), String> {
    let mut rng = Rng::new(seed ^ 0x20e5);
    let clients = 1 + rng.below(3) as u32;
    let zones = device.geometry().zones;
    let tasks: Vec<_> = (0..clients)
        .map(|number| {
            let zones = (0..zones).filter(|zone| zone % clients == number);
            let client = Client {
                rt: rt.clone(),
                device: device.clone(),
                seed,
                rng: Rng::new(rng.next()),
                history: history.clone(),
                zones: zones.map(|zone| (zone, Mine::default())).collect(),
                clients,
                number,
                flush: number << 24,
                hasty: rng.one_in(2),
                writes: Vec::new(),
                resets: Vec::new(),
                faulty,
            };
            rt.spawn(client.work(20 + (seed % 30) as u32))
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    Ok(())
}

/// The content of block `block` of `zone`; `None` if the block was never written.
async fn read(device: &dyn ZonedDevice, zone: u32, block: u32) -> Result<Option<Page>, String> {
    let lba = Lba(start(device, zone).0 + u64::from(block));
    let command = Command::Read { lba, blocks: BlockCount(1) };
    let pages = Pages::from_iter([Page::zeroed()]);
    let outcome = device.submit(QueueId(0), Request::with_data(command, pages)).await;
    match outcome.status {
        Status::Success => Ok(outcome.data.first().cloned()),
        Status::Unwritten => Ok(None),
        status => Err(format!("{READ} {block} of zone {zone}: {status}")),
    }
}

/// Compares the first `to` blocks of a zone with the content of the given life.
async fn compare(
    device: &dyn ZonedDevice,
    seed: u64,
    (zone, life): (u32, u32),
    to: u32,
) -> Result<(), String> {
    for block in 0..to {
        let found = read(device, zone, block).await?;
        let expected = content(seed, zone, life, block);
        let Some(found) = found else {
            return Err(format!("block {block} of zone {zone} was never written"));
        };
        if found.bytes() != expected.bytes() {
            let at = (0..PAGE_SIZE).find(|at| found[*at] != expected[*at]).unwrap_or(0);
            return Err(format!(
                "zone {zone}, life {life}: block {block} holds something else from byte {at} on"
            ));
        }
    }
    Ok(())
}

/// Compares a reopened drive with the expectation. Returns the state that is certain from now on.
pub async fn check(
    device: &dyn ZonedDevice,
    seed: u64,
    expected: &Expected,
) -> Result<Expected, String> {
    let reports = device.report(ZoneId(0), device.geometry().zones).await;
    let mut certain = Expected::default();
    for report in reports.map_err(|status| format!("report: {status}"))? {
        let zone = report.zone.0;
        let lives = expected.0.get(&zone).cloned().unwrap_or_default();
        let mut end = match report.state {
            ZoneState::Full => device.geometry().zone_capacity.0 as u32,
            _ => report.write_pointer.0 as u32,
        };
        while report.state == ZoneState::Full && end > 0 {
            if read(device, zone, end - 1).await?.is_some() {
                break;
            }
            end -= 1;
        }
        let capacity = device.geometry().zone_capacity.0 as u32;
        let failed = report.state == ZoneState::ReadOnly;
        let finished = report.state == ZoneState::Full && end < capacity;
        let mut why = Vec::new();
        let mut held = None;
        for (number, life) in (lives.first..).zip(&lives.lives) {
            // A read-only zone can be read entirely, and its write pointer says nothing.
            let end = if failed { life.kept() } else { end };
            let allowed = end >= life.kept()
                && end <= life.sent
                && (!failed || life.failed.is_some())
                && (!finished || life.finish_sent)
                && (!life.finished || failed || report.state == ZoneState::Full);
            if !allowed {
                why.push(format!("life {number} is {life:?}"));
                continue;
            }
            let same = match compare(device, seed, (zone, number), end).await {
                Ok(()) => compare(device, seed, (zone, number), end).await,
                Err(why) => Err(why),
            };
            match same {
                Ok(()) => held = Some((number, end)),
                Err(different) => why.push(different),
            }
        }
        let Some((first, end)) = held else {
            let state = report.state;
            return Err(format!("zone {zone} is {state:?} up to block {end}: {}", why.join("; ")));
        };
        let life = Life {
            sent: end,
            answered: end,
            durable: end,
            finish_sent: report.state == ZoneState::Full,
            finished: report.state == ZoneState::Full,
            failed: failed.then_some(end),
        };
        certain.0.insert(zone, Lives { first, lives: vec![life] });
    }
    Ok(certain)
}

/// Writes to about half of the zones of a reopened drive, flushes, and updates the certain
/// state `certain`.
pub async fn probe(
    rt: &Rt,
    device: &dyn ZonedDevice,
    seed: u64,
    certain: &mut Expected,
) -> Result<(), String> {
    let capacity = device.geometry().zone_capacity.0 as u32;
    for (&zone, lives) in &mut certain.0 {
        if rt.random().is_multiple_of(2) {
            continue;
        }
        let life = &mut lives.lives[0];
        if life.failed.is_some() {
            continue;
        }
        if life.finished || life.sent == capacity {
            let request = manage(device, zone, Action::Reset);
            checked(device.submit(QueueId(0), request).await.status, "reset after recovery")?;
            lives.first += 1;
            *life = Life::default();
        }
        let (from, to) = (life.sent, (life.sent + PROBED).min(capacity));
        let data = (from..to).map(|block| content(seed, zone, lives.first, block)).collect();
        let lba = Lba(start(device, zone).0 + u64::from(from));
        let command = Command::Write { lba, blocks: BlockCount(u64::from(to - from)) };
        let answer = device.submit(QueueId(0), Request::with_data(command, data)).await;
        checked(answer.status, "write after recovery")?;
        let full = to == capacity;
        let (sent, finish_sent, finished) = (to, full, full);
        *life = Life { sent, answered: to, durable: to, finish_sent, finished, failed: None };
    }
    let answer = device.submit(QueueId(0), Request::bare(Command::Flush)).await;
    checked(answer.status, "flush after recovery")
}
