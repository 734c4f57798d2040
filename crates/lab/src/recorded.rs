//! Recorded runs of an engine on a file store, ready to be replayed: which calls each call
//! waits for.
//!
//! `furrow_kv::trace` defines runs. In a replay, each thread makes its calls one after the other,
//! with the recorded gaps between them. A call also waits for earlier calls of other threads on the
//! same *resource* (a file or a name). This module works out these waits once, before the replay.
//!
//! - A call that changes a resource waits for all calls before it on that resource, in the order
//!   in which the engine took them. A call that only uses the resource (a read, a sync) waits for
//!   the last change before it.
//! - So one number for each resource is enough: how many calls on it must have ended
//!   ([`Need::after`]). Since a change waits for all earlier calls, the calls that have ended by
//!   then are exactly the first ones.
//! - All other waits of one thread for another are part of the recorded gaps: a writer that waits
//!   for the leader of its group, a flush that waits for a full memtable, a stall.
//!
//! Not here: the execution of calls (`target/recorded.rs`).

use crate::trace::Name;
use anyhow::{Context as _, Result, ensure};
use furrow_kv::trace::{Op, Record, Recording};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// File name extension of recorded runs.
pub const ENDING: &str = "run";

/// Maximum number of replays of a run at the same time.
const COPIES_MAX: u32 = 64;

/// A recorded run to be replayed, as in the data files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replayed {
    /// The run: a file's name without its ending.
    pub run: String,
    /// Identity of the file. Data files do not set it: it comes from the directory of recordings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Number of simultaneous replays of the run, each in a directory of its own.
    #[serde(default = "one")]
    pub copies: u32,
    /// Length of gaps, in percent of their recorded length.
    #[serde(default = "whole")]
    pub gaps: u32,
}

fn one() -> u32 {
    1
}

fn whole() -> u32 {
    100
}

impl Replayed {
    /// Checks the fields.
    ///
    /// # Errors
    /// If a field is invalid: the reason, in one clause.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=COPIES_MAX).contains(&self.copies) {
            return Err(format!("`copies` of {}: 1 to {COPIES_MAX}", self.copies));
        }
        if self.gaps > 10_000 {
            return Err(format!("`gaps` of {} %: at most 10000", self.gaps));
        }
        Ok(())
    }
}

/// What a call waits for: this many calls on a resource must have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The resource's number.
    pub resource: u32,
    /// Number of calls on the resource that must have ended.
    pub after: u32,
}

/// A file or directory that exists before the first call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// A directory.
    Directory(String),
    /// A file: its number, name and size.
    File(u64, String, u64),
}

/// A recorded run, ready to be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The run's identity.
    pub name: Name,
    /// Files and directories that exist before the first call.
    pub before: Vec<Before>,
    /// The calls, in the order in which the engine took them.
    pub calls: Vec<Record>,
    /// The calls of each thread, in order.
    pub threads: Vec<Vec<u32>>,
    /// Number of resources that calls touch.
    pub resources: usize,
    /// Call `i` needs `all_needs[ends[i - 1]..ends[i]]`; the needs of call 0 begin at 0.
    ends: Vec<u32>,
    all_needs: Vec<Need>,
}

/// A thing that a call may touch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Resource {
    File(u64),
    Name(String),
    /// A read that was begun and is awaited later.
    Read(u64),
}

/// The calls on a resource so far.
#[derive(Default)]
struct Use {
    number: u32,
    /// Number of calls on the resource so far.
    calls: u32,
    /// Number of these calls up to the last one that changed the resource.
    changed: u32,
}

#[derive(Default)]
struct Uses {
    all: BTreeMap<Resource, Use>,
    /// Files by name, at this moment of the run.
    files: BTreeMap<String, u64>,
}

impl Uses {
    fn need(&mut self, needs: &mut Vec<Need>, resource: Resource, changes: bool) {
        let next = self.all.len() as u32;
        let fresh = || Use { number: next, ..Use::default() };
        let used = self.all.entry(resource).or_insert_with(fresh);
        // A call counts once for each resource: otherwise a rename of a file to its own name would
        // wait for itself.
        if needs.iter().any(|need| need.resource == used.number) {
            return;
        }
        let after = if changes { used.calls } else { used.changed };
        needs.push(Need { resource: used.number, after });
        used.calls += 1;
        if changes {
            used.changed = used.calls;
        }
    }

