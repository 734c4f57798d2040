//! The same seed gives the same run: random programs of tasks, timers, completions, wait queues and
//! permits run twice, and the hashes of their events are compared. The order of timers is tested as
//! a property.

#![allow(clippy::unwrap_used)]

use furrow_rt::{CompletionTable, Config, Nanos, Notify, Rng, Rt, Semaphore, Source, Ticket};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A small device that answers commands in random order.
struct Device {
    rng: RefCell<Rng>,
    table: CompletionTable<u64>,
    queue: RefCell<Vec<(Ticket, u64)>>,
}

impl Source for Device {
    fn poll(&self) -> bool {
        let mut queue = self.queue.borrow_mut();
        if queue.is_empty() {
            return false;
        }
        let pick = self.rng.borrow_mut().below(queue.len() as u64) as usize;
        let (ticket, value) = queue.swap_remove(pick);
        drop(queue);
        self.table.complete(ticket, value * 3);
        true
    }
}

struct World {
    rt: Rt,
    device: Rc<Device>,
    gate: Notify,
    permits: Semaphore,
}

/// Runs one task: a few dozen steps drawn from its own generator, each of them traced.
async fn wander(world: Rc<World>, id: u64, mut rng: Rng, depth: u32) {
    for step in 0..20 + rng.below(20) {
        let choice = rng.below(8);
        let mut result = 0;
        match choice {
            0 => world.rt.sleep(rng.below(5_000)).await,
            // Sleeps have coarse lengths, so that many timers are due at the same instant.
            1 => world.rt.sleep(1_000 * rng.below(3)).await,
            2 => world.rt.yield_now().await,
            3 => {
                let (ticket, completion) = world.device.table.open();
                world.device.queue.borrow_mut().push((ticket, id));
                if rng.one_in(4) {
                    drop(completion);
                } else {
                    result = completion.await;
                }
            }
            4 => {
                let _permit = world.permits.acquire(1 + rng.below(3)).await;
                world.rt.sleep(rng.below(300)).await;
            }
            5 => world.gate.notify_all(),
            6 if depth < 2 => {
                let child = wander(world.clone(), id * 7 + step, rng.clone(), depth + 1);
                world.rt.spawn_detached(child);
            }
            _ => {
                // Waits with a timeout, and drops the future that did not complete.
                let mut wait = pin!(world.gate.wait());
                let mut limit = pin!(world.rt.sleep(700));
                let which = std::future::poll_fn(|context| {
                    if wait.as_mut().poll(context).is_ready() {
                        return Poll::Ready(1);
                    }
                    limit.as_mut().poll(context).map(|()| 2)
                });
                result = which.await;
            }
        }
        world.rt.trace(&[id, step, choice, result, world.rt.random()]);
    }
}

/// Runs the random program of `seed`. Returns the hash of its events, their number, and the time
/// of its end.
fn run(config: Config, program: u64) -> (u64, u64, Nanos) {
    let rt = Rt::new(config);
    let device = Rc::new(Device {
        rng: RefCell::new(rt.fork_rng()),
        table: CompletionTable::new(),
        queue: RefCell::new(Vec::new()),
    });
    rt.add_source(device.clone());
    let (gate, permits) = (Notify::new(), Semaphore::new(3));
    let world = Rc::new(World { rt: rt.clone(), device, gate, permits });
    let mut rng = Rng::new(program);
    for id in 0..20 {
        rt.spawn_detached(wander(world.clone(), id, Rng::new(rng.next()), 0));
    }
    rt.run_until(Nanos(u64::MAX));
    assert_eq!(rt.task_count(), 0, "every wait has an end");
    let (hash, events) = rt.event_hash();
    let now = rt.now();
    rt.clear();
    (hash, events, now)
}

#[test]
fn one_seed_twice_gives_one_hash_and_other_seeds_others() {
    let mut hashes = Vec::new();
    for seed in 0..20 {
        let first = run(Config::simulated(seed), seed);
        assert!(first.1 > 400, "{} events are no run", first.1);
        assert_eq!(first, run(Config::simulated(seed), seed), "seed {seed}");
        hashes.push(first.0);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 20, "different seeds, different runs");
}

