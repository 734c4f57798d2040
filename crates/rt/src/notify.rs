//! Waiting among tasks of one executor: [`Notify`] and [`Semaphore`].
//!
//! Both serve waiters in the order of arrival, so a run is a function of its seed. Both belong to
//! one engine: they are neither `Send` nor `Sync` and take no lock.
//!
//! Invariants:
//! - In a semaphore, a small request does not overtake an earlier large one.
//! - A dropped wait leaves the queue, and the permits granted to it go to the next request.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A queue of tasks that wait for a change.
///
/// It stores no permit: [`Notify::notify_all`] and [`Notify::notify_one`] reach only tasks that
/// wait already. Callers test their condition, then wait, without an await between the two.
#[derive(Clone, Default)]
pub struct Notify(Rc<RefCell<Queue>>);

#[derive(Default)]
struct Queue {
    next: u64,
    /// Wakers of the waiting tasks by place in the queue; `None` before the first poll.
    waiting: BTreeMap<u64, Option<Waker>>,
}

impl Notify {
    /// Creates an empty queue.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Waits for the next notification after this call, even if the future is first polled later.
    pub fn wait(&self) -> Notified {
        let mut queue = self.0.borrow_mut();
        let place = queue.next;
        queue.next += 1;
        queue.waiting.insert(place, None);
        Notified { queue: self.0.clone(), place }
    }

    /// Wakes all waiting tasks, the longest waiting first.
    pub fn notify_all(&self) {
        let waiting = {
            let mut queue = self.0.borrow_mut();
            if queue.waiting.is_empty() {
                return;
            }
            std::mem::take(&mut queue.waiting)
        };
        for waker in waiting.into_values().flatten() {
            waker.wake();
        }
    }

    /// Wakes the longest waiting task. False if none waits.
    pub fn notify_one(&self) -> bool {
        let first = self.0.borrow_mut().waiting.pop_first();
        match first {
            Some((_, waker)) => {
                if let Some(waker) = waker {
                    waker.wake();
                }
                true
            }
            None => false,
        }
    }

    /// Number of waiting tasks.
    pub fn waiting(&self) -> usize {
        self.0.borrow().waiting.len()
    }
}

/// Future of [`Notify::wait`]. If [`Notify::notify_one`] chose a wait that is dropped before its
/// task ran, the notification is lost. So where waits can be cancelled, use [`Notify::notify_all`].
#[must_use = "waits only when awaited"]
pub struct Notified {
    queue: Rc<RefCell<Queue>>,
    place: u64,
}

impl Future for Notified {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.queue.borrow_mut();
        match queue.waiting.get_mut(&self.place) {
            None => Poll::Ready(()),
            Some(waker) => {
                remember(waker, cx.waker());
                Poll::Pending
            }
        }
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        self.queue.borrow_mut().waiting.remove(&self.place);
    }
}

fn remember(slot: &mut Option<Waker>, waker: &Waker) {
    if !slot.as_ref().is_some_and(|known| known.will_wake(waker)) {
        *slot = Some(waker.clone());
    }
}

/// A number of permits, granted in the order of requests.
#[derive(Clone)]
pub struct Semaphore(Rc<RefCell<Permits>>);

struct Permits {
    free: u64,
    next: u64,
    queue: BTreeMap<u64, Waiter>,
}

struct Waiter {
    wanted: u64,
    granted: bool,
    waker: Option<Waker>,
}

impl Permits {
    /// Grants requests from the front of the queue as far as the free permits suffice. Returns the
    /// wakers of granted requests.
    fn grant(&mut self) -> Vec<Waker> {
        let mut wake = Vec::new();
        for waiter in self.queue.values_mut() {
            if waiter.granted {
                continue;
            }
            if waiter.wanted > self.free {
                break;
            }
            self.free -= waiter.wanted;
            waiter.granted = true;
            wake.extend(waiter.waker.take());
        }
        wake
    }

    fn all_granted(&self) -> bool {
        // Granted waiters are at the front of the queue, so if the last waiter is granted, all are.
        self.queue.values().next_back().is_none_or(|waiter| waiter.granted)
    }
}

impl Semaphore {
    /// Creates a semaphore with `permits` free permits.
    pub fn new(permits: u64) -> Semaphore {
        Semaphore(Rc::new(RefCell::new(Permits { free: permits, next: 0, queue: BTreeMap::new() })))
    }

    /// Waits for `count` permits. A request for more permits than exist waits until
    /// [`Semaphore::add`] adds enough, and all later requests wait behind it.
    pub fn acquire(&self, count: u64) -> Acquire {
        Acquire { permits: self.0.clone(), count, place: None }
    }

    /// Takes `count` permits if they are free and no task waits.
    pub fn try_acquire(&self, count: u64) -> Option<Permit> {
        let mut permits = self.0.borrow_mut();
        if permits.free < count || !permits.all_granted() {
            return None;
        }
        permits.free -= count;
        Some(Permit { permits: self.0.clone(), count })
    }

    /// Adds `count` permits to the semaphore.
    pub fn add(&self, count: u64) {
        let wake = {
            let mut permits = self.0.borrow_mut();
            permits.free += count;
            permits.grant()
        };
        wake.into_iter().for_each(Waker::wake);
    }

    /// Number of free permits.
    pub fn available(&self) -> u64 {
        self.0.borrow().free
    }

