//! Variants of the volume: how chunks reach a drive, and what stripe tables record.

use crate::RaidDefect;

/// A variant of the volume. The default is the product.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct RaidVariant {
    /// The defect built in, if any.
    pub defect: Option<RaidDefect>,
    /// How many writes of a zone may be in flight.
    pub writes: ZoneWrites,
    /// How adjacent chunks that wait for a zone are written.
    pub join: Join,
    /// How many commands queued appends of a zone are merged into.
    pub append_pieces: AppendPieces,
    /// Which segments take Zone Appends.
    pub appends: Appends,
    /// The content of stripe tables.
    pub tables: StripeTables,
    /// How users' blocks of different lifetimes are written.
    pub lifetimes: Lifetimes,
}

impl RaidVariant {
    /// Whether this variant has the defect.
    #[inline]
    pub fn has(&self, defect: RaidDefect) -> bool {
        self.defect == Some(defect)
    }
}

impl std::fmt::Debug for RaidVariant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        crate::print(f, *self == RaidVariant::default())
    }
}

/// How many writes of a zone may be in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZoneWrites {
    /// Several; chunks are also written by Zone Append.
    #[default]
    Append,
    /// One write: all chunks are written by Zone Write.
    Blocking,
}

/// How adjacent chunks that wait for a zone are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Join {
    /// Adjacent chunks share a command.
    #[default]
    Adjacent,
    /// Each chunk has a command of its own.
    Never,
}

/// How many commands queued appends of a zone are merged into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AppendPieces {
    /// As many as the product chooses.
    #[default]
    Chosen,
    /// Each append is a command of its own, as published.
    Each,
    /// This many commands, or fewer if they would be smaller than 16 KiB.
    Fixed(u32),
}

/// Which segments for users' requests take Zone Appends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Appends {
    /// The first open segment with small chunks.
    #[default]
    First,
    /// Every open segment.
    All,
}

/// The content of stripe tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StripeTables {
    /// The place of each stripe.
    #[default]
    Places,
    /// The stripe of each place, as published: tables are smaller, but the place of a chunk has to
    /// be searched in its group.
    Searched,
}

/// How users' blocks of different lifetimes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetimes {
    /// Blocks go to separate segments where lifetimes differ.
    #[default]
    Apart,
    /// All blocks go to the same segments, as published.
    Mixed,
    /// Blocks go to separate segments from the first write on, as if neighbours had different
    /// lifetimes: a simulation writes too little to learn any.
    Always,
}
