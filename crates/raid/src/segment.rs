//! The segment table: what is known of each segment.

use crate::meta::open::OpenMeta;
use crate::table::StripeTable;
use furrow_zone::ZoneId;
use std::cell::RefCell;
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
