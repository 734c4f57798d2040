//! The promises that a file system must keep across a power cut, and the violations found.
//!
//! | promise | who makes it |
//! |---|---|
//! | data: after fsync or fdatasync of a file, each 4 KiB block of it and its size are as they were then, or as a later call began to make them | fsync(2), fdatasync(2) |
//! | names: after fsync of a directory, each name in it is the file that it was then, or what a later call began to make it | fsync(2): "an explicit fsync() on a file descriptor for the directory" |
//! | file: a file with a durable name that is only renamed afterwards is not lost | rename(2) is one transaction in each of these file systems |
//! | foreign: a file contains nothing that was never written to it | no user sees what another has deleted |
//! | readable: each file that has a name can be read | a power cut does no damage |
//! | mount: the file system can be mounted without a repair | each has a log for that |
//! | use: it takes a new file, an fsync and an unmount after that | |
//!
//! Not promised, and not accused: the name of a new file after an fsync of the file alone; the
//! order in which calls without fsync survive; that a part of a write survives with the rest; zeros
//! where a file was extended without an fsync; both names of a file that is renamed (rename(2)
//! allows a moment with both); names or sizes of a call that was under way.

use crate::workload::{BLOCK, FileHistory, History, Name};
use furrow_rt::buf::is_zero;
use std::collections::BTreeMap;

/// The progress of the workload at the power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of calls that had begun.
    pub begun: usize,
    /// Number of calls that had ended.
    pub ended: usize,
}

/// The names and contents found after a power cut.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Content of each existing name, or why it cannot be read.
    pub names: BTreeMap<Name, Result<Vec<u8>, String>>,
    /// Names that no call ever made.
    pub strange: Vec<String>,
    /// Directories that cannot be listed.
    pub unreadable: Vec<String>,
}

/// A promise; the [module](self) lists who makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// An fsynced file keeps its blocks and its size.
    Data,
    /// An fsynced directory keeps its names.
    Names,
    /// No rename loses a file.
    File,
    /// A file contains nothing that was never written to it.
    Foreign,
    /// Everything that exists can be read.
    Readable,
    /// The file system can be mounted.
    Mount,
    /// The file system can be used.
    Use,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accusation {
    /// The promise that was broken.
    pub promise: Promise,
    /// A description of what is wrong.
    pub what: String,
}

impl std::fmt::Display for Accusation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {}", self.promise, self.what)
    }
}

fn accuse(promise: Promise, what: String) -> Accusation {
    Accusation { promise, what }
}

/// The last of `calls` that had ended.
fn last_of(calls: &[usize], progress: Progress) -> Option<usize> {
    calls.iter().copied().rfind(|call| *call < progress.ended)
}

/// The values that something may have: its value at call `from`, and every later value given to it
/// by a call that had begun. The first result is true if it had no value at call `from`. `was`
/// holds a value for each call that changed it.
fn since<T>(was: &[(usize, T)], from: Option<usize>, progress: Progress) -> (bool, Vec<&T>) {
    let begun = was.iter().filter(|(call, _)| *call < progress.begun);
    let before = was.iter().rev().find(|(call, _)| from.is_some_and(|from| *call <= from));
    let later = begun.filter(|(call, _)| from.is_none_or(|from| *call > from));
    (before.is_none(), before.into_iter().chain(later).map(|(_, what)| what).collect())
}

/// Compares the names and contents found with the promises, and returns the broken ones.
pub fn judge(history: &History, progress: Progress, found: &Found) -> Vec<Accusation> {
    let mut accusations = Vec::new();
    for what in &found.unreadable {
        accusations.push(accuse(Promise::Readable, what.clone()));
    }
    for name in &found.strange {
        accusations.push(accuse(Promise::Foreign, format!("{name}: no call made this name")));
    }
    for (name, was) in &history.names {
        let synced = last_of(&history.syncs[usize::from(name.directory)], progress);
        let (fresh, mut allowed) = since(was, synced, progress);
        if fresh {
            // Before the first call that concerns the name, the name did not exist.
            allowed.push(&None);
        }
        match found.names.get(name) {
            Some(Err(why)) => accusations.push(accuse(Promise::Readable, format!("{name}: {why}"))),
            None if allowed.contains(&&None) => {}
            None => {
                let files: Vec<usize> = allowed.iter().filter_map(|file| **file).collect();
                let what = format!(
                    "{name} is missing: file {files:?}, its directory's fsync is call {synced:?}"
                );
                accusations.push(accuse(Promise::Names, what));
            }
            Some(Ok(bytes)) => {
                let files = allowed.iter().filter_map(|file| **file);
                let complaints: Vec<Accusation> = files
                    .map(|file| (file, content(&history.files[file], progress, bytes)))
                    .take_while(|(_, complaint)| complaint.is_some())
                    .filter_map(|(file, complaint)| {
                        let Accusation { promise, what } = complaint?;
                        Some(accuse(promise, format!("{name}, file {file}: {what}")))
                    })
                    .collect();
                let candidates = allowed.iter().filter(|file| file.is_some()).count();
                if candidates == 0 {
                    let what = format!(
                        "{name} is there, {} bytes: it was removed, and its directory's fsync is \
                         call {synced:?}",
                        bytes.len()
                    );
                    accusations.push(accuse(Promise::Names, what));
                } else if complaints.len() == candidates {
                    accusations.extend(complaints.into_iter().next_back());
                }
            }
        }
    }
    accusations.extend(lost(history, progress, found));
    accusations
}

