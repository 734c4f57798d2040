//! Calls by operation, and how often another thread carried a call out.

use std::sync::atomic::{AtomicU64, Ordering};

/// The purpose of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Appending to files, or truncating them.
    Append,
    /// Making files or names durable.
    Sync,
    /// Reading files.
    Read,
    /// Opening, making and closing files.
    Open,
    /// Names: looking them up, renaming, removing, directories.
    Names,
    /// All other purposes.
    Other,
}

impl Counted {
    /// All purposes with their names, in the order of their discriminants.
    pub(crate) const NAMES: [(Counted, &'static str); 6] = [
        (Counted::Append, "append"),
        (Counted::Sync, "sync"),
        (Counted::Read, "read"),
        (Counted::Open, "open"),
        (Counted::Names, "names"),
        (Counted::Other, "other"),
    ];
}

/// Calls that used the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    /// Number of calls.
    pub(crate) calls: u64,
    /// Number of calls that another thread carried out.
    pub(crate) hops: u64,
}

/// Numbers of calls by their purpose.
#[derive(Default)]
pub(crate) struct Tally {
    calls: [AtomicU64; Counted::NAMES.len()],
    hops: [AtomicU64; Counted::NAMES.len()],
    handed: AtomicU64,
}

impl Tally {
    /// Counts an answered call; `hop` says whether another thread carried it out.
    pub(crate) fn count(&self, op: Counted, hop: bool) {
        self.calls[op as usize].fetch_add(1, Ordering::Relaxed);
        self.hops[op as usize].fetch_add(u64::from(hop), Ordering::Relaxed);
    }

    /// Counts a call that was left to other threads because its own thread has a low priority.
    pub(crate) fn count_handed(&self) {
        self.handed.fetch_add(1, Ordering::Relaxed);
    }

    /// The calls for the purpose `op`.
    pub(crate) fn of(&self, op: Counted) -> Calls {
        Calls {
            calls: self.calls[op as usize].load(Ordering::Relaxed),
            hops: self.hops[op as usize].load(Ordering::Relaxed),
        }
    }

    /// The calls for all purposes.
    pub(crate) fn all(&self) -> Calls {
        let mut all = Calls { calls: 0, hops: 0 };
        for (op, _) in Counted::NAMES {
            let one = self.of(op);
            all.calls += one.calls;
            all.hops += one.hops;
        }
        all
    }

    /// The calls that were left to other threads.
    pub(crate) fn handed(&self) -> u64 {
        self.handed.load(Ordering::Relaxed)
    }
}
