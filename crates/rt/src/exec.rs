//! The executor: a ready queue, timers and a clock.
//!
//! Everything a Furrow engine does runs as tasks of one [`Rt`], on one thread at a time. The clock
//! is virtual (it jumps to the next timer when nothing is ready) or real. In virtual time, a whole
//! run is a function of the seed: ready tasks run in the order in which they were woken, or in an
//! order drawn from the seed when [`Config::shuffle`] is set.
//!
//! Devices that work inside this thread register a [`Source`]. The executor polls sources when no
//! task is ready, before the clock moves, and after every 256 tasks that ran. On the real clock it
//! polls descriptors before it sleeps, and from time to time if it never sleeps.
//!
//! Invariants:
//! - Virtual time moves only when no task is ready and no source has work.
//! - Every order (ready queue, timers due at one instant, waits) depends only on the order of
//!   arrival or on the seed, never on an address or a hash.
//! - The event hash covers virtual time only: real time differs from run to run.

use crate::driver::{Direction, Doorbell, Driver};
use crate::rng::Rng;
use crate::tasks::{Inbox, Running, Task, Tasks};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::{Context, Poll, Waker};

/// A point in time of an executor's clock, in nanoseconds since its start.
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

    /// Nanoseconds from `earlier` to this point; 0 if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The clock of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Simulated time, which jumps to the next event.
    Virtual,
    /// The machine's monotonic clock.
    Real,
}

/// Configuration of an executor.
#[derive(Clone, Debug)]
pub struct Config {
    /// Seed of every random choice of the run.
    pub seed: u64,
    /// The clock that the executor uses.
    pub clock: Clock,
    /// Whether the order of ready tasks is drawn from the seed; otherwise they run in the order in
    /// which they were woken.
    pub shuffle: bool,
    /// With the real clock: whether the time of day is that of the kernel's last tick, as in the
    /// kernel's timestamps of files. Then times of the engine and of the kernel can be compared;
    /// otherwise the kernel's times lag by up to 10 ms.
    pub coarse_wall: bool,
}

impl Config {
    /// Virtual time; tasks run in the order of their wakes.
    pub fn simulated(seed: u64) -> Config {
        Config { seed, clock: Clock::Virtual, shuffle: false, coarse_wall: false }
    }

    /// Virtual time; ready tasks run in an order drawn from the seed.
    pub fn shuffled(seed: u64) -> Config {
        Config { shuffle: true, ..Config::simulated(seed) }
    }

    /// Real time.
    pub fn real() -> Config {
        Config { clock: Clock::Real, ..Config::simulated(0) }
    }
}

/// Something inside this executor that works without a task, such as a simulated device.
pub trait Source {
    /// Does a bounded piece of work. Returns true if it did any.
    fn poll(&self) -> bool;

    /// When the source will have work again, unless it gets requests earlier. A device whose
    /// commands take time returns the earliest end of all of them, instead of setting a timer
    /// for each.
    fn next_event(&self) -> Option<Nanos> {
        None
    }
}

/// Number of ready tasks that run before the sources and the descriptors are polled again. Without
/// a limit, tasks that yield to each other would keep a device from answering for ever.
const ROUND: usize = 256;

/// Number of ready tasks that run between two readings of the clock for [`Rt::now_coarse`].
const COARSE_TASKS: usize = 16;

/// Timers by due time and, for equal times, by the order in which they were set.
type Timers = BTreeMap<(Nanos, u64), Waker>;

struct Inner {
    config: Config,
    now: Cell<Nanos>,
    real: Option<Driver>,
    /// The last reading of the real clock, for the next few tasks; `None` if it is too old.
    now_coarse: Cell<Option<Nanos>>,
    tasks: RefCell<Tasks>,
    ready: RefCell<VecDeque<usize>>,
    /// Empty except while woken tasks are moved to the ready queue; kept for its allocated memory.
    woken: RefCell<Vec<usize>>,
    timers: RefCell<Timers>,
    timer_order: Cell<u64>,
    sources: RefCell<Vec<Rc<dyn Source>>>,
    rng: RefCell<Rng>,
    hash: Cell<u64>,
    events: Cell<u64>,
    inbox: Arc<Inbox>,
    /// Number of task runs so far; see [`Rt::turn`].
    turn: Cell<u64>,
    /// Whether a task gave way ([`Rt::give_way`]) since [`Rt::run_some`] last checked.
    gave_way: Cell<bool>,
}

