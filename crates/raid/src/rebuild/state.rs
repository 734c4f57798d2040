//! The state of a rebuild: how far it is.

use furrow_array::event::Event;
use furrow_rt::Nanos;
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// The state of a volume's rebuild.
///
/// Invariant: `done` is at most `total`; a zone is filled only while the rebuild is running.
#[derive(Default)]
pub(crate) struct State {
    pub(super) running: Cell<bool>,
    /// Whether the rebuild is filling a zone. If not, it waits for a segment to end or to be
    /// cleaned, or for its checkpoint to be written.
    pub(crate) filling: Cell<bool>,
    pub(super) began: Cell<Nanos>,
    pub(crate) total: Cell<u32>,
    pub(crate) done: Cell<u32>,
    /// Number of segments that were rebuilt when this run of the rebuild began.
    pub(super) before: Cell<u32>,
    /// Rows that could not be restored.
    pub(super) short: RefCell<ShortRows>,
    /// The event that reported the end of the last rebuild.
    pub(super) ended: RefCell<Option<Event>>,
    pub(super) pause: Cell<Option<u64>>,
}

impl State {
    /// Whether the rebuild is running.
    pub(crate) fn is_running(&self) -> bool {
        self.running.get()
    }
}

/// Rows of segments: the slot and sequence number of a segment, with a range of rows.
#[derive(Default)]
pub(crate) struct ShortRows(pub(super) Vec<((u32, u64), Range<u32>)>);

impl ShortRows {
    /// Adds a row.
    pub(super) fn add(&mut self, segment: (u32, u64), row: u32) {
        match self.0.last_mut() {
            Some((last, rows)) if *last == segment && rows.end == row => rows.end += 1,
            _ => self.0.push((segment, row..row + 1)),
        }
    }
}
