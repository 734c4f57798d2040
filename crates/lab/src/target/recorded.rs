//! Recorded runs as clients: each thread's calls in their order, with the gaps between them.
//!
//! The calls go to a [`Keeper`]: a file system, a file store, or files laid out on a volume. A
//! thread sleeps for the recorded gap, waits for the calls on which its call depends
//! ([`crate::recorded`]), and carries the call out; the run ends with its last call. Sequential
//! readers of a file get windows read ahead, in the same way from every keeper.
//!
//! The recording cannot separate the processor time of a call from the time of the drive, which was
//! untimed: the host model's `cpu` and `page_cpu` stand for the processor time.

mod files;
mod layout;
mod store;

pub use files::FsKeeper;
pub use layout::Layout;
pub use store::StoreKeeper;

use super::{Watch, processor};
use crate::host::Host;
use crate::inside::{Array, Ended, Inside};
use crate::measure::{Measures, Meter};
use crate::recorded::{Before, Recorded, Replayed};
use anyhow::{Context as _, Error, Result};
use furrow_kv::trace::Op;
use furrow_rt::{JoinHandle, Nanos, Notify, PAGE_SIZE, Rng, Rt};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Copies of a run begin at random within this many nanoseconds of each other: programs that are
/// started at the same time do not stay in step.
const APART: u64 = 10 * Nanos::MILLI;

/// A file of a copy of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// Number of the copy.
    pub copy: u32,
    /// Number of the file in the run.
    pub file: u64,
}

/// A target for the calls of recorded runs. A `path` begins with the directory of its copy; to the
/// paths in an [`Op`], the keeper adds that directory.
pub trait Keeper: 'static {
    /// Makes a directory before the run.
    fn make_directory(&self, path: &str) -> impl Future<Output = Result<()>>;

    /// Makes a file of `size` bytes before the run.
    fn make_file(&self, id: Id, path: &str, size: u64) -> impl Future<Output = Result<()>>;

    /// Begins the run: makes everything so far durable, and drops it from memory.
    fn begin(&mut self) -> impl Future<Output = Result<()>>;

    /// Carries out a call that succeeded when it was recorded. Returns the number of bytes moved. A
    /// read that was begun and awaited separately arrives here once, when it is awaited.
    fn perform(&self, copy: u32, op: &Op) -> impl Future<Output = Result<u64>>;

    /// Returns counters of the array, if there is one.
    fn array(&self) -> Option<Array> {
        None
    }

    /// Ends the keeper. Returns the bytes written and memory held, if they are known.
    fn end(&self) -> impl Future<Output = Result<Option<Ended>>> {
        async { Ok(None) }
    }
}

/// The files of all copies.
type Files<F> = RefCell<BTreeMap<Id, Rc<F>>>;

/// The file with number `file` of a copy.
fn found<F>(files: &Files<F>, copy: u32, file: u64) -> Result<Rc<F>> {
    let found = files.borrow().get(&Id { copy, file }).cloned();
    found.with_context(|| format!("file {file}: there is none"))
}

/// The path of a copy's file: `path` below a directory of the copy's own.
pub(super) fn path_of(copy: u32, path: &str) -> String {
    format!("{}/{}", home(copy), path.trim_start_matches('/'))
}

fn home(copy: u32) -> String {
    format!("copy-{copy}")
}

/// The progress of a copy of the run.
struct Progress {
    /// For each resource, the number of calls that have ended, and a signal for further ones.
    ended: Vec<(Cell<u32>, Notify)>,
}

impl Progress {
    fn new(run: &Recorded) -> Progress {
        Progress { ended: (0..run.resources).map(|_| Default::default()).collect() }
    }

    /// Waits for the calls that call `number` depends on.
    async fn wait(&self, run: &Recorded, number: usize) {
        for need in run.needs(number) {
            let (ended, moved) = &self.ended[need.resource as usize];
            while ended.get() < need.after {
                moved.wait().await;
            }
        }
    }

    /// Records that call `number` has ended.
    fn end(&self, run: &Recorded, number: usize) {
        for need in run.needs(number) {
            let (ended, moved) = &self.ended[need.resource as usize];
            ended.set(ended.get() + 1);
            moved.notify_all();
        }
    }
}

struct Run<K> {
    rt: Rt,
    keeper: K,
    run: Arc<Recorded>,
    replayed: Replayed,
    host: Host,
    meter: RefCell<Meter>,
    done: Cell<u64>,
    failed: RefCell<Option<Error>>,
    /// Reads that were begun, by copy and number.
    begun: RefCell<BTreeMap<(u32, u64), Part>>,
}

/// A part of a file: the file's number, offset and length.
type Part = (u64, u64, u64);

impl<K: Keeper> Run<K> {
    async fn perform(&self, copy: u32, op: &Op) -> Result<u64> {
        match op {
            Op::ReadBegin { read, file, offset, len } => {
                self.begun.borrow_mut().insert((copy, *read), (*file, *offset, *len));
                Ok(0)
            }
            Op::ReadWait { read, got } => {
                let begun = self.begun.borrow_mut().remove(&(copy, *read));
                let (file, offset, len) = begun.context("a read that never began")?;
                self.keeper.perform(copy, &Op::Read { file, offset, len, got: *got }).await
            }
            op => self.keeper.perform(copy, op).await,
        }
    }

