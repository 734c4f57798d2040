//! A view of a store on its drive that writes nothing.
//!
//! [`Snapshot::open`] does in memory what opening a store does on the drive: it reads the ring, and
//! rolls back files if the last group commit names missing content. So it shows what the store
//! would hold once opened, and works on a read-only drive.
//!
//! Invariant: the drive gets only reads and zone reports.

use crate::entries::FileState;
use crate::extent::{Extent, FileId, Lifetime, Sums};
use crate::file_kind::{Claim, FileKind};
use crate::format::{SumsHead, SuperblockBody, kind};
use crate::namespace::paths::{Node, clean};
use crate::recover::steps::Reading;
use crate::recover::{Opened, Replay};
use crate::ring_budget::blocks_with_entries;
use crate::ring_load::{file_bytes, name_bytes, zone_bytes};
use crate::ring_scan::identify_by;
use crate::space::{Space, sums_to_come, without_sums};
use crate::zone_allocator::{garbage_left, kept_for_flushes, kept_from};
use furrow_log::address::{blocks_per_zone, blocks_written};
use furrow_log::record::{self, Expect, Uuid, crc32c};
use furrow_log::ring::RingZones;
use furrow_log::survey;
use furrow_log::{BLOCK_SIZE, BlockAddr, read_blocks};
use furrow_policy::StoreVariant;
use furrow_rt::{Boxed, PAGE_SIZE, Pages, Pool};
use furrow_zone::{
    Error, ErrorKind, Geometry, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use zerocopy::FromBytes;

/// Maximum number of blocks that one command reads.
pub(crate) const PIECE: u32 = 256;

/// Metadata of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Number of the file.
    pub id: FileId,
    /// Size of the file in bytes.
    pub size: u64,
    /// Time of the last write, seconds since 1970.
    pub modified: i64,
    /// How long the file is expected to live.
    pub lifetime: Lifetime,
    /// Number of the file's extents.
    pub extents: u32,
    /// Number of blocks that the file takes on the drive, including blocks of checksums.
    pub blocks: u64,
    /// Number of paths that name the file.
    pub names: u32,
}

/// The use of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneUse {
    /// Conventional: not used.
    Conventional,
    /// Belongs to the record ring.
    Ring,
    /// The zone is empty.
    Free,
    /// Partly written, and still active.
    Open,
    /// Written to its end, or finished.
    Full,
    /// Read-only or offline.
    Failed,
}

impl ZoneUse {
    /// All uses, in the order of reports.
    pub const ALL: [ZoneUse; 6] = [
        ZoneUse::Ring,
        ZoneUse::Free,
        ZoneUse::Open,
        ZoneUse::Full,
        ZoneUse::Conventional,
        ZoneUse::Failed,
    ];

    /// Name of the use in reports.
    pub fn name(self) -> &'static str {
        match self {
            ZoneUse::Conventional => "conventional",
            ZoneUse::Ring => "ring",
            ZoneUse::Free => "free",
            ZoneUse::Open => "open",
            ZoneUse::Full => "full",
            ZoneUse::Failed => "failed",
        }
    }
}

/// The content of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneInfo {
    /// Number of the zone.
    pub zone: ZoneId,
    /// Use of the zone.
    pub usage: ZoneUse,
    /// Whether the drive counts the zone as active.
    pub active: bool,
    /// Number of blocks written.
    pub written: u32,
    /// Number of valid blocks.
    pub valid: u32,
    /// Number of valid blocks by file.
    pub files: BTreeMap<FileId, u32>,
}

/// The state of a store on its drive, read once and kept in memory.
pub struct Snapshot {
    device: Rc<dyn ZonedDevice>,
    pages: Pool,
    reports: Vec<ZoneReport>,
    found: Opened,
    names: BTreeMap<FileId, u32>,
    /// The block of checksums read last, with its address.
    sums: RefCell<Option<(BlockAddr, Rc<Vec<u32>>)>>,
}

impl Snapshot {
    /// Reads the store's metadata.
    ///
    /// # Errors
    /// The errors of [`crate::Store::open`], except errors of writing.
    pub async fn open(device: Rc<dyn ZonedDevice>) -> Result<Snapshot> {
        Snapshot::open_with(device, false).await
    }

