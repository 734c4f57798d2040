//! A segment while it is open.

use crate::format::FooterEntry;
use crate::meta::open::OpenMeta;
use crate::table::Groups;
use furrow_rt::Notify;
use std::cell::{Cell, RefCell};

/// A segment to which a segment writer appends stripes.
///
/// Invariants
/// - Its slot is open, with the same sequence number, chunk and group.
/// - `next` is at most the number of stripes.
/// - A segment with a trim record stays (`Segment::needed`) until a durable checkpoint's snapshot
///   covers the trim. This holds while no stripe is in flight and the volume has not failed.
pub(crate) struct Open {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    pub(crate) groups: Groups,
    /// Whether chunks are written by Zone Append.
    pub(crate) append: bool,
    /// Number of the stripe to be written next.
    pub(crate) next: Cell<u32>,
    pub(crate) in_flight: Cell<u32>,
    pub(crate) idle: Notify,
    /// Whether the segment gets no more stripes and ends without footers.
    pub(crate) broken: Cell<bool>,
    /// The entries that the footers will hold: by drive, then by row.
    pub(crate) footers: RefCell<Vec<Vec<FooterEntry>>>,
    /// Block metadata of the segment that is not on the drives yet.
    pub(crate) meta: OpenMeta,
}