/// A handle to an executor. A clone is another handle of the same executor. A handle cannot leave
/// its thread (or its [`crate::port`] cell).
#[derive(Clone)]
pub struct Rt(Rc<Inner>);

impl Rt {
    /// Creates an executor. On the real clock, a wake from another thread ends its sleep.
    ///
    /// # Panics
    /// On the real clock, if the system has no free descriptor.
    pub fn new(config: Config) -> Rt {
        if config.clock == Clock::Virtual {
            return Rt::build(config, None, Box::new(|| {}));
        }
        let doorbell = Arc::new(Doorbell::new());
        let ring = doorbell.clone();
        let bell = move || {
            fence(Ordering::SeqCst);
            ring.ring();
        };
        Rt::build(config, Some(doorbell), Box::new(bell))
    }

    /// Creates an executor that calls `bell` after each wake of a task, on the waking thread, and
    /// that sleeps at `doorbell` if its clock is real.
    pub(crate) fn build(
        config: Config,
        doorbell: Option<Arc<Doorbell>>,
        bell: Box<dyn Fn() + Send + Sync>,
    ) -> Rt {
        let real = doorbell.filter(|_| config.clock == Clock::Real);
        let real = real.map(|doorbell| Driver::start(doorbell, config.coarse_wall));
        let rng = Rng::new(config.seed);
        let inbox = Arc::new(Inbox::new(bell));
        Rt(Rc::new(Inner {
            config,
            now: Cell::new(Nanos(0)),
            real,
            now_coarse: Cell::new(None),
            tasks: RefCell::new(Tasks::new(inbox.clone())),
            ready: RefCell::new(VecDeque::new()),
            woken: RefCell::new(Vec::new()),
            timers: RefCell::new(Timers::new()),
            timer_order: Cell::new(0),
            sources: RefCell::new(Vec::new()),
            rng: RefCell::new(rng),
            hash: Cell::new(0xcbf2_9ce4_8422_2325),
            events: Cell::new(0),
            inbox,
            turn: Cell::new(0),
            gave_way: Cell::new(false),
        }))
    }

    /// Reads the clock.
    pub fn now(&self) -> Nanos {
        match &self.0.real {
            Some(real) => real.now(),
            None => self.0.now.get(),
        }
    }

    /// A reading of the clock from at most a few tasks ago, which saves reading the real clock each
    /// time. For statistics, and where a few microseconds do not matter.
    pub fn now_coarse(&self) -> Nanos {
        let Some(real) = &self.0.real else { return self.0.now.get() };
        let now_coarse = self.0.now_coarse.get().unwrap_or_else(|| real.now());
        self.0.now_coarse.set(Some(now_coarse));
        now_coarse
    }

    /// Time of day: seconds since 1970 and nanoseconds. In virtual time, the run starts at
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

    /// The configuration of the executor.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Draws a random number of the run.
    pub fn random(&self) -> u64 {
        self.0.rng.borrow_mut().next()
    }

    /// Creates a generator seeded from the run's generator.
    pub fn fork_rng(&self) -> Rng {
        Rng::new(self.random())
    }

