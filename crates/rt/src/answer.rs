//! One answer from the engine to a thread that waits for it.
//!
//! The waiting thread spins for a moment, then parks; the answering thread makes a system call only
//! if the waiting one has parked. If the [`Reply`] is dropped without an answer, the wait ends
//! without a value.

use crate::sync::{Arc, AtomicU8, Mutex, Ordering, Thread, current, park, spin_loop};
use std::sync::PoisonError;

/// How often a waiting thread checks for its answer before it parks. All these checks take about as
/// long as a few trivial requests of other callers, and far less than parking and waking.
#[cfg(not(loom))]
const SPINS: usize = 64;
#[cfg(loom)]
const SPINS: usize = 0;

const OPEN: u8 = 0;
const PARKED: u8 = 1;
const CLOSED: u8 = 2;

struct Slot<T> {
    state: AtomicU8,
    value: Mutex<Option<T>>,
    waiter: Thread,
}

/// The engine's end of an answer.
pub(crate) struct Reply<T>(Arc<Slot<T>>);

/// The waiting thread's end of an answer. It stays on the thread that made it.
pub(crate) struct Answer<T>(Arc<Slot<T>>);

/// Creates both ends of an answer to the calling thread.
pub(crate) fn answer<T>() -> (Reply<T>, Answer<T>) {
    let slot = Slot { state: AtomicU8::new(OPEN), value: Mutex::new(None), waiter: current() };
    let slot = Arc::new(slot);
    (Reply(slot.clone()), Answer(slot))
}

impl<T> Reply<T> {
    pub(crate) fn send(self, value: T) {
        *self.0.value.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if self.0.state.swap(CLOSED, Ordering::AcqRel) == PARKED {
            self.0.waiter.unpark();
        }
    }
}

impl<T> Answer<T> {
    /// Waits for the answer. `None` if the reply was dropped without an answer.
    pub(crate) fn wait(self) -> Option<T> {
        let state = &self.0.state;
        for _ in 0..SPINS {
            if state.load(Ordering::Acquire) == CLOSED {
                break;
            }
            spin_loop();
        }
        if state.compare_exchange(OPEN, PARKED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            while state.load(Ordering::Acquire) != CLOSED {
                park();
            }
        }
        self.0.value.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
