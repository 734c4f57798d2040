//! Metadata: what each block on a drive is. It is made at dispatch and checked at every read.
//!
//! The place of metadata depends on the drives: out-of-band, with each block, or in-band, in
//! metadata stripes among the data. The rest of the crate notes what it writes
//! ([`OpenMeta::note`]), waits until that is covered ([`OpenMeta::join`]), looks up the metadata of
//! blocks that it reads ([`Volume::lookup`]) and scans zones ([`scan`]), without regard to the
//! place.
//!
//! Invariant: only this folder decides by the place of metadata.

pub(crate) mod footer;
mod identity;
pub(crate) mod inband;
pub(crate) mod oob;
pub(crate) mod scan;

pub(crate) use identity::{Identity, coded, filler, open, seal, segment_of};
pub(crate) use inband::is_own;

use crate::format::{BARE, BlockMeta, WINDOW};
use crate::meta::inband::{Cover, Listing, Sent, Windows};
use crate::read::Place;
use crate::volume::Volume;
use furrow_log::address::oob_per_block;
use furrow_log::pool::ReadPin;
use furrow_rt::JoinHandle;
use furrow_zone::Geometry;
use std::rc::Rc;

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
    /// The place of metadata on drives of a geometry.
    pub fn of(geometry: &Geometry) -> MetaPlace {
        if oob::fits(geometry) { MetaPlace::OutOfBand } else { MetaPlace::InBand }
    }

    /// From the incompatible features of a state record.
    pub(crate) fn from_incompat(bits: u64) -> MetaPlace {
        if bits & BARE == 0 { MetaPlace::OutOfBand } else { MetaPlace::InBand }
    }

    /// As incompatible features of a state record.
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

    /// A description of the array's drives, for messages.
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

    /// Blocks that cleaning can put into a segment of `all` data blocks, in stripes of `data`.
    pub(crate) fn capacity(self, all: u32, data: u32) -> u32 {
        match self {
            MetaPlace::OutOfBand => all,
            MetaPlace::InBand => inband::capacity(all / data, data) * data,
        }
    }

    /// Stripes of `data` blocks that cleaning writes together.
    pub(crate) fn batch(self, data: u32) -> u32 {
        match self {
            MetaPlace::OutOfBand => oob::batch(data),
            MetaPlace::InBand => inband::batch(data),
        }
    }

    /// Most stripes in flight in a segment of the volume's own writes: `depth`, unless cleaning has
    /// to fill windows. The space that cleaning frees must not depend on an option.
    pub(crate) fn internal_depth(self, depth: u32) -> u32 {
        match self {
            MetaPlace::OutOfBand => depth,
            MetaPlace::InBand => WINDOW,
        }
    }
}

/// Metadata of an open segment that is not on the drives yet; nothing if it is out of band.
#[derive(Clone, Default)]
pub(crate) struct OpenMeta(Option<Rc<Windows>>);

impl OpenMeta {
    pub(crate) fn new(place: MetaPlace, chunk: u32, drives: u32) -> OpenMeta {
        match place {
            MetaPlace::OutOfBand => OpenMeta(None),
            MetaPlace::InBand => OpenMeta(Some(Rc::new(Windows::new(chunk, drives)))),
        }
    }

