//! A file store on one drive through several lives, as a function of one seed.
//!
//! In each life the drive is powered on, perhaps with faults. The store is inspected, opened and
//! compared with the state that the previous life left. Clients create, append, sync, truncate,
//! link, rename and remove files, also open ones, rename directories and declare parts of files
//! dead, all concurrently. The life ends with a stop or a power cut, and the next life continues
//! from the state found after it. The faults are slow commands, read and write errors, torn writes,
//! zones that become full, read-only or offline, a drive that is away for a while, and power cuts
//! at any command.
//!
//! What must hold: names and contents are as promised. The content of a zone that goes offline is
//! lost: reads of it fail with an error that names the file, and everything else is intact. If an
//! offline zone held the newest records, the error of opening names it, and no older state is
//! shown. Any other failed zone costs only space, as long as the ring has a usable zone left.

mod client;
mod names;
mod states;

use crate::kv::promises::{NameState, Uid, audit, check_clean, failed};
use crate::limits::{fewer_open, late_zone};
use crate::simulation::{Sink, Summary, on_executor};
use client::{Client, Halt, History, Life, compare, look_through};
use furrow_emu::{Emulator, Fates, Fault, FaultKind, Medium, Options as Drive, Snapshot, When};
use furrow_kv::{CheckOptions, FileId, FormatOptions, Options, Policy, Snapshot as Looked, Store};
use furrow_log::ring::RingZones;
use furrow_policy::{StoreDefect, StoreVariant};
use furrow_rt::{Nanos, Rng, Rt};
use furrow_zone::{
    BlockCount, ByteLen, Error, ErrorKind, Geometry, ZoneId, ZoneReport, ZoneState, ZonedDevice,
};
use states::{Event, Expected, after};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Number of names of each client: few names for large files, or many for small ones.
const NAMES: [u64; 2] = [6, 400];
const BLOCK: u64 = 4096;

/// The state at the start of a life, and what the previous life promised.
struct World {
    geometry: Geometry,
    options: Options,
    ring: RingZones,
    /// Share of the store's space that files may hold, in percent.
    filled: u64,
    /// Number of names of each client.
    names: u64,
    drive: Snapshot,
    expected: Expected,
    next: Uid,
    defect: Option<StoreDefect>,
    /// Whether clients also link, use files that lost their names, rename directories and declare
    /// parts of files dead.
    more: bool,
}

/// Mixed into the seed to decide whether clients draw more operations on names and content, as half
/// of the seeds do. With this value, the seeds in `what_failed_once_holds`, which found defects
/// before these operations existed, draw as they did then.
const MORE: u64 = 0xeba9 << 32;

/// The plan of one life.
#[derive(Clone, Debug)]
struct Plan {
    faults: Vec<Fault>,
    /// Whether the faults strike before the store is opened.
    early: bool,
    stop: bool,
    clients: u64,
    operations: u64,
    seed: u64,
}

impl Plan {
    fn has(&self, fits: impl Fn(FaultKind) -> bool) -> bool {
        self.faults.iter().any(|fault| fits(fault.kind))
    }

    /// Whether the drive may go away, for a while or until it is powered on; then the store fails.
    fn may_be_gone(&self) -> bool {
        self.has(|kind| matches!(kind, FaultKind::PowerCut | FaultKind::Disappear { .. }))
    }

    fn may_misread(&self) -> bool {
        self.has(|kind| kind == FaultKind::ReadError)
    }

    fn zones_may_fail(&self) -> bool {
        use FaultKind::{WriteError, WriteTorn, ZoneFull, ZoneOffline, ZoneReadOnly};
        let zone =
            |kind| matches!(kind, WriteError | WriteTorn | ZoneFull | ZoneOffline | ZoneReadOnly);
        self.has(zone)
    }
}

/// Runs the simulation of `seed`.
///
/// # Errors
/// Describes the failure, and names the life.
pub fn simulate(seed: u64, sink: Sink<'_>) -> Result<Summary, String> {
    simulate_with(seed, None, sink)
}

