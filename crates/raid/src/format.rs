//! Format version 1 of the volume: every structure on its drives. Structures that every kind of
//! array has are in `furrow_array`; all others are here.
//!
//! All numbers are little-endian, a block is 4 KiB. On each drive: a ring of two zones for *state
//! records* (superblock and checkpoint in one), then zones each of which belongs to one segment at
//! a time. A zone of a segment has a header record (1 block), data rows, and a footer record.
//! `docs/inside/volume-format.md` shows the same tables; a test compares them with this file.

use furrow_log::layout;
use zerocopy::little_endian::{U32, U64};

pub use furrow_array::format::{
    ArrayBody, BARE, INCOMPAT_KNOWN, MemberEntry, RING_ZONES, SpareBody, VERSION, member,
};

/// Stands for no block and for no stripe.
pub const NONE: u32 = u32::MAX;
/// Number of stripes in a window. On drives without an out-of-band area, the last stripe of a
/// window lists the blocks of the other stripes.
pub const WINDOW: u32 = 64;
/// Number of entries in a mapping block.
pub const MAPPED: u32 = 1024;

/// Record kinds (the `kind` of the record header).
pub mod kind {
    pub use furrow_array::format::kind::{SEGMENT, SPARE, STATE};

    /// The footer: the last blocks of a segment's zone.
    pub const FOOTER: u16 = 0x22;
    /// A block of ranges that were trimmed.
    pub const TRIM: u16 = 0x23;
    /// A metadata block: the list of the blocks before it in its window.
    pub const WINDOW: u16 = 0x24;
}

/// Kinds of blocks in a stripe.
pub mod block {
    /// Zeros that fill a stripe.
    pub const PADDING: u8 = 0;
    /// A block of the volume; its `lba` is its address in the volume.
    pub const DATA: u8 = 1;
    /// A mapping block; its `lba` is its number in the map.
    pub const MAPPING: u8 = 2;
    /// A trim record; its `lba` means nothing.
    pub const TRIM: u8 = 3;
    /// Parity, in footers only.
    pub const PARITY: u8 = 4;
    /// A metadata block, in the lists of metadata blocks only; its `lba` is all ones.
    pub const WINDOW: u8 = 5;
}

/// States of a segment.
pub mod segment {
    /// The slot holds no segment.
    pub const FREE: u8 = 0;
    /// Being written.
    pub const OPEN: u8 = 1;
    /// Written to its end, with footers.
    pub const SEALED: u8 = 2;
    /// Ended early, without footers: only the metadata of the blocks gives their places.
    pub const TRUNCATED: u8 = 3;
}

