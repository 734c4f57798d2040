//! A recovery that is not finished: what it found, how far it is, and what it met.

use crate::space::plan::Recovery;
use furrow_zone::ZoneId;
use std::collections::BTreeMap;

/// What a recovery found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Zones that were closed but active.
    pub closed: u64,
    /// Zones that could only be read.
    pub read_only: u64,
    /// Zones that were offline, their content lost.
    pub offline: u64,
    /// Footers of which only a part had been written.
    pub torn_footers: u64,
    /// Blocks of stripes that counted and lacked a chunk.
    pub torn_blocks: u64,
    /// Blocks of stripes that have all of their chunks, some of them damaged.
    pub damaged_blocks: u64,
    /// Zones of unfinished rebuilds.
    pub unbuilt: u64,
    /// Zones that members had at the checkpoint's snapshot, and have no longer.
    pub lacking: u64,
    /// Open segments that stayed open though a member that is being rebuilt has no zone in them.
    pub narrow: u64,
    /// Stripes in doubt: they may have been acknowledged, too few of their chunks can be read, and
    /// the user accepted their loss.
    pub in_doubt: u64,
    /// Segments, and zones of no segment, that were reset before the recovery's checkpoint, to make
    /// space for its writes.
    pub early: u64,
}

/// How far a recovery has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The map is being changed: which segments hold valid blocks is not known.
    Applying,
    /// Stripes that lack a chunk are being rewritten.
    Repairing,
    /// These stripes are rewritten, and a checkpoint is next.
    Repaired,
}

/// What recovery found, and has to do before anything is reset.
///
/// Invariant: until the stage is `Repaired`, a slot is in `older` and `trimmed` as often as its
/// segment's `fallback` says; after that no older block is kept.
pub(crate) struct UnfinishedRecovery {
    /// Blocks of stripes that count but lack a chunk.
    pub(crate) torn: Vec<u32>,
    /// Blocks of stripes that have all of their chunks, some of them damaged.
    pub(crate) damaged: Vec<u32>,
    /// Zones that hold something and belong to nothing.
    pub(crate) strays: Vec<(u32, ZoneId)>,
    /// Slots of older blocks, by the number of the block that replaced them and whose stripe lacks
    /// a chunk.
    pub(crate) older: BTreeMap<u32, Vec<u32>>,
    /// Slots of blocks that were discarded by trims whose only record is in a stripe that lacks a
    /// chunk.
    pub(crate) trimmed: Vec<u32>,
    pub(crate) stage: Stage,
    /// The remaining steps lack space: empty segments may be reset for them, as at any other time.
    pub(crate) starved: bool,
}

impl UnfinishedRecovery {
    /// The stage, as far as space is concerned.
    pub(crate) fn stage(&self) -> Recovery {
        match self.stage {
            _ if self.starved => Recovery::Starved,
            Stage::Applying => Recovery::Applying,
            Stage::Repairing | Stage::Repaired => Recovery::Unfinished,
        }
    }

    /// At the start.
    pub(crate) fn new(
        (torn, damaged): (Vec<u32>, Vec<u32>),
        strays: Vec<(u32, ZoneId)>,
    ) -> UnfinishedRecovery {
        let (older, trimmed) = Default::default();
        let (stage, starved) = (Stage::Applying, false);
        UnfinishedRecovery { torn, damaged, strays, older, trimmed, stage, starved }
    }
}