    /// Reads the store's metadata. With `accept_loss`, a damaged record ring is not an error: the
    /// lost records are left out.
    ///
    /// # Errors
    /// The errors of [`Snapshot::open`].
    #[inline(never)]
    pub fn open_with(
        device: Rc<dyn ZonedDevice>,
        accept_loss: bool,
    ) -> Boxed<'static, Result<Snapshot>> {
        Box::pin(async move {
            let pages = Pool::new(2 * PIECE as usize);
            let variant = StoreVariant::default();
            let reading = Reading::all(device.clone(), pages.clone(), variant, accept_loss).await?;
            let (reports, found) = reading.into_parts()?;
            let names = count_names(&found.replay);
            Ok(Snapshot { device, pages, reports, found, names, sums: RefCell::default() })
        })
    }

    /// UUID of the store.
    pub fn uuid(&self) -> Uuid {
        self.found.uuid
    }

    /// Label of the store.
    pub fn label(&self) -> &str {
        &self.found.label
    }

    /// When the store was made, in seconds since 1970.
    pub fn created(&self) -> i64 {
        self.found.created
    }

    /// Number of times that the record ring has turned.
    pub fn turn(&self) -> u64 {
        self.found.turn
    }

    /// Number of the last durable group commit.
    pub fn round(&self) -> u64 {
        self.found.replay.round
    }

    /// Number of the last record of the ring.
    pub fn record(&self) -> u64 {
        self.found.replay.record
    }

    /// Whether the half that counts ends with the record that announces a turn of the ring. In that
    /// case, a newer half may have been begun.
    pub fn ring_turns(&self) -> bool {
        self.found.turns
    }

    /// Describes the losses from a damaged record ring, one line each.
    pub fn losses(&self) -> Vec<String> {
        self.found.losses()
    }

    /// Returns the zones of the ring, and the zones of the half that counts.
    pub fn ring_zones(&self) -> (RingZones, &[ZoneId]) {
        (self.found.ring, &self.found.half)
    }

    /// Returns the size of a half of the ring in bytes, and how many bytes of the present half
    /// are written.
    pub fn ring(&self) -> (u64, u64) {
        let geometry = self.device.geometry();
        let zones = self.found.half.iter();
        let written = zones.map(|zone| blocks_written(self.report(*zone), geometry));
        let half = u64::from(self.found.ring.half) * u64::from(blocks_per_zone(geometry));
        let block = BLOCK_SIZE as u64;
        (half * block, written.map(u64::from).sum::<u64>() * block)
    }

    fn report(&self, zone: ZoneId) -> &ZoneReport {
        &self.reports[zone.0 as usize]
    }

    /// Computes the store's space.
    pub fn space(&self) -> Space {
        let geometry = self.device.geometry();
        let content = &self.reports[self.found.ring.end() as usize..];
        let zones = content.iter().filter(|report| report.state != ZoneState::Offline).count();
        let nodes = self.found.replay.nodes.iter();
        let logs = nodes.filter(|(path, _)| FileKind::of(path) == FileKind::Wal);
        let ids = logs.filter_map(|(_, node)| match node {
            Node::File(id) => Some(*id),
            Node::Directory => None,
        });
        let logs: BTreeSet<FileId> = ids.collect();
        let states = logs.iter().filter_map(|id| self.found.replay.files.get(id));
        let zone_blocks = blocks_per_zone(geometry);
        let flushes = kept_for_flushes(states.map(blocks_of).sum(), zones as u32, zone_blocks);
        let flushes = u64::from(flushes) * u64::from(zone_blocks);
        let kept = kept_from(Claim::Others, zones as u32);
        let usable = (zones as u64).saturating_sub(u64::from(kept));
        let capacity = usable * u64::from(zone_blocks);
        let used: u64 = self.found.replay.files.values().map(blocks_of).sum();
        // Cleaning skips zones with little garbage, so their garbage cannot be used.
        let least = garbage_left(zone_blocks);
        let stuck = self.zones().into_iter().filter_map(|zone| {
            let held = matches!(zone.usage, ZoneUse::Open | ZoneUse::Full) && zone.valid > 0;
            Some(zone.written.checked_sub(zone.valid)?).filter(|garbage| held && *garbage <= least)
        });
        let files = self.found.replay.files.values();
        let sums = files.map(|state| sums_to_come(&state.extents)).sum::<u64>();
        let left =
            capacity.saturating_sub(used + sums + flushes + stuck.map(u64::from).sum::<u64>());
        let left = left.min(self.blocks_with_entries());
        let holds =
            |report: &&ZoneReport| !matches!(report.state, ZoneState::Empty | ZoneState::Offline);
        let written = content.iter().filter(holds).count() as u32;
        let block = BLOCK_SIZE as u64;
        Space {
            capacity: capacity * block,
            used: used * block,
            available: without_sums(left, zone_blocks) * block,
            zones: zones as u32,
            free_zones: zones as u32 - written,
            peak_zones: written,
        }
    }

    /// Number of further blocks of content for which the ring has space.
    fn blocks_with_entries(&self) -> u64 {
        let Opened { ring, failed, replay, .. } = &self.found;
        let names = replay.nodes.keys().map(|path| name_bytes(path)).sum::<u64>();
        let file = |state: &FileState| file_bytes(&state.extents) + state.tail.len() as u64;
        let files = replay.files.values().map(file).sum::<u64>();
        let zones = replay.youngest.values().map(zone_bytes).sum::<u64>();
        let half = ring.half.min((ring.count() - failed.len() as u32) / 2).max(1);
        let room = u64::from(half) * u64::from(self.zone_blocks()) * BLOCK_SIZE as u64;
        blocks_with_entries(names + files + zones, room)
    }

    /// Iterates over all paths in ascending order, each with its file or directory.
    pub fn names(&self) -> impl Iterator<Item = (&str, Node)> {
        self.found.replay.nodes.iter().map(|(path, node)| (path.as_str(), *node))
    }

    /// Returns the file or directory that a path names.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the path leads out of the store or is too long.
    pub fn node(&self, path: &str) -> Result<Node> {
        let path = clean(path)?;
        if path.is_empty() {
            return Ok(Node::Directory);
        }
        let missing = || Error::new(ErrorKind::NotFound, format!("{path}: no such file"));
        self.found.replay.nodes.get(&path).copied().ok_or_else(missing)
    }

    /// Returns the metadata of a file; `None` if no path names it.
    pub fn file(&self, id: FileId) -> Option<FileInfo> {
        let names = *self.names.get(&id)?;
        let empty = FileState::default();
        let state = self.found.replay.files.get(&id).unwrap_or(&empty);
        Some(FileInfo {
            id,
            size: state.size,
            modified: state.modified,
            lifetime: state.lifetime,
            extents: state.extents.len() as u32,
            blocks: blocks_of(state),
            names,
        })
    }

    /// Returns a path of a file.
    pub fn name_of(&self, id: FileId) -> String {
        self.found.replay.name_of(id)
    }

    /// Describes the content of each zone, in zone order.
    pub fn zones(&self) -> Vec<ZoneInfo> {
        let files = self.found.replay.files.iter();
        let extents = files.map(|(id, state)| (*id, state.extents.as_slice()));
        let ring = (self.found.ring, self.found.half.as_slice());
        zone_infos(&self.reports, self.device.geometry(), ring, extents)
    }

    /// Number of blocks that a zone holds.
    pub fn zone_blocks(&self) -> u32 {
        blocks_per_zone(self.device.geometry())
    }

    /// Reads from a file; returns less than `len` bytes at its end.
    ///
    /// # Errors
    /// `NotFound` if no path names the file; `Corrupt` if a block is not what was written, `Io` if
    /// it cannot be read. Both name the file and the block.
    pub async fn read(&self, id: FileId, offset: u64, len: usize) -> Result<Vec<u8>> {
        let empty = FileState::default();
        let state = match (self.found.replay.files.get(&id), self.names.contains_key(&id)) {
            (Some(state), _) => state,
            (None, true) => &empty,
            (None, false) => {
                return Err(Error::new(ErrorKind::NotFound, format!("file {} is gone", id.0)));
            }
        };
        let end = offset.saturating_add(len as u64).min(state.size);
        let mut bytes = Vec::new();
        let mut at = offset;
        while at < end {
            let (block, skip) = ((at / PAGE_SIZE as u64) as u32, (at % PAGE_SIZE as u64) as usize);
            let last = end.div_ceil(PAGE_SIZE as u64) as u32;
            let before = bytes.len();
            match extent_of(state, block) {
                Some(hole) if hole.is_hole() => {
                    let count = (last.min(hole.end()) - block).min(PIECE);
                    bytes.resize(before + count as usize * PAGE_SIZE, 0);
                }
                Some(extent) => {
                    let count = (last.min(extent.end()) - block).min(PIECE);
                    let pages = self.read_checked(id, extent, block - extent.first, count).await?;
                    pages.iter().for_each(|page| bytes.extend(page.iter()));
                }
                None => bytes.extend(&state.tail),
            }
            bytes.drain(before..(before + skip).min(bytes.len()));
            if bytes.len() == before {
                let what = format!("{}: block {block} has no place", self.name_of(id));
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
            at += (bytes.len() - before) as u64;
        }
        bytes.truncate(end.saturating_sub(offset) as usize);
        Ok(bytes)
    }

    /// Reads blocks of an extent and verifies their checksums.
    async fn read_checked(
        &self,
        id: FileId,
        extent: &Extent,
        inside: u32,
        count: u32,
    ) -> Result<Pages> {
        let geometry = self.device.geometry();
        let place = |inside: u32, error: Error| {
            let at = extent.at.plus(inside);
            let (zone, offset) = (at.zone(geometry), at.offset(geometry));
            let (name, block) = (self.name_of(id), extent.first + inside);
            error.at(format!("{name}: block {block} (zone {zone} offset {offset})"))
        };
        let at = extent.at.plus(inside);
        let pages = read_blocks(&*self.device, QueueId(0), at, count, &self.pages).await;
        let pages = pages.map_err(|error| place(inside, error))?;
        let sums = self.sums_of(id, extent).await.map_err(|error| error.at(self.name_of(id)))?;
        for (index, page) in pages.iter().enumerate() {
            let inside = inside + index as u32;
            let found = crc32c(page.bytes());
            match sums.get(inside as usize) {
                Some(sum) if *sum == found => {}
                Some(sum) => return Err(place(inside, wrong_content(found, *sum))),
                None => {
                    let error = Error::new(ErrorKind::Corrupt, "it has no checksum");
                    return Err(place(inside, error));
                }
            }
        }
        Ok(pages)
    }

    async fn sums_of(&self, id: FileId, extent: &Extent) -> Result<Rc<Vec<u32>>> {
        let at = match &extent.sums {
            Sums::Here(sums) => return Ok(sums.clone()),
            Sums::At(at) => *at,
        };
        if let Some((_, sums)) = self.sums.borrow().as_ref().filter(|(known, _)| *known == at) {
            return Ok(sums.clone());
        }
        let sums = read_sums(&*self.device, &self.pages, self.found.uuid, id, extent, at).await?;
        let sums = Rc::new(sums);
        *self.sums.borrow_mut() = Some((at, sums.clone()));
        Ok(sums)
    }
}