layout! {
    /// Fixed part of the volume's payload of a state record; segments and the map's root follow.
    /// In the record these fields are among those of [`ArrayBody`].
    pub struct VolumeBody: 72 {
        /// Blocks of the volume.
        pub blocks: U64,
        /// Lower bound of the sequence number of the next block.
        pub next_sequence: U64,
        /// Lower bound of the sequence number of the next segment.
        pub next_segment: U64,
        /// Zones of each drive that are used.
        pub zones: U32,
        /// Blocks that can be written per zone.
        pub zone_capacity: U32,
        /// Data rows of a segment.
        pub rows: U32,
        /// Maximum number of segments, which is the number of slots.
        pub segments: U32,
        /// Mapping blocks.
        pub mappings: U32,
        /// Open segments with small chunks.
        pub small: U32,
        /// Open segments with large chunks.
        pub large: U32,
        /// Blocks of a small chunk.
        pub chunk_small: U32,
        /// Blocks of a large chunk.
        pub chunk_large: U32,
        /// Stripes of a group; 1: Zone Write only.
        pub group: U32,
        /// Percent of the volume's size that is kept free in addition to it.
        pub reserve: U32,
        /// Segment entries that follow.
        pub entries: U32,
    }

    /// A segment that is not free, as of the checkpoint's snapshot.
    pub struct SegmentEntry: 40 {
        /// Slot of the segment.
        pub slot: U32,
        /// 1 open, 2 sealed, 3 truncated.
        pub state: u8,
        /// Zeros.
        pub reserved: [u8; 3],
        /// Sequence number of the segment. If a slot has several segments, the highest
        /// number counts.
        pub sequence: U64,
        /// Valid blocks in the segment.
        pub valid: U32,
        /// Data rows that were written at the snapshot.
        pub rows: U32,
        /// Blocks of a chunk.
        pub chunk: U32,
        /// Stripes of a group.
        pub group: U32,
        /// Bit i: member i has no zone in the segment.
        pub missing: U32,
        /// Zeros.
        pub reserved2: [u8; 4],
    }

    /// Body of the header record of a segment's zone; the record's `sequence` is the segment's.
    pub struct SegmentBody: 32 {
        /// Slot of the segment.
        pub slot: U32,
        /// Number of the member on whose drive the zone is.
        pub member: U32,
        /// Blocks of a chunk.
        pub chunk: U32,
        /// Stripes of a group; 1: Zone Write.
        pub group: U32,
        /// Data rows.
        pub rows: U32,
        /// Bit i: member i has no zone in the segment.
        pub missing: U32,
        /// Zeros.
        pub reserved: [u8; 8],
    }

    /// Metadata of a block in a data row, kept in the block's out-of-band area or in the list of
    /// the block's window. The first four fields are *coded*: the metadata of a parity block has
    /// the parity of these fields of the data blocks in its row.
    pub struct BlockMeta: 48 {
        /// Address in the volume, or as the kind of the block defines it.
        pub lba: U64,
        /// Sequence number: of two blocks with one address, the one with the higher number
        /// is newer.
        pub sequence: U64,
        /// CRC32C of the data block.
        pub crc: U32,
        /// Kind of the data block: see `block`.
        pub kind: U32,
        /// Sequence number of the segment.
        pub segment: U64,
        /// Stripe in the segment; all ones: of no stripe.
        pub stripe: U32,
        /// CRC32C of this block.
        pub own_crc: U32,
        /// CRC32C of the fields above.
        pub check: U32,
        /// Zeros.
        pub reserved: [u8; 4],
    }

    /// Body of a metadata block; the record's `sequence` is the segment's. After the body come the
    /// [`BlockMeta`]s of row `row` of each stripe before `stripe` in the window.
    pub struct WindowBody: 8 {
        /// Stripe of the metadata block.
        pub stripe: U32,
        /// Row of the metadata block in its chunk.
        pub row: U32,
    }

    /// A footer's entry for a block of a data row.
    pub struct FooterEntry: 24 {
        /// Address, with the kind in the highest byte.
        pub lba: U64,
        /// Sequence number.
        pub sequence: U64,
        /// CRC32C of this block.
        pub crc: U32,
        /// Stripe in the segment; all ones: of no stripe.
        pub stripe: U32,
    }

    /// A range in a trim record.
    pub struct TrimEntry: 16 {
        /// First block.
        pub lba: U64,
        /// Number of blocks.
        pub blocks: U64,
    }
}

/// Bytes of the coded part of a [`BlockMeta`].
pub const CODED: usize = 24;

/// The list of a whole window fits into one metadata block.
const _: () = assert!(
    WindowBody::SIZE + (WINDOW as usize - 1) * BlockMeta::SIZE <= furrow_log::format::BLOCK_BODY
);

/// Every structure of this crate on media.
pub const LAYOUTS: &[furrow_log::layout::Layout] = &[
    ArrayBody::LAYOUT,
    SpareBody::LAYOUT,
    MemberEntry::LAYOUT,
    SegmentEntry::LAYOUT,
    SegmentBody::LAYOUT,
    BlockMeta::LAYOUT,
    WindowBody::LAYOUT,
    FooterEntry::LAYOUT,
    TrimEntry::LAYOUT,
];
