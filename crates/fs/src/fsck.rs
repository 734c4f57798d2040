//! Checking a file system that is not mounted. Nothing is written.
//!
//! This is a second reader of the format: it shares the definitions ([`crate::format`], the
//! directory block of [`crate::tree::dirent`], the arithmetic of [`crate::tree::shape`],
//! [`crate::alloc::stripe`] and [`crate::layout`], record sealing of `furrow-log`) with the engine,
//! but no code that reads, replays or recovers.
//!
//! The check covers the state of the newest whole checkpoint, which is complete and consistent even
//! after a crash. It also covers the later sync records that the next mount would replay: the
//! records must be whole, and the nodes and blocks that they lead to must match them. The check
//! does not replay names, so the names that these records change are checked by the next run after
//! a mount.
//!
//! The order: superblocks, ring and checkpoint ([`ring`]); tables ([`tables`]); every inode's tree
//! and its blocks ([`tree`]); directories and links ([`names`]); segments, summaries and zones
//! ([`space`]); the sync log ([`sync`]).
//!
//! Some traces of a crash look like damage. A record is *torn*, not damaged, if its last blocks
//! never reached the drive: its zone ends, or newer content begins, before the end of the record.
//!
//! Memory: 12 bytes per valid block, about 60 per inode and 12 per directory entry. The report
//! keeps 10,000 findings, at most 100 about one kind of structure of one inode. Beyond these limits
//! the report keeps one finding about each kind of structure of each inode, at about 300 bytes, so
//! that every damaged file is named.

pub mod dump;
mod names;
pub(crate) mod ring;
mod space;
mod sync;
mod sync_end;
mod sync_items;
mod tables;
mod tree;
mod xattrs;

use crate::format::BLOCK;
use crate::layout::Layout;
use furrow_log::Kept;
use furrow_log::address::{
    BlockAddr, blocks_begun, blocks_per_zone, read_blocks, sectors_per_block,
};
use furrow_log::record::RecordHeader;
use furrow_log::survey::{check_answers, reports};
use furrow_rt::buf::is_zero;
use furrow_rt::{Boxed, Page, Pages, Pool};
use furrow_zone::{Error, ErrorKind, Geometry, QueueId, Result};
use furrow_zone::{ZoneId, ZoneReport, ZoneState, ZonedDevice};
pub(crate) use names::path;
use std::fmt;
use std::rc::Rc;

/// Options of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsckOptions {
    /// Read the content of every file and compare it with its checksum. Directories and symbolic
    /// links are always read.
    pub verify_data: bool,
}

impl Default for FsckOptions {
    fn default() -> FsckOptions {
        FsckOptions { verify_data: true }
    }
}

/// A fault that the check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind of the damaged structure, by its name in the format.
    pub structure: &'static str,
    /// The inode that the finding concerns, if any.
    pub inode: Option<u32>,
    /// A path of `inode`, if names lead to it.
    pub path: Option<String>,
    /// The place of the structure, and the field in it.
    pub place: String,
    /// The expected content.
    pub expected: String,
    /// The content that was found.
    pub found: String,
}

impl Finding {
    /// The subject of the finding.
    pub fn about(&self) -> About {
        (self.inode, self.structure)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { structure, path, place, expected, found, .. } = self;
        if let Some(path) = path {
            write!(f, "{path}: ")?;
        }
        write!(f, "{structure}: {place}: expected {expected}, found {found}")
    }
}

/// The subject of a finding: the inode, if it concerns one, and the kind of structure.
pub type About = (Option<u32>, &'static str);

/// Counts of the structures that were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsckStatistics {
    /// Number of inodes in use: files, directories and others.
    pub inodes: u64,
    /// Number of directories among the inodes.
    pub directories: u64,
    /// Number of names in directories.
    pub entries: u64,
    /// Number of nodes that were read (inodes, leaves, index nodes).
    pub nodes: u64,
    /// Number of blocks of content that files refer to.
    pub data_blocks: u64,
    /// Number of blocks of content that were read and compared with their checksum.
    pub verified_blocks: u64,
    /// Number of summaries of closed segments that were checked.
    pub summaries: u64,
    /// Number of blocks of tables and delta logs that were read.
    pub table_blocks: u64,
    /// Number of sync records that the next mount will replay.
    pub sync_records: u64,
}

