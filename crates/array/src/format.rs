//! Format version 1 of the array: the records in its members' state rings.
//!
//! All numbers are little-endian, a block is 4 KiB. On each drive a ring of two zones for *state
//! records* comes first. A state record has the array's own fields and the payload of the array's
//! user; in version 1 the payload lies between and after the array's fields.

use furrow_log::layout;
use furrow_log::record::Uuid;
use zerocopy::little_endian::{I64, U32, U64};

/// The format version that this code writes; a newer one is refused.
pub const VERSION: u16 = 1;
/// Incompatible feature: the drives' out-of-band area is missing or too small, so metadata blocks
/// among the data describe the other blocks.
pub const BARE: u64 = 1;
/// Incompatible features that this version can read.
pub const INCOMPAT_KNOWN: u64 = BARE;
/// Number of zones in the state ring of a drive.
pub const RING_ZONES: u32 = 2;

/// Record kinds (the `kind` of the record header).
pub mod kind {
    /// State record: superblock and checkpoint.
    pub const STATE: u16 = 0x20;
    /// Header of a zone that the array's user has begun.
    pub const SEGMENT: u16 = 0x21;
    /// Record of a drive that waits for a member to fail.
    pub const SPARE: u16 = 0x25;
}

/// States of a member.
pub mod member {
    /// In service.
    pub const ACTIVE: u8 = 0;
    /// Out of service: its data is stale.
    pub const FAILED: u8 = 1;
    /// In service for new segments; older segments are being rebuilt on it.
    pub const REBUILDING: u8 = 2;
}

layout! {
    /// Fixed part of a state record's body; members, segments and the map's root follow.
    ///
    /// Invariants: `member < drives`; `1 + rows + footer blocks ≤ zone_capacity`;
    /// `segments × data chunks × rows < 2^32`. Of several records, the one with the most `events`
    /// counts; of these, the one with the highest `sequence` in its header.
    pub struct ArrayBody: 232 {
        /// Features an older version may ignore.
        pub compat: U64,
        /// Features an older version may serve read-only.
        pub ro_compat: U64,
        /// Features an older version must refuse.
        pub incompat: U64,
        /// Name of the array, UTF-8, zero-padded.
        pub label: [u8; 64],
        /// When the array was made, seconds since 1970.
        pub created: I64,
        /// Count of events, raised before the first acknowledgement without a member.
        pub events: U64,
        /// Blocks of the volume.
        pub blocks: U64,
        /// Lower bound of the sequence number of the next block.
        pub next_sequence: U64,
        /// Lower bound of the sequence number of the next segment.
        pub next_segment: U64,
        /// RAID level: 0, 1 (for 01), 4, 5 or 6.
        pub level: u8,
        /// Bit 0: stopped cleanly; nothing came after this record.
        pub flags: u8,
        /// Zeros.
        pub reserved: [u8; 2],
        /// Drives.
        pub drives: U32,
        /// Number of the member on this drive.
        pub member: U32,
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
        /// Segment entries that follow the members.
        pub entries: U32,
        /// When this record was written, seconds since 1970; 0: not known.
        pub recorded: I64,
        /// Zeros.
        pub reserved2: [u8; 36],
    }

    /// Body of a spare's record; the record's header has the UUID of the array.
    pub struct SpareBody: 128 {
        /// Features an older version may ignore.
        pub compat: U64,
        /// Features an older version may serve read-only.
        pub ro_compat: U64,
        /// Features an older version must refuse.
        pub incompat: U64,
        /// Name of the array, UTF-8, zero-padded.
        pub label: [u8; 64],
        /// When the array was made, seconds since 1970.
        pub created: I64,
        /// Blocks of the volume.
        pub blocks: U64,
        /// Members of the array.
        pub drives: U32,
        /// RAID level of the array: 0, 1 (for 01), 4, 5 or 6.
        pub level: u8,
        /// Zeros.
        pub reserved: [u8; 19],
    }

    /// The entry of a member in a state record.
    pub struct MemberEntry: 32 {
        /// UUID of the member: `device` in its records.
        pub uuid: Uuid,
        /// `events` when the member was last in service.
        pub events: U64,
        /// 0 active, 1 failed, 2 rebuilding.
        pub state: u8,
        /// Zeros.
        pub reserved: [u8; 3],
        /// The last state record that the member is known to have is this number of records before
        /// this one; 0: none is known.
        pub behind: U32,
    }
}

/// `incompat` is at the same offset in both kinds of record, so it can be read before the kind
/// is known.
const _: () = assert!(
    core::mem::offset_of!(ArrayBody, incompat) == core::mem::offset_of!(SpareBody, incompat)
);