    /// Works out the needs of a successful call with operation `op`. Failed calls touched nothing.
    fn needs(&mut self, op: &Op) -> Vec<Need> {
        let mut needs = Vec::new();
        let mut file = |uses: &mut Uses, number: u64, changes: bool| {
            uses.need(&mut needs, Resource::File(number), changes);
        };
        match op {
            Op::Create { file: number, path, .. } => {
                file(self, *number, true);
                self.name(&mut needs, path, true);
                self.files.insert(path.clone(), *number);
            }
            Op::Open { file: number, path } => {
                file(self, *number, false);
                self.name(&mut needs, path, false);
            }
            Op::Close { file: number }
            | Op::Append { file: number, .. }
            | Op::AppendAt { file: number, .. }
            | Op::Truncate { file: number, .. }
            | Op::SetLifetime { file: number, .. } => file(self, *number, true),
            Op::Sync { file: number }
            | Op::Flush { file: number }
            | Op::RangeSync { file: number, .. }
            | Op::Read { file: number, .. } => file(self, *number, false),
            Op::ReadBegin { read, file: number, .. } => {
                file(self, *number, false);
                self.need(&mut needs, Resource::Read(*read), true);
            }
            Op::ReadWait { read, .. } => self.need(&mut needs, Resource::Read(*read), true),
            Op::Rename { from, to } => {
                self.name(&mut needs, from, true);
                self.name(&mut needs, to, true);
                if let Some(lost) = self.files.remove(to) {
                    self.need(&mut needs, Resource::File(lost), true);
                }
                if let Some(number) = self.files.remove(from) {
                    self.files.insert(to.clone(), number);
                }
            }
            Op::Link { from, to } => {
                self.name(&mut needs, from, false);
                self.name(&mut needs, to, true);
                if let Some(number) = self.files.get(from).copied() {
                    self.files.insert(to.clone(), number);
                }
            }
            Op::Remove { path } => {
                self.name(&mut needs, path, true);
                if let Some(lost) = self.files.remove(path) {
                    self.need(&mut needs, Resource::File(lost), true);
                }
            }
            Op::MakeDirectory { path } | Op::RemoveDirectory { path } => {
                self.name(&mut needs, path, true);
            }
            _ => {}
        }
        needs
    }

    /// Adds needs for a name and its directory.
    fn name(&mut self, needs: &mut Vec<Need>, path: &str, changes: bool) {
        self.need(needs, Resource::Name(path.to_owned()), changes);
        if let Some((parent, _)) = path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
            self.need(needs, Resource::Name(parent.to_owned()), false);
        }
    }
}

impl Recorded {
    /// Reads a recorded run from a file.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged or is incomplete.
    pub fn read(path: &Path) -> Result<Recorded> {
        let shown = path.display();
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {shown}"))?;
        let file = path.file_name().map(|name| name.to_string_lossy().into());
        let file = file.unwrap_or_else(|| shown.to_string());
        Recorded::parse(file, &bytes).with_context(|| format!("recorded run {shown}"))
    }

    /// Reads a recorded run from its bytes.
    ///
    /// # Errors
    /// The errors of [`Recorded::read`].
    pub fn parse(file: String, bytes: &[u8]) -> Result<Recorded> {
        let recording = Recording::decode(bytes)?;
        ensure!(recording.whole, "it stops short of its end: record it again");
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32;
        Recorded::new(file, crc, recording)
    }

    fn new(file: String, crc: u32, recording: Recording) -> Result<Recorded> {
        let (mut before, mut uses) = (Vec::new(), Uses::default());
        let mut calls = Vec::with_capacity(recording.records.len());
        let mut idle: BTreeMap<u32, u64> = BTreeMap::new();
        for record in recording.records {
            match record.op {
                Op::Found { file, size, path } => {
                    uses.files.insert(path.clone(), file);
                    before.push(Before::File(file, path, size));
                }
                Op::FoundDirectory { path } => before.push(Before::Directory(path)),
                // These calls do nothing. They do nothing on a kernel's file systems by default
                // either, since they make no system call.
                Op::Flush { .. } | Op::RangeSync { .. } => {
                    let idle = idle.entry(record.thread).or_default();
                    *idle = idle.saturating_add(record.gap);
                }
                _ => {
                    let idle = idle.remove(&record.thread).unwrap_or(0);
                    calls.push(Record { gap: record.gap.saturating_add(idle), ..record });
                }
            }
        }
        ensure!(!calls.is_empty(), "no calls are in it");
        let (mut ends, mut all_needs) = (Vec::with_capacity(calls.len()), Vec::new());
        let mut threads: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (number, call) in calls.iter().enumerate() {
            if call.answer == 0 {
                all_needs.extend(uses.needs(&call.op));
            }
            ends.push(all_needs.len() as u32);
            let own = threads.entry(call.thread).or_default();
            if let Some(last) = own.last() {
                let last = &calls[*last as usize];
                ensure!(
                    last.end() <= call.begin,
                    "thread {}: call {} began before call {} of the same thread had ended",
                    call.thread,
                    call.order,
                    last.order
                );
            }
            own.push(number as u32);
        }
        Ok(Recorded {
            name: Name { file, crc, requests: calls.len() as u64 },
            before,
            threads: threads.into_values().collect(),
            resources: uses.all.len(),
            ends,
            all_needs,
            calls,
        })
    }

    /// The needs of call `number`.
    pub fn needs(&self, number: usize) -> &[Need] {
        let from = number.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.all_needs[from..self.ends[number] as usize]
    }
}

/// Recorded runs by name.
pub type Recordings = BTreeMap<String, Arc<Recorded>>;

/// All recorded runs of a directory: files that end in `.run`.
///
/// # Errors
/// If the directory cannot be read or has no recorded run, or one is damaged.
pub fn directory(path: &Path) -> Result<Recordings> {
    let shown = path.display();
    let mut found = Recordings::new();
    let entries = std::fs::read_dir(path).with_context(|| format!("cannot read {shown}"))?;
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {shown}"))?.path();
        let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        if path.extension().is_some_and(|ending| ending == ENDING) {
            found.insert(name.to_owned(), Arc::new(Recorded::read(&path)?));
        }
    }
    ensure!(!found.is_empty(), "{shown}: no recorded run in it, expected names that end in .run");
    Ok(found)
}

#[cfg(test)]
pub(crate) mod tests;
