//! A RAID volume on a few drives through several lives, as a function of one seed.
//!
//! In each life the drives are powered on, some of them with faults. The array is assembled from
//! all drives that are not refused, and compared with what the previous life left. Clients write,
//! trim and read concurrently, while members fail, vanish, return as strangers, are replaced and
//! rebuilt, and the volume is scrubbed. The life ends with a stop or a power cut.
//!
//! Faults that may cost data or answers strike whole members only. The members struck and the
//! members that lack data already are together at most as many as the level tolerates. So nothing
//! is ever lost, and no request fails without a power cut. The exception: if members have lost
//! zones and the volume does not fit the rest, writes may be refused for lack of space, and
//! everything else must hold.
//!
//! Between lives, *branches* are tried on copies of the drives (`branch`). In a branch, members
//! return with an older state (`older`), metadata such as mapping blocks is damaged (`ruin`),
//! spares replace failed members (`spares`), or drives are lost (`lost`). The lives do not depend
//! on the branches, so that seeds that once failed keep their runs.

mod branch;
mod lost;
mod older;
mod refusals;
mod ruin;
mod spares;

pub use lost::lines as lost_lines;

use crate::crash::Case;
use crate::limits::late_zone;
use crate::raid::array::{Array, seats};
use crate::raid::crash::{audited, met, worked};
use crate::raid::oracle::{Blocks, TRIM, page};
use crate::raid::part::{Absence, Part, own_caches};
use crate::simulation::{Sink, Summary, on_executor};
use furrow_emu::{Emulator, Fates, Fault, FaultKind, Medium, Options, Snapshot, When};
use furrow_log::Uuid;
use furrow_raid::{MemberState, Volume, create};
use furrow_rt::{Nanos, Notify, Pages, Rng, Rt};
use furrow_zone::{BlockCount, Error, ErrorKind, Lba, ZoneId, ZoneReport, ZoneState, ZonedDevice};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The state at the start of a life, and what the previous life promised.
#[derive(Clone)]
struct World {
    array: Array,
    volatile: bool,
    drive: Snapshot,
    blocks: Blocks,
    version: u64,
    /// Members that hold everything they should.
    whole: BTreeSet<u32>,
    seats: Vec<Option<u32>>,
    /// Drives with wrong blocks or lost zones.
    spoiled: BTreeSet<u32>,
    /// Members that may lack data, in service or not.
    doubted: BTreeSet<Uuid>,
    /// Whether this is a copy of the array on which a branch continues.
    branch: bool,
    /// Number of lives in which the array was assembled.
    lived: u64,
    /// Images of all drives from earlier moments.
    images: Vec<older::Image>,
    /// The member whose state records are undamaged after those of other members were damaged,
    /// until a life assembles the array.
    speaker: Option<u32>,
}

/// An action on the array during a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A member's drive vanishes.
    Pull(u32),
    /// A drive hangs: it answers nothing any more, not even errors.
    Hang(u32),
    /// A pulled drive is put back.
    PutBack(u32),
    /// A member is taken out.
    Fail(u32),
    /// Everything that has failed is replaced and rebuilt.
    Replace,
    Scrub,
    /// When all members are whole again, one more drive is pulled.
    Another(u32),
    /// Each drive of a set refuses its next writes. Bit i of the set stands for drive i; the second
    /// number says how many writes each drive refuses.
    Refuse(u32, u64),
}

/// The plan of one life: its faults, actions and drives.
#[derive(Clone, Debug, Default)]
struct Plan {
    faults: Vec<Fault>,
    early: bool,
    stop: bool,
    operations: u64,
    actions: Vec<(u64, Action)>,
    spoils: Option<u32>,
    /// Members that a fault may strike.
    struck: Vec<u32>,
    /// Drives of struck members that are gone for a while, usually during assembly.
    absent: Vec<(u32, Absence)>,
    /// Drives that must not be accepted as the members they were.
    refused: Vec<u32>,
    /// The operation at which all drives are copied.
    image: Option<u64>,
    /// Spares, and the task that uses them for failed members.
    guard: Option<spares::Guard>,
    /// A zone whose commands are minutes late.
    late: Option<Fault>,
}