/// Like [`simulate`], for a store with a defect.
///
/// # Errors
/// The errors of [`simulate`]; the defect should cause one sooner or later.
pub fn simulate_with(
    seed: u64,
    defect: Option<StoreDefect>,
    sink: Sink<'_>,
) -> Result<Summary, String> {
    let mut rng = Rng::new(seed ^ 0x6b_76e5);
    let mut summary = Summary::default();
    let mut world = begin(seed, defect, &mut rng, &mut summary)?;
    let Geometry { zones, zone_capacity, max_active, block_size, .. } = &world.geometry;
    sink(&format!(
        "{zones} zones of {zone_capacity} blocks of {block_size} bytes, active {max_active:?}, \
         ring {:?}, {:?}, filled to {} %, {} names",
        world.ring, world.options.policy, world.filled, world.names
    ));
    let lives = 2 + rng.below(6);
    for life in 0..=lives {
        // The last life ends with a stop, and shows that all is well.
        let last = life == lives;
        let mut plan = if last { quiet(&mut rng) } else { draw(&world, &mut rng) };
        if !last {
            plan.faults.extend(late_zone(&world.geometry, plan.seed));
        }
        let struck = if last { None } else { at_rest(&mut world, seed ^ life << 32, &mut rng)? };
        sink(&format!("life {life}: {plan:?}, before it {struck:?}"));
        let seed = seed.rotate_left(20) ^ life << 1 | u64::from(seed.is_multiple_of(2));
        let lived = live(&mut world, seed, &plan, struck, &mut summary, sink);
        let met = lived.map_err(|why| format!("life {life} ({plan:?}, {struck:?}): {why}"))?;
        if met == Some(REFUSED) {
            return Ok(summary);
        }
    }
    Ok(summary)
}

/// The store refuses to open because an offline zone may have held the newest records.
const REFUSED: &str = "a zone offline that held the newest records: refused";

fn begin(
    seed: u64,
    defect: Option<StoreDefect>,
    rng: &mut Rng,
    summary: &mut Summary,
) -> Result<World, String> {
    let sectors = if rng.one_in(3) { 8 } else { 1 };
    let capacity = (16 + rng.below(120)) * sectors + rng.below(sectors);
    let active = [None, Some(4), Some(5), Some(6), Some(14), Some(64)][rng.below(6) as usize];
    let more = [12, 60][rng.below(2) as usize];
    let zones = 12 + rng.below(more) as u32;
    let conventional_zones = if rng.one_in(6) { rng.below(3) as u32 } else { 0 };
    let geometry = Geometry {
        block_size: ByteLen(BLOCK / sectors),
        conventional_zones,
        max_open: active,
        max_active: active,
        max_transfer: Some(BlockCount(sectors * (2 + rng.below(32)))),
        unwritten_reads_fail: rng.one_in(2),
        volatile_cache: rng.one_in(2),
        channels: rng.one_in(2).then(|| 1 << rng.below(5)),
        ..Geometry::unlimited(zones + conventional_zones, capacity.next_power_of_two(), capacity)
    };
    let geometry = fewer_open(geometry, seed);
    let half_bytes = Some([1, 1, capacity * BLOCK / sectors * 3][rng.below(3) as usize]);
    let options = Options {
        variant: StoreVariant { defect },
        clean_below: [5, 20, 40][rng.below(3) as usize],
        commit_interval: [5, 50, 1000][rng.below(3) as usize] * Nanos::MILLI,
        pages_in_flight: [64, 8192][rng.below(2) as usize],
        policy: Policy::NAMES[rng.below(Policy::NAMES.len() as u64) as usize].1,
        ..Options::default()
    };
    let drive = on_executor(seed, summary, |rt| {
        let medium = Medium::memory(&geometry);
        let emulator = Emulator::new(rt, geometry.clone(), medium, Drive::simulated())
            .map_err(|error| error.to_string())?;
        let (rt2, device) = (rt.clone(), Rc::new(emulator.clone()));
        rt.block_on(async move {
            let options = FormatOptions { half_bytes, ..FormatOptions::default() };
            let made = Store::format(&rt2, device.clone(), &options).await;
            made.map_err(|error| failed("format", &error))?;
            let looked = Looked::open(device).await.map_err(|error| failed("look", &error))?;
            Ok::<RingZones, String>(looked.ring_zones().0)
        })
        .map(|ring| (emulator.snapshot(), ring))
    });
    let (drive, ring) = drive?;
    let expected = Expected { names: vec![NameState::new()], contents: BTreeMap::new() };
    let filled = [40, 60, 60, 97][rng.below(4) as usize];
    let names = NAMES[usize::from(rng.one_in(6))];
    let more = Rng::new(seed ^ MORE).one_in(2);
    Ok(World { geometry, options, ring, filled, names, drive, expected, next: 0, defect, more })
}

