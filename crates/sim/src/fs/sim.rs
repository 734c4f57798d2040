//! One file system on one drive through several lives, all of it a function of one seed.
//!
//! In each life the drive is powered on, perhaps with faults. The file system is mounted and
//! compared with the state at the end of the previous life. Several clients work on it at once. The
//! life ends with an unmount, a power cut, or a fault that stops the file system. The next life
//! continues from the state found after a crash. The faults are those an engine must survive: slow
//! commands, read and write errors, torn writes, zones that cannot be written any more, a drive
//! that is away for a while, power cuts at any command.

use crate::crash::Case;
use crate::fs::crash::{
    Idle, Setup, durably, fresh_clients, fsck, learn_shared, prepare, same, work,
};
use crate::fs::faults::metadata_zones;
use crate::fs::fsync_batch::{self, Met};
use crate::fs::history::{History, Line};
use crate::fs::isolation;
use crate::fs::observe::{Recovered, Trouble, check, told};
use crate::fs::offline;
use crate::fs::op::Object;
use crate::fs::read_only;
use crate::fs::shared_file;
use crate::limits::{fewer_open, late_zone};
use crate::simulation::{Sink, Summary, on_executor};
use furrow_emu::{Counters, Emulator, Fates, Fault, FaultKind, Medium, Options, Snapshot, When};
use furrow_fs::Fs;
use furrow_rt::{Nanos, Rng, Rt};
use furrow_zone::{BlockCount, ErrorKind, ZoneId, ZonedDevice};
use std::cell::RefCell;
use std::rc::Rc;

/// The planned end of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Unmount,
    PowerCut,
}

/// The state at the start of a life, with the promises of the previous life.
struct World {
    setup: Setup,
    drive: Snapshot,
    history: Rc<RefCell<History>>,
    clients: Idle,
}

/// Runs the simulation of `seed`.
///
/// # Errors
/// Names the life and the failure in it.
pub fn simulate(seed: u64, sink: Sink<'_>) -> Result<Summary, String> {
    let mut rng = Rng::new(seed ^ 0x51_3e);
    let case = Case { seed, volatile: rng.one_in(2) };
    let mut world = begin(seed, case)?;
    let mut summary = Summary::default();
    let lives = 2 + rng.below(7) as u32;
    let mut zones_may_fail = !Setup::is_full(case);
    for life in 0..=lives {
        // The last life, without faults, shows that everything works.
        let last = life == lives;
        let mut plan = if last { Plan::quiet(&mut rng) } else { Plan::draw(&mut rng) };
        if !last && zones_may_fail && rng.one_in(3) {
            // Few zones fail, since a small drive would have no space left otherwise.
            zones_may_fail = !rng.one_in(2);
            plan.zone = Some(draw_zone_fault(&mut rng));
        }
        if !last {
            plan.faults.extend(late_zone(&world.setup.geometry, plan.seed));
        }
        if !last && Rng::new(seed ^ 0xb1_57 ^ u64::from(life) << 32).one_in(5) {
            let around = around_damage(&world, seed, life, &mut summary);
            around.map_err(|why| format!("before life {life}: {why}"))?;
        }
        if !last && Rng::new(seed ^ 0x5_ba7e ^ u64::from(life) << 32).one_in(4) {
            let shared = sharing(&world, seed, life, &mut summary);
            shared.map_err(|why| format!("before life {life}, sharing files: {why}"))?;
        }
        if !last && Rng::new(seed ^ 0x0ff_11e ^ u64::from(life) << 32).one_in(4) {
            let lost = without_a_zone(&world, seed, life, &mut summary);
            lost.map_err(|why| format!("before life {life}, without a zone: {why}"))?;
        }
        sink(&format!("life {life}: {plan}"));
        let lived = live(&mut world, seed, life, &plan, &mut summary);
        for line in world.history.borrow().operations() {
            sink(&event(life, &line));
        }
        lived.map_err(|why| format!("life {life} ({plan}): {why}"))?;
    }
    Ok(summary)
}

fn event(life: u32, line: &Line<'_>) -> String {
    let answer = match line.result {
        None => "no answer".to_owned(),
        Some(Ok(())) => "ok".to_owned(),
        Some(Err(kind)) => format!("{kind:?}"),
    };
    let took = line.end.map_or(0, |end| end.since(line.begin));
    let client = match line.client {
        u8::MAX => '-',
        client => char::from(b'a' + client),
    };
    format!(
        "{life:>4} {:>14} {took:>11} {client} {:<9} {answer:<12} {}",
        line.begin.0,
        line.op.verb(),
        line.op.arguments()
    )
}

