//! Turns of writes whose edges lie within a block.
//!
//! Such a write is carried out as read, modify, write of whole blocks, and must not lose what
//! another write puts into the same block meanwhile. So it is *alone* in its blocks: it waits for
//! every write there that came before it, and those that come after wait for it. Whole-block
//! writes do not wait for each other.
//!
//! Invariant: whoever waits, waits only for earlier ones, so nobody waits for ever.

use furrow_rt::Notify;
use std::cell::{Cell, RefCell};
use std::ops::Range;

struct Entry {
    ticket: u64,
    blocks: Range<u64>,
    alone: bool,
}

/// Writes under way of one export.
#[derive(Default)]
pub(crate) struct Overlaps {
    next: Cell<u64>,
    entries: RefCell<Vec<Entry>>,
    /// Entries that are alone: while there are none, nobody looks at the rest.
    alone: Cell<usize>,
    left: Notify,
}

/// A write's turn; dropped when the write is over.
pub(crate) struct Turn<'a> {
    overlaps: &'a Overlaps,
    ticket: u64,
}

impl Overlaps {
    /// Waits for the turn of a write to `blocks`; `alone` if it must not overlap any other.
    pub(crate) async fn enter(&self, blocks: Range<u64>, alone: bool) -> Turn<'_> {
        let ticket = self.next.get();
        self.next.set(ticket + 1);
        self.entries.borrow_mut().push(Entry { ticket, blocks: blocks.clone(), alone });
        self.alone.set(self.alone.get() + usize::from(alone));
        let turn = Turn { overlaps: self, ticket };
        while self.alone.get() > 0 && self.must_wait(ticket, &blocks, alone) {
            self.left.wait().await;
        }
        turn
    }

    fn must_wait(&self, ticket: u64, blocks: &Range<u64>, alone: bool) -> bool {
        self.entries.borrow().iter().any(|other| {
            other.ticket < ticket
                && (alone || other.alone)
                && other.blocks.start < blocks.end
                && blocks.start < other.blocks.end
        })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut entries = self.overlaps.entries.borrow_mut();
        // The oldest are in front and usually end first.
        let place = entries.iter().position(|entry| entry.ticket == self.ticket);
        let entry = entries.swap_remove(place.expect("invariant: a turn is listed until it ends"));
        drop(entries);
        if entry.alone {
            self.overlaps.alone.set(self.overlaps.alone.get() - 1);
        }
        self.overlaps.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use furrow_rt::{Config, Rt};
    use std::rc::Rc;

    fn enter(
        rt: &Rt,
        overlaps: &Rc<Overlaps>,
        name: char,
        blocks: Range<u64>,
        alone: bool,
        log: &Rc<RefCell<String>>,
    ) {
        let (rt2, overlaps, log) = (rt.clone(), overlaps.clone(), log.clone());
        rt.spawn_detached(async move {
            let turn = overlaps.enter(blocks, alone).await;
            log.borrow_mut().push(name);
            rt2.sleep(10).await;
            log.borrow_mut().push(name.to_ascii_uppercase());
            drop(turn);
        });
        rt.run_ready();
    }

    #[test]
    fn one_that_is_alone_waits_for_those_before_and_holds_up_those_after() {
        let rt = Rt::new(Config::simulated(1));
        let (overlaps, log) = (Rc::new(Overlaps::default()), Rc::default());
        enter(&rt, &overlaps, 'a', 0..4, false, &log);
        enter(&rt, &overlaps, 'b', 2..6, false, &log);
        assert_eq!(*log.borrow(), "ab", "whole blocks do not wait");
        enter(&rt, &overlaps, 'c', 3..4, true, &log);
        enter(&rt, &overlaps, 'd', 3..9, false, &log);
        enter(&rt, &overlaps, 'e', 9..10, true, &log);
        assert_eq!(*log.borrow(), "abe");
        rt.block_on(rt.sleep(100));
        assert_eq!(*log.borrow(), "abeABEcCdD");
        assert_eq!((overlaps.alone.get(), overlaps.entries.borrow().len()), (0, 0));
    }
}
