//! Making a store, and opening one: what the ring says, and what of it is on the drive.
//!
//! Recovery writes down what it found before it acts on it: a snapshot in the other half of the
//! ring; then the old half and the zones in which nothing counts are emptied.

use crate::entries::{self, Entry, FileState};
use crate::file::{Extent, File, FileId, Sums};
use crate::format::{INCOMPAT_KNOWN, SuperblockBody, flag, kind};
use crate::place::{Family, Role, Use};
use crate::store::{Canary, Counters, Inner, Names, Node, Options, Store, rename};
use crate::zones::{RESERVE, Zones};
use furrow_log::address::{blocks_begun, blocks_per_zone, blocks_written};
use furrow_log::budget::{Budget, Class};
use furrow_log::pool::{ReleaseProof, SuperzoneId, ZonePool, describe};
use furrow_log::record::{RecordHeader, Uuid, crc32c};
use furrow_log::ring::{FoundRecord, RecordRing, RingZones, half_for, read_half, release_zones};
use furrow_log::writer::{Order, Writer};
use furrow_log::{BlockAddr, read_blocks};
use furrow_rt::{Notify, Pool, Rt};
use furrow_zone::{
    Error, ErrorKind, Geometry, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use zerocopy::FromBytes;

/// Permits that a drive without a limit counts as having.
const UNLIMITED: u32 = 64;
/// Permits that are not for files: two halves of the ring, and cleaning.
const KEPT: [(Class, u32); 2] = [(Class::Metadata, 2), (Class::Cleaning, 1)];
/// Fewest permits a store works with.
const PERMITS_MIN: u32 = 4;
/// Fewest zones for content: those kept for cleaning, one that is cleaned, and two besides.
const ZONES_MIN: u32 = RESERVE + 3;
/// Bytes a half of the ring should hold.
const HALF_BYTES: u64 = 16 << 20;

/// How a store is made.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// Its label, at most 63 bytes.
    pub label: String,
    /// Also if the drive holds something.
    pub force: bool,
    /// Bytes each half of the record ring should hold, if not 16 MiB.
    pub half_bytes: Option<u64>,
}

pub(crate) fn reports_of(device: &dyn ZonedDevice) -> Result<Vec<ZoneReport>> {
    let zones = device.geometry().zones;
    let refused = |s| Error::device(&device.name(), "report of zones", s);
    let reports = device.report(ZoneId(0), zones).map_err(refused)?;
    match reports.len() == zones as usize {
        true => Ok(reports),
        false => Err(Error::new(
            ErrorKind::Io,
            format!("{}: {} zones reported, expected {zones}", device.name(), reports.len()),
        )),
    }
}

fn is_bad(report: &ZoneReport) -> bool {
    matches!(report.state, ZoneState::ReadOnly | ZoneState::Offline)
}

/// Whether a drive is fit for a store, whose ring takes these zones.
fn check(geometry: &Geometry, ring: RingZones) -> Result<()> {
    BlockAddr::check(geometry)?;
    let invalid = |what: String| Err(Error::new(ErrorKind::Unsupported, what));
    if let Some(permits) = geometry.max_active.filter(|permits| *permits < PERMITS_MIN) {
        return invalid(format!("{permits} active zones: a store needs {PERMITS_MIN}"));
    }
    let left = geometry.zones.saturating_sub(ring.end());
    if left < ZONES_MIN {
        return invalid(format!(
            "{left} zones behind the ring, which takes {}: a store needs {ZONES_MIN}",
            2 * ring.half
        ));
    }
    Ok(())
}

fn ring_of(geometry: &Geometry, half_bytes: Option<u64>) -> RingZones {
    let half = half_for(geometry, half_bytes.unwrap_or(HALF_BYTES));
    // Of a small drive no more than an eighth.
    let half = half.min((geometry.zones / 16).max(1));
    RingZones { start: geometry.conventional_zones, half }
}

/// What recovery reads of the ring.
#[derive(Default)]
pub(crate) struct Replay {
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) files: BTreeMap<FileId, FileState>,
    /// The youngest blob files of zones.
    pub(crate) youngest: BTreeMap<ZoneId, BTreeMap<Family, u64>>,
    /// Files of the last round, as they were before it.
    pub(crate) before: BTreeMap<FileId, Option<FileState>>,
    pub(crate) round: u64,
    pub(crate) record: u64,
    pub(crate) next_file: u64,
    pub(crate) whole: bool,
}

