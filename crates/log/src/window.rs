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

#[derive(Default)]
pub(crate) struct Window {
    /// Everything below is over.
    base: u64,
    /// `over[i]`: write `base + i` is over. The front is never over.
    over: VecDeque<bool>,
    waiters: Vec<(Mark, Waker)>,
}

impl Window {
    pub(crate) fn open(&mut self) -> u64 {
        self.over.push_back(false);
        self.base + self.over.len() as u64 - 1
    }

    pub(crate) fn close(&mut self, sequence: u64) {
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
        let (a, b) = (window.open(), window.open());
        let mark = window.mark();
        let c = window.open();
        window.close(b);
        window.close(c);
        assert!(!window.reached(mark));
        window.close(a);
        assert!(window.reached(mark) && window.reached(window.mark()));
        let d = window.open();
        let e = window.open();
        window.close(e);
        assert!(window.reached(mark) && !window.reached(window.mark()));
        assert_eq!(window.len(), 2);
        window.close(d);
        assert_eq!(window.len(), 0);
    }
}
