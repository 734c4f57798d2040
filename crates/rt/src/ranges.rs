//! Locks on ranges, for tasks of one executor: overlapping ranges are held one after the other.
//!
//! Invariants:
//! - Overlapping ranges are held in the order of their requests; ranges that do not overlap
//!   never wait.
//! - The time of a request or release is proportional to the number of neighbouring ranges, not of
//!   all waiting ones. For each part of its range, a request waits for the last request before it
//!   that covers the part. It is woken once, when all these earlier requests are gone.
//! - Dropping a wait does not let later requests pass earlier ones that overlap them.

use slab::Slab;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// If there are more parts than three for each range plus this number, the parts of ranges that are
/// gone are searched for and removed.
const STALE: usize = 64;

/// A range that a task holds or waits for.
struct Entry {
    ticket: u64,
    range: Range<u64>,
    /// Number of ranges for which this range still waits.
    ahead: u32,
    /// The ranges that wait for this range.
    behind: SmallVec<[usize; 2]>,
    waker: Option<Waker>,
    /// The wait was dropped; the ranges behind it must still wait for the ranges ahead of it.
    given_up: bool,
}

/// A part of requested ranges: its end, and the last range that covers it.
struct Last {
    end: u64,
    key: usize,
    ticket: u64,
}

#[derive(Default)]
struct Table {
    next: u64,
    entries: Slab<Entry>,
    /// The parts by their starts; they do not overlap. A part may belong to a range that is gone.
    last: BTreeMap<u64, Last>,
}

impl Table {
    fn enter(&mut self, range: &Range<u64>) -> usize {
        let ticket = self.next;
        self.next += 1;
        let range = range.clone();
        let entry = Entry {
            ticket,
            range: range.clone(),
            ahead: 0,
            behind: SmallVec::new(),
            waker: None,
            given_up: false,
        };
        let key = self.entries.insert(entry);
        if range.is_empty() {
            return key;
        }
        // Parts do not overlap. So if the last part that begins before the end of `range` ends
        // before `range` begins, no part lies in `range`.
        let before = self.last.range(..range.end).next_back();
        if before.is_some_and(|(_, part)| part.end > range.start) {
            self.cut_out(&range, key);
        }
        self.last.insert(range.start, Last { end: range.end, key, ticket });
        key
    }

    /// Removes the parts within `range`, which is not empty. The range of `key` then waits for the
    /// ranges that these parts belong to.
    fn cut_out(&mut self, range: &Range<u64>, key: usize) {
        // A part that begins before `range` is split where `range` begins, and keeps its
        // first piece.
        if let Some((_, part)) = self.last.range_mut(..range.start).next_back()
            && part.end > range.start
        {
            let rest = Last { end: part.end, key: part.key, ticket: part.ticket };
            part.end = range.start;
            self.last.insert(range.start, rest);
        }
        while let Some((&start, _)) = self.last.range(range.clone()).next() {
            let Some(part) = self.last.remove(&start) else { break };
            if let Some(ahead) = self.entries.get_mut(part.key)
                && ahead.ticket == part.ticket
            {
                ahead.behind.push(key);
                self.entries[key].ahead += 1;
            }
            if part.end > range.end {
                self.last.insert(range.end, part);
            }
        }
    }

    /// Removes a range, and dropped requests that waited only for it. Returns the wakers of the
    /// requests that no longer wait for any range.
    fn leave(&mut self, key: usize) -> SmallVec<[Waker; 2]> {
        let mut wake = SmallVec::new();
        let mut going: SmallVec<[usize; 2]> = SmallVec::from_slice(&[key]);
        while let Some(key) = going.pop() {
            let entry = self.entries.remove(key);
            if let Place::Occupied(part) = self.last.entry(entry.range.start)
                && (part.get().ticket, part.get().end) == (entry.ticket, entry.range.end)
            {
                part.remove();
            }
            for key in entry.behind {
                let behind = &mut self.entries[key];
                behind.ahead -= 1;
                if behind.ahead == 0 {
                    match behind.given_up {
                        true => going.push(key),
                        false => wake.extend(behind.waker.take()),
                    }
                }
            }
        }
        // The search is so rare that it costs less than the insertions since the previous search.
        if self.entries.is_empty() {
            self.last.clear();
        } else if self.last.len() > 3 * self.entries.len() + STALE {
            let entries = &self.entries;
            let is_here = |part: &Last| {
                entries.get(part.key).is_some_and(|entry| entry.ticket == part.ticket)
            };
            self.last.retain(|_, part| is_here(part));
        }
        wake
    }
}

/// Range locks. A clone is another handle of the same locks.
#[derive(Clone, Default)]
pub struct Ranges(Rc<RefCell<Table>>);

/// Holds a range until it is dropped.
#[must_use = "the range is held only as long as this lives"]
pub struct Held {
    ranges: Ranges,
    key: usize,
}

impl Ranges {
    /// Waits until no earlier request for any part of `range` is left, then holds the range. The
    /// place in the queue is taken by this call, not by the first poll.
    pub fn hold(&self, range: Range<u64>) -> Hold {
        let key = self.0.borrow_mut().enter(&range);
        Hold { ranges: self.clone(), key: Some(key) }
    }

    /// Number of ranges that are held or waited for.
    pub fn len(&self) -> usize {
        self.0.borrow().entries.len()
    }

    /// True if no range is held or waited for.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn leave(&self, key: usize) {
        let wake = self.0.borrow_mut().leave(key);
        wake.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.ranges.leave(self.key);
    }
}

/// Future of [`Ranges::hold`].
#[must_use = "waits only when awaited"]
pub struct Hold {
    ranges: Ranges,
    /// `None` once the range is held.
    key: Option<usize>,
}

