//! Opening a store: what the record ring says, and which of the content it names is on the drive.
//!
//! Two tables in `steps` list the steps in their order. Recovery writes the state that it found to
//! another half of the ring, as a snapshot. Only then does it empty the old half and the zones
//! without valid blocks.

mod loss;
pub(crate) mod steps;

use crate::commits::Commits;
use crate::dead_ranges::ranges::Forgotten;
use crate::entries::{self, Entry, FileState};
use crate::extent::{Extent, FileId, Sums};
use crate::file::File;
use crate::file_kind::{Family, FileKind, Role};
use crate::flights::Flights;
use crate::format::{SumsHead, flag, kind};
use crate::leaving::Leaving;
use crate::namespace::paths::{Namespace, Node, rename};
use crate::ring_load::{RingLoad, name_bytes};
use crate::store::{Counters, Identity, Inner, Life, Options, Store};
use crate::sums_cache::SumsCache;
use crate::zone_allocator::ZoneAllocator;
use furrow_log::address::blocks_written;
use furrow_log::budget::{Budget, Class};
use furrow_log::pool::{SuperzoneId, ZonePool, describe};
use furrow_log::record::{self, Expect, Uuid, crc32c};
use furrow_log::ring::{FoundRecord, RecordRing, RingZones};
use furrow_log::scrub::Scrub;
use furrow_log::writer::Writer;
use furrow_log::{BlockAddr, read_blocks};
use furrow_rt::buf::is_zero;
use furrow_rt::{Page, Pool, Rt};
use furrow_zone::{
    Error, ErrorKind, Geometry, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Number of permits on a drive without a limit.
const UNLIMITED: u32 = 64;
/// Reserved permits: two for halves of the ring, one for cleaning, one for files. Without the one
/// for files, zones of moved blocks could hold all other permits, and a file would wait for
/// cleaning that no task requests.
const KEPT: [(Class, u32); 3] = [(Class::Metadata, 2), (Class::Cleaning, 1), (Class::User, 1)];

pub(crate) fn is_bad(report: &ZoneReport) -> bool {
    matches!(report.state, ZoneState::ReadOnly | ZoneState::Offline)
}

/// The state that the records of the ring add up to.
#[derive(Default)]
pub(crate) struct Replay {
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) files: BTreeMap<FileId, FileState>,
    /// The youngest blob file of each family, by zone.
    pub(crate) youngest: BTreeMap<ZoneId, BTreeMap<Family, u64>>,
    /// For each file in the last group commit, its state before that commit; `None` if it is new.
    pub(crate) before: BTreeMap<FileId, Option<FileState>>,
    pub(crate) round: u64,
    pub(crate) record: u64,
    pub(crate) next_file: u64,
    pub(crate) whole: bool,
    /// `turns`: whether the half ends with the record that announces a turn of the ring. `same`:
    /// whether that record says that the half's records add up to the next snapshot.
    pub(crate) turns: bool,
    pub(crate) same: bool,
    /// Whether records are lost.
    pub(crate) lossy: bool,
    /// Files with entries after lost records: `fresh` if the entries suffice to know the file's
    /// present state, otherwise `hurt`.
    pub(crate) fresh: BTreeSet<FileId>,
    pub(crate) hurt: BTreeSet<FileId>,
}

impl Replay {
    /// Returns a path of a file; its number if it has no path.
    pub(crate) fn name_of(&self, id: FileId) -> String {
        let named = self.nodes.iter().find(|(_, node)| **node == Node::File(id));
        named.map_or_else(|| format!("file {} without a name", id.0), |(path, _)| path.clone())
    }

    pub(crate) fn apply(&mut self, record: &FoundRecord) -> Result<()> {
        let (head, entries) = entries::decode(&record.body)?;
        let (round, flags) = (head.round.get(), head.flags.get());
        if round != self.round {
            self.before.clear();
        }
        self.round = round;
        self.record = record.header.sequence.get();
        self.next_file = head.next_file.get();
        self.whole |= flags & flag::WHOLE != 0;
        (self.turns, self.same) = (flags & flag::TURNS != 0, flags & flag::SAME != 0);
        for entry in entries {
            match entry {
                Entry::Name { path, file } => {
                    let node = file.map_or(Node::Directory, Node::File);
                    self.nodes.insert(path, node);
                }
                Entry::Remove { path } => {
                    self.nodes.remove(&path);
                }
                Entry::Rename { from, to } => rename(&mut self.nodes, &from, &to),
                Entry::File { file, keep, state } => self.file(file, keep, state)?,
                Entry::Zone { zone, youngest } => {
                    self.youngest.insert(zone, youngest);
                }
            }
        }
        if flags & flag::SNAPSHOT != 0 {
            // A snapshot is sent when all that it names is durable. So no earlier state is kept to
            // fall back to, and damage has to be reported.
            self.before.clear();
        }
        Ok(())
    }

