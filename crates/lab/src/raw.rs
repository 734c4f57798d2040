//! A workload on a zoned drive itself, as a benchmark that drives it without a file system.
//!
//! Each client (thread) keeps its requests outstanding; each request picks a zone and, if it
//! writes, goes to that zone's write pointer. The host may let only one write per zone be under
//! way at once, as the kernel's zone lock does; requests that wait for it count as outstanding,
//! and their waiting as latency, which is what fio shows.
//!
//! A zone that is full is followed by the one a *lap* further, a number of zones that leaves
//! channel and die the same. When the drive has been written once the run fails: a longer one
//! needs a larger drive.

use crate::measure::{Measures, Meter};
use crate::workload::{Kind, Op, Order, Pick, Stream, Workload};
use anyhow::{Context, Result, bail, ensure};
use furrow_rt::gate::Semaphore;
use furrow_rt::{Nanos, PAGE_SIZE, Page, Pages, Rng, Rt};
use furrow_zone::{
    Action, BlockCount, Command, Geometry, Lba, QueueId, Request, Status, Target, ZoneId,
    ZonedDevice,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// How the host reaches the drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// At most one write or append per zone is under way.
    pub zone_lock: bool,
}

/// Zones apart that share channel and die on every drive there is a model of.
const LAP: u32 = 128;

/// A zone that is written, and those that follow it.
struct Cursor {
    zone: Cell<u32>,
    /// Blocks handed out.
    next: Cell<u64>,
    lock: Semaphore,
}

/// What all requests of a run share.
struct Run {
    rt: Rt,
    device: Rc<dyn ZonedDevice>,
    geometry: Geometry,
    workload: Workload,
    reach: Reach,
    cursors: Vec<Cursor>,
    lap: u32,
    meter: RefCell<Meter>,
    page: Page,
    failure: RefCell<Option<anyhow::Error>>,
}

/// The zones that `workload` uses at first.
pub fn zones(workload: &Workload) -> Vec<ZoneId> {
    (0..workload.zones).map(|index| ZoneId(index.saturating_mul(workload.stride))).collect()
}

/// Runs `workload` on `device` in its first [`zones`], empty ones, or in `chosen`.
///
/// # Errors
/// If the workload does not fit the drive, or the drive fails a command.
pub fn run(
    rt: &Rt,
    device: Rc<dyn ZonedDevice>,
    workload: &Workload,
    chosen: Option<&[ZoneId]>,
    reach: Reach,
    seed: u64,
) -> Result<Measures> {
    let run = Rc::new(Run::new(rt, device, workload, chosen, reach)?);
    if workload.op == Kind::Read || workload.read_percent > 0 {
        fill(&run)?;
    }
    let open = rt.now().after(workload.warm.0);
    *run.meter.borrow_mut() = Meter::new(open, open.after(workload.run.0));
    let mut tasks = Vec::new();
    for thread in 0..workload.threads {
        let (space, share) = match workload.pick {
            Pick::Own => (workload.span.0, false),
            Pick::Shared => (workload.span.0 * u64::from(workload.zones), true),
        };
        let stream = Rc::new(RefCell::new(Stream::new(workload, seed, thread, space, share)));
        let zones = Rc::new(RefCell::new(Rng::new(seed ^ u64::from(thread) << 32)));
        for _ in 0..workload.depth {
            let (run, stream, zones) = (run.clone(), stream.clone(), zones.clone());
            tasks.push(rt.spawn(client(run, thread, stream, zones)));
        }
    }
    rt.block_on(async move {
        for task in tasks {
            task.await;
        }
    });
    match run.failure.borrow_mut().take() {
        Some(error) => Err(error),
        None => Ok(run.meter.borrow().measures(None)),
    }
}

impl Run {
    fn new(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        workload: &Workload,
        chosen: Option<&[ZoneId]>,
        reach: Reach,
    ) -> Result<Run> {
        let geometry = device.geometry().clone();
        let zones = chosen.map_or_else(|| zones(workload), <[ZoneId]>::to_vec);
        ensure!(geometry.block_size.0 == PAGE_SIZE as u64, "the drive has no blocks of 4 KiB");
        if let Some(zone) = zones.iter().find(|zone| zone.0 >= geometry.zones) {
            bail!("the workload uses zone {zone}, the drive has {}", geometry.zones);
        }
        if workload.pick == Pick::Own && workload.threads as usize > zones.len() {
            bail!("{} clients with zones of their own need as many zones", workload.threads);
        }
        if let Some(most) = geometry.max_active
            && workload.op != Kind::Read
            && zones.len() as u64 > u64::from(most)
        {
            bail!("the workload keeps {} zones active, the drive allows {most}", zones.len());
        }
        let capacity = geometry.bytes(geometry.zone_capacity).0;
        ensure!(workload.size.0 <= capacity, "a request is larger than a zone");
        ensure!(workload.span.0 <= capacity, "`span` is larger than a zone");
        let last = zones.iter().map(|zone| zone.0).max().unwrap_or(0);
        let cursors = zones.iter().map(|zone| Cursor {
            zone: Cell::new(zone.0),
            next: Cell::new(0),
            lock: Semaphore::new(1),
        });
        Ok(Run {
            rt: rt.clone(),
            cursors: cursors.collect(),
            lap: (last + 1).next_multiple_of(LAP),
            geometry,
            device,
            workload: workload.clone(),
            reach,
            meter: RefCell::new(Meter::new(Nanos(0), Nanos(0))),
            page: Page::zeroed(),
            failure: RefCell::new(None),
        })
    }

