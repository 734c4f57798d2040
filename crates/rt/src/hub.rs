//! Flat combining: the thread that holds the engine serves all others.
//!
//! A thread with a request leaves it in its ring and tries to take the engine. The holder drains
//! all rings, and checks them again after it has released the engine. Because of that second check,
//! a thread that failed to take the engine can rely on the holder.
//!
//! # The argument
//! Let `P` push and fail to take the token because `H` holds it.
//! `P`: push; `signals += 1`; *fence*; reads the token: held.
//! `H`: reads `signals` into `seen`; drains; token := free; *fence*; reads `signals`.
//! `P` read the token before `H` freed it, so `P`'s fence comes before `H`'s, and `H`'s last read
//! sees `P`'s signal. Either that signal is already counted in `seen`, and then (release, acquire)
//! the drain saw the request; or the last read differs from `seen`, and `H` goes round again. If
//! `H` then fails to take the token, `H` is in the position of `P` (it has passed a fence), and the
//! new holder is in the position of `H`. `loom` checks the whole argument, and checks that without
//! the second check a request is lost.
//!
//! # Order
//! Requests carry tickets drawn before the push. A drain reads a horizon before it looks into any
//! ring, and takes the requests with tickets below the horizon, sorted by ticket. So if request A
//! was pushed before request B drew its ticket, A is served before B, whichever rings they are in.

use crate::cell::EngineCell;
use crate::ring::{Consumer, Producer, ring};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, fence};
use std::sync::PoisonError;

/// Maximum number of tickets that one drain serves. It bounds the length of a hold.
#[cfg(not(loom))]
const BATCH: u64 = 64;
#[cfg(loom)]
const BATCH: u64 = 2;

/// A request in a ring.
pub(crate) struct Entry<R> {
    ticket: u64,
    request: R,
}

/// An engine's state `S` and the pending requests `R`.
pub(crate) struct Hub<S, R> {
    cell: EngineCell<Station<S, R>>,
    tickets: AtomicU64,
    /// Counts the events that a holder must not miss: pushes and [`Hub::signal`]s.
    signals: AtomicU64,
    newcomers: Mutex<Vec<Consumer<Entry<R>>>>,
    /// Whether `newcomers` has rings; written under its lock.
    has_newcomers: AtomicBool,
    /// A seeded bug for the checker: a hub without the second check loses requests.
    #[cfg(loom)]
    pub(crate) blind: bool,
}

/// State that only the holder uses.
struct Station<S, R> {
    state: S,
    rings: Vec<Consumer<Entry<R>>>,
    batch: Vec<Entry<R>>,
    horizon: u64,
}

/// The requests that have arrived and that the holder serves next.
pub(crate) struct Arrivals<'a, S, R> {
    hub: &'a Hub<S, R>,
    rings: &'a mut Vec<Consumer<Entry<R>>>,
    batch: &'a mut Vec<Entry<R>>,
    horizon: &'a mut u64,
}

/// The result of a [`Hub::serve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// Another thread holds the engine, and will see everything signalled before this call.
    Busy,
    /// Nothing is left to do.
    Done,
    /// The limit on holds was reached with work left: the caller has to notify another thread.
    Left,
}

impl<S, R: Send> Hub<S, R> {
    pub(crate) fn new(state: S) -> Hub<S, R> {
        let station = Station { state, rings: Vec::new(), batch: Vec::new(), horizon: 0 };
        Hub {
            cell: EngineCell::new(station),
            tickets: AtomicU64::new(0),
            signals: AtomicU64::new(0),
            newcomers: Mutex::new(Vec::new()),
            has_newcomers: AtomicBool::new(false),
            #[cfg(loom)]
            blind: false,
        }
    }

    /// Creates a ring for a thread. The ring is reclaimed after its producer is dropped.
    pub(crate) fn join(&self) -> Producer<Entry<R>> {
        let (producer, consumer) = ring();
        let mut newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        newcomers.push(consumer);
        self.has_newcomers.store(true, Ordering::Release);
        producer
    }

    /// Pushes a request to a ring. The caller must call [`Hub::serve`] afterwards.
    pub(crate) fn push(&self, ring: &mut Producer<Entry<R>>, request: R) {
        let ticket = self.tickets.fetch_add(1, Ordering::AcqRel);
        ring.push(Entry { ticket, request });
        self.signal();
    }

