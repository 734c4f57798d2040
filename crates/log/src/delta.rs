//! The delta log: changed entries of tables, appended by checkpoints.
//!
//! The log has two halves of whole zones. A checkpoint appends the entries that changed since the
//! last checkpoint, with their positions, as checksummed blocks. The checkpoint's own record stores
//! the *extents* of this checkpoint and of all earlier ones since the tables were last written
//! whole. When a half fills, the engine switches to the other half, merges the entries into the
//! tables, and releases the full half.
//!
//! Invariants
//! - Replay reads exactly the blocks of the extents, in the order of the extents. A block of a
//!   checkpoint that did not become durable is in no extent. If such a block replaced a block of an
//!   extent, the extent's checksum does not match.
//! - Each block states its place (half and block), its checkpoint and its epoch.
//! - Extents are in the order of writing; adjacent extents are merged into one.
//! - [`DeltaLog::append`] changes nothing if it fails.
//! - The log needs one active-zone permit: it begins a zone only when the zone before it is full
//!   or reset.
//!
//! The log does not know what the tables are, and does not store its extents.

use crate::address::{BlockAddr, blocks_begun, blocks_per_command, blocks_per_zone, read_blocks};
use crate::budget::Permit;
use crate::format::{BLOCK_BODY, BLOCK_SIZE, DeltaGroup, ExtentEntry};
use crate::record::{self, Expect, RecordId, crc32c_append};
use crate::writer::{Kind, WriteHandle, Writer, ZoneWrite};
use furrow_policy::LogDefect;
use furrow_rt::{Page, Pages, Pool};
use furrow_zone::{
    Error, ErrorKind, Geometry, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes};

/// Size of the index in an entry, in bytes.
const INDEX: usize = 4;
/// Number of blocks that replay reads at a time; more if one command can read more.
const REPLAY_CHUNK: u32 = 256;

/// A run of blocks of the log that belongs to a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The half in which the blocks lie: 0 or 1.
    pub half: u8,
    /// First block, counted from the beginning of the half.
    pub first: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// CRC32C over all bytes of the blocks, in order.
    pub crc: u32,
}

impl Extent {
    /// Encodes the extent for storage.
    pub fn entry(&self) -> ExtentEntry {
        ExtentEntry {
            half: self.half,
            reserved: [0; 3],
            first: self.first.into(),
            blocks: self.blocks.into(),
            crc: self.crc.into(),
        }
    }

    /// Decodes a stored extent.
    ///
    /// # Errors
    /// `Corrupt` if `entry` is not a valid extent.
    pub fn parse(entry: &ExtentEntry) -> Result<Extent> {
        let (first, blocks) = (entry.first.get(), entry.blocks.get());
        if entry.half > 1
            || entry.reserved != [0; 3]
            || blocks == 0
            || first.checked_add(blocks).is_none()
        {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("delta log extent of half {}, blocks {first} + {blocks}", entry.half),
            ));
        }
        Ok(Extent { half: entry.half, first, blocks, crc: entry.crc.get() })
    }
}

/// The zones and tables of a delta log, fixed at mkfs.
#[derive(Clone, Debug)]
pub struct DeltaLayout {
    halves: [Vec<ZoneId>; 2],
    tables: Vec<u16>,
    kind: u16,
    capacity: u32,
    /// The built-in defect, if any.
    pub defect: Option<LogDefect>,
}