/// The program is the same in every run; only the order of ready tasks is drawn.
#[test]
fn a_shuffled_order_differs_by_seed_and_repeats_by_seed() {
    let mut hashes = Vec::new();
    for seed in 0..20 {
        let first = run(Config::shuffled(seed), 7);
        assert_eq!(first, run(Config::shuffled(seed), 7), "seed {seed}");
        hashes.push(first.0);
    }
    hashes.push(run(Config::simulated(0), 7).0);
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 21);
}

/// Tests the order alone, without timers or devices: with `shuffle` every order of three tasks
/// occurs, without it only the order of arrival.
#[test]
fn shuffle_reaches_every_order_of_ready_tasks() {
    let order = |config: Config| {
        let rt = Rt::new(config);
        let log = Rc::new(RefCell::new(Vec::new()));
        for id in 0..3 {
            let log = log.clone();
            rt.spawn_detached(async move { log.borrow_mut().push(id) });
        }
        rt.run_ready();
        log.take()
    };
    let mut orders: Vec<_> = (0..100).map(|seed| order(Config::shuffled(seed))).collect();
    orders.sort();
    orders.dedup();
    assert_eq!(orders.len(), 6);
    assert!((0..100).all(|seed| order(Config::simulated(seed)) == [0, 1, 2]));
}

/// Tasks that keep each other ready must not starve a source, or the device they wait for
/// never answers.
#[test]
fn a_yielding_task_does_not_starve_a_source() {
    let rt = Rt::new(Config::simulated(1));
    let table = CompletionTable::new();
    let (ticket, completion) = table.open();
    let device =
        Device { rng: RefCell::new(rt.fork_rng()), table, queue: RefCell::new(vec![(ticket, 5)]) };
    rt.add_source(Rc::new(device));
    let answer = Rc::new(Cell::new(0));
    let theirs = answer.clone();
    rt.spawn_detached(async move { theirs.set(completion.await) });
    let waiting = rt.clone();
    rt.block_on(async move {
        while answer.get() == 0 {
            waiting.yield_now().await;
        }
    });
}

#[test]
fn yielding_lets_every_other_ready_task_run_first() {
    let rt = Rt::new(Config::simulated(1));
    let log = Rc::new(RefCell::new(Vec::new()));
    for id in 0..3 {
        let (rt2, log) = (rt.clone(), log.clone());
        rt.spawn_detached(async move {
            for round in 0..3 {
                log.borrow_mut().push((round, id));
                rt2.yield_now().await;
            }
        });
    }
    rt.run_ready();
    let expected: Vec<_> = (0..3).flat_map(|round| (0..3).map(move |id| (round, id))).collect();
    assert_eq!(*log.borrow(), expected);
}

