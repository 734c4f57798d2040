//! The drive: queues before the state machine and the medium, with faults in between.
//!
//! `submit` only puts a command in its queue. The executor polls the drive when it has nothing else
//! to do, and the drive then carries commands out. So in simulation ([`Step::One`]) an engine runs
//! between any two commands, and many commands stay in flight; for speed ([`Step::All`]) all
//! waiting commands are carried out at once. The state machine decides and the medium stores;
//! neither knows the other, nor the time. With a [`Pace`](crate::Pace) the timing engine determines
//! when a command is answered: its effect is visible earlier, as the contract of [`ZonedDevice`]
//! allows.
//!
//! Invariants: commands of one queue start in the order submitted; a command is answered exactly
//! once, after its effect; two runs with the same seed are the same.

mod faults;
mod timed;
mod verdict;

use crate::cache::Parts;
use crate::core::{Core, Counters, answer};
use crate::image::{Image, Opened};
use crate::medium::Medium;
use crate::options::{Options, Step};
use crate::power::{Fates, Parcel, Power, cut, share};
use crate::queue::{CommandInfo, Position, Queues, Waiting};
use crate::snapshot::Snapshot;
use crate::timing::TimingCounters;
use crate::timing::work::Work;
use furrow_rt::{Clock, Completion, CompletionTable, Nanos, Rng, Rt, Source, Ticket};
use furrow_zone::fault::{Fault, FaultInjection};
use furrow_zone::{
    Command, Error, ErrorKind, Geometry, Lba, Machine, Outcome, QueueId, Reports, Request, Result,
    Status, Target, ZoneId, ZoneReport, ZonedDevice, reported,
};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use timed::Timed;
use verdict::Verdict;

/// Called before a command is carried out. The command is still in flight then.
pub type Observer = Rc<dyn Fn(&Emulator, &CommandInfo)>;

/// A command that a slow drive answers late.
struct Late {
    ticket: Ticket,
    what: What,
    polls: u32,
    nanoseconds: u64,
}

/// A late answer: known already, or a read that is carried out when it is due.
enum What {
    Known(Outcome),
    /// A read that is carried out only when it is answered, because the blocks may change
    /// until then.
    Read(QueueId, Request),
}

struct Inner {
    rt: Rt,
    geometry: Geometry,
    options: Options,
    /// False if the file was opened for reading only.
    writable: bool,
    traced: bool,
    core: RefCell<Core>,
    queues: RefCell<Queues>,
    table: CompletionTable<Outcome>,
    /// Number of commands answered with an internal error.
    misses: Cell<u64>,
    rng: RefCell<Rng>,
    faults: RefCell<Vec<Fault>>,
    late: RefCell<Vec<Late>>,
    timed: Option<RefCell<Timed>>,
    power: Cell<Power>,
    observer: RefCell<Option<Observer>>,
    /// True if no checks are needed before a command: no faults, no observer, power on, writable.
    plain: Cell<bool>,
    warnings: Vec<String>,
}

/// A handle to an emulated zoned drive. Cloning shares the drive.
#[derive(Clone)]
pub struct Emulator(Rc<Inner>);

/// The state with which an emulated drive starts.
pub(crate) struct Start {
    pub core: Core,
    pub faults: Vec<Fault>,
    pub power: Power,
    pub warnings: Vec<String>,
    pub writable: bool,
}

impl Emulator {
    /// A new drive of `geometry` on the executor `rt`, with all zones empty.
    ///
    /// # Errors
    /// If `geometry` is not valid.
    pub fn new(rt: &Rt, geometry: Geometry, medium: Medium, options: Options) -> Result<Emulator> {
        let machine = Machine::new(geometry)?;
        let core = Core::new(machine, medium);
        let start = Start {
            core,
            faults: Vec::new(),
            power: Power::On,
            warnings: Vec::new(),
            writable: true,
        };
        Ok(Emulator::start(rt, start, options))
    }

    /// Like [`ZonedDevice::report`], but without waiting: an emulated drive always knows its zones.
    ///
    /// # Errors
    /// `InternalError` if the drive is off or was removed.
    pub fn report_now(&self, first: ZoneId, count: u32) -> Result<Vec<ZoneReport>, Status> {
        match self.0.power.get() {
            Power::On => Ok(self.0.core.borrow().machine.report(first, count)),
            Power::Gone(_) | Power::Off => Err(Status::InternalError),
        }
    }