/// Runs the simulation of `seed`.
///
/// # Errors
/// Describes the failure, and names the life.
pub fn simulate(seed: u64, sink: Sink<'_>) -> Result<Summary, String> {
    let mut rng = Rng::new(seed ^ 0x11_7e5);
    let case = Case { seed, volatile: rng.one_in(2) };
    let mut summary = Summary::default();
    let mut world = begin(case, &mut rng, &mut summary)?;
    world.keep_images(None);
    let config = &world.array.config;
    sink(&format!("{} on {} drives, groups of {}", config.level, world.array.drives, config.group));
    let lives = 2 + rng.below(6);
    // Uses a separate random generator, so that seeds that once failed keep their runs.
    let mut more = Rng::new(seed ^ 0x3_09e5);
    let mut absences = Rng::new(seed ^ 0x7_ab5e);
    let flickers = absences.one_in(4);
    let mut refusals = Rng::new(seed ^ 0x2_ef05e);
    let mut apart = Rng::new(seed ^ 0x1_b4a7c);
    for life in 0..=lives {
        // The last life is quiet and shows that all is well.
        let mut plan = if life == lives { quiet() } else { draw(&world, &mut rng, &mut more) };
        if flickers {
            plan.draw_absences(&world, &mut absences);
        }
        if life < lives {
            plan.draw_refusals(&world, &mut refusals);
        }
        plan.image = Some(apart.below(plan.operations));
        // Where drives may hang, the array has a time limit, and would give up a late drive.
        if life < lives && !plan.hangs() && plan.guard.is_none() {
            plan.late = late_zone(&world.array.whole(), seed ^ life << 32);
        }
        sink(&format!("life {life}: {plan:?}"));
        live(&mut world, seed.rotate_left(20) ^ life, &plan, &mut summary)
            .map_err(|why| format!("life {life} ({plan:?}): {why}"))?;
        branch::grow(&world, &mut apart, sink, &mut summary)
            .map_err(|why| format!("after life {life}: {why}"))?;
    }
    Ok(summary)
}

fn begin(case: Case, rng: &mut Rng, summary: &mut Summary) -> Result<World, String> {
    let mut array = Array::draw(case, rng, None);
    array.any_shape(rng);
    let drive = on_executor(case.seed, summary, |rt| {
        let whole = array.whole();
        let medium = Medium::memory(&whole);
        let emulator = Emulator::new(rt, whole, medium, Options::simulated())
            .map_err(|error| error.to_string())?;
        own_caches(&emulator, array.parts());
        let device: Rc<dyn ZonedDevice> = Rc::new(emulator.clone());
        let parts = Part::split(rt, &device, array.parts());
        let (rt2, array) = (rt.clone(), array.clone());
        rt.block_on(async move {
            let all = crate::raid::array::devices(&parts[..array.drives as usize], &[]);
            let made = create(&rt2, all, &array.config, &array.options, false).await;
            made.map_err(|error| error.to_string())?.stop().await.map_err(|e| e.to_string())
        })?;
        Ok(emulator.snapshot())
    })?;
    Ok(World {
        volatile: case.volatile,
        drive,
        blocks: Blocks::default(),
        version: 0,
        whole: (0..array.drives).collect(),
        seats: (0..array.drives).map(Some).collect(),
        spoiled: BTreeSet::new(),
        doubted: BTreeSet::new(),
        branch: false,
        lived: 0,
        images: Vec::new(),
        speaker: None,
        array,
    })
}

fn quiet() -> Plan {
    Plan { stop: true, operations: 20, ..Plan::default() }
}

