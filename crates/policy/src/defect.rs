//! Defects built in on purpose, one at a time: crash sweeps and simulations must catch each of
//! them.

/// A defect of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsDefect {
    /// fsync does not flush the drive's cache.
    SkippedFlush,
    /// fsync returns before its writes are answered.
    EarlyAck,
    /// Blocks read are not checked against the CRC in their pointer.
    DroppedCrc,
    /// Recovery ignores the last delta-log extent.
    IgnoredExtent,
    /// Zones are reset before the checkpoint that shows them empty is durable.
    ReuseBeforeRelease,
    /// Cleaning recomputes a moved block's checksum from the bytes that it read.
    RecomputedCrc,
    /// A checkpoint releases superzones that became empty after its snapshot, although sync records
    /// refer to them.
    ReleaseLiveRecord,
    /// A merge does not write its last table page, and the next checkpoint drops the page's deltas.
    SkippedUnit,
    /// A sync record does not state which write pointers it depends on.
    NoWritePointers,
    /// Recovery skips a sync record that does not count, and continues with the records after it.
    SkippedRecord,
    /// Blocks lost in a failed zone are not written elsewhere.
    ForgottenBlocks,
    /// A sync record names a file that replaced another, but not its content.
    BareRename,
    /// A sync record holds the change of a node that has moved, but not the node's new place.
    UnplacedChange,
}

impl FsDefect {
    /// All defects of the file system.
    pub const ALL: [FsDefect; 13] = [
        FsDefect::SkippedFlush,
        FsDefect::EarlyAck,
        FsDefect::DroppedCrc,
        FsDefect::IgnoredExtent,
        FsDefect::ReuseBeforeRelease,
        FsDefect::RecomputedCrc,
        FsDefect::ReleaseLiveRecord,
        FsDefect::SkippedUnit,
        FsDefect::NoWritePointers,
        FsDefect::SkippedRecord,
        FsDefect::ForgottenBlocks,
        FsDefect::BareRename,
        FsDefect::UnplacedChange,
    ];

    /// The defect of the log that implements this defect, if there is one.
    #[inline]
    pub fn of_log(self) -> Option<LogDefect> {
        match self {
            FsDefect::SkippedFlush => Some(LogDefect::SkippedFlush),
            FsDefect::ReuseBeforeRelease => Some(LogDefect::EarlyRelease),
            FsDefect::IgnoredExtent => Some(LogDefect::IgnoredExtent),
            _ => None,
        }
    }
}

/// A defect of the core that engines share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogDefect {
    /// A flush returns without flushing the drive.
    SkippedFlush,
    /// A write counts as written when it is dispatched.
    EarlyAck,
    /// Replay of the delta log leaves the last extent out.
    IgnoredExtent,
    /// Zones are reset before the conditions for their release hold.
    EarlyRelease,
}

impl LogDefect {
    /// All defects of the shared core.
    pub const ALL: [LogDefect; 4] = [
        LogDefect::SkippedFlush,
        LogDefect::EarlyAck,
        LogDefect::IgnoredExtent,
        LogDefect::EarlyRelease,
    ];
}

/// A defect of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaidDefect {
    /// A write is acknowledged when its stripe is dispatched, not when it is written.
    EarlyAck,
    /// Recovery leaves stripes with missing chunks as they are.
    TornStripe,
    /// Cleaning gives moved blocks new sequence numbers.
    FreshSequence,
    /// A trim is acknowledged without its record.
    TrimWithoutRecord,
    /// On drives without an out-of-band area, a stripe counts before any metadata block lists it.
    Unlisted,
    /// Writes in degraded mode are acknowledged before the other drives record the failure.
    EarlyDegradedAck,
    /// A flush of the volume flushes no drive.
    SkippedFlush,
    /// A flush of the volume leaves one member out.
    UnflushedMember,
}

impl RaidDefect {
    /// All defects of the volume.
    pub const ALL: [RaidDefect; 8] = [
        RaidDefect::EarlyAck,
        RaidDefect::TornStripe,
        RaidDefect::FreshSequence,
        RaidDefect::TrimWithoutRecord,
        RaidDefect::Unlisted,
        RaidDefect::EarlyDegradedAck,
        RaidDefect::SkippedFlush,
        RaidDefect::UnflushedMember,
    ];
}

/// A defect of the file store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreDefect {
    /// A sync does not flush the drive's cache.
    SkippedFlush,
    /// A sync does not wait for the file's content.
    EarlyAck,
    /// Zones are reset before the group commit that makes them empty is durable.
    EarlyRelease,
    /// Recovery keeps the last group commit even if its content is not on the drive.
    UncheckedCommit,
    /// A sync of names returns before they are durable.
    EarlyNamesAck,
    /// A group commit holds the bytes after a file's last whole block only if the file is new to
    /// the ring.
    StaleTail,
    /// The older half of the record ring is reset before the newer one is durable.
    EarlyRingReset,
    /// Extents lost in a failed zone are not written again.
    SkippedRelocation,
    /// Recovery uses an older half of the ring although an offline zone may have held a newer one.
    StaleRingHalf,
}

impl StoreDefect {
    /// All defects of the file store.
    pub const ALL: [StoreDefect; 9] = [
        StoreDefect::SkippedFlush,
        StoreDefect::EarlyAck,
        StoreDefect::EarlyRelease,
        StoreDefect::UncheckedCommit,
        StoreDefect::EarlyNamesAck,
        StoreDefect::StaleTail,
        StoreDefect::EarlyRingReset,
        StoreDefect::SkippedRelocation,
        StoreDefect::StaleRingHalf,
    ];
    /// The defects that power cuts reveal without any other fault.
    pub const CRASH: [StoreDefect; 7] = [
        StoreDefect::SkippedFlush,
        StoreDefect::EarlyAck,
        StoreDefect::EarlyRelease,
        StoreDefect::UncheckedCommit,
        StoreDefect::EarlyNamesAck,
        StoreDefect::StaleTail,
        StoreDefect::EarlyRingReset,
    ];
}

/// A defect of soft zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftDefect {
    /// A flush does not flush the plain drive.
    SkippedFlush,
    /// The journal's record is written after the flush that should cover it.
    LateRecord,
    /// A reset discards the zone before its new generation is durable.
    VolatileGeneration,
    /// A zone is written again before its discard is answered.
    EarlyLife,
    /// Recovery accepts every range that a record names, without checksums.
    UncheckedRange,
    /// Recovery accepts a table of which only a part was written.
    TornTable,
    /// Recovery accepts blocks by their checksum and does not write them again, although they may
    /// be discarded blocks, whose content can change.
    DiscardBelieved,
    /// Recovery writes its table without first flushing the content on which the table relies.
    UnflushedRecovery,
}

impl SoftDefect {
    /// All defects of soft zones.
    pub const ALL: [SoftDefect; 8] = [
        SoftDefect::SkippedFlush,
        SoftDefect::LateRecord,
        SoftDefect::VolatileGeneration,
        SoftDefect::EarlyLife,
        SoftDefect::UncheckedRange,
        SoftDefect::TornTable,
        SoftDefect::DiscardBelieved,
        SoftDefect::UnflushedRecovery,
    ];
}
