//! Making an array, and putting one together from its drives.

use crate::checkpoint::{Image, State};
use crate::drive::{Drive, Found, newest_state, reports, ring_start};
use crate::format::{ArrayBody, MAPPED, MemberEntry, NONE, SegmentEntry};
use crate::hot_spare;
use crate::level::{Level, Placement};
use crate::map::Map;
use crate::member::{Errors, Member, MemberState, Refusals};
use crate::meta::MetaPlace;
use crate::shape::{Config, Shape, held, internal_chunk};
use crate::stale_members;
use crate::volume::{Inner, Options, Segment, Volume};
use crate::watchdog::Watchdog;
use crate::write::item::Use;
use crate::write::stripe::Stream;
use furrow_log::Uuid;
use furrow_log::record::crc32c;
use furrow_policy::Appends;
use furrow_rt::{Notify, Page, Pool, Ranges, Rt};
use furrow_zone::{Error, ErrorKind, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zerocopy::FromBytes;

/// How often it is tried to put an array together of drives that are gone for a moment meanwhile.
const TRIES: u32 = 3;

/// Pages kept for reuse.
const PAGES: usize = 4096;

/// What a drive says of the array it is of.
#[derive(Clone, Debug)]
pub struct Examined {
    /// The array.
    pub array: Uuid,
    /// The drive.
    pub device: Uuid,
    /// Which of the members it is; `None`: a spare.
    pub member: Option<u32>,
    /// Members.
    pub drives: u32,
    /// Level.
    pub level: Level,
    /// Name of the array.
    pub label: String,
    /// Events the drive knows of.
    pub events: u64,
    /// Blocks of the volume.
    pub blocks: u64,
    /// When the array was made, seconds since 1970.
    pub created: i64,
    /// Stopped in order.
    pub clean: bool,
    /// The members as this drive knows them; a spare knows none.
    pub members: Vec<(Uuid, MemberState)>,
    /// Number of the newest state record on the drive.
    pub record: u64,
    /// Of each member, the state record that it has for certain, or a newer one; 0: not known.
    pub known: Vec<u64>,
}

/// A parsed state record.
struct Parsed {
    body: ArrayBody,
    members: Vec<MemberEntry>,
    image: Image,
}

fn parse(found: &Found, name: &str) -> Result<Parsed> {
    let corrupt =
        |what: &str| Err(Error::new(ErrorKind::Corrupt, format!("{name}: state record: {what}")));
    let Ok((body, rest)) = ArrayBody::read_from_prefix(&found.body) else {
        return corrupt("too short");
    };
    let (drives, entries) = (body.drives.get() as usize, body.entries.get() as usize);
    let (mappings, segments) = (body.mappings.get() as usize, body.segments.get() as usize);
    let lengths = (drives <= 32 && entries <= segments)
        .then(|| (drives * MemberEntry::SIZE, entries * SegmentEntry::SIZE, mappings * 4));
    let Some((members, entries, _)) =
        lengths.filter(|(members, entries, root)| members + entries + root == rest.len())
    else {
        return corrupt("its parts do not fit its length");
    };
    let (members, rest) = rest.split_at(members);
    let (entries, root) = rest.split_at(entries);
    fn all<T: FromBytes>(bytes: &[u8]) -> Vec<T> {
        let size = std::mem::size_of::<T>();
        bytes.chunks_exact(size).filter_map(|bytes| T::read_from_bytes(bytes).ok()).collect()
    }
    let root: Vec<zerocopy::little_endian::U32> = all(root);
    let image = Image {
        entries: all(entries),
        root: root.iter().map(|number| number.get()).collect(),
        sequence: body.next_sequence.get(),
        next_segment: body.next_segment.get(),
    };
    let members: Vec<MemberEntry> = all(members);
    let whole = body.member.get() < body.drives.get()
        && members.iter().all(|m| MemberState::from_byte(m.state).is_some())
        && image.entries.iter().all(|e| e.slot.get() < body.segments.get() && e.chunk.get() != 0)
        && Level::from_byte(body.level).is_some();
    if whole { Ok(Parsed { body, members, image }) } else { corrupt("values that mean nothing") }
}

impl Parsed {
    fn config(&self) -> Config {
        let body = &self.body;
        let end = body.label.iter().position(|byte| *byte == 0).unwrap_or(body.label.len());
        Config {
            level: Level::from_byte(body.level).expect("invariant: checked when parsed"),
            label: String::from_utf8_lossy(&body.label[..end]).into_owned(),
            small: body.small.get(),
            large: body.large.get(),
            chunk_small: body.chunk_small.get(),
            chunk_large: body.chunk_large.get(),
            group: body.group.get(),
            reserve: body.reserve.get(),
        }
    }

    fn shape(&self, first_zone: u32) -> Result<Shape> {
        let (body, config) = (&self.body, self.config());
        let placement = Placement::new(config.level, body.drives.get())?;
        let (rows, meta) = (body.rows.get(), MetaPlace::from_incompat(body.incompat.get()));
        if config.chunk_small == 0 || config.chunk_large == 0 {
            return Err(Error::new(ErrorKind::Corrupt, "state record: chunks of no blocks"));
        }
        let shape = Shape {
            placement,
            first_zone,
            zones: body.zones.get(),
            capacity: body.zone_capacity.get(),
            rows,
            slots: body.segments.get(),
            blocks: body.blocks.get(),
            mappings: body.mappings.get(),
            kept: crate::shape::KEPT,
            held: held(&config, &placement, rows, meta),
            meta,
        };
        let numbers = u64::from(shape.slots) * u64::from(shape.rows) * u64::from(placement.k);
        let whole = shape.rows > 0
            && shape.blocks > 0
            && shape.blocks.div_ceil(u64::from(MAPPED)) == u64::from(shape.mappings)
            && u64::from(shape.blocks as u32) <= numbers
            && numbers < u64::from(NONE)
            && config.small > 0
            && shape.rows.is_multiple_of(config.chunk_small)
            && shape.rows.is_multiple_of(config.chunk_large)
            && (config.group <= 1 || shape.meta.takes_groups())
            && u64::from(shape.rows) + 1 + u64::from(shape.footer_blocks())
                <= u64::from(shape.capacity);
        if whole {
            return Ok(shape);
        }
        Err(Error::new(ErrorKind::Corrupt, "state record: sizes that do not fit each other"))
    }
}

/// What `device` says of the array it is of.
///
/// # Errors
/// `NotFound` if it is of none, `WrongFormat` if it is of a newer version; `Io` if it cannot be
/// read.
pub async fn examine(device: &dyn ZonedDevice) -> Result<Examined> {
    let found = find(device).await?.0;
    if found.is_spare() {
        return hot_spare::examined(&found, &device.name());
    }
    let parsed = parse(&found, &device.name())?;
    let config = parsed.config();
    let state = |m: &MemberEntry| MemberState::from_byte(m.state).unwrap_or(MemberState::Failed);
    Ok(Examined {
        array: found.header.object,
        device: found.header.device,
        member: Some(parsed.body.member.get()),
        drives: parsed.body.drives.get(),
        level: config.level,
        label: config.label,
        events: parsed.body.events.get(),
        blocks: parsed.body.blocks.get(),
        created: parsed.body.created.get(),
        clean: parsed.body.flags & 1 == 1,
        members: parsed.members.iter().map(|m| (m.uuid, state(m))).collect(),
        record: found.header.sequence.get(),
        known: parsed.members.iter().map(|m| stale_members::known(&found.header, m)).collect(),
    })
}

/// The newest record of a drive, and what its zones are like.
///
/// # Errors
/// As [`examine`].
pub(crate) async fn find(device: &dyn ZonedDevice) -> Result<(Found, Vec<ZoneReport>)> {
    let zones = reports(device)?;
    let found = newest_state(device, &zones, &Pool::new(64)).await?;
    let Some(found) = found else {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "{}: no member of a Furrow array: make one with `furrow raid create`, or check the \
                 device",
                device.name()
            ),
        ));
    };
    Ok((found, zones))
}