fn draw(world: &World, rng: &mut Rng, more: &mut Rng) -> Plan {
    let array = &world.array;
    let operations = [10, 60, 250][rng.below(3) as usize];
    let mut plan =
        Plan { operations, stop: rng.one_in(3), early: rng.one_in(3), ..Plan::default() };
    let part = |seat, fault, first| of_part(array, seat, fault, first);
    let nth = |rng: &mut Rng| {
        let within = [10, 60, 400][rng.below(3) as usize];
        When::Nth(1 + rng.below(within))
    };
    // Slow commands lose nothing, so any drive may have them.
    for seat in world.seats.iter().flatten() {
        if rng.one_in(4) {
            let nanoseconds = rng.below(3) * Nanos::MILLI;
            let slow = FaultKind::Slow { polls: 1 + rng.below(20) as u32, nanoseconds };
            plan.faults.push(part(*seat, Fault::new(slow).when(When::OneIn(1 + rng.below(10))), 0));
        }
    }
    // A zone that fails a write stays readable, so it costs no data unless it belongs to the ring.
    if rng.one_in(3) {
        let kinds = [FaultKind::WriteError, FaultKind::WriteTorn, FaultKind::ZoneFull];
        let fault = Fault::new(kinds[rng.below(3) as usize]).when(nth(rng)).times(1);
        let seat = world.seats[rng.below(array.drives.into()) as usize];
        plan.faults.extend(seat.map(|seat| part(seat, fault, furrow_raid::format::RING_ZONES)));
    }
    // If the array needs every member, a drive may only wear out: it can still be read entirely.
    let zones = u64::from(array.geometry.zones);
    if array.tolerates() == 0 && more.one_in(4) {
        let fault = Fault::new(FaultKind::ZoneReadOnly).when(When::OneIn(1 + more.below(20)));
        let seat = world.seats[more.below(array.drives.into()) as usize];
        let fault = fault.times(1 + more.below(zones));
        plan.faults.extend(seat.map(|seat| part(seat, fault, furrow_raid::format::RING_ZONES)));
    }
    if rng.one_in(2) {
        plan.faults.push(Fault::new(FaultKind::PowerCut).when(nth(rng)));
    }
    // Faults that cost redundancy strike whole members only, and leave one of them.
    let gone = array.drives - world.whole.len() as u32;
    let budget =
        array.tolerates().saturating_sub(gone).min((world.whole.len() as u32).saturating_sub(1));
    let mut struck: Vec<u32> = world.whole.iter().copied().collect();
    let count = rng.below(u64::from(budget) + 1);
    while struck.len() as u64 > count {
        struck.remove(rng.below(struck.len() as u64) as usize);
    }
    plan.struck = struck.clone();
    for member in struck {
        let Some(seat) = world.seats[member as usize] else { continue };
        let at = rng.below(operations);
        match rng.below(8) {
            0 => plan.actions.push((at, Action::Fail(member))),
            1 | 2 => {
                let hangs = more.one_in(3);
                plan.actions
                    .push((at, if hangs { Action::Hang(seat) } else { Action::Pull(seat) }));
                if rng.one_in(2) {
                    plan.actions.push((at + rng.below(20), Action::PutBack(seat)));
                }
            }
            3 => {
                let fault = Fault::new(FaultKind::ReadError).when(nth(rng)).times(1);
                plan.faults.push(part(seat, fault, 0));
            }
            4 => {
                let fault = Fault::new(FaultKind::WriteError).when(When::OneIn(3));
                // Each write error truncates a segment.
                let times = 1 + rng.below(6);
                let times = if more.one_in(2) { times + more.below(60) } else { times };
                plan.faults.push(part(seat, fault.times(times), 0));
            }
            5 => {
                let fault = Fault::new(FaultKind::ZoneReadOnly).when(nth(rng)).times(1);
                let many =
                    Fault::new(FaultKind::ZoneReadOnly).when(When::OneIn(1 + more.below(20)));
                let fault = if more.one_in(2) { many.times(1 + more.below(zones)) } else { fault };
                plan.faults.push(part(seat, fault, 0));
            }
            kind if plan.spoils.is_none() => {
                let flip = Fault::new(FaultKind::BitFlip).when(nth(rng)).times(1 + rng.below(5));
                let offline = Fault::new(FaultKind::ZoneOffline).when(nth(rng)).times(1);
                let many = Fault::new(FaultKind::ZoneOffline).when(When::OneIn(1 + more.below(20)));
                let offline =
                    if more.one_in(2) { many.times(1 + more.below(zones)) } else { offline };
                let flips = kind == 6;
                plan.faults.push(part(seat, if flips { flip } else { offline }, 0));
                plan.spoils = Some(seat);
            }
            _ => {}
        }
    }
    if rng.one_in(2) {
        plan.actions.push((rng.below(operations), Action::Replace));
    }
    if rng.one_in(6) {
        plan.actions.push((rng.below(operations), Action::Scrub));
    }
    plan.actions.sort_by_key(|(at, _)| *at);
    plan
}

