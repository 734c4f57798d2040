//! Minimal cases of defects that the court found: a few calls, and every cut of the last two.
//!
//! Each case runs on any of the file systems: the same calls on another file system show whether
//! the drive or the oracle is to blame.

use crate::cuts::{Cut, Events};
use crate::kind::{Kind, kernel_said};
use crate::oracle::{Accusation, Promise};
use crate::show::Lines;
use crate::trial::{DRIVE, Setup, record_calls, restored, try_one};
use crate::workload::{BLOCK, History, Name, Op};
use anyhow::Result;
use furrow_emu::Snapshot;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

/// A drive without conventional zones.
const SEQUENTIAL_DRIVE: &str = "zones=64,zone-size=4MiB,max-open=16,max-active=32,\
                                volatile-cache=on";

/// Mount options to try on a btrfs that cannot be mounted without options.
const RESCUES: [&str; 6] = [
    "ro",
    "degraded",
    "ro,degraded",
    "ro,rescue=usebackuproot",
    "ro,rescue=all",
    "ro,degraded,rescue=all",
];

/// Number of guilty cuts whose kernel messages are shown.
const TOLD: usize = 3;

/// A minimal case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Minimal {
    /// A cut between the two copies of btrfs's metadata.
    BtrfsDup,
    /// A cut after which F2FS has the node of an fsync and not its data.
    F2fsNode,
    /// The first fsync of F2FS after a checkpoint, whose flush does not wait for the node.
    F2fsFirstFsync,
}

impl Minimal {
    /// Name of the case.
    pub fn name(self) -> &'static str {
        match self {
            Minimal::BtrfsDup => "btrfs-dup",
            Minimal::F2fsNode => "f2fs-node",
            Minimal::F2fsFirstFsync => "f2fs-first-fsync",
        }
    }

    /// The file system that has the defect.
    pub fn kind(self) -> Kind {
        match self {
            Minimal::BtrfsDup => Kind::Btrfs,
            Minimal::F2fsNode | Minimal::F2fsFirstFsync => Kind::F2fs,
        }
    }

    /// The case that a recording's mark names.
    pub fn parse(mark: &str) -> Option<Minimal> {
        let name = mark.strip_prefix("case ")?.split(' ').next()?;
        <Minimal as clap::ValueEnum>::from_str(name, false).ok()
    }

    fn mark(self, kind: Kind) -> String {
        format!("case {} {}", self.name(), kind.name())
    }

    /// The drive of the case. XFS and F2FS need conventional zones for their metadata.
    fn drive(self, kind: Kind) -> &'static str {
        match (self, kind) {
            (Minimal::BtrfsDup, Kind::Btrfs | Kind::Furrow) => SEQUENTIAL_DRIVE,
            _ => DRIVE,
        }
    }

    /// The calls: they make a file of one block, make its name durable, and overwrite the file.
    pub fn calls(self) -> Vec<Op> {
        let name = Name { directory: 0, number: 0 };
        let write = Op::Write { name, offset: 0, length: BLOCK };
        let mut calls = vec![Op::Create(name), write];
        match self {
            Minimal::BtrfsDup => calls.extend([Op::Sync, write, Op::Sync]),
            // The fsync of the directory writes a checkpoint. The first fsync after it is subject
            // to the defect of `F2fsFirstFsync`, so this case adds more fsyncs.
            Minimal::F2fsNode => {
                calls.extend([Op::FsyncDirectory(0), write, Op::Fsync(name)]);
                calls.extend([write, Op::Fsync(name), write, Op::Fsync(name)]);
            }
            Minimal::F2fsFirstFsync => {
                calls.extend([Op::FsyncDirectory(0), write, Op::Fsync(name)]);
            }
        }
        calls
    }

    /// The first call whose cuts are tried: the last write. The call after it makes the
    /// write durable.
    fn from(self) -> usize {
        self.calls().len() - 2
    }
}

/// The results of a minimal case.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Number of cuts tried: all that leave different drives.
    pub cuts: usize,
    /// Number of cuts after which a promise was broken.
    pub guilty: usize,
    /// Number of cuts after which the file system could not be mounted.
    pub unmountable: usize,
}

