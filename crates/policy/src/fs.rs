//! Variants of the file system: rules of placement, of writes and of tables.

use crate::FsDefect;

/// A variant of the file system. The default is the product.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct FsVariant {
    /// The defect built in, if any.
    pub defect: Option<FsDefect>,
    /// How many superzones each stream writes to at once.
    pub heads: StreamHeads,
    /// Quotas: a stream with many writes gets more superzones before its window has ended.
    pub early_quota: Rule,
    /// A superzone is opened on the dies where the stream has none and least will be written, not
    /// where fewest are open.
    pub open_by_load: Rule,
    /// A stream continues with the superzone on the dies with the fewest writes, not with the next
    /// one.
    pub weighed_turns: Rule,
    /// A stream that lacks permits writes to parked superzones of other streams; without the rule
    /// they are finished for it.
    pub lent_superzones: Rule,
    /// When a stream's next superzone is opened.
    pub superzones: SuperzoneTurn,
    /// How changed tables reach the drive.
    pub metadata: Metadata,
    /// How large write commands are.
    pub commands: Commands,
    /// How many commands go to a zone at once.
    pub pieces: Pieces,
    /// What an fsync writes beside data, and when.
    pub record: SyncRecord,
}

impl FsVariant {
    /// Whether this variant has the defect.
    #[inline]
    pub fn has(&self, defect: FsDefect) -> bool {
        self.defect == Some(defect)
    }
}

impl std::fmt::Debug for FsVariant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        crate::print(f, *self == FsVariant::default())
    }
}

/// A rule of the product that a variant can leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// As in the product.
    #[default]
    Kept,
    /// Without it.
    LeftOut,
}

impl Rule {
    /// Whether the rule holds.
    #[inline]
    pub fn holds(self) -> bool {
        self == Rule::Kept
    }

    /// `LeftOut` if `left_out`.
    pub fn unless(left_out: bool) -> Rule {
        if left_out { Rule::LeftOut } else { Rule::Kept }
    }
}

/// How many superzones each log stream writes to at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamHeads {
    /// In proportion to its share of all writes, decided each second (Z-LFS, section 4.2).
    #[default]
    Quota,
    /// The same number for each, 1 to 8, as far as the drive's active zones allow: for baselines.
    Fixed(u32),
    /// These numbers, 1 to 8, for hot, warm and cold data and for hot, warm and cold nodes: a split
    /// decided beforehand. Where streams are folded, the first ones count.
    Split([u8; 6]),
}

/// When the next superzone of a stream is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SuperzoneTurn {
    /// After the writes of the previous one are answered, column by column.
    #[default]
    After,
    /// While writes of the previous one are in flight, as F2FS does: more zones are then active
    /// than the engine accounts for. For measurements on drives that allow many.
    Overlapping,
}

/// How changed table entries reach the drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metadata {
    /// Through the delta log, which is merged into the tables in the background (Z-LFS).
    #[default]
    Log,
    /// Each checkpoint appends every changed table page to the tables, and all pages are copied to
    /// other zones when there is no space: the plain pairs of zones that Z-LFS is compared with.
    /// The delta log is not used. Meant for a file system made with table pages of one block.
    /// Repair writes this way too: whole tables, not changes to something damaged.
    Pair,
}

/// How large write commands are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commands {
    /// As large as the drive allows.
    #[default]
    Largest,
    /// At most this many blocks (4 KiB).
    AtMost(u32),
}

impl Commands {
    /// The limit of a write command in blocks, if it is not the drive's.
    pub fn blocks(self) -> Option<u32> {
        match self {
            Commands::Largest => None,
            Commands::AtMost(blocks) => Some(blocks),
        }
    }
}

/// How many commands queued writes of a zone are merged into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pieces {
    /// Several for large zones, or one where the drive answers one sooner; one for small zones.
    #[default]
    ByZone,
    /// Several, as suits large zones.
    Several,
    /// This number; 1 merges everything that waits into one command.
    Fixed(u32),
}

/// What an fsync writes beside data, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncRecord {
    /// A record, together with the data. The record holds what changed in the nodes; a node that
    /// has changed much is written too.
    #[default]
    Changes,
    /// The nodes and a record that says where they are, together with the data: one wait is for all
    /// three (HZFS, section IV-D). For baselines.
    AtOnce,
    /// The nodes and a record that says where they are. The record is written when data and nodes
    /// are on the drive: the order "data, node, global metadata" of existing file systems (HZFS,
    /// section IV-D). For baselines.
    AfterNodes,
}