/// Makes an array of `devices`, in that order, and puts it in service. With `force`, whatever they
/// hold is lost; without, they must be empty.
///
/// # Errors
/// `Invalid` if no such array can be made of them, `Exists` if one of them is not empty; then
/// nothing was written.
pub async fn create(
    rt: &Rt,
    devices: Vec<Rc<dyn ZonedDevice>>,
    config: &Config,
    options: &Options,
    force: bool,
) -> Result<Volume> {
    if devices.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "no drives are given"));
    }
    let geometries: Vec<_> = devices.iter().map(|device| device.geometry()).collect();
    let shape = Shape::new(config, &geometries)?;
    if !force {
        devices.iter().try_for_each(|device| check_empty(&**device))?;
    }
    let mut rng = rt.fork_rng();
    let uuid = Uuid::random(&mut rng);
    let mut members = Vec::new();
    let watchdog = Watchdog::new(rt, options.drive_timeout);
    devices.iter().for_each(|device| watchdog.add(device));
    for device in &devices {
        let zones = erase(&**device).await?;
        let drive = Drive::open(rt, device.clone(), &zones, 0, options)?;
        members.push(member(Uuid::random(&mut rng), MemberState::Active, (0, 0), Some(drive)));
    }
    let image = Image {
        root: vec![NONE; shape.mappings as usize],
        sequence: 1,
        next_segment: 1,
        ..Image::default()
    };
    let body = Start { uuid, created: rt.wall().0, events: 1, epoch: 1, records: 1, checkpoint: 0 };
    let volume = start((rt, &watchdog), (config.clone(), shape), members, options, body, image);
    volume.serve_space();
    volume.checkpoint(true).await?;
    volume.serve();
    Ok(volume)
}