    fn file(&mut self, id: FileId, keep: u32, state: FileState) -> Result<()> {
        let before = self.files.remove(&id);
        let mut extents = before.as_ref().map_or(Vec::new(), |before| before.extents.clone());
        extents.retain(|extent| extent.first < keep);
        let fits = extents.last().map_or(0, Extent::end) == keep;
        if self.lossy {
            let of = if fits { &mut self.fresh } else { &mut self.hurt };
            of.insert(id);
        }
        if !fits && self.lossy {
            // The entry does not continue the known part of the file, which keeps its older state.
            before.map(|before| self.files.insert(id, before));
            return Ok(());
        }
        if !fits {
            let end = extents.last().map_or(0, Extent::end);
            let message =
                format!("file {}: blocks up to {keep} are to be kept, it has {end}", id.0);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        extents.extend(state.extents);
        self.before.entry(id).or_insert(before);
        self.files.insert(id, FileState { extents, ..state });
        Ok(())
    }
}

/// Records of the ring that are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    /// The zone and the block in it at which the damage begins.
    pub(crate) place: (ZoneId, u32),
    pub(crate) what: String,
}

/// A store as its record ring describes it, before anything is written.
pub(crate) struct Opened {
    pub(crate) label: String,
    pub(crate) created: i64,
    pub(crate) uuid: Uuid,
    pub(crate) device: Uuid,
    pub(crate) ring: RingZones,
    /// Zones of the half that counts. If the half before supplied the snapshot, the zones of the
    /// half before follow.
    pub(crate) half: Vec<ZoneId>,
    /// Zones of the ring that failed.
    pub(crate) failed: BTreeSet<ZoneId>,
    pub(crate) turn: u64,
    /// Number of records of the half, including its superblock.
    pub(crate) records: u64,
    /// Whether the half that counts is complete: the superblock of this half is intact, no record
    /// before the end of this half is missing, and the snapshot was read from this half, not from a
    /// copy in another half.
    pub(crate) sound: bool,
    /// The damaged places of the ring.
    pub(crate) damage: Vec<Damage>,
    /// Place of the gap at the end of the half, if there is one.
    pub(crate) end: Option<(ZoneId, u32)>,
    /// Whether the half that counts ends with the record that announces a turn of the ring.
    pub(crate) turns: bool,
    /// Whether a newer half exists whose snapshot is not whole, so that it does not count.
    pub(crate) superseded: bool,
    /// Number of files rolled back to their state before the last group commit.
    pub(crate) rolled_back: usize,
    pub(crate) replay: Replay,
}

impl Replay {
    /// Removes files without a name, rolls back files whose last group commit names missing
    /// content, and refuses contradictions.
    pub(crate) async fn decide_last_commit(
        &mut self,
        device: &dyn ZonedDevice,
        reports: &[ZoneReport],
        pages: &Pool,
        (ring, trusting): (RingZones, bool),
    ) -> Result<usize> {
        let missing_content = match trusting {
            true => BTreeSet::new(),
            false => self.missing_content(device, reports, pages).await?,
        };
        let rolled_back = self.roll_back(&missing_content);
        self.check(device, ring)?;
        Ok(rolled_back)
    }

    /// Returns the files whose last group commit names content that is not on the drive.
    ///
    /// # Errors
    /// `Io` if the drive is gone. A block that was written and cannot be read is not
    /// missing content.
    pub(crate) async fn missing_content(
        &self,
        device: &dyn ZonedDevice,
        reports: &[ZoneReport],
        pages: &Pool,
    ) -> Result<BTreeSet<FileId>> {
        let mut missing_content = BTreeSet::new();
        for (id, before) in &self.before {
            let Some(now) = self.files.get(id) else { continue };
            let known = before.as_ref().map_or(&[][..], |before| &before.extents);
            for extent in now.extents.iter().filter(|extent| !known.contains(extent)) {
                if !is_there(extent, device, reports, pages).await? {
                    missing_content.insert(*id);
                    break;
                }
            }
        }
        Ok(missing_content)
    }

    /// Rolls these files back to their state before the last group commit, and removes files
    /// without a name. Returns how many were rolled back.
    pub(crate) fn roll_back(&mut self, missing_content: &BTreeSet<FileId>) -> usize {
        let mut rolled_back = 0;
        for (id, before) in std::mem::take(&mut self.before) {
            if !missing_content.contains(&id) {
                continue;
            }
            rolled_back += 1;
            match before {
                Some(before) => self.files.insert(id, before),
                None => self.files.remove(&id),
            };
        }
        if self.lossy {
            self.mend();
        }
        let named = self.named();
        self.files.retain(|id, _| named.contains(id));
        rolled_back
    }

