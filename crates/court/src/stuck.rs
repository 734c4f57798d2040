//! A file that fills most of a file system and is overwritten: does the program get to its end?
//!
//! A run that does not go on is left alone, with its mount and its device, so that the kernel's
//! stacks can be looked at; the next run has a device of its own. The process should end soon after
//! the last run, and the machine be turned off.

use crate::kind::{Kind, kernel_said};
use crate::trial::{Filler, RecordingServer, SMALL_DRIVE, asks_for_another_attempt};
use anyhow::{Context as _, Result};
use furrow_ublk::recording::{Event, Recording};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long one step may take: a MiB of the filling, or a round with the fdatasync behind it.
const PATIENCE: Duration = Duration::from_secs(90);

/// What a run is.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Percent of the file system that the file takes.
    pub fill: u64,
    /// Rounds of 16 writes of 16 KiB; an fdatasync comes after each eighth round.
    pub rounds: u64,
    /// Seed of the places.
    pub seed: u64,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub enum End {
    /// All rounds were made, or a call failed and the text says how.
    Ended {
        /// Why the run ended early.
        error: Option<String>,
        /// Calls that ended with EAGAIN.
        again: u64,
    },
    /// The run did not go on.
    Stuck {
        /// Rounds made; `None`: the run was stuck while the file was filled.
        rounds: Option<u64>,
        /// Commands that the drive had not answered.
        owed: usize,
        /// Commands that the drive had been given.
        commands: u64,
        /// Threads of the file system and where they wait.
        stacks: Vec<String>,
    },
}

/// Runs `program` on a new file system at `place`, which is made.
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
    // Steps made, those of the filling included; and rounds made, plus one once the file is full.
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
        // The file system of this run keeps waiting, without a drive.
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

/// Commands in a recording, and how many of them have no answer.
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

/// Where the threads are that are in code of the file system.
fn stacks(kind: Kind) -> Vec<String> {
    let module = match kind {
        Kind::Furrow => "[fuse]".to_owned(),
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