/// Refuses a drive that holds something.
///
/// # Errors
/// `Exists` if it does, `Io` if it does not answer.
pub fn check_empty(device: &dyn ZonedDevice) -> Result<()> {
    let used = |zone: &ZoneReport| !matches!(zone.state, ZoneState::Empty | ZoneState::Offline);
    let Some(used) = reports(device)?.into_iter().find(used) else { return Ok(()) };
    let (name, zone) = (device.name(), used.zone);
    let what = format!(
        "{name}: zone {zone} is not empty: use --force if what the drive holds may be lost"
    );
    Err(Error::new(ErrorKind::Exists, what))
}

/// Empties every zone that holds something; what the zones are like then.
pub(crate) async fn erase(device: &dyn ZonedDevice) -> Result<Vec<ZoneReport>> {
    erase_but(device, None).await
}

/// As [`erase`], but not a zone of the ring.
pub(crate) async fn erase_but(
    device: &dyn ZonedDevice,
    ring: Option<u32>,
) -> Result<Vec<ZoneReport>> {
    let zones = reports(device)?;
    let kept = ring.map(|ring| ZoneId(ring_start(device.geometry()) + ring));
    let held = |zone: &&ZoneReport| {
        Some(zone.zone) != kept
            && !matches!(zone.state, ZoneState::Empty | ZoneState::Offline | ZoneState::ReadOnly)
            && !device.geometry().is_conventional(zone.zone)
    };
    for zone in zones.iter().filter(held) {
        let command = furrow_zone::Command::reset(device.geometry(), zone.zone);
        let request = furrow_zone::Request::bare(command);
        let status = device.submit(furrow_zone::QueueId(0), request).await.status;
        if !status.is_ok() {
            let what = format!("reset of zone {}", zone.zone);
            return Err(Error::device(&device.name(), what, status));
        }
    }
    reports(device)
}