    /// Makes the present or next holder check once more. The caller must call [`Hub::serve`]
    /// afterwards, or wake a thread that does.
    pub(crate) fn signal(&self) {
        self.signals.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Holds the engine once, and runs `work` on its state and the arrived requests. Returns the
    /// result, and the count of signals for [`Hub::is_quiet`]. `None` if another thread holds
    /// the engine.
    pub(crate) fn hold<T>(
        &self,
        work: impl FnOnce(&mut S, &mut Arrivals<'_, S, R>) -> T,
    ) -> Option<(T, u64)> {
        let held = self.cell.try_hold(|station| {
            let seen = self.signals.load(Ordering::Acquire);
            let Station { state, rings, batch, horizon } = station;
            (work(state, &mut Arrivals { hub: self, rings, batch, horizon }), seen)
        });
        // This fence lies between the release of the token and the second check; see the
        // module header.
        fence(Ordering::SeqCst);
        held
    }

    /// Makes the second check: true if nothing was signalled since `seen`.
    pub(crate) fn is_quiet(&self, seen: u64) -> bool {
        #[cfg(loom)]
        if self.blind {
            return true;
        }
        self.signals.load(Ordering::Acquire) == seen
    }

    /// Holds the engine up to `rounds` times, as long as `work` reports more to do or a signal
    /// has arrived.
    pub(crate) fn serve(
        &self,
        rounds: usize,
        mut work: impl FnMut(&mut S, &mut Arrivals<'_, S, R>) -> bool,
    ) -> Served {
        for _ in 0..rounds {
            let Some((more, seen)) = self.hold(&mut work) else { return Served::Busy };
            if !more && self.is_quiet(seen) {
                return Served::Done;
            }
        }
        Served::Left
    }
}

impl<S, R> Arrivals<'_, S, R> {
    /// Number of tickets drawn so far: every earlier push has a lower ticket.
    pub(crate) fn drawn(&self) -> u64 {
        self.hub.tickets.load(Ordering::Acquire)
    }

    /// Takes the next requests with tickets below `limit`, in order, at most about [`BATCH`]. The
    /// flag is true if no more are left below `limit`.
    pub(crate) fn take(&mut self, limit: u64) -> (impl Iterator<Item = R> + '_, bool) {
        // The order holds because `limit` was read before the rings, including those of newcomers,
        // are read.
        let horizon = limit.min(self.horizon.saturating_add(BATCH)).max(*self.horizon);
        if self.hub.has_newcomers.load(Ordering::Acquire) {
            let mut newcomers = self.hub.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
            self.hub.has_newcomers.store(false, Ordering::Release);
            self.rings.append(&mut newcomers);
        }
        let batch = &mut *self.batch;
        self.rings.retain_mut(|ring| {
            while let Some(entry) = ring.pop_if(|entry| entry.ticket < horizon) {
                batch.push(entry);
            }
            !ring.is_over()
        });
        batch.sort_unstable_by_key(|entry| entry.ticket);
        *self.horizon = horizon;
        (batch.drain(..).map(|entry| entry.request), horizon >= limit)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn drain(served: &mut Vec<u64>, arrivals: &mut Arrivals<'_, Vec<u64>, u64>) -> bool {
        let (requests, all) = arrivals.take(arrivals.drawn());
        served.extend(requests);
        !all
    }

    #[test]
    fn a_hold_is_bounded_and_the_order_is_that_of_the_tickets() {
        let hub = Hub::new(Vec::new());
        let mut rings = [hub.join(), hub.join(), hub.join()];
        let count = 3 * BATCH + 5;
        for request in 0..count {
            hub.push(&mut rings[(request * request % 3) as usize], request);
        }
        assert_eq!(hub.serve(1, drain), Served::Left);
        assert_eq!(hub.hold(|served, _| served.len() as u64).unwrap().0, BATCH);
        assert_eq!(hub.serve(2, drain), Served::Left);
        assert_eq!(hub.serve(2, drain), Served::Done);
        let (served, _) = hub.hold(|served, _| std::mem::take(served)).unwrap();
        assert_eq!(served, (0..count).collect::<Vec<_>>());
    }

    #[test]
    fn rings_are_reclaimed_once_their_threads_have_ended_and_all_is_served() {
        let hub = Hub::new(Vec::new());
        for request in 0..100 {
            hub.push(&mut hub.join(), request);
        }
        let kept = hub.join();
        let rings = || hub.hold(|_, arrivals| arrivals.rings.len()).unwrap().0;
        assert_eq!(hub.serve(1, drain), Served::Left);
        assert_eq!(rings() as u64, 100 - BATCH + 1, "those not yet served are kept");
        assert_eq!(hub.serve(9, drain), Served::Done);
        assert_eq!(rings(), 1);
        drop(kept);
        hub.serve(1, drain);
        assert_eq!(rings(), 0);
    }

    #[test]
    fn a_hold_inside_a_hold_is_refused() {
        let hub = Hub::<u64, u64>::new(0);
        let (inner, _) = hub.hold(|_, _| hub.hold(|_, _| ()).is_none()).unwrap();
        assert!(inner);
        assert_eq!(hub.serve(1, |_, _| false), Served::Done);
    }
}