impl Future for Hold {
    type Output = Held;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Held> {
        let key = self.key.expect("invariant: a future is not polled after its end");
        {
            let mut table = self.ranges.0.borrow_mut();
            let entry = &mut table.entries[key];
            if entry.ahead > 0 {
                if !entry.waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                    entry.waker = Some(cx.waker().clone());
                }
                return Poll::Pending;
            }
        }
        self.key = None;
        Poll::Ready(Held { ranges: self.ranges.clone(), key })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        {
            let mut table = self.ranges.0.borrow_mut();
            let entry = &mut table.entries[key];
            if entry.ahead > 0 {
                entry.given_up = true;
                entry.waker = None;
                return;
            }
        }
        self.ranges.leave(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Rng, Rt, within};
    use std::cell::Cell;

    #[test]
    fn overlapping_ranges_go_in_order_and_others_pass() {
        let rt = Rt::new(Config::simulated(1));
        let (ranges, log) = (Ranges::default(), Rc::new(RefCell::new(Vec::new())));
        for (name, range) in [("a", 0..4), ("b", 2..6), ("c", 5..7), ("d", 8..9), ("e", 1..9)] {
            let (ranges, log, rt2) = (ranges.clone(), log.clone(), rt.clone());
            rt.spawn_detached(async move {
                let _held = ranges.hold(range).await;
                log.borrow_mut().push(name);
                rt2.sleep(10).await;
            });
        }
        rt.block_on(rt.sleep(1000));
        assert_eq!(*log.borrow(), ["a", "d", "b", "c", "e"]);
        assert!(ranges.is_empty() && ranges.0.borrow().last.is_empty());
    }

    /// If many ranges wait for one block, each wait is woken once, and not whenever one of the
    /// ranges ends.
    #[test]
    fn who_waits_is_woken_once() {
        const TASKS: u64 = 5000;
        let rt = Rt::new(Config::simulated(1));
        let (ranges, polls) = (Ranges::default(), Rc::new(Cell::new(0u64)));
        for task in 0..TASKS {
            let (ranges, polls, rt2) = (ranges.clone(), polls.clone(), rt.clone());
            rt.spawn_detached(async move {
                // A few more blocks are locked, so that parts have several owners.
                let mut hold = std::pin::pin!(ranges.hold(task % 3..5));
                let held = std::future::poll_fn(|context| {
                    polls.set(polls.get() + 1);
                    hold.as_mut().poll(context)
                });
                let _held = held.await;
                rt2.yield_now().await;
            });
        }
        rt.block_on(rt.sleep(1000));
        assert!(ranges.is_empty());
        assert!(polls.get() <= 2 * TASKS, "{} polls of {TASKS} tasks", polls.get());
    }

    #[test]
    fn parts_of_those_that_have_gone_are_forgotten() {
        let rt = Rt::new(Config::simulated(1));
        let ranges = Ranges::default();
        rt.block_on(async move {
            for round in 0..10_000u64 {
                // Small ranges after a large one split it into many parts.
                let large = ranges.hold(0..1 << 40).await;
                let small = ranges.hold(round * 7 % 1000 * 10..round * 7 % 1000 * 10 + 3);
                drop(large);
                drop(small.await);
                assert!(ranges.0.borrow().last.len() <= STALE + 10);
            }
        });
    }

    /// Held ranges never overlap, and of two overlapping requests the earlier one is served first.
    #[test]
    fn overlapping_entries_go_in_order() {
        for seed in 0..200 {
            let rt = Rt::new(Config::shuffled(seed));
            let (ranges, log) = (Ranges::default(), Rc::new(RefCell::new(Vec::new())));
            let mut rng = Rng::new(seed);
            let asked: Vec<Range<u64>> = (0..40)
                .map(|_| {
                    let (long, start) = (rng.below(8) == 0, rng.below(60));
                    start..start + 1 + if long { 40 } else { rng.below(8) }
                })
                .collect();
            let (all, rt2) = (asked.clone(), rt.clone());
            let (told, ranges) = (log.clone(), ranges.clone());
            let mut waits = Rng::new(rng.next());
            rt.block_on(async move {
                let mut tasks = Vec::new();
                for (number, range) in all.into_iter().enumerate() {
                    let (ranges, told, rt) = (ranges.clone(), told.clone(), rt2.clone());
                    let (first, gives_up, work) =
                        (waits.below(30), waits.below(8) == 0, waits.below(40));
                    rt2.sleep(first).await;
                    tasks.push(rt2.spawn(async move {
                        told.borrow_mut().push((number, "came"));
                        let hold = ranges.hold(range);
                        let held = match gives_up {
                            true => within(&rt, 5, hold).await,
                            false => Some(hold.await),
                        };
                        if let Some(held) = held {
                            told.borrow_mut().push((number, "has"));
                            rt.sleep(work).await;
                            told.borrow_mut().push((number, "gave"));
                            drop(held);
                        }
                    }));
                }
                for task in tasks {
                    task.await;
                }
                assert!(ranges.is_empty());
            });
            let log = log.borrow();
            let at = |number, what| log.iter().position(|entry| *entry == (number, what));
            for (a, b) in (0..40).flat_map(|a| (0..a).map(move |b| (b, a))) {
                let (Some(has_a), Some(has_b)) = (at(a, "has"), at(b, "has")) else { continue };
                if asked[a].start < asked[b].end && asked[b].start < asked[a].end {
                    let (first, second) = if has_a < has_b { (a, b) } else { (b, a) };
                    assert!(at(first, "gave") < at(second, "has"), "seed {seed}: {a} and {b}");
                    assert!(at(first, "came") < at(second, "came"), "seed {seed}: {a} and {b}");
                }
            }
        }
    }
}
