//! The line of stripes that wait for the writer of an open segment.

use crate::write::item::{Stripe, Use};
use crate::write::open::Open;
use furrow_rt::Notify;
use furrow_zone::Error;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Writes stripes into one open segment at a time. Stripes wait in its *line*.
///
/// Invariants
/// - A stripe in line has no place in a segment yet.
/// - After `Volume::dispatch_ready`, stripes are in line only while the open segment waits for
///   stripes in flight, while the next segment is being begun, or while stripes are quiesced.
pub(crate) struct SegmentWriter {
    pub(crate) purpose: Use,
    /// Number of blocks in a chunk.
    pub(crate) chunk: u32,
    /// Number of stripes in a group; 1 means Zone Write.
    pub(crate) group: u32,
    /// The stripes in line, oldest first.
    pub(super) ready: RefCell<VecDeque<Stripe>>,
    pub(crate) open: RefCell<Option<Rc<Open>>>,
    pub(super) opening: Cell<bool>,
    /// Signals that the writer no longer waits for a segment, or has no stripe in line.
    pub(super) moved_on: Notify,
}

impl SegmentWriter {
    pub(crate) fn new(purpose: Use, chunk: u32, group: u32) -> SegmentWriter {
        SegmentWriter {
            purpose,
            chunk,
            group,
            ready: RefCell::default(),
            open: RefCell::default(),
            opening: Cell::new(false),
            moved_on: Notify::new(),
        }
    }

    /// Number of stripes in line.
    pub(crate) fn line(&self) -> usize {
        self.ready.borrow().len()
    }

    /// Whether a stripe in line is internal.
    pub(crate) fn has_line_of_internal(&self) -> bool {
        self.ready.borrow().iter().any(Stripe::is_internal)
    }

    /// Whether the writer's next segment is being begun.
    pub(crate) fn is_opening(&self) -> bool {
        self.opening.get()
    }

    /// Whether the writer's open segment takes more stripes of data.
    pub(crate) fn takes_more(&self) -> bool {
        let open = self.open.borrow();
        open.as_ref().is_some_and(|open| {
            // In-band metadata takes the last stripe.
            let stripes = open.meta.data_stripes(open.groups.stripes);
            !open.broken.get() && open.next.get() < stripes
        })
    }

    /// Whether the writer has no stripe in line or in flight.
    pub(crate) fn is_idle(&self) -> bool {
        let open = self.open.borrow();
        self.ready.borrow().is_empty() && open.as_ref().is_none_or(|open| open.in_flight.get() == 0)
    }

    /// Waits while stripes in line wait for a segment. Returns whether they waited when this
    /// was called.
    pub(crate) async fn moves_on(&self) -> bool {
        let waits = || self.opening.get() && self.line() > 0;
        if !waits() {
            return false;
        }
        while waits() {
            self.moved_on.wait().await;
        }
        true
    }

    /// Takes the stripes in line, for another writer.
    pub(crate) fn take_line(&self) -> VecDeque<Stripe> {
        self.moved_on.notify_all();
        self.ready.take()
    }

    /// Puts a stripe at the end of the line, without dispatching it.
    pub(crate) fn line_up(&self, stripe: Stripe) {
        self.ready.borrow_mut().push_back(stripe);
    }

    /// Ends the calls of the stripes in line with `error`, because nothing can be written any more.
    pub(crate) fn abandon(&self, error: Option<&Error>) {
        self.take_line().iter().for_each(|stripe| stripe.over(error));
    }
}
