//! Crash at every command. A sweep runs a workload once and forks the drive before each command. It
//! cuts the power of each fork, once for each combination of fates (or for a sample of the
//! combinations). Then it recovers the drive, and compares the drive's state with what was promised
//! before the cut.
//!
//! The harness treats what runs on the drive as a black box, a [`Subject`]. A reopened state may be
//! crashed again during its recovery. Recovery promises nothing new, so the same state is expected
//! afterwards. A panic, a deadlock or a recovery that does not end counts as a failure, like a
//! broken promise.
//!
//! Everything is a function of the case's seed. A failure names seed, cut and fates, and [`replay`]
//! repeats exactly that failure.

use crate::fates::{Cut, choose, parse_case, print_case};
use furrow_emu::{CommandInfo, Emulator, Fates, Medium, Options, Snapshot, Unflushed};
use furrow_rt::{Config, Rng, Rt};
use furrow_zone::{Command, Geometry, ZonedDevice};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

/// A run or a recovery with more commands than this is considered stuck.
const COMMANDS_MAX: u64 = 200_000;

/// The parameters that determine a run, together with the subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Seed of the workload, the drive and every choice.
    pub seed: u64,
    /// Whether the drive loses unflushed blocks (it has no power-loss protection).
    pub volatile: bool,
}

/// Number of times that a sweep reached each situation.
pub type Tally = BTreeMap<String, u64>;

/// What a sweep tests: code that runs on a zoned drive and promises what survives a power cut.
pub trait Subject: Sync {
    /// The events of a run: operations and acknowledgements.
    type History: Default + 'static;
    /// What must hold after a crash at one point of a history.
    type Expected: Clone + 'static;

    /// Name of the subject on a command line.
    fn name(&self) -> String;

    /// The drive on which the subject runs.
    fn drive(&self, case: Case) -> Geometry;

    /// Prepares the drive for the run, for example by formatting it. The power is never cut here.
    fn prepare(&self, rt: &Rt, device: Rc<dyn ZonedDevice>, case: Case) -> Result<(), String>;

    /// Runs the workload of the case to its end.
    ///
    /// # Errors
    /// If something is wrong without any crash.
    fn run(
        &self,
        rt: &Rt,
        device: Rc<dyn ZonedDevice>,
        case: Case,
        history: Rc<RefCell<Self::History>>,
    ) -> Result<(), String>;

    /// The number of events in the history.
    fn mark(history: &Self::History) -> usize;

    /// What must hold after a crash when the history had `mark` events.
    fn expect(&self, history: &Self::History, mark: usize) -> Self::Expected;

    /// Maximum number of power cuts in one case. Each cut after the first falls into the recovery
    /// from the cut before.
    fn cuts_most(&self) -> usize {
        6
    }

    /// Whether the harness also kills the program while the drive keeps its power and its cache.
    fn kills(&self) -> bool {
        false
    }

    /// Widens `expected` by the visible effects that an interrupted reopening may have had. By
    /// default there are none.
    fn again(&self, _: &mut Self::Expected) {}

    /// Returns how often reopenings with this `expected` reached each situation since the
    /// last call.
    fn reached(&self, _: &Self::Expected) -> Tally {
        Tally::new()
    }

    /// Injects the faults that strike during the run into the prepared drive. By default none.
    fn provoke(&self, _: &Emulator, _: Case) {}

    /// Judges the coverage of a sweep: a line for each situation that it reached or missed.
    fn coverage(&self, _: &Tally) -> Vec<String> {
        Vec::new()
    }

    /// Changes the drive before it is reopened; the case and the seed (the last argument) say how.
    /// By default nothing changes.
    fn disturb(&self, _: &Emulator, _: Case, _: u64) {}

    /// Recovers after a crash, and compares the result with `expected`.
    ///
    /// # Errors
    /// Describes what does not hold.
    fn reopen(
        &self,
        rt: &Rt,
        drive: &Emulator,
        case: Case,
        expected: &Self::Expected,
    ) -> Result<(), String>;
}

/// How thorough a sweep of one case is.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Limits the cut points tried per run to fewer than twice this number, spread evenly with a
    /// seeded start; 0 = no limit.
    pub cuts_max: usize,
    /// Number of combinations of fates tried where more than three commands are in flight.
    pub samples: usize,
    /// One reopening in this many is crashed again during its recovery; 0 = none.
    pub nested_one_in: u64,
    /// Number of failures after which a case, or a sweep of many cases, is given up.
    pub failures_max: usize,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { cuts_max: 0, samples: 8, nested_one_in: 8, failures_max: 3 }
    }
}