/// Restricts `fault` to the zones of drive `seat`, from zone `first` on.
fn of_part(array: &Array, seat: u32, fault: Fault, first: u32) -> Fault {
    let start = u64::from(seat) * u64::from(array.geometry.zones) + u64::from(first);
    let zones = u64::from(array.geometry.zones - first);
    let size = array.geometry.zone_size.0;
    fault.at_blocks(Lba(start * size), BlockCount(zones * size))
}

impl Plan {
    fn hangs(&self) -> bool {
        self.actions.iter().any(|(_, action)| matches!(action, Action::Hang(_)))
    }

    /// Lets drives of some members that faults may strike be gone for a while, early in the life.
    fn draw_absences(&mut self, world: &World, rng: &mut Rng) {
        for member in &self.struck {
            let Some(seat) = world.seats[*member as usize] else { continue };
            if rng.one_in(2) {
                let within = [30, 300][rng.below(2) as usize];
                let at = rng.below(within);
                self.absent.push((seat, Absence { at, commands: 1 + rng.below(40) }));
                self.early = true;
            }
        }
    }
}

/// How a life ended.
struct Lived {
    blocks: Blocks,
    version: u64,
    whole: BTreeSet<u32>,
    seats: Vec<Option<u32>>,
    doubted: BTreeSet<Uuid>,
    drive: Snapshot,
    /// All drives in the middle of the run; for drives with a cache, only the durable content.
    image: Option<Snapshot>,
    /// Whether the array was assembled.
    began: bool,
    operations: u64,
    /// Whether the life ended by a power cut in the middle.
    off: bool,
    /// The situations that the life reached.
    reached: Vec<&'static str>,
}

fn live(world: &mut World, seed: u64, plan: &Plan, summary: &mut Summary) -> Result<(), String> {
    let start = (world.blocks.clone(), world.version);
    world.spoiled.extend(plan.spoils);
    let lived = on_executor(seed, summary, |rt| {
        let emulator = world.emulator(rt)?;
        let mut array = world.array.clone();
        // Without a hanging drive, there is no time limit: the simulation itself notices a task
        // that waits forever.
        array.options.drive_timeout = if plan.hangs() { 30 * Nanos::SECOND } else { 0 };
        let life = Life {
            rt: rt.clone(),
            emulator: emulator.clone(),
            array,
            plan: plan.clone(),
            seed,
            volatile: world.volatile,
            spoiled: world.spoiled.clone(),
            doubted: world.doubted.clone(),
            before: world.branch.then(|| (world.whole.clone(), world.seats.clone())),
        };
        let mut lived = rt.block_on(life.all(start, (world.whole.clone(), world.seats.clone())))?;
        // Requests made after the power failed were never started.
        let fates = match lived.off {
            true => Fates::nothing(seed >> 3),
            false => Fates::seeded(seed >> 3),
        };
        lived.drive = lived.drive.power_cut(&fates);
        lived.image = lived.image.map(|image| image.power_cut(&Fates::nothing(seed >> 3)));
        let counters = emulator.counters();
        Ok((lived, counters))
    });
    let (lived, counters) = lived?;
    summary.lives += 1;
    let written = counters.writes + counters.appends;
    summary.commands += counters.reads + written + counters.flushes + counters.management;
    summary.appends += counters.appends;
    summary.operations += lived.operations;
    for what in &lived.reached {
        *summary.reached.entry(what).or_default() += 1;
    }
    summary.crashes += u64::from(lived.off || !plan.stop);
    world.blocks = lived.blocks;
    world.version = lived.version;
    world.whole = lived.whole;
    world.seats = lived.seats;
    world.drive = lived.drive;
    world.doubted = lived.doubted;
    world.lived += u64::from(lived.began);
    // Every assembly writes new records to all members.
    world.speaker = world.speaker.filter(|_| !lived.began);
    world.keep_images(lived.image);
    Ok(())
}

