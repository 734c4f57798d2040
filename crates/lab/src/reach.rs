//! The three ways for other threads to reach an engine: in place, dedicated thread, polling.
//!
//! Each way runs the same calls on the same executor and waits for each answer, from 1, 2 and 8
//! simultaneous callers; a rate counts the calls of all callers together. The engine's state is a
//! counter. A call either only counts (the cost of reaching the engine) or also spends about a
//! microsecond, as an operation on cached data does.
//!
//! - *In place* is [`furrow_rt::Port`]: a caller runs its call itself, or the thread that holds
//!   the engine runs it.
//! - *Dedicated thread*: the engine runs on a thread of its own that sleeps on a channel; callers
//!   park until it answers.
//! - *Polling*: the engine also has its own thread, but that thread and the callers spin. They
//!   yield while they spin: with fewer cores than threads they would otherwise wait for a whole
//!   time slice.

use crate::bench::{Bench, Contestant, Effort, Row, compare};
use anyhow::Result;
use crossbeam_queue::SegQueue;
use furrow_rt::{Config, Port, Rt};
use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The benchmark.
pub const REACH: Bench =
    Bench { name: "reach", about: "calls into an engine: in place, by a thread, polling", run };

/// Numbers of simultaneous callers.
const CALLERS: [usize; 3] = [1, 2, 8];

/// Rounds of arithmetic in a call: none, and about a microsecond's worth.
const WORK: [(&str, u64); 2] = [("counting", 0), ("about 1 µs of work", 1_800)];

/// Calls between two looks at the clock.
const BATCH: u64 = 64;

type Engine = Rc<Cell<u64>>;
type Request = Box<dyn FnOnce(&Rt, &Engine) + Send>;

/// Measures all three ways with each number of callers. The first row of each group is in place,
/// and the others are compared with it.
///
/// # Errors
/// Never fails.
pub fn run(effort: Effort) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (what, work) in WORK {
        for callers in CALLERS {
            let plural = if callers == 1 { "caller" } else { "callers" };
            let name = |way: &str| format!("{way}, {what}, {callers} {plural}");
            let (in_place, thread, polling) =
                (InPlace::start(), Dedicated::start(), Polling::start());
            let mut contestants = [
                Contestant::new(name("in place"), |slice| Ok(in_place.rate(slice, callers, work))),
                Contestant::new(name("dedicated thread"), |slice| {
                    Ok(thread.rate(slice, callers, work))
                }),
                Contestant::new(name("polling"), |slice| {
                    polling.awake.store(true, Ordering::Release);
                    polling.engine.thread().unpark();
                    let rate = polling.rate(slice, callers, work);
                    // The thread must not spin during the turns of other contestants.
                    polling.awake.store(false, Ordering::Release);
                    Ok(rate)
                }),
            ];
            rows.extend(compare(effort, "calls/s", &mut contestants)?);
        }
    }
    Ok(rows)
}

/// A call's work on the engine. It is `async` because operations are, but it never waits.
async fn operation(engine: Engine, work: u64) -> u64 {
    let mut sum = engine.get() + 1;
    engine.set(sum);
    for turn in 0..work {
        sum = black_box(sum.rotate_left(5) ^ turn);
    }
    sum
}

/// A way to reach an engine.
trait Way: Sync {
    /// Makes one call from a caller's thread.
    fn call(&self, work: u64) -> u64;

    /// Calls per second of `callers` threads together, over about `slice`.
    fn rate(&self, slice: Duration, callers: usize, work: u64) -> f64 {
        let start = Instant::now();
        let caller = || {
            let mut calls = 0;
            while start.elapsed() < slice {
                for _ in 0..BATCH {
                    black_box(self.call(work));
                }
                calls += BATCH;
            }
            calls
        };
        let calls: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..callers).map(|_| scope.spawn(caller)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
        });
        calls as f64 / start.elapsed().as_secs_f64()
    }
}

struct InPlace(Port<Engine>);

impl InPlace {
    fn start() -> InPlace {
        let Ok(port) = Port::start(Config::real(), |_| {
            Ok::<_, std::convert::Infallible>(Rc::new(Cell::new(0)))
        });
        InPlace(port)
    }
}