/// Finds lost files: each had a durable name and never lost its last name, but is found at none of
/// the names that it may have now.
fn lost(history: &History, progress: Progress, found: &Found) -> Vec<Accusation> {
    let mut lost = Vec::new();
    for (number, file) in history.files.iter().enumerate() {
        let bound = |call: usize| {
            history.names.iter().any(|(_, was)| {
                let now = was.iter().rev().find(|(at, _)| *at <= call);
                now.is_some_and(|(_, file)| *file == Some(number))
            })
        };
        let durable = history.names.iter().flat_map(|(name, was)| {
            let syncs = &history.syncs[usize::from(name.directory)];
            syncs.iter().copied().filter(|synced| {
                let then = was.iter().rev().find(|(call, _)| call <= synced);
                *synced < progress.ended && then.is_some_and(|(_, file)| *file == Some(number))
            })
        });
        let Some(synced) = durable.min() else { continue };
        if !(synced..progress.begun).all(bound) {
            continue;
        }
        let names = history.names.iter().filter(|(name, was)| {
            let synced = last_of(&history.syncs[usize::from(name.directory)], progress);
            since(was, synced, progress).1.contains(&&Some(number))
        });
        let names: Vec<Name> = names.map(|(name, _)| *name).collect();
        let there = |name: &Name| match found.names.get(name) {
            Some(Ok(bytes)) => content(file, progress, bytes).is_none(),
            // This name has already been reported.
            Some(Err(_)) => true,
            None => false,
        };
        if !names.iter().any(there) {
            let names: Vec<String> = names.iter().map(Name::to_string).collect();
            let what = format!("file {number} is at none of its names: {}", names.join(", "));
            lost.push(accuse(Promise::File, what));
        }
    }
    lost
}

/// Checks `bytes` as the content of a file; `None` if they are allowed.
fn content(file: &FileHistory, progress: Progress, bytes: &[u8]) -> Option<Accusation> {
    let synced = last_of(&file.syncs, progress);
    let broken = |what: String| match synced {
        Some(call) => accuse(Promise::Data, format!("{what}, its fsync is call {call}")),
        None => accuse(Promise::Foreign, what),
    };
    let (fresh, sizes) = since(&file.sizes, synced, progress);
    let least = if fresh { 0 } else { sizes.iter().map(|size| **size).min().unwrap_or(0) };
    let most = sizes.iter().map(|size| **size).max().unwrap_or(0);
    let size = bytes.len() as u64;
    // A call that changes the size may have been done in steps, so every size in between
    // is allowed.
    if !(least..=most).contains(&size) {
        return Some(broken(format!("size {size}, expected {least} to {most}")));
    }
    let durable = if fresh { 0 } else { sizes.first().map_or(0, |size| **size) };
    for (index, block) in bytes.chunks(BLOCK as usize).enumerate() {
        let was = file.blocks.get(index).map_or(&[][..], Vec::as_slice);
        let (fresh, versions) = since(was, synced, progress);
        let zeros = fresh || index as u64 * BLOCK >= durable;
        if (zeros && is_zero(block))
            || versions.iter().any(|version| version[..block.len()] == *block)
        {
            continue;
        }
        let other = was.iter().find(|(_, version)| version[..block.len()] == *block);
        let is = match other {
            Some((call, _)) => format!("as call {call} made it"),
            None if is_zero(block) => "zeros".to_owned(),
            None => format!("unknown, it begins {:02x?}", &block[..block.len().min(8)]),
        };
        let calls: Vec<usize> =
            was.iter().map(|(call, _)| *call).filter(|call| *call < progress.begun).collect();
        return Some(broken(format!("block {index} is {is}; it was written by calls {calls:?}")));
    }
    None
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
