//! Variants of the file system: rules of placement, of writes and of tables.

use crate::FsDefect;

/// A variant of the file system. The default is the product.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct FsVariant {
    /// The defect built in, if any.
    pub defect: Option<FsDefect>,
    /// How many superzones each stream writes to at once.
    pub heads: StreamHeads,
    /// Whether a stream with many writes gets more superzones before the end of the window in which
    /// these writes are counted.
    pub early_quota: Rule,
    /// Whether a superzone is opened on dies where the stream has none and the fewest writes are
    /// expected, instead of where the fewest superzones are open.
    pub open_by_load: Rule,
    /// Whether a stream continues with the superzone on the dies with the fewest writes, instead of
    /// with the next superzone.
    pub weighed_turns: Rule,
    /// Whether a stream that lacks permits writes to parked superzones of other streams. Without
    /// this rule those superzones are finished to free their permits.
    pub lent_superzones: Rule,
    /// Rule for when a stream opens its next superzone.
    pub superzones: SuperzoneTurn,
    /// How changed tables reach the drive.
    pub metadata: Metadata,
    /// How large write commands are.
    pub commands: Commands,
    /// How many commands go to a zone at once.
    pub pieces: Pieces,
    /// What an fsync writes in addition to data, and when.
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
    /// The rule applies, as in the product.
    #[default]
    Kept,
    /// The rule is left out.
    LeftOut,
}

impl Rule {
    /// Whether the rule applies.
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
    /// In proportion to the stream's share of all writes, recomputed every second (Z-LFS,
    /// section 4.2).
    #[default]
    Quota,
    /// The same number for each stream, 1 to 8, as far as the drive's active zones allow:
    /// for baselines.
    Fixed(u32),
    /// A number from 1 to 8, decided beforehand, for each of hot, warm and cold data and hot, warm
    /// and cold nodes. If there are fewer than six streams, only the first numbers are used.
    Split([u8; 6]),
}

/// Rule for when a stream opens its next superzone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SuperzoneTurn {
    /// After the writes of the previous superzone are answered, column by column.
    #[default]
    After,
    /// While writes of the previous superzone are in flight, as in F2FS: more zones are then active
    /// than the engine accounts for. For measurements on drives that allow many active zones.
    Overlapping,
}

/// How changed table entries reach the drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metadata {
    /// Through the delta log, which is merged into the tables in the background (Z-LFS).
    #[default]
    Log,
    /// Each checkpoint appends every changed table page to the tables, and all pages are copied to
    /// other zones when there is no space: the plain pairs of zones with which Z-LFS is compared.
    /// The delta log is not used. Meant for a file system made with table pages of one block.
    /// Repair also writes in this way: it writes whole tables instead of changes to a damaged one.
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
    /// The limit of a write command in blocks; `None` if it is the drive's.
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
    /// Several commands for large zones, or one if the drive then answers sooner; one for
    /// small zones.
    #[default]
    ByZone,
    /// Several commands, as suits large zones.
    Several,
    /// This number of commands; 1 merges all waiting writes into one command.
    Fixed(u32),
}

/// What an fsync writes in addition to data, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncRecord {
    /// A record, together with the data. The record holds the changes in the nodes; a node that has
    /// changed much is written too.
    #[default]
    Changes,
    /// The nodes and a record that says where they are, together with the data: the fsync waits for
    /// all three at once (HZFS, section IV-D). For baselines.
    AtOnce,
    /// The nodes and a record that says where they are. The record is written when data and nodes
    /// are on the drive: the order "data, node, global metadata" of existing file systems (HZFS,
    /// section IV-D). For baselines.
    AfterNodes,
}
