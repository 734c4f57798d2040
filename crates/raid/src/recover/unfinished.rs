//! An unfinished recovery: its findings, its progress, and its counts.

use crate::space::plan::Recovery;
use furrow_zone::ZoneId;
use std::collections::BTreeMap;

/// Counts of a recovery's findings and actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Number of zones found closed: not open, but still active.
    pub closed: u64,
    /// Number of zones found read-only.
    pub read_only: u64,
    /// Number of zones found offline, their content lost.
    pub offline: u64,
    /// Number of footers that were only partly written.
    pub torn_footers: u64,
    /// Number of blocks in stripes that counted but lacked a chunk.
    pub torn_blocks: u64,
    /// Number of blocks in stripes that had all of their chunks, some of them damaged.
    pub damaged_blocks: u64,
    /// Number of zones of unfinished rebuilds.
    pub unbuilt: u64,
    /// Number of zones that members had at the checkpoint's snapshot, and lost since.
    pub lacking: u64,
    /// Number of open segments that stayed open though a member under rebuild has no zone in them.
    pub narrow: u64,
    /// Number of stripes in doubt: they may have been acknowledged, too few of their chunks can be
    /// read, and the user accepted their loss.
    pub in_doubt: u64,
    /// Number of segments, and of zones of no segment, that were reset before the recovery's
    /// checkpoint to make space for its writes.
    pub early: u64,
}

/// The progress of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The map is being changed; until it is complete, it is unknown which segments hold
    /// valid blocks.
    Applying,
    /// Stripes that lack a chunk are being rewritten.
    Repairing,
    /// The torn stripes are rewritten, and the checkpoint is next.
    Repaired,
}

/// The findings of recovery, and its remaining work before zones may be reset.
///
/// Invariant: until the stage is `Repaired`, a slot is in `older` and `trimmed` together as often
/// as its segment's `fallback` says; from then on, no segment is kept because of these lists.
pub(crate) struct UnfinishedRecovery {
    /// Numbers of the blocks of torn stripes. In each of these stripes, a member in service lacks
    /// its chunk, and the other chunks can reconstruct that chunk. Padding is left out.
    pub(crate) torn: Vec<u32>,
    /// Numbers of the blocks of stripes that have all of their chunks, some of them damaged.
    pub(crate) damaged: Vec<u32>,
    /// Zones that are not empty and belong to no segment.
    pub(crate) strays: Vec<(u32, ZoneId)>,
    /// Slots of older blocks, by the number of the newer block, whose stripe lacks a chunk.
    pub(crate) older: BTreeMap<u32, Vec<u32>>,
    /// Slots of the blocks discarded by those trims whose only record is in a stripe that lacks
    /// a chunk.
    pub(crate) trimmed: Vec<u32>,
    pub(crate) stage: Stage,
    /// Whether the remaining steps lack space: then empty segments are reset for them.
    pub(crate) starved: bool,
}

impl UnfinishedRecovery {
    /// The stage of recovery, in the terms of the plan for space.
    pub(crate) fn stage(&self) -> Recovery {
        match self.stage {
            _ if self.starved => Recovery::Starved,
            Stage::Applying => Recovery::Applying,
            Stage::Repairing | Stage::Repaired => Recovery::Unfinished,
        }
    }

    /// A recovery that is about to change the map.
    pub(crate) fn new(
        (torn, damaged): (Vec<u32>, Vec<u32>),
        strays: Vec<(u32, ZoneId)>,
    ) -> UnfinishedRecovery {
        let (older, trimmed) = Default::default();
        let (stage, starved) = (Stage::Applying, false);
        UnfinishedRecovery { torn, damaged, strays, older, trimmed, stage, starved }
    }
}
