//! Everything a store defines on media, and nothing else.
//!
//! A store keeps its metadata in a record ring ([`furrow_log::ring`]) that follows the drive's
//! conventional zones, and its files' content in the zones after the ring. A half of the ring
//! begins with a [`SuperblockBody`] record. Records of *entries* follow: first a snapshot of all
//! names and files, whose last record is flagged as such; then later changes, in *rounds*: a round
//! is one group commit.
//!
//! Invariants
//! - The half with the highest turn whose snapshot is whole counts. The other halves are emptied
//!   only once this snapshot is whole.
//! - A zone of the ring may be offline, or written without any readable record. Such a zone holds
//!   no half that counts if two conditions hold. The newest half that was found does not end with a
//!   record with [`flag::TURNS`]. The first zone of that half could be emptied, but was not.
//! - Records of a half have consecutive sequence numbers. A round begins when the round before it
//!   is durable. So a gap is damage if one of these records follows the gap: a record that states
//!   that the missing record was durable; a record at least two rounds later than the last record
//!   before the gap; any record in the same zone; or, for a gap in the snapshot, any record of a
//!   round. Otherwise the records at the gap were never promised to be durable.
//! - The half before the half that counts is kept until the ring turns again. If the last record of
//!   the kept half has [`flag::SAME`], the records of the kept half add up to the snapshot of the
//!   half that counts.
//! - Only the last round may name content that is not on the drive. If it does, the files that it
//!   names have the state of the round before.
//! - An entry is a head and its body, whole within one record.
//! - Content is whole blocks; each has its CRC32C, in the entry or in a block of checksums. Bytes
//!   after a file's last whole block are in the entry, or in a last block padded with zeros.

use furrow_log::format::BLOCK_BODY;
use furrow_log::layout;
use furrow_log::record::Uuid;
use zerocopy::little_endian::{I64, U16, U32, U64};

/// The superblock states the role of each zone of the ring.
pub const INCOMPAT_ROLES: u64 = 1;
/// Files may have extents without a place, which read as zeros.
pub const INCOMPAT_HOLES: u64 = 2;
/// Features that an older version must refuse.
pub const INCOMPAT_KNOWN: u64 = INCOMPAT_ROLES | INCOMPAT_HOLES;
/// Maximum number of bytes of a path.
pub const PATH_MAX: usize = 1024;
/// Maximum number of blocks of an extent: as many as one block of checksums covers.
pub const EXTENT_MAX: u32 = ((BLOCK_BODY - SumsHead::SIZE) / 4) as u32;

/// Kinds of records.
pub mod kind {
    /// Superblock: the first record of a half.
    pub const SUPERBLOCK: u16 = 0x30;
    /// A record of entries.
    pub const ENTRIES: u16 = 0x31;
    /// A block of checksums of an extent; its sequence number is the number of the file.
    pub const SUMS: u16 = 0x32;
}

/// Kinds of entries.
pub mod entry {
    /// A path names a directory, or a file by its number.
    pub const NAME: u8 = 1;
    /// A path names nothing any more.
    pub const REMOVE: u8 = 2;
    /// A path, and everything below it, gets another name.
    pub const RENAME: u8 = 3;
    /// The state of a file from some block on.
    pub const FILE: u8 = 4;
    /// The youngest blob files that were written to a zone since its reset.
    pub const ZONE: u8 = 5;
}

/// Flags of a record of entries.
pub mod flag {
    /// The record belongs to the snapshot.
    pub const SNAPSHOT: u32 = 1;
    /// The record is the last of the snapshot.
    pub const WHOLE: u32 = 2;
    /// The ring turns behind this record, which has no entries: a newer half may count.
    pub const TURNS: u32 = 4;
    /// With `TURNS`: the records of this half add up to the snapshot of the next half.
    pub const SAME: u32 = 8;
}

