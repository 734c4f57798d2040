//! Access to an engine from other threads.
//!
//! An engine is an [`Rt`] and a graph of state `E` that belongs to one thread at a time. Every
//! other thread reaches it through a [`Port`]. A thread with a request takes the engine and runs
//! the request itself, without a switch to another thread. If the engine is taken, the thread
//! leaves the request in its ring, and the holder serves it (*flat combining*, `hub.rs`). One
//! *reactor* thread per engine sleeps until a timer is due, a descriptor is ready or a task is
//! woken by another thread; then it is a holder like any other.
//!
//! Invariants:
//! - Requests are served in the order in which they were submitted, even across threads.
//! - A hold is bounded: after a few rounds of work for other threads a caller leaves the rest to
//!   the reactor, so that no caller serves others for ever.
//! - Some thread is always responsible for pending work: the holder, or the reactor, which was rung
//!   or checks before it sleeps. `sleeper.rs` describes how the two agree.
//!
//! An engine must obey rules that the compiler does not check (`cell.rs` says why): no
//! thread-locals, no lock guard across an `await`. A request that panics ends the engine, because
//! its state may be half changed. All pending requests are dropped, and every present and later
//! caller gets [`Stopped`] with the panic's message.
//!
//! The port is not deterministic: the machine decides which thread comes first. Simulation uses
//! [`Rt`] directly.

use crate::answer::{Reply, answer};
use crate::caller::{Inside, inside, leave_request};
use crate::driver::{Doorbell, Interest};
use crate::exec::{Clock, Config, Rt};
use crate::hub::{Arrivals, Hub};
use crate::sleeper::{Rest, Turn, attend, look};
use crate::tasks::Inbox;
use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

/// Number of consecutive holds of a caller before it leaves the rest to the reactor.
const ROUNDS: usize = 4;

/// Maximum number of tasks that a holder runs in one hold.
const TASKS: usize = 64;

/// The error of a call to an engine that was stopped, or that a panic has ended.
#[derive(Clone, Debug, Default)]
pub struct Stopped {
    reason: Option<Arc<str>>,
}

impl Stopped {
    /// The message of the panic that ended the engine; `None` after an orderly stop.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.reason {
            None => f.write_str("the engine has stopped"),
            Some(reason) => write!(f, "the engine has stopped because a request failed: {reason}"),
        }
    }
}

impl std::error::Error for Stopped {}

type Run<E> = Box<dyn FnOnce(&Rt, &E) + Send>;

enum Request<E> {
    Run(Run<E>),
    End,
}

/// The content of the ownership cell.
struct Engine<E> {
    rt: Rt,
    state: E,
}

struct Shared<E> {
    id: u64,
    hub: Hub<Option<Engine<E>>, Request<E>>,
    doorbell: Arc<Doorbell>,
    over: OnceLock<Stopped>,
    /// Number of calls that wait for an answer; a virtual clock moves only while it is above 0.
    waiting: AtomicUsize,
    clock: Clock,
}

/// Ends the engine when the last port is dropped.
struct Handle<E: 'static> {
    shared: Arc<Shared<E>>,
    reactor: Mutex<Option<JoinHandle<()>>>,
}

/// A handle to an engine. A clone is another handle of the same engine. Dropping the last handle
/// ends the engine like [`Port::stop`], without a last request.
pub struct Port<E: 'static>(Arc<Handle<E>>);

impl<E> Clone for Port<E> {
    fn clone(&self) -> Self {
        Port(self.0.clone())
    }
}

impl<E> std::fmt::Debug for Port<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Port({})", self.0.shared.id)
    }
}