    /// Number of waiting tasks.
    pub fn waiting(&self) -> usize {
        self.0.borrow().queue.values().filter(|waiter| !waiter.granted).count()
    }
}

/// Future of [`Semaphore::acquire`].
#[must_use = "waits only when awaited"]
pub struct Acquire {
    permits: Rc<RefCell<Permits>>,
    count: u64,
    place: Option<u64>,
}

impl Future for Acquire {
    type Output = Permit;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        let mut permits = this.permits.borrow_mut();
        match this.place {
            None if permits.free >= this.count && permits.all_granted() => {
                permits.free -= this.count;
            }
            None => {
                let place = permits.next;
                permits.next += 1;
                let waker = Some(cx.waker().clone());
                permits.queue.insert(place, Waiter { wanted: this.count, granted: false, waker });
                this.place = Some(place);
                return Poll::Pending;
            }
            Some(place) => {
                let waiter =
                    permits.queue.get_mut(&place).expect("invariant: a waiter keeps its place");
                if !waiter.granted {
                    remember(&mut waiter.waker, cx.waker());
                    return Poll::Pending;
                }
                permits.queue.remove(&place);
                this.place = None;
            }
        }
        let permits = this.permits.clone();
        Poll::Ready(Permit { permits, count: this.count })
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let wake = {
            let mut permits = self.permits.borrow_mut();
            let waiter = permits.queue.remove(&place);
            permits.free += waiter.filter(|w| w.granted).map_or(0, |w| w.wanted);
            // A dropped request may have held up the requests behind it, even if it had no
            // permits yet.
            permits.grant()
        };
        wake.into_iter().for_each(Waker::wake);
    }
}

/// Permits of a semaphore that a task holds; dropping this value gives them back.
#[must_use = "dropping gives the permits back"]
pub struct Permit {
    permits: Rc<RefCell<Permits>>,
    count: u64,
}

impl Permit {
    /// Number of permits held.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Splits off `count` of these permits; `None` if fewer are held.
    pub fn split(&mut self, count: u64) -> Option<Permit> {
        self.count = self.count.checked_sub(count)?;
        Some(Permit { permits: self.permits.clone(), count })
    }

    /// Discards the permits, so the semaphore has fewer.
    pub fn forget(mut self) {
        self.count = 0;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.count > 0 {
            Semaphore(self.permits.clone()).add(self.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Rt};

    fn rt() -> Rt {
        Rt::new(Config::simulated(1))
    }

    #[test]
    fn notify_all_reaches_who_waits_and_nobody_later() {
        let rt = rt();
        let gate = Notify::new();
        let log = Rc::new(RefCell::new(Vec::new()));
        for name in 0..3 {
            let (gate, log) = (gate.clone(), log.clone());
            rt.spawn_detached(async move {
                gate.wait().await;
                log.borrow_mut().push(name);
                gate.wait().await;
                log.borrow_mut().push(name + 10);
            });
        }
        rt.run_ready();
        assert_eq!(gate.waiting(), 3);
        gate.notify_all();
        rt.run_ready();
        assert_eq!(*log.borrow(), [0, 1, 2]);
        assert!(gate.notify_one());
        rt.run_ready();
        assert_eq!(*log.borrow(), [0, 1, 2, 10]);
        assert_eq!(gate.waiting(), 2);
    }

    #[test]
    fn a_wait_counts_from_its_call_not_from_its_first_poll() {
        let rt = rt();
        let gate = Notify::new();
        let wait = gate.wait();
        gate.notify_all();
        rt.block_on(wait);
        drop(gate.wait());
        assert!(!gate.notify_one());
    }

    #[test]
    fn a_large_request_is_not_overtaken() {
        let rt = rt();
        let semaphore = Semaphore::new(4);
        let log = Rc::new(RefCell::new(Vec::new()));
        let held = semaphore.try_acquire(3).unwrap();
        for count in [4, 1, 1] {
            let (semaphore, log) = (semaphore.clone(), log.clone());
            rt.spawn_detached(async move {
                let permit = semaphore.acquire(count).await;
                log.borrow_mut().push(permit.count());
            });
        }
        rt.run_ready();
        assert!(log.borrow().is_empty());
        assert!(semaphore.try_acquire(1).is_none(), "someone waits");
        drop(held);
        rt.run_ready();
        assert_eq!(*log.borrow(), [4, 1, 1]);
        assert_eq!((semaphore.available(), semaphore.waiting()), (4, 0));
    }

    #[test]
    fn a_dropped_wait_gives_back_its_place_and_its_grant() {
        let rt = rt();
        let semaphore = Semaphore::new(1);
        let held = semaphore.try_acquire(1).unwrap();
        let mut large = Box::pin(semaphore.acquire(2));
        let mut small = Box::pin(semaphore.acquire(1));
        let mut context = Context::from_waker(Waker::noop());
        assert!(large.as_mut().poll(&mut context).is_pending());
        assert!(small.as_mut().poll(&mut context).is_pending());
        drop(held);
        assert!(small.as_mut().poll(&mut context).is_pending(), "behind the large one");
        drop(large);
        // The permit is granted to the future by now; if the future is dropped before it is polled,
        // the permit must not be lost.
        drop(small);
        assert_eq!(semaphore.available(), 1);
        let mut permit = rt.block_on(semaphore.acquire(1));
        assert!(permit.split(2).is_none());
        permit.forget();
        assert_eq!(semaphore.available(), 0);
    }
}