impl Replay {
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
            // It was sent when what it names was durable: there is nothing to fall back to, and
            // damage has to be told.
            self.before.clear();
        }
        Ok(())
    }

    fn file(&mut self, id: FileId, keep: u32, state: FileState) -> Result<()> {
        let before = self.files.remove(&id);
        let mut extents = before.as_ref().map_or(Vec::new(), |before| before.extents.clone());
        extents.retain(|extent| extent.first < keep);
        if extents.last().map_or(0, Extent::end) != keep {
            let end = extents.last().map_or(0, Extent::end);
            let message = format!("file {}: block {keep} of it is kept, it has {end}", id.0);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        extents.extend(state.extents);
        self.before.entry(id).or_insert(before);
        self.files.insert(id, FileState { extents, ..state });
        Ok(())
    }
}

/// What a half of the ring says.
struct Half {
    superblock: SuperblockBody,
    header: RecordHeader,
    replay: Replay,
}

/// Reads a half of the ring. `None` if it does not begin with a superblock and a whole snapshot.
async fn read(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    zones: impl Iterator<Item = ZoneId>,
    pages: &Pool,
) -> Result<Option<Half>> {
    let mut half: Option<Half> = None;
    let mut broken = None;
    read_half(device, reports, zones, pages, |record| {
        let sequence = record.header.sequence.get();
        match &mut half {
            None => {
                let Some(superblock) = superblock_of(device, &record)? else { return Ok(false) };
                let replay = Replay { record: sequence, ..Replay::default() };
                half = Some(Half { superblock, header: record.header, replay });
            }
            Some(half) => {
                let same = record.header.kind.get() == kind::ENTRIES
                    && record.header.object == half.header.object
                    && record.header.epoch == half.header.epoch
                    && sequence == half.replay.record + 1;
                if !same {
                    return Ok(false);
                }
                // A whole record that says what cannot be is damage, not an end.
                if let Err(error) = half.replay.apply(&record) {
                    broken = Some(error.at(format!("{}: record {sequence}", device.name())));
                    return Ok(false);
                }
            }
        }
        Ok(true)
    })
    .await?;
    match (half.filter(|half| half.replay.whole), broken) {
        (Some(_), Some(error)) => Err(error),
        (half, _) => Ok(half),
    }
}

pub(crate) fn superblock_of(
    device: &dyn ZonedDevice,
    record: &FoundRecord,
) -> Result<Option<SuperblockBody>> {
    if record.header.kind.get() != kind::SUPERBLOCK {
        return Ok(None);
    }
    let Ok((body, _)) = SuperblockBody::read_from_prefix(&record.body) else { return Ok(None) };
    let wrong = |what: String| Err(Error::new(ErrorKind::WrongFormat, what).at(device.name()));
    let unknown = body.incompat.get() & !INCOMPAT_KNOWN;
    if unknown != 0 {
        return wrong(format!(
            "the store has features this program does not know ({unknown:#x}): use a newer version"
        ));
    }
    let geometry = device.geometry();
    let (zones, blocks) = (body.zones.get(), body.zone_blocks.get());
    let expected = (geometry.zones, blocks_per_zone(geometry));
    if (zones, blocks) != expected {
        return wrong(format!(
            "a store of {zones} zones of {blocks} blocks, the drive has {} of {}",
            expected.0, expected.1
        ));
    }
    Ok(Some(body))
}

/// The halves of the ring there are, found where they may begin: at its start, or behind a half of
/// so many zones as there may be.
pub(crate) async fn find_ring(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    pages: &Pool,
) -> Result<Option<RingZones>> {
    let geometry = device.geometry();
    let start = geometry.conventional_zones;
    for zone in (start..geometry.zones).take(65) {
        let mut found = None;
        read_half(device, reports, std::iter::once(ZoneId(zone)), pages, |record| {
            found = superblock_of(device, &record)?;
            Ok(false)
        })
        .await?;
        if let Some(body) = found {
            let ring = RingZones { start: body.ring_start.get(), half: body.half_zones.get() };
            let begins = ring.start == start
                && (1..=64).contains(&ring.half)
                && (zone == start || zone == start + ring.half)
                && ring.end() < geometry.zones;
            if begins {
                return Ok(Some(ring));
            }
        }
    }
    Ok(None)
}

