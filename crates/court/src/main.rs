//! The court's command: records workloads, tries power cuts, runs minimal cases, compares counts.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a front end")]

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};
use furrow_court::compare::{self, Measure};
use furrow_court::contestant::Contestant;
use furrow_court::cuts::{Defect, Events};
use furrow_court::kind::{Kind, kernel_said};
use furrow_court::minimal::{self, Minimal};
use furrow_court::show::Lines;
use furrow_court::stuck::{self, End, Program};
use furrow_court::trial::{Case, record, try_cuts};
use furrow_court::workload::History;
use serde_json::json;
use std::fs::File;
use std::io::{BufReader, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

/// Version of the JSON documents printed here.
const JSON_VERSION: u32 = 1;

/// File systems of the kernel and Furrow on one emulated drive.
///
/// Needs root, a kernel with ublk, the programs of each file system and furrow in the PATH, and
/// /mnt: scripts/court.sh makes a guest that has them.
#[derive(Parser)]
#[command(name = "furrow-court", version)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Record(RecordArgs),
    Try(TryArgs),
    Case(CaseArgs),
    Stuck(StuckArgs),
    Show(ShowArgs),
    Compare(CompareArgs),
    Times(TimesArgs),
}

/// Do the same work on new file systems of a drive that is slowed down by two factors, and print
/// the times of its model on which both agree within 15 %.
///
/// Before the file is read the file system is mounted again, so that the file comes from the drive.
#[derive(Args)]
struct TimesArgs {
    /// The file system, or Furrow's library.
    #[arg(value_name = "FILE SYSTEM")]
    who: Contestant,
    /// Factors by which the drive is slower than its model.
    #[arg(long, num_args = 2, default_values_t = [500, 1000],
          value_parser = clap::value_parser!(u32).range(1..))]
    slow: Vec<u32>,
    /// Number of runs with each factor; the result is their median.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
}

/// Do the same work on new file systems and count what reaches the drive.
#[derive(Args)]
struct CompareArgs {
    /// The file system, or Furrow's library.
    #[arg(value_name = "FILE SYSTEM")]
    who: Contestant,
    /// Number of runs; the result is their median.
    #[arg(long, default_value_t = 3)]
    runs: u64,
    /// Run the library alone, with the drive in its own process. This needs neither ublk nor root.
    #[arg(long)]
    direct: bool,
}

/// Run a minimal case of a defect: a few calls, every cut of the last two of them. The status is 1
/// if a promise is broken.
#[derive(Args)]
struct CaseArgs {
    /// The case.
    case: Minimal,
    /// The file system (default: the one that has the defect).
    kind: Option<Kind>,
    /// The file to record to (default: one in the folder of temporary files).
    #[arg(long)]
    recording: Option<PathBuf>,
    /// Further arguments of the command that makes the file system.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    make: String,
    /// Mount options.
    #[arg(long, default_value = "")]
    mount: String,
}

/// Fill a new file system with one file and overwrite it at random places, in several runs. The
/// status is 1 if a run got stuck; then turn the machine off.
#[derive(Args)]
struct StuckArgs {
    /// The file system.
    kind: Kind,
    /// Number of runs, with seeds from 1 on.
    #[arg(long, default_value_t = 5)]
    runs: u64,
    /// Size of the file, in percent of the file system.
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u64).range(1..=95))]
    fill: u64,
    /// Number of rounds of 16 writes of 16 KiB at random places; every eighth round ends with
    /// an fdatasync.
    #[arg(long, default_value_t = 300)]
    rounds: u64,
}

/// List a recording's commands, zone and offset in blocks, answers and calls.
#[derive(Args)]
struct ShowArgs {
    /// A recording of 'furrow-court record'.
    recording: PathBuf,
    /// Show reads, too.
    #[arg(long)]
    reads: bool,
    /// Show also how the file system was made.
    #[arg(long)]
    all: bool,
}

/// Run a workload on a new file system and record its drive.
#[derive(Args)]
struct RecordArgs {
    /// The file system.
    kind: Kind,
    /// The file to make.
    recording: PathBuf,
    /// Seed of the workload.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of calls of the workload.
    #[arg(long, default_value_t = 300)]
    calls: usize,
    /// Size of another file that is overwritten meanwhile, in percent of the file system.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=95))]
    churn: u64,
}

