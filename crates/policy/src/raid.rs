//! Variants of the volume: ways in which chunks reach a drive, and what stripe tables keep.

use crate::RaidDefect;

/// Which volume runs. The default is the product.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct RaidVariant {
    /// The defect built in, if any.
    pub defect: Option<RaidDefect>,
    /// How many writes of a zone may be in flight.
    pub writes: ZoneWrites,
    /// What becomes of chunks that are written, wait for a zone and are adjacent.
    pub join: Join,
    /// How many commands appends that wait for a zone go in.
    pub append_pieces: AppendPieces,
    /// Which segments take Zone Appends.
    pub appends: Appends,
    /// What stripe tables keep.
    pub tables: StripeTables,
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
    /// Many, also by Zone Append.
    #[default]
    Append,
    /// One: all chunks go by Zone Write.
    Blocking,
}

/// What becomes of chunks that are written, wait for a zone and are adjacent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Join {
    /// They go in one command.
    #[default]
    Adjacent,
    /// Each is a command.
    Never,
}

/// How many commands appends that wait for a zone go in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AppendPieces {
    /// As many as the product chooses.
    #[default]
    Chosen,
    /// Each in one of its own, as published.
    Each,
    /// So many, or fewer of 16 KiB.
    Fixed(u32),
}

/// Which segments of users' requests take Zone Appends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Appends {
    /// The first open one with small chunks.
    #[default]
    First,
    /// Every open one.
    All,
}

/// What stripe tables keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StripeTables {
    /// The place of each stripe.
    #[default]
    Places,
    /// The stripe of each place, as published: less is written down at once, but a chunk has to be
    /// searched for in its group.
    Searched,
}