    /// Notes the metadata of a stripe's chunk on a drive; stripes come in order. Returns the bytes
    /// for the out-of-band area.
    pub(crate) fn note<'a>(&self, stripe: u32, drive: u32, metas: &'a [u8]) -> &'a [u8] {
        match &self.0 {
            None => metas,
            Some(windows) => {
                windows.note(stripe, drive, metas);
                &[]
            }
        }
    }

    /// Whether the next stripe of a segment of `stripes` has to be a metadata stripe.
    pub(crate) fn ends_window(&self, next: u32, stripes: u32) -> bool {
        self.0.is_some() && inband::ends(next, stripes)
    }

    /// Stripes of a segment of `stripes` that may hold data: not the last one.
    pub(crate) fn data_stripes(&self, stripes: u32) -> u32 {
        stripes - u32::from(self.0.is_some())
    }

    /// Joins the stripes that wait for a metadata stripe, with one that was just noted. Returns the
    /// metadata stripe that the caller has to wait for, if there is one, and whether the caller has
    /// to check [`OpenMeta::is_due`] at the end of this turn.
    pub(crate) fn join(&self) -> Option<(Rc<Cover>, bool)> {
        self.0.as_ref().map(|windows| windows.join())
    }

    /// Whether stripes wait for a metadata stripe and none is in flight.
    pub(crate) fn is_due(&self) -> bool {
        self.0.as_ref().is_some_and(|windows| windows.is_due())
    }

    /// Sends a metadata stripe as stripe `number` of a segment; `None` if metadata is out of band.
    pub(crate) fn send(&self, volume: &Volume, slot: u32, number: u32) -> Option<Sent> {
        self.0.as_ref().map(|windows| windows.send(volume, slot, number))
    }

    /// The metadata of row `row` of a stripe's chunk on a drive; `None` if it is not kept here.
    fn kept(&self, stripe: u32, drive: u32, row: u32) -> Option<Option<BlockMeta>> {
        self.0.as_ref().and_then(|windows| windows.get(stripe, drive, row))
    }
}

/// The metadata of a zone that is being rebuilt, row after row.
pub(crate) struct RebuiltMeta(Option<Listing>);

impl RebuiltMeta {
    pub(crate) fn new(place: MetaPlace, chunk: u32) -> RebuiltMeta {
        RebuiltMeta((place == MetaPlace::InBand).then(|| Listing::new(chunk)))
    }
}

/// The pending metadata of blocks that are being read.
pub(crate) struct Lookup {
    from: Source<JoinHandle<Vec<Option<BlockMeta>>>>,
    pin: ReadPin,
}

/// The metadata of blocks that were read. While it lives, their zone is not reset.
pub(crate) struct BlockMetas {
    from: Source<Vec<Option<BlockMeta>>>,
    _pin: ReadPin,
}

enum Source<T> {
    /// In the answer, this many bytes per block; for a segment of this sequence number.
    OutOfBand(u64, usize),
    /// Listed in metadata stripes.
    InBand(T),
}

impl Lookup {
    /// Waits for the metadata.
    pub(crate) async fn done(self) -> BlockMetas {
        let from = match self.from {
            Source::OutOfBand(sequence, bytes) => Source::OutOfBand(sequence, bytes),
            Source::InBand(listed) => Source::InBand(listed.await),
        };
        BlockMetas { from, _pin: self.pin }
    }
}

impl BlockMetas {
    /// The metadata of block `n` of a read with the out-of-band bytes `oob`.
    pub(crate) fn of(&self, oob: &[u8], n: usize) -> Option<BlockMeta> {
        match &self.from {
            Source::OutOfBand(sequence, bytes) => open(oob.get(n * bytes..)?, *sequence),
            Source::InBand(listed) => listed.get(n).copied().flatten(),
        }
    }
}

impl Volume {
    /// Starts the lookup of the metadata of `count` blocks that are being read, from `first` on.
    pub(crate) fn lookup(
        &self,
        geometry: &Geometry,
        first: Place,
        count: u32,
        pin: ReadPin,
    ) -> Lookup {
        let from = match self.0.shape.meta {
            MetaPlace::OutOfBand => Source::OutOfBand(first.sequence, oob_per_block(geometry)),
            MetaPlace::InBand => Source::InBand(self.0.rt.spawn(self.clone().listed(first, count))),
        };
        Lookup { from, pin }
    }

    /// Whether the metadata of a member's blocks is unavailable because its drive vanished.
    pub(crate) fn metadata_went(&self, index: u32) -> bool {
        let drive = self.0.members[index as usize].drive();
        self.0.shape.meta == MetaPlace::InBand && drive.is_none_or(|drive| !drive.answers())
    }
}