/// A member, by what it last knew of: events, and the newest state record on its drive.
fn member(
    uuid: Uuid,
    state: MemberState,
    (events, recorded): (u64, u64),
    drive: Option<Drive>,
) -> Member {
    Member {
        uuid: Cell::new(uuid),
        state: Cell::new(state),
        events: Cell::new(events),
        recorded: Cell::new(recorded),
        errors: Cell::new(Errors::default()),
        refusals: Refusals::default(),
        drive: RefCell::new(drive.map(Rc::new)),
    }
}

/// Where the numbers of a volume begin.
struct Start {
    uuid: Uuid,
    created: i64,
    events: u64,
    epoch: u64,
    records: u64,
    checkpoint: u64,
}

fn start(
    (rt, watchdog): (&Rt, &Watchdog),
    (config, shape): (Config, Shape),
    members: Vec<Member>,
    options: &Options,
    start: Start,
    image: Image,
) -> Volume {
    let append_all = options.variant.appends == Appends::All;
    let mut streams = Vec::new();
    for number in 0..config.small {
        let group = if number == 0 || append_all { config.group } else { 1 };
        streams.push(Stream::new(Use::Small, config.chunk_small, group));
    }
    for _ in 0..config.large {
        let group = if append_all { config.group } else { 1 };
        streams.push(Stream::new(Use::Large, config.chunk_large, group));
    }
    let internal = internal_chunk(&config);
    streams.push(Stream::new(Use::Internal, internal, 1));
    let zero = Page::zeroed();
    let segments = vec![Segment::free(shape.placement.n); shape.slots as usize];
    Volume(Rc::new(Inner {
        rt: rt.clone(),
        uuid: start.uuid,
        created: start.created,
        options: options.clone(),
        members,
        segments: RefCell::new(segments),
        map: RefCell::new(Map::new(image.root.clone())),
        paging: crate::paging::Paging::new(options.map_memory),
        meta: crate::meta::inband::lookup::State::default(),
        streams,
        pages: Pool::new(PAGES),
        zero_crc: crc32c(zero.bytes()),
        zero,
        sequence: Cell::new(image.sequence),
        next_segment: Cell::new(image.next_segment),
        epoch: start.epoch,
        events: Cell::new(start.events),
        records: Cell::new(start.records),
        checkpoint: State::new(start.checkpoint, image),
        ranges: Ranges::default(),
        space: crate::space::Space::default(),
        wanted: Notify::new(),
        in_flight: Cell::new(0),
        idle: Notify::new(),
        ending: Cell::new(0),
        quiesced: Cell::new(0),
        rebuild: crate::rebuild::State::default(),
        spares: RefCell::default(),
        news: crate::event::Events::default(),
        noting: Cell::new(false),
        noted: Notify::new(),
        dead: RefCell::default(),
        stopping: Cell::new(false),
        stopped: Cell::new(false),
        counters: RefCell::default(),
        lost_blocks: crate::lost_blocks::LostBlocks::default(),
        watchdog: watchdog.clone(),
        recovered: Cell::default(),
        scrub_stops: Cell::default(),
        config,
        shape,
    }))
}

/// One of the drives given to [`assemble`], and what it says.
pub(crate) struct Given {
    pub(crate) device: Rc<dyn ZonedDevice>,
    pub(crate) found: Found,
    zones: Vec<ZoneReport>,
}

/// One that has been a member.
struct Candidate {
    given: Given,
    parsed: Parsed,
}

/// Puts an array together from its drives, in any order, and in service. Members that are not
/// given, or do not answer, count as failed, if the array can do without them. Spares may be among
/// the drives: [`Volume::spares`] names them.
///
/// # Errors
/// `NotFound` if a drive is of no array; `WrongFormat` if one is of another, or of a newer version;
/// `Invalid` if one is stale or given
/// twice, or too many are missing: the message names them. `Io` or `Corrupt` if what must be read
/// cannot be.
pub async fn assemble(
    rt: &Rt,
    devices: Vec<Rc<dyn ZonedDevice>>,
    options: &Options,
) -> Result<Volume> {
    let watchdog = Watchdog::new(rt, options.drive_timeout);
    devices.iter().for_each(|device| watchdog.add(device));
    for _ in 1..TRIES {
        if let Some(volume) = put_together((rt, &watchdog), &devices, options, false).await? {
            return Ok(volume);
        }
    }
    let last = put_together((rt, &watchdog), &devices, options, true).await?;
    Ok(last.expect("invariant: the last try says why not"))
}