/// One failing case.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Name of the subject.
    pub subject: String,
    /// Seed and kind of drive with which the case failed.
    pub case: Case,
    /// Where the power was cut, and with which fates; empty if the run itself failed.
    pub cuts: Vec<Cut>,
    /// The promise that is broken, the panic, or the error of the run.
    pub why: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Failure { subject, case, cuts, why } = self;
        let cache = if case.volatile { " --volatile" } else { "" };
        let cuts = match print_case(cuts) {
            empty if empty.is_empty() => "run".to_owned(),
            cuts => cuts,
        };
        write!(
            f,
            "FAILED {subject} seed {} cut {cuts}: {why}\n  again: cargo run -p furrow-sim -- \
             replay --subject {subject}{cache} {} {cuts}",
            case.seed, case.seed
        )
    }
}

/// The figures of a sweep.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Number of runs, that is, of workloads executed once without a crash.
    pub runs: u64,
    /// Number of commands executed in `runs`. Each is a possible cut point, except reads while only
    /// reads are in flight.
    pub commands: u64,
    /// Number of cut points tried.
    pub cuts: u64,
    /// Number of combinations of fates tried.
    pub fates: u64,
    /// Number of cut points tried, by the number of commands in flight there.
    pub in_flight: BTreeMap<usize, u64>,
    /// Number of states recovered and compared, including nested ones.
    pub reopens: u64,
    /// Number of states, already counted in `reopens`, recovered after a second cut
    /// during recovery.
    pub nested: u64,
    /// Number of times that recoveries reached each situation.
    pub reached: Tally,
    /// Hash over the events of all runs, to compare two sweeps of the same seeds.
    pub hash: u64,
    /// The failing cases.
    pub failures: Vec<Failure>,
}

impl Figures {
    /// Adds the figures of another sweep.
    pub fn add(&mut self, other: Figures) {
        self.runs += other.runs;
        self.commands += other.commands;
        self.cuts += other.cuts;
        self.fates += other.fates;
        self.reopens += other.reopens;
        self.nested += other.nested;
        self.hash = self.hash.wrapping_add(other.hash);
        self.failures.extend(other.failures);
        self.met(other.reached);
        for (depth, cuts) in other.in_flight {
            *self.in_flight.entry(depth).or_default() += cuts;
        }
    }

    fn met(&mut self, tally: Tally) {
        for (what, count) in tally {
            *self.reached.entry(what).or_default() += count;
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "runs        {:>10}", self.runs)?;
        writeln!(f, "commands    {:>10}", self.commands)?;
        writeln!(f, "cut points  {:>10}", self.cuts)?;
        writeln!(f, "fates       {:>10}", self.fates)?;
        writeln!(
            f,
            "reopens     {:>10}   {} of them after a cut in recovery",
            self.reopens, self.nested
        )?;
        writeln!(f, "in flight   {:>10}   cut points", "commands")?;
        let most = self.in_flight.values().copied().max().unwrap_or(1);
        // Each depth below 16 has its own bucket. Larger depths share buckets that begin at powers
        // of two.
        let mut buckets: BTreeMap<usize, u64> = BTreeMap::new();
        for (&depth, &cuts) in &self.in_flight {
            let bucket = if depth < 16 { depth } else { 1 << depth.ilog2() };
            *buckets.entry(bucket).or_default() += cuts;
        }
        for (bucket, cuts) in buckets {
            let label = if bucket < 16 { bucket.to_string() } else { format!("{bucket}+") };
            let bar = "#".repeat((cuts * 40).div_ceil(most) as usize);
            writeln!(f, "            {label:>10}   {cuts:>8} {bar}")?;
        }
        for (what, count) in &self.reached {
            writeln!(f, "reached     {count:>10}   {what}")?;
        }
        write!(f, "failures    {:>10}", self.failures.len())
    }
}

/// Turns the payload of a panic into a message.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without a message"))
}

