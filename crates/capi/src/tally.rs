//! Calls by operation, and how often another thread carried a call out.

use crate::store::furrow_calls;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Appending to files, cutting them off.
    Append,
    /// Making something durable.
    Sync,
    /// Reading files.
    Read,
    /// Opening, making and closing files.
    Open,
    /// Names: looking, renaming, removing, directories.
    Names,
    /// All else.
    Other,
}

impl Counted {
    /// All of them with their names, in the order of their discriminants.
    pub(crate) const NAMES: [(Counted, &'static str); 6] = [
        (Counted::Append, "append"),
        (Counted::Sync, "sync"),
        (Counted::Read, "read"),
        (Counted::Open, "open"),
        (Counted::Names, "names"),
        (Counted::Other, "other"),
    ];
}

/// Calls by what they are for.
#[derive(Default)]
pub(crate) struct Tally {
    calls: [AtomicU64; Counted::NAMES.len()],
    hops: [AtomicU64; Counted::NAMES.len()],
    handed: AtomicU64,
}

impl Tally {
    /// A call was answered; `hop`: another thread carried it out.
    pub(crate) fn count(&self, op: Counted, hop: bool) {
        self.calls[op as usize].fetch_add(1, Ordering::Relaxed);
        self.hops[op as usize].fetch_add(u64::from(hop), Ordering::Relaxed);
    }

    /// A call was left to others because its thread has a low priority.
    pub(crate) fn count_handed(&self) {
        self.handed.fetch_add(1, Ordering::Relaxed);
    }

    /// Those for `op`.
    pub(crate) fn of(&self, op: Counted) -> furrow_calls {
        furrow_calls {
            calls: self.calls[op as usize].load(Ordering::Relaxed),
            hops: self.hops[op as usize].load(Ordering::Relaxed),
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> furrow_calls {
        let mut all = furrow_calls { calls: 0, hops: 0 };
        for (op, _) in Counted::NAMES {
            let one = self.of(op);
            all.calls += one.calls;
            all.hops += one.hops;
        }
        all
    }

    /// Those that were left to others.
    pub(crate) fn handed(&self) -> u64 {
        self.handed.load(Ordering::Relaxed)
    }
}
