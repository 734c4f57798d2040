//! The segment table: the state of each segment, and the counts that decide when it is cleaned
//! and released.

use crate::meta::open::OpenMeta;
use crate::table::StripeTable;
use crate::write::open::Open;
use furrow_log::audit::Broken;
use furrow_rt::Notify;
use furrow_zone::ZoneId;
use std::cell::{Cell, Ref, RefCell, RefMut};
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    Free,
    Open,
    Sealed,
    /// Ended early, without footers.
    Truncated,
    /// Its zones are being reset.
    Releasing,
}

/// Number of segments in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// Number of free slots.
    pub free: u32,
    /// Number of segments that are written to now.
    pub open: u32,
    /// Number of segments that are written to their ends, with footers.
    pub sealed: u32,
    /// Number of segments that ended early.
    pub truncated: u32,
    /// Number of segments whose zones are being reset.
    pub releasing: u32,
}

/// A slot of the segment table, with its segment unless it is free.
///
/// Invariants
/// - A free slot has no zones and no valid blocks.
/// - An open segment belongs to one stream, or is being ended; its zones are active.
/// - `valid` is the number of map entries that lead into the segment, `leaves` the number of its
///   mapping blocks that the root or the newest durable checkpoint names.
/// - Each of its zones belongs to no other slot.
#[derive(Clone)]
pub(crate) struct Segment {
    pub(crate) state: SegmentState,
    pub(crate) sequence: u64,
    pub(crate) chunk: u32,
    pub(crate) group: u32,
    pub(crate) zones: Vec<Option<ZoneId>>,
    /// Number of valid blocks of the volume in the segment.
    pub(crate) valid: u32,
    /// Number of mapping blocks in the segment that the map's root or the last checkpoint's
    /// root names.
    pub(crate) leaves: u32,
    /// Number of rows that were written, in a truncated segment.
    pub(crate) rows: u32,
    /// Number of the first checkpoint that makes the segment's trim records unnecessary, so that
    /// the segment may be released; 0 without trim records.
    pub(crate) needed: u64,
    /// Number of blocks in the segment that recovery may fall back on, because the stripes that
    /// replaced them lack a chunk. The segment stays until these stripes are rewritten.
    pub(crate) fallback: u32,
    /// Value of [`Space::changes`](crate::space::state::Space) when cleaning last found an
    /// unreadable block in the segment; 0: it found none.
    pub(crate) stuck: u64,
    /// Members whose zone of the segment was written by a rebuild, as bits.
    pub(crate) rebuilt: u32,
    /// Whether the segment is being rebuilt or cleaned. Until that ends, no other rebuild or
    /// cleaning of the segment begins, and it is not released.
    pub(crate) pinned: bool,
    /// The places of chunks. `None` with Zone Write, where each chunk is at its own place.
    pub(crate) table: Option<Rc<RefCell<StripeTable>>>,
    /// Block metadata of an open segment that is not on the drives yet.
    pub(crate) meta: OpenMeta,
}

impl Segment {
    pub(crate) fn free(drives: u32) -> Segment {
        Segment {
            state: SegmentState::Free,
            sequence: 0,
            chunk: 1,
            group: 1,
            zones: vec![None; drives as usize],
            valid: 0,
            leaves: 0,
            rows: 0,
            needed: 0,
            fallback: 0,
            stuck: 0,
            rebuilt: 0,
            pinned: false,
            table: None,
            meta: OpenMeta::default(),
        }
    }

    /// Members without a zone in the segment, as bits.
    pub(crate) fn missing(&self) -> u32 {
        let gone = self.zones.iter().enumerate().filter(|(_, zone)| zone.is_none());
        gone.fold(0, |set, (drive, _)| set | 1 << drive)
    }
}

