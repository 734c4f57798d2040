//! The segment table: what is known of each segment.

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
    /// Ended early: no footers.
    Truncated,
    /// Being emptied by a reset.
    Releasing,
}

/// How many segments are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// Empty.
    pub free: u32,
    /// Written to now.
    pub open: u32,
    /// Written to their ends.
    pub sealed: u32,
    /// Ended early.
    pub truncated: u32,
    /// Being reset.
    pub releasing: u32,
}

/// A slot of the segment table.
///
/// Invariants
/// - A free slot has no zones and no valid blocks.
/// - An open segment belongs to one stream, or is being ended; its zones are active.
/// - `valid` is the number of mapped blocks that lead into the segment, `leaves` the number of its
///   mapping blocks that the root or the newest durable checkpoint names.
/// - No other slot has one of its zones.
#[derive(Clone)]
pub(crate) struct Segment {
    pub(crate) state: SegmentState,
    pub(crate) sequence: u64,
    pub(crate) chunk: u32,
    pub(crate) group: u32,
    pub(crate) zones: Vec<Option<ZoneId>>,
    /// Valid blocks of the volume in the segment.
    pub(crate) valid: u32,
    /// Mapping blocks in the segment that the map's root names, or the root of the last checkpoint.
    pub(crate) leaves: u32,
    /// For a truncated segment: rows that were written.
    pub(crate) rows: u32,
    /// The checkpoint up to which the segment stays because of its trim records; 0: none.
    pub(crate) needed: u64,
    /// Number of blocks in the segment that stripes lacking a chunk have replaced: the segment
    /// stays until these stripes are repaired.
    pub(crate) fallback: u32,
    /// The change of space ([`Space::changes`](crate::space::state::Space)) since which cleaning
    /// has met a block in the segment that cannot be read; 0: none.
    pub(crate) stuck: u64,
    /// Members whose zones a rebuild has written, as bits.
    pub(crate) rebuilt: u32,
    /// The segment is being rebuilt or cleaned: until that ends, neither is begun and the segment
    /// is not released.
    pub(crate) pinned: bool,
    /// The places of chunks. `None` with Zone Write: chunks are then at their own places.
    pub(crate) table: Option<Rc<RefCell<StripeTable>>>,
    /// For an open segment: block metadata that is not on the drives yet.
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

/// The segments of a volume, and the stripes on their way to them.
///
/// Invariants
/// - `in_flight` is the sum of the stripes in flight of the segments that streams write to and of
///   the segments in `ending`.
/// - A sequence number belongs to at most one segment, and is below `next`.
pub(crate) struct Table {
    slots: RefCell<Vec<Segment>>,
    /// Sequence number of the next segment.
    next: Cell<u64>,
    /// Sequence number of the next block.
    sequence: Cell<u64>,
    in_flight: Cell<u32>,
    /// The last stripe in flight ended, or the last segment that was being ended.
    idle: Notify,
    /// Segments that no stream writes to any more and that have not ended yet.
    ending: RefCell<Vec<Rc<Open>>>,
    /// Above 0 no stripe may be dispatched, since a checkpoint takes its snapshot.
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

    /// The segments by slot, to be changed.
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

    /// Segment `sequence` was found: new ones have higher numbers.
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

    /// Block `sequence` was found: new ones have higher numbers.
    pub(crate) fn found_block(&self, sequence: u64) {
        self.sequence.set(self.sequence.get().max(sequence + 1));
    }

    /// Stripes in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// A stripe is in flight from now on.
    pub(crate) fn begin_flight(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// A stripe is no longer in flight.
    pub(crate) fn end_flight(&self, broken: &Broken) {
        self.in_flight.set(broken.less("stripes in flight", self.in_flight.get(), 1));
    }

    /// Segments that no stream writes to any more and that have not ended yet.
    pub(crate) fn ending(&self) -> Ref<'_, Vec<Rc<Open>>> {
        self.ending.borrow()
    }

    /// No stream writes to a segment any more.
    pub(crate) fn begin_ending(&self, open: &Rc<Open>) {
        self.ending.borrow_mut().push(open.clone());
    }

    /// A segment has ended.
    pub(crate) fn end_ending(&self, open: &Rc<Open>) {
        self.ending.borrow_mut().retain(|other| !Rc::ptr_eq(other, open));
        self.idle.notify_all();
    }

    /// Waits until the last stripe in flight or the last segment that is being ended may have
    /// ended.
    pub(crate) async fn idle(&self) {
        self.idle.wait().await;
    }

    /// Wakes tasks in [`Table::idle`].
    pub(crate) fn wake_idle(&self) {
        self.idle.notify_all();
    }

    /// Whether stripes are held back.
    pub(crate) fn is_quiesced(&self) -> bool {
        self.quiesced.get() > 0
    }

    /// Holds stripes back until [`Table::resume`] was called as often.
    pub(crate) fn quiesce(&self) {
        self.quiesced.set(self.quiesced.get() + 1);
    }

    /// Ends one [`Table::quiesce`].
    pub(crate) fn resume(&self, broken: &Broken) {
        let account = "checkpoints that hold stripes back";
        self.quiesced.set(broken.less(account, self.quiesced.get(), 1));
    }
}