impl<E: 'static> Port<E> {
    /// Builds the engine on the calling thread, which owns it meanwhile, and starts its reactor.
    /// `build` may run the executor, by [`Rt::block_on`], to open the engine's devices.
    ///
    /// # Errors
    /// The error of `build`.
    ///
    /// # Panics
    /// If the system has no free threads or descriptors.
    pub fn start<Err: Send>(
        config: Config,
        build: impl FnOnce(&Rt) -> Result<E, Err> + Send + 'static,
    ) -> Result<Port<E>, Err> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let doorbell = Arc::new(Doorbell::new());
        let shared = Arc::new(Shared {
            id,
            hub: Hub::new(None),
            doorbell: doorbell.clone(),
            over: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            clock: config.clock,
        });
        let bell = move || {
            // A wake by the holder itself needs no bell: the holder checks the inbox before it
            // releases the engine.
            if inside() != id {
                fence(Ordering::SeqCst);
                doorbell.ring();
            }
        };
        let _inside = Inside::enter(id);
        let built = shared.hub.hold(|engine, _| {
            let rt = Rt::build(config, Some(shared.doorbell.clone()), Box::new(bell));
            match build(&rt) {
                Ok(state) => {
                    let inbox = rt.inbox();
                    *engine = Some(Engine { rt, state });
                    Ok(inbox)
                }
                Err(error) => {
                    rt.clear();
                    Err(error)
                }
            }
        });
        let (inbox, _) = built.expect("invariant: nobody else knows the engine yet");
        let inbox = inbox?;
        let theirs = shared.clone();
        let reactor = std::thread::Builder::new()
            .name("furrow-reactor".into())
            .spawn(move || react(&theirs, &inbox))
            .expect("the system has no thread left for an engine's reactor");
        Ok(Port(Arc::new(Handle { shared, reactor: Mutex::new(Some(reactor)) })))
    }

    /// Runs `request` on the engine: at once on this thread if the engine is free, otherwise soon,
    /// on the thread that holds it. May be called from inside the engine. `request` must not
    /// block: work that has to wait goes into [`Rt::run_now`]. If the engine has stopped,
    /// `request` is dropped.
    pub fn submit(&self, request: impl FnOnce(&Rt, &E) + Send + 'static) {
        let shared = &*self.0.shared;
        let mut request = Some(request);
        shared.attend(&mut |rt, state| {
            if let Some(request) = request.take() {
                request(rt, state);
            }
        });
        if let Some(request) = request {
            shared.push(Request::Run(Box::new(request)));
            shared.attend(&mut |_, _| {});
        }
    }

    /// Runs the future that `f` returns on the engine and waits for its result. If it never has to
    /// wait and the engine is free, everything happens on this thread.
    ///
    /// # Panics
    /// If the engine has stopped (use [`Port::try_call`] to avoid that), or if called from inside
    /// the engine, where the call would wait for itself.
    pub fn call<T, F>(&self, f: impl FnOnce(&Rt, &E) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        match self.try_call(f) {
            Ok(value) => value,
            Err(stopped) => panic!("{stopped}"),
        }
    }

    /// Calls the engine like [`Port::call`], but returns an error instead of panicking.
    ///
    /// # Errors
    /// [`Stopped`] if the engine has stopped, or stops before it answers.
    ///
    /// # Panics
    /// If called from inside the engine, where the call would wait for itself.
    pub fn try_call<T, F>(
        &self,
        f: impl FnOnce(&Rt, &E) -> F + Send + 'static,
    ) -> Result<T, Stopped>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let shared = &*self.0.shared;
        assert!(inside() != shared.id, "an engine cannot wait for a call to itself: use submit");
        let (mut f, mut value, mut pending) = (Some(f), None, None);
        shared.attend(&mut |rt, state| {
            let Some(f) = f.take() else { return };
            value = rt.run_or(f(rt, state), || {
                let (reply, answer) = answer();
                pending = Some(answer);
                move |value| reply.send(value)
            });
        });
        if let Some(f) = f {
            let (reply, answer) = answer();
            pending = Some(answer);
            shared.push(Request::Run(Box::new(move |rt, state| run_for(rt, f(rt, state), reply))));
            shared.attend(&mut |_, _| {});
        }
        if let Some(answer) = pending {
            value = shared.with_clock_moving(|| answer.wait());
        }
        value.ok_or_else(|| shared.reason())
    }

    /// Calls the engine like [`Port::try_call`], but this thread never holds the engine: the
    /// present holder or the reactor runs the request. For threads of low priority: a thread that
    /// is suspended while it holds the engine delays all others.
    ///
    /// # Errors
    /// The errors of [`Port::try_call`].
    ///
    /// # Panics
    /// Like [`Port::try_call`].
    pub fn try_call_by_others<T, F>(
        &self,
        f: impl FnOnce(&Rt, &E) -> F + Send + 'static,
    ) -> Result<T, Stopped>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let shared = &*self.0.shared;
        assert!(inside() != shared.id, "an engine cannot wait for a call to itself: use submit");
        let (reply, answer) = answer();
        shared.push(Request::Run(Box::new(move |rt, state| run_for(rt, f(rt, state), reply))));
        // A holder checks again for signals, and the bell wakes a reactor that sleeps. After the
        // engine has ended no thread checks, so this thread drops its request itself.
        shared.doorbell.ring();
        if shared.over.get().is_some() {
            shared.attend(&mut |_, _| {});
        }
        let value = shared.with_clock_moving(|| answer.wait());
        value.ok_or_else(|| shared.reason())
    }

    /// Runs a last request and ends the engine. When this returns, the engine's tasks and state are
    /// dropped, and its reactor has ended. Pending requests are dropped, too.
    ///
    /// # Panics
    /// If the engine has stopped before, or if called from inside the engine.
    pub fn stop<T, F>(self, last: impl FnOnce(&Rt, &E) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        match self.try_stop(last) {
            Ok(value) => value,
            Err(stopped) => panic!("{stopped}"),
        }
    }

    /// Ends the engine like [`Port::stop`], but returns an error instead of panicking.
    ///
    /// # Errors
    /// [`Stopped`] if the engine had stopped before, or did so during the last request.
    ///
    /// # Panics
    /// If called from inside the engine.
    pub fn try_stop<T, F>(
        self,
        last: impl FnOnce(&Rt, &E) -> F + Send + 'static,
    ) -> Result<T, Stopped>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let value = self.try_call(last);
        self.0.end();
        value
    }

    /// Returns why the engine has ended; `None` while it runs.
    pub fn stopped(&self) -> Option<Stopped> {
        self.0.shared.over.get().cloned()
    }
}