    /// Starts a drive from an open image.
    pub(crate) fn from_image(rt: &Rt, opened: Opened, options: Options) -> Result<Emulator> {
        let Opened { image, zones, faults, warnings } = opened;
        let name = image.name().to_owned();
        let writable = image.is_writable();
        let machine = Machine::new(image.geometry().clone()).map_err(|error| error.at(&name))?;
        let mut core = Core::new(machine, Medium::Image(Box::new(image)));
        for (zone, record) in (0..).map(ZoneId).zip(zones) {
            core.machine
                .restore(zone, record.zone)
                .map_err(|error| error.at(&name).at("zone table is damaged"))?;
            if let Some(cache) = &mut core.cache {
                cache.restore(zone, record.durable, record.zone.write_pointer);
            }
        }
        let start = Start { core, faults, power: Power::On, warnings, writable };
        Ok(Emulator::start(rt, start, Options { name, ..options }))
    }

    pub(crate) fn start(rt: &Rt, mut start: Start, options: Options) -> Emulator {
        let mut rng = match options.seed {
            Some(seed) => Rng::new(seed),
            None => rt.fork_rng(),
        };
        let timed = options.pace.as_ref().map(|pace| {
            start.core.watched = true;
            RefCell::new(Timed::new(pace, rt.now(), rng.next()))
        });
        let emulator = Emulator(Rc::new(Inner {
            rt: rt.clone(),
            geometry: start.core.machine.geometry().clone(),
            writable: start.writable,
            traced: rt.config().clock == Clock::Virtual,
            core: RefCell::new(start.core),
            queues: RefCell::new(Queues::new(options.shuffle)),
            table: CompletionTable::new(),
            misses: Cell::new(0),
            rng: RefCell::new(rng),
            faults: RefCell::new(start.faults),
            late: RefCell::new(Vec::new()),
            timed,
            power: Cell::new(start.power),
            observer: RefCell::new(None),
            plain: Cell::new(false),
            warnings: start.warnings,
            options,
        }));
        emulator.look_again();
        rt.add_source(Rc::new(Worker(Rc::downgrade(&emulator.0))));
        emulator
    }

    fn look_again(&self) {
        let inner = &*self.0;
        let plain = inner.faults.borrow().is_empty()
            && inner.observer.borrow().is_none()
            && inner.power.get() == Power::On
            && inner.writable;
        inner.plain.set(plain);
    }

    /// Makes the drive stand for several drives, each with its own cache. A drive without a
    /// volatile cache stays as it is.
    pub fn split_cache(&self, parts: Parts) {
        if let Some(cache) = &mut self.0.core.borrow_mut().cache {
            cache.split(parts);
        }
    }

    /// Calls `observer` just before each command is carried out. Replaces an earlier observer.
    pub fn set_observer(&self, observer: Observer) {
        *self.0.observer.borrow_mut() = Some(observer);
        self.look_again();
    }

    /// Removes the observer set by [`Emulator::set_observer`].
    pub fn clear_observer(&self) {
        *self.0.observer.borrow_mut() = None;
        self.look_again();
    }

    /// The commands submitted and not yet carried out, in order of submission.
    pub fn in_flight(&self) -> Vec<CommandInfo> {
        self.0.queues.borrow().in_order().into_iter().map(Waiting::info).collect()
    }

    /// Number of commands submitted and not yet carried out.
    pub fn in_flight_len(&self) -> usize {
        self.0.queues.borrow().len()
    }

    /// Returns the numbers of commands and blocks since the drive was opened.
    pub fn counters(&self) -> Counters {
        self.0.core.borrow().counters
    }

    /// Counters of the timing engine's stations; `None` if commands take no time.
    pub fn timing_counters(&self) -> Option<TimingCounters> {
        self.0.timed.as_ref().map(|timed| timed.borrow().counters())
    }

    /// Damage that was tolerated when the image was opened, as sentences for the user.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// Calls `look` with the medium.
    pub fn with_medium<T>(&self, look: impl FnOnce(&Medium) -> T) -> T {
        look(&self.0.core.borrow().medium)
    }

    /// Calls `look` with the image, if the drive's medium is an image.
    pub fn with_image<T>(&self, look: impl FnOnce(&Image) -> T) -> Option<T> {
        match &self.0.core.borrow().medium {
            Medium::Image(image) => Some(look(image)),
            _ => None,
        }
    }

    /// A copy of the drive's present state, commands in flight included. Blocks are shared, not
    /// copied; only blocks of an image are read into memory.
    pub fn snapshot(&self) -> Snapshot {
        let inner = &*self.0;
        let queues = inner.queues.borrow();
        let parcels = queues.in_order().into_iter().map(|waiting| {
            let request = share(&waiting.request);
            Parcel { info: waiting.info(), request, barrier: waiting.barrier.clone() }
        });
        Snapshot {
            parcels: parcels.collect(),
            core: inner.core.borrow().fork(),
            faults: inner.faults.borrow().clone(),
            power: inner.power.get(),
        }
    }

