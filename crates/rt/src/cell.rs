//! The cell that lets one thread at a time own an engine: the ownership token.
//!
//! An engine is a graph of `Rc`s and `RefCell`s. Such a graph must not be *shared* between threads,
//! but any thread may run it, as long as only one does at a time and each sees the writes of the
//! one before. [`EngineCell`] gives exactly that: state is reached only through
//! [`EngineCell::try_hold`], which takes the token with an acquiring exchange and gives it back
//! with a releasing store, even if the work panics.
//!
//! # Why the `unsafe impl`s hold
//! 1. *One at a time.* The token is a flag taken by compare-and-exchange. The reference to the
//!    state is created after the token was taken and ends before the token is given back; `loom`
//!    checks this.
//! 2. *No handle escapes.* The state is built inside a hold, and what crosses the cell is `Send`:
//!    requests, answers, errors. A clone of an inner `Rc` is not `Send`, so it cannot be returned,
//!    captured by a thread, or kept in a `static`.
//! 3. *Nothing is tied to a thread.* Thread-locals would break the argument: a request could hide
//!    an `Rc` of the engine in one, or engine state could read one, and the compiler would not see
//!    it. Clippy (`disallowed-macros`) therefore bans `thread_local!` in the whole workspace,
//!    except for the ring table of `caller.rs`, which holds no engine state. Lock guards kept
//!    across an `await` are banned as well (`await_holding_lock`).
//! 4. *The end is inside as well.* The engine is dropped during a hold. If the cell itself is
//!    dropped while it holds an engine, its only owner drops that engine.
//! 5. *Everything that crosses threads is made for it*: page counts and wakers are atomic, pools
//!    and the inbox of wakes have locks of their own.
//!
//! This module has no queue: a thread that fails to take the token leaves its request in a ring and
//! relies on the holder (`hub.rs`).

#![allow(unsafe_code)]

use crate::sync::{AtomicBool, Ordering, UnsafeCell};

/// State that belongs to the holder of the token.
pub(crate) struct EngineCell<S> {
    held: AtomicBool,
    state: UnsafeCell<S>,
}

// SAFETY: points 2, 3 and 4 of the module header: moving the cell moves a graph, and no handle of
// that graph is anywhere else.
unsafe impl<S> Send for EngineCell<S> {}
// SAFETY: points 1, 2 and 3 of the module header: a shared cell gives access to one thread at a
// time, and each sees the writes of its predecessor.
unsafe impl<S> Sync for EngineCell<S> {}

/// Gives the token back, even if the work panics.
struct GiveBack<'a>(&'a AtomicBool);

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<S> EngineCell<S> {
    pub(crate) fn new(state: S) -> EngineCell<S> {
        EngineCell { held: AtomicBool::new(false), state: UnsafeCell::new(state) }
    }

    /// Runs `work` on the state if nobody holds the token; otherwise returns `None`.
    pub(crate) fn try_hold<R>(&self, work: impl FnOnce(&mut S) -> R) -> Option<R> {
        if self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        let _give_back = GiveBack(&self.held);
        Some(self.state.with_mut(|state| {
            // SAFETY: the exchange above succeeded, so no other reference to the state exists until
            // `_give_back` is dropped, which is after this reference has ended. A nested hold fails
            // at the exchange.
            work(unsafe { &mut *state })
        }))
    }
}