/// Cut the power in a recording, mount what is left, compare with what was promised.
#[derive(Args)]
struct TryArgs {
    /// A recording of 'furrow-court record'.
    recording: PathBuf,
    /// Seed of the cuts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the first cut.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Number of cuts.
    #[arg(long, default_value_t = 100)]
    cuts: u64,
    /// Let the drive ignore flushes: the broken promises must be noticed.
    #[arg(long)]
    ignore_flushes: bool,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("furrow-court: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    match cli.task {
        Task::Record(RecordArgs { kind, recording, seed, calls, churn }) => {
            record(Case { kind, seed, calls }, churn, &recording)?;
            let bytes = std::fs::metadata(&recording)?.len();
            println!("{}, seed {seed}, {calls} calls: {bytes} bytes", kind.name());
            Ok(ExitCode::SUCCESS)
        }
        Task::Compare(args) => side_by_side(&args).map(|()| ExitCode::SUCCESS),
        Task::Times(args) => times(&args).map(|()| ExitCode::SUCCESS),
        Task::Case(args) => minimal(&args),
        Task::Stuck(args) => stuck(&args),
        Task::Show(args) => show(&args).map(|()| ExitCode::SUCCESS),
        Task::Try(args) => {
            let defect = args.ignore_flushes.then_some(Defect::IgnoredFlushes);
            let mut told = 0;
            let numbers = args.first..args.first + args.cuts;
            let (case, verdict) =
                try_cuts(&args.recording, args.seed, numbers, defect, &mut |cut, found, hasty| {
                    // Ignored and hasty flushes break promises often, so after the third guilty
                    // cut, the cuts that they explain are not printed.
                    told += 1;
                    if (args.ignore_flushes || hasty) && told > 3 {
                        return;
                    }
                    let why = if hasty { ": explained by a hasty flush" } else { "" };
                    println!("cut {cut}{why}");
                    found.iter().take(6).for_each(|what| println!("  {what}"));
                    kernel_said(12).iter().for_each(|line| println!("  kernel: {line}"));
                })?;
            let by: serde_json::Map<String, serde_json::Value> = verdict
                .by_promise
                .iter()
                .map(|(promise, count)| (format!("{promise:?}").to_lowercase(), json!(count)))
                .collect();
            let line = json!({
                "version": JSON_VERSION,
                "file_system": case.kind.name(),
                "workload_seed": case.seed,
                "calls": case.calls,
                "seed": args.seed,
                "first": args.first,
                "cuts": verdict.cuts,
                "with_commands_in_flight": verdict.in_flight,
                "flushes_ignored": args.ignore_flushes,
                "guilty": verdict.guilty,
                "of_them_by_hasty_flushes": verdict.hasty,
                "calls_with_hasty_flushes": verdict.hasty_calls,
                "calls_refused": verdict.refused_calls,
                "first_broken_promise": by,
            });
            println!("{line}");
            // With ignored flushes, the run fails if no broken promise is found. The hasty flushes
            // of the kernel's file systems are known, so promises that these flushes break do not
            // fail the run.
            let known = if case.kind == Kind::Furrow { 0 } else { verdict.hasty };
            let failed =
                if args.ignore_flushes { verdict.guilty == 0 } else { verdict.guilty > known };
            Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
    }
}

fn show(args: &ShowArgs) -> Result<()> {
    let events = Events::read(BufReader::new(File::open(&args.recording)?))?;
    let case = events.marks().find_map(Case::parse);
    let calls = case.map(|case| History::generate(case.seed, case.calls).ops);
    let calls = calls.or_else(|| Some(events.marks().find_map(Minimal::parse)?.calls()));
    let calls = calls.unwrap_or_default();
    let (all, start) = events.all();
    let mut lines = Lines::new(&events, &calls, args.reads);
    let mut out = std::io::stdout().lock();
    for at in if args.all { 0 } else { start }..all.len() {
        // The reader, such as head(1), may close the pipe early.
        if let Some(line) = lines.line(at)
            && writeln!(out, "{line}").is_err()
        {
            break;
        }
    }
    Ok(())
}

fn minimal(args: &CaseArgs) -> Result<ExitCode> {
    let kind = args.kind.unwrap_or(args.case.kind());
    let name = format!("{}-{}", args.case.name(), kind.name());
    let recording = args.recording.clone().unwrap_or_else(|| std::env::temp_dir().join(name));
    let make: Vec<&str> = args.make.split_whitespace().collect();
    let mut tell = |line: &str| println!("{line}");
    let seen = minimal::run(args.case, kind, &make, &args.mount, &recording, &mut tell)?;
    let line = json!({
        "version": JSON_VERSION,
        "case": args.case.name(),
        "file_system": kind.name(),
        "make": args.make,
        "mount": args.mount,
        "cuts": seen.cuts,
        "guilty": seen.guilty,
        "unmountable": seen.unmountable,
    });
    println!("{line}");
    Ok(if seen.guilty > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn stuck(args: &StuckArgs) -> Result<ExitCode> {
    let (mut stuck, mut refused) = (0, 0);
    for seed in 1..=args.runs {
        let program = Program { fill: args.fill, rounds: args.rounds, seed };
        let place = std::env::temp_dir().join(format!("stuck-{seed}"));
        match stuck::run(args.kind, program, &place)? {
            End::Ended { error: None, again } => {
                println!("run {seed}: it ended, {again} calls with EAGAIN");
                refused += again;
            }
            End::Ended { error: Some(error), .. } => println!("run {seed}: {error}"),
            End::Stuck { rounds, owed, commands, stacks } => {
                let when = match rounds {
                    Some(rounds) => format!("after {rounds} rounds"),
                    None => "while the file was filled".to_owned(),
                };
                println!(
                    "run {seed}: stuck {when}; of {commands} commands the drive has not answered \
                     {owed}"
                );
                // Only the first stuck run prints its stacks.
                if stuck == 0 {
                    stacks.iter().for_each(|stack| println!("  {stack}"));
                }
                stuck += 1;
            }
        }
    }
    let line = json!({
        "version": JSON_VERSION,
        "file_system": args.kind.name(),
        "fill": args.fill,
        "rounds": args.rounds,
        "runs": args.runs,
        "stuck": stuck,
        "calls_refused": refused,
    });
    println!("{line}");
    Ok(if stuck > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the measures of all runs for one phase, and the errors of the runs that failed in it.
fn of_phase(
    runs: &[Vec<(String, Result<Measure, String>)>],
    phase: &str,
) -> (Vec<Measure>, Vec<String>) {
    let (mut done, mut errors) = (Vec::new(), Vec::new());
    for (_, result) in runs.iter().flatten().filter(|(name, _)| name == phase) {
        match result {
            Ok(measure) => done.push(*measure),
            Err(error) => errors.push(error.clone()),
        }
    }
    (done, errors)
}

fn times(args: &TimesArgs) -> Result<()> {
    let (name, work) = (args.who.name(), compare::TIMED);
    let by_factor = args
        .slow
        .iter()
        .map(|slow| {
            let runs = 0..args.runs;
            runs.map(|seed| compare::measure(args.who, work, seed, Some(*slow))).collect()
        })
        .collect::<Result<Vec<Vec<_>>>>()?;
    let mut phases = Vec::new();
    for phase in work.phases {
        let (mut found, mut asked) = (Vec::new(), 0);
        for (runs, slow) in by_factor.iter().zip(&args.slow) {
            let (done, errors) = of_phase(runs, phase);
            errors.iter().for_each(|error| println!("| {name} | {phase} | failed: {error} |"));
            if let Some(measure) = compare::median(&done) {
                asked = measure.asked;
                found.push(measure.seconds / f64::from(*slow));
            }
        }
        let &[one, other] = found.as_slice() else { continue };
        let agree = compare::agree(one, other);
        let rate = |seconds: f64| asked as f64 / seconds / 1e6;
        let verdict = match agree {
            true => format!("{:.0} MB/s", rate(other)),
            false => "left out".to_owned(),
        };
        println!(
            "| {name} | {phase} | {:.2} | {:.1} | {:.1} | {:.2} | {verdict} |",
            asked as f64 / (1 << 20) as f64,
            one * 1e3,
            other * 1e3,
            one / other,
        );
        phases.push(json!({
            "phase": phase, "asked_bytes": asked, "agree": agree,
            "seconds_of_the_model": found,
        }));
    }
    let document = json!({
        "version": JSON_VERSION, "file_system": name, "drive": compare::DRIVE,
        "model": compare::MODEL, "slow": args.slow, "runs": args.runs, "phases": phases,
    });
    println!("{document}");
    Ok(())
}

fn side_by_side(args: &CompareArgs) -> Result<()> {
    let name = args.who.name();
    let work = compare::COUNTED;
    let (who, drive) = (args.who, compare::DRIVE);
    ensure!(!args.direct || who == Contestant::Library, "--direct is for furrow-library only");
    let runs = (0..args.runs).map(|seed| match args.direct {
        true => compare::measure_direct(drive, work, seed),
        false => compare::measure(who, work, seed, None),
    });
    let runs = runs.collect::<Result<Vec<_>>>()?;
    let mut phases = Vec::new();
    for phase in work.phases {
        let (done, errors) = of_phase(&runs, phase);
        errors.iter().for_each(|error| println!("| {name} | {phase} | failed: {error} |"));
        let Some(Measure { asked, counts, .. }) = compare::median(&done) else { continue };
        let per_byte = |bytes: u64| bytes as f64 / asked as f64;
        println!(
            "| {name} | {phase} | {} | {:.3} | {:.3} | {:.3} | {} | {} | {} | {} | {} | {} | {} |",
            asked >> 20,
            per_byte(counts.sequential_bytes),
            per_byte(counts.conventional_bytes),
            per_byte(counts.read_bytes),
            counts.writes + counts.appends,
            counts.conventional_writes,
            counts.reads,
            counts.flushes,
            counts.fua,
            counts.resets,
            counts.finishes,
        );
        phases.push(json!({
            "phase": phase,
            "runs": done.len(),
            "errors": errors,
            "asked_bytes": asked,
            "sequential_bytes": counts.sequential_bytes,
            "conventional_bytes": counts.conventional_bytes,
            "read_bytes": counts.read_bytes,
            "writes": counts.writes,
            "appends": counts.appends,
            "conventional_writes": counts.conventional_writes,
            "reads": counts.reads,
            "flushes": counts.flushes,
            "fua": counts.fua,
            "resets": counts.resets,
            "finishes": counts.finishes,
            "failed": counts.failed,
        }));
    }
    let line = json!({
        "version": JSON_VERSION,
        "file_system": name,
        "direct": args.direct,
        "drive": drive,
        "dirty_bytes": compare::DIRTY,
        "dirty_background_bytes": compare::BACKGROUND,
        "phases": phases,
    });
    println!("{line}");
    Ok(())
}
