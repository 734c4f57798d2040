//! Making an array, and putting one together from its drives.

pub(crate) mod steps;

use crate::array::member::{Member, MemberState};
use crate::array::{Array, Counts, Identity};
use crate::checkpoint::state::{Image, State};
use crate::drive::{Drive, reports};
use crate::format::{ArrayBody, MAPPED, MemberEntry, NONE, RING_ZONES, SegmentEntry, kind};
use crate::hot_spare;
use crate::level::{Level, Placement};
use crate::lifetime::Lifetime;
use crate::map::Map;
use crate::meta::place::MetaPlace;
use crate::options::Options;
use crate::paging::state::Paging;
use crate::recover::steps::{FINISH, RECOVERY};
use crate::segment::Segment;
use crate::shape::{Config, Shape, held, internal_chunk};
use crate::space::Lane;
use crate::stale_members;
use crate::state_ring::{Damage, Found, Holds, RingRead, read_ring, ring_start};
use crate::volume::{Inner, Volume};
use crate::watchdog::Watchdog;
use crate::write::item::Use;
use crate::write::stream::Stream;
use furrow_log::address::blocks_begun;
use furrow_log::record::{self, Expect, crc32c};
use furrow_log::{BlockAddr, Uuid, read_blocks};
use furrow_policy::{Appends, Lifetimes};
use furrow_rt::{Boxed, Notify, Page, Pool, Ranges, Rt};
use furrow_zone::{Error, ErrorKind, QueueId, Result, ZoneId, ZoneReport, ZoneState, ZonedDevice};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zerocopy::FromBytes;

/// Attempts to assemble an array while drives are gone for a moment.
const TRIES: u32 = 3;

/// Pages kept for reuse.
const PAGES: usize = 4096;

/// What a drive records of its array.
#[derive(Clone, Debug)]
pub struct Examined {
    /// The array.
    pub array: Uuid,
    /// The drive.
    pub device: Uuid,
    /// The drive's place among the members; `None` for a spare.
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
    /// Whether the array was stopped in order.
    pub clean: bool,
    /// The members as this drive knows them; a spare knows none.
    pub members: Vec<(Uuid, MemberState)>,
    /// Number of the newest state record on the drive.
    pub record: u64,
    /// Of each member, the number of a state record that the member certainly has, unless it has a
    /// newer one; 0: not known.
    pub known: Vec<u64>,
    /// Of each member, the events that the array counted when the member was last in service.
    pub served: Vec<u64>,
    /// When the newest state record was written, seconds since 1970; 0: not known.
    pub recorded: i64,
    /// The assembly that wrote it.
    pub epoch: u64,
    /// The checkpoint in it.
    pub checkpoint: u64,
    /// Blocks written up to that checkpoint, those that the volume moved included.
    pub written_blocks: u64,
    /// Segments begun up to that checkpoint.
    pub segments: u64,
    /// A record that was newer than this one is damaged: its number, as far as the damage lets it
    /// be read; 0: it cannot be read.
    pub damaged: Option<u64>,
}

impl Examined {
    /// Whether this stands for a member none of whose records is whole.
    pub(crate) fn is_stand_in(&self) -> bool {
        self.record == 0 && self.damaged.is_some()
    }
}

/// A drive whose records are all damaged, and which still shows that it is a member or a spare.
#[derive(Clone, Debug)]
pub struct Damaged {
    /// Arrays and the drive's UUID in them, by the remains of records and by segments.
    pub signs: Vec<(Uuid, Uuid)>,
}

impl Damaged {
    /// What the drive counts for by the newest state of its array: a member whose state the others
    /// have. `None` if it is no member by that state.
    pub fn stand_in(&self, newest: &Examined) -> Option<Examined> {
        let known = |(array, device): &(Uuid, Uuid)| {
            let seat = newest.members.iter().position(|(uuid, _)| uuid == device)?;
            (*array == newest.array).then_some((seat, *device))
        };
        let (seat, device) = self.signs.iter().find_map(known)?;
        let member = u32::try_from(seat).ok();
        let (damaged, clean) = (Some(0), false);
        Some(Examined { device, member, record: 0, events: 0, damaged, clean, ..newest.clone() })
    }
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
    if whole { Ok(Parsed { body, members, image }) } else { corrupt("unknown values") }
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

/// Reads what `device` records of its array.
///
/// # Errors
/// `NotFound` if the drive belongs to no array, `WrongFormat` if the array is of a newer version;
/// `Io` if the drive cannot be read.
#[inline(never)]
pub fn examine(device: &dyn ZonedDevice) -> Boxed<'_, Result<Examined>> {
    Box::pin(async move {
        let (found, ring, _) = find(device).await?;
        if found.is_spare() {
            return hot_spare::examined(&found, &device.name());
        }
        let parsed = parse(&found, &device.name())?;
        Ok(parsed.says(&found, &ring))
    })
}