/// Describes the content of each zone, from the extents of the files and the half of the
/// ring that counts.
pub(crate) fn zone_infos<'a>(
    reports: &[ZoneReport],
    geometry: &Geometry,
    (ring, half): (RingZones, &[ZoneId]),
    files: impl Iterator<Item = (FileId, &'a [Extent])>,
) -> Vec<ZoneInfo> {
    let mut residents: BTreeMap<ZoneId, BTreeMap<FileId, u32>> = BTreeMap::new();
    for (id, extents) in files {
        for (at, blocks) in extents.iter().flat_map(Extent::places) {
            if let Some((zone, _)) = at.locate(geometry) {
                *residents.entry(zone).or_default().entry(id).or_default() += blocks;
            }
        }
    }
    let each = reports.iter().map(|report| {
        let usage = zone_use(report, geometry, ring);
        let files = residents.remove(&report.zone).unwrap_or_default();
        let conventional = usage == ZoneUse::Conventional;
        let written = if conventional { 0 } else { blocks_written(report, geometry) };
        let valid = if half.contains(&report.zone) { written } else { files.values().sum() };
        let active = report.state.is_active();
        ZoneInfo { zone: report.zone, usage, active, written, valid, files }
    });
    each.collect()
}

/// Builds the error for a block that is not what was written.
pub(crate) fn wrong_content(found: u32, expected: u32) -> Error {
    let message = format!("it has checksum {found:08x}, {expected:08x} was written");
    Error::new(ErrorKind::Corrupt, message)
}

