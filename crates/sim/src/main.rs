//! The simulation command: crash sweeps and replays by seed.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a front end")]

use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser, Subcommand};
use furrow_emu::CommandInfo;
use furrow_policy::{FsDefect, LogDefect, RaidDefect, SoftDefect, StoreDefect};
use furrow_sim::crash::{Case, Effort, Figures, Subject, Trace, replay};
use furrow_sim::fs::crash::FsSubject;
use furrow_sim::fs::damage::damaged;
use furrow_sim::fs::flip::FlipSubject;
use furrow_sim::fs::repair::repaired;
use furrow_sim::image::{self, Image};
use furrow_sim::kv::crash::KvSubject;
use furrow_sim::kv::damage::damaged_store;
use furrow_sim::kv::recorded::RecordedSubject;
use furrow_sim::log::crash::LogSubject;
use furrow_sim::raid::crash::RaidSubject;
use furrow_sim::simulation::{Sink, Summary};
use furrow_sim::soft::crash::{SoftFsSubject, SoftSubject};
use furrow_sim::sweep::{Goal, sweep};
use furrow_sim::{fs, kv, raid};
use furrow_zone::{Command, Target};
use std::io::{IsTerminal, Write};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Number of damaged images made from one file system before the next file system is made.
const DAMAGED_AGAIN: u64 = 200;
/// A case that takes longer than this hangs.
const HANG: Duration = Duration::from_secs(60);

/// Runs engines on emulated drives, in virtual time, by seed.
#[derive(Parser)]
#[command(name = "furrow-sim", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Task>,
    #[command(flatten)]
    simulate: SimulateArgs,
}

#[derive(Args)]
struct SimulateArgs {
    /// Simulate a file system, a volume or a file store, its clients and its faulty drives through
    /// several power cuts.
    #[arg(default_value_t = 1)]
    seed: u64,
    /// Subject: fs, raid or kv; or kv:DEFECT for one of its built-in defects.
    #[arg(long, default_value = "fs")]
    subject: String,
    /// Simulate this many seeds, from SEED on.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Print one line for all seeds, not one per seed.
    #[arg(long, conflicts_with = "verbose")]
    quiet: bool,
    /// Print a line per event: life, time and duration (ns), client, operation, answer, arguments.
    #[arg(long)]
    verbose: bool,
}

#[derive(Subcommand)]
enum Task {
    /// Cut the power at every command of many runs, reopen, compare with what was promised.
    Crash(CrashArgs),
    /// Repeat one failing case of a crash sweep.
    Replay(ReplayArgs),
    /// Damage images of file systems or file stores. Mount, fsck and dump must neither panic nor
    /// hang, and a repair must not make anything worse.
    Damage(DamageArgs),
}

#[derive(Args)]
struct DamageArgs {
    /// Subject: fs or kv.
    #[arg(long, default_value = "fs")]
    subject: String,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stop after this many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Stop after this many images (1000 if no time is given).
    #[arg(long)]
    runs: Option<u64>,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// Repair the images: nothing may be worse than before.
    #[arg(long)]
    repair: bool,
}

