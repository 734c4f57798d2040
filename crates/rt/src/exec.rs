//! The executor: a ready queue, timers and a clock.
//!
//! Everything a Furrow engine does runs as tasks of one [`Rt`], on one thread at a time. The
//! clock is virtual (it jumps to the next timer when nothing is ready) or real. In virtual time a
//! whole run is a function of the seed: ready tasks run in the order they were woken, or in an
//! order drawn from the seed when [`Config::shuffle`] is set.
//!
//! Devices that do their work inside this thread register a [`Source`]; it is polled when no task
//! is ready, before the clock moves.

use crate::rng::Rng;
use crossbeam_queue::SegQueue;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A point of an executor's clock, in nanoseconds since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// One microsecond.
    pub const MICRO: u64 = 1_000;
    /// One millisecond.
    pub const MILLI: u64 = 1_000_000;
    /// One second.
    pub const SECOND: u64 = 1_000_000_000;

    /// The point `nanoseconds` later.
    #[must_use]
    pub fn after(self, nanoseconds: u64) -> Nanos {
        Nanos(self.0.saturating_add(nanoseconds))
    }

    /// Nanoseconds from `earlier` to here, 0 if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Which clock an executor runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Time is simulated and jumps to the next event.
    Virtual,
    /// Time is the machine's monotonic clock.
    Real,
}

/// How an executor is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Seed of every random choice of the run.
    pub seed: u64,
    /// Which clock.
    pub clock: Clock,
    /// Draw the order of ready tasks from the seed instead of first woken, first run.
    pub shuffle: bool,
}

impl Config {
    /// Virtual time, first woken first run.
    pub fn simulated(seed: u64) -> Config {
        Config { seed, clock: Clock::Virtual, shuffle: false }
    }

    /// Virtual time, ready tasks in an order drawn from the seed.
    pub fn shuffled(seed: u64) -> Config {
        Config { seed, clock: Clock::Virtual, shuffle: true }
    }

    /// Real time.
    pub fn real() -> Config {
        Config { seed: 0, clock: Clock::Real, shuffle: false }
    }
}

/// Work that happens inside this executor but is no task: a simulated device.
pub trait Source {
    /// Does a bounded piece of work. Returns true if it did any.
    fn poll(&self) -> bool;
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// What wakers on any thread write to.
pub(crate) struct Inbox {
    woken: SegQueue<usize>,
    /// Called after a wake from outside, so that whoever owns the engine looks.
    pub(crate) bell: Box<dyn Fn() + Send + Sync>,
}

struct TaskWaker {
    key: usize,
    queued: AtomicBool,
    inbox: Arc<Inbox>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.inbox.woken.push(self.key);
            (self.inbox.bell)();
        }
    }
}

struct Entry {
    task: Option<Task>,
    waker: Arc<TaskWaker>,
}

struct Timer {
    at: Nanos,
    order: u64,
    waker: Waker,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

struct Inner {
    config: Config,
    now: Cell<Nanos>,
    real: Option<crate::clock::RealClock>,
    tasks: RefCell<Slab<Entry>>,
    ready: RefCell<Vec<usize>>,
    ready_front: Cell<usize>,
    timers: RefCell<BinaryHeap<Reverse<Timer>>>,
    timer_order: Cell<u64>,
    sources: RefCell<Vec<Rc<dyn Source>>>,
    rng: RefCell<Rng>,
    hash: Cell<u64>,
    events: Cell<u64>,
    inbox: Arc<Inbox>,
}

/// A handle to an executor. Cloning shares it; it does not leave its thread (or its
/// [`crate::port`] cell).
#[derive(Clone)]
pub struct Rt(Rc<Inner>);

impl Rt {
    /// A new executor.
    pub fn new(config: Config) -> Rt {
        Rt::with_bell(config, Box::new(|| {}))
    }

    /// A new executor whose `bell` rings whenever a task is woken, from any thread.
    pub fn with_bell(config: Config, bell: Box<dyn Fn() + Send + Sync>) -> Rt {
        let real = (config.clock == Clock::Real).then(crate::clock::RealClock::start);
        let rng = Rng::new(config.seed);
        Rt(Rc::new(Inner {
            config,
            now: Cell::new(Nanos(0)),
            real,
            tasks: RefCell::new(Slab::new()),
            ready: RefCell::new(Vec::new()),
            ready_front: Cell::new(0),
            timers: RefCell::new(BinaryHeap::new()),
            timer_order: Cell::new(0),
            sources: RefCell::new(Vec::new()),
            rng: RefCell::new(rng),
            hash: Cell::new(0xcbf2_9ce4_8422_2325),
            events: Cell::new(0),
            inbox: Arc::new(Inbox { woken: SegQueue::new(), bell }),
        }))
    }