/// One try; `None` if a drive was gone for a moment: it is to be tried again, unless it is the last
/// try.
async fn put_together(
    (rt, watchdog): (&Rt, &Watchdog),
    devices: &[Rc<dyn ZonedDevice>],
    options: &Options,
    last: bool,
) -> Result<Option<Volume>> {
    let (mut candidates, mut spares, mut unread) = (Vec::new(), Vec::new(), None);
    for device in devices.iter().cloned() {
        let (found, zones) = match find(&*device).await {
            // A drive that does not answer is one that is missing.
            Err(error) if error.kind() == ErrorKind::Io => {
                unread = Some(error);
                continue;
            }
            found => found?,
        };
        let given = Given { device, found, zones };
        if given.found.is_spare() {
            spares.push(given);
            continue;
        }
        let parsed = parse(&given.found, &given.device.name())?;
        candidates.push(Candidate { given, parsed });
    }
    let Some(best) = newest(&candidates) else {
        let what = if spares.is_empty() { "no drives" } else { "only spares" };
        let none = Error::new(ErrorKind::Invalid, format!("{what} are given"));
        return Err(unread.unwrap_or(none));
    };
    let order = match_members(&candidates, best).map_err(|error| match &unread {
        Some(unread) => Error::new(error.kind(), format!("{error} ({unread})")),
        None => error,
    })?;
    let authority = &candidates[best];
    let config = authority.parsed.config();
    let geometry = authority.given.device.geometry();
    let shape = authority
        .parsed
        .shape(geometry.conventional_zones + crate::format::RING_ZONES)
        .map_err(|error| error.at(authority.given.device.name()))?;
    let entries = authority.parsed.members.clone();
    let header = authority.given.found.header;
    let records = candidates.iter().map(|c| c.given.found.header.sequence.get()).max();
    let (body, image) = (authority.parsed.body, authority.parsed.image.clone());
    let mut slots: Vec<Option<Given>> = entries.iter().map(|_| None).collect();
    let name = authority.given.device.name();
    for (candidate, index) in candidates.into_iter().zip(order) {
        slots[index] = Some(candidate.given);
    }
    let mut waiting = Vec::new();
    for given in spares {
        match hot_spare::seat_of(&given, (&name, header.object), &entries)? {
            Some(index) if slots[index].is_none() => slots[index] = Some(given),
            None if !waiting.contains(&given.found.header.device) => {
                check_device(&*given.device, &shape, &config)?;
                waiting.push(given.found.header.device);
            }
            _ => {
                let what = format!(
                    "{} is a spare that is there once more: a copy, or given twice",
                    given.device.name()
                );
                return Err(Error::new(ErrorKind::Invalid, what));
            }
        }
    }
    let (mut members, mut zones, mut lost) = (Vec::new(), Vec::new(), false);
    for (entry, candidate) in entries.iter().zip(slots) {
        let state = MemberState::from_byte(entry.state).unwrap_or(MemberState::Failed);
        let events = entry.events.get();
        let Some(candidate) = candidate else {
            lost |= state != MemberState::Failed;
            members.push(member(entry.uuid, MemberState::Failed, (events, 0), None));
            zones.push(Vec::new());
            continue;
        };
        let Given { device, found, zones: reports } = candidate;
        check_device(&*device, &shape, &config)?;
        let drive = Drive::open(rt, device, &reports, found.ring, options)?;
        let recorded = if found.is_spare() { 0 } else { found.header.sequence.get() };
        members.push(member(entry.uuid, state, (events, recorded), Some(drive)));
        zones.push(reports);
    }
    let begin = Start {
        uuid: header.object,
        created: body.created.get(),
        events: body.events.get() + u64::from(lost),
        epoch: header.epoch.get() + 1,
        records: records.unwrap_or(0) + 1,
        checkpoint: header.checkpoint.get(),
    };
    let volume = start((rt, watchdog), (config, shape), members, options, begin, image.clone());
    *volume.0.spares.borrow_mut() = waiting;
    if lost {
        match volume.foresee_in_doubt(&zones, &image).await {
            Err(_) if volume.has_missed() && !last => return Ok(None),
            foreseen => foreseen?,
        }
        // Before anything is written without them: else they could come back as if nothing were.
        volume.write_state(false).await;
        volume.check_alive()?;
    }
    match volume.recover(&zones, &image).await {
        Err(_) if volume.has_missed() && !last => return Ok(None),
        recovered => recovered?,
    }
    volume.serve();
    Ok(Some(volume))
}