    /// Refuses extents that overlap or lie where no extent can be, and files with numbers not given
    /// out yet.
    fn check(&self, device: &dyn ZonedDevice, ring: RingZones) -> Result<()> {
        let geometry = device.geometry();
        // The end of each extent, by its beginning.
        let mut taken: BTreeMap<BlockAddr, BlockAddr> = BTreeMap::new();
        for (id, state) in &self.files {
            let corrupt = |what: String| {
                let message = format!("{}: file {}: {what}", device.name(), id.0);
                Err(Error::new(ErrorKind::Corrupt, message))
            };
            if id.0 >= self.next_file {
                return corrupt(format!(
                    "expected a number below the next file's, {}",
                    self.next_file
                ));
            }
            for (at, blocks) in state.extents.iter().flat_map(Extent::places) {
                let last = BlockAddr(at.0.saturating_add(blocks - 1));
                let (Some((zone, _)), Some((end, _))) =
                    (at.locate(geometry), last.locate(geometry))
                else {
                    return corrupt(format!("an extent at {at}, beyond the drive's end"));
                };
                if zone != end || zone.0 < ring.end() {
                    return corrupt(format!(
                        "an extent at {at}, across zones or not behind the ring"
                    ));
                }
                let before = taken.range(..=last).next_back();
                if before.is_some_and(|(_, end)| *end >= at) {
                    return corrupt(format!("an extent at {at}, where another is"));
                }
                taken.insert(at, last);
            }
        }
        Ok(())
    }
}

/// Whether the zones of the extent and of its block of checksums are written far enough to hold
/// them. A failed zone counts as written far enough, because the state of a failed zone does not
/// come from a power cut.
pub(crate) fn is_written(extent: &Extent, geometry: &Geometry, reports: &[ZoneReport]) -> bool {
    if extent.is_hole() {
        return true;
    }
    let reaches = |at: BlockAddr, blocks: u32| {
        let Some((zone, offset)) = at.locate(geometry) else { return false };
        let report = &reports[zone.0 as usize];
        is_bad(report) || offset + blocks <= blocks_written(report, geometry)
    };
    let sums = match extent.sums {
        Sums::Here(_) => true,
        Sums::At(at) => reaches(at, 1),
    };
    sums && reaches(extent.at, extent.blocks)
}

/// Whether a power cut left the whole extent on the drive. A finished zone appears written to its
/// end, and so does a read-only one. In such zones the last block decides, because zones are
/// written in order.
async fn is_there(
    extent: &Extent,
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    pages: &Pool,
) -> Result<bool> {
    let geometry = device.geometry();
    if extent.is_hole() {
        return Ok(true);
    }
    if !is_written(extent, geometry, reports) {
        return Ok(false);
    }
    let ended = |at: BlockAddr| {
        let report = at.locate(geometry).map(|(zone, _)| reports[zone.0 as usize].state);
        matches!(report, Some(ZoneState::Full | ZoneState::ReadOnly))
    };
    let sum = match &extent.sums {
        Sums::Here(sums) => sums.last().copied(),
        Sums::At(at) => match found(device, *at, pages).await? {
            Found::Nothing if ended(*at) => return Ok(false),
            Found::Page(page) if ended(*at) && is_cut_off(&page, geometry) => return Ok(false),
            Found::Page(page) => sum_in(&page, extent.blocks as usize - 1),
            _ => None,
        },
    };
    let last = extent.at.plus(extent.blocks - 1);
    if !ended(last) {
        return Ok(true);
    }
    Ok(match found(device, last, pages).await? {
        Found::Nothing => false,
        Found::Unread => true,
        Found::Page(page) => match sum {
            Some(sum) if sum == crc32c(page.bytes()) => true,
            Some(sum) => {
                let sector = geometry.block_size.0 as usize;
                !is_zero(page.bytes()) && !record::may_be_torn(page.bytes(), sum, sector)
            }
            // The block of checksums is damaged, not cut off, so it proves nothing
            // about the content.
            None => true,
        },
    })
}

/// A block as it was read from the drive.
enum Found {
    Page(Page),
    /// The block was never written.
    Nothing,
    /// The block was written and cannot be read; reads of the file report that.
    Unread,
}

async fn found(device: &dyn ZonedDevice, at: BlockAddr, pages: &Pool) -> Result<Found> {
    match read_blocks(device, QueueId(0), at, 1, pages).await {
        Ok(mut read) => Ok(read.pop().map_or(Found::Nothing, Found::Page)),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Found::Nothing),
        Err(error) if !error.is_gone() => Ok(Found::Unread),
        Err(error) => Err(error),
    }
}

