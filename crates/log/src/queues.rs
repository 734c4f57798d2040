//! The hardware queues through which zones are written.

use furrow_zone::QueueId;
use std::cell::Cell;
use std::rc::Rc;

/// Number of zones that are written through each hardware queue.
pub(crate) struct Queues(Vec<Cell<u32>>);

impl Queues {
    pub(crate) fn new(queues: u16) -> Rc<Queues> {
        Rc::new(Queues((0..queues.max(1)).map(|_| Cell::new(0)).collect()))
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Returns the queue with the fewest zones.
    pub(crate) fn least(&self) -> QueueId {
        let queues = self.0.iter().enumerate();
        queues.min_by_key(|(_, zones)| zones.get()).map_or(QueueId(0), |(i, _)| QueueId(i as u16))
    }
}

/// Counts a zone for its queue as long as this value lives.
pub(crate) struct Bound(Rc<Queues>, QueueId);

impl Bound {
    pub(crate) fn new(queues: &Rc<Queues>, queue: QueueId) -> Bound {
        let zones = &queues.0[usize::from(queue.0)];
        zones.set(zones.get() + 1);
        Bound(queues.clone(), queue)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let zones = &self.0.0[usize::from(self.1.0)];
        zones.set(zones.get() - 1);
    }
}
