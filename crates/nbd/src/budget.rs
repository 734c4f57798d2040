//! Memory for requests in flight, limited for each connection and for all together.
//!
//! Each connection has its own reserve, and may use shared memory beyond it, up to a limit. A
//! request is charged before its payload is read from the socket, and the charge is returned when
//! its reply has been sent. So a client that sends faster than it reads fills its own budget, and
//! then the server reads nothing more from it.
//!
//! Invariants:
//! - A request that fits the reserve never waits for another connection.
//! - Charges never exceed reserve × connections + the shared part.

use furrow_rt::{Notify, Permit, Semaphore, either};
use std::cell::Cell;
use std::rc::Rc;

/// The budget of one connection; see the module's documentation.
pub(crate) struct Budget {
    reserve: u64,
    limit: u64,
    shared: Semaphore,
    /// Bytes charged in total, and the part of them that is charged to the reserve.
    used: Cell<u64>,
    own: Cell<u64>,
    released: Notify,
}

/// Bytes charged to a budget. Dropping the charge returns them.
pub(crate) struct Charge {
    budget: Rc<Budget>,
    bytes: u64,
    own: u64,
    _shared: Option<Permit>,
}

impl Budget {
    /// A budget of `limit` bytes: `reserve` bytes belong to the connection alone, the rest comes
    /// from `shared`.
    pub(crate) fn new(reserve: u64, limit: u64, shared: Semaphore) -> Budget {
        let released = Notify::new();
        Budget { reserve, limit, shared, used: Cell::new(0), own: Cell::new(0), released }
    }

    /// Number of bytes charged.
    pub(crate) fn used(&self) -> u64 {
        self.used.get()
    }

    fn fits(&self, bytes: u64) -> bool {
        // If no other request is in flight, a request fits even if it is larger than the limit.
        self.used.get() == 0 || self.used.get() + bytes <= self.limit
    }

    fn beyond_reserve(&self, bytes: u64) -> u64 {
        bytes - bytes.min(self.reserve - self.own.get())
    }

    fn charge(self: &Rc<Self>, bytes: u64, shared: Option<Permit>) -> Charge {
        let own = bytes - shared.as_ref().map_or(0, Permit::count);
        self.used.set(self.used.get() + bytes);
        self.own.set(self.own.get() + own);
        Charge { budget: self.clone(), bytes, own, _shared: shared }
    }

    /// Charges `bytes` if they are free now and no other task waits for memory.
    pub(crate) fn try_take(self: &Rc<Self>, bytes: u64) -> Option<Charge> {
        if !self.fits(bytes) {
            return None;
        }
        match self.beyond_reserve(bytes) {
            0 => Some(self.charge(bytes, None)),
            beyond => {
                let shared = self.shared.try_acquire(beyond)?;
                Some(self.charge(bytes, Some(shared)))
            }
        }
    }

    /// Charges `bytes` as soon as they are free. Only one task of a connection may wait.
    pub(crate) async fn take(self: &Rc<Self>, bytes: u64) -> Charge {
        loop {
            if let Some(charge) = self.try_take(bytes) {
                return charge;
            }
            let released = self.released.wait();
            if !self.fits(bytes) {
                released.await;
                continue;
            }
            // When bytes of the reserve return, less of the shared part is needed, so each attempt
            // computes the amount anew.
            let shared = self.shared.acquire(self.beyond_reserve(bytes));
            if let Ok(shared) = either(shared, released).await {
                return self.charge(bytes, Some(shared));
            }
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let budget = &self.budget;
        budget.used.set(budget.used.get() - self.bytes);
        budget.own.set(budget.own.get() - self.own);
        budget.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::{Config, Rt};
    use std::cell::RefCell;

    #[test]
    fn a_reserve_is_never_taken_by_others() {
        let rt = Rt::new(Config::simulated(1));
        let shared = Semaphore::new(100);
        let hog = Rc::new(Budget::new(10, 200, shared.clone()));
        let other = Rc::new(Budget::new(10, 200, shared.clone()));
        let held = hog.try_take(110).unwrap();
        assert!(hog.try_take(1).is_none(), "all that is shared is taken");
        let small = other.try_take(10).expect("its own");
        assert!(other.try_take(1).is_none());
        let order = Rc::new(RefCell::new(Vec::new()));
        let (log, budget) = (order.clone(), other.clone());
        rt.spawn_detached(async move {
            let charge = budget.take(9).await;
            log.borrow_mut().push(charge.bytes);
        });
        rt.run_ready();
        assert!(order.borrow().is_empty());
        drop(small);
        rt.run_ready();
        assert_eq!(*order.borrow(), [9], "its own reserve suffices again");
        drop(held);
        assert_eq!((hog.used(), other.used(), shared.available()), (0, 0, 100));
    }

    #[test]
    fn a_limit_holds_and_one_large_request_passes_alone() {
        let rt = Rt::new(Config::simulated(1));
        let budget = Rc::new(Budget::new(4, 16, Semaphore::new(100)));
        let first = budget.try_take(16).unwrap();
        assert!(budget.try_take(1).is_none());
        let large = rt.spawn({
            let budget = budget.clone();
            async move { budget.take(40).await }
        });
        rt.run_ready();
        assert!(large.try_take().is_none());
        drop(first);
        rt.run_ready();
        assert_eq!(large.try_take().unwrap().bytes, 40);
        assert_eq!(budget.used(), 0);
    }
}
