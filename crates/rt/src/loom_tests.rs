//! The port's protocol under every interleaving of two or three threads.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p furrow-rt --lib --target-dir target/loom loom_tests
//! ```
//!
//! `loom` replaces the atomics, the locks and the `UnsafeCell`s of `cell`, `ring`, `hub`, `answer`
//! and `sleeper`. It explores the executions that the memory model allows, up to the number of
//! preemptions that a test sets, and fails on a concurrent access to a cell. One test breaks the
//! protocol on purpose, and the checker must detect that.
//!
//! Not modelled: the executor, `eventfd` and `poll`, for which a counter and a flag stand.

use crate::answer::answer;
use crate::exec::Nanos;
use crate::hub::{Arrivals, Hub};
use crate::ring::ring;
use crate::sleeper::{Rest, Sleeper, Turn, attend, look};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::thread;

/// More holds than a model can need.
const ROUNDS: usize = 100;

#[derive(Default)]
struct State {
    served: Vec<u32>,
    timer: Option<Nanos>,
    /// Stands for ready tasks of an executor.
    ready: bool,
}

type TestHub = Hub<State, u32>;

fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn drain(state: &mut State, arrivals: &mut Arrivals<'_, State, u32>) -> bool {
    let (requests, all) = arrivals.take(arrivals.drawn());
    state.served.extend(requests);
    !all
}

fn served(hub: &TestHub) -> Vec<u32> {
    hub.hold(|state, _| state.served.clone()).expect("all threads have ended").0
}

/// Acts as a caller that finds the engine taken: pushes each request, then tries to serve.
fn push_and_serve(hub: &TestHub, requests: &[u32]) {
    let mut ring = hub.join();
    for request in requests {
        hub.push(&mut ring, *request);
        hub.serve(ROUNDS, drain);
    }
}

fn two_pushers(blind: bool) {
    let mut hub = TestHub::new(State::default());
    hub.blind = blind;
    let hub = Arc::new(hub);
    let theirs = hub.clone();
    let other = thread::spawn(move || push_and_serve(&theirs, &[1]));
    push_and_serve(&hub, &[2]);
    other.join().unwrap();
    let mut served = served(&hub);
    served.sort_unstable();
    assert_eq!(served, [1, 2], "a request was lost");
}

#[test]
fn two_threads_exclude_each_other_and_lose_nothing() {
    bounded(4, || two_pushers(false));
}

/// Without the second check (the seeded bug), some interleaving loses a request.
#[test]
#[should_panic(expected = "a request was lost")]
fn without_the_second_look_a_request_is_lost() {
    bounded(4, || two_pushers(true));
}

#[test]
fn three_threads_lose_nothing() {
    bounded(2, || {
        let hub = Arc::new(TestHub::new(State::default()));
        let others: Vec<_> = [1, 2]
            .map(|request| {
                let hub = hub.clone();
                thread::spawn(move || push_and_serve(&hub, &[request]))
            })
            .into();
        push_and_serve(&hub, &[3]);
        others.into_iter().for_each(|other| other.join().unwrap());
        let mut served = served(&hub);
        served.sort_unstable();
        assert_eq!(served, [1, 2, 3]);
    });
}

/// If a request is pushed after another is known to have been pushed, it is served after that one.
#[test]
fn tickets_keep_the_order_between_rings() {
    bounded(3, || {
        let hub = Arc::new(TestHub::new(State::default()));
        let (first, told) = (hub.clone(), Arc::new(AtomicBool::new(false)));
        let tells = told.clone();
        let other = thread::spawn(move || {
            let mut ring = first.join();
            first.push(&mut ring, 1);
            tells.store(true, Ordering::Release);
            first.serve(ROUNDS, drain);
        });
        let mut ring = hub.join();
        hub.serve(ROUNDS, drain);
        if told.load(Ordering::Acquire) {
            hub.push(&mut ring, 2);
            hub.serve(ROUNDS, drain);
            other.join().unwrap();
            assert_eq!(served(&hub), [1, 2]);
        } else {
            other.join().unwrap();
        }
    });
}

#[test]
fn a_ring_hands_over_in_order_and_through_its_spill() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring();
        let other = thread::spawn(move || (0..4).for_each(|entry| producer.push(entry)));
        let mut got = Vec::new();
        for _ in 0..3 {
            got.extend(consumer.pop_if(|_| true));
        }
        other.join().unwrap();
        while let Some(entry) = consumer.pop_if(|_| true) {
            got.push(entry);
        }
        assert_eq!(got, [0, 1, 2, 3]);
        assert!(consumer.is_over());
    });
}