/// Runs `work` on an executor of its own, which is always cleared afterwards.
fn on_executor<T>(
    config: Config,
    work: impl FnOnce(&Rt) -> Result<T, String>,
) -> Result<(T, (u64, u64)), String> {
    let rt = Rt::new(config);
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| work(&rt)));
    let hash = rt.event_hash();
    // Clearing drops the tasks of a run that may have panicked halfway.
    let cleared = std::panic::catch_unwind(AssertUnwindSafe(|| rt.clear()));
    match (done, cleared) {
        (Ok(Ok(value)), Ok(())) => Ok((value, hash)),
        (Ok(Err(why)), _) => Err(why),
        (Err(panic), _) | (_, Err(panic)) => Err(panic_text(&*panic)),
    }
}

/// A fork of the drive before one command.
struct Fork {
    at: u64,
    /// Number of cut points before the command.
    cut: u64,
    mark: usize,
    snapshot: Snapshot,
}

/// The forks of a run to keep: the one before a certain command, all, or a number of them,
/// evenly spread.
#[derive(Clone, Copy)]
enum Keep {
    One(u64),
    All,
    AtMost(usize),
}

/// Takes forks during a run whose length is not known yet.
struct Forks {
    keep: Keep,
    phase: u64,
    stride: u64,
    commands: u64,
    /// Number of cut points so far: commands before which a cut could find something new.
    cuts: u64,
    forks: Vec<Fork>,
}

impl Forks {
    fn new(keep: Keep, seed: u64) -> Forks {
        let phase = Rng::new(seed).next();
        Forks { keep, phase, stride: 1, commands: 0, cuts: 0, forks: Vec::new() }
    }

    /// Decides whether to fork before a command. A read is not a cut point while only reads are in
    /// flight: a cut before the next command finds the same drive and at least the same promises.
    fn command(&mut self, mark: usize, reads: bool, snapshot: impl FnOnce() -> Snapshot) {
        let at = self.commands;
        assert!(at < COMMANDS_MAX, "{at} commands and no end");
        self.commands += 1;
        let wanted = match self.keep {
            Keep::One(only) => at == only,
            _ => !reads && self.cuts % self.stride == self.phase % self.stride,
        };
        if wanted {
            self.fork(at, mark, snapshot);
        }
        self.cuts += u64::from(!reads);
    }

    /// Takes the last fork, at the end of the run.
    fn end(&mut self, mark: usize, snapshot: impl FnOnce() -> Snapshot) {
        let at = self.commands;
        if !matches!(self.keep, Keep::One(only) if at != only) {
            self.fork(at, mark, snapshot);
        }
    }

    fn fork(&mut self, at: u64, mark: usize, snapshot: impl FnOnce() -> Snapshot) {
        self.forks.push(Fork { at, cut: self.cuts, mark, snapshot: snapshot() });
        if let Keep::AtMost(most) = self.keep
            && self.forks.len() >= 2 * most
        {
            // Keeps every other fork, as a doubled stride would have.
            self.stride *= 2;
            let (stride, phase) = (self.stride, self.phase);
            self.forks.retain(|fork| fork.cut % stride == phase % stride);
        }
    }
}

/// True if no command in flight changes the drive.
fn only_reads(emulator: &Emulator, info: &CommandInfo) -> bool {
    let reads = |info: &CommandInfo| matches!(info.command, Command::Read { .. });
    reads(info) && emulator.in_flight().iter().all(reads)
}

/// A completed run, with the forks that were asked for.
struct Recorded<S: Subject> {
    history: S::History,
    forks: Vec<Fork>,
    commands: u64,
    hash: u64,
}

/// Half of the runs wake tasks in random order.
fn config(case: Case) -> Config {
    if case.seed.is_multiple_of(2) {
        Config::shuffled(case.seed)
    } else {
        Config::simulated(case.seed)
    }
}