impl Parsed {
    /// What the record says.
    fn says(&self, found: &Found, ring: &RingRead) -> Examined {
        let (parsed, config) = (self, self.config());
        let state =
            |m: &MemberEntry| MemberState::from_byte(m.state).unwrap_or(MemberState::Failed);
        let number = |damage: &Damage| damage.header.map_or(0, |header| header.sequence.get());
        Examined {
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
            served: parsed.members.iter().map(|m| m.events.get()).collect(),
            recorded: parsed.body.recorded.get(),
            epoch: found.header.epoch.get(),
            checkpoint: found.header.checkpoint.get(),
            written_blocks: parsed.body.next_sequence.get().saturating_sub(1),
            segments: parsed.body.next_segment.get().saturating_sub(1),
            damaged: ring.newest_damaged().map(number),
        }
    }
}

/// Why a drive has no record to be put together by.
///
/// # Errors
/// `Corrupt` if the drive shows that it is a member or spare with damaged records, `NotFound` if it
/// shows nothing of the kind.
fn no_record(name: &str, ring: &RingRead, damaged: &Damaged) -> Error {
    let Some((array, device)) = damaged.signs.first() else {
        let what = format!(
            "{name}: no member of a Furrow array: make one with `furrow raid create`, or check the \
             device"
        );
        return Error::new(ErrorKind::NotFound, what);
    };
    let place = match ring.damage.first() {
        Some(damage) => format!(" at zone {} block {}", damage.zone, damage.block),
        None => String::new(),
    };
    let what = format!(
        "{name}: damaged record of a Furrow array member{place}: it is drive {device} of \
         array {array}: assemble it with the other members, whose records replace the damaged one; \
         do not make anything else of it"
    );
    Error::new(ErrorKind::Corrupt, what)
}

/// Looks for signs that a drive without a whole record is a member or spare nevertheless.
///
/// # Errors
/// As [`examine`]. A drive that has a whole record, or no such sign, is none: `None`.
#[inline(never)]
pub fn damaged_member(device: &dyn ZonedDevice) -> Boxed<'_, Result<Option<Damaged>>> {
    Box::pin(async move {
        let zones = reports(device).await?;
        let ring = read_ring(device, &zones, &Pool::new(64)).await?;
        if ring.newest.is_some() {
            return Ok(None);
        }
        let damaged = signs(device, &ring, &zones).await?;
        Ok(Some(damaged).filter(|damaged| !damaged.signs.is_empty()))
    })
}

/// The signs of a drive without a whole record.
async fn signs(device: &dyn ZonedDevice, ring: &RingRead, zones: &[ZoneReport]) -> Result<Damaged> {
    let pages = Pool::new(64);
    let mut signs = Vec::new();
    // A whole header of a segment is the better sign: nobody vouches for what a damaged record
    // says.
    for report in zones.iter().skip((ring_start(device.geometry()) + RING_ZONES) as usize) {
        if blocks_begun(report, device.geometry()) == 0 {
            continue;
        }
        let at = BlockAddr::new(device.geometry(), report.zone, 0);
        let first = match read_blocks(device, QueueId(0), at, 1, &pages).await {
            Ok(first) => first,
            Err(error) if error.is_gone() => return Err(error),
            Err(_) => continue,
        };
        let expect = Expect { kind: kind::SEGMENT, ..Expect::default() };
        if let Ok((header, _)) = record::open(first[0].bytes(), &expect) {
            signs.push((header.object, header.device));
            break;
        }
    }
    let headers = ring.damage.iter().filter_map(|damage| damage.header);
    signs.extend(headers.map(|header| (header.object, header.device)));
    Ok(Damaged { signs })
}

/// The newest record of a drive, what else its ring holds, and the reports of its zones.
///
/// # Errors
/// As [`examine`].
pub(crate) async fn find(device: &dyn ZonedDevice) -> Result<(Found, RingRead, Vec<ZoneReport>)> {
    match look(device).await? {
        Looked::Record(found, ring, zones) => Ok((found, ring, zones)),
        Looked::Damaged(damaged, ring, _) => Err(no_record(&device.name(), &ring, &damaged)),
    }
}