struct Life {
    rt: Rt,
    emulator: Emulator,
    array: Array,
    plan: Plan,
    seed: u64,
    volatile: bool,
    spoiled: BTreeSet<u32>,
    doubted: BTreeSet<Uuid>,
    /// In a branch, the members that were whole at the life's start, and the drive of each member.
    before: Option<(BTreeSet<u32>, Vec<Option<u32>>)>,
}

/// State shared by the tasks of a life.
#[derive(Clone)]
struct Shared {
    life: Rc<Life>,
    volume: Volume,
    parts: Vec<Rc<Part>>,
    blocks: Rc<RefCell<Blocks>>,
    version: Rc<Cell<u64>>,
    begun: Rc<Cell<u64>>,
    ticks: Rc<Notify>,
    over: Rc<Cell<bool>>,
    /// Number of calls that were refused for lack of space.
    refused: Rc<Cell<u64>>,
    /// The state of all drives in the middle of the life.
    image: Rc<RefCell<Option<Snapshot>>>,
    keeper: spares::Keeper,
}

const CLIENTS: u64 = 3;

impl Life {
    fn is_off(&self) -> bool {
        self.emulator.report_now(ZoneId(0), 1).is_err()
    }

    /// Number of zones of a drive that can never be written again.
    fn lost_zones(&self, seat: u32) -> u32 {
        let zones = self.array.geometry.zones;
        let reports = self.emulator.report_now(ZoneId(seat * zones), zones).unwrap_or_default();
        let dead =
            |zone: &&ZoneReport| matches!(zone.state, ZoneState::ReadOnly | ZoneState::Offline);
        reports.iter().filter(dead).count() as u32
    }

    fn inject(&self) -> Result<(), String> {
        let reorder = Fault::new(FaultKind::ReorderAppends).when(When::OneIn(2));
        self.emulator.inject(reorder).map_err(|e| e.to_string())?;
        let mut faults = self.plan.faults.iter().chain(&self.plan.late);
        faults.try_for_each(|fault| self.emulator.inject(*fault)).map_err(|e| e.to_string())
    }

