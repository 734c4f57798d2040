//! What a read asks for: which block, from where, and whether its damage counts.

use furrow_zone::ZoneId;

/// What a block must be: its kind and address.
pub(crate) type Wanted = (u8, u64);

/// A block on a member: its place, its segment and its stripe.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    pub(crate) stripe: u32,
    pub(crate) index: u32,
    pub(crate) zone: ZoneId,
    pub(crate) offset: u32,
}

/// Whether a block that is damaged or cannot be read counts as an error of its member. It does not
/// count where perhaps none of the blocks read is valid, where the same block is read again, or
/// where a scrub reads it: a scrub counts each block that it reports once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loud {
    Yes,
    No,
}
