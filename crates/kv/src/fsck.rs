//! Checks a store without writing to its drive: whether the ring is sound, and its claims are true.
//!
//! The check continues where opening a store would stop, as long as the records can be interpreted.
//! A trace of a crash is a note and no problem: the next opening repairs it.
//!
//! Invariants
//! - The drive gets only reads and zone reports.
//! - No block is read as content twice, whatever the ring says: the check takes bounded time.

use crate::entries::FileState;
use crate::file::{Extent, FileId, Sums};
use crate::format::{PATH_MAX, kind};
use crate::inspect::{PIECE, identify, name_of, read_sums, wrong_content};
use crate::namespace::paths::Node;
use crate::recover::{Replay, is_written};
use crate::ring_scan::{
    Superblock, find_ring, may_be_newer, none_found, offline_beginning, superblock_of,
};
use furrow_log::address::{blocks_per_zone, blocks_written};
use furrow_log::record::{self, RecordHeader, Uuid, crc32c};
use furrow_log::ring::{RingZones, is_offline, read_half};
use furrow_log::survey;
use furrow_log::{BLOCK_SIZE, BlockAddr, read_blocks};
use furrow_rt::Pool;
use furrow_zone::{ErrorKind, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice};
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

/// Most problems that are kept; the others are only counted.
const KEPT: usize = 1000;

/// What to check.
#[derive(Clone)]
pub struct CheckOptions {
    /// Read all content and verify its checksums.
    pub content: bool,
    /// Called from time to time with the bytes of content read so far and their total.
    pub progress: Rc<dyn Fn(u64, u64)>,
}

impl Default for CheckOptions {
    fn default() -> CheckOptions {
        CheckOptions { content: true, progress: Rc::new(|_, _| {}) }
    }
}

/// A violation of the format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// The structure concerned: `ring`, `name`, `file`, `extent`, `checksums` or `content`.
    pub structure: &'static str,
    /// A path of the file, or its number.
    pub file: Option<String>,
    /// The block of the file, or the first of several.
    pub block: Option<u32>,
    /// The place on the drive: zone and offset in it, in blocks of 4 KiB.
    pub place: Option<(u32, u32)>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.structure)?;
        if let Some(file) = &self.file {
            write!(f, "{file}: ")?;
        }
        match (self.block, self.place) {
            (Some(block), Some((zone, offset))) => {
                write!(f, "block {block} (zone {zone} offset {offset}): ")?;
            }
            (Some(block), None) => write!(f, "block {block}: ")?,
            (None, Some((zone, offset))) => write!(f, "zone {zone} offset {offset}: ")?,
            (None, None) => {}
        }
        f.write_str(&self.what)
    }
}

/// How much was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Records of the half of the ring that counts.
    pub records: u64,
    /// Names of files.
    pub names: u64,
    /// Directories, without the root.
    pub directories: u64,
    /// Files.
    pub files: u64,
    /// Extents of files.
    pub extents: u64,
    /// Blocks of content.
    pub blocks: u64,
    /// Of these, blocks that match their checksums.
    pub verified: u64,
    /// Blocks of checksums that are intact.
    pub sums: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The store.
    pub uuid: Uuid,
    /// Its label.
    pub label: String,
    /// The problems.
    pub problems: Vec<Problem>,
    /// How many problems there are beyond those.
    pub more: u64,
    /// Observations that are no problems.
    pub notes: Vec<String>,
    /// How much was checked.
    pub checked: Checked,
}

impl CheckReport {
    /// True if there are no problems.
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }
}

/// The content of a half of the ring, as far as it can be followed.
struct Half {
    superblock: Superblock,
    header: RecordHeader,
    replay: Replay,
    records: u64,
    broken: bool,
}

/// A run of blocks: zone, first block, number of blocks, and the file and extent that name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Taken {
    at: u32,
    blocks: u32,
    file: FileId,
    extent: usize,
    sums: bool,
}