fn check_device(device: &dyn ZonedDevice, shape: &Shape, config: &Config) -> Result<()> {
    let geometry = device.geometry();
    config.check_permits(&format!("{} has", device.name()), geometry)?;
    let capacity = furrow_log::address::blocks_per_zone(geometry);
    if MetaPlace::of(geometry) != shape.meta {
        let than = shape.meta.with_or_without();
        return Err(Error::new(
            ErrorKind::WrongFormat,
            format!(
                "{}: {} out-of-band bytes, the array was made on drives {than} an out-of-band \
                 area: not the drive it says it is, or formatted since",
                device.name(),
                geometry.oob_bytes
            ),
        ));
    }
    if capacity == shape.capacity && geometry.zones >= shape.zones {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::WrongFormat,
        format!(
            "{}: {} zones of {capacity} blocks, the array was made on {} of {}: not the drive it \
             says it is",
            device.name(),
            geometry.zones,
            shape.zones,
            shape.capacity
        ),
    ))
}

/// Which of the drives knows best what became of the array: the one with the most events, and the
/// newest record. But one that counts another among its members is behind it, whatever it has seen,
/// if the other went on without it: nothing was acknowledged that the other did not know of.
fn newest(candidates: &[Candidate]) -> Option<usize> {
    let says = |one: &Candidate, other: &Candidate| {
        let uuid = other.given.found.header.device;
        let of = one.parsed.members.iter().find(|member| member.uuid == uuid);
        of.map(|member| member.state == crate::format::member::FAILED)
    };
    let is_behind = |one: &Candidate| {
        let ahead = |o: &Candidate| says(o, one) == Some(true) && says(one, o) == Some(false);
        candidates.iter().any(ahead)
    };
    let rank = |c: &Candidate| (c.parsed.body.events.get(), c.given.found.header.sequence.get());
    (0..candidates.len()).max_by_key(|i| (!is_behind(&candidates[*i]), rank(&candidates[*i])))
}