fn begin(seed: u64, case: Case) -> Result<World, String> {
    let setup = Setup::draw(case, None);
    let setup = match () {
        () if Setup::is_full(case) => setup.full(case),
        () if Setup::is_merging(case) => setup.merging(case),
        () if Setup::is_wide(case) => setup.wide(case),
        () => setup,
    };
    let setup = if Setup::is_large(case) { setup.large(case) } else { setup };
    let setup = setup.in_sectors(case);
    let setup = Setup { geometry: fewer_open(setup.geometry, seed), ..setup };
    let drive = on_executor(seed, &mut Summary::default(), |rt| {
        let medium = Medium::memory(&setup.geometry);
        let emulator = Emulator::new(rt, setup.geometry.clone(), medium, Options::simulated())
            .map_err(|error| error.to_string())?;
        rt.block_on(prepare(rt.clone(), Rc::new(emulator.clone()), setup.clone()))?;
        Ok(emulator.snapshot())
    })?;
    let clients = fresh_clients(seed, &setup);
    Ok(World { setup, drive, history: Rc::new(RefCell::new(History::new())), clients })
}

/// The plan of one life.
#[derive(Clone, Debug)]
struct Plan {
    faults: Vec<Fault>,
    /// A fault that strikes a zone of the main area.
    zone: Option<Fault>,
    /// Whether the faults are injected before the mount.
    early: bool,
    end: End,
    operations: u32,
    seed: u64,
}

impl Plan {
    fn quiet(rng: &mut Rng) -> Plan {
        let end = End::Unmount;
        let (faults, zone, operations) = (Vec::new(), None, 20);
        Plan { faults, zone, early: false, end, operations, seed: rng.next() >> 32 }
    }

    fn draw(rng: &mut Rng) -> Plan {
        let mut faults = Vec::new();
        for _ in 0..rng.below(3) {
            faults.push(draw_fault(rng));
        }
        let end = if rng.one_in(3) { End::Unmount } else { End::PowerCut };
        let operations = [5, 30, 100][rng.below(3) as usize];
        let (zone, early) = (None, rng.one_in(3));
        Plan { faults, zone, early, end, operations, seed: rng.next() >> 32 }
    }

    /// True if commands to any zone may fail. If only zones of the main area fail, the file system
    /// continues without visible errors.
    fn may_fail(&self) -> bool {
        self.faults.iter().any(|fault| !matches!(fault.kind, FaultKind::Slow { .. }))
    }
}

/// Draws a fault after which the zone's blocks stay readable: the zone becomes read-only or full,
/// or a write fails.
fn draw_zone_fault(rng: &mut Rng) -> Fault {
    let within = [10, 60, 400][rng.below(3) as usize];
    use FaultKind::{WriteError, WriteTorn, ZoneFull, ZoneReadOnly};
    let kind = [ZoneReadOnly, ZoneFull, WriteError, WriteTorn][rng.below(4) as usize];
    Fault::new(kind).when(When::Nth(1 + rng.below(within))).times(1)
}

fn draw_fault(rng: &mut Rng) -> Fault {
    let within = [10, 60, 400][rng.below(3) as usize];
    let nth = When::Nth(1 + rng.below(within));
    match rng.below(8) {
        0..=2 => Fault::new(FaultKind::PowerCut).when(nth),
        3 => Fault::new(FaultKind::WriteError).when(nth).times(1),
        4 => Fault::new(FaultKind::WriteTorn).when(nth).times(1),
        5 => Fault::new(FaultKind::ReadError).when(nth).times(1),
        6 => {
            let commands = Some(1 + rng.below(30));
            Fault::new(FaultKind::Disappear { commands }).when(nth)
        }
        _ => {
            let nanoseconds = rng.below(3) * Nanos::MILLI;
            let slow = FaultKind::Slow { polls: 1 + rng.below(20) as u32, nanoseconds };
            Fault::new(slow).when(When::OneIn(1 + rng.below(10)))
        }
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} operations each, then {:?}", self.operations, self.end)?;
        for fault in self.faults.iter().chain(&self.zone) {
            write!(f, "; {}, {}", fault.kind, fault.when)?;
        }
        if self.early { f.write_str(", from before the mount") } else { Ok(()) }
    }
}

