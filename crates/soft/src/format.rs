//! Every structure that this crate stores on a plain drive, and the layout of the drive.
//!
//! Invariants
//! - Every structure is the body of a record of `furrow_log` (`RecordHeader`), and so has a
//!   checksum and the drive's UUID. Blocks are 4 KiB.
//! - [`Layout::of`] accepts only layouts whose parts lie on the drive, in order, without overlap.

use furrow_log::record::blocks_for;
use furrow_log::{BLOCK_SIZE, Uuid};
use furrow_zone::{BlockCount, ByteLen, Error, ErrorKind, Geometry, Result, ZoneId, ZoneState};
use zerocopy::little_endian::{U32, U64};

/// Kinds of records.
pub mod kind {
    /// The superblock.
    pub const SUPERBLOCK: u16 = 0x60;
    /// The table of zones that begins a half of the journal.
    pub const TABLE: u16 = 0x61;
    /// Ranges that were written, and zones that were reset, finished or failed.
    pub const CHANGES: u16 = 0x62;
}

/// Size of a block in bytes.
pub const BLOCK: u64 = BLOCK_SIZE as u64;
/// The title in a superblock, readable in a dump of its bytes.
pub const TITLE: [u8; 24] = *b"Furrow soft zones\0\0\0\0\0\0\0";
/// A feature: each record of changes repeats the changes of the record before.
pub const INCOMPAT_REPEATS: u64 = 1;
/// Features that this program can read.
pub const INCOMPAT_KNOWN: u64 = INCOMPAT_REPEATS;
/// Maximum number of zones on a drive.
pub const ZONES_MAX: u32 = 1 << 22;
/// Maximum number of blocks in a half of the journal.
const HALF_MAX: u32 = 1 << 18;

furrow_log::layout! {
    /// The body of a superblock. `sequence` of its record is 0.
    pub struct SuperblockBody: 80 {
        /// "Furrow soft zones", padded with zeros.
        pub title: [u8; 24],
        /// Features an older version must refuse: 1 records of changes repeat those of the record
        /// before.
        pub incompat: U64,
        /// Blocks of the plain drive; the last one holds the other copy of the superblock.
        pub blocks: U64,
        /// First block of the journal.
        pub journal: U64,
        /// First block of the first zone.
        pub first: U64,
        /// Blocks of each half of the journal.
        pub half: U32,
        /// Blocks at the start of a half that are kept for the table.
        pub table: U32,
        /// Zones.
        pub zones: U32,
        /// Blocks of each zone.
        pub zone_blocks: U32,
        /// Zeros.
        pub reserved: [u8; 8],
    }

    /// A zone in the table.
    pub struct ZoneEntry: 12 {
        /// Number of resets of the zone.
        pub generation: U32,
        /// Blocks written, from the zone's start.
        pub pointer: U32,
        /// 0 writable, 1 full, 2 read-only.
        pub state: u8,
        /// Zeros.
        pub reserved: [u8; 3],
    }

    /// A change of a zone in a record of changes. For a range, `count` checksums follow: the
    /// CRC32C of each block, 4 bytes each.
    pub struct Change: 20 {
        /// 0 range, 1 new state, 2 what follows repeats the record before.
        pub kind: u8,
        /// The state from now on, as in the table; 0 for others.
        pub state: u8,
        /// Zeros.
        pub reserved: [u8; 2],
        /// The zone.
        pub zone: U32,
        /// Number of resets of the zone so far, including this change.
        pub generation: U32,
        /// Range: its first block, counted from the zone's start. State: blocks written.
        pub from: U32,
        /// Range: number of blocks, at least 1. Others: 0.
        pub count: U32,
    }
}

/// Every structure of this crate on media.
pub const LAYOUTS: &[furrow_log::layout::Layout] =
    &[SuperblockBody::LAYOUT, ZoneEntry::LAYOUT, Change::LAYOUT];

/// Size in bytes of the fixed start of a record of changes: the sequence number of the table in
/// its half.
pub const CHANGES_FIXED: usize = 8;

/// The facts about a zone that survive a power cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lasting {
    /// Number of resets of the zone.
    pub generation: u32,
    /// Number of blocks written.
    pub pointer: u32,
    pub state: LastingState,
}

/// The state of a zone as the journal stores it: fewer kinds than [`ZoneState`] has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum LastingState {
    /// The zone is empty, closed, or full because it is written to its end.
    #[default]
    Writable = 0,
    /// The zone was finished before its end.
    Full = 1,
    ReadOnly = 2,
}

impl LastingState {
    pub(crate) fn from_byte(byte: u8) -> Option<LastingState> {
        let all = [LastingState::Writable, LastingState::Full, LastingState::ReadOnly];
        all.get(usize::from(byte)).copied()
    }
}