/// Whether a power cut left nothing or only a part of a block that held a record. A block that was
/// never written may read as zeros.
fn is_cut_off(page: &Page, geometry: &Geometry) -> bool {
    is_zero(page.bytes()) || record::may_be_cut_off(page.bytes(), geometry.block_size.0 as usize)
}

/// Returns a checksum from a block of checksums.
fn sum_in(page: &Page, index: usize) -> Option<u32> {
    let expect = Expect { kind: kind::SUMS, ..Expect::default() };
    let (_, body) = record::open(page.bytes(), &expect).ok()?;
    let sum = body.get(SumsHead::SIZE..)?.as_chunks::<4>().0.get(index)?;
    Some(u32::from_le_bytes(*sum))
}

impl Opened {
    pub(crate) fn store(
        self,
        rt: &Rt,
        writer: Writer,
        reports: &[ZoneReport],
        pages: Pool,
        options: Options,
    ) -> Result<Store> {
        let geometry = writer.geometry().clone();
        let bad = reports.iter().filter(|report| report.state == ZoneState::Offline);
        let bad: Vec<ZoneId> = bad.map(|report| report.zone).collect();
        let descriptors = describe(&geometry, ZoneId(self.ring.end()), 1, &bad)?;
        let pool = ZonePool::new(&writer, &descriptors, 1)?;
        let extents = self.replay.files.values().flat_map(|state| &state.extents);
        let named = extents.flat_map(Extent::places).map(|(at, _)| at.zone(&geometry));
        let named: BTreeSet<ZoneId> = named.collect();
        // A damaged record may name blocks of an empty zone: no other file may get that zone.
        let taken =
            |report: &&ZoneReport| report.state != ZoneState::Empty || named.contains(&report.zone);
        for report in reports.iter().filter(taken) {
            let owner = pool.owner(report.zone).filter(|_| report.state != ZoneState::Offline);
            owner.into_iter().for_each(|id: SuperzoneId| pool.mark_full(id));
        }
        let budget = Budget::new(geometry.max_active.unwrap_or(UNLIMITED), &KEPT);
        let permit = budget.try_acquire(Class::Metadata, 1);
        let known = (self.half, self.failed);
        let ring = RecordRing::new(&writer, &pages, self.ring, known, permit);
        let zones = ZoneAllocator::new(pool, budget, writer, options.policy);
        let replay = self.replay;
        let mut files: BTreeMap<FileId, File> = BTreeMap::new();
        let holes = replay.files.values().any(|state| state.extents.iter().any(Extent::is_hole));
        for (id, state) in replay.files {
            for extent in state.extents.iter().filter(|extent| !extent.is_hole()) {
                zones.add(extent.at.zone(&geometry), id, extent.blocks);
                if let Sums::At(at) = extent.sums {
                    zones.add(at.zone(&geometry), id, 1);
                }
            }
            files.insert(id, File::recovered(state));
        }
        for (path, node) in &replay.nodes {
            if let Node::File(id) = node {
                let none = || File::new(crate::extent::Lifetime::NotSet, 0);
                let file = files.entry(*id).or_insert_with(none);
                file.names += 1;
                file.role = Role::of(path);
                zones.set_log(*id, file.role.kind == FileKind::Wal);
            }
        }
        for (zone, youngest) in replay.youngest {
            // The entry of a zone that was reset stays until the next group commit.
            let report = reports.get(zone.0 as usize);
            let written = report.is_some_and(|report| report.state != ZoneState::Empty);
            if written && !youngest.is_empty() {
                zones.restore_youngest(zone, youngest);
            }
        }
        let names = Namespace {
            nodes: replay.nodes,
            changes: Vec::new(),
            next_file: replay.next_file.max(1),
            awaited: BTreeMap::new(),
        };
        let store = Store(Rc::new(Inner {
            rt: rt.clone(),
            pages,
            options,
            identity: Identity {
                label: self.label,
                created: self.created,
                uuid: self.uuid,
                device: self.device,
            },
            ring_zones: self.ring,
            ring: RefCell::new(ring),
            zones,
            names: RefCell::new(names),
            files: RefCell::new(files),
            leaving: Leaving::default(),
            flights: Flights::default(),
            commits: Commits::after(replay.round, replay.record, self.turn),
            sums: SumsCache::default(),
            forgotten: RefCell::new(Forgotten::new(holes)),
            load: RingLoad::default(),
            counters: RefCell::new(Counters::default()),
            life: Life::default(),
            scrub: Scrub::default(),
        }));
        store.0.names.borrow().nodes.keys().for_each(|path| store.0.load.add(name_bytes(path)));
        store.0.files.borrow_mut().values_mut().for_each(|file| store.weigh(file));
        Ok(store)
    }
}