    async fn all(
        self,
        (blocks, version): (Blocks, u64),
        (whole, seats): (BTreeSet<u32>, Vec<Option<u32>>),
    ) -> Result<Lived, String> {
        let device: Rc<dyn ZonedDevice> = Rc::new(self.emulator.clone());
        let parts = Part::split(&self.rt, &device, self.array.parts());
        for (_, action) in self.plan.actions.iter().filter(|(at, _)| self.plan.early && *at < 5) {
            if let Action::Hang(seat) = action {
                parts[*seat as usize].hang();
            }
        }
        for (seat, absence) in &self.plan.absent {
            parts[*seat as usize].leave(*absence);
        }
        if self.plan.early {
            self.inject()?;
        }
        let started = async {
            // A drive that lost zones may be too small for the array.
            let opened = self.array.open(&self.rt, &parts, &mut Vec::new()).await;
            let volume = opened.map_err(|error| error.to_string())?;
            audited(&volume)?;
            let found = blocks.compare(&volume).await?;
            Ok::<_, String>((volume, Blocks::found(found)))
        };
        let (volume, found) = match started.await {
            Ok(started) => started,
            Err(_) if self.is_off() => {
                let drive = self.emulator.snapshot();
                let (operations, off) = (0, true);
                let mut whole = whole;
                whole.retain(|member| !self.plan.struck.contains(member));
                let (reached, doubted, image) = (Vec::new(), self.doubted, None);
                return Ok(Lived {
                    blocks,
                    version,
                    whole,
                    seats,
                    doubted,
                    drive,
                    image,
                    began: false,
                    operations,
                    off,
                    reached,
                });
            }
            Err(why) => return Err(why),
        };
        for (member, (_, state, _)) in (0u32..).zip(volume.members()) {
            let struck = self.plan.early && self.plan.struck.contains(&member);
            let worn = seats[member as usize].is_some_and(|seat| self.lost_zones(seat) > 0);
            let ailed = struck || worn || self.is_off();
            if whole.contains(&member) && state != MemberState::Active && !ailed {
                return Err(format!("member {member} is {state:?}, and nothing ailed it"));
            }
        }
        self.check_refused(&volume, &seats)?;
        if !self.plan.early {
            self.inject()?;
        }
        let shared = Shared {
            life: Rc::new(self),
            volume,
            parts,
            blocks: Rc::new(RefCell::new(found)),
            version: Rc::new(Cell::new(version)),
            begun: Rc::default(),
            ticks: Rc::new(Notify::new()),
            over: Rc::default(),
            refused: Rc::default(),
            image: Rc::default(),
            keeper: spares::Keeper::default(),
        };
        shared.work().await
    }
}

