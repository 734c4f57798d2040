//! The real clock, and the events that end an executor's sleep: timers, descriptors, the doorbell.
//!
//! Nothing else in the core reads the machine's clock.

use crate::exec::Nanos;
use crate::sleeper::Sleeper;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Wakes the one thread that sleeps for an executor.
pub(crate) struct Doorbell {
    pub(crate) sleeper: Sleeper,
    event: OwnedFd,
}

impl Doorbell {
    pub(crate) fn new() -> Doorbell {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .expect("the system has no descriptor left for an executor's eventfd");
        Doorbell { sleeper: Sleeper::new(), event }
    }

    /// Wakes the sleeper, if a thread sleeps.
    pub(crate) fn ring(&self) {
        if self.sleeper.must_be_woken() {
            // The write fails only if the counter is full, and then the sleeper is awake.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Sleeps until the bell rings, `timeout` nanoseconds have passed or one of `interests` is
    /// ready, and returns the keys of the ready interests.
    pub(crate) fn sleep(&self, timeout: Option<u64>, interests: &[Interest]) -> Vec<u64> {
        let (rang, ready) = poll_all(Some(&self.event), interests, timeout);
        self.awake(rang);
        ready
    }

    /// Like [`Doorbell::sleep`] without sleeping; `None` if neither the bell nor an interest
    /// is ready.
    fn look(&self, interests: &[Interest]) -> Option<Vec<u64>> {
        let (rang, ready) = poll_all(Some(&self.event), interests, Some(0));
        (rang || !ready.is_empty()).then(|| {
            self.awake(rang);
            ready
        })
    }

    fn awake(&self, rang: bool) {
        self.sleeper.awake();
        if rang {
            // The read resets the counter to 0.
            let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        }
    }
}

/// Waits until `bell` or one of `interests` is ready, or `timeout` nanoseconds have passed. Returns
/// whether the bell is ready, and the keys of the interests that are ready.
fn poll_all(
    bell: Option<&OwnedFd>,
    interests: &[Interest],
    timeout: Option<u64>,
) -> (bool, Vec<u64>) {
    let timeout = timeout.map(|nanoseconds| Timespec {
        tv_sec: (nanoseconds / Nanos::SECOND) as i64,
        tv_nsec: (nanoseconds % Nanos::SECOND) as i64,
    });
    let mut waits = Vec::with_capacity(1 + interests.len());
    waits.extend(interests.iter().map(|i| PollFd::new(&*i.descriptor, i.flags)));
    waits.extend(bell.map(|bell| PollFd::new(bell, PollFlags::IN)));
    if poll(&mut waits, timeout.as_ref()).is_err() {
        // A signal interrupted the call, or memory was short: the caller checks its state and
        // tries again.
        return (false, Vec::new());
    }
    let ready = |wait: &&PollFd<'_>| !wait.revents().is_empty();
    let keys = interests.iter().zip(&waits).filter(|(_, wait)| ready(wait));
    let keys = keys.map(|(interest, _)| interest.key).collect();
    (waits.get(interests.len()).as_ref().is_some_and(ready), keys)
}

/// A descriptor that a task waits for.
#[derive(Clone)]
pub(crate) struct Interest {
    key: u64,
    descriptor: Arc<OwnedFd>,
    flags: PollFlags,
}

/// The direction in which a task waits for a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

pub(crate) struct Driver {
    start: Instant,
    /// Whether the time of day comes from the kernel's tick; see [`crate::Config::coarse_wall`].
    coarse_wall: bool,
    bell: Arc<Doorbell>,
    next_key: Cell<u64>,
    interests: RefCell<BTreeMap<u64, (Interest, Waker)>>,
    /// Whether interests were added since the last call of [`Driver::interests`].
    changed: Cell<bool>,
    /// Time of the last poll of the descriptors.
    looked: Cell<Nanos>,
    patience: Patience,
}

/// Shortest time between two polls of the descriptors by an executor that always has work,
/// in nanoseconds.
const LOOK_EVERY: u64 = 100 * Nanos::MICRO;

/// Longest time that a thread polls before it sleeps, in nanoseconds. A wake-up takes a few
/// microseconds on a physical machine and about twenty on a virtual one, and costs the waking
/// thread as much. Linux lets a virtual processor poll for 200 us before it is halted, for the
/// same reason.
const LOOK_FOR: u64 = 100 * Nanos::MICRO;

/// How long polling before a sleep is worthwhile, learnt from earlier waits.
struct Patience {
    now: Cell<u64>,
    most: u64,
}

impl Patience {
    /// Begins without polling: polling starts after a wait so short that polling would have paid
    /// off. On a single processor, polling never starts, because the awaited thread needs the
    /// processor.
    fn new(processors: usize) -> Patience {
        Patience { now: Cell::new(0), most: if processors > 1 { LOOK_FOR } else { 0 } }
    }

    /// Learns from a wait of `waited` nanoseconds that ended in sleep. If polling for the longest
    /// time would have been enough, the next wait polls for longer; otherwise it does not poll.
    fn learn(&self, waited: u64) {
        self.now.set(match waited > self.most {
            true => 0,
            false => (self.now.get() * 2).clamp(self.most / 8, self.most),
        });
    }
}

impl Driver {
    pub(crate) fn start(bell: Arc<Doorbell>, coarse_wall: bool) -> Driver {
        Driver {
            start: Instant::now(),
            coarse_wall,
            bell,
            next_key: Cell::new(0),
            interests: RefCell::new(BTreeMap::new()),
            changed: Cell::new(false),
            looked: Cell::new(Nanos(0)),
            patience: Patience::new(std::thread::available_parallelism().map_or(1, usize::from)),
        }
    }

    pub(crate) fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }

    pub(crate) fn wall(&self) -> (i64, u32) {
        if self.coarse_wall {
            let now = clock_gettime(ClockId::RealtimeCoarse);
            return (now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0));
        }
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
            Err(_) => (0, 0),
        }
    }

    pub(crate) fn bell(&self) -> &Doorbell {
        &self.bell
    }

    /// Registers a task's wait for a descriptor and returns its key, which leaves the table when
    /// the descriptor is ready.
    pub(crate) fn watch(
        &self,
        descriptor: Arc<OwnedFd>,
        direction: Direction,
        waker: Waker,
    ) -> u64 {
        let key = self.next_key.get();
        self.next_key.set(key + 1);
        let flags = match direction {
            Direction::Read => PollFlags::IN,
            Direction::Write => PollFlags::OUT,
        };
        let interest = Interest { key, descriptor, flags };
        self.interests.borrow_mut().insert(key, (interest, waker));
        self.changed.set(true);
        key
    }

    /// Whether the wait with this key is registered; if so, replaces its waker.
    pub(crate) fn still_watched(&self, key: u64, waker: &Waker) -> bool {
        match self.interests.borrow_mut().get_mut(&key) {
            Some((_, known)) => {
                known.clone_from(waker);
                true
            }
            None => false,
        }
    }

    pub(crate) fn forget(&self, key: u64) {
        let removed = self.interests.borrow_mut().remove(&key);
        drop(removed);
    }

    pub(crate) fn is_watching(&self) -> bool {
        !self.interests.borrow().is_empty()
    }

    /// Whether a wait was added since the last call of [`Driver::interests`]: a thread that already
    /// sleeps does not watch the descriptor of that wait.
    pub(crate) fn has_news(&self) -> bool {
        self.changed.get()
    }

    /// All registered waits, for [`Doorbell::sleep`].
    pub(crate) fn interests(&self) -> Vec<Interest> {
        self.changed.set(false);
        self.interests.borrow().values().map(|(interest, _)| interest.clone()).collect()
    }

    /// Wakes the tasks whose descriptors are ready, without sleeping, at most once in
    /// [`LOOK_EVERY`]. An executor that always has work calls this so that tasks which wait for
    /// outside events run, too.
    pub(crate) fn look(&self) {
        if !self.is_watching() || self.now().since(self.looked.get()) < LOOK_EVERY {
            return;
        }
        let interests =
            self.interests.borrow().values().map(|(i, _)| i.clone()).collect::<Vec<_>>();
        self.ready(&poll_all(None, &interests, Some(0)).1);
    }

    /// Waits until `next`, until the bell rings, or until one of `interests` is ready; then wakes
    /// the tasks of ready interests. Polls for a while before it sleeps. The caller must have
    /// announced the sleep.
    pub(crate) fn wait(&self, next: Option<Nanos>, interests: &[Interest]) {
        let began = self.now();
        let until = began.after(self.patience.now.get());
        while self.now() < next.map_or(until, |at| at.min(until)) {
            if let Some(ready) = self.bell.look(interests) {
                return self.ready(&ready);
            }
        }
        let timeout = next.map(|at| at.since(self.now()));
        let ready = self.bell.sleep(timeout, interests);
        self.patience.learn(self.now().since(began));
        self.ready(&ready);
    }

    /// Wakes the tasks that wait for the ready descriptors with these keys.
    pub(crate) fn ready(&self, keys: &[u64]) {
        self.looked.set(self.now());
        for key in keys {
            let interest = self.interests.borrow_mut().remove(key);
            if let Some((_, waker)) = interest {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_goes_on_for_as_long_as_it_is_worth() {
        let patience = Patience::new(2);
        let now = || patience.now.get();
        assert_eq!(now(), 0);
        let mut last = 0;
        while now() < LOOK_FOR {
            patience.learn(LOOK_FOR);
            assert!(now() > last && now() <= LOOK_FOR, "{}", now());
            last = now();
        }
        patience.learn(LOOK_FOR);
        assert_eq!(now(), LOOK_FOR);
        patience.learn(LOOK_FOR + 1);
        assert_eq!(now(), 0, "what takes longer is slept for");
        let alone = Patience::new(1);
        alone.learn(0);
        assert_eq!(alone.now.get(), 0, "who is waited for needs the processor");
    }
}