    /// Sets some zones to their state in `image`, a snapshot of a drive of the same geometry, as if
    /// a backup was restored or the drive forgot later writes. The restored content is durable.
    ///
    /// # Errors
    /// `Invalid` if commands are in flight on the drive or in `image`, or a medium is not in
    /// memory; `Corrupt` if more zones would be active than the drive allows.
    pub fn put_back(&self, image: &Snapshot, zones: std::ops::Range<u32>) -> Result<()> {
        if self.in_flight_len() > 0 || !image.parcels.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "commands are in flight"));
        }
        self.0.core.borrow_mut().put_back(&image.core, zones)
    }

    /// A drive that continues from `snapshot`, commands in flight included. The completions of
    /// these commands are dropped.
    pub fn from_snapshot(rt: &Rt, snapshot: &Snapshot, options: Options) -> Emulator {
        let start = Start {
            core: snapshot.core.fork(),
            faults: snapshot.faults.clone(),
            power: snapshot.power,
            warnings: Vec::new(),
            writable: true,
        };
        let emulator = Emulator::start(rt, start, options);
        for parcel in &snapshot.parcels {
            let Parcel { info, request, barrier } = parcel.share();
            let (ticket, completion) = emulator.0.table.open();
            drop(completion);
            emulator.0.queues.borrow_mut().push(info.queue, ticket, request, barrier);
        }
        emulator
    }

    /// Cuts the drive's power: commands in flight get `fates` and are answered with Internal Error.
    /// Later commands get the same answer until [`Emulator::power_on`].
    pub fn power_cut(&self, fates: &Fates) {
        let inner = &*self.0;
        let waiting = inner.queues.borrow_mut().drain();
        let (tickets, mut parcels): (Vec<Ticket>, Vec<Parcel>) = waiting
            .into_iter()
            .map(|waiting| {
                let info = waiting.info();
                let Waiting { ticket, request, barrier, .. } = waiting;
                (ticket, Parcel { info, request, barrier })
            })
            .unzip();
        cut(&mut inner.core.borrow_mut(), &mut parcels, fates);
        inner.power.set(Power::Off);
        self.look_again();
        let late = std::mem::take(&mut *inner.late.borrow_mut());
        let late = late.into_iter().map(|late| late.ticket);
        let under_way = match &inner.timed {
            Some(timed) => timed.borrow_mut().abandon(),
            None => Vec::new(),
        };
        for ticket in late.chain(under_way).chain(tickets) {
            self.complete(ticket, answer(Status::InternalError, Lba(0)));
        }
    }

    /// Makes the drive answer again, after a power cut or a disappearance.
    pub fn power_on(&self) {
        self.0.power.set(Power::On);
        self.look_again();
    }

    /// Carries out the next command. Returns false if none waits.
    fn step(&self) -> bool {
        let inner = &*self.0;
        let Some(mut position) = inner.queues.borrow().next(&mut inner.rng.borrow_mut()) else {
            return false;
        };
        if inner.plain.get() {
            self.perform(position, Verdict::default());
            return true;
        }
        position = self.reorder(position);
        let observer = inner.observer.borrow().clone();
        if let Some(observer) = observer {
            let info = inner.queues.borrow().get(position).map(Waiting::info);
            info.iter().for_each(|info| observer(self, info));
        }
        match self.refuse() {
            Some(status) => {
                self.perform(position, Verdict { fail: Some(status), ..Default::default() })
            }
            None => match self.judge(position) {
                Some(verdict) => self.perform(position, verdict),
                None => {
                    let seed = inner.rng.borrow_mut().next();
                    self.power_cut(&Fates::seeded(seed));
                }
            },
        }
        true
    }

    /// Carries out all waiting commands at once, if no command needs a check of its own and all
    /// wait in one line (see `queue`). Nothing can happen between the commands, since no callback
    /// is called. Returns false if it did nothing.
    fn sweep(&self) -> bool {
        let inner = &*self.0;
        if !inner.plain.get() {
            return false;
        }
        let Some(mut line) = inner.queues.borrow_mut().take_line() else { return false };
        // The clock is read before the commands are carried out, because the host's work must not
        // count as time of the drive.
        let now = if inner.timed.is_some() { inner.rt.now() } else { Nanos(0) };
        {
            let core = &mut *inner.core.borrow_mut();
            for mut waiting in line.drain(..) {
                let command = waiting.request.command;
                let mut outcome = core.execute(&mut waiting.request, waiting.barrier.as_ref());
                if inner.traced {
                    self.trace(waiting.queue, &command, &outcome);
                }
                return_pages(&mut outcome, &mut waiting.request);
                match &inner.timed {
                    None => self.complete(waiting.ticket, outcome),
                    Some(timed) => {
                        let work = core.work;
                        timed.borrow_mut().start(
                            now,
                            waiting.queue,
                            &work,
                            waiting.ticket,
                            outcome,
                        );
                    }
                }
            }
        }
        inner.queues.borrow_mut().give_back(line);
        true
    }

    /// Carries out the command at `position` and answers it, now or later.
    #[inline]
    fn perform(&self, position: Position, verdict: Verdict) {
        let inner = &*self.0;
        let Some(mut waiting) = inner.queues.borrow_mut().take(position) else { return };
        let command = waiting.request.command;
        if let (Some(random), Command::Read { lba, blocks }) = (verdict.flip, command) {
            self.flip_one(lba, blocks, random);
        }
        let Verdict { polls, nanoseconds, .. } = verdict;
        let late = polls > 0 || nanoseconds > 0;
        if late && verdict.fail.is_none() && matches!(command, Command::Read { .. }) {
            let Waiting { ticket, request, queue, .. } = waiting;
            let what = What::Read(queue, request);
            return inner.late.borrow_mut().push(Late { ticket, what, polls, nanoseconds });
        }
        let now = if inner.timed.is_some() { inner.rt.now() } else { Nanos(0) };
        let (mut outcome, work) = {
            let mut core = inner.core.borrow_mut();
            core.work = Work::Nothing;
            let request = &mut waiting.request;
            let outcome = match (verdict.fail, verdict.torn) {
                (Some(status), _) => answer(status, Lba(0)),
                (None, Some(done)) => answer(core.tear(request, done), Lba(0)),
                (None, None) => core.execute(request, waiting.barrier.as_ref()),
            };
            (outcome, core.work)
        };
        return_pages(&mut outcome, &mut waiting.request);
        if let (Some(random), Command::Write { blocks, .. } | Command::Append { blocks, .. }) =
            (verdict.flip, command)
            && outcome.status.is_ok()
        {
            self.flip_one(outcome.lba, blocks, random);
        }
        if inner.traced {
            self.trace(waiting.queue, &command, &outcome);
        }
        if late {
            let (ticket, what) = (waiting.ticket, What::Known(outcome));
            return inner.late.borrow_mut().push(Late { ticket, what, polls, nanoseconds });
        }
        match &inner.timed {
            None => self.complete(waiting.ticket, outcome),
            Some(timed) => {
                timed.borrow_mut().start(now, waiting.queue, &work, waiting.ticket, outcome);
            }
        }
    }

    /// Answers the commands that have ended according to the timing engine. Returns true if there
    /// were any.
    fn ring_out(&self) -> bool {
        let inner = &*self.0;
        let Some(timed) = &inner.timed else { return false };
        let mut over = timed.borrow_mut().advance(inner.rt.now());
        let any = !over.is_empty();
        for (ticket, outcome) in over.drain(..) {
            self.complete(ticket, outcome);
        }
        timed.borrow_mut().give_back(over);
        any
    }

    fn trace(&self, queue: QueueId, command: &Command, outcome: &Outcome) {
        let (code, at, blocks) = match *command {
            Command::Read { lba, blocks } => (1, lba.0, blocks.0),
            Command::Write { lba, blocks } => (2, lba.0, blocks.0),
            Command::Append { zone_start, blocks } => (3, zone_start.0, blocks.0),
            Command::Flush => (4, 0, 0),
            Command::Manage { target: Target::Zone(lba), action } => (5, lba.0, action as u64),
            Command::Manage { target: Target::All, action } => (6, 0, action as u64),
        };
        let status = u64::from(outcome.status.code());
        self.0.rt.trace(&[code, u64::from(queue.0), at, blocks, outcome.lba.0, status]);
    }

    /// Counts one poll for each late answer, and answers those that are due. Returns true if there
    /// were late answers.
    fn ripen(&self) -> bool {
        let inner = &*self.0;
        if inner.late.borrow().is_empty() {
            return false;
        }
        let mut ripe = Vec::new();
        {
            let mut late = inner.late.borrow_mut();
            for index in (0..late.len()).rev() {
                late[index].polls = late[index].polls.saturating_sub(1);
                if late[index].polls == 0 {
                    ripe.push(late.remove(index));
                }
            }
        }
        for late in ripe.into_iter().rev() {
            self.answer_after(late);
        }
        true
    }

    fn answer_after(&self, late: Late) {
        let inner = &*self.0;
        let Late { ticket, what, nanoseconds, .. } = late;
        if nanoseconds == 0 {
            let outcome = self.now(what);
            self.complete(ticket, outcome);
            return;
        }
        let (weak, table) = (Rc::downgrade(&self.0), inner.table.clone());
        let due: Nanos = inner.rt.now().after(nanoseconds);
        let sleep = inner.rt.sleep_until(due);
        inner.rt.spawn_detached(async move {
            sleep.await;
            match (what, weak.upgrade()) {
                (what, Some(inner)) => {
                    let emulator = Emulator(inner);
                    let outcome = emulator.now(what);
                    emulator.complete(ticket, outcome);
                }
                (What::Known(outcome), None) => table.complete(ticket, outcome),
                (What::Read(..), None) => {
                    table.complete(ticket, answer(Status::InternalError, Lba(0)));
                }
            }
        });
    }

    /// Answers the command of `ticket`.
    fn complete(&self, ticket: Ticket, outcome: Outcome) {
        let missed = outcome.status == Status::InternalError;
        self.0.misses.update(|misses| misses + u64::from(missed));
        self.0.table.complete(ticket, outcome);
    }

    /// Produces a late answer, now that it is due.
    fn now(&self, what: What) -> Outcome {
        let inner = &*self.0;
        let (queue, mut request) = match what {
            What::Known(outcome) => return outcome,
            What::Read(queue, request) => (queue, request),
        };
        let mut outcome = match inner.power.get() {
            Power::On => inner.core.borrow_mut().execute(&mut request, None),
            Power::Gone(_) | Power::Off => answer(Status::InternalError, Lba(0)),
        };
        return_pages(&mut outcome, &mut request);
        if inner.traced {
            self.trace(queue, &request.command, &outcome);
        }
        outcome
    }
}