impl Store {
    /// Makes a store on a drive.
    ///
    /// # Errors
    /// `Exists` if the drive holds something and that is not to be lost, `Unsupported` if it has
    /// too few zones or active zones.
    pub async fn format(
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        options: &FormatOptions,
    ) -> Result<Uuid> {
        let geometry = device.geometry().clone();
        let ring = ring_of(&geometry, options.half_bytes);
        check(&geometry, ring).map_err(|error| error.at(device.name()))?;
        if options.label.len() > 63 || options.label.contains('\0') {
            let message = "a label has at most 63 bytes, none of them zero";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let reports = reports_of(&*device)?;
        let pages = Pool::new(256);
        refuse_used(&*device, &reports, options.force)?;
        if let Some(bad) =
            reports[ring.start as usize..ring.end() as usize].iter().find(|r| is_bad(r))
        {
            return Err(Error::new(
                ErrorKind::Io,
                format!(
                    "{}: zone {} is {:?}, and the record ring needs it: this drive cannot be used",
                    device.name(),
                    bad.zone,
                    bad.state
                ),
            ));
        }
        let writer = Writer::new(rt, device.clone(), Order::Queued, 8);
        let pool = ZonePool::new(&writer, &[], 1)?;
        let used = reports.iter().filter(|r| !is_bad(r) && !geometry.is_conventional(r.zone));
        let used: Vec<ZoneId> = used.map(|report| report.zone).collect();
        release_zones(&pool, &*device, used.into_iter(), ReleaseProof::by(0)).await?;
        let mut rng = rt.fork_rng();
        let (uuid, drive) = (Uuid::random(&mut rng), Uuid::random(&mut rng));
        let found = Opened {
            label: options.label.clone(),
            created: rt.wall().0,
            uuid,
            device: drive,
            ring,
            half: 0,
            turn: 0,
            replay: Replay { next_file: 1, ..Replay::default() },
        };
        let store = found.store(rt, writer, &reports_of(&*device)?, pages, Options::default())?;
        let bodies = store.0.snapshot(&[], 0);
        store.begin_half(bodies).await?;
        store.0.zones.writer.over().await;
        store.0.zones.writer.let_go();
        Ok(uuid)
    }

    /// Opens the store on a drive, after what a crash left was put in order.
    ///
    /// # Errors
    /// `WrongFormat` if the drive holds none, or one of a newer version; `Corrupt` if what it says
    /// cannot be.
    pub async fn open(rt: &Rt, device: Rc<dyn ZonedDevice>, options: Options) -> Result<Store> {
        let reports = reports_of(&*device)?;
        let pages = Pool::new(options.pages_in_flight);
        let found = find(&*device, &reports, &pages).await?;
        check(device.geometry(), found.ring).map_err(|error| error.at(device.name()))?;
        let trusting = cfg!(feature = "canary") && has_trusted_round(&options);
        let mut found = found;
        found.replay.put_in_order(&*device, &reports, &pages, trusting).await?;
        let writer = Writer::new(rt, device.clone(), Order::Queued, 8);
        // The half that is to begin holds an older snapshot, or one that a crash cut off.
        let pool = ZonePool::new(&writer, &[], 1)?;
        let next = found.ring.zones(found.half);
        release_zones(&pool, &*device, next, ReleaseProof::by(0)).await?;
        let reports = end_strays(&writer, reports_of(&*device)?).await?;
        let store = found.store(rt, writer, &reports, pages, options)?;
        let round = store.0.round.get();
        let bodies = store.0.snapshot(&[], round);
        store.begin_half(bodies).await?;
        store.0.zones.pool.checkpoint_durable(round);
        store.tidy(&reports).await?;
        store.start_cleaning();
        Ok(store)
    }

    /// What a zone was opened for, by a file in it.
    fn use_of(&self, zone: ZoneId) -> Use {
        let first = self.0.zones.files_in(zone).first().copied();
        let found = first.and_then(|id| self.with(id, |file| self.usage_of(file)).ok());
        found.unwrap_or(Use::Files(crate::file::Lifetime::NotSet))
    }

    /// Takes up zones that were written in part, and resets those in which nothing counts.
    async fn tidy(&self, reports: &[ZoneReport]) -> Result<()> {
        let zones = &self.0.zones;
        for report in reports {
            let Some(id) = zones.pool.owner(report.zone) else { continue };
            if !report.state.is_active() || zones.valid(report.zone) == 0 {
                continue;
            }
            let permit = zones.budget.try_acquire(Class::User, 1);
            zones.writer.open_reported(report);
            match permit {
                Some(permit) if zones.writer.room(report.zone) > 0 => {
                    zones.writer.attach(report.zone, permit);
                    zones.pool.activate(id);
                    zones.adopt(report.zone, id, self.use_of(report.zone));
                }
                _ => zones.writer.finish(report.zone).await?,
            }
        }
        let round = zones.pool.durable_checkpoint();
        for zone in zones.full_zones() {
            zones.release(zone, round).await?;
        }
        Ok(())
    }
}

#[allow(unused_variables, reason = "without the feature none has one")]
fn has_trusted_round(options: &Options) -> bool {
    #[cfg(feature = "canary")]
    return options.canary == Some(Canary::TrustedRound);
    #[cfg(not(feature = "canary"))]
    {
        let _ = Canary::TrustedRound;
        false
    }
}

/// A power cut can leave more zones active than there were permits in use: those that were full but
/// for what a cache lost. Ends as many as it takes for the ring to go on; answers how zones are.
///
/// This comes before anything is written down: it changes no decision, because in a zone that was
/// ended content is believed only where it is found.
async fn end_strays(writer: &Writer, reports: Vec<ZoneReport>) -> Result<Vec<ZoneReport>> {
    let active = reports.iter().filter(|report| report.state.is_active()).count();
    let most = writer.geometry().max_active.map_or(usize::MAX, |most| most as usize);
    // The ring begins a zone.
    let over = (active + 1).saturating_sub(most);
    if over == 0 {
        return Ok(reports);
    }
    let mut strays: Vec<&ZoneReport> =
        reports.iter().filter(|report| report.state.is_active()).collect();
    // What has the least left loses the least.
    strays.sort_by_key(|report| std::cmp::Reverse(report.write_pointer));
    for report in strays.into_iter().take(over) {
        writer.open_reported(report);
        writer.finish(report.zone).await?;
        writer.forget(report.zone);
    }
    reports_of(&**writer.device())
}

/// Refuses a drive with content, unless forced.
fn refuse_used(device: &dyn ZonedDevice, reports: &[ZoneReport], force: bool) -> Result<()> {
    let conventional = |report: &ZoneReport| device.geometry().is_conventional(report.zone);
    let used =
        reports.iter().find(|r| r.state != ZoneState::Empty && !is_bad(r) && !conventional(r));
    match used.filter(|_| !force) {
        None => Ok(()),
        Some(used) => Err(Error::new(
            ErrorKind::Exists,
            format!("{}: the drive is not empty (zone {})", device.name(), used.zone),
        )),
    }
}

/// Reads the ring: the newest half with a whole snapshot.
pub(crate) async fn find(
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    pages: &Pool,
) -> Result<Opened> {
    let none = || Error::new(ErrorKind::WrongFormat, format!("{}: no store", device.name()));
    BlockAddr::check(device.geometry()).map_err(|error| error.at(device.name()))?;
    let ring = find_ring(device, reports, pages).await?.ok_or_else(none)?;
    let mut best: Option<(u8, Half)> = None;
    for half in 0..2 {
        let found = read(device, reports, ring.zones(half), pages).await?;
        let newer = |found: &Half| {
            best.as_ref().is_none_or(|best| found.header.epoch.get() > best.1.header.epoch.get())
        };
        if let Some(found) = found.filter(newer) {
            best = Some((half, found));
        }
    }
    let (half, found) = best.ok_or_else(|| {
        let message = "neither half of the record ring has a whole snapshot";
        Error::new(ErrorKind::Corrupt, message).at(device.name())
    })?;
    let label = found.superblock.label;
    let label = label.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(Opened {
        label: String::from_utf8_lossy(label).into_owned(),
        created: found.superblock.created.get(),
        uuid: found.header.object,
        device: found.header.device,
        ring,
        half: 1 - half,
        turn: found.header.epoch.get(),
        replay: found.replay,
    })
}

/// What is needed to open a store.
pub(crate) struct Opened {
    pub(crate) label: String,
    pub(crate) created: i64,
    pub(crate) uuid: Uuid,
    device: Uuid,
    pub(crate) ring: RingZones,
    /// The half that is going to be written.
    pub(crate) half: u8,
    pub(crate) turn: u64,
    pub(crate) replay: Replay,
}

impl Replay {
    /// Files without a name go; those whose last round names content that is not on the drive are
    /// as they were before it; and what cannot be is refused.
    pub(crate) async fn put_in_order(
        &mut self,
        device: &dyn ZonedDevice,
        reports: &[ZoneReport],
        pages: &Pool,
        trusting: bool,
    ) -> Result<()> {
        let lacking = match trusting {
            true => BTreeSet::new(),
            false => self.lacking(device, reports, pages).await?,
        };
        self.take_back(&lacking);
        self.check(device)
    }

