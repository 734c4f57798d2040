//! The bytes of an emulated drive's image, format version 1. `docs/inside/emulated-image.md`
//! describes the same format; a test compares its numbers with this module.
//!
//! ```text
//! 0        header        4 KiB, written once
//! 4 KiB    fault list    2 halves of 32 KiB, written in turn
//! 68 KiB   zone table A  64 bytes per zone, rounded up to 4 KiB
//!          zone table B  the same: each zone's newest record is in A or in B, in turn
//!          data          zone after zone, `zone_capacity` blocks each, rounded up to 4 KiB; sparse
//!          out-of-band   zone after zone, likewise, if the drive has such bytes; sparse
//! ```
//!
//! Invariants: the header and the zone records end in the CRC32C of the bytes before it; the head
//! of a fault list ends in the CRC32C of the whole list, computed with 0 in its place; numbers
//! are little-endian; magic, version and the header's CRC keep their places in every later
//! version, so that an old program can report that an image is too new for it; a zone's newest
//! valid record is the one with the higher generation, and generation g is in table A if g is
//! odd, in B if it is even.

use crate::transfer::ZoneRecord;
use furrow_zone::fault::{Fault, FaultKind, MAX_FAULTS, Place, When};
use furrow_zone::{BlockCount, ByteLen, Geometry, Lba, Zone, ZoneId, ZoneState};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The bytes with which every image begins.
pub const MAGIC: [u8; 8] = *b"FURROWZN";
/// The format version that this code writes, which is also the newest that it reads.
pub const VERSION: u32 = 1;
/// Size of the header, and alignment of the regions, in bytes.
pub const BLOCK: u64 = 4096;
/// Offset of the fault list in the file, in bytes.
pub const FAULTS_AT: u64 = BLOCK;
/// Size of each half of the fault list, in bytes.
pub const FAULTS_HALF: u64 = 32 * 1024;
/// Offset of the zone table in the file, in bytes.
pub const TABLE_AT: u64 = FAULTS_AT + 2 * FAULTS_HALF;

const NO_LIMIT_32: u32 = u32::MAX;
const NO_LIMIT_64: u64 = u64::MAX;
const READ_ACROSS_ZONES: u16 = 1;
const UNWRITTEN_READS_FAIL: u16 = 2;
const VOLATILE_CACHE: u16 = 4;

/// The image's first 4 KiB.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    magic: [u8; 8],
    version: U32,
    flags: U16,
    oob_bytes: U16,
    uuid: [u8; 16],
    zones: U32,
    conventional_zones: U32,
    zone_size: U64,
    zone_capacity: U64,
    block_size: U32,
    max_open: U32,
    max_active: U32,
    channels: U16,
    dies: U16,
    max_append: U64,
    max_transfer: U64,
    /// Size of the whole file in bytes.
    file_bytes: U64,
    /// The preset from which the image was made, padded with zeros; for information only.
    preset: [u8; 32],
    reserved: [u8; 3964],
    crc: U32,
}

/// One zone's record in the zone table.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Slot {
    generation: U64,
    zone: U32,
    state: u8,
    reserved: [u8; 3],
    capacity: U64,
    write_pointer: U64,
    durable: U64,
    reserved2: [u8; 20],
    crc: U32,
}

/// The head of a half of the fault list; records follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FaultHead {
    generation: U64,
    count: U32,
    crc: U32,
}

/// One fault, as the fault list stores it.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FaultRecord {
    kind: u8,
    place: u8,
    when: u8,
    /// Bit 0: `times` is set. Bit 1: `argument` is set.
    flags: u8,
    polls: U32,
    argument: U64,
    place_first: U64,
    place_blocks: U64,
    when_number: U64,
    times: U64,
    seen: U64,
    reserved: [u8; 8],
}

const _: () = assert!(size_of::<Header>() == BLOCK as usize);
const _: () = assert!(size_of::<Slot>() == 64);
const _: () = assert!(size_of::<FaultHead>() == 16);
const _: () = assert!(size_of::<FaultRecord>() == 64);
const _: () = assert!(16 + MAX_FAULTS * 64 <= FAULTS_HALF as usize);

/// Size of one zone's record, in bytes.
pub const SLOT: u64 = size_of::<Slot>() as u64;