impl Way for InPlace {
    fn call(&self, work: u64) -> u64 {
        self.0.call(move |_, engine| operation(engine.clone(), work))
    }
}

/// The slot in which a caller gets its answer.
#[derive(Default)]
struct Slot {
    done: AtomicBool,
    value: AtomicU64,
}

impl Slot {
    fn fill(&self, value: u64) {
        self.value.store(value, Ordering::Relaxed);
        self.done.store(true, Ordering::Release);
    }

    fn value(&self) -> Option<u64> {
        self.done.load(Ordering::Acquire).then(|| self.value.load(Ordering::Relaxed))
    }
}

struct Dedicated {
    // This field is dropped first: the thread ends when there is no sender left.
    requests: Option<Sender<Request>>,
    engine: Option<JoinHandle<()>>,
}

impl Dedicated {
    fn start() -> Dedicated {
        let (requests, arrivals) = channel::<Request>();
        let engine = std::thread::spawn(move || {
            let (rt, engine) = (Rt::new(Config::real()), Engine::default());
            while let Ok(request) = arrivals.recv() {
                request(&rt, &engine);
                while let Ok(request) = arrivals.try_recv() {
                    request(&rt, &engine);
                }
                rt.run_ready();
            }
        });
        Dedicated { requests: Some(requests), engine: Some(engine) }
    }
}

impl Drop for Dedicated {
    fn drop(&mut self) {
        self.requests = None;
        let _ = self.engine.take().map(JoinHandle::join);
    }
}

impl Way for Dedicated {
    fn call(&self, work: u64) -> u64 {
        let slot = Arc::new(Slot::default());
        let (theirs, caller) = (slot.clone(), std::thread::current());
        let request: Request = Box::new(move |rt, engine| {
            let future = operation(engine.clone(), work);
            rt.run_now(async move {
                theirs.fill(future.await);
                caller.unpark();
            });
        });
        let sent = self.requests.as_ref().is_some_and(|requests| requests.send(request).is_ok());
        assert!(sent, "invariant: the engine's thread lives as long as its callers");
        loop {
            if let Some(value) = slot.value() {
                return value;
            }
            std::thread::park();
        }
    }
}

struct Polling {
    requests: Arc<SegQueue<Request>>,
    /// False during the turns of other contestants, so that the thread does not spin then.
    awake: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    engine: JoinHandle<()>,
}

impl Polling {
    fn start() -> Polling {
        let requests = Arc::new(SegQueue::<Request>::new());
        let (awake, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (arrivals, works, ends) = (requests.clone(), awake.clone(), over.clone());
        let engine = std::thread::spawn(move || {
            let (rt, engine) = (Rt::new(Config::real()), Engine::default());
            while !ends.load(Ordering::Acquire) {
                match arrivals.pop() {
                    Some(request) => {
                        request(&rt, &engine);
                        rt.run_ready();
                    }
                    None if works.load(Ordering::Acquire) => std::thread::yield_now(),
                    None => std::thread::park(),
                }
            }
        });
        Polling { requests, awake, over, engine }
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.engine.thread().unpark();
    }
}

impl Way for Polling {
    fn call(&self, work: u64) -> u64 {
        let slot = Arc::new(Slot::default());
        let theirs = slot.clone();
        self.requests.push(Box::new(move |rt, engine| {
            let future = operation(engine.clone(), work);
            rt.run_now(async move { theirs.fill(future.await) });
        }));
        loop {
            if let Some(value) = slot.value() {
                return value;
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_answers_every_caller() {
        let polling = Polling::start();
        polling.awake.store(true, Ordering::Release);
        polling.engine.thread().unpark();
        let ways: [&dyn Way; 3] = [&InPlace::start(), &Dedicated::start(), &polling];
        for way in ways {
            assert_eq!((way.call(0), way.call(0)), (1, 2));
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| (0..100).for_each(|_| assert!(way.call(0) > 2)));
                }
            });
            assert_eq!(way.call(0), 403);
        }
    }
}