#[derive(Args)]
struct CrashArgs {
    /// Subject: fs, fsync (fs with many clients that sync often, in every run), rot (fs on a drive
    /// whose blocks decay), flip (fs, one bit of one block flips after the cut), raid (a volume),
    /// kv (a file store), recorded (a file store with the calls of --recording), soft (soft zones
    /// on a plain drive), soft-fs (fs on soft zones), or ledger (the log crate alone); or
    /// fs:DEFECT and so on for one of their built-in defects.
    #[arg(long, default_value = "fs")]
    subject: String,
    /// recorded: the recording to replay, a file of 'furrow run --record' or of record=FILE in a
    /// URI.
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stop after this many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Stop after this many reopened states.
    #[arg(long)]
    reopens: Option<u64>,
    /// Stop after this many seeds.
    #[arg(long)]
    seeds: Option<u64>,
    /// Maximum number of cut points per run, evenly spread; 0 = every command.
    #[arg(long, default_value_t = 0)]
    cuts: usize,
    /// Number of combinations of fates tried where more than three commands are in flight.
    #[arg(long, default_value_t = 8)]
    samples: usize,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

#[derive(Args)]
struct ReplayArgs {
    /// Subject, as for `crash`.
    #[arg(long, default_value = "fs")]
    subject: String,
    /// recorded: the recording to replay.
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,
    /// The drive loses unflushed blocks.
    #[arg(long)]
    volatile: bool,
    /// Print every command of the run, then of each recovery.
    #[arg(long)]
    verbose: bool,
    /// Seed of the run.
    seed: u64,
    /// Points and fates of the power cuts, as printed for a failing case; `run` = no cut.
    cuts: String,
}

/// The subject that runs on the drive.
enum Chosen {
    Fs(FsSubject),
    Flip(FlipSubject),
    Log(LogSubject),
    Raid(RaidSubject),
    Kv(KvSubject),
    Soft(SoftSubject),
    SoftFs(SoftFsSubject),
    Recorded(Box<RecordedSubject>),
}

impl Chosen {
    fn parse(name: &str, recording: Option<&Path>) -> Result<Chosen> {
        let (kind, defect) = match name.split_once(':') {
            Some((kind, defect)) => (kind, Some(defect)),
            None => (name, None),
        };
        match kind {
            "fs" | "fsync" | "rot" => Ok(Chosen::Fs(FsSubject {
                defect: defect_of(defect, &FsDefect::ALL)?,
                rot: kind == "rot",
                fsync: kind == "fsync",
            })),
            "flip" => Ok(Chosen::Flip(FlipSubject)),
            "ledger" => Ok(Chosen::Log(LogSubject { defect: defect_of(defect, &LogDefect::ALL)? })),
            "raid" => {
                Ok(Chosen::Raid(RaidSubject { defect: defect_of(defect, &RaidDefect::ALL)? }))
            }
            "kv" => Ok(Chosen::Kv(KvSubject { defect: defect_of(defect, &StoreDefect::ALL)? })),
            "soft" => {
                Ok(Chosen::Soft(SoftSubject { defect: defect_of(defect, &SoftDefect::ALL)? }))
            }
            "soft-fs" => {
                let defect = defect_of(defect, &SoftDefect::ALL)?;
                Ok(Chosen::SoftFs(SoftFsSubject { defect }))
            }
            "recorded" => {
                let Some(path) = recording else { bail!("--subject recorded needs --recording") };
                let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
                let defect = defect_of(defect, &StoreDefect::ALL)?;
                let replay = RecordedSubject::new(&path.display().to_string(), &bytes, defect)
                    .map_err(anyhow::Error::msg);
                let replay = replay.with_context(|| path.display().to_string())?;
                Ok(Chosen::Recorded(Box::new(replay)))
            }
            _ => bail!(
                "no subject {kind:?}: there are fs, fsync, rot, flip, raid, kv, recorded, soft, \
                 soft-fs and ledger"
            ),
        }
    }
}

fn defect_of<C: Copy + std::fmt::Debug>(name: Option<&str>, all: &[C]) -> Result<Option<C>> {
    let Some(name) = name else { return Ok(None) };
    match all.iter().find(|defect| format!("{defect:?}").eq_ignore_ascii_case(name)) {
        Some(defect) => Ok(Some(*defect)),
        None => bail!("no defect {name:?}: there are {all:?}"),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        None => simulate_seeds(&cli.simulate),
        Some(Task::Crash(args)) => crash(&args),
        Some(Task::Replay(args)) => again(&args),
        Some(Task::Damage(args)) => damage(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("furrow-sim: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn simulate_seeds(args: &SimulateArgs) -> Result<ExitCode> {
    if !args.verbose {
        std::panic::set_hook(Box::new(|_| {}));
    }
    let defect = match args.subject.split_once(':') {
        Some(("kv", defect)) => defect_of(Some(defect), &StoreDefect::ALL)?,
        _ => None,
    };
    let run = |seed: u64, sink: Sink<'_>| match args.subject.as_str() {
        "raid" => raid::sim::simulate(seed, sink),
        "fs" => fs::sim::simulate(seed, sink),
        _ => kv::sim::simulate_with(seed, defect, sink),
    };
    if !matches!(args.subject.as_str(), "fs" | "raid" | "kv") && defect.is_none() {
        bail!("no subject {:?} to simulate: there are fs, raid and kv", args.subject);
    }
    let (started, mut total) = (Instant::now(), Summary::default());
    for seed in args.seed..args.seed.saturating_add(args.runs) {
        let mut print = |line: &str| {
            if args.verbose {
                println!("{line}");
            }
        };
        match run(seed, &mut print) {
            Ok(summary) => {
                if !args.quiet {
                    println!("seed {seed:>6}  {summary}");
                }
                total.add(&summary);
            }
            Err(why) => {
                println!("FAILED seed {seed}: {why}");
                let subject = &args.subject;
                println!(
                    "  again: cargo run -p furrow-sim -- --subject {subject} {seed} --verbose"
                );
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    if args.runs > 1 {
        if args.subject == "raid" {
            raid::sim::lost_lines(&total.lost)
                .iter()
                .for_each(|line| println!("lost        {line}"));
        }
        let Summary { lives, crashes, operations, commands, appends, ref reached, .. } = total;
        for (what, count) in reached {
            println!("reached     {count:>10}   {what}");
        }
        println!(
            "{} seeds: {lives} lives, {crashes} crashes, {operations} operations, {commands} \
             commands ({appends} appends), no failure, {:.1} s",
            args.runs,
            started.elapsed().as_secs_f64()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Numbers of repairs by result, and of files still readable, in the order in which they
/// are printed.
#[derive(Default)]
struct Repairs([AtomicU64; 7]);

impl Repairs {
    /// Repairs a damaged image and counts the result.
    fn one(&self, image: &Image, seed: u64, tell: bool) -> Result<image::Summary, String> {
        let done = repaired(image, seed)?;
        if tell {
            println!("{done}");
        }
        let ends = [done.clean, done.sound, done.better, done.untouched, done.refused, done.cut];
        let counts = ends.map(u64::from).into_iter().chain([done.files as u64]);
        for (total, count) in self.0.iter().zip(counts) {
            total.fetch_add(count, Relaxed);
        }
        Ok(image::Summary::default())
    }

    fn print(&self) {
        let [clean, sound, better, untouched, refused, cut, files] =
            self.0.each_ref().map(|total| total.load(Relaxed));
        println!("clean       {clean:>10}");
        println!("mended      {sound:>10}   whole, {better} in part");
        println!("left        {untouched:>10}   as they were, {refused} refused");
        println!("power cuts  {cut:>10}   in repairs, finished by the next");
        println!("files       {files:>10}   that could be read before, and after");
    }
}

/// Damages images one after the other, many of each file system or store.
fn damage(args: &DamageArgs) -> Result<ExitCode> {
    let stores = match args.subject.as_str() {
        "fs" => false,
        "kv" if !args.repair => true,
        "kv" => bail!("file stores are not repaired: run without --repair"),
        other => bail!("no subject {other:?} to damage: there are fs and kv"),
    };
    let runs = args.runs.unwrap_or(if args.seconds.is_some() { u64::MAX } else { 1000 });
    let until = args.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let (next, over) = (AtomicU64::new(args.seed), AtomicBool::new(false));
    let end = args.seed.saturating_add(runs);
    let totals: [AtomicU64; 4] = Default::default();
    let repairs = Repairs::default();
    // The seed that each thread works on, and since when, for the watchdog.
    let at: Vec<Mutex<Option<(u64, Instant)>>> =
        (0..args.threads.max(1)).map(|_| Mutex::new(None)).collect();
    if args.runs != Some(1) {
        std::panic::set_hook(Box::new(|_| {}));
    }
    let failed = |seed: u64, why: &str| {
        println!("FAILED seed {seed}: {why}");
        let repair = if args.repair { " --repair" } else { "" };
        let subject = if stores { " --subject kv" } else { "" };
        println!(
            "  again: cargo run -p furrow-sim -- damage{subject}{repair} --runs 1 --seed {seed}"
        );
    };
    let work = |place: &Mutex<Option<(u64, Instant)>>| {
        let mut image: Option<(u64, Image)> = None;
        while !over.load(Relaxed) && until.is_none_or(|until| Instant::now() < until) {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= end {
                break;
            }
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some((seed, Instant::now()));
            let result = std::panic::catch_unwind(AssertUnwindSafe(|| {
                let base = seed / DAMAGED_AGAIN;
                if image.as_ref().is_none_or(|(made, _)| *made != base) {
                    let made = if stores { Image::make_store(base) } else { Image::make(base) };
                    image = Some((base, made?));
                }
                match &image {
                    Some((_, image)) if args.repair => {
                        repairs.one(image, seed, args.runs == Some(1))
                    }
                    Some((_, image)) if stores => damaged_store(image, seed),
                    Some((_, image)) => damaged(image, seed),
                    None => Ok(Default::default()),
                }
            }));
            *place.lock().unwrap_or_else(PoisonError::into_inner) = None;
            let summary = match result {
                Ok(Ok(summary)) => summary,
                Ok(Err(why)) => {
                    failed(seed, &why);
                    over.store(true, Relaxed);
                    break;
                }
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                    failed(seed, &format!("panic: {}", text.unwrap_or("?")));
                    over.store(true, Relaxed);
                    break;
                }
            };
            totals[0].fetch_add(1, Relaxed);
            totals[1].fetch_add(u64::from(summary.mounted), Relaxed);
            totals[2].fetch_add(u64::from(summary.findings.is_some_and(|f| f > 0)), Relaxed);
            totals[3].fetch_add(u64::from(summary.findings.is_none()), Relaxed);
        }
    };
    let started = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = at.iter().map(|place| scope.spawn(|| work(place))).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(50));
            for place in &at {
                let place = *place.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((seed, since)) = place.filter(|(_, since)| since.elapsed() > HANG) {
                    failed(seed, &format!("still at it after {} s", since.elapsed().as_secs()));
                    std::process::exit(1);
                }
            }
        }
    });
    let [images, mounted, found, refused] = totals.map(|total| total.load(Relaxed));
    println!("images      {images:>10}   {:.1} s", started.elapsed().as_secs_f64());
    let code = if over.load(Relaxed) { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if args.repair {
        repairs.print();
        return Ok(code);
    }
    let opened = if stores { "opened " } else { "mounted" };
    println!("{opened}     {mounted:>10}");
    println!("fsck        {found:>10}   found something, {refused} it could not check");
    Ok(code)
}

fn crash(args: &CrashArgs) -> Result<ExitCode> {
    // Panics of a subject are failures with a message; a replay shows their backtraces.
    std::panic::set_hook(Box::new(|_| {}));
    match Chosen::parse(&args.subject, args.recording.as_deref())? {
        Chosen::Fs(files) => Ok(crash_subject(&files, args)),
        Chosen::Flip(files) => Ok(crash_subject(&files, args)),
        Chosen::Log(ledger) => Ok(crash_subject(&ledger, args)),
        Chosen::Raid(volume) => Ok(crash_subject(&volume, args)),
        Chosen::Kv(store) => Ok(crash_subject(&store, args)),
        Chosen::Soft(zones) => Ok(crash_subject(&zones, args)),
        Chosen::SoftFs(files) => Ok(crash_subject(&files, args)),
        Chosen::Recorded(recorded) => Ok(crash_subject(&*recorded, args)),
    }
}

fn crash_subject<S: Subject>(subject: &S, args: &CrashArgs) -> ExitCode {
    let goal = Goal {
        time: args.seconds.map(Duration::from_secs),
        reopens: args.reopens,
        seeds: match (args.seconds, args.reopens, args.seeds) {
            (None, None, None) => Some(4),
            (_, _, seeds) => seeds,
        },
    };
    let effort = Effort { cuts_max: args.cuts, samples: args.samples, ..Effort::default() };
    let terminal = std::io::stderr().is_terminal();
    let progress = |figures: &Figures, elapsed: Duration| {
        if terminal {
            let Figures { runs, cuts, reopens, failures, .. } = figures;
            eprint!(
                "\r{:>5} s  {runs} runs  {cuts} cut points  {reopens} reopens  {} failures ",
                elapsed.as_secs(),
                failures.len()
            );
            let _ = std::io::stderr().flush();
        }
    };
    let started = std::time::Instant::now();
    let figures = sweep(subject, args.seed, goal, &effort, args.threads, &progress);
    if terminal {
        eprintln!();
    }
    println!("subject     {:>10}   from seed {}", subject.name(), args.seed);
    println!("{figures}");
    for line in subject.coverage(&figures.reached) {
        println!("reached     {line}");
    }
    println!("seconds     {:>10.1}", started.elapsed().as_secs_f64());
    for failure in &figures.failures {
        println!("{failure}");
    }
    if figures.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(info: &CommandInfo) -> String {
    let fua = if info.fua { " FUA" } else { "" };
    match info.command {
        Command::Read { lba, blocks } => format!("read   {lba:>6} +{blocks}"),
        Command::Write { lba, blocks } => format!("write  {lba:>6} +{blocks}{fua}"),
        Command::Append { zone_start, blocks } => format!("append {zone_start:>6} +{blocks}{fua}"),
        Command::Flush => "flush".to_owned(),
        Command::Manage { target: Target::Zone(lba), action } => format!("{action:?} {lba:>6}"),
        Command::Manage { target: Target::All, action } => format!("{action:?} all"),
    }
}

fn again(args: &ReplayArgs) -> Result<ExitCode> {
    let case = Case { seed: args.seed, volatile: args.volatile };
    let trace: Option<Trace> = args.verbose.then(|| {
        Rc::new(|at: u64, info: &CommandInfo| {
            println!("{at:>6} queue {:>2}  {}", info.queue, show(info));
        }) as Trace
    });
    let result = match Chosen::parse(&args.subject, args.recording.as_deref())? {
        Chosen::Fs(files) => replay(&files, case, &args.cuts, trace),
        Chosen::Flip(files) => replay(&files, case, &args.cuts, trace),
        Chosen::Log(ledger) => replay(&ledger, case, &args.cuts, trace),
        Chosen::Raid(volume) => replay(&volume, case, &args.cuts, trace),
        Chosen::Kv(store) => replay(&store, case, &args.cuts, trace),
        Chosen::Soft(zones) => replay(&zones, case, &args.cuts, trace),
        Chosen::SoftFs(files) => replay(&files, case, &args.cuts, trace),
        Chosen::Recorded(recorded) => replay(&*recorded, case, &args.cuts, trace),
    };
    match result {
        Ok(()) => {
            println!("holds");
            Ok(ExitCode::SUCCESS)
        }
        Err(why) => {
            println!("FAILED: {why}");
            Ok(ExitCode::FAILURE)
        }
    }
}
