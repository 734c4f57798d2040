//! A write to a zone: its content, its placement, and how a caller learns of its completion.
//!
//! [`Writer::submit`](super::Writer::submit) takes a [`ZoneWrite`] and returns a
//! [`WriteHandle`](super::WriteHandle). A caller can name a [`WriteObserver`] instead of waiting
//! for several writes in a task of its own. Handle and observer learn the same: where the write
//! begins, or why it failed. Only the place of an append that has an observer goes to the observer
//! alone.

use super::counters::Kind;
use furrow_rt::Pages;
use furrow_zone::{Result, ZoneId};
use std::rc::Rc;

/// Condition for a write to count as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The write counts once the drive has it; a volatile cache still needs a flush.
    Cached,
    /// The write counts once it is on the medium.
    Fua,
}

/// How the block at which a write begins is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The order of the calls decides: the write begins at the zone's position.
    Position,
    /// The drive decides, with Zone Append. Blocks are set aside at once. Appends in flight
    /// together fill the blocks that were set aside for them; each completion reports the place of
    /// its append. An append that reaches the end of a zone whose capacity is not in whole blocks
    /// is written at the zone's position instead. At most
    /// [`Writer::append_limit`](super::Writer::append_limit) blocks.
    Append,
}

/// The blocks of a write.
#[derive(Debug)]
pub enum Payload<P = Pages> {
    /// Pages to write.
    Pages(P),
    /// Zeros from the zone's position up to this block of the zone.
    ZerosTo(u32),
    /// One block, whose page [`Writer::fill_reserved`](super::Writer::fill_reserved) sets later.
    /// Until then, nothing after the block in the zone is sent to the drive.
    Later,
}

/// A write to one zone. The constructors make a write at the zone's position that is durable after
/// a later flush; other fields are set by struct update.
///
/// `P` is the source of the pages: an iterator, if a caller has no list of pages.
pub struct ZoneWrite<'a, P = Pages> {
    /// The zone, which must be open.
    pub zone: ZoneId,
    /// The kind of the blocks, for the counters.
    pub kind: Kind,
    /// The blocks to write.
    pub payload: Payload<P>,
    /// Out-of-band bytes, [`oob_per_block`](crate::address::oob_per_block) for each block. If
    /// empty, zeros are written.
    pub oob: &'a [u8],
    /// How the block at which the write begins is chosen.
    pub placement: Placement,
    /// Condition for a write to count as written.
    pub durability: Durability,
    /// The observer of the write's completion, and the number under which it knows the write. With
    /// an observer, the handle does not return the place of an append; the observer gets it.
    pub observer: Option<(Rc<dyn WriteObserver>, u32)>,
}

impl<P> ZoneWrite<'_, P> {
    fn new(zone: ZoneId, kind: Kind, payload: Payload<P>) -> Self {
        ZoneWrite {
            zone,
            kind,
            payload,
            oob: &[],
            placement: Placement::Position,
            durability: Durability::Cached,
            observer: None,
        }
    }

    /// Creates a write of `pages`.
    pub fn pages(zone: ZoneId, kind: Kind, pages: P) -> Self {
        ZoneWrite::new(zone, kind, Payload::Pages(pages))
    }
}

impl ZoneWrite<'_> {
    /// Creates a write of zeros up to block `upto` of the zone, or of nothing if the zone's
    /// position is beyond `upto`.
    pub fn zeros_to(zone: ZoneId, upto: u32) -> Self {
        ZoneWrite::new(zone, Kind::Padding, Payload::ZerosTo(upto))
    }

    /// Creates a write of one block whose page is set later.
    pub fn reserve(zone: ZoneId, kind: Kind) -> Self {
        ZoneWrite::new(zone, kind, Payload::Later)
    }
}

/// Learns the results of writes from the task that takes the drive's answers.
pub trait WriteObserver {
    /// Reports that write number `part` begins at block `at` of its zone and is durable as
    /// requested, or that it failed. Called once for each write, while nothing of the writer
    /// is borrowed.
    fn on_complete(self: Rc<Self>, part: u32, at: Result<u32>);
}