/// Returns the pages of a failed read to the caller, as part of the outcome.
#[inline]
fn return_pages(outcome: &mut Outcome, request: &mut Request) {
    if matches!(request.command, Command::Read { .. }) && outcome.data.is_empty() {
        outcome.data = std::mem::take(&mut request.data);
    }
}

/// The source that the executor polls. It holds only a weak reference, so that the drive is
/// dropped, and its image unlocked, with the last handle.
struct Worker(Weak<Inner>);

impl Source for Worker {
    fn poll(&self) -> bool {
        let Some(inner) = self.0.upgrade() else { return false };
        let drive = Emulator(inner);
        let waited = drive.ripen();
        let worked = match drive.0.options.step {
            Step::One => drive.step(),
            Step::All => {
                let mut worked = drive.sweep();
                while drive.step() {
                    worked = true;
                }
                worked
            }
        };
        worked | waited | drive.ring_out()
    }

    fn next_event(&self) -> Option<Nanos> {
        self.0.upgrade()?.timed.as_ref()?.borrow().next()
    }
}

impl ZonedDevice for Emulator {
    fn warnings(&self) -> &[String] {
        Emulator::warnings(self)
    }

    fn fault_injection(&self) -> Option<&dyn FaultInjection> {
        Some(self)
    }

    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn submit(&self, queue: QueueId, request: Request) -> Completion<Outcome> {
        let inner = &*self.0;
        let (ticket, completion) = inner.table.open();
        let barrier = match request.command {
            Command::Flush => {
                let core = inner.core.borrow();
                core.cache.as_ref().map(|cache| cache.barrier(&core.machine, queue))
            }
            _ => None,
        };
        inner.queues.borrow_mut().push(queue, ticket, request, barrier);
        completion
    }

    fn report(&self, first: ZoneId, count: u32) -> Reports<'_> {
        reported(self.report_now(first, count))
    }

    fn answers(&self) -> bool {
        matches!(self.0.power.get(), Power::On)
    }

    fn misses(&self) -> u64 {
        self.0.misses.get()
    }

    fn oldest(&self) -> Option<u64> {
        self.0.table.oldest()
    }

    fn give_up(&self) {
        self.0.power.set(Power::Off);
        self.look_again();
        self.0.table.give_up(|| answer(Status::InternalError, Lba(0)));
    }

    fn name(&self) -> String {
        self.0.options.name.clone()
    }
}

impl std::fmt::Debug for Emulator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Emulator({})", self.0.options.name)
    }
}
