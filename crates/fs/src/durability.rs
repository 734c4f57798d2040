//! Durability of changes: checkpoints, the sync log, write-back, zones that fail, recovery.

pub(crate) mod append;
mod audit;
pub(crate) mod checkpoint;
mod dispatch;
pub(crate) mod namespace_log;
pub(crate) mod node_change;
pub(crate) mod recover;
pub(crate) mod relocate;
pub(crate) mod sync;
mod write_back;

use crate::accounts::Broken;
use crate::tree::cache::Ticket;
use crate::types::Ino;
use furrow_log::writer::WriteHandle;
use furrow_zone::{Error, Result, ZoneId};
use namespace_log::{NameOp, NamespaceLog};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use sync::SyncLog;

/// The state that makes changes durable. Its parts are visible in this folder only.
pub(crate) struct Durability {
    namespace_log: NamespaceLog,
    checkpoint: CheckpointState,
    sync: SyncLog,
    appends: Appends,
    relocation: Relocation,
    writes: Dispatched,
}

/// Writes dispatched whose pages the cache keeps.
///
/// Invariants:
/// - `in_flight` and `tickets` together are the pages that the cache handed out.
/// - `watched` is set within one stretch only.
#[derive(Default)]
struct Dispatched {
    /// The writes of the present stretch, if a caller wants to wait for them.
    watched: Option<Vec<WriteHandle>>,
    /// Tickets of writes dispatched in the present stretch.
    tickets: SmallVec<[Ticket; 8]>,
    /// Writes dispatched in earlier stretches, not yet known to be complete, in pages.
    in_flight: usize,
}

impl Durability {
    /// A state with nothing under way.
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

    /// Accounts that go below zero are noted in `broken` from now on.
    pub(crate) fn note_broken_in(&mut self, broken: &Broken) {
        self.namespace_log.note_broken_in(broken);
    }

    /// Logs a change of a name.
    pub(crate) fn log_name(&mut self, change: &NameOp) {
        self.namespace_log.push(change);
    }

    /// The next record must hold the content of `ino` too.
    pub(crate) fn carry(&mut self, ino: Ino) {
        self.namespace_log.carry(ino);
    }

    /// Bytes that changes of names since the last checkpoint take.
    pub(crate) fn names_bytes(&self) -> u64 {
        self.namespace_log.bytes()
    }

    /// The number of the next change of a name.
    pub(crate) fn next_name(&self) -> u64 {
        self.namespace_log.next()
    }

    /// At repair: leaves out the next change of a name.
    pub(crate) fn skip_name(&mut self) {
        self.namespace_log.skip();
    }

    /// Notes a change that needs a checkpoint.
    pub(crate) fn require_checkpoint(&mut self) {
        self.checkpoint.forced = true;
    }

    /// The newest durable checkpoint.
    pub(crate) fn checkpoint_id(&self) -> u64 {
        self.checkpoint.id
    }

    /// Blocks of the newest checkpoint.
    pub(crate) fn checkpoint_blocks(&self) -> u32 {
        self.checkpoint.blocks
    }

    /// Whether the next checkpoint goes to the ring's other zone.
    pub(crate) fn leave_ring(&mut self, leave: bool) {
        self.checkpoint.leave_ring = leave;
    }

    /// Bytes of table entries on their way to the drive.
    pub(crate) fn snapshot_bytes(&self) -> u64 {
        self.checkpoint.snapshot_bytes
    }

    /// Written blocks of the half of the sync log that is written now.
    pub(crate) fn sync_blocks(&self) -> u32 {
        self.sync.next()
    }

    /// True if no append is under way.
    pub(crate) fn appends_are_idle(&self) -> bool {
        self.appends.is_idle()
    }

    /// A page was handed to the writer.
    pub(crate) fn note_write(&mut self, ticket: Ticket) {
        self.writes.tickets.push(ticket);
    }

    /// Writes dispatched before the present stretch, not yet known to be complete, in pages.
    pub(crate) fn in_flight(&self) -> usize {
        self.writes.in_flight
    }

    /// From now on writes are noted for [`Durability::watched`].
    pub(crate) fn watch(&mut self) {
        self.writes.watched = Some(Vec::new());
    }

    /// The writes since [`Durability::watch`].
    pub(crate) fn watched(&mut self) -> Vec<WriteHandle> {
        self.writes.watched.take().unwrap_or_default()
    }

    /// True if a zone has failed since the mount.
    pub(crate) fn any_zone_failed(&self) -> bool {
        self.relocation.any
    }

    /// Audits the accounts within each part.
    ///
    /// # Errors
    /// `Internal`, with the account.
    pub(crate) fn audit(&self) -> Result<()> {
        self.namespace_log.audit()?;
        self.appends.audit()
    }
}

#[cfg(test)]
impl Durability {
    /// The half of the sync log that is written now.
    pub(crate) fn sync_half(&self) -> u8 {
        self.sync.half()
    }

    /// The zone of the ring that is written now.
    pub(crate) fn ring(&self) -> u8 {
        self.checkpoint.ring
    }

    /// Forgets that changes of names wait for a record.
    pub(crate) fn corrupt_logged(&mut self) {
        self.namespace_log.corrupt_logged();
    }

    /// Forgets that a half of the sync log holds anything; true if it did.
    pub(crate) fn corrupt_sync_used(&mut self, half: u8) -> bool {
        self.sync.released(half)
    }

    /// Counts pages as in flight that are not.
    pub(crate) fn corrupt_in_flight(&mut self, pages: usize) {
        self.writes.in_flight += pages;
    }
}

/// The state of checkpoints and of their ring.
///
/// Invariants:
/// - `id` is the newest durable checkpoint that the pool knows.
/// - The ring's zone in use is not empty.
#[derive(Clone, Default)]
pub(crate) struct CheckpointState {
    /// Newest durable checkpoint.
    id: u64,
    /// Mount epoch.
    epoch: u64,
    /// Zone of the ring written now: 0 or 1.
    ring: u8,
    /// Ring zones that hold anything.
    ring_used: [bool; 2],
    /// Blocks of the newest checkpoint.
    blocks: u32,
    /// Bytes of table entries on their way to the drive.
    snapshot_bytes: u64,
    /// A change since the last snapshot needs a checkpoint.
    forced: bool,
    /// The next checkpoint goes to the ring's other zone.
    leave_ring: bool,
    /// Files whose changed blocks the last snapshot left in memory, because nodes above them are
    /// damaged: other files' data does not wait for them.
    aside: BTreeMap<Ino, Error>,
}

/// The state of appends.
#[derive(Default)]
pub(crate) struct Appends {
    /// Blocks in flight.
    blocks: BTreeSet<(Ino, u32)>,
    /// Appends not finished.
    flights: usize,
    /// Callers that wait until there are none: no append begins meanwhile.
    held: u32,
}

/// Zones that failed, and the blocks they lost.
///
/// Invariant: `any` is set if `lost` has an entry.
#[derive(Default)]
pub(crate) struct Relocation {
    /// The file system is whole: recovery has ended.
    able: bool,
    /// A zone has failed since the mount.
    any: bool,
    /// Callers that wait for a relocation.
    waiting: u32,
    lost: BTreeMap<ZoneId, Lost>,
}

struct Lost {
    /// Blocks from here on were not written.
    from: u32,
    /// No write to its superzone is in flight, and none of the superzone's zones is active.
    closed: bool,
}