/// Runs `future` and sends its result.
fn run_for<T: 'static>(rt: &Rt, future: impl Future<Output = T> + 'static, reply: Reply<T>) {
    let mut reply = Some(reply);
    let value = rt.run_or(future, || {
        let reply = reply.take();
        move |value| {
            if let Some(reply) = reply {
                reply.send(value);
            }
        }
    });
    if let (Some(value), Some(reply)) = (value, reply) {
        reply.send(value);
    }
}

impl<E: 'static> Handle<E> {
    fn end(&self) {
        let shared = &*self.shared;
        if shared.over.get().is_none() {
            shared.push(Request::End);
            shared.attend(&mut |_, _| {});
        }
        let reactor = self.reactor.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(reactor) = reactor else { return };
        // Inside the engine, or on the reactor itself, this thread must not wait for the reactor:
        // it would wait for itself.
        if inside() != shared.id && reactor.thread().id() != std::thread::current().id() {
            // Joining cannot fail: a reactor does not panic, because panics of requests are caught.
            let _ = reactor.join();
        }
    }
}

impl<E> Drop for Handle<E> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<E: 'static> Shared<E> {
    /// Takes the engine if it is free, serves the pending work, and runs `own` in its turn.
    fn attend(&self, own: &mut dyn FnMut(&Rt, &E)) {
        let _inside = Inside::enter(self.id);
        let is_over = || self.over.get().is_some();
        let ring = attend(&self.hub, ROUNDS, is_over, |engine, arrivals| {
            let more = self.guarded(engine, |engine| self.work(engine, arrivals, own));
            Turn { more: more.unwrap_or(true), ring: self.must_ring(engine) }
        });
        if ring {
            self.doorbell.ring();
        }
    }

    /// Serves the requests that arrived before this call, then `own`, then runs tasks. True if work
    /// is left. `own` does not run if more requests came before it than one hold may serve.
    fn work(
        &self,
        engine: &mut Option<Engine<E>>,
        arrivals: &mut Arrivals<'_, Option<Engine<E>>, Request<E>>,
        own: &mut dyn FnMut(&Rt, &E),
    ) -> bool {
        let (requests, all) = arrivals.take(arrivals.drawn());
        for request in requests {
            match (request, &engine) {
                (Request::Run(run), Some(engine)) => run(&engine.rt, &engine.state),
                (Request::End, Some(_)) => self.take_down(engine, Stopped::default()),
                (_, None) => {}
            }
        }
        let Some(Engine { rt, state }) = engine else { return !all };
        if all {
            own(rt, state);
        }
        rt.run_some(TASKS) || !all
    }

    /// Whether the reactor must learn of a timer, a descriptor or the engine's end. Every hold
    /// checks this: a reactor that did not get the engine relies on the next holder to ring.
    fn must_ring(&self, engine: &Option<Engine<E>>) -> bool {
        let Some(Engine { rt, .. }) = engine else { return true };
        rt.driver().is_some_and(|driver| {
            driver.has_news() || self.doorbell.sleeper.sleeps_past(rt.next_timer())
        })
    }

    /// Runs `work`. If `work` panics, ends the engine and returns `None`.
    fn guarded<R>(
        &self,
        engine: &mut Option<Engine<E>>,
        work: impl FnOnce(&mut Option<Engine<E>>) -> R,
    ) -> Option<R> {
        // A panic may have left the state half changed, so the state is dropped and not used again.
        match catch_unwind(AssertUnwindSafe(|| work(engine))) {
            Ok(result) => Some(result),
            Err(panic) => {
                self.take_down(engine, Stopped { reason: Some(message(&*panic).into()) });
                None
            }
        }
    }

    /// Drops the engine, while this thread still owns it.
    fn take_down(&self, engine: &mut Option<Engine<E>>, why: Stopped) {
        // The reason is set first, so that a caller woken by a dropped reply finds it.
        let _ = self.over.set(why);
        if let Some(Engine { rt, state }) = engine.take() {
            // A panic while dropping must not end the holder; what the engine owned is then leaked.
            let _ = catch_unwind(AssertUnwindSafe(move || {
                rt.clear();
                drop(state);
                rt.clear();
            }));
        }
        self.doorbell.ring();
    }

    /// Waits for the reason why a call has no answer. A panic drops the reply while it unwinds,
    /// before the engine's holder catches the panic and notes the reason. So the reason may come
    /// after this call.
    fn reason(&self) -> Stopped {
        self.over.wait().clone()
    }

    /// Puts a request into this thread's ring.
    fn push(&self, request: Request<E>) {
        leave_request(self.id, &self.hub, request);
    }

    /// Runs `wait`, which waits for an answer. A virtual clock moves only during such waits.
    fn with_clock_moving<T>(&self, wait: impl FnOnce() -> T) -> T {
        if self.clock == Clock::Real {
            return wait();
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.hub.signal();
        self.doorbell.ring();
        let value = wait();
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        value
    }

    /// Holds the engine once for the reactor: does the pending work, and announces the reactor's
    /// sleep if no work is left.
    fn react_once(&self, watched: &mut Vec<Interest>) -> Option<(Rest, u64)> {
        let _inside = Inside::enter(self.id);
        self.hub.hold(|engine, arrivals| {
            let more = self.guarded(engine, |engine| self.work(engine, arrivals, &mut |_, _| {}));
            let Some(Engine { rt, .. }) = engine else { return Rest::Over };
            if more.unwrap_or(true) {
                return Rest::Working;
            }
            let next = rt.next_timer();
            let Some(driver) = rt.driver() else {
                if self.waiting.load(Ordering::Acquire) > 0 && rt.advance() {
                    return Rest::Working;
                }
                self.doorbell.sleeper.announce(None);
                return Rest::Sleep(None);
            };
            self.doorbell.sleeper.announce(next);
            *watched = driver.interests();
            Rest::Sleep(next.map(|at| at.since(rt.now())))
        })
    }
}

/// Runs the reactor thread.
fn react<E: 'static>(shared: &Shared<E>, inbox: &Inbox) {
    let Shared { hub, doorbell, .. } = shared;
    let mut ring = hub.join();
    let mut watched = Vec::new();
    loop {
        let outside = || !inbox.is_empty();
        let timeout =
            match look(hub, &doorbell.sleeper, outside, || shared.react_once(&mut watched)) {
                Rest::Working => continue,
                Rest::Sleep(timeout) => timeout,
                Rest::Over => break,
            };
        let ready = doorbell.sleep(timeout, &watched);
        if !ready.is_empty() {
            let wake = move |rt: &Rt, _: &E| {
                if let Some(driver) = rt.driver() {
                    driver.ready(&ready);
                }
            };
            hub.push(&mut ring, Request::Run(Box::new(wake)));
        }
    }
    // A thread may have relied on the reactor's last hold to drop its request.
    shared.attend(&mut |_, _| {});
}

fn message(panic: &(dyn Any + Send)) -> &str {
    if let Some(message) = panic.downcast_ref::<&str>() {
        message
    } else if let Some(message) = panic.downcast_ref::<String>() {
        message
    } else {
        "a panic without a message"
    }
}
