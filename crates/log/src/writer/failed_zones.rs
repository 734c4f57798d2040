//! Failed zones, each kept until its failure is forgotten or forgiven.

use furrow_rt::Notify;
use furrow_zone::{Error, ZoneId};
use std::cell::{Cell, RefCell};

/// The failure of a zone: see [`Writer::failures`](super::Writer::failures).
#[derive(Clone, Debug)]
pub struct Failure {
    /// The zone that failed.
    pub zone: ZoneId,
    /// From this block of the zone on, no block is known to be written.
    pub from: u32,
    /// True if the drive's status blames this zone alone: other zones can be written.
    pub of_zone: bool,
    /// The drive's error.
    pub error: Error,
    /// Sequence number of the first write that failed.
    pub(crate) sequence: u64,
}

/// The first failure of each zone, in order, until it is forgotten or forgiven.
#[derive(Default)]
pub(crate) struct FailedZones {
    failures: RefCell<Vec<Failure>>,
    /// Number of failures noted so far.
    noted: Cell<u64>,
    /// Wakes the tasks that wait for the next failure.
    failing: Notify,
    /// Whether the engine writes the lost blocks of a failed zone elsewhere: see
    /// [`Writer::relocates`](super::Writer::relocates).
    relocates: Cell<bool>,
}

impl FailedZones {
    /// Notes a failure. False if the zone has failed before.
    pub(crate) fn note(&self, failure: Failure) -> bool {
        let mut failures = self.failures.borrow_mut();
        if failures.iter().any(|known| known.zone == failure.zone) {
            return false;
        }
        failures.push(failure);
        drop(failures);
        self.noted.set(self.noted.get() + 1);
        self.failing.notify_all();
        true
    }

    /// Drops the failure of a zone.
    pub(crate) fn drop_of(&self, zone: ZoneId) {
        self.failures.borrow_mut().retain(|failure| failure.zone != zone);
    }

    /// Returns the first failure of a write with a number below `point` in a zone that is
    /// not excused.
    pub(crate) fn before(&self, point: u64, excused: impl Fn(ZoneId) -> bool) -> Option<Error> {
        let failures = self.failures.borrow();
        let mut counts = failures.iter().filter(|failure| failure.sequence < point);
        counts.find(|failure| !excused(failure.zone)).map(|failure| failure.error.clone())
    }

    /// Returns the first failure.
    pub(crate) fn first(&self) -> Option<Error> {
        self.failures.borrow().first().map(|failure| failure.error.clone())
    }

    /// Returns all failures.
    pub(crate) fn all(&self) -> Vec<Failure> {
        self.failures.borrow().clone()
    }

    /// Number of failures noted so far.
    pub(crate) fn noted(&self) -> u64 {
        self.noted.get()
    }

    /// Waits until more than `seen` failures were noted, and returns their number.
    pub(crate) async fn more_than(&self, seen: u64) -> u64 {
        while self.noted.get() <= seen {
            self.failing.wait().await;
        }
        self.noted.get()
    }

    /// Whether the engine writes the lost blocks of a failed zone elsewhere.
    pub(crate) fn are_relocated(&self) -> bool {
        self.relocates.get()
    }

    /// Sets whether the engine writes the lost blocks of a failed zone elsewhere.
    pub(crate) fn set_relocated(&self, relocates: bool) {
        self.relocates.set(relocates);
    }
}
