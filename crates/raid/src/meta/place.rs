//! The place of the metadata of an array's blocks, and the rules that depend on the place.

use crate::format::{BARE, BlockMeta, WINDOW};
use crate::meta::{oob, window};
use furrow_zone::Geometry;

/// The place of the metadata of an array's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaPlace {
    /// In the out-of-band area of each block.
    OutOfBand,
    /// In metadata stripes among the data, because the drives' out-of-band area is missing or too
    /// small.
    InBand,
}

/// Whether a drive has too few out-of-band bytes for a block's metadata.
pub fn is_bare(geometry: &Geometry) -> bool {
    MetaPlace::of(geometry) == MetaPlace::InBand
}

impl MetaPlace {
    /// The place of metadata on drives with this geometry.
    pub fn of(geometry: &Geometry) -> MetaPlace {
        if oob::fits(geometry) { MetaPlace::OutOfBand } else { MetaPlace::InBand }
    }

    /// The place of metadata that the incompatible features of a state record name.
    pub(crate) fn from_incompat(bits: u64) -> MetaPlace {
        if bits & BARE == 0 { MetaPlace::OutOfBand } else { MetaPlace::InBand }
    }

    /// The incompatible features of a state record that name this place.
    pub(crate) fn incompat(self) -> u64 {
        match self {
            MetaPlace::OutOfBand => 0,
            MetaPlace::InBand => BARE,
        }
    }

    /// Whether chunks may land anywhere in groups of stripes (Zone Append).
    pub(crate) fn takes_groups(self) -> bool {
        self == MetaPlace::OutOfBand
    }

    /// Whether the array's drives are "with" or "without" an out-of-band area, for messages.
    pub(crate) fn with_or_without(self) -> &'static str {
        match self {
            MetaPlace::OutOfBand => "with",
            MetaPlace::InBand => "without",
        }
    }

    /// The out-of-band bytes that the array needs of a drive, for messages.
    pub(crate) fn needs(self) -> String {
        match self {
            MetaPlace::OutOfBand => format!("with {}", BlockMeta::SIZE),
            MetaPlace::InBand => format!("with fewer than {}, as the others have", BlockMeta::SIZE),
        }
    }

    /// Number of blocks that cleaning can put into a segment of `all` data blocks, in stripes of
    /// `data` blocks.
    pub(crate) fn capacity(self, all: u32, data: u32) -> u32 {
        match self {
            MetaPlace::OutOfBand => all,
            MetaPlace::InBand => window::capacity(all / data, data) * data,
        }
    }

    /// Number of stripes, of `data` data blocks each, that cleaning writes together.
    pub(crate) fn batch(self, data: u32) -> u32 {
        match self {
            MetaPlace::OutOfBand => oob::batch(data),
            MetaPlace::InBand => window::batch(data),
        }
    }

    /// Maximum number of stripes in flight in a segment of the volume's own writes: `depth` with
    /// out-of-band metadata. With in-band metadata, the number of stripes of a window, so that
    /// cleaning fills windows: the space that cleaning frees must not depend on an option.
    pub(crate) fn internal_depth(self, depth: u32) -> u32 {
        match self {
            MetaPlace::OutOfBand => depth,
            MetaPlace::InBand => WINDOW,
        }
    }
}
