//! A segment while it is open.

use crate::format::FooterEntry;
use crate::meta::open::OpenMeta;
use crate::table::Groups;
use furrow_rt::Notify;
use std::cell::{Cell, RefCell};

/// A segment that a segment writer writes to.
///
/// Invariants
/// - Its slot is open, with the same sequence number, chunk and group.
/// - `next` is at most the number of stripes.
/// - The record of a trim that no durable checkpoint's snapshot covers keeps its segment
///   (`Segment::needed`), once no stripe is in flight and unless the volume has failed.
pub(crate) struct Open {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    pub(crate) groups: Groups,
    /// Whether chunks are written by Zone Append.
    pub(crate) append: bool,
    /// The next stripe.
    pub(crate) next: Cell<u32>,
    pub(crate) in_flight: Cell<u32>,
    pub(crate) idle: Notify,
    /// No more stripes are added, and the segment ends without footers.
    pub(crate) broken: Cell<bool>,
    /// The entries that the footers will hold, of each drive by row.
    pub(crate) footers: RefCell<Vec<Vec<FooterEntry>>>,
    /// Block metadata of the segment that is not on the drives yet.
    pub(crate) meta: OpenMeta,
}
