//! The writes to the drive that are under way.
//!
//! Invariant, checked by the audit: the writes listed are those that have begun and not ended.

use crate::extent::FileId;
use furrow_log::audit::{equal, holds};
use furrow_rt::{Notified, Notify};
use furrow_zone::Result;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// Writes under way, each with its file.
#[derive(Default)]
pub(crate) struct Flights {
    under_way: RefCell<BTreeMap<u64, FileId>>,
    begun: Cell<u64>,
    ended: Cell<u64>,
    answered: Notify,
}

impl Flights {
    /// Counts the beginning of a write to a file. Returns the number of the write.
    pub(crate) fn begin(&self, file: FileId) -> u64 {
        let number = self.begun.get();
        self.begun.set(number + 1);
        self.under_way.borrow_mut().insert(number, file);
        number
    }

    /// Counts the end of a write. If the write failed, its blocks were already written elsewhere,
    /// or the store has failed.
    pub(crate) fn end(&self, number: u64) {
        self.under_way.borrow_mut().remove(&number);
        self.ended.set(self.ended.get() + 1);
        self.answered.notify_all();
    }

    /// The number of the next write.
    pub(crate) fn next(&self) -> u64 {
        self.begun.get()
    }

    /// Whether a write with a number below `mark` is under way, to one of `files` or, if `files` is
    /// `None`, to any file.
    pub(crate) fn has_before(&self, mark: u64, files: Option<&BTreeSet<FileId>>) -> bool {
        let counts = |id: &FileId| files.is_none_or(|files| files.contains(id));
        self.under_way.borrow().range(..mark).any(|(_, id)| counts(id))
    }

    /// Waits for the end of a write, for the end of the group commits, or for the store to fail.
    pub(crate) fn answered(&self) -> Notified {
        self.answered.wait()
    }

    /// Wakes all tasks that wait in [`Flights::answered`].
    pub(crate) fn wake(&self) {
        self.answered.notify_all();
    }

    /// Compares the writes under way with the numbers of writes begun and ended. Returns the files
    /// of these writes, sorted.
    pub(crate) fn audit(&self) -> Result<Vec<FileId>> {
        let under_way = self.under_way.borrow();
        let (begun, ended) = (self.begun.get(), self.ended.get());
        equal("writes under way", begun.checked_sub(ended), Some(under_way.len() as u64))?;
        let beyond = under_way.last_key_value().is_some_and(|(number, _)| *number >= begun);
        holds("writes under way", !beyond, || format!("expected numbers below {begun}"))?;
        let mut files = under_way.values().copied().collect::<Vec<_>>();
        files.sort_unstable();
        Ok(files)
    }

    /// Lists the last write again though it has ended, for a test of the audit.
    #[cfg(test)]
    pub(crate) fn corrupt_last(&self, file: FileId) {
        assert!(self.under_way.borrow().is_empty());
        self.under_way.borrow_mut().insert(self.begun.get() - 1, file);
    }
}
