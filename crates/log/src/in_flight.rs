//! Which writes have completed: the sequence numbers from the oldest write in flight to the newest.
//!
//! Every write gets the next number when it is dispatched. A [`SequencePoint`] lies between two
//! numbers; it is reached when every write before it has completed. Later writes do not delay it.
//! This bookkeeping takes one byte per write in flight, not a list per waiter.

use std::collections::VecDeque;
use std::task::Waker;

/// A point in the order of dispatch: see [`crate::Writer::sequence_point`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SequencePoint(pub(crate) u64);

/// The writes from the oldest that has not completed to the newest.
///
/// Invariants
/// - `completed` begins with a write that has not completed, or is empty.
/// - Each write that has not completed is in some zone's queue. `pages` is the number of pages of
///   these writes, and `unsent` is the number of these writes that are not wholly with the drive.
#[derive(Default)]
pub(crate) struct InFlight {
    /// Number of the oldest write that has not completed. If all writes have completed: number of
    /// the next write.
    base: u64,
    /// Whether write `base + i` has completed, for each index i. The front is never true.
    completed: VecDeque<bool>,
    /// Number of pages of the writes that have not completed.
    pages: usize,
    /// Number of writes that are not wholly sent.
    unsent: usize,
    waiters: Vec<(SequencePoint, Waker)>,
}

impl InFlight {
    /// Enters a write of `pages` pages at its dispatch, and returns its number.
    pub(crate) fn begin(&mut self, pages: usize) -> u64 {
        self.pages += pages;
        self.unsent += 1;
        self.completed.push_back(false);
        self.base + self.completed.len() as u64 - 1
    }

    /// Notes that `count` more writes are wholly with the drive, or never will be.
    pub(crate) fn sent(&mut self, count: usize) {
        self.unsent -= count;
    }

    /// Number of writes that are not wholly with the drive.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Notes that a write has completed.
    pub(crate) fn complete(&mut self, sequence: u64, pages: usize) {
        self.pages -= pages;
        let index = (sequence - self.base) as usize;
        debug_assert!(!self.completed[index], "write {sequence} completed twice");
        self.completed[index] = true;
        if index > 0 {
            return;
        }
        while self.completed.front() == Some(&true) {
            self.completed.pop_front();
            self.base += 1;
        }
        let base = SequencePoint(self.base);
        if self.waiters.iter().any(|(point, _)| *point <= base) {
            // Waiters are woken in the order in which they came, so that a run is reproducible.
            let (due, rest) = std::mem::take(&mut self.waiters)
                .into_iter()
                .partition(|(point, _)| *point <= base);
            self.waiters = rest;
            let due: Vec<(SequencePoint, Waker)> = due;
            due.into_iter().for_each(|(_, waker)| waker.wake());
        }
    }

    pub(crate) fn point(&self) -> SequencePoint {
        SequencePoint(self.base + self.completed.len() as u64)
    }

    pub(crate) fn reached(&self, point: SequencePoint) -> bool {
        point.0 <= self.base
    }

    pub(crate) fn wake_at(&mut self, point: SequencePoint, waker: &Waker) {
        if !self.waiters.iter().any(|(at, other)| *at == point && other.will_wake(waker)) {
            self.waiters.push((point, waker.clone()));
        }
    }

    /// Wakes every waiter, so that it checks its condition again.
    pub(crate) fn wake_all(&mut self) {
        let waiters = std::mem::take(&mut self.waiters);
        waiters.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Number of pages of writes that were dispatched and have not completed.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Numbers of the writes that have not completed.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        let numbers = (self.base..).zip(&self.completed);
        numbers.filter(|(_, completed)| !**completed).map(|(number, _)| number)
    }

    /// Number of sequence numbers between the oldest write that has not completed and the newest
    /// write, including both and the completed ones between them.
    pub(crate) fn len(&self) -> usize {
        self.completed.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_point_waits_for_all_before_it_and_nothing_after() {
        let mut writes = InFlight::default();
        let (a, b) = (writes.begin(1), writes.begin(2));
        let point = writes.point();
        let c = writes.begin(3);
        writes.complete(b, 2);
        writes.complete(c, 3);
        assert!(!writes.reached(point));
        assert_eq!(writes.pages(), 1);
        writes.complete(a, 1);
        assert!(writes.reached(point) && writes.reached(writes.point()));
        let d = writes.begin(3);
        let e = writes.begin(3);
        writes.complete(e, 3);
        assert!(writes.reached(point) && !writes.reached(writes.point()));
        assert_eq!(writes.len(), 2);
        writes.complete(d, 3);
        assert_eq!((writes.len(), writes.pages()), (0, 0));
    }
}