    async fn thread(&self, copy: u32, thread: usize, progress: &Progress, watch: &Watch) {
        for number in &self.run.threads[thread] {
            let number = *number as usize;
            let call = &self.run.calls[number];
            let gap = call.gap as u128 * u128::from(self.replayed.gaps) / 100;
            self.sleep(gap.try_into().unwrap_or(u64::MAX)).await;
            progress.wait(&self.run, number).await;
            if self.failed.borrow().is_some() {
                // A failed call counts as ended, so that threads that wait for it end as well.
                progress.end(&self.run, number);
                continue;
            }
            let began = self.rt.now();
            self.sleep(self.host.cpu.0).await;
            let done = match call.answer {
                0 => self.perform(copy, &call.op).await,
                _ => Ok(0),
            };
            match done {
                Ok(bytes) => {
                    let pages = bytes.div_ceil(PAGE_SIZE as u64);
                    self.sleep(self.host.page_cpu.0 * pages).await;
                    self.meter.borrow_mut().count(began, self.rt.now(), bytes);
                }
                Err(error) => {
                    let error = error.context(format!("call {}: {:?}", call.order, call.op));
                    self.failed.borrow_mut().get_or_insert(error);
                }
            }
            progress.end(&self.run, number);
            self.done.set(self.done.get() + 1);
            let all = self.run.calls.len() as u64 * u64::from(self.replayed.copies);
            watch.set(self.done.get() * 1_000 / all.max(1));
        }
    }

    async fn sleep(&self, time: u64) {
        if time > 0 {
            self.rt.sleep(time).await;
        }
    }
}

/// Prepares `keeper`, and replays `run` on it.
///
/// # Errors
/// The first error of a call.
pub async fn replay<K: Keeper>(
    rt: &Rt,
    mut keeper: K,
    run: &Arc<Recorded>,
    replayed: &Replayed,
    host: &Host,
    seed: u64,
    watch: &Arc<Watch>,
) -> Result<Measures> {
    for copy in 0..replayed.copies {
        prepare(&keeper, copy, run).await.context("before measuring")?;
    }
    keeper.begin().await.context("before measuring")?;
    let begin = rt.now();
    let run = Rc::new(Run {
        rt: rt.clone(),
        keeper,
        run: run.clone(),
        replayed: replayed.clone(),
        host: host.clone(),
        meter: RefCell::new(Meter::new(begin, Nanos(u64::MAX))),
        done: Cell::new(0),
        failed: RefCell::new(None),
        begun: RefCell::default(),
    });
    let (began, mut rng) = (processor(), Rng::new(seed));
    let mut threads = Vec::new();
    for copy in 0..replayed.copies {
        let late = if copy == 0 { 0 } else { rng.below(APART) };
        let progress = Rc::new(Progress::new(&run.run));
        for thread in 0..run.run.threads.len() {
            let (run, progress, watch) = (run.clone(), progress.clone(), watch.clone());
            threads.push(rt.spawn(async move {
                run.sleep(late).await;
                run.thread(copy, thread, &progress, &watch).await;
            }));
        }
    }
    for thread in threads {
        thread.await;
    }
    let ended = rt.now();
    let taken = (processor() - began).as_nanos() as f64;
    let array = run.keeper.array();
    let after = run.keeper.end().await;
    if let Some(error) = run.failed.take() {
        return Err(error);
    }
    let mut measures = run.meter.borrow().measures(Some(ended));
    measures.processor_ns = array.is_some().then_some(taken / measures.ops.max(1) as f64);
    measures.array = array;
    if let Some(Ended { written, space, memory }) = after? {
        measures.inside = Some(Inside { written, space, memory, ..Inside::default() });
    }
    Ok(measures)
}

async fn prepare<K: Keeper>(keeper: &K, copy: u32, run: &Recorded) -> Result<()> {
    keeper.make_directory(&home(copy)).await?;
    for before in &run.before {
        match before {
            Before::Directory(path) => keeper.make_directory(&path_of(copy, path)).await?,
            Before::File(file, path, size) => {
                let id = Id { copy, file: *file };
                keeper.make_file(id, &path_of(copy, path), *size).await?;
            }
        }
    }
    Ok(())
}

/// Read-ahead state for a sequential reader of a file.
#[derive(Default)]
pub(super) struct Ahead {
    /// Offset at which the last read ended.
    end: Cell<u64>,
    /// The range that was already fetched: a few windows at most.
    window: Cell<(u64, u64)>,
    /// Read-ahead in progress: its offset, and its task.
    next: RefCell<Option<(u64, JoinHandle<Result<()>>)>>,
}

impl Ahead {
    /// Reads `len` bytes at `offset` of a file of `size` bytes, by `fetch`. A sequential read
    /// fetches whole windows of `window` bytes, and starts to fetch the next window.
    pub(super) async fn read<F>(
        &self,
        rt: &Rt,
        (offset, len, size): (u64, u64, u64),
        window: u64,
        fetch: impl Fn(u64, u64) -> F,
    ) -> Result<()>
    where
        F: Future<Output = Result<()>> + 'static,
    {
        let end = offset.saturating_add(len).min(size);
        let on = window > 0 && (offset == 0 || self.end.get() == offset);
        self.end.set(end);
        let (from, to) = self.window.get();
        let within = (from..to).contains(&offset);
        if within && end <= to || offset >= end {
            return Ok(());
        }
        if !on {
            return fetch(offset, end - offset).await;
        }
        if !within {
            self.window.set((offset, offset));
        }
        while self.window.get().1 < end {
            let at = self.window.get().1;
            let under_way = self.next.borrow_mut().take().filter(|(from, _)| *from == at);
            match under_way {
                Some((_, task)) => task.await?,
                None => fetch(at, window.min(size - at)).await?,
            }
            let next = at + window;
            let (from, _) = self.window.get();
            // The window range is limited to the last few windows.
            self.window.set((from.max(next.saturating_sub(4 * window)), next.min(size)));
            if next < size {
                let task = rt.spawn(fetch(next, window.min(size - next)));
                *self.next.borrow_mut() = Some((next, task));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
