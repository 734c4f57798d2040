//! A trace as clients: its requests in its order, as fast as the queue allows.
//!
//! Requests are widened to whole blocks. A write that covers only a part of a block does not first
//! read the block, as a real volume would have to. Blocks that the trace reads before it writes
//! them are written beforehand: otherwise their reads would not reach a drive.

use super::{Blocks, Target, Watch, blocks, processor};
use crate::measure::{Measures, Meter};
use crate::trace::{Request, Trace};
use crate::workload::{Kind, Op, Workload};
use anyhow::{Error, Result};
use furrow_rt::{Nanos, PAGE_SIZE, Rt};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Largest request while the volume is filled.
const PIECE: u64 = 64 << 10;

struct Run {
    rt: Rt,
    target: Blocks,
    requests: Vec<Request>,
    next: Cell<usize>,
    meter: RefCell<Meter>,
    failed: RefCell<Option<Error>>,
}

impl Run {
    async fn carry_out(&self, number: usize) {
        let (request, began) = (self.requests[number], self.rt.now());
        let (first, count) = request.blocks();
        let (at, bytes) = (first * PAGE_SIZE as u64, count * PAGE_SIZE as u64);
        let kind = if request.write { Kind::Write } else { Kind::Read };
        match self.target.perform(0, Op { kind, at, bytes, sync: false }).await {
            Ok(bytes) => self.meter.borrow_mut().count(began, self.rt.now(), bytes),
            Err(error) => drop(self.failed.borrow_mut().get_or_insert(error)),
        }
    }

    fn take(&self) -> Option<usize> {
        let next = self.next.get();
        let more = next < self.requests.len() && self.failed.borrow().is_none();
        more.then(|| self.next.replace(next + 1))
    }
}

/// Sends the requests of `trace` to `target`.
///
/// # Errors
/// The first error of a request.
pub async fn replay(
    rt: &Rt,
    mut target: Blocks,
    trace: &Trace,
    workload: &Workload,
    watch: &Watch,
) -> Result<Measures> {
    for (first, count) in trace.read_first() {
        let (mut at, end) = (first * PAGE_SIZE as u64, (first + count) * PAGE_SIZE as u64);
        while at < end {
            let bytes = PIECE.min(end - at);
            blocks::write(target.volume(), at, bytes, target.page()).await?;
            at += bytes;
        }
    }
    target.begin();
    let begin = rt.now();
    let run = Rc::new(Run {
        rt: rt.clone(),
        target,
        requests: trace.requests.clone(),
        next: Cell::new(0),
        meter: RefCell::new(Meter::new(begin, Nanos(u64::MAX))),
        failed: RefCell::new(None),
    });
    let began = processor();
    fast(&run, workload.depth, watch).await;
    if let Some(error) = run.failed.take() {
        return Err(error);
    }
    let measures = run.meter.borrow().measures(Some(rt.now()));
    let taken = (processor() - began).as_nanos() as f64 / measures.ops.max(1) as f64;
    Ok(Measures { array: run.target.array(), processor_ns: Some(taken), ..measures })
}

/// Keeps `depth` requests outstanding.
async fn fast(run: &Rc<Run>, depth: u32, watch: &Watch) {
    let mut workers = Vec::new();
    for _ in 0..depth {
        let run = run.clone();
        workers.push(run.rt.clone().spawn(async move {
            while let Some(number) = run.take() {
                run.carry_out(number).await;
            }
        }));
    }
    for worker in workers {
        worker.await;
        watch.set(run.next.get() as u64 * 1_000 / run.requests.len().max(1) as u64);
    }
}
