//! Makes an array, and assembles one from its drives.

pub(crate) mod steps;

use crate::checkpoint::state::{Image, State};
use crate::format::NONE;
use crate::lifetime::Lifetime;
use crate::map::Map;
use crate::options::Options;
use crate::paging::state::Paging;
use crate::payload;
use crate::recover::steps::{FINISH, RECOVERY};
use crate::segment::Table;
use crate::shape::{Config, Shape, internal_chunk};
use crate::space::Lane;
use crate::volume::{Inner, Life, Volume};
use crate::write::item::Use;
use crate::write::stream::Stream;
use furrow_array::drive::Drive;
use furrow_array::examine::{Examined, check_empty, erase};
use furrow_array::member::{Member, MemberState};
use furrow_array::service::{Array, Counts, Identity};
use furrow_array::state_ring::Holds;
use furrow_array::watchdog::Watchdog;
use furrow_log::Uuid;
use furrow_log::audit::Broken;
use furrow_log::record::crc32c;
use furrow_policy::{Appends, Lifetimes};
use furrow_rt::{Boxed, Notify, Page, Pool, Ranges, Rt};
use furrow_zone::{Error, ErrorKind, Result, ZonedDevice};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Number of attempts at assembly, in all, if drives are gone for a moment.
const TRIES: u32 = 3;

/// Number of 4 KiB pages that the volume keeps for reuse.
const PAGES: usize = 4096;

/// Reads what `device` records about its array.
///
/// # Errors
/// `NotFound` if the drive belongs to no array, `WrongFormat` if the array is of a newer version,
/// `Corrupt` if the drive's records are damaged, `Io` if the drive cannot be read.
pub fn examine(device: &dyn ZonedDevice) -> Boxed<'_, Result<Examined>> {
    furrow_array::examine::examine(device, payload::told)
}

/// Makes an array of `devices`, in that order, and puts it in service. With `force`, the content of
/// the drives is lost; without `force`, they must be empty.
///
/// # Errors
/// `Invalid` if no such array can be made of the drives, `Exists` if one of them is not empty; in
/// both cases nothing was written. `Io` if a drive cannot be read or written.
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
        let (mut members, writer) = (Vec::new(), options.writer());
        let watchdog = Watchdog::new(rt, options.drive_timeout);
        devices.iter().for_each(|device| watchdog.add(device));
        for device in &devices {
            let zones = erase(&**device).await?;
            let drive = Drive::open(rt, device.clone(), &zones, Holds::Nothing, &writer)?;
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
        let identity = Identity {
            uuid,
            label: config.label.clone(),
            created: rt.wall().0,
            level: config.level,
            drives: shape.placement.n,
        };
        let counts = Counts { epoch: 1, events: 1, records: 1 };
        let array = Array::new(identity, shape.placement, counts, members, watchdog);
        let volume = start(rt, array, (config.clone(), shape), options, (0, image));
        volume.serve_space(Lane::Release);
        volume.checkpoint(true).await?;
        volume.serve();
        Ok(volume)
    })
}

/// Builds the volume of an array from the content of its newest checkpoint, whose number and image
/// are given.
fn start(
    rt: &Rt,
    array: Array,
    (config, shape): (Config, Shape),
    options: &Options,
    (checkpoint, image): (u64, Image),
) -> Volume {
    let streams = streams(&config, &shape, array.members(), options);
    let zero = Page::zeroed();
    let slots = (shape.slots, shape.placement.n);
    let segments = Table::new(slots, image.next_segment, image.sequence);
    Volume(Rc::new(Inner {
        rt: rt.clone(),
        options: options.clone(),
        segments,
        paging: Paging::new(Map::new(image.root.clone()), options.map_memory),
        meta: crate::meta::inband::cache::State::default(),
        streams,
        pages: Pool::new(PAGES),
        zero_crc: crc32c(zero.bytes()),
        zero,
        checkpoint: State::new(checkpoint, image),
        ranges: Ranges::default(),
        space: crate::space::state::Space::default(),
        wanted: Notify::new(),
        rebuild: crate::rebuild::state::State::default(),
        broken: Broken::default(),
        life: Life::default(),
        counters: RefCell::default(),
        lifetimes: crate::lifetime::Lifetimes::new(&shape),
        lost_blocks: crate::lost_blocks::set::LostBlocks::default(),
        recovered: Cell::default(),
        scrub_stops: Cell::default(),
        array,
        config,
        shape,
    }))
}

/// The streams of a volume. If slots and active zones suffice, a spare stream is added, only to
/// separate lifetimes. The spare stream serves large requests, or small ones if the volume has no
/// streams for large requests. No spare stream is added to more than two streams for such requests.
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
        && drives.all(|drive| drive.budget().total() > config.permits());
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

/// Assembles an array from its drives, in any order, and puts it in service. Members that are not
/// given, or do not answer, count as failed, if the array can do without them. Spares may be among
/// the drives: [`Volume::spares`] names them.
///
/// # Errors
/// `NotFound` if a drive belongs to no array; `WrongFormat` if a drive belongs to another array, or
/// to an array of a newer version; `Invalid` if a drive is stale or given twice, or too many are
/// missing: the message names them. `Io` or `Corrupt` if needed records or blocks cannot be read.
#[inline(never)]
pub fn assemble<'a>(
    rt: &'a Rt,
    devices: Vec<Rc<dyn ZonedDevice>>,
    options: &'a Options,
) -> Boxed<'a, Result<Volume>> {
    assemble_if_spares_fit(rt, devices, Vec::new(), options)
}

/// Assembles an array like [`assemble`], but first checks that the drives `spares` can become
/// spares of the array, without making them spares.
///
/// # Errors
/// The errors of [`assemble`]; `Invalid` or `Exists` if one of `spares` cannot become a spare
/// ([`Volume::add_spare`]). Then nothing was written.
#[inline(never)]
pub fn assemble_if_spares_fit<'a>(
    rt: &'a Rt,
    devices: Vec<Rc<dyn ZonedDevice>>,
    spares: Vec<Rc<dyn ZonedDevice>>,
    options: &'a Options,
) -> Boxed<'a, Result<Volume>> {
    Box::pin(async move {
        let watchdog = Watchdog::new(rt, options.drive_timeout);
        devices.iter().for_each(|device| watchdog.add(device));
        for trial in 1..=TRIES {
            let last = trial == TRIES;
            let done = steps::put_together(rt, &watchdog, &devices, &spares, options, last).await?;
            if let Some(volume) = done {
                return Ok(volume);
            }
        }
        panic!("invariant: the last try says why not")
    })
}

/// The names of an assembly's steps, in the order in which they run.
pub fn assembly_steps() -> Vec<&'static str> {
    let assembly = steps::ASSEMBLY.iter().map(|step| step.name);
    let recovery = RECOVERY.iter().map(|step| step.name);
    assembly.chain(recovery).chain(FINISH.iter().map(|step| step.name)).collect()
}