    /// Files whose last round names content that is not on the drive.
    ///
    /// # Errors
    /// `Io` if the drive does not give a block that tells.
    pub(crate) async fn lacking(
        &self,
        device: &dyn ZonedDevice,
        reports: &[ZoneReport],
        pages: &Pool,
    ) -> Result<BTreeSet<FileId>> {
        let mut lacking = BTreeSet::new();
        for (id, before) in &self.before {
            let Some(now) = self.files.get(id) else { continue };
            let known = before.as_ref().map_or(&[][..], |before| &before.extents);
            for extent in now.extents.iter().filter(|extent| !known.contains(extent)) {
                if !is_there(extent, device, reports, pages).await? {
                    lacking.insert(*id);
                    break;
                }
            }
        }
        Ok(lacking)
    }

    /// Files whose last round names content that is not on the drive are as they were before it,
    /// and files without a name go. Answers how many are as they were.
    pub(crate) fn take_back(&mut self, lacking: &BTreeSet<FileId>) -> usize {
        let mut taken_back = 0;
        for (id, before) in std::mem::take(&mut self.before) {
            if !lacking.contains(&id) {
                continue;
            }
            taken_back += 1;
            match before {
                Some(before) => self.files.insert(id, before),
                None => self.files.remove(&id),
            };
        }
        let named = self.nodes.values().filter_map(|node| match node {
            Node::File(id) => Some(*id),
            Node::Directory => None,
        });
        let named: BTreeSet<FileId> = named.collect();
        self.files.retain(|id, _| named.contains(id));
        taken_back
    }

