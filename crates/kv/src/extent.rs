//! Extents: where the blocks of a file lie, with their checksums.

use furrow_log::BlockAddr;
use std::rc::Rc;

/// Maximum number of blocks of an extent that keeps its checksums in its entry.
pub(crate) const SUMS_INLINE: u32 = 16;
/// A durable extent with at least this many blocks is not extended: otherwise each sync would write
/// all checksums of the extent again.
pub(crate) const SYNCED_EXTENT: u32 = 64;

/// Number of a file; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// How long a file is expected to live, as RocksDB's hints say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Lifetime {
    /// No hint was given.
    #[default]
    NotSet = 0,
    /// Lifetime hints are not to be used.
    None = 1,
    /// Shortest lifetime.
    Short = 2,
    /// Longer than `Short`.
    Medium = 3,
    /// Longer than `Medium`.
    Long = 4,
    /// Longest lifetime.
    Extreme = 5,
}

impl Lifetime {
    /// Decodes the stored byte.
    pub fn from_byte(byte: u8) -> Option<Lifetime> {
        use Lifetime::{Extreme, Long, Medium, None as NoHint, NotSet, Short};
        [NotSet, NoHint, Short, Medium, Long, Extreme].get(usize::from(byte)).copied()
    }
}

/// The checksums of an extent's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sums {
    /// The checksums are in memory and in the file's entry, one for each block.
    Here(Rc<Vec<u32>>),
    /// The checksums are in a block of the drive.
    At(BlockAddr),
}

/// A run of blocks of a file that lie one after the other in a zone, or a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First block in the file.
    pub(crate) first: u32,
    pub(crate) blocks: u32,
    pub(crate) at: BlockAddr,
    pub(crate) sums: Sums,
}

impl Extent {
    /// Creates an extent without a place.
    pub(crate) fn hole(first: u32, blocks: u32) -> Extent {
        Extent { first, blocks, at: BlockAddr::HOLE, sums: Sums::Here(Rc::default()) }
    }

    pub(crate) fn is_hole(&self) -> bool {
        self.at == BlockAddr::HOLE
    }

    pub(crate) fn end(&self) -> u32 {
        self.first + self.blocks
    }

    /// Where the extent and its block of checksums lie, each with its number of blocks. A hole has
    /// no place.
    pub(crate) fn places(&self) -> impl Iterator<Item = (BlockAddr, u32)> + use<> {
        let sums = match self.sums {
            Sums::Here(_) => None,
            Sums::At(at) => Some((at, 1)),
        };
        let content = Some((self.at, self.blocks)).filter(|_| !self.is_hole());
        content.into_iter().chain(sums)
    }
}