/// A dropped sleep must not delay or move the clock, nor stay in memory.
#[test]
fn a_dropped_sleep_takes_its_timer_back() {
    let rt = Rt::new(Config::simulated(1));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..1_000 {
        let mut sleep = Box::pin(rt.sleep(Nanos::SECOND));
        assert!(sleep.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(rt.next_timer(), None);
    rt.run_until(Nanos(u64::MAX));
    assert_eq!(rt.now(), Nanos(0));
}

/// After a power cut from inside a task, that task runs to its next await and is dropped; a new
/// task in its slot is not affected.
#[test]
fn clear_from_inside_a_task_drops_everything_else_and_then_itself() {
    let rt = Rt::new(Config::simulated(1));
    let alive = Rc::new(());
    for _ in 0..3 {
        let (held, rt2) = (alive.clone(), rt.clone());
        rt.spawn_detached(async move {
            rt2.sleep(5).await;
            drop(held);
        });
    }
    let (held, cutter, ran) = (alive.clone(), rt.clone(), Rc::new(Cell::new(false)));
    let after = ran.clone();
    rt.spawn_detached(async move {
        let _held = held;
        cutter.clear();
        let sleeper = cutter.clone();
        cutter.spawn_detached(async move {
            sleeper.sleep(1).await;
            after.set(true);
        });
        cutter.yield_now().await;
        unreachable!("dropped at its first await after the cut");
    });
    rt.run_until(Nanos(u64::MAX));
    assert!(ran.get());
    assert_eq!((Rc::strong_count(&alive), rt.task_count()), (1, 0));
}

proptest! {
    /// Timers fire at their times and in order, timers due at one instant in the order in which
    /// they were set; the clock never goes back; cancelled timers do not fire.
    #[test]
    fn timers_fire_in_order(
        timers in prop::collection::vec((0u64..50, 0u64..50, any::<bool>()), 1..60),
    ) {
        let rt = Rt::new(Config::simulated(0));
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut expected = Vec::new();
        for (id, (first, second, keep)) in timers.iter().copied().enumerate() {
            let (rt2, log) = (rt.clone(), log.clone());
            rt.spawn_detached(async move {
                if !keep {
                    let mut sleep = pin!(rt2.sleep(first + 1));
                    std::future::poll_fn(|context| {
                        assert!(sleep.as_mut().poll(context).is_pending());
                        Poll::Ready(())
                    })
                    .await;
                    return;
                }
                rt2.sleep(first).await;
                log.borrow_mut().push((rt2.now(), 0, id));
                rt2.sleep(second).await;
                log.borrow_mut().push((rt2.now(), 1, id));
            });
            if keep {
                expected.push((Nanos(first), 0, id));
                expected.push((Nanos(first + second), 1, id));
            }
        }
        rt.run_until(Nanos(u64::MAX));
        let log = log.take();
        prop_assert!(log.is_sorted_by_key(|(at, _, _)| *at));
        // The first sleeps were set in the order of the tasks; sleeps due at one instant keep
        // that order.
        let firsts: Vec<_> = log.iter().filter(|(_, nth, _)| *nth == 0).collect();
        prop_assert!(firsts.is_sorted_by_key(|(at, _, id)| (*at, *id)));
        let mut sorted = log.clone();
        sorted.sort_by_key(|(at, nth, id)| (*id, *nth, *at));
        expected.sort_by_key(|(at, nth, id)| (*id, *nth, *at));
        prop_assert_eq!(sorted, expected);
        prop_assert_eq!(rt.next_timer(), None);
    }

    /// A semaphore never grants more than it has, serves requests in order, and gets all permits
    /// back, whatever is cancelled.
    #[test]
    fn semaphores_are_fair_and_lose_nothing(
        wants in prop::collection::vec((1u64..5, 0u64..20, 0u64..20, any::<bool>()), 1..40),
    ) {
        const ALL: u64 = 4;
        let rt = Rt::new(Config::simulated(0));
        let permits = Semaphore::new(ALL);
        let served = Rc::new(RefCell::new(Vec::new()));
        for (id, (count, start, hold, cancel)) in wants.iter().copied().enumerate() {
            let (rt2, permits, served) = (rt.clone(), permits.clone(), served.clone());
            rt.spawn_detached(async move {
                rt2.sleep(start).await;
                let asked = (rt2.now(), id);
                let mut acquire = pin!(permits.acquire(count));
                let mut limit = pin!(rt2.sleep(if cancel { 3 } else { u64::MAX }));
                let permit = std::future::poll_fn(|context| {
                    if let Poll::Ready(permit) = acquire.as_mut().poll(context) {
                        return Poll::Ready(Some(permit));
                    }
                    limit.as_mut().poll(context).map(|()| None)
                })
                .await;
                if let Some(_permit) = permit {
                    assert!(permits.available() <= ALL - count);
                    served.borrow_mut().push((asked, rt2.now()));
                    rt2.sleep(hold).await;
                }
            });
        }
        rt.run_until(Nanos(1_000_000));
        prop_assert_eq!((permits.available(), permits.waiting()), (ALL, 0));
        prop_assert_eq!(rt.task_count(), 0);
        // No request was served after one from a later instant.
        let mut served = served.take();
        served.sort_by_key(|((asked, _), at)| (*asked, *at));
        prop_assert!(served.is_sorted_by_key(|(_, at)| *at));
    }
}