/// The result of a life.
struct Lived {
    clients: Idle,
    /// Whether a fault stopped the mount or the comparison, so no client worked.
    stillborn: bool,
}

/// Whether a fault of the device explains the error.
fn is_device(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Io | ErrorKind::ReadOnly)
}

/// Returns the clients with the found state as their models.
pub(crate) fn adopt(clients: Idle, recovered: &Recovered) -> Idle {
    clients
        .into_iter()
        .map(|(number, (generator, _))| {
            let model = recovered.models.get(&number).cloned().unwrap_or_default();
            (number, (generator, model))
        })
        .collect()
}

fn live(
    world: &mut World,
    seed: u64,
    life: u32,
    plan: &Plan,
    summary: &mut Summary,
) -> Result<(), String> {
    let rt_seed = seed.rotate_left(20) ^ u64::from(life) << 1 | u64::from(seed.is_multiple_of(2));
    let history = world.history.clone();
    let mut counters = Counters::default();
    let lived = on_executor(rt_seed, summary, |rt| {
        let emulator = Emulator::from_snapshot(rt, &world.drive, Options::simulated());
        emulator.clear_faults(None).map_err(|error| error.to_string())?;
        let lived = rt.block_on(one_life(
            rt.clone(),
            emulator.clone(),
            world.setup.clone(),
            std::mem::take(&mut world.clients),
            history,
            plan.clone(),
        ));
        counters = emulator.counters();
        let drive = emulator.snapshot().power_cut(&Fates::seeded(plan.seed));
        Ok((lived?, drive))
    });
    let (lived, drive) = lived?;
    summary.lives += 1;
    let written = counters.writes + counters.appends;
    summary.commands += counters.reads + written + counters.flushes + counters.management;
    summary.appends += counters.appends;
    if !lived.stillborn {
        summary.operations += world.history.borrow().len() as u64;
    }
    world.drive = drive;
    world.clients = lived.clients;
    summary.crashes += u64::from(lived.stillborn || plan.end == End::PowerCut);
    Ok(())
}

/// Runs an experiment on a copy of the drive, which has no faults.
fn on_copy<T, W>(
    world: &World,
    seed: u64,
    summary: &mut Summary,
    experiment: impl FnOnce(Rt, Emulator, Setup, History) -> W,
) -> Result<T, String>
where
    T: 'static,
    W: Future<Output = std::result::Result<T, Trouble>> + 'static,
{
    on_executor(seed, summary, |rt| {
        let drive = Emulator::from_snapshot(rt, &world.drive, Options::simulated());
        drive.clear_faults(None).map_err(|error| error.to_string())?;
        let (setup, history) = (world.setup.clone(), world.history.borrow().clone());
        rt.block_on(experiment(rt.clone(), drive, setup, history)).map_err(String::from)
    })
}

/// Runs [`isolation::work_around_damage`] and [`fsync_batch::sync_around_damage`] on copies of
/// the drive.
fn around_damage(world: &World, seed: u64, life: u32, summary: &mut Summary) -> Result<(), String> {
    let seed = seed.rotate_left(40) ^ u64::from(life) << 1 | u64::from(seed.is_multiple_of(2));
    let clients = world.clients.clone();
    let met = on_copy(world, seed, summary, |rt, drive, setup, history| {
        isolation::work_around_damage(rt, drive, setup, clients, history, seed)
    })?;
    *summary.reached.entry("a damaged file").or_default() += u64::from(met);
    let met = on_copy(world, seed, summary, |rt, drive, setup, history| {
        fsync_batch::sync_around_damage(rt, drive, setup, history, seed)
    })?;
    if let Met::Damage(what) = met {
        *summary.reached.entry(what).or_default() += 1;
    }
    Ok(())
}

/// Runs [`offline::mount_without`] on a copy of the drive.
fn without_a_zone(
    world: &World,
    seed: u64,
    life: u32,
    summary: &mut Summary,
) -> Result<(), String> {
    let seed = seed.rotate_left(32) ^ u64::from(life);
    let met = on_copy(world, seed, summary, |rt, drive, setup, history| {
        offline::mount_without(rt, drive, setup, history, seed)
    })?;
    *summary.reached.entry(met).or_default() += 1;
    Ok(())
}

/// Runs [`shared_file::share`] on a copy of the drive.
fn sharing(world: &World, seed: u64, life: u32, summary: &mut Summary) -> Result<(), String> {
    let seed = seed.rotate_left(24) ^ u64::from(life);
    let shared = on_copy(world, seed, summary, |rt, drive, setup, history| {
        shared_file::share(rt, drive, setup, history, seed)
    })?;
    *summary.reached.entry("clients that share files").or_default() += u64::from(shared);
    Ok(())
}

