//! Metadata says what each block on a drive is. It is made at dispatch and checked at every read.
//!
//! The place of metadata depends on the drives: out-of-band, with each block, or in-band, in
//! metadata stripes among the data. The rest of the crate does not depend on the place: it notes
//! blocks when it writes them (`OpenMeta::note`), waits until a metadata stripe lists them
//! (`OpenMeta::join`), looks up the metadata of blocks that it reads (`Volume::lookup`) and scans
//! zones (`scan`).
//!
//! Invariant: only this folder makes decisions by the place of metadata.

pub(crate) mod footer;
pub(crate) mod identity;
pub(crate) mod inband;
pub(crate) mod oob;
pub(crate) mod open;
pub(crate) mod place;
pub(crate) mod scan;
pub(crate) mod window;
pub(crate) mod windows;

use crate::format::BlockMeta;
use crate::meta::identity::open;
use crate::meta::place::MetaPlace;
use crate::read::place::Place;
use crate::volume::Volume;
use furrow_log::address::oob_per_block;
use furrow_log::pool::ReadPin;
use furrow_rt::JoinHandle;
use furrow_zone::Geometry;

/// A running lookup of the metadata of blocks that are being read.
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
    /// In the read's answer. Has the segment's sequence number, and the number of out-of-band bytes
    /// of each block.
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
    /// The metadata of block `n` of a read whose answer has the out-of-band bytes `oob`.
    pub(crate) fn of(&self, oob: &[u8], n: usize) -> Option<BlockMeta> {
        match &self.from {
            Source::OutOfBand(sequence, bytes) => open(oob.get(n * bytes..)?, *sequence),
            Source::InBand(listed) => listed.get(n).copied().flatten(),
        }
    }
}

impl Volume {
    /// Starts to look up the metadata of the `count` blocks from `first` on, which are being read.
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

    /// Whether a member's in-band metadata cannot be looked up because its drive vanished.
    pub(crate) fn metadata_went(&self, index: u32) -> bool {
        let drive = self.0.array.member(index).drive();
        self.0.shape.meta == MetaPlace::InBand && drive.is_none_or(|drive| !drive.answers())
    }
}