/// Reads the block with an extent's checksums.
///
/// # Errors
/// `Corrupt` if the block belongs to another extent, `Io` if it cannot be read; both say where.
pub(crate) async fn read_sums(
    device: &dyn ZonedDevice,
    pages: &Pool,
    store: Uuid,
    id: FileId,
    extent: &Extent,
    at: BlockAddr,
) -> Result<Vec<u32>> {
    let geometry = device.geometry();
    let what = |error: Error| {
        let (zone, offset) = (at.zone(geometry), at.offset(geometry));
        error.at(format!("its block of checksums (zone {zone} offset {offset})"))
    };
    let read = read_blocks(device, QueueId(0), at, 1, pages).await.map_err(what)?;
    let corrupt = |why: String| what(Error::new(ErrorKind::Corrupt, why));
    let page = read.first().ok_or_else(|| corrupt("nothing was read".to_owned()))?;
    let expect = Expect { kind: kind::SUMS, device: None, object: Some(store) };
    let (header, body) = record::open(page.bytes(), &expect).map_err(what)?;
    let short = || corrupt("too short".to_owned());
    let (head, rest) = SumsHead::read_from_prefix(body).map_err(|_| short())?;
    let (first, blocks) = (head.first.get(), head.blocks.get());
    let of = header.sequence.get();
    let same = of == id.0 && first == extent.first && blocks >= extent.blocks;
    if !same || rest.len() as u64 != 4 * u64::from(blocks) {
        return Err(corrupt(format!(
            "it holds checksums of file {of}, {blocks} blocks from {first}"
        )));
    }
    let each = rest.as_chunks::<4>().0.iter().map(|sum| u32::from_le_bytes(*sum));
    Ok(each.collect())
}