/// The outcome of a check.
#[derive(Clone, Debug, Default)]
pub struct FsckReport {
    /// Label of the volume.
    pub label: String,
    /// UUID of the file system.
    pub uuid: String,
    /// Number of the checkpoint that was checked.
    pub checkpoint: u64,
    /// True if the file system was unmounted cleanly: the sync log is empty.
    pub clean: bool,
    /// The faults, in the order of the check; at least one for each damaged file and structure.
    pub findings: Vec<Finding>,
    /// Number of findings that are not listed in `findings`.
    pub more_findings: u64,
    /// Counts of the findings about each structure, by inode and kind.
    pub kept: Kept<About>,
    /// Remarks that do not concern damage.
    pub notes: Vec<String>,
    /// Counts of the structures that were checked.
    pub statistics: FsckStatistics,
    /// Superzones with a faulty summary.
    pub bad_summaries: std::collections::BTreeSet<u32>,
}

impl FsckReport {
    /// True if there are no findings.
    pub fn is_ok(&self) -> bool {
        self.findings.is_empty()
    }

    /// Exit status as in fsck(8): 0 for no errors, 4 for errors left uncorrected. (If the check
    /// itself cannot be made, [`fsck`] returns an `Err`, and the status is 8, operational error.)
    pub fn exit_code(&self) -> u8 {
        if self.is_ok() { 0 } else { 4 }
    }
}

/// Checks the file system on `device`, which must not be mounted.
///
/// # Errors
/// `WrongFormat` if there is no file system, or if it has a newer version or unknown features;
/// `Unsupported` or `Io` if the drive cannot be used. All other faults are findings.
#[inline(never)]
pub fn fsck(device: Rc<dyn ZonedDevice>, options: &FsckOptions) -> Boxed<'_, Result<FsckReport>> {
    Box::pin(async move {
        let misses = device.misses();
        let mut fsck = Fsck::new(device, *options).await?;
        let done = fsck.run().await;
        check_answers(&*fsck.device, misses)?;
        done.map(|()| fsck.report)
    })
}

/// Checks the structures that a mount of the file system on `device` reads first: superblocks,
/// ring, checkpoint, tables, the sync log. The file system may be mounted; structures that are
/// written during the check may look damaged.
///
/// # Errors
/// The errors of [`fsck`].
#[inline(never)]
pub(crate) fn check_records(device: Rc<dyn ZonedDevice>) -> Boxed<'static, Result<FsckReport>> {
    Box::pin(async move {
        let misses = device.misses();
        let mut fsck = Fsck::new(device, FsckOptions { verify_data: false }).await?;
        let done = fsck.run_records().await;
        check_answers(&*fsck.device, misses)?;
        done.map(|()| fsck.report)
    })
}

/// A check under way.
struct Fsck {
    device: Rc<dyn ZonedDevice>,
    geometry: Geometry,
    reports: Vec<ZoneReport>,
    pages: Pool,
    options: FsckOptions,
    report: FsckReport,
    /// The inode that is being checked.
    inode: Option<u32>,
}

impl Fsck {
    async fn new(device: Rc<dyn ZonedDevice>, options: FsckOptions) -> Result<Fsck> {
        let geometry = device.geometry().clone();
        BlockAddr::check(&geometry).map_err(|error| error.at(device.name()))?;
        let reports = reports(&*device).await?;
        let report = FsckReport::default();
        let pages = Pool::new(1024);
        Ok(Fsck { device, geometry, reports, pages, options, report, inode: None })
    }

    async fn run(&mut self) -> Result<()> {
        self.note_offline();
        let Some(volume) = ring::read(self).await? else { return Ok(()) };
        let Some(tables) = tables::read(self, &volume).await else { return Ok(()) };
        let mut walk = tree::walk(self, &volume, &tables).await;
        names::check(self, &volume, &mut walk);
        let refs = std::mem::take(&mut walk.refs);
        space::check(self, &volume, &tables, walk).await;
        sync::check(self, &volume, &tables.nat).await;
        names::find_paths(self, &volume, &tables, &refs).await;
        Ok(())
    }

    async fn run_records(&mut self) -> Result<()> {
        let Some(volume) = ring::read(self).await? else { return Ok(()) };
        let (tables, damaged) = tables::read_all(self, &volume).await;
        if !damaged {
            sync::check(self, &volume, &tables.nat).await;
        }
        Ok(())
    }

