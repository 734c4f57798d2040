//! The simulation command: crash sweeps and replays by seed.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a face")]

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use furrow_emu::CommandInfo;
use furrow_fs::Canary;
use furrow_sim::crash::{Case, Effort, Figures, Subject, Trace, replay};
use furrow_sim::files::Files;
use furrow_sim::ledger::{self, LedgerSubject};
use furrow_sim::simulate::simulate;
use furrow_sim::sweep::{Goal, sweep};
use furrow_sim::toy::{self, Toy};
use furrow_zone::{Command, Target};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

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
    /// Simulate a file system, its clients and its faulty drive through several power cuts.
    #[arg(default_value_t = 1)]
    seed: u64,
    /// Simulate so many seeds, from SEED on.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// A line per event: life, time and duration (ns), client, operation, answer, arguments.
    #[arg(long)]
    verbose: bool,
}

#[derive(Subcommand)]
enum Task {
    /// Cut the power at every command of many runs, reopen, compare with what was promised.
    Crash(CrashArgs),
    /// Repeat one failing case of a crash sweep.
    Replay(ReplayArgs),
}

#[derive(Args)]
struct CrashArgs {
    /// What to crash: fs, rot (fs on a drive whose blocks decay), ledger (the log crate alone) or
    /// toy; or fs:CANARY and so on for one of their built-in defects.
    #[arg(long, default_value = "fs")]
    subject: String,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stop after so many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Stop after so many reopened states.
    #[arg(long)]
    reopens: Option<u64>,
    /// Stop after so many seeds.
    #[arg(long)]
    seeds: Option<u64>,
    /// Most cut points of one run, evenly spread; 0 = every command.
    #[arg(long, default_value_t = 0)]
    cuts: usize,
    /// Combinations of fates tried where more than three commands are in flight.
    #[arg(long, default_value_t = 8)]
    samples: usize,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

#[derive(Args)]
struct ReplayArgs {
    /// What to crash, as for `crash`.
    #[arg(long, default_value = "fs")]
    subject: String,
    /// The drive loses what was not flushed.
    #[arg(long)]
    volatile: bool,
    /// Print every command of the run, then of each recovery.
    #[arg(long)]
    verbose: bool,
    /// Seed of the run.
    seed: u64,
    /// Where and how the power is cut, as a failing line says; `run` = not at all.
    cuts: String,
}

/// What runs on the drive.
enum Chosen {
    Toy(Toy),
    Files(Files),
    Ledger(LedgerSubject),
}

const FS_CANARIES: [Canary; 7] = [
    Canary::SkippedFlush,
    Canary::EarlyAck,
    Canary::DroppedCrc,
    Canary::IgnoredExtent,
    Canary::ReuseBeforeRelease,
    Canary::RecomputedCrc,
    Canary::ReleaseLiveRecord,
];

impl Chosen {
    fn parse(name: &str) -> Result<Chosen> {
        let (kind, canary) = match name.split_once(':') {
            Some((kind, canary)) => (kind, Some(canary)),
            None => (name, None),
        };
        match kind {
            "toy" => Ok(Chosen::Toy(Toy { canary: canary_of(canary, &toy::Canary::ALL)? })),
            "fs" | "rot" => Ok(Chosen::Files(Files {
                canary: canary_of(canary, &FS_CANARIES)?,
                rot: kind == "rot",
            })),
            "ledger" => {
                Ok(Chosen::Ledger(LedgerSubject { canary: canary_of(canary, &ledger::CANARIES)? }))
            }
            _ => bail!("no subject {kind:?}: there are fs, rot, ledger and toy"),
        }
    }
}

fn canary_of<C: Copy + std::fmt::Debug>(name: Option<&str>, all: &[C]) -> Result<Option<C>> {
    let Some(name) = name else { return Ok(None) };
    match all.iter().find(|canary| format!("{canary:?}").eq_ignore_ascii_case(name)) {
        Some(canary) => Ok(Some(*canary)),
        None => bail!("no canary {name:?}: there are {all:?}"),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        None => Ok(simulate_seeds(&cli.simulate)),
        Some(Task::Crash(args)) => crash(&args),
        Some(Task::Replay(args)) => again(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("furrow-sim: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn simulate_seeds(args: &SimulateArgs) -> ExitCode {
    if !args.verbose {
        std::panic::set_hook(Box::new(|_| {}));
    }
    for seed in args.seed..args.seed.saturating_add(args.runs) {
        let mut print = |line: &str| {
            if args.verbose {
                println!("{line}");
            }
        };
        match simulate(seed, &mut print) {
            Ok(summary) => println!("seed {seed:>6}  {summary}"),
            Err(why) => {
                println!("FAILED seed {seed}: {why}");
                println!("  again: cargo run -p furrow-sim -- {seed} --verbose");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn crash(args: &CrashArgs) -> Result<ExitCode> {
    // Panics of a subject are failures with a message; their backtraces come with a replay.
    std::panic::set_hook(Box::new(|_| {}));
    match Chosen::parse(&args.subject)? {
        Chosen::Toy(toy) => Ok(crash_subject(&toy, args)),
        Chosen::Files(files) => Ok(crash_subject(&files, args)),
        Chosen::Ledger(ledger) => Ok(crash_subject(&ledger, args)),
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
    let result = match Chosen::parse(&args.subject)? {
        Chosen::Toy(toy) => replay(&toy, case, &args.cuts, trace),
        Chosen::Files(files) => replay(&files, case, &args.cuts, trace),
        Chosen::Ledger(ledger) => replay(&ledger, case, &args.cuts, trace),
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
