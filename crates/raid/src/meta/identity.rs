//! The identity of a block, and its coded form in the block's metadata.

use crate::format::{BlockMeta, CODED, NONE, block};
use furrow_log::record::crc32c;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Identity of a data block: the coded part of its metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) lba: u64,
    pub(crate) sequence: u64,
    pub(crate) crc: u32,
    pub(crate) kind: u8,
}

impl Identity {
    /// The identity in coded form.
    pub(crate) fn bytes(&self) -> [u8; CODED] {
        let mut meta = BlockMeta::new_zeroed();
        meta.lba = self.lba.into();
        meta.sequence = self.sequence.into();
        meta.crc = self.crc.into();
        meta.kind = u32::from(self.kind).into();
        meta.as_bytes()[..CODED].try_into().expect("invariant: a metadata starts with its code")
    }

    /// Decodes an identity; `None` if no data block has such an identity.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Identity> {
        let mut meta = BlockMeta::new_zeroed();
        meta.as_mut_bytes()[..CODED].copy_from_slice(bytes.get(..CODED)?);
        let kind = u8::try_from(meta.kind.get()).ok().filter(|kind| *kind <= block::TRIM)?;
        Some(Identity {
            lba: meta.lba.get(),
            sequence: meta.sequence.get(),
            crc: meta.crc.get(),
            kind,
        })
    }
}

/// Makes the metadata of a block of `stripe` of the segment with sequence number `segment`.
pub(crate) fn seal(coded: &[u8; CODED], segment: u64, stripe: u32, own_crc: u32) -> BlockMeta {
    let mut meta = BlockMeta::new_zeroed();
    meta.as_mut_bytes()[..CODED].copy_from_slice(coded);
    meta.segment = segment.into();
    meta.stripe = stripe.into();
    meta.own_crc = own_crc.into();
    meta.check = checksum(&meta).into();
    meta
}

/// The metadata of a block that only fills a zone and belongs to no stripe.
pub(crate) fn filler(segment: u64, own_crc: u32) -> BlockMeta {
    seal(&[0; CODED], segment, NONE, own_crc)
}

fn checksum(meta: &BlockMeta) -> u32 {
    let end = core::mem::offset_of!(BlockMeta, check);
    crc32c(&meta.as_bytes()[..end])
}

/// The metadata at the start of a block's out-of-band bytes, if its checksum is right and it
/// names `segment`.
pub(crate) fn open(bytes: &[u8], segment: u64) -> Option<BlockMeta> {
    let (meta, _) = BlockMeta::read_from_prefix(bytes).ok()?;
    (meta.check.get() == checksum(&meta) && meta.segment.get() == segment).then_some(meta)
}

/// The segment named by the metadata at the start of a block's out-of-band bytes, if the checksum
/// is right.
pub(crate) fn segment_of(bytes: &[u8]) -> Option<u64> {
    let (meta, _) = BlockMeta::read_from_prefix(bytes).ok()?;
    (meta.check.get() == checksum(&meta)).then_some(meta.segment.get())
}

/// The coded part of a block's metadata.
pub(crate) fn coded(meta: &BlockMeta) -> [u8; CODED] {
    meta.as_bytes()[..CODED].try_into().expect("invariant: a metadata starts with its code")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn metadata_opens_as_sealed_and_every_flip_is_caught(
            lba in any::<u64>(), sequence in any::<u64>(), crc in any::<u32>(), kind in 0..4u8,
            segment in any::<u64>(), stripe in any::<u32>(), bit in 0..44 * 8usize,
        ) {
            let identity = Identity { lba, sequence, crc, kind };
            let meta = seal(&identity.bytes(), segment, stripe, crc);
            let mut bytes = meta.as_bytes().to_vec();
            let opened = open(&bytes, segment).unwrap();
            prop_assert_eq!(Identity::from_bytes(&coded(&opened)), Some(identity));
            prop_assert!(open(&bytes, segment ^ 1).is_none());
            prop_assert!(open(&bytes[1..], segment).is_none());
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(open(&bytes, segment).is_none());
        }
    }
}
