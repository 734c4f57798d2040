//! Durability of changes: checkpoints, the sync log, write-back, failing zones, recovery.

pub(crate) mod append;
mod audit;
pub(crate) mod checkpoint;
mod dispatch;
pub(crate) mod failed_zones;
pub(crate) mod namespace_log;
pub(crate) mod node_change;
pub(crate) mod recover;
pub(crate) mod sync;
mod throttle;
mod write_back;

use crate::tree::cache::Ticket;
use crate::types::Ino;
use furrow_log::audit::Broken;
use furrow_log::writer::WriteHandle;
use furrow_zone::{Error, Result, ZoneId};
use namespace_log::{NameOp, NamespaceLog};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use sync::SyncLog;

/// The state that makes changes durable. Its parts are visible only in this folder.
pub(crate) struct Durability {
    namespace_log: NamespaceLog,
    checkpoint: CheckpointState,
    sync: SyncLog,
    appends: Appends,
    relocation: Relocation,
    writes: Dispatched,
}

/// Dispatched writes whose pages the cache still keeps.
///
/// Invariants:
/// - The number of pages that the cache has handed out is `in_flight` plus the length of `tickets`.
/// - `watched` is set only within one stretch.
#[derive(Default)]
struct Dispatched {
    /// The writes of the present stretch, if a caller wants to wait for them.
    watched: Option<Vec<WriteHandle>>,
    /// Tickets of writes dispatched in the present stretch.
    tickets: SmallVec<[Ticket; 8]>,
    /// Number of pages whose writes were dispatched in earlier stretches and are not yet known to
    /// be complete.
    in_flight: usize,
}

impl Durability {
    /// Builds the state from its parts, with no append, relocation or write under way.
    pub(crate) fn new(
        namespace_log: NamespaceLog,
        checkpoint: CheckpointState,
        sync: SyncLog,
    ) -> Durability {
        Durability {
            namespace_log,
            checkpoint,
            sync,
            appends: Appends::default(),
            relocation: Relocation::default(),
            writes: Dispatched::default(),
        }
    }

    /// From now on, all parts tell `broken` when one of their counts would go below zero.
    pub(crate) fn note_broken_in(&mut self, broken: &Broken) {
        self.namespace_log.note_broken_in(broken);
    }

    /// Appends a change of a name to the namespace log.
    pub(crate) fn log_name(&mut self, change: &NameOp) {
        self.namespace_log.push(change);
    }

    /// Notes that the sync record with the last change of a name must also hold the content
    /// of `ino`.
    pub(crate) fn carry(&mut self, ino: Ino) {
        self.namespace_log.carry(ino);
    }

    /// Bytes of the name changes since the last checkpoint.
    pub(crate) fn names_bytes(&self) -> u64 {
        self.namespace_log.bytes()
    }

    /// The sequence number of the next change of a name.
    pub(crate) fn next_name(&self) -> u64 {
        self.namespace_log.next()
    }

    /// At repair, skips the sequence number of a name change that cannot be replayed.
    pub(crate) fn skip_name(&mut self) {
        self.namespace_log.skip();
    }

    /// Makes a checkpoint due, even if no page is dirty.
    pub(crate) fn require_checkpoint(&mut self) {
        self.checkpoint.forced = true;
    }

    /// The number of the newest durable checkpoint.
    pub(crate) fn checkpoint_id(&self) -> u64 {
        self.checkpoint.id
    }

    /// Size of the newest checkpoint, in blocks.
    pub(crate) fn checkpoint_blocks(&self) -> u32 {
        self.checkpoint.blocks
    }

    /// Sets whether the next checkpoint goes to the other zone of the ring.
    pub(crate) fn leave_ring(&mut self, leave: bool) {
        self.checkpoint.leave_ring = leave;
    }

    /// Bytes of table entries that the checkpoint under way is writing.
    pub(crate) fn snapshot_bytes(&self) -> u64 {
        self.checkpoint.snapshot_bytes
    }

    /// Number of blocks written in the current half of the sync log.
    pub(crate) fn sync_blocks(&self) -> u32 {
        self.sync.next()
    }

    /// True if no append is under way.
    pub(crate) fn appends_are_idle(&self) -> bool {
        self.appends.is_idle()
    }

