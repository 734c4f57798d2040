//! Counters of the commands and bytes that went to a drive.

/// The kind of a write's content, for the counters only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A user's data.
    Data,
    /// Nodes: inodes and pointer blocks.
    Node,
    /// Segment summaries.
    Summary,
    /// Checkpoints and superblocks.
    Checkpoint,
    /// Delta-log blocks.
    Delta,
    /// Table pages.
    Table,
    /// Sync-log records.
    Sync,
    /// Zeros that fill the rest of a zone.
    Padding,
}

impl Kind {
    /// All kinds, in the order of [`Counters::bytes`].
    pub const ALL: [Kind; 8] = [
        Kind::Data,
        Kind::Node,
        Kind::Summary,
        Kind::Checkpoint,
        Kind::Delta,
        Kind::Table,
        Kind::Sync,
        Kind::Padding,
    ];

    /// Name of the kind in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Data => "data",
            Kind::Node => "node",
            Kind::Summary => "summary",
            Kind::Checkpoint => "checkpoint",
            Kind::Delta => "delta",
            Kind::Table => "table",
            Kind::Sync => "sync",
            Kind::Padding => "padding",
        }
    }
}

/// Counts of the commands and bytes sent to the drive since the writer was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes dispatched, by [`Kind`] in the order of [`Kind::ALL`].
    pub bytes: [u64; 8],
    /// Number of write commands sent, including retries.
    pub commands: u64,
    /// Number of write commands retried because an earlier command had not arrived yet.
    pub retries: u64,
    /// Number of flushes sent.
    pub flushes: u64,
    /// Number of zones reset.
    pub resets: u64,
    /// Number of zones finished.
    pub finishes: u64,
}

impl Counters {
    /// Number of bytes of `kind` dispatched.
    pub fn of(&self, kind: Kind) -> u64 {
        self.bytes[kind as usize]
    }
}
