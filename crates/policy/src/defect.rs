//! Defects built in on purpose, one in an engine at a time: crash sweeps and simulations must catch
//! each, or they are blind.

/// A defect of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsDefect {
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
    /// Cleaning gives the blocks it moves the checksum of the bytes it read.
    RecomputedCrc,
    /// A checkpoint releases what became empty after its snapshot, though sync records refer to it.
    ReleaseLiveRecord,
    /// A merge does not write its last unit, and the next checkpoint does without its deltas.
    SkippedUnit,
    /// A sync record does not say which write pointers it depends on.
    NoWritePointers,
    /// Recovery passes over a sync record that does not count, to those behind it.
    SkippedRecord,
    /// The blocks that a failed zone has lost are not written elsewhere.
    ForgottenBlocks,
    /// A sync record tells of a file that took another's place, and not of its content.
    BareRename,
}

impl FsDefect {
    /// All of them.
    pub const ALL: [FsDefect; 12] = [
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
    ];

    /// The defect of the log that makes up this one, if it is one of the log.
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

/// A defect of what the engines share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogDefect {
    /// A flush returns without asking the drive.
    SkippedFlush,
    /// A write counts as written when it is dispatched.
    EarlyAck,
    /// Replay of the delta log leaves the last extent out.
    IgnoredExtent,
    /// Zones are reset without the conditions of their release.
    EarlyRelease,
}

impl LogDefect {
    /// All of them.
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
    /// A write is acknowledged when its stripe is dispatched.
    EarlyAck,
    /// Stripes that a crash left without some chunk are left as they are.
    TornStripe,
    /// Cleaning gives the blocks it moves new sequence numbers.
    FreshSequence,
    /// A trim is acknowledged without its record.
    TrimWithoutRecord,
    /// On drives without an out-of-band area a stripe counts before anything lists it.
    Unlisted,
    /// Writes without a failed drive are acknowledged before the others know of its failure.
    EarlyDegradedAck,
    /// A flush flushes no drive.
    SkippedFlush,
}

impl RaidDefect {
    /// All of them.
    pub const ALL: [RaidDefect; 7] = [
        RaidDefect::EarlyAck,
        RaidDefect::TornStripe,
        RaidDefect::FreshSequence,
        RaidDefect::TrimWithoutRecord,
        RaidDefect::Unlisted,
        RaidDefect::EarlyDegradedAck,
        RaidDefect::SkippedFlush,
    ];
}

/// A defect of the file store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreDefect {
    /// A sync does not flush the drive's cache.
    SkippedFlush,
    /// A sync does not wait for the file's content.
    EarlySync,
    /// Zones are reset before the round is durable by which nothing in them counts.
    EarlyReset,
    /// Recovery believes the last round also where its content is not on the drive.
    TrustedRound,
    /// A sync of names does not wait until they are durable.
    EarlyNames,
    /// A round has the bytes behind a file's last whole block only when the file is new to it.
    StaleTail,
    /// The ring's older half is emptied before the newer one is durable.
    EarlyEmpty,
    /// The content that a failed zone has lost is not written again.
    UnmovedExtent,
    /// The state on the drive is shown, though a zone that may have held newer records is offline.
    OlderHalf,
}

impl StoreDefect {
    /// All of them.
    pub const ALL: [StoreDefect; 9] = [
        StoreDefect::SkippedFlush,
        StoreDefect::EarlySync,
        StoreDefect::EarlyReset,
        StoreDefect::TrustedRound,
        StoreDefect::EarlyNames,
        StoreDefect::StaleTail,
        StoreDefect::EarlyEmpty,
        StoreDefect::UnmovedExtent,
        StoreDefect::OlderHalf,
    ];
    /// Those that power cuts alone show.
    pub const CRASH: [StoreDefect; 7] = [
        StoreDefect::SkippedFlush,
        StoreDefect::EarlySync,
        StoreDefect::EarlyReset,
        StoreDefect::TrustedRound,
        StoreDefect::EarlyNames,
        StoreDefect::StaleTail,
        StoreDefect::EarlyEmpty,
    ];
}