/// Which member each drive is; refuses what does not belong together.
fn match_members(candidates: &[Candidate], best: usize) -> Result<Vec<usize>> {
    let authority = &candidates[best];
    let array = authority.given.found.header.object;
    let name = |c: &Candidate| c.given.device.name();
    let refuse = |kind, message| Err(Error::new(kind, message));
    let (mut order, mut behind): (Vec<usize>, Vec<stale_members::Behind>) = Default::default();
    for candidate in candidates {
        let (uuid, object) =
            (candidate.given.found.header.device, candidate.given.found.header.object);
        if object != array {
            return refuse(
                ErrorKind::WrongFormat,
                format!(
                    "{} is of array {object}, {} of array {array}: assemble one at a time",
                    name(candidate),
                    name(authority)
                ),
            );
        }
        let index = authority.parsed.members.iter().position(|member| member.uuid == uuid);
        let Some(index) = index else {
            return refuse(
                ErrorKind::Invalid,
                format!(
                    "{} was a member of array {array} and has been replaced: leave it out",
                    name(candidate)
                ),
            );
        };
        if order.contains(&index) {
            return refuse(
                ErrorKind::Invalid,
                format!("{} is member {index} once more: a copy, or given twice", name(candidate)),
            );
        }
        let entry = &authority.parsed.members[index];
        if MemberState::from_byte(entry.state) == Some(MemberState::Failed) {
            return refuse(
                ErrorKind::Invalid,
                format!(
                    "{} is stale: the array went on without it (event {} of {}): leave it out, and \
                     give it back with `furrow raid replace`",
                    name(candidate),
                    entry.events,
                    authority.parsed.body.events
                ),
            );
        }
        let mine = authority.parsed.body.member.get() as usize;
        // What it says of a drive that was there before the authority took its place counts not.
        let mut theirs = candidate.parsed.members.get(mine).into_iter();
        let known = authority.given.found.header.device;
        if theirs.any(|m| m.uuid == known && m.state == crate::format::member::FAILED) {
            return refuse(
                ErrorKind::Invalid,
                format!(
                    "{} and {} have each gone on without the other: leave one of the halves out",
                    name(candidate),
                    name(authority)
                ),
            );
        }
        let (header, known) = (&candidate.given.found.header, &authority.given.found.header);
        let (record, least) = (header.sequence.get(), stale_members::known(known, entry));
        if record < least {
            behind.push(stale_members::Behind { name: name(candidate), index, record, least });
        } else if header.sequence == known.sequence && candidate.differs(authority) {
            return refuse(
                ErrorKind::Invalid,
                format!(
                    "{} and {} have each gone on without the other, one of them with older images \
                     of drives: leave out those of one history",
                    name(candidate),
                    name(authority)
                ),
            );
        }
        order.push(index);
    }
    if !behind.is_empty() {
        let states: Vec<_> = authority.parsed.members.iter().map(|m| m.state).collect();
        let up = |index: usize| {
            states[index] == crate::format::member::ACTIVE
                && order.contains(&index)
                && !behind.iter().any(|b| b.index == index)
        };
        let level = Level::from_byte(authority.parsed.body.level);
        let placement = Placement::new(
            level.expect("invariant: checked when parsed"),
            authority.parsed.body.drives.get(),
        )?;
        let enough = placement.recoverable(|chunk| up(placement.drive(0, chunk) as usize));
        return Err(stale_members::refusal(&behind, &name(authority), enough));
    }
    check_missing(candidates, best, &order)?;
    Ok(order)
}

impl Candidate {
    /// Whether a state record of the same number is another one.
    fn differs(&self, other: &Candidate) -> bool {
        let of = |candidate: &Candidate| {
            let (header, body) = (candidate.given.found.header, candidate.parsed.body);
            let next = (body.next_sequence, body.next_segment);
            (header.epoch, header.checkpoint, body.events, next)
        };
        of(self) != of(other)
    }
}

/// Refuses to start without so many members that data is missing.
fn check_missing(candidates: &[Candidate], best: usize, order: &[usize]) -> Result<()> {
    let parsed = &candidates[best].parsed;
    let level = Level::from_byte(parsed.body.level).expect("invariant: checked when parsed");
    let placement = Placement::new(level, parsed.body.drives.get())?;
    let given = |chunk: u32| {
        let index = placement.drive(0, chunk) as usize;
        let state = MemberState::from_byte(parsed.members[index].state);
        // One that is being rebuilt does not have everything.
        order.contains(&index) && state == Some(MemberState::Active)
    };
    if placement.recoverable(given) {
        return Ok(());
    }
    let gone: Vec<String> = (0..parsed.members.len())
        .filter(|index| !order.contains(index))
        .map(|index| format!("{index} ({})", parsed.members[index].uuid))
        .collect();
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "{level} on {} drives cannot do without members {}: give their drives too",
            placement.n,
            gone.join(", ")
        ),
    ))
}