impl DeltaLayout {
    /// Describes a log in the zones of `halves`, for tables whose entries have `tables[t]` bytes of
    /// payload, in records of `kind`.
    ///
    /// # Errors
    /// `Invalid` if a half has no zone, a zone is not on the drive or is named twice, or a payload
    /// does not fit a block.
    pub fn new(
        geometry: &Geometry,
        halves: [Vec<ZoneId>; 2],
        tables: &[u16],
        kind: u16,
    ) -> Result<DeltaLayout> {
        let invalid = |what: String| Err(Error::new(ErrorKind::Invalid, what));
        let mut zones: Vec<ZoneId> = halves.concat();
        zones.sort_unstable();
        if halves.iter().any(Vec::is_empty) {
            return invalid("a half of the delta log has no zones".into());
        }
        if let Some(pair) = zones.windows(2).find(|pair| pair[0] == pair[1]) {
            return invalid(format!("zone {} is twice in the delta log", pair[0]));
        }
        if let Some(zone) = zones.iter().find(|zone| zone.0 >= geometry.zones) {
            let zones = geometry.zones;
            return invalid(format!("delta log in zone {zone}, but the drive has {zones} zones"));
        }
        if let Some(size) = tables.iter().find(|size| entries_per_block(**size) == 0) {
            return invalid(format!("table entries of {size} bytes do not fit a delta block"));
        }
        Ok(DeltaLayout {
            halves,
            tables: tables.to_vec(),
            kind,
            capacity: blocks_per_zone(geometry),
            defect: None,
        })
    }

    /// Number of blocks of a half.
    pub fn half_blocks(&self, half: u8) -> u32 {
        (self.half_zones(half).len() as u32).saturating_mul(self.capacity)
    }

    /// Returns the zones of a half, in order.
    ///
    /// # Panics
    /// If `half` is neither 0 nor 1.
    pub fn half_zones(&self, half: u8) -> &[ZoneId] {
        &self.halves[usize::from(half)]
    }

    /// Returns zone and offset of a block of a half.
    fn place(&self, half: u8, block: u32) -> Option<(ZoneId, u32)> {
        let zones = self.halves.get(usize::from(half))?;
        let zone = zones.get((block / self.capacity.max(1)) as usize)?;
        Some((*zone, block % self.capacity))
    }

    /// Maximum number of blocks that one append takes for `counts[t]` entries of each table t, if
    /// the entries are passed table by table.
    pub fn worst_case_blocks(&self, counts: &[u32]) -> u32 {
        let tables = self.tables.iter().zip(counts);
        tables.map(|(size, count)| count.div_ceil(entries_per_block(*size))).sum()
    }

