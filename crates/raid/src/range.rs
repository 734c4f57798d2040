//! Ranges of the volume that writes hold while they are under way.
//!
//! Overlapping writes go one after the other, in the order they came; others do not wait.

use furrow_rt::Notify;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

#[derive(Default)]
struct Inner {
    next: Cell<u64>,
    /// Held and waited for, in the order they came.
    entries: RefCell<Vec<(u64, Range<u64>)>>,
    changed: Notify,
}

/// The locks of a volume. Cloning shares them.
#[derive(Clone, Default)]
pub(crate) struct Ranges(Rc<Inner>);

/// A range held; dropping gives it free.
#[must_use = "the range is held only as long as this lives"]
pub(crate) struct Held {
    ranges: Ranges,
    id: u64,
}

impl Ranges {
    /// Waits until nothing that came before overlaps `range`, and holds it.
    pub(crate) async fn hold(&self, range: Range<u64>) -> Held {
        let id = self.0.next.get();
        self.0.next.set(id + 1);
        self.0.entries.borrow_mut().push((id, range.clone()));
        let held = Held { ranges: self.clone(), id };
        loop {
            let changed = {
                let entries = self.0.entries.borrow();
                let earlier = entries.iter().take_while(|(other, _)| *other != id);
                let overlaps =
                    |other: &Range<u64>| other.start < range.end && range.start < other.end;
                if !earlier.into_iter().any(|(_, other)| overlaps(other)) {
                    return held;
                }
                self.0.changed.wait()
            };
            changed.await;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.ranges.0.entries.borrow_mut().retain(|(id, _)| *id != self.id);
        self.ranges.0.changed.notify_all();
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
        assert!(ranges.0.entries.borrow().is_empty());
    }
}