    /// Notes that a page was handed to the writer.
    pub(crate) fn note_write(&mut self, ticket: Ticket) {
        self.writes.tickets.push(ticket);
    }

    /// Number of pages whose writes were dispatched before the present stretch and are not yet
    /// known to be complete.
    pub(crate) fn in_flight(&self) -> usize {
        self.writes.in_flight
    }

    /// Starts to collect writes for [`Durability::watched`].
    pub(crate) fn watch(&mut self) {
        self.writes.watched = Some(Vec::new());
    }

    /// Returns the writes since [`Durability::watch`].
    pub(crate) fn watched(&mut self) -> Vec<WriteHandle> {
        self.writes.watched.take().unwrap_or_default()
    }

    /// True if a zone has failed since the mount.
    pub(crate) fn any_zone_failed(&self) -> bool {
        self.relocation.any
    }

    /// Checks the accounts of each part.
    ///
    /// # Errors
    /// `Internal`, with the account that is wrong.
    pub(crate) fn audit(&self) -> Result<()> {
        self.namespace_log.audit()?;
        self.appends.audit()
    }
}

#[cfg(test)]
impl Durability {
    /// The half of the sync log that records are written to now.
    pub(crate) fn sync_half(&self) -> u8 {
        self.sync.half()
    }

    /// The zone of the ring that checkpoints are written to now.
    pub(crate) fn ring(&self) -> u8 {
        self.checkpoint.ring
    }

    /// Counts all name changes as logged, although their bytes still count as not logged.
    pub(crate) fn corrupt_logged(&mut self) {
        self.namespace_log.corrupt_logged();
    }

    /// Marks a half of the sync log as unused; true if it was used.
    pub(crate) fn corrupt_sync_used(&mut self, half: u8) -> bool {
        self.sync.released(half)
    }

    /// Makes the count of pages in flight too large by `pages`.
    pub(crate) fn corrupt_in_flight(&mut self, pages: usize) {
        self.writes.in_flight += pages;
    }
}

/// The state of checkpoints and of their ring.
///
/// Invariants:
/// - The pool knows checkpoint `id` as the newest durable checkpoint.
/// - Zone `ring` of the ring is not empty.
#[derive(Clone, Default)]
pub(crate) struct CheckpointState {
    /// Number of the newest durable checkpoint.
    id: u64,
    /// Epoch of this mount.
    epoch: u64,
    /// Zone of the ring that is written now: 0 or 1.
    ring: u8,
    /// Whether each zone of the ring holds anything.
    ring_used: [bool; 2],
    /// Size of the newest checkpoint, in blocks.
    blocks: u32,
    /// Bytes of table entries that the checkpoint under way is writing.
    snapshot_bytes: u64,
    /// True if a change since the last snapshot needs a checkpoint, even if no page is dirty.
    forced: bool,
    /// True if the next checkpoint must go to the other zone of the ring.
    leave_ring: bool,
    /// Files whose dirty blocks the last snapshot left in memory, because nodes above these blocks
    /// are damaged. Setting them aside lets the data of other files become durable.
    aside: BTreeMap<Ino, Error>,
}

/// The state of appends.
#[derive(Default)]
pub(crate) struct Appends {
    /// Blocks whose appends are in flight: the inode, and the block's number in the file.
    blocks: BTreeSet<(Ino, u32)>,
    /// Number of appends in flight.
    flights: usize,
    /// Number of callers that wait until no append is in flight. While a caller waits, no
    /// append begins.
    held: u32,
}

/// Zones that failed, and the blocks they lost.
///
/// Invariant: `any` is set if `lost` has an entry.
#[derive(Default)]
pub(crate) struct Relocation {
    /// True once a mount has begun its last checkpoint: from then on the engine relocates the
    /// blocks that a failed zone lost.
    able: bool,
    /// True if a zone has failed since the mount.
    any: bool,
    /// Number of callers that wait for a relocation.
    waiting: u32,
    lost: BTreeMap<ZoneId, Lost>,
}

struct Lost {
    /// Number of blocks at the front of the zone that were written; no block behind them
    /// was written.
    from: u32,
    /// True once no write to the zone's superzone or log half is in flight, and no zone there
    /// is active.
    closed: bool,
}