    /// Refuses what cannot be.
    fn check(&self, device: &dyn ZonedDevice) -> Result<()> {
        let geometry = device.geometry();
        let mut taken = BTreeSet::new();
        for (id, state) in &self.files {
            let corrupt = |what: String| {
                let message = format!("{}: file {}: {what}", device.name(), id.0);
                Err(Error::new(ErrorKind::Corrupt, message))
            };
            if id.0 >= self.next_file {
                return corrupt(format!("files up to {} were made", self.next_file));
            }
            for extent in &state.extents {
                let end = extent.at.plus(extent.blocks - 1);
                let places = (extent.at.locate(geometry), end.locate(geometry));
                let (Some((zone, _)), Some((last, _))) = places else {
                    return corrupt(format!("an extent at {}", extent.at));
                };
                if zone != last || !taken.insert(extent.at) {
                    return corrupt(format!("an extent at {} that cannot be", extent.at));
                }
            }
        }
        Ok(())
    }
}

/// Whether the zone was written so far as to hold all of an extent, and its checksums. A zone that
/// has failed may hold it: that is no matter of a power cut.
pub(crate) fn is_written(extent: &Extent, geometry: &Geometry, reports: &[ZoneReport]) -> bool {
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

/// Whether all of an extent is on the drive, as far as a power cut decides that. A zone that was
/// ended looks written to its end: there the last block tells, as zones are written in order.
async fn is_there(
    extent: &Extent,
    device: &dyn ZonedDevice,
    reports: &[ZoneReport],
    pages: &Pool,
) -> Result<bool> {
    let geometry = device.geometry();
    if !is_written(extent, geometry, reports) {
        return Ok(false);
    }
    let last = extent.at.plus(extent.blocks - 1);
    let (sums, sum) = match &extent.sums {
        Sums::Here(sums) => (None, sums.last().copied()),
        Sums::At(at) => (Some(*at), None),
    };
    for at in std::iter::once(last).chain(sums) {
        let full = |report: &ZoneReport| report.state == ZoneState::Full;
        if !at.locate(geometry).is_some_and(|(zone, _)| full(&reports[zone.0 as usize])) {
            continue;
        }
        match read_blocks(device, QueueId(0), at, 1, pages).await {
            // What was never written may read as zeros.
            Ok(read) => {
                let zeros = read[0].bytes().iter().all(|byte| *byte == 0);
                let written = at == last && sum.is_none_or(|sum| sum == crc32c(read[0].bytes()));
                if zeros && !written {
                    return Ok(false);
                }
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(false),
            // A block that cannot be read was written: whoever reads the file is told.
            Err(error) if !error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

impl Opened {
    fn store(
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
        for report in reports.iter().filter(|report| report.state != ZoneState::Empty) {
            let owner = pool.owner(report.zone).filter(|_| report.state != ZoneState::Offline);
            owner.into_iter().for_each(|id: SuperzoneId| pool.mark_full(id));
        }
        let budget = Budget::new(geometry.max_active.unwrap_or(UNLIMITED), &KEPT);
        let permits = || budget.try_acquire(Class::Metadata, 1);
        let ring = RecordRing::begin(&writer, &pages, self.ring, self.half, (permits(), permits()));
        let zones = Zones::new(pool, budget, writer, options.policy);
        let replay = self.replay;
        let mut files: BTreeMap<FileId, File> = BTreeMap::new();
        for (id, state) in replay.files {
            for extent in &state.extents {
                zones.add(extent.at.zone(&geometry), id, extent.blocks);
                if let Sums::At(at) = extent.sums {
                    zones.add(at.zone(&geometry), id, 1);
                }
            }
            files.insert(id, File::recovered(state));
        }
        for (path, node) in &replay.nodes {
            if let Node::File(id) = node {
                let none = || File::new(crate::file::Lifetime::NotSet, 0);
                let file = files.entry(*id).or_insert_with(none);
                file.names += 1;
                file.role = Role::of(path);
            }
        }
        for (zone, youngest) in replay.youngest {
            // An entry outlives its zone's reset until the round after that.
            let report = reports.get(zone.0 as usize);
            let written = report.is_some_and(|report| report.state != ZoneState::Empty);
            if written && !youngest.is_empty() {
                zones.restore_youngest(zone, youngest);
            }
        }
        let names =
            Names { nodes: replay.nodes, changes: Vec::new(), next_file: replay.next_file.max(1) };
        Ok(Store(Rc::new(Inner {
            rt: rt.clone(),
            pages,
            options,
            label: self.label,
            created: self.created,
            uuid: self.uuid,
            device: self.device,
            ring_zones: self.ring,
            ring: RefCell::new(ring),
            zones,
            names: RefCell::new(names),
            files: RefCell::new(files),
            retired: RefCell::default(),
            must: RefCell::default(),
            flights: RefCell::default(),
            next_flight: Cell::new(0),
            landed: Notify::new(),
            moves: Cell::new(0),
            next_round: RefCell::default(),
            committing: Cell::new(false),
            round: Cell::new(replay.round),
            record: Cell::new(replay.record),
            turn: Cell::new(self.turn),
            commit_planned: Cell::new(false),
            sums: RefCell::default(),
            awaited: RefCell::default(),
            counters: RefCell::new(Counters::default()),
            dead: RefCell::default(),
            stopping: Cell::new(false),
        })))
    }
}

/// Whether a drive begins with what a store writes there.
///
/// # Errors
/// `Io` if the drive does not answer.
pub async fn is_store(device: &dyn ZonedDevice) -> Result<bool> {
    let geometry = device.geometry();
    let pages = Pool::new(8);
    let reports = reports_of(device)?;
    for zone in (geometry.conventional_zones..geometry.zones).take(65) {
        if blocks_begun(&reports[zone as usize], geometry) == 0 {
            continue;
        }
        let at = BlockAddr::new(geometry, ZoneId(zone), 0);
        let Ok(page) = read_blocks(device, QueueId(0), at, 1, &pages).await else { continue };
        let header = furrow_log::record::peek(page[0].bytes());
        if header.is_some_and(|header| header.kind.get() == kind::SUPERBLOCK) {
            return Ok(true);
        }
    }
    Ok(false)
}