/// The CRC32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The places of the regions of an image, all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset of zone table B; table A is at [`TABLE_AT`].
    pub table_b: u64,
    /// Offset of the first zone's data.
    pub data: u64,
    /// Distance from one zone's data to that of the next zone.
    pub data_stride: u64,
    /// Offset of the first zone's out-of-band bytes.
    pub oob: u64,
    /// Distance from one zone's out-of-band bytes to those of the next zone.
    pub oob_stride: u64,
    /// Size of the whole file in bytes.
    pub file_bytes: u64,
}

impl Layout {
    /// The layout for `geometry`; `None` if the file would exceed the largest possible size.
    pub fn of(geometry: &Geometry) -> Option<Layout> {
        let zones = u64::from(geometry.zones);
        let up = |bytes: u64| bytes.checked_next_multiple_of(BLOCK);
        let table = up(zones * SLOT)?;
        let data = TABLE_AT + 2 * table;
        let capacity = geometry.zone_capacity.0;
        let data_stride = up(capacity.checked_mul(geometry.block_size.0)?)?;
        let oob = data.checked_add(zones.checked_mul(data_stride)?)?;
        let oob_stride = up(capacity.checked_mul(u64::from(geometry.oob_bytes))?)?;
        let file_bytes = oob.checked_add(zones.checked_mul(oob_stride)?)?;
        (file_bytes <= i64::MAX as u64).then_some(Layout {
            table_b: TABLE_AT + table,
            data,
            data_stride,
            oob,
            oob_stride,
            file_bytes,
        })
    }

    /// Offset of the record of `zone` that has the generation `generation`.
    pub fn slot(&self, zone: ZoneId, generation: u64) -> u64 {
        let table = if generation % 2 == 1 { TABLE_AT } else { self.table_b };
        table + u64::from(zone.0) * SLOT
    }
}

/// The reason why bytes of an image are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The bytes are not an image.
    Foreign,
    /// The image has a version that this code does not know.
    TooNew(u32),
    /// The checksum does not match: expected (stored), found (computed).
    Crc(u32, u32),
    /// A field has an impossible value; the text says which.
    Value(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Foreign => f.write_str("not what belongs there"),
            Refusal::TooNew(version) => write!(f, "version {version}"),
            Refusal::Crc(expected, found) => {
                write!(f, "checksum {expected:08x} expected, {found:08x} found")
            }
            Refusal::Value(what) => f.write_str(what),
        }
    }
}

impl Header {
    /// Builds the header of a new image.
    pub fn new(geometry: &Geometry, layout: &Layout, uuid: [u8; 16], preset: &str) -> Header {
        let flag = |on: bool, bit: u16| if on { bit } else { 0 };
        let limit = |limit: Option<u32>| U32::new(limit.unwrap_or(NO_LIMIT_32));
        let blocks = |limit: Option<BlockCount>| U64::new(limit.map_or(NO_LIMIT_64, |l| l.0));
        let mut name = [0; 32];
        let length = preset.floor_char_boundary(name.len());
        name[..length].copy_from_slice(&preset.as_bytes()[..length]);
        let mut header = Header {
            magic: MAGIC,
            version: U32::new(VERSION),
            flags: U16::new(
                flag(geometry.read_across_zones, READ_ACROSS_ZONES)
                    | flag(geometry.unwritten_reads_fail, UNWRITTEN_READS_FAIL)
                    | flag(geometry.volatile_cache, VOLATILE_CACHE),
            ),
            oob_bytes: U16::new(geometry.oob_bytes),
            uuid,
            zones: U32::new(geometry.zones),
            conventional_zones: U32::new(geometry.conventional_zones),
            zone_size: U64::new(geometry.zone_size.0),
            zone_capacity: U64::new(geometry.zone_capacity.0),
            block_size: U32::new(geometry.block_size.0 as u32),
            max_open: limit(geometry.max_open),
            max_active: limit(geometry.max_active),
            channels: U16::new(geometry.channels.unwrap_or(0)),
            dies: U16::new(geometry.dies.unwrap_or(0)),
            max_append: blocks(geometry.max_append),
            max_transfer: blocks(geometry.max_transfer),
            file_bytes: U64::new(layout.file_bytes),
            preset: name,
            reserved: [0; 3964],
            crc: U32::new(0),
        };
        header.crc = U32::new(sum(header.as_bytes()));
        header
    }