impl Lasting {
    pub(crate) fn entry(&self) -> ZoneEntry {
        ZoneEntry {
            generation: self.generation.into(),
            pointer: self.pointer.into(),
            state: self.state as u8,
            reserved: [0; 3],
        }
    }

    /// Decodes an entry; `None` if it is impossible in a zone of `blocks` blocks.
    pub(crate) fn of(entry: &ZoneEntry, blocks: u32) -> Option<Lasting> {
        let (generation, pointer) = (entry.generation.get(), entry.pointer.get());
        let state = LastingState::from_byte(entry.state)?;
        (pointer <= blocks).then_some(Lasting { generation, pointer, state })
    }

    /// Returns the zone's state after a power cycle.
    pub(crate) fn zone_state(&self, blocks: u32) -> ZoneState {
        match self.state {
            LastingState::ReadOnly => ZoneState::ReadOnly,
            LastingState::Full => ZoneState::Full,
            LastingState::Writable if self.pointer == blocks => ZoneState::Full,
            LastingState::Writable if self.pointer == 0 => ZoneState::Empty,
            LastingState::Writable => ZoneState::Closed,
        }
    }
}

/// The place of each part on a plain drive. All numbers are blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of blocks of the plain drive.
    pub blocks: u64,
    /// First block of the journal.
    pub journal: u64,
    /// Number of blocks in each half of the journal.
    pub half: u32,
    /// Number of blocks at the start of each half that are kept for the table.
    pub table: u32,
    /// First block of the first zone.
    pub first: u64,
    /// Number of zones.
    pub zones: u32,
    /// Number of blocks in each zone.
    pub zone_blocks: u32,
}

/// The identity and layout of a plain drive with soft zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// UUID of the drive.
    pub uuid: Uuid,
    /// Layout of the drive.
    pub layout: Layout,
    /// Whether records of changes repeat the changes of the record before.
    pub repeats: bool,
}

impl Superblock {
    pub(crate) fn body(&self) -> SuperblockBody {
        let features = if self.repeats { INCOMPAT_REPEATS } else { 0 };
        SuperblockBody { incompat: features.into(), ..self.layout.body() }
    }
}

/// Number of blocks that the table of `zones` zones takes.
pub(crate) fn table_blocks(zones: u32) -> u32 {
    blocks_for(zones as usize * ZoneEntry::SIZE)
}

