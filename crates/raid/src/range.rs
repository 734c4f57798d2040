//! Ranges of the volume that writes hold while they are under way.
//!
//! Overlapping writes go one after the other, in the order they came; others do not wait.

use furrow_rt::Notify;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// Blocks of a region.
const REGION: u64 = 1024;
/// Lists of ranges that lie within one region.
const LISTS: usize = 64;

/// Ranges that are held: none overlaps another. Most lie within one region, and are looked for
/// among those of regions that share its list.
struct Table {
    near: Vec<Vec<Range<u64>>>,
    /// Those that lie in several regions.
    far: Vec<Range<u64>>,
}

impl Default for Table {
    fn default() -> Table {
        Table { near: vec![Vec::new(); LISTS], far: Vec::new() }
    }
}

impl Table {
    /// The list of a range within one region.
    fn list(range: &Range<u64>) -> Option<usize> {
        let region = range.start / REGION;
        (region == (range.end - 1) / REGION).then_some(region as usize % LISTS)
    }

    /// Adds the range if nothing of it is held.
    fn take(&mut self, range: &Range<u64>) -> bool {
        let held = |list: &Vec<Range<u64>>| list.iter().any(|other| overlap(other, range));
        let list = Table::list(range);
        let taken = match list {
            Some(list) => held(&self.near[list]),
            None => self.near.iter().any(held),
        };
        if taken || held(&self.far) {
            return false;
        }
        list.map_or(&mut self.far, |list| &mut self.near[list]).push(range.clone());
        true
    }

    fn give(&mut self, range: &Range<u64>) {
        let list = match Table::list(range) {
            Some(list) => &mut self.near[list],
            None => &mut self.far,
        };
        if let Some(at) = list.iter().position(|held| held.start == range.start) {
            list.swap_remove(at);
        }
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.far.is_empty() && self.near.iter().all(Vec::is_empty)
    }
}

#[derive(Default)]
struct Inner {
    next: Cell<u64>,
    held: RefCell<Table>,
    /// Waited for, in the order they came.
    waiting: RefCell<Vec<(u64, Range<u64>)>>,
    changed: Notify,
}

/// The locks of a volume. Cloning shares them.
#[derive(Clone, Default)]
pub(crate) struct Ranges(Rc<Inner>);

/// A range held; dropping gives it free.
#[must_use = "the range is held only as long as this lives"]
pub(crate) struct Held {
    ranges: Ranges,
    range: Range<u64>,
}

/// A place among those that wait; dropping gives it up.
struct Place<'a> {
    ranges: &'a Ranges,
    id: u64,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Ranges {
    /// Waits until nothing that came before overlaps `range`, which is not empty, and holds it.
    pub(crate) async fn hold(&self, range: Range<u64>) -> Held {
        let waiting = self.0.waiting.borrow().iter().any(|(_, other)| overlap(other, &range));
        if waiting || !self.take(&range) {
            self.wait(&range).await;
        }
        Held { ranges: self.clone(), range }
    }

    /// Holds the range if nothing of it is held.
    fn take(&self, range: &Range<u64>) -> bool {
        self.0.held.borrow_mut().take(range)
    }

    async fn wait(&self, range: &Range<u64>) {
        let id = self.0.next.get();
        self.0.next.set(id + 1);
        self.0.waiting.borrow_mut().push((id, range.clone()));
        let _place = Place { ranges: self, id };
        loop {
            self.0.changed.wait().await;
            let waiting = self.0.waiting.borrow();
            let mut earlier = waiting.iter().take_while(|(other, _)| *other != id);
            if !earlier.any(|(_, other)| overlap(other, range)) && self.take(range) {
                return;
            }
        }
    }

    fn tell(&self) {
        if !self.0.waiting.borrow().is_empty() {
            self.0.changed.notify_all();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.ranges.0.held.borrow_mut().give(&self.range);
        self.ranges.tell();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.ranges.0.waiting.borrow_mut().retain(|(id, _)| *id != self.id);
        // Who waited behind this one only, because it gave up.
        self.ranges.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::{Config, Rt};

    #[test]
    fn overlapping_ranges_go_in_order_and_others_pass() {
        let rt = Rt::new(Config::simulated(1));
        let (ranges, log) = (Ranges::default(), Rc::new(RefCell::new(Vec::new())));
        for (name, range) in [("a", 0..4), ("b", 2..6), ("c", 5..7), ("d", 8..9)] {
            let (ranges, log, rt2) = (ranges.clone(), log.clone(), rt.clone());
            rt.spawn_detached(async move {
                let _held = ranges.hold(range).await;
                log.borrow_mut().push(name);
                rt2.sleep(10).await;
            });
        }
        rt.block_on(rt.sleep(1000));
        assert_eq!(*log.borrow(), ["a", "d", "b", "c"]);
        assert!(ranges.0.held.borrow().is_empty() && ranges.0.waiting.borrow().is_empty());
    }

    /// Against a model: nobody holds what another does, and of two that overlap the first to come
    /// is the first to go.
    #[test]
    fn whoever_overlaps_goes_in_order() {
        for seed in 0..200 {
            let rt = Rt::new(Config::shuffled(seed));
            let (ranges, log) = (Ranges::default(), Rc::new(RefCell::new(Vec::new())));
            let mut rng = furrow_rt::Rng::new(seed);
            let asked: Vec<Range<u64>> = (0..40)
                .map(|_| {
                    // Some within a region, some across the end of one, some of several.
                    let (long, start) = (rng.below(8) == 0, REGION - 30 + rng.below(60));
                    start..start + 1 + if long { 2 * REGION } else { rng.below(8) }
                })
                .collect();
            let (all, rt2) = (asked.clone(), rt.clone());
            let told = log.clone();
            let mut waits = furrow_rt::Rng::new(rng.next());
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
                            true => furrow_rt::within(&rt, 5, hold).await,
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
                assert!(ranges.0.held.borrow().is_empty() && ranges.0.waiting.borrow().is_empty());
            });
            let log = log.borrow();
            let at = |number, what| log.iter().position(|entry| *entry == (number, what));
            for (a, b) in (0..40).flat_map(|a| (0..a).map(move |b| (b, a))) {
                let (Some(has_a), Some(has_b)) = (at(a, "has"), at(b, "has")) else { continue };
                if overlap(&asked[a], &asked[b]) {
                    let (first, second) = if has_a < has_b { (a, b) } else { (b, a) };
                    assert!(at(first, "gave") < at(second, "has"), "seed {seed}: {a} and {b}");
                    assert!(at(first, "came") < at(second, "came"), "seed {seed}: {a} and {b}");
                }
            }
        }
    }
}
