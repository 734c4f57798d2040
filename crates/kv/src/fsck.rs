//! Checks a store without writing to its drive: whether the ring is sound, and whether the drive
//! holds the content that the ring names.
//!
//! The check continues past errors at which opening a store would stop, as long as the records can
//! be interpreted. A trace of a crash is a note, not a problem: the next opening repairs it.
//!
//! Invariants
//! - The drive gets only reads and zone reports.
//! - No block is read as content twice, whatever the ring says: the check takes bounded time.

use crate::entries::FileState;
use crate::extent::{Extent, FileId, Sums};
use crate::format::PATH_MAX;
use crate::inspect::{PIECE, read_sums, wrong_content};
use crate::namespace::paths::Node;
use crate::recover::{Damage, Opened, Replay, is_written};
use crate::ring_scan::{find, identify_by};
use furrow_log::Kept;
use furrow_log::address::{blocks_per_zone, blocks_written};
use furrow_log::record::{Uuid, crc32c};
use furrow_log::ring::RingZones;
use furrow_log::survey;
use furrow_log::{BLOCK_SIZE, BlockAddr, read_blocks};
use furrow_rt::{Boxed, Pool};
use furrow_zone::{ErrorKind, QueueId, Result, ZoneReport, ZoneState, ZonedDevice};
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

/// Maximum number of notes that a report keeps.
const NOTES_MAX: usize = 1000;

/// Options of a check.
#[derive(Clone)]
pub struct CheckOptions {
    /// Whether to read all content and verify its checksums.
    pub content: bool,
    /// Called from time to time with the number of bytes of content read so far, and the
    /// total number.
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
    /// Block of the file, or the first one if several are concerned.
    pub block: Option<u32>,
    /// The place on the drive: zone and offset in it, in blocks of 4 KiB.
    pub place: Option<(u32, u32)>,
    /// Description of the problem, for messages.
    pub what: String,
}

/// The subject of a problem: the file, if there is one, and the structure.
pub type About = (Option<String>, &'static str);

impl Problem {
    /// Returns the subject of the problem.
    pub fn about(&self) -> About {
        (self.file.clone(), self.structure)
    }
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

/// Counts of what was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Number of records of the half of the ring that counts.
    pub records: u64,
    /// Number of names of files.
    pub names: u64,
    /// Number of directories, without the root.
    pub directories: u64,
    /// Number of files.
    pub files: u64,
    /// Number of extents of files.
    pub extents: u64,
    /// Number of blocks of content.
    pub blocks: u64,
    /// Number of blocks of content that match their checksums.
    pub verified: u64,
    /// Number of blocks of checksums that are intact.
    pub sums: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// UUID of the store.
    pub uuid: Uuid,
    /// Label of the store.
    pub label: String,
    /// The problems; at least one for each damaged file and structure.
    pub problems: Vec<Problem>,
    /// Number of problems beyond those listed.
    pub more: u64,
    /// Counts of all problems, listed or not, by file and structure.
    pub kept: Kept<About>,
    /// Observations that are not problems.
    pub notes: Vec<String>,
    /// Counts of what was checked.
    pub checked: Checked,
}

impl CheckReport {
    /// True if there are no problems.
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }
}

/// A run of blocks: the address of its first block, the number of blocks, and the file and the
/// extent that name the run. `sums`: whether the run is the extent's block of checksums.
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
/// `WrongFormat` if there is no store, or one that this program does not know; `Unsupported` if no
/// store can be on the drive; `Io` if the drive does not answer, or if a store may have begun in an
/// offline zone. Everything else is in the report.
#[inline(never)]
pub fn check<'a>(
    device: &'a dyn ZonedDevice,
    options: &'a CheckOptions,
) -> Boxed<'a, Result<CheckReport>> {
    Box::pin(async move {
        BlockAddr::check(device.geometry()).map_err(|error| error.at(device.name()))?;
        let misses = device.misses();
        let reports = survey::reports(device).await?;
        let pages = Pool::new(2 * PIECE as usize);
        let mut check = Check { device, options, reports, pages, report: CheckReport::default() };
        let done = check.run().await;
        survey::check_answers(device, misses)?;
        done.map(|()| check.report)
    })
}