/// Number of blocks in a zone of `zone` bytes.
///
/// # Errors
/// `Invalid` if no soft zone can have this size.
pub fn zone_blocks(zone: ByteLen) -> Result<u32> {
    let blocks = u32::try_from(zone.0 / BLOCK).unwrap_or(0);
    if !zone.0.is_multiple_of(BLOCK) || blocks == 0 {
        let what = format!("zones of {zone} bytes: give a multiple of 4096, below 16 TiB");
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    Ok(blocks)
}

impl Layout {
    /// Plans the layout for zones of `zone` bytes on a plain drive of `size` bytes. Each half of
    /// the journal holds `records` blocks of records; with `None`, a number that suits the drive.
    ///
    /// # Errors
    /// `Invalid` if a size is not a multiple of 4 KiB or is too large, `NoSpace` if no zone fits.
    pub fn plan(size: ByteLen, zone: ByteLen, records: Option<u32>) -> Result<Layout> {
        let zone_blocks = u64::from(zone_blocks(zone)?);
        let blocks = size.0 / BLOCK;
        let most = blocks / zone_blocks;
        if most > u64::from(ZONES_MAX) {
            let what = format!(
                "{most} zones of {zone} bytes, but at most {ZONES_MAX} are possible: give a larger \
                 size"
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        // The sizes of flash erase blocks are unknown; most are multiples of 1 MiB.
        let align = if blocks >= 64 << 8 { 256 } else { 1 };
        let records = records.unwrap_or((blocks / 256).clamp(16, 1024) as u32).clamp(1, HALF_MAX);
        let table = table_blocks(most as u32);
        let half = table.saturating_add(records);
        let journal = align;
        let first = (journal + 2 * u64::from(half)).next_multiple_of(align);
        let zones = blocks.saturating_sub(first + 1) / zone_blocks;
        if zones == 0 {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "{size} bytes have no space for a zone of {zone} bytes and a journal of {} \
                     bytes: give smaller zones",
                    first * BLOCK
                ),
            ));
        }
        let zone_blocks = zone_blocks as u32;
        Ok(Layout { blocks, journal, half, table, first, zones: zones as u32, zone_blocks })
    }

    /// Reads the layout in a superblock.
    ///
    /// # Errors
    /// `Corrupt` if its parts overlap or exceed the drive.
    pub fn of(body: &SuperblockBody) -> Result<Layout> {
        let layout = Layout {
            blocks: body.blocks.get(),
            journal: body.journal.get(),
            half: body.half.get(),
            table: body.table.get(),
            first: body.first.get(),
            zones: body.zones.get(),
            zone_blocks: body.zone_blocks.get(),
        };
        let end = || {
            let zones = u64::from(layout.zones).checked_mul(u64::from(layout.zone_blocks))?;
            layout.first.checked_add(zones)?.checked_add(1)
        };
        let journal_end = layout.journal.checked_add(2 * u64::from(layout.half));
        let fits = layout.zones > 0
            && layout.zones <= ZONES_MAX
            && layout.zone_blocks > 0
            && layout.journal > 0
            && layout.table >= table_blocks(layout.zones)
            && layout.half > layout.table
            && layout.half <= 2 * HALF_MAX
            && journal_end.is_some_and(|end| end <= layout.first)
            && end().is_some_and(|end| end <= layout.blocks)
            && layout.blocks <= i64::MAX as u64 / BLOCK;
        match fits {
            true => Ok(layout),
            false => {
                Err(Error::new(ErrorKind::Corrupt, format!("an impossible layout: {layout:?}")))
            }
        }
    }

    pub(crate) fn body(&self) -> SuperblockBody {
        SuperblockBody {
            title: TITLE,
            incompat: 0.into(),
            blocks: self.blocks.into(),
            journal: self.journal.into(),
            first: self.first.into(),
            half: self.half.into(),
            table: self.table.into(),
            zones: self.zones.into(),
            zone_blocks: self.zone_blocks.into(),
            reserved: [0; 8],
        }
    }

    /// First byte, on the plain drive, of block `block` of `zone`.
    pub(crate) fn at(&self, zone: ZoneId, block: u32) -> u64 {
        let zone = u64::from(zone.0) * u64::from(self.zone_blocks);
        (self.first + zone + u64::from(block)) * BLOCK
    }

    /// First byte, on the plain drive, of half `half` of the journal.
    pub(crate) fn half_at(&self, half: usize) -> u64 {
        (self.journal + half as u64 * u64::from(self.half)) * BLOCK
    }

    /// Number of blocks for records in a half, after the table.
    pub(crate) fn records(&self) -> u32 {
        self.half - self.table
    }

    /// The geometry of the zoned drive; one transfer has at most `transfer` bytes.
    pub fn geometry(&self, transfer: ByteLen) -> Geometry {
        let zone = u64::from(self.zone_blocks);
        Geometry {
            max_transfer: Some(BlockCount((transfer.0 / BLOCK).max(1))),
            unwritten_reads_fail: true,
            volatile_cache: true,
            ..Geometry::unlimited(self.zones, zone, zone)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A planned layout is accepted when it is read back, and uses the whole drive.
        #[test]
        fn a_plan_fits_its_drive(blocks in 40u64..1 << 30, zone in 1u64..1 << 16) {
            let (size, zone) = (ByteLen(blocks * BLOCK + 77), ByteLen(zone * BLOCK));
            if let Ok(layout) = Layout::plan(size, zone, None) {
                prop_assert_eq!(Layout::of(&layout.body()).expect("it fits"), layout);
                let end = layout.at(ZoneId(layout.zones), 0) / BLOCK;
                prop_assert!(end < blocks && blocks - end <= zone.0 / BLOCK + 1);
            }
        }

        /// No body of a superblock causes a panic.
        #[test]
        fn any_body_is_accepted_or_refused(bytes in proptest::array::uniform32(any::<u8>())) {
            use zerocopy::FromBytes as _;
            let mut all = [0; SuperblockBody::SIZE];
            all[32..64].copy_from_slice(&bytes);
            all[64..].copy_from_slice(&bytes[..16]);
            let body = SuperblockBody::read_from_bytes(&all).expect("its size");
            let _ = Layout::of(&body);
        }
    }

    #[test]
    fn a_terabyte_in_zones_of_64_mib() {
        let layout = Layout::plan(ByteLen(1 << 40), ByteLen(64 << 20), None).expect("it fits");
        assert_eq!((layout.journal, layout.table, layout.half), (256, 49, 49 + 1024));
        assert_eq!((layout.first % 256, layout.zones), (0, 16_383));
        let none = Layout::plan(ByteLen(1 << 20), ByteLen(1 << 20), None).expect_err("too small");
        assert_eq!(none.kind(), ErrorKind::NoSpace);
    }
}