    /// Adds a finding.
    fn add(
        &mut self,
        structure: &'static str,
        place: impl Into<String>,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) {
        if !self.report.kept.takes((self.inode, structure)) {
            self.report.more_findings += 1;
            return;
        }
        let (expected, found) = (expected.to_string(), found.to_string());
        let (place, inode, path) = (place.into(), self.inode, None);
        self.report.findings.push(Finding { structure, inode, path, place, expected, found });
    }

    /// Adds a note, not a finding, that names the offline zones. Each structure that cannot be read
    /// there becomes a finding when it is checked.
    fn note_offline(&mut self) {
        const NAMED: usize = 20;
        let all = self.reports.iter().filter(|report| report.state == ZoneState::Offline);
        let zones: Vec<String> = all.map(|report| report.zone.to_string()).collect();
        let more = match zones.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let named = zones[..zones.len().min(NAMED)].join(", ");
        let note = match zones.len() {
            0 => return,
            1 => format!("zone {named} is offline: what it held cannot be read"),
            _ => format!("zones {named}{more} are offline: what they held cannot be read"),
        };
        self.report.notes.push(note);
    }

    /// Number of findings so far.
    fn count(&self) -> u64 {
        self.report.findings.len() as u64 + self.report.more_findings
    }

    /// Adds a finding unless `found` is as expected; returns true if it is.
    fn expect<T: PartialEq + fmt::Display>(
        &mut self,
        structure: &'static str,
        place: impl FnOnce() -> String,
        expected: T,
        found: T,
    ) -> bool {
        let equal = expected == found;
        if !equal {
            self.add(structure, place(), expected, found);
        }
        equal
    }

    /// Adds a finding unless the reserved bytes `b` are zero.
    fn expect_zero(&mut self, structure: &'static str, place: impl FnOnce() -> String, b: &[u8]) {
        if !is_zero(b) {
            self.add(structure, place(), "zeros in reserved bytes", format!("{b:02x?}"));
        }
    }

    /// Number of blocks per zone.
    fn capacity(&self) -> u32 {
        blocks_per_zone(&self.geometry)
    }

    /// Number of blocks of `zone` that can be read.
    fn written(&self, zone: ZoneId) -> u32 {
        let Some(report) = self.reports.get(zone.0 as usize) else { return 0 };
        match report.state {
            ZoneState::Offline => 0,
            ZoneState::Full | ZoneState::ReadOnly => self.capacity(),
            _ => {
                let blocks = report.write_pointer.0 / sectors_per_block(&self.geometry);
                blocks.min(u64::from(self.capacity())) as u32
            }
        }
    }

    /// Number of blocks of `zone` that were begun, including a block that a crash cut off: later
    /// writes to the zone start behind that block.
    fn begun(&self, zone: ZoneId) -> u32 {
        let report = self.reports.get(zone.0 as usize);
        report.map_or(0, |report| blocks_begun(report, &self.geometry))
    }

    /// Reads `count` blocks from `addr` on.
    async fn read(&self, addr: u32, count: u32) -> Result<Pages> {
        read_blocks(&*self.device, QueueId(0), BlockAddr(addr), count, &self.pages).await
    }

    /// Whether the write pointer of `zone` says nothing about its content: a read-only zone has no
    /// pointer, and a power cut or the drive itself may have made a zone full.
    fn is_doubtful(&self, zone: ZoneId) -> bool {
        let report = self.reports.get(zone.0 as usize);
        report.is_some_and(|r| matches!(r.state, ZoneState::Full | ZoneState::ReadOnly))
    }

    /// Whether a crash may have cut off one of the blocks in `bytes`, whose first `used` bytes have
    /// content. A block can be cut off only if the drive's sectors are smaller than a block: the
    /// last sector that should have content then holds zeros. The blocks may be in different zones,
    /// so the block that was cut off need not be the last.
    fn is_cut_off(&self, bytes: &[u8], used: usize) -> bool {
        let size = (BLOCK as u64 / sectors_per_block(&self.geometry)) as usize;
        let ends_in_zeros = |block: &[u8]| is_zero(&block[(block.len() - 1) / size * size..]);
        size < BLOCK && bytes[..used.min(bytes.len())].chunks(BLOCK).any(ends_in_zeros)
    }