impl Check<'_> {
    fn problem(&mut self, problem: Problem) {
        match self.report.kept.takes(problem.about()) {
            true => self.report.problems.push(problem),
            false => self.report.more += 1,
        }
    }

    fn of_ring(&mut self, place: Option<(u32, u32)>, what: impl Into<String>) {
        let what = what.into();
        self.problem(Problem { structure: "ring", place, what, ..Problem::default() });
    }

    fn note(&mut self, note: impl Into<String>) {
        if self.report.notes.len() < NOTES_MAX {
            self.report.notes.push(note.into());
        }
    }

    async fn run(&mut self) -> Result<()> {
        let found = match find(self.device, &self.reports, &self.pages, false).await {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::WrongFormat => return Err(error),
            Err(error) => {
                let uuid = identify_by(self.device, &self.reports, &self.pages).await;
                self.report.uuid = uuid.ok_or_else(|| error.clone())?;
                self.of_ring(None, error.to_string());
                return Ok(());
            }
        };
        self.report.label.clone_from(&found.label);
        self.report.uuid = found.uuid;
        self.report.checked.records = found.records;
        self.ring(&found);
        let (damaged, ring) = (found.damage.len(), found.ring);
        let mut found = found;
        let replay = &mut found.replay;
        let missing_content =
            replay.missing_content(self.device, &self.reports, &self.pages).await?;
        let rolled_back = replay.roll_back(&missing_content);
        if rolled_back > 0 {
            let what = "a crash cut off the last sync; files left as before that sync";
            self.note(format!("{what}: {rolled_back}"));
        }
        for loss in found.losses().into_iter().skip(damaged) {
            self.of_ring(None, loss);
        }
        self.failed_zones();
        self.names(&found.replay);
        self.files(&found.replay, ring).await;
        Ok(())
    }

    /// Checks the records of the ring.
    fn ring(&mut self, found: &Opened) {
        for Damage { place: (zone, at), what } in &found.damage {
            self.of_ring(Some((zone.0, *at)), what.clone());
        }
        if !found.sound && found.damage.is_empty() {
            let what = "a superblock or a record of the snapshot is damaged; there is a second \
                        copy of it, which the next opening uses";
            self.of_ring(found.half.first().map(|zone| (zone.0, 0)), what);
        }
        if found.superseded {
            let what = "a crash cut off the beginning of a half of the ring: another half is used";
            self.note(what);
        }
        if let Some((zone, at)) = found.end {
            self.note(format!(
                "zone {zone} offset {at}: the last record of the ring is not whole: a crash cut it \
                 off, or it is damaged"
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

    /// Checks that paths have the form that the store gives them, and that their directories exist.
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

    /// Checks that extents lie in zones of content, do not overlap, and hold the
    /// content written there.
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
                        file: Some(replay.name_of(*id)),
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

    /// Returns why an extent cannot lie where its entry says, and the place if it is on the drive.
    fn misplaced(&self, extent: &Extent, ring: RingZones) -> Option<(Option<(u32, u32)>, String)> {
        let geometry = self.device.geometry();
        for (part, (at, blocks)) in extent.places().enumerate() {
            let of = if part > 0 { "their checksums are" } else { "they are" };
            let Some((zone, offset)) = at.locate(geometry) else {
                return Some((None, format!("{of} recorded at {at}, beyond the drive's end")));
            };
            let place = Some((zone.0, offset));
            if geometry.is_conventional(zone) || zone.0 < ring.end() {
                return Some((
                    place,
                    format!("{of} recorded in a zone that is not for content of files"),
                ));
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
                    file: Some(replay.name_of(now.file)),
                    block: of.map(|extent| extent.first),
                    place: at.locate(geometry).map(|(zone, offset)| (zone.0, offset)),
                    what: format!("{kind} of {} as well", replay.name_of(other.file)),
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
                            file: Some(replay.name_of(id)),
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
            // If the blocks cannot be read together, each is read by a separate command.
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
                        file: Some(replay.name_of(id)),
                        block: Some(extent.first + block),
                        place,
                        what,
                    });
                }
            }
        }
    }
}

/// Number of blocks of an extent of a file.
fn blocks_at(replay: &Replay, id: FileId, index: usize) -> u64 {
    let state: Option<&FileState> = replay.files.get(&id);
    let extent = state.and_then(|state| state.extents.get(index));
    extent.map_or(0, |extent| u64::from(extent.blocks))
}
