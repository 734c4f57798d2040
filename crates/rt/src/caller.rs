//! State of a calling thread: its rings, one per engine, and the engine that it is inside.
//!
//! These are the only thread-locals of the workspace. They belong to the callers, outside the
//! engine's cell, and hold no engine state: a ring holds requests, which are `Send`.

#![allow(clippy::disallowed_types, reason = "the callers' side")]

use crate::hub::{Entry, Hub};
use crate::ring::Producer;
use std::any::Any;
use std::cell::{Cell, RefCell};

/// A thread's ring for requests to some engine.
trait AnyRing {
    fn is_orphaned(&self) -> bool;
    fn as_any(&mut self) -> &mut dyn Any;
}

impl<R: Send + 'static> AnyRing for Producer<Entry<R>> {
    fn is_orphaned(&self) -> bool {
        Producer::is_orphaned(self)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

thread_local! {
    /// This thread's rings, each with the number of its engine.
    static RINGS: RefCell<Vec<(u64, Box<dyn AnyRing>)>> = const { RefCell::new(Vec::new()) };
    /// Number of the engine that this thread holds or tries to take; 0 for none.
    static INSIDE: Cell<u64> = const { Cell::new(0) };
}

/// Puts `request` into this thread's ring for the engine `id`.
pub(crate) fn leave_request<S, R: Send + 'static>(id: u64, hub: &Hub<S, R>, request: R) {
    let mut request = Some(request);
    let mut forgotten = Vec::new();
    let _ = RINGS.try_with(|rings| {
        let mut rings = rings.borrow_mut();
        if !rings.iter().any(|(engine, _)| *engine == id) {
            forgotten.extend(rings.extract_if(.., |(_, ring)| ring.is_orphaned()));
            rings.push((id, Box::new(hub.join())));
        }
        let ring = rings.iter_mut().find(|(engine, _)| *engine == id);
        let ring = ring.and_then(|(_, ring)| ring.as_any().downcast_mut());
        if let (Some(ring), Some(request)) = (ring, request.take()) {
            hub.push(ring, request);
        }
    });
    // The rings are dropped after the borrow: dropping a request to a dead engine may submit
    // another request.
    drop(forgotten);
    if let Some(request) = request {
        // The thread is ending and its table of rings is gone, so a new ring carries this
        // one request.
        hub.push(&mut hub.join(), request);
    }
}

/// Number of the engine that this thread holds or tries to take; 0 for none.
pub(crate) fn inside() -> u64 {
    INSIDE.try_with(Cell::get).unwrap_or(0)
}

/// Marks the thread as inside an engine until dropped.
pub(crate) struct Inside(u64);

impl Inside {
    pub(crate) fn enter(id: u64) -> Inside {
        Inside(INSIDE.try_with(|inside| inside.replace(id)).unwrap_or(0))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(self.0));
    }
}