struct Check<'a> {
    device: &'a dyn ZonedDevice,
    options: &'a CheckOptions,
    reports: Vec<ZoneReport>,
    pages: Pool,
    report: CheckReport,
}

/// Checks the store on a drive.
///
/// # Errors
/// `WrongFormat` if there is no store, or one that this program does not know; `Io` if the drive
/// does not report its zones. Everything else is in the report.
pub async fn check(device: &dyn ZonedDevice, options: &CheckOptions) -> Result<CheckReport> {
    BlockAddr::check(device.geometry()).map_err(|error| error.at(device.name()))?;
    let reports = survey::reports(device).await?;
    let pages = Pool::new(2 * PIECE as usize);
    let mut check = Check { device, options, reports, pages, report: CheckReport::default() };
    check.run().await?;
    Ok(check.report)
}

impl Check<'_> {
    fn problem(&mut self, problem: Problem) {
        match self.report.problems.len() < KEPT {
            true => self.report.problems.push(problem),
            false => self.report.more += 1,
        }
    }

    fn of_ring(&mut self, place: Option<(u32, u32)>, what: impl Into<String>) {
        let what = what.into();
        self.problem(Problem { structure: "ring", place, what, ..Problem::default() });
    }

    fn note(&mut self, note: impl Into<String>) {
        if self.report.notes.len() < KEPT {
            self.report.notes.push(note.into());
        }
    }

    async fn run(&mut self) -> Result<()> {
        let none = || none_found(self.device, &self.reports);
        self.report.uuid = identify(self.device).await?.ok_or_else(none)?;
        let ring = match find_ring(self.device, &self.reports, &self.pages).await {
            Ok(Some(ring)) => ring,
            Ok(None) => {
                let what = "no half begins with an intact superblock: the store cannot be opened";
                self.of_ring(None, what);
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::WrongFormat => return Err(error),
            Err(error) => {
                self.of_ring(None, error.to_string());
                return Ok(());
            }
        };
        let zones = ring.zones;
        let Some(half) = self.newest(zones, ring.halves).await? else { return Ok(()) };
        let label = half.superblock.body.label;
        let label = label.split(|byte| *byte == 0).next().unwrap_or_default();
        self.report.label = String::from_utf8_lossy(label).into_owned();
        self.report.uuid = half.header.object;
        self.report.checked.records = half.records;
        if half.broken {
            self.note(
                "names and files were not checked: the records of them in the ring are cut off",
            );
            return Ok(());
        }
        let mut replay = half.replay;
        let missing_content =
            replay.missing_content(self.device, &self.reports, &self.pages).await?;
        let rolled_back = replay.roll_back(&missing_content);
        if rolled_back > 0 {
            let what = "a crash cut off the last sync; files left as before that sync";
            self.note(format!("{what}: {rolled_back}"));
        }
        self.failed_zones();
        self.names(&replay);
        self.files(&replay, zones).await;
        Ok(())
    }

    /// The half of the ring that counts.
    async fn newest(
        &mut self,
        ring: RingZones,
        halves: Vec<(u64, Superblock)>,
    ) -> Result<Option<Half>> {
        self.without_superblock(ring, &halves);
        let mut incomplete = false;
        let mut halves = halves.into_iter();
        while let Some((_, superblock)) = halves.next() {
            let Some(half) = self.half(&superblock).await? else { continue };
            if !half.replay.whole {
                incomplete = true;
                continue;
            }
            if let Some(zone) = may_be_newer(&superblock, &self.reports) {
                self.of_ring(Some((zone.0, 0)), is_offline(self.device, zone).to_string());
            }
            if incomplete {
                let what = "a crash cut off the beginning of a half of the ring: another half is \
                            used";
                self.note(what);
            }
            if halves.next().is_some() {
                let what =
                    "an older half of the ring is not emptied yet: the next opening empties it";
                self.note(what);
            }
            return Ok(Some(half));
        }
        let offline = offline_beginning(self.device.geometry(), &self.reports);
        match offline.filter(|zone| ring.has(*zone)) {
            Some(zone) => {
                self.of_ring(Some((zone.0, 0)), is_offline(self.device, zone).to_string())
            }
            None => {
                let what = "no half has a whole snapshot: the store cannot be opened";
                self.of_ring(None, what);
            }
        }
        Ok(None)
    }

    /// Notes zones of the ring that hold data and belong to no half that was found.
    fn without_superblock(&mut self, ring: RingZones, halves: &[(u64, Superblock)]) {
        for zone in ring.zones() {
            let known = |(_, half): &(u64, Superblock)| {
                half.zones.contains(&zone) || half.failed.contains(&zone)
            };
            let report = &self.reports[zone.0 as usize];
            let written = blocks_written(report, self.device.geometry()) > 0;
            if written && !halves.iter().any(known) {
                self.note(format!(
                    "zone {zone} begins with no superblock: a crash cut off the half of the ring \
                     that was to begin there, or its superblock is damaged"
                ));
            }
        }
    }

    /// Reads a half of the ring.
    async fn half(&mut self, superblock: &Superblock) -> Result<Option<Half>> {
        let zones = &superblock.zones;
        let mut half: Option<Half> = None;
        for (index, zone) in zones.iter().copied().enumerate() {
            let end = blocks_written(&self.reports[zone.0 as usize], self.device.geometry());
            let (at, ended) = self.zone_of_half(zone, &mut half).await?;
            let Some(half) = half.as_mut().filter(|half| !half.broken) else { break };
            if at < end && !ended && at > 0 {
                match self.filled(zone, at).await {
                    // The zone was finished before it was full, or is read-only.
                    None => break,
                    Some(true) => continue,
                    Some(false) => {}
                }
            }
            if at < end {
                self.behind_the_end(zone, at, half, &zones[index..]).await;
                break;
            }
            if at < blocks_per_zone(self.device.geometry()) {
                break;
            }
        }
        Ok(half)
    }

    /// Follows the records of a zone. Returns where they end, and whether a record that does not
    /// belong there follows.
    async fn zone_of_half(&mut self, zone: ZoneId, half: &mut Option<Half>) -> Result<(u32, bool)> {
        let (mut at, mut ended) = (0, false);
        let mut wrong = None;
        let device = self.device;
        let zones = std::iter::once(zone);
        let read = read_half(device, &self.reports, zones, &self.pages, |found| {
            let sequence = found.header.sequence.get();
            match half {
                None => {
                    let Some(superblock) = superblock_of(device, &found)? else {
                        ended = true;
                        return Ok(false);
                    };
                    let replay = Replay { record: sequence, ..Replay::default() };
                    let (header, records) = (found.header, 1);
                    *half = Some(Half { superblock, header, replay, records, broken: false });
                }
                Some(half) => {
                    ended = found.header.kind.get() != kind::ENTRIES
                        || found.header.object != half.header.object
                        || found.header.epoch != half.header.epoch
                        || sequence != half.replay.record + 1;
                    if ended {
                        return Ok(false);
                    }
                    if let Err(error) = half.replay.apply(&found) {
                        half.broken = true;
                        wrong = Some(format!("record {sequence} cannot be applied: {error}"));
                        return Ok(false);
                    }
                    half.records += 1;
                }
            }
            at += found.header.blocks();
            Ok(true)
        });
        match read.await {
            Err(error) if error.kind() == ErrorKind::WrongFormat => return Err(error),
            Err(error) => wrong = Some(error.to_string()),
            Ok(()) => {}
        }
        if let Some(what) = wrong {
            self.of_ring(Some((zone.0, at)), what);
            half.iter_mut().for_each(|half| half.broken = true);
        }
        Ok((at, ended))
    }

    async fn block(&self, zone: ZoneId, offset: u32) -> Option<Vec<u8>> {
        let at = BlockAddr::new(self.device.geometry(), zone, offset);
        let pages = read_blocks(self.device, QueueId(0), at, 1, &self.pages).await.ok()?;
        Some(pages.first()?.bytes().to_vec())
    }

    /// Whether a block of a zone holds the zeros that pad the zone. `None` if the drive says that
    /// the block was never written.
    async fn filled(&self, zone: ZoneId, offset: u32) -> Option<bool> {
        let at = BlockAddr::new(self.device.geometry(), zone, offset);
        match read_blocks(self.device, QueueId(0), at, 1, &self.pages).await {
            Ok(read) => Some(read.iter().all(|page| page.bytes().iter().all(|byte| *byte == 0))),
            Err(error) => (error.kind() != ErrorKind::Corrupt).then_some(false),
        }
    }

    /// Judges where the records of a half end, at a block that holds something else. A crash leaves
    /// such an end in the last group commit. Something durable is damaged if whole records of the
    /// same turn follow in the zone, or records of a later group commit in another zone.
    async fn behind_the_end(&mut self, zone: ZoneId, end: u32, half: &mut Half, zones: &[ZoneId]) {
        let (last, round) = (half.replay.record, half.replay.round);
        let mut lost = 0u64;
        for other in zones.iter().copied() {
            let written = blocks_written(&self.reports[other.0 as usize], self.device.geometry());
            let mut lost_here = 0;
            for at in if other == zone { end } else { 0 }..written {
                let header = self.block(other, at).await.and_then(|block| record::peek(&block));
                let behind = header.filter(|header| {
                    header.kind.get() == kind::ENTRIES
                        && header.object == half.header.object
                        && header.epoch == half.header.epoch
                        && header.sequence.get() > last + 1
                });
                let durable = |header: &RecordHeader| {
                    (other == zone && at > 0) || header.checkpoint.get() > round + 1
                };
                lost_here += u64::from(behind.as_ref().is_some_and(durable));
            }
            lost += lost_here;
        }
        if lost > 0 {
            let what = format!(
                "record {} is missing or damaged, and records behind it: {lost}; their content is \
                 lost",
                last + 1
            );
            self.of_ring(Some((zone.0, end)), what);
            // An incomplete snapshot does not show which entries are missing.
            half.broken = !half.replay.whole;
        } else {
            self.note(format!(
                "zone {zone} offset {end}: the last record of the ring is not whole: a crash cut \
                 it off, or it is damaged"
            ));
        }
    }

    fn failed_zones(&mut self) {
        for report in self.reports.clone() {
            match report.state {
                ZoneState::ReadOnly => self.note(format!("zone {} is read-only", report.zone)),
                ZoneState::Offline => self.note(format!("zone {} is offline", report.zone)),
                _ => {}
            }
        }
    }

    /// Paths have the form that the store gives them, and their directories exist.
    fn names(&mut self, replay: &Replay) {
        for (path, node) in &replay.nodes {
            let wrong = |what: String| Problem {
                structure: "name",
                file: Some(path.clone()),
                what,
                ..Problem::default()
            };
            let bad = |part: &str| matches!(part, "" | "." | "..") || part.contains('\0');
            if path.len() > PATH_MAX || path.split('/').any(bad) {
                self.problem(wrong("not a path of a store".to_owned()));
            } else if let Some((parent, _)) = path.rsplit_once('/')
                && replay.nodes.get(parent) != Some(&Node::Directory)
            {
                self.problem(wrong(format!("{parent} is no directory")));
            }
            match node {
                Node::Directory => self.report.checked.directories += 1,
                Node::File(id) => {
                    self.report.checked.names += 1;
                    if id.0 >= replay.next_file {
                        let next = replay.next_file;
                        self.problem(wrong(format!(
                            "file {}, but the next file to be made is {next}",
                            id.0
                        )));
                    }
                }
            }
        }
        let named = replay.nodes.values().filter_map(|node| match node {
            Node::File(id) => Some(*id),
            Node::Directory => None,
        });
        self.report.checked.files = named.collect::<BTreeSet<FileId>>().len() as u64;
    }

    /// Extents lie in zones of content, do not overlap, and hold the content written there.
    async fn files(&mut self, replay: &Replay, ring: RingZones) {
        let mut taken = Vec::new();
        for (id, state) in &replay.files {
            self.report.checked.extents += state.extents.len() as u64;
            for (index, extent) in state.extents.iter().enumerate() {
                match self.misplaced(extent, ring) {
                    None => {
                        let each = extent.places().enumerate().map(|(part, (at, blocks))| {
                            let sums = part > 0;
                            Taken { at: at.0, blocks, file: *id, extent: index, sums }
                        });
                        taken.extend(each);
                    }
                    Some((place, what)) => self.problem(Problem {
                        structure: "extent",
                        file: Some(name_of(replay, *id)),
                        block: Some(extent.first),
                        place,
                        what: format!("{} blocks: {what}", extent.blocks),
                    }),
                }
            }
        }
        let sound = self.overlaps(replay, taken);
        let all = sound.iter().map(|(id, index)| blocks_at(replay, *id, *index));
        let all: u64 = all.sum::<u64>() * BLOCK_SIZE as u64;
        self.report.checked.blocks = all / BLOCK_SIZE as u64;
        let mut done = 0;
        for (id, index) in sound {
            let Some(extent) = replay.files.get(&id).and_then(|state| state.extents.get(index))
            else {
                continue;
            };
            self.extent(replay, id, extent).await;
            done += u64::from(extent.blocks) * BLOCK_SIZE as u64;
            (self.options.progress)(done, all);
        }
    }

    /// Why an extent cannot lie where its entry says, and where that is if it is on the drive.
    fn misplaced(&self, extent: &Extent, ring: RingZones) -> Option<(Option<(u32, u32)>, String)> {
        let geometry = self.device.geometry();
        for (part, (at, blocks)) in extent.places().enumerate() {
            let of = if part > 0 { "their checksums are" } else { "they are" };
            let Some((zone, offset)) = at.locate(geometry) else {
                return Some((None, format!("{of} recorded at {at}, beyond the drive's end")));
            };
            let place = Some((zone.0, offset));
            if geometry.is_conventional(zone) || zone.0 < ring.end() {
                return Some((place, format!("{of} recorded in a zone that holds no content")));
            }
            if offset.saturating_add(blocks) > blocks_per_zone(geometry) {
                return Some((place, format!("{of} recorded beyond the end of a zone")));
            }
            if self.reports[zone.0 as usize].state == ZoneState::Offline {
                return Some((place, format!("{of} in a zone that is offline")));
            }
        }
        if is_written(extent, geometry, &self.reports) {
            return None;
        }
        let (zone, offset) = extent.at.locate(geometry)?;
        let end = blocks_written(&self.reports[zone.0 as usize], geometry);
        let what = match offset + extent.blocks > end {
            true => format!("the zone was written to offset {end} only"),
            false => "the block of their checksums was never written".to_owned(),
        };
        Some((Some((zone.0, offset)), what))
    }

    /// Reports blocks that belong to two extents. Returns the extents without such blocks.
    fn overlaps(&mut self, replay: &Replay, mut taken: Vec<Taken>) -> Vec<(FileId, usize)> {
        taken.sort();
        let geometry = self.device.geometry();
        let mut shared = BTreeSet::new();
        let mut before: Option<Taken> = None;
        for now in &taken {
            let overlapped = before.filter(|before| now.at < before.at + before.blocks);
            if let Some(other) = overlapped {
                shared.insert((now.file, now.extent));
                let of = replay.files.get(&now.file).and_then(|s| s.extents.get(now.extent));
                let at = BlockAddr(now.at);
                let kind = if now.sums { "the block of checksums is" } else { "they are" };
                self.problem(Problem {
                    structure: "extent",
                    file: Some(name_of(replay, now.file)),
                    block: of.map(|extent| extent.first),
                    place: at.locate(geometry).map(|(zone, offset)| (zone.0, offset)),
                    what: format!("{kind} of {} as well", name_of(replay, other.file)),
                });
            }
            let further = |before: &Taken| now.at + now.blocks > before.at + before.blocks;
            if before.as_ref().is_none_or(further) {
                before = Some(*now);
            }
        }
        let alone = taken.iter().filter(|taken| !taken.sums);
        let alone = alone.map(|taken| (taken.file, taken.extent));
        alone.filter(|extent| !shared.contains(extent)).collect()
    }

    /// Verifies the checksums of an extent's blocks.
    async fn extent(&mut self, replay: &Replay, id: FileId, extent: &Extent) {
        let sums = match &extent.sums {
            Sums::Here(sums) => sums.to_vec(),
            Sums::At(at) => {
                let store = self.report.uuid;
                match read_sums(self.device, &self.pages, store, id, extent, *at).await {
                    Ok(sums) => {
                        self.report.checked.sums += 1;
                        sums
                    }
                    Err(error) => {
                        let (zone, offset) = self.place_of(*at);
                        self.problem(Problem {
                            structure: "checksums",
                            file: Some(name_of(replay, id)),
                            block: Some(extent.first),
                            place: Some((zone, offset)),
                            what: format!("{} blocks cannot be read: {error}", extent.blocks),
                        });
                        return;
                    }
                }
            }
        };
        if !self.options.content {
            return;
        }
        let mut inside = 0;
        while inside < extent.blocks {
            let count = (extent.blocks - inside).min(PIECE);
            self.blocks(replay, id, extent, (inside, count), &sums).await;
            inside += count;
        }
    }

    fn place_of(&self, at: BlockAddr) -> (u32, u32) {
        let geometry = self.device.geometry();
        (at.zone(geometry).0, at.offset(geometry))
    }

    async fn blocks(
        &mut self,
        replay: &Replay,
        id: FileId,
        extent: &Extent,
        (inside, count): (u32, u32),
        sums: &[u32],
    ) {
        let at = extent.at.plus(inside);
        let all = read_blocks(self.device, QueueId(0), at, count, &self.pages).await.ok();
        for block in inside..inside + count {
            // If the blocks could not be read together, each is read by a command of its own.
            let alone = match &all {
                Some(_) => None,
                None => {
                    let at = extent.at.plus(block);
                    Some(read_blocks(self.device, QueueId(0), at, 1, &self.pages).await)
                }
            };
            let page = match (&all, &alone) {
                (Some(all), _) => all.get((block - inside) as usize),
                (None, Some(Ok(one))) => one.first(),
                (None, _) => None,
            };
            let wrong = match (page, sums.get(block as usize), &alone) {
                (Some(page), Some(sum), _) => {
                    let found = crc32c(page.bytes());
                    (found != *sum).then(|| wrong_content(found, *sum).to_string())
                }
                (Some(_), None, _) => Some("it has no checksum".to_owned()),
                (None, _, Some(Err(error))) => Some(error.to_string()),
                (None, ..) => Some("nothing was read".to_owned()),
            };
            match wrong {
                None => self.report.checked.verified += 1,
                Some(what) => {
                    let place = Some(self.place_of(extent.at.plus(block)));
                    self.problem(Problem {
                        structure: "content",
                        file: Some(name_of(replay, id)),
                        block: Some(extent.first + block),
                        place,
                        what,
                    });
                }
            }
        }
    }
}

/// Blocks of an extent of a file.
fn blocks_at(replay: &Replay, id: FileId, index: usize) -> u64 {
    let state: Option<&FileState> = replay.files.get(&id);
    let extent = state.and_then(|state| state.extents.get(index));
    extent.map_or(0, |extent| u64::from(extent.blocks))
}
