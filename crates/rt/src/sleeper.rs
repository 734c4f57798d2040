//! When to sleep: the protocol between a reactor and the holders of its engine.
//!
//! Invariants:
//! - A thread that is about to sleep publishes the end of its sleep *before* its last check for
//!   work; a thread with work publishes the work *before* it checks the sleeper. Both put a
//!   sequentially consistent fence in between, so at least one of the two notices the other.
//! - A reactor announces its sleep while it holds the engine. So every later holder knows the end
//!   of the sleep, and rings if it leaves an earlier timer.
//! - A reactor that finds the engine taken announces a sleep without end and signals. The holder
//!   then does another round, sees the announcement, and rings if it leaves any timer.
//! - A holder that leaves ready work rings unconditionally.

use crate::exec::Nanos;
use crate::hub::{Arrivals, Hub, Served};
use crate::sync::{AtomicU64, Ordering, fence};

/// The latest time at which the thread that sleeps for an executor wakes, if a thread sleeps.
pub(crate) struct Sleeper {
    /// The end of the sleep in nanoseconds of the executor's clock; [`AWAKE`] if no thread sleeps,
    /// `u64::MAX` for a sleep without end.
    asleep_until: AtomicU64,
}

/// Value of `asleep_until` while no thread sleeps.
const AWAKE: u64 = 0;

impl Sleeper {
    pub(crate) fn new() -> Sleeper {
        Sleeper { asleep_until: AtomicU64::new(AWAKE) }
    }

    /// True for exactly one of the threads that call this during a sleep: that thread wakes
    /// the sleeper.
    #[must_use]
    pub(crate) fn must_be_woken(&self) -> bool {
        self.asleep_until.load(Ordering::Acquire) != AWAKE
            && self.asleep_until.swap(AWAKE, Ordering::AcqRel) != AWAKE
    }

    /// Whether the thread sleeps beyond `next`.
    pub(crate) fn sleeps_past(&self, next: Option<Nanos>) -> bool {
        next.is_some_and(|at| at.0 < self.asleep_until.load(Ordering::Acquire))
    }

    /// Announces a sleep until `at`. The caller must check for work once more afterwards.
    pub(crate) fn announce(&self, at: Option<Nanos>) {
        self.asleep_until.store(at.map_or(u64::MAX, |at| at.0.max(1)), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Withdraws the announcement, or notes that the sleep has ended.
    pub(crate) fn awake(&self) {
        self.asleep_until.store(AWAKE, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

/// The work that one hold of the engine left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Whether requests or ready tasks are left.
    pub(crate) more: bool,
    /// Whether the sleeper must be rung because of a timer, a descriptor or the engine's end.
    pub(crate) ring: bool,
}

/// Holds the engine for a caller, at most `rounds` times in a row. True if the caller must ring
/// the sleeper.
pub(crate) fn attend<S, R: Send>(
    hub: &Hub<S, R>,
    rounds: usize,
    is_over: impl Fn() -> bool,
    mut turn: impl FnMut(&mut S, &mut Arrivals<'_, S, R>) -> Turn,
) -> bool {
    let mut ring = false;
    loop {
        let served = hub.serve(rounds, |state, arrivals| {
            let turn = turn(state, arrivals);
            ring |= turn.ring;
            turn.more
        });
        if served != Served::Left {
            return ring;
        }
        // After the engine has ended, no thread sleeps for it, so this loop continues and drops the
        // remaining entries.
        if !is_over() {
            return true;
        }
    }
}

/// The next action of a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Check the engine again.
    Working,
    /// Sleep this many nanoseconds, or without limit.
    Sleep(Option<u64>),
    /// The engine has ended.
    Over,
}

/// Checks the engine for a reactor. `hold` holds the engine once and, before it releases it,
/// announces the sleep that it returns; it returns `None` if the engine is taken. `outside` says
/// whether there is work that was not signalled.
pub(crate) fn look<S, R: Send>(
    hub: &Hub<S, R>,
    sleeper: &Sleeper,
    outside: impl Fn() -> bool,
    mut hold: impl FnMut() -> Option<(Rest, u64)>,
) -> Rest {
    let held = hold().or_else(|| {
        sleeper.announce(None);
        hub.signal();
        hold()
    });
    match held {
        None => Rest::Sleep(None),
        Some((Rest::Sleep(timeout), seen)) if hub.is_quiet(seen) && !outside() => {
            Rest::Sleep(timeout)
        }
        Some((Rest::Over, _)) => Rest::Over,
        Some(_) => {
            sleeper.awake();
            Rest::Working
        }
    }
}
