//! A drive's zones as a target: commands straight to the device, as `fio` sends them to a raw one.
//!
//! A workload uses a number of zones at once; each has a *slot*. A write goes to a slot's zone at
//! its write pointer, an append to the zone. A slot that has filled its zone continues in the zone
//! a *lap* further: the first multiple of the drive's dies and channels that leads past all slots.
//! So slots never use the same zone, and a slot stays on its die. At the end of the drive a slot
//! starts over, and resets each zone before it writes to it.
//!
//! For scattered zones, the zones of the drive are shuffled first, and a lap is the number
//! of slots.
//!
//! With the host's zone lock, one write is in flight per zone while the others wait in order.
//! Without it, many writes are in flight, through one queue per zone, so that they start in order.
//! All other commands go through the client's queue.
//!
//! Not here: mixed reads and writes, and reads of zones that are being written.

use super::Target;
use crate::host::Host;
use crate::workload::{Kind, Op, Pick, Workload};
use anyhow::{Result, bail, ensure};
use furrow_rt::{Notify, Page, Pages, Rng, Rt, Semaphore};
use furrow_zone::{
    Action, BlockCount, Command, Geometry, Lba, QueueId, Request, Target as Manage, ZoneId,
    ZonedDevice,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Size in bytes of the commands that fill zones before they are read.
const FILL: u64 = 128 << 10;

/// The zones of a drive as a target.
pub struct Zones {
    device: Rc<dyn ZonedDevice>,
    geometry: Geometry,
    workload: Workload,
    host: Host,
    slots: Vec<Slot>,
    /// Distance to a slot's next zone, in indexes.
    lap: u64,
    /// The order of the zones if they are scattered; empty if they are in the order of
    /// their numbers.
    order: Vec<u32>,
    /// The content of writes.
    page: Page,
    /// Buffers of completed reads, to be reused.
    spare: RefCell<Vec<Pages>>,
}

struct Slot {
    /// The slot's first zone: its index in `order`, or its number if `order` is empty.
    first: u64,
    /// The slot's current zone, in the same form as `first`.
    index: Cell<u64>,
    /// Number of blocks sent to the current zone.
    sent: Cell<u64>,
    /// Whether the slot's zones have been written before.
    again: Cell<bool>,
    /// Number of writes in flight.
    flying: Cell<u32>,
    landed: Notify,
    /// Held while the write pointer is chosen; with the zone lock, until the write is answered.
    turn: Semaphore,
}

impl Zones {
    /// Selects the zones of `device` that `workload` uses; if the workload asks for scattered
    /// zones, `seed` draws them.
    ///
    /// # Errors
    /// If the drive has too few zones, or the workload does not fit a drive.
    pub fn new(
        device: Rc<dyn ZonedDevice>,
        workload: &Workload,
        host: &Host,
        seed: u64,
    ) -> Result<Zones> {
        let geometry = device.geometry().clone();
        let name = device.name();
        let mixed = workload.read_percent > 0 && !workload.only_reads();
        ensure!(!mixed, "{name}: reads and writes of zones are not mixed: use two workloads");
        ensure!(workload.fsync == 0, "{name}: fsync is for files; zones do not have it");
        let unspanned = workload.only_reads() && workload.span.0 == 0;
        ensure!(!unspanned, "{name}: how much of each zone is read? `span` is not set");
        let zones = u64::from(workload.zones);
        let first = firsts(workload, &geometry)?;
        let last = first.iter().copied().max().unwrap_or(0);
        ensure!(
            last < u64::from(geometry.zones),
            "{name}: {zones} zones {} apart need {} zones, but the drive has {}",
            workload.stride.max(1),
            last + 1,
            geometry.zones
        );
        let active = geometry.max_active.unwrap_or(u32::MAX);
        ensure!(
            workload.only_reads() || workload.zones <= active,
            "{name}: {zones} zones written at the same time, but the drive takes {active}"
        );
        let capacity = geometry.bytes(geometry.zone_capacity).0;
        ensure!(
            workload.span.0 <= capacity && workload.size.0 <= capacity,
            "{name}: span {} and size {} must fit a zone of {capacity} bytes",
            workload.span,
            workload.size
        );
        let slot = |first| Slot {
            first,
            index: Cell::new(first),
            sent: Cell::new(0),
            again: Cell::new(false),
            flying: Cell::new(0),
            landed: Notify::new(),
            turn: Semaphore::new(1),
        };
        Ok(Zones {
            lap: if workload.stride == 0 { zones } else { lap(&geometry, last + 1) },
            order: if workload.stride == 0 { shuffled(geometry.zones, seed) } else { Vec::new() },
            slots: first.into_iter().map(slot).collect(),
            geometry,
            workload: workload.clone(),
            host: host.clone(),
            device,
            page: Page::zeroed(),
            spare: RefCell::new(Vec::new()),
        })
    }

    /// Brings the zones into the state that the workload expects: for reads, writes the span of
    /// each zone.
    ///
    /// # Errors
    /// If the drive refuses a command.
    pub async fn prepare(self: &Rc<Zones>, rt: &Rt) -> Result<()> {
        if !self.workload.only_reads() {
            return Ok(());
        }
        let limit = self.geometry.max_active.unwrap_or(64).min(64);
        let permits = Semaphore::new(limit.max(1).into());
        let mut fills = Vec::new();
        for index in self.slots.iter().map(|slot| slot.first) {
            let (this, permits) = (self.clone(), permits.clone());
            fills.push(rt.spawn(async move {
                let _permit = permits.acquire(1).await;
                this.fill(index).await
            }));
        }
        for fill in fills {
            fill.await?;
        }
        Ok(())
    }

    /// Writes the span of a zone and, if other zones need its permit, finishes the zone.
    async fn fill(&self, index: u64) -> Result<()> {
        let zone = self.zone(index);
        let queue = QueueId(index as u16);
        let blocks = self.blocks(self.workload.span.0);
        let step = self.blocks(FILL).min(self.most(Kind::Write)).max(1);
        for offset in (0..blocks).step_by(step as usize) {
            let count = step.min(blocks - offset);
            let lba = Lba(self.geometry.start(zone).0 + offset);
            self.send(queue, Command::Write { lba, blocks: BlockCount(count) }).await?;
        }
        let active = self.geometry.max_active.unwrap_or(u32::MAX);
        if blocks < self.geometry.zone_capacity.0 && self.workload.zones > active {
            self.manage(queue, zone, Action::Finish).await?;
        }
        Ok(())
    }

    fn zone(&self, index: u64) -> ZoneId {
        ZoneId(self.order.get(index as usize).copied().unwrap_or(index as u32))
    }

    fn blocks(&self, bytes: u64) -> u64 {
        bytes / self.geometry.block_size.0
    }

    /// Number of blocks in the largest command of a kind.
    fn most(&self, kind: Kind) -> u64 {
        let drive = match kind {
            Kind::Append => self.geometry.append_limit(),
            Kind::Read | Kind::Write => self.geometry.max_transfer,
        };
        let host = match self.host.request_cap.0 {
            0 => u64::MAX,
            cap => self.blocks(cap).max(1),
        };
        drive.map_or(host, |drive| drive.0.min(host))
    }

    fn payload(&self, command: &Command) -> Pages {
        let bytes = match command {
            Command::Write { blocks, .. } | Command::Append { blocks, .. } => {
                self.geometry.bytes(*blocks).0
            }
            Command::Read { .. } | Command::Flush | Command::Manage { .. } => 0,
        };
        let pages = bytes.div_ceil(furrow_rt::PAGE_SIZE as u64);
        (0..pages).map(|_| self.page.clone()).collect()
    }

    /// Sends a command and waits for it. A status other than success is an error.
    async fn send(&self, queue: QueueId, command: Command) -> Result<()> {
        let request = Request::with_data(command, self.payload(&command));
        let outcome = self.device.submit(queue, request).await;
        self.expect(&command, outcome.status)
    }

    fn expect(&self, command: &Command, status: furrow_zone::Status) -> Result<()> {
        if !status.is_ok() {
            bail!("{}: {command:?}: {status}", self.device.name());
        }
        Ok(())
    }

    async fn manage(&self, queue: QueueId, zone: ZoneId, action: Action) -> Result<()> {
        let target = Manage::Zone(self.geometry.start(zone));
        self.send(queue, Command::Manage { target, action }).await
    }

    /// Writes to the zone of `slot`. Returns the number of bytes written, which is less than the
    /// request if the zone ended.
    pub(super) async fn write(&self, thread: u32, slot: usize, op: Op) -> Result<u64> {
        let most = self.most(op.kind);
        let lock = self.host.zone_lock && op.kind == Kind::Write;
        let queue = match op.kind {
            Kind::Write if !lock => QueueId(slot as u16),
            _ => QueueId(thread as u16),
        };
        let (slot, wanted) = (&self.slots[slot], self.blocks(op.bytes));
        let mut done = 0;
        while done < wanted {
            let turn = slot.turn.acquire(1).await;
            let left = self.room(slot, queue).await?;
            let blocks = (wanted - done).min(left).min(most);
            let start = self.geometry.start(self.zone(slot.index.get()));
            let lba = Lba(start.0 + slot.sent.get());
            let command = match op.kind {
                Kind::Append => Command::Append { zone_start: start, blocks: BlockCount(blocks) },
                _ => Command::Write { lba, blocks: BlockCount(blocks) },
            };
            slot.sent.set(slot.sent.get() + blocks);
            slot.flying.set(slot.flying.get() + 1);
            let request = Request::with_data(command, self.payload(&command));
            let answer = self.device.submit(queue, request);
            let turn = lock.then_some(turn);
            let outcome = answer.await;
            drop(turn);
            slot.flying.set(slot.flying.get() - 1);
            slot.landed.notify_all();
            self.expect(&command, outcome.status)?;
            done += blocks;
            if left == blocks {
                // The end of a zone cuts the request short.
                break;
            }
        }
        Ok(done * self.geometry.block_size.0)
    }

    /// Number of blocks that fit the slot's zone, after moving on to the next zone if it is full.
    async fn room(&self, slot: &Slot, queue: QueueId) -> Result<u64> {
        let capacity = self.geometry.zone_capacity.0;
        if slot.sent.get() < capacity {
            return Ok(capacity - slot.sent.get());
        }
        let mut next = slot.index.get() + self.lap;
        if next >= u64::from(self.geometry.zones) {
            next = slot.first;
            slot.again.set(true);
        }
        if slot.again.get() {
            while slot.flying.get() > 0 {
                slot.landed.wait().await;
            }
            self.manage(queue, self.zone(next), Action::Reset).await?;
        }
        slot.index.set(next);
        slot.sent.set(0);
        Ok(capacity)
    }

    /// The first zone of `slot`.
    pub(super) fn first(&self, slot: usize) -> ZoneId {
        self.zone(self.slots[slot].first)
    }

    pub(super) async fn read(
        &self,
        thread: u32,
        zone: ZoneId,
        offset: u64,
        bytes: u64,
    ) -> Result<u64> {
        let start = self.geometry.start(zone).0 + offset;
        let (wanted, most) = (self.blocks(bytes), self.most(Kind::Read));
        let mut done = 0;
        while done < wanted {
            let blocks = (wanted - done).min(most);
            let command = Command::Read { lba: Lba(start + done), blocks: BlockCount(blocks) };
            let pages = self.geometry.bytes(BlockCount(blocks)).0 / furrow_rt::PAGE_SIZE as u64;
            let spare = self.spare.borrow_mut().pop().filter(|data| data.len() as u64 == pages);
            let data = spare.unwrap_or_else(|| (0..pages).map(|_| Page::zeroed()).collect());
            let request = Request::with_data(command, data);
            let outcome = self.device.submit(QueueId(thread as u16), request).await;
            self.expect(&command, outcome.status)?;
            self.spare.borrow_mut().push(outcome.data);
            done += blocks;
        }
        Ok(bytes)
    }
}

/// The first zones of the slots of `workload`.
fn firsts(workload: &Workload, geometry: &Geometry) -> Result<Vec<u64>> {
    let numbers = 0..u64::from(workload.zones);
    let (wanted, stride) = (u64::from(workload.channels), u64::from(workload.stride.max(1)));
    if wanted == 0 {
        return Ok(numbers.map(|number| number * stride).collect());
    }
    let channels = u64::from(geometry.channels.unwrap_or(0));
    let dies = u64::from(geometry.dies.unwrap_or(0));
    ensure!(
        wanted <= channels && u64::from(workload.zones).div_ceil(wanted) * channels <= dies,
        "{} zones on dies of their own on {wanted} channels: the drive has {channels} channels and \
         {dies} dies",
        workload.zones
    );
    Ok(numbers.map(|number| number % wanted + channels * (number / wanted)).collect())
}

/// The first multiple of the drive's dies and channels that is at least `zones`.
fn lap(geometry: &Geometry, zones: u64) -> u64 {
    let known = |count: Option<u16>| u64::from(count.unwrap_or(1).max(1));
    let (dies, channels) = (known(geometry.dies), known(geometry.channels));
    let common = if dies.is_multiple_of(channels) { dies } else { dies * channels };
    zones.next_multiple_of(common)
}

/// The numbers below `count`, in an order drawn from `seed`.
fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    // A separate generator, since the clients' generator begins at the same seed.
    let mut rng = Rng::new(seed ^ 0x5ca7_7e2e);
    for at in (1..order.len()).rev() {
        order.swap(at, rng.below(at as u64 + 1) as usize);
    }
    order
}

impl Target for Zones {
    fn space(&self, _thread: u32) -> (u64, bool) {
        let Workload { size, span, pick, .. } = &self.workload;
        let each = if self.workload.only_reads() { span.0 / size.0 * size.0 } else { size.0 };
        match pick {
            Pick::Own => (each, false),
            Pick::Shared => (each * self.slots.len() as u64, true),
        }
    }

    async fn perform(&self, thread: u32, op: Op) -> Result<u64> {
        let Workload { size, span, pick, .. } = &self.workload;
        let request = op.at / size.0;
        let each = if op.kind == Kind::Read { span.0 / size.0 } else { 1 };
        let slot = match pick {
            Pick::Own => u64::from(thread) % self.slots.len() as u64,
            Pick::Shared => request / each,
        };
        if op.kind != Kind::Read {
            return self.write(thread, slot as usize, op).await;
        }
        let offset = self.blocks(request % each * size.0);
        let zone = self.first(slot as usize);
        self.read(thread, zone, offset, op.bytes).await
    }
}