/// Runs a case: records its calls on a new file system, tries each cut, and passes the recording
/// and the results to `tell`, line by line.
///
/// # Errors
/// If a call fails, or a drive cannot be served.
pub fn run(
    case: Minimal,
    kind: Kind,
    make: &[&str],
    mount: &str,
    recording: &Path,
    tell: &mut dyn FnMut(&str),
) -> Result<Seen> {
    let calls = case.calls();
    let setup = Setup { drive: case.drive(kind), make, mount };
    record_calls(kind, &setup, &case.mark(kind), &calls, None, recording)?;
    let events = Events::read(BufReader::new(File::open(recording)?))?;
    let mut history = History::default();
    calls.iter().for_each(|op| history.apply(*op));
    let histories = events.promised(&history);
    let (hasty, refused) = (events.hasty(), events.refused());
    for (call, op) in calls.iter().enumerate() {
        let hasty = if hasty.contains(&call) { ", its flush was hasty" } else { "" };
        let refused =
            if refused.contains(&call) { ", refused, so it promises nothing" } else { "" };
        tell(&format!("call {call}: {op:?}{hasty}{refused}"));
    }
    let cuts = events.each_cut(case.from())?;
    let mut lines = Lines::new(&events, &calls, false);
    let mut shown = cuts.first().map_or(0, |cut| cut.at - 1);
    let mut seen = Seen { cuts: cuts.len(), ..Seen::default() };
    for after in events.after(&cuts, None) {
        let (cut, left, _) = after?;
        (shown..cut.at).filter_map(|at| lines.line(at)).for_each(|line| tell(&line));
        shown = shown.max(cut.at);
        let progress = events.progress(cut.at);
        let [all, rest] = try_one(kind, &left, mount, histories.clone(), progress)?;
        let kernel = kernel_said(8);
        let accusations = if case == Minimal::F2fsFirstFsync { &all } else { &rest };
        tell(&format!("         {}", verdict(&cut, accusations, &all)));
        let Some(first) = accusations.first() else { continue };
        seen.guilty += 1;
        if seen.guilty <= TOLD {
            kernel.iter().for_each(|line| tell(&format!("           kernel: {line}")));
        }
        if first.promise == Promise::Mount {
            seen.unmountable += 1;
            if seen.unmountable == 1 && kind == Kind::Btrfs {
                rescue(kind, &left, &histories, progress, tell)?;
            }
        }
    }
    (shown..events.len()).filter_map(|at| lines.line(at)).take(1).for_each(|line| tell(&line));
    Ok(seen)
}

fn verdict(cut: &Cut, accusations: &[Accusation], all: &[Accusation]) -> String {
    let lost = match cut.only_in {
        None => "everything answered is kept".to_owned(),
        Some(zone) => format!("only what is unflushed in zone {} is lost", zone.0),
    };
    let found: Vec<String> = accusations.iter().map(Accusation::to_string).collect();
    match (found.is_empty(), all.is_empty()) {
        (true, true) => format!("cut, {lost}: every promise is kept"),
        (true, false) => format!("cut, {lost}: kept, except what a hasty flush explains"),
        (false, _) => format!("cut, {lost}: BROKEN: {}", found.join("; ")),
    }
}

/// Tries to read a btrfs that cannot be mounted.
fn rescue(
    kind: Kind,
    left: &Snapshot,
    histories: &Arc<[History; 2]>,
    progress: crate::oracle::Progress,
    tell: &mut dyn FnMut(&str),
) -> Result<()> {
    let result = |accusations: &[Accusation]| match accusations {
        [] => "every promise is kept".to_owned(),
        [first, ..] => first.to_string(),
    };
    for options in RESCUES {
        let [all, _] = try_one(kind, left, options, histories.clone(), progress)?;
        kernel_said(0);
        tell(&format!("           mount -o {options}: {}", result(&all)));
    }
    let accusations = restored(left, histories.clone(), progress)?;
    tell(&format!("           btrfs restore: {}", result(&accusations)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_ends_with_a_write_and_its_promise() {
        for case in [Minimal::BtrfsDup, Minimal::F2fsNode, Minimal::F2fsFirstFsync] {
            let calls = case.calls();
            assert!(matches!(calls[case.from()], Op::Write { .. }), "{case:?}");
            assert!(calls.last().unwrap().promises(), "{case:?}");
            assert_eq!(Minimal::parse(&case.mark(Kind::Xfs)), Some(case));
            let mut history = History::default();
            calls.iter().for_each(|op| history.apply(*op));
            // Dropping the first promise after a checkpoint must leave another that a cut
            // can break.
            let first = calls.iter().position(|op| matches!(op, Op::Fsync(_)));
            let others = history.without_promises(&first.into_iter().collect());
            let before = others.files[0].syncs.iter().filter(|call| **call < case.from()).count();
            assert_eq!(before > 0, case != Minimal::F2fsFirstFsync, "{case:?}");
        }
        assert_eq!(Minimal::parse("workload xfs 1 300"), None);
    }
}