/// The result of a look at a drive.
pub(crate) enum Looked {
    /// It has a whole record.
    Record(Found, RingRead, Vec<ZoneReport>),
    /// It has none, and shows these signs.
    Damaged(Damaged, RingRead, Vec<ZoneReport>),
}

/// Reads the records of a drive.
pub(crate) async fn look(device: &dyn ZonedDevice) -> Result<Looked> {
    let zones = reports(device).await?;
    let mut ring = read_ring(device, &zones, &Pool::new(64)).await?;
    if let Some(found) = ring.newest.take() {
        return Ok(Looked::Record(found, ring, zones));
    }
    let damaged = signs(device, &ring, &zones).await?;
    match ring.unread.take() {
        Some(error) if damaged.signs.is_empty() => Err(error),
        _ => Ok(Looked::Damaged(damaged, ring, zones)),
    }
}

/// Makes an array of `devices`, in that order, and puts it in service. With `force`, the content of
/// the drives is lost; without `force`, they must be empty.
///
/// # Errors
/// `Invalid` if no such array can be made of the drives, `Exists` if one of them is not empty; in
/// both cases nothing was written.
#[inline(never)]
pub fn create<'a>(
    rt: &'a Rt,
    devices: Vec<Rc<dyn ZonedDevice>>,
    config: &'a Config,
    options: &'a Options,
    force: bool,
) -> Boxed<'a, Result<Volume>> {
    Box::pin(async move {
        if devices.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "no drives are given"));
        }
        let geometries: Vec<_> = devices.iter().map(|device| device.geometry()).collect();
        let shape = Shape::new(config, &geometries)?;
        if !force {
            for device in &devices {
                check_empty(&**device).await?;
            }
        }
        let mut rng = rt.fork_rng();
        let uuid = Uuid::random(&mut rng);
        let mut members = Vec::new();
        let watchdog = Watchdog::new(rt, options.drive_timeout);
        devices.iter().for_each(|device| watchdog.add(device));
        for device in &devices {
            let zones = erase(&**device).await?;
            let drive = Drive::open(rt, device.clone(), &zones, Holds::Nothing, options)?;
            members.push(Member::new(
                Uuid::random(&mut rng),
                MemberState::Active,
                (0, 0),
                Some(drive),
            ));
        }
        let image = Image {
            root: vec![NONE; shape.mappings as usize],
            sequence: 1,
            next_segment: 1,
            ..Image::default()
        };
        let counts = Counts { epoch: 1, events: 1, records: 1 };
        let body = Start { uuid, created: rt.wall().0, counts, checkpoint: 0 };
        let volume = start((rt, &watchdog), (config.clone(), shape), members, options, body, image);
        volume.serve_space(Lane::Release);
        volume.checkpoint(true).await?;
        volume.serve();
        Ok(volume)
    })
}

/// Refuses a drive that is not empty.
///
/// # Errors
/// `Exists` if the drive is not empty, `Io` if it does not answer.
#[inline(never)]
pub fn check_empty(device: &dyn ZonedDevice) -> Boxed<'_, Result<()>> {
    Box::pin(async move {
        let used = |zone: &ZoneReport| !matches!(zone.state, ZoneState::Empty | ZoneState::Offline);
        let Some(used) = reports(device).await?.into_iter().find(used) else { return Ok(()) };
        let (name, zone) = (device.name(), used.zone);
        let what = format!(
            "{name}: zone {zone} is not empty: use --force if what the drive holds may be lost"
        );
        Err(Error::new(ErrorKind::Exists, what))
    })
}

/// Empties every zone that is not empty. Returns the reports of the zones afterwards.
pub(crate) async fn erase(device: &dyn ZonedDevice) -> Result<Vec<ZoneReport>> {
    erase_but(device, None).await
}

/// Like [`erase`], but keeps zone `ring` of the ring.
pub(crate) async fn erase_but(
    device: &dyn ZonedDevice,
    ring: Option<u32>,
) -> Result<Vec<ZoneReport>> {
    let zones = reports(device).await?;
    furrow_log::survey::check_capacities(device, &zones)?;
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
    reports(device).await
}