async fn one_life(
    rt: Rt,
    emulator: Emulator,
    setup: Setup,
    clients: Idle,
    history: Rc<RefCell<History>>,
    plan: Plan,
) -> Result<Lived, String> {
    let device: Rc<dyn ZonedDevice> = Rc::new(emulator.clone());
    if plan.seed.is_multiple_of(3) {
        fsck(&device, "at power on").await?;
    }
    let inject = || {
        let reorder = Fault::new(FaultKind::ReorderAppends).when(When::OneIn(2));
        emulator.inject(reorder).map_err(|e| e.to_string())?;
        plan.faults.iter().try_for_each(|fault| emulator.inject(*fault)).map_err(|e| e.to_string())
    };
    if plan.early {
        inject()?;
    }
    let seen = if plan.seed % 4 == 1 && !plan.early {
        let expected = {
            let history = history.borrow();
            history.cut(history.mark())
        };
        // Before the first mount the inode numbers of the shared directories are unknown, and a
        // crash may have left some of them unknown.
        let known = Object::SHARED.iter().all(|object| expected.inos.contains_key(object));
        match known {
            true => Some(read_only::look(&rt, &emulator, &setup.mount, &expected).await?),
            false => None,
        }
    } else {
        None
    };
    let may_fail = plan.early && plan.may_fail();
    let io = |trouble: &Trouble| matches!(trouble, Trouble::Refused(_, k) if is_device(*k));
    let started = async {
        let fs =
            Fs::mount(&rt, device.clone(), setup.mount.clone()).await.map_err(told("mount"))?;
        if history.borrow().ino(Object::SHARED[2]).is_none() {
            learn_shared(&fs, &history).await?;
        }
        let expected = {
            let history = history.borrow();
            history.cut(history.mark())
        };
        let recovered = check(&fs, &expected).await?;
        Ok((fs, recovered))
    };
    let (fs, recovered): (Fs, Recovered) = match started.await {
        Ok(started) => started,
        Err(trouble) if may_fail && io(&trouble) => {
            // The clients do not work in this life, and continue in the next one.
            return Ok(Lived { clients, stillborn: true });
        }
        Err(trouble) => return Err(trouble.to_string()),
    };
    same(seen, &recovered)?;
    if !plan.early {
        inject()?;
    }
    if let Some(fault) = plan.zone {
        // The fault spares the metadata zones, without which there is no file system. The crash
        // sweep covers faults of those zones.
        let first = metadata_zones(&fs).await.len() as u32;
        let start = device.geometry().start(ZoneId(first));
        let end = device.geometry().start(ZoneId(setup.geometry.zones));
        let fault = fault.at_blocks(start, BlockCount(end.0 - start.0));
        emulator.inject(fault).map_err(|error| error.to_string())?;
    }
    let clients = adopt(clients, &recovered);
    *history.borrow_mut() = History::resume(recovered.models, recovered.inos);
    // Slow commands advance the clock, so that a commit may end later than it was due.
    if plan.faults.is_empty() && plan.zone.is_none() {
        history.borrow_mut().promise_commits(setup.mount.commit_interval);
    }
    let operations = plan.operations + 3 * u32::from(setup.flood);
    let load = (operations, setup.cleanings);
    let mut clients = work(&rt, &fs, clients, load, &history, plan.may_fail()).await?;
    if plan.may_fail() {
        read_only::stays_silent(&rt, &fs, &emulator).await?;
    } else if let (None, Some(what)) = (plan.zone, fs.damaged_blocks().first()) {
        return Err(format!("damage is reported, and there is none: {what}"));
    }
    if plan.end == End::Unmount {
        match durably(&rt, &history, fs.unmount()).await {
            Ok(()) => {
                emulator.clear_faults(None).map_err(|error| error.to_string())?;
                // If the drive went away after the last command, the next life checks it.
                if device.answers() {
                    fsck(&device, "after unmount").await?;
                }
            }
            Err(error) if plan.may_fail() && is_device(error.kind()) => {}
            Err(error) if error.kind() == ErrorKind::NoSpace => {}
            Err(error) => return Err(format!("unmount: {error}")),
        }
    }
    for (_, model) in clients.values_mut() {
        model.close_all();
    }
    Ok(Lived { clients, stillborn: false })
}