    /// The clock.
    pub fn now(&self) -> Nanos {
        match &self.0.real {
            Some(real) => real.now(),
            None => self.0.now.get(),
        }
    }

    /// Time of day: seconds since 1970 and nanoseconds. In virtual time the run starts at
    /// 2020-01-01 00:00:00 UTC.
    pub fn wall(&self) -> (i64, u32) {
        match &self.0.real {
            Some(real) => real.wall(),
            None => {
                let now = self.0.now.get().0;
                (1_577_836_800 + (now / Nanos::SECOND) as i64, (now % Nanos::SECOND) as u32)
            }
        }
    }

    /// The run's configuration.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// A random number of the run.
    pub fn random(&self) -> u64 {
        self.0.rng.borrow_mut().next()
    }

    /// A generator of its own, seeded from the run's.
    pub fn fork_rng(&self) -> Rng {
        Rng::new(self.random())
    }

    /// Folds an event into the run's hash; two runs of one seed must agree on it.
    pub fn trace(&self, event: &[u64]) {
        let mut hash = self.0.hash.get();
        for word in event.iter().chain([&self.now_virtual()]) {
            hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
        self.0.hash.set(hash);
        self.0.events.set(self.0.events.get() + 1);
    }

    fn now_virtual(&self) -> u64 {
        // The real clock never enters a hash: it would differ by nature.
        self.0.now.get().0
    }

    /// Hash of the event stream so far, and the events in it.
    pub fn event_hash(&self) -> (u64, u64) {
        (self.0.hash.get(), self.0.events.get())
    }

    /// Registers a device that works inside this executor.
    pub fn add_source(&self, source: Rc<dyn Source>) {
        self.0.sources.borrow_mut().push(source);
    }

    /// Starts a task. It runs until it is done; its result is read through the handle, which may
    /// be dropped.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let shared = Rc::new(RefCell::new(Joint { value: None, waker: None }));
        let theirs = shared.clone();
        self.spawn_detached(async move {
            let value = future.await;
            let waker = {
                let mut joint = theirs.borrow_mut();
                joint.value = Some(value);
                joint.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        JoinHandle(shared)
    }

    /// Starts a task whose result nobody wants.
    pub fn spawn_detached(&self, future: impl Future<Output = ()> + 'static) {
        let key = self.insert(Box::pin(future));
        self.0.ready.borrow_mut().push(key);
    }

    fn insert(&self, task: Task) -> usize {
        let mut tasks = self.0.tasks.borrow_mut();
        let slot = tasks.vacant_entry();
        let key = slot.key();
        let waker =
            Arc::new(TaskWaker { key, queued: AtomicBool::new(true), inbox: self.0.inbox.clone() });
        slot.insert(Entry { task: Some(task), waker });
        key
    }

    /// Runs `future` at once, on the caller's stack; only if it has to wait does it become a
    /// task. The way for operations that rarely wait.
    pub fn run_now(&self, future: impl Future<Output = ()> + 'static) {
        let key = self.insert(Box::pin(future));
        self.run_task(key);
    }

    fn run_task(&self, key: usize) {
        let (mut task, waker) = {
            let mut tasks = self.0.tasks.borrow_mut();
            let Some(entry) = tasks.get_mut(key) else { return };
            let Some(task) = entry.task.take() else { return };
            entry.waker.queued.store(false, Ordering::Release);
            (task, entry.waker.clone())
        };
        let waker = Waker::from(waker);
        let mut context = Context::from_waker(&waker);
        match task.as_mut().poll(&mut context) {
            Poll::Ready(()) => {
                // A stale key in the ready queue may meet the slot's next task: a spurious poll,
                // which every future allows.
                self.0.tasks.borrow_mut().remove(key);
            }
            Poll::Pending => {
                if let Some(entry) = self.0.tasks.borrow_mut().get_mut(key) {
                    entry.task = Some(task);
                }
            }
        }
    }

    /// Sleeps for `nanoseconds`.
    pub fn sleep(&self, nanoseconds: u64) -> Sleep {
        self.sleep_until(self.now().after(nanoseconds))
    }

    /// Sleeps until `at`.
    pub fn sleep_until(&self, at: Nanos) -> Sleep {
        Sleep { rt: self.clone(), at, armed: false }
    }

    /// Lets every other ready task run first.
    pub fn yield_now(&self) -> Yield {
        Yield(false)
    }

    /// When the next timer is due.
    pub fn next_timer(&self) -> Option<Nanos> {
        self.0.timers.borrow().peek().map(|t| t.0.at)
    }

    /// Moves woken tasks and due timers to the ready queue.
    fn gather(&self) {
        while let Some(key) = self.0.inbox.woken.pop() {
            self.0.ready.borrow_mut().push(key);
        }
        if self.0.timers.borrow().is_empty() {
            return;
        }
        let now = self.now();
        loop {
            let due = {
                let mut timers = self.0.timers.borrow_mut();
                match timers.peek() {
                    Some(t) if t.0.at <= now => timers.pop(),
                    _ => None,
                }
            };
            match due {
                Some(timer) => timer.0.waker.wake(),
                None => break,
            }
        }
        while let Some(key) = self.0.inbox.woken.pop() {
            self.0.ready.borrow_mut().push(key);
        }
    }

    fn next_ready(&self) -> Option<usize> {
        let mut ready = self.0.ready.borrow_mut();
        let front = self.0.ready_front.get();
        let waiting = ready.len() - front;
        if waiting == 0 {
            ready.clear();
            self.0.ready_front.set(0);
            return None;
        }
        if self.0.config.shuffle && waiting > 1 {
            let pick = front + self.0.rng.borrow_mut().below(waiting as u64) as usize;
            ready.swap(front, pick);
        }
        self.0.ready_front.set(front + 1);
        Some(ready[front])
    }

    /// Runs tasks and sources until none has anything to do *now*. Does not move the clock.
    pub fn run_ready(&self) {
        loop {
            self.gather();
            let mut ran = false;
            while let Some(key) = self.next_ready() {
                self.run_task(key);
                ran = true;
                self.gather();
            }
            let worked = self.poll_sources();
            if !ran && !worked {
                return;
            }
        }
    }

    fn poll_sources(&self) -> bool {
        let mut worked = false;
        let count = self.0.sources.borrow().len();
        for index in 0..count {
            let source = self.0.sources.borrow()[index].clone();
            worked |= source.poll();
        }
        worked
    }

    /// Moves a virtual clock to the next timer; waits for it on a real one. False if there is
    /// none.
    pub fn advance(&self) -> bool {
        let Some(at) = self.next_timer() else { return false };
        match &self.0.real {
            Some(real) => real.wait_until(at),
            None => self.0.now.set(self.0.now.get().max(at)),
        }
        true
    }

    /// Runs until `future` is done.
    ///
    /// # Panics
    /// If nothing can make progress any more: a deadlock of the caller's making.
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let handle = self.spawn(future);
        loop {
            self.run_ready();
            if let Some(value) = handle.try_take() {
                return value;
            }
            assert!(self.advance(), "deadlock: the awaited task cannot make progress");
        }
    }

    /// Runs until no task is ready and no timer is left, or the virtual clock passes `limit`.
    pub fn run_until(&self, limit: Nanos) {
        loop {
            self.run_ready();
            match self.next_timer() {
                Some(at) if at <= limit => {
                    self.advance();
                }
                _ => return,
            }
        }
    }

    /// Tasks alive.
    pub fn task_count(&self) -> usize {
        self.0.tasks.borrow().len()
    }

    /// Drops every task and source: the end of an engine, also a simulated power cut. Breaks the
    /// reference cycles between an executor and the tasks that hold its handle.
    pub fn clear(&self) {
        // Tasks may drop other handles of this executor: take them out before dropping them.
        loop {
            let tasks: Vec<Entry> = self.0.tasks.borrow_mut().drain().collect();
            let sources = std::mem::take(&mut *self.0.sources.borrow_mut());
            let timers = std::mem::take(&mut *self.0.timers.borrow_mut());
            if tasks.is_empty() && sources.is_empty() && timers.is_empty() {
                return;
            }
        }
    }
}

struct Joint<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// A spawned task's result. Dropping it does not stop the task.
pub struct JoinHandle<T>(Rc<RefCell<Joint<T>>>);

impl<T> JoinHandle<T> {
    /// The result, if the task is done and it was not taken before.
    pub fn try_take(&self) -> Option<T> {
        self.0.borrow_mut().value.take()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut joint = self.0.borrow_mut();
        match joint.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                joint.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// See [`Rt::sleep`].
pub struct Sleep {
    rt: Rt,
    at: Nanos,
    armed: bool,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.rt.now() >= self.at {
            return Poll::Ready(());
        }
        if !self.armed {
            self.armed = true;
            let order = self.rt.0.timer_order.get();
            self.rt.0.timer_order.set(order + 1);
            let timer = Timer { at: self.at, order, waker: cx.waker().clone() };
            self.rt.0.timers.borrow_mut().push(Reverse(timer));
        }
        Poll::Pending
    }
}

/// See [`Rt::yield_now`].
pub struct Yield(bool);

impl Future for Yield {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            return Poll::Ready(());
        }
        self.0 = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