    fn pages(&self, bytes: u64) -> Pages {
        (0..bytes.div_ceil(PAGE_SIZE as u64)).map(|_| self.page.clone()).collect()
    }

    fn blocks(&self, bytes: u64) -> BlockCount {
        BlockCount(bytes / self.geometry.block_size.0)
    }

    async fn submit(&self, queue: u32, command: Command, data: Pages) -> Result<()> {
        let queue = QueueId(queue as u16);
        let outcome = self.device.submit(queue, Request::with_data(command, data)).await;
        match outcome.status {
            Status::Success => Ok(()),
            status => bail!("{}: {command:?}: {status}", self.device.name()),
        }
    }

    /// A write or append at the end of what `cursor` is at.
    async fn write(&self, queue: u32, cursor: &Cursor, op: &Op) -> Result<()> {
        let blocks = self.blocks(op.bytes);
        let _alone = match self.reach.zone_lock {
            true => Some(cursor.lock.acquire(1).await),
            false => None,
        };
        if cursor.next.get() + blocks.0 > self.geometry.zone_capacity.0 {
            let zone = cursor.zone.get() + self.lap;
            ensure!(zone < self.geometry.zones, "the drive is full: the run needs a larger one");
            cursor.zone.set(zone);
            cursor.next.set(0);
        }
        let start = self.geometry.start(ZoneId(cursor.zone.get()));
        let offset = cursor.next.get();
        cursor.next.set(offset + blocks.0);
        let command = match op.kind {
            Kind::Append => Command::Append { zone_start: start, blocks },
            _ => Command::Write { lba: Lba(start.0 + offset), blocks },
        };
        self.submit(queue, command, self.pages(op.bytes)).await
    }

    async fn read(&self, queue: u32, cursor: &Cursor, op: &Op) -> Result<()> {
        let start = self.geometry.start(ZoneId(cursor.zone.get()));
        let at = self.blocks(op.at % self.workload.span.0);
        let command = Command::Read { lba: Lba(start.0 + at.0), blocks: self.blocks(op.bytes) };
        self.submit(queue, command, self.pages(op.bytes)).await
    }
}

/// One outstanding request after the other, until time is up.
async fn client(run: Rc<Run>, thread: u32, stream: Rc<RefCell<Stream>>, zones: Rc<RefCell<Rng>>) {
    while !run.meter.borrow().is_over(run.rt.now()) && run.failure.borrow().is_none() {
        let op = stream.borrow_mut().draw();
        let index = match (run.workload.pick, run.workload.order) {
            (Pick::Own, _) => u64::from(thread),
            // Reads go where their offset lies.
            (Pick::Shared, _) if op.kind == Kind::Read => op.at / run.workload.span.0,
            (Pick::Shared, Order::Sequential) => op.at / op.bytes,
            (Pick::Shared, _) => zones.borrow_mut().below(run.cursors.len() as u64),
        };
        let cursor = &run.cursors[(index % run.cursors.len() as u64) as usize];
        let began = run.rt.now();
        let done = match op.kind {
            Kind::Read => run.read(thread, cursor, &op).await,
            Kind::Write | Kind::Append => run.write(thread, cursor, &op).await,
        };
        match done {
            Ok(()) => run.meter.borrow_mut().count(began, run.rt.now(), op.bytes),
            Err(error) => *run.failure.borrow_mut() = Some(error),
        }
    }
}

/// Writes what will be read.
fn fill(run: &Rc<Run>) -> Result<()> {
    let most = run.geometry.max_transfer.map_or(512, |blocks| blocks.0.min(512));
    let span = run.blocks(run.workload.span.0).0;
    // As many zones at once as may be open.
    let at_once = run.geometry.max_open.unwrap_or(128).min(128) as usize;
    for zones in run.cursors.chunks(at_once) {
        let zones: Vec<u32> = zones.iter().map(|cursor| cursor.zone.get()).collect();
        let tasks: Vec<_> = zones
            .into_iter()
            .map(|zone| {
                let run = run.clone();
                run.rt.clone().spawn(async move {
                    let start = run.geometry.start(ZoneId(zone)).0;
                    let mut at = 0;
                    while at < span {
                        let blocks = BlockCount((span - at).min(most));
                        let command = Command::Write { lba: Lba(start + at), blocks };
                        let data = run.pages(run.geometry.bytes(blocks).0);
                        run.submit(0, command, data).await?;
                        at += blocks.0;
                    }
                    if run.geometry.is_conventional(ZoneId(zone)) {
                        return Ok(());
                    }
                    // Many more zones may be read than may be open.
                    let (target, action) = (Target::Zone(Lba(start)), Action::Finish);
                    run.submit(0, Command::Manage { target, action }, Pages::new()).await
                })
            })
            .collect();
        run.rt.block_on(async move {
            for task in tasks {
                task.await.context("writing what is to be read")?;
            }
            anyhow::Ok(())
        })?;
    }
    Ok(())
}