    /// Reads a header.
    ///
    /// # Errors
    /// If `bytes` are not a header, or the header is damaged, too new, or describes an
    /// impossible drive.
    pub fn parse(bytes: &[u8]) -> Result<Header, Refusal> {
        let header = Header::read_from_bytes(bytes).map_err(|_| Refusal::Foreign)?;
        if header.magic != MAGIC {
            return Err(Refusal::Foreign);
        }
        check(header.crc.get(), header.as_bytes())?;
        if header.version.get() > VERSION {
            return Err(Refusal::TooNew(header.version.get()));
        }
        if header.version.get() == 0 {
            return Err(Refusal::Value("format version 0".to_owned()));
        }
        let geometry = header.geometry();
        geometry.validate().map_err(|error| Refusal::Value(error.to_string()))?;
        match Layout::of(&geometry) {
            Some(layout) if layout.file_bytes == header.file_bytes.get() => Ok(header),
            _ => Err(Refusal::Value(format!("file size {}", header.file_bytes))),
        }
    }

    /// The geometry of the drive that the header describes.
    pub fn geometry(&self) -> Geometry {
        let limit = |limit: U32| (limit.get() != NO_LIMIT_32).then_some(limit.get());
        let blocks = |limit: U64| (limit.get() != NO_LIMIT_64).then_some(BlockCount(limit.get()));
        let known = |number: U16| (number.get() != 0).then_some(number.get());
        let flag = |bit: u16| self.flags.get() & bit != 0;
        Geometry {
            zones: self.zones.get(),
            zone_size: BlockCount(self.zone_size.get()),
            zone_capacity: BlockCount(self.zone_capacity.get()),
            block_size: ByteLen(u64::from(self.block_size.get())),
            oob_bytes: self.oob_bytes.get(),
            conventional_zones: self.conventional_zones.get(),
            max_open: limit(self.max_open),
            max_active: limit(self.max_active),
            max_append: blocks(self.max_append),
            max_transfer: blocks(self.max_transfer),
            read_across_zones: flag(READ_ACROSS_ZONES),
            unwritten_reads_fail: flag(UNWRITTEN_READS_FAIL),
            volatile_cache: flag(VOLATILE_CACHE),
            channels: known(self.channels),
            dies: known(self.dies),
        }
    }

    /// The UUID of the image.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The preset from which the image was made; empty if there was none.
    pub fn preset(&self) -> String {
        let name = self.preset.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }
}

/// The CRC32C of a structure without its last four bytes, where the CRC is stored.
fn sum(bytes: &[u8]) -> u32 {
    crc32c(&bytes[..bytes.len() - 4])
}

fn check(stored: u32, bytes: &[u8]) -> Result<(), Refusal> {
    let found = sum(bytes);
    if stored == found { Ok(()) } else { Err(Refusal::Crc(stored, found)) }
}

const STATES: [ZoneState; 7] = [
    ZoneState::Empty,
    ZoneState::ImplicitlyOpen,
    ZoneState::ExplicitlyOpen,
    ZoneState::Closed,
    ZoneState::Full,
    ZoneState::ReadOnly,
    ZoneState::Offline,
];

impl Slot {
    /// Builds the record of `zone`.
    pub fn new(zone: ZoneId, generation: u64, record: &ZoneRecord) -> Slot {
        let state = STATES.iter().position(|state| *state == record.zone.state);
        let mut slot = Slot {
            generation: U64::new(generation),
            zone: U32::new(zone.0),
            state: state.expect("invariant: every state is in the list") as u8,
            reserved: [0; 3],
            capacity: U64::new(record.zone.capacity.0),
            write_pointer: U64::new(record.zone.write_pointer.0),
            durable: U64::new(record.durable),
            reserved2: [0; 20],
            crc: U32::new(0),
        };
        slot.crc = U32::new(sum(slot.as_bytes()));
        slot
    }

