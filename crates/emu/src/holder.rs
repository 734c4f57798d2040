//! The process that has an image locked, according to the kernel.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a medium is a file")]

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A process that has an image open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The id of the process.
    pub pid: u32,
    /// The command line of the process; empty if it cannot be read.
    pub command: Vec<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == std::process::id() {
            return write!(f, "in use by this process");
        }
        match self.command.first().filter(|program| !program.is_empty()) {
            Some(program) => write!(f, "in use by process {} ({program})", self.pid),
            None => write!(f, "in use by process {}", self.pid),
        }
    }
}

/// The process that has the file at `path` locked (proc(5), `/proc/locks`). `None` if the process
/// is not visible, as in another container.
pub fn holder(path: &Path) -> Option<Holder> {
    let ino = std::fs::metadata(path).ok()?.ino();
    // The kernel hands the list out page by page, and skips a lock if an earlier one is released
    // between two pages. Four readings make a miss unlikely.
    let mut lists = (0..4).filter_map(|_| std::fs::read_to_string("/proc/locks").ok());
    let pid = lists.find_map(|locks| owner(&locks, ino))?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words =
        line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    Some(Holder { pid, command: words.collect() })
}

/// The message for the file at `path`, which is locked.
pub(crate) fn in_use(path: &Path) -> String {
    let who = holder(path).map(|holder| holder.to_string());
    who.unwrap_or_else(|| "in use by another process".to_owned())
}

/// The process that holds a lock on inode `ino`: lines of `/proc/locks` are `N: FLOCK ADVISORY
/// WRITE PID MAJOR:MINOR:INODE FIRST LAST`, lines of a waiting process begin with `N: -> FLOCK
/// …`. The device numbers are not compared, because for some file systems they differ from those
/// of stat(2).
fn owner(locks: &str, ino: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if *fields.get(1)? != "FLOCK" {
            return None;
        }
        let inode = fields.get(5)?.rsplit(':').next()?.parse::<u64>().ok()?;
        let pid = fields.get(4)?.parse::<u32>().ok()?;
        (inode == ino && pid > 0).then_some(pid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_lock_is_read_as_the_kernel_writes_it() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 4711 00:2f:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  READ 12 00:2f:78 0 EOF\nrubbish\n";
        assert_eq!(owner(locks, 77), Some(4711));
        assert_eq!(owner(locks, 78), None, "it waits");
        assert_eq!(owner(locks, 79), None);
        assert_eq!(owner("3: FLOCK ADVISORY", 1), None);
    }

    #[test]
    fn a_holder_is_named_by_number_and_program() {
        let named = |pid, command: &[&str]| {
            let command = command.iter().map(|word| (*word).to_owned()).collect();
            Holder { pid, command }.to_string()
        };
        assert_eq!(named(0, &["db_bench", "--x"]), "in use by process 0 (db_bench)");
        assert_eq!(named(0, &[""]), "in use by process 0");
        assert_eq!(named(std::process::id(), &["x"]), "in use by this process");
    }
}