impl Shared {
    async fn work(self) -> Result<Lived, String> {
        let life = &self.life;
        let mut rng = Rng::new(life.seed ^ 0xc11e);
        self.keep_spares().await?;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let share = life.plan.operations / CLIENTS + 1;
                let client = self.clone().client(number, share, Rng::new(rng.next()));
                life.rt.spawn(client)
            })
            .collect();
        let operator = life.rt.spawn(self.clone().operator(Rng::new(rng.next())));
        for client in clients {
            client.await?;
        }
        self.over.set(true);
        self.ticks.notify_all();
        operator.await?;
        self.spares_taken().await?;
        let doubted = self.cleared().await?;
        if life.plan.stop {
            let stopped = self.volume.stop().await;
            audited(&self.volume)?;
            self.excused("stop", stopped).await?;
        }
        let mut reached = self.keeper.reached();
        met(&self.volume, |what| reached.push(what));
        let given_up = self.parts.iter().any(|part| part.was_given_up());
        reached.extend(given_up.then_some("drives that hung given up"));
        worked(&self.volume, |what| reached.push(what));
        let failed = self.volume.members().iter().any(|m| m.1 == MemberState::Failed);
        let worn = (0..life.array.drives).any(|member| self.volume.lost_zones(member) > 0);
        for (what, is) in [
            ("members out of service", failed),
            ("members in service that lost zones", worn),
            ("calls refused for lack of space", self.refused.get() > 0),
            ("arrays failed by drives that refuse all writes", self.is_refused() && !life.is_off()),
        ] {
            reached.extend(is.then_some(what));
        }
        let (drive, off) = (life.emulator.snapshot(), life.is_off());
        // These two must be of the same moment: while the drives are read below, a spare may
        // replace a member.
        let (states, rebuilding) = (self.volume.members(), self.volume.rebuilding().is_some());
        // The life has ended. Faults are removed only so that the members' drives can be read.
        life.emulator.clear_faults(None).map_err(|error| error.to_string())?;
        self.parts.iter().for_each(|part| part.set_gone(false));
        life.emulator.power_on();
        let seats = seats(&self.volume, &self.parts, &[]).await;
        // A rebuild may have ended in memory only, without a record on the drives.
        let known = |member: &u32| {
            let Some((whole, drives)) = &life.before else { return true };
            let index = *member as usize;
            let same = whole.contains(member) && drives[index] == seats[index];
            same || (life.plan.stop && !off)
        };
        let whole = (0..life.array.drives).filter(known).filter(|member| {
            let index = *member as usize;
            let seat = seats[index];
            states[index].1 == MemberState::Active
                && !rebuilding
                && !doubted.contains(&states[index].0)
                && seat.is_some_and(|seat| {
                    // A drive that lost zones may have to be removed.
                    !life.spoiled.contains(&seat) && life.lost_zones(seat) == 0
                })
        });
        Ok(Lived {
            whole: whole.collect(),
            blocks: self.blocks.borrow().clone(),
            version: self.version.get(),
            seats,
            drive,
            image: self.image.take(),
            // If the array lacks the space for the records of its recovery, the drives show no
            // trace of this life.
            began: self.volume.is_recovered(),
            doubted,
            operations: self.begun.get(),
            off,
            reached,
        })
    }

    /// True if the array failed because drives refused all writes.
    fn is_refused(&self) -> bool {
        self.life.plan.refuses() && self.volume.failed().is_some()
    }

    /// Returns `None` for an error that has an excuse: a power cut, drives that refuse all writes,
    /// or lack of space after zones were lost.
    async fn excused<T>(&self, what: &str, result: Result<T, Error>) -> Result<Option<T>, String> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(_) if self.life.is_off() => Ok(None),
            // The array failed while drives refused all writes.
            Err(_) if self.is_refused() => Ok(None),
            Err(error) if error.kind() == ErrorKind::NoSpace && self.lacks_zones().await => {
                self.refused.set(self.refused.get() + 1);
                Ok(None)
            }
            // The power failed while the zones were counted.
            Err(_) if self.life.is_off() => Ok(None),
            Err(why) => Err(format!("{what}: {why}")),
        }
    }

    /// Whether the volume may be too large for the usable zones of a member in service.
    async fn lacks_zones(&self) -> bool {
        let shape = self.volume.shape();
        let seats = seats(&self.volume, &self.parts, &[]).await;
        let members = self.volume.members();
        let of =
            seats.iter().zip(members).filter(|(_, (_, state, _))| *state != MemberState::Failed);
        let lost = of.filter_map(|(seat, _)| *seat).map(|seat| self.life.lost_zones(seat)).max();
        shape.slots.saturating_sub(lost.unwrap_or(0)) < shape.least(self.volume.config())
    }

    async fn client(self, number: u64, share: u64, mut rng: Rng) -> Result<(), String> {
        let volume = &self.volume;
        for step in 0..share {
            let operation = step * CLIENTS + number;
            let most = if rng.one_in(8) { 40 } else { 5 };
            let count = 1 + rng.below(most).min(volume.blocks() - 1);
            let span = if rng.one_in(2) { volume.blocks() } else { volume.blocks().min(64) };
            let block = rng.below(span.saturating_sub(count).max(1));
            if self.life.plan.image == Some(self.begun.get()) {
                *self.image.borrow_mut() = Some(self.life.emulator.snapshot());
            }
            self.begun.set(self.begun.get() + 1);
            self.ticks.notify_all();
            if rng.one_in(5) {
                let before = self.blocks.borrow().clone();
                let read = volume.read(block, count as u32).await;
                audited(volume)?;
                let pages = match read {
                    Ok(pages) => pages,
                    Err(_) if self.life.is_off() => return Ok(()),
                    // The small map memory is full of changes that cannot be written any more, so
                    // no page of the map can be loaded.
                    Err(_) if self.is_refused() && self.life.array.options.map_memory > 0 => {
                        continue;
                    }
                    Err(why) => return Err(format!("read: {why}")),
                };
                for (block, page) in (block..).zip(&pages) {
                    let now = self.blocks.borrow();
                    before.check(block, page).or_else(|_| now.check(block, page))?;
                }
                continue;
            }
            let version = self.version.get() + 1;
            self.version.set(version);
            let trim = rng.one_in(8);
            let version = if trim { TRIM + version } else { version };
            self.blocks.borrow_mut().began(operation, (block, count, version));
            let fua = self.life.volatile;
            let done = if trim {
                volume.trim(block, count, fua).await
            } else {
                let pages: Pages =
                    (block..block + count).map(|block| page(block, version)).collect();
                volume.write(block, pages, fua).await
            };
            audited(volume)?;
            match self.excused(&format!("operation {operation}"), done).await? {
                Some(()) => self.blocks.borrow_mut().acknowledged(operation),
                None if self.life.is_off() => return Ok(()),
                None => {}
            }
        }
        Ok(())
    }

    async fn operator(self, mut rng: Rng) -> Result<(), String> {
        for (at, action) in self.life.plan.actions.clone() {
            while self.begun.get() < at && !self.over.get() {
                self.ticks.wait().await;
            }
            match action {
                Action::Pull(part) => self.parts[part as usize].set_gone(true),
                Action::Hang(part) => self.hang(part),
                Action::PutBack(part) => self.parts[part as usize].set_gone(false),
                Action::Fail(member) => {
                    let done = self.volume.fail(member).await;
                    self.excused("fail", done).await?;
                }
                Action::Replace => self.replace(&mut rng).await?,
                Action::Another(member) => self.lose_another(member).await,
                Action::Refuse(drives, times) => {
                    for seat in (0..u32::BITS).filter(|seat| drives >> seat & 1 == 1) {
                        let fault = Fault::new(FaultKind::WriteError).times(times);
                        let fault = of_part(&self.life.array, seat, fault, 0);
                        self.life.emulator.inject(fault).map_err(|e| e.to_string())?;
                    }
                }
                Action::Scrub => {
                    let done = self.volume.scrub(true, |_, _| {}).await;
                    if let Some(scrubbed) = self.excused("scrub", done).await?
                        && scrubbed.lost > 0
                        && !self.life.is_off()
                    {
                        return Err(format!("a scrub lost blocks: {scrubbed:?}"));
                    }
                }
            }
            audited(&self.volume)?;
            if self.life.is_off() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn replace(&self, rng: &mut Rng) -> Result<(), String> {
        let seats = seats(&self.volume, &self.parts, &[]).await;
        let mut unused: Vec<u32> = (0..self.parts.len() as u32)
            .filter(|part| !seats.contains(&Some(*part)) && !self.life.spoiled.contains(part))
            .filter(|part| !self.keeper.has(*part))
            .collect();
        for (member, (_, state, _)) in (0u32..).zip(self.volume.members()) {
            if state != MemberState::Failed || unused.is_empty() {
                continue;
            }
            let part = unused.swap_remove(rng.below(unused.len() as u64) as usize);
            self.parts[part as usize].set_gone(false);
            let device = self.parts[part as usize].clone();
            let done = self.volume.replace(member, device, true).await;
            if done.is_err() && self.life.lost_zones(part) > 0 {
                // A zone of the drive could not be emptied, so the drive cannot be used.
                continue;
            }
            if done.is_err() && self.keeper.has_taken(member) {
                // The task that gives spares replaced the member first.
                continue;
            }
            if self.excused(&format!("replace {member}"), done).await?.is_none() {
                return Ok(());
            }
        }
        self.rebuilt().await
    }

    /// Waits until no rebuild runs.
    async fn rebuilt(&self) -> Result<(), String> {
        let mut turns = 0;
        // A hanging spare is given up only after a while, so waits must be longer.
        let pause = match (&self.life.plan.late, &self.life.plan.guard) {
            (Some(_), _) => Nanos::SECOND,
            (None, Some(_)) => 2 * Nanos::MILLI,
            (None, None) => 50_000,
        };
        while self.volume.rebuilding().is_some() && !self.life.is_off() {
            self.life.rt.sleep(pause).await;
            audited(&self.volume)?;
            turns += 1;
            if turns > 100_000 {
                return Err("a rebuild does not come to its end".to_owned());
            }
        }
        Ok(())
    }
}