    /// Adds an event to the run's hash; two runs with the same seed must agree on it.
    pub fn trace(&self, event: &[u64]) {
        let mut hash = self.0.hash.get();
        for word in event.iter().chain([&self.now_virtual()]) {
            hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
        self.0.hash.set(hash);
        self.0.events.set(self.0.events.get() + 1);
    }

    fn now_virtual(&self) -> u64 {
        // The real clock is not hashed: it differs from run to run.
        self.0.now.get().0
    }

    /// Returns the hash of the events so far, and their number.
    pub fn event_hash(&self) -> (u64, u64) {
        (self.0.hash.get(), self.0.events.get())
    }

    /// Registers a device that works inside this executor.
    pub fn add_source(&self, source: Rc<dyn Source>) {
        self.0.sources.borrow_mut().push(source);
    }

    /// Starts a task. The handle resolves to the task's result. The task runs to completion even if
    /// the handle is dropped.
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

    /// Starts a task whose result is not needed.
    pub fn spawn_detached(&self, future: impl Future<Output = ()> + 'static) {
        let key = self.0.tasks.borrow_mut().insert(Box::pin(future));
        self.0.ready.borrow_mut().push_back(key);
    }

    /// Runs `future` at once, on the caller's stack; it becomes a task only if it has to wait. For
    /// operations that rarely wait.
    pub fn run_now(&self, future: impl Future<Output = ()> + 'static) {
        self.0.now_coarse.set(None);
        let key = self.0.tasks.borrow_mut().insert(Box::pin(future));
        self.run_task(key);
    }

    /// Runs a future like [`Rt::run_now`]. Returns its result if it did not have to wait; otherwise
    /// the result goes to `later`, or is dropped if the executor is cleared before.
    pub(crate) fn run_or<T: 'static, L: FnOnce(T) + 'static>(
        &self,
        future: impl Future<Output = T> + 'static,
        later: impl FnOnce() -> L,
    ) -> Option<T> {
        self.0.now_coarse.set(None);
        let mut future = Box::pin(future);
        let running = {
            let mut tasks = self.0.tasks.borrow_mut();
            let key = tasks.reserve();
            tasks.enter(key).expect("invariant: a reserved slot can be entered")
        };
        self.next_turn();
        match future.as_mut().poll(&mut Context::from_waker(&running.waker)) {
            Poll::Ready(value) => {
                self.leave(running, None);
                Some(value)
            }
            Poll::Pending => {
                let later = later();
                self.leave(running, Some(Box::pin(async move { later(future.await) })));
                None
            }
        }
    }

    fn run_task(&self, key: usize) {
        let (running, mut task) = {
            let mut tasks = self.0.tasks.borrow_mut();
            let Some(running) = tasks.enter(key) else { return };
            let task = tasks.take(&running).expect("invariant: a live slot at rest has its task");
            (running, task)
        };
        self.next_turn();
        let left = match task.as_mut().poll(&mut Context::from_waker(&running.waker)) {
            Poll::Ready(()) => {
                // The task is dropped before its slot becomes free, because dropping it may spawn
                // other tasks.
                drop(task);
                None
            }
            Poll::Pending => Some(task),
        };
        self.leave(running, left);
    }

    fn leave(&self, running: Running, task: Option<Task>) {
        let orphan = self.0.tasks.borrow_mut().leave(running, task);
        drop(orphan);
    }

    /// Sleeps for `nanoseconds`.
    pub fn sleep(&self, nanoseconds: u64) -> Sleep {
        self.sleep_until(self.now().after(nanoseconds))
    }

    /// Sleeps until `at`.
    pub fn sleep_until(&self, at: Nanos) -> Sleep {
        Sleep { rt: self.clone(), at, timer: None }
    }

    /// Waits until `descriptor` can be read without blocking, or has failed.
    ///
    /// # Panics
    /// When awaited on a virtual clock, where no descriptor can become ready.
    pub fn readable(&self, descriptor: Arc<OwnedFd>) -> Readiness {
        Readiness { rt: self.clone(), descriptor, direction: Direction::Read, key: None }
    }

    /// Waits until `descriptor` can be written without blocking, or has failed.
    ///
    /// # Panics
    /// When awaited on a virtual clock, where no descriptor can become ready.
    pub fn writable(&self, descriptor: Arc<OwnedFd>) -> Readiness {
        Readiness { rt: self.clone(), descriptor, direction: Direction::Write, key: None }
    }

    /// Lets every other ready task run first. A virtual clock does not move meanwhile: a task that
    /// yields until a timer is due waits for ever.
    pub fn yield_now(&self) -> Yield {
        Yield(false)
    }

    /// Yields like [`Rt::yield_now`], for a task that has run for long. If the executor is behind a
    /// [`crate::port`], the thread that holds the engine serves newly arrived requests first, and
    /// only then runs more tasks.
    pub fn give_way(&self) -> GiveWay {
        GiveWay(self.clone(), Yield(false))
    }

    /// Number of task runs so far. If two calls return the same number, no other task ran
    /// in between.
    pub fn turn(&self) -> u64 {
        self.0.turn.get()
    }

    fn next_turn(&self) {
        self.0.turn.set(self.0.turn.get() + 1);
    }

    /// Time at which the next timer is due or a source has work; `None` if nothing is planned.
    pub fn next_timer(&self) -> Option<Nanos> {
        let sources = self.0.sources.borrow();
        sources.iter().filter_map(|source| source.next_event()).chain(self.first_timer()).min()
    }

    fn first_timer(&self) -> Option<Nanos> {
        self.0.timers.borrow().first_key_value().map(|((at, _), _)| *at)
    }

    /// Moves woken tasks to the ready queue.
    fn gather_woken(&self) {
        if self.0.inbox.is_empty() {
            return;
        }
        let woken = &mut *self.0.woken.borrow_mut();
        self.0.inbox.take(woken);
        self.0.ready.borrow_mut().extend(woken.drain(..));
    }

    /// Wakes the tasks whose timers are due.
    fn fire_timers(&self) {
        let Some(mut next) = self.first_timer() else { return };
        let now = self.now();
        while next <= now {
            let due = self.0.timers.borrow_mut().pop_first();
            if let Some((_, waker)) = due {
                waker.wake();
            }
            let Some(at) = self.first_timer() else { return };
            next = at;
        }
    }

    fn next_ready(&self) -> Option<usize> {
        let mut ready = self.0.ready.borrow_mut();
        let waiting = ready.len();
        if self.0.config.shuffle && waiting > 1 {
            let pick = self.0.rng.borrow_mut().below(waiting as u64) as usize;
            ready.swap(0, pick);
        }
        ready.pop_front()
    }

    /// Runs tasks and sources until none can proceed without the clock moving.
    pub fn run_ready(&self) {
        while self.run_some(ROUND) {}
    }

    /// Like [`Rt::run_ready`], but runs at most about `limit` tasks. True if there may be more
    /// to do.
    pub fn run_some(&self, limit: usize) -> bool {
        let mut left = limit;
        while left > 0 {
            let round = left.min(ROUND);
            let ran = self.run_round(round);
            let worked = self.poll_sources();
            if ran == 0 && !worked {
                return false;
            }
            left -= ran.max(1).min(left);
            if let Some(real) = &self.0.real {
                real.look();
            }
            if self.0.gave_way.take() {
                return true;
            }
        }
        true
    }

    /// Runs at most `limit` ready tasks. Returns how many ran.
    fn run_round(&self, limit: usize) -> usize {
        self.fire_timers();
        for ran in 0..limit {
            self.gather_woken();
            let Some(key) = self.next_ready() else { return ran };
            if ran.is_multiple_of(COARSE_TASKS) {
                self.0.now_coarse.set(None);
            }
            self.run_task(key);
            if self.0.gave_way.get() {
                return ran + 1;
            }
        }
        limit
    }

    /// The list of wakes, to which any thread can write.
    pub(crate) fn inbox(&self) -> Arc<Inbox> {
        self.0.inbox.clone()
    }

    pub(crate) fn driver(&self) -> Option<&Driver> {
        self.0.real.as_ref()
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

    /// Moves a virtual clock to the next timer or event of a source. On the real clock, waits for
    /// that time, for a descriptor, or for a wake from another thread. False if there is no timer,
    /// no source and no descriptor to wait for.
    pub fn advance(&self) -> bool {
        let next = self.next_timer();
        match (&self.0.real, next) {
            (None, None) => return false,
            (None, Some(at)) => self.0.now.set(self.0.now.get().max(at)),
            (Some(real), None) if !real.is_watching() => return false,
            (Some(real), next) => self.wait_outside(real, next),
        }
        true
    }

    fn wait_outside(&self, real: &Driver, next: Option<Nanos>) {
        let interests = real.interests();
        real.bell().sleeper.announce(next);
        if !self.0.inbox.is_empty() {
            real.bell().sleeper.awake();
            return;
        }
        real.wait(next, &interests);
    }

    /// Runs until `future` is done. On the real clock it waits as long as necessary, because
    /// another thread may wake a task.
    ///
    /// # Panics
    /// On a virtual clock, if nothing can make progress any more: a deadlock of the caller.
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let handle = self.spawn(future);
        // Tasks that never rest must not withhold the result, so it is checked between rounds. In
        // virtual time it is checked so rarely that all ready tasks usually come to rest first.
        let often = if self.0.real.is_some() { 1 } else { 1 << 16 };
        loop {
            let mut rounds = 0u64;
            while self.run_some(ROUND) {
                rounds += 1;
                if rounds.is_multiple_of(often)
                    && let Some(value) = handle.try_take()
                {
                    return value;
                }
            }
            if let Some(value) = handle.try_take() {
                return value;
            }
            match &self.0.real {
                Some(real) => self.wait_outside(real, self.next_timer()),
                None => {
                    assert!(self.advance(), "deadlock: the awaited task cannot make progress");
                }
            }
        }
    }

    /// Runs until no task is ready, and no timer or event of a source is due at `limit` or earlier.
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

    /// Number of live tasks.
    pub fn task_count(&self) -> usize {
        self.0.tasks.borrow().alive()
    }

    /// Drops every task and source: the end of an engine, or a simulated power cut. This breaks the
    /// reference cycles between an executor and the tasks that hold its handle.
    pub fn clear(&self) {
        // Dropping may spawn tasks, wake tasks or set timers. So the loop takes everything out,
        // drops it, and checks again.
        loop {
            let tasks = self.0.tasks.borrow_mut().drain();
            let sources = std::mem::take(&mut *self.0.sources.borrow_mut());
            let timers = std::mem::take(&mut *self.0.timers.borrow_mut());
            if tasks.is_empty() && sources.is_empty() && timers.is_empty() {
                break;
            }
        }
        self.gather_woken();
        self.0.ready.borrow_mut().clear();
    }
}

struct Joint<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// The result of a spawned task. Dropping it does not stop the task.
pub struct JoinHandle<T>(Rc<RefCell<Joint<T>>>);

impl<T> JoinHandle<T> {
    /// Takes the result, if the task is done and the result was not taken before.
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
                match &mut joint.waker {
                    Some(known) => known.clone_from(cx.waker()),
                    None => joint.waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

/// Future of [`Rt::sleep`]. Dropping the future cancels its timer.
#[must_use = "waits only when awaited"]
pub struct Sleep {
    rt: Rt,
    at: Nanos,
    timer: Option<u64>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.rt.now() >= self.at {
            return Poll::Ready(());
        }
        let inner = &self.rt.0;
        let order = self.timer.unwrap_or_else(|| {
            let order = inner.timer_order.get();
            inner.timer_order.set(order + 1);
            order
        });
        inner.timers.borrow_mut().insert((self.at, order), cx.waker().clone());
        self.timer = Some(order);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(order) = self.timer {
            let timer = self.rt.0.timers.borrow_mut().remove(&(self.at, order));
            drop(timer);
        }
    }
}

/// Future of [`Rt::readable`] and [`Rt::writable`].
#[must_use = "waits only when awaited"]
pub struct Readiness {
    rt: Rt,
    descriptor: Arc<OwnedFd>,
    direction: Direction,
    key: Option<u64>,
}

impl Future for Readiness {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let driver = this.rt.driver().expect("descriptors are served on the real clock only");
        match this.key {
            Some(key) if driver.still_watched(key, cx.waker()) => Poll::Pending,
            Some(_) => Poll::Ready(()),
            None => {
                let descriptor = this.descriptor.clone();
                let key = driver.watch(descriptor, this.direction, cx.waker().clone());
                this.key = Some(key);
                Poll::Pending
            }
        }
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        if let (Some(key), Some(driver)) = (self.key, self.rt.driver()) {
            driver.forget(key);
        }
    }
}

/// Future of [`Rt::yield_now`].
pub struct Yield(bool);

/// Future of [`Rt::give_way`].
pub struct GiveWay(Rt, Yield);

impl Future for GiveWay {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let polled = Pin::new(&mut self.1).poll(cx);
        if polled.is_pending() {
            self.0.0.gave_way.set(true);
        }
        polled
    }
}

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