/// Runs the case once and forks before commands as `keep` says.
fn record<S: Subject>(
    subject: &S,
    case: Case,
    keep: Keep,
    trace: Option<Trace>,
) -> Result<Recorded<S>, String> {
    let history: Rc<RefCell<S::History>> = Rc::default();
    let forks = Rc::new(RefCell::new(Forks::new(keep, case.seed)));
    let run = on_executor(config(case), |rt| {
        let geometry = subject.drive(case);
        let medium = Medium::memory(&geometry);
        let emulator = Emulator::new(rt, geometry, medium, Options::simulated())
            .map_err(|error| error.to_string())?;
        let device: Rc<dyn ZonedDevice> = Rc::new(emulator.clone());
        subject.prepare(rt, device.clone(), case).map_err(|why| format!("prepare: {why}"))?;
        subject.provoke(&emulator, case);
        let (told, taken) = (history.clone(), forks.clone());
        emulator.set_observer(Rc::new(move |emulator: &Emulator, info: &CommandInfo| {
            if let Some(trace) = &trace {
                trace(taken.borrow().commands, info);
            }
            let mark = S::mark(&told.borrow());
            let reads = only_reads(emulator, info);
            taken.borrow_mut().command(mark, reads, || emulator.snapshot());
        }));
        let done = subject.run(rt, device, case, history.clone());
        emulator.clear_observer();
        // The power is also cut after the end of the run.
        forks.borrow_mut().end(S::mark(&history.borrow()), || emulator.snapshot());
        done.map_err(|why| format!("run: {why}"))
    });
    let ((), (hash, _)) = run?;
    let history = std::mem::take(&mut *history.borrow_mut());
    let mut forks = forks.borrow_mut();
    let (forks, commands) = (std::mem::take(&mut forks.forks), forks.commands);
    Ok(Recorded { history, forks, commands, hash })
}

/// Reopens `snapshot` and compares the result with `expected`. `keep` chooses the command of the
/// recovery before which the drive is forked.
fn reopen<S: Subject>(
    subject: &S,
    case: Case,
    cut: &Cut,
    snapshot: &Snapshot,
    expected: &S::Expected,
    keep: Nested,
    trace: Option<Trace>,
) -> Result<Option<Fork>, String> {
    let fork: Rc<RefCell<Option<Fork>>> = Rc::default();
    let seed = case.seed.rotate_left(32) ^ cut.fates.seed ^ cut.at;
    let opened = on_executor(Config::shuffled(seed), |rt| {
        let emulator = Emulator::from_snapshot(rt, snapshot, Options::simulated());
        subject.disturb(&emulator, case, seed);
        let (commands, cuts) = (Cell::new(0), Cell::new(0));
        let rng = RefCell::new(Rng::new(seed));
        let taken = fork.clone();
        emulator.set_observer(Rc::new(move |emulator: &Emulator, info: &CommandInfo| {
            let at = commands.get();
            if let Some(trace) = &trace {
                trace(at, info);
            }
            assert!(at < COMMANDS_MAX, "{at} commands and no end");
            commands.set(at + 1);
            let wanted = match keep {
                Nested::None => false,
                Nested::At(only) => at == only,
                Nested::Any if only_reads(emulator, info) => false,
                // Each command is equally likely to be the one kept.
                Nested::Any => {
                    cuts.set(cuts.get() + 1);
                    rng.borrow_mut().one_in(cuts.get())
                }
            };
            if wanted {
                let snapshot = emulator.snapshot();
                *taken.borrow_mut() = Some(Fork { at, cut: 0, mark: 0, snapshot });
            }
        }));
        subject.reopen(rt, &emulator, case, expected)
    });
    opened?;
    let fork = fork.borrow_mut().take();
    Ok(fork)
}

/// Called for every command of a replay with its number.
pub type Trace = Rc<dyn Fn(u64, &CommandInfo)>;

/// The command of a recovery before which the run is forked.
#[derive(Clone, Copy)]
enum Nested {
    None,
    At(u64),
    Any,
}

/// Sweeps one case, until `enough` returns true.
pub fn sweep_case<S: Subject>(
    subject: &S,
    case: Case,
    effort: &Effort,
    enough: &dyn Fn(&Figures) -> bool,
) -> Figures {
    let mut figures = Figures { runs: 1, ..Figures::default() };
    let fail = |figures: &mut Figures, cuts: Vec<Cut>, why: String| {
        figures.failures.push(Failure { subject: subject.name(), case, cuts, why });
    };
    let keep = if effort.cuts_max == 0 { Keep::All } else { Keep::AtMost(effort.cuts_max) };
    let recorded = match record(subject, case, keep, None) {
        Ok(recorded) => recorded,
        Err(why) => {
            fail(&mut figures, Vec::new(), why);
            return figures;
        }
    };
    figures.commands = recorded.commands;
    figures.hash = recorded.hash;
    let mut rng = Rng::new(case.seed ^ 0x51);
    for fork in &recorded.forks {
        let expected = subject.expect(&recorded.history, fork.mark);
        let in_flight = fork.snapshot.in_flight();
        figures.cuts += 1;
        *figures.in_flight.entry(in_flight.len()).or_default() += 1;
        for mut fates in choose(&in_flight, effort.samples, &mut rng) {
            figures.fates += 1;
            if subject.kills() && rng.one_in(4) {
                fates.unflushed = Unflushed::Cached;
            }
            let cut = Cut { at: fork.at, fates };
            let nested = effort.nested_one_in > 0 && rng.one_in(effort.nested_one_in);
            // After a kill, only a second cut, during recovery, can lose what is in the
            // drive's cache.
            let nested = nested || cut.fates.unflushed == Unflushed::Cached;
            if let Err((cuts, why)) =
                try_cut(subject, case, cut, fork, &expected, nested, &mut rng, &mut figures)
            {
                fail(&mut figures, cuts, why);
                if figures.failures.len() >= effort.failures_max {
                    return figures;
                }
            }
            if enough(&figures) {
                return figures;
            }
        }
    }
    figures
}