/// The initial values of a volume's numbers.
struct Start {
    uuid: Uuid,
    created: i64,
    counts: Counts,
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
    let streams = streams(&config, &shape, &members, options);
    let zero = Page::zeroed();
    let identity = Identity {
        uuid: start.uuid,
        label: config.label.clone(),
        created: start.created,
        placement: shape.placement,
    };
    let segments = vec![Segment::free(shape.placement.n); shape.slots as usize];
    Volume(Rc::new(Inner {
        rt: rt.clone(),
        options: options.clone(),
        segments: RefCell::new(segments),
        paging: Paging::new(Map::new(image.root.clone()), options.map_memory),
        meta: crate::meta::inband::cache::State::default(),
        streams,
        pages: Pool::new(PAGES),
        zero_crc: crc32c(zero.bytes()),
        zero,
        sequence: Cell::new(image.sequence),
        next_segment: Cell::new(image.next_segment),
        checkpoint: State::new(start.checkpoint, image),
        ranges: Ranges::default(),
        space: crate::space::state::Space::default(),
        wanted: Notify::new(),
        in_flight: Cell::new(0),
        idle: Notify::new(),
        ending: RefCell::default(),
        quiesced: Cell::new(0),
        rebuild: crate::rebuild::state::State::default(),
        dead: RefCell::default(),
        stopping: Cell::new(false),
        stopped: Cell::new(false),
        counters: RefCell::default(),
        lifetimes: crate::lifetime::Lifetimes::new(&shape),
        lost_blocks: crate::lost_blocks::set::LostBlocks::default(),
        recovered: Cell::default(),
        scrub_stops: Cell::default(),
        array: Array::new(identity, start.counts, members, watchdog.clone()),
        config,
        shape,
    }))
}

/// The streams of a volume. If slots and drives allow another open segment, the larger requests get
/// a further stream; writes of different lifetimes alone use it.
fn streams(
    config: &Config,
    shape: &Shape,
    members: &[Member],
    options: &Options,
) -> Vec<Rc<Stream>> {
    let append_all = options.variant.appends == Appends::All;
    let apart = options.clean && options.variant.lifetimes != Lifetimes::Mixed;
    let mut drives = members.iter().filter_map(Member::drive);
    let spare = apart
        && (if config.large > 0 { config.large } else { config.small }) <= 2
        && shape.slots >= shape.least(config) + 2
        && drives.all(|drive| drive.budget.total() > config.permits());
    let of = |purpose: Use, count: u32, spare: bool| {
        let chunk = match purpose {
            Use::Small => config.chunk_small,
            Use::Large => config.chunk_large,
            Use::Internal => internal_chunk(config),
        };
        (0..count + u32::from(spare)).map(move |number| {
            let first = purpose == Use::Small && number == 0;
            let group = if first || append_all { config.group } else { 1 };
            let lifetime = match number {
                0 => Lifetime::Short,
                1 if count + u32::from(spare) > 2 => Lifetime::Middle,
                _ => Lifetime::Long,
            };
            Stream::new((purpose, number == count), lifetime, chunk, group)
        })
    };
    let large = config.large > 0;
    let small = of(Use::Small, config.small, spare && !large);
    let large = of(Use::Large, config.large, spare && large);
    small.chain(large).chain(of(Use::Internal, 1, false)).collect()
}

/// One of the drives given to [`assemble`], and its newest record.
pub(crate) struct Given {
    pub(crate) device: Rc<dyn ZonedDevice>,
    pub(crate) found: Found,
    /// How its ring is continued.
    holds: Holds,
    zones: Vec<ZoneReport>,
}

/// Assembles an array from its drives, in any order, and puts it in service. Members that are not
/// given, or do not answer, count as failed, if the array can do without them. Spares may be among
/// the drives: [`Volume::spares`] names them.
///
/// # Errors
/// `NotFound` if a drive belongs to no array; `WrongFormat` if a drive belongs to another array, or
/// to an array of a newer version; `Invalid` if a drive is stale or given twice, or too many are
/// missing: the message names them. `Io` or `Corrupt` if needed blocks cannot be read.
#[inline(never)]
pub fn assemble<'a>(
    rt: &'a Rt,
    devices: Vec<Rc<dyn ZonedDevice>>,
    options: &'a Options,
) -> Boxed<'a, Result<Volume>> {
    Box::pin(async move {
        let watchdog = Watchdog::new(rt, options.drive_timeout);
        devices.iter().for_each(|device| watchdog.add(device));
        for _ in 1..TRIES {
            if let Some(volume) =
                steps::put_together(rt, &watchdog, &devices, options, false).await?
            {
                return Ok(volume);
            }
        }
        let last = steps::put_together(rt, &watchdog, &devices, options, true).await?;
        Ok(last.expect("invariant: the last try says why not"))
    })
}

/// The steps of an assembly, in order.
pub fn assembly_steps() -> Vec<&'static str> {
    let assembly = steps::ASSEMBLY.iter().map(|step| step.name);
    let recovery = RECOVERY.iter().map(|step| step.name);
    assembly.chain(recovery).chain(FINISH.iter().map(|step| step.name)).collect()
}
