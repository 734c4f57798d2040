//! The properties of a block that a read needs: its identity, its place, and whether damage counts.

use furrow_zone::ZoneId;

/// The identity that a block must have: its kind, and its address.
pub(crate) type Wanted = (u8, u64);

/// The place of a block on a member, with its segment and stripe.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    pub(crate) stripe: u32,
    pub(crate) index: u32,
    pub(crate) zone: ZoneId,
    pub(crate) offset: u32,
}

/// Whether a damaged or unreadable block counts as an error of its member. It does not count if the
/// blocks read need not be valid, if the same block is read again, or if a scrub reads it: a scrub
/// counts each reported block once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loud {
    Yes,
    No,
}
