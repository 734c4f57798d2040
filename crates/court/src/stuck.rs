//! A file that fills most of a file system and is overwritten: does the program get to its end?
//!
//! A run that makes no progress is left alone with its mount; only the server of the run's drive is
//! killed. The next run uses a new device. This process should end soon after the last run, and the
//! machine should be turned off.

use crate::kind::{Kind, kernel_said};
use crate::recording::{Event, Recording};
use crate::trial::{Filler, RecordingServer, SMALL_DRIVE, asks_for_another_attempt};
use anyhow::{Context as _, Result};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time limit for one step: a MiB while the file is filled, or a round with the fdatasync after it.
const PATIENCE: Duration = Duration::from_secs(90);

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Percent of the file system that the file takes.
    pub fill: u64,
    /// Number of rounds of 16 writes of 16 KiB; an fdatasync comes after each eighth round.
    pub rounds: u64,
    /// Seed of the places to overwrite.
    pub seed: u64,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub enum End {
    /// The program ended: it made all rounds, or a call failed.
    Ended {
        /// The error that ended the run early.
        error: Option<String>,
        /// Number of calls that ended with EAGAIN.
        again: u64,
    },
    /// The run made no progress.
    Stuck {
        /// Number of rounds made; `None` if the run was stuck while the file was filled.
        rounds: Option<u64>,
        /// Number of commands that the drive had not answered.
        owed: usize,
        /// Number of commands sent to the drive.
        commands: u64,
        /// Threads in the file system's code, and where they wait.
        stacks: Vec<String>,
    },
}

/// Runs `program` on a new file system at `place`; makes the directory `place` first.
///
/// # Errors
/// If the file system cannot be made, mounted or unmounted.
pub fn run(kind: Kind, program: Program, place: &Path) -> Result<End> {
    std::fs::create_dir_all(place)?;
    let mut recording = place.as_os_str().to_owned();
    recording.push(".recording");
    let recording = PathBuf::from(recording);
    let mut server = RecordingServer::start(&format!("mem:{SMALL_DRIVE}"), &recording)?;
    kernel_said(0);
    kind.make(server.device(), &[])?;
    let text = place.to_string_lossy().into_owned();
    kind.mount(server.device(), &text)?;
    // First: number of steps, including those that fill the file. Second: 0 until the file is full,
    // then the number of rounds plus one.
    let steps = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let (counted, at) = (steps.clone(), place.to_owned());
    let work = std::thread::spawn(move || overwrite(&at, program, &counted));
    let (mut last, mut since) = (0, Instant::now());
    while !work.is_finished() && since.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(100));
        let now = steps.0.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    let end = if work.is_finished() {
        let (result, again) = match work.join() {
            Ok(Ok(again)) => (None, again),
            Ok(Err(error)) => (Some(format!("{error:#}")), 0),
            Err(_) => (Some("a panic".to_owned()), 0),
        };
        kind.unmount(&text)?;
        server.end()?;
        End::Ended { error: result, again }
    } else {
        let stacks = stacks(kind);
        server.mark("stuck")?;
        let (commands, owed) = owed(&recording)?;
        // This run's file system keeps waiting, now without a drive.
        drop(server);
        let rounds = steps.1.load(Ordering::Relaxed).checked_sub(1);
        End::Stuck { rounds, owed, commands, stacks }
    };
    std::fs::remove_file(&recording)?;
    Ok(end)
}

fn overwrite(place: &Path, program: Program, steps: &(AtomicU64, AtomicU64)) -> Result<u64> {
    let step = || {
        steps.0.fetch_add(1, Ordering::Relaxed);
    };
    let mut filler = Filler::new(place, program.fill, program.seed, &step)?;
    let mut again = 0;
    steps.1.store(1, Ordering::Relaxed);
    for round in 0..program.rounds {
        match filler.churn(round as usize) {
            Ok(()) => {}
            Err(error) if asks_for_another_attempt(&error) => again += 1,
            Err(error) => return Err(error.context(format!("round {round}"))),
        }
        step();
        steps.1.fetch_add(1, Ordering::Relaxed);
    }
    Ok(again)
}

/// The number of commands in a recording, and how many of them have no answer.
fn owed(recording: &Path) -> Result<(u64, usize)> {
    let file = File::open(recording).with_context(|| recording.display().to_string())?;
    let mut recording = Recording::open(BufReader::with_capacity(1 << 20, file))?;
    let (mut commands, mut owed) = (0, BTreeSet::new());
    while let Some(event) = recording.next_event()? {
        match event {
            Event::Submitted { number, .. } => {
                commands += 1;
                owed.insert(number);
            }
            Event::Answered { number, .. } => {
                owed.remove(&number);
            }
            Event::Mark(_) => {}
        }
    }
    Ok((commands, owed.len()))
}

/// The threads that are in code of the file system, with their kernel stacks.
fn stacks(kind: Kind) -> Vec<String> {
    let module = match kind {
        Kind::Furrow => "[fuse]".to_owned(),
        Kind::DmZoned => "[dm_zoned]".to_owned(),
        kind => format!("[{}]", kind.name()),
    };
    let entries = |path: PathBuf| {
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    let threads = entries("/proc".into()).flat_map(|process| entries(process.join("task")));
    threads
        .filter_map(|thread| {
            let stack = std::fs::read_to_string(thread.join("stack")).ok()?;
            let name = std::fs::read_to_string(thread.join("comm")).ok()?;
            let calls: Vec<&str> = stack
                .lines()
                .map(|line| line.trim_start_matches("[<0>] "))
                .map(|line| line.split('+').next().unwrap_or(line))
                .collect();
            stack.contains(&module).then(|| format!("{}: {}", name.trim(), calls.join(" < ")))
        })
        .collect()
}
