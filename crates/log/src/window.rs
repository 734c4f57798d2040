//! Which writes are over: the window of sequence numbers between the oldest write in flight and
//! the newest one.
//!
//! Every write gets the next number when it is dispatched. A [`Mark`] is a point between two
//! numbers; it is reached when every number before it is over. Later writes do not delay it,
//! and it costs one bit per write in flight, not a list per waiter.

use std::collections::VecDeque;
use std::task::Waker;

/// A point in the order of dispatch: see [`crate::Writer::mark`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(pub(crate) u64);

/// The writes between the oldest that is not over and the newest.
///
/// Invariants
/// - `over` begins with a write that is not over, or is empty.
/// - Every number that is not over is a write in some zone's queue; `pages` is the sum of theirs.
#[derive(Default)]
pub(crate) struct Window {
    /// Everything below is over.
    base: u64,
    /// `over[i]`: write `base + i` is over. The front is never over.
    over: VecDeque<bool>,
    /// Pages of the writes that are not over.
    pages: usize,
    waiters: Vec<(Mark, Waker)>,
}

impl Window {
    /// A write of so many pages is dispatched.
    pub(crate) fn open(&mut self, pages: usize) -> u64 {
        self.pages += pages;
        self.over.push_back(false);
        self.base + self.over.len() as u64 - 1
    }

    /// It is over.
    pub(crate) fn close(&mut self, sequence: u64, pages: usize) {
        self.pages -= pages;
        let index = (sequence - self.base) as usize;
        debug_assert!(!self.over[index], "write {sequence} is over twice");
        self.over[index] = true;
        if index > 0 {
            return;
        }
        while self.over.front() == Some(&true) {
            self.over.pop_front();
            self.base += 1;
        }
        let base = Mark(self.base);
        if self.waiters.iter().any(|(mark, _)| *mark <= base) {
            // In the order they came, so that a run repeats.
            let (due, rest) =
                std::mem::take(&mut self.waiters).into_iter().partition(|(mark, _)| *mark <= base);
            self.waiters = rest;
            let due: Vec<(Mark, Waker)> = due;
            due.into_iter().for_each(|(_, waker)| waker.wake());
        }
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark(self.base + self.over.len() as u64)
    }

    pub(crate) fn reached(&self, mark: Mark) -> bool {
        mark.0 <= self.base
    }

    pub(crate) fn wake_at(&mut self, mark: Mark, waker: &Waker) {
        if !self.waiters.iter().any(|(at, other)| *at == mark && other.will_wake(waker)) {
            self.waiters.push((mark, waker.clone()));
        }
    }

    /// Wakes everybody, to look again.
    pub(crate) fn wake_all(&mut self) {
        let waiters = std::mem::take(&mut self.waiters);
        waiters.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Pages of writes dispatched and not over.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Numbers of the writes that are not over.
    pub(crate) fn not_over(&self) -> impl Iterator<Item = u64> {
        let numbers = (self.base..).zip(&self.over);
        numbers.filter(|(_, over)| !**over).map(|(number, _)| number)
    }

    /// Writes dispatched and not over, and those behind them.
    pub(crate) fn len(&self) -> usize {
        self.over.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_waits_for_all_before_it_and_nothing_after() {
        let mut window = Window::default();
        let (a, b) = (window.open(1), window.open(2));
        let mark = window.mark();
        let c = window.open(3);
        window.close(b, 2);
        window.close(c, 3);
        assert!(!window.reached(mark));
        assert_eq!(window.pages(), 1);
        window.close(a, 1);
        assert!(window.reached(mark) && window.reached(window.mark()));
        let d = window.open(3);
        let e = window.open(3);
        window.close(e, 3);
        assert!(window.reached(mark) && !window.reached(window.mark()));
        assert_eq!(window.len(), 2);
        window.close(d, 3);
        assert_eq!((window.len(), window.pages()), (0, 0));
    }
}
