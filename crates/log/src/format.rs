//! Everything this crate defines on media, and nothing else.
//!
//! Invariants
//! - All numbers are little-endian, no structure has padding, reserved bytes are zero.
//! - A *block* is 4 KiB for every size of the drive's logical blocks.
//! - A record is whole blocks: header, body, zeros to the end of its last block. Its CRC32C covers
//!   the header (with `crc` as 0) and the body; a reader checks that the rest is zeros.
//! - A delta block is a record of one block whose `sequence` is its place: half × 2³² + block of
//!   the half. Its body consists of groups only.

use crate::record::Uuid;
use zerocopy::little_endian::{U16, U32, U64};

/// Bytes in a block.
pub const BLOCK_SIZE: usize = 4096;
/// First four bytes of every record: "FRW1".
pub const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"FRW1");
/// Version of the record header this program writes.
pub const RECORD_VERSION: u16 = 1;
/// Maximum number of bytes of a record, header and body. This maximum bounds how much is read if a
/// length is damaged, and is enough for a table page that fills a zone of 96 MiB.
pub const RECORD_LENGTH_MAX: u32 = 128 << 20;
/// Number of bytes of the body in a record of one block.
pub const BLOCK_BODY: usize = BLOCK_SIZE - RecordHeader::SIZE;

crate::layout! {
    /// Opens every record on media.
    pub struct RecordHeader: 96 {
        /// "FRW1".
        pub magic: U32,
        /// Kind of the record; each engine's format module defines its own kinds.
        pub kind: U16,
        /// Format version of this header.
        pub version: U16,
        /// Bytes of header and body.
        pub length: U32,
        /// CRC32C of the header with this field as 0, then of the body.
        pub crc: U32,
        /// Mount epoch in which the record was written; never reused.
        pub epoch: U64,
        /// Checkpoint that the record belongs to.
        pub checkpoint: U64,
        /// Sequence number; its meaning depends on the kind.
        pub sequence: U64,
        /// The drive.
        pub device: Uuid,
        /// The engine (file system, array, store).
        pub object: Uuid,
        /// Records of the same log below this sequence were durable when this one was written; 0:
        /// nothing is said of them.
        pub durable: U64,
        /// Zeros.
        pub reserved: [u8; 16],
    }

    /// A run of delta-log blocks that belongs to a checkpoint.
    pub struct ExtentEntry: 16 {
        /// Half of the delta log: 0 or 1.
        pub half: u8,
        /// Zeros.
        pub reserved: [u8; 3],
        /// First block, counted through the half's zones.
        pub first: U32,
        /// Number of blocks.
        pub blocks: U32,
        /// CRC32C over all bytes of these blocks, in order.
        pub crc: U32,
    }

    /// Opens a group of entries of one table in a delta block; `entries` × (index, payload) follow.
    pub struct DeltaGroup: 8 {
        /// Number of the table.
        pub table: u8,
        /// Zero.
        pub reserved: u8,
        /// Entries in the group, at least 1.
        pub entries: U16,
        /// Payload bytes per entry.
        pub payload: U16,
        /// Zeros.
        pub reserved2: [u8; 2],
    }

    /// A superzone of the pool: `width` consecutive zones from `first`, without those missing.
    pub struct Descriptor: 16 {
        /// First zone.
        pub first: U32,
        /// Number of releases of the superzone (resets of all its zones).
        pub generation: U32,
        /// Zones, bad ones included: 1 to 32.
        pub width: u8,
        /// 0 free, 1 active, 2 inactive, 3 full, 4 retired, 5 of tables.
        pub state: u8,
        /// Zeros.
        pub reserved: [u8; 2],
        /// Bit i set: zone `first` + i is bad and not used.
        pub missing: U32,
    }
}

/// Every structure of this crate on media.
pub const LAYOUTS: &[crate::layout::Layout] =
    &[RecordHeader::LAYOUT, ExtentEntry::LAYOUT, DeltaGroup::LAYOUT, Descriptor::LAYOUT];

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables drive the format document: they must cover each structure without a gap.
    #[test]
    fn field_tables_cover_every_byte() {
        for layout in LAYOUTS {
            let mut end = 0;
            for field in layout.fields {
                assert_eq!(field.offset, end, "{}.{}", layout.name, field.name);
                assert!(!field.doc.trim().is_empty());
                end += field.size;
            }
            assert_eq!(end, layout.size, "{}", layout.name);
        }
    }
}