fn quiet(rng: &mut Rng) -> Plan {
    let seed = rng.next() >> 32;
    Plan { faults: Vec::new(), early: false, stop: true, clients: 2, operations: 20, seed }
}

/// Number of zones of the ring that may still fail: as many zones as a half of the ring has, and
/// one more, must stay writable.
fn ring_left(world: &World) -> u32 {
    let bad = world.drive.report().iter().filter(|r| is_bad(r) && world.ring.has(r.zone)).count();
    (world.ring.count() - world.ring.half - 1).saturating_sub(bad as u32)
}

fn is_bad(report: &ZoneReport) -> bool {
    matches!(report.state, ZoneState::ReadOnly | ZoneState::Offline)
}

/// Share of the zones after the ring that are writable, in percent.
fn content_left(world: &World) -> u64 {
    let reports = world.drive.report();
    let content = &reports[world.ring.end() as usize..];
    let good = content.iter().filter(|report| !is_bad(report)).count();
    good as u64 * 100 / content.len() as u64
}

fn draw(world: &World, rng: &mut Rng) -> Plan {
    use FaultKind::{
        Disappear, PowerCut, ReadError, Slow, WriteError, WriteTorn, ZoneFull, ZoneOffline,
        ZoneReadOnly,
    };
    let mut faults = Vec::new();
    // Few zones get faults, since a small drive would otherwise have no space left.
    let (mut of_ring, mut of_content) = (ring_left(world), u32::from(content_left(world) > 75));
    if rng.one_in(10) {
        // Every write fails for a time, like on an image whose host file system is full.
        let (first, count) = (1 + rng.below(300), 4 + rng.below(40));
        let nth = |at| Fault::new(WriteError).when(When::Nth(at)).times(1);
        faults.extend((first..first + count).map(nth));
    }
    for _ in 0..rng.below(4) {
        let within = [10, 60, 400][rng.below(3) as usize];
        let nth = When::Nth(1 + rng.below(within));
        let kind = match rng.below(12) {
            0 | 1 => PowerCut,
            2 => ReadError,
            3 => Disappear { commands: Some(1 + rng.below(30)) },
            4 => {
                let nanoseconds = rng.below(3) * Nanos::MILLI;
                let slow = Slow { polls: 1 + rng.below(20) as u32, nanoseconds };
                faults.push(Fault::new(slow).when(When::OneIn(1 + rng.below(10))));
                continue;
            }
            5 | 6 => WriteError,
            7 => WriteTorn,
            8 => ZoneFull,
            9 | 10 => ZoneReadOnly,
            _ => ZoneOffline,
        };
        let fault = Fault::new(kind).when(nth).times(1);
        let zone = matches!(kind, WriteError | WriteTorn | ZoneFull | ZoneOffline | ZoneReadOnly);
        if !zone {
            faults.push(fault);
            continue;
        }
        let (start, end) = (world.ring.start, world.ring.end());
        let (first, last) = match rng.one_in(2) {
            true if of_ring > 0 => {
                of_ring -= 1;
                (start, end)
            }
            _ if of_content > 0 => {
                of_content -= 1;
                (end, world.geometry.zones)
            }
            _ => continue,
        };
        let blocks = BlockCount(u64::from(last - first) * world.geometry.zone_size.0);
        faults.push(fault.at_blocks(world.geometry.start(ZoneId(first)), blocks));
    }
    Plan {
        faults,
        early: rng.one_in(4),
        stop: rng.one_in(3),
        clients: 1 + rng.below(4),
        operations: if world.names > NAMES[0] { 600 } else { [10, 40, 120][rng.below(3) as usize] },
        seed: rng.next() >> 32,
    }
}

/// A zone that failed while the drive was off.
#[derive(Clone, Copy, Debug)]
struct Struck {
    zone: ZoneId,
    state: FaultKind,
    /// Whether the store needs the zone because the current half of the ring uses it.
    needed: bool,
}