/// Returns the extent that holds a block.
fn extent_of(state: &FileState, block: u32) -> Option<&Extent> {
    let after = state.extents.partition_point(|extent| extent.first <= block);
    state.extents.get(after.checked_sub(1)?).filter(|extent| block < extent.end())
}

/// Counts the blocks that a file takes, including blocks of checksums.
fn blocks_of(state: &FileState) -> u64 {
    state.extents.iter().flat_map(Extent::places).map(|(_, blocks)| u64::from(blocks)).sum()
}

/// Counts the paths that name each file.
fn count_names(replay: &Replay) -> BTreeMap<FileId, u32> {
    let mut names = BTreeMap::new();
    for node in replay.nodes.values() {
        if let Node::File(id) = node {
            *names.entry(*id).or_default() += 1;
        }
    }
    names
}

fn zone_use(report: &ZoneReport, geometry: &Geometry, ring: RingZones) -> ZoneUse {
    match report.state {
        ZoneState::ReadOnly | ZoneState::Offline => ZoneUse::Failed,
        _ if geometry.is_conventional(report.zone) => ZoneUse::Conventional,
        _ if report.zone.0 < ring.end() => ZoneUse::Ring,
        ZoneState::Empty => ZoneUse::Free,
        ZoneState::Full => ZoneUse::Full,
        _ => ZoneUse::Open,
    }
}

/// Finds the UUID of the store on a drive, even if the store cannot be opened. Looks for records
/// where a store's ring may begin.
///
/// # Errors
/// `Io` if the drive does not report its zones.
pub async fn identify(device: &dyn ZonedDevice) -> Result<Option<Uuid>> {
    let geometry = device.geometry();
    if BlockAddr::check(geometry).is_err() {
        return Ok(None);
    }
    let reports = survey::reports(device).await?;
    Ok(identify_by(device, &reports, &Pool::new(8)).await)
}

/// Reads the label in `block`, the first block of a store's superblock; `None` if it is damaged.
pub fn label_of(block: &[u8]) -> Option<String> {
    let expect = Expect { kind: kind::SUPERBLOCK, ..Expect::default() };
    let (_, body) = record::open(block, &expect).ok()?;
    let (body, _) = SuperblockBody::read_from_prefix(body).ok()?;
    let end = body.label.iter().position(|byte| *byte == 0).unwrap_or(body.label.len());
    Some(String::from_utf8_lossy(&body.label[..end]).into_owned())
}
