//! Targets of workloads, and the clients that load them: closed loops in the executor's time.
//!
//! Each client (thread) keeps as many operations outstanding as the workload's depth says. When an
//! operation is answered, the client draws the next from its stream. Targets are a drive's zones
//! ([`Zones`]), the files of a file system ([`Files`]), many files of a file system with a mix of
//! operations ([`Flows`]), files as XFS keeps them ([`Spread`]), and the blocks of a volume on an
//! array ([`Blocks`]).

mod blocks;
mod files;
mod flows;
mod partial;
mod recorded;
mod replay;
mod spread;
mod summary_pairs;
mod zones;

pub use blocks::Blocks;
pub use files::Files;
pub use flows::Flows;
pub use partial::Partial;
pub use recorded::{FsKeeper, Layout, StoreKeeper, replay as replay_recorded};
pub use replay::replay;
pub use spread::{Files as SpreadFiles, Spread};
pub use zones::Zones;

use crate::host::Host;
use crate::inside::{Array, Ended, Inside, Moment, Sampler};
use crate::measure::{Measures, Meter};
use crate::workload::{Op, Stream, Workload};
use anyhow::{Error, Result};
use furrow_rt::{Nanos, Rt, Semaphore};
use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Initial interval at which the state inside the target is sampled, in nanoseconds.
const FIRST_MOMENTS: u64 = 10 * Nanos::MILLI;

/// A target of operations.
pub trait Target: 'static {
    /// Number of bytes in the space from which `thread` draws its offsets, and whether all clients
    /// share that space.
    fn space(&self, thread: u32) -> (u64, bool);

    /// Carries out an operation of `thread`. Returns the number of bytes moved.
    fn perform(&self, thread: u32, op: Op) -> impl Future<Output = Result<u64>>;

    /// Returns the state inside the target at this moment, if the target shows any.
    fn moment(&self) -> Option<Moment> {
        None
    }

    /// Returns counters of the array, if there is one.
    fn array(&self) -> Option<Array> {
        None
    }

    /// Ends the target. Returns the bytes written and memory held, if they are known.
    fn end(&self) -> impl Future<Output = Result<Option<Ended>>> {
        async { Ok(None) }
    }
}

/// The progress of a run in thousandths, which other threads can read.
#[derive(Debug, Default)]
pub struct Watch(AtomicU64);

impl Watch {
    /// Thousandths of the run that are done.
    pub fn done(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, done: u64) {
        self.0.store(done.min(1_000), Ordering::Relaxed);
    }
}

struct Client {
    stream: RefCell<Stream>,
    /// Number of bytes that the client may still request.
    left: Cell<u64>,
    /// The client's processor.
    core: Semaphore,
}

struct Run<T> {
    rt: Rt,
    target: Rc<T>,
    cpu: u64,
    page_cpu: u64,
    begin: Nanos,
    length: u64,
    meter: RefCell<Meter>,
    /// Time at which the last operation was answered.
    last: Cell<Nanos>,
    failed: RefCell<Option<Error>>,
    sampler: RefCell<Sampler>,
    over: Cell<bool>,
    /// Processor time that this thread had taken when measuring began.
    processor: Cell<Option<Duration>>,
}

/// Processor time this thread has taken.
pub(crate) fn processor() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Runs the workload's clients on `target` and measures their operations.
///
/// # Errors
/// The first error of an operation.
pub async fn drive<T: Target>(
    rt: &Rt,
    target: Rc<T>,
    workload: &Workload,
    host: &Host,
    seed: u64,
    watch: &Watch,
) -> Result<Measures> {
    let begin = rt.now();
    let open = begin.after(workload.warm.0);
    let run = Rc::new(Run {
        rt: rt.clone(),
        target,
        cpu: host.cpu.0,
        page_cpu: host.page_cpu.0,
        begin,
        length: workload.warm.0.saturating_add(workload.run.0).max(1),
        meter: RefCell::new(
            Meter::new(open, open.after(workload.run.0)).in_parts(workload.phases.len()),
        ),
        last: Cell::new(begin),
        failed: RefCell::new(None),
        sampler: RefCell::new(Sampler::new(FIRST_MOMENTS)),
        over: Cell::new(false),
        processor: Cell::new(None),
    });
    let begins = run.clone();
    rt.spawn_detached(async move {
        begins.rt.sleep_until(open).await;
        begins.processor.set(Some(processor()));
    });
    let sampled = run.clone();
    rt.spawn_detached(async move { sampled.sample().await });
    let mut workers = Vec::new();
    for thread in 0..workload.clients() {
        let (space, share) = run.target.space(thread);
        let client = Rc::new(Client {
            stream: RefCell::new(Stream::new(workload, seed, thread, space, share)),
            left: Cell::new(if workload.bytes.0 == 0 { u64::MAX } else { workload.bytes.0 }),
            core: Semaphore::new(1),
        });
        for _ in 0..workload.depth {
            let (run, client) = (run.clone(), client.clone());
            workers.push(rt.spawn(async move { run.work(thread, &client).await }));
        }
    }
    for worker in workers {
        worker.await;
        watch.set(run.done());
    }
    run.over.set(true);
    let taken = run.processor.get().map(|began| processor() - began);
    let array = run.target.array();
    let ended = run.target.end().await;
    if let Some(error) = run.failed.take() {
        return Err(error);
    }
    let mut measures = run.meter.borrow().measures(Some(run.last.get()));
    measures.processor_ns = array.and(taken).filter(|_| measures.ops > 0).map(|taken| {
        // The processor time after the window counts, too: it belongs to the window's
        // last operations.
        taken.as_nanos() as f64 / measures.ops as f64
    });
    measures.array = array;
    if let Some(Ended { written, space, memory }) = ended? {
        let inside = run.sampler.borrow_mut().take(begin.0);
        measures.inside = Some(Inside { written, space, memory, ..inside });
    }
    Ok(measures)
}

impl<T: Target> Run<T> {
    /// Performs operations one after the other: a worker for one of a client's
    /// outstanding operations.
    async fn work(&self, thread: u32, client: &Client) {
        while !self.meter.borrow().is_over(self.rt.now()) && self.failed.borrow().is_none() {
            if client.left.get() == 0 {
                return;
            }
            let op = client.stream.borrow_mut().draw();
            client.left.set(client.left.get().saturating_sub(op.bytes));
            let began = self.rt.now();
            self.compute(client, self.cpu).await;
            match self.target.perform(thread, op).await {
                Ok(bytes) => {
                    let pages = bytes.div_ceil(furrow_rt::PAGE_SIZE as u64);
                    self.compute(client, self.page_cpu * pages).await;
                    let now = self.rt.now();
                    self.meter.borrow_mut().count(began, now, bytes);
                    self.last.set(now);
                }
                Err(error) => {
                    self.failed.borrow_mut().get_or_insert(error);
                }
            }
        }
    }

    /// Keeps the client's processor busy for `time` nanoseconds.
    async fn compute(&self, client: &Client, time: u64) {
        if time > 0 {
            let busy = client.core.acquire(1).await;
            self.rt.sleep(time).await;
            drop(busy);
        }
    }

    /// Samples the state inside the target at intervals.
    async fn sample(&self) {
        while !self.over.get() {
            let Some(moment) = self.target.moment() else { return };
            self.sampler.borrow_mut().push(moment);
            let apart = self.sampler.borrow().apart();
            self.rt.sleep(apart).await;
        }
    }

    fn done(&self) -> u64 {
        self.rt.now().since(self.begin).saturating_mul(1_000) / self.length
    }
}
