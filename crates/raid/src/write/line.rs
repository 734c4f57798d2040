//! The line of stripes in front of an open segment.

use crate::write::item::{Stripe, Use};
use crate::write::open::Open;
use furrow_rt::Notify;
use furrow_zone::Error;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Writes stripes into one open segment at a time.
///
/// Invariants
/// - A stripe in line has no place in any segment.
/// - Once `Volume::dispatch_ready` returned, stripes are in line only where the open segment
///   waits for stripes in flight, the next segment is being begun, or stripes are quiesced.
pub(crate) struct SegmentWriter {
    pub(crate) purpose: Use,
    /// Blocks of a chunk.
    pub(crate) chunk: u32,
    /// Stripes of a group; 1 means Zone Write.
    pub(crate) group: u32,
    /// Stripes in line.
    pub(super) ready: RefCell<VecDeque<Stripe>>,
    pub(crate) open: RefCell<Option<Rc<Open>>>,
    pub(super) opening: Cell<bool>,
    /// Signals that the writer waits for no segment any more, or has no stripe in line.
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

    /// Stripes in line.
    pub(crate) fn line(&self) -> usize {
        self.ready.borrow().len()
    }

    /// Whether any stripe in line is internal.
    pub(crate) fn has_line_of_internal(&self) -> bool {
        self.ready.borrow().iter().any(Stripe::is_internal)
    }

    /// Whether the writer's next segment is being begun.
    pub(crate) fn is_opening(&self) -> bool {
        self.opening.get()
    }

    /// Whether the writer's segment takes more stripes.
    pub(crate) fn takes_more(&self) -> bool {
        let open = self.open.borrow();
        open.as_ref().is_some_and(|open| {
            // The last stripe may be a metadata stripe.
            let stripes = open.meta.data_stripes(open.groups.stripes);
            !open.broken.get() && open.next.get() < stripes
        })
    }

    /// Whether no stripe is in line or in flight.
    pub(crate) fn is_idle(&self) -> bool {
        let open = self.open.borrow();
        self.ready.borrow().is_empty() && open.as_ref().is_none_or(|open| open.in_flight.get() == 0)
    }

    /// While stripes in line wait for a segment, waits until they do not any more. Returns whether
    /// they did.
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

    /// Nothing can be written any more: the calls of stripes in line are told of the error.
    pub(crate) fn abandon(&self, error: Option<&Error>) {
        self.take_line().iter().for_each(|stripe| stripe.over(error));
    }
}