    /// The generation and the record of `zone`, from its place in table A (`odd`) or B.
    ///
    /// # Errors
    /// If the record is damaged, or belongs to another zone or table.
    pub fn parse(bytes: &[u8], zone: ZoneId, odd: bool) -> Result<(u64, ZoneRecord), Refusal> {
        let slot = Slot::read_from_bytes(bytes).map_err(|_| Refusal::Foreign)?;
        check(slot.crc.get(), slot.as_bytes())?;
        let generation = slot.generation.get();
        if slot.zone.get() != zone.0 || (generation % 2 == 1) != odd {
            return Err(Refusal::Value(format!(
                "record of zone {}, generation {generation}",
                slot.zone
            )));
        }
        let state = STATES.get(usize::from(slot.state)).copied();
        let state = state.ok_or_else(|| Refusal::Value(format!("zone state {}", slot.state)))?;
        let record = ZoneRecord {
            zone: Zone {
                state,
                capacity: BlockCount(slot.capacity.get()),
                write_pointer: BlockCount(slot.write_pointer.get()),
            },
            durable: slot.durable.get(),
        };
        Ok((generation, record))
    }
}

/// Encodes one half of the fault list.
pub fn fault_list(generation: u64, faults: &[Fault]) -> Vec<u8> {
    let records: Vec<FaultRecord> = faults.iter().take(MAX_FAULTS).map(encode).collect();
    let mut head = FaultHead {
        generation: U64::new(generation),
        count: U32::new(records.len() as u32),
        crc: U32::new(0),
    };
    let mut bytes = head.as_bytes().to_vec();
    bytes.extend_from_slice(records.as_bytes());
    head.crc = U32::new(crc32c(&bytes));
    bytes[..size_of::<FaultHead>()].copy_from_slice(head.as_bytes());
    bytes
}

/// Reads a half of the fault list: its generation and the faults.
///
/// # Errors
/// If the list is damaged, or holds a value that this code does not know.
pub fn parse_fault_list(bytes: &[u8]) -> Result<(u64, Vec<Fault>), Refusal> {
    let (head, rest) = FaultHead::read_from_prefix(bytes).map_err(|_| Refusal::Foreign)?;
    let count = head.count.get() as usize;
    if count > MAX_FAULTS {
        return Err(Refusal::Value(format!("{count} faults")));
    }
    let length = size_of::<FaultHead>() + count * size_of::<FaultRecord>();
    let mut summed = bytes.get(..length).ok_or(Refusal::Foreign)?.to_vec();
    summed[12..16].fill(0);
    let found = crc32c(&summed);
    if found != head.crc.get() {
        return Err(Refusal::Crc(head.crc.get(), found));
    }
    let mut faults = Vec::with_capacity(count);
    for record in rest.chunks_exact(size_of::<FaultRecord>()).take(count) {
        let record = FaultRecord::read_from_bytes(record).map_err(|_| Refusal::Foreign)?;
        faults.push(decode(&record)?);
    }
    Ok((head.generation.get(), faults))
}

fn encode(fault: &Fault) -> FaultRecord {
    let (kind, polls, argument) = match fault.kind {
        FaultKind::PowerCut => (0, 0, None),
        FaultKind::ReadError => (1, 0, None),
        FaultKind::WriteError => (2, 0, None),
        FaultKind::WriteTorn => (3, 0, None),
        FaultKind::ZoneReadOnly => (4, 0, None),
        FaultKind::ZoneOffline => (5, 0, None),
        FaultKind::ZoneFull => (6, 0, None),
        FaultKind::Disappear { commands } => (7, 0, commands),
        FaultKind::Slow { polls, nanoseconds } => (8, polls, Some(nanoseconds)),
        FaultKind::ReorderAppends => (9, 0, None),
        FaultKind::BitFlip => (10, 0, None),
    };
    let (place, place_first, place_blocks) = match fault.place {
        Place::Anywhere => (0, 0, 0),
        Place::Blocks { first, blocks } => (1, first.0, blocks.0),
        Place::Zone(zone) => (2, u64::from(zone.0), 0),
    };
    let (when, when_number) = match fault.when {
        When::Always => (0, 0),
        When::Nth(n) => (1, n),
        When::Every(k) => (2, k),
        When::OneIn(n) => (3, n),
    };
    FaultRecord {
        kind,
        place,
        when,
        flags: u8::from(fault.times.is_some()) | u8::from(argument.is_some()) << 1,
        polls: U32::new(polls),
        argument: U64::new(argument.unwrap_or(0)),
        place_first: U64::new(place_first),
        place_blocks: U64::new(place_blocks),
        when_number: U64::new(when_number),
        times: U64::new(fault.times.unwrap_or(0)),
        seen: U64::new(fault.seen),
        reserved: [0; 8],
    }
}

