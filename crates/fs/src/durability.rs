//! What makes changes durable: checkpoints, the sync log, write-back, zones that fail, recovery.

pub(crate) mod append;
pub(crate) mod checkpoint;
mod dispatch;
pub(crate) mod namespace_log;
pub(crate) mod recover;
pub(crate) mod relocate;
pub(crate) mod sync;
mod write_back;

use crate::types::Ino;
use furrow_zone::{Error, Result, ZoneId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Where checkpoints and tables are.
///
/// Invariants:
/// - `id` is the newest durable checkpoint that the pool knows.
/// - The ring's zone in use holds something.
#[derive(Clone, Default)]
pub(crate) struct CheckpointState {
    /// Newest durable checkpoint.
    pub(crate) id: u64,
    /// Mount epoch.
    pub(crate) epoch: u64,
    /// Zone of the ring written now: 0 or 1.
    pub(crate) ring: u8,
    /// Ring zones that hold anything.
    pub(crate) ring_used: [bool; 2],
    /// Blocks of the newest checkpoint.
    pub(crate) blocks: u32,
    /// Bytes of table entries on their way to the drive.
    pub(crate) snapshot_bytes: u64,
    /// Something changed since the last snapshot that needs a checkpoint.
    pub(crate) forced: bool,
    /// The next checkpoint goes to the ring's other zone.
    pub(crate) leave_ring: bool,
    /// Files whose changed blocks the last snapshot left in memory, because nodes above them are
    /// damaged: they hold up nobody else's data.
    pub(crate) aside: BTreeMap<Ino, Error>,
}

/// Where the sync log is.
///
/// Invariants:
/// - `next` is where the writer stands in the zones of `half`.
/// - A half with anything written since its reset is used.
/// - An fsync waits for a record only while a record is in flight.
#[derive(Default)]
pub(crate) struct SyncLog {
    /// Half written now.
    pub(crate) half: u8,
    /// Next block of it, in striping order.
    pub(crate) next: u32,
    /// Sequence of the next record.
    pub(crate) sequence: u64,
    /// Halves that hold anything.
    pub(crate) used: [bool; 2],
    /// Records not yet durable.
    pub(crate) in_flight: u32,
    /// Fsyncs that wait to share the next record, and how they will be answered.
    waiters: Vec<Ino>,
    round: Round,
}

/// Fsyncs that share a record.
#[derive(Clone, Default)]
pub(crate) struct Round(Rc<RoundState>);

#[derive(Default)]
struct RoundState {
    /// What each of them is answered.
    results: RefCell<Option<BTreeMap<Ino, Result<()>>>>,
    done: furrow_rt::Notify,
}

/// What is known of appends.
#[derive(Default)]
pub(crate) struct Appends {
    /// Blocks on their way.
    blocks: BTreeSet<(Ino, u32)>,
    /// Appends not finished.
    flights: usize,
    /// Somebody waits until there are none: none is begun.
    held: u32,
}

/// Zones that failed and what they lost.
#[derive(Default)]
pub(crate) struct Relocation {
    /// The file system is whole: recovery has ended.
    able: bool,
    /// Who waits for a relocation.
    pub(crate) waiting: u32,
    lost: BTreeMap<ZoneId, Lost>,
}

struct Lost {
    /// Blocks from here on were not written.
    from: u32,
    /// Nothing of its superzone is in flight, and no zone of it active.
    closed: bool,
}

impl SyncLog {
    /// Fsyncs that wait for a record to share.
    pub(crate) fn waiters(&self) -> usize {
        self.waiters.len()
    }
}