layout! {
    /// Body of the first record of a half of the ring. A byte follows for each zone of the ring: 0
    /// for a zone available to other halves, 1 for a zone of this half, 2 for a failed zone. Stores
    /// without the feature of roles have no such bytes: their halves are consecutive.
    ///
    /// Invariants: the zones of the ring lie behind the conventional zones, and the zones of
    /// content lie behind the ring; the drive's geometry gives the numbers of both. A half's zones
    /// are in ascending order.
    pub struct SuperblockBody: 120 {
        /// Features an older version may ignore.
        pub compat: U64,
        /// Features an older version may open for reading.
        pub ro_compat: U64,
        /// Features an older version must refuse.
        pub incompat: U64,
        /// Label, UTF-8, padded with zeros.
        pub label: [u8; 64],
        /// When the store was made, seconds since 1970.
        pub created: I64,
        /// Zones of the drive.
        pub zones: U32,
        /// Blocks of 4 KiB of a zone.
        pub zone_blocks: U32,
        /// First zone of the ring.
        pub ring_start: U32,
        /// Zones of each half of the ring; fewer where zones failed.
        pub half_zones: U32,
        /// Zones of the ring beyond those of two halves.
        pub spare_zones: U32,
        /// Zeros.
        pub reserved: [u8; 4],
    }

    /// Opens the body of a record of entries.
    pub struct EntriesHead: 24 {
        /// [`flag`]s.
        pub flags: U32,
        /// Entries that follow.
        pub entries: U32,
        /// Number of the round, a group commit, that the record belongs to; in a snapshot, of the
        /// last round that it holds.
        pub round: U64,
        /// Number of the next file to be made.
        pub next_file: U64,
    }

    /// Opens an entry.
    pub struct EntryHead: 8 {
        /// [`entry`].
        pub kind: u8,
        /// Zeros.
        pub reserved: [u8; 3],
        /// Bytes of the entry's body.
        pub length: U32,
    }

    /// Opens the body of an entry that names a file or directory; the path follows.
    pub struct NameEntry: 16 {
        /// Number of the file; 0: a directory.
        pub file: U64,
        /// Bytes of the path.
        pub path: U16,
        /// Zeros.
        pub reserved: [u8; 6],
    }

    /// Opens the body of an entry that renames; the two paths follow.
    pub struct RenameEntry: 8 {
        /// Bytes of the old path.
        pub from: U16,
        /// Bytes of the new path.
        pub to: U16,
        /// Zeros.
        pub reserved: [u8; 4],
    }

    /// Opens the body of an entry of a file. Extents follow, each with its checksums if they are
    /// in the entry, then the bytes behind the last whole block.
    ///
    /// Invariants: extents are in the order of the file; the first begins at `keep`, and each of
    /// the others begins at the end of the extent before it; `size ≤ blocks × 4096 + tail`; `tail
    /// < 4096`.
    pub struct FileEntry: 48 {
        /// The file's number, never used again.
        pub file: U64,
        /// Size of the file in bytes.
        pub size: U64,
        /// Time of the last write, seconds since 1970.
        pub modified: I64,
        /// Blocks at the front of the file whose extents an earlier entry has.
        pub keep: U32,
        /// Extents that follow.
        pub extents: U32,
        /// Bytes behind the last whole block that follow.
        pub tail: U32,
        /// Expected lifetime: 0 unknown, 1 none, 2 short to 5 extreme.
        pub lifetime: u8,
        /// Zeros.
        pub reserved: [u8; 11],
    }

    /// Opens the body of an entry of a zone. A [`YoungestEntry`] for each family follows; if there
    /// is none, the zone was reset.
    ///
    /// Invariants: the entry is recorded when the zone fills, and in snapshots. An entry of an
    /// empty zone does not count.
    pub struct ZoneEntry: 8 {
        /// The zone.
        pub zone: U32,
        /// Families that follow.
        pub families: U32,
    }

    /// The youngest blob file of a column family in a zone; the directory of the database and the
    /// family's name follow. The file may be gone.
    pub struct YoungestEntry: 16 {
        /// Number of the blob file, from its name.
        pub number: U64,
        /// Bytes of the directory's path.
        pub directory: U16,
        /// Bytes of the family's name.
        pub name: U16,
        /// Zeros.
        pub reserved: [u8; 4],
    }

    /// A run of blocks of a file that are consecutive in a zone, or that have no place.
    pub struct ExtentEntry: 16 {
        /// First block in the file.
        pub first: U32,
        /// Number of blocks: 1 to 998.
        pub blocks: U32,
        /// Address of the first block; `0xffffffff`: a hole, which reads as zeros.
        pub at: U32,
        /// Address of the block with their checksums; `0xffffffff`: 4 bytes for each block follow.
        /// 0 for a hole.
        pub sums: U32,
    }

    /// Opens the body of a block of checksums, one of 4 bytes for each block of the extent.
    pub struct SumsHead: 8 {
        /// First block of the extent in the file.
        pub first: U32,
        /// Blocks of the extent.
        pub blocks: U32,
    }
}

/// The identity that the superblock states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// UUID of the store.
    pub store: Uuid,
    /// UUID of the drive it was made on.
    pub device: Uuid,
}

/// Every structure of a store on media.
pub const LAYOUTS: &[layout::Layout] = &[
    SuperblockBody::LAYOUT,
    EntriesHead::LAYOUT,
    EntryHead::LAYOUT,
    NameEntry::LAYOUT,
    RenameEntry::LAYOUT,
    FileEntry::LAYOUT,
    ZoneEntry::LAYOUT,
    YoungestEntry::LAYOUT,
    ExtentEntry::LAYOUT,
    SumsHead::LAYOUT,
];