/// Draws what happens to a drive while it is off: usually nothing; sometimes a zone fails.
fn at_rest(world: &mut World, seed: u64, rng: &mut Rng) -> Result<Option<Struck>, String> {
    if !rng.one_in(3) {
        return Ok(None);
    }
    let reports = world.drive.report();
    let of_ring = rng.one_in(2);
    let fits = |report: &&ZoneReport| {
        let used = report.write_pointer.0 > 0 || report.state == ZoneState::Full;
        let empty = of_ring && rng.clone().one_in(3);
        let conventional = world.geometry.is_conventional(report.zone);
        (used || empty)
            && !is_bad(report)
            && !conventional
            && world.ring.has(report.zone) == of_ring
    };
    let zones: Vec<ZoneId> = reports.iter().filter(fits).map(|report| report.zone).collect();
    let room = if of_ring { ring_left(world) > 0 } else { content_left(world) > 75 };
    if zones.is_empty() || !room {
        return Ok(None);
    }
    let zone = zones[rng.below(zones.len() as u64) as usize];
    let kinds = [FaultKind::ZoneReadOnly, FaultKind::ZoneOffline, FaultKind::ZoneFull];
    let state = kinds[rng.below(3) as usize];
    on_executor(seed, &mut Summary::default(), |rt| {
        let emulator = Emulator::from_snapshot(rt, &world.drive, Drive::simulated());
        emulator.clear_faults(None).map_err(|error| error.to_string())?;
        let device = Rc::new(emulator.clone());
        let looked = rt.block_on(async move { Looked::open(device).await });
        // The store could not be opened even before this fault, so the fault is not the reason.
        let Ok(looked) = looked else { return Ok(None) };
        let (_, half) = looked.ring_zones();
        let written = |zone: ZoneId| reports[zone.0 as usize].state != ZoneState::Empty;
        let frozen = looked.ring_turns()
            || half.first().is_some_and(|first| is_bad(&reports[first.0 as usize]));
        let needed = world.ring.has(zone) && (frozen || (half.contains(&zone) && written(zone)));
        // A zone that is full already cannot become full.
        let done = emulator.inject(Fault::new(state).at_zone(zone)).is_ok();
        world.drive = emulator.snapshot();
        Ok(done.then_some(Struck { zone, state, needed }))
    })
}

/// How a life ended.
struct Lived {
    /// The state found when the life began; `None` if the store was not opened.
    base: Option<Expected>,
    met: Option<&'static str>,
}

fn live(
    world: &mut World,
    seed: u64,
    plan: &Plan,
    struck: Option<Struck>,
    summary: &mut Summary,
    sink: Sink<'_>,
) -> Result<Option<&'static str>, String> {
    let history = Rc::new(RefCell::new(History { next: world.next, ..History::default() }));
    let reached = Rc::new(RefCell::new(BTreeSet::new()));
    let lived = on_executor(seed, summary, |rt| {
        let emulator = Emulator::from_snapshot(rt, &world.drive, Drive::simulated());
        emulator.clear_faults(None).map_err(|error| error.to_string())?;
        let life = Life {
            emulator: emulator.clone(),
            ring: world.ring,
            filled: world.filled,
            names: world.names,
            more: world.more,
            plan: plan.clone(),
            history: history.clone(),
            reached: reached.clone(),
        };
        let options =
            Options { variant: StoreVariant { defect: world.defect }, ..world.options.clone() };
        let all = life.all(rt.clone(), options, world.expected.clone(), struck);
        let lived = rt.block_on(all)?;
        let counters = emulator.counters();
        let drive = emulator.snapshot().power_cut(&Fates::seeded(plan.seed));
        Ok((lived, counters, drive))
    });
    let (lived, counters, drive) = lived?;
    summary.lives += 1;
    let written = counters.writes + counters.appends;
    summary.commands += counters.reads + written + counters.flushes + counters.management;
    let history = history.borrow();
    summary.operations += history.events.len() as u64;
    summary.crashes += u64::from(!plan.stop || lived.base.is_none());
    for what in reached.borrow().iter().chain(&lived.met) {
        *summary.reached.entry(what).or_default() += 1;
    }
    history.events.iter().for_each(|event| sink(&format!("  {event:?}")));
    world.drive = drive;
    world.next = history.next;
    if let Some(base) = lived.base {
        let begun = history.events.iter().skip(base.contents.len());
        let events: Vec<Event> = begun.cloned().collect();
        world.expected = after(base, &events);
    }
    Ok(lived.met)
}

impl Life {
    fn inject(&self) -> Result<(), String> {
        let mut faults = self.plan.faults.iter();
        faults.try_for_each(|fault| self.emulator.inject(*fault)).map_err(|e| e.to_string())
    }