#[test]
fn an_answer_reaches_a_waiter_that_parks() {
    loom::model(|| {
        let (reply, answer) = answer();
        let other = thread::spawn(move || reply.send(7));
        assert_eq!(answer.wait(), Some(7));
        other.join().unwrap();
    });
    loom::model(|| {
        let (reply, answer) = answer::<u32>();
        let other = thread::spawn(move || drop(reply));
        assert_eq!(answer.wait(), None);
        other.join().unwrap();
    });
}

/// The reactor's side of a model: `event` replaces the eventfd, and `inbox` stands for wakes from
/// other threads.
struct World {
    hub: TestHub,
    sleeper: Sleeper,
    event: AtomicBool,
    inbox: AtomicBool,
}

impl World {
    fn new() -> Arc<World> {
        Arc::new(World {
            hub: TestHub::new(State::default()),
            sleeper: Sleeper::new(),
            event: AtomicBool::new(false),
            inbox: AtomicBool::new(false),
        })
    }

    fn ring(&self) {
        if self.sleeper.must_be_woken() {
            self.event.store(true, Ordering::Release);
        }
    }

    /// Acts as a caller that sets `timer` while it holds the engine.
    fn call(&self, rounds: usize, timer: Option<Nanos>) {
        let ring = attend(
            &self.hub,
            rounds,
            || false,
            |state, arrivals| {
                self.inbox.store(false, Ordering::Release);
                let more = drain(state, arrivals);
                state.timer = state.timer.or(timer);
                Turn { more, ring: self.sleeper.sleeps_past(state.timer) }
            },
        );
        if ring {
            self.ring();
        }
    }

    /// Runs the reactor until it would sleep. Returns the end of that sleep.
    fn react(&self) -> Option<u64> {
        loop {
            let rest = look(
                &self.hub,
                &self.sleeper,
                || self.inbox.load(Ordering::Acquire),
                || {
                    self.hub.hold(|state, arrivals| {
                        self.inbox.store(false, Ordering::Release);
                        state.ready = false;
                        if drain(state, arrivals) {
                            return Rest::Working;
                        }
                        self.sleeper.announce(state.timer);
                        Rest::Sleep(state.timer.map(|at| at.0))
                    })
                },
            );
            if let Rest::Sleep(until) = rest {
                return until;
            }
        }
    }

    fn is_woken(&self) -> bool {
        self.event.load(Ordering::Acquire)
    }
}

#[test]
fn a_reactor_never_sleeps_past_a_timer() {
    bounded(4, || {
        let world = World::new();
        let theirs = world.clone();
        let caller = thread::spawn(move || theirs.call(ROUNDS, Some(Nanos(5))));
        let until = world.react();
        caller.join().unwrap();
        let (timer, _) = world.hub.hold(|state, _| state.timer).expect("nobody holds");
        assert!(until == timer.map(|at| at.0) || world.is_woken(), "the timer is slept past");
    });
}

#[test]
fn a_reactor_never_sleeps_over_a_wake_from_outside() {
    bounded(3, || {
        let world = World::new();
        let (theirs, outside) = (world.clone(), world.clone());
        let caller = thread::spawn(move || theirs.call(ROUNDS, None));
        let waker = thread::spawn(move || {
            outside.inbox.store(true, Ordering::Release);
            fence(Ordering::SeqCst);
            outside.ring();
        });
        world.react();
        caller.join().unwrap();
        waker.join().unwrap();
        assert!(!world.inbox.load(Ordering::Acquire) || world.is_woken(), "the wake is lost");
    });
}

/// A caller that may hold the engine only once leaves the remaining requests and ready tasks to
/// the reactor.
#[test]
fn a_reactor_takes_over_what_a_caller_leaves() {
    bounded(3, || {
        let world = World::new();
        let theirs = world.clone();
        let caller = thread::spawn(move || {
            let mut ring = theirs.hub.join();
            for request in 0..3 {
                theirs.hub.push(&mut ring, request);
            }
            // Three requests in batches of two do not fit into one hold.
            theirs.call(1, None);
        });
        world.react();
        caller.join().unwrap();
        assert!(served(&world.hub).len() == 3 || world.is_woken(), "requests are left lying");
    });
    bounded(4, || {
        let world = World::new();
        let theirs = world.clone();
        let caller = thread::spawn(move || {
            let turn = |state: &mut State, _: &mut Arrivals<'_, State, u32>| {
                state.ready = true;
                Turn { more: true, ring: false }
            };
            if attend(&theirs.hub, 1, || false, turn) {
                theirs.ring();
            }
        });
        world.react();
        caller.join().unwrap();
        let (ready, _) = world.hub.hold(|state, _| state.ready).expect("nobody holds");
        assert!(!ready || world.is_woken(), "ready tasks are left lying");
    });
}