    /// Checks that `extents` lie in this log.
    fn check(&self, extents: &[Extent]) -> Result<()> {
        for extent in extents {
            let end = u64::from(extent.first) + u64::from(extent.blocks);
            if extent.half > 1 || end > u64::from(self.half_blocks(extent.half)) {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!("delta log extent {extent:?} is outside the log"),
                ));
            }
        }
        Ok(())
    }

    /// Replays exactly `extents`: calls `apply(table, index, payload)` for every entry, in the
    /// order of writing. `upto` is the identity of the checkpoint that lists the extents.
    ///
    /// A block is verified before its entries are applied; the checksum of an extent is verified
    /// after its last block. After an error, the caller has to discard everything that was applied.
    ///
    /// # Errors
    /// `Corrupt` or `WrongFormat` if a block is not the one that the extents promise, `Io` if it
    /// cannot be read, or the error of `apply`.
    pub async fn replay(
        &self,
        device: &dyn ZonedDevice,
        pages: &Pool,
        upto: &RecordId,
        extents: &[Extent],
        mut apply: impl FnMut(u8, u32, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.check(extents)?;
        let mut newest = (0, 0);
        for extent in self.replayed(extents) {
            let mut crc = 0;
            let (mut block, end) = (extent.first, extent.first + extent.blocks);
            while block < end {
                let chunk = self.read(device, pages, extent.half, block, end).await?;
                for page in chunk {
                    let entries = self.verify(&page, extent.half, block, upto, &mut newest);
                    entries.and_then(|body| self.apply(body, &mut apply)).map_err(|error| {
                        let (zone, offset) = self.place(extent.half, block).unwrap_or_default();
                        error
                            .at(format!("{}: delta log zone {zone} offset {offset}", device.name()))
                    })?;
                    crc = crc32c_append(crc, page.bytes());
                    block += 1;
                }
            }
            if crc != extent.crc {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!(
                        "{}: delta log extent {extent:?}: its blocks have checksum {crc:08x}",
                        device.name()
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Returns the extents to replay. A built-in defect leaves the last one out.
    fn replayed<'a>(&self, extents: &'a [Extent]) -> &'a [Extent] {
        match (self.defect, extents) {
            (Some(LogDefect::IgnoredExtent), [first @ .., _]) => first,
            _ => extents,
        }
    }

    /// Reads blocks from `block` on, up to `end`, the end of the zone, or the limit of one read.
    async fn read(
        &self,
        device: &dyn ZonedDevice,
        pages: &Pool,
        half: u8,
        block: u32,
        end: u32,
    ) -> Result<Pages> {
        let (zone, offset) = self.place(half, block).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, format!("delta log half {half} has no block {block}"))
        })?;
        let most = REPLAY_CHUNK.max(blocks_per_command(device.geometry()));
        let count = (end - block).min(self.capacity - offset).min(most);
        let from = BlockAddr::new(device.geometry(), zone, offset);
        read_blocks(device, QueueId(0), from, count, pages).await
    }

    fn verify<'a>(
        &self,
        page: &'a Page,
        half: u8,
        block: u32,
        upto: &RecordId,
        newest: &mut (u64, u64),
    ) -> Result<&'a [u8]> {
        let expect =
            Expect { kind: self.kind, device: Some(upto.device), object: Some(upto.object) };
        let (header, body) = record::open(page.bytes(), &expect)?;
        let id = header.id();
        let (found, expected) = (id.sequence, sequence(half, block));
        if found != expected {
            let message = format!("block of place {found:#x}, expected {expected:#x}");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let age = (id.epoch, id.checkpoint);
        if age < *newest || age > (upto.epoch, upto.checkpoint) {
            let message = format!(
                "block of epoch {} checkpoint {}, expected from {newest:?} to {:?}",
                id.epoch,
                id.checkpoint,
                (upto.epoch, upto.checkpoint)
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        *newest = age;
        Ok(body)
    }

    fn apply(
        &self,
        mut body: &[u8],
        apply: &mut impl FnMut(u8, u32, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let corrupt = |what: String| Error::new(ErrorKind::Corrupt, what);
        while !body.is_empty() {
            let (group, rest) = DeltaGroup::read_from_prefix(body)
                .map_err(|_| corrupt(format!("{} bytes where a group begins", body.len())))?;
            let (count, size) = (usize::from(group.entries.get()), group.payload.get());
            if self.tables.get(usize::from(group.table)) != Some(&size) || count == 0 {
                let table = group.table;
                return Err(corrupt(format!("{count} entries of {size} bytes of table {table}")));
            }
            let each = INDEX + usize::from(size);
            let entries = rest
                .get(..count * each)
                .ok_or_else(|| corrupt(format!("{count} entries in {} bytes", rest.len())))?;
            for entry in entries.chunks_exact(each) {
                let (index, payload) = entry.split_at(INDEX);
                let mut bytes = [0; INDEX];
                bytes.copy_from_slice(index);
                apply(group.table, u32::from_le_bytes(bytes), payload)?;
            }
            body = &rest[count * each..];
        }
        Ok(())
    }
}

/// Number of entries with `payload` bytes that fit a block.
fn entries_per_block(payload: u16) -> u32 {
    ((BLOCK_BODY - DeltaGroup::SIZE) / (INDEX + usize::from(payload))) as u32
}

/// The sequence number in a block's header: it encodes the block's place.
fn sequence(half: u8, block: u32) -> u64 {
    u64::from(half) << 32 | u64::from(block)
}

/// Packs entries into the bodies of blocks.
struct Packer {
    bodies: Vec<Vec<u8>>,
    /// Table of the open group in the last body, and the offset in the body at which the
    /// group begins.
    group: Option<(u8, usize)>,
}

impl Packer {
    fn push(&mut self, table: u8, index: u32, payload: &[u8]) {
        let entry = INDEX + payload.len();
        let same = self.group.is_some_and(|(open, _)| open == table);
        let needed = if same { entry } else { DeltaGroup::SIZE + entry };
        let fits = self.bodies.last().is_some_and(|body| body.len() + needed <= BLOCK_BODY);
        if !fits {
            self.bodies.push(Vec::with_capacity(BLOCK_BODY));
            self.group = None;
        }
        let Some(body) = self.bodies.last_mut() else { return };
        let at = match self.group {
            Some((open, at)) if open == table => at,
            _ => {
                let group = DeltaGroup {
                    table,
                    reserved: 0,
                    entries: 0.into(),
                    payload: (payload.len() as u16).into(),
                    reserved2: [0; 2],
                };
                body.extend_from_slice(group.as_bytes());
                body.len() - DeltaGroup::SIZE
            }
        };
        self.group = Some((table, at));
        if let Ok((group, _)) = DeltaGroup::mut_from_prefix(&mut body[at..]) {
            group.entries += 1;
        }
        body.extend_from_slice(&index.to_le_bytes());
        body.extend_from_slice(payload);
    }
}

/// An append whose blocks the drive has not answered yet.
#[must_use = "the entries are durable when its writes are"]
pub struct Appended {
    /// Number of blocks of the append.
    pub blocks: u32,
    written: SmallVec<[WriteHandle; 2]>,
}

impl Appended {
    /// Waits until the drive has answered all blocks of the append.
    ///
    /// # Errors
    /// The error of a write that failed: then the extents of this append must not be used.
    pub async fn written(self) -> Result<()> {
        for written in self.written {
            written.await?;
        }
        Ok(())
    }
}

/// The writing end of a delta log.
///
/// Invariants
/// - A half is clean exactly while its zones are empty: then nothing was placed in an open zone of
///   the half, and no extent lies in the half.
/// - `block` is at most the blocks of the half; every extent in the current half ends at or before
///   `block`.
pub struct DeltaLog {
    layout: DeltaLayout,
    writer: Writer,
    pages: Pool,
    half: u8,
    /// Block of the current half at which the next append begins.
    block: u32,
    /// For each half, whether it is empty on the drive.
    clean: [bool; 2],
}

impl DeltaLog {
    /// Creates a log in empty zones, as after mkfs. `permit` is for the zone that is being written.
    pub fn new(
        writer: &Writer,
        layout: DeltaLayout,
        pages: &Pool,
        permit: Option<Permit>,
    ) -> DeltaLog {
        let first = layout.half_zones(0)[0];
        writer.open_empty(first);
        writer.keep_permit(first);
        if let Some(permit) = permit {
            writer.attach(first, permit);
        }
        let (writer, pages) = (writer.clone(), pages.clone());
        DeltaLog { layout, writer, pages, half: 0, block: 0, clean: [true; 2] }
    }

    /// Opens the log as it is on the drive, positioned in `half`, for reading only: nothing
    /// is written.
    ///
    /// # Errors
    /// `Io` if the drive does not report its zones.
    pub async fn found(
        writer: &Writer,
        layout: DeltaLayout,
        pages: &Pool,
        half: u8,
    ) -> Result<DeltaLog> {
        let (writer, pages) = (writer.clone(), pages.clone());
        let reports = reports_of(&writer, layout.half_zones(half)).await?;
        let others = reports_of(&writer, layout.half_zones(1 - half)).await?;
        let written = |report: &ZoneReport| report.state != ZoneState::Empty;
        let current = reports.iter().rposition(written).unwrap_or(0);
        let at = match reports[current].state {
            ZoneState::Offline => layout.capacity,
            _ => blocks_begun(&reports[current], writer.geometry()),
        };
        let block = current as u32 * layout.capacity + at;
        let mut clean = [false; 2];
        clean[usize::from(1 - half)] = !others.iter().any(written);
        clean[usize::from(half)] = block == 0;
        Ok(DeltaLog { layout, writer, pages, half, block, clean })
    }

    /// Opens the log as it is on the drive, ready to append in `half` after everything written
    /// there. Earlier zones of the half that a power cut left short of their end are filled
    /// with zeros.
    ///
    /// # Errors
    /// `Io` if the drive does not report its zones.
    pub async fn recover(
        writer: &Writer,
        layout: DeltaLayout,
        pages: &Pool,
        permit: Option<Permit>,
        half: u8,
    ) -> Result<DeltaLog> {
        let log = DeltaLog::found(writer, layout, pages, half).await?;
        let (writer, layout) = (&log.writer, &log.layout);
        let reports = reports_of(writer, layout.half_zones(half)).await?;
        let written = |report: &ZoneReport| report.state != ZoneState::Empty;
        let current = reports.iter().rposition(written).unwrap_or(0);
        let mut short = None;
        for report in reports[..current].iter().filter(|report| report.state.is_active()) {
            writer.open_reported(report);
            drop(writer.submit(ZoneWrite::zeros_to(report.zone, layout.capacity)));
            short = Some(report.zone);
        }
        writer.open_reported(&reports[current]);
        writer.level(reports[current].zone);
        if let Some(short) = short {
            // The next zone must not become active while an earlier one is: the permit covers one
            // zone.
            writer.follow(reports[current].zone, short);
        }
        writer.keep_permit(reports[current].zone);
        if let Some(permit) = permit {
            writer.attach(reports[current].zone, permit);
        }
        Ok(log)
    }

    /// The log's zones and tables.
    pub fn layout(&self) -> &DeltaLayout {
        &self.layout
    }

    /// The half and block at which the next append begins.
    pub fn position(&self) -> (u8, u32) {
        (self.half, self.block)
    }

    /// Number of blocks left in the current half.
    pub fn space_left(&self) -> u32 {
        self.layout.half_blocks(self.half) - self.block
    }

    /// Maximum number of blocks that an append takes: see [`DeltaLayout::worst_case_blocks`].
    pub fn worst_case_blocks(&self, counts: &[u32]) -> u32 {
        self.layout.worst_case_blocks(counts)
    }

    /// Appends entries (table, index, payload) and dispatches their blocks. Entries in the order of
    /// their tables take the fewest blocks. `id` names the checkpoint; the log sets kind and
    /// sequence. Adds the new blocks to `extents`, the list that the checkpoint will store.
    ///
    /// # Errors
    /// `NoSpace` if the half has too little space left, `Invalid` for an entry of an unknown table
    /// or of a wrong size. Nothing was done in either case.
    pub fn append<'a>(
        &mut self,
        id: &RecordId,
        entries: impl Iterator<Item = (u8, u32, &'a [u8])>,
        extents: &mut Vec<Extent>,
    ) -> Result<Appended> {
        let bodies = self.pack(entries)?;
        let (needed, room) = (bodies.len(), self.space_left());
        if needed > room as usize {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "delta log half {} has {room} blocks left, {needed} are needed: merge it \
                     into the tables",
                    self.half
                ),
            ));
        }
        let mut appended = Appended { blocks: needed as u32, written: SmallVec::new() };
        if needed == 0 {
            return Ok(appended);
        }
        let half = self.half;
        let extent = match extents.last_mut() {
            Some(last) if last.half == half && last.first + last.blocks == self.block => last,
            _ => {
                extents.push(Extent { half, first: self.block, blocks: 0, crc: 0 });
                extents.last_mut().expect("invariant: an extent was just pushed")
            }
        };
        let mut run = Pages::new();
        let mut from = self.block;
        for (block, body) in (self.block..).zip(bodies) {
            if block > from && block.is_multiple_of(self.layout.capacity) {
                appended.written.push(self.dispatch(from, std::mem::take(&mut run)));
                from = block;
            }
            let id = RecordId { kind: self.layout.kind, sequence: sequence(half, block), ..*id };
            for page in record::seal(&id, &body, &self.pages) {
                extent.crc = crc32c_append(extent.crc, page.bytes());
                extent.blocks += 1;
                run.push(page);
            }
        }
        appended.written.push(self.dispatch(from, run));
        self.block += appended.blocks;
        self.clean[usize::from(half)] = false;
        Ok(appended)
    }

    fn pack<'a>(&self, entries: impl Iterator<Item = (u8, u32, &'a [u8])>) -> Result<Vec<Vec<u8>>> {
        let mut packer = Packer { bodies: Vec::new(), group: None };
        for (table, index, payload) in entries {
            let size = self.layout.tables.get(usize::from(table)).copied();
            if size.map(usize::from) != Some(payload.len()) {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "entry {index} of table {table} has {} bytes, expected {size:?}",
                        payload.len()
                    ),
                ));
            }
            packer.push(table, index, payload);
        }
        Ok(packer.bodies)
    }

    /// Writes pages that lie in one zone, from block `from` of the half on.
    fn dispatch(&self, from: u32, pages: Pages) -> WriteHandle {
        let (zone, offset) =
            self.layout.place(self.half, from).expect("invariant: append checked the room");
        if offset == 0 && from > 0 {
            let previous = self.layout.place(self.half, from - 1);
            let (previous, _) = previous.expect("invariant: the block before is in the half");
            self.follow(zone, previous);
        }
        let written = self.writer.submit(ZoneWrite::pages(zone, Kind::Delta, pages));
        assert_eq!(written.at(), offset, "invariant: nobody else writes to zone {zone}");
        written
    }

    fn follow(&self, zone: ZoneId, previous: ZoneId) {
        self.writer.open_zone_after(zone, previous);
        self.writer.keep_permit(zone);
    }

    /// Switches halves like [`DeltaLog::switch_half`], but fills the zone written last with zeros.
    /// So later appends reach the drive before the present half is released.
    ///
    /// # Errors
    /// The errors of [`DeltaLog::switch_half`].
    pub fn fill_and_switch_half(&mut self) -> Result<()> {
        if self.block > 0 && self.is_clean(1 - self.half) {
            let last = self.layout.place(self.half, self.block - 1);
            let (zone, _) = last.expect("invariant: the position is in the half");
            if self.writer.is_open(zone) {
                drop(self.writer.submit(ZoneWrite::zeros_to(zone, self.layout.capacity)));
            }
        }
        self.switch_half()
    }

    /// Makes the other half the current one. Appends to the new current half reach the drive once
    /// the zone written last in the old one is full or was released.
    ///
    /// # Errors
    /// `Busy` if the other half was not released yet: the merge into the tables has to
    /// finish first.
    pub fn switch_half(&mut self) -> Result<()> {
        let other = 1 - self.half;
        if !self.clean[usize::from(other)] {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("delta log half {other} was not released yet"),
            ));
        }
        let last = self.block.max(1) - 1;
        let (last, _) =
            self.layout.place(self.half, last).expect("invariant: the position is in the half");
        self.follow(self.layout.half_zones(other)[0], last);
        if self.clean[usize::from(self.half)] {
            // The half is clean: no write will fill its zone, and no release will reset the zone.
            // So the zone is forgotten, and the new half does not wait for this zone.
            self.writer.forget(last);
        }
        (self.half, self.block) = (other, 0);
        Ok(())
    }

    /// True if `half` holds nothing on the drive.
    pub fn is_clean(&self, half: u8) -> bool {
        self.clean[usize::from(half)]
    }

    /// Zones of `half`, to be released by the pool.
    pub fn half_zones(&self, half: u8) -> Vec<ZoneId> {
        self.layout.half_zones(half).to_vec()
    }

    /// Notes that all zones of `half`, which is not in use, were released.
    ///
    /// # Panics
    /// If `half` is in use.
    pub fn half_released(&mut self, half: u8) {
        assert_ne!(half, self.half, "the half in use cannot have been released");
        self.clean[usize::from(half)] = true;
    }

    /// Number of bytes that the blocks of `extents` take.
    pub fn bytes(extents: &[Extent]) -> u64 {
        extents.iter().map(|extent| u64::from(extent.blocks)).sum::<u64>() * BLOCK_SIZE as u64
    }
}

/// Returns the reports of `zones`, in the order of `zones`.
async fn reports_of(writer: &Writer, zones: &[ZoneId]) -> Result<Vec<ZoneReport>> {
    let device = writer.device();
    let mut reports = Vec::with_capacity(zones.len());
    for zone in zones {
        let what = format!("report of zone {zone}");
        let answer = device.report(*zone, 1).await;
        let answer = answer.map_err(|status| Error::device(&device.name(), &what, status))?;
        let report = answer.first().copied().ok_or_else(|| {
            let what = format!("{}: {what}: the drive has no such zone", device.name());
            Error::new(ErrorKind::Io, what)
        })?;
        reports.push(report);
    }
    Ok(reports)
}

mod audit;
#[cfg(test)]
mod tests;
