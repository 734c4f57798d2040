//! Entries of a segment's footer, which say what each row of a zone holds.

use crate::format::{FooterEntry, NONE, block};
use crate::meta::identity::Identity;
use zerocopy::FromZeros;

/// A footer's entry for a block: the identity of a data block; for a parity block (`None`), only
/// the kind.
pub(crate) fn seal_entry(identity: Option<Identity>, crc: u32, stripe: u32) -> FooterEntry {
    let mut entry = FooterEntry::new_zeroed();
    let kind = identity.map_or(block::PARITY, |identity| identity.kind);
    let lba = identity.map_or(0, |identity| identity.lba);
    entry.lba = (u64::from(kind) << 56 | lba).into();
    entry.sequence = identity.map_or(0, |identity| identity.sequence).into();
    entry.crc = crc.into();
    entry.stripe = stripe.into();
    entry
}

/// The content of a footer's entry: the identity (`None`: parity) and the stripe; `None` if the
/// block belongs to no stripe.
pub(crate) fn open_entry(entry: &FooterEntry) -> Option<(Option<Identity>, u32)> {
    if entry.stripe.get() == NONE {
        return None;
    }
    let kind = (entry.lba.get() >> 56) as u8;
    let identity = (kind < block::PARITY).then(|| Identity {
        lba: entry.lba.get() & ((1 << 56) - 1),
        sequence: entry.sequence.get(),
        crc: entry.crc.get(),
        kind,
    });
    Some((identity, entry.stripe.get()))
}