/// The segments of a volume, and the count of stripes in flight.
///
/// Invariants
/// - `in_flight` is the number of stripes in flight to the segments that streams write to, and to
///   those in `ending`.
/// - A sequence number belongs to at most one segment, and is below `next`.
pub(crate) struct Table {
    slots: RefCell<Vec<Segment>>,
    /// Sequence number of the next segment.
    next: Cell<u64>,
    /// Sequence number of the next block.
    sequence: Cell<u64>,
    in_flight: Cell<u32>,
    /// Signals that no stripe is in flight any more, or that a segment in `ending` has ended.
    idle: Notify,
    /// Segments that no stream writes to any more and that have not ended yet.
    ending: RefCell<Vec<Rc<Open>>>,
    /// Number of tasks that hold stripes back. While it is above 0, no stripe is dispatched.
    quiesced: Cell<u32>,
}

impl Table {
    /// A table of `slots` free segments of `drives` zones each; `next` and `sequence` are the
    /// sequence numbers of the next segment and of the next block.
    pub(crate) fn new((slots, drives): (u32, u32), next: u64, sequence: u64) -> Table {
        Table {
            slots: RefCell::new(vec![Segment::free(drives); slots as usize]),
            next: Cell::new(next),
            sequence: Cell::new(sequence),
            in_flight: Cell::new(0),
            idle: Notify::new(),
            ending: RefCell::default(),
            quiesced: Cell::new(0),
        }
    }

    /// The segments by slot.
    pub(crate) fn borrow(&self) -> Ref<'_, Vec<Segment>> {
        self.slots.borrow()
    }

    /// The segments by slot, for changes.
    pub(crate) fn borrow_mut(&self) -> RefMut<'_, Vec<Segment>> {
        self.slots.borrow_mut()
    }

    /// Sequence number of the next segment.
    pub(crate) fn next(&self) -> u64 {
        self.next.get()
    }

    /// Takes the sequence number of a new segment.
    pub(crate) fn take_next(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// Notes a segment that was found on the drives: new segments get higher numbers.
    pub(crate) fn found_segment(&self, sequence: u64) {
        self.next.set(self.next.get().max(sequence + 1));
    }

    /// Sequence number of the next block.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.get()
    }

    /// Takes the sequence number of a new block.
    pub(crate) fn take_sequence(&self) -> u64 {
        self.sequence.replace(self.sequence.get() + 1)
    }

    /// Notes a block that was found on the drives: new blocks get higher numbers.
    pub(crate) fn found_block(&self, sequence: u64) {
        self.sequence.set(self.sequence.get().max(sequence + 1));
    }

    /// Number of stripes in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// Counts a stripe as in flight.
    pub(crate) fn begin_flight(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// Notes that a stripe is no longer in flight.
    pub(crate) fn end_flight(&self, broken: &Broken) {
        self.in_flight.set(broken.less("stripes in flight", self.in_flight.get(), 1));
    }

    /// Segments that no stream writes to any more and that have not ended yet.
    pub(crate) fn ending(&self) -> Ref<'_, Vec<Rc<Open>>> {
        self.ending.borrow()
    }

    /// Notes that no stream writes to a segment any more.
    pub(crate) fn begin_ending(&self, open: &Rc<Open>) {
        self.ending.borrow_mut().push(open.clone());
    }

    /// Notes that a segment has ended.
    pub(crate) fn end_ending(&self, open: &Rc<Open>) {
        self.ending.borrow_mut().retain(|other| !Rc::ptr_eq(other, open));
        self.idle.notify_all();
    }

    /// Waits for the next signal that no stripe is in flight any more, or that a segment in
    /// `ending` has ended. The caller checks which of the two happened.
    pub(crate) async fn idle(&self) {
        self.idle.wait().await;
    }

    /// Wakes the tasks in [`Table::idle`].
    pub(crate) fn wake_idle(&self) {
        self.idle.notify_all();
    }

    /// Whether new stripes are held back.
    pub(crate) fn is_quiesced(&self) -> bool {
        self.quiesced.get() > 0
    }

    /// Holds new stripes back until [`Table::resume`] has been called once for each call of
    /// this function.
    pub(crate) fn quiesce(&self) {
        self.quiesced.set(self.quiesced.get() + 1);
    }

    /// Undoes one [`Table::quiesce`].
    pub(crate) fn resume(&self, broken: &Broken) {
        let account = "checkpoints that hold stripes back";
        self.quiesced.set(broken.less(account, self.quiesced.get(), 1));
    }
}
