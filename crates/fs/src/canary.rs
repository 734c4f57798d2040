//! Defects built in on purpose, to show that the crash sweep sees what it looks for.
//!
//! Only the feature `canary` lets a mount have one. Code asks [`MountOptions::has`], which is false
//! without it, so that no other place needs to know of the feature.

use crate::types::MountOptions;

/// A defect built in on purpose: the crash sweep must catch each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// fsync does not flush the drive's cache.
    SkippedFlush,
    /// fsync answers before its writes have.
    EarlyAck,
    /// Blocks read are not checked against the CRC in their pointer.
    DroppedCrc,
    /// Recovery ignores the last delta-log extent.
    IgnoredExtent,
    /// Zones are reset before the checkpoint that shows them empty is durable.
    ReuseBeforeRelease,
    /// Cleaning gives what it moves the checksum of what it read.
    RecomputedCrc,
    /// A checkpoint releases what became empty after its cut, though sync records refer to it.
    ReleaseLiveRecord,
    /// A merge does not write its last unit, and the next checkpoint does without its deltas.
    SkippedUnit,
    /// A sync record does not say which write pointers it depends on.
    NoWritePointers,
    /// Recovery passes over a sync record that does not count, to those behind it.
    SkippedRecord,
    /// What a zone that failed has lost is not written elsewhere.
    LostBlocks,
    /// A sync record tells of a file that took another's place, and not of its content.
    BareRename,
}

impl MountOptions {
    /// Whether this mount has the defect.
    pub(crate) fn has(&self, canary: Canary) -> bool {
        #[cfg(feature = "canary")]
        return self.canary == Some(canary);
        #[cfg(not(feature = "canary"))]
        {
            let _ = canary;
            false
        }
    }

    /// The defect that the writer is to have for this mount's.
    pub(crate) fn of_writer(&self) -> Option<furrow_log::writer::Canary> {
        use furrow_log::writer::Canary as Of;
        let pairs = [
            (Canary::SkippedFlush, Of::SkipFlush),
            (Canary::ReuseBeforeRelease, Of::EarlyRelease),
            (Canary::IgnoredExtent, Of::IgnoreExtent),
        ];
        pairs.into_iter().find(|(own, _)| self.has(*own)).map(|(_, of)| of)
    }
}