/// Reopens one fork with one combination of fates. Further power cuts may follow, each in the
/// recovery from the cut before it.
#[allow(clippy::too_many_arguments, reason = "one call site, all of them different things")]
fn try_cut<S: Subject>(
    subject: &S,
    case: Case,
    cut: Cut,
    fork: &Fork,
    expected: &S::Expected,
    mut nested: bool,
    rng: &mut Rng,
    figures: &mut Figures,
) -> Result<(), (Vec<Cut>, String)> {
    let mut expected = expected.clone();
    let mut after = fork.snapshot.power_cut(&cut.fates);
    let mut cuts = vec![cut];
    loop {
        let keep = if nested { Nested::Any } else { Nested::None };
        figures.reopens += 1;
        figures.nested += u64::from(cuts.len() > 1);
        let cut = &cuts[cuts.len() - 1];
        let opened = reopen(subject, case, cut, &after, &expected, keep, None);
        figures.met(subject.reached(&expected));
        let next = opened.map_err(|why| (cuts.clone(), why))?;
        let Some(next) = next.filter(|_| cuts.len() < subject.cuts_most()) else { return Ok(()) };
        let fates: Option<Fates> = choose(&next.snapshot.in_flight(), 1, rng).into_iter().last();
        let Some(mut fates) = fates else { return Ok(()) };
        if subject.kills() && rng.one_in(4) {
            fates.unflushed = Unflushed::Cached;
        } else if cut.fates.unflushed == Unflushed::Cached {
            fates.unflushed = Unflushed::Seeded;
        }
        after = next.snapshot.power_cut(&fates);
        cuts.push(Cut { at: next.at, fates });
        subject.again(&mut expected);
        // Half of the cases with two cuts get a third, and so on.
        nested = rng.one_in(2);
    }
}

/// Repeats one failing case. `cuts` is what [`Failure`] prints (`run`: no power cut). `trace` is
/// called for every command of the run and of the recoveries, with the command's number in its run
/// or recovery, from 0.
///
/// # Errors
/// The broken promise, or what is wrong with the text `cuts`.
pub fn replay<S: Subject>(
    subject: &S,
    case: Case,
    cuts: &str,
    trace: Option<Trace>,
) -> Result<(), String> {
    if cuts == "run" {
        return record(subject, case, Keep::One(u64::MAX), trace).map(|_| ());
    }
    let cuts = parse_case(cuts)?;
    let recorded = record(subject, case, Keep::One(cuts[0].at), trace.clone())?;
    let missing = |cut: &Cut| format!("there is no command {} in that run", cut.at);
    let mut fork = recorded.forks.into_iter().next().ok_or_else(|| missing(&cuts[0]))?;
    let mut expected = subject.expect(&recorded.history, fork.mark);
    for (index, cut) in cuts.iter().enumerate() {
        if index > 0 {
            subject.again(&mut expected);
        }
        let after = fork.snapshot.power_cut(&cut.fates);
        let next = cuts.get(index + 1);
        let keep = next.map_or(Nested::None, |next| Nested::At(next.at));
        let second = reopen(subject, case, cut, &after, &expected, keep, trace.clone())?;
        match (next, second) {
            (None, _) => break,
            (Some(_), Some(second)) => fork = second,
            (Some(next), None) => return Err(missing(next)),
        }
    }
    Ok(())
}