    /// Reads one block. Returns zeros for a block that the drive says was never written, if the
    /// write pointer of its zone does not show whether the block was written.
    async fn read_one(&self, addr: u32) -> Result<Page> {
        let mut pages = match self.read(addr, 1).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let zone = BlockAddr(addr).locate(&self.geometry).map(|(zone, _)| zone);
                match zone.filter(|zone| self.is_doubtful(*zone)) {
                    Some(_) => Pages::from_iter([Page::zeroed()]),
                    None => return Err(error),
                }
            }
            read => read?,
        };
        pages.pop().ok_or_else(|| Error::new(ErrorKind::Io, "the drive answered no data"))
    }

    /// Address of block `offset` of `zone`.
    fn addr(&self, zone: ZoneId, offset: u32) -> u32 {
        zone.0.saturating_mul(self.capacity()).saturating_add(offset)
    }

    /// Names a block in messages: zone and offset.
    fn at(&self, addr: u32) -> String {
        match BlockAddr(addr).locate(&self.geometry) {
            Some((zone, offset)) => format!("zone {zone} offset {offset}"),
            None => format!("block {addr} (past the drive's end)"),
        }
    }

    /// Whether block `addr` lies in the part of its zone that can be read.
    fn is_written(&self, addr: u32) -> bool {
        BlockAddr(addr)
            .locate(&self.geometry)
            .is_some_and(|(zone, offset)| offset < self.written(zone))
    }
}

/// A superzone, from its descriptor.
#[derive(Clone, Debug)]
struct Superzone {
    /// The superzone's zones, without bad ones.
    zones: Vec<ZoneId>,
    generation: u32,
    state: u8,
}

/// Numbers for the states of a superzone in its descriptor.
mod state {
    pub const FREE: u8 = 0;
    pub const ACTIVE: u8 = 1;
    pub const FULL: u8 = 3;
    pub const RETIRED: u8 = 4;
    pub const TABLES: u8 = 5;
}

/// The content of the checkpoint.
struct Volume {
    plan: Layout,
    header: RecordHeader,
    body: crate::format::CheckpointBody,
    streams: Vec<crate::format::StreamState>,
    extents: Vec<furrow_log::format::ExtentEntry>,
    units: Vec<crate::format::UnitRef>,
    superzones: Vec<Superzone>,
    orphans: Vec<u32>,
    summaries: Vec<Vec<crate::format::SummaryEntry>>,
}

impl Volume {
    /// Whether table pages may be in `zone`.
    fn is_of_tables(&self, zone: u32) -> bool {
        let plan = &self.plan;
        let superzone = zone.checked_sub(plan.main_start).map(|at| at / plan.width);
        let superzone = superzone.and_then(|index| self.superzones.get(index as usize));
        let taken = superzone.is_some_and(|superzone| {
            superzone.state == state::TABLES && superzone.zones.contains(&ZoneId(zone))
        });
        taken || (plan.table_start..plan.table_start + plan.table_zones).contains(&zone)
    }

    /// Finds the place of a block of the main area: superzone, segment number in the SIT, block in
    /// the segment.
    fn locate(&self, addr: u32) -> Option<(u32, u32, u32)> {
        let (zone, offset) = (addr / self.plan.capacity, addr % self.plan.capacity);
        let index = zone.checked_sub(self.plan.main_start)? / self.plan.width;
        let superzone = self.superzones.get(index as usize)?;
        let column = superzone.zones.iter().position(|z| z.0 == zone)?;
        let stripe = self.plan.stripe(superzone.zones.len() as u32);
        let v = stripe.index(column as u32, offset);
        let segment = stripe.segment_of(v)?;
        (!stripe.is_summary(v)).then_some(())?;
        Some((index, index * self.plan.segments + segment, v % stripe.segment))
    }

    /// Whether block `addr` may be newer than the checkpoint: it lies behind the position of the
    /// head in its superzone, or the checkpoint has no head in that superzone.
    fn is_behind(&self, addr: u32) -> bool {
        let zone = addr / self.plan.capacity;
        let index = zone.checked_sub(self.plan.main_start).map(|at| at / self.plan.width);
        let Some(index) = index else { return true };
        let Some(superzone) = self.superzones.get(index as usize) else { return true };
        let stream = self.streams.iter().find(|stream| stream.superzone.get() == index);
        let column = superzone.zones.iter().position(|known| known.0 == zone);
        let (Some(stream), Some(column)) = (stream, column) else { return true };
        let stripe = self.plan.stripe(superzone.zones.len() as u32);
        stripe.index(column as u32, addr % self.plan.capacity) >= stream.next.get()
    }
}