    async fn all(
        self,
        rt: Rt,
        options: Options,
        expected: Expected,
        struck: Option<Struck>,
    ) -> Result<Lived, String> {
        let device: Rc<dyn ZonedDevice> = Rc::new(self.emulator.clone());
        let offline = |report: &ZoneReport| report.state == ZoneState::Offline;
        if self.reports().iter().any(offline) || struck.is_some() {
            // The check must end and report, without a panic; its result does not matter.
            let _ = furrow_kv::check(&*device, &CheckOptions::default()).await;
        } else if self.plan.seed.is_multiple_of(3) {
            check_clean(&*device, "a check at power on").await?;
        }
        let looked = Looked::open(device.clone()).await;
        if self.plan.early {
            self.inject()?;
        }
        let store = match Store::open(&rt, device.clone(), options).await {
            Ok(store) => store,
            Err(error) => {
                return self.not_opened(&error, struck).map(|met| Lived { base: None, met });
            }
        };
        let looked = match looked {
            Ok(looked) => looked,
            Err(error) => return Err(failed("opened, but looking at it failed", &error)),
        };
        audit(&store)?;
        let gone = self.gone();
        let lossy: BTreeSet<FileId> = looked
            .zones()
            .into_iter()
            .filter(|zone| gone.contains(&zone.zone))
            .flat_map(|zone| zone.files.into_keys())
            .collect();
        let found = match look_through(&self, &store, &lossy).await {
            Ok(found) => found,
            // A fault that strikes before the store is opened explains the error.
            Err(_) if self.plan.early && !self.plan.faults.is_empty() => {
                return Ok(Lived { base: None, met: None });
            }
            Err(why) => return Err(why),
        };
        let base = compare(&found, &expected)?;
        {
            let mut history = self.history.borrow_mut();
            history.now = base.names[0].clone();
            // A client that opens one of these files must know its content.
            for (uid, contents) in &base.contents {
                history.tell(Event::Content(*uid, contents[0].clone()));
            }
        }
        if !self.plan.early {
            self.inject()?;
        }
        let work = |number| {
            let client = Client {
                life: self.clone(),
                store: store.clone(),
                number,
                rng: Rng::new(self.plan.seed ^ (number + 1) << 32),
                open: Vec::new(),
            };
            rt.spawn(client.work())
        };
        let clients: Vec<_> = (0..self.plan.clients).map(work).collect();
        let mut died = false;
        for client in clients {
            match client.await {
                Ok(()) => {}
                Err(Halt::Died) => died = true,
                Err(Halt::Wrong(why)) => return Err(why),
            }
        }
        let counters = store.counters();
        for (count, what) in [
            (counters.ring_failures, "a half of the ring ended because a zone failed"),
            (counters.relocated, "an extent written again because its zone failed"),
            (counters.cleaned, "a zone cleaned"),
            (counters.unreadable, "a zone left uncleaned: something in it cannot be read"),
            (counters.turns.saturating_sub(1), "a turn of the ring"),
        ] {
            if count > 0 {
                self.met(what);
            }
        }
        if self.plan.stop && !died {
            let synced = self.history.borrow().all_synced();
            match store.stop().await {
                Ok(()) => synced.into_iter().for_each(|one| self.history.borrow_mut().tell(one)),
                Err(error) => match self.judge(&store, "stop", &error) {
                    Ok(()) | Err(Halt::Died) => {}
                    Err(Halt::Wrong(why)) => return Err(why),
                },
            }
        }
        Ok(Lived { base: Some(base), met: None })
    }

    /// Judges whether the store was allowed to refuse to open.
    fn not_opened(
        &self,
        error: &Error,
        struck: Option<Struck>,
    ) -> Result<Option<&'static str>, String> {
        let offline = self.reports().into_iter().find(|report| {
            let zone = format!("zone {} is offline", report.zone);
            report.state == ZoneState::Offline
                && self.ring.has(report.zone)
                && error.to_string().contains(&zone)
        });
        if let Some(offline) = offline.filter(|_| error.kind() == ErrorKind::Io) {
            let unneeded = struck.is_some_and(|struck| {
                let offlined = struck.state == FaultKind::ZoneOffline;
                offlined && struck.zone == offline.zone && !struck.needed
            });
            return match unneeded {
                true => Err(format!("zone {} is not needed: {error}", offline.zone)),
                false => Ok(Some(REFUSED)),
            };
        }
        let full = error.kind() == ErrorKind::NoSpace && self.is_crowded();
        match (self.plan.early && !self.plan.faults.is_empty()) || full || self.may_die(error) {
            true => Ok(None),
            false => Err(failed("open", error)),
        }
    }
}