fn decode(record: &FaultRecord) -> Result<Fault, Refusal> {
    let unknown = |what: &str, number: u8| Err(Refusal::Value(format!("{what} {number}")));
    let argument = (record.flags & 2 != 0).then_some(record.argument.get());
    let kind = match record.kind {
        0 => FaultKind::PowerCut,
        1 => FaultKind::ReadError,
        2 => FaultKind::WriteError,
        3 => FaultKind::WriteTorn,
        4 => FaultKind::ZoneReadOnly,
        5 => FaultKind::ZoneOffline,
        6 => FaultKind::ZoneFull,
        7 => FaultKind::Disappear { commands: argument },
        8 => FaultKind::Slow { polls: record.polls.get(), nanoseconds: argument.unwrap_or(0) },
        9 => FaultKind::ReorderAppends,
        10 => FaultKind::BitFlip,
        other => return unknown("kind of fault", other),
    };
    let first = record.place_first.get();
    let place = match record.place {
        0 => Place::Anywhere,
        1 => Place::Blocks { first: Lba(first), blocks: BlockCount(record.place_blocks.get()) },
        2 => Place::Zone(ZoneId(
            u32::try_from(first).map_err(|_| Refusal::Value(format!("zone {first}")))?,
        )),
        other => return unknown("place of a fault", other),
    };
    let number = record.when_number.get();
    let when = match record.when {
        0 => When::Always,
        1 => When::Nth(number),
        2 => When::Every(number),
        3 => When::OneIn(number),
        other => return unknown("moment of a fault", other),
    };
    let times = (record.flags & 1 != 0).then_some(record.times.get());
    Ok(Fault { kind, place, when, times, seen: record.seen.get() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the document's tables whose first column is an offset, table by table.
    fn tables(document: &str) -> Vec<Vec<(usize, usize, &str)>> {
        let mut tables = Vec::new();
        for line in document.lines() {
            if line == "| offset | bytes | field |" {
                tables.push(Vec::new());
            }
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            if let [offset, bytes, field] = cells[..]
                && let (Ok(offset), Ok(bytes)) = (offset.parse(), bytes.parse())
                && let Some(table) = tables.last_mut()
            {
                table.push((offset, bytes, field));
            }
        }
        tables
    }

    macro_rules! fields {
        ($name:ident: $($field:ident)*) => {
            [$((std::mem::offset_of!($name, $field), stringify!($field))),*]
        };
    }

    fn compare(table: &[(usize, usize, &str)], fields: &[(usize, &str)], size: usize) {
        let documented: Vec<_> = table.iter().map(|(offset, _, field)| (*offset, *field)).collect();
        assert_eq!(documented, fields);
        let ends = table.iter().map(|(offset, bytes, _)| offset + bytes);
        let starts = table.iter().map(|(offset, ..)| *offset).skip(1).chain([size]);
        assert!(ends.eq(starts), "{table:?} has gaps");
    }

    #[test]
    fn the_document_says_what_the_structs_are() {
        let document = include_str!("../../../docs/inside/emulated-image.md");
        let tables = tables(document);
        assert_eq!(tables.len(), 4);
        let header = fields!(Header: magic version flags oob_bytes uuid zones conventional_zones
            zone_size zone_capacity block_size max_open max_active channels dies max_append
            max_transfer file_bytes preset reserved crc);
        compare(&tables[0], &header, size_of::<Header>());
        let slot = fields!(Slot: generation zone state reserved capacity write_pointer durable
            reserved2 crc);
        compare(&tables[1], &slot, size_of::<Slot>());
        let head = fields!(FaultHead: generation count crc);
        compare(&tables[2], &head, size_of::<FaultHead>());
        let record = fields!(FaultRecord: kind place when flags polls argument place_first
            place_blocks when_number times seen reserved);
        compare(&tables[3], &record, size_of::<FaultRecord>());
        for (at, region) in [(FAULTS_AT, "2 × 32768"), (TABLE_AT, "zones × 64")] {
            assert!(document.contains(&format!("| {at} | {region}")), "{region}");
        }
    }
}
